# reference: add_into_first
# backend: triton
# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def double_add(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = at < n
    tl.store(x + at, tl.load(x + at, mask=live) * 2.0 + tl.load(y + at, mask=live), mask=live)


class ModelNew(nn.Module):
    def forward(self, x, y):
        double_add[(triton.cdiv(x.numel(), 64),)](x, y, x.numel(), BLOCK=64)
        return x
