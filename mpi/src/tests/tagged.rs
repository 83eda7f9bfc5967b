//! Endpoints for messages with tags, by their tables: several of them in one process, each with a queue and a vector of its own.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use super::pattern;
use super::world::{World, close, context, ok};
use crate::address::Address;
use crate::engine::Engine;
use crate::fi::*;
use crate::provider::fi_prov_ini;

/// A completion, or the error that takes its place.
type Outcome = Result<fi_cq_tagged_entry, fi_cq_err_entry>;

/// An endpoint whose peers have these numbers: the order in which they were made.
struct Tagged {
    ep: *mut fid_ep,
    cq: *mut fid_cq,
    av: *mut fid_av,
    address: [u8; 28],
}

/// Some endpoints that know each other.
fn ends(world: &World, count: usize) -> Vec<Tagged> {
    let ends: Vec<Tagged> = (0..count).map(|_| Tagged::new(world)).collect();
    for end in &ends {
        for (number, peer) in ends.iter().enumerate() {
            let mut given = u64::MAX;
            // SAFETY: calls as libfabric's programs make them, with objects that are open and room for results; here and below.
            let inserted = unsafe {
                let insert = (*(*end.av).ops).insert;
                insert(
                    end.av,
                    peer.address.as_ptr().cast(),
                    1,
                    &raw mut given,
                    0,
                    null_mut(),
                )
            };
            assert_eq!((inserted, given), (1, number as u64));
        }
    }
    ends
}

impl Tagged {
    fn new(world: &World) -> Tagged {
        let mut end = Tagged {
            ep: null_mut(),
            cq: null_mut(),
            av: null_mut(),
            address: [0; 28],
        };
        // SAFETY: see `ends`; hints are whole, and zero where they ask for nothing.
        unsafe {
            let (mut hints, mut endpoint): (fi_info, fi_ep_attr) =
                (std::mem::zeroed(), std::mem::zeroed());
            hints.caps = FI_TAGGED | FI_DIRECTED_RECV;
            endpoint.kind = FI_EP_RDM;
            hints.ep_attr = &raw mut endpoint;
            let provider = &*fi_prov_ini().cast::<fi_provider>();
            let mut info = null_mut();
            let getinfo = provider.getinfo;
            ok(getinfo(
                1 << 16 | 17,
                null_mut(),
                null_mut(),
                0,
                &raw const hints,
                &raw mut info,
            ));
            assert_eq!((*(*info).ep_attr).kind, FI_EP_RDM);
            let domain = &*(*world.domain).ops;
            ok((domain.av_open)(
                world.domain,
                null_mut(),
                &raw mut end.av,
                null_mut(),
            ));
            let mut attributes: fi_cq_attr = std::mem::zeroed();
            attributes.format = FI_CQ_FORMAT_TAGGED;
            let cq = &raw mut end.cq;
            ok((domain.cq_open)(
                world.domain,
                &raw mut attributes,
                cq,
                null_mut(),
            ));
            ok((domain.endpoint)(
                world.domain,
                info,
                &raw mut end.ep,
                null_mut(),
            ));
            let ep = end.ep.cast::<fid>();
            let ops = &*(*ep).ops;
            assert_eq!((ops.control)(ep, FI_ENABLE, null_mut()), -FI_ENOCQ);
            ok((ops.bind)(ep, end.cq.cast(), FI_TRANSMIT | FI_RECV));
            assert_eq!((ops.control)(ep, FI_ENABLE, null_mut()), -FI_EOPBADSTATE);
            ok((ops.bind)(ep, end.av.cast(), 0));
            ok((ops.control)(ep, FI_ENABLE, null_mut()));
            let mut length = end.address.len();
            ok(((*(*end.ep).cm).getname)(
                ep,
                end.address.as_mut_ptr().cast(),
                &raw mut length,
            ));
        }
        end
    }

    fn address(&self) -> Address {
        // SAFETY: so many bytes.
        let address = unsafe { Address::from_sockaddr(self.address.as_ptr().cast(), 28) };
        address.expect("one of ours")
    }

    fn ops(&self) -> &fi_ops_tagged {
        // SAFETY: open.
        unsafe { &*(*self.ep).tagged }
    }

    /// Sends, as soon as there is a connection; the data is the tag and 1000.
    fn send(&self, bytes: &[u8], to: u64, tag: u64, number: usize) {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            let (from, length) = (bytes.as_ptr().cast(), bytes.len());
            // SAFETY: see `ends`; the caller keeps the bytes until the send has completed.
            let code = unsafe {
                let send = self.ops().senddata;
                send(
                    self.ep,
                    from,
                    length,
                    null_mut(),
                    tag + 1000,
                    to,
                    tag,
                    context(number),
                )
            };
            if code == 0 {
                return;
            }
            assert_eq!(code, -(libc::EAGAIN as isize));
            assert!(Instant::now() < end, "no connection");
        }
    }

    fn receive(&self, room: &mut [u8], from: u64, tag: u64, ignore: u64, number: usize) {
        let (to, length) = (room.as_mut_ptr().cast(), room.len());
        // SAFETY: see `ends`; the caller keeps the room until the receive has completed.
        let code = unsafe {
            (self.ops().recv)(
                self.ep,
                to,
                length,
                null_mut(),
                from,
                tag,
                ignore,
                context(number),
            )
        };
        assert_eq!(code, 0);
    }

    /// A receive with flags.
    fn receive_by(&self, room: &mut [u8], tag: u64, number: usize, flags: u64) -> isize {
        let iov = libc::iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len(),
        };
        let message = fi_msg_tagged {
            msg_iov: &raw const iov,
            desc: std::ptr::null(),
            iov_count: 1,
            addr: FI_ADDR_UNSPEC,
            tag,
            ignore: 0,
            context: context(number),
            data: 0,
        };
        // SAFETY: as above.
        unsafe { (self.ops().recvmsg)(self.ep, &raw const message, flags) }
    }

    /// What the queue has now.
    fn next(&self) -> Option<Outcome> {
        // SAFETY: see `ends`.
        unsafe {
            let ops = &*(*self.cq).ops;
            let mut entry: fi_cq_tagged_entry = std::mem::zeroed();
            match (ops.read)(self.cq, (&raw mut entry).cast(), 1) {
                1 => Some(Ok(entry)),
                code if code == -(FI_EAVAIL as isize) => {
                    let mut entry: fi_cq_err_entry = std::mem::zeroed();
                    assert_eq!((ops.readerr)(self.cq, &raw mut entry, 0), 1);
                    Some(Err(entry))
                }
                code => {
                    assert_eq!(code, -(libc::EAGAIN as isize));
                    None
                }
            }
        }
    }

    /// The next completion of any kind.
    fn outcome(&self) -> Outcome {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            if let Some(outcome) = self.next() {
                return outcome;
            }
            assert!(Instant::now() < end, "no completion");
        }
    }

    fn completion(&self) -> fi_cq_tagged_entry {
        self.outcome()
            .unwrap_or_else(|error| panic!("error {}", error.err))
    }

    fn failure(&self) -> fi_cq_err_entry {
        self.outcome().err().expect("an error")
    }

    fn close(self) {
        close(self.ep);
        close(self.cq);
        close(self.av);
    }
}

/// The bytes of a message that was received.
fn expect(entry: &fi_cq_tagged_entry, number: usize, tag: u64, length: usize) {
    assert_eq!((entry.op_context, entry.len), (context(number), length));
    assert_eq!((entry.tag, entry.data), (tag, tag + 1000));
    assert_eq!(entry.flags, FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA);
}

/// Ends all of them, while each still answers the others.
fn close_all(ends: Vec<Tagged>) {
    ends.into_iter().for_each(Tagged::close);
}

#[test]
fn messages_of_all_sizes_find_their_receives() {
    let world = World::new();
    let ends = ends(&world, 2);
    let from = pattern(200_000);
    let mut to = vec![0; 200_000];
    for length in [0, 1, 1000, 1001, 16_872, 16_873, 200_000] {
        for late in [false, true] {
            to.fill(0);
            if !late {
                ends[1].receive(&mut to[..length], 0, 7, 0, 2);
            }
            ends[0].send(&from[..length], 1, 7, 1);
            if late {
                // It has come before the receive is posted.
                while ends[1].receive_by(&mut [], 7, 9, FI_PEEK) == 0 && ends[1].outcome().is_err()
                {
                }
                ends[1].receive(&mut to[..length], 0, 7, 0, 2);
            }
            expect(&ends[1].completion(), 2, 7, length);
            assert_eq!(to[..length], from[..length]);
            assert!(to[length..].iter().all(|byte| *byte == 0));
            let sent = ends[0].completion();
            assert_eq!(
                (sent.op_context, sent.flags),
                (context(1), FI_SEND | FI_TAGGED)
            );
        }
    }
    assert!(ends.iter().all(|end| end.next().is_none()));
    close_all(ends);
}

/// Tag, ignored bits and sender choose; of messages that suit, the first.
#[test]
fn a_receive_takes_the_first_message_that_suits() {
    let world = World::new();
    let ends = ends(&world, 3);
    let words: Vec<[u8; 8]> = (0..8u64).map(u64::to_le_bytes).collect();
    let mut to = [[0u8; 8]; 8];
    // Sender, tag, word.
    for (sender, tag, word) in [
        (0, 0x10, 0),
        (0, 0x21, 1),
        (0, 0x21, 2),
        (1, 0x21, 3),
        (1, 0x10, 4),
    ] {
        ends[sender].send(&words[word], 2, tag, word);
        ends[sender].completion();
    }
    // One after the other, whether the message has come or will. From whom, tag, ignored bits, the word that comes.
    let wanted = [
        (1, 0x21, 0, 3),
        (0, 0x20, 0xF, 1),
        (FI_ADDR_UNSPEC, 0x01, 0xF0, 2),
        (1, 0, u64::MAX, 4),
        (FI_ADDR_UNSPEC, 0, u64::MAX, 0),
    ];
    for (from, tag, ignore, word) in wanted {
        ends[2].receive(&mut to[word], from, tag, ignore, word);
        assert_eq!(ends[2].completion().op_context, context(word));
        assert_eq!(to[word], words[word]);
    }
    // The same with receives that wait: the first one that suits takes it.
    ends[2].receive(&mut to[5], 1, 0x30, 0, 5);
    ends[2].receive(&mut to[6], FI_ADDR_UNSPEC, 0x30, 0, 6);
    ends[2].receive(&mut to[7], FI_ADDR_UNSPEC, 0x30, 0, 7);
    ends[0].send(&words[6], 2, 0x30, 0);
    assert_eq!(ends[2].completion().op_context, context(6));
    ends[0].send(&words[7], 2, 0x30, 0);
    assert_eq!(ends[2].completion().op_context, context(7));
    ends[1].send(&words[5], 2, 0x30, 0);
    assert_eq!(ends[2].completion().op_context, context(5));
    assert_eq!(to[5..], words[5..]);
    close_all(ends);
}

/// Short messages are there when the send returns; one that has not come is reported as FI_ENOMSG.
#[test]
fn messages_are_probed_claimed_and_dropped() {
    let world = World::new();
    let ends = ends(&world, 2);
    let from = pattern(40_000);
    let mut to = vec![0; 40_000];
    assert_eq!(ends[1].receive_by(&mut to, 5, 1, FI_PEEK), 0);
    assert_eq!(ends[1].failure().err, libc::ENOMSG);
    assert_eq!(
        ends[1].receive_by(&mut to, 5, 1, FI_CLAIM),
        -(libc::EINVAL as isize)
    );
    for length in [64, 40_000] {
        for _ in 0..3 {
            ends[0].send(&from[..length], 1, 5, 1);
        }
        let find = |flags, number| loop {
            assert_eq!(ends[1].receive_by(&mut [], 5, number, flags), 0);
            match ends[1].outcome() {
                Ok(found) => break found,
                Err(error) => assert_eq!(error.err, libc::ENOMSG),
            }
        };
        let found = find(FI_PEEK, 2);
        assert_eq!((found.len, found.tag, found.data), (length, 5, 1005));
        expect(&find(FI_PEEK | FI_CLAIM, 3), 3, 5, length);
        expect(&find(FI_PEEK | FI_DISCARD, 4), 4, 5, length);
        // The third message is for who posts a receive, the first for who has claimed it.
        to.fill(0);
        ends[1].receive(&mut to[..length], FI_ADDR_UNSPEC, 5, 0, 5);
        expect(&ends[1].completion(), 5, 5, length);
        to.fill(0);
        assert_eq!(ends[1].receive_by(&mut to[..length], 5, 3, FI_CLAIM), 0);
        expect(&ends[1].completion(), 3, 5, length);
        assert_eq!(to[..length], from[..length]);
        // No sender waits for ever, whatever became of its message.
        (0..3).for_each(|_| assert_eq!(ends[0].completion().op_context, context(1)));
        // Claimed and not wanted.
        ends[0].send(&from[..length], 1, 5, 1);
        find(FI_PEEK | FI_CLAIM, 6);
        assert_eq!(ends[1].receive_by(&mut [], 5, 6, FI_CLAIM | FI_DISCARD), 0);
        assert_eq!(ends[1].completion().op_context, context(6));
        ends[0].completion();
    }
    close_all(ends);
}

#[test]
fn a_message_that_does_not_fit_is_cut() {
    let world = World::new();
    let ends = ends(&world, 2);
    let from = pattern(50_000);
    let mut to = vec![0; 50_000];
    for length in [100, 50_000] {
        for room in [10, 0] {
            to.fill(0);
            ends[1].receive(&mut to[..room], 0, 3, 0, 2);
            ends[0].send(&from[..length], 1, 3, 1);
            let cut = ends[1].failure();
            assert_eq!(
                (cut.err, cut.len, cut.olen),
                (FI_ETRUNC, room, length - room)
            );
            assert_eq!((to[..room].to_vec(), to[room]), (from[..room].to_vec(), 0));
            ends[0].completion();
        }
    }
    close_all(ends);
}

#[test]
fn a_receive_is_withdrawn() {
    let world = World::new();
    let ends = ends(&world, 2);
    let mut to = [0; 8];
    ends[0].receive(&mut to, FI_ADDR_UNSPEC, 1, 0, 4);
    // SAFETY: see `ends`.
    let cancel = |number| unsafe {
        let cancel = (*(*ends[0].ep).ops).cancel;
        cancel(ends[0].ep.cast(), context(number))
    };
    assert_eq!(cancel(3), -(libc::ENOENT as isize));
    assert_eq!(cancel(4), 0);
    let withdrawn = ends[0].failure();
    assert_eq!(
        (withdrawn.op_context, withdrawn.err),
        (context(4), libc::ECANCELED)
    );
    close_all(ends);
}

/// Both sides begin at the same time, as ranks do, and one of them also talks to itself.
#[test]
fn connections_that_cross_each_other_lose_nothing() {
    let world = World::new();
    for _ in 0..5 {
        let ends = ends(&world, 2);
        let from = pattern(30_000);
        let mut to = vec![vec![0; 30_000]; 3];
        let [first, second, third] = to.as_mut_slice() else {
            unreachable!("three");
        };
        ends[0].receive(first, 1, 1, 0, 1);
        ends[1].receive(second, 0, 1, 0, 1);
        ends[1].receive(third, 1, 2, 0, 2);
        ends[0].send(&from, 1, 1, 8);
        ends[1].send(&from, 0, 1, 8);
        ends[1].send(&from, 1, 2, 8);
        let mut seen = [0; 2];
        while seen != [2, 4] {
            for (end, seen) in ends.iter().zip(&mut seen) {
                *seen += usize::from(end.next().is_some_and(|outcome| outcome.is_ok()));
            }
        }
        assert!(to.iter().all(|to| *to == from));
        close_all(ends);
    }
}

/// What has come from a peer that closes stays; what it was to read fails, and so does what is sent to it.
#[test]
fn a_peer_that_closes() {
    let world = World::new();
    let mut ends = ends(&world, 2);
    let from = pattern(50_000);
    let mut to = vec![0; 50_000];
    let second = ends.pop().expect("two");
    // One that is read, so that the connection is there; then one that waits, and one that is only offered, in each direction.
    ends[0].receive(&mut to[..8], 1, 9, 0, 1);
    second.send(&from[..8], 0, 9, 1);
    ends[0].completion();
    second.completion();
    second.send(&from[..100], 0, 1, 1);
    second.completion();
    second.send(&from, 0, 2, 1);
    ends[0].send(&from, 1, 2, 7);
    let cq = second.cq;
    close(second.ep);
    let failed = ends[0].failure();
    assert_eq!(
        (failed.op_context, failed.flags),
        (context(7), FI_SEND | FI_TAGGED)
    );
    ends[0].receive(&mut to[..100], 1, 1, 0, 2);
    expect(&ends[0].completion(), 2, 1, 100);
    assert_eq!(to[..100], from[..100]);
    ends[0].receive(&mut to, 1, 2, 0, 3);
    let failed = ends[0].failure();
    assert_eq!(
        (failed.op_context, failed.err),
        (context(3), libc::ECONNRESET)
    );
    // SAFETY: see `ends`.
    let code = unsafe {
        let send = ends[0].ops().send;
        send(
            ends[0].ep,
            from.as_ptr().cast(),
            8,
            null_mut(),
            1,
            1,
            context(4),
        )
    };
    assert_eq!(code, -(libc::ENOTCONN as isize));
    close(cq);
    close(second.av);
    close_all(ends);
}

/// Peers that come and go do not use up the VIs: those of connections that are over can be had, and what came by them stays.
#[test]
fn a_peer_that_has_gone_holds_no_vi() {
    let world = World::new();
    let server = ends(&world, 1).pop().expect("one");
    let address = server.address();
    let nic = crate::nic::Nic::get().expect("open");
    let listening = |engine: &mut Engine| {
        let mut passives = engine.shared.passives.iter();
        let passive = passives.find(|(_, passive)| passive.address == address);
        passive
            .and_then(|(_, passive)| passive.tagged)
            .expect("listens")
    };
    let connections = || {
        let mut engine = nic.lock();
        let endpoints = engine.endpoints.iter();
        endpoints
            .filter(|(_, endpoint)| endpoint.local() == address)
            .count()
    };
    let word = pattern(8);
    let visit = |number: usize| {
        let client = Tagged::new(&world);
        // SAFETY: see `ends`.
        let inserted = unsafe {
            let insert = (*(*client.av).ops).insert;
            let from = server.address.as_ptr().cast();
            insert(client.av, from, 1, null_mut(), 0, null_mut())
        };
        assert_eq!(inserted, 1);
        client.send(&word, 0, number as u64, 1);
        client.completion();
        client
    };
    let stays = visit(0);
    for number in 1..4 {
        visit(number).close();
    }
    // The messages arrive, and the ends of the connections are noticed, while the server reads its queue.
    let end = Instant::now() + Duration::from_secs(60);
    while connections() > 1 {
        assert!(Instant::now() < end, "peers that have gone keep their VIs");
        assert!(server.next().is_none());
        let mut engine = nic.lock();
        let tagged = listening(&mut engine);
        engine.drop_ended(tagged);
    }
    let mut to = [0; 8];
    for number in 0..4 {
        server.receive(&mut to, FI_ADDR_UNSPEC, number, 0, 2);
        expect(&server.completion(), 2, number, 8);
        assert_eq!(to[..], word);
    }
    close_all(vec![stays, server]);
}

/// A peer whose offer makes no sense loses its connection, and takes no receive with it.
#[test]
fn a_peer_that_makes_no_sense() {
    let world = World::new();
    let ends = ends(&world, 3);
    let word = pattern(8);
    let mut to = [0; 8];
    for (number, peer) in (0..).zip(&ends[1..]) {
        peer.send(&word, 0, number, 1);
        ends[0].receive(&mut to, FI_ADDR_UNSPEC, number, 0, 1);
        expect(&ends[0].completion(), 1, number, 8);
    }
    ends[0].receive(&mut to, FI_ADDR_UNSPEC, 5, 0, 2);
    let nic = crate::nic::Nic::get().expect("open");
    let (own, of) = (ends[0].address(), ends[1].address());
    for (_, endpoint) in nic.lock().endpoints.iter() {
        if (endpoint.local(), endpoint.peer()) == (of, Some(own)) {
            endpoint.offer_nothing(5);
        }
    }
    let end = Instant::now() + Duration::from_secs(30);
    let is_over = || {
        let mut engine = nic.lock();
        let mut endpoints = engine.endpoints.iter();
        endpoints.any(|(_, endpoint)| endpoint.local() == own && endpoint.is_over())
    };
    while !is_over() {
        assert!(Instant::now() < end, "the connection stays");
        assert!(ends[0].next().is_none());
    }
    ends[2].send(&word, 0, 5, 3);
    expect(&ends[0].completion(), 2, 5, 8);
    close_all(ends);
}

/// Messages without a tag find receives without one, short and long ones, before and after them; those with a tag pass by.
#[test]
fn plain_messages_find_plain_receives() {
    let world = World::new();
    let ends = ends(&world, 2);
    let (from, mut to, mut other) = (pattern(50_000), vec![0; 50_000], vec![0; 8]);
    // SAFETY: open.
    let [sender, receiver] = [0, 1].map(|at| unsafe { &*(*ends[at as usize].ep).msg });
    for length in [0, 8, 16_000, 50_000] {
        for late in [false, true] {
            to.fill(0);
            ends[1].receive(&mut other, FI_ADDR_UNSPEC, 0, u64::MAX, 3);
            let (room, bytes) = (to.as_mut_ptr().cast(), from.as_ptr().cast());
            let post = || {
                // SAFETY: see `ends`; the memory stays until all has completed.
                let code = unsafe {
                    let (end, anyone) = (&ends[1], FI_ADDR_UNSPEC);
                    (receiver.recv)(end.ep, room, length, null_mut(), anyone, context(2))
                };
                assert_eq!(code, 0);
            };
            if !late {
                post();
            }
            let end = Instant::now() + Duration::from_secs(30);
            // SAFETY: as above.
            while unsafe {
                (sender.senddata)(ends[0].ep, bytes, length, null_mut(), 9, 1, context(1))
            } != 0
            {
                assert!(Instant::now() < end, "no connection");
            }
            ends[0].send(&from[..8], 1, 5, 4);
            let mut arrived = vec![];
            if late {
                arrived.push(ends[1].completion());
                post();
            }
            while arrived.len() < 2 {
                arrived.push(ends[1].completion());
            }
            // A long one is read while the next one comes.
            arrived.sort_by_key(|arrived| arrived.op_context as usize);
            expect(&arrived[1], 3, 5, 8);
            assert_eq!(
                (arrived[0].op_context, arrived[0].len),
                (context(2), length)
            );
            assert_eq!(arrived[0].flags, FI_RECV | FI_MSG | FI_REMOTE_CQ_DATA);
            assert_eq!((arrived[0].tag, arrived[0].data), (0, 9));
            assert!(to[..length] == from[..length]);
            let mut sent = [ends[0].completion(), ends[0].completion()];
            sent.sort_by_key(|sent| sent.op_context as usize);
            assert_eq!(sent.map(|sent| sent.op_context), [context(1), context(4)]);
            let flags = sent.map(|sent| sent.flags);
            assert_eq!(flags, [FI_SEND | FI_MSG, FI_SEND | FI_TAGGED]);
        }
    }
    close_all(ends);
}

/// An endpoint of the type FI_EP_MSG is rejected there, and does not wait.
#[test]
fn connected_endpoints_are_not_for_them() {
    let mut world = World::new();
    let ends = ends(&world, 1);
    world.address = ends[0].address;
    let client = world.end(world.info);
    world.connect(&client, b"");
    let (error, ep, _) = world.event_error();
    assert_eq!((error, ep), (libc::ECONNREFUSED, client.ep.cast()));
    client.close();
    close_all(ends);
}

/// No process listens: the first calls ask for patience, then they fail, so that a job ends.
#[test]
fn a_peer_that_is_not_reached() {
    let world = World::new();
    let ends = ends(&world, 1);
    let mut address = ends[0].address;
    address[2] ^= 0x40;
    // SAFETY: see `ends`.
    unsafe {
        let insert = (*(*ends[0].av).ops).insert;
        let from = address.as_ptr().cast();
        assert_eq!(insert(ends[0].av, from, 1, null_mut(), 0, null_mut()), 1);
    }
    let end = Instant::now() + Duration::from_secs(60);
    let word = [0u8; 8];
    loop {
        let from = word.as_ptr().cast::<c_void>();
        // SAFETY: see `ends`.
        let code = unsafe { (ends[0].ops().inject)(ends[0].ep, from, 8, 1, 1) };
        if code == -(libc::ECONNREFUSED as isize) {
            break;
        }
        assert_eq!(code, -(libc::EAGAIN as isize));
        assert!(Instant::now() < end, "it asks for ever");
        std::thread::sleep(Duration::from_millis(1));
    }
    // SAFETY: see `ends`.
    let missing = unsafe { (ends[0].ops().inject)(ends[0].ep, word.as_ptr().cast(), 8, 2, 1) };
    assert_eq!(missing, -(libc::EINVAL as isize), "there is no such peer");
    close_all(ends);
}
