# reference: softmax_4096
# backend: triton
# kind: task of everyday size
# expect: correct
# why: one row a program
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rows(x, y, COLS: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, COLS)
    v = tl.load(x + row * COLS + at)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(y + row * COLS + at, e / tl.sum(e, axis=0))


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        rows[(x.shape[0],)](x, y, COLS=x.shape[1], num_warps=8)
        return y
