//! The network interface behind a NIC.

use std::os::fd::{AsRawFd, OwnedFd};

use vipl_clan_proto::nic::{FRAME_MAX, RING_FRAMES};
use vipl_netio::packet::Receiver;
use vipl_plugin_sdk::abi::{VIPL_LOG_ERROR, vipl_nic_info};
use vipl_plugin_sdk::{Host, Status};
use vipl_wire::MTU_MIN;

/// What the device needs of an interface.
pub(crate) struct Interface {
    pub(crate) socket: OwnedFd,
    pub(crate) address: [u8; 6],
    pub(crate) endpoint: u16,
    pub(crate) mtu: u32,
}

fn failed(why: &str) -> Status {
    let text = format!("clan: cannot open the device: {why}");
    Host::get().log(VIPL_LOG_ERROR, &text);
    Status::Resource
}

impl Interface {
    /// Requests a data socket from the agent, and creates its receive ring.
    pub(crate) fn open(interface: &str, info: &mut vipl_nic_info) -> Result<Interface, Status> {
        let name = std::ffi::CString::new(interface).map_err(|_| Status::Invalid)?;
        // SAFETY: a name that ends with NUL.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        let asker = vipl_netio::packet::Asker::open().ok();
        if let Some(master) = asker.and_then(|asker| asker.master(index)) {
            let text = format!("{interface} is a port of {master}, which takes its frames");
            return Err(failed(&format!("{text}: use {master}")));
        }
        let link = Host::get().link(interface)?;
        let address = link.address.as_slice().try_into();
        let address =
            address.map_err(|_| failed("the interface's address does not have 6 bytes"))?;
        if (link.mtu as usize) < MTU_MIN {
            let (mtu, least) = (link.mtu, MTU_MIN);
            return Err(failed(&format!("an MTU of {mtu} is below {least}")));
        }
        let mtu = link.mtu.min(FRAME_MAX);
        Receiver::prepare(link.socket.as_raw_fd(), mtu as usize, RING_FRAMES)
            .map_err(|error| failed(&error.to_string()))?;
        info.link = link.id;
        Ok(Interface {
            socket: link.socket,
            address,
            endpoint: link.endpoint,
            mtu,
        })
    }
}
