//! The table of programs, their runs, and what these have to show.

use super::{
    BOTH, DEFAULT, Elsewhere, Entry, LEVELS, Level, RELIABLE, RustTest, STRICT, Shows, alone, ids,
    sides,
};
use crate::provider::{DISCOVERY, NO_READ, RD, READ, U, UNMAPPING, VINIC, WRITE};

const LARGE: &[(&str, &str)] = &[("VIPL_MAX_TRANSFER_SIZE", "4194304")];
/// Memory of `vipl_alloc`, which peers on loopback map.
const LIBRARY: &[(&str, &str)] = &[("CTEST_MEMORY", "library")];
const FEW: &[(&str, &str)] = &[("VIPL_MAX_REGISTER_BYTES", "4194304")];

/// Programs.
pub(crate) const ENTRIES: &[&Entry] = &[
    // Long ones first, so that the last to end is a short one.
    &sides("compat", BOTH, COMPAT)
        .all_ways()
        .allow(&["127.0.0.1 is not in the neighbour table"]),
    &sides("xfer", STRICT, XFER).at(LEVELS).all_ways(),
    &sides("xfer", DEFAULT, XFER).at(LEVELS).two_only(),
    &sides("waits", STRICT, &[ids("CQ-04 CQ-07 DONE-04 WAIT-01..08")]),
    &sides("threads", STRICT, &[ids("THR-01 THR-03")]),
    &sides("threads", DEFAULT, &[ids("THR-01 THR-03")]).two_only(),
    &sides("errors", STRICT, ERRORS).at(LEVELS).all_ways(),
    &sides("errors", DEFAULT, ERRORS).at(LEVELS).two_only(),
    &sides("conn_many", STRICT, CONN_MANY).at(LEVELS),
    &sides("conn_many", DEFAULT, CONN_MANY).two_only(),
    &sides("conn", STRICT, CONN)
        .at(LEVELS)
        .allow(&["a discriminator has"]),
    &sides("conn", DEFAULT, CONN)
        .two_only()
        .allow(&["a discriminator has"]),
    &sides("peer", STRICT, PEER).at(LEVELS),
    &sides("peer", DEFAULT, PEER).two_only(),
    &sides("disc", STRICT, DISC)
        .at(LEVELS)
        .allow(&["VIP_ERROR_CONN_LOST"]),
    &sides("disc", DEFAULT, DISC)
        .at(LEVELS)
        .two_only()
        .allow(&["VIP_ERROR_CONN_LOST"]),
    &alone("kill", BOTH, &[ids("DISC-11 ERR-08")])
        .at(LEVELS)
        .arguments("", &["1998"])
        .all_ways(),
    &sides("rdma", STRICT, RDMA)
        .at(LEVELS)
        .needs(WRITE)
        .all_ways(),
    &sides("rdma", STRICT, RDMA)
        .at(LEVELS)
        .needs(WRITE)
        .two_only()
        .all_ways()
        .floods()
        .env("mebibyte", LARGE),
    &sides("rdma", DEFAULT, RDMA)
        .at(LEVELS)
        .needs(WRITE)
        .two_only(),
    &sides(
        "stopped",
        STRICT,
        &[ids("DISC-01..02 DISC-05 POST-11 WAIT-05")],
    )
    .at(LEVELS)
    .two_only()
    .floods()
    .allow(&["were still using memory"])
    .all_ways(),
    &sides("rdma", STRICT, RDMA)
        .at(LEVELS)
        .needs(WRITE)
        .two_only()
        .env("library-memory", LIBRARY),
    &sides("errors", STRICT, ERRORS)
        .at(LEVELS)
        .two_only()
        .env("library-memory", LIBRARY),
    &sides(
        "stopped",
        STRICT,
        &[ids("DISC-01..02 DISC-05 POST-11 WAIT-05")],
    )
    .at(LEVELS)
    .two_only()
    .floods()
    .allow(&["were still using memory"])
    .env("library-memory", LIBRARY),
    &alone("kill", STRICT, &[ids("DISC-11 ERR-08")])
        .at(LEVELS)
        .arguments("", &["1998"])
        .env("library-memory", LIBRARY),
    &sides("allocated", BOTH, &[])
        .needs(RD.and(WRITE))
        .two_only()
        .allow(&["vipl_alloc", "vipl_free"]),
    &sides("memory", STRICT, MEMORY).needs(U).all_ways(),
    &sides("beyond", DEFAULT, BEYOND).at(LEVELS).all_ways(),
    &sides("beyond", STRICT, BEYOND).at(LEVELS).two_only(),
    &sides("forked", BOTH, &[ids("COMPAT-14 MEM-24..25")]),
    &sides("tour", BOTH, TOUR)
        .needs(RD.and(WRITE).and(READ))
        .all_ways()
        .all_agents(),
    &sides("simple", BOTH, SIMPLE).all_ways().all_agents(),
    &sides("notify", BOTH, &[ids("NTFY-01..12")]),
    &alone("cq", BOTH, &[ids("COMPAT-09 COMPAT-17 CQ-01..14 VI-08")]),
    &alone("closes", DEFAULT, &[ids("NIC-01")]).allow(&[
        "the program has closed",
        "the device has ended",
        "a frame cannot be sent",
        "and another one has taken over",
        "the new Kernel Agent",
        "that gave this NIC its data socket is lost",
        "the device of NIC",
    ]),
    &alone("standard", DEFAULT, &[ids("NIC-01")]).all_agents(),
    &alone("queue", BOTH, QUEUE),
    &alone("vi", BOTH, VI),
    &alone("nulls", BOTH, NULLS),
    &sides("nic", STRICT, NIC),
    &alone("registration", BOTH, REGISTRATION),
    &alone("registration", STRICT, REGISTRATION).env("four-mebibytes", FEW),
    &alone("ns", STRICT, NS).allow(&["vip_hosts", "/tmp/no/such/table", "the system's resolver"]),
    &alone("dlopen_loop", BOTH, &[ids("COMPAT-11")]),
    &alone("exit_in_handler", BOTH, &[ids("COMPAT-12")]),
    &alone("never_close", BOTH, &[ids("COMPAT-13")]),
    &alone("shadow", BOTH, &[ids("COMPAT-18")]),
    &alone("devices", BOTH, &[ids("MOD-01..02 NIC-14")]),
    &alone("abi", STRICT, &[ids("ABI-01..10")]),
    &alone("symbols", STRICT, &[ids("ABI-12")]),
];

const COMPAT: &[Shows] = &[
    ids("COMPAT-08 COMPAT-10"),
    ids("COMPAT-03..07 POST-02 VI-10 VI-13").default_mode(),
    ids("COMPAT-01..02").default_mode().needs(WRITE),
];
const MEMORY: &[Shows] = &[
    ids("DERR-07 MEM-04 MEM-16 MEM-18..22"),
    ids("MEM-23").needs(UNMAPPING),
];
const BEYOND: &[Shows] = &[ids("COMPAT-19..20").default_mode(), ids("MEM-07").strict()];
const XFER: &[Shows] = &[
    ids("DERR-21 XFER-01..10 XFER-18..19"),
    ids("XFER-11 XFER-13..16").at(RELIABLE),
    ids("XFER-12").at(&[Level::U]),
    ids("XFER-17").at(&[Level::Rr]),
];
const ERRORS: &[Shows] = &[
    ids("DERR-01..09 DERR-12..15 DERR-22 DISC-05..07 POST-02 POST-06 RDMA-19 RDMA-22"),
    ids("DERR-10 DERR-17").at(&[Level::U]),
    ids("RDMA-11").at(&[Level::U]).needs(WRITE),
    ids("DERR-18").at(&[Level::Rd]),
    ids("RDMA-12").at(&[Level::Rd]).needs(WRITE),
    ids("DERR-16 DERR-19..20").at(&[Level::Rr]),
    ids("RDMA-13").at(&[Level::Rr]).needs(WRITE),
    ids("DERR-11 ERR-05 ERR-08").at(RELIABLE),
    ids("RDMA-07..10 RDMA-14..15").needs(WRITE),
    ids("RDMA-20").at(RELIABLE).needs(READ),
    ids("ERR-07").strict(),
];
const CONN_MANY: &[Shows] = &[ids(
    "CONN-14 CONN-24..26 CONN-28..29 CONN-33 DISC-05 DISC-08",
)];
const CONN: &[Shows] = &[
    ids("CONN-01..09 CONN-11..13 CONN-15 CONN-17..21 CONN-23 CONN-27 CONN-30..32 NIC-14 VI-15"),
    ids("CONN-16").needs(U),
];
const PEER: &[Shows] = &[ids("PEER-01..04 PEER-06..12"), ids("PEER-05").needs(U)];
const DISC: &[Shows] = &[ids(
    "DISC-01..02 DISC-05..08 DISC-10 DISC-13..14 ERR-01..06",
)];
const RDMA: &[Shows] = &[
    ids("COMPAT-15 RDMA-01..05 RDMA-16..17"),
    ids("RDMA-06").at(RELIABLE),
    ids("RDMA-18 RDMA-21").at(RELIABLE).needs(READ),
];
const TOUR: &[Shows] = &[ids(
    "CONN-01 CQ-03..04 DISC-01 DISC-05..07 NIC-07 NTFY-01 NTFY-06 PEER-01 RDMA-01 RDMA-03 RDMA-05 \
     RDMA-18 XFER-01..03 XFER-06..07 XFER-10..11 XFER-13..14",
)];
const SIMPLE: &[Shows] = &[ids(
    "CQ-03..04 DERR-18 DISC-05 MEM-26 NIC-07 XFER-01..02 XFER-07 XFER-11 XFER-13",
)];
const QUEUE: &[Shows] = &[
    ids(
        "CONN-22 DISC-02 DISC-04..05 DISC-08..09 DISC-12 DONE-01..02 DONE-05 POST-02 POST-05..10 \
         WAIT-05 XFER-14",
    ),
    ids("POST-03..04").strict(),
];
const VI: &[Shows] = &[
    ids(
        "CONN-01 CONN-10..11 CONN-20 CONN-23 DISC-03 DISC-05 DISC-08 POST-08..09 VI-01..07 VI-09..10 \
         VI-12..19",
    ),
    ids("VI-11").strict(),
];
const NULLS: &[Shows] = &[ids(
    "CONN-21 CQ-01 DONE-03 MEM-03 MEM-05 MEM-07 MEM-12 MEM-17 NIC-02 NIC-04 NIC-06 NIC-12 NIC-14 \
     NTFY-11 POST-01 SMI-01 VI-05 VI-08 VI-13 VI-19 WAIT-07",
)];
const NIC: &[Shows] = &[
    ids("MEM-02 NIC-01..05 NIC-07..11 NIC-13 NTFY-10 THR-03"),
    ids("COMPAT-16").needs(VINIC),
];
const REGISTRATION: &[Shows] = &[ids("MEM-01..07 MEM-09..17"), ids("MEM-08").needs(NO_READ)];
const NS: &[Shows] = &[ids("NS-01..09 SMI-01"), ids("SMI-02..03").needs(DISCOVERY)];

/// Tests of the crate `vipl-ctest`.
pub(crate) const RUST_TESTS: &[RustTest] = &[
    RustTest {
        file: "abi",
        name: "layout_on_ilp32",
        provider: "loopback",
        ids: "ABI-01..06",
    },
    RustTest {
        file: "variants",
        name: "dialects",
        provider: "loopback",
        ids: "ABI-11",
    },
    RustTest {
        file: "plugins",
        name: "dropped_in_while_a_program_runs",
        provider: "loopback",
        ids: "MOD-03",
    },
];

/// What nothing here shows.
pub(crate) const ELSEWHERE: &[Elsewhere] = &[Elsewhere {
    ids: "THR-02",
    why: "is shown by the thread sanitizer",
}];
