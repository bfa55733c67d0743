# reference: column_mean
# backend: triton
# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def columns(src, dst, rows, cols, BLOCK: tl.constexpr):
    c = tl.program_id(0)
    r = tl.arange(0, BLOCK)
    v = tl.load(src + r * cols + c, mask=r < rows, other=0.0)
    tl.store(dst + c, tl.sum(v, axis=0) / rows)


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        out = x.new_empty(x.shape[1])
        columns[(x.shape[1],)](x, out, x.shape[0], x.shape[1], BLOCK=triton.next_power_of_2(x.shape[0]))
        return out
