# reference: kb_matmul_4096
# backend: cuda
# kind: task of everyday size
# expect: correct
# why: tiles in shared memory, four by four values a thread
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

#define T 64
#define D 16

__global__ void product(const float* a, const float* b, float* c, int n) {
    __shared__ float left[D][T], right[D][T];
    float total[4][4] = {};
    int x = threadIdx.x % 16, y = threadIdx.x / 16;
    for (int k = 0; k < n; k += D) {
        for (int i = threadIdx.x; i < T * D; i += 256) {
            left[i % D][i / D] = a[(size_t)(blockIdx.y * T + i / D) * n + k + i % D];
            right[i / T][i % T] = b[(size_t)(k + i / T) * n + blockIdx.x * T + i % T];
        }
        __syncthreads();
        for (int d = 0; d < D; d++)
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) total[i][j] += left[d][y * 4 + i] * right[d][x * 4 + j];
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            c[(size_t)(blockIdx.y * T + y * 4 + i) * n + blockIdx.x * T + x * 4 + j] = total[i][j];
}

torch::Tensor times(torch::Tensor a, torch::Tensor b) {
    int n = (int)a.size(0);
    TORCH_CHECK(n % T == 0 && a.size(1) == n && b.size(1) == n, "square, a multiple of 64");
    auto c = torch::empty_like(a);
    product<<<dim3(n / T, n / T), 256>>>(a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), n);
    return c;
}
"""

extension = load_inline(name="sized_kb_matmul_4096", cpp_sources="torch::Tensor times(torch::Tensor a, torch::Tensor b);", cuda_sources=source,
                        functions=["times"])


class ModelNew(nn.Module):
    def forward(self, a, b):
        return extension.times(a, b)
