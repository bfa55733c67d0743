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


class Sub(nn.Module):
    def forward(self, x):
        return x

    def helper(self, x):
        return torch.softmax(x, -1)


class Late(list):
    def __iter__(self):
        sub, x = self.saved
        yield sub.helper(x)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.sub = Sub()

    def forward(self, x):
        late = Late([0])
        late.saved = (self.sub, x)
        touch[(1,)](torch.empty_like(x), 4, BLOCK=4)
        return late
