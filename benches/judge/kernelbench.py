"""Times KernelBench's own evaluation, one candidate after the other, each in a fresh process as its
scripts do it. Usage: kernelbench.py SRC CASES [LIMIT]

SRC is the folder `src` of a KernelBench checkout; CASES is what `pairs.py` writes. Prints one JSON
object a candidate.
"""

import json
import os
import subprocess
import sys
import tempfile
import time

ONE = """
import json, sys, time, types
start = time.time()
sys.path.insert(0, sys.argv[1])
# Imported by its utilities to call models; not used here.
for name, item in (("openai", "OpenAI"), ("litellm", "completion")):
    sys.modules[name] = types.ModuleType(name)
    setattr(sys.modules[name], item, None)
import torch
from kernelbench.eval import eval_kernel_against_ref
loaded = time.time()
result = eval_kernel_against_ref(
    open(sys.argv[2]).read(), open(sys.argv[3]).read(), num_correct_trials=5, num_perf_trials=100,
    measure_performance=True, device=torch.device("cuda:0"), backend=sys.argv[4],
    build_dir=sys.argv[5])
word = "none" if result is None else "compile_error" if not result.compiled else (
    "correct" if result.correctness else "incorrect")
print("RESULT " + json.dumps({"verdict": word, "import_s": loaded - start,
                              "eval_s": time.time() - loaded,
                              "runtime_ms": getattr(result, "runtime", None)}))
"""


def evaluate(src, case):
    backend = "cuda" if "cuda_" in os.path.basename(case["candidate_file"]) else "triton"
    with tempfile.TemporaryDirectory() as build:
        command = [sys.executable, "-c", ONE, src, case["reference_file"], case["candidate_file"],
                   backend, build]
        environment = dict(os.environ, TORCH_EXTENSIONS_DIR=build, TRITON_CACHE_DIR=build,
                           TORCH_CUDA_ARCH_LIST="9.0")
        start = time.time()
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400)
        seconds = time.time() - start
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    found = json.loads(lines[-1][7:]) if lines else {"verdict": "crash",
                                                     "error": done.stderr[-300:]}
    return {"id": case["id"], "backend": backend, "seconds": round(seconds, 2), **found}


def main():
    src, path = sys.argv[1:3]
    limit = int(sys.argv[3]) if len(sys.argv) > 3 else None
    with open(path) as lines:
        cases = [json.loads(line) for line in lines][:limit]
    for case in cases:
        print(json.dumps(evaluate(src, case)), flush=True)


if __name__ == "__main__":
    main()
