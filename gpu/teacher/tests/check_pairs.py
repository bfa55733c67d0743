"""Checks pairs written by teacher-dump: reference against kernel, in Triton's interpreter.

usage: check_pairs.py FILE [--limit N] [--jobs J] [--out CHECKED] [--compile N]

--out writes the rows with "checked": true where all checks pass; failing rows are left out.
--compile N compiles the first N kernels for sm_90 instead (no GPU is needed).
An interrupt (SIGINT) ends the run early, with a report on what was checked.
"""

import argparse
import collections
import json
import os
import re
import sys
import tempfile
import zlib

if "--compile" not in sys.argv:
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")

import linecache
import warnings
from multiprocessing import get_context

import numpy as np
import torch
import torch.nn as nn
import triton

warnings.filterwarnings("ignore")
np.seterr(all="ignore")
TOLERANCE = 2e-5
TINY = 1e-3
HUGE = 1e6
NEW = 0


def patch_once():
    """Lets the interpreter patch the language once, not in every nested call, and lets integers
    overflow unchecked: two thirds of its time."""
    from triton.runtime import interpreter

    patch, seen = interpreter._patch_lang, set()

    def memo(fn):
        key = tuple(sorted(id(v) for v in fn.__globals__.values()
                           if v is interpreter.tl or v is interpreter.tl.core))
        if key not in seen:
            seen.add(key)
            patch(fn)
        return interpreter._LangPatchScope()

    interpreter._patch_lang = memo
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(
        sanitize_overflow=False)


def load(source, name):
    """Runs a source text as a module; Triton needs to find its lines."""
    global NEW
    NEW += 1
    path = f"<pair {NEW} {name}>"
    linecache.cache[path] = (len(source), None, source.splitlines(True), path)
    space = {"__name__": f"pair_{name}"}
    exec(compile(source, path, "exec"), space)
    return space, path


def used_apis(row, ref):
    """The tracked APIs that the module really uses, from its text and its submodules."""
    text = row["module"].split("def get_inputs")[0]
    used = set()
    for prefix, names in (("torch", r"\btorch\.(\w+)\("), ("torch.nn.functional", r"\bF\.(\w+)\("),
                          ("torch.nn", r"\bnn\.(\w+)\(")):
        used |= {f"{prefix}.{n}" for n in re.findall(names, text)}
    calls = collections.Counter()
    for child in ref.children():
        child.register_forward_hook(lambda m, i, o: calls.update([type(m).__name__]))
    return used, calls


def perturb(ref):
    with torch.no_grad():
        for p in ref.parameters():
            p.add_(torch.randn_like(p) * 0.3)


def compare(ref, new, inputs):
    """An error text, or nothing; and the reference output."""
    want = ref(*inputs)
    got = new(*[i.clone() for i in inputs])
    if want.shape != got.shape or want.dtype != got.dtype:
        return f"shape {tuple(got.shape)} not {tuple(want.shape)}", want
    if not torch.isfinite(want).all():
        return "reference not finite", want
    if not torch.isfinite(got).all():
        return "kernel not finite", want
    scale = want.abs().max().item()
    error = (want - got).abs().max().item()
    if error > TOLERANCE * scale + 1e-12:
        return f"error {error / max(scale, 1e-30):.1e}", want
    return None, want


def depends(ref, inputs):
    """Whether the output changes with each input and each parameter."""
    with torch.no_grad():
        base = ref(*inputs)
        scale = base.abs().max().item()
        for i in range(len(inputs)):
            change = 0.0
            for factor in (1.5, -2.0):
                other = list(inputs)
                other[i] = factor * inputs[i] + torch.randn_like(inputs[i]) + 0.5
                change = max(change, (ref(*other) - base).abs().max().item())
            if change < 1e-3 * scale:
                return f"input {i} hardly matters"
        for name, p in ref.named_parameters():
            kept = p.detach().clone()
            p.add_(torch.randn_like(p) * 0.3)
            change = (ref(*inputs) - base).abs().max().item()
            p.copy_(kept)
            if change < 1e-6 * scale:
                return f"parameter {name} does not matter"
    return None


def check(row):
    torch.manual_seed(zlib.crc32(row["module"].encode()))
    try:
        with torch.no_grad():
            return check_row(row)
    except Exception as e:  # A failing pair must not end the run.
        return f"{type(e).__name__}: {str(e)[:300]}"


def check_row(row):
    space, _ = load(row["module"], "ref")
    args = space["get_init_inputs"]()
    ref = space["Model"](*args).eval()
    used, calls = used_apis(row, ref)
    if used != set(row["apis"]):
        return f"uses {sorted(used ^ set(row['apis']))}"
    new_space, _ = load(row["kernel"], "new")
    new = new_space["ModelNew"](*args).eval()
    new.load_state_dict(ref.state_dict())
    inputs = space["get_inputs"]()
    problem, want = compare(ref, new, inputs)
    if problem:
        return problem
    missing = [type(c).__name__ for c in ref.children() if not calls[type(c).__name__]]
    if missing:
        return f"submodules not called: {missing}"
    size = want.abs().max().item()
    if not TINY < size < HUGE:
        return f"output scale {size:.1e}"
    if want.numel() > 1:
        if want.std().item() < 1e-3 * size:
            return "nearly constant output"
        if (want == 0).float().mean().item() > 0.95:
            return "output nearly all zero"
    problem = depends(ref, inputs)
    if problem:
        return problem
    perturb(ref)
    new.load_state_dict(ref.state_dict())
    for scale in (8.0, 0.05):
        inputs = [i * scale for i in space["get_inputs"]()]
        problem, _ = compare(ref, new, inputs)
        if problem:
            return f"inputs x{scale}: {problem}"
    return None


def compile_all(rows):
    """Compiles kernels for sm_90; returns the number that fail."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    failed = 0
    folder = tempfile.mkdtemp()
    for n, row in enumerate(rows):
        path = os.path.join(folder, f"kernel_{n}.py")
        with open(path, "w") as f:
            f.write(row["kernel"])
        space = {"__name__": f"kernel_{n}"}
        exec(compile(row["kernel"], path, "exec"), space)
        fn = space["kernel"]
        types = {a: "*fp32" if a.endswith("_ptr") else "i32" for a in fn.arg_names}
        types["BLOCK"] = "constexpr"
        block = 1024 if "n" in types else 64
        try:
            triton.compile(ASTSource(fn=fn, signature=types, constexprs={"BLOCK": block}),
                           target=GPUTarget("cuda", 90, 32))
        except Exception as e:
            failed += 1
            print("compile", row["apis"], str(e)[-400:])
    print(f"compiled {len(rows) - failed} of {len(rows)} for sm_90")
    return failed


def report(results):
    bad = [(row, why) for row, why in results if why]
    total, failures = collections.Counter(), collections.Counter()
    for row, why in results:
        total.update(row["apis"])
        if why:
            failures.update(row["apis"])
    print(f"{len(results)} pairs, {len(bad)} fail ({100 * len(bad) / max(1, len(results)):.2f} %)")
    kinds = collections.Counter(re.sub(r"[\d.e+-]+", "#", why)[:60] for _, why in bad)
    for kind, n in kinds.most_common(12):
        print(f"  {n:5} {kind}")
    for api, n in failures.most_common(15):
        print(f"  {n:5} of {total[api]:5} {api}")
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--out")
    parser.add_argument("--compile", type=int)
    parser.add_argument("--show", type=int, default=5)
    args = parser.parse_args()
    with open(args.file) as f:
        rows = [json.loads(line) for line in f]
    if args.compile:
        sys.exit(1 if compile_all(rows[: args.compile]) else 0)
    rows = rows[: args.limit]
    torch.set_num_threads(1)
    patch_once()
    out = open(args.out, "w") if args.out else None
    results = []
    with get_context("fork").Pool(args.jobs, maxtasksperchild=500) as pool:
        try:
            for row, why in zip(rows, pool.imap(check, rows, chunksize=4)):
                results.append((row, why))
                if out and not why:
                    out.write(json.dumps({**row, "checked": True}) + "\n")
                    out.flush()
        except KeyboardInterrupt:
            pool.terminate()
    bad = report(results)
    for row, why in bad[: args.show]:
        print("-" * 20, why, row["apis"], row["module"], row["kernel"], sep="\n")


if __name__ == "__main__":
    main()
