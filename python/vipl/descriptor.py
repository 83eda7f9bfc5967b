"""Descriptors: what is to be transferred, and later its result.

    descriptor.view:   control segment │ segments ...
                       32 B, aligned     16 B each
                       of the library while posted
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any, Optional

from . import _abi
from ._handle import number
from .errors import Status, status_text
from .memory import Memory, Place, Ptag, PtagHandle, RegionHandle, Remote

# VIP_CONTROL_SEGMENT and a segment; tests/test_abi.py compares them with the header.
CONTROL = struct.Struct("=QIHHIIII")
SEGMENT = struct.Struct("=QII")
RESULT = struct.Struct("=III")
RESULT_AT = 20
CONTROL_SIZE = 32


class Descriptor:
    """A transfer, with the memory that it names. Made by Nic.descriptor, and by the posting functions of a VI.

    send(), recv(), write() and read() say what it does; Vi.post posts it, again and again if wanted. From then on it belongs to the
    library, which keeps it and its memory, until a done or wait function returns it.
    """

    __slots__ = ("ptag", "context", "_place", "_parts", "_idle", "_is_receive", "__weakref__")

    def __init__(self, ptag: Ptag) -> None:
        #: The protection tag.
        self.ptag = ptag
        #: Anything of the program's.
        self.context: Any = None
        self._place: Optional[Place] = None
        self._parts: list[tuple[memoryview, Memory]] = []
        # One element while the program has it: one caller only can delete that.
        self._idle = [True]
        self._is_receive = False

    def __del__(self) -> None:
        # It is not there if a signal ended the constructor.
        place = getattr(self, "_place", None)
        if place is not None:
            place.free.append(place)

    def send(self, *parts: Any, immediate: Optional[int] = None, fence: bool = False) -> Descriptor:
        """Makes it a send of these parts of registered memory, in this order; immediate data are 32 bits that travel with it.
        Returns itself.

        A part is a Memory, a slice of one, or any buffer inside registered memory of the descriptor's tag, as an array of numpy.
        ``fence``: wait for all RDMA Reads before it.

        Raises ValueError: it is posted, or a part is not registered; TypeError: a part is no writable buffer.
        """
        return self._set(_abi.VIP_CONTROL_OP_SENDRECV, None, parts, immediate, fence)

    def recv(self, *parts: Any) -> Descriptor:
        """Makes it a receive into these parts. Returns itself. Raises as send()."""
        self._set(_abi.VIP_CONTROL_OP_SENDRECV, None, parts, None, False)
        self._is_receive = True
        return self

    def write(self, remote: Remote, *parts: Any, immediate: Optional[int] = None, fence: bool = False) -> Descriptor:
        """Makes it an RDMA Write of these parts to the peer's memory. With immediate data it uses a receive descriptor of the peer's.
        Returns itself. Raises as send(), and ValueError if the parts have more bytes than ``remote``."""
        return self._set(_abi.VIP_CONTROL_OP_RDMAWRITE, remote, parts, immediate, fence)

    def read(self, remote: Remote, *parts: Any, fence: bool = False) -> Descriptor:
        """Makes it an RDMA Read of the peer's memory into these parts. Returns itself. Raises as write()."""
        return self._set(_abi.VIP_CONTROL_OP_RDMAREAD, remote, parts, None, fence)

    def _set(
        self, operation: int, remote: Optional[Remote], parts: Any, immediate: Optional[int], fence: bool
    ) -> Descriptor:
        kept, segments, total = [], [], 0
        for part in parts:
            address, handle, length, keep = _segment(self.ptag._handle, part)
            if length:
                segments.append(SEGMENT.pack(address, handle, number("the length of a part", length, 32)))
                kept.append(keep)
                total += length
        if remote is not None:
            if not isinstance(remote, Remote):
                raise TypeError(f"{type(remote).__name__} is no vipl.Remote")
            if total > remote.length:
                raise ValueError(f"{total} bytes do not fit into {remote.length} bytes of the peer")
            place = number("a remote address", remote.address, 64), number("a remote handle", remote.handle, 32)
            segments.insert(0, SEGMENT.pack(*place, 0))
        most = self.ptag.nic.attributes.segments_max
        if len(parts) > most:
            raise ValueError(f"{len(parts)} parts; this NIC permits {most}")
        control = operation | (_abi.VIP_CONTROL_QFENCE if fence else 0)
        if immediate is not None:
            control |= _abi.VIP_CONTROL_IMMEDIATE
            immediate = number("immediate data", immediate, 32)
        total = number("the length of a message", total, 32)
        packed = CONTROL.pack(0, 0, len(segments), control, 0, immediate or 0, total, 0)
        try:
            del self._idle[0]
        except IndexError:
            raise ValueError("the descriptor is posted") from None
        try:
            place_now = self._place
            if place_now is None or len(place_now.view) < CONTROL_SIZE + SEGMENT.size * len(segments):
                self._place = self.ptag._handle.place(len(segments))
                if place_now is not None:
                    place_now.free.append(place_now)
                place_now = self._place
            # A transfer changes results only, so this lasts for any number of them.
            packed += b"".join(segments)
            place_now.view[: len(packed)] = packed
            self._parts, self._is_receive = kept, False
        finally:
            self._idle = [True]
        return self

    @property
    def is_posted(self) -> bool:
        """It belongs to the library."""
        return not self._idle

    def _result(self) -> tuple[int, int, int]:
        return RESULT.unpack_from(self._place.view, RESULT_AT) if self._place is not None else (0, 0, 0)

    @property
    def length(self) -> int:
        """Bytes that were transferred."""
        return self._result()[1]

    @property
    def status(self) -> Status:
        """Its status; 0 before it was posted."""
        return Status(self._result()[2] & ~_abi.VIP_STATUS_OP_MASK)

    @property
    def status_text(self) -> str:
        """The names of its status, with the operation."""
        return status_text(self._result()[2])

    @property
    def immediate(self) -> Optional[int]:
        """The immediate data that came with the message, if any."""
        data, _, status = self._result()
        return data if status & _abi.VIP_STATUS_IMMEDIATE else None

    @property
    def is_remote_write(self) -> bool:
        """A receive that an RDMA Write with immediate data of the peer has used: its data are in the memory of the RDMA Write."""
        return self._result()[2] & _abi.VIP_STATUS_OP_MASK == _abi.VIP_STATUS_OP_REMOTE_RDMA_WRITE

    @property
    def parts(self) -> list[memoryview]:
        """The parts of memory, as they were given."""
        return [view for view, _ in self._parts]

    @property
    def data(self) -> memoryview:
        """What was transferred: in place if it is in one part, otherwise a copy. Empty for RDMA Writes of the peer."""
        left = 0 if self.is_remote_write else self.length
        views = []
        for view, _ in self._parts:
            views.append(view[:left])
            left -= len(views[-1])
            if not left:
                break
        return views[0] if len(views) == 1 else memoryview(b"".join(views))

    def __repr__(self) -> str:
        state = "posted" if self.is_posted else self.status_text
        return f"<vipl.Descriptor of {sum(len(view) for view in self.parts)} bytes, {state}>"


def _segment(ptag: PtagHandle, part: Any) -> tuple[int, int, int, tuple[memoryview, Memory]]:
    """Address, memory handle and length of a part, and what keeps its memory."""
    if isinstance(part, Memory):
        return part.address, part.handle, len(part), (memoryview(part).cast("B"), part)
    try:
        view = memoryview(part)
    except TypeError:
        raise TypeError(f"{type(part).__name__} is no part of registered memory") from None
    if view.readonly:
        raise TypeError(f"{type(part).__name__} is read-only, so it is no part of registered memory; copy it into such")
    if not view.c_contiguous:
        raise TypeError("a part of registered memory has no gaps")
    length = view.nbytes
    if not length:
        return 0, 0, 0, (view, view.obj)  # type: ignore[return-value]
    view = view.cast("B")
    address = ctypes.addressof(ctypes.c_char.from_buffer(view))
    memory = view.obj
    if isinstance(memory, Memory):
        return address, memory.handle, length, (view, memory)
    for region in list(ptag.children):
        if isinstance(region, RegionHandle) and region.memory is not None:
            owner = region.memory()
            is_inside = region.address <= address and address + length <= region.address + region.length
            if owner is not None and is_inside and region.is_open:
                return address, region.handle, length, (view, owner)
    raise ValueError(f"{length} bytes of {type(part).__name__} are not registered: see Nic.register and Nic.alloc")
