//! The model as Prometheus text, and the port on which it is served.
//!
//! A request is answered with everything, whatever it asks for; only GET and HEAD are answered. Each connection has two seconds to
//! ask and two to take the answer, and those that say nothing keep no other waiting while there are fewer than 64.
//! That is all of HTTP that a scraper needs, so there is no crate for it.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vipl_pages::layout::latency_from;
use vipl_pages::read::Cq;

use crate::model::{Model, ProcessNow, ViNow};
use crate::words;

/// How long a scraper may take to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The longest request; what is beyond is not read.
const REQUEST_MAX: usize = 8192;

/// Connections at a time.
const CONNECTIONS_MAX: usize = 64;

/// A metric of a VI.
type OfVi = (&'static str, &'static str, &'static str, fn(&ViNow) -> u64);
/// A metric of a process.
type OfProcess = (
    &'static str,
    &'static str,
    &'static str,
    fn(&ProcessNow) -> u64,
);

const OF_PROCESSES: [OfProcess; 5] = [
    ("vipl_nics", "gauge", "Open NIC handles", |p| {
        p.sums.nics as u64
    }),
    ("vipl_vis", "gauge", "VIs", |p| p.sums.vis),
    ("vipl_vis_connected", "gauge", "Connected VIs", |p| {
        p.sums.connected as u64
    }),
    ("vipl_registered_bytes", "gauge", "Registered memory", |p| {
        p.sums.registered
    }),
    (
        "vipl_errors_total",
        "counter",
        "Failed descriptors and asynchronous errors",
        |p| p.sums.errors,
    ),
];

const OF_VIS: [OfVi; 8] = [
    (
        "vipl_vi_sent_total",
        "counter",
        "Descriptors taken off the send queue",
        |v| v.page.send.taken,
    ),
    (
        "vipl_vi_received_total",
        "counter",
        "Descriptors taken off the receive queue",
        |v| v.page.recv.taken,
    ),
    (
        "vipl_vi_sent_bytes_total",
        "counter",
        "Bytes of completed sends; of programs with many messages from samples",
        |v| {
            v.page
                .sampled
                .as_ref()
                .map_or(0, |sampled| sampled.bytes[0])
        },
    ),
    (
        "vipl_vi_received_bytes_total",
        "counter",
        "Bytes of completed receives; of programs with many messages from samples",
        |v| {
            v.page
                .sampled
                .as_ref()
                .map_or(0, |sampled| sampled.bytes[1])
        },
    ),
    (
        "vipl_vi_send_depth",
        "gauge",
        "Descriptors on the send queue",
        |v| v.page.send.depth(),
    ),
    (
        "vipl_vi_recv_depth",
        "gauge",
        "Descriptors on the receive queue",
        |v| v.page.recv.depth(),
    ),
    (
        "vipl_vi_failed_total",
        "counter",
        "Descriptors completed with an error",
        |v| v.page.send.failed.wrapping_add(v.page.recv.failed),
    ),
    (
        "vipl_vi_state",
        "gauge",
        "0 Idle, 1 Connected, 2 Connect Pending, 3 Error",
        |v| v.page.state,
    ),
];

/// A metric of a CQ.
type OfCq = (&'static str, &'static str, &'static str, fn(&Cq) -> u64);

const OF_CQS: [OfCq; 4] = [
    ("vipl_cq_entries", "gauge", "Entries in the CQ", Cq::depth),
    (
        "vipl_cq_room",
        "gauge",
        "Entries for which it has room",
        |cq| cq.capacity,
    ),
    (
        "vipl_cq_added_total",
        "counter",
        "Entries added to it",
        |cq| cq.added,
    ),
    (
        "vipl_cq_overflows_total",
        "counter",
        "Times that it had more entries than room",
        |cq| cq.overflows,
    ),
];

/// The text format, version 0.0.4.
pub(crate) fn text(model: &Model) -> String {
    let mut text = String::new();
    for (name, kind, help, value) in OF_PROCESSES {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for process in &model.processes {
            let _ = writeln!(text, "{name}{{{}}} {}", labels(process), value(process));
        }
    }
    for (name, kind, help, value) in OF_VIS {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for process in &model.processes {
            for vi in &process.vis {
                let (labels, page) = (labels(process), &vi.page);
                let _ = writeln!(
                    text,
                    "{name}{{{labels},vi=\"{}\",handle=\"{:#x}\"}} {}",
                    page.number,
                    page.handle,
                    value(vi)
                );
            }
        }
    }
    send_times(&mut text, model);
    for (name, kind, help, value) in OF_CQS {
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for process in &model.processes {
            for cq in &process.seen.pages.cqs {
                let labels = labels(process);
                let (handle, value) = (cq.handle, value(cq));
                let _ = writeln!(text, "{name}{{{labels},handle=\"{handle:#x}\"}} {value}");
            }
        }
    }
    let name = "vipl_counter_total";
    let _ = writeln!(
        text,
        "# HELP {name} A counter of a plug-in\n# TYPE {name} counter"
    );
    for process in &model.processes {
        for (counter, value) in &process.seen.pages.counters {
            let (labels, counter) = (labels(process), escaped(counter));
            let _ = writeln!(text, "{name}{{{labels},counter=\"{counter}\"}} {value}");
        }
    }
    text
}

/// A histogram of each VI with a bucket for each octave, which is what fits into a scrape of many VIs. VIs without samples have
/// none.
fn send_times(text: &mut String, model: &Model) {
    let name = "vipl_vi_send_seconds";
    let _ = writeln!(
        text,
        "# HELP {name} Time from VipPostSend to the completion, of sampled sends\n# TYPE {name} histogram"
    );
    for process in &model.processes {
        for vi in &process.vis {
            let page = &vi.page;
            let Some(sampled) = page.sampled.as_deref().filter(|s| s.count() > 0) else {
                continue;
            };
            let labels = labels(process);
            let labels = format!(
                "{labels},vi=\"{}\",handle=\"{:#x}\"",
                page.number, page.handle
            );
            let mut below = 0_u64;
            for (range, here) in sampled.latency.iter().enumerate() {
                below = below.wrapping_add(*here);
                let end = latency_from(range + 1);
                if end.is_power_of_two() {
                    let seconds = end as f64 / 1e9;
                    let _ = writeln!(text, "{name}_bucket{{{labels},le=\"{seconds}\"}} {below}");
                }
            }
            let _ = writeln!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {below}");
            let sum = sampled.latency_sum as f64 / 1e9;
            let _ = writeln!(
                text,
                "{name}_sum{{{labels}}} {sum}\n{name}_count{{{labels}}} {below}"
            );
        }
    }
}

fn labels(process: &ProcessNow) -> String {
    let program = escaped(words::program(&process.seen.pages.process.program));
    format!(
        "pid=\"{}\",user=\"{}\",program=\"{program}\"",
        process.seen.pid, process.seen.user
    )
}

/// The value of a label. Control characters become spaces, since a line is a sample.
fn escaped(text: &str) -> String {
    let escape = |c: char| match c {
        '\\' => "\\\\".to_owned(),
        '"' => "\\\"".to_owned(),
        c if c.is_control() => " ".to_owned(),
        c => c.to_string(),
    };
    text.chars().map(escape).collect()
}

/// Serves until the process ends.
///
/// # Errors
/// The address cannot be used.
pub(crate) fn serve(
    address: SocketAddr,
    model: impl FnMut() -> std::io::Result<Model> + Send,
) -> std::io::Result<()> {
    let listener = TcpListener::bind(address)?;
    eprintln!("serving http://{}/metrics", listener.local_addr()?);
    let model = Mutex::new(model);
    let (served, fewer) = (Mutex::new(0_usize), Condvar::new());
    std::thread::scope(|scope| {
        for stream in listener.incoming() {
            let count = fewer.wait_while(held(&served), |count| *count >= CONNECTIONS_MAX);
            *count.unwrap_or_else(PoisonError::into_inner) += 1;
            let connection = || {
                match stream {
                    // A scraper may leave early.
                    Ok(stream) => drop(answer(stream, || held(&model)())),
                    // For instance no descriptors: the next one is not tried at once.
                    Err(_) => vipl_sys::clock::sleep(PATIENCE),
                }
                *held(&served) -= 1;
                fewer.notify_one();
            };
            if std::thread::Builder::new()
                .spawn_scoped(scope, connection)
                .is_err()
            {
                *held(&served) -= 1;
            }
        }
    });
    Ok(())
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn answer(
    mut stream: TcpStream,
    model: impl FnOnce() -> std::io::Result<Model>,
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    let begun = vipl_sys::clock::Instant::now();
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let bytes = stream.read(&mut part)?;
        request.extend_from_slice(&part[..bytes]);
        if bytes == 0 || request.len() > REQUEST_MAX || begun.elapsed() > PATIENCE {
            return Ok(());
        }
    }
    let (status, body) = if request.starts_with(b"GET ") || request.starts_with(b"HEAD ") {
        match model() {
            Ok(model) => ("200 OK", text(&model)),
            Err(error) => ("500 Internal Server Error", format!("{error}\n")),
        }
    } else {
        ("405 Method Not Allowed", String::new())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    let end = vipl_sys::clock::Instant::now() + PATIENCE;
    write_until(end, &mut stream, head.as_bytes())?;
    if !request.starts_with(b"HEAD ") {
        write_until(end, &mut stream, body.as_bytes())?;
    }
    Ok(())
}

/// Writes everything before this time, also to one who reads a byte now and then.
fn write_until(
    end: vipl_sys::clock::Instant,
    stream: &mut TcpStream,
    mut bytes: &[u8],
) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let left = end.saturating_duration_since(vipl_sys::clock::Instant::now());
        // Zero is no timeout: an error.
        stream.set_write_timeout(Some(left))?;
        bytes = &bytes[stream.write(bytes)?..];
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::tests::{model, seen};

    #[test]
    fn each_sample_is_a_line_of_a_declared_metric() {
        let mut process = seen(9, 5);
        process.pages.process.program = "/bin/a\"b\\c\nd".to_owned();
        let text = text(&model(&[(1, vec![process, seen(10, 7)])]));
        let mut declared = Vec::new();
        for line in text.lines() {
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                declared.push(kind.split(' ').next().unwrap().to_owned());
            } else if !line.starts_with('#') {
                let name = line.split('{').next().unwrap();
                let family = declared.last().unwrap();
                let part = name.strip_prefix(family.as_str()).unwrap();
                let is_part = ["_bucket", "_sum", "_count"].contains(&part);
                assert_eq!(is_part, family == "vipl_vi_send_seconds", "{line}");
                let value = line.rsplit(' ').next().unwrap();
                assert!(value.parse::<u64>().is_ok() || part == "_sum", "{line}");
            }
        }
        assert!(
            text.contains(
                "vipl_vi_sent_total{pid=\"10\",user=\"1000\",program=\"server10\",vi=\"3\""
            )
        );
        assert!(text.contains("program=\"a\\\"b\\\\c d\""), "{text}");
    }

    /// Buckets count all that is below them.
    #[test]
    fn times_are_a_histogram() {
        let text = text(&model(&[(1, vec![seen(9, 50), seen(10, 0)])]));
        let buckets: Vec<(f64, u64)> = text
            .lines()
            .filter(|line| line.starts_with("vipl_vi_send_seconds_bucket"))
            .map(|line| {
                let (head, count) = line.rsplit_once(' ').unwrap();
                let (_, end) = head.rsplit_once("le=\"").unwrap();
                let end = end.trim_end_matches("\"}").replace("+Inf", "inf");
                (end.parse().unwrap(), count.parse().unwrap())
            })
            .collect();
        assert_eq!(buckets.len(), 29, "of one VI: 32 ns to 4.3 s, and all");
        assert!(buckets.is_sorted());
        let below = |time| buckets.iter().rfind(|(end, _)| *end <= time).unwrap().1;
        assert_eq!(
            (below(2e-6), below(5e-6), below(1e-3), below(3e-3)),
            (0, 45, 45, 50)
        );
        assert_eq!(buckets.last().unwrap(), &(f64::INFINITY, 50));
        assert!(text.contains("vipl_vi_sent_bytes_total{pid=\"9\",") && text.contains("} 50000\n"));
    }

    #[test]
    fn a_scraper_is_answered_and_others_are_not() {
        let ask = |request: &str| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            let client = std::thread::spawn({
                let request = request.to_owned();
                move || {
                    let mut stream = TcpStream::connect(address).unwrap();
                    stream.write_all(request.as_bytes()).unwrap();
                    stream.shutdown(std::net::Shutdown::Write).unwrap();
                    let mut text = String::new();
                    let _ = stream.read_to_string(&mut text);
                    text
                }
            });
            let (stream, _) = listener.accept().unwrap();
            answer(stream, || Ok(model(&[(1, vec![seen(9, 5)])]))).unwrap();
            client.join().unwrap()
        };
        let text = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.contains("vipl_vis{pid=\"9\""));
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())));
        assert!(ask("POST / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        assert_eq!(ask("GET /"), "");
        assert!(ask("HEAD / HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
    }

    #[test]
    fn a_scraper_that_reads_slowly_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let begun = vipl_sys::clock::Instant::now();
        let write = move || write_until(begun + PATIENCE, &mut stream, &vec![b'x'; 64 << 20]);
        let writer = std::thread::spawn(write);
        let mut part = vec![0; 64 << 10];
        while !writer.is_finished() && begun.elapsed() < 10 * PATIENCE {
            slow.read_exact(&mut part).unwrap();
            vipl_sys::clock::sleep(PATIENCE / 20);
        }
        assert!(writer.is_finished());
        assert!(writer.join().unwrap().is_err());
    }
}
