//! One opening of the device.

mod vi;

use std::sync::Arc;

use vipl_abi::{
    VIP_SERVICE_RELIABLE_DELIVERY, VIP_SERVICE_RELIABLE_RECEPTION, VIP_SERVICE_UNRELIABLE,
};
use vipl_clan_proto::nic::{REGIONS_MAX, VIS_MAX};
use vipl_clan_proto::vi::{INLINE_MAX, RING};
use vipl_plugin_sdk::abi::*;
use vipl_plugin_sdk::settings::{self, number, register_bytes_max, truth};
use vipl_plugin_sdk::{Host, Nic, NicHandle, OwnTable, Ready, Sleep, Status};
use vipl_sys::table::WordsInUse;
use vipl_wire::{PartKind, body_max};

use crate::NAME;
use crate::card::Card;
use crate::interface::Interface;
use crate::watch::Watch;
use vi::ClanVi;

/// Largest message of the card in bytes.
const TRANSFER_MAX: u64 = 65_472;
/// The `native_mtu` of a NIC without a network, in bytes.
const LOCAL_MTU: u32 = 32_768;

/// One opening of the device.
pub struct ClanNic {
    card: Arc<Card>,
    /// Ready bits that are in use.
    words: WordsInUse,
    watch: Watch,
    /// Largest message in bytes whose data goes into the doorbell; 0: the descriptor does not, either.
    inline_max: u32,
    /// This side fetches long messages itself when it polls.
    single_copy: bool,
    /// Reliability levels on which RDMA Read works.
    read_levels: u16,
    /// Largest frame to other hosts in bytes; 0: there is no interface.
    mtu: u32,
}

/// Location of the NIC.
enum Place {
    /// Without a network: 0, or a further one on the same host, as in `clan:1`.
    Node(u8),
    /// At the interface of this name.
    Interface(String),
}

impl Place {
    fn of(argument: &str) -> Result<Place, Status> {
        if argument.is_empty() {
            return Ok(Place::Node(0));
        }
        if argument.bytes().all(|byte| byte.is_ascii_digit()) {
            let node = argument.parse().map_err(|_| Status::Invalid)?;
            return Ok(Place::Node(node));
        }
        Ok(Place::Interface(argument.to_owned()))
    }
}

impl ClanNic {
    pub(crate) fn open(
        argument: &str,
        nic: NicHandle,
        info: &mut vipl_nic_info,
    ) -> Result<ClanNic, Status> {
        let (address, wire) = match Place::of(argument)? {
            // Locally administered, "CLA" and the node.
            Place::Node(node) => ([0x02, b'C', b'L', b'A', 0, node], None),
            Place::Interface(name) => {
                let wire = Interface::open(&name, info)?;
                (wire.address, Some(wire))
            }
        };
        let poll_us = number(NAME, c"poll_us").unwrap_or(100) as u32;
        let (card, interrupts) = Card::open(poll_us, wire.as_ref())?;
        let card = Arc::new(card);
        let read_levels = if truth(NAME, c"rdma_read") {
            VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION
        } else {
            0
        };
        let mtu = wire.map_or(0, |wire| wire.mtu);
        describe(argument, address, mtu, info);
        info.rdma_read_support = read_levels;
        let watch = Watch::start(nic, card.clone(), interrupts).map_err(|error| {
            let text = format!("clan: cannot start a thread: {error}");
            Host::get().log(VIPL_LOG_ERROR, &text);
            Status::Resource
        })?;
        Ok(ClanNic {
            card,
            words: WordsInUse::default(),
            watch,
            inline_max: number(NAME, c"inline_max").unwrap_or(INLINE_MAX as u64) as u32,
            single_copy: truth(NAME, c"single_copy"),
            read_levels,
            mtu,
        })
    }
}

impl Nic for ClanNic {
    type Vi = ClanVi;

    fn close(&mut self) {
        self.watch.stop();
    }
}

impl OwnTable for ClanNic {
    fn table(&self) -> &[vipl_region] {
        self.card.regions()
    }
}

impl Ready for ClanNic {
    fn ready(&self, indices: &mut [u32]) -> usize {
        self.card.nic().ready.take(self.words.count(), indices)
    }

    fn watch(&self, vi: &mut ClanVi, on: bool) {
        vi.watch(on);
    }
}

impl Sleep for ClanNic {
    fn arm(&self) -> u32 {
        self.card.nic().bell.arm()
    }

    fn sleep(&self, epoch: u32, timeout_ns: u64) {
        self.card.nic().bell.sleep(epoch, timeout_ns);
    }

    fn wake(&self) {
        self.card.nic().bell.ring();
    }
}

fn describe(argument: &str, address: [u8; 6], mtu: u32, info: &mut vipl_nic_info) {
    let name = if argument.is_empty() {
        "clanvi0".to_owned()
    } else {
        format!("clan:{argument}")
    };
    vipl_plugin_sdk::describe(info, &name, &address);
    // Applications of the card use Reliable Delivery; within one host the other levels cost nothing.
    info.reliability_support =
        VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_UNRELIABLE | VIP_SERVICE_RELIABLE_RECEPTION;
    info.vis_max = VIS_MAX;
    info.regions_max = REGIONS_MAX;
    info.descriptors_max = RING as u32;
    info.segments_max = 252;
    info.transfer_max =
        number(NAME, c"transfer_max").unwrap_or_else(|| settings::transfer_max(NAME, TRANSFER_MAX));
    info.native_mtu = match mtu {
        0 => LOCAL_MTU,
        _ => (body_max(mtu as usize) - PartKind::Send.header()) as u32,
    };
    info.register_bytes_max = register_bytes_max(NAME);
    info.register_block_max = info.register_bytes_max;
}
