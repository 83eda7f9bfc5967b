//! The rows of the error table: the operation, what it meets, and the result at each side on each level.
#![allow(unreachable_pub)]

use vipl_abi::*;
use vipl_wire::{Cause, Operation};

pub const EMPTY: u32 = VIP_ERROR_CODE::VIP_ERROR_RECVQ_EMPTY as u32;
pub const RDMAW_PROT: u32 = VIP_ERROR_CODE::VIP_ERROR_RDMAW_PROT as u32;
pub const RDMAR_PROT: u32 = VIP_ERROR_CODE::VIP_ERROR_RDMAR_PROT as u32;
pub const COMP_PROT: u32 = VIP_ERROR_CODE::VIP_ERROR_COMP_PROT as u32;
pub const LOST: Cause = Cause::Async(VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as u32);

/// Preparation of side 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Good,
    Nothing,
    Small,
    RecvFault(u32),
    RecvGone,
    RegionClosed,
    RegionShort,
    RegionUnknown,
    ViClosed,
    RegionClosedNothing,
}

/// Result on one level: the bits of the send and of the receive (`None`: not used), and how each connection ended
/// (`None`: it is open). `raised`: an asynchronous error without further effect.
pub struct Outcome {
    pub send: u32,
    pub recv: Option<u32>,
    pub raised: Option<u32>,
    pub sender: Option<Cause>,
    pub receiver: Option<Cause>,
}

fn outcome(
    send: u32,
    recv: Option<u32>,
    raised: Option<u32>,
    sender: Option<Cause>,
    receiver: Option<Cause>,
) -> Outcome {
    Outcome {
        send,
        recv,
        raised,
        sender,
        receiver,
    }
}

fn own_fault(bits: u32) -> [Outcome; 3] {
    let dies = || outcome(bits, None, None, Some(Cause::Reported), Some(LOST));
    [outcome(bits, None, None, None, None), dies(), dies()]
}

/// E6 to E8 and E11: reported by the receive descriptor or an asynchronous error there, and by the send here.
fn receive_fault(bits: Option<u32>) -> [Outcome; 3] {
    let cause = if bits.is_some() {
        Cause::Reported
    } else {
        Cause::Async(EMPTY)
    };
    let raised = bits.is_none().then_some(EMPTY);
    let dies = |send| outcome(send, bits, None, Some(Cause::Reported), Some(cause));
    [
        outcome(0, bits, raised, None, None),
        dies(VIP_STATUS_TRANSPORT_ERROR),
        dies(VIP_STATUS_REMOTE_DESC_ERROR),
    ]
}

fn write_fault(bits: Option<u32>) -> [Outcome; 3] {
    let cause = if bits.is_some() {
        Cause::Reported
    } else {
        Cause::Async(RDMAW_PROT)
    };
    let raised = bits.is_none().then_some(RDMAW_PROT);
    let dies = || {
        outcome(
            VIP_STATUS_RDMA_PROT_ERROR,
            bits,
            None,
            Some(Cause::Reported),
            Some(cause),
        )
    };
    [outcome(0, bits, raised, None, None), dies(), dies()]
}

fn read_fault() -> [Outcome; 3] {
    let dies = || {
        let (reported, refused) = (Some(Cause::Reported), Some(Cause::Async(RDMAR_PROT)));
        outcome(VIP_STATUS_RDMA_PROT_ERROR, None, None, reported, refused)
    };
    // The descriptor's walker finds an RDMA Read on an Unreliable VI malformed.
    [outcome(0, None, None, None, None), dies(), dies()]
}

pub struct Row {
    pub name: &'static str,
    pub operation: Operation,
    pub bytes: usize,
    pub flagged: bool,
    pub fault: Option<u32>,
    pub target: Target,
    pub outcomes: [Outcome; 3],
}

/// An operation with valid arguments and without immediate data.
fn row(
    name: &'static str,
    operation: Operation,
    bytes: usize,
    target: Target,
    outcomes: [Outcome; 3],
) -> Row {
    Row {
        name,
        operation,
        bytes,
        flagged: false,
        fault: None,
        target,
        outcomes,
    }
}

impl Row {
    fn flagged(self) -> Row {
        let flagged = true;
        Row { flagged, ..self }
    }

    fn fault(self, fault: u32) -> Row {
        let fault = Some(fault);
        Row { fault, ..self }
    }
}

pub fn rows() -> Vec<Row> {
    use Operation::*;
    use Target::*;
    let (format, length) = (VIP_STATUS_FORMAT_ERROR, VIP_STATUS_LENGTH_ERROR);
    let (protection, refused) = (VIP_STATUS_PROTECTION_ERROR, VIP_STATUS_RDMA_PROT_ERROR);
    let mut rows = vec![
        row("E1", Send, 100, Good, own_fault(format)).fault(format),
        row("E2", Send, 100, Good, own_fault(protection)).fault(protection),
        row("E3", Write, 100, Good, own_fault(length)).fault(length),
    ];
    for bytes in [100, 6000] {
        let (invalid, unregistered) = (RecvFault(format), RecvFault(protection));
        let receive = |bits| receive_fault(Some(bits));
        rows.extend([
            row("E6", Send, bytes, Nothing, receive_fault(None)),
            row("E7", Send, bytes, Small, receive(length)),
            row("E8", Send, bytes, invalid, receive(format)).flagged(),
            row("E8", Send, bytes, unregistered, receive(protection)),
            row("E11", Write, bytes, Nothing, receive_fault(None)).flagged(),
            row("E8 RDMA", Write, bytes, invalid, receive(format)).flagged(),
        ]);
        for target in [RegionClosed, RegionShort, RegionUnknown, ViClosed] {
            rows.extend([
                row("E9", Write, bytes, target, write_fault(None)),
                row("E10", Write, bytes, target, write_fault(Some(refused))).flagged(),
                row("E13", Read, bytes, target, read_fault()),
            ]);
        }
        let none = write_fault(None);
        rows.push(row("E10 empty", Write, bytes, RegionClosedNothing, none).flagged());
        let gone = || outcome(0, None, None, Some(LOST), Some(Cause::Async(COMP_PROT)));
        let dies = [gone(), gone(), gone()];
        rows.push(row("E16", Send, bytes, RecvGone, dies));
    }
    rows
}
