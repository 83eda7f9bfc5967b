//! The model as Prometheus text.

use std::fmt::Write as _;

use vipl_pages::layout::latency_from;
use vipl_pages::read::Cq;

use crate::model::{Model, ProcessNow, ViNow};
use crate::words;

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
}
