//! A server between strangers: silent ones hold no place.

mod stranger;

use std::time::Duration;

use stranger::{Server, library, plays, port};
use vipl_tools::endpoint::{Endpoint, Layout, ViSpec};
use vipl_tools::nic::Nic;
use vipl_tools::rendezvous::{Rendezvous, Side};
use vipl_tools::session::Session;

const PINGPONG: &str = env!("CARGO_BIN_EXE_vip_pingpong");

/// Strangers that connect and say nothing have as many places as there are, for five seconds; one that
/// leaves at once has none.
#[test]
fn silent_strangers_hold_no_place() {
    let (vipl, server) = (library(), Server::start(PINGPONG, port(2), &[]));
    drop(Session::<()>::connect(vipl, "via_lo", "localhost", server.port).expect("a session"));
    server.says("asked for no test");
    server.says("waiting for the next one");
    let nic = Nic::open(vipl, "via_lo").expect("a NIC");
    let host = nic.attributes().address.clone();
    let key = [b"vipp".as_slice(), &u32::from(server.port).to_ne_bytes()].concat();
    let silent = || {
        let (level, transfer_max) = (2, 16384);
        let layout = Layout {
            sends: 1,
            receives: 1,
            bytes: 16384,
            separate: false,
        };
        let spec = ViSpec {
            level,
            transfer_max,
        };
        let endpoint = Endpoint::new(&nic, spec, layout, None).expect("a VI");
        let rendezvous = Rendezvous {
            nic: &nic,
            side: Side::Driver,
            remote_host: &host,
            key: &key,
        };
        let limit = Some(Duration::from_secs(60));
        rendezvous
            .join(&endpoint.vi, 0, limit)
            .expect("a connection");
        endpoint
    };
    let endpoints = [silent(), silent(), silent(), silent()];
    server.says("has said nothing for 5 s");
    plays(PINGPONG, server.port, &["-n", "100", "-w", "0", "-c"]);
    drop(endpoints);
    assert!(server.ends());
}
