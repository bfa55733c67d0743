# reference: kb_gelu_8192
# backend: triton
# kind: task of everyday size
# expect: correct
# why: one pass where the reference makes eight
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gelu(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    inner = 0.7978845608028654 * (v + 0.044715 * v * v * v)
    # tanh from the exponential function, stable on both sides.
    e = tl.exp(-2.0 * tl.abs(inner))
    t = (1.0 - e) / (1.0 + e)
    t = tl.where(inner < 0, -t, t)
    tl.store(y + at, 0.5 * v * (1.0 + t), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        gelu[(triton.cdiv(x.numel(), 2048),)](x, y, x.numel(), BLOCK=2048)
        return y
