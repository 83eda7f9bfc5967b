//! One agent of root's, two users: whatever one of them takes, the other has a share left. Only root can run
//! these tests.

#![allow(clippy::unwrap_used)]

mod live;
mod users;

use std::os::fd::AsRawFd;

use kagent_proto::*;
use live::*;
use users::*;
use vipl_netns::{INTERFACE, Namespaces};

/// A process of a user, or the agent's reason to refuse it.
fn try_client(agent: &Daemon, user: u32) -> Result<Client, Detail> {
    let socket = agent.socket.clone();
    let mut client = as_user(user, || Client::connect(&socket)).unwrap();
    match client.try_hello() {
        Ok(_) => Ok(client),
        Err(why) => Err(why.expect("a reason before the end")),
    }
}

#[test]
fn one_user_leaves_descriptors_for_others() {
    let Some(_alone) = alone_as_root() else {
        return;
    };
    let agent = service("ulimit -n 800", &[]);
    let file = memory(b"x");
    let fd = file.as_raw_fd();
    let body = NicOpen {
        data_address: DataAddress::NONE,
        ..nic_open("x", &[0])
    };
    let mut taken = Vec::new();
    let refused = 'all: loop {
        let mut mallory = match try_client(&agent, MALLORY) {
            Ok(client) => client,
            Err(detail) => break detail,
        };
        for _ in 0..64 {
            let id = mallory.call(Op::NIC_OPEN, &body, &[fd, fd]);
            let reply = mallory.reply(id);
            if reply.op != Op::NIC_OPENED {
                assert_eq!(reply.status, Status::RESOURCE);
                break 'all reply.body();
            }
        }
        taken.push(mallory);
    };
    assert_eq!(
        (refused.reason, refused.budget(), refused.user),
        (Reason::USER_BUDGET, Some(Budget::Descriptors), MALLORY)
    );
    assert_eq!(refused.limit, (800 - 64) / 2);
    assert!(agent.open_fds() < 500, "{}", agent.open_fds());
    bystander_is_served(&agent);
    // Further processes receive the reason why they are refused.
    let mut more = Vec::new();
    let refused = loop {
        match try_client(&agent, MALLORY) {
            Ok(client) => more.push(client),
            Err(detail) => break detail,
        }
    };
    assert_eq!(refused.budget(), Some(Budget::Descriptors));
    bystander_is_served(&agent);
    // All of it is released.
    drop((taken, more));
    eventually(|| (agent.open_fds() < 40).then_some(()));
    drop(client(&agent, MALLORY));
}

/// An agent in a network namespace, whose members of the group `daemon` get data sockets; and the group.
fn service_on_a_link() -> Option<(Namespaces, Daemon, libc::gid_t)> {
    let hosts = hosts()?;
    let Ok(Some(group)) = nix::unistd::Group::from_name("daemon") else {
        println!("SKIP no group daemon");
        return None;
    };
    let agent = Daemon::start_on(&hosts, 0, &["--system", "--link-group", "daemon"]);
    agent.open_to_all();
    Some((hosts, agent, group.gid.as_raw()))
}

/// A process of a user in a group, with a NIC on the interface; returns its identifier.
fn on_the_link(agent: &Daemon, user: u32, group: libc::gid_t) -> (Client, u64) {
    let socket = agent.socket.clone();
    let of_user = || as_user_in(user, group, || Client::connect(&socket)).unwrap();
    let mut client = agent.inside(of_user);
    client.hello();
    let link: LinkOpened = client.link(Op::LINK_OPEN, INTERFACE).body();
    let nic = client.ask(Op::NIC_OPEN, &nic_on("x", &link));
    (client, nic.body::<NicOpened>().nic)
}

#[test]
fn one_user_does_not_get_the_remote_clients_of_another() {
    let Some(_alone) = alone_as_root() else {
        return;
    };
    let Some((_hosts, agent, group)) = service_on_a_link() else {
        return;
    };
    let (mut server, its_nic) = on_the_link(&agent, BYSTANDER, group);
    let (mut mallory, nic) = on_the_link(&agent, MALLORY, group);
    server.wait(its_nic, b"d");
    // So that the server waits before mallory asks.
    assert_eq!(server.neighbours(its_nic), 1);
    let wait = mallory.wait(nic, b"d");
    let refused = mallory.reply(wait);
    assert_eq!(refused.status, Status::RESOURCE);
    let detail: Detail = refused.body();
    assert_eq!(
        (detail.reason, detail.user),
        (Reason::NAME_TAKEN, BYSTANDER)
    );
    // When the server's process has exited, any process may take the name.
    drop(server);
    eventually(|| {
        let local = Point::new(b"", b"d").unwrap();
        let look = Wait {
            nic,
            timeout_ms: 0,
            local,
            reserved: 0,
        };
        let reply = mallory.ask(Op::WAIT, &look);
        (reply.status == Status::TIMEOUT).then_some(())
    });
}

/// Processes that send calls and hang up at once are also read within their user's share of each pass, and
/// others in between.
#[test]
fn calls_of_those_who_have_hung_up_do_not_go_first() {
    const CROWD: usize = 100;
    const CALLS: usize = 100;
    let Some(_alone) = alone_as_root() else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let prelude = format!(
        "export VIPL_LOG=client=debug VIPL_LOG_FILE={}",
        log.display()
    );
    let agent = service(&prelude, &[]);
    let socket = agent.socket.clone();
    // An agent that stops before it listens refuses every connection.
    let _first = as_user(MALLORY, || Client::connect(&socket)).unwrap();
    agent.signal(nix::sys::signal::Signal::SIGSTOP);
    let garbage = [7; 40];
    as_user(MALLORY, || {
        for _ in 0..CROWD {
            let client = Client::connect(&socket);
            for _ in 0..CALLS {
                client.raw(&garbage, &[]).unwrap();
            }
        }
    });
    let mut other = as_user(BYSTANDER, || Client::connect(&socket)).unwrap();
    other.raw(&garbage, &[]).unwrap();
    agent.signal(nix::sys::signal::Signal::SIGCONT);
    other.next().unwrap();
    let mine = format!("client {}: ", CROWD + 2);
    let before = eventually(|| {
        let log = std::fs::read_to_string(&log).unwrap();
        let calls = || {
            log.lines()
                .filter(|line| line.contains(" debug client: client "))
        };
        calls().position(|line| line.contains(&mine))
    });
    println!("{before} calls of {} came first", CROWD * CALLS);
    assert!(before < CROWD * CALLS / 10, "{before} calls came first");
    // They are counted nevertheless.
    eventually(|| {
        let log = std::fs::read_to_string(&log).unwrap();
        let calls = log
            .lines()
            .filter(|line| line.contains(" debug client: client "));
        (calls.count() == CROWD * CALLS + 1).then_some(())
    });
}
