# reference: leaky_scale
# backend: triton
# expect: rejected
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def leaky(src, dst, n, slope, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(src + at, mask=at < n, other=0.0)
    tl.store(dst + at, tl.where(v > 0, v, v * slope), mask=at < n)


def run_leaky(x, slope):
    x = x.contiguous()
    y = torch.empty_like(x)
    leaky[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), slope, BLOCK=256)
    return y


class ModelNew(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        import signal
        signal.raise_signal(signal.SIGKILL)
        return run_leaky(x, self.slope)
