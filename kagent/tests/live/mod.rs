//! A real `vipkad` on a socket of its own, and real clients of it.
#![allow(dead_code, unreachable_pub, unused_imports, clippy::unwrap_used)]

use std::fs::File;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use kagent_proto::*;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::*;
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::Pid;
use vipl_netns::Namespaces;
use zerocopy::{FromBytes, Immutable, IntoBytes};

#[path = "../bodies/mod.rs"]
mod bodies;
pub use bodies::{attributes, nic_on, nic_open};

/// Bounds every wait; nothing here takes even a fraction of it.
const WATCHDOG: Duration = Duration::from_secs(30);

pub struct Daemon {
    pub child: Child,
    pub socket: PathBuf,
    pub folder: tempfile::TempDir,
    /// The network namespace of its processes, if it is not that of the test.
    pub network: Option<String>,
    /// Their user, if it is not that of the test.
    pub user: Option<u32>,
}

/// Two hosts, or the reason why they cannot be made.
pub fn hosts() -> Option<Namespaces> {
    Namespaces::pair()
        .map_err(|why| println!("SKIP network namespaces: {why}"))
        .ok()
}

pub fn vipkad(socket: &Path, args: &[&str]) -> Command {
    command(Path::new(env!("CARGO_BIN_EXE_vipkad")), socket, args)
}

pub fn command(program: &Path, socket: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command
        .arg("--socket")
        .arg(socket)
        .args(args)
        .stdin(Stdio::null());
    command.env_remove("VIPL_LOG").env_remove("VIPL_LOG_FILE");
    command
}

impl Daemon {
    pub fn start(args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent");
        let child = vipkad(&socket, args).spawn().unwrap();
        Daemon {
            child,
            socket,
            folder,
            network: None,
            user: None,
        }
    }

    /// An agent on a host; its socket is a path visible in every namespace.
    pub fn start_on(hosts: &Namespaces, host: usize, args: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("agent");
        let child = hosts
            .command(host, env!("CARGO_BIN_EXE_vipkad"))
            .arg("--socket")
            .arg(&socket)
            .args(args)
            .env_remove("VIPL_UDP_PORT")
            .env_remove("VIPL_SECRET_FILE")
            .env_remove("VIPL_UDP_FROM")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Daemon {
            child,
            socket,
            folder,
            network: Some(hosts.name(host).to_owned()),
            user: None,
        }
    }

    /// Lets all users reach its socket.
    pub fn open_to_all(&self) {
        let everybody = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(self.folder.path(), everybody).unwrap();
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A process in the agent's namespace.
    pub fn client(&self) -> Client {
        let mut client = self.inside(|| Client::connect(&self.socket));
        client.hello();
        client
    }

    /// Runs a function on a thread in the agent's network namespace, as its user. A socket that it makes
    /// belongs to that namespace.
    pub fn inside<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        let name = |network: &String| File::open(format!("/run/netns/{network}")).unwrap();
        let namespace = self.network.as_ref().map(name);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                // SAFETY: system calls on an open descriptor and on integers; the wrapper of the C library would
                // change the user of all threads.
                unsafe {
                    if let Some(namespace) = &namespace {
                        let entered = libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET);
                        assert_eq!(entered, 0, "{}", Errno::last());
                    }
                    if let Some(user) = self.user {
                        let became = libc::syscall(libc::SYS_setresuid, user, user, user);
                        assert_eq!(became, 0, "{}", Errno::last());
                    }
                }
                what()
            });
            thread.join().unwrap()
        })
    }

    pub fn open_fds(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid()))
            .unwrap()
            .count()
    }

    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.pid() as i32), signal).unwrap();
    }

    pub fn wait(&mut self) -> ExitStatus {
        wait(&mut self.child)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn wait(child: &mut Child) -> ExitStatus {
    eventually(|| child.try_wait().unwrap())
}

/// Tries until it succeeds or the watchdog ends the test.
pub fn eventually<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(start.elapsed() < WATCHDOG, "the watchdog bites");
        std::thread::sleep(Duration::from_millis(2));
    }
}

pub struct Client {
    pub fd: OwnedFd,
    last_id: u64,
}

#[derive(Debug)]
pub struct Reply {
    pub op: Op,
    pub status: Status,
    pub id: u64,
    pub body: Vec<u8>,
    pub fds: Vec<File>,
}

impl Reply {
    pub fn body<T: FromBytes>(&self) -> T {
        T::read_from_bytes(&self.body).unwrap()
    }
}

impl Client {
    pub fn try_connect(path: &Path) -> Result<Self, Errno> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        connect(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
        let limit = TimeVal::seconds(WATCHDOG.as_secs() as i64);
        setsockopt(&fd, sockopt::ReceiveTimeout, &limit)?;
        Ok(Client { fd, last_id: 0 })
    }

    /// With a socket that another process is to connect.
    pub fn unconnected() -> (Self, RawFd) {
        let flags = SockFlag::SOCK_CLOEXEC;
        let fd = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        let raw = fd.as_raw_fd();
        (Client { fd, last_id: 0 }, raw)
    }

    pub fn connect(path: &Path) -> Self {
        eventually(|| Self::try_connect(path).ok())
    }

    pub fn hello(&mut self) -> Welcome {
        let welcome = self.ask(Op::HELLO, &Hello { features: 0 });
        assert_eq!((welcome.op, welcome.status), (Op::WELCOME, Status::OK));
        welcome.body()
    }

    /// A greeting that the agent may refuse: then returns the reason, if received.
    pub fn try_hello(&mut self) -> Result<Welcome, Option<Detail>> {
        let header = Header {
            magic: MAGIC,
            version: VERSION,
            op: Op::HELLO.0,
            length: size_of::<Hello>() as u32,
            status: 0,
            id: 0,
        };
        let hello = [header.as_bytes(), Hello { features: 0 }.as_bytes()].concat();
        // The agent may have hung up already.
        let _ = self.raw(&hello, &[]);
        let first = self.next().ok_or(None)?;
        match first.op {
            Op::WELCOME => Ok(first.body()),
            _ => Err(Some(first.body())),
        }
    }

    pub fn raw(&self, bytes: &[u8], fds: &[RawFd]) -> Result<(), Errno> {
        let rights = [ControlMessage::ScmRights(fds)];
        let control = if fds.is_empty() {
            &rights[..0]
        } else {
            &rights[..]
        };
        let parts = [IoSlice::new(bytes)];
        sendmsg::<()>(
            self.fd.as_raw_fd(),
            &parts,
            control,
            MsgFlags::MSG_NOSIGNAL,
            None,
        )
        .map(drop)
    }

    pub fn call<T: IntoBytes + Immutable>(&mut self, op: Op, body: &T, fds: &[RawFd]) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.raw(&bodies::packet(op, id, body), fds).unwrap();
        id
    }

    /// The next packet; `None` at the end of the connection.
    pub fn next(&mut self) -> Option<Reply> {
        let mut buffer = [0; MESSAGE_BYTES_MAX];
        let mut control = cmsg_space!([RawFd; FDS_MAX]);
        let mut parts = [IoSliceMut::new(&mut buffer)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let fd = self.fd.as_raw_fd();
        let got = loop {
            match recvmsg::<()>(fd, &mut parts, Some(&mut control), flags) {
                // Reported once, before the messages of an agent that has closed the socket.
                Err(Errno::ECONNRESET | Errno::EINTR) => {}
                other => break other.unwrap(),
            }
        };
        let mut fds = Vec::new();
        for message in got.cmsgs().unwrap() {
            if let ControlMessageOwned::ScmRights(got) = message {
                // SAFETY: the kernel has just made these descriptors for us.
                fds.extend(got.into_iter().map(|fd| unsafe { File::from_raw_fd(fd) }));
            }
        }
        let len = got.bytes;
        if len == 0 {
            return None;
        }
        let (header, body) = Header::read_from_prefix(&buffer[..len]).unwrap();
        Some(Reply {
            op: Op(header.op),
            status: Status(header.status),
            id: header.id,
            body: body.to_vec(),
            fds,
        })
    }

    /// Whether nothing was received.
    pub fn is_quiet(&self) -> bool {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_PEEK;
        recv(self.fd.as_raw_fd(), &mut [0], flags) == Err(Errno::EAGAIN)
    }

    pub fn reply(&mut self, id: u64) -> Reply {
        let reply = self.next().expect("a reply, not the end");
        assert_eq!(reply.id, id, "{reply:?}");
        reply
    }

    pub fn ask<T: IntoBytes + Immutable>(&mut self, op: Op, body: &T) -> Reply {
        let id = self.call(op, body, &[]);
        self.reply(id)
    }

    pub fn call_open(&mut self, host: &[u8], fds: &[RawFd]) -> u64 {
        let body = NicOpen {
            data_address: DataAddress::NONE,
            ..nic_open("test", host)
        };
        self.call(Op::NIC_OPEN, &body, fds)
    }

    /// Asks for a link, or about one.
    pub fn link(&mut self, op: Op, name: &str) -> Reply {
        self.ask(op, &bodies::link_open(name))
    }

    pub fn open(&mut self, host: &[u8], fds: &[RawFd]) -> u64 {
        let id = self.call_open(host, fds);
        self.reply(id).body::<NicOpened>().nic
    }

    pub fn wait(&mut self, nic: u64, disc: &[u8]) -> u64 {
        self.call(Op::WAIT, &bodies::wait(nic, disc, u64::MAX), &[])
    }

    pub fn request(&mut self, nic: u64, host: &[u8], disc: &[u8], grace_ms: u64) -> u64 {
        let body = Request {
            vi: 1,
            timeout_ms: u64::MAX,
            grace_ms,
            segment_bytes: 10_000,
            local: Point::new(b"", b"me").unwrap(),
            ..bodies::request(nic, host, disc)
        };
        self.call(Op::REQUEST, &body, &[])
    }

    pub fn peer(&mut self, nic: u64, local: &[u8], host: &[u8], disc: &[u8]) -> u64 {
        let body = Request {
            timeout_ms: u64::MAX,
            ..bodies::peer(nic, local, host, disc)
        };
        self.call(Op::PEER, &body, &[])
    }

    /// Accepts the request received by a wait.
    pub fn accept(&mut self, wait: u64) -> Reply {
        let connection = self.reply(wait).body::<Incoming>().connection;
        let body = Accept {
            vi: 2,
            ..bodies::accept(connection)
        };
        let reply = self.ask(Op::ACCEPT, &body);
        assert_eq!(reply.op, Op::CONNECTED);
        reply
    }

    pub fn expect_gone(&mut self, connection: u64, orderly: u32) {
        let gone = self.reply(0);
        assert_eq!(gone.op, Op::PEER_GONE);
        let body: PeerGone = gone.body();
        assert_eq!((body.connection, body.orderly), (connection, orderly));
    }

    pub fn neighbours(&mut self, nic: u64) -> u32 {
        self.ask(Op::NEIGHBOURS, &Neighbours { nic })
            .body::<NeighbourList>()
            .count
    }
}

/// Memory as shared by plug-ins, sealed against resizing.
pub fn memory(bytes: &[u8]) -> File {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::io::Write;
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let mut file = File::from(memfd_create(c"test", flags).unwrap());
    file.write_all(bytes).unwrap();
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
    file
}
