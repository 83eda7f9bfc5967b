"""VIs: two queues of descriptors, and a connection."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import time
import weakref
from ctypes import byref, c_void_p
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

from . import _abi
from ._handle import Handle, Owner, in_slices, interruptible, milliseconds, number
from .address import Address, encoded
from .descriptor import Descriptor
from .errors import Closed, DescriptorError, check, error
from .memory import Ptag, Remote

if TYPE_CHECKING:
    from .cq import Cq

NOT_DONE = _abi.VIP_NOT_DONE
FAILED = _abi.VIP_DESCRIPTOR_ERROR

#: Between two requests for a connection that found no server, in seconds.
PAUSE = 0.01


class Reliability(enum.IntFlag):
    """Reliability levels: one, or a set of them."""

    UNRELIABLE = _abi.VIP_SERVICE_UNRELIABLE
    DELIVERY = _abi.VIP_SERVICE_RELIABLE_DELIVERY
    RECEPTION = _abi.VIP_SERVICE_RELIABLE_RECEPTION


class ViState(enum.IntEnum):
    """States of a VI."""

    IDLE = _abi.VIP_STATE_IDLE
    CONNECTED = _abi.VIP_STATE_CONNECTED
    CONNECT_PENDING = _abi.VIP_STATE_CONNECT_PENDING
    ERROR = _abi.VIP_STATE_ERROR


@dataclass(frozen=True)
class ViAttributes:
    """What a VI is like. Level and largest message are equal on both sides of a connection."""

    reliability: Reliability
    #: Bytes of the largest message.
    transfer_max: int
    #: The peer may write by RDMA.
    rdma_write: bool
    #: The peer may read by RDMA.
    rdma_read: bool


def attributes_of(raw: _abi.VIP_VI_ATTRIBUTES) -> ViAttributes:
    return ViAttributes(
        Reliability(raw.ReliabilityLevel), raw.MaxTransferSize, bool(raw.EnableRdmaWrite), bool(raw.EnableRdmaRead)
    )


class ViStatus(NamedTuple):
    """What VipQueryVi reports."""

    state: ViState
    attributes: ViAttributes
    is_send_queue_empty: bool
    is_recv_queue_empty: bool


class Queue:
    """One queue of a VI: the descriptors that the library has.

    From Python 3.11 on a signal may raise where a function begins, where a call ends and where a loop turns, but at no other place. So what
    belongs together stands without these between: a descriptor is lost to no signal. In older ones it may seem posted until the VI is closed.
    """

    def __init__(self, post: Any, done: Any, wait: Any) -> None:
        self.post = post
        self.done = done
        self.wait = wait
        #: Posted descriptors by their address; this is what keeps them and their memory.
        self.posted: dict[int, Descriptor] = {}
        #: Those that the library returned to a call that a signal interrupted. The caller that deletes one here has it.
        self.left: dict[int, None] = {}

    def add(self, vi: Handle, descriptor: Descriptor) -> int:
        """Posts a descriptor."""
        place = descriptor._place
        if place is None:
            raise ValueError("the descriptor has no operation: call send, recv, write or read before")
        handle, address, memory = vi.handle, place.address, place.region.handle
        try:
            del descriptor._idle[0]
        except IndexError:
            raise ValueError("the descriptor is posted already") from None
        self.posted[address] = descriptor
        # When a signal raises here, the library has it, so it stays among the posted ones.
        code: int = self.post(handle, address, memory)
        if code:
            self.posted.pop(address, None)
            descriptor._idle = [True]
        return code

    def take(self, vi: Handle, waits: bool = False, timeout: Optional[float] = None) -> tuple[int, Optional[Descriptor]]:
        """Takes a descriptor off, if it is complete or if it ``waits`` for one; the code, and the descriptor if there was one."""
        if self.left and (kept := self.kept()) is not None:
            return kept
        taken = c_void_p()
        try:
            if waits:
                code = in_slices(lambda time_ms: self.wait(vi.handle, time_ms, byref(taken)), timeout)
            else:
                code = self.done(vi.handle, byref(taken))
            address = taken.value
            return (code, None) if address is None else (code, self.returned(address))
        except BaseException:
            self.keep(taken.value)
            raise

    def returned(self, address: int) -> Descriptor:
        """The descriptor that the library has returned."""
        try:
            descriptor = self.posted[address]
            del self.posted[address]
        except KeyError:
            # Another thread closed the VI.
            raise Closed(ViHandle.kind) from None
        descriptor._idle = [True]
        return descriptor

    def keep(self, address: Optional[int]) -> None:
        """A signal came in; so may a completion have, which the next call returns."""
        if address in self.posted:
            self.left[address] = None

    def kept(self) -> Optional[tuple[int, Descriptor]]:
        """A descriptor that was kept, with its code. None if other threads have taken all."""
        for address in list(self.left):
            try:
                has_failed = self.posted[address]._result()[2] & _abi.VIP_STATUS_ERROR_MASK
                del self.left[address]
                descriptor = self.posted[address]
                del self.posted[address]
            except KeyError:
                continue
            descriptor._idle = [True]
            return (FAILED if has_failed else 0), descriptor
        return None

    def give_back(self, address: int) -> None:
        """The VI ends: the descriptor at an address is the program's again, if it is not already."""
        descriptor = self.posted.pop(address, None)
        if descriptor is not None:
            descriptor._idle = [True]

    def empty(self, handle: int) -> None:
        """Takes all off that is complete. What the library keeps, it touches no more."""
        taken = c_void_p()
        while self.done(handle, byref(taken)) in (0, FAILED) and taken.value:
            self.give_back(taken.value)


class ViHandle(Handle):
    """A VI with its queues."""

    kind = "VI"
    closes = "VipDestroyVi"

    def __init__(self, vi: Vi, attributes: _abi.VIP_VI_ATTRIBUTES, context: str) -> None:
        ptag = vi.ptag._handle
        library, nic = ptag.library, ptag.nic
        cqs = [cq._handle for cq in (vi.send_cq, vi.recv_cq) if cq is not None]
        handles = [None if cq is None else cq._handle.handle for cq in (vi.send_cq, vi.recv_cq)]
        made = c_void_p()
        code = library.VipCreateVi(nic.handle, byref(attributes), *handles, byref(made))
        check("VipCreateVi", code, context)
        self.nic = nic
        self.sends = Queue(library.VipPostSend, library.VipSendDone, library.VipSendWait)
        self.recvs = Queue(library.VipPostRecv, library.VipRecvDone, library.VipRecvWait)
        #: How completion queues and asynchronous errors find it.
        nic.vis[made.value or 0] = weakref.ref(vi)
        super().__init__(library, made.value or 0, ptag, *cqs)

    def _release(self, handle: int) -> int:
        self.library.VipDisconnect(handle)
        for queue in (self.sends, self.recvs):
            queue.empty(handle)
        code: int = self.library.VipDestroyVi(handle)
        if code in (0, _abi.VIP_INVALID_PARAMETER):
            self.nic.vis.pop(handle, None)
            for queue in (self.sends, self.recvs):
                for address in list(queue.posted):
                    queue.give_back(address)
        return code


class Vi(Owner):
    """A VI, made by Nic.vi. Every function may be called in every thread.

    Closing it, or no longer referencing it, disconnects it, takes all descriptors off, and destroys it (VipDestroyVi).
    """

    def __init__(
        self,
        ptag: Ptag,
        reliability: Reliability,
        transfer_max: int,
        rdma_write: bool,
        rdma_read: bool,
        send_cq: Optional[Cq],
        recv_cq: Optional[Cq],
    ) -> None:
        self.ptag = ptag
        self.nic = ptag.nic
        self.send_cq = send_cq
        self.recv_cq = recv_cq
        #: Anything of the program's.
        self.context: Any = None
        raw = _abi.VIP_VI_ATTRIBUTES(
            number("reliability", reliability, 16),
            number("transfer_max", transfer_max, 8 * ctypes.sizeof(ctypes.c_ulong)),
            None,
            ptag._handle.handle,
            bool(rdma_write),
            bool(rdma_read),
        )
        self._handle: ViHandle = ViHandle(self, raw, f"{Reliability(reliability)!r}, {transfer_max} bytes")

    # Queues

    def descriptor(self) -> Descriptor:
        """A descriptor with the VI's tag, to be prepared once and posted by post()."""
        return Descriptor(self.ptag)

    def post(self, descriptor: Descriptor) -> Descriptor:
        """Posts a prepared descriptor, which may have been posted and returned before (VipPostSend, VipPostRecv). Returns it.

        Raises ResourceError: the queue is full; ValueError: it is posted already, not prepared, or has another tag; Closed.
        """
        if descriptor.ptag._handle is not self.ptag._handle:
            raise ValueError("the descriptor has another protection tag than the VI")
        is_receive = descriptor._is_receive
        handle = self._handle
        code = (handle.recvs if is_receive else handle.sends).add(handle, descriptor)
        if code:
            raise self._error("VipPostRecv" if is_receive else "VipPostSend", code)
        return descriptor

    def post_send(self, *parts: Any, immediate: Optional[int] = None, fence: bool = False) -> Descriptor:
        """Posts a send of these parts of registered memory. Raises as Descriptor.send and post()."""
        return self.post(Descriptor(self.ptag).send(*parts, immediate=immediate, fence=fence))

    def post_recv(self, *parts: Any) -> Descriptor:
        """Posts a receive into these parts. It may be posted before the VI is connected. Raises as Descriptor.recv and post()."""
        return self.post(Descriptor(self.ptag).recv(*parts))

    def post_write(
        self, remote: Remote, *parts: Any, immediate: Optional[int] = None, fence: bool = False
    ) -> Descriptor:
        """Posts an RDMA Write of these parts to the peer's memory. Raises as Descriptor.write and post()."""
        return self.post(Descriptor(self.ptag).write(remote, *parts, immediate=immediate, fence=fence))

    def post_read(self, remote: Remote, *parts: Any, fence: bool = False) -> Descriptor:
        """Posts an RDMA Read of the peer's memory into these parts. Raises as Descriptor.read and post()."""
        return self.post(Descriptor(self.ptag).read(remote, *parts, fence=fence))

    def send_done(self) -> Optional[Descriptor]:
        """Takes the oldest descriptor off the send queue if it is complete; None otherwise (VipSendDone).

        Raises DescriptorError, which has the descriptor: it completed with an error.
        """
        return self._done("VipSendDone", self._handle.sends)

    def recv_done(self) -> Optional[Descriptor]:
        """Takes the oldest descriptor off the receive queue if it is complete; None otherwise (VipRecvDone).

        Raises DescriptorError, which has the descriptor: it completed with an error.
        """
        return self._done("VipRecvDone", self._handle.recvs)

    def send_wait(self, timeout: Optional[float] = None) -> Descriptor:
        """As send_done(), but waits; ``timeout`` is in seconds, and None is no limit (VipSendWait). Only without a CQ.

        Raises Timeout; DescriptorError, without a descriptor if none is posted; Closed, also when another thread closes the VI.
        """
        return self._wait("VipSendWait", self._handle.sends, timeout)

    def recv_wait(self, timeout: Optional[float] = None) -> Descriptor:
        """As recv_done(), but waits; ``timeout`` is in seconds, and None is no limit (VipRecvWait). Only without a CQ.

        Raises Timeout; DescriptorError, without a descriptor if none is posted; Closed, also when another thread closes the VI.
        """
        return self._wait("VipRecvWait", self._handle.recvs, timeout)

    def drain(self) -> list[Descriptor]:
        """Takes all complete descriptors off both queues, whatever their status; those of the send queue are first.

        After disconnect() these are all that were posted.
        """
        found = []
        for queue in (self._handle.sends, self._handle.recvs):
            while True:
                descriptor = queue.take(self._handle)[1]
                if descriptor is None:
                    break
                found.append(descriptor)
        return found

    def _done(self, name: str, queue: Queue) -> Optional[Descriptor]:
        code, descriptor = queue.take(self._handle)
        if descriptor is None and code in (NOT_DONE, FAILED):
            # FAILED: nothing is posted.
            return None
        if code:
            raise self._failure(name, code, descriptor)
        return descriptor

    def _wait(self, name: str, queue: Queue, timeout: Optional[float]) -> Descriptor:
        code, descriptor = queue.take(self._handle, True, timeout)
        if descriptor is None or code:
            raise self._failure(name, code, descriptor)
        return descriptor

    def _failure(self, name: str, code: int, descriptor: Optional[Descriptor]) -> Exception:
        """The exception of a done or wait function."""
        if code != FAILED:
            return self._error(name, code)
        # Without a descriptor nothing is posted.
        return DescriptorError(name, 0 if descriptor is None else descriptor._result()[2], descriptor)

    def _error(self, name: str, code: int, context: object = "") -> Exception:
        """The exception of a code: Closed if another thread closed the VI during the call."""
        return error(name, code, context) if self._handle.is_open else Closed(self._handle.kind)

    # Connection

    def connect(
        self,
        remote: Address,
        local: Optional[Address] = None,
        timeout: Optional[float] = None,
        retry: bool = False,
    ) -> ViAttributes:
        """Requests a connection from the server that waits at ``remote`` (VipConnectRequest). ``timeout`` is in seconds.

        Receives should be posted before: the server may send at once. ``retry``: ask again while no server waits there. Returns the
        attributes of the server's VI, which say whether it permits RDMA. Ctrl-C ends the request as disconnect() does.

        Raises NoMatch: no server waits there; Timeout; Reject; NotReachable; InvalidMtu and InvalidReliabilityLevel: the server's VI
        has other attributes; InvalidState: the VI is not idle.
        """
        request = self._handle.library.VipConnectRequest
        addresses = encoded(local or self.nic.address()), encoded(remote)
        raw = _abi.VIP_VI_ATTRIBUTES()
        end = None if timeout is None else time.monotonic() + timeout
        is_over = False

        def call() -> int:
            left = timeout
            while True:
                limit = milliseconds(left, least=1)
                code: int = request(self._handle.handle, *addresses, limit, byref(raw))
                if code != _abi.VIP_NO_MATCH or not retry or is_over:
                    return code
                if end is not None:
                    left = end - time.monotonic()
                    if left <= 0:
                        return code
                time.sleep(PAUSE)

        def cancel() -> None:
            nonlocal is_over
            is_over = True
            self._cancel()

        code = interruptible(call, cancel)
        if code:
            raise self._error("VipConnectRequest", code, remote)
        return attributes_of(raw)

    def _cancel(self) -> None:
        with contextlib.suppress(Closed):
            self._handle.library.VipDisconnect(self._handle.handle)

    def connect_peer(self, remote: Address, local: Address, timeout: Optional[float] = None) -> None:
        """Begins a connection that the peer's program requests as well, with the addresses exchanged (VipConnectPeerRequest).
        peer_wait() and peer_done() return its result."""
        code = self._handle.library.VipConnectPeerRequest(
            self._handle.handle, encoded(local), encoded(remote), milliseconds(timeout, least=1)
        )
        if code:
            raise self._error("VipConnectPeerRequest", code, remote)

    def peer_done(self) -> Optional[ViAttributes]:
        """The attributes of the peer's VI once connect_peer() has connected it; None before (VipConnectPeerDone).

        Raises Timeout and others as connect(): the VI is idle again.
        """
        raw = _abi.VIP_VI_ATTRIBUTES()
        code = self._handle.library.VipConnectPeerDone(self._handle.handle, byref(raw))
        if code == NOT_DONE:
            return None
        if code:
            raise self._error("VipConnectPeerDone", code)
        return attributes_of(raw)

    def peer_wait(self) -> ViAttributes:
        """As peer_done(), but waits; the limit is that of connect_peer() (VipConnectPeerWait). Ctrl-C ends the request as
        disconnect() does."""
        raw = _abi.VIP_VI_ATTRIBUTES()
        wait, handle = self._handle.library.VipConnectPeerWait, self._handle.handle
        code = interruptible(lambda: wait(handle, byref(raw)), self._cancel)
        if code:
            raise self._error("VipConnectPeerWait", code)
        return attributes_of(raw)

    def disconnect(self) -> None:
        """Ends the connection, or a request for one; what is posted completes as flushed: see drain() (VipDisconnect)."""
        code = self._handle.library.VipDisconnect(self._handle.handle)
        if code:
            raise self._error("VipDisconnect", code)

    @property
    def status(self) -> ViStatus:
        """State, attributes, and whether the queues are empty, all from one instant (VipQueryVi)."""
        state, sends, recvs = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        raw = _abi.VIP_VI_ATTRIBUTES()
        outputs = (byref(one) for one in (state, raw, sends, recvs))
        code = self._handle.library.VipQueryVi(self._handle.handle, *outputs)
        if code:
            raise self._error("VipQueryVi", code)
        return ViStatus(ViState(state.value), attributes_of(raw), bool(sends.value), bool(recvs.value))

    @property
    def state(self) -> ViState:
        """The state."""
        return self.status.state

    def __repr__(self) -> str:
        return f"<vipl.Vi {self.state.name}>" if self._handle.is_open else "<vipl.Vi, closed>"
