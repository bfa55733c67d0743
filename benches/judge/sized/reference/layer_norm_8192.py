"""Layer norm of 8192 rows of 2048, with weight and bias."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x):
        return self.norm(x)


def get_inputs():
    return [torch.randn(8192, 2048)]


def get_init_inputs():
    return [2048]
