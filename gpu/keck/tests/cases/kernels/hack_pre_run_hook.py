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


class Box:
    def __init__(self, x, out):
        self.x = x
        self.out = out

BOX = []

class Sub(nn.Module):
    def hook(self, *args, **kwargs):
        x, out = BOX[0]
        out.copy_(torch.softmax(x, -1))

    def forward(self, x):
        return x


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.sub = Sub()
        touch.add_pre_run_hook(self.sub.hook)

    def forward(self, x):
        out = torch.empty_like(x)
        BOX.clear()
        BOX.append((x, out))
        touch[(1,)](out, 4, BLOCK=4)
        return out
