//! The table of programs, their runs, and what these have to show.

use super::{
    Abilities, BOTH, DEFAULT, Elsewhere, Entry, LEVELS, Level, RELIABLE, RustTest, STRICT, alone,
    ids, sides,
};
use crate::provider::{RD, READ, RR, U, VINIC, WRITE};

const LARGE: &[(&str, &str)] = &[("VIPL_MAX_TRANSFER_SIZE", "4194304")];
const ALL_LEVELS: Abilities = U.and(RD).and(RR);

/// Programs.
pub(crate) const ENTRIES: &[&Entry] = &[
    &sides(
        "tour",
        BOTH,
        &[ids(
            "CONN-01 CQ-03..04 DISC-01 DISC-05..07 NIC-07 NTFY-01 NTFY-06 PEER-01 RDMA-01 RDMA-03 RDMA-05 \
             RDMA-18 XFER-01..03 XFER-06..07 XFER-10..11 XFER-13..14",
        )],
    )
    .needs(RD.and(WRITE).and(READ))
    .all_ways()
    .all_agents(),
    &sides(
        "simple",
        BOTH,
        &[ids("CQ-03..04 DISC-05 NIC-07 XFER-01..02 XFER-07 XFER-11 XFER-13")],
    )
    .all_ways()
    .all_agents(),
    &alone("nulls", BOTH, &[ids("MEM-03 MEM-07 MEM-17 NIC-04 NIC-14 VI-05 VI-13 VI-19")])
        .needs(U)
        .allow(&["cannot open"]),
    &sides(
        "nic",
        STRICT,
        &[ids("MEM-02 NIC-01..13 NTFY-10 THR-03"), ids("COMPAT-16").needs(VINIC)],
    )
    .allow(&["cannot open"]),
    &alone("registration", BOTH, &[ids("MEM-01..07 MEM-09..17")]),
    &sides("memory", STRICT, &[ids("DERR-07 MEM-04 MEM-16 MEM-18..23")]).needs(U).all_ways(),
    &alone(
        "vi",
        BOTH,
        &[
            ids(
                "CONN-01 CONN-10..11 CONN-20 CONN-23 DISC-03 DISC-05 DISC-08 POST-08..09 VI-01..06 \
                 VI-09..10 VI-12..19",
            ),
            ids("VI-11").strict(),
        ],
    )
    .needs(ALL_LEVELS),
    &alone(
        "queue",
        BOTH,
        &[
            ids(
                "CONN-22 DISC-02 DISC-04..05 DISC-08..09 DISC-12 DONE-01..02 DONE-05 POST-02 \
                 POST-05..10 WAIT-05 XFER-14",
            ),
            ids("POST-03..04").strict(),
        ],
    ),
    &alone("cq", BOTH, &[ids("COMPAT-09 COMPAT-17 CQ-01..14 VI-08")]),
    &sides("xfer", STRICT, XFER).at(LEVELS).needs(WRITE).all_ways(),
    &sides("xfer", DEFAULT, XFER).at(LEVELS).needs(WRITE).two_only(),
    &sides("errors", STRICT, ERRORS).at(LEVELS).needs(WRITE).all_ways(),
    &sides("errors", DEFAULT, ERRORS).at(LEVELS).needs(WRITE).two_only(),
    &sides("rdma", STRICT, RDMA).at(LEVELS).needs(WRITE).all_ways(),
    &sides("rdma", STRICT, RDMA).at(LEVELS).needs(WRITE).two_only().all_ways().env("mebibyte", LARGE),
    &sides("rdma", DEFAULT, RDMA).at(LEVELS).needs(WRITE).two_only(),
    &sides("conn", STRICT, CONN).needs(ALL_LEVELS),
    &sides("conn", DEFAULT, CONN).needs(ALL_LEVELS).two_only(),
    &sides("conn_many", STRICT, CONN_MANY),
    &sides("conn_many", DEFAULT, CONN_MANY).two_only(),
    &sides("peer", STRICT, &[ids("PEER-01..11")]).needs(ALL_LEVELS),
    &sides("peer", DEFAULT, &[ids("PEER-01..11")]).needs(ALL_LEVELS).two_only(),
    &sides("disc", STRICT, DISC).at(LEVELS).allow(&["VIP_ERROR_CONN_LOST"]),
    &sides("disc", DEFAULT, DISC).at(LEVELS).two_only().allow(&["VIP_ERROR_CONN_LOST"]),
    &alone("waits", STRICT, &[ids("CQ-04 CQ-07 DONE-04 WAIT-01..08")]),
    &alone("notify", BOTH, &[ids("NTFY-01..12")]),
    &sides("threads", STRICT, &[ids("THR-01 THR-03")]),
    &sides("threads", DEFAULT, &[ids("THR-01 THR-03")]).two_only(),
    &alone("kill", BOTH, &[ids("DISC-11 ERR-08")]).at(LEVELS).arguments("", &["1998"]).all_ways(),
    &sides("forked", BOTH, &[ids("COMPAT-14 MEM-24..25")]),
    &sides(
        "compat",
        BOTH,
        &[ids("COMPAT-08 COMPAT-10"), ids("COMPAT-01..07 POST-02 VI-10 VI-13").default_mode()],
    )
    .needs(RD.and(RR).and(WRITE))
    .all_ways(),
    &alone("stopped", STRICT, &[ids("DISC-01..02 DISC-05 POST-11 WAIT-05")]).at(LEVELS).all_ways(),
    &alone("ns", STRICT, &[ids("NS-01..09 SMI-01..03")]).needs(VINIC).allow(&["vip_hosts"]),
    &alone("dlopen_loop", BOTH, &[ids("COMPAT-11")]),
    &alone("exit_in_handler", BOTH, &[ids("COMPAT-12")]),
    &alone("never_close", BOTH, &[ids("COMPAT-13")]),
    &alone("shadow", BOTH, &[ids("COMPAT-18")]),
];

const XFER: &[super::Shows] = &[
    ids("XFER-01..03 XFER-05..08 XFER-10"),
    ids("XFER-11 XFER-13..15").at(RELIABLE),
    ids("XFER-12").at(&[Level::U]),
    ids("XFER-17").at(&[Level::Rr]),
];
const ERRORS: &[super::Shows] = &[
    ids("DERR-01..09 DERR-12..14 DERR-22 RDMA-07..10 RDMA-14..15 RDMA-19"),
    ids("DERR-10 DERR-15 DERR-17").at(&[Level::U]),
    ids("DERR-11").at(RELIABLE),
    ids("RDMA-20").at(RELIABLE).needs(READ),
    ids("ERR-07").strict(),
    ids("DERR-20").at(&[Level::Rr]),
];
const RDMA: &[super::Shows] = &[
    ids("COMPAT-15 RDMA-01..05 RDMA-16"),
    ids("RDMA-06").at(RELIABLE),
    ids("RDMA-18 RDMA-21").at(RELIABLE).needs(READ),
];
const CONN: &[super::Shows] = &[ids(
    "CONN-01..04 CONN-06..09 CONN-11..13 CONN-16..18 CONN-20..21 CONN-23 CONN-27 CONN-31..32 VI-15",
)];
const CONN_MANY: &[super::Shows] = &[ids(
    "CONN-14 CONN-24..26 CONN-28..29 CONN-33 DISC-05 DISC-08",
)];
const DISC: &[super::Shows] = &[ids(
    "DISC-01..02 DISC-05..08 DISC-10 DISC-13..14 ERR-01..06",
)];

/// Tests of the crate `vipl-ctest`.
pub(crate) const RUST_TESTS: &[RustTest] = &[
    RustTest {
        file: "abi",
        name: "layout_on_lp64",
        provider: "loopback",
        ids: "ABI-01..06",
    },
    RustTest {
        file: "abi",
        name: "exported_functions",
        provider: "loopback",
        ids: "ABI-12",
    },
    RustTest {
        file: "variants",
        name: "dialects",
        provider: "loopback",
        ids: "ABI-11",
    },
    RustTest {
        file: "plugins",
        name: "the_example_in_c",
        provider: "loopback",
        ids: "MOD-01",
    },
    RustTest {
        file: "plugins",
        name: "dropped_in_while_a_program_runs",
        provider: "loopback",
        ids: "MOD-03",
    },
];

/// What nothing here shows.
pub(crate) const ELSEWHERE: &[Elsewhere] = &[
    Elsewhere {
        ids: "THR-02",
        why: "is shown by the thread sanitizer",
    },
    Elsewhere {
        ids: "ABI-07..10 CONN-05 CONN-15 CONN-19 CONN-30 DERR-16 DERR-18..19 DERR-21 DONE-03 \
              MEM-08 MEM-26 MOD-02 PEER-12 POST-01 RDMA-11..13 RDMA-17 RDMA-22 VI-07 XFER-04 \
              XFER-09 XFER-16 XFER-18..19",
        why: "is not shown yet",
    },
];
