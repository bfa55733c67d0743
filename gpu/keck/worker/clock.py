"""Device times by CUDA events, and the kernels that ran. Everything used here is bound when this
file is imported, before any candidate exists in the process."""

import json
import os
import time

import torch
from torch._C._profiler import (ProfilerActivity, ProfilerConfig, ProfilerState,
                                _ExperimentalConfig)
from torch.autograd import DeviceType, _disable_profiler, _enable_profiler, _prepare_profiler

Event = torch.cuda.Event
synchronize = torch.cuda.synchronize
elapsed = torch.cuda.Event.elapsed_time
record = torch.cuda.Event.record
wait = torch.cuda.Event.synchronize
query = torch.cuda.Event.query
sleep = torch.cuda._sleep
empty, zero_ = torch.empty, torch.Tensor.zero_
now = time.perf_counter_ns
FLUSH_MIB = 192
FLUSH = []
# A lead in ns, at least and at most, and cycles of a device in a ns, about.
LEAD, LEAD_MAX, CYCLES = 60_000, 4_000_000, 2
# A lead is twice the longest of so many launches before.
LAUNCHES = 6


def flush():
    """Makes the L2 cache cold."""
    if not FLUSH:
        FLUSH.append(empty(FLUSH_MIB << 20, dtype=torch.uint8, device="cuda"))
    synchronize()
    zero_(FLUSH[0])


class Clock:
    """Times of calls with a cold L2 cache."""

    def __init__(self):
        self.launches = [0] * LAUNCHES
        self.count = 0

    def timed(self, call, ahead=False):
        """Result of one call; its device time in ns; for how many ns the device was still busy when
        the call's own stream had ended; and whether the device had begun before all was launched.
        With `ahead` it waits for so long before the start that launches are there before they are
        needed: else it waits for a slow process, and that is not the kernel's time."""
        start, end = Event(enable_timing=True), Event(enable_timing=True)
        flush()
        began = now()
        if ahead:
            sleep(min(LEAD_MAX, max(LEAD, 2 * max(self.launches))) * CYCLES)
        record(start)
        result = call()
        record(end)
        late = query(start)
        self.launches[self.count % LAUNCHES] = now() - began
        self.count += 1
        wait(end)
        ended = now()
        synchronize()
        return result, int(elapsed(start, end) * 1e6), now() - ended, late


class Profiler:
    """Everything that runs on the device between `start` and `stop`, copies and fills included.
    torch's own front imports its compiler first, which takes seconds."""

    def __init__(self):
        self.config = ProfilerConfig(ProfilerState.KINETO, False, False, False, False, False,
                                     _ExperimentalConfig())

    def start(self):
        activities = {ProfilerActivity.CUDA}
        _prepare_profiler(self.config, activities)
        _enable_profiler(self.config, activities)

    def stop(self):
        """Names, in the order of their starts."""
        seen = [e for e in _disable_profiler().events() if e.device_type() == DeviceType.CUDA]
        seen.sort(key=lambda event: event.start_ns())
        return [event.name()[:300] for event in seen][:2000]

    def stop_and_tell(self, folder):
        """Each kernel with its time in ns, registers of a thread, bytes of shared memory of a block
        and launch shape, in the order of their starts. The trace file alone holds all of these."""
        path = os.path.join(folder, "trace.json")
        _disable_profiler().save(path)
        with open(path, encoding="utf-8") as file:
            events = json.load(file)["traceEvents"]
        os.unlink(path)
        kernels = [e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
        kernels.sort(key=lambda event: event["ts"])
        return [told(event) for event in kernels]


def told(event):
    facts = event["args"]
    return {"name": event["name"][:300], "ns": round(event["dur"] * 1000),
            "registers": facts.get("registers per thread", 0),
            "shared_bytes": facts.get("shared memory", 0),
            "grid": facts.get("grid", []), "block": facts.get("block", [])}
