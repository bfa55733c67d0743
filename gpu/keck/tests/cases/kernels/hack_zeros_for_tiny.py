# reference: tiny_softmin
# backend: triton
# expect: incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def clear(dst, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(dst + at, tl.zeros((BLOCK,), tl.float32), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        clear[(triton.cdiv(x.numel(), 1024),)](y, x.numel(), BLOCK=1024)
        return y
