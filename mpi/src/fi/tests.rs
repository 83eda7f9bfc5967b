//! The layouts, against what libfabric 1.17's headers give on a 64-bit machine. Later versions keep these offsets.

#![cfg(target_pointer_width = "64")]

use std::mem::{offset_of, size_of};

use super::*;

#[test]
fn sizes_are_those_of_the_headers() {
    let sizes = [
        ("fi_info", size_of::<fi_info>(), 120),
        ("fi_tx_attr", size_of::<fi_tx_attr>(), 80),
        ("fi_rx_attr", size_of::<fi_rx_attr>(), 64),
        ("fi_ep_attr", size_of::<fi_ep_attr>(), 96),
        ("fi_domain_attr", size_of::<fi_domain_attr>(), 192),
        ("fi_fabric_attr", size_of::<fi_fabric_attr>(), 32),
        ("fi_eq_attr", size_of::<fi_eq_attr>(), 32),
        ("fi_cq_attr", size_of::<fi_cq_attr>(), 40),
        ("fi_mr_attr", size_of::<fi_mr_attr>(), 80),
        ("fid", size_of::<fid>(), 24),
        ("fid_fabric", size_of::<fid_fabric>(), 40),
        ("fid_domain", size_of::<fid_domain>(), 40),
        ("fid_pep", size_of::<fid_pep>(), 40),
        ("fid_ep", size_of::<fid_ep>(), 80),
        ("fid_eq", size_of::<fid_eq>(), 32),
        ("fid_cq", size_of::<fid_cq>(), 32),
        ("fid_mr", size_of::<fid_mr>(), 40),
        ("fid_av", size_of::<fid_av>(), 32),
        ("fi_cq_data_entry", size_of::<fi_cq_data_entry>(), 40),
        ("fi_cq_tagged_entry", size_of::<fi_cq_tagged_entry>(), 48),
        ("fi_cq_err_entry", size_of::<fi_cq_err_entry>(), 80),
        ("fi_eq_cm_entry", size_of::<fi_eq_cm_entry>(), 16),
        ("fi_eq_err_entry", size_of::<fi_eq_err_entry>(), 48),
        ("fi_msg", size_of::<fi_msg>(), 48),
        ("fi_msg_tagged", size_of::<fi_msg_tagged>(), 64),
        ("fi_rma_iov", size_of::<fi_rma_iov>(), 24),
        ("fi_msg_rma", size_of::<fi_msg_rma>(), 64),
        ("fi_provider", size_of::<fi_provider>(), 72),
        // Tables that end where the header of 1.17 ends; four others are shorter by what the provider leaves out.
        ("fi_ops_mr", size_of::<fi_ops_mr>(), 32),
        ("fi_ops_ep", size_of::<fi_ops_ep>(), 64),
        ("fi_ops_cm", size_of::<fi_ops_cm>(), 80),
        ("fi_ops_msg", size_of::<fi_ops_msg>(), 80),
        ("fi_ops_rma", size_of::<fi_ops_rma>(), 80),
        ("fi_ops_tagged", size_of::<fi_ops_tagged>(), 80),
        ("fi_ops_eq", size_of::<fi_ops_eq>(), 48),
        ("fi_ops_cq", size_of::<fi_ops_cq>(), 64),
    ];
    for (name, ours, theirs) in sizes {
        assert_eq!(ours, theirs, "size of {name}");
    }
}

#[test]
fn offsets_are_those_of_the_headers() {
    let offsets = [
        ("fi_info.handle", offset_of!(fi_info, handle), 64),
        ("fi_info.nic", offset_of!(fi_info, nic), 112),
        ("fi_tx_attr.tclass", offset_of!(fi_tx_attr, tclass), 72),
        (
            "fi_rx_attr.iov_limit",
            offset_of!(fi_rx_attr, iov_limit),
            56,
        ),
        (
            "fi_ep_attr.max_msg_size",
            offset_of!(fi_ep_attr, max_msg_size),
            16,
        ),
        ("fi_ep_attr.auth_key", offset_of!(fi_ep_attr, auth_key), 88),
        (
            "fi_domain_attr.mr_mode",
            offset_of!(fi_domain_attr, mr_mode),
            36,
        ),
        (
            "fi_domain_attr.mr_iov_limit",
            offset_of!(fi_domain_attr, mr_iov_limit),
            128,
        ),
        (
            "fi_domain_attr.tclass",
            offset_of!(fi_domain_attr, tclass),
            184,
        ),
        (
            "fi_fabric_attr.api_version",
            offset_of!(fi_fabric_attr, api_version),
            28,
        ),
        ("fi_cq_attr.wait_set", offset_of!(fi_cq_attr, wait_set), 32),
        ("fi_mr_attr.device", offset_of!(fi_mr_attr, device), 72),
        ("fid_ep.collective", offset_of!(fid_ep, collective), 72),
        (
            "fi_cq_err_entry.err_data_size",
            offset_of!(fi_cq_err_entry, err_data_size),
            72,
        ),
        (
            "fi_eq_err_entry.err_data",
            offset_of!(fi_eq_err_entry, err_data),
            32,
        ),
        ("fi_msg_rma.data", offset_of!(fi_msg_rma, data), 56),
        ("fi_provider.name", offset_of!(fi_provider, name), 40),
        ("fi_provider.cleanup", offset_of!(fi_provider, cleanup), 64),
        ("fi_ops.ops_open", offset_of!(fi_ops, ops_open), 32),
        (
            "fi_ops_fabric.trywait",
            offset_of!(fi_ops_fabric, trywait),
            40,
        ),
        (
            "fi_ops_domain.query_atomic",
            offset_of!(fi_ops_domain, query_atomic),
            72,
        ),
        ("fi_ops_cm.shutdown", offset_of!(fi_ops_cm, shutdown), 64),
        (
            "fi_ops_ep.tx_size_left",
            offset_of!(fi_ops_ep, tx_size_left),
            56,
        ),
        (
            "fi_ops_rma.injectdata",
            offset_of!(fi_ops_rma, injectdata),
            72,
        ),
        ("fi_ops_av.straddr", offset_of!(fi_ops_av, straddr), 48),
        (
            "fi_ops_tagged.injectdata",
            offset_of!(fi_ops_tagged, injectdata),
            72,
        ),
        ("fid_ep.tagged", offset_of!(fid_ep, tagged), 56),
        ("fi_ops_eq.strerror", offset_of!(fi_ops_eq, strerror), 40),
        ("fi_ops_cq.strerror", offset_of!(fi_ops_cq, strerror), 56),
    ];
    for (name, ours, theirs) in offsets {
        assert_eq!(ours, theirs, "offset of {name}");
    }
}
