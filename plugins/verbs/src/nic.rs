//! One opening of an RDMA device.

mod vi;

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use vipl_abi::*;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::settings::{register_bytes_max, transfer_max};
use vipl_plugin_sdk::{Host, Link, Nic, NicHandle, Regions, Sleep, Status};
use vipl_sys::fd::{Kept, made};

use crate::NAME;
use crate::card::{Card, TRANSFER_MAX};
use crate::choice::{Choice, Refusal};
use crate::device::{Address, Channel, Device};
use crate::ibv::*;
use crate::link::DATA_MAX;
use crate::record::SEGMENT;
use crate::tags::{REGIONS, Tags};
use crate::uplink::{Uplink, ip_of};
use crate::watch::{Shared, Watch};
use vi::VerbsVi;

/// VIs of a NIC: each one is a queue pair.
const VIS_MAX: u32 = 1024;

/// One opening of a device.
pub struct VerbsNic {
    card: Card,
    watch: Watch,
}

impl VerbsNic {
    pub(crate) fn open(
        argument: &str,
        nic: NicHandle,
        info: &mut vipl_nic_info,
    ) -> Result<VerbsNic, Status> {
        let choice = Choice::of(argument).map_err(Refusal::report)?;
        let device = Device::open(&choice.device, choice.is_software);
        let device = Arc::new(device.map_err(|error| Refusal::of(&choice, &error).report())?);
        let link = link(argument, &choice)?;
        let ip = link.as_ref().and_then(|link| ip_of(&link.address).ok());
        let (address, gid_index) = place(&device, &choice, ip).map_err(Refusal::report)?;
        let limits = &device.limits;
        let segments = (limits.max_sge.max(2) as usize - 1).min(DATA_MAX);
        describe(&choice, &address, link.as_ref(), info);
        let failed = |error: io::Error| {
            let text = format!(
                "cannot set up {}: {}",
                choice.device,
                crate::explained(&error)
            );
            Refusal::new(text).report()
        };
        // SAFETY: no pointers; the descriptor is new.
        let notice = unsafe { made(libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK)) };
        let notice = Arc::new(Kept::new(notice.map_err(failed)?));
        // Peers on this host tell of a new record by it.
        info.shared_fds[0] = notice.number().as_raw_fd();
        let channel = Arc::new(Channel::new(&device).map_err(failed)?);
        let uplink = link.map(|link| Uplink::new(link.socket, notice.clone()));
        let shared = Arc::new(Shared::new(channel, uplink, notice));
        let watch = Watch::start(nic, device.clone(), shared.clone()).map_err(failed)?;
        let card = Card {
            device,
            port: choice.port,
            address,
            gid_index,
            segments,
            tags: Tags::default(),
            shared,
        };
        Ok(VerbsNic { card, watch })
    }
}

/// The UDP socket for control records, if the device has an interface with an IP address. A NIC that was not asked for by
/// its interface does without: it connects processes of this host.
fn link(argument: &str, choice: &Choice) -> Result<Option<Link>, Status> {
    let Some(interface) = &choice.interface else {
        return Ok(None);
    };
    let name = format!("udp:{interface}");
    if argument != interface && Host::get().link_ask(&name).is_err() {
        let text = format!(
            "{interface} has no address that other hosts reach: {} connects processes of this host only",
            choice.device
        );
        crate::say(VIPL_LOG_INFO, &text);
        return Ok(None);
    }
    Host::get().link(&name).map(Some)
}

/// The GID of an IP address: an IPv4 one stands at the end.
fn gid_of(ip: IpAddr) -> [u64; 2] {
    let bytes = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let (first, second) = bytes.split_at(8);
    [first, second].map(|half| u64::from_ne_bytes(half.try_into().unwrap_or_default()))
}

/// Where the port is: on RoCE the GID of the interface's address, in packets that routers pass; on InfiniBand its LID.
fn place(
    device: &Device,
    choice: &Choice,
    ip: Option<IpAddr>,
) -> Result<(Address, Option<u8>), Refusal> {
    let asked = device
        .port(choice.port)
        .and_then(|port| Ok((port, device.addresses()?)));
    let (port, entries) = asked.map_err(|error| Refusal::of(choice, &error))?;
    if port.state != IBV_PORT_ACTIVE {
        let text = format!("port {} of {} is not active", choice.port, choice.device);
        return Err(Refusal::new(text));
    }
    let mut address = Address {
        lid: port.lid,
        mtu: port.active_mtu.clamp(1, 5) as u8,
        ..Address::default()
    };
    let is_ethernet = u32::from(port.link_layer) == IBV_LINK_LAYER_ETHERNET;
    let kind = if is_ethernet {
        IBV_GID_TYPE_ROCE_V2
    } else {
        IBV_GID_TYPE_IB
    };
    let mut fitting = entries
        .iter()
        .filter(|entry| entry.port_num == u32::from(choice.port) && entry.gid_type == kind);
    if !is_ethernet {
        address.gid = fitting.next().map_or([0; 2], |entry| entry.gid);
        return Ok((address, None));
    }
    // Without an address any GID does, since packets come back to this device; that of IPv4 is never link-local.
    let wanted = ip.map(gid_of);
    let found = match wanted {
        Some(gid) => fitting.find(|entry| entry.gid == gid),
        None => fitting.max_by_key(|entry| entry.gid[0] == 0),
    };
    let Some(found) = found else {
        let of = ip.map_or(String::new(), |ip| format!(" of the address {ip}"));
        return Err(Refusal::new(format!(
            "port {} of {} has no RoCE v2 GID{of}; the interface needs an IP address that is not link-local",
            choice.port, choice.device
        )));
    };
    address.gid = found.gid;
    Ok((address, Some(found.gid_index as u8)))
}

fn describe(choice: &Choice, address: &Address, link: Option<&Link>, info: &mut vipl_nic_info) {
    let name = format!("verbs:{}", choice.device);
    match link {
        Some(link) => {
            vipl_plugin_sdk::describe(info, &name, &link.address);
            info.address_form = VIPL_ADDRESS_IP;
            info.link = link.id;
        }
        None => {
            let gid = address.gid.map(u64::to_ne_bytes).concat();
            vipl_plugin_sdk::describe(info, &name, &gid);
        }
    }
    info.reliability_support =
        VIP_SERVICE_UNRELIABLE | VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION;
    info.rdma_read_support = VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION;
    info.vis_max = VIS_MAX;
    info.regions_max = REGIONS;
    info.segments_max = 252;
    info.segment_bytes = SEGMENT.next_multiple_of(4096) as u32;
    info.transfer_max = transfer_max(NAME, TRANSFER_MAX);
    info.native_mtu = 128 << address.mtu;
    info.register_bytes_max = register_bytes_max(NAME);
    info.register_block_max = info.register_bytes_max;
}

impl Nic for VerbsNic {
    type Vi = VerbsVi;

    fn close(&mut self) {
        self.watch.stop();
    }
}

impl Regions for VerbsNic {
    fn region_add(&self, handle: u32, base: u64, bytes: u64, access: u64) -> Result<(), Status> {
        self.card
            .tags
            .add(handle, base, bytes, access)
            .map_err(|error| {
                let text = format!(
                    "cannot register {bytes} bytes: {}",
                    crate::explained(&error)
                );
                crate::say(VIPL_LOG_WARN, &text);
                Status::Resource
            })
    }

    fn region_remove(&self, handle: u32) {
        self.card.tags.remove(handle);
    }
}

impl Sleep for VerbsNic {
    fn arm(&self) -> u32 {
        self.card.shared.arm()
    }

    fn sleep(&self, epoch: u32, timeout_ns: u64) {
        self.card.shared.sleep(epoch, timeout_ns);
    }

    fn wake(&self) {
        self.card.shared.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_ipv4_stands_at_the_end_of_its_gid() {
        let gid = gid_of("10.9.0.1".parse().expect("an address"))
            .map(u64::to_ne_bytes)
            .concat();
        assert_eq!(gid, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 9, 0, 1]);
        let gid = gid_of("2001:db8::7".parse().expect("an address"))
            .map(u64::to_ne_bytes)
            .concat();
        assert_eq!((gid[0], gid[15]), (0x20, 7));
    }
}
