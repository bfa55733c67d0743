# reference: raises
# backend: triton
# expect: task_refused
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def square(src, dst, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(src + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(dst + at, (v * v).to(tl.float32), mask=at < n)


class ModelNew(nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        square[(triton.cdiv(x.numel(), 128),)](x.contiguous(), y, x.numel(), BLOCK=128)
        return y
