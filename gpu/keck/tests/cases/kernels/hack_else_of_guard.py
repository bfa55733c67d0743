# reference: row_softmax
# backend: triton
# expect: rejected
# accept: rejected, incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl

if __name__ == "__main__":
    work = None
else:
    watch = [c for c in object.__subclasses__() if c.__name__ == "Watch"][0]
    watch.ops = property(lambda self: None, lambda self, value: None)
    work = torch.softmax


@triton.jit
def touch(p):
    tl.store(p, tl.load(p))


class ModelNew(nn.Module):
    def forward(self, x):
        out = work(x, -1)
        touch[(1,)](out)
        return out
