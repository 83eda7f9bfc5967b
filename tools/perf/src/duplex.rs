//! `bidirectional`: both sides keep each other busy, with a VI for each direction and one thread at each side.

use vipl_tools::request::{Kind, StreamSpec};
use vipl_tools::{Error, Result};

use crate::bench::{Bench, Figure, Params};
use crate::machine::Session;
use crate::measured::Measured;
use crate::stream::{self, Flow, Role};

/// The open test at the client.
pub(crate) struct Duplex {
    out: Flow,
    back: Flow,
    params: Params,
    window: u64,
}

impl Duplex {
    /// Connects.
    pub(crate) fn open(session: &mut Session, params: Params) -> Result<Self> {
        if params.wait {
            return Err(Error::Usage(
                "bidirectional polls; leave out --wait".to_owned(),
            ));
        }
        let spec = stream::spec(session, params, Kind::Send, false)?;
        let channel = session.new_channel();
        let channel_back = session.new_channel();
        let out = Flow::new(&session.nic, spec, false, Role::Sender)?;
        let back = Flow::new(&session.nic, spec, false, Role::Receiver)?;
        session.ask(&stream::question("duplex", spec, channel))?;
        session.join(&out.endpoint.vi, channel)?;
        session.join(&back.endpoint.vi, channel_back)?;
        Ok(Self {
            out,
            back,
            params,
            window: spec.window,
        })
    }
}

impl Bench for Duplex {
    fn run(&mut self, session: &mut Session) -> Result<Vec<Figure>> {
        let measured = Measured::passes(session, self.params, self.window, |count| {
            self.out.exchange(&mut self.back, count)
        })?;
        Ok(measured.figures(2, self.params.bytes))
    }

    fn close(self: Box<Self>, session: &mut Session) -> Result<()> {
        drop((self.out, self.back));
        session.end()
    }
}

/// The server's side.
pub(crate) fn serve(session: &mut Session, spec: StreamSpec, channel: u32) -> Result<()> {
    let mut back = Flow::new(&session.nic, spec, false, Role::Receiver)?;
    let mut out = Flow::new(&session.nic, spec, false, Role::Sender)?;
    session.ended()?;
    session.join(&back.endpoint.vi, channel)?;
    session.join(&out.endpoint.vi, channel + 1)?;
    while let Some(count) = session.next_go()? {
        out.exchange(&mut back, count)?;
    }
    drop((out, back));
    session.ended()
}
