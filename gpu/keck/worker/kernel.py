"""Role `kernel`: loads one candidate and answers challenges with raw outputs.

It knows neither the reference nor its outputs, and what it says is a claim, not a verdict: the
judge compares the bytes itself. The functions it uses are bound before the candidate loads.
"""

import builtins
import os
import sys
import types

import torch

import clock  # noqa: F401  (binds its functions now)
import inline
import jit  # noqa: F401  (Triton, told where its parts may be faster)
import watch
import wire
from fences import Fences
from lease import LEASE
from module import init_arguments
from report import failure
from timed import Timed, inputs_of

ModeEnter, ModeExit = watch.OpLog.__enter__, watch.OpLog.__exit__
PLAIN = (torch.Tensor, torch.nn.Parameter)
watch.install(os.environ.get("KECK_DEVICE", "cpu"))


# What candidates may import; the static rules say more exactly what of it they may use. All else is
# not there for them: who tries an import and goes on without it is honest.
IMPORTABLE = {"__future__", "abc", "collections", "contextlib", "copy", "dataclasses", "enum",
              "functools", "itertools", "json", "logging", "math", "numbers", "operator", "os",
              "textwrap", "time", "torch", "triton", "typing", "warnings"}
# What is there but of no use: an import of it must not fail, and gives an empty module. The static
# rules let it pass only where the name is not used.
EMPTY = {*sys.stdlib_module_names, "numpy", "pandas", "scipy"}
real_import = builtins.__import__
# Names that the static rules refuse are not there either.
WITHHELD = {"open", "eval", "exec", "compile", "breakpoint", "input", "globals", "locals", "vars",
            "memoryview", "help", "exit", "quit"}


def candidate_import(name, globals=None, locals=None, fromlist=(), level=0):
    head = name.partition(".")[0]
    if level == 0 and not fromlist and head in EMPTY - IMPORTABLE:
        return types.ModuleType(head)
    if level or head not in IMPORTABLE:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return real_import(name, globals, locals, fromlist, level)


def serve(sock, config):
    Session(sock, config["device"]).loop()


class Session:
    def __init__(self, sock, device):
        self.sock, self.device = sock, device
        self.model, self.kept = None, None
        self.step = "import"

    def loop(self):
        handlers = {"load": self.load, "sources": self.sources, "call": self.call,
                    "kept": self.kept_again, "time": self.time}
        while True:
            message, blobs = wire.receive(self.sock)
            if message is None:
                return
            try:
                reply, out = handlers[message["do"]](message, blobs)
            except BaseException as error:  # a candidate may raise anything, SystemExit included
                LEASE.begin(None)
                reply, out = failure(self.step, error), []
            wire.send(self.sock, reply, out)

    def execute(self, source, built):
        """Runs the candidate's file as an own module, from the private folder."""
        self.step = "import"
        path = os.path.join(os.getcwd(), "candidate.py")
        with open(path, "wb") as file:
            file.write(source)
        watch.WATCH.own_file = path
        inline.install(built)
        candidate = types.ModuleType("candidate")
        candidate.__file__ = path
        offered = {name: value for name, value in vars(builtins).items() if name not in WITHHELD}
        candidate.__builtins__ = {**offered, "__import__": candidate_import}
        sys.modules["candidate"] = candidate
        with torch.enable_grad():
            exec(compile(bytes(source), path, "exec"), candidate.__dict__)
        return candidate

    def sources(self, _message, blobs):
        """Only collects what the candidate would hand to `load_inline`."""
        trouble = None
        try:
            candidate = self.execute(blobs["source"], None)
            if not inline.COLLECTED:
                self.step = "init"
                inline.provoke(candidate)
        except BaseException as error:
            trouble = failure(self.step, error)
        if trouble and not inline.COLLECTED:
            return trouble, []
        return {"extensions": len(inline.COLLECTED)}, [("extensions", [inline.collected()])]

    def load(self, message, blobs):
        """Imports, constructs with the task's init inputs, and loads the task's state."""
        built = {"modules": message["modules"]}
        for module in message["modules"].values():
            with open(module["file"], "wb") as file:
                file.write(blobs[module["file"]])
        candidate = self.execute(blobs["source"], built)
        self.step = "entry"
        entry = getattr(candidate, "ModelNew", None)
        if not (isinstance(entry, type) and issubclass(entry, torch.nn.Module)):
            raise TypeError("ModelNew is missing or is not a subclass of torch.nn.Module")
        self.step = "init"
        torch.manual_seed(message["seed"])
        args, kwargs = init_arguments(wire.decode(blobs["init"], "cpu"))
        with torch.enable_grad():
            model = entry(*args, **kwargs)
        self.model = torch.nn.Module.eval(torch.nn.Module.to(model, self.device))
        self.load_state(wire.decode(blobs["state"], self.device))
        return {"loaded": True}, []

    def load_state(self, state):
        self.step = "state"
        torch.nn.Module.load_state_dict(self.model, state, strict=True)

    def call(self, message, blobs):
        """One challenge: outputs, the inputs as they are afterwards if they were written to, and what
        was seen."""
        seen = watch.WATCH
        state, base = (wire.decode(blobs[name], self.device) for name in ("state", "inputs"))
        LEASE.begin(self.sock if self.device != "cpu" else None)
        LEASE.take()
        seen.ops = {} if message["log"] else None
        self.load_logged(state, message["log"])
        loading = seen.ops or {}
        values = wire.renewed(base)
        self.step = "forward"
        seen.launches, seen.names = 0, set()
        seen.ops = {} if message["log"] else None
        # Memory that a kernel leaves unwritten must not hold anything that looks like an answer.
        torch.utils.deterministic.fill_uninitialized_memory = True
        deterministic(True)
        fences = Fences(message["sizes"] if self.device != "cpu" else [], self.device)
        result, kernels = self.observed(values, message["log"])
        launches, ops = seen.launches, seen.ops or {}
        outputs = wire.flatten(result)
        kinds = [describe(o) for o in outputs]
        plain = outputs if all(k == "plain" for k in kinds) else []
        fenced = fences.whole(plain)
        if message["keep"]:
            self.kept = plain
        reply = {"kinds": kinds, "fenced": fenced, "launches": launches, "ops": ops,
                 "loading": loading, "kernels": kernels, "jitted": sorted(seen.names)}
        untouched = wire.untouched(values, base)
        if wire.is_large(plain):
            LEASE.leave()
        out = [("outputs", wire.encode(plain, contiguous=True))]
        if not untouched:
            out.append(("after", wire.encode(values)))
        LEASE.begin(None)
        return reply, out

    def load_logged(self, state, log):
        """Hooks of a candidate's own may compute while state is loaded."""
        mode = watch.OpLog() if log else None
        if mode:
            ModeEnter(mode)
        try:
            self.load_state(state)
        finally:
            if mode:
                ModeExit(mode, None, None, None)

    def observed(self, values, log):
        """Forward under the op log and, on a GPU, under the profiler of device kernels."""
        mode = watch.OpLog() if log else None
        profiler = clock.Profiler() if log and self.device != "cpu" else None
        kernels = None
        with torch.no_grad():
            if profiler:
                profiler.start()
            if mode:
                ModeEnter(mode)
            try:
                result = self.model(*values)
            finally:
                if mode:
                    ModeExit(mode, None, None, None)
            if self.device != "cpu":
                clock.synchronize()
            if profiler:
                kernels = profiler.stop()
        return result, kernels

    def kept_again(self, _message, _blobs):
        """The kept result of an earlier call once more: a reused buffer shows as a change."""
        return {}, [("outputs", wire.encode(self.kept, contiguous=True))]

    def time(self, message, blobs):
        self.step = "forward"
        if message["time"] == "open":
            deterministic(False)
            self.load_state(wire.decode(blobs["state"], self.device))
            self.timed = Timed(self.model, self.device, inputs_of(blobs))
            return {}, []
        return self.timed.answer(message)


def deterministic(on):
    """As `torch.use_deterministic_algorithms`, which first imports torch's compiler."""
    torch._C._set_deterministic_algorithms(on, warn_only=on)


def describe(output):
    """`plain`, or why an output is not a plain strided tensor."""
    if type(output) not in PLAIN:
        return f"output is a {type(output).__name__}, not a plain tensor"
    if output.layout is not torch.strided:
        return f"output has the layout {output.layout}"
    return "plain"
