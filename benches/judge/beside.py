"""Puts KernelBench's results beside the judge's. Usage: beside.py PEER JUDGED SECONDS

PEER is the output of kernelbench.py, JUDGED that of `judge-batch --profile paper` on the same pairs,
which took SECONDS in all, its start included. Prints one JSON object: candidates a minute of both,
and the pairs whose verdicts differ. KernelBench evaluates one after the other; where it was given
fewer pairs its rate is that of those.
"""

import json
import statistics
import sys


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        peer = [json.loads(line) for line in file]
    with open(sys.argv[2], encoding="utf-8") as file:
        judged = {row["id"]: row for row in map(json.loads, file)}
    seconds = float(sys.argv[3])
    theirs = 60 / statistics.mean(row["seconds"] for row in peer)
    ours = 60 * len(judged) / seconds
    same = {"correct": "correct", "incorrect": "incorrect", "compile_error": "compile_error"}
    differ = []
    for row in peer:
        mine = judged[row["id"]]["outcome"]
        if same.get(row["verdict"]) != mine and (row["verdict"] == "correct") != (mine == "correct"):
            differ.append([row["id"], row["verdict"], mine, judged[row["id"]]["reason"][:120]])
    print(json.dumps({"peer_timed": len(peer), "peer_a_minute": round(theirs, 2),
                      "judged": len(judged), "a_minute": round(ours, 1),
                      "times": round(ours / theirs, 1), "other_verdicts": differ}, indent=1))


if __name__ == "__main__":
    main()
