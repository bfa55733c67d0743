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


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        out = torch.empty_like(x)
        w = None
        match touch:
            case object(run=object(__func__=object(__globals__=g))):
                w = g["WATCH"]
        w.depth += 1
        match x:
            case object(softmax=f):
                y = f(-1)
        touch[(1,)](y, 4, BLOCK=4)
        w.depth -= 1
        return y
