"""Role `probe`: the judge's own work on the device. No code of a module or a candidate runs here:
what it says is believed."""

import torch

import clock
import wire
from report import failure

COUNT = 1 << 22
GIB = 1 << 30


def serve(sock, config):
    handlers = {"healthy": healthy, "rates": rates}
    while True:
        message, _ = wire.receive(sock)
        if message is None:
            return
        try:
            reply = handlers[message["do"]]()
        except Exception as error:
            reply = failure("probe", error)
        wire.send(sock, reply)


def healthy():
    """Whether the device still computes: whole numbers, so that there is one right answer."""
    numbers = torch.arange(COUNT, device="cuda", dtype=torch.int64)
    total = int((numbers * 3 + 1).sum())
    table = (numbers[:1 << 16] % 7).view(256, 256).float()
    product = (table @ table).cpu()
    right = total == 3 * (COUNT * (COUNT - 1) // 2) + COUNT
    right = right and bool((product == table.cpu() @ table.cpu()).all())
    free, whole = torch.cuda.mem_get_info()
    return {"healthy": right, "free": free, "total": whole}


def rates():
    """What this device reaches: bytes moved and floating-point operations, per ns. The best of
    several runs, since these are bounds for others."""
    source = torch.empty(GIB // 2, dtype=torch.float32, device="cuda").normal_()
    target = torch.empty_like(source)
    moved = best(lambda: target.copy_(source), 2 * source.nbytes)
    read = best(lambda: source.sum(), source.nbytes)
    found = {"bytes": max(moved, read)}
    del source, target
    for name, dtype, tf32 in (("bf16", torch.bfloat16, False), ("tf32", torch.float32, True),
                              ("fp32", torch.float32, False)):
        torch.backends.cuda.matmul.allow_tf32 = tf32
        side = 8192 if name != "fp32" else 4096
        matrix = torch.randn(side, side, device="cuda", dtype=dtype)
        found[name] = best(lambda: matrix @ matrix, 2 * side ** 3)
    return found


def best(call, amount):
    timer = clock.Clock()
    return max(amount / timer.timed(call)[1] for _ in range(6))
