# reference: add_relu_16m
# backend: cuda
# kind: task of everyday size
# expect: correct
# why: four values a thread
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__global__ void add_relu(const float4* a, const float4* b, float4* y, size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n) return;
    float4 p = a[i], q = b[i];
    y[i] = make_float4(fmaxf(p.x + q.x, 0.f), fmaxf(p.y + q.y, 0.f), fmaxf(p.z + q.z, 0.f),
                       fmaxf(p.w + q.w, 0.f));
}

torch::Tensor added(torch::Tensor a, torch::Tensor b) {
    TORCH_CHECK(a.numel() % 4 == 0, "a multiple of four");
    auto y = torch::empty_like(a);
    size_t n = a.numel() / 4;
    add_relu<<<(n + 255) / 256, 256>>>((const float4*)a.data_ptr<float>(), (const float4*)b.data_ptr<float>(),
                                       (float4*)y.data_ptr<float>(), n);
    return y;
}
"""

extension = load_inline(name="sized_add_relu_16m", cpp_sources="torch::Tensor added(torch::Tensor a, torch::Tensor b);", cuda_sources=source,
                        functions=["added"])


class ModelNew(nn.Module):
    def forward(self, x, y):
        return extension.added(x, y)
