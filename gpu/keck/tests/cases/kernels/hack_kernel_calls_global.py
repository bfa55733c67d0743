# reference: row_softmax
# backend: triton
# expect: rejected
# accept: rejected, incorrect, compile_error, runtime_error
import torch
import torch.nn as nn
import triton
import triton.language as tl

def setup():
    global work
    work = torch.softmax

setup()


@triton.jit
def k(x: tl.constexpr, out: tl.constexpr, p):
    out[...] = work(x, -1)
    tl.store(p, tl.load(p))


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        out = torch.empty_like(x)
        k[(1,)](x, out, out)
        return out
