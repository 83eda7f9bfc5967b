//! `docs/vipl.lua` and the parser must read the same fields from the same frames. The capture is written here; no
//! network is used.

mod sim;

use std::path::Path;
use std::process::Command;

use sim::network::{Faults, Router};
use sim::world::World;
use vipl_plugin_abi::VIPL_DATA_ETHERTYPE;
use vipl_wire::*;

const FIELDS: &str = "
    version kind to_endpoint from_endpoint length to_vi check sequence acknowledged window flags
    crc.good part.kind part.bytes part.number part.immediate part.total part.offset part.address
    part.handle close.reason close.operations ack.map versions.highest seal.number seal.hash
    tried.length slice.offset slice.total marks";

fn fields() -> impl Iterator<Item = String> {
    FIELDS.split_whitespace().map(|name| format!("vipl.{name}"))
}

/// Frames of all kinds, from a world with losses.
fn frames() -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    for (seed, level) in [
        (1, Level::Delivery),
        (2, Level::Reception),
        (4, Level::Unreliable),
        // With a secret.
        (3, Level::Delivery),
    ] {
        let faults = Faults {
            loss: 150,
            ..Faults::NONE
        };
        let mut world = World::new(seed, level, 1500, faults);
        world.log = Some(Vec::new());
        let mut script = sim::script::Script::default();
        for _ in 0..40 {
            script.post(&mut world, 0, level);
        }
        world.posted(0);
        world.run(4_000_000_000);
        // The path now carries shorter frames only: TRY, TRIED, SLICE.
        world.lines[0].faults.largest = 700;
        for _ in 0..8 {
            script.post(&mut world, 0, level);
        }
        world.lines[0].faults.router = Router::MarksAll;
        world.posted(0);
        world.run(2_000_000_000);
        world.close(1, Reason::Disconnected);
        world.run(1_000_000_000);
        frames.extend(
            world
                .log
                .take()
                .expect("switched on")
                .into_iter()
                .map(|(_, frame)| frame),
        );
    }
    frames
}

/// The headers of IPv4 and UDP before so many bytes, without checksums.
fn udp(bytes: usize) -> Vec<u8> {
    let (ip, udp) = ((28 + bytes) as u16, (8 + bytes) as u16);
    let mut headers = vec![0x45, 0];
    headers.extend(ip.to_be_bytes());
    headers.extend([0, 0, 0, 0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    for word in [40_001, 40_002, udp, 0] {
        headers.extend(word.to_be_bytes());
    }
    headers
}

/// A capture file: link type Ethernet, every frame with a header of its own, or in a datagram.
fn capture(frames: &[Vec<u8>], in_datagrams: bool) -> Vec<u8> {
    let mut file = Vec::new();
    for word in [0xA1B2_C3D4u32, 0x0004_0002, 0, 0, 65_535, 1] {
        file.extend(word.to_le_bytes());
    }
    for (number, frame) in frames.iter().enumerate() {
        let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
        if in_datagrams {
            bytes.extend([8, 0]);
            bytes.extend(udp(frame.len()));
        } else {
            bytes.extend(VIPL_DATA_ETHERTYPE.to_be_bytes());
        }
        bytes.extend(frame);
        // Ethernet pads.
        bytes.resize(bytes.len().max(60), 0);
        for word in [number as u32, 0, bytes.len() as u32, bytes.len() as u32] {
            file.extend(word.to_le_bytes());
        }
        file.extend(bytes);
    }
    file
}

fn list<T: ToString>(of: impl Iterator<Item = T>) -> String {
    of.map(|item| item.to_string())
        .collect::<Vec<_>>()
        .join(",")
}

/// The fields that the parser reads, as printed by tshark.
fn expected(frame: &[u8]) -> Vec<String> {
    let mut row = vec![String::new(); fields().count()];
    let number = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]).to_string();
    row[0] = frame[0].to_string();
    row[1] = frame[1].to_string();
    row[2] = number(2);
    row[3] = number(4);
    if let Some(negotiation) = VersionNegotiation::parse(frame) {
        row[11] = "1".into();
        row[23] = negotiation.highest.to_string();
        return row;
    }
    let (header, body) = Header::parse(frame).expect("frames of the engine are valid");
    row[1] = (header.kind as u8).to_string();
    row[4] = number(6);
    row[5] = header.to_vi.to_string();
    row[6] = format!("0x{:016x}", header.check);
    row[7] = header.sequence.to_string();
    row[8] = header.acknowledged.to_string();
    row[9] = header.window.to_string();
    row[10] = header.flags.to_string();
    row[29] = header.marks.to_string();
    row[11] = "1".into();
    let (body, seal) = match header.flags & FLAG_SEALED {
        0 => (body, None),
        _ => body
            .split_last_chunk::<SEAL>()
            .map(|(body, seal)| (body, Some(seal)))
            .expect("a seal"),
    };
    if let Some((number, hash)) = seal.and_then(|seal| seal.split_first_chunk::<8>()) {
        row[24] = u64::from_be_bytes(*number).to_string();
        row[25] = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    }
    match header.kind {
        Kind::Data => {
            let parts: Vec<Part> = Parts::new(body)
                .map(|part| part.expect("valid").0)
                .collect();
            let long = || parts.iter().filter(|part| part.kind != PartKind::Send);
            let rdma = || parts.iter().filter(|part| part.kind.header() == 32);
            row[12] = list(parts.iter().map(|part| part.kind as u8));
            row[13] = list(parts.iter().map(|part| part.bytes));
            row[14] = list(parts.iter().map(|part| part.number));
            row[15] = list(parts.iter().map(|part| part.immediate));
            row[16] = list(long().map(|part| part.total));
            row[17] = list(long().map(|part| part.offset));
            row[18] = list(rdma().map(|part| format!("0x{:016x}", part.address)));
            row[19] = list(rdma().map(|part| part.handle));
        }
        Kind::Ack => row[22] = body.iter().map(|byte| format!("{byte:02x}")).collect(),
        Kind::Close => {
            row[20] = u16::from_be_bytes([body[0], body[1]]).to_string();
            row[21] = u32::from_be_bytes([body[8], body[9], body[10], body[11]]).to_string();
        }
        Kind::Tried => row[26] = number(HEADER),
        Kind::Slice => (row[27], row[28]) = (number(HEADER), number(HEADER + 2)),
        Kind::Probe | Kind::Closed | Kind::Try => {}
    }
    row
}

#[test]
fn tshark_reads_what_the_parser_reads() {
    compare("ethernet", false);
}

#[test]
fn tshark_finds_frames_in_datagrams() {
    compare("udp", true);
}

fn compare(name: &str, in_datagrams: bool) {
    let version = Command::new("tshark").arg("-v").output();
    let Ok(version) = version else {
        println!("skipped: tshark is not installed");
        return;
    };
    if !String::from_utf8_lossy(&version.stdout).contains("with Lua") {
        println!("skipped: this tshark has no Lua");
        return;
    }
    let mut frames = frames();
    let refusal = VersionNegotiation {
        to_endpoint: 2,
        from_endpoint: 1,
        lowest: 1,
        highest: 1,
        refused: 7,
    };
    frames.push(refusal.emit().to_vec());
    let kinds: std::collections::BTreeSet<u8> = frames.iter().map(|frame| frame[1]).collect();
    assert_eq!(
        kinds.into_iter().collect::<Vec<_>>(),
        [1, 2, 3, 4, 5, 6, 7, 8, 255],
        "all kinds"
    );
    let marks = |frame: &Vec<u8>| frame[1] != 255 && frame[31] > 0;
    assert!(frames.iter().any(marks), "marks");
    // A corrupt frame at the end.
    let mut broken = frames[0].clone();
    broken[33] ^= 1;
    let whole = frames.len();
    frames.push(broken);

    let folder = format!("dissector-{name}-{}", std::process::id());
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
    std::fs::create_dir_all(&folder).expect("a folder for the capture");
    let file = folder.join("vipl.pcap");
    std::fs::write(&file, capture(&frames, in_datagrams)).expect("the capture");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/vipl.lua");
    let mut tshark = Command::new("tshark");
    // Without the user's own settings.
    tshark
        .env("HOME", &folder)
        .env("WIRESHARK_CONFIG_DIR", &folder);
    tshark.arg("-n").arg("-r").arg(&file);
    tshark
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()));
    tshark.args(["-T", "fields", "-E", "separator=;"]);
    for field in fields() {
        tshark.args(["-e", &field]);
    }
    let output = tshark.output().expect("tshark runs");
    let (text, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{errors}");
    assert!(!errors.contains("Lua"), "{errors}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), frames.len(), "{errors}");
    for (number, (line, frame)) in lines.iter().zip(&frames).take(whole).enumerate() {
        let row: Vec<&str> = line.split(';').collect();
        for ((field, found), expected) in fields().zip(&row).zip(expected(frame)) {
            assert_eq!(*found, expected, "{field} of frame {number}: {line}");
        }
        assert_eq!(row.len(), fields().count());
    }
    // In a datagram only the CRC identifies a frame.
    let broken = if in_datagrams { "" } else { "0" };
    assert_eq!(
        lines[whole].split(';').nth(11),
        Some(broken),
        "a broken frame is shown as such"
    );
    std::fs::remove_dir_all(&folder).expect("the folder goes");
    println!("compared: {whole} frames");
}
