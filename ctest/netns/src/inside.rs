//! Threads of the test inside a host, and sockets that see its frames.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::{INTERFACE, Namespaces};

impl Namespaces {
    /// Runs something on a thread that is on a host, and waits for its end. What it opens stays there.
    ///
    /// # Errors
    /// The thread could not get there.
    pub fn inside<T: Send>(&self, host: usize, what: impl FnOnce() -> T + Send) -> io::Result<T> {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| enter(self.name(host)).map(|()| what()));
            let panicked = |panic| std::panic::resume_unwind(panic);
            thread.join().unwrap_or_else(panicked)
        })
    }

    /// Makes the kernel of a host cut trains, and compute checksums, before they get to the interface.
    ///
    /// # Errors
    /// The kernel's.
    pub fn cut_trains(&self, host: usize) -> std::io::Result<()> {
        self.inside(host, finish_packets)?
    }

    /// A socket that sees every frame that comes to a host, and sends any; reading does not wait.
    ///
    /// # Errors
    /// The kernel's.
    pub fn tap(&self, host: usize) -> io::Result<OwnedFd> {
        self.inside(host, || socket(INTERFACE))?
    }
}

fn check(status: i32) -> io::Result<i32> {
    if status < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(status)
    }
}

/// Brings the calling thread, and no other, into a namespace.
pub(crate) fn enter(name: &str) -> io::Result<()> {
    let namespace = File::open(format!("/run/netns/{name}"))?;
    // SAFETY: a system call on an open descriptor.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }).map(drop)
}

/// Makes IP compute checksums and lengths of packets in software, before they get to the interface.
pub(crate) fn finish_packets() -> io::Result<()> {
    const SIOCETHTOOL: libc::Ioctl = 0x8946;
    const SET_CHECKSUMS: u32 = 0x17; // ETHTOOL_STXCSUM
    let mut value = [SET_CHECKSUMS, 0];
    // SAFETY: all zero is a valid request; this call reads and writes two numbers.
    unsafe {
        let socket = OwnedFd::from_raw_fd(check(libc::socket(
            libc::AF_INET,
            libc::SOCK_DGRAM | libc::SOCK_CLOEXEC,
            0,
        ))?);
        let mut request: libc::ifreq = std::mem::zeroed();
        for (to, from) in request.ifr_name.iter_mut().zip(INTERFACE.bytes()) {
            *to = from as libc::c_char;
        }
        request.ifr_ifru.ifru_data = value.as_mut_ptr().cast();
        check(libc::ioctl(
            socket.as_raw_fd(),
            SIOCETHTOOL,
            &raw mut request,
        ))
        .map(drop)
    }
}

/// A socket that sends and receives every frame of an interface.
pub(crate) fn socket(name: &str) -> io::Result<OwnedFd> {
    const ALL: u16 = 3; // ETH_P_ALL
    let text = CString::new(name)?;
    // SAFETY: system calls with valid arguments; the descriptor is new.
    unsafe {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // With no ethertype nothing is received before the socket is bound.
        let socket = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_PACKET, kind, 0))?);
        let index = libc::if_nametoindex(text.as_ptr()) as i32;
        let one = 1i32;
        check(libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_IGNORE_OUTGOING,
            (&raw const one).cast(),
            4,
        ))?;
        let mut wanted: libc::packet_mreq = std::mem::zeroed();
        wanted.mr_ifindex = index;
        wanted.mr_type = libc::PACKET_MR_PROMISC as u16;
        check(libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const wanted).cast(),
            size_of::<libc::packet_mreq>() as libc::socklen_t,
        ))?;
        let bytes = 4 << 20;
        let _ = libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            (&raw const bytes).cast(),
            4,
        );
        let mut address: libc::sockaddr_ll = std::mem::zeroed();
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = ALL.to_be();
        address.sll_ifindex = index;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        check(libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            length,
        ))?;
        Ok(socket)
    }
}
