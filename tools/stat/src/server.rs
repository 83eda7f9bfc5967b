//! The port on which the text for Prometheus is served.
//!
//! A request is answered with everything, whatever it asks for; only GET and HEAD are answered. That is all of HTTP that a scraper
//! needs, so there is no crate for it.
//!
//! Everybody who reaches the port may ask, and each user of this host reaches its loopback addresses. A connection has two seconds to
//! ask and two to take the answer. There are at most 64; then the one that has been silent longest is closed for a new one, so
//! those that say nothing keep no scraper out.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use vipl_sys::clock::{Instant, poll, sleep};

/// How long a scraper may take to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long the port is left alone after it could not be asked for a connection, for instance for want of a descriptor.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest request; what is beyond is not read.
const REQUEST_MAX: usize = 8192;
/// Connections at a time.
const CONNECTIONS_MAX: usize = 64;

/// A port, and what makes the text.
pub(crate) struct Server<Make> {
    listener: TcpListener,
    address: SocketAddr,
    patience: Duration,
    make: Mutex<Make>,
    connections: Mutex<Connections>,
    /// One of the connections has ended.
    fewer: Condvar,
}

#[derive(Default)]
struct Connections {
    count: usize,
    /// Those without a whole request, the oldest first.
    asking: VecDeque<Arc<TcpStream>>,
}

impl Connections {
    fn has_asked(&mut self, stream: &Arc<TcpStream>) {
        self.asking.retain(|other| !Arc::ptr_eq(other, stream));
    }

    /// Ends the oldest one of which there is nothing to read. Its thread finds the end of the stream.
    fn end_a_silent_one(&mut self) {
        let is_silent = |stream: &Arc<TcpStream>| {
            let mut ready = [libc::pollfd {
                fd: stream.as_raw_fd(),
                events: libc::POLLIN,
                revents: 0,
            }];
            poll(&mut ready, Some(Duration::ZERO)) == 0
        };
        if let Some(place) = self.asking.iter().position(is_silent)
            && let Some(stream) = self.asking.remove(place)
        {
            // It fails if the other side has ended it.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl<Make: FnMut() -> io::Result<String> + Send> Server<Make> {
    /// Listens at this address.
    ///
    /// # Errors
    /// The address cannot be used.
    pub(crate) fn new(address: SocketAddr, make: Make) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        Ok(Self {
            address: listener.local_addr()?,
            listener,
            patience: PATIENCE,
            make: Mutex::new(make),
            connections: Mutex::default(),
            fewer: Condvar::new(),
        })
    }

    /// Where it listens, with the port that the system has chosen if none was given.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the process ends.
    pub(crate) fn run(&self) -> ! {
        std::thread::scope(|scope| {
            loop {
                let Ok((stream, _)) = self.listener.accept() else {
                    sleep(PAUSE);
                    continue;
                };
                let stream = Arc::new(stream);
                self.begin(&stream);
                let own = Arc::clone(&stream);
                let answer = move || {
                    // A scraper may leave early.
                    let _ = self.answer(&own);
                    self.end(&own);
                };
                let builder = std::thread::Builder::new();
                if builder.spawn_scoped(scope, answer).is_err() {
                    self.end(&stream);
                }
            }
        })
    }

    /// Counts a connection, when there is room for it.
    fn begin(&self, stream: &Arc<TcpStream>) {
        let mut connections = held(&self.connections);
        while connections.count >= CONNECTIONS_MAX {
            connections.end_a_silent_one();
            // If none was silent, each of them ends in time.
            let woken = self.fewer.wait(connections);
            connections = woken.unwrap_or_else(PoisonError::into_inner);
        }
        connections.count += 1;
        connections.asking.push_back(Arc::clone(stream));
    }

    fn end(&self, stream: &Arc<TcpStream>) {
        let mut connections = held(&self.connections);
        connections.has_asked(stream);
        connections.count -= 1;
        self.fewer.notify_one();
    }

    fn answer(&self, stream: &Arc<TcpStream>) -> io::Result<()> {
        let Some(request) = request(stream, Instant::now() + self.patience)? else {
            return Ok(());
        };
        held(&self.connections).has_asked(stream);
        let (status, body) = self.reply(&request);
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        let end = Instant::now() + self.patience;
        write_until(end, stream, head.as_bytes())?;
        if !request.starts_with("HEAD ") {
            write_until(end, stream, body.as_bytes())?;
        }
        Ok(())
    }

    fn reply(&self, request: &str) -> (&'static str, String) {
        if !request.starts_with("GET ") && !request.starts_with("HEAD ") {
            return ("405 Method Not Allowed", String::new());
        }
        if !hosts(request).all(|host| is_served(self.address.ip(), host)) {
            let why = "this port answers requests for an address or for localhost, so that no page in a browser can read it by another name\n";
            return ("403 Forbidden", why.to_owned());
        }
        match held(&self.make)() {
            Ok(text) => ("200 OK", text),
            Err(error) => ("500 Internal Server Error", format!("{error}\n")),
        }
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The head of a request; None if it ends before, or is too long.
fn request(mut stream: &TcpStream, end: Instant) -> io::Result<Option<String>> {
    let mut request = Vec::new();
    let mut part = [0; 1024];
    loop {
        // Zero is no timeout: an error.
        stream.set_read_timeout(Some(end - Instant::now()))?;
        let bytes = stream.read(&mut part)?;
        let from = request.len().saturating_sub(3);
        request.extend_from_slice(&part[..bytes]);
        let mut rest = request[from..].windows(4);
        if let Some(place) = rest.position(|four| four == b"\r\n\r\n") {
            request.truncate(from + place);
            return Ok(Some(String::from_utf8_lossy(&request).into_owned()));
        }
        if bytes == 0 || request.len() > REQUEST_MAX {
            return Ok(None);
        }
    }
}

/// The hosts for which a request says that it is; none in old versions of HTTP.
fn hosts(request: &str) -> impl Iterator<Item = &str> {
    let fields = request.lines().skip(1).filter_map(|l| l.split_once(':'));
    fields.filter_map(|(name, host)| {
        name.trim()
            .eq_ignore_ascii_case("host")
            .then_some(host.trim())
    })
}

/// Whether requests for this host are answered. At a loopback address only those for an address or `localhost` are: a browser of
/// this host takes a page from a name of the web, and the owner of the name may then let it mean 127.0.0.1 (DNS rebinding). At another
/// address scrapers come by whatever name it has, and those that reach it may see the text.
fn is_served(address: IpAddr, host: &str) -> bool {
    if !address.to_canonical().is_loopback() {
        return true;
    }
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if host.parse::<SocketAddr>().is_ok() || bare.parse::<IpAddr>().is_ok() {
        return true;
    }
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    name.trim_end_matches('.').eq_ignore_ascii_case("localhost")
}

/// Writes everything before this time, also to one who reads a byte now and then.
fn write_until(end: Instant, mut stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        // Zero is no timeout: an error.
        stream.set_write_timeout(Some(end - Instant::now()))?;
        bytes = &bytes[stream.write(bytes)?..];
    }
    Ok(())
}

#[cfg(test)]
mod tests;
