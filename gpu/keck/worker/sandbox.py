"""Isolation, built from plain system calls. Runs before torch is imported and before any
code of a candidate exists in the process. Every function says which layers it put up."""

import ctypes
import os
import resource
import struct

libc = ctypes.CDLL(None, use_errno=True)

NEWNS, NEWUTS, NEWIPC = 0x00020000, 0x04000000, 0x08000000
NEWUSER, NEWPID, NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_BIND, MS_REC, MS_PRIVATE = 1, 2, 4, 4096, 16384, 1 << 18
MNT_DETACH = 2
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
SIGKILL = 9
FIRST_UID = 1_900_000_000  # far from people, services and containers
FAMILIES, MEMBERS = 1 << 14, 1 << 10  # judges at the same time, workers of one
PRIVATE, HARNESS = "/private", "/keck"


def check(result, what):
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def mount(source, target, kind, flags, data=""):
    check(libc.mount(source.encode(), target.encode(), kind.encode() if kind else None,
                     ctypes.c_ulong(flags), data.encode()), f"mount {target}")


def die_with_parent():
    libc.prctl(PR_SET_PDEATHSIG, SIGKILL)


SPACES = {"mount-ns": NEWNS, "pid-ns": NEWPID, "net-ns": NEWNET, "ipc-ns": NEWIPC,
          "uts-ns": NEWUTS}


def chosen(asked, spaces):
    """All layers of a worker: those that are asked for, or without such a list the strongest,
    given the namespaces that are up."""
    if asked is None:
        asked = ["own-uid"] if spaces and "user-ns" not in spaces and may_be_others() else []
        asked += [] if spaces else ["landlock"]
        asked += ["no-capabilities", "no-new-privs", "rlimits", "parent-death", "seccomp"]
    there = {"landlock": landlock_version() > 0, "seccomp": os.uname().machine == "x86_64"}
    rest = [name for name in asked if name not in SPACES and name != "user-ns"]
    return spaces + [name for name in rest if there.get(name, True)]


def may_be_others():
    """Whether this is root, and of a user namespace that has the workers' users."""
    def mapped(name):
        with open(f"/proc/self/{name}") as file:
            ranges = [[int(word) for word in line.split()] for line in file]
        return any(inside <= FIRST_UID and FIRST_UID + FAMILIES * MEMBERS <= inside + count
                   for inside, _, count in ranges)
    return os.getuid() == 0 and mapped("uid_map") and mapped("gid_map")


def new_namespaces(asked):
    """Own mount, pid, network, ipc and uts namespaces (or those asked for) for the next child; as
    root directly, otherwise inside an own user namespace. Returns the layers, empty if the kernel
    refuses them all."""
    names = [name for name in SPACES if asked is None or name in asked]
    spaces = sum(SPACES[name] for name in names)
    as_user = asked is not None and "user-ns" in asked
    if not names and not as_user:
        return []
    if not as_user and libc.unshare(spaces) == 0:
        return names
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(NEWUSER | spaces) != 0:
        if asked is not None:
            raise OSError(ctypes.get_errno(), "the namespaces that were asked for")
        return []
    # Not as root, even of this namespace alone; capabilities do not need that.
    maps = {"setgroups": "deny", "uid_map": f"{FIRST_UID} {uid} 1", "gid_map": f"{FIRST_UID} {gid} 1"}
    for name, line in maps.items():
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)
    return ["user-ns", *names]


def build_root(at, visible, devices, harness, tmp_mib):
    """A new root that holds only `visible` and the harness (read-only), a few devices, proc and
    a small private folder, which is also `/tmp` unless something visible lies below that."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    os.makedirs(at, exist_ok=True)
    mount("tmpfs", at, "tmpfs", MS_NOSUID, "size=4m,mode=755")
    for path in visible:
        place(at, path)
    os.makedirs(f"{at}/etc", exist_ok=True)
    for path in ("/etc/ld.so.cache", "/etc/localtime"):
        if os.path.exists(path):
            place(at, path)
    with open(f"{at}/etc/passwd", "w") as file:
        file.write(f"root:x:0:0::/tmp:/bin/sh\nkeck:x:{FIRST_UID}:{FIRST_UID}::/tmp:/bin/sh\n")
    os.makedirs(f"{at}/dev", exist_ok=True)
    for path in devices:
        place(at, path)
    for name in ("proc", PRIVATE[1:], HARNESS[1:], "dev/shm", "old"):
        os.makedirs(f"{at}/{name}", exist_ok=True)
    if not os.path.exists(f"{at}/tmp"):
        os.symlink(PRIVATE, f"{at}/tmp")
    mount(harness, at + HARNESS, None, MS_BIND)
    mount("proc", f"{at}/proc", "proc", MS_NOSUID | MS_NODEV)
    os.chdir(at)
    check(libc.syscall(155, b".", b"old"), "pivot_root")
    os.chdir("/")
    check(libc.umount2(b"/old", MNT_DETACH), "detach the old root")
    os.rmdir("/old")
    read_only("/")
    private_tmp(PRIVATE, tmp_mib)
    return ["read-only-root", "private-tmp"]


def place(root, path):
    """Shows a file or folder of the old root at the same place of the new one."""
    target = root + path
    if os.path.islink(path) and os.path.isdir(path):
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if not os.path.lexists(target):
            os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "a"):
            pass
    mount(path, target, None, MS_BIND | MS_REC)


def read_only(path):
    """Everything below `path` becomes read-only and loses set-user-id bits."""
    attr = struct.pack("<QQQQ", 0x1 | 0x2, 0, 0, 0)
    check(libc.syscall(442, -100, path.encode(), 0x8000, attr, len(attr)), "mount_setattr")


def private_tmp(path, mib):
    mount("tmpfs", path, "tmpfs", MS_NOSUID | MS_NODEV, f"size={mib}m,mode=1777,nr_inodes=4096")


def worker_namespaces(layers, tmp_mib):
    """In a fresh child that is already process 1 of its own pid namespace: own mounts, proc,
    network and ipc, so that two workers share nothing."""
    own = sum(SPACES[n] for n in ("mount-ns", "net-ns", "ipc-ns") if n in layers)
    check(libc.unshare(own), "unshare")
    if "mount-ns" not in layers:
        return
    mount("none", "/", None, MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV)
    private_tmp(PRIVATE, tmp_mib)
    os.chdir(PRIVATE)


def drop_privileges(family, slot, layers):
    """No capabilities, no way to regain them, and as root an own unprivileged user, which is none of
    another judge's: the number of processes is counted by user."""
    if "no-capabilities" in layers:
        for capability in range(64):
            libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    if "own-uid" in layers:
        uid = FIRST_UID + family % FAMILIES * MEMBERS + slot % MEMBERS
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    if "no-capabilities" in layers:
        drop_capabilities()
    if "no-new-privs" in layers:
        libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)


def drop_capabilities():
    header = struct.pack("<Ii", 0x20080522, 0)
    check(libc.capset(header, b"\0" * 24), "capset")


def limits(memory_mib, file_mib, processes, address_room_mib):
    """Memory counts on top of what the warm process already maps. Shared memory is no data for the
    kernel, so on a CPU all addresses are limited too; a GPU's driver takes too many of them. What
    still gets around that makes this process the first to go when memory runs out."""
    with open("/proc/self/status") as file:
        kib = {line.split(":")[0]: line.split()[1] for line in file if line.startswith("Vm")}
    limit(resource.RLIMIT_DATA, (int(kib["VmData"]) << 10) + (memory_mib << 20))
    if address_room_mib is not None:
        room = memory_mib + address_room_mib
        limit(resource.RLIMIT_AS, (int(kib["VmSize"]) << 10) + (room << 20))
    limit(resource.RLIMIT_FSIZE, file_mib << 20)
    limit(resource.RLIMIT_NPROC, processes)
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_NOFILE, 1024)
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def limit(what, most):
    resource.setrlimit(what, (most, most))


READ = 0b1101  # execute, read files, list folders
WRITE_BITS = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 4: 0x7FFF}


def landlock(readable, writable):
    """Where there are no namespaces: files outside of these are out of reach, and the network."""
    version = landlock_version()
    handled = WRITE_BITS.get(version, 0xFFFF)
    network = 0b11 if version >= 4 else 0
    scoped = 0b11 if version >= 6 else 0
    attributes = struct.pack("<QQQ", handled, network, scoped)
    size = 8 if version < 4 else 16 if version < 6 else 24
    rules = libc.syscall(444, attributes, size, 0)
    check(min(rules, 0), "landlock_create_ruleset")
    for paths, access in ((readable, READ), (writable, handled)):
        for path in paths:
            if os.path.exists(path):
                allow_below(rules, path, access & handled)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    check(libc.syscall(446, rules, 0), "landlock_restrict_self")
    os.close(rules)


def landlock_version():
    return libc.syscall(444, None, 0, 1)


def allow_below(rules, path, access):
    fd = os.open(path, os.O_PATH)
    if not os.path.isdir(path):
        access &= 0b1100000000000111  # what makes sense for a file
    check(libc.syscall(445, rules, 1, struct.pack("<Qi", access, fd), 0), f"landlock {path}")
    os.close(fd)


# System calls that no kernel needs (x86-64): debugging and reading other processes, mounts and
# namespaces, sockets, kernel modules, keys, asynchronous I/O rings.
DENIED = [41, 42, 43, 49, 50, 53, 101, 155, 165, 166, 167, 168, 169, 175, 176, 246, 248, 249, 250,
          272, 298, 300, 303, 304, 308, 310, 311, 312, 313, 317, 320, 321, 323, 425, 426, 427, 428,
          429, 430, 431, 432, 433, 438, 442]
EXEC = [57, 58, 59, 322]
CLONE, CLONE3, CLONE_THREAD, PRCTL = 56, 435, 0x10000, 157
SECCOMP, SET_MODE_FILTER, ALL_THREADS = 317, 1, 1
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EPERM, ENOSYS = 1, 38


def seccomp(allow_exec):
    """Denied calls fail with EPERM; clone3 is hidden so that clone's flags can be read, and the
    signal at the parent's death stays asked for. Holds for every thread of the process, those of
    the CUDA driver too: a thread without the filter could be made to run a candidate's signal
    handler."""
    denied = DENIED + ([] if allow_exec else EXEC)
    program = [(0x20, 0, 0, 4), (0x15, 1, 0, 0xC000003E), (0x06, 0, 0, 0), (0x20, 0, 0, 0),
               (0x35, 0, 1, 0x40000000), (0x06, 0, 0, ERRNO | EPERM)]
    for number in denied:
        program += [(0x15, 0, 1, number), (0x06, 0, 0, ERRNO | EPERM)]
    program += [(0x15, 0, 1, CLONE3), (0x06, 0, 0, ERRNO | ENOSYS)]
    program += [(0x15, 0, 4, PRCTL), (0x20, 0, 0, 16), (0x15, 0, 1, PR_SET_PDEATHSIG),
                (0x06, 0, 0, ERRNO | EPERM), (0x20, 0, 0, 0)]
    spaces = NEWNS | NEWUTS | NEWIPC | NEWUSER | NEWPID | NEWNET
    program += [(0x15, 0, 4, CLONE), (0x20, 0, 0, 16), (0x45, 1, 0, spaces)]
    program += [(0x05, 0, 0, 1)] if allow_exec else [(0x45, 1, 0, CLONE_THREAD)]
    program += [(0x06, 0, 0, ERRNO | EPERM), (0x06, 0, 0, ALLOW)]
    code = b"".join(struct.pack("<HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("<HxxxxxxQ", len(program), ctypes.addressof(buffer))
    check(libc.syscall(SECCOMP, SET_MODE_FILTER, ALL_THREADS, header), "seccomp")
