"""The server's side of connections."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from . import _abi
from ._handle import Call, Handle, Owner, interruptible
from .address import Address
from .errors import Closed, error
from .vi import Vi, ViAttributes

if TYPE_CHECKING:
    from .nic import Nic, NicHandle


class RequestHandle(Handle):
    """A request that is not answered."""

    kind = "request"
    closes = "VipConnectReject"

    def _release(self, handle: int) -> int:
        code: int = self.library.VipConnectReject(handle)
        return code


class Request(Owner):
    """A client's request for a connection, returned by Nic.connect_wait. It is rejected if it is not accepted."""

    def __init__(self, nic: Nic, handle: int, client: Address, attributes: ViAttributes) -> None:
        self.nic = nic
        #: Where the client is.
        self.client = client
        #: What the client's VI is like: the server's needs the same level and the same largest message.
        self.attributes = attributes
        self._handle = RequestHandle(nic._handle.library, handle, nic._handle)

    def accept(self, vi: Vi) -> None:
        """Connects an idle VI with the client's (VipConnectAccept). Receives should be posted before: the client may send at once.

        Raises Timeout: the client gave up, and the request is over; InvalidMtu and InvalidReliabilityLevel: the VI has other
        attributes, and another one may be tried; InvalidState: the VI is not idle.
        """
        accept, handle, of_vi = self._handle.library.VipConnectAccept, self._handle.handle, vi._handle.handle
        code = interruptible(lambda: accept(handle, of_vi), vi._cancel)
        if code in (0, _abi.VIP_TIMEOUT):
            self._handle.take()
            self.nic._handle.children.pop(self._handle, None)
        if code:
            is_closed = not (self._handle.is_open or code == _abi.VIP_TIMEOUT) or not vi._handle.is_open
            raise Closed("request or VI") if is_closed else error("VipConnectAccept", code, self.client)

    def reject(self) -> None:
        """Refuses it, as close() does (VipConnectReject)."""
        self.close()

    def __repr__(self) -> str:
        return f"<vipl.Request of {self.client}>"


class Arrival(Call):
    """A call of VipConnectWait, and what it returns.

    Nothing but the end of its NIC ends it early. So one that a signal interrupts goes on, and the next Nic.connect_wait for this
    address in the main thread has it.
    """

    def __init__(self, nic: NicHandle, local: Address, client: ctypes.Array[ctypes.c_char], limit: int) -> None:
        self.client = client
        self.attributes = _abi.VIP_VI_ATTRIBUTES()
        self.request = ctypes.c_void_p()
        wait, address = nic.library.VipConnectWait, local.encode()
        pointers = ctypes.byref(self.attributes), ctypes.byref(self.request)
        super().__init__(lambda: wait(nic.handle, address, limit, self.client, *pointers))


def room(nic: Any) -> ctypes.Array[ctypes.c_char]:
    """Room for any address of a NIC."""
    attributes = nic.attributes
    return ctypes.create_string_buffer(4 + max(64, len(attributes.address)) + max(64, attributes.discriminator_max))
