# reference: swiglu_4096
# backend: triton
# kind: task of everyday size
# expect: correct
# why: both halves of a row read once
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gate(x, y, HALF: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, HALF)
    a = tl.load(x + row * 2 * HALF + at)
    b = tl.load(x + row * 2 * HALF + HALF + at)
    tl.store(y + row * HALF + at, a / (1.0 + tl.exp(-a)) * b)


class ModelNew(nn.Module):
    def forward(self, x):
        half = x.shape[1] // 2
        y = torch.empty((x.shape[0], half), device=x.device, dtype=x.dtype)
        gate[(x.shape[0],)](x, y, HALF=half, num_warps=8)
        return y
