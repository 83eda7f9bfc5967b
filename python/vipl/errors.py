"""Exceptions: one class for each VIP_RETURN, below VipError; and asynchronous errors."""

from __future__ import annotations

import ctypes
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from . import _abi
from ._library import library

if TYPE_CHECKING:
    from .descriptor import Descriptor
    from .vi import Vi


def strerror(code: int) -> str:
    """Name and meaning of a VIP_RETURN: ``"VIP_TIMEOUT: the time is up"`` (vipl_strerror)."""
    return _text(library().vipl_strerror(code))


def status_text(status: int) -> str:
    """Names of the bits of a descriptor's status: ``"DONE|LENGTH_ERROR|OP_RECEIVE"`` (vipl_status_text)."""
    room = ctypes.create_string_buffer(256)
    library().vipl_status_text(status & 0xFFFFFFFF, room, len(room))
    return _text(room.value)


def _text(text: bytes) -> str:
    return text.decode("utf-8", "replace")


class VipError(Exception):
    """A function of the library returned another code than VIP_SUCCESS.

    Its text names the function, what it was called for, and what the code means. Why exactly it failed, the library says in a
    line on standard error (``VIPL_LOG``, ``VIPL_LOG_FILE``).
    """

    #: The VIP_RETURN of the class; of VipError itself, that of the call.
    code: int = -1

    def __init__(self, function: str, code: Optional[int] = None, context: str = "") -> None:
        super().__init__(function, code, context)
        #: The function that failed.
        self.function = function
        #: What it was called for.
        self.context = context
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        number = f"{self.code}: " if type(self) is VipError else ""
        return f"{self.function}({self.context}): {number}{strerror(self.code)}"


class NotDone(VipError):
    """VIP_NOT_DONE. Done functions return None instead of raising it."""

    code = _abi.VIP_NOT_DONE


class InvalidParameter(VipError):
    """VIP_INVALID_PARAMETER"""

    code = _abi.VIP_INVALID_PARAMETER


class Closed(InvalidParameter):
    """The object is closed, or belongs to the parent of this forked process."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind, None, "")
        self.args = (kind,)

    def __str__(self) -> str:
        return f"this {self.function} is closed"


class ResourceError(VipError):
    """VIP_ERROR_RESOURCE: a limit, something in use, no memory, no Kernel Agent."""

    code = _abi.VIP_ERROR_RESOURCE


class Timeout(VipError, TimeoutError):
    """VIP_TIMEOUT. It is a TimeoutError, too."""

    code = _abi.VIP_TIMEOUT


class Reject(VipError):
    """VIP_REJECT"""

    code = _abi.VIP_REJECT


class InvalidReliabilityLevel(VipError):
    """VIP_INVALID_RELIABILITY_LEVEL"""

    code = _abi.VIP_INVALID_RELIABILITY_LEVEL


class InvalidMtu(VipError):
    """VIP_INVALID_MTU: ``transfer_max`` is above the NIC's, or differs from that of the peer's VI."""

    code = _abi.VIP_INVALID_MTU


class InvalidQos(VipError):
    """VIP_INVALID_QOS"""

    code = _abi.VIP_INVALID_QOS


class InvalidPtag(VipError):
    """VIP_INVALID_PTAG"""

    code = _abi.VIP_INVALID_PTAG


class InvalidRdmaRead(VipError):
    """VIP_INVALID_RDMAREAD"""

    code = _abi.VIP_INVALID_RDMAREAD


class InvalidState(VipError):
    """VIP_INVALID_STATE"""

    code = _abi.VIP_INVALID_STATE


class NameServiceError(VipError):
    """VIP_ERROR_NAMESERVICE"""

    code = _abi.VIP_ERROR_NAMESERVICE


class NoMatch(VipError):
    """VIP_NO_MATCH: no server waits at this address and discriminator, now."""

    code = _abi.VIP_NO_MATCH


class NotReachable(VipError):
    """VIP_NOT_REACHABLE"""

    code = _abi.VIP_NOT_REACHABLE


class NotSupported(VipError):
    """VIP_ERROR_NOT_SUPPORTED"""

    code = _abi.VIP_ERROR_NOT_SUPPORTED


class Status(enum.IntFlag):
    """Bits of a descriptor's status. The operation is a number below OP_MASK."""

    DONE = _abi.VIP_STATUS_DONE
    FORMAT_ERROR = _abi.VIP_STATUS_FORMAT_ERROR
    PROTECTION_ERROR = _abi.VIP_STATUS_PROTECTION_ERROR
    LENGTH_ERROR = _abi.VIP_STATUS_LENGTH_ERROR
    PARTIAL_ERROR = _abi.VIP_STATUS_PARTIAL_ERROR
    FLUSHED = _abi.VIP_STATUS_DESC_FLUSHED_ERROR
    TRANSPORT_ERROR = _abi.VIP_STATUS_TRANSPORT_ERROR
    RDMA_PROTECTION_ERROR = _abi.VIP_STATUS_RDMA_PROT_ERROR
    REMOTE_DESCRIPTOR_ERROR = _abi.VIP_STATUS_REMOTE_DESC_ERROR
    IMMEDIATE = _abi.VIP_STATUS_IMMEDIATE


class DescriptorError(VipError):
    """VIP_DESCRIPTOR_ERROR: a descriptor completed with an error, or a wait found that nothing is posted."""

    code = _abi.VIP_DESCRIPTOR_ERROR

    def __init__(self, function: str, status: int = 0, descriptor: Optional[Descriptor] = None) -> None:
        super().__init__(function)
        self.args = (function, status)
        #: The status of the descriptor; 0 if the queue was empty.
        self.status = Status(status)
        #: The descriptor, which is the program's again; None if the queue was empty.
        self.descriptor = descriptor

    @property
    def is_flushed(self) -> bool:
        """The connection ended, or the VI was disconnected, before the descriptor was used."""
        return bool(self.status & Status.FLUSHED)

    def __str__(self) -> str:
        if not self.status:
            return f"{self.function}: VIP_DESCRIPTOR_ERROR: nothing is posted on this queue"
        return f"{self.function}: {strerror(self.code)}: {status_text(self.status)}"


_CLASSES: dict[int, type[VipError]] = {
    kind.code: kind for kind in VipError.__subclasses__() if kind is not DescriptorError
}


def error(function: str, code: int, context: object = "") -> VipError:
    """The exception of a code."""
    if code == DescriptorError.code:
        return DescriptorError(function)
    return _CLASSES.get(code, VipError)(function, code, str(context))


def check(function: str, code: int, context: object = "") -> None:
    """Raises the exception of a code, unless that is VIP_SUCCESS."""
    if code:
        raise error(function, code, context)


class AsyncCode(enum.IntEnum):
    """VIP_ERROR_CODE: what an asynchronous error reports."""

    POST_DESCRIPTOR = _abi.VIP_ERROR_POST_DESC
    CONNECTION_LOST = _abi.VIP_ERROR_CONN_LOST
    RECEIVE_QUEUE_EMPTY = _abi.VIP_ERROR_RECVQ_EMPTY
    OVERRUN = _abi.VIP_ERROR_VI_OVERRUN
    RDMA_WRITE_PROTECTION = _abi.VIP_ERROR_RDMAW_PROT
    RDMA_WRITE_DATA = _abi.VIP_ERROR_RDMAW_DATA
    RDMA_WRITE_ABORT = _abi.VIP_ERROR_RDMAW_ABORT
    RDMA_READ_PROTECTION = _abi.VIP_ERROR_RDMAR_PROT
    COMPLETION_PROTECTION = _abi.VIP_ERROR_COMP_PROT
    RDMA_TRANSPORT = _abi.VIP_ERROR_RDMA_TRANSPORT
    CATASTROPHIC = _abi.VIP_ERROR_CATASTROPHIC


@dataclass(frozen=True)
class AsyncError:
    """An error that no call returns; given to the handler of Nic.on_error."""

    #: An AsyncCode, or a number that VIPL 1.0 does not have.
    code: int
    #: The VI concerned, if it is one.
    vi: Optional[Vi] = field(default=None)

    def __str__(self) -> str:
        text = _text(library().vipl_strerror_async(self.code))
        return text if isinstance(self.code, AsyncCode) else f"{self.code}: {text}"
