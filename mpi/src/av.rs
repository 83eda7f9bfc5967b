//! Address vectors: the peers of endpoints for messages with tags, by number.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use crate::address::{Address, SOCKADDR};
use crate::engine::Av;
use crate::fi::*;
use crate::nic::Nic;
use crate::object::{code, no_bind, no_control, table};
use crate::slab::Id;

/// See the module.
#[repr(C)]
pub(crate) struct AddressVector {
    av: fid_av,
    slack: Slack,
    nic: Arc<Nic>,
    id: Id,
}

static OPS: fi_ops = table(close, no_bind, no_control);
static AV_OPS: fi_ops_av = fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert,
    insertsvc: unsupported,
    insertsym: unsupported,
    remove,
    lookup,
    straddr,
};

/// Opens an address vector.
///
/// # Safety
/// Arguments of `fi_av_open`.
pub(crate) unsafe fn open(
    nic: Arc<Nic>,
    out: *mut *mut fid_av,
    context: *mut c_void,
) -> Result<(), c_int> {
    let id = nic.lock().shared.avs.insert(Av::default());
    let object = Box::new(AddressVector {
        av: fid_av {
            fid: fid {
                fclass: FI_CLASS_AV,
                context,
                ops: &raw const OPS,
            },
            ops: &raw const AV_OPS,
        },
        slack: SLACK,
        nic,
        id,
    });
    // SAFETY: the caller's promise.
    unsafe { out.write(Box::into_raw(object).cast()) };
    Ok(())
}

impl AddressVector {
    /// # Safety
    /// `av` is one of ours, and open.
    pub(crate) unsafe fn of<'a>(av: *mut fid) -> &'a AddressVector {
        // SAFETY: the caller's promise.
        unsafe { &*av.cast::<AddressVector>() }
    }

    /// Its id in the engine.
    pub(crate) fn id(&self) -> Id {
        self.id
    }
}

/// Numbers are given in order and never again. Returns how many addresses are ours; the others have no number.
unsafe extern "C" fn insert(
    av: *mut fid_av,
    addresses: *const c_void,
    count: usize,
    numbers: *mut u64,
    _flags: u64,
    _context: *mut c_void,
) -> c_int {
    let mut inserted = 0;
    let result = code(|| {
        // SAFETY: libfabric's arguments, here and below.
        let object = unsafe { AddressVector::of(av.cast()) };
        let mut engine = object.nic.lock();
        let known = engine.shared.avs.get(object.id).ok_or(libc::EBADF)?;
        for at in 0..count {
            // SAFETY: see above: so many addresses of our size.
            let address = unsafe {
                let from = addresses.cast::<u8>().add(at * SOCKADDR);
                Address::from_sockaddr(from.cast(), SOCKADDR)
            };
            let number = match address {
                Some(_) => known.peers.len() as u64,
                None => FI_ADDR_NOTAVAIL,
            };
            if address.is_some() {
                known.peers.push(address);
                inserted += 1;
            }
            if !numbers.is_null() {
                // SAFETY: see above: room for so many.
                unsafe { numbers.add(at).write(number) };
            }
        }
        Ok(())
    });
    if result == 0 { inserted } else { result }
}

unsafe extern "C" fn remove(
    av: *mut fid_av,
    numbers: *mut u64,
    count: usize,
    _flags: u64,
) -> c_int {
    code(|| {
        // SAFETY: see `insert`.
        let object = unsafe { AddressVector::of(av.cast()) };
        let mut engine = object.nic.lock();
        for at in 0..count {
            // SAFETY: see `insert`.
            let number = unsafe { numbers.add(at).read() } as usize;
            engine.forget_peer(object.id, number).ok_or(libc::EINVAL)?;
        }
        Ok(())
    })
}

unsafe extern "C" fn lookup(
    av: *mut fid_av,
    number: u64,
    address: *mut c_void,
    length: *mut usize,
) -> c_int {
    code(|| {
        // SAFETY: see `insert`.
        let object = unsafe { AddressVector::of(av.cast()) };
        let mut engine = object.nic.lock();
        let known = engine.shared.avs.get(object.id).ok_or(libc::EBADF)?;
        let found = known.peers.get(number as usize).copied().flatten();
        // SAFETY: see `insert`.
        let given =
            unsafe { crate::connection::give_address(found.ok_or(libc::EINVAL)?, address, length) };
        // What did not fit is cut, and no error here.
        given.or_else(|error| {
            if error == FI_ETOOSMALL {
                Ok(())
            } else {
                Err(error)
            }
        })
    })
}

unsafe extern "C" fn straddr(
    _: *mut fid_av,
    address: *const c_void,
    buffer: *mut c_char,
    length: *mut usize,
) -> *const c_char {
    crate::object::entry(std::ptr::null(), || {
        // SAFETY: see `insert`.
        let address = unsafe { Address::from_sockaddr(address, SOCKADDR) };
        let text = address.map_or_else(|| "?".to_owned(), |address| address.to_ip().to_string());
        // SAFETY: see `insert`: room for so many bytes.
        unsafe {
            let room = length.replace(text.len() + 1);
            if room > 0 {
                let copied = text.len().min(room - 1);
                std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast(), copied);
                *buffer.add(copied) = 0;
            }
        }
        buffer.cast_const()
    })
}

unsafe extern "C" fn close(av: *mut fid) -> c_int {
    code(|| {
        // SAFETY: made by `open`; libfabric's programs close an object once.
        let object = unsafe { Box::from_raw(av.cast::<AddressVector>()) };
        object.nic.lock().shared.avs.remove(object.id);
        Ok(())
    })
}
