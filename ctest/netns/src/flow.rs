//! Streams from host 0 to host 1, of a VI and of TCP.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use vipl_ctest::{Run, program};

use crate::{Apart, Namespaces};

/// Whatever the system's choice is.
fn use_cubic(stream: &TcpStream) {
    let name = b"cubic";
    // SAFETY: the option's value is as long as stated.
    let status = unsafe {
        libc::setsockopt(
            stream.as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_CONGESTION,
            name.as_ptr().cast(),
            name.len() as libc::socklen_t,
        )
    };
    assert_eq!(status, 0, "{}", std::io::Error::last_os_error());
}

/// TCP, with CUBIC, from host 0 to host 1 as fast as it can, while `what` runs; gives what that gives, and the rate of
/// TCP in bytes per second in the time in which it ran, but for the first second.
///
/// # Panics
/// If TCP does not work between the hosts.
pub fn beside_tcp<T>(hosts: &Namespaces, what: impl FnOnce() -> T) -> (T, f64) {
    let listener = hosts.inside(1, || TcpListener::bind("0.0.0.0:0").expect("a port"));
    let listener = listener.expect("a host");
    let to = (
        hosts.ipv4(1),
        listener.local_addr().expect("an address").port(),
    );
    let stream = hosts.inside(0, || TcpStream::connect(to)).expect("a host");
    let mut stream = stream.expect("a connection");
    use_cubic(&stream);
    let (mut far, _) = listener.accept().expect("a client");
    let (bytes, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut goes_on = true;
            while goes_on && !over.load(Ordering::SeqCst) {
                goes_on = stream.write_all(&[1; 65_536]).is_ok();
            }
        });
        scope.spawn(|| {
            let mut room = [0; 65_536];
            while let Ok(got @ 1..) = far.read(&mut room) {
                bytes.fetch_add(got as u64, Ordering::SeqCst);
                if over.load(Ordering::SeqCst) {
                    let _ = far.shutdown(std::net::Shutdown::Both);
                }
            }
        });
        let sampler = scope.spawn(|| {
            // The other flow begins meanwhile.
            std::thread::sleep(Duration::from_secs(1));
            (Instant::now(), bytes.load(Ordering::SeqCst))
        });
        let result = what();
        let now = bytes.load(Ordering::SeqCst);
        let (begun, before) = sampler.join().expect("a sample");
        let rate = (now - before) as f64 / begun.elapsed().as_secs_f64();
        over.store(true, Ordering::SeqCst);
        (result, rate)
    })
}

/// Messages of 64 KiB from host 0 to host 1 for so many seconds: bytes per second.
///
/// # Panics
/// If that fails.
pub fn stream(apart: &Apart, device: &str, seconds: u32) -> f64 {
    let run = Run::strict(program("flow")).env("VIPL_DEVICE", device);
    let finished = apart.on_two_hosts(run).arg(seconds.to_string()).pass();
    let line = finished
        .stdout
        .lines()
        .find_map(|line| line.strip_prefix("bytes per second: "));
    let rate = line.and_then(|rate| rate.parse().ok());
    rate.unwrap_or_else(|| panic!("{}", finished.report("no rate")))
}
