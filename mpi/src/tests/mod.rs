//! The whole provider in one process, by the tables that libfabric would call: two endpoints connect to each other over
//! the library under test. `FI_VIPL_DEVICE` chooses another device than loopback.

mod tagged;
mod world;

use std::ffi::{c_int, c_void};

use vipl_abi::*;

use crate::device::Handle;
use crate::engine::{Completion, Queue};

use self::world::{End, Memory, World, close, context, ok};
use crate::fi::*;

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 7 + at / 255) as u8).collect()
}

#[test]
fn messages_of_all_sizes_wait_for_their_receives() {
    let world = World::new();
    let (client, server) = world.pair();
    let from = world.memory(pattern(200_000));
    let mut to = world.memory(vec![0; 200_000]);
    for length in [0, 1, 40, 1000, 1001, 16_872, 16_873, 200_000] {
        for late in [false, true] {
            to.bytes.fill(0);
            if !late {
                assert_eq!(server.receive(&mut to, length, 2), 0);
            }
            assert_eq!(client.send(&from, length, 1), 0);
            if late {
                assert_eq!(server.receive(&mut to, length, 2), 0);
            }
            let arrived = server.completion();
            assert_eq!((arrived.op_context, arrived.len), (context(2), length));
            assert_eq!(arrived.flags, FI_RECV | FI_MSG);
            assert_eq!(to.bytes[..length], from.bytes[..length]);
            assert!(to.bytes[length..].iter().all(|byte| *byte == 0));
            let sent = client.completion();
            assert_eq!(
                (sent.op_context, sent.flags),
                (context(1), FI_SEND | FI_MSG)
            );
        }
    }
    client.close();
    server.close();
}

#[test]
fn a_message_that_does_not_fit_is_cut_and_the_next_one_is_whole() {
    let world = World::new();
    let (client, server) = world.pair();
    let from = world.memory(pattern(50_000));
    let mut to = world.memory(vec![0; 50_000]);
    for length in [100, 50_000] {
        assert_eq!(server.receive(&mut to, 10, 2), 0);
        assert_eq!(client.send(&from, length, 1), 0);
        let cut = server.failure();
        assert_eq!((cut.err, cut.len, cut.olen), (FI_ETRUNC, 10, length - 10));
        assert_eq!(to.bytes[10], 0);
        assert_eq!(server.receive(&mut to, length, 3), 0);
        assert_eq!(client.send(&from, length, 1), 0);
        assert_eq!(server.completion().len, length);
        assert_eq!(to.bytes[..length], from.bytes[..length]);
        to.bytes.fill(0);
        client.completion();
        client.completion();
    }
    client.close();
    server.close();
}

/// 64 messages leave though neither side makes progress: a program may compute after it has sent them.
#[test]
fn a_burst_leaves_at_once() {
    let world = World::new();
    let (client, server) = world.pair();
    // SAFETY: an open endpoint.
    let room = || unsafe { ((*(*client.ep).ops).tx_size_left)(client.ep) };
    let before = room();
    for number in 0..64u64 {
        let word = number.to_le_bytes();
        // SAFETY: eight bytes, copied during the call.
        let code = unsafe { (client.msg().inject)(client.ep, word.as_ptr().cast(), 8, 0) };
        assert_eq!((code, room()), (0, before), "message {number} waits");
    }
    let mut to = world.memory(vec![0; 8]);
    for number in 0..64u64 {
        assert_eq!(server.receive(&mut to, 8, 1), 0);
        server.completion();
        assert_eq!(to.bytes, number.to_le_bytes());
    }
    client.close();
    server.close();
}

/// More than the window: what finds no room is refused, and nothing is lost.
#[test]
fn a_sender_waits_for_a_receiver() {
    let world = World::new();
    let (client, server) = world.pair();
    let mut to = world.memory(vec![0; 8]);
    let (mut sent, mut refused) = (0u64, 0);
    while refused < 3 {
        let word = sent.to_le_bytes();
        // SAFETY: eight bytes, copied during the call.
        match unsafe { (client.msg().inject)(client.ep, word.as_ptr().cast(), 8, 0) } {
            0 => sent += 1,
            code => {
                assert_eq!(code, -(libc::EAGAIN as isize));
                refused += 1;
            }
        }
    }
    assert!(sent >= 4096, "only {sent} were taken");
    for number in 0..sent {
        assert_eq!(server.receive(&mut to, 8, 1), 0);
        server.completion();
        assert_eq!(to.bytes, number.to_le_bytes());
    }
    client.nothing();
    client.close();
    server.close();
}

#[test]
fn memory_is_written_and_read() {
    let world = World::new();
    let (client, server) = world.pair();
    let mut near = world.memory(pattern(300_000));
    let far = world.memory(vec![0; 300_000]);
    let (address, key) = (far.address(), far.key());
    let rma = client.rma();
    // SAFETY: registered memory that lives until the test ends.
    unsafe {
        let from = near.bytes.as_ptr().cast();
        assert_eq!(
            (rma.write)(
                client.ep,
                from,
                300_000,
                near.desc(),
                0,
                address,
                key,
                context(1)
            ),
            0
        );
        let written = client.completion();
        assert_eq!(
            (written.op_context, written.flags),
            (context(1), FI_WRITE | FI_RMA)
        );
        assert_eq!(
            (rma.writedata)(
                client.ep,
                from,
                5,
                near.desc(),
                77,
                0,
                address,
                key,
                context(2)
            ),
            0
        );
        assert_eq!(client.completion().op_context, context(2));
    }
    let written = server.completion();
    assert_eq!(
        (written.flags, written.data),
        (FI_REMOTE_WRITE | FI_RMA | FI_REMOTE_CQ_DATA, 77)
    );
    assert_eq!(far.bytes, near.bytes);
    near.bytes.fill(0);
    for length in [0, 1, 300_000] {
        // SAFETY: as above.
        unsafe {
            let to = near.bytes.as_mut_ptr().cast();
            assert_eq!(
                (rma.read)(
                    client.ep,
                    to,
                    length,
                    near.desc(),
                    0,
                    address,
                    key,
                    context(3)
                ),
                0
            );
        }
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        // The other side is this thread, too, so it must not sleep: it answers when a queue is read.
        loop {
            // SAFETY: see `World::new`.
            let read = unsafe {
                let mut entry: fi_cq_data_entry = std::mem::zeroed();
                ((*(*client.cq).ops).read)(client.cq, (&raw mut entry).cast(), 1)
            };
            if read == 1 {
                break;
            }
            assert_eq!(read, -(libc::EAGAIN as isize));
            assert!(std::time::Instant::now() < end, "a read does not end");
        }
        assert_eq!(near.bytes[..length], far.bytes[..length]);
    }
    client.close();
    server.close();
}

#[test]
fn a_wrong_key_ends_in_an_error_and_nothing_is_written() {
    let world = World::new();
    let (client, server) = world.pair();
    let near = world.memory(pattern(64));
    let far = world.memory(vec![0; 64]);
    // SAFETY: registered memory that lives until the test ends.
    unsafe {
        let write = client.rma().write;
        let key = far.key() ^ 0x5_0000;
        assert_eq!(
            write(
                client.ep,
                near.bytes.as_ptr().cast(),
                64,
                near.desc(),
                0,
                far.address(),
                key,
                context(1)
            ),
            0
        );
    }
    // The write may have completed before the device knew; then the end of the connection reports the error.
    let (kind, ..) = world.event();
    assert_eq!(kind, FI_SHUTDOWN);
    assert!(far.bytes.iter().all(|byte| *byte == 0));
    client.close();
    server.close();
}

#[test]
fn a_rejection_brings_its_data() {
    let world = World::new();
    let client = world.end(world.info);
    world.connect(&client, b"");
    let (kind, _, info, _) = world.event();
    assert_eq!(kind, FI_CONNREQ);
    // SAFETY: the info of a request has its handle.
    unsafe {
        ok(((*(*world.pep).cm).reject)(
            world.pep,
            (*info).handle,
            b"no".as_ptr().cast(),
            2,
        ))
    };
    assert_eq!(
        world.event_error(),
        (libc::ECONNREFUSED, client.ep.cast(), b"no".to_vec())
    );
    client.close();
}

#[test]
fn no_listener() {
    let mut world = World::new();
    world.address[2] ^= 0x40; // another port
    let client = world.end(world.info);
    world.connect(&client, b"");
    let (error, ep, _) = world.event_error();
    assert_eq!((error, ep), (libc::ECONNREFUSED, client.ep.cast()));
    client.close();
}

#[test]
fn closing_one_side_reports_to_the_other() {
    let world = World::new();
    let (client, server) = world.pair();
    let mut to = world.memory(vec![0; 64]);
    assert_eq!(client.receive(&mut to, 64, 5), 0);
    server.close();
    let (kind, ep, ..) = world.event();
    assert_eq!((kind, ep), (FI_SHUTDOWN, client.ep.cast()));
    let withdrawn = client.failure();
    assert_eq!(
        (withdrawn.op_context, withdrawn.err),
        (context(5), libc::ECANCELED)
    );
    assert_eq!(client.send(&to, 8, 6), -(libc::ENOTCONN as isize));
    client.close();
}

/// Sends the last messages of a side: short ones, and one in several packets.
fn send_the_last(end: &End, from: &Memory) {
    for number in 0..LAST {
        let length = if number == 2 { 40_000 } else { 8 + number };
        assert_eq!(end.send(from, length, 100 + number), 0);
    }
}

const LAST: usize = 5;

/// Reads what a completion queue has; returns how many receives and sends have ended well.
fn read_all(end: &End) -> (usize, usize) {
    let (mut received, mut sent) = (0, 0);
    while let Some(entry) = end.next() {
        match entry {
            Ok(entry) if entry.flags & FI_RECV != 0 => received += 1,
            Ok(_) => sent += 1,
            Err(entry) => assert_eq!(entry.flags & FI_SEND, 0, "a send failed: {}", entry.err),
        }
    }
    (received, sent)
}

/// What has arrived when a connection ends is reported, whichever side closes first, and closing takes nothing of it back:
/// `ofi_rxm` closes at FI_SHUTDOWN and reads afterwards.
#[test]
fn the_last_messages_before_the_end_arrive() {
    let world = World::new();
    let from = world.memory(pattern(40_000));
    let mut to = world.memory(vec![0; 40_000]);
    for _ in 0..10 {
        let (client, server) = world.pair();
        for end in [&client, &server] {
            for number in 0..LAST + 2 {
                assert_eq!(end.receive(&mut to, 40_000, number), 0);
            }
            send_the_last(end, &from);
        }
        // What the server has sent is at the client when the server knows it; the client has read nothing.
        let mut seen = (0, 0);
        while seen.1 < LAST {
            match server.completion().flags & FI_RECV {
                0 => seen.1 += 1,
                _ => seen.0 += 1,
            }
        }
        close(client.ep);
        assert_eq!(read_all(&client), (LAST, LAST), "at the side that closes");
        let (kind, ep, ..) = world.event();
        assert_eq!((kind, ep), (FI_SHUTDOWN, server.ep.cast()));
        close(server.ep);
        let (received, _) = read_all(&server);
        assert_eq!(seen.0 + received, LAST, "at the other side");
        // Neither end knows the closed endpoint any more, and neither is harmed by a late call: `ofi_rxm` gives the
        // receives that it reads now back to the endpoint.
        assert_eq!(server.receive(&mut to, 8, 1), -(libc::EBADF as isize));
        close(client.cq);
        close(server.cq);
    }
}

/// A send that fails because the peer has closed does not take back what the peer had sent before.
#[test]
fn a_send_that_fails_leaves_what_has_arrived() {
    let world = World::new();
    let from = world.memory(pattern(40_000));
    let mut to = world.memory(vec![0; 40_000]);
    for _ in 0..10 {
        let (client, server) = world.pair();
        for number in 0..LAST {
            assert_eq!(server.receive(&mut to, 40_000, number), 0);
        }
        send_the_last(&client, &from);
        client.close();
        // Refused, or taken and not carried out.
        while server.send(&from, 8, 200) == 0 {}
        let mut received = 0;
        while let Some(entry) = server.next() {
            received += match entry {
                Ok(entry) => usize::from(entry.flags & FI_RECV != 0),
                Err(entry) => {
                    assert_ne!(entry.flags & FI_SEND, 0, "a receive failed");
                    0
                }
            };
        }
        assert_eq!(received, LAST);
        assert_eq!(world.event().0, FI_SHUTDOWN);
        server.close();
    }
}

/// Messages for which no receive was posted wait beyond the connection's end, and a receive for which there is none
/// does not.
#[test]
fn messages_outlive_their_connection() {
    let world = World::new();
    let (client, server) = world.pair();
    let from = world.memory(pattern(40_000));
    let mut to = world.memory(vec![0; 40_000]);
    send_the_last(&client, &from);
    client.close();
    assert_eq!(world.event().0, FI_SHUTDOWN);
    for number in 0..LAST {
        assert_eq!(server.receive(&mut to, 40_000, number), 0);
        assert_eq!(server.completion().op_context, context(number));
    }
    let late = server.receive(&mut to, 40_000, LAST);
    assert_eq!(late, -(libc::ENOTCONN as isize));
    server.close();
}

/// A job whose ranks do not reach each other ends: after attempts that have failed the call itself does.
#[test]
fn an_address_without_an_answer_is_refused_in_the_end() {
    let mut world = World::new();
    world.address[2] ^= 0x20;
    for attempt in 0..3 {
        let client = world.end(world.info);
        // SAFETY: an open endpoint and an address.
        let code = unsafe {
            let connect = (*(*client.ep).cm).connect;
            connect(
                client.ep,
                world.address.as_ptr().cast(),
                std::ptr::null(),
                0,
            )
        };
        if attempt < 2 {
            assert_eq!(code, 0);
            assert_eq!(world.event_error().0, libc::ECONNREFUSED);
        } else {
            assert_eq!(code, -libc::ECONNREFUSED);
        }
        client.close();
    }
}

/// A request of a program that knows nothing of the provider, at this level.
fn raw_request(world: &World, level: VIP_RELIABILITY_LEVEL) -> (Handle, c_int) {
    let nic = crate::nic::Nic::get().expect("open");
    let bytes = nic.device.limits.address_bytes;
    let vi = nic.device.create_vi(level).expect("a VI");
    let mut local = nic.address(0).to_vip(bytes);
    let mut remote = nic.address(world.port()).to_vip(bytes);
    let mut attributes = std::mem::MaybeUninit::<vipl_abi::VIP_VI_ATTRIBUTES>::zeroed();
    // SAFETY: an idle VI, addresses, and room for the attributes.
    let code = unsafe {
        (nic.device.functions.VipConnectRequest)(
            vi.raw(),
            local.as_mut_ptr(),
            remote.as_mut_ptr(),
            30_000,
            attributes.as_mut_ptr(),
        )
    };
    (vi, code)
}

/// A request at another level is rejected, and need not wait for its time to end.
#[test]
fn another_level_is_rejected() {
    let world = World::new();
    let nic = crate::nic::Nic::get().expect("open");
    let levels = VIP_SERVICE_RELIABLE_DELIVERY | VIP_SERVICE_RELIABLE_RECEPTION;
    let (vi, code) = raw_request(&world, levels ^ nic.device.limits.level);
    assert_eq!(code, VIP_RETURN::VIP_REJECT as c_int);
    // SAFETY: a VI of this test, on which nothing is posted.
    ok(unsafe { (nic.device.functions.VipDestroyVi)(vi.raw()) });
    let (client, server) = world.pair();
    client.close();
    server.close();
}

/// A peer that connects and sends nothing loses the VI that waits for it.
#[test]
fn a_silent_stranger_holds_no_vi() {
    let world = World::new();
    let nic = crate::nic::Nic::get().expect("open");
    let strangers = || {
        let mut engine = nic.lock();
        let count = engine
            .endpoints
            .iter()
            .filter(|(_, endpoint)| endpoint.local().port == world.port() && endpoint.is_request());
        count.count()
    };
    let mut vis = Vec::new();
    for _ in 0..3 {
        let (vi, code) = raw_request(&world, nic.device.limits.level);
        assert_eq!(code, 0, "VipConnectRequest");
        vis.push(vi);
    }
    let end = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while strangers() > 0 {
        assert!(std::time::Instant::now() < end, "strangers keep their VIs");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    // Others are served meanwhile and afterwards.
    let (client, server) = world.pair();
    client.close();
    server.close();
    for vi in vis {
        nic.device.disconnect(vi);
        // SAFETY: a VI of this test, on which nothing is posted.
        ok(unsafe { (nic.device.functions.VipDestroyVi)(vi.raw()) });
    }
}

/// Who knows a host's address and a port that the program has chosen needs to know nothing of the process.
#[test]
fn a_known_port_is_reached_without_the_process() {
    let mut world = World::new();
    world.listen_at(4711);
    // The address has the random number of the process, as ofi_rxm makes it; it is requested without.
    world.address[14..18].fill(0);
    let (client, server) = world.pair();
    client.close();
    server.close();
}

#[test]
fn an_endpoint_closes_while_it_connects() {
    let mut world = World::new();
    world.address[2] ^= 0x40;
    for _ in 0..5 {
        let client = world.end(world.info);
        world.connect(&client, b"");
        client.close();
    }
}

/// The sleeper is woken by another thread's message.
#[test]
fn a_sleeper_wakes() {
    let world = World::new();
    let (client, server) = world.pair();
    let from = world.memory(pattern(8));
    let mut to = world.memory(vec![0; 8]);
    for number in 0..50 {
        assert_eq!(server.receive(&mut to, 8, number), 0);
        let ep = client.ep as usize;
        let (address, desc) = (from.bytes.as_ptr() as usize, from.desc() as usize);
        let send = client.msg().send;
        let sender = std::thread::spawn(move || {
            // SAFETY: objects and memory live until the thread is joined.
            unsafe {
                send(
                    ep as *mut fid_ep,
                    address as *const c_void,
                    8,
                    desc as *mut c_void,
                    0,
                    context(1),
                )
            }
        });
        assert_eq!(server.completion().op_context, context(number));
        assert_eq!(sender.join().expect("a thread"), 0);
        client.completion();
    }
    client.close();
    server.close();
}

/// An entry of another queue does not leave a sleeper behind, even if that queue is never read.
#[test]
fn a_sleeper_wakes_beside_an_unread_queue() {
    let world = World::new();
    let (client, server) = world.pair();
    let from = world.memory(pattern(8));
    let mut to = world.memory(vec![0; 8]);
    let far = world.memory(vec![0; 8]);
    assert_eq!(server.receive(&mut to, 8, 1), 0);
    // SAFETY: an open queue, here and below.
    let queues = unsafe {
        (
            crate::cq::CompletionQueue::of(server.cq.cast()).id(),
            crate::cq::CompletionQueue::of(client.cq.cast()).id(),
        )
    };
    let nic = crate::nic::Nic::get().expect("open");
    type Completions = Queue<Completion>;
    let has = |id, what: fn(&Completions) -> bool| {
        let shared = &mut nic.lock().shared;
        shared.completions.get(id).is_some_and(|queue| what(queue))
    };
    std::thread::scope(|scope| {
        let cq = server.cq as usize;
        let sleeper = scope.spawn(move || {
            let server = End {
                ep: std::ptr::null_mut(),
                cq: cq as *mut fid_cq,
            };
            server.completion().op_context as usize
        });
        while !has(queues.0, |queue| queue.has_sleepers()) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let (write, memory, desc) = (client.rma().write, from.bytes.as_ptr().cast(), from.desc());
        let (address, key) = (far.address(), far.key());
        // SAFETY: registered memory that lives until the test ends.
        unsafe {
            assert_eq!(
                write(client.ep, memory, 8, desc, 0, address, key, context(2)),
                0
            );
            while !has(queues.1, |queue| !queue.entries.is_empty()) {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        assert_eq!(client.send(&from, 8, 3), 0);
        assert_eq!(sleeper.join().expect("a thread"), 1);
    });
    client.close();
    server.close();
}

/// A thread that has been cancelled comes back from every call: below frames of Rust a cancellation would end the process.
#[test]
fn a_cancelled_thread_comes_back() {
    let world = World::new();
    let (client, server) = world.pair();
    let from = world.memory(pattern(8));
    let mut to = world.memory(vec![0; 8]);
    assert_eq!(server.receive(&mut to, 8, 1), 0);
    let (client_at, server_at, from_at) = (
        &raw const client as usize,
        &raw const server as usize,
        &raw const from as usize,
    );
    let world_at = &raw const world as usize;
    let thread = std::thread::spawn(move || {
        // SAFETY: the objects live until the thread is joined, and no other thread uses them meanwhile.
        let (world, client, server, from) = unsafe {
            (
                &*(world_at as *const World),
                &*(client_at as *const End),
                &*(server_at as *const End),
                &*(from_at as *const Memory),
            )
        };
        // SAFETY: this thread, which does not act on it before it comes to a point of cancellation.
        ok(unsafe { libc::pthread_cancel(libc::pthread_self()) });
        assert_eq!(client.send(from, 8, 2), 0);
        let received = server.completion().op_context as usize;
        let sent = client.completion().op_context as usize;
        // Each of these makes the library call for the next entry: VipCQNotify is a cancellation point.
        for _ in 0..50 {
            assert!(server.next().is_none());
            crate::nic::Nic::get().expect("open").lock().forget_call();
        }
        let other = world.end(world.info);
        other.close();
        vipl_sys::cancel::disable();
        (sent, received)
    });
    assert_eq!(thread.join().expect("a thread"), (2, 1));
    client.close();
    server.close();
}
