"""NICs, and what the library knows."""

from __future__ import annotations

import ctypes
import json
import time
import weakref
from dataclasses import dataclass
from typing import Any, Callable, Optional, Union

from . import _abi
from ._handle import Handle, Owner, is_main_thread, milliseconds, open_nics
from ._library import library
from .address import Address, octets, parse_host
from .connection import Arrival, Request, room
from .cq import Cq
from .descriptor import Descriptor
from .errors import AsyncCode, AsyncError, Closed, check, error
from .memory import Memory, Ptag, PtagHandle, allocate, register
from .vi import Reliability, Vi, attributes_of

_ERROR_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(_abi.VIP_ERROR_DESCRIPTOR))


@dataclass(frozen=True)
class NicAttributes:
    """What VipQueryNic reports: what the NIC is, and its limits."""

    name: str
    #: The host's address.
    address: bytes
    hardware_version: int
    provider_version: int
    thread_safe: bool
    discriminator_max: int
    register_bytes_max: int
    register_regions_max: int
    register_block_bytes_max: int
    vi_max: int
    descriptors_per_queue_max: int
    #: Parts of one descriptor.
    segments_max: int
    cq_max: int
    cq_entries_max: int
    #: Bytes of the largest message.
    transfer_max: int
    native_mtu: int
    ptag_max: int
    #: Levels offered.
    reliability: Reliability
    #: Levels on which RDMA Read works.
    rdma_read: Reliability


class NicHandle(Handle):
    """An open NIC, with what finds its VIs."""

    kind = "NIC"
    closes = "VipCloseNic"

    def __init__(self, name: str) -> None:
        text = name.encode()
        if b"\0" in text:
            raise ValueError("the name of a device has no NUL")
        opened = library()
        made = ctypes.c_void_p()
        check("VipOpenNic", opened.VipOpenNic(text, ctypes.byref(made)), repr(name))
        #: Living VIs by their handles.
        self.vis: dict[int, weakref.ref[Vi]] = {}
        #: All handlers that it has had: the library may be in one that was replaced by itself.
        self.handlers: list[Any] = []
        #: Waits for clients that a signal interrupted in the main thread, by what they wait for.
        self.arrivals: dict[Address, Arrival] = {}
        super().__init__(opened, made.value or 0)
        open_nics.add(self)

    def _release(self, handle: int) -> int:
        code: int = self.library.VipCloseNic(handle)
        if not code:
            open_nics.discard(self)
            # No handler runs after this.
            self.handlers.clear()
            self.arrivals.clear()
        return code

    def query(self) -> NicAttributes:
        raw = _abi.VIP_NIC_ATTRIBUTES()
        check("VipQueryNic", self.library.VipQueryNic(self.handle, ctypes.byref(raw)))
        return NicAttributes(
            raw.Name.decode("utf-8", "replace"),
            ctypes.string_at(raw.LocalNicAddress, raw.NicAddressLen) if raw.LocalNicAddress else b"",
            raw.HardwareVersion,
            raw.ProviderVersion,
            bool(raw.ThreadSafe),
            raw.MaxDiscriminatorLen,
            raw.MaxRegisterBytes,
            raw.MaxRegisterRegions,
            raw.MaxRegisterBlockBytes,
            raw.MaxVI,
            raw.MaxDescriptorsPerQueue,
            raw.MaxSegmentsPerDesc,
            raw.MaxCQ,
            raw.MaxCQEntries,
            raw.MaxTransferSize,
            raw.NativeMTU,
            raw.MaxPtags,
            Reliability(raw.ReliabilityLevelSupport),
            Reliability(raw.RDMAReadSupport),
        )


class Nic(Owner):
    """An open NIC, made by vipl.open. Every function may be called in every thread.

    Closing it closes all that was made from it (VipCloseNic); threads that wait raise Closed. It closes itself when neither it nor
    anything made from it is referenced. In a handler of on_error closing it raises ResourceError.
    """

    def __init__(self, device: str = "via_lo") -> None:
        self._handle: NicHandle = NicHandle(device)
        #: What VipQueryNic reports.
        self.attributes = self._handle.query()
        # The tag of what names none.
        self._ptag = PtagHandle(self._handle)

    # Memory

    def ptag(self) -> Ptag:
        """A new protection tag (VipCreatePtag)."""
        return Ptag(self)

    def _tag(self, ptag: Optional[Ptag]) -> Ptag:
        """The tag that was given, or the NIC's own."""
        if ptag is not None:
            if not isinstance(ptag, Ptag):
                raise TypeError(f"{type(ptag).__name__} is no vipl.Ptag")
            return ptag
        return Ptag(self, self._ptag)

    def alloc(
        self, length: int, *, rdma_write: bool = False, rdma_read: bool = False, ptag: Optional[Ptag] = None
    ) -> Memory:
        """Allocates and registers memory, zeroed, at the beginning of a page (vipl_alloc, VipRegisterMem). To peers on this host
        RDMA to it is a store. A forked child does not have it.

        ``rdma_write``, ``rdma_read``: what peers may do with it by RDMA.

        Raises ResourceError: no memory, or a limit; InvalidRdmaRead: the NIC has no RDMA Read; ValueError.
        """
        return allocate(self._tag(ptag), length, rdma_write, rdma_read)

    def register(
        self, buffer: Any, *, rdma_write: bool = False, rdma_read: bool = False, ptag: Optional[Ptag] = None
    ) -> Memory:
        """Registers the memory of a writable buffer without gaps: a bytearray, an array of numpy, an mmap (VipRegisterMem). The buffer
        can be neither resized nor freed as long as the result is referenced.

        Raises TypeError: no buffer, read-only, or with gaps; ValueError: empty; others as alloc().
        """
        return register(self._tag(ptag), buffer, rdma_write, rdma_read)

    def descriptor(self, ptag: Optional[Ptag] = None) -> Descriptor:
        """A descriptor, to be prepared once and posted by Vi.post."""
        return Descriptor(self._tag(ptag))

    # Queues

    def vi(
        self,
        *,
        reliability: Reliability = Reliability.DELIVERY,
        transfer_max: Optional[int] = None,
        rdma_write: bool = False,
        rdma_read: bool = False,
        ptag: Optional[Ptag] = None,
        send_cq: Optional[Cq] = None,
        recv_cq: Optional[Cq] = None,
    ) -> Vi:
        """A new VI, idle (VipCreateVi). ``transfer_max`` is the largest message in bytes, by default what the NIC permits; it and
        ``reliability`` are the same on both sides. ``rdma_write``, ``rdma_read``: what the peer may do by RDMA.

        Raises InvalidReliabilityLevel, InvalidMtu, InvalidRdmaRead: the NIC lacks it; ResourceError: a limit.
        """
        for cq in (send_cq, recv_cq):
            if cq is not None and not isinstance(cq, Cq):
                raise TypeError(f"{type(cq).__name__} is no vipl.Cq")
        size = self.attributes.transfer_max if transfer_max is None else transfer_max
        return Vi(self._tag(ptag), reliability, size, rdma_write, rdma_read, send_cq, recv_cq)

    def cq(self, entries: int = 256) -> Cq:
        """A new completion queue, with room for as many entries as descriptors will be posted on its VIs (VipCreateCQ)."""
        return Cq(self, entries)

    # Connections

    def address(self, discriminator: Union[str, bytes] = b"", host: Union[str, bytes, None] = None) -> Address:
        """A connection point: of this NIC, or of another host. A host is its address in bytes; or as text, such as
        ``"192.0.2.7:34998"`` for ``ip`` and ``"02:00:00:00:00:01"`` for Ethernet; or a name (VipNSGetHostByName).

        Raises NameServiceError: the name is unknown.
        """
        if host is None:
            address = self.attributes.address
        elif isinstance(host, str):
            address = parse_host(host) or self._host_by_name(host)
        else:
            address = octets(host)
        return Address(address, octets(discriminator))

    def _host_by_name(self, name: str) -> bytes:
        text = name.encode()
        if b"\0" in text:
            raise ValueError("the name of a host has no NUL")
        functions, handle = self._handle.library, self._handle.handle
        self._check("VipNSInit", functions.VipNSInit(handle, None))
        found = room(self)
        self._check("VipNSGetHostByName", functions.VipNSGetHostByName(handle, text, found, 0), repr(name))
        return Address.decode(found.raw).host

    def connect_wait(self, discriminator: Union[str, bytes], timeout: Optional[float] = None) -> Request:
        """Waits for a client's request (VipConnectWait). ``timeout`` is in seconds, and None is no limit.

        After Ctrl-C the next call with this discriminator continues the wait, and has the client that came meanwhile.

        Raises Timeout; Closed, also when another thread closes the NIC.
        """
        core, local = self._handle, self.address(discriminator)
        limit = milliseconds(timeout)
        interrupted = core.arrivals if core.is_open and is_main_thread() else {}
        if local in interrupted:
            begun, former = time.monotonic(), interrupted[local]
            if not former.wait(timeout):
                raise error("VipConnectWait", _abi.VIP_TIMEOUT, repr(discriminator))
            if former.code() == _abi.VIP_TIMEOUT:
                # That was the limit of the call that was interrupted.
                del interrupted[local]
                if timeout is not None:
                    limit = milliseconds(max(0, timeout - (time.monotonic() - begun)))
        arrival = interrupted.setdefault(local, Arrival(core, local, room(self), limit))
        arrival.wait()
        try:
            interrupted.pop(local, None)
            self._check("VipConnectWait", arrival.code(), repr(discriminator))
            client, attributes = Address.decode(arrival.client.raw), attributes_of(arrival.attributes)
            return Request(self, arrival.request.value or 0, client, attributes)
        except BaseException:
            # A signal came in, and so did a client.
            if arrival.request.value:
                core.library.VipConnectReject(arrival.request.value)
            raise

    def on_error(self, handler: Optional[Callable[[AsyncError], object]]) -> None:
        """Sets the handler for asynchronous errors; with None, and at first, the library logs them (VipErrorCallback).

        It is called in a thread of the library, one call at a time. What it raises is reported by sys.unraisablehook.
        """
        if handler is None:
            function = None
        elif not callable(handler):
            raise TypeError(f"{type(handler).__name__} cannot be called")
        else:
            function = _ERROR_HANDLER(_handler(self._handle.vis, handler))
            self._handle.handlers.append(function)
        self._check("VipErrorCallback", self._handle.library.VipErrorCallback(self._handle.handle, None, function))

    def _check(self, name: str, code: int, context: object = "") -> None:
        if code:
            raise error(name, code, context) if self._handle.is_open else Closed(self._handle.kind)

    def __repr__(self) -> str:
        return f"<vipl.Nic {self.attributes.name}{'' if self._handle.is_open else ', closed'}>"


def _handler(vis: dict[int, weakref.ref[Vi]], handler: Callable[[AsyncError], object]) -> Callable[..., None]:
    # It finds the VI and has no reference to the NIC.
    def call(_context: Any, raw: Any) -> None:
        what = raw.contents
        code: int = what.ErrorCode
        if code in set(AsyncCode):
            code = AsyncCode(code)
        reference = vis.get(what.ViHandle or 0)
        handler(AsyncError(code, None if reference is None else reference()))

    return call


def open(device: str = "via_lo") -> Nic:
    """Opens a device, such as ``"via_lo"``, ``"ip:"`` or ``"sim:loss=0.05"`` (VipOpenNic); ``vipinfo`` lists them.

    Raises InvalidParameter: there is no such device; ResourceError; LibraryNotFound.
    """
    return Nic(device)


def describe(topic: str) -> Any:
    """What the library knows about a topic, from its JSON: ``version``, ``settings``, ``plugins``, ``devices``, ``counters``,
    ``budgets`` or ``map NAME`` (vipl_describe).

    Raises InvalidParameter: there is no such topic.
    """
    text = topic.encode()
    function, size = library().vipl_describe, ctypes.c_ulong(1 << 14)
    while True:
        buffer = ctypes.create_string_buffer(size.value)
        code = function(text, buffer, ctypes.byref(size))
        if code == _abi.VIP_ERROR_RESOURCE and size.value > len(buffer):
            continue
        check("vipl_describe", code, repr(topic))
        return json.loads(buffer.value)
