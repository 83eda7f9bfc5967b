//! The part of `infiniband/verbs.h` that the plug-in uses. Its names are those of the header, and its layout has not
//! changed since IBVERBS_1.1; the test compares each size, offset and value with the header of `libibverbs-dev`.

#![allow(non_camel_case_types)]

mod functions;

use std::ffi::{c_char, c_int, c_void};

pub(crate) use functions::Functions;

/// Structures with all their fields. The fields `unused` have several in one.
macro_rules! structures {
    ($table:ident: $($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub(crate) struct $name { $(pub(crate) $field: $type),* }
        )*
        #[cfg(test)]
        const $table: &[(&str, usize, &[(&str, usize)])] = &[$((
            stringify!($name),
            size_of::<$name>(),
            &[$((stringify!($field), std::mem::offset_of!($name, $field))),*],
        )),*];
    };
}

macro_rules! constants {
    ($($name:ident = $value:expr;)*) => {
        $(pub(crate) const $name: u32 = $value;)*
        #[cfg(test)]
        const VALUES: &[(&str, u32)] = &[$((stringify!($name), $name)),*];
    };
}

structures! { WHOLE:
    /// A piece of memory.
    ibv_sge { addr: u64, length: u32, lkey: u32 }
    /// A send, an RDMA Write or an RDMA Read.
    ibv_send_wr {
        wr_id: u64, next: *mut ibv_send_wr, sg_list: *mut ibv_sge, num_sge: c_int, opcode: u32, send_flags: u32,
        imm_data: u32, remote_addr: u64, rkey: u32, unused: [u64; (128 - UNUSED_AT) / 8],
    }
    /// A receive.
    ibv_recv_wr { wr_id: u64, next: *mut ibv_recv_wr, sg_list: *mut ibv_sge, num_sge: c_int }
    /// A completion.
    ibv_wc {
        wr_id: u64, status: u32, opcode: u32, vendor_err: u32, byte_len: u32, imm_data: u32, qp_num: u32, src_qp: u32,
        wc_flags: u32, pkey_index: u16, slid: u16, sl: u8, dlid_path_bits: u8,
    }
    /// Limits of a queue pair.
    ibv_qp_cap { max_send_wr: u32, max_recv_wr: u32, max_send_sge: u32, max_recv_sge: u32, max_inline_data: u32 }
    /// A queue pair to make.
    ibv_qp_init_attr {
        qp_context: *mut c_void, send_cq: *mut ibv_cq, recv_cq: *mut ibv_cq, srq: *mut c_void, cap: ibv_qp_cap,
        qp_type: u32, sq_sig_all: c_int,
    }
    /// The route beyond a subnet.
    ibv_global_route { dgid: [u64; 2], flow_label: u32, sgid_index: u8, hop_limit: u8, traffic_class: u8 }
    /// The way to a port.
    ibv_ah_attr {
        grh: ibv_global_route, dlid: u16, sl: u8, src_path_bits: u8, static_rate: u8, is_global: u8, port_num: u8,
    }
    /// State and attributes of a queue pair.
    ibv_qp_attr {
        qp_state: u32, cur_qp_state: u32, path_mtu: u32, path_mig_state: u32, qkey: u32, rq_psn: u32, sq_psn: u32,
        dest_qp_num: u32, qp_access_flags: u32, cap: ibv_qp_cap, ah_attr: ibv_ah_attr, alt_ah_attr: ibv_ah_attr,
        pkey_index: u16, alt_pkey_index: u16, en_sqd_async_notify: u8, sq_draining: u8, max_rd_atomic: u8,
        max_dest_rd_atomic: u8, min_rnr_timer: u8, port_num: u8, timeout: u8, retry_cnt: u8, rnr_retry: u8,
        alt_port_num: u8, alt_timeout: u8, rate_limit: u32,
    }
    /// Limits of a device.
    ibv_device_attr {
        fw_ver: [c_char; 64], node_guid: u64, sys_image_guid: u64, max_mr_size: u64, page_size_cap: u64,
        vendor_id: u32, vendor_part_id: u32, hw_ver: u32, max_qp: c_int, max_qp_wr: c_int, device_cap_flags: u32,
        max_sge: c_int, max_sge_rd: c_int, max_cq: c_int, max_cqe: c_int, max_mr: c_int, max_pd: c_int,
        max_qp_rd_atom: c_int, max_ee_rd_atom: c_int, max_res_rd_atom: c_int, max_qp_init_rd_atom: c_int,
        max_ee_init_rd_atom: c_int, atomic_cap: u32, max_ee: c_int, max_rdd: c_int, max_mw: c_int,
        max_raw_ipv6_qp: c_int, max_raw_ethy_qp: c_int, max_mcast_grp: c_int, max_mcast_qp_attach: c_int,
        max_total_mcast_qp_attach: c_int, max_ah: c_int, max_fmr: c_int, max_map_per_fmr: c_int, max_srq: c_int,
        max_srq_wr: c_int, max_srq_sge: c_int, max_pkeys: u16, local_ca_ack_delay: u8, phys_port_cnt: u8,
    }
    /// An entry of the table of a port's addresses.
    ibv_gid_entry { gid: [u64; 2], gid_index: u32, port_num: u32, gid_type: u32, ndev_ifindex: u32 }
    /// Something that happened to a device. `element` is a pointer, or the number of a port.
    ibv_async_event { element: *mut c_void, event_type: u32 }
}

/// Where the part of a send that is not used begins.
const UNUSED_AT: usize = std::mem::offset_of!(Head, unused);

/// A send up to what is not used, for [`UNUSED_AT`].
#[repr(C)]
struct Head {
    pointers: (u64, *mut c_void, *mut c_void),
    words: [u32; 4],
    remote_addr: u64,
    rkey: u32,
    unused: u64,
}

structures! { HEADS:
    /// An open device. The functions of the data path are here and not symbols of the library.
    ibv_context {
        device: *mut c_void, unused: [*mut c_void; 11],
        poll_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int>,
        req_notify_cq: Option<unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int>,
        unused_2: [*mut c_void; 12],
        post_send: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int>,
        post_recv: Option<unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int>,
        unused_3: [*mut c_void; 5],
        cmd_fd: c_int, async_fd: c_int,
    }
    /// A protection domain.
    ibv_pd { context: *mut ibv_context, handle: u32 }
    /// A memory region.
    ibv_mr {
        context: *mut ibv_context, pd: *mut ibv_pd, addr: *mut c_void, length: usize, handle: u32, lkey: u32, rkey: u32,
    }
    /// A channel of events of completion queues.
    ibv_comp_channel { context: *mut ibv_context, fd: c_int, refcnt: c_int }
    /// A completion queue.
    ibv_cq { context: *mut ibv_context, channel: *mut ibv_comp_channel, cq_context: *mut c_void }
    /// A queue pair.
    ibv_qp {
        context: *mut ibv_context, qp_context: *mut c_void, pd: *mut ibv_pd, send_cq: *mut ibv_cq, recv_cq: *mut ibv_cq,
        srq: *mut c_void, handle: u32, qp_num: u32,
    }
    /// State of a port; it grew from 52 to 56 bytes, and this has room for both.
    ibv_port_attr {
        state: u32, max_mtu: u32, active_mtu: u32, gid_tbl_len: c_int, port_cap_flags: u32, max_msg_sz: u32,
        bad_pkey_cntr: u32, qkey_viol_cntr: u32, pkey_tbl_len: u16, lid: u16, sm_lid: u16, lmc: u8, max_vl_num: u8,
        sm_sl: u8, subnet_timeout: u8, init_type_reply: u8, active_width: u8, active_speed: u8, phys_state: u8,
        link_layer: u8, flags: u8, unused: [u16; 7],
    }
}

constants! {
    IBV_PORT_ACTIVE = 4;
    IBV_LINK_LAYER_ETHERNET = 2;
    IBV_GID_TYPE_IB = 0;
    IBV_GID_TYPE_ROCE_V2 = 2;
    IBV_QPT_RC = 2;
    IBV_QPS_INIT = 1;
    IBV_QPS_RTR = 2;
    IBV_QPS_RTS = 3;
    IBV_QPS_ERR = 6;
    IBV_QP_STATE = 1 << 0;
    IBV_QP_ACCESS_FLAGS = 1 << 3;
    IBV_QP_PKEY_INDEX = 1 << 4;
    IBV_QP_PORT = 1 << 5;
    IBV_QP_AV = 1 << 7;
    IBV_QP_PATH_MTU = 1 << 8;
    IBV_QP_TIMEOUT = 1 << 9;
    IBV_QP_RETRY_CNT = 1 << 10;
    IBV_QP_RNR_RETRY = 1 << 11;
    IBV_QP_RQ_PSN = 1 << 12;
    IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13;
    IBV_QP_MIN_RNR_TIMER = 1 << 15;
    IBV_QP_SQ_PSN = 1 << 16;
    IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17;
    IBV_QP_DEST_QPN = 1 << 20;
    IBV_ACCESS_LOCAL_WRITE = 1 << 0;
    IBV_ACCESS_REMOTE_WRITE = 1 << 1;
    IBV_ACCESS_REMOTE_READ = 1 << 2;
    IBV_WR_RDMA_WRITE = 0;
    IBV_WR_SEND = 2;
    IBV_WR_RDMA_READ = 4;
    IBV_SEND_FENCE = 1 << 0;
    IBV_SEND_SIGNALED = 1 << 1;
    IBV_SEND_INLINE = 1 << 3;
    IBV_WC_SUCCESS = 0;
    IBV_WC_WR_FLUSH_ERR = 5;
    IBV_WC_REM_INV_REQ_ERR = 9;
    IBV_WC_REM_ACCESS_ERR = 10;
    IBV_WC_REM_OP_ERR = 11;
    IBV_WC_RETRY_EXC_ERR = 12;
    IBV_WC_RNR_RETRY_EXC_ERR = 13;
    IBV_EVENT_DEVICE_FATAL = 8;
    IBV_EVENT_PORT_ACTIVE = 9;
    IBV_EVENT_PORT_ERR = 10;
}

/// An all-zero value of a structure of this file.
pub(crate) fn zeroed<T: Zero>() -> T {
    // SAFETY: asserted by the trait.
    unsafe { std::mem::zeroed() }
}

/// Structures for which zero is a valid value.
///
/// # Safety
/// It is.
pub(crate) unsafe trait Zero {}
// SAFETY: numbers and raw pointers, as for those below.
unsafe impl Zero for ibv_send_wr {}
// SAFETY: as above.
unsafe impl Zero for ibv_wc {}
// SAFETY: as above.
unsafe impl Zero for ibv_sge {}
// SAFETY: as above.
unsafe impl Zero for ibv_qp_attr {}
// SAFETY: as above.
unsafe impl Zero for ibv_device_attr {}
// SAFETY: as above.
unsafe impl Zero for ibv_port_attr {}
// SAFETY: as above.
unsafe impl Zero for ibv_gid_entry {}
// SAFETY: as above.
unsafe impl Zero for ibv_async_event {}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::process::Command;

    use super::*;

    /// The name in C of a field that stands in a union there.
    fn in_c<'a>(structure: &str, field: &'a str) -> &'a str {
        match (structure, field) {
            ("ibv_send_wr", "remote_addr") => "wr.rdma.remote_addr",
            ("ibv_send_wr", "rkey") => "wr.rdma.rkey",
            ("ibv_context", "poll_cq") => "ops.poll_cq",
            ("ibv_context", "req_notify_cq") => "ops.req_notify_cq",
            ("ibv_context", "post_send") => "ops.post_send",
            ("ibv_context", "post_recv") => "ops.post_recv",
            _ => field,
        }
    }

    #[test]
    fn the_header_says_the_same() {
        if !std::path::Path::new("/usr/include/infiniband/verbs.h").exists() {
            return println!("SKIP no infiniband/verbs.h: install libibverbs-dev");
        }
        let mut c = "#include <infiniband/verbs.h>\n#include <stddef.h>\n".to_owned();
        let mut count = 0;
        let mut say = |condition: String| {
            count += 1;
            writeln!(c, "_Static_assert({condition}, \"{condition}\");").expect("text");
        };
        for (name, size, _) in WHOLE {
            say(format!("sizeof(struct {name}) == {size}"));
        }
        for (name, _, fields) in [WHOLE, HEADS].concat() {
            for (field, at) in fields
                .iter()
                .filter(|(field, _)| !field.starts_with("unused"))
            {
                let field = in_c(name, field);
                say(format!("offsetof(struct {name}, {field}) == {at}"));
            }
        }
        for (name, value) in VALUES {
            // Not part of the public header before version 34.
            say(format!("{name} == {value}"));
        }
        say(format!(
            "sizeof(struct ibv_port_attr) <= {}",
            size_of::<ibv_port_attr>()
        ));
        assert!(count > 150, "{count} comparisons");
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("layout.c");
        std::fs::write(&file, c).expect("a file");
        let output = Command::new("cc")
            .args(["-std=gnu11", "-fsyntax-only"])
            .arg(&file)
            .output();
        let output = output.expect("a C compiler");
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
