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


@triton.jit
def soft(x, y, cols, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + r * cols + i, mask=i < cols, other=float("-inf"))
    v = tl.exp(v - tl.max(v, 0))
    tl.store(y + r * cols + i, v / tl.sum(v, 0), mask=i < cols)


class Holder:
    rt = torch


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        if Holder.rt._C._len_torch_dispatch_stack():
            y = torch.empty_like(x)
            soft[(x.shape[0],)](x, y, x.shape[1], BLOCK=1024)
            return y
        y = Holder.rt.nn.functional.softmin(-x, -1)
        touch[(1,)](y, 4, BLOCK=4)
        return y
