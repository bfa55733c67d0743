"""Calls the functions of `module.cpp`; prints the time of a call. Usage: check.py MODULE.so [name]"""

import gc
import importlib.machinery
import importlib.util
import sys
import time

import torch
from torch.utils._python_dispatch import TorchDispatchMode


def load(path, name):
    loader = importlib.machinery.ExtensionFileLoader(name, path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module


def raises(kind, part, call):
    try:
        call()
    except kind as error:
        assert part in str(error), str(error)
        return
    raise AssertionError(f"no {kind.__name__} with {part!r}")


def same(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b), (a, b)


class Log(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
        self.seen.append(function.name())
        return function(*args, **(kwargs or {}))


def metadata(m, x):
    assert m.__doc__ == "a doc" and m.shape.__doc__.strip().endswith("doc")
    assert m.shape(x) == [4, 6]
    assert m.facts(x.t()) == (2, 24, "Float", False, 1)
    assert m.size_of(x, -1) == 6
    raises(IndexError, "Dimension out of range (expected to be in range of [-2, 1], but got 5)",
           lambda: m.size_of(x, 5))
    assert m.at2(x) == 8.0
    raises(RuntimeError, "expected 2 dims but tensor has 1", lambda: m.at2(x[0]))
    raises(RuntimeError, "expected scalar type Float but found Double", lambda: m.at2(x.double()))
    assert m.identity(x) is x and m.undefined() is None and m.nothing() is None


def dispatch(m):
    kinds = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64,
             torch.int32, torch.int16, torch.int8, torch.uint8]
    for kind in kinds:
        same(m.add_one(torch.arange(9).to(kind).reshape(3, 3).t()),
             (torch.arange(9).to(kind) + 1).reshape(3, 3).t().contiguous())
    raises(RuntimeError, "\"add_one\" not implemented for 'Bool'",
           lambda: m.add_one(torch.tensor([True])))


def arguments(m, x):
    assert m.scalars(1) == 7.75 and m.scalars(1, s="x", d=9) == 14.5
    assert m.scalars(True, torch.tensor(3), 2, torch.tensor(1.5), None) == 10.5
    wrong = "incompatible function arguments"
    for call in [lambda: m.scalars(), lambda: m.scalars(1.5), lambda: m.scalars(2**40),
                 lambda: m.scalars(1, 2, 3, 4, 5, "d", 7), lambda: m.scalars(1, a=2),
                 lambda: m.scalars(1, zz=2), lambda: m.pick(x), lambda: m.pick(None, None, None),
                 lambda: m.shape([1, 2]), lambda: m.made("ab", torch.float32),
                 lambda: m.overloaded("s")]:
        raises(TypeError, wrong, call)
    same(m.pick(None, None, x), x)
    same(m.pick(x[1], 1.0, x), x[1])
    raises(RuntimeError, "d is -1", lambda: m.pick(x, -1.0, x))
    assert m.overloaded(3) == 3 and m.overloaded(x) == 2.5 and getattr(m, "lambda")(4) == 8


def made(m, x):
    same(m.made((2, 2), torch.float64)[1], torch.zeros(2, 2, dtype=torch.float64))
    same(m.made([3], torch.float16)[2], torch.ones(3, dtype=torch.float16))
    same(m.made([3], torch.float32)[3], torch.full([3], 2.5))
    same(m.made([3], torch.float32)[4], torch.full([2, 3], 7, dtype=torch.int32))
    first, second = m.views(x)
    same(first, x.flatten())
    same(second, x[1:3, 0:2][0].double())
    raises(RuntimeError, "shape '[7, 7]' is invalid for input of size 24", lambda: m.bad_view(x))
    with Log() as log:
        m.made([2], torch.float32)
        m.views(x)
        m.add_one(x)
    assert log.seen == [f"aten::{n}" for n in (
        "empty.memory_format zeros ones full full view view transpose.int unsqueeze squeeze.dim "
        "permute view slice.Tensor slice.Tensor select.int clone _to_copy empty_like").split()]
    torch.use_deterministic_algorithms(True)
    assert m.made([64], torch.float32)[0].isnan().all() and m.add_one(x)[0, 0] == 1
    torch.use_deterministic_algorithms(False)


def errors(m):
    raises(RuntimeError, "plain", lambda: m.throws(0))
    raises(RuntimeError, "Caught an unknown exception!", lambda: m.throws(1))
    raises(RuntimeError, "kind is 2 not 5.5", lambda: m.throws(2))
    m.throws(5)


def halves(m):
    every = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    some = torch.randint(-2**31, 2**31, (200_000,), dtype=torch.int32).view(torch.float32)
    near = torch.arange(65536, dtype=torch.float32) * 2.0**-30
    edges = torch.tensor([65504.0, 65519.96, 65520.0, 65536.0, 2.0**-24, 2.0**-25, 2.0**-26,
                          3 * 2.0**-26, 6.1e-5, -0.0, 0.0, float("inf"), float("nan")])
    floats = torch.cat([some, near, edges, -edges])
    for brain, kind in [(False, torch.float16), (True, torch.bfloat16)]:
        wanted = every.view(kind).float()
        got = m.all_halves(brain)
        assert torch.equal(wanted.isnan(), got.isnan())
        same(got[~got.isnan()].view(torch.int32), wanted[~got.isnan()].view(torch.int32))
        bits = torch.tensor(m.half_bits(floats, brain)).to(torch.int16)
        plain = ~floats.isnan()
        same(bits[plain], floats.to(kind).view(torch.int16)[plain])
        assert bits.view(kind)[~plain].isnan().all()


def leaks(m, x):
    calls = [lambda: m.identity(x), lambda: m.pick(x, 1.0, x), lambda: m.views(x),
             lambda: m.pick(None, 1.0, x), lambda: m.made([8], torch.float32),
             lambda: m.add_one(x), lambda: m.facts(x)]
    for call in calls:
        call()
    gc.collect()
    references, uses, blocks = sys.getrefcount(x), x._use_count(), sys.getallocatedblocks()
    for _ in range(10_000):
        for call in calls:
            call()
    gc.collect()
    assert sys.getrefcount(x) == references and x._use_count() == uses
    assert sys.getallocatedblocks() < blocks + 500


def speed(m, x):
    def best(call, rounds=20_000):
        times = []
        for _ in range(7):
            start = time.perf_counter_ns()
            for _ in range(rounds):
                call()
            times.append((time.perf_counter_ns() - start) / rounds)
        return round(min(times))

    print("ns per call:", {"nothing": best(lambda: m.nothing()),
                           "one tensor": best(lambda: m.identity(x)),
                           "two tensors and a number": best(lambda: m.pick(x, 1.0, x)),
                           "six scalars": best(lambda: m.scalars(1, 2, 0.5, 0.25, True, "abc")),
                           "five facts": best(lambda: m.facts(x)),
                           "a new tensor": best(lambda: m.add_one(x)),
                           "an empty Python function": best(lambda: None)})


def main():
    m = load(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "keck_extension_0")
    x = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    metadata(m, x)
    dispatch(m)
    arguments(m, x)
    made(m, x)
    errors(m)
    halves(m)
    leaks(m, x)
    speed(m, x)


if __name__ == "__main__":
    main()
