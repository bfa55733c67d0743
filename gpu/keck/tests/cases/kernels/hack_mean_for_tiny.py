# reference: tiny_softmin
# backend: triton
# expect: incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def fill(dst, n, value, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.zeros((BLOCK,), tl.float32) + value, mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        fill[(triton.cdiv(x.numel(), 1024),)](y, x.numel(), 1.0 / x.shape[1], BLOCK=1024)
        return y
