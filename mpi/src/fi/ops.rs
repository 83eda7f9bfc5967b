//! Tables of functions. `size` is their number for libfabric.

use std::ffi::{c_char, c_int, c_void};

use super::{
    fi_cq_attr, fi_cq_err_entry, fi_eq_attr, fi_eq_err_entry, fi_info, fi_mr_attr, fi_msg,
    fi_msg_rma, fi_msg_tagged, fid, fid_av, fid_cq, fid_domain, fid_ep, fid_eq, fid_fabric, fid_mr,
    fid_pep,
};

/// An operation that the provider does not have, whatever its arguments: [`unsupported`].
pub(crate) type Unsupported = extern "C" fn() -> c_int;

/// Callers of such an operation pass arguments; the C calling conventions let a function ignore them.
pub(crate) extern "C" fn unsupported() -> c_int {
    -libc::ENOSYS
}

type Iov = *const libc::iovec;
type Desc = *const *mut c_void;
type Ptr = *mut c_void;

macro_rules! tables {
    ($($(#[$doc:meta])* $table:ident { $($member:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub(crate) struct $table {
            pub size: usize,
            $(pub $member: $type,)*
        }
        // SAFETY: the pointers are to functions and to nothing else.
        unsafe impl Sync for $table {}
    )*};
}

tables! {
    /// Of every object. The last two members of libfabric 1.17 are left out, and `size` is shorter.
    fi_ops {
        close: unsafe extern "C" fn(*mut fid) -> c_int,
        bind: unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int,
        control: unsafe extern "C" fn(*mut fid, c_int, Ptr) -> c_int,
        ops_open: unsafe extern "C" fn(*mut fid, *const c_char, u64, *mut Ptr, Ptr) -> c_int,
    }
    fi_ops_fabric {
        domain: unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain, Ptr) -> c_int,
        passive_ep: unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_pep, Ptr) -> c_int,
        eq_open: unsafe extern "C" fn(*mut fid_fabric, *mut fi_eq_attr, *mut *mut fid_eq, Ptr) -> c_int,
        wait_open: Unsupported,
        trywait: unsafe extern "C" fn(*mut fid_fabric, *mut *mut fid, c_int) -> c_int,
    }
    fi_ops_domain {
        av_open: unsafe extern "C" fn(*mut fid_domain, Ptr, *mut *mut fid_av, Ptr) -> c_int,
        cq_open: unsafe extern "C" fn(*mut fid_domain, *mut fi_cq_attr, *mut *mut fid_cq, Ptr) -> c_int,
        endpoint: unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep, Ptr) -> c_int,
        scalable_ep: Unsupported,
        cntr_open: Unsupported,
        poll_open: Unsupported,
        stx_ctx: Unsupported,
        srx_ctx: Unsupported,
        query_atomic: Unsupported,
    }
    fi_ops_mr {
        reg: unsafe extern "C" fn(*mut fid, *const c_void, usize, u64, u64, u64, u64, *mut *mut fid_mr, Ptr) -> c_int,
        regv: unsafe extern "C" fn(*mut fid, Iov, usize, u64, u64, u64, u64, *mut *mut fid_mr, Ptr) -> c_int,
        regattr: unsafe extern "C" fn(*mut fid, *const fi_mr_attr, u64, *mut *mut fid_mr) -> c_int,
    }
    fi_ops_ep {
        cancel: unsafe extern "C" fn(*mut fid, Ptr) -> isize,
        getopt: unsafe extern "C" fn(*mut fid, c_int, c_int, Ptr, *mut usize) -> c_int,
        setopt: unsafe extern "C" fn(*mut fid, c_int, c_int, *const c_void, usize) -> c_int,
        tx_ctx: Unsupported,
        rx_ctx: Unsupported,
        rx_size_left: unsafe extern "C" fn(*mut fid_ep) -> isize,
        tx_size_left: unsafe extern "C" fn(*mut fid_ep) -> isize,
    }
    fi_ops_cm {
        setname: Unsupported,
        getname: unsafe extern "C" fn(*mut fid, Ptr, *mut usize) -> c_int,
        getpeer: unsafe extern "C" fn(*mut fid_ep, Ptr, *mut usize) -> c_int,
        connect: unsafe extern "C" fn(*mut fid_ep, *const c_void, *const c_void, usize) -> c_int,
        listen: unsafe extern "C" fn(*mut fid_pep) -> c_int,
        accept: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize) -> c_int,
        reject: unsafe extern "C" fn(*mut fid_pep, *mut fid, *const c_void, usize) -> c_int,
        shutdown: unsafe extern "C" fn(*mut fid_ep, u64) -> c_int,
        join: Unsupported,
    }
    fi_ops_msg {
        recv: unsafe extern "C" fn(*mut fid_ep, Ptr, usize, Ptr, u64, Ptr) -> isize,
        recvv: unsafe extern "C" fn(*mut fid_ep, Iov, Desc, usize, u64, Ptr) -> isize,
        recvmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize,
        send: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, Ptr, u64, Ptr) -> isize,
        sendv: unsafe extern "C" fn(*mut fid_ep, Iov, Desc, usize, u64, Ptr) -> isize,
        sendmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg, u64) -> isize,
        inject: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64) -> isize,
        senddata: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, Ptr, u64, u64, Ptr) -> isize,
        injectdata: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64, u64) -> isize,
    }
    fi_ops_av {
        insert: unsafe extern "C" fn(*mut fid_av, *const c_void, usize, *mut u64, u64, Ptr) -> c_int,
        insertsvc: Unsupported,
        insertsym: Unsupported,
        remove: unsafe extern "C" fn(*mut fid_av, *mut u64, usize, u64) -> c_int,
        lookup: unsafe extern "C" fn(*mut fid_av, u64, Ptr, *mut usize) -> c_int,
        straddr: unsafe extern "C" fn(*mut fid_av, *const c_void, *mut c_char, *mut usize) -> *const c_char,
    }
    fi_ops_tagged {
        recv: unsafe extern "C" fn(*mut fid_ep, Ptr, usize, Ptr, u64, u64, u64, Ptr) -> isize,
        recvv: unsafe extern "C" fn(*mut fid_ep, Iov, Desc, usize, u64, u64, u64, Ptr) -> isize,
        recvmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_tagged, u64) -> isize,
        send: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, Ptr, u64, u64, Ptr) -> isize,
        sendv: unsafe extern "C" fn(*mut fid_ep, Iov, Desc, usize, u64, u64, Ptr) -> isize,
        sendmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_tagged, u64) -> isize,
        inject: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64, u64) -> isize,
        senddata: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, Ptr, u64, u64, u64, Ptr) -> isize,
        injectdata: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64, u64, u64) -> isize,
    }
    fi_ops_rma {
        read: unsafe extern "C" fn(*mut fid_ep, Ptr, usize, Ptr, u64, u64, u64, Ptr) -> isize,
        readv: unsafe extern "C" fn(*mut fid_ep, Iov, Desc, usize, u64, u64, u64, Ptr) -> isize,
        readmsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize,
        write: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, Ptr, u64, u64, u64, Ptr) -> isize,
        writev: unsafe extern "C" fn(*mut fid_ep, Iov, Desc, usize, u64, u64, u64, Ptr) -> isize,
        writemsg: unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize,
        inject: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64, u64, u64) -> isize,
        writedata: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, Ptr, u64, u64, u64, u64, Ptr) -> isize,
        injectdata: unsafe extern "C" fn(*mut fid_ep, *const c_void, usize, u64, u64, u64, u64) -> isize,
    }
    fi_ops_eq {
        read: unsafe extern "C" fn(*mut fid_eq, *mut u32, Ptr, usize, u64) -> isize,
        readerr: unsafe extern "C" fn(*mut fid_eq, *mut fi_eq_err_entry, u64) -> isize,
        write: unsafe extern "C" fn(*mut fid_eq, u32, *const c_void, usize, u64) -> isize,
        sread: unsafe extern "C" fn(*mut fid_eq, *mut u32, Ptr, usize, c_int, u64) -> isize,
        strerror: unsafe extern "C" fn(*mut fid_eq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
    }
    fi_ops_cq {
        read: unsafe extern "C" fn(*mut fid_cq, Ptr, usize) -> isize,
        readfrom: unsafe extern "C" fn(*mut fid_cq, Ptr, usize, *mut u64) -> isize,
        readerr: unsafe extern "C" fn(*mut fid_cq, *mut fi_cq_err_entry, u64) -> isize,
        sread: unsafe extern "C" fn(*mut fid_cq, Ptr, usize, *const c_void, c_int) -> isize,
        sreadfrom: unsafe extern "C" fn(*mut fid_cq, Ptr, usize, *mut u64, *const c_void, c_int) -> isize,
        signal: unsafe extern "C" fn(*mut fid_cq) -> c_int,
        strerror: unsafe extern "C" fn(*mut fid_cq, c_int, *const c_void, *mut c_char, usize) -> *const c_char,
    }
}
