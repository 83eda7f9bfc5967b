//! Device processes and the processes introduced to them.

use crate::world::*;
use kagent_proto::*;

#[test]
fn a_process_is_introduced_by_what_the_system_says_of_it() {
    let mut world = World::with_clients(1);
    world.connect(2, 2000);
    world.hello(2);
    world.devices.push("card");
    for client in [1, 2] {
        world.call(client, Op::DEVICE_OPEN, 7, &device_open("card"));
        let packet = world.take(client);
        assert_eq!(
            (packet.op, packet.id, packet.status),
            (Op::DEVICE_OPENED, 7, Status::OK)
        );
        assert_eq!(packet.body::<DeviceOpened>().pid, 88);
        assert_eq!(packet.fds, [3_000_000]);
    }
    let reported: Vec<(u32, u32)> = world.introduced.iter().map(|o| (o.uid, o.pid)).collect();
    assert_eq!(reported, [(1000, 101), (2000, 102)]);
    world.end();
}

#[test]
fn a_device_that_is_not_there_and_a_name_that_is_none() {
    let mut world = World::with_clients(1);
    world.devices.push("card");
    world.call(1, Op::DEVICE_OPEN, 7, &device_open("ghost"));
    world.expect_done(1, 7, Status::INVALID);
    for name in ["", "../card", "Card", "a.b", "card card"] {
        world.call(1, Op::DEVICE_OPEN, 8, &device_open(name));
        world.expect_done(1, 8, Status::INVALID);
    }
    let mut endless = device_open("card");
    endless.device = [b'a'; DEVICE_BYTES];
    world.call(1, Op::DEVICE_OPEN, 9, &endless);
    world.expect_done(1, 9, Status::INVALID);
    let mut tail = device_open("card");
    tail.device[20] = b'x';
    world.call(1, Op::DEVICE_OPEN, 10, &tail);
    world.expect_done(1, 10, Status::INVALID);
    assert!(world.introduced.is_empty());
    world.end();
}
