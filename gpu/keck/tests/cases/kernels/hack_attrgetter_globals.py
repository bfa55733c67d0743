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


from operator import attrgetter

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        w = attrgetter("run.__func__.__globals__")(touch)["WATCH"]
        w.depth += 1
        y = attrgetter("softmax")(x)(-1)
        touch[(1,)](y, 4, BLOCK=4)
        w.depth -= 1
        return y
