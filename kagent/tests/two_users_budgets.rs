//! One agent of root's, two users: whatever one of them takes, there is something left for the other. Only
//! root can run these tests.

#![allow(clippy::unwrap_used)]

mod live;
mod users;

use std::os::fd::AsRawFd;

use kagent_proto::*;
use live::*;
use users::*;

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
