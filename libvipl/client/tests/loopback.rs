//! The objects over the built library, in two threads on `via_lo`.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use vipl_client::{
    Access, Address, AsyncCode, Buffer, Code, Connected, Cq, Descriptor, Error, Fault, Idle,
    Library, Nic, Ptag, Region, Reliability, Remote, Request, Vi, ViOptions, ViState,
};

const WAIT: Option<Duration> = Some(Duration::from_secs(30));
const BYTES: u32 = 4096;

fn nic() -> Nic {
    static LIBRARY: OnceLock<&'static Library> = OnceLock::new();
    let library = LIBRARY.get_or_init(|| {
        Library::open_at(vipl_ctest::library_dir().join("libvipl.so.1")).expect("the library")
    });
    Nic::open(library, "via_lo").expect("via_lo")
}

fn options() -> ViOptions {
    ViOptions {
        rdma_write: true,
        rdma_read: true,
        ..ViOptions::new(Reliability::RECEPTION, 8192)
    }
}

fn descriptor(ptag: &Ptag, bytes: u32) -> Descriptor {
    let mut descriptor = Descriptor::new(ptag, 2).expect("a descriptor");
    if bytes > 0 {
        descriptor.attach(Buffer::new(ptag, bytes).expect("a buffer"));
    }
    descriptor
}

fn receive(ptag: &Ptag, number: u64) -> Descriptor {
    let mut receive = descriptor(ptag, BYTES);
    receive.set_user_data(number);
    receive.set_receive();
    receive
}

fn send(ptag: &Ptag, text: &[u8]) -> Descriptor {
    let mut send = descriptor(ptag, BYTES);
    send.data_mut(0)[..text.len()].copy_from_slice(text);
    send.set_send(text.len() as u32);
    send
}

/// A VI with so many receives.
fn vi(ptag: &Ptag, receives: u64, cq: Option<&Cq>) -> Vi<Idle> {
    let vi = Vi::new(ptag, options(), None, cq).expect("a VI");
    for number in 0..receives {
        vi.post_receive(receive(ptag, number)).expect("posted");
    }
    vi
}

fn connect(mut vi: Vi<Idle>, nic: &Nic, name: &str) -> Vi<Connected> {
    let server = nic.address(name.as_bytes());
    loop {
        match vi.connect(&nic.address(b"client"), &server, WAIT) {
            Ok(connected) => return connected,
            Err(refused) if refused.error.code() == Some(Code::NoMatch) => vi = refused.value,
            Err(refused) => panic!("{refused}"),
        }
    }
}

/// Two connected VIs of one NIC: the client's and the server's.
fn pair(
    nic: &Nic,
    name: &str,
    client: Vi<Idle>,
    server: Vi<Idle>,
) -> (Vi<Connected>, Vi<Connected>) {
    std::thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            let request = Request::wait(nic, &nic.address(name.as_bytes()), WAIT)
                .expect("a wait")
                .expect("a client");
            assert_eq!(request.client(), &nic.address(b"client"));
            assert_eq!(request.options().reliability, Reliability::RECEPTION);
            request.accept(server).expect("accepted")
        });
        let client = connect(client, nic, name);
        assert!(client.peer().rdma_write && client.peer().rdma_read);
        (client, accepted.join().expect("no panic"))
    })
}

#[test]
fn a_message_comes_with_its_descriptor_and_its_number() {
    let nic = nic();
    let ptag = Ptag::new(&nic).expect("a tag");
    let (client, server) = pair(&nic, "message", vi(&ptag, 0, None), vi(&ptag, 2, None));
    assert_eq!(server.status().expect("a state").state, ViState::Connected);
    assert!(server.receive_done().expect("nothing").is_none());
    // In three pieces, with 32 bits.
    let mut whole = Buffer::new(&ptag, 9).expect("a buffer");
    whole.copy_from_slice(b"abcdefghi");
    let (middle, end) = (whole.split_off(3), whole.len());
    let mut pieces = Descriptor::new(&ptag, 3).expect("a descriptor");
    pieces.attach(whole);
    pieces.attach(middle);
    pieces.set_send_of(&[(1, 0..2), (0, 0..end as u32), (1, 4..6)]);
    pieces.set_immediate(7);
    client.post_send(pieces).expect("posted");
    let got = server
        .receive_wait(WAIT)
        .expect("no error")
        .expect("a message");
    assert_eq!((got.user_data(), got.immediate()), (0, Some(7)));
    assert_eq!(got.received(), b"deabchi");
    let mut sent = client.send_wait(WAIT).expect("no error").expect("complete");
    assert_eq!(sent.status().operation(), "send");
    let parts = sent.detach();
    assert_eq!(
        (&parts[0][..], &parts[1][..]),
        (&b"abc"[..], &b"defghi"[..])
    );
    // The descriptor that came is posted again as it is, and is the second from now on.
    server.post_receive(got).expect("posted");
    for (text, number) in [(&b"x"[..], 1), (b"", 0)] {
        client.post_send(send(&ptag, text)).expect("posted");
        let got = server
            .receive_wait(WAIT)
            .expect("no error")
            .expect("a message");
        assert_eq!((got.user_data(), got.received()), (number, text));
        assert_eq!(got.immediate(), None);
    }
    assert!(server.receive_wait(WAIT).expect("an empty queue").is_none());
}

#[test]
fn rdma_reaches_what_the_region_permits_and_nothing_else() {
    let nic = nic();
    let ptag = Ptag::new(&nic).expect("a tag");
    let (client, server) = pair(&nic, "rdma", vi(&ptag, 0, None), vi(&ptag, 1, None));
    let open = Access {
        write: true,
        read: true,
    };
    let region = Region::new(&ptag, 100, open).expect("a region");
    // Edges that are not aligned.
    region.write(5, b"0123456789abcdefghij");
    let remote = Remote::from_message(region.remote(5, 20).to_message());
    let mut read = descriptor(&ptag, BYTES);
    read.set_read(20, remote);
    client.post_send(read).expect("posted");
    let read = client.send_wait(WAIT).expect("no error").expect("complete");
    assert_eq!(&read.data(0)[..20], b"0123456789abcdefghij");
    let mut write = descriptor(&ptag, BYTES);
    write.data_mut(0)[..3].copy_from_slice(b"XYZ");
    write.set_write(
        3,
        Remote {
            address: remote.address + 9,
            ..remote
        },
    );
    write.set_immediate(1);
    client.post_send(write).expect("posted");
    let got = server
        .receive_wait(WAIT)
        .expect("no error")
        .expect("a notice");
    assert_eq!(got.status().operation(), "remote RDMA Write");
    let mut bytes = [0; 20];
    region.read(5, &mut bytes);
    assert_eq!(&bytes, b"012345678XYZcdefghij");
    assert!(client.send_wait(WAIT).expect("no error").is_some());
    // A buffer is not open to RDMA; the error returns the descriptor.
    drop(region);
    let mut write = descriptor(&ptag, BYTES);
    write.set_user_data(77);
    write.set_write(3, remote);
    client.post_send(write).expect("posted");
    let failed = client.send_wait(WAIT).expect_err("a region that is gone");
    let Error::Completion { status, .. } = failed.error else {
        panic!("{failed}")
    };
    assert_eq!(status.faults(), [Fault::RdmaProtection]);
    assert_eq!(failed.value.expect("the descriptor").user_data(), 77);
}

#[test]
fn borrowed_memory_is_registered_while_the_closure_runs() {
    let nic = nic();
    let ptag = Ptag::new(&nic).expect("a tag");
    let (client, _server) = pair(&nic, "scope", vi(&ptag, 0, None), vi(&ptag, 1, None));
    let mut memory = vec![0u8; 64];
    let remote = Region::scoped(&ptag, &mut memory, Access::WRITE, |region| {
        let remote = region.remote(8, 5);
        let mut write = descriptor(&ptag, BYTES);
        write.data_mut(0)[..5].copy_from_slice(b"hello");
        write.set_write(5, remote);
        client.post_send(write).expect("posted");
        client.send_wait(WAIT).expect("no error").expect("complete");
        remote
    })
    .expect("registered");
    assert_eq!(&memory[8..13], b"hello");
    let mut late = descriptor(&ptag, BYTES);
    late.set_write(5, remote);
    client.post_send(late).expect("posted");
    assert!(
        client.send_wait(WAIT).is_err(),
        "it is not registered any more"
    );
    assert_eq!(&memory[8..13], b"hello");
    let empty = Region::scoped(&ptag, &mut [], Access::WRITE, |_| ());
    assert_eq!(
        empty.expect_err("nothing").code(),
        Some(Code::InvalidParameter)
    );
}

#[test]
fn a_connection_that_ends_returns_all_descriptors() {
    let nic = nic();
    let ptag = Ptag::new(&nic).expect("a tag");
    let (sender, receiver) = mpsc::channel();
    nic.on_error(move |error| {
        let _ = sender.send((error.code, error.vi));
    })
    .expect("a handler");
    let (client, server) = pair(&nic, "end", vi(&ptag, 3, None), vi(&ptag, 3, None));
    let id = server.id();
    let client = client.disconnect().expect("disconnected");
    assert_eq!(client.status().expect("a state").state, ViState::Idle);
    let limit = WAIT.unwrap_or_default();
    let lost = receiver.recv_timeout(limit).expect("an asynchronous error");
    assert_eq!(lost, (AsyncCode::ConnectionLost, Some(id)));
    let server = server.disconnect().expect("disconnected");
    let mut numbers = Vec::new();
    while let Err(flushed) = client.receive_done() {
        assert_eq!(
            flushed.to_string(),
            "VipRecvDone returned a receive descriptor with DESC_FLUSHED_ERROR"
        );
        numbers.push(flushed.value.expect("the descriptor").user_data());
    }
    assert_eq!(numbers, [0, 1, 2]);
    // What is left on the second one is dropped with it; both connect again.
    let (client, server) = pair(&nic, "end", client, server);
    drop(server);
    drop((client, ptag));
    let attributes = nic.attributes().clone();
    assert!(attributes.thread_safe && attributes.name.contains("via_lo"));
}

#[test]
fn what_a_call_uses_up_comes_back_with_its_error() {
    let nic = nic();
    let ptag = Ptag::new(&nic).expect("a tag");
    let idle = vi(&ptag, 1, None);
    let unused = nic.address(b"nobody waits here");
    let refused = idle
        .connect(&nic.address(b"x"), &unused, WAIT)
        .expect_err("nobody");
    assert_eq!(refused.error.code(), Some(Code::NoMatch));
    assert_eq!(
        refused.to_string(),
        "VipConnectRequest returned VIP_NO_MATCH"
    );
    let own = nic.address(b"nobody asks here");
    let none = Request::wait(&nic, &own, Some(Duration::ZERO)).expect("a wait");
    assert!(none.is_none());
    let bad = Address::new(b"short", b"");
    let refused = refused
        .value
        .connect(&bad, &bad, WAIT)
        .expect_err("a host of 5 bytes");
    assert_eq!(refused.error.code(), Some(Code::InvalidParameter));
    let idle = refused.value;
    // More receives than the queue has room for.
    let room = nic.attributes().descriptors_per_queue_max;
    let refused = (0..room).find_map(|number| {
        let mut empty = Descriptor::new(&ptag, 0).expect("a descriptor");
        empty.set_user_data(number);
        idle.post_receive(empty).err()
    });
    let refused = refused.expect("a full queue");
    assert_eq!(refused.error.code(), Some(Code::Resource));
    assert_eq!(refused.value.user_data(), room - 1);
    // A client is rejected, and may try again with the same VI.
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut waited = Request::wait(&nic, &nic.address(b"reject"), WAIT);
            waited.take_request().reject().expect("rejected");
            waited = Request::wait(&nic, &nic.address(b"reject"), WAIT);
            // Another largest message; the request survives the error, and dropping it rejects.
            let smaller = ViOptions::new(Reliability::RECEPTION, 512);
            let vi = Vi::new(&ptag, smaller, None, None).expect("a VI");
            let refused = waited
                .take_request()
                .accept(vi)
                .expect_err("512 is not 8 KiB");
            assert_eq!(refused.error.code(), Some(Code::InvalidMtu));
            assert!(refused.value.1.is_some());
        });
        let mut idle = idle;
        for _ in 0..2 {
            loop {
                let address = nic.address(b"reject");
                let refused = idle
                    .connect(&nic.address(b"x"), &address, WAIT)
                    .expect_err("no");
                idle = refused.value;
                match refused.error.code() {
                    Some(Code::NoMatch) => {}
                    code => break assert_eq!(code, Some(Code::Reject)),
                }
            }
        }
    });
}

trait TakeRequest {
    fn take_request(&mut self) -> Request;
}

impl TakeRequest for vipl_client::Result<Option<Request>> {
    fn take_request(&mut self) -> Request {
        let taken = std::mem::replace(self, Ok(None));
        taken.expect("a wait").expect("a client")
    }
}

#[test]
fn two_that_request_each_other_are_connected() {
    let nic = nic();
    let ptag = Ptag::new(&nic).expect("a tag");
    let (one, two) = (nic.address(b"peer 1"), nic.address(b"peer 2"));
    let first = vi(&ptag, 1, None)
        .connect_peer(&one, &two, WAIT)
        .expect("begun");
    let first = match first.try_wait().expect("no error") {
        Ok(_) => panic!("connected with nobody"),
        Err(pending) => pending.cancel().expect("given up"),
    };
    assert!(first.receive_done().is_err(), "a receive that was flushed");
    first.post_receive(receive(&ptag, 0)).expect("posted");
    let first = first.connect_peer(&one, &two, WAIT).expect("begun");
    let second = vi(&ptag, 1, None)
        .connect_peer(&two, &one, WAIT)
        .expect("begun");
    let (first, second) = (
        first.wait().expect("connected"),
        second.wait().expect("connected"),
    );
    first.post_send(send(&ptag, b"peer")).expect("posted");
    let got = second
        .receive_wait(WAIT)
        .expect("no error")
        .expect("a message");
    assert_eq!(got.received(), b"peer");
}

#[test]
fn a_completion_queue_names_the_vi_and_calls_once() {
    let nic = nic();
    let ptag = Ptag::new(&nic).expect("a tag");
    let cq = Cq::new(&nic, 16).expect("a queue");
    let (client, server) = pair(&nic, "cq", vi(&ptag, 0, None), vi(&ptag, 3, Some(&cq)));
    assert_eq!(cq.done().expect("no error"), None);
    assert_eq!(cq.wait(Some(Duration::ZERO)).expect("no error"), None);
    client.post_send(send(&ptag, b"1")).expect("posted");
    let entry = cq.wait(WAIT).expect("no error").expect("an entry");
    assert_eq!((entry.vi, entry.is_receive), (server.id(), true));
    assert!(server.receive_done().expect("no error").is_some());
    let (sender, receiver) = mpsc::channel();
    let held = Arc::new(AtomicUsize::new(0));
    for _ in 0..2 {
        let (sender, held) = (sender.clone(), Arc::clone(&held));
        cq.notify(move |entry| {
            held.fetch_add(1, Ordering::Relaxed);
            let _ = sender.send(entry);
        })
        .expect("registered");
    }
    client.post_send(send(&ptag, b"2")).expect("posted");
    let entry = receiver
        .recv_timeout(WAIT.unwrap_or_default())
        .expect("a call");
    assert_eq!(entry.vi, server.id());
    cq.resize(32).expect("resized");
    // The second one is cancelled: what it holds is dropped without a call. The first one may just be ending.
    drop((server, cq));
    while Arc::strong_count(&held) > 1 {
        std::thread::yield_now();
    }
    // One more entry was the flush of the third receive, which may have called it.
    assert!(held.load(Ordering::Relaxed) <= 2);
}

#[test]
fn a_completion_queue_wakes_an_event_loop() {
    let readable = |fd: BorrowedFd<'_>, ms| {
        let mut poll = libc::pollfd {
            fd: fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one structure.
        unsafe { libc::poll(&raw mut poll, 1, ms) == 1 }
    };
    let nic = nic();
    let ptag = Ptag::new(&nic).expect("a tag");
    let cq = Cq::new(&nic, 16).expect("a queue");
    let error = cq.arm().expect_err("no descriptor yet");
    assert_eq!(error.code(), Some(Code::InvalidParameter));
    let fd = cq.fd().expect("a descriptor");
    let (client, server) = pair(&nic, "fd", vi(&ptag, 0, None), vi(&ptag, 2, Some(&cq)));
    cq.arm().expect("armed");
    assert!(!readable(fd, 0));
    client.post_send(send(&ptag, b"1")).expect("posted");
    assert!(readable(fd, 20_000));
    assert_eq!(
        cq.done().expect("no error").map(|entry| entry.vi),
        Some(server.id())
    );
    cq.arm().expect("armed");
    assert!(!readable(fd, 0));
}

#[test]
fn a_leaked_vi_keeps_what_is_posted() {
    let nic = nic();
    let ptag = Ptag::new(&nic).expect("a tag");
    let (client, server) = pair(&nic, "leak", vi(&ptag, 0, None), vi(&ptag, 1, None));
    std::mem::forget(server);
    drop(ptag);
    // Its memory is still there to be written.
    let ptag = Ptag::new(&nic).expect("a tag");
    let own = client.raw().ptag().clone();
    let text = b"into leaked memory";
    client.post_send(send(&own, text)).expect("posted");
    assert!(client.send_wait(WAIT).expect("no error").is_some());
    // Memory of another tag is refused.
    client.post_send(send(&ptag, text)).expect("posted");
    let failed = client.send_wait(WAIT).expect_err("another tag");
    let Error::Completion { status, .. } = failed.error else {
        panic!("{failed}")
    };
    assert_eq!(status.faults(), [Fault::Protection]);
}

#[test]
fn names_and_topics_of_the_library() {
    let nic = nic();
    let unknown = nic
        .host_by_name("no.such.host.vipl.invalid")
        .expect_err("a name");
    assert_eq!(unknown.code(), Some(Code::NameService));
    assert!(unknown.to_string().contains("no.such.host"), "{unknown}");
    let address = nic.attributes().address.clone();
    assert_eq!(nic.discover(0).expect("hosts"), [address]);
    let version = nic.library().describe("version").expect("a document");
    assert!(version.contains("\"library\""), "{version}");
    assert_eq!(nic.library().describe("no such topic"), None);
    let error = Nic::open(nic.library(), "no\0device").expect_err("a name with NUL");
    assert_eq!(error.to_string(), "a device name cannot contain NUL");
    let error = Nic::open(nic.library(), "no_such_device").expect_err("a device");
    assert_eq!(
        error.to_string(),
        "VipOpenNic (no_such_device) returned VIP_INVALID_PARAMETER"
    );
}
