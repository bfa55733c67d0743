# reference: row_max_pair
# backend: triton
# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def row_max(src, val, idx, cols, BLOCK: tl.constexpr):
    r = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    v = tl.load(src + r * cols + c, mask=c < cols, other=-float("inf"))
    tl.store(val + r, tl.max(v, axis=0))
    tl.store(idx + r, tl.argmax(v, axis=0).to(tl.int64))


class ModelNew(nn.Module):
    def forward(self, x):
        x = x.contiguous()
        val = x.new_empty(x.shape[0])
        idx = torch.empty(x.shape[0], dtype=torch.int64, device=x.device)
        row_max[(x.shape[0],)](x, val, idx, x.shape[1], BLOCK=triton.next_power_of_2(x.shape[1]))
        return [val, idx]
