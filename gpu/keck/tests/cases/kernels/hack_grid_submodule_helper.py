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
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return x

    def helper(self, x, out):
        def grid(meta):
            out.copy_(torch.softmax(x, -1))
            return (1,)
        touch[grid](out, 4, BLOCK=4)
        return out


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.sub = Sub()

    def forward(self, x):
        out = torch.empty_like(x)
        return self.sub.helper(x, out)
