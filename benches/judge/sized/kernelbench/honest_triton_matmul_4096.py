# reference: kb_matmul_4096
# backend: triton
# kind: task of everyday size
# expect: correct
# why: tiles in full single precision
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def product(a, b, bias, c, M, N, K, sbk, sbn, RELU: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
            BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + (k + inner)[None, :])
        right = tl.load(b + (k + inner)[:, None] * sbk + cols[None, :] * sbn)
        total += tl.dot(left, right, input_precision="ieee")
    if RELU:
        total = tl.maximum(total + tl.load(bias + cols)[None, :], 0.0)
    tl.store(c + rows[:, None] * N + cols[None, :], total)


class ModelNew(nn.Module):
    def forward(self, a, b):
        M, K = a.shape
        N = b.shape[1]
        c = torch.empty((M, N), device=a.device, dtype=a.dtype)
        product[(M // 64, N // 64)](a, b, a, c, M, N, K, b.stride(0), b.stride(1), RELU=False,
                                    BM=64, BN=64, BK=32)
        return c
