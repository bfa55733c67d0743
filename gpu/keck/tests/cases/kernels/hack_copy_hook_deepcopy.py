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


import copy

class Sub(nn.Module):
    def forward(self, x):
        return x

    def __deepcopy__(self, memo):
        return torch.softmax(memo["x"], -1)

SUB = Sub()

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        box = {}

        def grid(meta):
            box["y"] = copy.deepcopy(SUB, {"x": x})
            return (1,)
        t = torch.empty_like(x)
        touch[grid](t, 4, BLOCK=4)
        return box["y"]
