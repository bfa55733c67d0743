# reference: row_softmax
# backend: triton
# expect: rejected
# accept: rejected, incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def touch(p, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p + i, tl.load(p + i, mask=i < n), mask=i < n)


from functools import wraps

class Grab:
    def __init__(self):
        self.kept = []

    def __setattr__(self, name, value):
        STORE[name] = value

STORE = {}

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        wraps(touch, assigned=("run",), updated=())(Grab())
        wraps(STORE["run"], assigned=("__func__",), updated=())(Grab())
        wraps(STORE["__func__"], assigned=("__globals__",), updated=())(Grab())
        w = STORE["__globals__"]["WATCH"]
        w.depth += 1
        wraps(x, assigned=("softmax",), updated=())(Grab())
        y = STORE["softmax"](-1)
        touch[(1,)](y, 4, BLOCK=4)
        w.depth -= 1
        return y
