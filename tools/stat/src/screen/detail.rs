//! One VI, with all that there is of it.

use std::fmt::Write as _;

use vipl_sys::text::one_line;
use vipl_tools::report::wrapped;

use crate::model::{ADDRESS_IP, Model, ProcessNow, ViNow};
use crate::words;

/// Descriptors of each queue that are shown.
const DESCRIPTORS: usize = 12;
/// Where the values begin.
const INDENT: &str = "            ";

/// Lines with a name and what there is to say of it.
struct Page {
    text: String,
    width: usize,
}

impl Page {
    fn line(&mut self, name: &str, value: &str) {
        let first = format!("{name:<0$}", INDENT.len(), name = name);
        self.text += &wrapped(&one_line(value), self.width, &first, INDENT);
    }
}

/// The lines, none wider than `width`.
pub(super) fn text(model: &Model, process: &ProcessNow, vi: &ViNow, width: usize) -> String {
    let page = &vi.page;
    let program =
        |process: &ProcessNow| words::program(&process.seen.pages.process.program).to_owned();
    let mut shown = Page {
        text: String::new(),
        width,
    };
    shown.line("VI", &format!("{} {:#x}", page.number, page.handle));
    let pid = process.seen.pid;
    shown.line("process", &format!("{pid} {}", program(process)));
    if let Some(nic) = process.nic(page.nic) {
        let address = words::host(&nic.address, nic.address_form == ADDRESS_IP);
        shown.line("NIC", &format!("{}, {}, {address}", nic.device, nic.plugin));
    }
    let age = words::time(model.time.saturating_sub(page.state_since));
    let (state, number) = (words::state(page.state), page.connections);
    shown.line("state", &format!("{state} for {age}, connection {number}"));
    shown.line("peer", &words::peer(page, vi.is_ip));
    if let Some((other, its)) = peer(model, vi) {
        let (send, recv) = (its.page.send.depth(), its.page.recv.depth());
        let device = other.nic(its.page.nic).map_or("?", |nic| &nic.device);
        let queues = format!("{send} on its send queue, {recv} on its receive queue");
        shown.line("", &format!("{}, {device}: {queues}", program(other)));
    }
    for (name, point) in [("asked for", &page.remote_point), ("as", &page.local_point)] {
        if !point.is_empty() {
            shown.line(name, &words::point(point));
        }
    }
    let level = words::level(page.level);
    let rdma = ["no RDMA", "RDMA Write", "RDMA Read", "RDMA Write and Read"];
    let rdma = rdma[page.rdma as usize % rdma.len()];
    let most = page.transfer_max;
    shown.line("level", &format!("{level}, {rdma}, messages to {most} B"));
    for (name, queue, age, cq) in [
        ("send queue", &page.send, vi.send_age, page.send_cq),
        ("recv queue", &page.recv, vi.recv_age, page.recv_cq),
    ] {
        let (posted, taken, failed) = (queue.posted, queue.taken, queue.failed);
        shown.line(
            name,
            &format!("{posted} posted, {taken} taken off, {failed} failed"),
        );
        let mut line = format!("{} on it", queue.depth());
        if let Some(age) = age {
            let _ = write!(line, ", the oldest for {} or more", words::time(age));
        }
        shown.line("", &line);
        let mut cqs = process.seen.pages.cqs.iter();
        if let Some(cq) = cqs.find(|found| found.handle == cq) {
            let (depth, room) = (cq.depth(), cq.capacity);
            shown.line(
                "",
                &format!("CQ {:#x}, {depth} of {room} entries", cq.handle),
            );
        }
    }
    samples(&mut shown, vi);
    shown.line("errors", &page.errors.to_string());
    let latest_first = page.events.iter().rev().map(|event| {
        let ago = words::time(model.time.saturating_sub(event.time));
        (ago, words::event(event.happened))
    });
    shown.text += "\n";
    shown.text += &words::events("before now", latest_first.collect(), width);
    let descriptors = words::descriptors(page, DESCRIPTORS, width);
    if !descriptors.is_empty() {
        shown.text += "\n";
    }
    shown.text + &descriptors
}

/// Bytes, and times of sends.
fn samples(shown: &mut Page, vi: &ViNow) {
    let Some(total) = &vi.page.sampled else {
        return;
    };
    let [sent, received] = total.bytes.map(|bytes| words::bytes(bytes as f64));
    shown.line("bytes", &format!("{sent} sent, {received} received"));
    if let Some(rates) = vi.rates {
        let [sent, received] = [rates.sent_bytes, rates.received_bytes].map(words::bytes);
        shown.line("", &format!("{sent}/s sent, {received}/s received"));
    }
    if vi.sampled.count() > 0 {
        let time = |share| words::short_time(vi.sampled.quantile(share).unwrap_or(0));
        let [p50, p90, p99] = [0.5, 0.9, 0.99].map(time);
        shown.line(
            "a send",
            &format!("takes {p50} (p50), {p90} (p90), {p99} (p99)"),
        );
    }
}

/// The other side of a connection, if it is seen here, too.
fn peer<'a>(model: &'a Model, vi: &ViNow) -> Option<(&'a ProcessNow, &'a ViNow)> {
    let page = &vi.page;
    let is_it = |other: &&ViNow| other.page.number == page.peer_vi && other.page.peer == 1;
    let here = model.processes.iter();
    let mut of_process = here.filter(|process| page.peer == 1 && process.seen.pid == page.peer_pid);
    of_process.find_map(|process| Some((process, process.vis.iter().find(is_it)?)))
}
