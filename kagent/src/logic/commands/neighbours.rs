//! Discovery of hosts on a link (spec §3.30): several rounds of a broadcast WHO, collecting each HERE.

#![forbid(unsafe_code)]

use std::collections::BTreeSet;

use kagent_proto::setup::{Body, Frame};
use kagent_proto::{HOST_BYTES_MAX, NEIGHBOURS_MAX, NeighbourList, Op, Status};

use crate::logic::address::{Address, HostAddress, Medium};
use crate::logic::agent::Agent;
use crate::logic::calls::{CallKind, Owner, Search};
use crate::logic::ids::{CallKey, Caller, LinkId, NicId};
use crate::logic::message::Outcome;
use crate::logic::queues::deadline;

/// Number of rounds; any frame may be lost.
const ROUNDS: u32 = 4;

const ROUND_MS: u64 = 60;

impl<F: Clone> Agent<F> {
    /// `Op::NEIGHBOURS`: on an Ethernet, asks other hosts first.
    pub(crate) fn neighbours(&mut self, caller: Caller, nic: NicId) -> Outcome {
        self.own_nic(caller, nic)?;
        let link = self.link_of(nic).and_then(|link| self.links.get(&link));
        if link.is_some_and(|link| link.medium == Medium::Ethernet) {
            return self.search(caller, nic);
        }
        Ok(self.list_neighbours(caller, nic, &[])?)
    }

    /// Lists the address of the NIC itself, then those of this host in order, then those of other hosts, each
    /// once and as many as fit.
    pub(crate) fn list_neighbours(
        &mut self,
        caller: Caller,
        nic: NicId,
        found: &[HostAddress],
    ) -> Result<(), Status> {
        let own = self.own_nic(caller, nic)?.address;
        let first = Address {
            host: [0; HOST_BYTES_MAX],
            ..own
        };
        let last = Address {
            host: [u8::MAX; HOST_BYTES_MAX],
            ..own
        };
        let here = self
            .addresses
            .range(first..=last)
            .map(|(other, _)| other.host());
        let there = found.iter().map(HostAddress::bytes);
        let mut hosts = [[0; HOST_BYTES_MAX]; NEIGHBOURS_MAX];
        let mut count = 0;
        for address in std::iter::once(own.host()).chain(here).chain(there) {
            let known = hosts[..count]
                .iter()
                .any(|host| host[..own.host_len] == *address);
            if count == hosts.len() {
                break;
            }
            if !known && address.len() == own.host_len {
                hosts[count][..own.host_len].copy_from_slice(address);
                count += 1;
            }
        }
        let list = NeighbourList {
            host_len: own.host_len as u32,
            count: count as u32,
            hosts,
        };
        self.reply(caller, Op::NEIGHBOUR_LIST, &list);
        Ok(())
    }

    /// Starts a search.
    pub(crate) fn search(&mut self, caller: Caller, nic: NicId) -> Outcome {
        self.admit_call(caller)?;
        let link = self.link_of(nic).ok_or(Status::INVALID)?;
        let search = Search {
            link,
            number: self.keys.next_key(),
            round: 0,
            found: BTreeSet::new(),
        };
        let number = search.number;
        let key = self.keep_call(Owner::Process(caller, nic), CallKind::Search(search), None);
        self.searches.insert((link, number), key);
        self.search_round(key);
        Ok(())
    }

    /// Starts the next round, or ends the search.
    pub(crate) fn search_round(&mut self, key: CallKey) {
        let until = deadline(self.now, ROUND_MS);
        let Some(call) = self.calls.get_mut(&key) else {
            return;
        };
        let CallKind::Search(search) = &mut call.kind else {
            return;
        };
        if search.round < ROUNDS {
            search.round += 1;
            let (link, exchange) = (search.link, search.number);
            call.deadline = until;
            self.timers.start(until, key);
            let body = Body::Who;
            return self.send_to(link, HostAddress::all(), &Frame { exchange, body });
        }
        let Some(call) = self.take_call(key) else {
            return;
        };
        if let (CallKind::Search(search), Owner::Process(caller, nic)) = (call.kind, call.owner) {
            let found: Vec<HostAddress> = search.found.into_iter().collect();
            if let Err(status) = self.list_neighbours(caller, nic, &found) {
                self.done(caller, status);
            }
        }
    }

    /// Handles WHO.
    pub(crate) fn answer_search(&mut self, link: LinkId, from: HostAddress, exchange: u64) {
        let body = Body::Here;
        self.send_to(link, from, &Frame { exchange, body });
    }

    /// Handles HERE. Hosts beyond the maximum are ignored.
    pub(crate) fn found(&mut self, link: LinkId, host: HostAddress, exchange: u64) {
        let call = self
            .searches
            .get(&(link, exchange))
            .and_then(|key| self.calls.get_mut(key));
        if let Some(CallKind::Search(search)) = call.map(|call| &mut call.kind)
            && search.found.len() < NEIGHBOURS_MAX
        {
            search.found.insert(host);
        }
    }
}
