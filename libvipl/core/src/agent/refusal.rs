//! Log lines for the agent's reasons to refuse calls.
//!
//! The application only receives a return code. Applications retry in a loop, so each kind of line is logged
//! at most once a second.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};

use kagent_proto::{Budget, Detail, Point, Reason, Status, Waited};

use crate::clock;
use crate::logger::log_failure;
use crate::text::{discriminator, hexadecimal};

/// Nanoseconds between two lines of one kind.
const PAUSE: u64 = 1_000_000_000;

/// Kinds of lines: one for each budget, and one for each other reason.
static LOGGED: [AtomicU64; Budget::COUNT + 20] = [const { AtomicU64::new(0) }; Budget::COUNT + 20];

/// Whether a line of this kind is due.
fn is_due(detail: &Detail) -> bool {
    let kind = match detail.reason {
        Reason::USER_BUDGET | Reason::PROCESS_BUDGET => detail.budget as usize,
        Reason(reason) => Budget::COUNT + reason as usize,
    };
    let Some(logged) = LOGGED.get(kind) else {
        return false;
    };
    let (now, last) = (clock::now_ns(), logged.load(Ordering::Relaxed));
    let due = last == 0 || now.saturating_sub(last) >= PAUSE;
    due && logged
        .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
        .is_ok()
}

/// Logs that a budget is exhausted, for any call.
pub(super) fn log_budget(detail: &Detail) {
    let Some(budget) = detail.budget().map(Budget::name) else {
        return;
    };
    let (used, limit) = (detail.used, detail.limit);
    let whose = match detail.reason {
        Reason::USER_BUDGET => format!("user {}", detail.user),
        Reason::PROCESS_BUDGET => "this process".to_owned(),
        _ => return,
    };
    if is_due(detail) {
        log::error!(
            target: "agent",
            "{whose} has {used} of {limit} {budget} at the Kernel Agent; end some of them (`vipinfo -v` lists the budgets)"
        );
    }
}

/// Logs a wait or a peer request on a discriminator owned by another user.
pub(crate) fn log_discriminator_taken(detail: &Detail, local: &Point) {
    if detail.reason == Reason::NAME_TAKEN && is_due(detail) {
        log::error!(
            target: "cm",
            "cannot wait on discriminator {}: on this interface it belongs to user {}, who waits on it or did so within {} s; use another discriminator, or end that server",
            discriminator(local.discriminator()),
            detail.user,
            detail.limit / 1000,
        );
    }
}

/// Logs a request that was not answered in time.
pub(crate) fn log_unanswered(detail: &Detail, remote: &Point) {
    let host = remote.host();
    let (ip, port) = match host.split_last_chunk::<2>() {
        Some((ip, port)) if detail.used == 1 => (ip_address(ip), u16::from_be_bytes(*port)),
        _ => (None, 0),
    };
    let (address, silent) = match ip {
        Some(ip) => (
            SocketAddr::new(ip, port).to_string(),
            format!(
                "nothing has answered: that host is down, UDP port {port} is closed to this one, or no vipkad runs there"
            ),
        ),
        None => (
            hexadecimal(host),
            "nothing has answered: that host is down or on another link, or no vipkad runs there"
                .to_owned(),
        ),
    };
    let why = match detail.reason {
        Reason::SILENT => silent,
        Reason::NO_AGENT => format!("nothing listens at UDP port {port} there: is vipkad running?"),
        Reason::NO_ROUTE => "there is no route to that host, or a firewall rejects what is sent there".to_owned(),
        Reason::NOT_ACCEPTED => "the Kernel Agent of that host answers, but no program there has accepted: nobody waits on this discriminator, or the server does not call VipConnectAccept".to_owned(),
        _ => return,
    };
    if is_due(detail) {
        log::warn!(
            target: "cm",
            "no connection to discriminator {} at {address}: {why}",
            discriminator(remote.discriminator()),
        );
    }
}

/// The IP address of these bytes.
fn ip_address(bytes: &[u8]) -> Option<IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from))
        .ok()
}

/// Logs a request for which no server was waiting.
///
/// With `early` there is no grace period for a server that starts at the same time, so this is common.
pub(crate) fn log_no_server(
    status: Status,
    detail: &Detail,
    waited: Option<&Waited>,
    remote: &Point,
    host: &str,
    early: bool,
) {
    let why = match detail.reason {
        Reason::NO_SERVER => {
            "no thread is in VipConnectWait on this discriminator; start the server first, and compare both discriminators byte for byte"
        }
        Reason::OTHER_USER => {
            "a process of another user waits there; processes of different users cannot connect on one host; run both as the same user"
        }
        Reason::ELSEWHERE => {
            "a process of this user waits on this discriminator, but at another address or with another plug-in; open the same device on both sides"
        }
        Reason::NO_SUCH_ADDRESS => {
            "no process of this user has opened a NIC at this address at this Kernel Agent; `VIPL_AGENT` must be the same for both"
        }
        Reason::OTHER_HOST => {
            "the Kernel Agent of that host answers, but no thread is in VipConnectWait there on this discriminator"
        }
        Reason::LINK_DOWN => "the network interface is down or has been removed (`ip link`)",
        Reason::OTHER_VERSION => {
            "the Kernel Agent of that host speaks another version of the protocol; install the same release on both hosts"
        }
        Reason::OTHER_AGENT => {
            let user = detail.user;
            return log::warn!(
                target: "cm",
                "the address {} is one of this host, where an agent of user {user} answers, not this program's own; without a secret (VIPL_SECRET_FILE) processes of different users cannot connect on one host",
                host,
            );
        }
        _ => return,
    };
    let is_it = status == Status::NO_MATCH || status == Status::NOT_REACHABLE;
    if !is_it || !is_due(detail) {
        return;
    }
    let wanted = remote.discriminator();
    let others = waited.map_or_else(String::new, |waited| others(wanted, waited.names()));
    let discriminator = discriminator(wanted);
    if early {
        log::info!(target: "cm", "no server for discriminator {discriminator} at address {host}: {why}{others}");
    } else {
        log_failure!(
            "cm",
            (why, host, &discriminator),
            "no server for discriminator {discriminator} at address {host}: {why}{others}"
        );
    }
}

/// Maximum discriminators that a line names.
const NAMED_MAX: usize = 3;

/// The discriminators on which this user's servers wait at the address, those that differ least first, with the lengths of all:
/// the usual mistake is a NUL more or less.
fn others<'a>(wanted: &[u8], waited: impl Iterator<Item = &'a [u8]>) -> String {
    let mut waited: Vec<&[u8]> = waited.collect();
    waited.sort_by_key(|name| changes(wanted, name));
    let bytes = |name: &[u8]| match name.len() {
        1 => "1 byte".to_owned(),
        bytes => format!("{bytes} bytes"),
    };
    let shown = waited.iter().take(NAMED_MAX);
    let shown: Vec<String> = shown
        .map(|name| format!("{} ({})", discriminator(name), bytes(name)))
        .collect();
    match &*shown {
        [] => String::new(),
        shown => format!(
            "; this one has {}, waited for here: {}",
            bytes(wanted),
            shown.join(", ")
        ),
    }
}

/// How many bytes must be changed, added or removed to make one text of the other.
fn changes(one: &[u8], other: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (count, byte) in one.iter().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], count + 1);
        for (at, with) in other.iter().enumerate() {
            let changed = diagonal + usize::from(byte != with);
            diagonal = row[at + 1];
            row[at + 1] = changed.min(row[at] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_place_and_lines_of_one_kind_do_not_flood() {
        for reason in 1..=Reason::NOT_ACCEPTED.0 {
            let detail = Detail {
                budget: Budget::Parted as u32,
                ..Detail::new(Reason(reason))
            };
            let first = is_due(&detail);
            // Both reasons that concern budgets share one entry.
            assert_eq!(first, reason != Reason::PROCESS_BUDGET.0, "{reason}");
            assert!(!is_due(&detail));
        }
    }

    #[test]
    fn the_discriminators_that_differ_least_are_named_first() {
        assert_eq!(changes(b"orders\0", b"orders"), 1);
        assert_eq!(changes(b"kitten", b"sitting"), 3);
        assert_eq!(changes(b"", b"abc"), 3);
        let waited: [&[u8]; 4] = [b"quite another", &[1, 255], b"order", b"orders"];
        assert_eq!(
            others(b"orders\0", waited.into_iter()),
            "; this one has 7 bytes, waited for here: \"orders\" (6 bytes), \"order\" (5 bytes), 01:ff (2 bytes)"
        );
        assert_eq!(others(b"d", [].into_iter()), "");
    }
}
