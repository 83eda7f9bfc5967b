//! The plug-in over the test host of the SDK: one operation at a time, without library and agent.

use vipl_abi::{VIP_CONTROL_IMMEDIATE, VIP_CONTROL_OP_RDMAWRITE, VIP_ERROR_CODE};
use vipl_abi::{VIP_SERVICE_RELIABLE_DELIVERY, VIP_STATUS_DONE, VIP_STATUS_FORMAT_ERROR};
use vipl_abi::{VIP_STATUS_IMMEDIATE, VIP_STATUS_OP_RDMA_WRITE};
use vipl_abi::{VIP_STATUS_OP_RECEIVE, VIP_STATUS_OP_SEND};
use vipl_plugin_sdk::Queue;
use vipl_plugin_sdk::abi::{VIPL_CAUSE_DISCONNECTED, VIPL_CAUSE_REPORTED};
use vipl_plugin_sdk::testing::{Event, Memory, Plugin, Vi, connect, events};

/// Two connected VIs, and memory that both use.
struct World {
    left: Vi,
    right: Vi,
    memory: Memory,
}

fn world() -> World {
    let nic = Plugin::load(&crate::vipl_plugin_v1).open("").unwrap();
    let [mut left, mut right] = [0, 1].map(|_| nic.vi(VIP_SERVICE_RELIABLE_DELIVERY));
    connect(&mut left, &mut right);
    let memory = nic.memory(65_536);
    World {
        left,
        right,
        memory,
    }
}

#[test]
fn a_message_arrives_with_its_immediate_data() {
    let mut world = world();
    world.memory.write(1024, b"hello");
    let received = world.right.receive(&[world.memory.segment(0, 64)]);
    world.left.send(&[world.memory.segment(1024, 5)]);
    world.right.progress();
    let done = VIP_STATUS_OP_RECEIVE | VIP_STATUS_DONE;
    assert_eq!(world.right.status(received), done);
    assert_eq!(world.right.length(received), 5);
    assert_eq!(world.memory.read(0, 5), b"hello");

    let received = world.right.receive(&[]);
    let sent = world.left.post(Queue::Send, VIP_CONTROL_IMMEDIATE, &[]);
    world.right.progress();
    let flagged = done | VIP_STATUS_IMMEDIATE;
    assert_eq!(world.right.status(received), flagged);
    assert_eq!(
        world.right.immediate(received),
        world.left.immediate(sent),
        "as it was sent"
    );
    assert_eq!(events(), []);
}

#[test]
fn what_has_no_room_waits_for_progress() {
    let mut world = world();
    let data = world.memory.segment(0, 4);
    let sent: Vec<_> = (0..=crate::SLOTS)
        .map(|_| world.left.send(&[data]))
        .collect();
    for _ in &sent {
        world.right.receive(&[data]);
    }
    let done = VIP_STATUS_OP_SEND | VIP_STATUS_DONE;
    assert_eq!(world.left.status(sent[7]), done);
    assert_eq!(world.left.status(sent[8]), 0, "all slots are full");
    world.right.progress();
    world.left.progress();
    assert_eq!(world.left.status(sent[8]), done);
}

#[test]
fn rdma_is_a_format_error_that_ends_the_connection() {
    let mut world = world();
    let data = world.memory.segment(0, 4);
    let sent = world.left.rdma(VIP_CONTROL_OP_RDMAWRITE, data, &[data]);
    let status = VIP_STATUS_FORMAT_ERROR | VIP_STATUS_OP_RDMA_WRITE | VIP_STATUS_DONE;
    assert_eq!(world.left.status(sent), status);
    world.right.progress();
    let lost = VIP_ERROR_CODE::VIP_ERROR_CONN_LOST as i32;
    let expected = [
        Event::Failed(0, VIPL_CAUSE_REPORTED),
        Event::Failed(1, lost),
    ];
    assert_eq!(events(), expected);
}

#[test]
fn a_peer_that_disconnects_leaves_what_it_has_sent() {
    let mut world = world();
    let received = world.right.receive(&[world.memory.segment(0, 4)]);
    world.left.send(&[world.memory.segment(1024, 4)]);
    world.left.detach();
    world.right.progress();
    let done = VIP_STATUS_OP_RECEIVE | VIP_STATUS_DONE;
    assert_eq!(world.right.status(received), done);
    assert_eq!(events(), [Event::Failed(1, VIPL_CAUSE_DISCONNECTED)]);
}
