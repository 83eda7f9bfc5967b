//! One opening of a device of this class: its attributes, its limits and its end.

use std::ffi::CStr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::Duration;
use vipl_sys::clock::Instant;

use vipl_abi::VIP_SERVICE_UNRELIABLE;
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::settings::{register_bytes_max, transfer_max};
use vipl_plugin_sdk::shm::{self, Kept};
use vipl_plugin_sdk::{Host, NicHandle, Status};
use vipl_wire::{MTU_MIN, PartKind, body_max};

use crate::bell::{self, BELL_BYTES, Bell};
use crate::card::{Card, Network};
use crate::device::{Counters, Device};
use crate::interface;
use crate::segment::SEGMENT;
use crate::uplink::Uplink;
use crate::watch;
use crate::{READ_LEVELS, VIS_MAX};

/// Regions of one NIC handle.
const REGIONS_MAX: u32 = 4096;
/// How long VipCloseNic waits until peers have confirmed the CLOSE of their connections: six repetitions.
const LINGER_TIME: Duration = Duration::from_millis(320);
/// Pause between two polls meanwhile.
const LINGER_PAUSE: Duration = Duration::from_micros(200);

/// One opening of the device.
pub struct EthernetNic {
    pub(crate) device: Arc<Device>,
    /// The bell's page and eventfd, which peers on this host get.
    _shared: [Kept; 2],
}

impl EthernetNic {
    pub(crate) fn open<C: Card>(
        network: Network,
        nic: NicHandle,
        info: &mut vipl_nic_info,
    ) -> Result<EthernetNic, Status> {
        let failed = |error: std::io::Error| {
            let text = format!("{:?}: cannot open the device: {error}", C::NAME);
            Host::get().log(VIPL_LOG_ERROR, &text);
            Status::Resource
        };
        let mut open = |name: &str, datagrams| {
            let link = Host::get().link(name)?;
            info.link = link.id;
            let uplink = Uplink::open(C::NAME, C::DOORBELL, C::FRAME_MAX, link, datagrams);
            let uplink = uplink.map_err(failed)?;
            let (address, mtu) = (uplink.address.clone(), uplink.mtu);
            Ok((Some(uplink), None, address, mtu))
        };
        let ((uplink, impairments, address, mtu), name) = match network {
            Network::Interface(interface) => {
                if let Some(master) = interface::master(&interface) {
                    let text = interface::is_port(&interface, &master);
                    return Err(failed(std::io::Error::other(text)));
                }
                (open(&interface, false)?, format!("via_{interface}"))
            }
            Network::Datagrams(argument) => {
                let opened = open(&format!("udp:{argument}"), true)?;
                info.address_form = VIPL_ADDRESS_IP;
                let plugin = C::NAME.to_string_lossy();
                (opened, format!("{plugin}:{argument}"))
            }
            Network::Emulated {
                impairments,
                mtu,
                address,
                name,
            } => ((None, Some(impairments), address.to_vec(), mtu), name),
        };
        if mtu < MTU_MIN {
            let text = format!("an MTU of {mtu} is below {MTU_MIN}");
            return Err(failed(std::io::Error::other(text)));
        }
        let page = shm::create(c"vipl-ethernet", BELL_BYTES).map_err(failed)?;
        let event = bell::create_event().map_err(failed)?;
        let own_event = shm::duplicate(event.as_raw_fd()).map_err(failed)?;
        let bell = Bell::open(page.as_raw_fd(), own_event).map_err(failed)?;
        describe(C::NAME, &name, &address, mtu, info);
        info.shared_fds = [page.as_raw_fd(), event.as_raw_fd()];
        let counters = Counters::of(C::NAME);
        let device = Device::new(nic, name, bell, (uplink, impairments), mtu, counters);
        let device = Arc::new(device);
        watch::thread::start(&device)?;
        Ok(EthernetNic {
            device,
            _shared: [page, event].map(Kept::new),
        })
    }

    /// Waits a moment for peers to confirm the end of their connections.
    pub(crate) fn linger(&self) {
        let end = Instant::now() + LINGER_TIME;
        loop {
            self.device.receive_all();
            self.device.lingering.pump(Host::get().now_ns());
            self.device.ring();
            if self.device.lingering.is_empty() || Instant::now() >= end {
                return;
            }
            vipl_sys::clock::sleep(LINGER_PAUSE);
        }
    }
}

fn describe(plugin: &CStr, name: &str, address: &[u8], mtu: usize, info: &mut vipl_nic_info) {
    vipl_plugin_sdk::describe(info, name, address);
    info.reliability_support = VIP_SERVICE_UNRELIABLE | READ_LEVELS;
    info.rdma_read_support = READ_LEVELS;
    info.vis_max = VIS_MAX;
    info.regions_max = REGIONS_MAX;
    info.transfer_max = transfer_max(plugin, 65_536);
    info.native_mtu = (body_max(mtu) - PartKind::Send.header()) as u32;
    info.register_bytes_max = register_bytes_max(plugin);
    info.register_block_max = info.register_bytes_max;
    info.segment_bytes = SEGMENT as u32;
}
