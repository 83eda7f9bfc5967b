"""Connection points: the address of a host, and a discriminator."""

from __future__ import annotations

import ipaddress
import re
import struct
from dataclasses import dataclass
from typing import Optional, Union

_LENGTHS = struct.Struct("=HH")


def octets(text: Union[str, bytes]) -> bytes:
    """Bytes of a discriminator; text is encoded as UTF-8.

    Raises TypeError: neither text nor bytes.
    """
    return text.encode() if isinstance(text, str) else memoryview(text).tobytes()


def parse_host(text: str) -> Optional[bytes]:
    """Reads a host's address: six or more bytes in hexadecimal with ``:`` or ``-`` between them, or an IP address and a port.

    None if it is neither, as the name of a host is.
    """
    ip, colon, port = text.rpartition(":")
    if colon and port.isdecimal() and int(port) < 1 << 16:
        try:
            return ipaddress.ip_address(ip.strip("[]")).packed + int(port).to_bytes(2, "big")
        except ValueError:
            pass
    parts = re.split("[:-]", text)
    if len(parts) >= 6 and all(re.fullmatch("[0-9A-Fa-f]{1,2}", part) for part in parts):
        return bytes(int(part, 16) for part in parts)
    return None


def encoded(address: Address) -> bytes:
    """The structure of an address. Text has a method `encode`, too, and the library would read beyond it.

    Raises TypeError: not an Address.
    """
    if not isinstance(address, Address):
        raise TypeError(f"{type(address).__name__} is no vipl.Address: see Nic.address")
    return address.encode()


@dataclass(frozen=True)
class Address:
    """A connection point (VIP_NET_ADDRESS): the host's address as the NIC has it, and the discriminator."""

    host: bytes
    discriminator: bytes = b""

    def encode(self) -> bytes:
        """The structure of the header, with as many bytes as it needs.

        Raises ValueError: a part is longer than 65535 bytes.
        """
        if max(len(self.host), len(self.discriminator)) > 0xFFFF:
            raise ValueError("an address has at most 65535 bytes of host and of discriminator")
        return _LENGTHS.pack(len(self.host), len(self.discriminator)) + self.host + self.discriminator

    @classmethod
    def decode(cls, data: bytes) -> Address:
        """Reads the structure; what is not there is empty."""
        if len(data) < _LENGTHS.size:
            return cls(b"")
        host, discriminator = _LENGTHS.unpack_from(data)
        rest = data[_LENGTHS.size :]
        return cls(rest[:host], rest[host : host + discriminator])

    @property
    def host_text(self) -> str:
        """The host's address in hexadecimal."""
        return self.host.hex(":")

    def __str__(self) -> str:
        return f"{self.host_text} {self.discriminator!r}"
