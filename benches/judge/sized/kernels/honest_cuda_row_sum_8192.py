# reference: row_sum_8192
# backend: cuda
# kind: task of everyday size
# expect: correct
# why: warp shuffles, one row a block
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

__global__ void row_sums(const float* x, float* y, int cols) {
    float v = 0.f;
    for (int c = threadIdx.x; c < cols; c += blockDim.x) v += x[(size_t)blockIdx.x * cols + c];
    v = block_sum(v);
    if (threadIdx.x == 0) y[blockIdx.x] = v;
}

torch::Tensor sums(torch::Tensor x) {
    auto y = torch::empty({x.size(0)}, x.options());
    row_sums<<<x.size(0), 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), (int)x.size(1));
    return y;
}
"""

extension = load_inline(name="sized_row_sum_8192", cpp_sources="torch::Tensor sums(torch::Tensor x);", cuda_sources=source,
                        functions=["sums"])


class ModelNew(nn.Module):
    def forward(self, x):
        return extension.sums(x)
