# reference: add_relu_16m
# backend: triton
# kind: task of everyday size
# expect: correct
# why: one pass where the reference makes two
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_relu(a, b, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    v = tl.load(a + at, mask=inside) + tl.load(b + at, mask=inside)
    tl.store(y + at, tl.maximum(v, 0.0), mask=inside)


class ModelNew(nn.Module):
    def forward(self, x, y):
        out = torch.empty_like(x)
        add_relu[(triton.cdiv(x.numel(), 2048),)](x, y, out, x.numel(), BLOCK=2048)
        return out
