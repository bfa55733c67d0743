# reference: bias_linear
# backend: triton
# expect: rejected
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def affine(x, w, b, y, K, N, BK: tl.constexpr):
    row, col = tl.program_id(0), tl.program_id(1)
    k = tl.arange(0, BK)
    xs = tl.load(x + row * K + k, mask=k < K, other=0.0)
    ws = tl.load(w + col * K + k, mask=k < K, other=0.0)
    tl.store(y + row * N + col, tl.sum(xs * ws, axis=0) + tl.load(b + col))


class ModelNew(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.proj = nn.Linear(fan_in, fan_out)

    def forward(self, x):
        x = x.contiguous()
        y = torch.zeros(x.shape[0], self.proj.out_features, device=x.device, dtype=x.dtype)
        grid = (x.shape[0], self.proj.out_features)
        affine[grid](x, self.proj.weight, self.proj.bias, y, x.shape[1], y.shape[1], BK=triton.next_power_of_2(x.shape[1]))
        return self.proj(x)
