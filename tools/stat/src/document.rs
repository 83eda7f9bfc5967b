//! The model as JSON.

use serde_json::{Map, Value, json};
use vipl_pages::read::{Counted, Event, Posted, Sampled};

use crate::model::{ADDRESS_IP, Model, NicNow, ProcessNow, ViNow};
use crate::words;

/// All of it.
pub(crate) fn document(model: &Model) -> Value {
    let unreadable = model.unreadable.iter();
    json!({
        "processes": model.processes.iter().map(|p| process(model, p)).collect::<Value>(),
        "unreadable": unreadable
            .map(|(path, why)| json!({"file": path.display().to_string(), "reason": why}))
            .collect::<Value>(),
        "agent": model.agent,
        "devices": model.devices,
    })
}

fn process(model: &Model, process: &ProcessNow) -> Value {
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
    json!({
        "pid": process.seen.pid,
        "user": process.seen.user,
        "runs": process.seen.runs,
        "program": about.program,
        "library": about.version,
        "file": process.seen.path.display().to_string(),
        "age_s": model.time.saturating_sub(about.opened) / 1_000_000_000,
        "last_seen_s": model.time.saturating_sub(about.clock) / 1_000_000_000,
        "called_exit": about.ended != 0,
        "keeps_descriptors": about.has_flights,
        "vis_left_out": about.vis_left_out,
        "nics": nics.collect::<Value>(),
        "cqs": cqs.collect::<Value>(),
        "vis": process.vis.iter().map(|v| vi(model, v)).collect::<Value>(),
        "counters": counters.collect::<Map<_, _>>(),
    })
}

fn vi(model: &Model, vi: &ViNow) -> Value {
    let page = &vi.page;
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
    json!({
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
        "events": page.events.iter().map(event).collect::<Value>(),
        "descriptors": {
            "send": page.descriptors[0].iter().map(descriptor).collect::<Value>(),
            "recv": page.descriptors[1].iter().map(descriptor).collect::<Value>(),
        },
    })
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

fn descriptor(posted: &Posted) -> Value {
    json!({
        "number": posted.number,
        "address": posted.descriptor,
        "memory": posted.memory,
        "status": posted.status,
        "what": words::fate(posted),
    })
}

fn event(event: &Event) -> Value {
    json!({
        "time_ns": event.time,
        "what": words::event(event.happened),
    })
}
