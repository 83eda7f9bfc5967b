//! Attributes and refusals, and their form in frames between hosts.

#![forbid(unsafe_code)]

use kagent_proto::setup::{self as setup, Refusal};
use kagent_proto::{Attributes, Status};

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

/// The form that attributes have in frames.
pub(crate) fn to_wire(attributes: &Attributes) -> setup::Attributes {
    setup::Attributes {
        max_transfer_size: attributes.max_transfer_size,
        qos: attributes.qos,
        reliability: attributes.reliability,
        rdma_write: attributes.rdma_write != 0,
        rdma_read: attributes.rdma_read != 0,
    }
}

/// And back.
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

/// How a call ends that another host has refused.
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

/// What another host is told of a call that has ended.
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
