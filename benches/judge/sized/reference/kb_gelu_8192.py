"""Tanh GELU as KernelBench's level 1, 88: 8192 x 8192."""

import math

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))


def get_inputs():
    return [torch.rand(8192, 8192)]


def get_init_inputs():
    return []
