# reference: kb_gemm_add_relu
# backend: triton
# kind: task of everyday size
# expect: correct
# why: bias and ReLU in the product's epilogue
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
    def __init__(self, inputs, outputs):
        super().__init__()
        self.gemm = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        M, K = x.shape
        w = self.gemm.weight
        c = torch.empty((M, w.shape[0]), device=x.device, dtype=x.dtype)
        product[(M // 64, w.shape[0] // 64)](x, w, self.bias, c, M, w.shape[0], K, w.stride(1),
                                             w.stride(0), RELU=True, BM=64, BN=64, BK=32)
        return c
