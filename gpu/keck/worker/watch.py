"""What a candidate really did during one call: operators that torch dispatched, and launches of
its own Triton kernels. Under the interpreter stores are also held inside the arguments."""

import functools

import torch
import triton
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime import autotuner, interpreter, jit


class Watch:
    """State of the current call; `own_file` names the candidate's file."""

    def __init__(self):
        self.own_file = None
        self.launches = 0
        self.names = set()
        self.depth = 0
        self.ranges = []
        self.ops = None


WATCH = Watch()


class OpLog(TorchDispatchMode):
    """Counts operators by name. In a launch too: the grid, hooks and, under the interpreter, a kernel's
    body are the candidate's code. What the interpreter itself does there is not."""

    @classmethod
    def _should_skip_dynamo(cls):
        """Else the first operator imports torch's compiler, which takes seconds."""
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if WATCH.depth == 0 and WATCH.ops is not None:
            name = func._schema.name
            WATCH.ops[name] = WATCH.ops.get(name, 0) + 1
        return func(*args, **(kwargs or {}))


def code_file(kernel):
    inner = getattr(kernel, "fn", kernel)
    code = getattr(inner, "__code__", None)
    return code.co_filename if code else None


def count_launches(owner):
    """Wraps `owner.run`, through which every launch of a jitted function goes."""
    run = owner.run

    @functools.wraps(run)
    def counted(self, *args, grid, warmup, **kwargs):
        if not warmup and code_file(self) == WATCH.own_file:
            WATCH.launches += 1
            WATCH.names.add(getattr(self, "__name__", ""))
        before = WATCH.ranges
        try:
            WATCH.ranges = storages([*args, *kwargs.values()])
            return run(self, *args, grid=grid, warmup=warmup, **kwargs)
        finally:
            WATCH.ranges = before

    owner.run = counted


def hidden(owner, name):
    """The operators of this function are Triton's own."""
    inner = getattr(owner, name)

    def wrapped(*args, **kwargs):
        WATCH.depth += 1
        try:
            return inner(*args, **kwargs)
        finally:
            WATCH.depth -= 1

    setattr(owner, name, wrapped)


def storages(values):
    found = []
    for value in values:
        if isinstance(value, torch.Tensor):
            storage = value.untyped_storage()
            found.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        elif isinstance(value, tuple):
            found += storages(value)
        elif hasattr(value, "base") and isinstance(value.base, torch.Tensor):
            found += storages([value.base])
    return found


def check_range(pointers, mask, size):
    """Raises if a lane that is not masked out writes outside of every argument."""
    live = pointers[mask] if mask is not None else pointers.reshape(-1)
    if live.size == 0:
        return
    low, high = int(live.min()), int(live.max()) + size
    if any(a <= low and high <= b for a, b in WATCH.ranges):
        return
    for a, b in WATCH.ranges:
        live = live[(live < a) | (live + size > b)]
    if live.size:
        raise IndexError("a kernel stores outside of its arguments' memory")


def guard_interpreter():
    """Bounds for stores and atomics of the interpreter, which are plain pointers."""
    builder = interpreter.InterpreterBuilder
    store, rmw = builder.create_masked_store, builder.create_atomic_rmw

    def guarded_store(self, ptrs, value, mask, *rest):
        check_range(ptrs.data, mask.data, value.data.dtype.itemsize)
        return store(self, ptrs, value, mask, *rest)

    def guarded_rmw(self, op, ptr, val, mask, *rest):
        check_range(ptr.data, mask.data, val.data.dtype.itemsize)
        return rmw(self, op, ptr, val, mask, *rest)

    builder.create_masked_store = guarded_store
    builder.create_atomic_rmw = guarded_rmw


def faster_interpreter():
    """The interpreter asserts that no 32-bit integer overflows, as compiled kernels do not, and
    builds a table for every value; without both it takes a third of the time."""
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(sanitize_overflow=False)
    slow = interpreter._get_np_dtype
    known = {}

    def np_dtype(dtype):
        scalar = dtype.element_ty if isinstance(dtype, triton.language.block_type) else dtype
        if isinstance(scalar, triton.language.pointer_type):
            return slow(scalar)
        if scalar not in known:
            known[scalar] = slow(scalar)
        return known[scalar]

    interpreter._get_np_dtype = np_dtype


def first_config():
    """The autotuner cannot measure without a device: it takes the first configuration."""
    def bench(self, *args, config, **meta):
        return [float(self.configs.index(config))] * 3

    autotuner.Autotuner._bench = bench


def install(device):
    """Called once in the warm process, before any fork."""
    count_launches(jit.JITFunction)
    if device == "cpu":
        count_launches(interpreter.InterpretedFunction)
        guard_interpreter()
        faster_interpreter()
        first_config()
        # They copy arguments to the host and back.
        hidden(interpreter.GridExecutor, "_init_args_hst")
        hidden(interpreter.GridExecutor, "_restore_args_dev")
