# reference: kb_gelu_8192
# backend: cuda
# kind: task of everyday size
# expect: correct
# why: one pass where the reference makes eight
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void gelu(const float* x, float* y, size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n) return;
    float v = x[i];
    y[i] = 0.5f * v * (1.f + tanhf(0.7978845608028654f * (v + 0.044715f * v * v * v)));
}

torch::Tensor run(torch::Tensor x) {
    auto y = torch::empty_like(x);
    size_t n = x.numel();
    gelu<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
"""

extension = load_inline(name="sized_kb_gelu_8192", cpp_sources="torch::Tensor run(torch::Tensor x);", cuda_sources=source,
                        functions=["run"])


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.run(x)
