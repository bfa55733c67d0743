"""Whether two ways to build CUDA candidates give the same outputs. Usage: bitwise.py LOG_A LOG_B

Both are logs of `judge-batch` on the same pairs with KERNELZERO_LOG=keck=debug, one with
`full-headers = true` in the host file. Prints one JSON object; ends with 1 if any output differs or
a candidate answered in one of them only.
"""

import json
import re
import sys

ANSWERED = re.compile(r"answered candidate=(\w+) trial=(\d+) outputs=(\w+)")


def read(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return {match.group(1, 2): match[3] for match in map(ANSWERED.search, file) if match}


def main():
    one, other = read(sys.argv[1]), read(sys.argv[2])
    differ = sorted({key[0][:12] for key in one.keys() | other.keys()
                     if one.get(key) != other.get(key)})
    print(json.dumps({"candidates": len({key[0] for key in one}), "outputs": len(one),
                      "differ": differ}))
    sys.exit(1 if differ or not one else 0)


if __name__ == "__main__":
    main()
