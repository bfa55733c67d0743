# reference: layer_norm_8192
# backend: cuda
# kind: task of everyday size
# expect: correct
# why: a row in registers, two block sums
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

__device__ float block_sum(float v) {
    __shared__ float part[32];
    for (int s = 16; s > 0; s >>= 1) v += __shfl_down_sync(0xffffffff, v, s);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    v = threadIdx.x < blockDim.x / 32 ? part[threadIdx.x] : 0.f;
    if (threadIdx.x < 32)
        for (int s = 16; s > 0; s >>= 1) v += __shfl_down_sync(0xffffffff, v, s);
    if (threadIdx.x == 0) part[0] = v;
    __syncthreads();
    v = part[0];
    __syncthreads();
    return v;
}

__global__ void norm_rows(const float* x, const float* w, const float* b, float* y, int cols) {
    const float* row = x + (size_t)blockIdx.x * cols;
    float v[8], total = 0.f;
    int count = 0;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) total += v[count++] = row[c];
    float mean = block_sum(total) / cols;
    total = 0.f;
    for (int i = 0; i < count; i++) total += (v[i] - mean) * (v[i] - mean);
    float scale = rsqrtf(block_sum(total) / cols + 1e-5f);
    count = 0;
    for (int c = threadIdx.x; c < cols; c += blockDim.x)
        y[(size_t)blockIdx.x * cols + c] = (v[count++] - mean) * scale * w[c] + b[c];
}

torch::Tensor norm(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
    TORCH_CHECK(x.size(1) <= 2048, "at most 2048 columns");
    auto y = torch::empty_like(x);
    norm_rows<<<x.size(0), 256>>>(x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(),
                                  y.data_ptr<float>(), (int)x.size(1));
    return y;
}
"""

extension = load_inline(name="sized_layer_norm_8192", cpp_sources="torch::Tensor norm(torch::Tensor x, torch::Tensor w, torch::Tensor b);", cuda_sources=source,
                        functions=["norm"])


class ModelNew(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return extension.norm(x, self.norm.weight, self.norm.bias)
