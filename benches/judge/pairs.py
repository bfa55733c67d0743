"""Writes pairs of a reference and a candidate from folders of cases as JSONL for `judge-batch`.

Usage: pairs.py OUT FOLDER... [--backend cuda|triton] [--kinds honest,broken] [--repeat N]
                              [--count N [--cycle FILE] [--most N]]

A case is a `.py` file whose header names its reference and backend; `reference/` beside its folder
holds the references. `--repeat` writes each pair N times, each with a seed of its own. `--count`
writes that many pairs in all, going round `--most` cases; with `--cycle` every tenth is of the named ones.
"""

import argparse
import json
import os
import sys


def header(path):
    found = {}
    with open(path, encoding="utf-8", errors="replace") as file:
        for line in file:
            if not line.startswith("#"):
                break
            name, colon, value = line[1:].partition(":")
            if colon:
                found[name.strip()] = value.strip()
    return found


def cases(folders, kinds, backend):
    for folder in folders:
        for root, _, files in sorted(os.walk(folder)):
            for file in sorted(files):
                path = os.path.join(root, file)
                facts = header(path) if file.endswith(".py") else {}
                # A folder of one kind, or a file whose name begins with its kind.
                of_kind = os.path.basename(root).startswith(tuple(kinds)) or file.startswith(tuple(kinds))
                if "reference" not in facts or not of_kind:
                    continue
                reference = next((p for p in references(root, folder, facts["reference"])
                                  if os.path.exists(p)), None)
                if reference and (not backend or facts.get("backend") == backend):
                    yield f"{os.path.basename(root)}/{file[:-3]}", facts, reference, path


def references(root, folder, name):
    return (os.path.join(base, "reference", name + ".py") for base in (root, folder,
                                                                      os.path.dirname(root)))


def pair(name, facts, reference, candidate, seed=None):
    found = {"id": name, "reference_file": os.path.abspath(reference),
             "candidate_file": os.path.abspath(candidate)}
    return found if seed is None else {**found, "id": f"{name}#{seed}", "seed": seed}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--backend")
    parser.add_argument("--kinds", default="honest,broken")
    parser.add_argument("--names", help="only these, by their file's name without .py")
    parser.add_argument("--repeat", type=int)
    parser.add_argument("--count", type=int)
    parser.add_argument("--most", type=int, help="so many cases, so that each round is the same")
    parser.add_argument("--cycle", help="a file with one name of a case a line")
    options = parser.parse_args()
    found = list(cases(options.folders, options.kinds.split(","), options.backend))
    if options.names:
        wanted = set(options.names.split(","))
        found = [case for case in found if case[0].rsplit("/", 1)[1] in wanted]
    found = found[:options.most]
    if not found:
        sys.exit(f"no case of {options.kinds} in {options.folders}")
    if options.count:
        bad = []
        if options.cycle:
            with open(options.cycle, encoding="utf-8") as file:
                names = [line.strip() for line in file if line.strip()]
            every = {c[0].rsplit("/", 1)[1]: c for c in
                     cases(options.folders, ["honest", "broken", "hack"], None)}
            bad = [every[name] for name in names if name in every]
            if not bad:
                sys.exit(f"none of the cases that {options.cycle} names is there")
        rows = []
        for number in range(options.count):
            if bad and number % 10 == 9:
                case = bad[(number // 10) % len(bad)]
            else:
                case = found[number % len(found)]
            rows.append(pair(*case, seed=number))
    elif options.repeat:
        rows = [pair(*case, seed=seed) for seed in range(1, options.repeat + 1) for case in found]
    else:
        rows = [pair(*case) for case in found]
    with open(options.out, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    print(f"{len(rows)} pairs of {len(found)} cases in {options.out}")


if __name__ == "__main__":
    main()
