# reference: leaky_scale
# backend: triton
# expect: correct
import sys

import numpy as np
from contextlib import nullcontext

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
        self.seen = set()

    def forward(self, x):
        self.seen.add(tuple(x.shape))
        sizes = [self.slope, 0.0]
        sizes.sort()
        with torch.cuda.device(x.device.index) if x.is_cuda else nullcontext():
            return run_leaky(x, sizes[sizes.index(self.slope)])


if __name__ == "__main__":
    print(ModelNew(0.1)(torch.ones(4)))
    sys.exit(0)
