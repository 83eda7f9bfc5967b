"""VIPL, the user library of the Virtual Interface Architecture: messages and RDMA between processes of one host or of several.

A server, and a client in another process or on another host:

    import vipl

    with vipl.open("via_lo") as nic:
        memory = nic.alloc(64)
        vi = nic.vi()
        vi.post_recv(memory)                        # before the client may send
        nic.connect_wait("hello").accept(vi)
        print(bytes(vi.recv_wait().data))

    with vipl.open("via_lo") as nic:
        memory = nic.alloc(64)
        vi = nic.vi()
        vi.connect(nic.address("hello"))            # nic.address("hello", host="other-host")
        memory[:6] = b"hello!"
        vi.post_send(memory[:6])
        vi.send_wait()

Objects:

    Nic ── Ptag ── Memory         registered memory, a buffer
     │      ├───── Descriptor     what is to be transferred; later its result
     │      └───── Vi             two queues of descriptors, and a connection
     └─── Cq, Request             completions of many VIs; a client

- Each is closed by ``with``, by close(), or when it is no longer referenced; what was made from it is closed before it.
- A posted descriptor and its memory are kept until a done or wait function returns it. Memory that is in use is never freed.
- Errors are exceptions: a class for each VIP_RETURN below VipError, DescriptorError for a transfer that failed.
- Calls that wait let other threads run, and Ctrl-C ends them. Timeouts are in seconds.
- A forked child has none of these objects: all are closed there. It may open NICs of its own.

docs/PYTHON.md is the guide.
"""

from ._library import LibraryNotFound
from .address import Address
from .connection import Request
from .cq import Cq, Entry
from .descriptor import Descriptor
from .errors import (
    AsyncCode,
    AsyncError,
    Closed,
    DescriptorError,
    InvalidMtu,
    InvalidParameter,
    InvalidPtag,
    InvalidQos,
    InvalidRdmaRead,
    InvalidReliabilityLevel,
    InvalidState,
    NameServiceError,
    NoMatch,
    NotDone,
    NotReachable,
    NotSupported,
    Reject,
    ResourceError,
    Status,
    Timeout,
    VipError,
    status_text,
    strerror,
)
from .memory import Memory, Ptag, Remote
from .nic import Nic, NicAttributes, describe, open
from .vi import Reliability, Vi, ViAttributes, ViState, ViStatus

__version__ = "0.1.0"

__all__ = [
    "Address",
    "AsyncCode",
    "AsyncError",
    "Closed",
    "Cq",
    "Descriptor",
    "DescriptorError",
    "Entry",
    "InvalidMtu",
    "InvalidParameter",
    "InvalidPtag",
    "InvalidQos",
    "InvalidRdmaRead",
    "InvalidReliabilityLevel",
    "InvalidState",
    "LibraryNotFound",
    "Memory",
    "NameServiceError",
    "Nic",
    "NicAttributes",
    "NoMatch",
    "NotDone",
    "NotReachable",
    "NotSupported",
    "Ptag",
    "Reject",
    "Reliability",
    "Remote",
    "Request",
    "ResourceError",
    "Status",
    "Timeout",
    "Vi",
    "ViAttributes",
    "ViState",
    "ViStatus",
    "VipError",
    "describe",
    "open",
    "status_text",
    "strerror",
]
