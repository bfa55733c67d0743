# reference: gain_identity
# backend: triton
# expect: rejected
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def tanh_gain(src, gain, dst, n, width, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < n
    v = tl.load(src + at, mask=live, other=0.0)
    g = tl.load(gain + at % width, mask=live, other=0.0)
    tl.store(dst + at, (2.0 * tl.sigmoid(2.0 * v) - 1.0) * g, mask=live)


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        x = x.contiguous()
        return x
