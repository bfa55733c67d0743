"""What judging the same kernels many times shows. Usage: stability.py MANY LONG

MANY and LONG are results of `judge-batch`, of pairs named `case#seed`: MANY each case many times, LONG
each case in several processes with more turns, whose median is held to be true. Prints one JSON object:
verdicts that flipped; how many intervals of the speed-up hold the case's true median, of all tasks and of
those that can be ranked; and the median half-width of the latter's intervals, relative to the speed-up.
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
            ratios.setdefault(case(row), []).append(row["speedup"])
    intervals, missed = [], {}
    for row in many:
        if not row.get("speedup") or case(row) not in ratios:
            continue
        truth = statistics.median(ratios[case(row)])
        low, high = row["speedup_interval"]
        found = {"ranked": not row["too_small_to_rank"], "holds": low <= truth <= high,
                 "half": (high - low) / 2 / row["speedup"]}
        intervals.append(found)
        if not found["holds"]:
            missed.setdefault(case(row), [round(truth, 3)]).append([round(low, 3), round(high, 3)])
    ranked = [found for found in intervals if found["ranked"]]
    flips = {name: sorted(found) for name, found in outcomes.items() if len(found) > 1}
    print(json.dumps({
        "kernels": len(outcomes), "judged": len(many), "flips": flips,
        "all": summary(intervals), "ranked": summary(ranked), "missed": missed,
    }, indent=1))


def summary(intervals):
    if not intervals:
        return {"intervals": 0}
    return {"intervals": len(intervals),
            "hold": round(sum(found["holds"] for found in intervals) / len(intervals), 4),
            "median_half_width": round(statistics.median(found["half"] for found in intervals), 4)}


if __name__ == "__main__":
    main()
