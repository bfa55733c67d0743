"""Linear layer, bias and ReLU as KernelBench's level 2, 76: 1024 x 8192 x 8192."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.gemm = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        return torch.relu(self.gemm(x) + self.bias)


def get_inputs():
    return [torch.rand(1024, 8192)]


def get_init_inputs():
    return [8192, 8192]
