//! Autodiscovery (spec §3.30).

use kagent_proto::{NeighbourList, Neighbours, Op, Status};
use vipl_abi::{VIP_AUTODISCOVERY_LIST, VIP_ULONG};

use crate::connect::address::write_host;
use crate::error::Error;
use crate::nic::Nic;

/// Reachable addresses, the own one first, each once.
fn addresses(nic: &Nic, hops: VIP_ULONG) -> Result<Vec<Vec<u8>>, Error> {
    let mut found = vec![nic.address().to_vec()];
    if hops == 0 {
        return Ok(found);
    }
    let reply = nic
        .agents()
        .call(&nic.registration, Op::NEIGHBOURS, |nic| Neighbours { nic })?;
    if let (Status::OK, Some(list)) = (reply.status, reply.body::<NeighbourList>()) {
        let length = nic.address().len();
        found.extend(
            list.hosts
                .iter()
                .take(list.count as usize)
                .map(|host| host[..length].to_vec()),
        );
    }
    let table = nic.names.lock();
    if let Some(names) = table.as_ref() {
        found.extend(names.addresses(super::network(nic)).map(<[u8]>::to_vec));
    }
    let mut distinct: Vec<Vec<u8>> = Vec::new();
    for address in found {
        if !distinct.contains(&address) {
            distinct.push(address);
        }
    }
    Ok(distinct)
}

/// VipQuerySystemManagementInfo with VIP_SMI_AUTODISCOVERY.
///
/// # Safety
/// `list` points to an autodiscovery list whose array has as many pointers as it states, each to `4 +
/// NicAddressLen` bytes.
pub unsafe fn autodiscover(nic: &Nic, list: *mut VIP_AUTODISCOVERY_LIST) -> Result<(), Error> {
    // SAFETY: guaranteed by the caller.
    let asked = unsafe { list.read_unaligned() };
    let only_count = asked.ADAddrArray.is_null();
    if only_count && asked.NumAdAddrs != 0 {
        return Err(Error::InvalidParameter);
    }
    let found = addresses(nic, asked.NumberOfHops)?;
    let room = asked.NumAdAddrs as usize;
    if !only_count {
        for (place, address) in found.iter().take(room).enumerate() {
            // SAFETY: `place` is below the number of pointers.
            let out = unsafe { asked.ADAddrArray.add(place).read_unaligned() };
            if out.is_null() {
                return Err(Error::InvalidParameter);
            }
            // SAFETY: room for `4 + NicAddressLen` bytes, guaranteed by the caller.
            unsafe {
                write_host(out, address);
                out.cast::<u8>().add(2).cast::<u16>().write_unaligned(0);
            }
        }
    }
    // SAFETY: guaranteed by the caller.
    unsafe { (&raw mut (*list).NumAdAddrs).write_unaligned(found.len() as VIP_ULONG) };
    if !only_count && found.len() > room {
        Err(Error::Resource)
    } else {
        Ok(())
    }
}
