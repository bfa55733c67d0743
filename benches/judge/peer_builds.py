"""Builds candidates with KernelBench's own `build_compile_cache`, many at once, as its parallel
pre-build does. Usage: peer_builds.py SRC PAIRS WORKERS. Prints one JSON object."""

import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

ONE = """
import sys, types
sys.path.insert(0, sys.argv[1])
for name, item in (("openai", "OpenAI"), ("litellm", "completion")):
    sys.modules[name] = types.ModuleType(name)
    setattr(sys.modules[name], item, None)
from kernelbench.eval import build_compile_cache
print("BUILT", build_compile_cache(open(sys.argv[2]).read(), build_dir=sys.argv[3])[0])
"""


def build(src, path):
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, TORCH_EXTENSIONS_DIR=folder, TORCH_CUDA_ARCH_LIST="9.0")
        start = time.time()
        done = subprocess.run([sys.executable, "-c", ONE, src, path, folder], text=True,
                              capture_output=True, env=environment, timeout=500)
        return round(time.time() - start, 1), "BUILT True" in done.stdout


def main():
    src, path, workers = sys.argv[1], sys.argv[2], int(sys.argv[3])
    with open(path, encoding="utf-8") as lines:
        files = [json.loads(line)["candidate_file"] for line in lines]
    start = time.time()
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(lambda file: build(src, file), files))
    print(json.dumps({"candidates": len(files), "at_once": workers,
                      "seconds": round(time.time() - start, 1),
                      "built": sum(ok for _, ok in results),
                      "median_s": sorted(s for s, _ in results)[len(results) // 2]}))


if __name__ == "__main__":
    main()
