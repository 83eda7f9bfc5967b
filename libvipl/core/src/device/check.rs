//! Validation of a plug-in's description of a device, and the message if it refuses.

use std::ffi::{c_char, c_int};
use std::ops::RangeInclusive;

use vipl_abi::*;
use vipl_plugin_abi::*;

use crate::error::Error;
use crate::plugin::map;

/// Largest message that every device must be able to carry (spec §2.3).
const TRANSFER_MAX_MIN: u64 = 32_768;
/// Maximum VIs of one NIC handle; the table is allocated when it is opened.
const VIS_MAX: u64 = 65_536;
/// Longest period of the host's polls for a plug-in, in microseconds; closing a NIC takes up to one period.
const POLL_US_MAX: u64 = 1_000_000;

/// A plug-in refused to open a device. If it has not logged the reason, the request is logged.
pub(super) fn refused(route: &map::Route, status: c_int) -> Error {
    if !crate::logger::has_logged(log::Level::Warn) {
        log::warn!(
            target: "nic",
            "cannot open {plugin}:{}: the plug-in {plugin} refuses it without a reason (status {status}); vipinfo lists the devices",
            route.argument,
            plugin = route.plugin.name
        );
    }
    match status {
        VIPL_E_INVALID => Error::InvalidParameter,
        _ => Error::Resource,
    }
}

/// Checks a plug-in's description of a device. The error states the field, its value and the permitted
/// values.
pub(super) fn check_info(info: &vipl_nic_info) -> Result<(), String> {
    let levels =
        VIP_SERVICE_UNRELIABLE | VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION;
    let address_max = info.address.len() as u64;
    let data_address_max = info.data_address.len() as u64;
    let numbers: [(&str, u64, RangeInclusive<u64>); 12] = [
        ("address_len", info.address_len.into(), 1..=address_max),
        (
            "data_address_len",
            info.data_address_len.into(),
            0..=data_address_max,
        ),
        ("discriminator_max", info.discriminator_max.into(), 1..=64),
        (
            "transfer_max",
            info.transfer_max,
            TRANSFER_MAX_MIN..=u64::from(u32::MAX),
        ),
        (
            "reliability_support",
            info.reliability_support.into(),
            1..=levels.into(),
        ),
        ("vis_max", info.vis_max.into(), 1..=VIS_MAX),
        (
            "segments_max",
            info.segments_max.into(),
            1..=u64::from(u16::MAX),
        ),
        ("cqs_max", info.cqs_max.into(), 1..=u64::from(u32::MAX)),
        (
            "cq_entries_max",
            info.cq_entries_max.into(),
            1..=u64::from(u32::MAX),
        ),
        ("ptags_max", info.ptags_max.into(), 1..=u64::from(u32::MAX)),
        ("poll_us", info.poll_us.into(), 0..=POLL_US_MAX),
        (
            "address_form",
            info.address_form.into(),
            VIPL_ADDRESS_BYTES.into()..=VIPL_ADDRESS_IP.into(),
        ),
    ];
    for (field, found, allowed) in numbers {
        if !allowed.contains(&found) {
            let (first, last) = allowed.into_inner();
            return Err(format!("{field} is {found}, allowed are {first} to {last}"));
        }
    }
    for (field, found) in [
        ("regions_max", info.regions_max),
        ("descriptors_max", info.descriptors_max),
    ] {
        if !found.is_power_of_two() {
            return Err(format!("{field} is {found}, allowed are powers of two"));
        }
    }
    if info.rdma_read_support & !info.reliability_support != 0 {
        return Err(format!(
            "rdma_read_support is {:#x}, allowed are levels of reliability_support, {:#x}",
            info.rdma_read_support, info.reliability_support
        ));
    }
    if info.name[63] != 0 as c_char {
        return Err("name has no NUL within its 64 bytes".to_owned());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vi::tests::device;

    fn good() -> vipl_nic_info {
        let mut info = device::plugin(false).blank_info();
        info.address_len = 6;
        info.reliability_support = VIP_SERVICE_RELIABLE_DELIVERY;
        info.transfer_max = TRANSFER_MAX_MIN;
        info
    }

    #[test]
    fn what_a_device_cannot_be_is_named() {
        assert_eq!(check_info(&good()), Ok(()));
        type Spoil = fn(&mut vipl_nic_info);
        let wrong: [(&str, Spoil); 8] = [
            ("address_len", |info| info.address_len = 0),
            ("data_address_len", |info| info.data_address_len = u32::MAX),
            ("discriminator_max", |info| info.discriminator_max = 65),
            ("transfer_max", |info| info.transfer_max -= 1),
            ("vis_max", |info| info.vis_max = VIS_MAX as u32 + 1),
            ("regions_max", |info| info.regions_max = 3),
            ("rdma_read_support", |info| {
                info.rdma_read_support = VIP_SERVICE_UNRELIABLE
            }),
            ("name", |info| info.name = [1; 64]),
        ];
        for (field, spoil) in wrong {
            let mut info = good();
            spoil(&mut info);
            let what = check_info(&info).unwrap_err();
            assert!(what.starts_with(field), "{what}");
        }
    }
}
