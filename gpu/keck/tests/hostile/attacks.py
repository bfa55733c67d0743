"""What a hostile candidate tries, by raw system calls where Python would be in the way. Runs inside
a worker. Each attack returns when it got what it wanted and raises when it was stopped; WORLD is
put in front by the test and says where the prey is. Nothing here harms who is not part of the test.
"""

import ctypes
import glob
import os
import signal
import socket
import struct
import sys
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
