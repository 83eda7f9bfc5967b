//! Named values.

use core::ffi::c_int;

use crate::{vipl_entry, vipl_nic, vipl_queue, vipl_region, vipl_vi};

vipl_abi::constants! {
    /// "VIPLPLUG" read as little-endian.
    pub const VIPL_PLUGIN_MAGIC: u64 = 0x4755_4C50_4C50_4956;
    /// A new major version is a new symbol and a new directory.
    pub const VIPL_PLUGIN_ABI_MAJOR: u16 = 1;
    /// Counts additions to the sized structures. Two files of the same minor version have the same sizes; those
    /// of a lower one are not larger, those of a higher one not smaller.
    pub const VIPL_PLUGIN_ABI_MINOR: u16 = 1;
    /// Sizes of what has no size field: `vipl_vi`, `vipl_nic`, `vipl_queue`, `vipl_entry`, `vipl_region`, and a
    /// pointer.
    pub const VIPL_PLUGIN_FINGERPRINT: u64 = ((core::mem::size_of::<vipl_vi>() as u64) << 40)
        | ((core::mem::size_of::<vipl_nic>() as u64) << 32)
        | ((core::mem::size_of::<vipl_queue>() as u64) << 24)
        | ((core::mem::size_of::<vipl_entry>() as u64) << 16)
        | ((core::mem::size_of::<vipl_region>() as u64) << 8)
        | core::mem::size_of::<usize>() as u64;
    /// Kind of a plug-in that serves devices.
    pub const VIPL_KIND_PROVIDER: u32 = 1;

    /// Longest host address in bytes.
    pub const VIPL_ADDRESS_MAX: usize = 32;
    /// Form of a host address: bytes without a meaning outside its network.
    pub const VIPL_ADDRESS_BYTES: u32 = 0;
    /// Form of a host address: an IP address and the UDP port of the host's agent.
    pub const VIPL_ADDRESS_IP: u32 = 1;
    /// Ethertype of the frames of a data socket that the agent opens on an Ethernet interface, one of the two reserved for
    /// local experiments.
    pub const VIPL_DATA_ETHERTYPE: u16 = 0x88B5;
    /// Where such a frame names the endpoint that it is for, in bytes from the start of the Ethernet header: 16 bits,
    /// big-endian.
    pub const VIPL_ENDPOINT_OFFSET: u32 = 16;
    /// Longest data address in bytes.
    pub const VIPL_DATA_ADDRESS_MAX: usize = 256;

    /// Kind of a setting: any text.
    pub const VIPL_SETTING_TEXT: u32 = 0;
    /// Kind of a setting: true or false; the plug-in gets `1` or `0`.
    pub const VIPL_SETTING_BOOLEAN: u32 = 1;
    /// Kind of a setting: a whole number from `minimum` to `maximum`.
    pub const VIPL_SETTING_NUMBER: u32 = 2;
    /// Kind of a setting: a number of bytes from `minimum` to `maximum`, given as `65536` or `64k`; the plug-in
    /// gets digits.
    pub const VIPL_SETTING_BYTES: u32 = 3;
    /// Kind of a setting: a number with a point, from `minimum` to `maximum` millionths.
    pub const VIPL_SETTING_FRACTION: u32 = 4;

    /// Status of an operation: success.
    pub const VIPL_OK: c_int = 0;
    /// Status of an operation: a resource is exhausted.
    pub const VIPL_E_RESOURCE: c_int = -1;
    /// Status of an operation: an argument is invalid, for instance the name of a device.
    pub const VIPL_E_INVALID: c_int = -2;
    /// Status of an operation: not part of this plug-in.
    pub const VIPL_E_NOT_SUPPORTED: c_int = -3;
    /// Status of an operation: the user lacks a permission; the log says which.
    pub const VIPL_E_NOT_PERMITTED: c_int = -4;

    /// Bit of [`vipl_region`]'s access word: may be written by RDMA.
    pub const VIPL_REGION_RDMA_WRITE: u32 = 1;
    /// Bit of [`vipl_region`]'s access word: may be read by RDMA.
    pub const VIPL_REGION_RDMA_READ: u32 = 2;
    /// Tag of a VI that matches every region of its NIC (compatible mode).
    pub const VIPL_PTAG_ANY: u32 = 0;
    /// Tag of a region without one: matches every VI of its NIC (compatible mode).
    pub const VIPL_PTAG_NONE: u32 = u32::MAX;

    /// Option bit of [`vipl_nic`]: immediate data travels also when the flag is not set.
    pub const VIPL_OPTION_CARRY_IMMEDIATE: u32 = 1;
    /// Option bit of [`vipl_nic`]: the memory handle of a descriptor is checked, also at its completion.
    pub const VIPL_OPTION_CHECK_DESCRIPTOR: u32 = 2;
    /// Option bit of [`vipl_nic`]: the data segments of a receive descriptor are checked whole. Else they are
    /// checked as far as the message reaches.
    pub const VIPL_OPTION_CHECK_RECEIVE_WHOLE: u32 = 4;

    /// `fail`: a descriptor has reported the cause, so no asynchronous error is raised.
    pub const VIPL_CAUSE_REPORTED: c_int = -1;
    /// `fail`: the peer disconnected in good order.
    pub const VIPL_CAUSE_DISCONNECTED: c_int = -2;

    /// `poll`: nothing completed.
    pub const VIPL_POLL_NOTHING: c_int = 0;
    /// `poll`: some descriptor completed.
    pub const VIPL_POLL_PROGRESS: c_int = 1;
    /// `poll`: nothing was done, because the application is using the VI itself. Poll again before sleeping.
    pub const VIPL_POLL_BUSY: c_int = 2;

    /// Log level of `log`.
    pub const VIPL_LOG_ERROR: c_int = 1;
    /// Log level of `log`.
    pub const VIPL_LOG_WARN: c_int = 2;
    /// Log level of `log`.
    pub const VIPL_LOG_INFO: c_int = 3;
    /// Log level of `log`.
    pub const VIPL_LOG_DEBUG: c_int = 4;
}
