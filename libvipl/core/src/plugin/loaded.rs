//! A loaded plug-in, and its answers that need no open device.

use std::ffi::{CStr, CString, c_char};
use std::path::PathBuf;

use vipl_plugin_abi::*;

/// Rank of a plug-in for its own devices, if it does not claim any itself.
const CLAIM_RANK: i32 = 10;

/// A usable plug-in.
pub(crate) struct LoadedPlugin {
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) path: PathBuf,
    pub(crate) ops: vipl_provider,
}

// SAFETY: the table is constant and its functions may be called from every thread.
unsafe impl Sync for LoadedPlugin {}
// SAFETY: as above.
unsafe impl Send for LoadedPlugin {}

impl LoadedPlugin {
    /// The structure for `nic_open` to fill; unknown fields are zero.
    pub(crate) fn blank_info(&self) -> vipl_nic_info {
        vipl_nic_info {
            size: size_of::<vipl_nic_info>(),
            name: [0; 64],
            address: [0; VIPL_ADDRESS_MAX],
            address_len: 0,
            discriminator_max: 64,
            reliability_support: 0,
            rdma_read_support: 0,
            hardware_version: 1,
            provider_version: 1,
            register_bytes_max: 0,
            register_block_max: 0,
            regions_max: 4096,
            vis_max: 1024,
            descriptors_max: 1024,
            segments_max: 252,
            cqs_max: 1024,
            cq_entries_max: 65_536,
            ptags_max: 1024,
            native_mtu: 0,
            transfer_max: 0,
            segment_bytes: 4096,
            shared_fds: [-1; 2],
            regions: std::ptr::null_mut(),
            link: 0,
            data_address_len: 0,
            data_address: [0; VIPL_DATA_ADDRESS_MAX],
            poll_us: 0,
            address_form: VIPL_ADDRESS_BYTES,
        }
    }

    /// Rank and argument, if the plug-in claims this device name.
    pub(crate) fn claim(&self, name: &str) -> Option<(i32, String)> {
        let Some(claim) = self.ops.claim else {
            let own = self.devices().iter().any(|device| device == name);
            return own.then(|| (CLAIM_RANK, String::new()));
        };
        let name = CString::new(name).ok()?;
        let mut argument = [0 as c_char; 64];
        // SAFETY: a string and 64 bytes of room.
        let rank = unsafe { claim(name.as_ptr(), argument.as_mut_ptr()) };
        (rank > 0).then(|| (rank, from_chars(&mut argument)))
    }

    /// Names of present devices.
    pub(crate) fn devices(&self) -> Vec<String> {
        let Some(device) = self.ops.device else {
            return Vec::new();
        };
        let mut names = Vec::new();
        for number in 0..64 {
            let mut name = [0 as c_char; 64];
            // SAFETY: 64 bytes of room.
            if unsafe { device(number, name.as_mut_ptr()) } != VIPL_OK {
                break;
            }
            names.push(from_chars(&mut name));
        }
        names
    }
}

fn from_chars(chars: &mut [c_char; 64]) -> String {
    chars[63] = 0;
    // SAFETY: NUL-terminated by the line above.
    unsafe { CStr::from_ptr(chars.as_ptr()) }
        .to_string_lossy()
        .into_owned()
}
