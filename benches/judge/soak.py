"""Judges many candidates in a row and looks at what is left. Usage: soak.py KERNELZERO HOST PAIRS OUT

PAIRS is JSONL for `judge-batch` in which good and bad candidates take turns. Prints one JSON object:
throughput of the first and the last fifth, the judge's descriptors, processes, scratch and device
memory over time and at the end, and honest candidates that were not right.
"""

import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time


def device_mib():
    """Memory used on the device; 0 where there is none."""
    if not shutil.which("nvidia-smi"):
        return 0
    device = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    asked = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits",
                            "-i", device], capture_output=True, text=True, check=True)
    return int(asked.stdout.split()[0])


def descendants(pid):
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
            except OSError:
                pass
    found, front = 0, {pid}
    while front:
        front = {child for child, parent in parents.items() if parent in front}
        found += len(front)
    return found


def state(pid, scratch):
    files = sum(len(files) for folder in glob.glob(scratch) for _, _, files in os.walk(folder))
    return {"descriptors": len(os.listdir(f"/proc/{pid}/fd")), "processes": descendants(pid),
            "scratch_files": files, "device_mib": device_mib()}


def main():
    program, host, pairs, out = sys.argv[1:5]
    if os.path.exists(out):
        sys.exit(f"{out} is there already: a batch would go on after it and judge less; take another name")
    with open(pairs, encoding="utf-8") as file:
        count = sum(1 for _ in file)
    before = device_mib()
    started = time.monotonic()
    judge = subprocess.Popen([program, "--host", host, "judge-batch", pairs, "--out", out, "--timing"],
                             stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    scratch = f"{tempfile.gettempdir()}/keck-{judge.pid}-*"
    times, states, done = [], [], 0
    while judge.poll() is None:
        time.sleep(0.05)
        try:
            with open(out, "rb") as file:
                lines = file.read().count(b"\n")
        except OSError:
            continue
        times += [time.monotonic()] * (lines - done)
        done = lines
        if len(times) >= count * (len(states) + 1) / 10 and done < count:
            try:
                states.append({"at": done, **state(judge.pid, scratch)})
            except OSError:
                pass
    with open(out, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    fifth = count // 5
    rate = lambda part: round(60 * (len(part) - 1) / (part[-1] - part[0]), 1)
    time.sleep(1)
    left = subprocess.run(["pgrep", "-fc", "zygote.py"], capture_output=True, text=True).stdout.strip()
    wrong = [row["id"] for row in rows
             if row["id"].startswith("honest") and row["outcome"] != "correct"]
    outcomes = {}
    for row in rows:
        outcomes[row["outcome"]] = outcomes.get(row["outcome"], 0) + 1
    print(json.dumps({
        "judged": len(rows), "seconds": round(times[-1] - started, 1), "outcomes": outcomes,
        "first_fifth_a_minute": rate(times[:fifth]), "last_fifth_a_minute": rate(times[-fifth:]),
        "honest_not_right": wrong, "states": states,
        "left": {"exit": judge.returncode, "processes": int(left or 0),
                 "scratch": bool(glob.glob(scratch)), "device_mib": device_mib() - before},
    }, indent=1))


if __name__ == "__main__":
    main()
