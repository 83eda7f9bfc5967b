//! The mistakes that programs make with VIA: at the default level each leaves one line that says what, to what, why, and what
//! to do.

use vipl_ctest::{Finished, Run, program};

/// A mistake, its words, and the devices for which they hold; none: all.
type Mistake = (
    &'static str,
    &'static [&'static str],
    &'static [&'static str],
);

/// On one host; those that need another host or user are in `ctest/netns` and `kagent`.
const MISTAKES: [Mistake; 24] = [
    (
        "send-unregistered",
        &[
            "desc: VI 0x",
            "segment 0 of 1, 64 bytes at 0x",
            "0x0 names no region of this NIC handle",
        ],
        &[],
    ),
    (
        "send-wrong-handle",
        &["desc: VI 0x", "segment 0 of 1", "outside of the region 0x"],
        &[],
    ),
    (
        "send-deregistered",
        &[
            "desc: VI 0x",
            "segment 0 of 1",
            "names no region of this NIC handle",
        ],
        &[],
    ),
    (
        "send-freed",
        &[
            "desc: VI 0x",
            "is not mapped any more; deregister memory before it is freed",
        ],
        &[],
    ),
    (
        "send-other-tag",
        &["desc: VI 0x", "segment 0 of 1", "has tag 0x"],
        &[],
    ),
    (
        "send-length",
        &[
            "desc: VI 0x",
            "Length is 80, its data segments have 64 bytes; it must be their sum",
        ],
        &[],
    ),
    (
        "send-too-long",
        &[
            "receive descriptor 0x",
            "the message is larger than its buffers, 16 bytes; post larger receives",
        ],
        &[],
    ),
    (
        "send-no-receive",
        &[
            "VIP_ERROR_RECVQ_EMPTY vi 0x",
            "no receive descriptor was posted; post receives before the peer sends",
        ],
        &[],
    ),
    (
        "send-segments",
        &["desc: VI 0x", "60000 segments, the device allows"],
        &[],
    ),
    (
        "send-rdma",
        &[
            "VIP_ERROR_RDMAW_PROT vi 0x",
            "an RDMA Write of the peer was not permitted here; check EnableRdmaWrite",
        ],
        &[],
    ),
    // The target says which checks fail, and the writer that it was refused, by its descriptor or by a line.
    (
        "send-rdma",
        &[
            "desc: VI 0x",
            "an RDMA Write of the peer was refused, 8 bytes at 0x",
            "of region 0x",
            ": this VI has no EnableRdmaWrite; the region has no EnableRdmaWrite",
        ],
        &["via_lo", "clan:", "sim:", "ip:127.0.0.1"],
    ),
    (
        "send-rdma",
        &[
            "desc: VI 0x",
            "the peer refused an RDMA Write, 8 bytes at 0x",
            "the peer's log says why",
        ],
        &["via_lo", "clan:"],
    ),
    (
        "not-aligned",
        &[
            "cannot post the descriptor 0x",
            "it is not aligned to 64 bytes",
        ],
        &[],
    ),
    (
        "not-connected",
        &[
            "a send was posted on VI 0x",
            "which is Idle: it is flushed at once; connect the VI first",
        ],
        &[],
    ),
    (
        "send-destroy",
        &[
            "VipDestroyVi(ViHandle 0x",
            "VIP_INVALID_STATE",
            "the VI is Connected (call VipDisconnect first)",
        ],
        &[],
    ),
    (
        "levels",
        &[
            "VipConnectAccept(",
            "VIP_INVALID_RELIABILITY_LEVEL",
            "it must be equal on both VIs",
        ],
        &[],
    ),
    (
        "transfer-size",
        &[
            "VipCreateVi(",
            "VIP_INVALID_MTU",
            "MaxTransferSize is 1 to that of the device (vipinfo shows it",
        ],
        &[],
    ),
    ("cq-size", &["a CQ has 1 to", "entries, not 0"], &[]),
    (
        "no-match",
        &[
            "no server for discriminator \"nobody\" at address ",
            "start the server first",
        ],
        &["via_lo", "clan:", "sim:"],
    ),
    (
        "no-host",
        &[
            "no server for discriminator",
            "no process of this user has opened a NIC at this address",
        ],
        &["via_lo"],
    ),
    (
        "null",
        &["VipDestroyVi(ViHandle NULL)", "ViHandle is NULL"],
        &[],
    ),
    (
        "kind",
        &[
            "VipPostSend(",
            "ViHandle is the handle of a completion queue; expected: a VI",
        ],
        &[],
    ),
    (
        "stale",
        &["was the handle of a VI, which has been destroyed"],
        &[],
    ),
    (
        "close",
        &["VipCloseNic refused: ", "destroy them first"],
        &[],
    ),
];

fn make(mistake: &str, device: &str) -> Finished {
    Run::compatible(program("failing"))
        .env("VIPL_DEVICE", device)
        .env("VIPL_AGENT", "off")
        .env("VIPL_CONNECT_GRACE_MS", "20")
        .arg(mistake)
        .seconds(120)
        .allow("")
        .pass()
}

/// One line with all the words is at the default level, and there are no more than two: of both ends.
fn each_says_one_line(device: &str) {
    let mut wrong = Vec::new();
    for (mistake, words, devices) in MISTAKES {
        if !devices.is_empty() && !devices.contains(&device) {
            continue;
        }
        let finished = make(mistake, device);
        let lines = finished.log(&["warn", "error"]);
        let said = lines
            .iter()
            .filter(|line| words.iter().all(|word| line.contains(word)));
        let about_descriptors = lines.iter().filter(|line| line.contains("] warn desc: "));
        if said.count() != 1 || about_descriptors.count() > 2 {
            wrong.push(format!(
                "{mistake}: one line with {words:?}, not {lines:#?}"
            ));
        }
    }
    assert!(wrong.is_empty(), "{device}:\n{}", wrong.join("\n"));
}

#[test]
fn each_mistake_leaves_a_line_on_loopback() {
    each_says_one_line("via_lo");
}

#[test]
fn each_mistake_leaves_a_line_on_ip() {
    each_says_one_line("ip:127.0.0.1");
}

#[test]
fn each_mistake_leaves_a_line_on_clan() {
    each_says_one_line("clan:");
}

#[test]
fn each_mistake_leaves_a_line_on_sim() {
    each_says_one_line("sim:");
}

/// A program that polls on after a failure, or sends to a VI that has failed, is told once.
#[test]
fn a_repeated_mistake_is_reported_once() {
    let finished = Run::compatible(program("failing"))
        .env("VIPL_AGENT", "off")
        .args(&["not-aligned"; 50])
        .allow("")
        .pass();
    let said = finished.log(&["warn"]);
    let said = said
        .iter()
        .filter(|line| line.contains("cannot post the descriptor"));
    assert_eq!(said.count(), 1, "{}", finished.report("one line"));
}
