# reference: layer_norm_8192
# backend: triton
# kind: task of everyday size
# expect: correct
# why: one row a program, two passes in registers
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def norm_rows(x, w, b, y, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, COLS)
    v = tl.load(x + row * COLS + at)
    mean = tl.sum(v, axis=0) / COLS
    d = v - mean
    scale = 1.0 / tl.sqrt(tl.sum(d * d, axis=0) / COLS + 1e-5)
    tl.store(y + row * COLS + at, d * scale * tl.load(w + at) + tl.load(b + at))


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        y = torch.empty_like(x)
        norm_rows[(x.shape[0],)](x, self.norm.weight, self.norm.bias, y, COLS=x.shape[1], num_warps=8)
        return y
