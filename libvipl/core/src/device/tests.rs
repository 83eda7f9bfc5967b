//! VipCloseNic while other threads make objects.

use std::sync::Barrier;

use vipl_abi::*;

use super::{close, open_without_agent};
use crate::cq;
use crate::error::Error;
use crate::memory;
use crate::memory::ptag;
use crate::nic::resolve;
use crate::vi;
use crate::vi::tests::device;

/// A VI of the compatible mode, without a tag.
fn attributes() -> VIP_VI_ATTRIBUTES {
    VIP_VI_ATTRIBUTES {
        ReliabilityLevel: VIP_SERVICE_RELIABLE_DELIVERY,
        MaxTransferSize: 65536,
        QoS: std::ptr::null_mut(),
        Ptag: std::ptr::null_mut(),
        EnableRdmaWrite: VIP_FALSE,
        EnableRdmaRead: VIP_FALSE,
    }
}

/// A thread that has found the NIC cannot create objects on it after VipCloseNic.
#[test]
fn a_late_thread_makes_nothing() {
    let handle = open_without_agent(device::plugin(false)).unwrap();
    let nic = resolve(handle).unwrap();
    assert_eq!(close(handle), Ok(()));
    let (none, mut memory) = (std::ptr::null_mut(), [0u8; 64]);
    assert_eq!(ptag::create_on(&nic), Err(Error::InvalidParameter));
    assert_eq!(cq::create_on(&nic, 4), Err(Error::InvalidParameter));
    assert_eq!(
        vi::create_on(&nic, &attributes(), none, none),
        Err(Error::InvalidParameter)
    );
    assert_eq!(
        memory::register_on(&nic, memory.as_mut_ptr().cast(), 64, None),
        Err(Error::InvalidParameter)
    );
    assert_eq!(crate::handlers::start(&nic), Err(Error::InvalidParameter));
    nic.check_empty().unwrap();
}

/// VipCloseNic waits for a thread that is creating an object, and sees the object. The thread enters once
/// more while it is inside, before another thread closes; after that it would wait for itself.
#[test]
fn what_is_being_made_is_seen() {
    let handle = open_without_agent(device::plugin(false)).unwrap();
    let nic = resolve(handle).unwrap();
    let inside = nic.enter().unwrap();
    let tag = ptag::create_on(&nic).unwrap();
    std::thread::scope(|scope| {
        let address = handle.expose_provenance();
        let closer = scope.spawn(move || close(std::ptr::with_exposed_provenance_mut(address)));
        drop(inside);
        assert_eq!(closer.join().unwrap(), Err(Error::Resource));
        assert_eq!(ptag::destroy(handle, tag), Ok(()));
    });
    assert_eq!(close(handle), Ok(()));
}

/// Both at the same time, many times: either the NIC is closed and nothing was created, or it is open with
/// all objects.
#[test]
fn closed_or_not_and_nothing_between() {
    for _ in 0..300 {
        let handle = open_without_agent(device::plugin(false)).unwrap();
        let nic = resolve(handle).unwrap();
        let start = Barrier::new(4);
        let (closed, made) = std::thread::scope(|scope| {
            let (nic, start) = (&nic, &start);
            let address = handle.expose_provenance();
            let none = std::ptr::null_mut;
            let makers = [
                scope.spawn(move || {
                    start.wait();
                    ptag::create_on(nic).map(|tag| tag.addr())
                }),
                scope.spawn(move || {
                    start.wait();
                    cq::create_on(nic, 4).map(|cq| cq.addr())
                }),
                scope.spawn(move || {
                    start.wait();
                    vi::create_on(nic, &attributes(), none(), none()).map(|vi| vi.addr())
                }),
            ];
            start.wait();
            let closed = close(std::ptr::with_exposed_provenance_mut(address));
            (closed, makers.map(|maker| maker.join().unwrap()))
        });
        if closed.is_ok() {
            assert_eq!(made, [Err(Error::InvalidParameter); 3]);
            continue;
        }
        assert_eq!(closed, Err(Error::Resource));
        let [tag, queue, vi] = made.map(|made| made.unwrap());
        let pointer =
            |address: usize| std::ptr::without_provenance_mut::<std::ffi::c_void>(address);
        assert_eq!(vi::destroy(pointer(vi)), Ok(()));
        assert_eq!(cq::destroy(pointer(queue)), Ok(()));
        assert_eq!(ptag::destroy(handle, pointer(tag)), Ok(()));
        assert_eq!(close(handle), Ok(()));
    }
}
