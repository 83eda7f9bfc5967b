//! Trains of frames: over a path that carries them whole, over one that cuts them, and to a peer that knows none. The hosts
//! between which they travel neither answer nor forward them.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use vipl_netns::{Apart, INTERFACE, Namespaces};
use vipl_plugin_abi::VIPL_DATA_ETHERTYPE as ETHERTYPE;

const ETHERNET: usize = 14;
const IPV6: u16 = 0x86DD;
/// An Ethernet frame of an interface with an MTU of 1500.
const FRAME_MAX: usize = ETHERNET + 1500;
const MTU: u16 = 1500;
/// Headers of a train before its first frame, and bytes of the shortest frame.
const BEFORE: usize = ETHERNET + 40 + 8;

/// What came to a host.
#[derive(Debug, Default)]
struct Seen {
    /// Single frames of the data protocol.
    single: u64,
    /// Packets of trains, and the longest.
    trains: u64,
    longest: usize,
    /// Errors of ICMP and ICMPv6.
    errors: u64,
}

impl Seen {
    fn add(&mut self, packet: &[u8]) {
        let Some((link, packet)) = packet.split_at_checked(ETHERNET) else {
            return;
        };
        let ethertype = u16::from_be_bytes([link[12], link[13]]);
        match ethertype {
            ETHERTYPE => self.single += 1,
            IPV6 if packet.len() > 40 && is_loopback(&packet[8..24]) => {
                self.trains += 1;
                self.longest = self.longest.max(ETHERNET + packet.len());
            }
            // Types below 128 are errors.
            IPV6 if packet.len() > 40 && packet[6] == 58 && packet[40] < 128 => self.errors += 1,
            0x0800 if packet.len() > 20 && packet[9] == 1 => self.errors += 1,
            _ => {}
        }
    }
}

fn is_loopback(address: &[u8]) -> bool {
    address[..15] == [0; 15] && address[15] == 1
}

/// Counts what comes to both hosts while `what` runs.
fn watch<T>(hosts: &Namespaces, what: impl FnOnce() -> T) -> (T, [Seen; 2]) {
    let over = AtomicBool::new(false);
    let count = |tap: OwnedFd| {
        let (mut seen, mut packet) = (Seen::default(), vec![0; 1 << 17]);
        loop {
            let done = over.load(Ordering::SeqCst);
            // SAFETY: the buffer is as large as stated.
            let got =
                unsafe { libc::recv(tap.as_raw_fd(), packet.as_mut_ptr().cast(), packet.len(), 0) };
            match usize::try_from(got) {
                Ok(got) => seen.add(&packet[..got]),
                Err(_) if done => return seen,
                Err(_) => std::thread::sleep(Duration::from_micros(200)),
            }
        }
    };
    let taps = [0, 1].map(|host| hosts.tap(host).expect("a tap"));
    std::thread::scope(|scope| {
        let counters = taps.map(|tap| scope.spawn(|| count(tap)));
        let result = what();
        over.store(true, Ordering::SeqCst);
        let seen = counters.map(|counter| counter.join().expect("a count"));
        println!("to host 0: {:?}, to host 1: {:?}", seen[0], seen[1]);
        (result, seen)
    })
}

fn pair() -> Option<Namespaces> {
    Namespaces::pair()
        .map_err(|why| println!("SKIP network namespaces: {why}"))
        .ok()
}

/// A stream of large messages from host 0 to host 1. Side 1 has these settings, too.
fn stream(apart: &Apart, card: &str, setting_there: Option<&str>) {
    let run = apart.run("flow", &format!("{card}:{INTERFACE}")).arg("1");
    let run = match setting_there {
        Some(setting) => run.env("APART_SETTING_THERE", setting),
        None => run,
    };
    run.pass();
}

/// Makes a host one that would forward all that is not for itself back to where it came from.
fn make_router(hosts: &Namespaces, host: usize) {
    let on = |family: &str| {
        let file = format!("/proc/sys/net/{family}/conf/all/forwarding");
        std::fs::write(file, "1").expect("forwarding");
    };
    hosts
        .inside(host, || ["ipv4", "ipv6"].map(on))
        .expect("the host");
    let route = ["-6", "route", "add", "default", "dev", INTERFACE];
    let added = hosts.command(host, "ip").args(route).status();
    assert!(added.expect("ip").success(), "a route");
}

#[test]
fn streams_travel_in_trains_and_no_host_answers() {
    let Some(hosts) = pair() else { return };
    make_router(&hosts, 1);
    let apart = Apart::new(&hosts);
    for card in ["gnic2", "tulip"] {
        let ((), [back, there]) = watch(&hosts, || stream(&apart, card, None));
        assert!(
            there.trains > 0 && there.longest > 10_000,
            "{card}: whole trains"
        );
        // What host 1 has to say is short, and travels alone.
        assert_eq!(back.trains, 0, "{card}: trains that host 1 forwards");
        assert!(back.single > 0, "{card}");
        assert_eq!(
            (back.errors, there.errors),
            (0, 0),
            "{card}: errors of ICMP"
        );
    }
}

#[test]
fn a_path_that_cuts_trains_carries_single_frames() {
    let Some(hosts) = pair() else { return };
    hosts.cut_trains(0).expect("the interface");
    let apart = Apart::new(&hosts);
    for card in ["gnic2", "tulip"] {
        let ((), [_, there]) = watch(&hosts, || stream(&apart, card, None));
        assert!(there.trains > 100, "{card}: frames of trains");
        assert!(there.longest <= FRAME_MAX, "{card}: each by itself");
        assert_eq!(there.errors, 0, "{card}: errors of ICMP");
    }
}

#[test]
fn jumbo_frames_travel_in_trains() {
    let Some(hosts) = pair() else { return };
    (0..2).for_each(|host| hosts.set_mtu(host, 9000));
    let apart = Apart::new(&hosts);
    let ((), [_, there]) = watch(&hosts, || stream(&apart, "gnic2", None));
    assert!(there.trains > 0 && there.longest > 10_000);
    hosts.cut_trains(0).expect("the interface");
    let ((), [_, there]) = watch(&hosts, || stream(&apart, "gnic2", None));
    assert!(there.longest > usize::from(MTU) && there.longest <= ETHERNET + 9000);
}

/// To a peer without trains, as an older one is, frames travel one by one. It does not see the train that asks.
#[test]
fn a_peer_without_trains_gets_single_frames() {
    let Some(hosts) = pair() else { return };
    let apart = Apart::new(&hosts);
    for card in ["gnic2", "tulip"] {
        let off = Some("VIPL_TRAINS=false");
        let ((), [back, there]) = watch(&hosts, || stream(&apart, card, off));
        assert!(there.single > 100, "{card}: single frames");
        // Each train is a question: two TRYs. How many are asked depends on how long the stream lasts.
        let question = BEFORE + 2 * 256;
        assert!(there.longest <= question, "{card}: questions only");
        assert_eq!(
            (back.errors, there.errors),
            (0, 0),
            "{card}: errors of ICMP"
        );
    }
}

/// Messages of all sizes and levels, RDMA and errors, where frames are cut and where they are not.
#[test]
fn programs_run_over_trains() {
    let Some(hosts) = pair() else { return };
    let apart = Apart::new(&hosts);
    for cut in [false, true] {
        if cut {
            (0..2).for_each(|host| hosts.cut_trains(host).expect("the interface"));
        }
        for name in ["tour", "rdma", "errors"] {
            apart.run(name, &format!("tulip:{INTERFACE}")).pass();
        }
    }
}
