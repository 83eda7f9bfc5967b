//! The loop: polls doorbells, sleeps when there is no work, and is woken by the next doorbell.

mod requests;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;

use kagent_proto::Introduction;
use vipl_clan_proto::channel;
use vipl_sys::clock::now_ns;
use zerocopy::FromBytes;

use crate::client::{Clients, Verdict};
use crate::connections::Connections;
use crate::events::{Events, Source};
use crate::pace::{Next, Pace};
use crate::page::Page;
use crate::processor::Processor;
use crate::tools::Tools;

/// Result of one turn of the loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The device continues.
    On,
    /// The agent has exited.
    Over,
}

/// The device.
pub struct Device {
    agent: OwnedFd,
    events: Events,
    page: Rc<Page>,
    clients: Clients,
    connections: Connections,
    pace: Pace,
    processor: Processor,
}

impl Device {
    /// The device of an agent, which announces processes on this socket.
    ///
    /// # Errors
    /// The kernel has no shared memory for it, or is older than 5.3.
    pub fn new(agent: OwnedFd) -> io::Result<Device> {
        let page = Rc::new(Page::new()?);
        let device = Device {
            agent,
            events: Events::new()?,
            page: page.clone(),
            clients: Clients::default(),
            connections: Connections::new(Tools::new(page)),
            pace: Pace::new(),
            processor: Processor::new(),
        };
        let agent = device.agent.as_raw_fd();
        device.events.listen(agent, Source::Agent)?;
        Ok(device)
    }

    /// Runs until the agent has exited.
    ///
    /// # Errors
    /// Errors of the kernel on the device's own file descriptors.
    pub fn run(&mut self) -> io::Result<()> {
        while self.turn()? == Turn::On {}
        Ok(())
    }

    /// One turn of the loop: a round over the doorbells, or a sleep.
    ///
    /// # Errors
    /// As for [`Device::run`].
    pub fn turn(&mut self) -> io::Result<Turn> {
        self.connections.set_now(now_ns());
        self.page.begin_round();
        let turn = self.work();
        self.page.end_round();
        turn
    }

    fn work(&mut self) -> io::Result<Turn> {
        let messages = self.read_messages();
        let worked = self.connections.look(&self.clients, &self.events) | messages;
        let now = self.connections.now();
        match self.pace.next(now, worked) {
            Next::Poll => std::hint::spin_loop(),
            Next::Yield => {
                // No round lasts meanwhile, so that VipDeregisterMem need not wait for it.
                self.page.end_round();
                self.pace.yield_processor(now);
                self.page.begin_round();
            }
            Next::Ask => {
                self.connections.report_orphans();
                self.processor.relieve(now);
                return self.ask(None);
            }
            Next::Sleep => return self.sleep(),
        }
        Ok(Turn::On)
    }

    fn read_messages(&mut self) -> bool {
        let mut from = 0;
        while let Some(place) = self.clients.with_messages(from) {
            self.attend(place);
            from = place + 1;
        }
        from > 0
    }

    /// Sleeps until a doorbell is rung, which a packet reports, or the kernel reports an event.
    fn sleep(&mut self) -> io::Result<Turn> {
        let deadline = self.connections.prepare_sleep();
        self.page.announce_sleep();
        let awake = self.connections.have_work()
            || self.clients.with_messages(0).is_some()
            || deadline <= self.connections.now();
        let turn = self.ask((!awake).then_some(deadline));
        self.page.end_sleep();
        let now = now_ns();
        self.connections.set_now(now);
        self.pace.woke(now);
        self.connections.warm_all_rung();
        turn
    }

    /// Takes events of the sockets from the kernel; `until`: waits for one until this time.
    fn ask(&mut self, until: Option<u64>) -> io::Result<Turn> {
        self.page.end_round();
        let events = self.events.take(until);
        self.page.begin_round();
        let mut called = false;
        for event in events? {
            match event.source {
                Source::Agent => called = true,
                // Frames are taken by the next round.
                Source::Link(_) if !event.failed => {}
                Source::Link(index) => self.connections.check_interface(index, &self.clients),
                Source::End(place) => self.forget(place, false),
                Source::Messages(place) => self.attend(place),
            }
        }
        // Last: a new process may get the place of one whose end has just been reported.
        if called {
            Ok(self.meet())
        } else {
            Ok(Turn::On)
        }
    }

    fn attend(&mut self, place: usize) {
        match self.serve(place) {
            Verdict::Stays => {}
            Verdict::Gone => self.forget(place, false),
            Verdict::Expelled => self.forget(place, true),
        }
    }

    /// A process has exited, or is expelled.
    fn forget(&mut self, place: usize, expelled: bool) {
        if let Some(client) = self.clients.remove(place) {
            self.connections.forget(&client, expelled);
        }
    }

    /// Takes a packet of the agent: a new process, or the agent's end.
    fn meet(&mut self) -> Turn {
        let mut packet = [0; size_of::<Introduction>()];
        let (bytes, mut fds) = match channel::receive(self.agent.as_raw_fd(), &mut packet) {
            Ok((0, _)) => return Turn::Over,
            Ok(found) => found,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Turn::On,
            Err(_) => return Turn::Over,
        };
        let known = Introduction::read_from_bytes(&packet[..bytes]).ok();
        let newcomer = known.filter(|one| one.version == Introduction::VERSION);
        // A process that is not admitted finds its socket closed.
        if let (Some(newcomer), Some(socket)) = (newcomer, fds.pop()) {
            let _ = self.clients.admit(newcomer.pid, socket, &self.events);
        }
        Turn::On
    }
}
