"""Messages between a worker and the judge, and tensors as bytes.

A message is one packet of JSON plus file descriptors of memory files, named in order by the
key `blobs`. A tensor blob is: header length (8 bytes, little endian), JSON header, data. The
header holds a `tree` (the nesting, with plain Python values) and `tensors` (dtype, shape,
strides, offset, bytes). Nothing is ever pickled: both sides are hostile to each other.
"""

import json
import mmap
import os
import resource
import socket
import struct

import torch

MAX_PACKET = 160 * 1024
ALIGN = 64
# Larger memory files are mapped and not read.
LARGE = 4 << 20
# Bound before any candidate exists.
equal, clone, as_strided = torch.equal, torch.Tensor.clone, torch.as_strided


def send(sock, message, blobs=()):
    """Sends a message; `blobs` is a list of (name, list of byte-like chunks). What is larger than a
    worker's files may be is not sent; the message says so instead."""
    too_large = first_too_large(blobs)
    if too_large:
        message, blobs = too_large, ()
    fds = []
    try:
        for name, chunks in blobs:
            # The judge seals what it keeps: nobody can change it then, so it need not copy it.
            fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            fds.append(fd)
            for chunk in chunks:
                view = memoryview(chunk)
                while view:
                    view = view[os.write(fd, view):]
        message["blobs"] = [name for name, _ in blobs]
        packet = json.dumps(message).encode()
        if fds:
            socket.send_fds(sock, [packet], fds)
        else:
            sock.send(packet)
    finally:
        for fd in fds:
            os.close(fd)


def first_too_large(blobs):
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    for name, chunks in blobs:
        size = sum(memoryview(chunk).nbytes for chunk in chunks)
        if most != resource.RLIM_INFINITY and size > most:
            text = f"{name}: {size} bytes; the judge takes {most} bytes (its file_mib)"
            return {"failed": "hand-over", "types": ["MemoryError"], "message": text,
                    "detail": text}
    return None


def receive(sock):
    """Returns (message, {name: bytes}), or (None, {}) when the judge has gone."""
    packet, fds, _, _ = socket.recv_fds(sock, MAX_PACKET, 8)
    if not packet:
        return None, {}
    message = json.loads(packet)
    blobs = {}
    for name, fd in zip(message.get("blobs", []), fds):
        blobs[name] = read_all(fd)
    return message, blobs


def read_all(fd):
    """The content of a memory file, in memory that can be written to."""
    size = os.fstat(fd).st_size
    if size >= LARGE:
        data = mmap.mmap(fd, size, flags=mmap.MAP_PRIVATE)
        os.close(fd)
        return data
    data = bytearray(size)
    view, at = memoryview(data), 0
    while at < size:
        got = os.preadv(fd, [view[at:]], at)
        if got == 0:
            break
        at += got
    os.close(fd)
    return data


# What operators of torch return that give several tensors.
RETURN_TYPES = {kind for kind in vars(torch.return_types).values() if isinstance(kind, type)}


def is_large(tensors):
    """Whether so many bytes are to be handed over that the device should not be kept meanwhile."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors) >= LARGE


def dtype_name(tensor):
    return str(tensor.dtype).removeprefix("torch.")


def extent(tensor):
    """Elements of storage between the first and the last element of a strided tensor."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride()))


def raw(tensor, copy):
    """The bytes of a tensor's extent, gaps included, on the host."""
    kept = span(tensor)
    if kept.device.type != "cpu":
        kept = kept.cpu()
    elif copy:
        kept = clone(kept)
    return memoryview(kept.view(torch.uint8).numpy()) if kept.numel() else b""


def leaves(value):
    """What a nest of lists, tuples and dicts holds."""
    if isinstance(value, dict):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, (list, tuple)):
        return [leaf for part in value for leaf in leaves(part)]
    return [value]


def untouched(values, base):
    """Whether the tensors of two nests have the same layouts and bytes, as inputs after a call and a
    copy from before it do that were left alone."""
    def kind(tensor):
        return tensor.shape, tensor.stride(), tensor.dtype, tensor.device

    left, right = ([leaf for leaf in leaves(nest) if isinstance(leaf, torch.Tensor)]
                   for nest in (values, base))
    return len(left) == len(right) and all(
        kind(a) == kind(b) and equal(flat_bytes(a), flat_bytes(b)) for a, b in zip(left, right))


def renewed(value):
    """The same values in new memory, strides and gaps kept."""
    if isinstance(value, torch.Tensor):
        return as_strided(clone(span(value)), value.size(), value.stride())
    if isinstance(value, (list, tuple)):
        return type(value)([renewed(v) for v in value])
    if isinstance(value, dict):
        return {key: renewed(v) for key, v in value.items()}
    return value


def span(tensor):
    """The elements of storage between the first and the last of a tensor, where they are."""
    return as_strided(tensor.detach(), (extent(tensor),), (1,))


def flat_bytes(tensor):
    return span(tensor).view(torch.uint8)


def encode(value, contiguous=False, copy=True):
    """Byte chunks for a nest of tensors and plain values.

    With `contiguous` the tensors are stored in logical order and their strides only described. Without
    `copy` the chunks of tensors on the host are their own memory.
    """
    tensors, chunks = [], []
    offset = 0

    def put(tensor):
        nonlocal offset
        stored = tensor.detach().contiguous() if contiguous else tensor
        data = raw(stored, copy)
        entry = {
            "dtype": dtype_name(tensor),
            "shape": list(tensor.shape),
            "strides": list(stored.stride()),
            "device": tensor.device.type,
            "offset": offset,
            "bytes": len(data),
        }
        tensors.append(entry)
        chunks.append(data)
        pad = -len(data) % ALIGN
        chunks.append(b"\0" * pad)
        offset += len(data) + pad
        return len(tensors) - 1

    tree = to_tree(value, put)
    header = json.dumps({"tree": tree, "tensors": tensors}).encode()
    header += b" " * (-(len(header) + 8) % ALIGN)
    return [struct.pack("<Q", len(header)), header, *chunks]


def to_tree(value, put):
    if isinstance(value, torch.Tensor):
        return ["tensor", put(value)]
    if value is None or isinstance(value, (bool, int, str)):
        return ["plain", value]
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__ if type(value) in (list, tuple) else "tuple",
                [to_tree(v, put) for v in value]]
    if isinstance(value, dict):
        return ["dict", [[to_tree(k, put), to_tree(v, put)] for k, v in value.items()]]
    if isinstance(value, torch.dtype):
        return ["dtype", str(value).removeprefix("torch.")]
    raise TypeError(f"cannot hand over a value of type {type(value).__name__}")


def decode(data, device):
    """The value of a blob, or of the chunks that `encode` made, its tensors on `device` with the
    strides they had. They share no memory with `data`."""
    if isinstance(data, list):
        header, part = data[1], lambda index, _: data[2 + 2 * index]
    else:
        (length,) = struct.unpack_from("<Q", data)
        base, view = 8 + length, memoryview(data)
        header = view[8:base]
        part = lambda _, entry: view[base + entry["offset"]:][:entry["bytes"]]
    header = json.loads(bytes(header))

    def get(index, entry):
        dtype = getattr(torch, entry["dtype"])
        if entry["bytes"] == 0:
            return torch.empty(entry["shape"], dtype=dtype, device=device)
        data = part(index, entry)
        data = bytearray(data) if device == "cpu" else data
        flat = torch.frombuffer(data, dtype=dtype).to(device)
        return torch.as_strided(flat, entry["shape"], entry["strides"])

    return from_tree(header["tree"], [get(i, e) for i, e in enumerate(header["tensors"])])


def from_tree(tree, tensors):
    kind, value = tree
    if kind == "tensor":
        return tensors[value]
    if kind == "float":
        return float.fromhex(value)
    if kind == "list":
        return [from_tree(v, tensors) for v in value]
    if kind == "tuple":
        return tuple(from_tree(v, tensors) for v in value)
    if kind == "dict":
        return {from_tree(k, tensors): from_tree(v, tensors) for k, v in value}
    if kind == "dtype":
        return getattr(torch, value)
    return value


def flatten(value):
    """The tensors of a (nested) tuple or list; anything else is kept as it is. A class of a
    candidate's own that poses as one could compute its items only here."""
    known = type(value) in (list, tuple) or type(value) in RETURN_TYPES
    if known:
        return [leaf for item in value for leaf in flatten(item)]
    return [value]
