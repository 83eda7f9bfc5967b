//! Deregistration while peers are using the region; plug-ins that track regions.

use vipl_abi::*;

use vipl_plugin_abi::*;

use super::{deregister, query, register, set_attributes};
use crate::agent::Side;
use crate::device::{close, open_without_agent};
use crate::error::Error;
use crate::memory::ptag;
use crate::vi;
use crate::vi::tests::device::{self, Busy};

const VIS: usize = 12;

/// All peers share one wait: a stopped one takes no time from the others, and each times out once.
#[test]
fn all_peers_share_one_time_limit() {
    let nic = open_without_agent(device::plugin(false)).unwrap();
    let none = std::ptr::null_mut();
    let attributes = VIP_VI_ATTRIBUTES {
        ReliabilityLevel: VIP_SERVICE_RELIABLE_DELIVERY,
        MaxTransferSize: 65536,
        QoS: none,
        Ptag: none,
        EnableRdmaWrite: VIP_TRUE,
        EnableRdmaRead: VIP_FALSE,
    };
    let mut memory = [0u8; 64];
    let address = memory.as_mut_ptr().cast();
    let region = register(nic, address, 64, None).unwrap();
    let connected = |key: usize| {
        let handle = vi::create(nic, &attributes, none, none).unwrap();
        let mut locked = vi::lock(handle).unwrap();
        let key = key as u64;
        locked.connection = Some(Side { key, side: 0 });
        // The last peer answers in time; the others are stopped.
        let ends = (key == VIS as u64 - 1).then_some(3);
        let asked = Vec::new();
        device::set_busy(locked.abi.index, Busy { ends, asked });
        (handle, locked.abi.index)
    };
    let vis: Vec<_> = (0..VIS).map(connected).collect();
    assert_eq!(deregister(nic, address, region), Ok(()));
    for (key, (handle, index)) in vis.into_iter().enumerate() {
        let asked = device::take_busy(index).asked;
        let words = asked.iter().map(|(_, word)| *word);
        let before = u64::from(index) << 32;
        let expected = (0..asked.len() as u64).map(|n| if n == 0 { 0 } else { before | n });
        assert!(words.eq(expected), "each VI gets its own word back");
        let last = asked.iter().position(|(left, _)| *left == 0);
        if key == VIS - 1 {
            assert_eq!((asked.len(), last), (3, None), "an end is an end");
        } else {
            assert_eq!(last, Some(asked.len() - 1), "given up once, at the end");
            assert!(asked.len() > 3, "nobody waits for one alone");
        }
        vi::lock(handle).unwrap().connection = None;
        assert_eq!(vi::destroy(handle), Ok(()));
    }
    assert_eq!(close(nic), Ok(()));
}

/// Every region is reported to the plug-in, which may refuse it; its removal is reported when no transfer
/// uses it any more.
#[test]
fn regions_are_reported_to_the_plugin() {
    let nic = open_without_agent(device::plugin(false)).unwrap();
    let mut memory = [0u8; 64];
    let base = memory.as_mut_ptr().addr() as u64;
    let address = memory.as_mut_ptr().cast();
    let none = u64::from(VIPL_PTAG_NONE) << 32;
    let known = || device::regions(|regions| regions.present.values().copied().collect::<Vec<_>>());

    let region = register(nic, address, 64, None).unwrap();
    assert_eq!(known(), [(base, 64, none)]);
    let with_write = VIP_MEM_ATTRIBUTES {
        Ptag: std::ptr::null_mut(),
        EnableRdmaWrite: VIP_TRUE,
        EnableRdmaRead: VIP_FALSE,
    };
    assert_eq!(set_attributes(nic, address, region, &with_write), Ok(()));
    let write = none | u64::from(VIPL_REGION_RDMA_WRITE);
    assert_eq!(known(), [(base, 64, write)]);

    device::regions(|regions| regions.full = true);
    let refused = register(nic, address, 64, None);
    assert_eq!(refused.err(), Some(Error::Resource));
    let without = VIP_MEM_ATTRIBUTES {
        EnableRdmaWrite: VIP_FALSE,
        ..with_write
    };
    let refused = set_attributes(nic, address, region, &without);
    assert_eq!(refused, Err(Error::Resource));
    let kept = query(nic, address, region).unwrap();
    assert_eq!(kept.EnableRdmaWrite, VIP_TRUE, "all or nothing");
    assert_eq!(known(), [(base, 64, write)]);

    device::regions(|regions| regions.full = false);
    // The refused region left no reference: the tag is free once the remaining region is deregistered.
    let tag = ptag::create(nic).unwrap();
    let tagged = VIP_MEM_ATTRIBUTES {
        Ptag: tag,
        ..with_write
    };
    assert_eq!(set_attributes(nic, address, region, &tagged), Ok(()));
    assert_eq!(ptag::destroy(nic, tag), Err(Error::Resource));
    assert_eq!(deregister(nic, address, region), Ok(()));
    assert_eq!(known(), []);
    assert_eq!(ptag::destroy(nic, tag), Ok(()));
    assert_eq!(close(nic), Ok(()));
}
