//! Frames of other hosts, and interface failures.

#![forbid(unsafe_code)]

use kagent_proto::setup::{Body, FRAME_MAX, Frame, Refused, Side, answer_version};
use kagent_proto::{Detail, Reason, Status};

use crate::logic::address::HostAddress;
use crate::logic::agent::Agent;
use crate::logic::ids::{ExchangeKey, LinkId};
use crate::logic::message::Denial;
use crate::logic::objects::{Link, State};
use crate::logic::output::{FrameOut, Output};

impl<F: Clone> Agent<F> {
    /// A frame from another host; `to_all` if it was not addressed to this host alone. The error is the
    /// reason why it was dropped, for the log.
    pub fn handle_frame(
        &mut self,
        now: u64,
        link: LinkId,
        from: HostAddress,
        to_all: bool,
        bytes: &[u8],
    ) -> Result<(), Refused> {
        self.advance(now);
        let Some(Link {
            address, medium, ..
        }) = self.links.get(&link)
        else {
            return Ok(());
        };
        // Another host has neither a group address nor the address of this one.
        if !from.is_host(*medium) || from == *address {
            return Err(Refused::Value);
        }
        let name = |number, side| ExchangeKey::new(link, from, number, side);
        let frame = match Frame::parse(bytes) {
            Err(Refused::Version(version)) => {
                let mut room = [0; FRAME_MAX];
                if let Some(length) = answer_version(bytes, &mut room).filter(|_| !to_all) {
                    let bytes = room[..length].to_vec();
                    let to = from;
                    self.outputs
                        .push_back(Output::Frame(FrameOut { link, to, bytes }));
                }
                return Err(Refused::Version(version));
            }
            Err(Refused::OtherVersion(number, lowest, highest)) => {
                // Any host can send this; it is meaningful only as an answer to a call.
                let meant = self.not_understood(name(number, Side::Asker));
                let cause = Refused::OtherVersion(number, lowest, highest);
                return Err(if meant { cause } else { Refused::Value });
            }
            other => other?,
        };
        let number = frame.exchange;
        match frame.body {
            Body::Who => self.answer_search(link, from, number),
            _ if to_all => return Err(Refused::Value),
            Body::Here => self.found(link, from, number),
            Body::Request(call) => {
                self.handle_remote_call(name(number, Side::Answerer), &call, false)
            }
            Body::Peer(call) => self.handle_remote_call(name(number, Side::Answerer), &call, true),
            Body::Answer(answer) => self.answered(name(number, Side::Asker), answer),
            Body::Ack => self.acknowledged(name(number, Side::Answerer)),
            Body::Disconnect { from, orderly } => {
                self.disconnected(name(number, from.other()), orderly);
            }
            Body::Gone { from } => self.gone(name(number, from.other())),
        }
        Ok(())
    }

    /// The user of the local call that this exchange repeats, if it waits for an answer.
    pub fn caller(&self, link: LinkId, host: HostAddress, number: u64) -> Option<u32> {
        let key = ExchangeKey::new(link, host, number, Side::Asker);
        let exchange = self.exchanges.get(&key)?;
        exchange
            .user
            .filter(|_| matches!(exchange.state, State::Asking(_)))
    }

    /// The called address is one of this host, where no agent serves this user: it belongs to `user`.
    pub fn handle_foreign(
        &mut self,
        now: u64,
        link: LinkId,
        host: HostAddress,
        number: u64,
        user: Option<u32>,
    ) {
        self.advance(now);
        let key = ExchangeKey::new(link, host, number, Side::Asker);
        if let Some(State::Asking(call)) = self.state(key) {
            self.end_exchange(key);
            let detail = Detail {
                user: user.unwrap_or(u32::MAX),
                ..Detail::new(Reason::OTHER_AGENT)
            };
            self.end_call(call, Denial::new(Status::NOT_REACHABLE, detail));
        }
    }

    /// The network reports that a host is unreachable, or, if `refused`, that nothing listens at its agent's
    /// port. The report may be forged: it only explains calls that receive no answer in time.
    pub fn handle_unreached(&mut self, now: u64, link: LinkId, host: HostAddress, refused: bool) {
        self.advance(now);
        let asking = self.links.get(&link).map(|link| link.asking.clone());
        for key in asking.unwrap_or_default() {
            if key.host == host
                && let Some(exchange) = self.exchanges.get_mut(&key)
                && exchange.last_reason != Reason::NOT_ACCEPTED
            {
                exchange.last_reason = match refused {
                    true => Reason::NO_AGENT,
                    false => Reason::NO_ROUTE,
                };
            }
        }
    }

    /// The interface is down or removed: ends the calls that wait for an answer there.
    pub fn handle_link_down(&mut self, now: u64, link: LinkId) {
        self.advance(now);
        // This is reported for every frame that cannot be sent, mostly when no call is waiting.
        let asking = self.links.get(&link).map(|link| link.asking.clone());
        for key in asking.unwrap_or_default() {
            if let Some(State::Asking(call)) = self.state(key) {
                let why = Denial::because(Status::NOT_REACHABLE, Reason::LINK_DOWN);
                self.end_call(call, why);
            }
        }
    }
}
