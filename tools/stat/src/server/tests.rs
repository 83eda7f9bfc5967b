use std::net::Shutdown;
use std::sync::mpsc::{Receiver, channel};

use super::*;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

/// A server in a thread that ends with the process, whose patience is longer than the test.
fn serve(make: impl FnMut() -> io::Result<String> + Send + 'static) -> SocketAddr {
    let here = "127.0.0.1:0".parse().unwrap();
    let mut server = Server::new(here, make).unwrap();
    server.patience = LONG;
    let address = server.address();
    std::thread::spawn(move || server.run());
    address
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    // So that a test ends that has found a mistake.
    stream.set_read_timeout(Some(LONG / 10)).unwrap();
    stream
}

fn ask(address: SocketAddr, request: &str) -> String {
    let mut stream = connect(address);
    stream.write_all(request.as_bytes()).unwrap();
    stream.shutdown(Shutdown::Write).unwrap();
    text(&mut stream)
}

fn text(stream: &mut TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_scraper_is_answered_and_others_are_not() {
    let address = serve(|| Ok("figures\n".to_owned()));
    let text = ask(address, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 200 OK\r\n"), "{text}");
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("Content-Length: 8\r\n"), "{head}");
    assert_eq!(body, "figures\n");
    assert!(ask(address, "POST / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert_eq!(ask(address, "GET /"), "");
    assert_eq!(ask(address, &"x".repeat(REQUEST_MAX + 1)), "");
    assert!(ask(address, "HEAD / HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
    let failing = serve(|| Err(io::Error::other("no folder")));
    let text = ask(failing, "GET / HTTP/1.0\r\n\r\n");
    assert!(text.starts_with("HTTP/1.1 500") && text.ends_with("no folder\n"));
}

/// What a page in a browser could ask, after its name has come to mean this host.
#[test]
fn names_of_the_web_are_refused() {
    let address = serve(|| Ok("figures\n".to_owned()));
    let of = |hosts: &str| ask(address, &format!("GET / HTTP/1.1\r\n{hosts}\r\n\r\n"));
    for hosts in [
        "Host: evil.example",
        "host:evil.example:9477",
        "Host: localhost\r\nHost: evil.example",
        "Host: localhost\nHOST : evil.example",
        "Host: localhost.evil.example",
        "Host: 127.0.0.1.evil.example",
        "Host: ",
    ] {
        let text = of(hosts);
        assert!(text.starts_with("HTTP/1.1 403"), "{hosts}: {text}");
        assert!(!text.contains("figures"), "{hosts}: {text}");
    }
    for hosts in [
        "Host: localhost",
        "Host: LocalHost.:9477",
        "Host: 127.0.0.1:9477",
        "Host: [::1]:9477",
        "Host: [::1]",
        "Accept: evil.example",
    ] {
        assert!(of(hosts).ends_with("figures\n"), "{hosts}");
    }
}

/// Where others reach the port by the names of the host, these are served; the address decides.
#[test]
fn at_other_addresses_every_name_is_served() {
    for (address, others) in [
        ("127.0.0.1", false),
        ("127.8.0.1", false),
        ("::1", false),
        ("::ffff:127.0.0.1", false),
        ("192.0.2.1", true),
        ("0.0.0.0", true),
        ("::", true),
    ] {
        let address = address.parse().unwrap();
        assert_eq!(is_served(address, "db7.example"), others, "{address}");
        assert!(is_served(address, "localhost"), "{address}");
    }
}

/// More silent connections than there is room for: each new one ends the oldest of them, and who asks is answered, although
/// a silent one may stay for longer than the test.
#[test]
fn those_that_say_nothing_keep_no_scraper_out() {
    let address = serve(|| Ok("figures\n".to_owned()));
    let mut silent: Vec<TcpStream> = Vec::new();
    for _ in 0..3 {
        silent.extend((0..CONNECTIONS_MAX).map(|_| connect(address)));
        assert!(ask(address, "GET / HTTP/1.1\r\n\r\n").ends_with("figures\n"));
    }
    let last = silent.split_off(silent.len() - CONNECTIONS_MAX / 2);
    for stream in &mut silent[..CONNECTIONS_MAX] {
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    }
    for mut stream in last {
        stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        assert!(text(&mut stream).ends_with("figures\n"));
    }
}

/// One who has asked is not among the silent, however long the answer takes.
#[test]
fn those_that_have_asked_are_answered() {
    let (asked, has_asked) = channel();
    let (go, going): (_, Receiver<()>) = channel();
    let address = serve(move || {
        asked.send(()).unwrap();
        going.recv().unwrap();
        Ok("figures\n".to_owned())
    });
    let mut scraper = connect(address);
    scraper.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    has_asked.recv().unwrap();
    let mut silent: Vec<TcpStream> = (0..2 * CONNECTIONS_MAX).map(|_| connect(address)).collect();
    assert_eq!(silent[0].read(&mut [0]).unwrap(), 0);
    go.send(()).unwrap();
    assert!(text(&mut scraper).ends_with("figures\n"));
}

#[test]
fn a_scraper_that_reads_slowly_is_left() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (stream, _) = listener.accept().unwrap();
    let begun = Instant::now();
    let write = move || write_until(begun + PATIENCE, &stream, &vec![b'x'; 64 << 20]);
    let writer = std::thread::spawn(write);
    let mut part = vec![0; 64 << 10];
    while !writer.is_finished() && begun.elapsed() < 10 * PATIENCE {
        slow.read_exact(&mut part).unwrap();
        sleep(PATIENCE / 20);
    }
    assert!(writer.is_finished());
    assert!(writer.join().unwrap().is_err());
}
