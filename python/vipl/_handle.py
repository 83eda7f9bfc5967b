"""Handles of the library: who holds them, in which order they are closed, and how calls that block are interrupted.

A Handle belongs to a public object, its Owner, which closes it at the end of a ``with`` or when it is no longer referenced. Handles
form a tree that the public objects do not see: closing one closes all that was made from it first, the latest one first, so no
order in which objects are closed or collected is wrong. Nothing but public objects keeps the tree, so that cycles through them
are collected, too.

No lock is held during a call of the library, since that may wait for a handler, which needs the GIL, and the collector may close
any object in any thread. ``dict.pop`` decides who closes.
"""

from __future__ import annotations

import atexit
import math
import operator
import os
import threading
import time
import weakref
from typing import Any, Callable, Optional, TypeVar

from . import _abi
from ._library import Library
from .errors import Closed, check

#: How long a call blocks, in milliseconds, before Python looks for signals and whether the object was closed.
SLICE_MS = 100

TIMEOUT = _abi.VIP_TIMEOUT
RESOURCE = _abi.VIP_ERROR_RESOURCE
INVALID = _abi.VIP_INVALID_PARAMETER


class Handle:
    """A handle of the library. Without one, ``handle`` raises Closed."""

    #: What it is, for messages.
    kind = "object"
    #: The function that closes it, for messages.
    closes = ""

    def __init__(self, library: Library, handle: int, *parents: Handle) -> None:
        self.library = library
        self.handle = handle
        self.parents = parents
        self.children: dict[Handle, None] = {}
        for parent in parents:
            parent.children[self] = None

    def __getattr__(self, name: str) -> Any:
        # Only for what is not there.
        if name == "handle":
            raise Closed(self.kind)
        raise AttributeError(name)

    @property
    def is_open(self) -> bool:
        return "handle" in self.__dict__

    def take(self) -> Optional[int]:
        """The handle, for one caller; None for all others."""
        handle: Optional[int] = self.__dict__.pop("handle", None)
        return handle

    def close(self) -> None:
        """Closes all that was made from it, and itself. Closing twice does nothing.

        Another thread may make something from it, or post something, meanwhile, so the library may refuse once or twice. If it does
        not know the handle, that is closed.
        """
        for _ in range(10):
            for child in reversed(list(self.children)):
                child.close()
            handle = self.take()
            if handle is None:
                return
            try:
                code = self._release(handle)
            except BaseException:
                # A signal raised; a later close continues.
                self.handle = handle
                raise
            if code in (0, INVALID):
                for parent in self.parents:
                    parent.children.pop(self, None)
                return
            # Still there: a later close, at the latest that of the NIC, tries again.
            self.handle = handle
            if code != RESOURCE:
                break
        check(self.closes, code)

    def close_quietly(self) -> None:
        """For the collector and the end of the process. What the library refuses to close is kept, with what it may access."""
        try:
            self.close()
        except Exception:
            unclosed[self] = None
        else:
            unclosed.pop(self, None)

    def forget(self) -> None:
        """In a forked child: the library knows none of these handles there."""
        self.take()
        for child in list(self.children):
            child.forget()

    def _release(self, handle: int) -> int:
        raise NotImplementedError


_Self = TypeVar("_Self", bound="Owner")


class Owner:
    """A public object with a handle."""

    _handle: Handle

    def close(self) -> None:
        """Closes it, and before it all that was made from it. Closing twice does nothing."""
        self._handle.close()

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # It is not there if the constructor failed.
        handle = self.__dict__.get("_handle")
        if handle is not None and handle.is_open:
            handle.close_quietly()


#: Handles of all open NICs.
open_nics: weakref.WeakSet[Handle] = weakref.WeakSet()

#: Handles that the library has refused to close, as that of a NIC in a handler of its own.
unclosed: dict[Handle, None] = {}


def _close_all() -> None:
    # Before the interpreter ends: afterwards no handler can run, and threads in calls could not come back.
    for handle in [*unclosed, *open_nics]:
        handle.close_quietly()


def _after_fork() -> None:
    for nic in list(open_nics):
        nic.forget()
    open_nics.clear()
    unclosed.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork)


def number(name: str, value: Any, bits: int, least: int = 0) -> int:
    """An integer that fits, since ctypes cuts others without a word.

    Raises TypeError, ValueError.
    """
    integer: int = operator.index(value)
    if not least <= integer < 1 << bits:
        raise ValueError(f"{name} is {integer}; it has to be from {least} to {(1 << bits) - 1}")
    return integer


def milliseconds(timeout: Optional[float], least: int = 0) -> int:
    """A time limit as the library takes it: rounded up, and below VIP_INFINITE, which stands for None.

    Raises ValueError: negative, or not a number.
    """
    if timeout is None or timeout == math.inf:
        return _abi.VIP_INFINITE
    if not timeout >= 0:
        raise ValueError(f"a timeout of {timeout} seconds")
    # A float may be just above what it stands for.
    rounded = math.ceil(round(timeout * 1000, 6))
    return max(least, min(rounded, _abi.VIP_INFINITE - 1))


def in_slices(call: Callable[[int], int], timeout: Optional[float]) -> int:
    """Calls a function that blocks for a number of milliseconds until it returns another code than VIP_TIMEOUT or the time is
    up. Between two calls signals are handled, and a closed object is noticed."""
    left = milliseconds(timeout)
    if left <= SLICE_MS:
        return call(left)
    end = None if left == _abi.VIP_INFINITE else time.monotonic() + left / 1000
    while True:
        code = call(min(left, SLICE_MS))
        if code != TIMEOUT:
            return code
        if end is not None:
            left = math.ceil((end - time.monotonic()) * 1000)
            if left <= 0:
                return code


def is_main_thread() -> bool:
    """Whether this is the thread that handles signals."""
    return threading.current_thread() is threading.main_thread()


class Call:
    """A call that blocks and cannot be made in slices. For the main thread, which handles signals, another thread makes it."""

    def __init__(self, function: Callable[[], int]) -> None:
        # The thread that takes it makes the call.
        self._function = [function]
        self._result: list[tuple[int, Optional[BaseException]]] = []
        self._is_running = threading.Lock()
        self._is_running.acquire()

    def _run(self) -> None:
        try:
            function = self._function.pop()
        except IndexError:
            return
        try:
            self._result.append((function(), None))
        except BaseException as exception:
            self._result.append((0, exception))
        finally:
            self._is_running.release()

    def wait(self, seconds: Optional[float] = None) -> bool:
        """Waits for its end, and begins it if it has not begun; whether it is over. A signal handler may raise, and it goes on."""
        if self._function:
            if is_main_thread():
                try:
                    threading.Thread(target=self._run, name="vipl-connect", daemon=True).start()
                except RuntimeError:
                    # The system has no thread left, or the interpreter ends: then without interruption.
                    self._run()
            else:
                self._run()
        if not self._result:
            self._is_running.acquire(timeout=-1 if seconds is None else min(seconds, threading.TIMEOUT_MAX))
        return bool(self._result)

    def withdraw(self) -> bool:
        """Keeps it from beginning; False if it has begun."""
        try:
            self._function.pop()
        except IndexError:
            return False
        return True

    def code(self) -> int:
        """What the function returned, or raised."""
        code, exception = self._result[0]
        if exception is not None:
            raise exception
        return code


def interruptible(function: Callable[[], int], cancel: Callable[[], object]) -> int:
    """Makes a call that blocks and that ``cancel`` ends, which is called, perhaps repeatedly, when a signal handler raises."""
    call = Call(function)
    try:
        call.wait()
    except BaseException:
        if not call.withdraw():
            cancel()
            while not call.wait(SLICE_MS / 1000):
                # The call may have begun only now.
                cancel()
        raise
    return call.code()
