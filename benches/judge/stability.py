"""What judging the same kernels many times shows. Usage: stability.py MANY LONG

MANY and LONG are results of `judge-batch`, of pairs named `case#seed`: MANY each case several times,
LONG each case once or more with many more turns. Prints one JSON object: verdicts that flipped, how
many intervals of the speed-up hold the case's long median, and the median half-width of intervals
relative to the speed-up. Tasks that are too small to rank are left out of the latter two, counted.
"""

import json
import statistics
import sys


def read(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def case(row):
    return row["id"].partition("#")[0]


def main():
    many, long = read(sys.argv[1]), read(sys.argv[2])
    outcomes, ratios = {}, {}
    for row in many:
        outcomes.setdefault(case(row), set()).add(row["outcome"])
    for row in long:
        if row.get("speedup"):
            ratios.setdefault(case(row), []).append((row["speedup"], row["timed_by"]))
    held, widths, small, other, missed = [], [], 0, 0, {}
    for row in many:
        if not row.get("speedup"):
            continue
        if row["too_small_to_rank"] or case(row) not in ratios:
            small += 1
            continue
        truth = statistics.median(r for r, _ in ratios[case(row)])
        if row["timed_by"] != ratios[case(row)][0][1]:
            other += 1
            continue
        low, high = row["speedup_interval"]
        held.append(low <= truth <= high)
        widths.append((high - low) / 2 / row["speedup"])
        if not held[-1]:
            missed.setdefault(case(row), [round(truth, 3)]).append([round(low, 3), round(high, 3)])
    flips = {name: sorted(found) for name, found in outcomes.items() if len(found) > 1}
    print(json.dumps({
        "kernels": len(outcomes), "judged": len(many), "flips": flips,
        "intervals": len(held), "hold": round(sum(held) / max(1, len(held)), 4),
        "median_half_width": round(statistics.median(widths), 5) if widths else None,
        "too_small": small, "timed_in_another_way": other, "missed": missed,
    }, indent=1))


if __name__ == "__main__":
    main()
