//! A network for one test: the loopback interface of a namespace of its own, and data sockets as the agent
//! opens them. Two NIC handles of one device meet there as they would on two hosts.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use vipl_clan_proto::nic::RING_FRAMES;
use vipl_netio::packet::Receiver;
use vipl_plugin_abi::{VIPL_DATA_ETHERTYPE as ETHERTYPE, VIPL_ENDPOINT_OFFSET as ENDPOINT_OFFSET};

/// Frames on it.
pub const MTU: u32 = 1500;

/// The network.
pub struct Lan {
    index: i32,
}

fn check(status: i32) -> io::Result<i32> {
    if status < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(status)
    }
}

/// The filter of an endpoint's socket.
fn filter(endpoint: u16) -> [libc::sock_filter; 4] {
    let step = |code: u32, k: u32, jf: u8| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };
    [
        step(
            libc::BPF_LD | libc::BPF_H | libc::BPF_ABS,
            ENDPOINT_OFFSET,
            0,
        ),
        step(
            libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
            endpoint.into(),
            1,
        ),
        step(libc::BPF_RET | libc::BPF_K, u32::MAX, 0),
        step(libc::BPF_RET | libc::BPF_K, 0, 0),
    ]
}

impl Lan {
    /// Moves this thread, and all that it starts, into a namespace of its own. `None`: that is not permitted.
    pub fn enter() -> Option<Lan> {
        let entered = || -> io::Result<Lan> {
            // SAFETY: system calls with valid structures; the descriptor is new.
            unsafe {
                check(libc::unshare(libc::CLONE_NEWNET))?;
                let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
                let control = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_INET, kind, 0))?);
                let mut request: libc::ifreq = std::mem::zeroed();
                request.ifr_name[0] = b'l' as _;
                request.ifr_name[1] = b'o' as _;
                request.ifr_ifru.ifru_flags = libc::IFF_UP as _;
                let control = control.as_raw_fd();
                check(libc::ioctl(control, libc::SIOCSIFFLAGS, &raw mut request))?;
                let index = libc::if_nametoindex(c"lo".as_ptr()) as i32;
                Ok(Lan { index })
            }
        };
        entered()
            .inspect_err(|why| println!("SKIP network namespaces: {why}"))
            .ok()
    }

    /// A data socket of an endpoint.
    pub fn data_socket(&self, endpoint: u16) -> OwnedFd {
        let socket = self.socket(Some(endpoint)).expect("a data socket");
        Receiver::prepare(socket.as_raw_fd(), MTU as usize, RING_FRAMES).expect("a ring");
        socket
    }

    /// A socket that sends any frame.
    pub fn stranger(&self) -> OwnedFd {
        self.socket(None).expect("a socket")
    }

    fn socket(&self, endpoint: Option<u16>) -> io::Result<OwnedFd> {
        let mut steps = filter(endpoint.unwrap_or_default());
        let program = libc::sock_fprog {
            len: steps.len() as u16,
            filter: steps.as_mut_ptr(),
        };
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: system calls with valid structures; the descriptor is new.
        unsafe {
            let socket = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_PACKET, kind, 0))?);
            let bytes = size_of::<libc::sock_fprog>() as libc::socklen_t;
            check(libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const program).cast(),
                bytes,
            ))?;
            let mut address: libc::sockaddr_ll = std::mem::zeroed();
            address.sll_family = libc::AF_PACKET as u16;
            address.sll_protocol = ETHERTYPE.to_be();
            address.sll_ifindex = self.index;
            let bytes = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
            check(libc::bind(
                socket.as_raw_fd(),
                (&raw const address).cast(),
                bytes,
            ))?;
            Ok(socket)
        }
    }
}
