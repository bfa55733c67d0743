"""The warm process: isolates itself, imports torch and triton once, then forks one worker for
each request of the judge. It never runs code of a module or a candidate.

Started as `python -I zygote.py CONFIG` with the judge's control socket as standard input. When
that socket closes, this process ends, and with it every worker: it is process 1 of their pid
namespace, and they have asked to die with their parent.
"""

import concurrent.futures
import gc
import glob
import json
import os
import signal
import socket
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import sandbox  # noqa: E402  (isolation comes before any large import)

ADDRESS_ROOM_MIB = 2048  # reserved and never used: thread stacks, arenas


def visible_folders():
    """Folders a worker may read: the system's libraries, Python and its packages."""
    wanted = ["/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin", "/opt/nvidia"]
    wanted += [sys.prefix, sys.base_prefix, sys.exec_prefix]
    if os.path.exists("/dev/nvidiactl"):
        wanted += ["/sys", "/run/nvidia-persistenced"]
        wanted += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    # What a link leads to as well: the link alone would lead nowhere.
    wanted += [os.path.realpath(path) for path in wanted if path]
    found = []
    for path in sorted({p for p in wanted if p and os.path.isdir(p)}):
        inside = any(path.startswith(f + "/") and not os.path.islink(f) for f in found)
        if not inside:
            found.append(path)
    return found


def visible_devices():
    names = ["null", "zero", "full", "random", "urandom"]
    names += [n for n in os.listdir("/dev") if n.startswith("nvidia") and n != "nvidia-caps"]
    found = [f"/dev/{n}" for n in names if os.path.exists(f"/dev/{n}")]
    return found + [p for p in ("/dev/nvidia-caps",) if os.path.isdir(p)]


def isolate(config):
    """Enters the namespaces; the caller goes on as process 1 of a new pid namespace."""
    layers = sandbox.new_namespaces(config["layers"])
    if not layers:
        return []
    child = os.fork()
    if child:
        os.closerange(0, 1024)  # only the child may hold the judge's socket
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    sandbox.die_with_parent()
    if "mount-ns" in layers:
        layers += sandbox.build_root(config["root"], visible_folders(), visible_devices(), HERE,
                                     config["tmp_mib"])
        sys.path[0] = sandbox.HARNESS
        # The old root's folders may be gone, and `/tmp` read-only where the environment lies
        # below it.
        os.environ.update(HOME=sandbox.PRIVATE, TMPDIR=sandbox.PRIVATE)
    return layers


def read_ahead():
    """Has the system read torch's libraries now: else the first calls of the first workers wait for
    a cold disk, one page after the other."""
    for folder in sys.path:
        for path in glob.glob(f"{folder}/torch/lib/*.so*") + glob.glob(f"{folder}/nvidia/*/lib/*.so*"):
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_WILLNEED)


def warm_up(device, arch):
    """Everything a worker will need is imported here, so that a fork costs milliseconds."""
    compiler = None
    if device != "cpu":
        read_ahead()
        import jit
        # Mostly other programs at work, so torch is imported meanwhile.
        compiler = concurrent.futures.ThreadPoolExecutor(1)
        compiled = compiler.submit(jit.warm, arch)
    import torch
    import torch.utils.cpp_extension  # noqa: F401
    import triton
    import triton.language  # noqa: F401

    import kernel
    import module
    import probe
    import tools

    if compiler:
        compiled.result()
        compiler.shutdown()  # only one thread may fork
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    version = {"torch": torch.__version__, "triton": triton.__version__,
               "python": sys.version.split()[0]}
    roles = {"module": module.serve, "kernel": kernel.serve, "sources": kernel.serve,
             "probe": probe.serve, "tools": tools.serve}
    return roles, version


class Forker:
    """Forks workers, each as process 1 of a pid namespace of its own."""

    def __init__(self, config, layers, roles):
        self.config, self.layers, self.roles = config, layers, roles
        self.own_pids = "pid-ns" in layers
        self.home = os.open("/proc/self/ns/pid", os.O_RDONLY) if self.own_pids else None
        self.count = 0

    def fork(self, request, fds):
        self.count += 1
        if self.own_pids:
            sandbox.check(sandbox.libc.unshare(sandbox.NEWPID), "unshare pid")
        pid = os.fork()
        if pid == 0:
            self.child(request, fds)
        if self.own_pids:
            sandbox.check(sandbox.libc.setns(self.home, sandbox.NEWPID), "setns pid")
        return pid

    def child(self, request, fds):
        """The worker: prepared by trusted code, then handed to its role. Never returns."""
        code = 1
        try:
            channel, log = fds
            null = os.open("/dev/null", os.O_RDONLY)
            os.dup2(null, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            low = os.dup2(channel, 3)
            os.closerange(low + 1, 1 << 16)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            sock = socket.socket(fileno=low)
            self.confine(request)
            sock.send(b'{"ready": true}')
            self.roles[request["role"]](sock, self.config)
            code = 0
        except BaseException:  # reported by the role where it matters; here only the log
            import traceback
            traceback.print_exc()
        finally:
            os._exit(code)

    def confine(self, request):
        config, layers = self.config, self.layers
        if any(name in layers for name in sandbox.SPACES):
            sandbox.worker_namespaces(layers, config["tmp_mib"])
        if "mount-ns" not in layers:
            self.private_folder(request["scratch"])
        home = os.getcwd()
        os.environ.update(HOME=home, TMPDIR=home, TRITON_CACHE_DIR=f"{home}/triton",
                          TORCH_EXTENSIONS_DIR=f"{home}/extensions")
        # On a GPU Triton starts `ptxas` and `cc`, so processes must be allowed there.
        gpu = config["device"] != "cpu"
        starts = gpu or request["role"] == "tools"
        if "rlimits" in layers:
            sandbox.limits(request["memory_mib"], config["file_mib"], 512 if starts else 64,
                           None if starts else ADDRESS_ROOM_MIB)
        sandbox.drop_privileges(config["family"], self.count, layers)
        if "landlock" in layers:
            sandbox.landlock([*visible_folders(), "/etc", "/proc"], [home, *visible_devices()])
        if "parent-death" in layers:
            sandbox.die_with_parent()  # the kernel forgets it when the user changes
        if gpu and request["role"] in ("module", "kernel", "probe"):
            self.open_device()
        if "seccomp" in layers:
            sandbox.seccomp(allow_exec=starts)

    def open_device(self):
        """The driver opens a socket of its own when it starts. Nothing needs one afterwards, so
        it starts before sockets are forbidden."""
        import torch
        torch.cuda.init()
        total = torch.cuda.get_device_properties(0).total_memory
        share = min(1.0, (self.config["gpu_memory_mib"] << 20) / total)
        torch.cuda.set_per_process_memory_fraction(share)
        torch.cuda.synchronize()

    def private_folder(self, scratch):
        """Without a mount namespace: a folder below the judge's, removed with it."""
        folder = f"{scratch}/worker-{self.count}"
        os.makedirs(folder)
        os.chmod(folder, 0o777)
        os.chdir(folder)


def main():
    config = json.loads(sys.argv[1])
    control = socket.socket(fileno=os.dup(0))
    config["family"] = os.getpid()  # as the machine sees it, so before there are namespaces
    layers = isolate(config)
    roles, version = warm_up(config["device"], int(config["arch"]))
    layers = sandbox.chosen(config["layers"], layers)
    control.send(json.dumps({"layers": layers, "version": version}).encode())
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    forker = Forker(config, layers, roles)
    while True:
        packet, fds, _, _ = socket.recv_fds(control, 1 << 16, 4)
        if not packet:
            os._exit(0)
        try:
            pid = forker.fork(json.loads(packet), fds)
            handle = os.pidfd_open(pid)
            socket.send_fds(control, [json.dumps({"pid": pid}).encode()], [handle])
            os.close(handle)
        except OSError as error:
            control.send(json.dumps({"error": str(error)}).encode())
        finally:
            for fd in fds:
                os.close(fd)


if __name__ == "__main__":
    main()
