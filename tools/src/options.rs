//! Option values that `vip_pingpong` and `vip_perf` share.

#![forbid(unsafe_code)]

use clap::ValueEnum;
use vipl_client::{Attributes, Reliability};

use crate::endpoint::ViSpec;
use crate::nic::level_names;
use crate::{Error, Result, sys};

/// The device when neither option nor environment names one.
pub const DEVICE: &str = "/dev/via_lo";
/// The largest message that a device has without being asked for more.
pub const TRANSFER_USUAL: usize = 65536;
/// The setting of the library that allows larger messages.
pub const TRANSFER_VARIABLE: &str = "VIPL_MAX_TRANSFER_SIZE";
/// What the tools set it to.
const TRANSFER_VALUE: &str = "1073741824";

/// Reliability level of the VIs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Level {
    /// Messages may be lost; nothing is reported.
    Unreliable,
    /// Messages arrive once and in order; a send is complete when its buffer is free.
    Delivery,
    /// As delivery; a send is complete when the data is in the peer's memory.
    Reception,
}

impl Level {
    /// The level's bit.
    #[must_use]
    pub fn bit(self) -> u16 {
        match self {
            Self::Unreliable => Reliability::UNRELIABLE,
            Self::Delivery => Reliability::DELIVERY,
            Self::Reception => Reliability::RECEPTION,
        }
        .bits()
    }
}

/// Asks the library for large messages, if one is going to be sent. Before the library is opened.
pub fn allow_transfer(largest: usize) {
    if largest > TRANSFER_USUAL {
        sys::default_env(TRANSFER_VARIABLE, TRANSFER_VALUE);
    }
}

/// A VI for messages of `bytes` on this device.
///
/// # Errors
/// The device does not have the level, or no messages of this size.
pub fn vi_spec(
    nic: &Attributes,
    level: Level,
    bytes: usize,
    asked: Option<usize>,
) -> Result<ViSpec> {
    if nic.reliability.bits() & level.bit() == 0 {
        let has = nic.reliability;
        let wanted = level_names(level.bit());
        return Err(Error::Usage(format!(
            "{} does not support the level {wanted}, only {has}",
            nic.name
        )));
    }
    let usual = nic
        .transfer_max
        .min(TRANSFER_USUAL as u64)
        .max(bytes as u64);
    let transfer_max = asked.map_or(usual, |asked| asked as u64);
    if bytes as u64 > transfer_max || transfer_max > nic.transfer_max {
        let most = nic.transfer_max;
        return Err(Error::Usage(format!(
            "messages of {bytes} bytes are too large: {} allows {most}, the VI {transfer_max} \
             ({} raises the limit of the library)",
            nic.name, TRANSFER_VARIABLE
        )));
    }
    Ok(ViSpec {
        level: level.bit(),
        transfer_max,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(transfer_max: u64) -> Attributes {
        Attributes {
            transfer_max,
            reliability: Reliability::from_bits(3),
            ..Attributes::default()
        }
    }

    #[test]
    fn a_vi_is_as_large_as_its_messages_need() {
        let spec = |nic: u64, bytes, asked| vi_spec(&device(nic), Level::Delivery, bytes, asked);
        assert_eq!(spec(65536, 8, None).unwrap().transfer_max, 65536);
        assert_eq!(spec(32768, 8, None).unwrap().transfer_max, 32768);
        assert_eq!(spec(1 << 30, 8, None).unwrap().transfer_max, 65536);
        assert_eq!(spec(1 << 30, 1 << 20, None).unwrap().transfer_max, 1 << 20);
        assert_eq!(spec(1 << 30, 8, Some(4096)).unwrap().transfer_max, 4096);
        assert!(spec(65536, 65537, None).is_err());
        assert!(spec(65536, 8, Some(65537)).is_err());
        assert!(spec(65536, 8192, Some(4096)).is_err());
    }

    #[test]
    fn a_level_that_the_device_lacks_is_refused() {
        assert!(vi_spec(&device(65536), Level::Reception, 8, None).is_err());
        assert_eq!(
            vi_spec(&device(65536), Level::Unreliable, 8, None)
                .unwrap()
                .level,
            1
        );
    }
}
