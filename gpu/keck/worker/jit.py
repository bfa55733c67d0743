"""Triton's compiler: loaded before the fork, and told where its parts may be faster. A worker that
compiles needs processors, not the device, so the judge gives the device to others meanwhile."""

import os
import subprocess
import sysconfig

import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia import driver
from triton.compiler import ASTSource
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from lease import LEASE


def without_device(owner, name):
    inner = getattr(owner, name)

    def wrapped(*args, **kwargs):
        with LEASE:
            return inner(*args, **kwargs)

    setattr(owner, name, wrapped)


def tuning():
    """Trying many configurations takes long and is no sign of a kernel that hangs. Each is measured with
    the device alone: else the choice depends on what others do."""
    inner = Autotuner._bench

    def bench(self, *args, **kwargs):
        LEASE.say(b"alone")
        try:
            return inner(self, *args, **kwargs)
        finally:
            LEASE.take()

    Autotuner._bench = bench


def build(name, src, srcdir, library_dirs, include_dirs, libraries):
    """As Triton builds the C function that launches a kernel, with less optimisation: it is called
    once a launch and converts a few arguments."""
    target = os.path.join(srcdir, name + sysconfig.get_config_var("EXT_SUFFIX"))
    command = [os.environ["CC"], src, "-O1", "-shared", "-fPIC", "-w", "-o", target]
    command += [f"-l:{lib}" if ".so" in lib else f"-l{lib}" for lib in libraries]
    command += [f"-L{folder}" for folder in library_dirs]
    command += [f"-I{folder}" for folder in [*include_dirs, srcdir, PYTHON_HEADERS]]
    subprocess.check_call(command, stdout=subprocess.DEVNULL)
    return target


PYTHON_HEADERS = sysconfig.get_paths()["include"]


@triton.jit
def smallest(x):
    tl.store(x, tl.load(x) + 1.0)


def warm(arch):
    """Called once in the warm process. Compiling does not need a device, only its architecture; nor does
    Triton's part of the driver, which is compiled and loaded here."""
    knobs.build.impl = build
    without_device(JITFunction, "_do_compile")
    without_device(driver, "compile_module_from_src")
    tuning()
    driver.CudaUtils()
    source = ASTSource(smallest, signature={"x": "*fp32"})
    triton.compile(source, target=GPUTarget("cuda", arch, 32))
