"""What a hostile candidate tries, by raw system calls where Python would be in the way. Runs inside
a worker. Each attack returns when it got what it wanted and raises when it was stopped; WORLD is
put in front by the test and says where the prey is. Nothing here harms who is not part of the test.
"""

import ctypes
import glob
import mmap
import os
import resource
import signal
import socket
import struct
import sys
import threading
import time

libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUSER = 0x00020000, 0x10000000


class Stopped(Exception):
    pass


def call(number, *values):
    wide = [ctypes.c_long(v) if isinstance(v, int) else v for v in values]
    result = libc.syscall(ctypes.c_long(number), *wide)
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def reach(family, kind, address):
    sock = socket.socket(fileno=call(41, family, kind, 0))
    sock.settimeout(2)
    sock.connect(address) if kind != socket.SOCK_DGRAM else sock.sendto(b"x", address)


def tcp():
    reach(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", WORLD["tcp"]))


def udp():
    reach(socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", WORLD["udp"]))


def unix_path():
    reach(socket.AF_UNIX, socket.SOCK_STREAM, WORLD["folder"] + "/unix")


def unix_abstract():
    reach(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + WORLD["abstract"])


def netlink():
    os.close(call(41, 16, 3, 0))


def packet():
    os.close(call(41, 17, 3, 0))


def first_that_works(actions):
    last = Stopped("nothing to try")
    for action in actions:
        try:
            return action()
        except OSError as error:
            last = error
    raise last


def write():
    """In a temporary, a home, a shared memory folder and the like."""
    def mark(folder):
        with open(folder + "/mark", "w") as file:
            file.write("was here")
    first_that_works([lambda f=f: mark(f) for f in WORLD["folders"]])


def write_system():
    """Where what everybody runs is kept."""
    def mark(folder):
        path = f"{folder}/keck-mark-{os.getpid()}"
        with open(path, "w"):
            os.unlink(path)
    first_that_works([lambda f=f: mark(f) for f in (sys.prefix, "/dev/shm", "/keck")])


def secret(path):
    with open(path) as file:
        if file.read() != "secret of " + WORLD["abstract"]:
            raise Stopped("another file")


def read_secret():
    secret(WORLD["folder"] + "/secret")


def read_through_proc():
    pids = [1, os.getppid(), WORLD["bystander"]]
    first_that_works([lambda p=p: secret(f"/proc/{p}/root{WORLD['folder']}/secret") for p in pids])


def read_sibling():
    """What another worker that runs just now has in its own folder."""
    own = {f"/proc/{os.getpid()}", "/proc/self", "/proc/thread-self"}
    names = [p for p in glob.glob("/proc/*") if p not in own]
    paths = [f"{p}/{way}" for p in names for way in ("cwd/victim", "root/private/victim")]
    paths += ["/private/victim", *glob.glob(WORLD["scratch"] + "/keck-*/worker-*/victim")]
    first_that_works([lambda p=p: secret(p) for p in paths])


def kill_bystander():
    os.kill(WORLD["bystander"], signal.SIGKILL)


def signal_all():
    """Whoever can be found. Signal 0 only asks whether one could; pid -1 says yes in any case."""
    others = {int(n) for n in os.listdir("/proc") if n.isdigit()} - {os.getpid(), 1}
    first_that_works([lambda p=p: os.kill(p, 0) for p in (*others, WORLD["bystander"])])


def signal_parent():
    if os.getppid() == 0:
        raise Stopped("no parent in sight")
    os.kill(os.getppid(), 0)


def pidfd_signal():
    call(424, call(434, WORLD["bystander"], 0), 0, 0, 0)


def ptrace():
    call(101, 0x4206, WORLD["bystander"], 0, 0)


def read_memory():
    buffer = ctypes.create_string_buffer(8)
    local = struct.pack("<QQ", ctypes.addressof(buffer), 8)
    try:
        call(310, WORLD["bystander"], local, 1, struct.pack("<QQ", 4096, 8), 1, 0)
    except OSError as error:
        if error.errno != 14:  # a bad address: it was allowed to look
            raise


def proc_mem():
    os.close(os.open(f"/proc/{WORLD['bystander']}/mem", os.O_RDWR))


def pidfd_getfd():
    os.close(call(438, call(434, WORLD["bystander"], 0), 0, 0))


def clone(flags=0):
    """A child that ends at once."""
    pid = call(56, flags | signal.SIGCHLD, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def fork():
    clone()


def outlive():
    """Not a child of anybody any more, and busy after the worker has been ended."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(2)
            with open(WORLD["folder"] + "/outlived", "w"):
                os._exit(0)
        os._exit(0)


def forget_parent():
    call(157, 1, 0, 0, 0, 0)


def clone_user():
    clone(NEWUSER)


def clone3_user():
    arguments = struct.pack("<11Q", NEWUSER, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, 0)
    pid = call(435, arguments, len(arguments))
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def mount():
    place = WORLD["folder"].encode()
    call(165, b"tmpfs", place, b"tmpfs", 0, b"size=1m")
    call(166, place, 2)


def keys():
    call(248, b"user", b"keck", b"x", 1, -2)


def io_uring():
    os.close(call(425, 2, ctypes.create_string_buffer(120)))


def bpf():
    os.close(call(321, 0, struct.pack("<IIII", 2, 4, 4, 1) + bytes(64), 72))


def perf():
    attributes = struct.pack("<IIQQQQQ", 1, 128, 0, 0, 0, 0, 1 << 5) + bytes(80)
    os.close(call(298, attributes, 0, -1, -1, 0))


def userfault():
    os.close(call(323, 1))


def execute():
    try:
        os.execv("/no/such/program", ["x"])
    except FileNotFoundError:
        pass  # it was allowed to look for it


def execute_memory():
    fd = call(319, b"x", 0)
    os.write(fd, b"no program")
    try:
        os.execve(fd, ["x"], {})
    except OSError as error:
        if error.errno != 8:  # the format is wrong: it was allowed to read it
            raise


def fork_bomb():
    read, hold = os.pipe()
    children = []
    try:
        for _ in range(80):
            pid = os.fork()
            if pid == 0:
                os.close(hold)
                os.read(read, 1)
                os._exit(0)
            children.append(pid)
    finally:
        os.close(hold)
        os.close(read)
        for pid in children:
            os.waitpid(pid, 0)


def thread_bomb():
    end, threads = threading.Event(), []
    threading.stack_size(1 << 18)
    try:
        for _ in range(80):
            thread = threading.Thread(target=end.wait)
            thread.start()
            threads.append(thread)
    except RuntimeError as error:
        raise Stopped(str(error)) from error
    finally:
        end.set()
        for thread in threads:
            thread.join()


def huge_private():
    mmap.mmap(-1, 8 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()


def huge_shared():
    mmap.mmap(-1, 8 << 30, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS).close()


def huge_memory_file():
    fd = call(319, b"x", 0)
    os.ftruncate(fd, 8 << 30)
    os.close(fd)


def big_file():
    with open("big", "wb") as file:
        file.truncate(128 << 20)
    os.unlink("big")


def fill_folder():
    names = [f"part{i}" for i in range(12)]
    try:
        for name in names:
            with open(name, "wb") as file:
                file.write(bytes(4 << 20))
    finally:
        for name in names:
            if os.path.exists(name):
                os.unlink(name)


def descriptors():
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opened = []
    try:
        for _ in range(3000):
            opened.append(os.open("/dev/null", os.O_RDONLY))
    finally:
        for fd in opened:
            os.close(fd)


def raise_limits():
    most = resource.RLIMIT_CORE
    resource.setrlimit(most, (0, 0))
    try:
        resource.setrlimit(most, (4096, 4096))
    except ValueError as error:
        raise Stopped(str(error)) from error


def become_root():
    call(117, 0, 0, 0)


def host_name():
    name = socket.gethostname().encode()  # the one that it has, so that nothing changes
    call(170, name, len(name))


def sysv_memory():
    address = libc.shmat(call(29, WORLD["shm"], 0, 0), None, 4096)
    if address == -1:
        raise OSError(ctypes.get_errno(), "shmat")


def environment():
    if not any(name.startswith("CARGO") for name in os.environ):
        raise Stopped("a clean environment")


def inherited():
    """Descriptors beside the standard ones and the socket to the judge."""
    odd = [fd for fd in range(4, 4096) if os.path.exists(f"/proc/self/fd/{fd}")]
    if not odd:
        raise Stopped("none")


def unshare_user():
    call(272, NEWUSER | NEWNS)


def attempt(names):
    said = []
    for name in names:
        try:
            globals()[name]()
            said.append(f"{name}=done")
        except OSError as error:
            said.append(f"{name}={'absent' if error.errno in (38, 95) else 'stopped'}")
        except Stopped:
            said.append(f"{name}=stopped")
    return ";".join(said)
