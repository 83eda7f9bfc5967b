//! Finding the Kernel Agent, and starting one if none is running.

use std::ffi::{CStr, CString, OsStr};
use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};
use std::time::Duration;
use vipl_sys::clock::{self, Instant};

use kagent_proto::{Header, MAGIC, Op, SYSTEM_SOCKET, VERSION, place};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect as connect_socket, getsockopt, setsockopt,
    socket, sockopt,
};
use nix::sys::time::TimeVal;
use vipl_sys::fd::Identity;
use zerocopy::IntoBytes;

use super::started::{Ended, Started};
use crate::settings::Settings;

/// Time limit for the first reply of a new agent; generous, for loaded machines.
const START_TIME_MAX: Duration = Duration::from_secs(20);
/// Pause before another agent is started if the first exited in good order: it found the address in use, by
/// an agent that was exiting, or by one that another program has started and that will answer.
const START_AGAIN: Duration = Duration::from_millis(20);
/// Maximum number of agents that exit so, one after the other.
const STARTS_MAX: u32 = 50;

/// Interval at which the reading thread checks whether the application has closed the socket.
pub(super) const LOOK_AGAIN: Duration = Duration::from_secs(2);

/// Why there is no agent, with advice.
#[derive(Debug, thiserror::Error)]
pub(super) enum LaunchError {
    #[error("no Kernel Agent answers at {0} ({1}); start one there or unset VIPL_AGENT")]
    NotThere(String, io::Error),
    #[error(
        "the Kernel Agent's socket {0} belongs to user {1}; only your own agent or root's is used"
    )]
    Foreign(String, u32),
    #[error("vipkad was not found; tried {0}; set VIPL_AGENT_PROGRAM to its path")]
    NoProgram(String),
    #[error("cannot start {0}: {1}")]
    Start(String, io::Error),
    #[error(
        "VIPL_AGENT=off: cannot create {0} for the socket of a private agent: {1}; set TMPDIR to a writable folder"
    )]
    NoFolder(String, io::Error),
    #[error("{0} was started but does not answer")]
    Silent(String),
    #[error("{0} was started and ended at once, {1}{2}")]
    Ended(String, String, String),
    #[error(
        "{0} cannot be executed by this user: {1}; set VIPL_AGENT_PROGRAM to an executable vipkad"
    )]
    NotExecutable(String, io::Error),
    #[error(
        "this program runs with raised privileges (set-user-ID, set-group-ID or file capabilities), so it starts no Kernel Agent and uses root's only: {0} at {SYSTEM_SOCKET}; run `vipkad --system` as root"
    )]
    Privileged(&'static str),
    #[error(
        "no folder for the Kernel Agent of user {0}: none of /run/user/{0}/vipl, $XDG_RUNTIME_DIR/vipl, /tmp/vipl-{0}, with or without a number appended, and a folder in $HOME is private to this user or can be created so ({1}); remove the existing ones (`ls -ld /tmp/vipl-{0}*`), or start `vipkad --socket PATH` and set VIPL_AGENT=PATH"
    )]
    NoPlace(u32, io::Error),
    #[error("cannot make a socket: {0}")]
    Socket(io::Error),
}

/// Connects to the configured agent; with `auto`, starts one if necessary.
pub(super) fn connect(settings: &Settings) -> Result<OwnedFd, LaunchError> {
    match settings.text("agent") {
        // An agent started here would serve the real user with the rights of the effective one.
        "auto" | "" | "off" if settings.secure => roots(),
        "auto" | "" => auto(settings),
        "off" => private(settings),
        path => {
            let there = UnixAddr::new(Path::new(path))
                .map_err(|e| LaunchError::NotThere(path.into(), e.into()))?;
            try_connect(&there, path)?.map_err(|error| LaunchError::NotThere(path.into(), error))
        }
    }
}

/// The system's agent, if root started it.
fn roots() -> Result<OwnedFd, LaunchError> {
    let there = UnixAddr::new(SYSTEM_SOCKET).map_err(|e| LaunchError::Socket(e.into()))?;
    let found = try_connect(&there, SYSTEM_SOCKET)?
        .map_err(|_| LaunchError::Privileged("none is running"))?;
    let peer = getsockopt(&found, sockopt::PeerCredentials);
    if peer.is_ok_and(|peer| peer.uid() == 0) {
        Ok(found)
    } else {
        Err(LaunchError::Privileged(
            "the running one belongs to another user",
        ))
    }
}

fn auto(settings: &Settings) -> Result<OwnedFd, LaunchError> {
    // SAFETY: always succeeds.
    let user = unsafe { libc::geteuid() };
    if let Some(found) = look(user)? {
        return Ok(found);
    }
    let program = find_program(settings)?;
    // Checked here, since the agent could not report it: it has neither a terminal nor a log.
    place::folder(user).map_err(|why| LaunchError::NoPlace(user, why))?;
    await_agent(settings, &program, &[], || look(user))
}

/// Starts an agent and waits until one answers.
fn await_agent(
    settings: &Settings,
    program: &Path,
    arguments: &[&OsStr],
    look: impl Fn() -> Result<Option<OwnedFd>, LaunchError>,
) -> Result<OwnedFd, LaunchError> {
    let name = || program.display().to_string();
    let failed = |error| LaunchError::Start(name(), error);
    let mut started = Started::start(settings, program, arguments).map_err(failed)?;
    let mut starts = 1;
    let end = Instant::now() + START_TIME_MAX;
    while Instant::now() < end {
        if let Some(found) = look()? {
            log::info!(target: "agent", "started {}", name());
            return Ok(found);
        }
        match started.ended() {
            None => clock::sleep(Duration::from_millis(1)),
            Some(Ended::Well) if starts < STARTS_MAX => {
                clock::sleep(START_AGAIN);
                started = Started::start(settings, program, arguments).map_err(failed)?;
                starts += 1;
            }
            Some(ended) => {
                return Err(LaunchError::Ended(
                    name(),
                    ended.to_string(),
                    started.words(),
                ));
            }
        }
    }
    Err(LaunchError::Silent(name()))
}

/// Tries all addresses at which an agent for this user may listen. An agent of another user is ignored.
fn look(user: u32) -> Result<Option<OwnedFd>, LaunchError> {
    let system = PathBuf::from(SYSTEM_SOCKET);
    for path in std::iter::once(system).chain(place::sockets(user)) {
        if !path.exists() {
            continue;
        }
        let there = UnixAddr::new(&path).map_err(|e| LaunchError::Socket(e.into()))?;
        match try_connect(&there, &path.display().to_string()) {
            Ok(Ok(found)) => return Ok(Some(found)),
            Ok(Err(_)) => {}
            Err(foreign @ LaunchError::Foreign(..)) => log::warn!(target: "agent", "{foreign}"),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

/// A private agent, on a socket in a folder that is removed as soon as this process is connected. No other
/// process can connect to it, and it leaves no files.
fn private(settings: &Settings) -> Result<OwnedFd, LaunchError> {
    let program = find_program(settings)?;
    let name = format!("vipl-{}-{}", std::process::id(), crate::clock::now_ns());
    let folder = std::env::temp_dir().join(name);
    // Checked here, since the agent could not report it: it has neither a terminal nor a log.
    let no_folder = |error| LaunchError::NoFolder(folder.display().to_string(), error);
    let path = folder.join("agent");
    let there = UnixAddr::new(&path).map_err(|error| no_folder(error.into()))?;
    DirBuilder::new()
        .mode(0o700)
        .create(&folder)
        .map_err(no_folder)?;
    let found = start_at(settings, &program, &path, &there);
    let _ = std::fs::remove_dir_all(&folder);
    found
}

fn start_at(
    settings: &Settings,
    program: &Path,
    path: &Path,
    there: &UnixAddr,
) -> Result<OwnedFd, LaunchError> {
    let text = path.display().to_string();
    let arguments = [OsStr::new("--socket"), path.as_os_str()];
    await_agent(settings, program, &arguments, || {
        Ok(try_connect(there, &text)?.ok())
    })
}

/// The outer error is final; the inner one means that no agent answers.
fn try_connect(there: &UnixAddr, name: &str) -> Result<io::Result<OwnedFd>, LaunchError> {
    let made = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )
    .map_err(|error| LaunchError::Socket(error.into()))?;
    let made = high(made).map_err(LaunchError::Socket)?;
    // Also limits sending: a stopped agent receives nothing.
    let patience = TimeVal::from(clock::timeval(START_TIME_MAX));
    let _ = setsockopt(&made, sockopt::SendTimeout, &patience);
    if let Err(error) = connect_socket(made.as_raw_fd(), there) {
        return Ok(Err(error.into()));
    }
    if let Ok(peer) = getsockopt(&made, sockopt::PeerCredentials) {
        // SAFETY: always succeeds.
        let own = unsafe { libc::geteuid() };
        if peer.uid() != own && peer.uid() != 0 {
            return Err(LaunchError::Foreign(name.into(), peer.uid()));
        }
        log::debug!(
            target: "agent",
            "the Kernel Agent at {name} is process {} of user {}", peer.pid(), peer.uid()
        );
    }
    let look = TimeVal::from(clock::timeval(LOOK_AGAIN));
    setsockopt(&made, sockopt::ReceiveTimeout, &look)
        .map_err(|error| LaunchError::Socket(error.into()))?;
    Ok(Ok(made))
}

/// Moves a descriptor out of the range used by programs with fixed numbers or `select`, if possible.
fn high(fd: OwnedFd) -> io::Result<OwnedFd> {
    vipl_sys::fd::duplicate_from(fd.as_raw_fd(), 200).or_else(|_| vipl_sys::fd::above_standard(fd))
}

/// Path of this library.
pub(crate) fn library_path() -> Option<PathBuf> {
    // SAFETY: `dladdr` fills the structure; the name lives as long as the library is loaded.
    unsafe {
        let mut info: libc::Dl_info = std::mem::zeroed();
        if libc::dladdr(connect as *const () as *const libc::c_void, &raw mut info) == 0
            || info.dli_fname.is_null()
        {
            return None;
        }
        let path = OsStr::from_bytes(CStr::from_ptr(info.dli_fname).to_bytes());
        std::fs::canonicalize(path).ok()
    }
}

fn find_program(settings: &Settings) -> Result<PathBuf, LaunchError> {
    let given = settings.text("agent_program");
    if !given.is_empty() {
        let given = PathBuf::from(given);
        return if is_program(&given) {
            Ok(given)
        } else {
            Err(if may_exist(&given) {
                not_executable(&given)
            } else {
                LaunchError::NoProgram(given.display().to_string())
            })
        };
    }
    let mut tried = Vec::new();
    if let Some(directory) = library_path().as_deref().and_then(Path::parent) {
        for place in [
            "vipkad",
            "../vipkad",
            "../libexec/vipl/vipkad",
            "../../libexec/vipl/vipkad",
            "../bin/vipkad",
        ] {
            tried.push(directory.join(place));
        }
    }
    tried.push("/usr/libexec/vipl/vipkad".into());
    tried.push("/usr/local/libexec/vipl/vipkad".into());
    if let Some(found) = tried.iter().find(|path| is_program(path)) {
        return Ok(std::fs::canonicalize(found).unwrap_or_else(|_| found.clone()));
    }
    if let Some(found) = tried.iter().find(|path| may_exist(path)) {
        return Err(not_executable(found));
    }
    let tried: Vec<String> = tried
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    Err(LaunchError::NoProgram(tried.join(", ")))
}

/// Whether a file is there, or a folder on the way to it is closed to this user.
fn may_exist(path: &Path) -> bool {
    match path.metadata() {
        Ok(found) => found.is_file(),
        Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
    }
}

/// The program exists but cannot be executed.
fn not_executable(path: &Path) -> LaunchError {
    let why = io::Error::from_raw_os_error(libc::EACCES);
    LaunchError::NotExecutable(path.display().to_string(), why)
}

/// Whether this user can execute a program.
fn is_program(path: &Path) -> bool {
    let Ok(text) = CString::new(path.as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: a NUL-terminated path.
    path.is_file() && unsafe { libc::access(text.as_ptr(), libc::X_OK) } == 0
}

static GOODBYE_SOCKET: AtomicI32 = AtomicI32::new(-1);
static GOODBYE_PROCESS: AtomicI32 = AtomicI32::new(0);
/// Identity of the socket when it was registered; never freed, since the application may exit at any point.
static GOODBYE_IDENTITY: AtomicPtr<Identity> = AtomicPtr::new(std::ptr::null_mut());

/// Lets the agent distinguish an orderly exit from a crash (spec §17).
pub(super) fn say_goodbye_at_exit(socket: RawFd) {
    static ONCE: std::sync::Once = std::sync::Once::new();
    let Some(identity) = Identity::of(socket) else {
        return;
    };
    let identity = Box::into_raw(Box::new(identity));
    GOODBYE_IDENTITY.store(identity, Ordering::Release);
    GOODBYE_SOCKET.store(socket, Ordering::Release);
    // SAFETY: always succeeds.
    GOODBYE_PROCESS.store(unsafe { libc::getpid() }, Ordering::Release);
    // SAFETY: the library is never unloaded, so the function stays.
    ONCE.call_once(|| unsafe {
        libc::atexit(goodbye);
    });
}

/// The agent of this socket has exited; the descriptor number may soon refer to another file.
pub(super) fn no_goodbye(socket: RawFd) {
    let _ = GOODBYE_SOCKET.compare_exchange(socket, -1, Ordering::AcqRel, Ordering::Relaxed);
}

/// Takes no lock, since the application may exit at any point.
extern "C" fn goodbye() {
    let socket = GOODBYE_SOCKET.load(Ordering::Acquire);
    let header = Header {
        magic: MAGIC,
        version: VERSION,
        op: Op::GOODBYE.0,
        length: 0,
        status: 0,
        id: 0,
    };
    // SAFETY: null, or deliberately leaked.
    let identity = unsafe { GOODBYE_IDENTITY.load(Ordering::Acquire).as_ref() };
    // The application may have closed the socket, and the number may refer to another file.
    let ours = identity.is_some() && Identity::of(socket) == identity.copied();
    // SAFETY: sends a few bytes without blocking.
    unsafe {
        if ours && GOODBYE_PROCESS.load(Ordering::Acquire) == libc::getpid() {
            let bytes = header.as_bytes();
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            libc::send(socket, bytes.as_ptr().cast(), bytes.len(), flags);
        }
    }
}
