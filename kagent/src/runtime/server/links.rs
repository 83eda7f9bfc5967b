//! Links: opens data sockets for processes, receives and sends frames.

#![forbid(unsafe_code)]

use std::net::SocketAddr;

use kagent_proto::Status;
use kagent_proto::setup::{Frame, Refused};
use nix::errno::Errno;

use super::{Server, TURN_MAX};
use crate::runtime::helpers::held::SharedFd;
use crate::runtime::links::{Buffer, Call, Dropped, FrameIn, LinkSocket, Unsent};
use crate::runtime::sockets::option::udp_address;
use crate::{AdoptLink, FrameOut, OpenLink};
use crate::{HostAddress, Interface, LinkId};

impl Server<'_> {
    pub(super) fn open_link(&mut self, open: &OpenLink) {
        let result = self.make_link(open);
        self.agent.handle_link_opened(self.now(), open, result);
    }

    pub(super) fn ask_link(&mut self, open: &OpenLink) {
        let session = self.clients.get(open.client);
        let status = session.map_or(Status::RESOURCE, |session| self.links.ask(session, open));
        self.agent.handle_link_asked(self.now(), open, status);
    }

    fn make_link(&mut self, open: &OpenLink) -> Result<(Interface, u16, Vec<SharedFd>), Status> {
        let session = self.clients.get(open.client).ok_or(Status::RESOURCE)?;
        let uid = session.uid;
        let mut interface = self.links.find(session, open, self.context.log)?;
        let link = interface.index;
        let free = self.agent.free_endpoint(link).ok_or(Status::RESOURCE)?;
        // Before the data socket, which is slow to close.
        self.links.ensure(&self.context, &mut interface, None)?;
        let made = self.links.data(&interface, free, self.context.log);
        let (socket, endpoint) = made.inspect_err(|_| {
            // No effect if another endpoint is in use there.
            self.agent.close_idle_link(link);
        })?;
        if !self.agent.is_free_endpoint(link, endpoint) {
            // Its process has closed the socket and kept the NIC; the kernel has assigned the port to another
            // socket.
            return Err(Status::RESOURCE);
        }
        let trains = self.links.trains(&interface, endpoint, self.context.log);
        let sockets = trains.into_iter().chain([socket]);
        let shared = sockets.map(|socket| self.clients.share(uid, socket));
        Ok((interface, endpoint, shared.collect()))
    }

    pub(super) fn adopt_link(&mut self, adopt: AdoptLink<SharedFd>) {
        let result = self.check_adopted(&adopt);
        let result = result.map(|interface| (interface, adopt.endpoint, vec![adopt.socket]));
        self.agent
            .handle_link_opened(self.now(), &adopt.open, result);
    }

    /// The link of a data socket issued by another agent, if it is what its process claims.
    fn check_adopted(&mut self, adopt: &AdoptLink<SharedFd>) -> Result<Interface, Status> {
        let session = self.clients.get(adopt.open.client);
        let session = session.ok_or(Status::RESOURCE)?;
        let mut interface = self.links.find(session, &adopt.open, self.context.log)?;
        let bound = adopt.socket.raw().and_then(udp_address);
        if bound != Some(SocketAddr::new(adopt.host.ip(), adopt.endpoint))
            || !self.agent.is_free_endpoint(interface.index, adopt.endpoint)
        {
            return Err(Status::INVALID);
        }
        self.links
            .ensure(&self.context, &mut interface, Some(adopt.host.port()))?;
        match interface.address.socket() == adopt.host {
            true => Ok(interface),
            false => {
                self.agent.close_idle_link(interface.index);
                Err(Status::BUSY)
            }
        }
    }

    /// Receives frames from other hosts, a limited number per pass.
    pub(super) fn link_ready(&mut self, link: LinkId) {
        let mut buffer: Buffer = [0; _];
        for _ in 0..TURN_MAX {
            let now = self.now();
            let Some(socket) = self.links.socket(link) else {
                return;
            };
            match socket.receive(now, &mut buffer) {
                Ok(Some(FrameIn::Frame(from, to_all, bytes))) => {
                    if let Err(cause) = self.agent.handle_frame(now, link, from, to_all, bytes) {
                        self.log_refused(link, from, cause);
                    }
                    self.run_outputs();
                }
                Ok(Some(FrameIn::Handled)) => {}
                Ok(Some(FrameIn::Dropped(from, why))) => self.log_dropped(from, why),
                Ok(None) => return self.report_unreached(link),
                Err(cause) => return self.link_failed(link, cause),
            }
        }
    }

    /// Passes reports of unreachable hosts to the logic.
    fn report_unreached(&mut self, link: LinkId) {
        let now = self.now();
        let socket = self.links.socket(link);
        for report in socket.map(LinkSocket::take_unreached).unwrap_or_default() {
            let host = report.host.into();
            self.agent.handle_unreached(now, link, host, report.refused);
        }
    }

    /// Logs a datagram that did not pass the gate.
    fn log_dropped(&mut self, from: HostAddress, why: Dropped) {
        let from = from.socket();
        if self.drops.may_log(self.now(), from.ip()) {
            self.context.log.warn(
                "link",
                format_args!("dropped a datagram from {from}: {why}"),
            );
        }
    }

    fn log_refused(&self, link: LinkId, from: HostAddress, cause: Refused) {
        let from = match self.links.is_udp(link) {
            true => from.socket().to_string(),
            false => from.to_string(),
        };
        match cause {
            Refused::OtherVersion(_, lowest, highest) => self.context.log.warn(
                "link",
                format_args!("host {from} speaks versions {lowest} to {highest} only"),
            ),
            cause => self
                .context
                .log
                .debug("link", format_args!("frame from {from}: {cause:?}")),
        }
    }

    pub(super) fn send_frame(&mut self, frame: &FrameOut) {
        let now = self.now();
        let exchange = Frame::parse(&frame.bytes).map(|parsed| parsed.exchange);
        let call = exchange.ok().and_then(|exchange| {
            let caller = self.agent.caller(frame.link, frame.to, exchange)?;
            Some(Call { exchange, caller })
        });
        let Some(link) = self.links.socket(frame.link) else {
            return;
        };
        match link.send(now, frame.to, &frame.bytes, call) {
            Ok(()) => self.report_unreached(frame.link),
            Err(Unsent::Down(cause)) => self.link_failed(frame.link, cause),
            Err(Unsent::OtherUser(user)) => {
                if let Some(call) = call {
                    self.agent
                        .handle_foreign(now, frame.link, frame.to, call.exchange, user);
                }
            }
        }
    }

    /// The interface is down or removed, or cannot send.
    fn link_failed(&mut self, link: LinkId, cause: Errno) {
        self.context
            .log
            .debug("link", format_args!("interface {link}: {cause}"));
        // The next user of the link will open a new socket.
        self.links.close_if_idle(&self.context, link);
        self.agent.handle_link_down(self.now(), link);
    }
}
