//! Frames of another version, sent into a connection that lasts: the sender is told, both logs get one line,
//! and the connection goes on.

use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use vipl_netns::{Apart, Namespaces};
use vipl_plugin_abi::VIPL_DATA_ETHERTYPE as ETHERTYPE;
use vipl_sys::crc::crc32c;
use vipl_wire::{VERSION, VersionNegotiation};

const ETHERNET: usize = 14;
const PATIENCE: Duration = Duration::from_secs(120);
/// Not spoken by anybody yet.
const OTHER: u8 = 9;

/// The next VIPL frame that comes to the host of the tap and of which `wanted` is true.
fn next(tap: &OwnedFd, wanted: impl Fn(&[u8]) -> bool) -> Vec<u8> {
    let begun = Instant::now();
    let mut frame = vec![0; 16 << 10];
    loop {
        // SAFETY: the buffer is as large as stated.
        let got = unsafe { libc::recv(tap.as_raw_fd(), frame.as_mut_ptr().cast(), frame.len(), 0) };
        let came = &frame[..usize::try_from(got).unwrap_or(0)];
        let ours = came.get(12..ETHERNET) == Some(&ETHERTYPE.to_be_bytes());
        if ours && wanted(&came[ETHERNET..]) {
            return came.to_vec();
        }
        if got < 0 {
            assert!(begun.elapsed() < PATIENCE, "the frame does not come");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn send(tap: &OwnedFd, like: &[u8], payload: &[u8]) {
    // Back to where `like` came from.
    let frame = [&like[6..12], &like[..6], &like[12..ETHERNET], payload].concat();
    // SAFETY: a valid buffer.
    let sent = unsafe { libc::send(tap.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
    assert_eq!(
        sent,
        frame.len() as isize,
        "{}",
        std::io::Error::last_os_error()
    );
}

#[test]
fn another_version_is_answered_and_reported_once() {
    let hosts = match Namespaces::pair() {
        Ok(hosts) => hosts,
        Err(why) => return println!("SKIP network namespaces: {why}"),
    };
    let apart = Apart::new(&hosts);
    let tap = hosts.tap(1).expect("a tap");
    let finished = std::thread::scope(|scope| {
        let run = apart
            .run("cable", "gnic2:eth0")
            .arg("survive")
            .allow("sends frames of version 9")
            .allow("does not understand frames of version 1");
        let program = scope.spawn(|| run.pass());
        // Its process on host 0 is known by the endpoint that its frames come from.
        let known = next(&tap, |payload| payload[0] == VERSION && payload[1] == 1);
        let endpoint = &known[ETHERNET + 4..ETHERNET + 6];
        let mut other = vec![OTHER, 1];
        other.extend(endpoint);
        other.extend([0x12, 0x34, 0, 60]);
        other.resize(56, 0xA5);
        other.extend(crc32c(&other).to_be_bytes());
        for _ in 0..20 {
            send(&tap, &known, &other);
        }
        let answer = next(&tap, |payload| payload[1] == 255);
        let answer = VersionNegotiation::parse(&answer[ETHERNET..]).expect("a VERSIONS");
        let expected = VersionNegotiation {
            to_endpoint: 0x1234,
            from_endpoint: u16::from_be_bytes([endpoint[0], endpoint[1]]),
            lowest: VERSION,
            highest: VERSION,
            refused: OTHER,
        };
        assert_eq!(answer, expected);
        // Spoiled ones are of no version.
        let last = other.len() - 1;
        other[last] ^= 1;
        send(&tap, &known, &other);
        let refusal = VersionNegotiation {
            to_endpoint: expected.from_endpoint,
            from_endpoint: 0x1234,
            lowest: OTHER,
            highest: OTHER + 1,
            refused: VERSION,
        };
        for _ in 0..20 {
            send(&tap, &known, &refusal.emit());
        }
        program.join()
    });
    let finished = finished.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    let mut lines = finished.log(&["warn", "error"]);
    lines.sort_unstable();
    let ends = [
        "via_eth0: host 02:76:69:70:6c:01 does not understand frames of version 1: it speaks versions 9 to 10",
        "via_eth0: host 02:76:69:70:6c:01 sends frames of version 9: this side speaks version 1",
    ];
    assert_eq!(
        lines.len(),
        ends.len(),
        "{}",
        finished.report("one line each")
    );
    for (line, end) in lines.iter().zip(ends) {
        assert!(line.ends_with(end), "{line}");
    }
}
