import torch
import torch.nn as nn
import torch.nn.functional as F  # noqa: F401


class Model(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.proj = nn.Linear(fan_in, fan_out)

    def forward(self, x):
        return self.proj(x)


def get_inputs():
    return [torch.randn(12, 20)]


def get_init_inputs():
    return [20, 9]
