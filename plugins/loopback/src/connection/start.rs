//! One descriptor of the send queue: load, choose, start.

use vipl_abi::*;
use vipl_guard::Fault;
use vipl_plugin_sdk::descriptor::Operation;
use vipl_plugin_sdk::{Entry, Port};

use super::{Connection, call};
use crate::ending::Ending;
use crate::nic::LoopbackNic;
use crate::peer::Call;
use crate::request::{Method, Request};
use crate::send::{self, Step};
use crate::transfer::{eager, fetch, inline, pieces, read, write};

impl Connection {
    /// Sends a single-frame message of one segment, if nothing is in its way, and nothing that travels in pieces is at the head
    /// of the queue; the caller completes it. False: nothing has been done, and `start` begins anew.
    #[inline(always)]
    pub(super) fn start_frame(&mut self, nic: &LoopbackNic, port: &Port, entry: Entry) -> bool {
        let (call, sender) = (call!(self, port), &mut self.sender);
        let Some(request) = Request::usual(port, entry) else {
            return false;
        };
        if !sender.is_open(call.peer) {
            return false;
        }
        let started = match request.frame_method(nic) {
            Some(Method::Inline) => inline::start(&request, call, sender),
            Some(_) => eager::start(&request, call, sender),
            None => return false,
        };
        started == Ok(Step::Sent)
    }

    /// Makes an RDMA Write of one segment, if nothing is in its way; the caller completes it. False: nothing has been done, and
    /// `start` begins anew.
    #[inline(always)]
    pub(super) fn start_write(&mut self, port: &Port, entry: Entry) -> bool {
        let (call, sender) = (call!(self, port), &mut self.sender);
        if sender.pieces().is_some() || self.inbound.shared.is_open() {
            return false;
        }
        let request = Request::usual_write(port, entry);
        request.is_some_and(|request| write::start_single(&request, call, sender))
    }

    /// Starts or continues any descriptor, or reports its error.
    ///
    /// # Errors
    /// The connection ends.
    #[inline(never)]
    pub(super) fn start(
        &mut self,
        nic: &LoopbackNic,
        port: &Port,
        entry: Entry,
    ) -> Result<Step, Ending> {
        let call = call!(self, port);
        // Whatever becomes of the descriptor, the helper copies no more for it.
        if !self.inbound.shared.rdma_is_settled(&self.peer) {
            return Ok(Step::Wait);
        }
        let request = match Request::judge(port, entry) {
            Ok(request) => request,
            Err(status) => {
                self.inbound.shared.forget_settled();
                return self.sender.local_error(call, status);
            }
        };
        let opcode = request.operation.opcode();
        let begun = self.sender.pieces();
        if begun.is_some_and(|pieces| pieces.total != request.length) {
            return self
                .sender
                .local_error(call, VIP_STATUS_LENGTH_ERROR | opcode);
        }
        let Connection {
            sender,
            inbound,
            choice,
            ..
        } = self;
        let (shared, request, before) = (&mut inbound.shared, &request, sender.sent());
        if request.operation == Operation::Send {
            shared.forget_settled();
        }
        let step = match request.method(nic, call.peer, sender, choice) {
            method @ (Method::Inline | Method::Eager) => {
                let blocked = sender.blocked(call, opcode)?;
                let started = match (blocked, method) {
                    (Some(step), _) => Ok(step),
                    (None, Method::Inline) => inline::start(request, call, sender),
                    (None, _) => eager::start(request, call, sender),
                };
                match started {
                    Ok(step) => step,
                    Err(Fault) => sender.local_error(call, VIP_STATUS_PROTECTION_ERROR)?,
                }
            }
            Method::Pieces => pieces::start(request, call, sender, choice)?,
            Method::Fetch => fetch::start(request, call, sender, choice)?,
            Method::Write => write::start(request, call, sender, shared)?,
            Method::WritePieces => write::start_pieces(request, call, sender)?,
            Method::Read => read::start(request, call, sender, shared)?,
            Method::AskToRead => read::ask(request, call, sender)?,
            Method::Wait if request.operation == Operation::Send => {
                sender.blocked(call, opcode)?.unwrap_or(Step::Wait)
            }
            Method::Wait => Step::Wait,
        };
        if sender.sent() != before {
            call.peer.wake();
        }
        match step {
            // SAFETY: the descriptor is the oldest one that is not processed.
            Step::Sent => unsafe { sender.accepted(call, entry, opcode) },
            Step::Placed if !sender.has_outstanding() => send::complete_oldest(port, opcode),
            Step::Placed => sender.complete_in_turn(call, opcode, None),
            Step::Announced => {
                sender.complete_when_consumed(opcode);
                Ok(Step::Done)
            }
            step => Ok(step),
        }
    }
}
