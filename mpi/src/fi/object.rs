//! The objects, the entries of queues and the arguments of operations.

use std::ffi::{c_char, c_int, c_void};

use super::{
    fi_fabric_attr, fi_info, fi_ops, fi_ops_av, fi_ops_cm, fi_ops_cq, fi_ops_domain, fi_ops_ep,
    fi_ops_eq, fi_ops_fabric, fi_ops_mr, fi_ops_msg, fi_ops_rma, fi_ops_tagged,
};

/// First member of every object.
#[repr(C)]
pub(crate) struct fid {
    pub fclass: usize,
    pub context: *mut c_void,
    pub ops: *const fi_ops,
}

#[repr(C)]
pub(crate) struct fid_fabric {
    pub fid: fid,
    pub ops: *const fi_ops_fabric,
    pub api_version: u32,
}

#[repr(C)]
pub(crate) struct fid_domain {
    pub fid: fid,
    pub ops: *const fi_ops_domain,
    pub mr: *const fi_ops_mr,
}

#[repr(C)]
pub(crate) struct fid_pep {
    pub fid: fid,
    pub ops: *const fi_ops_ep,
    pub cm: *const fi_ops_cm,
}

#[repr(C)]
pub(crate) struct fid_ep {
    pub fid: fid,
    pub ops: *const fi_ops_ep,
    pub cm: *const fi_ops_cm,
    pub msg: *const fi_ops_msg,
    pub rma: *const fi_ops_rma,
    pub tagged: *const fi_ops_tagged,
    pub atomic: *const c_void,
    pub collective: *const c_void,
}

#[repr(C)]
pub(crate) struct fid_eq {
    pub fid: fid,
    pub ops: *const fi_ops_eq,
}

#[repr(C)]
pub(crate) struct fid_cq {
    pub fid: fid,
    pub ops: *const fi_ops_cq,
}

#[repr(C)]
pub(crate) struct fid_av {
    pub fid: fid,
    pub ops: *const fi_ops_av,
}

#[repr(C)]
pub(crate) struct fid_mr {
    pub fid: fid,
    pub mem_desc: *mut c_void,
    pub key: u64,
}

/// Full form of an entry of a completion queue; the shorter formats are its beginnings.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct fi_cq_tagged_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
}

/// Its beginning.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct fi_cq_data_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
}

/// libfabric 1.17's form; later ones append.
#[repr(C)]
pub(crate) struct fi_cq_err_entry {
    pub op_context: *mut c_void,
    pub flags: u64,
    pub len: usize,
    pub buf: *mut c_void,
    pub data: u64,
    pub tag: u64,
    pub olen: usize,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

/// Followed by the data of the connection.
#[repr(C)]
pub(crate) struct fi_eq_cm_entry {
    pub fid: *mut fid,
    pub info: *mut fi_info,
}

#[repr(C)]
pub(crate) struct fi_eq_err_entry {
    pub fid: *mut fid,
    pub context: *mut c_void,
    pub data: u64,
    pub err: c_int,
    pub prov_errno: c_int,
    pub err_data: *mut c_void,
    pub err_data_size: usize,
}

#[repr(C)]
pub(crate) struct fi_msg {
    pub msg_iov: *const libc::iovec,
    pub desc: *const *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
pub(crate) struct fi_msg_tagged {
    pub msg_iov: *const libc::iovec,
    pub desc: *const *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub tag: u64,
    pub ignore: u64,
    pub context: *mut c_void,
    pub data: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct fi_rma_iov {
    pub addr: u64,
    pub len: usize,
    pub key: u64,
}

#[repr(C)]
pub(crate) struct fi_msg_rma {
    pub msg_iov: *const libc::iovec,
    pub desc: *const *mut c_void,
    pub iov_count: usize,
    pub addr: u64,
    pub rma_iov: *const fi_rma_iov,
    pub rma_iov_count: usize,
    pub context: *mut c_void,
    pub data: u64,
}

type GetInfo = unsafe extern "C" fn(
    u32,
    *const c_char,
    *const c_char,
    u64,
    *const fi_info,
    *mut *mut fi_info,
) -> c_int;
type OpenFabric =
    unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;

/// What `fi_prov_ini` returns.
#[repr(C)]
pub(crate) struct fi_provider {
    pub version: u32,
    pub fi_version: u32,
    /// libfabric's own.
    pub context: [*mut c_void; 4],
    pub name: *const c_char,
    pub getinfo: GetInfo,
    pub fabric: OpenFabric,
    pub cleanup: unsafe extern "C" fn(),
}
