"""gdb prints the structures of vipl.h with the names of their bits.

gdb loads this file together with libvipl.so.1. A program that is linked with the archive loads it with `source`.
`print $vip_status(N)` names the bits of a Status; `set print pretty on` gives a line to each member.
"""

import gdb
import gdb.printing

OPERATIONS = ["SENDRECV", "RDMAWRITE", "RDMAREAD", "RESERVED"]
ERRORS = {
    0x002: "FORMAT_ERROR",
    0x004: "PROTECTION_ERROR",
    0x008: "LENGTH_ERROR",
    0x010: "PARTIAL_ERROR",
    0x020: "DESC_FLUSHED_ERROR",
    0x040: "TRANSPORT_ERROR",
    0x080: "RDMA_PROT_ERROR",
    0x100: "REMOTE_DESC_ERROR",
}
COMPLETED = ["OP_SEND", "OP_RECEIVE", "OP_RDMA_WRITE", "OP_REMOTE_RDMA_WRITE", "OP_RDMA_READ"]
LEVELS = {1: "UNRELIABLE", 2: "RELIABLE_DELIVERY", 4: "RELIABLE_RECEPTION"}
DONE, IMMEDIATE, OPERATION_SHIFT = 0x1, 0x80000, 16
KINDS = {1: "NIC", 2: "VI", 3: "CQ", 4: "protection tag", 5: "connection"}
# The two segments of the type, and the most that follow it in memory.
SEGMENTS_MAX = 252


def names(value, table):
    """The names of the bits that are set, and the bits that have none."""
    known = [name for bit, name in sorted(table.items()) if value & bit]
    rest = value & ~sum(table)
    return known + ([hex(rest)] if rest else [])


def status_text(status):
    """As vipl_status_text() says it."""
    if not status:
        return "not done"
    operation = (status >> OPERATION_SHIFT) & 7
    words = ["DONE"] if status & DONE else []
    words += names(status & ~(DONE | IMMEDIATE | 7 << OPERATION_SHIFT), ERRORS)
    words.append(COMPLETED[operation] if operation < len(COMPLETED) else f"OP_{operation}")
    words += ["IMMEDIATE"] if status & IMMEDIATE else []
    return "|".join(words)


def control_text(control):
    words = [OPERATIONS[control & 3]]
    return "|".join(words + names(control & ~3, {4: "IMMEDIATE", 8: "QFENCE"}))


def address(pvoid64):
    return int(pvoid64["AddressBits"])


def control_summary(control):
    count = int(control["SegCount"])
    return "{}, {} segment{}, {} bytes, {}".format(
        control_text(int(control["Control"])),
        count,
        "" if count == 1 else "s",
        int(control["Length"]),
        status_text(int(control["Status"])),
    )


class Control:
    """VIP_CONTROL_SEGMENT"""

    def __init__(self, value):
        self.value = value

    def to_string(self):
        return control_summary(self.value)

    def children(self):
        yield "ImmediateData", int(self.value["ImmediateData"])
        yield "Next", hex(address(self.value["Next"]))


class Descriptor:
    """VIP_DESCRIPTOR of either dialect: as many segments as it says that it has."""

    def __init__(self, value):
        self.value = value
        fields = [field.name for field in value.type.fields()]
        self.control = value["CS" if "CS" in fields else "Control"]

    def to_string(self):
        return control_summary(self.control)

    def children(self):
        yield "ImmediateData", int(self.control["ImmediateData"])
        # gdb keeps no address for a value that it has computed or read from a register.
        if self.value.address is None:
            return
        segment = gdb.lookup_type("VIP_DATA_SEGMENT")
        first = int(self.value.address) + self.control.type.sizeof
        is_rdma = int(self.control["Control"]) & 3
        count = min(int(self.control["SegCount"]), SEGMENTS_MAX)
        for number in range(count):
            place = gdb.Value(first + number * segment.sizeof)
            one = place.cast(segment.pointer()).dereference()
            data, handle = address(one["Data"]), int(one["Handle"])
            if number == 0 and is_rdma:
                yield "remote", f"{data:#x}, memory handle {handle}"
            else:
                length = int(one["Length"])
                yield f"local[{number}]", f"{data:#x}, {length} bytes, memory handle {handle}"


class NetAddress:
    """VIP_NET_ADDRESS: host, then discriminator, in one array that is longer than its type says."""

    def __init__(self, value):
        self.value = value

    def to_string(self):
        lengths = [int(self.value[name]) for name in ("HostAddressLen", "DiscriminatorLen")]
        first = self.value["HostAddress"].address
        if first is None or sum(lengths) > 1024:
            return "host {} bytes, discriminator {} bytes".format(*lengths)
        data = b"\0"[:0]
        if sum(lengths):
            data = gdb.selected_inferior().read_memory(int(first), sum(lengths)).tobytes()
        host, rest = data[: lengths[0]], data[lengths[0] :]
        text = repr(rest.decode()) if rest.isascii() and rest.decode().isprintable() else rest.hex(" ")
        return f"host {host.hex(':')}, discriminator {text}"


class Error:
    """VIP_ERROR_DESCRIPTOR"""

    def __init__(self, value):
        self.value = value

    def to_string(self):
        code, kind = self.value["ErrorCode"], self.value["ResourceCode"]
        return f"{code}, about {kind}"

    def children(self):
        for name in ("NicHandle", "ViHandle", "CQHandle", "DescriptorPtr"):
            if int(self.value[name]):
                yield name, self.value[name]
        yield "OpCode", int(self.value["OpCode"])


class Level:
    """VIP_RELIABILITY_LEVEL"""

    def __init__(self, value):
        self.value = value

    def to_string(self):
        return "|".join(names(int(self.value), LEVELS)) or "0"


class Handle:
    """VIP_NIC_HANDLE and the others, which are numbers: kind, generation and slot."""

    def __init__(self, value):
        self.value = value

    def to_string(self):
        number = int(self.value)
        if number == 0:
            return "NULL"
        generation, slot = (32, 24) if self.value.type.sizeof == 8 else (15, 14)
        kind = KINDS.get(number >> (generation + slot))
        if kind is None:
            return f"{number:#x} (no handle)"
        return f"{number:#x} ({kind} in slot {number & ((1 << slot) - 1)})"


class StatusFunction(gdb.Function):
    """$vip_status(N): the names of the bits of a descriptor's Status."""

    def __init__(self):
        super().__init__("vip_status")

    def invoke(self, status):
        return status_text(int(status))


PRINTERS = {
    "VIP_CONTROL_SEGMENT": Control,
    "VIP_DESCRIPTOR": Descriptor,
    "VIP_NET_ADDRESS": NetAddress,
    "VIP_ERROR_DESCRIPTOR": Error,
    "VIP_RELIABILITY_LEVEL": Level,
    "VIP_NIC_HANDLE": Handle,
    "VIP_VI_HANDLE": Handle,
    "VIP_CQ_HANDLE": Handle,
    "VIP_CONN_HANDLE": Handle,
    "VIP_PROTECTION_HANDLE": Handle,
}


class Printers(gdb.printing.PrettyPrinter):
    """By the name of the type, whether it is that of the structure or of its typedef."""

    def __call__(self, value):
        kind = value.type.unqualified()
        for name in (kind.name, kind.strip_typedefs().tag):
            if name in PRINTERS:
                return PRINTERS[name](value)
        return None


gdb.printing.register_pretty_printer(gdb.current_objfile(), Printers("vipl"), replace=True)
StatusFunction()
