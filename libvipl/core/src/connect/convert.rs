//! Conversion of values in the agent's messages for the application.

use kagent_proto::{Attributes, Status};
use vipl_abi::*;

use super::address::Address;
use crate::agent::GONE;
use crate::error::Error;
use crate::nic::{Nic, at_most};

/// A peer's attributes for the application; its protection tag has no meaning on this side.
pub(super) fn to_program(attributes: &Attributes) -> VIP_VI_ATTRIBUTES {
    VIP_VI_ATTRIBUTES {
        ReliabilityLevel: attributes.reliability,
        MaxTransferSize: at_most(attributes.max_transfer_size),
        QoS: std::ptr::null_mut(),
        Ptag: std::ptr::null_mut(),
        EnableRdmaWrite: VIP_BOOLEAN::from(attributes.rdma_write != 0),
        EnableRdmaRead: VIP_BOOLEAN::from(attributes.rdma_read != 0),
    }
}

pub(super) fn to_error(status: Status) -> Error {
    match status {
        Status::TIMEOUT | Status::CANCELLED | GONE => Error::Timeout,
        Status::REJECTED => Error::Reject,
        Status::NO_MATCH => Error::NoMatch,
        Status::NOT_REACHABLE => Error::NotReachable,
        Status::CONFLICT_RELIABILITY => Error::ReliabilityLevel,
        Status::CONFLICT_MTU => Error::Mtu,
        Status::CONFLICT_QOS => Error::Qos,
        Status::INVALID => Error::InvalidParameter,
        _ => Error::Resource,
    }
}

pub(super) fn check_discriminator(nic: &Nic, address: &Address) -> Result<(), Error> {
    if address.0.discriminator_len > nic.info.discriminator_max {
        log::warn!(
            target: "cm",
            "a discriminator has {} bytes, the device allows {} at most (MaxDiscriminatorLen)",
            address.0.discriminator_len, nic.info.discriminator_max
        );
        return Err(Error::InvalidParameter);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_has_its_return_code() {
        for (status, error) in [
            (Status::TIMEOUT, Error::Timeout),
            (Status::CANCELLED, Error::Timeout),
            (GONE, Error::Timeout),
            (Status::REJECTED, Error::Reject),
            (Status::NO_MATCH, Error::NoMatch),
            (Status::NOT_REACHABLE, Error::NotReachable),
            (Status::CONFLICT_RELIABILITY, Error::ReliabilityLevel),
            (Status::CONFLICT_MTU, Error::Mtu),
            (Status::CONFLICT_QOS, Error::Qos),
            (Status::INVALID, Error::InvalidParameter),
            (Status::BUSY, Error::Resource),
        ] {
            assert_eq!(to_error(status), error, "{status:?}");
        }
    }

    #[test]
    fn a_peers_tag_is_not_shown() {
        let shown = to_program(&Attributes {
            max_transfer_size: 4096,
            qos: 0,
            reliability: VIP_SERVICE_RELIABLE_DELIVERY,
            rdma_write: 1,
            rdma_read: 0,
            reserved: 0,
        });
        assert!(shown.Ptag.is_null() && shown.QoS.is_null());
        assert_eq!(shown.MaxTransferSize, 4096);
        assert_eq!(
            (shown.EnableRdmaWrite, shown.EnableRdmaRead),
            (VIP_TRUE, VIP_FALSE)
        );
    }
}
