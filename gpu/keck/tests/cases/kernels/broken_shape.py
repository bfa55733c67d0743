# reference: column_mean
# backend: triton
# expect: incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def zeroes(dst, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(dst + at, at * 0.0, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = x.new_empty(x.shape[0])
        zeroes[(1,)](out, x.shape[0], BLOCK=64)
        return out
