# reference: kb_diagonal_4096
# backend: cuda
# kind: task of everyday size
# expect: correct
# why: rows scaled where the reference multiplies matrices
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void scale_rows(const float* a, const float* b, float* y, int cols) {
    float f = a[blockIdx.x];
    for (int c = threadIdx.x; c < cols; c += blockDim.x)
        y[(size_t)blockIdx.x * cols + c] = f * b[(size_t)blockIdx.x * cols + c];
}

torch::Tensor scaled(torch::Tensor a, torch::Tensor b) {
    auto y = torch::empty_like(b);
    scale_rows<<<b.size(0), 256>>>(a.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(),
                                   (int)b.size(1));
    return y;
}
"""

extension = load_inline(name="sized_kb_diagonal_4096", cpp_sources="torch::Tensor scaled(torch::Tensor a, torch::Tensor b);", cuda_sources=source,
                        functions=["scaled"])


class ModelNew(nn.Module):
    def forward(self, a, b):
        return extension.scaled(a, b)
