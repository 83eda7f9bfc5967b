//! One agent of root's, two users: whatever one of them takes, there is something left for the other. Only
//! root can run these tests.

#![allow(clippy::unwrap_used)]

mod live;
mod users;

use std::os::fd::AsRawFd;

use kagent_proto::*;
use live::*;
use users::*;
use vipl_ethernet_tests::{INTERFACE, Namespaces};

/// A process of a user, or why the agent does not take it.
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
    let mut body = NicOpen {
        provider: [0; PROVIDER_BYTES],
        host_len: 1,
        reserved: [0; 3],
        host: [0; HOST_BYTES_MAX],
        link: 0,
        data_address: DataAddress::NONE,
    };
    body.provider[0] = b'x';
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
    // More processes are told why they are not taken.
    let mut more = Vec::new();
    let refused = loop {
        match try_client(&agent, MALLORY) {
            Ok(client) => more.push(client),
            Err(detail) => break detail,
        }
    };
    assert_eq!(refused.budget(), Some(Budget::Descriptors));
    bystander_is_served(&agent);
    // All of it comes back.
    drop((taken, more));
    eventually(|| (agent.open_fds() < 40).then_some(()));
    drop(client(&agent, MALLORY));
}

/// An agent in a network namespace, whose members of the group `daemon` get data sockets; and the group.
fn service_on_a_link() -> Option<(Namespaces, Daemon, libc::gid_t)> {
    let hosts = Namespaces::pair()
        .map_err(|why| println!("SKIP network namespaces: {why}"))
        .ok()?;
    let Ok(Some(group)) = nix::unistd::Group::from_name("daemon") else {
        println!("SKIP no group daemon");
        return None;
    };
    let folder = tempfile::tempdir().unwrap();
    let open_to_all = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open_to_all).unwrap();
    let socket = folder.path().join("agent");
    let child = hosts
        .command(0, env!("CARGO_BIN_EXE_vipkad"))
        .arg("--socket")
        .arg(&socket)
        .args(["--system", "--link-group", "daemon"])
        .stdin(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let agent = Daemon {
        child,
        socket,
        folder,
        network: None,
        user: None,
    };
    Some((hosts, agent, group.gid.as_raw()))
}

/// A process of a user in a group, with a NIC on the interface; gives its name.
fn on_the_link(agent: &Daemon, user: u32, group: libc::gid_t) -> (Client, u64) {
    let socket = agent.socket.clone();
    let mut client = as_user_in(user, group, || Client::connect(&socket)).unwrap();
    client.hello();
    let mut body = LinkOpen {
        interface: [0; LINK_BYTES],
    };
    body.interface[..INTERFACE.len()].copy_from_slice(INTERFACE.as_bytes());
    let link: LinkOpened = client.ask(Op::LINK_OPEN, &body).body();
    let mut body = NicOpen {
        provider: [0; PROVIDER_BYTES],
        host_len: link.host_len,
        reserved: [0; 3],
        host: link.host,
        link: link.link,
        data_address: DataAddress::NONE,
    };
    body.provider[0] = b'x';
    let nic = client.ask(Op::NIC_OPEN, &body).body::<NicOpened>().nic;
    (client, nic)
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
    // When the server's process has gone, whoever comes may follow.
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
