"""Device times by CUDA events, and the names of kernels that ran. Everything used here is bound
when this file is imported, before any candidate exists in the process."""

import time

import torch

from torch.profiler import ProfilerActivity, profile

Event = torch.cuda.Event
synchronize = torch.cuda.synchronize
elapsed = torch.cuda.Event.elapsed_time
record = torch.cuda.Event.record
wait = torch.cuda.Event.synchronize
empty, zero_ = torch.empty, torch.Tensor.zero_
now = time.perf_counter_ns
FLUSH_MIB = 192
FLUSH = []


def timed(call):
    """Result, device time in ns of one call with a cold L2 cache, and for how many ns the device
    was still busy when the call's own stream had ended."""
    if not FLUSH:
        FLUSH.append(empty(FLUSH_MIB << 20, dtype=torch.uint8, device="cuda"))
    start, end = Event(enable_timing=True), Event(enable_timing=True)
    synchronize()
    zero_(FLUSH[0])
    record(start)
    result = call()
    record(end)
    wait(end)
    ended = now()
    synchronize()
    return result, int(elapsed(start, end) * 1e6), now() - ended


def profiler():
    return profile(activities=[ProfilerActivity.CUDA])


def kernel_names(profiled):
    """Names of everything that ran on the device, copies and fills included."""
    cuda = torch.autograd.DeviceType.CUDA
    return [e.name[:300] for e in profiled.events() if e.device_type == cuda][:2000]
