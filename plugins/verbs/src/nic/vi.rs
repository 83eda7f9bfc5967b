//! The operations of a VI.

use std::os::fd::AsRawFd;
use std::sync::Arc;

use vipl_plugin_sdk::abi::{VIPL_LOG_WARN, vipl_connection};
use vipl_plugin_sdk::shm::Mapping;
use vipl_plugin_sdk::{Port, Status, Vi};
use vipl_sys::fd::duplicate;

use crate::exchange::Way;
use crate::link::Link;
use crate::record::{Boards, SEGMENT};

use super::VerbsNic;

/// A VI; its connection comes and goes.
pub struct VerbsVi(Option<Box<Link>>);

impl Vi for VerbsVi {
    type Nic = VerbsNic;

    fn new(_: &VerbsNic, _: &Port) -> Result<Self, Status> {
        Ok(VerbsVi(None))
    }

    fn attach(
        &mut self,
        nic: &VerbsNic,
        port: &Port,
        connection: &vipl_connection,
    ) -> Result<(), Status> {
        let made =
            way(nic, port, connection).and_then(|way| Link::new(&nic.card, port, connection, way));
        let link = made.map_err(|error| {
            let text = format!("a queue pair cannot be made: {}", crate::explained(&error));
            crate::say(VIPL_LOG_WARN, &text);
            Status::Resource
        })?;
        nic.card.shared.add(link.watched().clone());
        self.0 = Some(Box::new(link));
        Ok(())
    }

    fn detach(&mut self, nic: &VerbsNic, port: &Port) {
        let Some(mut link) = self.0.take() else {
            return;
        };
        nic.card.shared.remove(port.index());
        link.leave(port);
        if let (Way::Remote(remote), Some(uplink)) = (link.way(), &nic.card.shared.uplink) {
            uplink.linger(remote, vipl_plugin_sdk::Host::get().now_ns());
        }
    }

    fn peer_gone(&mut self, nic: &VerbsNic, port: &Port, orderly: bool) {
        if let Some(link) = &mut self.0 {
            link.peer_gone(&nic.card, port, orderly);
        }
    }

    #[inline(always)]
    fn post_send(&mut self, _: &VerbsNic, port: &Port) {
        if let Some(link) = &mut self.0 {
            link.post_sends(port);
        }
    }

    #[inline(always)]
    fn post_recv(&mut self, _: &VerbsNic, port: &Port) {
        if let Some(link) = &mut self.0 {
            link.post_receives(port);
        }
    }

    #[inline(always)]
    fn progress(&mut self, nic: &VerbsNic, port: &Port) {
        if let Some(link) = &mut self.0 {
            link.progress(&nic.card, port);
        }
    }
}

/// How the two sides tell each other their records.
fn way(nic: &VerbsNic, port: &Port, connection: &vipl_connection) -> std::io::Result<Way> {
    if connection.remote == 0 {
        let segment = Mapping::open(connection.segment_fd.as_raw_fd(), SEGMENT, true)?;
        let bell = duplicate(connection.peer_fds[0])?;
        return Ok(Way::Local(Arc::new(Boards::new(
            segment,
            connection.side,
            bell,
        ))));
    }
    let uplink = nic
        .card
        .shared
        .uplink
        .as_ref()
        .ok_or(std::io::ErrorKind::NotConnected)?;
    uplink.connect(port.index(), connection).map(Way::Remote)
}
