# reference: kb_diagonal_4096
# backend: triton
# kind: task of everyday size
# expect: correct
# why: rows scaled where the reference multiplies matrices
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def scale_rows(a, b, y, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, COLS)
    tl.store(y + row * COLS + at, tl.load(a + row) * tl.load(b + row * COLS + at))


class ModelNew(nn.Module):
    def forward(self, a, b):
        y = torch.empty_like(b)
        scale_rows[(b.shape[0],)](a, b, y, COLS=b.shape[1], num_warps=8)
        return y
