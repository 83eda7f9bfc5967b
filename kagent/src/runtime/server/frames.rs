//! The poll loop: links. Opens data sockets for processes, receives and sends frames.

#![forbid(unsafe_code)]

use std::os::fd::AsFd;
use std::rc::Rc;

use kagent_proto::Status;
use kagent_setup::{FRAME_MAX, Refused};
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;

use super::{Server, TURN_MAX};
use crate::runtime::helpers::held::{Held, SharedFd};
use crate::runtime::token::Token;
use crate::{FrameOut, OpenLink};
use crate::{Interface, LinkId, Mac};

impl Server<'_> {
    pub(super) fn open_link(&mut self, open: &OpenLink) {
        let result = self.make_link(open);
        self.agent.handle_link_opened(self.now(), open, result);
    }

    fn make_link(&mut self, open: &OpenLink) -> Result<(Interface, u16, SharedFd), Status> {
        let session = self.sessions.get(&open.client).ok_or(Status::RESOURCE)?;
        let uid = session.uid;
        let interface = self.links.find(session.socket.as_fd(), open, self.log)?;
        let link = interface.index;
        let endpoint = self.agent.free_endpoint(link).ok_or(Status::RESOURCE)?;
        // First, since closing a data socket is slow.
        if self.links.ensure(link, self.log)? {
            let event = Token::Link(link).event(EpollFlags::EPOLLIN);
            if let Err(cause) = self.epoll.add(&self.links.open[&link], event) {
                self.log.warn("link", format_args!("epoll: {cause}"));
                self.links.open.remove(&link);
                return Err(Status::RESOURCE);
            }
        }
        let socket = self.links.data(link, endpoint, self.log).inspect_err(|_| {
            // Unless another endpoint is in use there.
            self.agent.close_link_if_idle(link);
        })?;
        let socket = Held::shared(socket, uid, &self.helpers.to_close);
        Ok((interface, endpoint, Rc::new(socket)))
    }

    pub(super) fn close_link(&mut self, link: LinkId) {
        self.links.close_later(link, self.now());
    }

    /// Receives frames from other hosts, a limited number at once.
    pub(super) fn link_ready(&mut self, link: LinkId) {
        let mut buffer = [0; FRAME_MAX];
        for _ in 0..TURN_MAX {
            let Some(socket) = self.links.open.get(&link) else {
                return;
            };
            match socket.receive(&mut buffer) {
                Ok(Some((from, to_all, length))) => {
                    let bytes = &buffer[..length];
                    let now = self.now();
                    if let Err(cause) = self.agent.handle_frame(now, link, from, to_all, bytes) {
                        self.tell_refused(from, cause);
                    }
                    self.run_outputs();
                }
                Ok(None) => return,
                Err(cause) => return self.link_failed(link, cause),
            }
        }
    }

    fn tell_refused(&self, from: Mac, cause: Refused) {
        let from = from.map(|byte| format!("{byte:02x}")).join(":");
        match cause {
            Refused::OtherVersion(_, lowest, highest) => self.log.warn(
                "link",
                format_args!("host {from} speaks versions {lowest} to {highest} only"),
            ),
            cause => self
                .log
                .debug("link", format_args!("frame from {from}: {cause:?}")),
        }
    }

    pub(super) fn send_frame(&mut self, frame: &FrameOut) {
        let sent = self
            .links
            .open
            .get(&frame.link)
            .map(|link| link.send(frame.to, &frame.bytes));
        if let Some(Err(cause)) = sent {
            self.link_failed(frame.link, cause);
        }
    }

    /// The interface is down or gone, or cannot send.
    fn link_failed(&mut self, link: LinkId, cause: Errno) {
        self.log
            .debug("link", format_args!("interface {link}: {cause}"));
        // The next user of the link gets a new socket.
        self.links.close_if_idle(link, &self.epoll);
        self.agent.handle_link_down(self.now(), link);
    }
}
