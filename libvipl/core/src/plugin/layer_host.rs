//! The functions of the library that layers call.

use std::ffi::c_int;
use std::hash::{DefaultHasher, Hash, Hasher};

use vipl_abi::{VIP_ERROR_CODE, VIP_VI_HANDLE};
use vipl_plugin_abi::*;

use super::host::HOST_OF_LAYERS;
use crate::vi;

/// The table passed to every layer.
pub(crate) static LAYER_HOST: vipl_layer_host = vipl_layer_host {
    size: size_of::<vipl_layer_host>(),
    host: &raw const HOST_OF_LAYERS,
    connection,
    fail,
    vi_number,
};

/// What both sides may call their connection. The key is the peers' secret: of its hash, too few bits are left to compute
/// it from them.
fn public_id(key: u64) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("vipl connection", key).hash(&mut hasher);
    hasher.finish() >> 24
}

unsafe extern "C" fn connection(vi: VIP_VI_HANDLE, out: *mut vipl_layer_connection) -> c_int {
    let found = vi::lock(vi).ok().and_then(|vi| {
        let side = vi.connection?;
        Some((side, vi.abi.reliability))
    });
    let Some((side, reliability)) = found else {
        return VIPL_E_INVALID;
    };
    let found = vipl_layer_connection {
        // SAFETY: a layer's structure, which begins with its size.
        size: unsafe { (*out).size },
        id: public_id(side.key),
        side: side.side,
        reliability: reliability.into(),
    };
    let known = found.size.min(size_of::<vipl_layer_connection>());
    // SAFETY: room of the size that the layer states.
    unsafe { std::ptr::copy_nonoverlapping((&raw const found).cast::<u8>(), out.cast(), known) };
    VIPL_OK
}

unsafe extern "C" fn fail(vi: VIP_VI_HANDLE, code: c_int) -> c_int {
    let (Some(code), Ok(mut vi)) = (VIP_ERROR_CODE::of(code), vi::lock(vi)) else {
        return VIPL_E_INVALID;
    };
    if vi.connection.is_none() || vi.abi.state != vi::state::CONNECTED {
        return VIPL_E_INVALID;
    }
    vi.fail(code as i32, 0, std::ptr::null_mut());
    VIPL_OK
}

unsafe extern "C" fn vi_number(vi: VIP_VI_HANDLE, out: *mut u32) -> c_int {
    let Ok(vi) = vi::lock(vi) else {
        return VIPL_E_INVALID;
    };
    // SAFETY: a layer's variable.
    unsafe { *out = vi.abi.index };
    VIPL_OK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_id_of_a_connection_hides_its_key() {
        for key in [0, 1, 0x0123_4567_89AB_CDEF, u64::MAX] {
            let id = public_id(key);
            assert_eq!(id, public_id(key));
            assert!(id != key && id < 1 << 40, "{key:#x}");
        }
        assert_ne!(public_id(1), public_id(2));
    }
}
