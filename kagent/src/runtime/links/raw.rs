//! Packet sockets: data sockets for processes, and the agent's own socket for connection set-up.
//!
//! The filter of a data socket is attached before it is bound, so that it never receives frames of others. A
//! process could rebind it to another interface or ethertype, so the filter checks both. The filter is
//! locked.

use std::fs::{DirBuilder, File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use kagent_proto::place;
use kagent_proto::setup::SETUP_ETHERTYPE;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::{AccessFlags, access, geteuid};
use vipl_plugin_abi::{VIPL_DATA_ETHERTYPE as ETHERTYPE, VIPL_ENDPOINT_OFFSET as ENDPOINT_OFFSET};

use crate::LinkId;
use crate::runtime::error::errno;
use crate::runtime::sockets::option;

/// Offset of the ethertype in a frame.
const ETHERTYPE_OFFSET: u32 = 12;
/// Bytes of the Ethernet header.
const ETHERNET: u32 = 14;
/// The ethertype of IPv6.
const IPV6: u32 = 0x86DD;
/// Bytes of trains that may wait in a socket, in either direction: eleven windows of the protocol with frames of 1500
/// bytes.
const TRAIN_ROOM: i32 = 4 << 20;
/// Packet type: to this host. (`PACKET_HOST`, as filters see it.)
const TO_THIS_HOST: u32 = libc::PACKET_HOST as u32;
const TO_ALL: u32 = libc::PACKET_BROADCAST as u32;
/// Filter offsets of metadata: `SKF_AD_OFF` plus `SKF_AD_PKTTYPE`, `SKF_AD_IFINDEX`.
const PACKET_TYPE: u32 = (-0x1000_i32 + 4) as u32;
const INTERFACE: u32 = (-0x1000_i32 + 8) as u32;
/// Socket option: do not deliver outgoing frames.
const PACKET_IGNORE_OUTGOING: libc::c_int = 23;

const fn step(code: u32, k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    }
}

const fn load(size: u32, offset: u32) -> libc::sock_filter {
    step(libc::BPF_LD | size | libc::BPF_ABS, offset, 0, 0)
}

/// Continues if the loaded value equals `value`; otherwise skips.
const fn unless(value: u32, skip: u8) -> libc::sock_filter {
    step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, 0, skip)
}

const ACCEPT: libc::sock_filter = step(libc::BPF_RET | libc::BPF_K, u32::MAX, 0, 0);
const REFUSE: libc::sock_filter = step(libc::BPF_RET | libc::BPF_K, 0, 0, 0);

/// Makes a packet socket that receives nothing yet, with a locked filter.
fn filtered(kind: libc::c_int, filter: &[libc::sock_filter]) -> Result<OwnedFd, Errno> {
    let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes three integers. Protocol 0: nothing arrives before the socket is bound.
    let fd = Errno::result(unsafe { libc::socket(libc::AF_PACKET, kind | flags, 0) })?;
    // SAFETY: the kernel has just returned this descriptor, which has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let program = libc::sock_fprog {
        len: filter.len() as u16,
        filter: filter.as_ptr().cast_mut(),
    };
    option::set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
    option::set(&socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &1_i32)?;
    // An optimisation that saves filtering outgoing frames; old kernels lack it.
    let _ = option::set(&socket, libc::SOL_PACKET, PACKET_IGNORE_OUTGOING, &1_i32);
    Ok(socket)
}

fn link_address(link: LinkId, ethertype: u16, to: &[u8]) -> libc::sockaddr_ll {
    // SAFETY: all zero is a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = ethertype.to_be();
    address.sll_ifindex = link as i32;
    address.sll_halen = to.len() as u8;
    address.sll_addr[..to.len()].copy_from_slice(to);
    address
}

fn bound(socket: OwnedFd, link: LinkId, ethertype: u16) -> Result<OwnedFd, Errno> {
    let address = link_address(link, ethertype, &[0; 6]);
    // SAFETY: the address is as large as stated.
    let result = unsafe {
        libc::bind(
            socket.as_raw_fd(),
            (&raw const address).cast(),
            size_of::<libc::sockaddr_ll>() as libc::socklen_t,
        )
    };
    Errno::result(result).map(|_| socket)
}

/// Whether this process may open packet sockets. Closing one is slow, so callers should keep the result.
pub(crate) fn probe() -> Result<(), Errno> {
    filtered(libc::SOCK_RAW, &[REFUSE]).map(drop)
}

/// A data socket: frames of our ethertype, on this interface, for this host and this endpoint.
pub(crate) fn data_socket(link: LinkId, endpoint: u16) -> Result<OwnedFd, Errno> {
    let filter = [
        load(libc::BPF_W, PACKET_TYPE),
        unless(TO_THIS_HOST, 7),
        load(libc::BPF_W, INTERFACE),
        unless(link, 5),
        load(libc::BPF_H, ETHERTYPE_OFFSET),
        unless(u32::from(ETHERTYPE), 3),
        load(libc::BPF_H, ENDPOINT_OFFSET),
        unless(u32::from(endpoint), 1),
        ACCEPT,
        REFUSE,
    ];
    bound(filtered(libc::SOCK_RAW, &filter)?, link, ETHERTYPE)
}

/// A socket for the trains of an endpoint, see docs/WIRE.md: packets of UDP between the loopback addresses of IPv6, which
/// no host accepts from an interface, and whose flow label is the endpoint. Other packets fail the first comparison.
pub(crate) fn train_socket(link: LinkId, endpoint: u16) -> Result<OwnedFd, Errno> {
    let filter = [
        load(libc::BPF_W, ETHERNET),
        unless(6 << 28 | u32::from(endpoint), 13),
        load(libc::BPF_H, ETHERTYPE_OFFSET),
        unless(IPV6, 11),
        load(libc::BPF_W, PACKET_TYPE),
        unless(TO_THIS_HOST, 9),
        load(libc::BPF_W, INTERFACE),
        unless(link, 7),
        load(libc::BPF_B, ETHERNET + 6),
        unless(libc::IPPROTO_UDP as u32, 5),
        load(libc::BPF_W, ETHERNET + 20),
        unless(1, 3),
        load(libc::BPF_W, ETHERNET + 36),
        unless(1, 1),
        ACCEPT,
        REFUSE,
    ];
    let socket = filtered(libc::SOCK_RAW, &filter)?;
    // Whole trains of several connections wait in the socket. Without the privilege the system's limit holds.
    for name in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
        let _ = option::set(&socket, libc::SOL_SOCKET, name, &TRAIN_ROOM);
    }
    bound(socket, link, IPV6 as u16)
}

/// Folder of root's agents.
const SYSTEM_FOLDER: &str = "/run/vipl";

/// The lock of an interface: a file that only its owner can open, so that no other user can hold it. Root's
/// agents have theirs in one folder. An unprivileged agent has it in the folder of its user, and excludes
/// only other agents of that user.
fn lock(link: LinkId) -> Result<LinkLock, Errno> {
    let name = format!("link-{}-{link}.lock", place::network_namespace());
    let folder = match system_folder() {
        Some(folder) => folder,
        None => place::folder(geteuid().as_raw()).map_err(|cause| errno(&cause))?,
    };
    let path = folder.join(name);
    loop {
        let file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
            .open(&path)
            .map_err(|cause| errno(&cause))?;
        let locked = Flock::lock(file, FlockArg::LockExclusiveNonblock);
        let file = locked.map_err(|(_, cause)| match cause {
            Errno::EWOULDBLOCK => Errno::EADDRINUSE,
            cause => cause,
        })?;
        // The previous holder may have removed it after we opened it.
        let inode = file.metadata().map_err(|cause| errno(&cause))?.ino();
        if std::fs::symlink_metadata(&path).is_ok_and(|there| there.ino() == inode) {
            return Ok(LinkLock { path, _file: file });
        }
    }
}

/// The folder, if the agent runs as root and only root can write there.
fn system_folder() -> Option<PathBuf> {
    let folder = Path::new(SYSTEM_FOLDER);
    if !geteuid().is_root() {
        return None;
    }
    // The umask would deny access to others; the names are not secret.
    if DirBuilder::new().mode(0o755).create(folder).is_ok() {
        let open = std::fs::Permissions::from_mode(0o755);
        let _ = std::fs::set_permissions(folder, open);
    }
    let found = std::fs::symlink_metadata(folder).ok()?;
    let fits = found.is_dir() && found.uid() == 0 && found.mode() & 0o022 == 0;
    // In a user namespace the host's folder may be visible but not writable.
    let writable = access(folder, AccessFlags::W_OK).is_ok();
    (fits && writable).then(|| folder.to_owned())
}

/// The agent's own socket on an interface, for frames without their Ethernet header.
#[derive(Debug)]
pub(crate) struct SetupSocket {
    socket: OwnedFd,
    link: LinkId,
    /// Keeps other agents in this network namespace from using the interface.
    _lock: LinkLock,
}

/// See [`lock`].
#[derive(Debug)]
struct LinkLock {
    path: PathBuf,
    _file: Flock<File>,
}

impl Drop for LinkLock {
    fn drop(&mut self) {
        // Removed while locked, so that it cannot be the file of another agent.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl SetupSocket {
    /// Opens the socket. `EADDRINUSE`: another agent serves this interface.
    pub(crate) fn open(link: LinkId) -> Result<Self, Errno> {
        let lock = lock(link)?;
        let filter = [
            load(libc::BPF_W, PACKET_TYPE),
            step(
                libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K,
                TO_THIS_HOST,
                1,
                0,
            ),
            unless(TO_ALL, 1),
            ACCEPT,
            REFUSE,
        ];
        let socket = bound(filtered(libc::SOCK_DGRAM, &filter)?, link, SETUP_ETHERTYPE)?;
        Ok(Self {
            socket,
            link,
            _lock: lock,
        })
    }

    /// Sends one frame. If the interface's queue is full, the frame is lost, as any frame may be.
    pub(crate) fn send(&self, to: &[u8], bytes: &[u8]) -> Result<(), Errno> {
        let address = link_address(self.link, SETUP_ETHERTYPE, to);
        // SAFETY: buffer and address are as large as stated.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                bytes.as_ptr().cast(),
                bytes.len(),
                libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        match Errno::result(sent) {
            Ok(_) | Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::EINTR) => Ok(()),
            Err(cause) => Err(cause),
        }
    }

    /// Receives one frame: sender, whether it was broadcast, and length; `None` if there is none. Longer
    /// frames are truncated.
    pub(crate) fn receive(
        &self,
        buffer: &mut [u8],
    ) -> Result<Option<([u8; 6], bool, usize)>, Errno> {
        // SAFETY: all zero is a valid address.
        let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: buffer and address are as large as stated.
        let got = unsafe {
            libc::recvfrom(
                self.socket.as_raw_fd(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                libc::MSG_DONTWAIT,
                (&raw mut from).cast(),
                &raw mut length,
            )
        };
        match Errno::result(got) {
            Ok(got) => {
                let mut mac = [0; 6];
                mac.copy_from_slice(&from.sll_addr[..6]);
                let to_all = from.sll_pkttype != libc::PACKET_HOST as u8;
                Ok(Some((mac, to_all, got as usize)))
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(None),
            Err(cause) => Err(cause),
        }
    }
}

impl AsFd for SetupSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
