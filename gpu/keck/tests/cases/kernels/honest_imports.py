# reference: leaky_scale
# backend: triton
# expect: correct
from __future__ import annotations
import dataclasses
import functools
import logging
import math
import os
import typing
import warnings
from collections import OrderedDict, namedtuple
from typing import Optional

import torch
import torch.nn as nn
import triton
import triton.language as tl


log = logging.getLogger(__name__)
Sizes = namedtuple("Sizes", "block warps")
CACHE: typing.Dict[str, Optional[int]] = OrderedDict()


@dataclasses.dataclass
class Plan:
    block: int = 2 ** int(math.log2(256))


@functools.lru_cache(maxsize=None)
def plan():
    if os.environ.get("VERBOSE"):
        warnings.warn("verbose")
    return Plan()


@triton.jit
def leaky(src, dst, n, slope, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(src + at, mask=at < n, other=0.0)
    tl.store(dst + at, tl.where(v > 0, v, v * slope), mask=at < n)


def run_leaky(x, slope):
    x = x.contiguous()
    y = torch.empty_like(x)
    leaky[(triton.cdiv(x.numel(), 256),)](x, y, x.numel(), slope, BLOCK=256)
    return y


class ModelNew(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        log.debug("slope %s", self.slope)
        return run_leaky(x, self.slope)
