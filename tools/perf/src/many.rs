//! Many connected VIs with as little memory of our own as possible: two descriptors and a buffer each.
//!
//! ```text
//!   slot | receive descriptor | send descriptor | 64 bytes of buffer |   192 bytes a VI
//! ```

use std::rc::Rc;

use serde_json::json;
use vipl_tools::cq::Cq;
use vipl_tools::descriptor::Descriptor;
use vipl_tools::endpoint::{Vi, ViSpec};
use vipl_tools::patience::Patience;
use vipl_tools::region::Region;
use vipl_tools::{Error, Result};

use crate::machine::Session;

const SLOT: usize = vipl_tools::request::CROWD_SLOT;
const BYTES: usize = 8;

/// Has the peer serve a test with `count` VIs, each on a channel of its own; returns the first channel.
pub(crate) fn ask_peer(
    session: &mut Session,
    test: &str,
    spec: ViSpec,
    count: usize,
) -> Result<u32> {
    let first = session.new_channel();
    for _ in 1..count {
        session.new_channel();
    }
    let (level, transfer_max) = (spec.level, spec.transfer_max);
    session.ask(
        &json!({"op": test, "channel": first, "vis": count, "level": level,
        "transfer_max": transfer_max}),
    )?;
    Ok(first)
}

/// Memory and VIs of one side.
pub(crate) struct Many {
    vis: Vec<Vi>,
    region: Rc<Region>,
}

impl Many {
    /// Takes the memory for `count` VIs.
    pub(crate) fn new(session: &Session, count: usize) -> Result<Self> {
        let attributes = session.nic.attributes();
        if count as u64 > attributes.vi_max {
            let (name, most) = (&attributes.name, attributes.vi_max);
            return Err(Error::Usage(format!("{name} has {most} VIs, not {count}")));
        }
        let region = Rc::new(Region::new(&session.nic, count.max(1) * SLOT)?);
        Ok(Self {
            vis: Vec::with_capacity(count),
            region,
        })
    }

    /// Creates and connects `count` VIs, each with one posted receive. Both sides call it alike.
    pub(crate) fn connect(
        &mut self,
        session: &Session,
        spec: ViSpec,
        count: usize,
        first_channel: u32,
        cq: Option<&Cq>,
    ) -> Result<()> {
        for index in 0..count {
            let vi = Vi::new(&session.nic, spec, &self.region, cq)?;
            let receive = self.receive_descriptor(index);
            receive.set_receive(self.region.span(index * SLOT + 128, BYTES));
            vi.post_receive(receive)?;
            let send = Descriptor::new(&self.region, index * SLOT + 64);
            send.set_send(self.region.span(index * SLOT + 128 + BYTES, BYTES));
            send.set_immediate(index as u32);
            let joined = session.join(&vi, first_channel + index as u32);
            joined
                .map_err(|error| error.context(format!("connection {} of {count}", index + 1)))?;
            self.vis.push(vi);
        }
        Ok(())
    }

    /// Takes the last VI out.
    pub(crate) fn pop(&mut self) -> Option<Vi> {
        self.vis.pop()
    }

    /// Ends and destroys all VIs but the first `count`.
    pub(crate) fn truncate(&mut self, count: usize) {
        self.vis.truncate(count);
    }

    /// Sends one message on every connection.
    pub(crate) fn send_each(&self) -> Result<()> {
        (0..self.vis.len()).try_for_each(|index| self.send(index))
    }

    /// Sends one message with the number of its connection.
    #[inline(always)]
    pub(crate) fn send(&self, index: usize) -> Result<()> {
        let vi = &self.vis[index];
        vi.post_send(Descriptor::new(&self.region, index * SLOT + 64))?;
        vi.next_sent("sending on one of many connections")
    }

    /// Takes the next message of any connection off their completion queue; returns the connection's number.
    #[inline(always)]
    pub(crate) fn take(&self, cq: &Cq) -> Result<usize> {
        let mut patience = Patience::new("waiting for a message on a completion queue");
        let descriptor = loop {
            match cq.receive_done()? {
                Some(descriptor) => break descriptor,
                None => patience.spend()?,
            }
        };
        let index = descriptor.immediate() as usize;
        let Some(vi) = self.vis.get(index) else {
            return Err(Error::Corrupt(format!(
                "a message is for connection {index}"
            )));
        };
        vi.post_receive(descriptor)?;
        Ok(index)
    }

    /// Takes one message on every connection.
    pub(crate) fn receive_each(&self) -> Result<()> {
        for vi in &self.vis {
            vi.post_receive(vi.next_received("receiving on every connection")?)?;
        }
        Ok(())
    }

    fn receive_descriptor(&self, index: usize) -> Descriptor {
        Descriptor::new(&self.region, index * SLOT)
    }
}
