//! `bandwidth`, `rate`, `write`, `read`: one side keeps the other busy.
//!
//! Messages (`bandwidth`, `rate`): the receiver has `2 × window` receives posted and posts each one
//! again as soon as it is taken; every `window / 2` messages it reports to the sender how many it has taken,
//! and the sender never has more messages under way than there are posted receives. So no message
//! ever meets an empty receive queue. The clock stops when the receiver has reported the last one.
//!
//! RDMA (`write`, `read`): up to `window` operations are under way. Writes end with a message, which
//! arrives after them; the clock stops when the target has answered it. Reads end by themselves.
//!
//! All messages use one buffer on each side, so that caches are as warm as for the copies that are the
//! limit.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use vipl_tools::descriptor::Descriptor;
use vipl_tools::endpoint::{Endpoint, Vi};
use vipl_tools::error::PATIENCE_S;
use vipl_tools::nic::{Nic, level_names};
use vipl_tools::patience::Patience;
use vipl_tools::pingpong::{span_json, span_of};
use vipl_tools::request::{Kind, SMALL, StreamSpec};
use vipl_tools::{Error, Result};

use crate::bench::{Bench, Figure, Params};
use crate::machine::Session;
use crate::measured::Measured;

/// The open test at the client.
pub(crate) struct Stream {
    flow: Flow,
    params: Params,
    /// Messages per second come first, not bytes.
    by_rate: bool,
}

/// The memory and counters of one side.
pub(crate) struct Flow {
    pub(crate) endpoint: Endpoint,
    kind: Kind,
    wait: bool,
    window: u64,
    /// Posted and taken sends.
    sent: u64,
    done: u64,
    /// Messages that the receiver has reported as taken.
    credited: u64,
    /// The descriptor that ends a stream of writes; its own, since it is a send.
    last: Descriptor,
}

impl Stream {
    /// Connects.
    pub(crate) fn open(
        session: &mut Session,
        params: Params,
        kind: Kind,
        by_rate: bool,
    ) -> Result<Self> {
        Self::connect(session, params, kind, by_rate, params.wait)
    }

    /// Connects for RDMA Writes to a target that sleeps, whether this side polls or not.
    pub(crate) fn open_to_sleeper(session: &mut Session, params: Params) -> Result<Self> {
        Self::connect(session, params, Kind::Write, false, true)
    }

    fn connect(
        session: &mut Session,
        params: Params,
        kind: Kind,
        by_rate: bool,
        peer_waits: bool,
    ) -> Result<Self> {
        let spec = spec(session, params, kind, peer_waits)?;
        let nic = session.nic.attributes();
        if kind == Kind::Read && nic.rdma_read.bits() & spec.vi.level == 0 {
            let (name, level) = (&nic.name, level_names(spec.vi.level));
            return Err(Error::Usage(format!(
                "{name} has no RDMA Read on level {level}"
            )));
        }
        if kind != Kind::Send && params.bytes == 0 {
            return Err(Error::Usage("RDMA needs at least one byte".to_owned()));
        }
        let channel = session.new_channel();
        let mut flow = Flow::new(&session.nic, spec, params.wait, Role::Sender)?;
        let answer = session.ask(&question("stream", spec, channel))?;
        flow.aim(span_of(&answer));
        session.join(&flow.endpoint.vi, channel)?;
        Ok(Self {
            flow,
            params,
            by_rate,
        })
    }

    /// Operations under way at most.
    pub(crate) fn window(&self) -> u64 {
        self.flow.window
    }

    fn pass(&mut self, count: u64) -> Result<()> {
        match self.flow.kind {
            Kind::Send => self.flow.send(count),
            Kind::Write | Kind::Read => self.flow.rdma(count),
        }
    }

    /// Makes RDMA operations for `time` and calls `between` after each poll of them; returns how many were
    /// made, and how long they and the calls took until the last operation was certain to have happened.
    pub(crate) fn pass_beside(
        &mut self,
        session: &mut Session,
        time: Duration,
        mut between: impl FnMut(),
    ) -> Result<(u64, Duration)> {
        session.go(0)?;
        let flow = &mut self.flow;
        let (first, start) = (flow.done, Instant::now());
        while start.elapsed() < time {
            flow.advance(u64::MAX)?;
            between();
        }
        let goal = flow.sent;
        while flow.done < goal {
            flow.advance(goal)?;
            between();
        }
        let (count, taken) = (goal - first, start.elapsed());
        flow.finish()?;
        Ok((count, taken))
    }
}

/// Streams of a test, with as many operations under way as this device permits.
pub(crate) fn spec(
    session: &Session,
    params: Params,
    kind: Kind,
    peer_waits: bool,
) -> Result<StreamSpec> {
    let most = session.nic.attributes().descriptors_per_queue_max / 2;
    Ok(StreamSpec {
        kind,
        vi: params.vi(session)?,
        bytes: params.bytes,
        window: (params.window as u64).clamp(2, most.saturating_sub(SMALL as u64).max(2)),
        wait: peer_waits,
    })
}

/// The request for a test with streams like this.
pub(crate) fn question(op: &str, spec: StreamSpec, channel: u32) -> Value {
    json!({
        "op": op, "channel": channel, "kind": spec.kind as u8, "level": spec.vi.level,
        "transfer_max": spec.vi.transfer_max, "bytes": spec.bytes, "window": spec.window,
        "wait": spec.wait,
    })
}

impl Bench for Stream {
    fn run(&mut self, session: &mut Session) -> Result<Vec<Figure>> {
        let (params, window) = (self.params, self.flow.window);
        let measured = Measured::passes(session, params, window, |count| self.pass(count))?;
        let mut figures = measured.figures(1, params.bytes);
        if self.by_rate {
            figures.truncate(2);
            figures.swap(0, 1);
        }
        Ok(figures)
    }

    fn close(self: Box<Self>, session: &mut Session) -> Result<()> {
        drop(self.flow);
        session.end()
    }
}

/// The server's side, from the question that opened it to its end.
pub(crate) fn serve(session: &mut Session, spec: StreamSpec, channel: u32) -> Result<()> {
    let mut flow = Flow::new(&session.nic, spec, spec.wait, Role::Receiver)?;
    session.reply(&span_json(flow.endpoint.target()))?;
    session.join(&flow.endpoint.vi, channel)?;
    while let Some(count) = session.next_go()? {
        match spec.kind {
            Kind::Send => flow.receive(count)?,
            Kind::Write | Kind::Read => flow.answer()?,
        }
    }
    drop(flow);
    session.ended()
}

/// The part of one side.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Sender,
    Receiver,
}

impl Flow {
    /// A VI that is not connected yet, with all receives posted.
    pub(crate) fn new(nic: &Nic, spec: StreamSpec, wait: bool, role: Role) -> Result<Self> {
        let StreamSpec {
            kind, vi, window, ..
        } = spec;
        let layout = spec.layout(role == Role::Sender);
        let endpoint = Endpoint::new(nic, vi, layout, None)?;
        let last = endpoint.sends[layout.sends - 1];
        if (kind, role) == (Kind::Send, Role::Receiver) {
            // Credits are 32 bits of immediate data and nothing else.
            for descriptor in &endpoint.sends {
                descriptor.set_send(endpoint.region.span(0, 0));
            }
        }
        Ok(Self {
            endpoint,
            kind,
            wait,
            window,
            sent: 0,
            done: 0,
            credited: 0,
            last,
        })
    }

    /// Learns where the target's memory is.
    fn aim(&mut self, target: vipl_tools::region::Span) {
        let endpoint = &self.endpoint;
        let local = endpoint
            .region
            .span(endpoint.send_offsets[0], endpoint.bytes);
        for descriptor in &endpoint.sends[..self.window as usize] {
            match self.kind {
                Kind::Send => {}
                Kind::Write => descriptor.set_write(local, target),
                Kind::Read => descriptor.set_read(local, target),
            }
        }
        if self.kind != Kind::Send {
            self.last.set_send(endpoint.region.span(0, 0));
        }
    }

    /// Sends `count` messages, and returns when the receiver has reported all of them.
    pub(crate) fn send(&mut self, count: u64) -> Result<()> {
        let goal = self.sent + count;
        let mut patience = Patience::new("streaming");
        while self.credited < goal {
            if self.send_some(goal)? > 0 {
                patience = Patience::new("streaming");
            } else if self.wait {
                self.sleep()?;
            } else {
                patience.spend()?;
            }
        }
        while self.done < self.sent {
            self.take_sends()?;
            patience.spend()?;
        }
        Ok(())
    }

    /// Posts the messages that there is room for, up to number `goal`, and takes what is complete; returns how much happened.
    #[inline(always)]
    fn send_some(&mut self, goal: u64) -> Result<u64> {
        let room = (self.window - (self.sent - self.done))
            .min(2 * self.window - (self.sent - self.credited))
            .min(goal - self.sent);
        for _ in 0..room {
            let index = (self.sent % self.window) as usize;
            self.endpoint.vi.post_send(self.endpoint.sends[index])?;
            self.sent += 1;
        }
        let mut moved = room + self.take_sends()?;
        // Credits are looked for when they are soon needed.
        if self.sent - self.credited >= self.window || self.sent == goal {
            moved += self.take_credits()?;
        }
        Ok(moved)
    }

    /// Sends `count` messages while `back` receives as many, by one thread.
    pub(crate) fn exchange(&mut self, back: &mut Flow, count: u64) -> Result<()> {
        let (goal, goal_back) = (self.sent + count, back.credited + count);
        let mut reported = back.credited;
        let mut patience = Patience::new("streaming both ways");
        while self.credited < goal || self.done < self.sent || back.credited < goal_back {
            let mut moved = self.send_some(goal)?;
            while back.credited < goal_back
                && let Some(descriptor) = back.endpoint.vi.receive_done()?
            {
                back.count(descriptor, goal_back, &mut reported)?;
                moved += 1;
            }
            if moved > 0 {
                patience = Patience::new("streaming both ways");
            } else {
                patience.spend()?;
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn take_sends(&mut self) -> Result<u64> {
        let before = self.done;
        while self.done < self.sent && self.endpoint.vi.send_done()?.is_some() {
            self.done += 1;
        }
        Ok(self.done - before)
    }

    #[inline(always)]
    fn take_credits(&mut self) -> Result<u64> {
        let mut taken = 0;
        while let Some(descriptor) = self.endpoint.vi.receive_done()? {
            self.credit(descriptor)?;
            taken += 1;
        }
        Ok(taken)
    }

    /// The receiver reports the low 32 bits of the number of messages that it has taken.
    #[inline(always)]
    fn credit(&mut self, descriptor: Descriptor) -> Result<()> {
        let count = descriptor.immediate();
        self.credited += u64::from(count.wrapping_sub(self.credited as u32));
        self.endpoint.vi.post_receive(descriptor)
    }

    /// Sleeps until there is room for another message: the next completed send where the window is full, else
    /// the next credit. A credit may arrive before the sends that it counts are complete.
    fn sleep(&mut self) -> Result<()> {
        if self.sent - self.done >= self.window {
            return self.wait_send();
        }
        match self.endpoint.vi.receive_wait(PATIENCE_S * 1000)? {
            Some(descriptor) => self.credit(descriptor),
            None => Err(Error::Silence("waiting for the receiver")),
        }
    }

    /// Takes `count` messages and reports to the sender in between and at the end. (`sent` and `done` count
    /// credits here, `credited` the messages.)
    pub(crate) fn receive(&mut self, count: u64) -> Result<()> {
        let goal = self.credited + count;
        let mut reported = self.credited;
        while self.credited < goal {
            let descriptor = next_message(&self.endpoint.vi, self.wait)?;
            self.count(descriptor, goal, &mut reported)?;
        }
        Ok(())
    }

    /// Counts a message, and reports when it is time.
    #[inline(always)]
    fn count(&mut self, descriptor: Descriptor, goal: u64, reported: &mut u64) -> Result<()> {
        self.endpoint.vi.post_receive(descriptor)?;
        self.credited += 1;
        if self.credited - *reported >= (self.window / 2).max(1) || self.credited == goal {
            *reported = self.credited;
            self.report(*reported as u32)?;
        }
        Ok(())
    }

    fn report(&mut self, count: u32) -> Result<()> {
        self.take_sends()?;
        let mut patience = Patience::new("sending a credit");
        while self.sent - self.done >= SMALL as u64 {
            self.take_sends()?;
            patience.spend()?;
        }
        let descriptor = self.endpoint.sends[self.sent as usize % SMALL];
        descriptor.set_immediate(count);
        self.endpoint.vi.post_send(descriptor)?;
        self.sent += 1;
        Ok(())
    }

    /// Makes `count` RDMA operations, and returns when the last one is certain to have happened.
    fn rdma(&mut self, count: u64) -> Result<()> {
        let goal = self.sent + count;
        let mut patience = Patience::new("streaming");
        while self.done < goal {
            if self.advance(goal)? > 0 {
                patience = Patience::new("streaming");
            } else if self.wait {
                self.wait_send()?;
            } else {
                patience.spend()?;
            }
        }
        self.finish()
    }

    /// Posts the operations that there is room for, up to number `goal`, and takes those that are complete;
    /// returns how many that was.
    fn advance(&mut self, goal: u64) -> Result<u64> {
        let room = (self.window - (self.sent - self.done)).min(goal - self.sent);
        for _ in 0..room {
            let index = (self.sent % self.window) as usize;
            self.endpoint.vi.post_send(self.endpoint.sends[index])?;
            self.sent += 1;
        }
        Ok(room + self.take_sends()?)
    }

    /// Sends the message that ends a stream of RDMA, and waits for its answer.
    fn finish(&mut self) -> Result<()> {
        self.endpoint.vi.post_send(self.last)?;
        let answer = next_message(&self.endpoint.vi, self.wait)?;
        self.endpoint.vi.post_receive(answer)?;
        self.endpoint.vi.next_sent("ending a stream")
    }

    fn wait_send(&mut self) -> Result<()> {
        let done = self.endpoint.vi.send_wait(PATIENCE_S * 1000)?;
        done.ok_or(Error::Silence("waiting for a completed send"))?;
        self.done += 1;
        Ok(())
    }

    /// Waits for the message that ends a stream of RDMA, and answers it.
    fn answer(&mut self) -> Result<()> {
        let message = next_message(&self.endpoint.vi, self.wait)?;
        self.endpoint.vi.post_receive(message)?;
        self.report(0)
    }
}

/// Takes the next message, by polling or by waiting.
#[inline(always)]
fn next_message(vi: &Vi, wait: bool) -> Result<Descriptor> {
    let mut patience = Patience::new("waiting for a message");
    loop {
        if let Some(descriptor) = vi.receive_done()? {
            return Ok(descriptor);
        }
        if wait {
            let waited = vi.receive_wait(PATIENCE_S * 1000)?;
            return waited.ok_or(Error::Silence("waiting for a message"));
        }
        patience.spend()?;
    }
}
