//! The real `vipkad` over UDP: addresses, ports, calls between two hosts, and the secret.

#![allow(clippy::unwrap_used)]

mod live;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};

use kagent_proto::setup::Datagram;
use kagent_proto::*;
use live::*;
use nix::sys::signal::Signal;
use vipl_netns::{INTERFACE, Namespaces};

/// The well-known port of an agent.
const PORT: u16 = 34_998;

fn agent(hosts: &Namespaces, host: usize, options: &[&str]) -> Daemon {
    Daemon::start_on(hosts, host, options)
}

fn link(client: &mut Client, argument: &str) -> Reply {
    client.link(Op::LINK_OPEN, &format!("udp:{argument}"))
}

/// A NIC on a link, and the agent's description of the link.
fn open(client: &mut Client, argument: &str) -> (u64, LinkOpened) {
    let reply = link(client, argument);
    assert_eq!(reply.op, Op::LINK_OPENED, "{argument}: {reply:?}");
    let opened: LinkOpened = reply.body();
    let nic = client.ask(Op::NIC_OPEN, &nic_on("ip", &opened));
    (nic.body::<NicOpened>().nic, opened)
}

fn address(opened: &LinkOpened) -> &[u8] {
    &opened.host[..usize::from(opened.host_len)]
}

fn bytes_of(ip: IpAddr, port: u16) -> Vec<u8> {
    let ip = match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    [&ip[..], &port.to_be_bytes()].concat()
}

#[test]
fn a_link_has_the_address_of_its_host_and_the_port_of_its_agent() {
    let Some(hosts) = hosts() else { return };
    let agent = agent(&hosts, 0, &[]);
    let mut client = agent.client();
    let (v4, v6) = (IpAddr::from(hosts.ipv4(0)), IpAddr::from(hosts.ipv6(0)));
    for (argument, ip, mtu) in [
        ("", v4, 1472),
        (&*v4.to_string(), v4, 1472),
        (INTERFACE, v4, 1472),
        (&*v6.to_string(), v6, 1452),
        ("127.0.0.1", [127, 0, 0, 1].into(), 9000),
    ] {
        let reply = link(&mut client, argument);
        assert_eq!(reply.op, Op::LINK_OPENED, "{argument}");
        let opened: LinkOpened = reply.body();
        assert_eq!(address(&opened), bytes_of(ip, PORT), "{argument}");
        assert_eq!(opened.mtu, mtu, "{argument}");
        let socket = UdpSocket::from(OwnedFd::from(reply.fds.into_iter().next().unwrap()));
        let bound = socket.local_addr().unwrap();
        assert_eq!(bound, SocketAddr::new(ip, opened.endpoint), "{argument}");
    }
    for argument in [
        "10.76.0.9",
        "nosuch0",
        "fd76::9",
        "fe80::1",
        "0.0.0.0",
        "1.2",
    ] {
        let status = link(&mut client, argument).status;
        assert_eq!(status, Status::INVALID, "{argument}");
    }
}

#[test]
fn every_agent_of_a_host_has_a_port() {
    let Some(hosts) = hosts() else { return };
    let agents = [
        &[][..],
        &[],
        &["--udp-port", "4711"],
        &["--udp-port", "4711"],
    ]
    .map(|options| agent(&hosts, 0, options));
    let mut clients = agents.each_ref().map(Daemon::client);
    let mut port = |number: usize| {
        let reply = link(&mut clients[number], "");
        if reply.op != Op::LINK_OPENED {
            return Err(reply.status);
        }
        let opened: LinkOpened = reply.body();
        Ok(u16::from_be_bytes([opened.host[4], opened.host[5]]))
    };
    assert_eq!(port(0), Ok(PORT));
    let other = port(1).unwrap();
    assert!(other != PORT && other != 0);
    assert_eq!(port(1), Ok(other), "one for all of its processes");
    assert_eq!(port(2), Ok(4711));
    assert_eq!(port(3), Err(Status::BUSY), "it wants this one or none");
}

/// A process of one agent connects to one of another; both sides confirm, and one disconnects. Returns the
/// secret of both sides for their data, if any.
fn connects(from: (&Daemon, &str), to: (&Daemon, &str)) -> Option<[u8; 32]> {
    let (mut client, mut server) = (from.0.client(), to.0.client());
    let (near, _) = open(&mut client, from.1);
    let (far, there) = open(&mut server, to.1);
    let wait = server.wait(far, b"here");
    let request = client.request(near, address(&there), b"here", 20_000);
    let connection = server.accept(wait).body::<Connected>();
    let confirm = |connection: u64| ConnectionRef { connection };
    let confirmed = server.call(Op::CONFIRM, &confirm(connection.connection), &[]);
    let own = client.reply(request).body::<Connected>();
    assert_eq!((own.key, own.remote), (connection.key, 1));
    assert_eq!((own.sealed, own.seal), (connection.sealed, connection.seal));
    let host = usize::from(own.remote_host_len);
    assert_eq!(&own.remote_host[..host], address(&there));
    let done = client.ask(Op::CONFIRM, &confirm(own.connection));
    assert_eq!(done.status, Status::OK);
    assert_eq!(server.reply(confirmed).status, Status::OK);
    client.ask(Op::DISCONNECT, &confirm(own.connection));
    server.expect_gone(connection.connection, 1);
    (own.sealed != 0).then_some(own.seal)
}

#[test]
fn agents_of_two_hosts_connect_over_both_families_and_agents_of_one_host_too() {
    let Some(hosts) = hosts() else { return };
    let agents = [
        agent(&hosts, 0, &[]),
        agent(&hosts, 1, &[]),
        agent(&hosts, 0, &[]),
    ];
    let seal = connects((&agents[0], ""), (&agents[1], ""));
    assert_eq!(seal, None, "without a secret there is none for data");
    connects((&agents[1], ""), (&agents[0], ""));
    let six = |host: usize| hosts.ipv6(host).to_string();
    connects((&agents[0], &six(0)), (&agents[1], &six(1)));
    connects((&agents[0], ""), (&agents[2], ""));
    connects((&agents[2], "127.0.0.1"), (&agents[0], "127.0.0.1"));
}

/// A file with a secret.
fn secret(folder: &tempfile::TempDir, name: &str, text: &str, mode: u32) -> PathBuf {
    let path = folder.path().join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    path
}

#[test]
fn only_agents_with_the_same_secret_connect() {
    let Some(hosts) = hosts() else { return };
    let folder = tempfile::tempdir().unwrap();
    let right = secret(&folder, "right", "a secret of some length", 0o600);
    let wrong = secret(&folder, "wrong", "another one of some length", 0o600);
    let with =
        |host, file: &PathBuf| agent(&hosts, host, &["--secret-file", file.to_str().unwrap()]);
    let server = with(1, &right);
    let client = with(0, &right);
    let sealed = client.client().link(Op::LINK_ASK, "sealed-udp:");
    assert_eq!(sealed.status, Status::OK);
    let seals = [(); 3].map(|()| connects((&client, ""), (&server, "")).unwrap());
    assert!(seals[0] != seals[1] && seals[1] != seals[2] && seals[0] != seals[2]);
    assert!(!seals.contains(&[0; 32]));
    let mut process = server.client();
    let (nic, there) = open(&mut process, "");
    process.wait(nic, b"here");
    for other in [with(0, &wrong), agent(&hosts, 0, &[])] {
        let mut client = other.client();
        let (nic, _) = open(&mut client, "");
        let body = Request {
            nic,
            vi: 1,
            timeout_ms: 300,
            grace_ms: 0,
            segment_bytes: 10_000,
            reserved: 0,
            attributes: attributes(),
            local: Point::new(b"", b"me").unwrap(),
            remote: Point::new(address(&there), b"here").unwrap(),
        };
        let reply = client.ask(Op::REQUEST, &body);
        assert!(
            [Status::TIMEOUT, Status::NOT_REACHABLE].contains(&reply.status),
            "{reply:?}"
        );
    }
    // The server has received nothing: its wait goes on, and finds the right one.
    let right_one = with(0, &right);
    let mut client = right_one.client();
    let (near, _) = open(&mut client, "");
    client.request(near, address(&there), b"here", 20_000);
    assert_eq!(process.next().unwrap().op, Op::INCOMING);
}

/// A process that requires a secret gets no link without one.
#[test]
fn an_agent_without_a_secret_serves_no_one_who_has_one() {
    let Some(hosts) = hosts() else { return };
    let agent = agent(&hosts, 0, &[]);
    let mut client = agent.client();
    for op in [Op::LINK_OPEN, Op::LINK_ASK] {
        let reply = client.link(op, "sealed-udp:");
        assert_eq!(reply.status, Status::NOT_SEALED);
    }
}

#[test]
fn a_secret_that_is_not_one_opens_nothing() {
    let Some(hosts) = hosts() else { return };
    let folder = tempfile::tempdir().unwrap();
    let open = secret(&folder, "open", "a secret of some length", 0o644);
    let short = secret(&folder, "short", "short", 0o600);
    for file in [open, short, folder.path().join("none")] {
        let agent = agent(&hosts, 0, &["--secret-file", file.to_str().unwrap()]);
        let reply = link(&mut agent.client(), "");
        assert_eq!(reply.status, Status::NO_SECRET, "{}", file.display());
    }
}

/// A flood of frames without cookies: no state is kept for them, and others connect.
#[test]
fn a_flood_of_forged_calls_keeps_no_one_out() {
    let Some(hosts) = hosts() else { return };
    let agents = [agent(&hosts, 0, &[]), agent(&hosts, 1, &[])];
    let mut process = agents[0].client();
    let (_nic, there) = open(&mut process, "");
    let port = u16::from_be_bytes([there.host[4], there.host[5]]);
    let forged = Datagram {
        number: 1,
        cookie: 77,
        offer: 78,
        frame: Some(&[1; 200]),
    };
    let forged = forged.emit(false);
    let mut flooder = agents[1].client();
    let reply = link(&mut flooder, "");
    let flood = UdpSocket::from(OwnedFd::from(reply.fds.into_iter().next().unwrap()));
    let to = SocketAddr::new(hosts.ipv4(0).into(), port);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = flood.send_to(&forged, to);
            }
        });
        let ended = Stop(&stop);
        let begun = std::time::Instant::now();
        connects((&agents[1], ""), (&agents[0], ""));
        println!("connected and parted after {:?}", begun.elapsed());
        drop(ended);
    });
}

/// Ends the flood, even if the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// An agent of a user on host 0, and its log.
fn agent_of(hosts: &Namespaces, user: u32, options: &[&str]) -> Daemon {
    let folder = tempfile::tempdir().unwrap();
    // The build may be in a folder that other users cannot read.
    let program = folder.path().join("vipkad");
    std::fs::copy(env!("CARGO_BIN_EXE_vipkad"), &program).unwrap();
    std::os::unix::fs::chown(folder.path(), Some(user), Some(user)).unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let socket = folder.path().join("agent");
    let log = folder.path().join("log");
    let mut command = std::process::Command::new(&program);
    command
        .uid(user)
        .gid(user)
        .arg("--socket")
        .arg(&socket)
        .args(options)
        .env_remove("VIPL_UDP_PORT")
        .env_remove("VIPL_SECRET_FILE")
        .env_remove("VIPL_UDP_FROM")
        .env("VIPL_LOG_FILE", &log)
        .stdin(Stdio::null());
    let child = hosts.inside(0, || command.spawn()).unwrap().unwrap();
    Daemon {
        child,
        socket,
        folder,
        network: Some(hosts.name(0).to_owned()),
        user: Some(user),
    }
}

fn log_of(agent: &Daemon) -> String {
    std::fs::read_to_string(agent.folder.path().join("log")).unwrap_or_default()
}

/// A waiting server of an agent. Returns the agent's address.
fn server(agent: &Daemon, argument: &str) -> (Client, SocketAddr) {
    let mut process = agent.client();
    let (nic, opened) = open(&mut process, argument);
    process.wait(nic, b"here");
    (process, socket_of(&opened))
}

fn socket_of(opened: &LinkOpened) -> SocketAddr {
    let bytes = address(opened);
    let (ip, port) = bytes.split_at(bytes.len() - 2);
    let port = u16::from_be_bytes(port.try_into().unwrap());
    match <[u8; 4]>::try_from(ip) {
        Ok(ip) => SocketAddr::new(ip.into(), port),
        Err(_) => SocketAddr::new(<[u8; 16]>::try_from(ip).unwrap().into(), port),
    }
}

/// The result of a call, within two seconds.
fn called(agent: &Daemon, argument: &str, there: SocketAddr) -> Reply {
    called_within(2000, agent, argument, there)
}

fn called_within(timeout_ms: u64, agent: &Daemon, argument: &str, there: SocketAddr) -> Reply {
    let mut client = agent.client();
    let (nic, _) = open(&mut client, argument);
    let body = Request {
        nic,
        vi: 1,
        timeout_ms,
        grace_ms: 0,
        segment_bytes: 10_000,
        reserved: 0,
        attributes: attributes(),
        local: Point::new(b"", b"me").unwrap(),
        remote: Point::new(&bytes_of(there.ip(), there.port()), b"here").unwrap(),
    };
    client.ask(Op::REQUEST, &body)
}

/// No call has reached a server: the next one is the expected one.
fn no_one_has_called(server: &mut Client, agent: &Daemon, argument: &str, there: SocketAddr) {
    assert!(server.is_quiet());
    let mut right = agent.client();
    let (nic, opened) = open(&mut right, argument);
    assert_eq!(address(&opened), bytes_of(there.ip(), there.port()));
    right.request(nic, address(&opened), b"here", 20_000);
    assert_eq!(server.next().unwrap().op, Op::INCOMING);
}

const ALICE: u32 = 65_528;
const MALLORY: u32 = 65_529;

/// All combinations of users of one host as client and server, without a secret.
#[test]
fn users_of_one_host_are_strangers() {
    let Some(hosts) = hosts() else { return };
    let alice = agent_of(&hosts, ALICE, &[]);
    let mallory = agent_of(&hosts, MALLORY, &["--udp-from", "any"]);
    let roots = agent(&hosts, 0, &[]);
    let six = hosts.ipv6(0).to_string();
    for argument in ["", "127.0.0.1", &six] {
        let (mut waits, there) = server(&alice, argument);
        // The refusal names Mallory at once.
        let refused = called(&mallory, argument, there);
        assert_eq!(refused.status, Status::NOT_REACHABLE);
        let detail: Detail = refused.body();
        assert_eq!((detail.reason, detail.user), (Reason::OTHER_AGENT, ALICE));
        // From any address and socket of the host: no answer, not even a cookie.
        let first = Datagram {
            number: 1,
            cookie: 0,
            offer: 78,
            frame: Some(&[1; 200]),
        };
        let own = open(&mut mallory.client(), argument).1;
        let ips = [
            socket_of(&own).ip(),
            hosts.ipv4(0).into(),
            IpAddr::from([127, 0, 0, 1]),
        ];
        let same_family = |ip: &&IpAddr| ip.is_ipv4() == there.is_ipv4();
        for ip in ips.iter().filter(same_family) {
            let socket = mallory.inside(|| UdpSocket::bind((*ip, 0)).unwrap());
            socket.send_to(&first.emit(false), there).unwrap();
            // Once the agent has answered a process, it has read the datagram.
            alice.client();
            socket.set_nonblocking(true).unwrap();
            let nothing = socket.recv(&mut [0; 999]).unwrap_err();
            assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock, "{ip}");
        }
        // Alice's call reaches neither a server of Mallory nor one of root.
        for other in [&mallory, &roots] {
            let (_waits, there) = server(other, argument);
            let refused = called(&alice, argument, there);
            assert_eq!(refused.status, Status::NOT_REACHABLE);
        }
        no_one_has_called(&mut waits, &alice, argument, there);
    }
    let log = log_of(&alice);
    let reported = format!("it belongs to user {MALLORY} of this host");
    assert_eq!(
        log.matches(&reported).count(),
        3,
        "one line for a source: {log}"
    );
    // Two agents of one user connect.
    let second = agent_of(&hosts, ALICE, &[]);
    connects((&alice, ""), (&second, ""));
    connects((&second, "127.0.0.1"), (&alice, "127.0.0.1"));
}

/// The agent of all users does not call for one of them under its own name.
#[test]
fn the_agent_of_all_users_calls_no_one_on_its_host_for_another_user() {
    let Some(hosts) = hosts() else { return };
    let roots = agent(&hosts, 0, &["--udp-port", "4711"]);
    let all = agent(&hosts, 0, &["--system"]);
    let (mut waits, there) = server(&roots, "");
    let of_mallory = |argument: &str, there: SocketAddr| {
        let path = &all.socket;
        let mut client = all.inside(|| as_user(MALLORY, || Client::connect(path)));
        client.hello();
        let (nic, _) = open(&mut client, argument);
        let remote = bytes_of(there.ip(), there.port());
        let call = client.request(nic, &remote, b"here", 2000);
        client.reply(call)
    };
    assert_eq!(of_mallory("", there).status, Status::NOT_REACHABLE);
    // Another address of its own host is not a remote host either.
    let (_held, own) = server(&all, "127.0.0.1");
    assert_eq!(of_mallory("", own).status, Status::NOT_REACHABLE);
    no_one_has_called(&mut waits, &roots, "", there);
    connects((&all, ""), (&roots, ""));
}

/// Runs a function as another user; credentials belong to threads.
fn as_user<T: Send>(user: u32, what: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: a system call on integers; the wrapper of the C library would change all threads.
            let done = unsafe { libc::syscall(libc::SYS_setresuid, user, user, user) };
            assert_eq!(done, 0);
            what()
        });
        thread.join().unwrap()
    })
}

/// Hosts outside the subnets of this one cannot call; those that were called can answer.
#[test]
fn hosts_of_other_networks_call_where_they_are_let_in() {
    let made = Namespaces::routed().map_err(|why| println!("SKIP network namespaces: {why}"));
    let Ok(hosts) = made else { return };
    let closed = agent(&hosts, 0, &[]);
    let (mut waits, there) = server(&closed, "");
    let open_one = agent(&hosts, 1, &["--udp-from", "10.76.0.0/24"]);
    assert_eq!(called(&open_one, "", there).status, Status::TIMEOUT);
    no_one_has_called(&mut waits, &closed, "", there);
    // In the other direction, the call is answered.
    connects((&closed, ""), (&open_one, ""));
    let any = agent(&hosts, 0, &["--udp-from", "any", "--udp-port", "4711"]);
    connects((&open_one, ""), (&any, ""));
}

/// A process outside the agent's network namespace gets no access to it.
#[test]
fn a_process_of_another_network_namespace_gets_no_socket() {
    let Some(hosts) = hosts() else { return };
    let agent = agent(&hosts, 0, &["--system"]);
    let mut outside = Client::connect(&agent.socket);
    outside.hello();
    for name in ["udp:", "udp:127.0.0.1", INTERFACE] {
        for op in [Op::LINK_OPEN, Op::LINK_ASK] {
            let reply = outside.link(op, name);
            assert_eq!(reply.status, Status::OTHER_NETWORK, "{name}");
            assert!(reply.fds.is_empty());
        }
    }
    assert_eq!(link(&mut agent.client(), "").op, Op::LINK_OPENED);
}

/// The agent of all users binds the well-known port, or reports its holder.
#[test]
fn a_squatter_is_named() {
    let Some(hosts) = hosts() else { return };
    let squatter = agent_of(&hosts, MALLORY, &[]);
    let (_waits, there) = server(&squatter, "");
    assert_eq!(there.port(), PORT);
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let socket = folder.path().join("agent");
    let child = hosts
        .command(0, env!("CARGO_BIN_EXE_vipkad"))
        .args(["--system", "--socket"])
        .arg(&socket)
        .env("VIPL_LOG_FILE", &log)
        .env_remove("VIPL_UDP_PORT")
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let network = Some(hosts.name(0).to_owned());
    let all = Daemon {
        child,
        socket,
        folder,
        network,
        user: None,
    };
    assert_eq!(link(&mut all.client(), "").status, Status::BUSY);
    let said = std::fs::read_to_string(log).unwrap();
    let expected = format!("a program of user {MALLORY} has it");
    assert!(said.contains(&expected), "{said}");
    drop(squatter);
    let mut client = all.client();
    let opened = eventually(|| {
        let reply = link(&mut client, "");
        (reply.op == Op::LINK_OPENED).then(|| reply.body::<LinkOpened>())
    });
    assert_eq!(socket_of(&opened).port(), PORT);
}

/// A call without an answer in time reports the cause: no route, nothing at the port, silence, an agent
/// without a server.
#[test]
fn a_call_without_an_answer_is_explained() {
    let Some(hosts) = hosts() else { return };
    let here = agent(&hosts, 0, &[]);
    let there = SocketAddr::new(hosts.ipv4(1).into(), PORT);
    let why = |timeout_ms, host| {
        let reply = called_within(timeout_ms, &here, INTERFACE, host);
        (reply.status, reply.body::<Detail>().reason)
    };
    assert_eq!(why(1000, there), (Status::TIMEOUT, Reason::NO_AGENT));
    let elsewhere = SocketAddr::new([192, 0, 2, 1].into(), PORT);
    assert_eq!(why(1000, elsewhere), (Status::TIMEOUT, Reason::NO_ROUTE));
    // The kernel searches the Ethernet address of an absent host for three seconds.
    let unused = SocketAddr::new([10, 76, 0, 9].into(), PORT);
    assert_eq!(why(6000, unused), (Status::TIMEOUT, Reason::NO_ROUTE));
    let there = agent(&hosts, 1, &[]);
    let mut server = there.client();
    let (_, opened) = open(&mut server, INTERFACE);
    let answered = why(1000, socket_of(&opened));
    assert_eq!(answered, (Status::NO_MATCH, Reason::OTHER_HOST));
    there.signal(Signal::SIGSTOP);
    let silent = why(1000, socket_of(&opened));
    there.signal(Signal::SIGCONT);
    assert_eq!(silent, (Status::TIMEOUT, Reason::SILENT));
}

/// Hands a data socket of an agent that has exited over to the next one.
fn adopt(client: &mut Client, opened: &LinkOpened, fds: &[RawFd]) -> Reply {
    let body = LinkAdopt {
        endpoint: opened.endpoint,
        host_len: opened.host_len,
        host: opened.host,
    };
    let id = client.call(Op::LINK_ADOPT, &body, fds);
    client.reply(id)
}

#[test]
fn the_next_agent_takes_over_the_data_sockets_of_the_last_one() {
    let Some(hosts) = hosts() else { return };
    let first = agent(&hosts, 0, &[]);
    let mut process = first.client();
    let given = link(&mut process, "");
    let opened: LinkOpened = given.body();
    let socket = given.fds.into_iter().next().unwrap();
    let fds = [socket.as_raw_fd()];
    drop(first);
    let second = agent(&hosts, 0, &[]);
    let mut process = second.client();
    // Sockets that do not match the claim of the process.
    let another = second.inside(|| UdpSocket::bind((hosts.ipv4(0), 0)).unwrap());
    let wrong_port = LinkOpened {
        endpoint: opened.endpoint ^ 1,
        ..opened
    };
    let mut elsewhere = opened;
    elsewhere.host[3] ^= 0x80;
    for (claim, fds) in [
        (&opened, &[][..]),
        (&opened, &[another.as_raw_fd()]),
        (&opened, &[memory(b"none").as_raw_fd()]),
        (&wrong_port, &fds),
        (&elsewhere, &fds),
    ] {
        let refused = adopt(&mut process, claim, fds);
        assert_eq!((refused.op, refused.status), (Op::DONE, Status::INVALID));
    }
    // And one that does.
    let taken = adopt(&mut process, &opened, &fds);
    assert_eq!(taken.op, Op::LINK_OPENED, "{taken:?}");
    let taken: LinkOpened = taken.body();
    assert_eq!(
        (taken.endpoint, address(&taken)),
        (opened.endpoint, address(&opened))
    );
    let twice = adopt(&mut process, &opened, &fds);
    assert_eq!(twice.status, Status::INVALID, "it belongs to one NIC");
    let nic = process.ask(Op::NIC_OPEN, &nic_on("ip", &taken));
    let nic = nic.body::<NicOpened>().nic;
    let wait = process.wait(nic, b"here");
    // Another host reaches it at the known address.
    let other = agent(&hosts, 1, &[]);
    let mut client = other.client();
    let (near, _) = open(&mut client, "");
    let request = client.request(near, address(&opened), b"here", 20_000);
    let connection = process.accept(wait).body::<Connected>();
    let connection = connection.connection;
    process.call(Op::CONFIRM, &ConnectionRef { connection }, &[]);
    let connected = client.reply(request).body::<Connected>();
    assert_eq!(connected.remote_endpoint, opened.endpoint);
}

#[test]
fn an_agent_with_another_port_does_not_take_over() {
    let Some(hosts) = hosts() else { return };
    let first = agent(&hosts, 0, &[]);
    let given = link(&mut first.client(), "");
    let opened: LinkOpened = given.body();
    let socket = given.fds.into_iter().next().unwrap();
    let second = agent(&hosts, 0, &["--udp-port", "4711"]);
    let refused = adopt(&mut second.client(), &opened, &[socket.as_raw_fd()]);
    assert_eq!(refused.status, Status::BUSY);
    // The first one still exists, with its port.
    let third = agent(&hosts, 0, &[]);
    let refused = adopt(&mut third.client(), &opened, &[socket.as_raw_fd()]);
    assert_eq!(refused.status, Status::BUSY);
}
