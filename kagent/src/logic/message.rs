//! Packets: parsing, validation of untrusted bytes, and formatting; refusals; and the form of attributes and
//! refusals in frames between hosts.

#![forbid(unsafe_code)]

use kagent_proto::setup::{self as setup, Refusal};
use kagent_proto::{
    Accept, Adopt, Attributes, Budget, Cancel, ConnectionRef, Detail, DeviceOpen, Header, Hello,
    LinkAdopt, LinkOpen, MAGIC, MESSAGE_BYTES_MAX, Neighbours, NicClose, NicOpen, Op, Reason,
    Request, SEGMENT_BYTES_MAX, Status, VERSION, Wait, Waited,
};
use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// Why a message was rejected. The sender has already received a reply; this is for the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Malformed {
    /// Shorter than a header.
    #[error("{0} bytes are no message")]
    Short(usize),
    /// Not this protocol.
    #[error("magic {0:#010x}")]
    Magic(u32),
    /// Another version of this protocol.
    #[error("version {0}")]
    Version(u16),
    /// Not an operation that the agent performs.
    #[error("unknown operation {0}")]
    Op(u16),
    /// The body is not as long as the operation needs, or differs from the length in the header.
    #[error("operation {op} with a body of {bytes} bytes, stated {stated}")]
    Length {
        /// The operation.
        op: u16,
        /// Bytes received after the header.
        bytes: usize,
        /// Bytes stated in the header.
        stated: u32,
    },
    /// A value in the body is out of bounds.
    #[error("operation {0} with a value out of bounds")]
    Value(u16),
    /// Descriptors with an operation that takes none, too many, or lost in transit.
    #[error("wrong file descriptors beside the message")]
    Descriptors,
    /// Before HELLO, or a second HELLO.
    #[error("operation {0} out of turn")]
    Turn(u16),
    /// From an unknown client.
    #[error("unknown client")]
    Client,
}

/// A command, validated as far as possible without knowing the sender.
#[derive(Debug)]
pub(crate) enum Command {
    Hello(Hello),
    NicOpen(Box<NicOpen>),
    NicClose(NicClose),
    Wait(Wait),
    Request(Box<Request>),
    Peer(Box<Request>),
    Accept(Accept),
    Reject(ConnectionRef),
    Cancel(Cancel),
    Confirm(ConnectionRef),
    Disconnect(ConnectionRef),
    Neighbours(Neighbours),
    Adopt(Adopt),
    LinkOpen(LinkOpen),
    LinkAdopt(LinkAdopt),
    LinkAsk(LinkOpen),
    DeviceOpen(DeviceOpen),
    Budgets,
    Goodbye,
}

/// The header, if the packet is long enough. The id is needed even for a malformed message.
pub(crate) fn header(bytes: &[u8]) -> Option<Header> {
    Header::read_from_prefix(bytes)
        .ok()
        .map(|(header, _)| header)
}

/// Parses a packet.
pub(crate) fn parse(bytes: &[u8]) -> Result<Command, Malformed> {
    let (header, body) =
        Header::read_from_prefix(bytes).map_err(|_| Malformed::Short(bytes.len()))?;
    if header.magic != MAGIC {
        return Err(Malformed::Magic(header.magic));
    }
    if header.version != VERSION {
        return Err(Malformed::Version(header.version));
    }
    if body.len() != header.length as usize {
        return Err(wrong_length(&header, body));
    }
    let command = match Op(header.op) {
        Op::HELLO => Command::Hello(read(&header, body)?),
        Op::NIC_OPEN => Command::NicOpen(Box::new(read(&header, body)?)),
        Op::NIC_CLOSE => Command::NicClose(read(&header, body)?),
        Op::WAIT => Command::Wait(read(&header, body)?),
        Op::REQUEST => Command::Request(Box::new(read(&header, body)?)),
        Op::PEER => Command::Peer(Box::new(read(&header, body)?)),
        Op::ACCEPT => Command::Accept(read(&header, body)?),
        Op::REJECT => Command::Reject(read(&header, body)?),
        Op::CANCEL => Command::Cancel(read(&header, body)?),
        Op::CONFIRM => Command::Confirm(read(&header, body)?),
        Op::DISCONNECT => Command::Disconnect(read(&header, body)?),
        Op::NEIGHBOURS => Command::Neighbours(read(&header, body)?),
        Op::ADOPT => Command::Adopt(read(&header, body)?),
        Op::LINK_OPEN => Command::LinkOpen(read(&header, body)?),
        Op::LINK_ADOPT => Command::LinkAdopt(read(&header, body)?),
        Op::LINK_ASK => Command::LinkAsk(read(&header, body)?),
        Op::DEVICE_OPEN => Command::DeviceOpen(read(&header, body)?),
        Op::BUDGETS if body.is_empty() => Command::Budgets,
        Op::GOODBYE if body.is_empty() => Command::Goodbye,
        Op::BUDGETS | Op::GOODBYE => return Err(wrong_length(&header, body)),
        _ => return Err(Malformed::Op(header.op)),
    };
    if within_bounds(&command) {
        Ok(command)
    } else {
        Err(Malformed::Value(header.op))
    }
}

fn wrong_length(header: &Header, body: &[u8]) -> Malformed {
    Malformed::Length {
        op: header.op,
        bytes: body.len(),
        stated: header.length,
    }
}

fn read<T: FromBytes>(header: &Header, body: &[u8]) -> Result<T, Malformed> {
    T::read_from_bytes(body).map_err(|_| wrong_length(header, body))
}

fn within_bounds(command: &Command) -> bool {
    match command {
        Command::NicOpen(body) => body.is_valid(),
        Command::Adopt(body) => body.is_valid(),
        Command::LinkOpen(body) | Command::LinkAsk(body) => body.is_valid(),
        Command::LinkAdopt(body) => body.address().is_some(),
        Command::DeviceOpen(body) => body.is_valid(),
        Command::Wait(body) => body.local.is_valid(),
        Command::Request(body) | Command::Peer(body) => body.is_valid(),
        Command::Accept(body) => body.segment_bytes <= SEGMENT_BYTES_MAX,
        _ => true,
    }
}

/// Formats a packet.
pub(crate) fn emit<T: IntoBytes + Immutable>(op: Op, status: Status, id: u64, body: &T) -> Vec<u8> {
    let body = body.as_bytes();
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        op: op.0,
        length: body.len() as u32,
        status: status.0,
        id,
    };
    let mut bytes = Vec::with_capacity(size_of::<Header>() + body.len());
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(body);
    debug_assert!(bytes.len() <= MESSAGE_BYTES_MAX);
    bytes
}

/// A refusal of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Denial {
    pub(crate) status: Status,
    pub(crate) detail: Option<Detail>,
    /// The detail with the discriminators that the caller may have meant, for a process that understands it.
    pub(crate) waited: Option<Box<Waited>>,
}

/// The result of a command.
pub(crate) type Outcome = Result<(), Denial>;

impl From<Status> for Denial {
    fn from(status: Status) -> Self {
        Denial {
            status,
            detail: None,
            waited: None,
        }
    }
}

impl Denial {
    /// A status with a reason and no figures.
    pub(crate) fn because(status: Status, reason: Reason) -> Self {
        Self::new(status, Detail::new(reason))
    }

    pub(crate) fn new(status: Status, detail: Detail) -> Self {
        Denial {
            status,
            detail: Some(detail),
            waited: None,
        }
    }

    /// The user has reached its limit.
    pub(crate) fn user(budget: Budget, user: u32, used: usize, limit: usize) -> Self {
        Self::budget(Reason::USER_BUDGET, budget, user, used, limit)
    }

    /// The process has reached its limit.
    pub(crate) fn process(budget: Budget, user: u32, used: usize, limit: usize) -> Self {
        Self::budget(Reason::PROCESS_BUDGET, budget, user, used, limit)
    }

    fn budget(reason: Reason, budget: Budget, user: u32, used: usize, limit: usize) -> Self {
        let detail = Detail {
            budget: budget as u32,
            user,
            used: used as u64,
            limit: limit as u64,
            ..Detail::new(reason)
        };
        Self::new(Status::RESOURCE, detail)
    }
}

/// Whether two VIs may be connected; the order of the checks is that of spec §3.9.
pub(crate) fn attributes_agree(a: &Attributes, b: &Attributes) -> Result<(), Status> {
    if a.reliability != b.reliability {
        Err(Status::CONFLICT_RELIABILITY)
    } else if a.max_transfer_size != b.max_transfer_size {
        Err(Status::CONFLICT_MTU)
    } else if a.qos != b.qos {
        Err(Status::CONFLICT_QOS)
    } else {
        Ok(())
    }
}

/// Converts attributes to their form in frames.
pub(crate) fn to_wire(attributes: &Attributes) -> setup::Attributes {
    setup::Attributes {
        max_transfer_size: attributes.max_transfer_size,
        qos: attributes.qos,
        reliability: attributes.reliability,
        rdma_write: attributes.rdma_write != 0,
        rdma_read: attributes.rdma_read != 0,
    }
}

/// Converts attributes from their form in frames.
pub(crate) fn from_wire(attributes: &setup::Attributes) -> Attributes {
    Attributes {
        max_transfer_size: attributes.max_transfer_size,
        qos: attributes.qos,
        reliability: attributes.reliability,
        rdma_write: u8::from(attributes.rdma_write),
        rdma_read: u8::from(attributes.rdma_read),
        reserved: 0,
    }
}

/// The status of a call that another host refused.
pub(crate) fn status(refusal: Refusal) -> Status {
    match refusal {
        Refusal::NoMatch => Status::NO_MATCH,
        Refusal::Rejected => Status::REJECTED,
        Refusal::Timeout => Status::TIMEOUT,
        Refusal::Reliability => Status::CONFLICT_RELIABILITY,
        Refusal::TransferSize => Status::CONFLICT_MTU,
        Refusal::Quality => Status::CONFLICT_QOS,
        Refusal::Resource => Status::RESOURCE,
    }
}

/// The refusal sent to another host for a call that ended with this status.
pub(crate) fn refusal(status: Status) -> Refusal {
    match status {
        Status::NO_MATCH | Status::NOT_REACHABLE => Refusal::NoMatch,
        Status::REJECTED => Refusal::Rejected,
        Status::TIMEOUT | Status::CANCELLED => Refusal::Timeout,
        Status::CONFLICT_RELIABILITY => Refusal::Reliability,
        Status::CONFLICT_MTU => Refusal::TransferSize,
        Status::CONFLICT_QOS => Refusal::Quality,
        _ => Refusal::Resource,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CANCEL: Cancel = Cancel { call: 9 };

    fn packet() -> Vec<u8> {
        emit(Op::CANCEL, Status::OK, 77, &CANCEL)
    }

    #[test]
    fn what_is_emitted_can_be_parsed() {
        let bytes = packet();
        assert!(matches!(parse(&bytes), Ok(Command::Cancel(body)) if body == CANCEL));
        assert_eq!(header(&bytes).map(|h| h.id), Some(77));
    }

    #[test]
    fn every_kind_of_damage_has_its_name() {
        type Damage = fn(&mut Vec<u8>);
        let table: [(Damage, Malformed); 7] = [
            (|b| b.truncate(23), Malformed::Short(23)),
            (|b| b[0] = 0, Malformed::Magic(MAGIC & !0xff)),
            (
                |b| b[4] = VERSION as u8 + 1,
                Malformed::Version(VERSION + 1),
            ),
            (|b| b[6] = 200, Malformed::Op(200)),
            (
                |b| b.push(0),
                Malformed::Length {
                    op: 9,
                    bytes: 9,
                    stated: 8,
                },
            ),
            (
                |b| {
                    b.push(0);
                    b[8] = 9;
                },
                Malformed::Length {
                    op: 9,
                    bytes: 9,
                    stated: 9,
                },
            ),
            (
                |b| b[6] = Op::GOODBYE.0 as u8,
                Malformed::Length {
                    op: 12,
                    bytes: 8,
                    stated: 8,
                },
            ),
        ];
        for (damage, expected) in table {
            let mut bytes = packet();
            damage(&mut bytes);
            assert_eq!(parse(&bytes).err(), Some(expected));
        }
    }
}
