"""Role `module`: runs a reference (a proposed module) and hands over what it did.

The module is as hostile as any candidate; this worker is confined the same way. What it says of its
own runs (that two gave the same, that inputs were left alone, how far double precision is) is as good
as the bytes would be: they come from the same process, and no candidate's do.
"""

import copy
import math
import time

import torch

import clock
import watch
import wire
from lease import LEASE
from report import failure
from timed import Timed, inputs_of

SCALES = {"plain": (1.0, 0.0), "x30": (30.0, 0.0), "x0.05": (0.05, 0.0), "+2.5": (1.0, 2.5),
          "x8": (8.0, 0.0), "x1e5": (1e5, 0.0)}
NOISE = 0.3
NOISE_SALT = 0x9E3779B97F4A7C15
now = time.perf_counter_ns


def serve(sock, config):
    Session(sock, config["device"]).loop()


class Session:
    def __init__(self, sock, device):
        self.sock, self.device = sock, device
        self.model, self.took = None, []
        self.step = "import"

    def loop(self):
        handlers = {"load": self.load, "trial": self.trial, "dead": self.dead, "time": self.time,
                    "rest": self.rest, "flops": self.flops}
        while True:
            message, blobs = wire.receive(self.sock)
            if message is None:
                return
            try:
                reply, out = handlers[message["do"]](message, blobs)
            except BaseException as error:  # a module may raise anything, SystemExit included
                LEASE.begin(None)
                reply, out = failure(self.step, error), []
            wire.send(self.sock, reply, out)

    def load(self, message, blobs):
        """Imports the source and builds the model; the init inputs go to the judge."""
        self.step = "import"
        source = bytes(blobs["source"]).decode()
        torch.manual_seed(message["seed"])
        space = {"__name__": "proposed_module"}
        with torch.enable_grad():
            exec(compile(source, "module.py", "exec"), space)
        self.step = "init"
        self.get_inputs = space["get_inputs"]
        torch.manual_seed(message["seed"])
        init = space["get_init_inputs"]()
        init = list(init) if isinstance(init, (list, tuple)) else init
        stored = wire.encode(init)
        self.init = init
        args, kwargs = init_arguments(init)
        model = space["Model"](*args, **kwargs)
        self.model = model.to(self.device).eval()
        self.initial = copy.deepcopy(self.model.state_dict())
        names = [n for n, p in self.model.named_parameters() if p.is_floating_point()]
        return {"parameters": names}, [("init", stored)]

    def inputs(self, seed, scale="plain"):
        self.step = "inputs"
        torch.manual_seed(seed)
        factor, offset = SCALES[scale]
        values = self.get_inputs()
        values = list(values) if isinstance(values, (list, tuple)) else [values]
        if scale != "plain":
            for tensor in wire.flatten(values):
                if isinstance(tensor, torch.Tensor) and tensor.is_floating_point():
                    tensor.mul_(factor).add_(offset)
        return values

    def perturb(self, seed, names=None):
        """Loads the initial state, then adds noise to the (named) float parameters."""
        self.model.load_state_dict(self.initial)
        if seed is None:
            return
        noise = torch.Generator().manual_seed((seed ^ NOISE_SALT) & ((1 << 63) - 1))
        for name, parameter in self.model.named_parameters():
            if not parameter.is_floating_point():
                continue
            delta = torch.randn(parameter.shape, generator=noise) * NOISE
            if names is None or name in names:
                parameter.data.add_(delta.to(parameter.device, parameter.dtype))

    def trial(self, message, _blobs):
        """Two runs on copies of the same inputs, and one in float64 where that works. Right values
        are those of full single precision; times are taken with torch's own settings. The second
        run's outputs are handed over only if they differ, the inputs after the run only if it wrote
        to them, and of float64 how far each output is from it."""
        torch.backends.cudnn.allow_tf32 = False
        self.perturb(message["seed"] if message["perturb"] else None)
        values = self.inputs(message["seed"], message["scale"])
        # Nobody writes to them any more: models get copies.
        stored = wire.encode(values, copy=False)
        state = wire.encode(dict(self.model.state_dict()))
        base = wire.decode(stored, self.device)
        LEASE.begin(self.sock if self.device != "cpu" else None)
        LEASE.take()
        self.step, self.took = "forward", []
        watch.WATCH.ops = {}
        with watch.OpLog():
            outputs, after = self.run(base)
        reply = {"tensors": self.tensors, "ops": sorted(watch.WATCH.ops)}
        # A module that gives the same memory again must not change what it gave before.
        outputs = [o.detach().clone() for o in outputs]
        out = [("inputs", stored), ("state", state)]
        if after is not None:
            out.append(("after", wire.encode(after)))
        if message["twice"]:
            second, _ = self.run(base)
            reply["repeats"] = same(outputs, second)
            if not reply["repeats"]:
                out.append(("second", wire.encode(second, contiguous=True)))
        if message["wide"]:
            reply["wide"] = self.run_wide(base, outputs)
        if wire.is_large(outputs):
            LEASE.leave()
        out.append(("first", wire.encode(outputs, contiguous=True)))
        LEASE.begin(None)
        return {**reply, "ns": min(self.took)}, out

    def run(self, base):
        """The outputs, and the inputs if they were written to."""
        values = wire.renewed(base)
        start = now()
        result = self.model(*values)
        if self.device != "cpu":
            clock.synchronize()
        self.took.append(now() - start)
        outputs = wire.flatten(result)
        self.tensors = all(isinstance(o, torch.Tensor) for o in outputs) and bool(outputs)
        return outputs if self.tensors else [], None if wire.untouched(values, base) else values

    def run_wide(self, base, outputs):
        """The same trial in float64, so that the judge can see how well conditioned it is: for each
        output its largest distance from it and its largest magnitude, null where that is no finite
        number or the two cannot be compared. Null altogether where there is no such run."""
        try:
            model = copy.deepcopy(self.model).double()
            wide = wire.flatten(model(*widen(wire.renewed(base))))
            return [distance(a, b) for a, b in zip(outputs, wide)]
        except Exception:  # many modules name float32 themselves; then there is no wide run
            return None

    def dead(self, message, _blobs):
        """A run with only the named parameter perturbed, on the inputs of `seed`."""
        self.perturb(message["seed"], names={message["parameter"]})
        base = wire.decode(wire.encode(self.inputs(message["seed"])), self.device)
        LEASE.begin(self.sock if self.device != "cpu" else None)
        LEASE.take()
        self.step = "forward"
        outputs, _ = self.run(base)
        out = [("first", wire.encode(outputs, contiguous=True))]
        LEASE.begin(None)
        return {}, out

    def time(self, message, blobs):
        self.step = "forward"
        if message["time"] == "open":
            torch.backends.cudnn.allow_tf32 = True
            self.perturb(None)
            self.timed = Timed(self.model, self.device, inputs_of(blobs))
            return {}, []
        return self.timed.answer(message)

    def flops(self, _message, _blobs):
        """Floating-point operations of one call's products, convolutions and attention, as torch
        counts them."""
        from torch.utils.flop_counter import FlopCounterMode
        self.step = "forward"
        self.perturb(None)
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter:
            self.model(*self.timed.inputs[0])
        return {"flops": counter.get_total_flops()}, []

    def rest(self, _message, _blobs):
        """Gives back the device memory that only the last question needed."""
        self.timed = None
        if self.device != "cpu":
            torch.cuda.empty_cache()
        return {}, []


def init_arguments(init):
    """KernelBench's two forms: a list of positional arguments, or a dict of named ones."""
    if isinstance(init, dict):
        return [], init
    return init, {}


def same(left, right):
    """Whether two lists of tensors have the same shapes, dtypes and bytes."""
    return len(left) == len(right) and all(
        a.shape == b.shape and a.dtype == b.dtype
        and torch.equal(wire.flat_bytes(a.contiguous()), wire.flat_bytes(b.contiguous()))
        for a, b in zip(left, right))


def distance(narrow, wide):
    """[largest distance, largest magnitude] of a single-precision output from a double one."""
    if narrow.dtype != torch.float32 or wide.dtype != torch.float64 or narrow.shape != wide.shape:
        return None
    if wide.numel() == 0:
        return [0.0, 0.0]
    found = [(narrow - wide).abs().max().item(), wide.abs().max().item()]
    return [value if math.isfinite(value) else None for value in found]


def widen(value):
    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, (list, tuple)):
        return type(value)(widen(v) for v in value)
    return value
