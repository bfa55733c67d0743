"""Gate of two halves, 4096 rows of 2 x 4096."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        a, b = x.chunk(2, dim=1)
        return torch.nn.functional.silu(a) * b


def get_inputs():
    return [torch.randn(4096, 8192)]


def get_init_inputs():
    return []
