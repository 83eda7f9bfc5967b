//! The model as JSON, written as it is made: the text has fifty times the bytes of the pages, and the memory for all of it could be
//! taken by another user's processes from root. Events and descriptors are those of one VI at a time.

use std::io::{self, BufWriter, Write};

use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value, json};
use vipl_cli::output;
use vipl_pages::read::{Counted, Event, Posted, Sampled, Vi};
use vipl_sys::text::lines;
use vipl_tools::{Error, Result};

use crate::end::Sign;
use crate::model::{ADDRESS_IP, Model, NicNow, ProcessNow, ViNow};
use crate::words;

/// Bytes that are written at a time.
const PART: usize = 64 << 10;

/// A list whose elements are made when they are written.
struct Each<F>(F);

impl<F, I> Serialize for Each<F>
where
    F: Fn() -> I,
    I: Iterator<Item: Serialize>,
{
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        to.collect_seq((self.0)())
    }
}

/// An object one of whose members, which has a place among the others, is made when it is written.
struct Object<M> {
    members: Value,
    name: &'static str,
    member: M,
}

impl<M: Serialize> Serialize for Object<M> {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        let mut object = to.serialize_map(None)?;
        for (name, value) in self.members.as_object().into_iter().flatten() {
            match name == self.name {
                true => object.serialize_entry(name, &self.member)?,
                false => object.serialize_entry(name, value)?,
            }
        }
        object.end()
    }
}

/// Standard output, without control characters, which names of devices and programs may hold.
struct Output;

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Whole texts come here: a buffer divides none.
        output::write(lines(&String::from_utf8_lossy(bytes)).as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Writes all of it to standard output.
///
/// # Errors
/// The output is full, or closed.
pub(crate) fn print(model: &Model) -> Result<()> {
    let written = write(model, &mut BufWriter::with_capacity(PART, Output));
    written.map_err(|error| Error::io("cannot write to standard output", error))
}

fn write(model: &Model, to: &mut impl Write) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *to, &document(model))?;
    to.write_all(b"\n")?;
    to.flush()
}

/// All of it.
fn document(model: &Model) -> impl Serialize + '_ {
    let unreadable = model.unreadable.iter();
    Object {
        members: json!({
            "processes": null,
            "unreadable": unreadable
                .map(|(path, why)| json!({"file": path.display().to_string(), "reason": why}))
                .collect::<Value>(),
            "agent": model.agent,
            "devices": model.devices,
        }),
        name: "processes",
        member: Each(|| model.processes.iter().map(|one| process(model, one))),
    }
}

fn process<'a>(model: &'a Model, process: &'a ProcessNow) -> impl Serialize + 'a {
    let pages = &process.seen.pages;
    let about = &pages.process;
    let nics = process.nics.iter().map(|NicNow { page: nic, .. }| {
        json!({
            "handle": nic.handle,
            "device": nic.device,
            "plugin": nic.plugin,
            "address": words::host(&nic.address, nic.address_form == ADDRESS_IP),
            "regions": nic.regions,
            "region_bytes": nic.region_bytes,
            "tags": nic.tags,
            "errors": nic.errors,
        })
    });
    let cqs = pages.cqs.iter().map(|cq| {
        json!({
            "handle": cq.handle,
            "nic": cq.nic,
            "entries": cq.depth(),
            "room": cq.capacity,
            "added": cq.added,
            "taken": cq.taken,
            "queues": cq.attached,
            "overflows": cq.overflows,
        })
    });
    let counters = pages.counters.iter();
    let counters = counters.map(|(name, value)| (name.clone(), json!(value)));
    let members = json!({
        "pid": process.seen.pid,
        "user": process.seen.user,
        "runs": process.seen.runs,
        "program": about.program,
        "library": about.version,
        "file": process.seen.path.display().to_string(),
        "age_s": model.time.saturating_sub(about.opened) / 1_000_000_000,
        "last_seen_s": model.time.saturating_sub(about.clock) / 1_000_000_000,
        "called_exit": about.ended != 0,
        "end": process.end.map(|end| json!({
            "time_ns": end.time,
            "ago_ns": model.time.saturating_sub(end.time),
            "known_by": match end.sign {
                Sign::Exit => "exit",
                Sign::Peer(_) => "peer",
                Sign::Latest => "last sign",
            },
        })),
        "keeps_descriptors": about.has_flights,
        "vis_left_out": about.vis_left_out,
        "pages_left_out": about.pages_left_out,
        "nics": nics.collect::<Value>(),
        "cqs": cqs.collect::<Value>(),
        "vis": null,
        "counters": counters.collect::<Map<_, _>>(),
    });
    let vis = move || {
        let recorders = process.seen.recorders();
        let one = move |now: &'a ViNow| vi(model, now, recorders.of(&now.page).into_owned());
        process.vis.iter().map(one)
    };
    Object {
        members,
        name: "vis",
        member: Each(vis),
    }
}

/// A VI, with its page as it is now.
fn vi(model: &Model, vi: &ViNow, page: Vi) -> impl Serialize {
    let bytes = page.sampled.as_deref().map(|sampled| sampled.bytes);
    let queue = |counted: &Counted, age: Option<u64>, place: usize| {
        json!({
            "bytes": bytes.map(|bytes| bytes[place]),
            "posted": counted.posted,
            "taken": counted.taken,
            "completed": counted.completed,
            "failed": counted.failed,
            "depth": counted.depth(),
            "oldest_ns": age,
        })
    };
    let members = json!({
        "handle": page.handle,
        "nic": page.nic,
        "number": page.number,
        "state": words::state(page.state),
        "state_s": model.time.saturating_sub(page.state_since) / 1_000_000_000,
        "level": words::level(page.level),
        "transfer_max": page.transfer_max,
        "tag": page.tag,
        "rdma_write": page.rdma & 1 != 0,
        "rdma_read": page.rdma & 2 != 0,
        "connections": page.connections,
        "peer": {
            "kind": match page.peer { 1 => "process", 2 => "host", _ => "none" },
            "pid": page.peer_pid,
            "vi": page.peer_vi,
            "address": words::host(&page.peer_address, vi.is_ip),
            "local_discriminator": words::point(&page.local_point),
            "remote_discriminator": words::point(&page.remote_point),
        },
        "send_cq": page.send_cq,
        "recv_cq": page.recv_cq,
        "send": queue(&page.send, vi.send_age, 0),
        "recv": queue(&page.recv, vi.recv_age, 1),
        "errors": page.errors,
        "rates": vi.rates.map(|rates| json!({
            "sent": rates.sent,
            "received": rates.received,
            "sent_bytes": rates.sent_bytes,
            "received_bytes": rates.received_bytes,
        })),
        "send_time_ns": send_time(&vi.sampled),
        "latest_sample_ns": page.sampled.as_ref().map(|sampled| sampled.latest),
        "events": page.events.iter().map(event).collect::<Value>(),
        "descriptors": null,
    });
    Object {
        members,
        name: "descriptors",
        member: Descriptors(page.descriptors),
    }
}

/// The latest descriptors of the send queue and of the receive queue.
struct Descriptors([Vec<Posted>; 2]);

impl Serialize for Descriptors {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        let [send, recv] = &self.0;
        let mut queues = to.serialize_map(None)?;
        queues.serialize_entry("recv", &Each(|| recv.iter().map(Descriptor)))?;
        queues.serialize_entry("send", &Each(|| send.iter().map(Descriptor)))?;
        queues.end()
    }
}

/// One of them. There may be millions, so it is no map of its own.
struct Descriptor<'a>(&'a Posted);

impl Serialize for Descriptor<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        let Descriptor(posted) = self;
        let mut members = to.serialize_map(None)?;
        members.serialize_entry("address", &posted.descriptor)?;
        members.serialize_entry("memory", &posted.memory)?;
        members.serialize_entry("number", &posted.number)?;
        members.serialize_entry("status", &posted.status)?;
        members.serialize_entry("what", &words::fate(posted))?;
        members.end()
    }
}

/// The sampled sends: since the look before, or else since the VI exists.
fn send_time(sampled: &Sampled) -> Value {
    json!({
        "samples": sampled.count(),
        "mean": sampled.latency_sum.checked_div(sampled.count()),
        "p50": sampled.quantile(0.5),
        "p90": sampled.quantile(0.9),
        "p99": sampled.quantile(0.99),
    })
}

fn event(event: &Event) -> Value {
    json!({
        "time_ns": event.time,
        "what": words::event(event.happened),
    })
}

#[cfg(test)]
mod tests {
    use vipl_pages::record::Happened;

    use super::*;
    use crate::model::tests::{model, seen};

    /// The text is that of the whole document at once: members in the order of the alphabet, two spaces for each level.
    #[test]
    fn what_is_written_in_parts_is_one_document() {
        let mut full = seen(9, 100);
        let posted = |number| Posted {
            number,
            descriptor: 0x40 * number,
            memory: 7,
            status: 1,
            is_taken: number < 5,
        };
        let vi = &mut full.pages.vis[0];
        vi.descriptors = [(1..9).map(posted).collect(), Vec::new()];
        vi.events = vec![Event {
            time: 5,
            happened: Happened::Created,
        }];
        let mut bare = seen(10, 0);
        bare.pages.vis.clear();
        let twice = [full, bare];
        let mut many = model(&[
            (1_000_000_000, twice.to_vec()),
            (2_000_000_000, twice.into()),
        ]);
        many.unreadable = vec![("/x".into(), "why".to_owned())];
        for model in [many, Model::default()] {
            let mut text = Vec::new();
            write(&model, &mut text).unwrap();
            let text = String::from_utf8(text).unwrap();
            let read: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(text, format!("{read:#}\n"));
            let processes = read["processes"].as_array().unwrap();
            assert_eq!(processes.len(), model.processes.len());
            let Some(first) = processes.first() else {
                continue;
            };
            let vi = &first["vis"][0];
            let sent = vi["descriptors"]["send"].as_array().unwrap();
            assert_eq!((sent.len(), &sent[7]["number"]), (8, &json!(8)));
            assert_eq!(sent[7]["what"], "send, not taken off");
            assert_eq!(vi["descriptors"]["recv"], json!([]));
            assert_eq!(vi["events"][0]["what"], "created");
            assert_eq!(processes[1]["vis"], json!([]));
        }
    }
}
