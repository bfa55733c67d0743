"""Device times by CUDA events, and the names of kernels that ran. Everything used here is bound when this file is imported, before
any candidate exists in the process."""

import torch

from torch.profiler import ProfilerActivity, profile

Event = torch.cuda.Event
synchronize = torch.cuda.synchronize
elapsed = torch.cuda.Event.elapsed_time
record = torch.cuda.Event.record
empty, zero_ = torch.empty, torch.Tensor.zero_
FLUSH_MIB = 192


def measure(call, message):
    """Nanoseconds of each of `repeats` calls, after `warmups`, with a cold L2 cache."""
    flush = empty(FLUSH_MIB << 20, dtype=torch.uint8, device="cuda")
    for _ in range(message["warmups"]):
        call()
    times = []
    for _ in range(message["repeats"]):
        zero_(flush)
        start, end = Event(enable_timing=True), Event(enable_timing=True)
        synchronize()
        record(start)
        call()
        record(end)
        synchronize()
        times.append(int(elapsed(start, end) * 1e6))
    return times


def profiler():
    return profile(activities=[ProfilerActivity.CUDA])


def kernel_names(profiled):
    """Names of everything that ran on the device, copies and fills included."""
    cuda = torch.autograd.DeviceType.CUDA
    return [e.name[:300] for e in profiled.events() if e.device_type == cuda][:2000]
