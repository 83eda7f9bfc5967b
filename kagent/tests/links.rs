//! The real `vipkad` on real interfaces: data sockets, and their permissions.

#![allow(clippy::unwrap_used)]

mod live;

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;

use kagent_proto::setup::SETUP_ETHERTYPE;
use kagent_proto::*;
use live::*;
use nix::errno::Errno;
use vipl_netns::{INTERFACE, Namespaces};
use vipl_plugin_abi::VIPL_DATA_ETHERTYPE as ETHERTYPE;

/// An agent on a host.
fn agent(hosts: &Namespaces, host: usize) -> Daemon {
    Daemon::start_on(hosts, host, &[])
}

fn link(client: &mut Client, name: &str) -> Reply {
    client.link(Op::LINK_OPEN, name)
}

/// The data socket of a link.
fn data(reply: &Reply) -> &File {
    reply.fds.last().expect("a data socket")
}

/// Sends a frame from a data socket; the interface determines the destination.
fn send(socket: &impl AsRawFd, to: [u8; 6], from: [u8; 6], ethertype: u16, payload: &[u8]) {
    let frame = [&to[..], &from[..], &ethertype.to_be_bytes(), payload].concat();
    // SAFETY: the buffer is as large as stated.
    let sent = unsafe { libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0) };
    assert_eq!(sent, frame.len() as isize, "{}", Errno::last());
}

/// The next frame, if any.
fn received(socket: &impl AsRawFd) -> Option<Vec<u8>> {
    let mut frame = vec![0; 2000];
    // SAFETY: the buffer is as large as stated.
    let got = unsafe {
        libc::recv(
            socket.as_raw_fd(),
            frame.as_mut_ptr().cast(),
            frame.len(),
            0,
        )
    };
    match Errno::result(got) {
        Ok(got) => frame.truncate(got as usize),
        Err(Errno::EAGAIN) => return None,
        Err(other) => panic!("{other}"),
    }
    Some(frame)
}

#[test]
fn a_data_socket_gets_the_frames_of_its_endpoint_and_no_others() {
    let Some(hosts) = hosts() else { return };
    let agents = [0, 1].map(|host| agent(&hosts, host));
    let mut clients = agents.each_ref().map(Daemon::client);
    let replies = clients.each_mut().map(|client| link(client, INTERFACE));
    let other = link(&mut clients[1], INTERFACE);
    let opened: Vec<LinkOpened> = replies.iter().map(Reply::body).collect();
    for (host, opened) in opened.iter().enumerate() {
        assert_eq!(opened.host[..6], hosts.address(host));
        assert_eq!(
            (opened.mtu, opened.interface.starts_with(b"eth0\0")),
            (1500, true)
        );
        assert!(opened.driver.starts_with(b"veth\0"), "{:?}", opened.driver);
    }
    let [near, far] = [data(&replies[0]), data(&replies[1])];
    let (to, from) = (hosts.address(1), hosts.address(0));
    let frame =
        |endpoint: u16, mark: u8| [&[1, 2][..], &endpoint.to_be_bytes(), &[mark; 60]].concat();
    let own = opened[1].endpoint;
    let mine = frame(own, 1);
    // For another endpoint, of another type, to another host, from this host; the last one is valid.
    send(near, to, from, ETHERTYPE, &frame(own.wrapping_add(77), 2));
    send(near, to, from, SETUP_ETHERTYPE, &frame(own, 3));
    send(near, to, from, 0x0800, &frame(own, 4));
    send(near, [2, 9, 9, 9, 9, 9], from, ETHERTYPE, &frame(own, 5));
    send(near, [0xFF; 6], from, ETHERTYPE, &frame(own, 6));
    send(far, from, to, ETHERTYPE, &frame(own, 7));
    send(near, to, from, ETHERTYPE, &mine);
    let got = eventually(|| received(far));
    assert_eq!(got[14..], mine, "the first that passes the filter");
    assert_eq!(received(far), None);
    assert_eq!(
        received(data(&other)),
        None,
        "nothing for the other endpoint"
    );
}

/// The packet of a train with a single frame.
fn train(endpoint: u16, mark: u8) -> Vec<u8> {
    let mut packet = vec![mark; 40 + 8 + 60];
    packet[..8].copy_from_slice(&[0x60, 0, 0, 0, 0, 68, 17, 1]);
    packet[2..4].copy_from_slice(&endpoint.to_be_bytes());
    packet[8..40].fill(0);
    (packet[23], packet[39]) = (1, 1);
    packet
}

#[test]
fn a_socket_for_trains_gets_those_of_its_endpoint_and_no_other_packets() {
    const IPV6: u16 = 0x86DD;
    let Some(hosts) = hosts() else { return };
    let agents = [0, 1].map(|host| agent(&hosts, host));
    let mut clients = agents.each_ref().map(Daemon::client);
    let replies = clients.each_mut().map(|client| link(client, INTERFACE));
    assert_eq!(replies[1].fds.len(), 2, "the socket for trains comes first");
    let (near, far) = (data(&replies[0]), &replies[1].fds[0]);
    let (to, from) = (hosts.address(1), hosts.address(0));
    let own = replies[1].body::<LinkOpened>().endpoint;
    // A flow label has four bits more than an endpoint, and the traffic class stands before it.
    let changed = |at: usize, value: u8| {
        let mut packet = train(own, 2);
        packet[at] = value;
        packet
    };
    let others = [(0, 0x40), (0, 0x61), (1, 1), (6, 6), (23, 2), (39, 2)];
    for (at, value) in others {
        send(near, to, from, IPV6, &changed(at, value));
    }
    send(near, to, from, IPV6, &train(own.wrapping_add(77), 3));
    send(near, to, from, ETHERTYPE, &train(own, 4));
    send(near, [2, 9, 9, 9, 9, 9], from, IPV6, &train(own, 5));
    send(near, [0xFF; 6], from, IPV6, &train(own, 6));
    let mine = train(own, 1);
    send(near, to, from, IPV6, &mine);
    let got = eventually(|| received(far));
    assert_eq!(got[14..], mine, "the first that passes the filter");
    assert_eq!(received(far), None);
    // The train that came to another ethertype looks like a frame for this endpoint, of no version.
    assert_eq!(received(data(&replies[1])).map(|frame| frame[54]), Some(4));
    assert_eq!(received(data(&replies[1])), None);
}

#[test]
fn a_process_can_neither_change_the_filter_nor_get_round_it() {
    let Some(hosts) = hosts() else { return };
    let agents = [0, 1].map(|host| agent(&hosts, host));
    let mut clients = agents.each_ref().map(Daemon::client);
    let replies = clients.each_mut().map(|client| link(client, INTERFACE));
    let [near, far] = [data(&replies[0]), data(&replies[1])];
    let opened: LinkOpened = replies[1].body();
    let accept_all = libc::sock_filter {
        code: (libc::BPF_RET | libc::BPF_K) as u16,
        jt: 0,
        jf: 0,
        k: u32::MAX,
    };
    let program = libc::sock_fprog {
        len: 1,
        filter: (&raw const accept_all).cast_mut(),
    };
    let set = |name: libc::c_int, value: *const libc::c_void, bytes: usize| {
        // SAFETY: the value is as large as stated.
        let result = unsafe {
            libc::setsockopt(
                far.as_raw_fd(),
                libc::SOL_SOCKET,
                name,
                value,
                bytes as libc::socklen_t,
            )
        };
        Errno::result(result).map(drop)
    };
    let attach = set(
        libc::SO_ATTACH_FILTER,
        (&raw const program).cast(),
        size_of_val(&program),
    );
    assert_eq!(attach, Err(Errno::EPERM));
    let zero = 0;
    assert_eq!(
        set(libc::SO_DETACH_FILTER, (&raw const zero).cast(), 4),
        Err(Errno::EPERM)
    );
    assert_eq!(
        set(libc::SO_LOCK_FILTER, (&raw const zero).cast(), 4),
        Err(Errno::EPERM)
    );
    // Bound to all ethertypes of all interfaces, it still receives only its own frames. SAFETY: all zero is a
    // valid address.
    let mut all: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    all.sll_family = libc::AF_PACKET as u16;
    all.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    // SAFETY: the address is as large as stated.
    let bound = unsafe {
        libc::bind(
            far.as_raw_fd(),
            (&raw const all).cast(),
            size_of_val(&all) as libc::socklen_t,
        )
    };
    assert_eq!(bound, 0);
    let (to, from) = (hosts.address(1), hosts.address(0));
    let payload = [&[1, 2][..], &opened.endpoint.to_be_bytes(), &[9; 60]].concat();
    send(near, to, from, 0x0800, &payload);
    send(near, to, from, ETHERTYPE, &payload);
    let got = eventually(|| received(far));
    assert_eq!(
        got[12..14],
        ETHERTYPE.to_be_bytes(),
        "an IP packet came through"
    );
}

#[test]
fn an_agent_reports_its_network_namespace() {
    let Some(hosts) = hosts() else { return };
    for host in 0..2 {
        let agent = agent(&hosts, host);
        let network = Client::connect(&agent.socket).hello().network;
        let link = format!("/proc/{}/ns/net", agent.pid());
        let link = std::fs::read_link(link).unwrap();
        assert_eq!(link.to_str().unwrap(), format!("net:[{network}]"));
    }
}

/// The inode of the agent's own packet socket, if it has one.
fn setup_socket(agent: &Daemon) -> Option<String> {
    let table = std::fs::read_to_string(format!("/proc/{}/net/packet", agent.pid())).unwrap();
    let proto = format!("{SETUP_ETHERTYPE:04x}");
    let mut lines = table.lines().map(|line| line.split_whitespace());
    lines.find_map(|mut words| (words.nth(3)? == proto).then(|| words.nth(4).map(str::to_owned))?)
}

/// The kernel takes some 10 ms to close a packet socket, during which the agent serves no process.
#[test]
fn a_process_that_comes_and_goes_does_not_make_the_agent_close_its_socket() {
    let Some(hosts) = hosts() else { return };
    let agent = Daemon::start_on(&hosts, 0, &["--idle-ms", "0"]);
    let mut compared = 0;
    for _ in 0..20 {
        let mut client = agent.client();
        assert_eq!(link(&mut client, INTERFACE).op, Op::LINK_OPENED);
        let before = setup_socket(&agent).unwrap();
        let left = std::time::Instant::now();
        drop(client);
        let mut client = agent.client();
        assert_eq!(link(&mut client, INTERFACE).op, Op::LINK_OPENED);
        // On a very busy machine it may have been closed in the meantime, which is correct.
        if left.elapsed().as_millis() < 500 {
            assert_eq!(setup_socket(&agent).as_ref(), Some(&before));
            compared += 1;
        }
    }
    assert!(compared > 0, "this machine is too slow for this test");
    // An unused interface is free after a while.
    eventually(|| setup_socket(&agent).is_none().then_some(()));
}

#[test]
fn no_interface_no_ethernet_and_one_agent_for_each() {
    let Some(hosts) = hosts() else { return };
    let first = agent(&hosts, 0);
    let mut client = first.client();
    assert_eq!(link(&mut client, "nosuch0").status, Status::INVALID);
    assert_eq!(link(&mut client, "lo").status, Status::INVALID);
    let reply = link(&mut client, INTERFACE);
    assert_eq!(reply.op, Op::LINK_OPENED);
    // A second agent on the same host finds the interface taken, on another host it does not.
    let second = agent(&hosts, 0);
    let mut other = second.client();
    assert_eq!(link(&mut other, INTERFACE).status, Status::BUSY);
    let elsewhere = agent(&hosts, 1);
    assert_eq!(link(&mut elsewhere.client(), INTERFACE).op, Op::LINK_OPENED);
    // When the last process with a data socket there has exited, the interface is free.
    drop(client);
    eventually(|| (link(&mut other, INTERFACE).op == Op::LINK_OPENED).then_some(()));
}

/// The answer of root's agent for all users to a process of this user and group.
fn asked_by(daemon: &Daemon, uid: libc::uid_t, group: libc::gid_t) -> Status {
    // The identity of a thread, not of the process: the raw calls change only that.
    let ask = || {
        // SAFETY: plain system calls; the list is as long as stated.
        let changed = unsafe {
            libc::syscall(libc::SYS_setgroups, 1, &raw const group) == 0
                && libc::syscall(libc::SYS_setresgid, 60_000, 60_000, 60_000) == 0
                && libc::syscall(libc::SYS_setresuid, uid, uid, uid) == 0
        };
        assert!(changed, "{}", Errno::last());
        let mut client = Client::connect(&daemon.socket);
        client.hello();
        let reported = client.link(Op::LINK_ASK, INTERFACE);
        assert_eq!((reported.op, reported.fds.len()), (Op::DONE, 0));
        let status = link(&mut client, INTERFACE).status;
        assert_eq!(reported.status, status, "asked and opened");
        status
    };
    daemon.inside(ask)
}

#[test]
fn an_agent_reports_what_opening_a_link_would() {
    let Some(hosts) = hosts() else { return };
    let daemon = agent(&hosts, 0);
    let mut client = daemon.client();
    for (name, status) in [
        (INTERFACE, Status::OK),
        ("lo", Status::INVALID),
        ("nosuch0", Status::INVALID),
        ("udp:127.0.0.1", Status::OK),
        ("udp:192.0.2.1", Status::INVALID),
        ("", Status::INVALID),
    ] {
        let reported = client.link(Op::LINK_ASK, name);
        assert_eq!((reported.op, reported.status), (Op::DONE, status), "{name}");
        assert_eq!(link(&mut client, name).status, status, "{name}");
    }
}

#[test]
fn with_system_members_of_the_group_get_data_sockets_and_others_do_not() {
    let Some(hosts) = hosts() else { return };
    let Ok(Some(group)) = nix::unistd::Group::from_name("daemon") else {
        return println!("SKIP no group daemon");
    };
    let member = group.gid.as_raw();
    let with = |options: &[&str]| {
        let daemon = Daemon::start_on(&hosts, 0, options);
        daemon.open_to_all();
        daemon
    };
    let daemon = with(&["--system", "--link-group", "daemon"]);
    assert_eq!(asked_by(&daemon, 60_001, member), Status::OK);
    assert_eq!(asked_by(&daemon, 60_001, 60_002), Status::NOT_PERMITTED);
    assert_eq!(asked_by(&daemon, 0, 60_002), Status::OK);
    drop(daemon);
    // A missing group permits no process.
    let daemon = with(&["--system", "--link-group", "no-such-group"]);
    assert_eq!(asked_by(&daemon, 60_001, member), Status::NOT_PERMITTED);
}

/// A NIC on the link; returns its identifier and its endpoint.
fn open_on(client: &mut Client) -> (u64, u16) {
    let opened: LinkOpened = link(client, INTERFACE).body();
    let reply = client.ask(Op::NIC_OPEN, &nic_on("wire", &opened));
    (reply.body::<NicOpened>().nic, opened.endpoint)
}

fn confirm(client: &mut Client, connection: u64) -> u64 {
    client.call(Op::CONFIRM, &ConnectionRef { connection }, &[])
}

/// Connects a server and a client through their agents; returns the reports of both.
fn pair(
    hosts: &Namespaces,
    server: (&mut Client, u64),
    client: (&mut Client, u64),
) -> [Connected; 2] {
    let ((server, near), (client, far)) = (server, client);
    let wait = server.wait(near, b"d");
    let request = client.request(far, &hosts.address(0), b"d", 30_000);
    let incoming: Incoming = server.reply(wait).body();
    assert_eq!(incoming.remote.host(), hosts.address(1));
    let body = Accept {
        connection: incoming.connection,
        vi: 2,
        attributes: attributes(),
        segment_bytes: 0,
        reserved: 0,
    };
    let accepted = server.ask(Op::ACCEPT, &body);
    assert_eq!((accepted.op, accepted.fds.len()), (Op::CONNECTED, 0));
    let at_server: Connected = accepted.body();
    let confirmed = confirm(server, at_server.connection);
    let at_client: Connected = client.reply(request).body();
    assert_eq!(
        (at_server.key, at_server.remote, at_client.remote),
        (at_client.key, 1, 1)
    );
    let last = confirm(client, at_client.connection);
    assert_eq!(client.reply(last).status, Status::OK);
    assert_eq!(server.reply(confirmed).status, Status::OK);
    [at_server, at_client]
}

#[test]
fn two_agents_connect_processes_of_two_hosts() {
    let Some(hosts) = hosts() else { return };
    let mut agents = [agent(&hosts, 0), agent(&hosts, 1)];
    let (mut server, mut client) = (agents[0].client(), agents[1].client());
    let (near, far) = (open_on(&mut server), open_on(&mut client));
    let [at_server, at_client] = pair(&hosts, (&mut server, near.0), (&mut client, far.0));
    assert_eq!(
        (at_server.remote_endpoint, at_client.remote_endpoint),
        (far.1, near.1)
    );
    // A disconnect here is reported there, and so is a death.
    let connection = at_server.connection;
    assert_eq!(
        server
            .ask(Op::DISCONNECT, &ConnectionRef { connection })
            .status,
        Status::OK
    );
    client.expect_gone(at_client.connection, 1);
    let [at_server, _] = pair(&hosts, (&mut server, near.0), (&mut client, far.0));
    drop(client);
    server.expect_gone(at_server.connection, 0);
    // No server waits; no host answers.
    let mut client = agents[1].client();
    let far = open_on(&mut client).0;
    let request = client.request(far, &hosts.address(0), b"no one", 0);
    assert_eq!(client.reply(request).status, Status::NO_MATCH);
    assert_eq!(client.neighbours(far), 2);
    // An agent whose last process has exited exits, and its interface is free.
    drop((server, client));
    for agent in &mut agents {
        assert!(agent.wait().success());
    }
}

#[test]
fn an_interface_that_is_down_is_not_reachable() {
    let Some(hosts) = hosts() else { return };
    let daemon = agent(&hosts, 1);
    let mut client = daemon.client();
    let nic = open_on(&mut client).0;
    hosts.set_up(1, false);
    let request = client.request(nic, &hosts.address(0), b"d", 0);
    assert_eq!(client.reply(request).status, Status::NOT_REACHABLE);
    // And up again: no host answers, and the request waits until it is cancelled.
    hosts.set_up(1, true);
    let request = client.request(nic, &hosts.address(0), b"d", 0);
    assert_eq!(client.neighbours(nic), 1);
    let cancel = client.call(Op::CANCEL, &Cancel { call: request }, &[]);
    assert_eq!(client.reply(request).status, Status::CANCELLED);
    client.reply(cancel);
}

/// Takes part in this number of connections: accepts requests, confirms connections. Returns the keys.
fn take_part(client: &mut Client, connections: usize) -> BTreeSet<u64> {
    let (mut keys, mut confirms) = (BTreeSet::new(), BTreeSet::new());
    let mut confirmed = 0;
    while confirmed < connections {
        let reply = client.next().expect("a reply, not the end");
        match reply.op {
            Op::INCOMING => {
                let body = Accept {
                    connection: reply.body::<Incoming>().connection,
                    vi: 2,
                    attributes: attributes(),
                    segment_bytes: 0,
                    reserved: 0,
                };
                client.call(Op::ACCEPT, &body, &[]);
            }
            Op::CONNECTED => {
                let connected: Connected = reply.body();
                assert!(connected.remote == 1 && keys.insert(connected.key));
                confirms.insert(confirm(client, connected.connection));
            }
            _ => {
                assert_eq!(
                    (reply.status, confirms.remove(&reply.id)),
                    (Status::OK, true)
                );
                confirmed += 1;
            }
        }
    }
    keys
}

/// Two clients on two hosts and one server, concurrently, on a switch.
#[test]
fn many_connections_at_once() {
    let hosts = match Namespaces::bridge(3) {
        Ok(hosts) => hosts,
        Err(why) => return println!("SKIP network namespaces: {why}"),
    };
    const EACH: usize = 60;
    let agents = [0, 1, 2].map(|host| agent(&hosts, host));
    let [mut server, mut one, mut two] = [0, 1, 2].map(|host: usize| agents[host].client());
    let near = open_on(&mut server).0;
    for _ in 0..2 * EACH {
        server.wait(near, b"d");
    }
    let ask = |client: &mut Client| {
        let nic = open_on(client).0;
        for _ in 0..EACH {
            client.request(nic, &hosts.address(0), b"d", 30_000);
        }
        take_part(client, EACH)
    };
    let (at_server, at_clients) = std::thread::scope(|scope| {
        let clients = [scope.spawn(|| ask(&mut one)), scope.spawn(|| ask(&mut two))];
        let at_server = take_part(&mut server, 2 * EACH);
        let at_clients = clients
            .into_iter()
            .flat_map(|client| client.join().unwrap());
        (at_server, at_clients.collect::<BTreeSet<u64>>())
    });
    assert_eq!((at_server.len(), &at_server), (2 * EACH, &at_clients));
    drop((one, two));
    for _ in 0..2 * EACH {
        assert_eq!(server.next().unwrap().op, Op::PEER_GONE);
    }
}
