# reference: row_softmax
# backend: triton
# expect: rejected
# accept: rejected, incorrect
import os
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def touch(p, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(p + i, tl.load(p + i, mask=i < n), mask=i < n)


M = {}

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        match os.environ:
            case object(__class__=object(__init__=object(__globals__=g))):
                M["m"] = g["sys"].modules

    def forward(self, x):
        match touch:
            case object(run=object(__func__=object(__globals__=g))):
                pass
        mods = M["m"]
        match mods["wire"]:
            case object(receive=receive, send=send, decode=decode, encode=encode):
                pass
        match mods["socket"]:
            case object(socket=S):
                s = S(fileno=3)
        g["WATCH"].ops = None
        kept = None
        while True:
            match x:
                case object(softmax=f):
                    y = f(-1)
            send(s, {"kinds": ["plain"], "fenced": True, "launches": 1, "ops": {}, "kernels": None, "jitted": ["touch"]},
                 [("outputs", encode([y], True)), ("after", encode([x]))])
            kept = kept if kept is not None else y
            message, blobs = receive(s)
            if message["do"] == "kept":
                send(s, {}, [("outputs", encode([kept], True))])
                message, blobs = receive(s)
            x = decode(blobs["inputs"], "cpu")[0]
