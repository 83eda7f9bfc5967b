//! Safe names for the few system calls that the standard library lacks.

use std::fs::File;
use std::net::{IpAddr, UdpSocket};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::ptr::NonNull;
use std::sync::OnceLock;

use vipl_sys::process_vm::{self, Way, piece};

use crate::{Error, Result};

/// Where `ip netns` keeps the network namespaces that have names.
pub const NETWORKS: &str = "/var/run/netns";

fn last_error(what: &str) -> Error {
    Error::io(what, std::io::Error::last_os_error())
}

/// Sets an environment variable unless it is set. Only at the start of `main`, before the library is
/// opened.
pub fn default_env(name: &str, value: &str) {
    if std::env::var_os(name).is_none() {
        // SAFETY: the tools have one thread until the library is opened.
        unsafe { std::env::set_var(name, value) };
    }
}

/// Sets an environment variable, as [`default_env`] does.
pub fn set_env(name: &str, value: &str) {
    // SAFETY: the tools have one thread until the library is opened.
    unsafe { std::env::set_var(name, value) };
}

/// Removes an environment variable, before the library has a thread.
pub fn unset_env(name: &str) {
    // SAFETY: the library starts no thread before it opens a device or asks the Kernel Agent.
    unsafe { std::env::remove_var(name) };
}

/// Ends the program without a message when its output has no reader any more (`vip_perf | head`).
pub fn end_with_the_reader() {
    // SAFETY: the default action, set before there is another thread.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Allows as many open files as the system lets us have: a connection may need some.
pub fn raise_file_limit() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `limit` has room.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        limit.rlim_cur = limit.rlim_max;
        // SAFETY: `limit` is filled. If it fails, the old limit stays.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    }
}

/// A limit of this process, such as `RLIMIT_MEMLOCK`; None: there is no limit.
#[must_use]
pub fn limit(which: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit {
        rlim_cur: libc::RLIM_INFINITY,
        rlim_max: 0,
    };
    // SAFETY: `limit` has room.
    unsafe { libc::getrlimit(which, &raw mut limit) };
    (limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur as u64)
}

/// Whether a process that this one has started may copy from its memory, as the peer of a connection does.
///
/// # Errors
/// The system refuses.
pub fn copy_to_parent() -> std::io::Result<()> {
    let (value, parent) = (0x5649_504c_u64, std::process::id() as libc::pid_t);
    let address = (&raw const value).addr() as u64;
    let mut command = Command::new("/proc/self/exe");
    let copy = move || {
        let mut copied = 0u64;
        let (local, remote) = (
            piece((&raw mut copied).addr() as u64, size_of::<u64>()),
            piece(address, size_of::<u64>()),
        );
        // SAFETY: only this function uses the room.
        let copied = unsafe { process_vm::copy(parent, Way::Read, &[local], &[remote]) };
        Err(match copied {
            Ok(_) => std::io::Error::from_raw_os_error(COPIED),
            Err(error) => error,
        })
    };
    // SAFETY: it makes one system call, and allocates nothing.
    unsafe { command.pre_exec(copy) };
    match command.spawn() {
        Err(error) if error.raw_os_error() == Some(COPIED) => Ok(()),
        Err(error) => Err(error),
        // It never gets so far.
        Ok(mut child) => child.wait().map(drop),
    }
}

/// By which the child of [`copy_to_parent`] says that it has copied: the error that ends a child before it executes
/// anything is all that its parent gets to know.
const COPIED: i32 = libc::ECANCELED;

/// A handle of a process (pidfd).
///
/// # Errors
/// The system refuses, or there is no such process.
pub fn process_handle(process: u32) -> std::io::Result<OwnedFd> {
    // SAFETY: plain arguments; the descriptor is new and has no other owner.
    unsafe { vipl_sys::fd::made(libc::syscall(libc::SYS_pidfd_open, process, 0) as RawFd) }
}

/// The process at the other end of a local connection that has messages (SOCK_SEQPACKET); a tool that has opened no device
/// has at most that to the Kernel Agent.
#[must_use]
pub fn sequenced_peer() -> Option<u32> {
    use nix::sys::socket::{SockType, getsockopt, sockopt};
    let own = std::process::id();
    let files = std::fs::read_dir("/proc/self/fd").ok()?.flatten();
    let mut numbers = files.filter_map(|file| file.file_name().to_str()?.parse().ok());
    numbers.find_map(|number: RawFd| {
        // SAFETY: used within this call only; if it is closed meanwhile, or another file, that is an answer, too.
        let socket = unsafe { BorrowedFd::borrow_raw(number) };
        let kind = getsockopt(&socket, sockopt::SockType).ok()?;
        let peer = getsockopt(&socket, sockopt::PeerCredentials).ok()?;
        let peer = u32::try_from(peer.pid()).ok()?;
        (kind == SockType::SeqPacket && peer != 0 && peer != own).then_some(peer)
    })
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It is not there, or the system does not say.
    Unknown,
    /// A signal or a debugger has stopped it.
    Stopped,
    /// Anything else.
    Going,
}

/// What a process does.
#[must_use]
pub fn state(process: u32) -> State {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    // After the name, which may hold anything.
    match stat
        .rsplit_once(") ")
        .and_then(|(_, rest)| rest.chars().next())
    {
        None => State::Unknown,
        Some('T' | 't') => State::Stopped,
        Some(_) => State::Going,
    }
}

/// An anonymous file that can grow, made as the library makes those of its connections.
///
/// # Errors
/// The system refuses.
pub fn growing_file() -> std::io::Result<File> {
    vipl_sys::shm::create_growing(c"vipl").map(File::from)
}

/// The interface that has an address of IP.
#[must_use]
pub fn interface_of(address: IpAddr) -> Option<String> {
    let has_it = |one: &nix::ifaddrs::InterfaceAddress| {
        let of = one.address.as_ref();
        let v4 = of.and_then(|of| Some(IpAddr::from(of.as_sockaddr_in()?.ip())));
        let v6 = of.and_then(|of| Some(IpAddr::from(of.as_sockaddr_in6()?.ip())));
        v4.or(v6) == Some(address)
    };
    let mut all = nix::ifaddrs::getifaddrs().ok()?;
    all.find(has_it).map(|one| one.interface_name)
}

/// A network interface, as this process's network namespace has it: files below `/sys` may be those of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Bytes of the largest packet.
    pub mtu: usize,
    /// It has been switched on.
    pub is_up: bool,
    /// Something is at the other end.
    pub has_carrier: bool,
}

/// The interface of this name, if there is one.
#[must_use]
pub fn interface(name: &str) -> Option<Interface> {
    // SAFETY: all zero is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    if name.is_empty() || name.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    let socket = UdpSocket::bind((std::net::Ipv4Addr::LOCALHOST, 0)).ok()?;
    let mut get = |what| {
        // SAFETY: each of these requests fills an ifreq.
        unsafe { libc::ioctl(socket.as_raw_fd(), what, &raw mut request) == 0 }
            .then_some(request.ifr_ifru)
    };
    // SAFETY: the field that each request fills.
    unsafe {
        let flags = i32::from(get(libc::SIOCGIFFLAGS)?.ifru_flags);
        Some(Interface {
            mtu: usize::try_from(get(libc::SIOCGIFMTU)?.ifru_mtu).ok()?,
            is_up: flags & libc::IFF_UP != 0,
            has_carrier: flags & libc::IFF_RUNNING != 0,
        })
    }
}

/// Datagrams of this socket are not cut into fragments.
///
/// # Errors
/// The system refuses.
pub fn never_cut(socket: &UdpSocket, is_v4: bool) -> std::io::Result<()> {
    let (level, option, value) = match is_v4 {
        true => (
            libc::IPPROTO_IP,
            libc::IP_MTU_DISCOVER,
            libc::IP_PMTUDISC_DO,
        ),
        false => (
            libc::IPPROTO_IPV6,
            libc::IPV6_MTU_DISCOVER,
            libc::IPV6_PMTUDISC_DO,
        ),
    };
    let bytes = size_of_val(&value) as libc::socklen_t;
    // SAFETY: an open socket, and a value of this size.
    match unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            bytes,
        )
    } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// How long a packet to the peer of a connected socket may be, as far as the system knows.
#[must_use]
pub fn path_mtu(socket: &UdpSocket, is_v4: bool) -> Option<usize> {
    let (level, option) = match is_v4 {
        true => (libc::IPPROTO_IP, libc::IP_MTU),
        false => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    let (mut mtu, mut bytes) = (0i32, size_of::<i32>() as libc::socklen_t);
    // SAFETY: an open socket, and room for its answer.
    let got = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw mut mtu).cast(),
            &raw mut bytes,
        )
    };
    (got == 0).then(|| usize::try_from(mtu).ok()).flatten()
}

/// Columns and rows of the terminal that standard output is; None if it is none.
#[must_use]
pub fn terminal_size() -> Option<(u16, u16)> {
    // SAFETY: all zero is a valid value.
    let mut size: libc::winsize = unsafe { std::mem::zeroed() };
    // SAFETY: the request fills a winsize.
    let got = unsafe { libc::ioctl(1, libc::TIOCGWINSZ, &raw mut size) };
    (got == 0).then_some((size.ws_col, size.ws_row))
}

/// Columns of the terminal that standard output is; None if it is none.
#[must_use]
pub fn columns() -> Option<usize> {
    let (columns, _) = terminal_size()?;
    (columns > 0).then_some(usize::from(columns))
}

/// Ends this process after so many seconds.
pub fn end_after(seconds: u32) {
    // SAFETY: plain arguments; the default action ends the process.
    unsafe {
        libc::signal(libc::SIGALRM, libc::SIG_DFL);
        libc::alarm(seconds);
    }
}

/// Whether a process ended as [`end_after`] ends one.
#[must_use]
pub fn is_alarm(status: ExitStatus) -> bool {
    status.signal() == Some(libc::SIGALRM)
}

/// Makes the kernel kill this process when the thread that started it ends.
pub fn die_with_parent() {
    // SAFETY: plain arguments.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
}

/// Makes the kernel kill the process that a command starts when this thread ends, however it does.
pub fn end_with_this(command: &mut Command) {
    let parent = std::process::id();
    let follow = move || {
        die_with_parent();
        // SAFETY: no arguments.
        let has_parent = unsafe { libc::getppid() } as u32 == parent;
        has_parent
            .then_some(())
            .ok_or(std::io::ErrorKind::Interrupted.into())
    };
    // SAFETY: it makes two system calls, and allocates nothing.
    unsafe { command.pre_exec(follow) };
}

/// Makes a command run in the network namespace that `ip netns add` gave this name. Only root may start
/// such a command.
///
/// # Errors
/// There is no such namespace.
pub fn run_in_network(command: &mut Command, name: &str) -> Result<()> {
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        return Err(Error::Usage(format!(
            "{name:?} is not a valid name of a network namespace"
        )));
    }
    let file = File::open(Path::new(NETWORKS).join(name))
        .map_err(|error| Error::io(format!("network namespace {name:?}"), error))?;
    let enter = move || {
        // SAFETY: an open file, which the closure keeps open.
        match unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: it makes one system call, and allocates nothing.
    unsafe { command.pre_exec(enter) };
    Ok(())
}

/// Whether a descriptor survives exec.
///
/// # Errors
/// `fd` is not open.
pub fn set_inherited(fd: RawFd, inherited: bool) -> Result<()> {
    let flags = if inherited { 0 } else { libc::FD_CLOEXEC };
    // SAFETY: plain arguments.
    if unsafe { libc::fcntl(fd, libc::F_SETFD, flags) } < 0 {
        return Err(last_error("fcntl"));
    }
    Ok(())
}

/// Takes over a descriptor that the parent process passed by number.
///
/// # Errors
/// `fd` is not open.
pub fn adopt(fd: RawFd) -> Result<OwnedFd> {
    set_inherited(fd, false)?;
    // SAFETY: open, as the call above found, and passed to this process for this very purpose.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// An anonymous file of this many zero bytes, to be mapped by several processes.
///
/// # Errors
/// The system refuses.
pub fn anonymous_file(bytes: usize) -> Result<File> {
    vipl_sys::shm::create(c"vip_perf", bytes)
        .map(File::from)
        .map_err(|error| Error::io("memfd_create", error))
}

/// Maps `bytes` of memory, zeroed: of a file, shared, or private. It stays mapped until the process
/// ends, so that a pointer into it is never stale.
///
/// # Errors
/// The system refuses.
pub fn map(bytes: usize, file: Option<&File>) -> Result<NonNull<u8>> {
    let (flags, fd) = match file {
        Some(file) => (libc::MAP_SHARED, file.as_raw_fd()),
        None => (
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE,
            -1,
        ),
    };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, fd, 0) };
    if address == libc::MAP_FAILED {
        return Err(last_error("mmap"));
    }
    NonNull::new(address.cast()).ok_or_else(|| last_error("mmap"))
}

/// Seconds of processor time that this process has used, with the kernel's part.
#[must_use]
pub fn cpu_seconds() -> f64 {
    // SAFETY: all zero is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` has room.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// This process's user.
#[must_use]
pub fn user() -> u32 {
    // SAFETY: no arguments.
    unsafe { libc::getuid() }
}

/// The CPUs that this thread may run on.
#[must_use]
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: the all-zero set is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    // SAFETY: `set` has room for its own size.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) } != 0 {
        return vec![0];
    }
    let all = 0..libc::CPU_SETSIZE as usize;
    // SAFETY: `cpu` is below CPU_SETSIZE.
    all.filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) })
        .collect()
}

/// Keeps the calling thread on one CPU.
///
/// # Errors
/// There is no such CPU, or it is not allowed.
pub fn run_on(cpu: usize) -> Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(Error::Usage(format!("there is no CPU {cpu}")));
    }
    ALLOWED.get_or_init(allowed_cpus);
    pin(Some(cpu)).map_err(|error| Error::io(format!("pinning to CPU {cpu}"), error))
}

/// The CPUs of the first thread that was kept on one of them, before it was.
static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();

/// Lets the calling thread run on all CPUs again that it might use before `run_on`.
///
/// # Errors
/// They are no longer allowed.
pub fn run_on_all() -> Result<()> {
    let cpus = ALLOWED.get_or_init(allowed_cpus);
    bind(cpus.iter().copied()).map_err(|error| Error::io("leaving one CPU", error))
}

/// Makes a command run on one CPU from its first instruction on; with None on all of the machine, whatever
/// this process is restricted to.
pub fn start_on(command: &mut Command, cpu: Option<usize>) {
    // SAFETY: it makes one system call, and allocates nothing.
    unsafe { command.pre_exec(move || pin(cpu)) };
}

fn pin(cpu: Option<usize>) -> std::io::Result<()> {
    let most = libc::CPU_SETSIZE as usize;
    let wanted = cpu.map_or(0..most, |cpu| cpu..cpu + 1);
    if wanted.end > most {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    bind(wanted)
}

/// Keeps the calling thread on these CPUs, all below CPU_SETSIZE.
fn bind(wanted: impl Iterator<Item = usize>) -> std::io::Result<()> {
    // SAFETY: the all-zero set is the empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    for cpu in wanted {
        // SAFETY: `cpu` is below CPU_SETSIZE.
        unsafe { libc::CPU_SET(cpu, &mut set) };
    }
    // SAFETY: `set` is filled and has this size.
    match unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_read() {
        assert_eq!(interface("vipl-no-such-one"), None);
        assert_eq!(interface(&"x".repeat(40)), None);
        assert!(interface("lo").is_some_and(|lo| lo.mtu > 1000));
    }

    #[test]
    fn a_namespace_that_is_not_there_is_an_error() {
        let refused = |name: &str| {
            let mut command = Command::new("true");
            run_in_network(&mut command, name).unwrap_err().to_string()
        };
        assert!(refused("vipl-no-such-host").contains("vipl-no-such-host"));
        for name in ["", "..", "../../proc/self/ns/net"] {
            assert!(refused(name).contains("not a valid name"), "{name}");
        }
    }
}
