"""Completion queues."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
from typing import TYPE_CHECKING, Any, Callable, NamedTuple, Optional

from . import _abi
from ._handle import Handle, Owner, in_slices, number
from .descriptor import Descriptor
from .errors import Closed, check, error

if TYPE_CHECKING:
    from .nic import Nic
    from .vi import Vi

NOT_DONE = _abi.VIP_NOT_DONE
BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


class Entry(NamedTuple):
    """An entry of a completion queue: a descriptor of this queue of this VI is complete."""

    vi: Vi
    is_receive: bool

    def take(self) -> Optional[Descriptor]:
        """Takes the descriptor off (Vi.recv_done, Vi.send_done). None if another thread did."""
        return self.vi.recv_done() if self.is_receive else self.vi.send_done()


class CqHandle(Handle):
    """A completion queue."""

    kind = "completion queue"
    closes = "VipDestroyCQ"

    def __init__(self, nic: Handle, entries: int) -> None:
        made = ctypes.c_void_p()
        code = nic.library.VipCreateCQ(nic.handle, entries, ctypes.byref(made))
        check("VipCreateCQ", code, f"{entries} entries")
        #: The task that waits, in its loop.
        self.waiter: Optional[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = None
        super().__init__(nic.library, made.value or 0, nic)

    def _release(self, handle: int) -> int:
        code: int = self.library.VipDestroyCQ(handle)
        waiter = self.waiter
        if not code and waiter is not None:
            # A loop that is closed has no task that waits.
            with contextlib.suppress(RuntimeError):
                waiter[0].call_soon_threadsafe(_wake, waiter[1])
        return code


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Cq(Owner):
    """A completion queue, made by Nic.cq: completions of many VIs in one place.

    Three ways to wait for an entry: done() polls, wait() blocks, and in an event loop ``async for entry in cq`` or fileno() and arm().
    Closing it closes the VIs that are attached to it (VipDestroyCQ).
    """

    def __init__(self, nic: Nic, entries: int) -> None:
        self.nic = nic
        self._handle: CqHandle = CqHandle(nic._handle, number("entries", entries, BITS))
        # The caller that deletes one has it.
        self._left: dict[object, tuple[int, bool]] = {}

    def done(self) -> Optional[Entry]:
        """Takes the oldest entry off; None if there is none (VipCQDone)."""
        handle, function = self._handle.handle, self._handle.library.VipCQDone
        while True:
            code, entry = self._take(lambda vi, receive: function(handle, vi, receive))
            if code == NOT_DONE:
                return None
            if entry is not None:
                return entry
            self._check("VipCQDone", code)

    def wait(self, timeout: Optional[float] = None) -> Entry:
        """As done(), but waits; ``timeout`` is in seconds, and None is no limit (VipCQWait).

        Raises Timeout; Closed, also when another thread closes it.
        """
        handle, function = self._handle, self._handle.library.VipCQWait
        while True:
            code, entry = self._take(
                lambda vi, receive: in_slices(lambda time_ms: function(handle.handle, time_ms, vi, receive), timeout)
            )
            if entry is not None:
                return entry
            self._check("VipCQWait", code)

    def _take(self, call: Callable[[Any, Any], int]) -> tuple[int, Optional[Entry]]:
        """Takes an entry off; its VI may no longer be there, and then it is None."""
        for key in list(self._left):
            try:
                entry = self._entry(*self._left[key])
                del self._left[key]
            except KeyError:
                continue
            return 0, entry
        vi, receive = ctypes.c_void_p(), ctypes.c_int()
        try:
            code = call(ctypes.byref(vi), ctypes.byref(receive))
            return code, self._entry(vi.value or 0, bool(receive.value))
        except BaseException:
            # A signal came in, and so did an entry, which the next call returns.
            if vi.value:
                self._left[object()] = vi.value, bool(receive.value)
            raise

    def _entry(self, handle: int, is_receive: bool) -> Optional[Entry]:
        reference = self.nic._handle.vis.get(handle)
        vi = None if reference is None else reference()
        return None if vi is None else Entry(vi, is_receive)

    def _check(self, name: str, code: int) -> None:
        if code:
            raise error(name, code) if self._handle.is_open else Closed(self._handle.kind)

    def resize(self, entries: int) -> None:
        """Changes the room for entries (VipResizeCQ)."""
        handle = self._handle.handle
        self._check("VipResizeCQ", self._handle.library.VipResizeCQ(handle, number("entries", entries, BITS)))

    def fileno(self) -> int:
        """Its file descriptor, for select, selectors, asyncio and others; close() closes it (vipl_cq_fd).

        It becomes readable when there is an entry after arm(). Take entries off until done() returns None, arm(), then poll it.
        """
        descriptor = ctypes.c_int(-1)
        handle = self._handle.handle
        self._check("vipl_cq_fd", self._handle.library.vipl_cq_fd(handle, ctypes.byref(descriptor)))
        return descriptor.value

    def arm(self) -> None:
        """Asks for the next event at fileno(), which must have been called before, and makes that unreadable (vipl_cq_arm)."""
        self._check("vipl_cq_arm", self._handle.library.vipl_cq_arm(self._handle.handle))

    async def next(self) -> Entry:
        """As wait(), in a task of asyncio. One task at a time.

        Raises Closed; RuntimeError: another task waits.
        """
        loop = asyncio.get_running_loop()
        shared = self.fileno()
        while True:
            entry = self.done()
            if entry is not None:
                return entry
            if self._handle.waiter is not None:
                raise RuntimeError("another task waits for this completion queue")
            self.arm()
            future: asyncio.Future[None] = loop.create_future()
            self._handle.waiter = (loop, future)
            # Its own, since close() closes the other one, whose number may be that of a new file before this task runs.
            descriptor = os.dup(shared)
            loop.add_reader(descriptor, _wake, future)
            try:
                await future
            finally:
                loop.remove_reader(descriptor)
                os.close(descriptor)
                self._handle.waiter = None

    def __aiter__(self) -> Cq:
        return self

    async def __anext__(self) -> Entry:
        """The next entry, until the queue is closed."""
        try:
            return await self.next()
        except Closed:
            raise StopAsyncIteration from None

    def __repr__(self) -> str:
        return "<vipl.Cq>" if self._handle.is_open else "<vipl.Cq, closed>"
