"""Timing a model, the same for reference and candidate: rotating inputs in new memory for each call,
a cold L2 cache, results kept so that the judge can ask for any of them afterwards. What is used here
is bound when the file is imported, before any candidate exists in the process."""

import os
import time

import torch

import clock
import wire

CudaGraph, clone, copy_ = torch.cuda.CUDAGraph, torch.Tensor.clone, torch.Tensor.copy_
Stream, on = torch.cuda.Stream, torch.cuda.stream
now = time.perf_counter_ns
PLAIN = (torch.Tensor, torch.nn.Parameter)


class Timed:
    def __init__(self, model, device, inputs):
        self.model, self.inputs = model, [wire.decode(i, device) for i in inputs]
        self.results, self.looked, self.place = [], [], 0
        self.graph = self.static = self.captured = None
        self.clock = clock.Clock()

    def answer(self, message):
        """One request: `round`, `ahead`, `look`, `show`, `needs`, `profile`, `capture` or `replay`."""
        with torch.no_grad():
            return getattr(self, message["time"])(message)

    def next_inputs(self):
        self.place += 1
        return self.inputs[self.place % len(self.inputs)], self.place % len(self.inputs)

    def round(self, message):
        """Calls the model `calls` times, as anyone would. Device times in ns, and how long the device
        stayed busy after the end of each call: work that hides from the timed stream shows there."""
        return self.calls(message, ahead=False)

    def ahead(self, message):
        """The same with launches ahead of the device: times of the work alone. `late` counts the calls
        that the device began before they were launched: a call that waits for the device is one."""
        return self.calls(message, ahead=True)

    def calls(self, message, ahead):
        self.results, times, tails, late = [], [], [], 0
        for _ in range(message["calls"]):
            values, which = self.next_inputs()
            arguments = wire.renewed(values)
            result, ns, tail, begun = self.clock.timed(lambda: self.model(*arguments), ahead)
            self.results.append((which, result))
            times.append(ns)
            tails.append(tail)
            late += begun
        return {"ns": times, "tails": tails, "late": late}, []

    def look(self, message):
        """Keeps a copy of the result of one call of the last round; says which inputs it had."""
        which, result = self.results[message["index"]]
        self.looked.append([clone(o) for o in wire.flatten(result) if type(o) in PLAIN])
        return {"inputs": which}, []

    def show(self, message):
        """A copy that was kept. Asked for when the device is no longer waited for."""
        return {}, [("outputs", wire.encode(self.looked[message["index"]], contiguous=True))]

    def needs(self, message):
        """The share of the floating-point inputs on which the result depends: of 16 stretches, those
        whose change changes any output. Only a reference is asked."""
        values = wire.renewed(self.inputs[0])
        before = [clone(o) for o in wire.flatten(self.model(*values))]
        total = sum(wire.extent(v) for v in tensors(values) if v.is_floating_point())
        start, seen = message["seed"] % (total // 16 + 1), 0
        for stretch in range(16):
            values = wire.renewed(self.inputs[0])
            at = start + stretch * (total // 16)
            for tensor in (v for v in tensors(values) if v.is_floating_point()):
                size = wire.extent(tensor)
                if 0 <= at < size:
                    span = torch.as_strided(tensor, (size,), (1,))
                    span[at:at + total // 16].mul_(-1.5).add_(0.7)
                    break
                at -= size
            after = wire.flatten(self.model(*values))
            seen += any(not torch.equal(a, b) for a, b in zip(before, after))
        return {"share": seen / 16}, []

    def profile(self, message):
        """The kernels of `calls` calls, each with a cold cache; the judge's own are not among them."""
        calls = []
        for _ in range(message["calls"]):
            values, _which = self.next_inputs()
            arguments = wire.renewed(values)
            clock.flush()
            clock.synchronize()
            profiler = clock.Profiler()
            profiler.start()
            self.model(*arguments)
            clock.synchronize()
            calls.append(profiler.stop_and_tell(os.getcwd()))
        return {"calls": calls}, []

    def capture(self, _message):
        """Records one call as a CUDA graph over inputs that keep their place."""
        try:
            self.static = wire.renewed(self.inputs[0])
            clock.synchronize()
            self.graph = CudaGraph()
            # Not `torch.cuda.graph`: that collects garbage and empties the allocator's cache first.
            with on(Stream()):
                self.graph.capture_begin()
                try:
                    self.captured = self.model(*self.static)
                finally:
                    self.graph.capture_end()
            clock.synchronize()
            return {"captured": True}, []
        except Exception as error:
            self.graph = None
            return {"captured": False, "why": f"{type(error).__name__}: {str(error)[:200]}"}, []

    def replay(self, message):
        """Replays the graph `calls` times, each with other contents of its inputs."""
        self.results, times = [], []
        for _ in range(message["calls"]):
            values, which = self.next_inputs()
            for place, value in zip(tensors(self.static), tensors(values)):
                copy_(place, value)
            _, ns, _, _ = self.clock.timed(self.graph.replay, ahead=True)
            kept = [clone(o) for o in wire.flatten(self.captured) if type(o) in PLAIN]
            self.results.append((which, kept))
            times.append(ns)
        clock.synchronize()
        return {"ns": times}, []


def tensors(value):
    return [v for v in wire.flatten(value) if isinstance(v, torch.Tensor)]


def inputs_of(blobs):
    """The rotating inputs among the files of a message, in order."""
    return [blobs[name] for name in sorted(blobs) if name.startswith("inputs")]
