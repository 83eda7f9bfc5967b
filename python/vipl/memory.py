"""Protection tags and registered memory."""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
import re
import struct
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

from . import _abi
from ._handle import Handle, Owner, number
from .errors import check

if TYPE_CHECKING:
    from .nic import Nic, NicHandle


class PtagHandle(Handle):
    """A protection tag, with the memory of descriptors that have it."""

    nic: NicHandle
    kind = "protection tag"
    closes = "VipDestroyPtag"

    def __init__(self, nic: NicHandle) -> None:
        made = ctypes.c_void_p()
        check("VipCreatePtag", nic.library.VipCreatePtag(nic.handle, ctypes.byref(made)))
        self.nic = nic
        #: Places of descriptors that no descriptor uses, by their size.
        self.places: dict[int, list[Place]] = {}
        super().__init__(nic.library, made.value or 0, nic)

    def _release(self, handle: int) -> int:
        code: int = self.library.VipDestroyPtag(self.nic.handle, handle)
        if not code:
            self.places.clear()
        return code

    def place(self, segments: int) -> Place:
        """Room for a descriptor of so many segments. More is mapped and registered if there is none."""
        size = (32 + 16 * segments + 63) // 64 * 64
        free = self.places.setdefault(size, [])
        try:
            return free.pop()
        except IndexError:
            pass
        length = max(1 << 16, size)
        mapped = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = ctypes.addressof(ctypes.c_char.from_buffer(mapped))
        region = RegionHandle(self, base, length, False, False)
        view = memoryview(mapped)
        new = [
            Place(view[at : at + size], base + at, region, free)
            for at in range(0, length - size + 1, size)
        ]
        free.extend(new[1:])
        return new[0]


class Place:
    """Registered memory of one descriptor."""

    __slots__ = ("view", "address", "region", "free")

    def __init__(self, view: memoryview, address: int, region: RegionHandle, free: list[Place]) -> None:
        self.view = view
        self.address = address
        self.region = region
        self.free = free


class RegionHandle(Handle):
    """A registration. Its handle is the memory handle."""

    kind = "memory"
    closes = "VipDeregisterMem"

    def __init__(self, ptag: PtagHandle, address: int, length: int, write: bool, read: bool) -> None:
        attributes = _abi.VIP_MEM_ATTRIBUTES(ptag.handle, bool(write), bool(read))
        made = _abi.VIP_MEM_HANDLE()
        code = ptag.library.VipRegisterMem(
            ptag.nic.handle, address, length, ctypes.byref(attributes), ctypes.byref(made)
        )
        check("VipRegisterMem", code, f"{length} bytes")
        self.nic = ptag.nic
        self.address = address
        self.length = length
        #: The public object, if there is one.
        self.memory: Optional[weakref.ref[Memory]] = None
        super().__init__(ptag.library, made.value, ptag)

    def _release(self, handle: int) -> int:
        code: int = self.library.VipDeregisterMem(self.nic.handle, self.address, handle)
        return code


class Ptag(Owner):
    """A protection tag: a VI uses memory of its own tag only. Made by Nic.ptag; a NIC has one that is used where none is named.

    Closing it closes the VIs and the memory that have it (VipDestroyPtag).
    """

    def __init__(self, nic: Nic, handle: Optional[PtagHandle] = None) -> None:
        self.nic = nic
        self._is_of_nic = handle is not None
        self._handle: PtagHandle = handle or PtagHandle(nic._handle)

    def __del__(self) -> None:
        # The NIC's own tag lives as long as the NIC.
        if not self._is_of_nic:
            super().__del__()


_REMOTE = struct.Struct("<QII")


@dataclass(frozen=True)
class Remote:
    """A part of a peer's registered memory, for RDMA. The peer makes it by Memory.remote and sends it in a message."""

    address: int
    handle: int
    length: int

    #: Bytes of Remote.pack.
    SIZE = _REMOTE.size

    def pack(self) -> bytes:
        """16 bytes for a message; those of the Rust interface are the same."""
        return _REMOTE.pack(self.address, self.handle, self.length)

    @classmethod
    def unpack(cls, data: Any) -> Remote:
        """Reads the first 16 bytes of a message. Any bytes will do: the peer's library checks them at each use.

        Raises struct.error: there are fewer bytes.
        """
        return cls(*_REMOTE.unpack_from(data))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> Remote:
        """A part of it: ``remote[16:32]``.

        Raises TypeError: not a slice; ValueError: a slice with a step.
        """
        if not isinstance(part, slice):
            raise TypeError("a part of remote memory is a slice")
        start, stop, step = part.indices(self.length)
        if step != 1:
            raise ValueError("a part of remote memory has no step")
        return Remote(self.address + start, self.handle, max(0, stop - start))


class Memory(Owner):
    """Registered memory, made by Nic.alloc or Nic.register. It has the buffer protocol: ``memoryview``, ``numpy.frombuffer``,
    ``socket.recv_into`` and others use it in place, and ``memory[3:8] = b"hello"`` writes to it.

    A part of it for a descriptor is a slice: ``vi.post_send(memory[0:100])``.

    close() ends the registration (VipDeregisterMem): neither the device nor a peer accesses the memory afterwards. The memory itself stays as long as
    a buffer, an array or a posted descriptor uses it.
    """

    if TYPE_CHECKING:
        #: Where it begins.
        address: int
        nic: Nic
        ptag: Ptag
        _handle: RegionHandle
        _allocation: Allocation

        def __len__(self) -> int: ...

        def __buffer__(self, flags: int, /) -> memoryview: ...

    def __init__(self) -> None:
        raise TypeError("memory is made by Nic.alloc and Nic.register")

    def __reduce__(self) -> Any:
        raise TypeError("registered memory cannot be copied or pickled")

    @property
    def handle(self) -> int:
        """The memory handle.

        Raises Closed.
        """
        handle: int = self._handle.handle
        return handle

    def remote(self, offset: int = 0, length: Optional[int] = None) -> Remote:
        """A part of it for a peer: from ``offset`` on, all if there is no ``length``.

        Raises Closed; ValueError: the part is not inside.
        """
        size = len(self)
        offset = number("offset", offset, 64)
        length = size - offset if length is None else number("length", length, 64)
        if length < 0 or offset + length > size:
            raise ValueError(f"{length} bytes at {offset} are not inside {size} bytes")
        return Remote(self.address + offset, self.handle, number("length", length, 32))

    def __getitem__(self, index: Any) -> Any:
        return memoryview(self).cast("B")[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        memoryview(self).cast("B")[index] = value

    def __repr__(self) -> str:
        state = f"handle {self._handle.handle:#x}" if self._handle.is_open else "closed"
        return f"<vipl.Memory of {len(self)} bytes, {state}>"


@functools.lru_cache(maxsize=256)
def _memory_of(length: int) -> Any:
    # Before Python 3.12 only classes in C have the buffer protocol; an array of ctypes is one.
    return type("Memory", (Memory, ctypes.c_ubyte * length), {"__module__": "vipl"})


def register(ptag: Ptag, buffer: Any, write: bool, read: bool) -> Memory:
    """Registers the memory of a buffer, which stays in place as long as the result."""
    view = memoryview(buffer)
    if view.readonly:
        raise TypeError(f"{type(buffer).__name__} is read-only; copy it into memory of Nic.alloc")
    if not view.c_contiguous:
        raise TypeError("a buffer with gaps cannot be registered")
    # Names stand between colons. A peer that writes to pointers of the interpreter, or swaps them, ends it.
    if "O" in re.sub(":[^:]*:", "", view.format):
        raise TypeError("a buffer of Python objects cannot be registered")
    if not view.nbytes:
        raise ValueError("an empty buffer cannot be registered")
    memory: Memory = _memory_of(view.nbytes).from_buffer(buffer)
    address = ctypes.addressof(memory)  # type: ignore[arg-type]
    region = RegionHandle(ptag._handle, address, view.nbytes, write, read)
    return _finish(memory, ptag, address, region)


def allocate(ptag: Ptag, length: int, write: bool, read: bool) -> Memory:
    """Allocates and registers memory; it is freed when nothing uses it any more."""
    length = number("length", length, 8 * ctypes.sizeof(ctypes.c_ssize_t) - 1, least=1)
    library = ptag._handle.library
    made = ctypes.c_void_p()
    check("vipl_alloc", library.vipl_alloc(length, ctypes.byref(made)), f"{length} bytes")
    address = made.value or 0
    allocation = Allocation(library.vipl_free, address)
    region = RegionHandle(ptag._handle, address, length, write, read)
    memory: Memory = _memory_of(length).from_address(address)
    memory._allocation = allocation
    return _finish(memory, ptag, address, region)


class Allocation:
    """Memory of vipl_alloc, which is freed when this object is gone.

    The collector calls the finalizers of a cycle in any order, and later ones may still use the memory. So the finalizer here frees
    nothing. It makes an object that does, which is none of the collector's and goes when this one does: after all finalizers.
    """

    __slots__ = ("_of", "_last")

    def __init__(self, free: Any, address: int) -> None:
        self._of = free, address, os.getpid()

    def __del__(self) -> None:
        self._last = _Freeing(*self._of)


class _Freeing:
    """Frees memory when it ends, but not in a forked child: that does not have the memory, and may get the address again."""

    __slots__ = ("_free", "_address", "_process")

    def __init__(self, free: Any, address: int, process: int) -> None:
        self._free = free
        self._address = address
        self._process = process

    def __del__(self) -> None:
        if os.getpid() == self._process:
            self._free(self._address)


def _finish(memory: Memory, ptag: Ptag, address: int, region: RegionHandle) -> Memory:
    memory.address = address
    memory.nic = ptag.nic
    memory.ptag = ptag
    memory._handle = region
    region.memory = weakref.ref(memory)
    return memory
