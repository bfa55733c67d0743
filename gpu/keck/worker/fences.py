"""Memory around the place where a result will be allocated, so that a kernel that writes past its
end is noticed. torch's allocator gives freed memory of the same size out again, and rounds sizes up:
the rest of the last unit is marked too."""

import torch

MARK, UNIT = 0xA5, 512
empty, fill_, eq, all_, as_tensor = (torch.empty, torch.Tensor.fill_, torch.Tensor.eq,
                                     torch.Tensor.all, torch.as_tensor)
pointer = torch.Tensor.data_ptr
SMALL, LARGE = 1 << 16, 1 << 21
SMALL_MAX = (1 << 20) - 2 * SMALL
LARGE_MAX = 1 << 28


class Raw:
    """Device memory by address. It stays the allocator's; a tensor over it only reads it."""

    def __init__(self, address, size):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": (size,),
                                         "typestr": "|u1", "strides": None, "version": 2}


class Fences:
    """Marked memory on both sides of free places of the given sizes, in bytes."""

    def __init__(self, sizes, device):
        self.device, self.marked, self.places = device, [], []
        for size in sizes:
            if 0 < size <= LARGE_MAX:
                self.around(size)

    def bytes(self, size):
        return empty(size, dtype=torch.uint8, device=self.device)

    def around(self, size):
        width = SMALL if size <= SMALL_MAX else LARGE
        rounded = -(-size // UNIT) * UNIT
        if width == LARGE:
            # A free block that holds all three, so that they are cut from it in order.
            whole = self.bytes(-(-size // LARGE) * LARGE + 2 * width)
            del whole
        before, place, after = self.bytes(width), self.bytes(rounded), self.bytes(width)
        for memory in (before, place, after):
            fill_(memory, MARK)
        self.marked += [before, after]
        self.places.append((pointer(place), size, rounded))
        del place

    def whole(self, outputs):
        """Whether nobody wrote to them, nor behind an output that lies in one of the places."""
        rests = []
        for output in outputs:
            for address, size, rounded in self.places:
                # Another output may lie at the start of a place that stays free, whose rest is anyone's.
                if (pointer(output), output.numel() * output.element_size()) != (address, size):
                    continue
                if rounded > size:
                    rests.append(as_tensor(Raw(address + size, rounded - size), device=self.device))
        return all(bool(all_(eq(memory, MARK))) for memory in self.marked + rests)
