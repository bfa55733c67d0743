"""More attacks of the same kind as in `attacks.py`, whose helpers these use: on the kernel's less
known parts, on limits, and on what the whole machine shares."""

import mmap
import resource
import threading


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
