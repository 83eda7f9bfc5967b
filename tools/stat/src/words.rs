//! What values are called.

use std::fmt::Write as _;

use vipl_abi::{
    VIP_SERVICE_RELIABLE_DELIVERY, VIP_SERVICE_RELIABLE_RECEPTION, VIP_SERVICE_UNRELIABLE,
};
use vipl_client::{AsyncCode, host_socket, host_text};
use vipl_pages::read::{Posted, Vi};
use vipl_pages::record::Happened;
use vipl_tools::report::wrapped;

use crate::end::{End, Sign};

/// Name of a state of a VI.
pub(crate) fn state(number: u64) -> String {
    match number {
        0 => "Idle".to_owned(),
        1 => "Connected".to_owned(),
        2 => "Connecting".to_owned(),
        3 => "Error".to_owned(),
        other => format!("state {other}"),
    }
}

/// Name of a reliability level.
pub(crate) fn level(bits: u64) -> &'static str {
    match u16::try_from(bits).unwrap_or(0) {
        VIP_SERVICE_UNRELIABLE => "unreliable",
        VIP_SERVICE_RELIABLE_DELIVERY => "delivery",
        VIP_SERVICE_RELIABLE_RECEPTION => "reception",
        _ => "?",
    }
}

/// A discriminator, as the log shows it; nothing if there is none.
pub(crate) fn point(bytes: &[u8]) -> String {
    match bytes {
        [] => String::new(),
        bytes => vipl_rules::words::discriminator(bytes),
    }
}

/// A host's address.
pub(crate) fn host(bytes: &[u8], is_ip: bool) -> String {
    let socket = is_ip.then(|| host_socket(bytes)).flatten();
    socket.map_or_else(|| host_text(bytes), |socket| socket.to_string())
}

/// Who is at the other end of a VI.
pub(crate) fn peer(vi: &Vi, is_ip: bool) -> String {
    let host_text = |bytes: &[u8]| host(bytes, is_ip);
    match vi.peer {
        1 => format!("process {} VI {}", vi.peer_pid, vi.peer_vi),
        2 => format!("host {}", host_text(&vi.peer_address)),
        _ if vi.state == 2 && !vi.peer_address.is_empty() => {
            format!(
                "asks {} {}",
                host_text(&vi.peer_address),
                point(&vi.remote_point)
            )
        }
        _ => String::new(),
    }
}

/// Name of an operation, as it stands in bits 16 to 18 of Status.
pub(crate) fn operation(number: u32) -> &'static str {
    match number {
        0 => "send",
        1 => "receive",
        2 => "RDMA Write",
        3 => "received RDMA Write",
        4 => "RDMA Read",
        _ => "unknown operation",
    }
}

/// The errors in a Status.
pub(crate) fn errors(status: u32) -> String {
    const NAMES: [(u32, &str); 8] = [
        (1 << 1, "FORMAT_ERROR"),
        (1 << 2, "PROTECTION_ERROR"),
        (1 << 3, "LENGTH_ERROR"),
        (1 << 4, "PARTIAL_ERROR"),
        (1 << 5, "DESC_FLUSHED_ERROR"),
        (1 << 6, "TRANSPORT_ERROR"),
        (1 << 7, "RDMA_PROT_ERROR"),
        (1 << 8, "REMOTE_DESC_ERROR"),
    ];
    let found = NAMES.iter().filter(|(bit, _)| status & bit != 0);
    let names: Vec<&str> = found.map(|(_, name)| *name).collect();
    names.join("|")
}

/// What became of a descriptor that was posted.
pub(crate) fn fate(posted: &Posted) -> String {
    let Posted { status, .. } = *posted;
    let operation = operation(status >> 16 & 7);
    let done = match (status, errors(status)) {
        (0, _) => return "not complete".to_owned(),
        (_, errors) if errors.is_empty() => operation.to_owned(),
        (_, errors) => format!("{operation} failed: {errors}"),
    };
    match posted.is_taken {
        true => done,
        false => format!("{done}, not taken off"),
    }
}

/// The latest descriptors of a VI's queues, `most` of each: a line each, or where one would be wider than `width` two or more.
pub(crate) fn descriptors(vi: &Vi, most: usize, width: usize) -> String {
    let mut text = String::new();
    for (name, list) in ["send queue", "receive queue"].iter().zip(&vi.descriptors) {
        let shown = &list[list.len().saturating_sub(most)..];
        let Some(last) = shown.last() else { continue };
        let (count, digits) = (shown.len(), last.number.to_string().len());
        let _ = writeln!(text, "{name}: the last {count} of {}", last.number);
        let place = |posted: &Posted| {
            let Posted {
                descriptor, memory, ..
            } = posted;
            format!("{descriptor:#x}  memory {memory:#x}")
        };
        let line = |posted: &Posted| {
            let (number, place, fate) = (posted.number, place(posted), fate(posted));
            format!("  {number:>digits$}  {place}  {fate}\n")
        };
        let lines: Vec<String> = shown.iter().map(line).collect();
        if lines
            .iter()
            .all(|line| line.chars().count() <= width.saturating_add(1))
        {
            text.extend(lines);
            continue;
        }
        let others = " ".repeat(digits + 4);
        for posted in shown {
            let first = format!("  {:>digits$}  ", posted.number);
            text += &wrapped(&fate(posted), width, &first, &others);
            text += &wrapped(&place(posted), width, &others, &others);
        }
    }
    text
}

/// Events, each behind its time, of which the heading says what it counts from.
pub(crate) fn events(heading: &str, rows: Vec<(String, String)>, width: usize) -> String {
    let head = (heading.to_owned(), "event".to_owned());
    let rows: Vec<(String, String)> = std::iter::once(head).chain(rows).collect();
    let room = rows.iter().map(|(time, _)| time.chars().count()).max();
    let room = room.unwrap_or(0);
    let others = " ".repeat(room + 2);
    let line = |(time, what): &(String, String)| {
        wrapped(what, width, &format!("{time:>room$}  "), &others)
    };
    rows.iter().map(line).collect()
}

/// What the time of an event before the end of a process is called.
pub(crate) fn before(sign: Sign) -> &'static str {
    match sign {
        Sign::Exit => "before exit",
        Sign::Peer(_) => "before the end",
        Sign::Latest => "before last sign",
    }
}

/// How a process has ended, and when.
pub(crate) fn end(end: End, now: u64) -> String {
    let ago = time(now.saturating_sub(end.time));
    match end.sign {
        Sign::Exit => format!("called exit {ago} ago"),
        Sign::Peer(peer) => {
            format!("was killed or crashed {ago} ago, as its peer, process {peer}, was told")
        }
        Sign::Latest => format!("was killed or crashed; its last sign of life is {ago} old"),
    }
}

/// An event in words.
pub(crate) fn event(what: Happened) -> String {
    match what {
        Happened::Created => "created".to_owned(),
        Happened::State(from, to) => format!("{} -> {}", state(from.into()), state(to.into())),
        Happened::Requested => "asks for a connection".to_owned(),
        Happened::Accepting => "accepts a client".to_owned(),
        Happened::Connected(0) => "connected with another host".to_owned(),
        Happened::Connected(process) => format!("connected with process {process}"),
        Happened::NotConnected(_) => "no connection".to_owned(),
        Happened::PeerEnded(true) => "the peer has disconnected".to_owned(),
        Happened::PeerEnded(false) => "the peer has exited, or is unreachable".to_owned(),
        Happened::Disconnected => "VipDisconnect".to_owned(),
        Happened::Error(code, _) => AsyncCode::from(i32::try_from(code).unwrap_or(i32::MAX)).name(),
        Happened::Failed(send, status) => {
            let queue = if send { "send queue" } else { "receive queue" };
            format!(
                "{queue}: {} failed: {}",
                operation(status >> 16 & 7),
                errors(status)
            )
        }
        Happened::Other(kind, argument) => format!("event {kind} ({argument:#x})"),
    }
}

/// A number of bytes with a unit.
pub(crate) fn bytes(number: f64) -> String {
    scaled(number, 1024.0, &["", "K", "M", "G", "T", "P"])
}

/// A count with a unit.
pub(crate) fn count(number: f64) -> String {
    scaled(number, 1000.0, &["", "k", "M", "G", "T", "P"])
}

fn scaled(mut number: f64, base: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while number >= base * 0.9995 && unit + 1 < units.len() {
        number /= base;
        unit += 1;
    }
    let digits = match unit {
        0 if number.fract() == 0.0 => 0,
        _ if number < 9.995 => 2,
        _ if number < 99.95 => 1,
        _ => 0,
    };
    format!("{number:.digits$}{}", units[unit])
}

/// A time in the largest unit that says something.
pub(crate) fn time(nanoseconds: u64) -> String {
    let seconds = nanoseconds as f64 / 1e9;
    match seconds {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 120.0 => format!("{s:.1} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s if s < 172_800.0 => format!("{:.0} h", s / 3600.0),
        s => format!("{:.0} d", s / 86_400.0),
    }
}

/// A time in seconds, to the microsecond, so that times can be compared.
pub(crate) fn fine_time(nanoseconds: u64) -> String {
    let microseconds = nanoseconds / 1000;
    let (seconds, rest) = (microseconds / 1_000_000, microseconds % 1_000_000);
    format!("{seconds}.{rest:06} s")
}

/// The time of a call, with three digits.
pub(crate) fn short_time(nanoseconds: u64) -> String {
    let (number, unit) = match nanoseconds as f64 {
        n if n < 999.5 => (n, "ns"),
        n if n < 999.5e3 => (n / 1e3, "µs"),
        n if n < 999.5e6 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    format!("{} {unit}", scaled(number, 1000.0, &[""]))
}

/// Name of the program of a path.
pub(crate) fn program(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        assert_eq!(count(0.0), "0");
        assert_eq!(count(999.0), "999");
        assert_eq!(count(1234.0), "1.23k");
        assert_eq!(count(12_345_678.0), "12.3M");
        assert_eq!(count(2.5), "2.50");
        assert_eq!(bytes(1024.0), "1.00K");
        assert_eq!(bytes(300.0 * 1024.0 * 1024.0), "300M");
        assert_eq!(count(f64::MAX).chars().last(), Some('P'));
    }

    #[test]
    fn times_have_a_unit() {
        let texts = [5_000, 5_000_000, 5_000_000_000, 600_000_000_000, u64::MAX].map(time);
        let short = [48, 2500, 1_230_000, 4_294_967_296].map(short_time);
        assert_eq!(short, ["48 ns", "2.50 µs", "1.23 ms", "4.29 s"]);
        assert_eq!(fine_time(61_000_002_999), "61.000002 s");
        assert_eq!(texts, ["5 µs", "5 ms", "5.0 s", "10 min", "213504 d"]);
    }

    #[test]
    fn a_point_is_as_in_the_log() {
        assert_eq!(point(b"orders\0"), "\"orders\\x00\"");
        assert_eq!(point(b""), "");
        assert_eq!(errors(0x0001_0021), "DESC_FLUSHED_ERROR");
    }
}
