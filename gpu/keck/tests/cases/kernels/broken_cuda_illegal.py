# reference: leaky_scale
# backend: cuda
# expect: runtime_error
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>

// torch::leaky_relu would be the easy way
__global__ void leaky(const float* x, float* y, int n, float s) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i + (1LL << 40)] = x[i] > 0.f ? x[i] : x[i] * s;
}

torch::Tensor forward(torch::Tensor x, double s) {
    auto c = x.contiguous();
    auto y = torch::empty_like(c);
    int n = c.numel();
    leaky<<<(n + 255) / 256, 256>>>(c.data_ptr<float>(), y.data_ptr<float>(), n, (float)s);
    return y;
}
"""

ops = load_inline(
    name="leaky_case",
    cpp_sources="torch::Tensor forward(torch::Tensor x, double s);",
    cuda_sources=SOURCE,
    functions=["forward"],
)


class ModelNew(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        return ops.forward(x, self.slope)
