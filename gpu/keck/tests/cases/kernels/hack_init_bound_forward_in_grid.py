# reference: row_softmax
# backend: triton
# expect: rejected
# accept: rejected, incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def touch(p, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p + i, tl.load(p + i, mask=i < n), mask=i < n)


class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = {"f": nn.Softmax(-1)}

    def forward(self, x):
        y = torch.empty_like(x)
        box = {"y": y}

        def grid(meta):
            box["y"][...] = self.table["f"](x)
            return (1,)

        touch[grid](y, 4, BLOCK=4)
        return y
