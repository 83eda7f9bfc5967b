//! Starting a process that belongs to a user.
//!
//! The child only makes system calls. It drops what belongs to the agent: descriptors first, privileges last,
//! so that the user's process never holds a descriptor of the agent. (Until `execve` the kernel also forbids
//! tracing it, since its user has changed.)
//!
//! The agent waits until the child has closed inherited descriptors, since a lock, for example, is released
//! only then. Unlike [`std::process::Command`] it does not wait for `execve`: once the child belongs to the
//! user, the user may stop it.

use std::ffi::{CString, OsString};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::OFlag;

use crate::runtime::error::errno;
use vipl_sys::fd::close_from;

/// Variables passed to processes of the agent's own user, for debugging.
const KEPT_VARIABLES: [&str; 7] = [
    "RUST_BACKTRACE",
    "VIPL_TEST_TIME",
    "ASAN_OPTIONS",
    "LSAN_OPTIONS",
    "TSAN_OPTIONS",
    "UBSAN_OPTIONS",
    "LLVM_PROFILE_FILE",
];
/// Maximum descriptors of a user's process, unless the agent's own limit is lower: enough for any device, and
/// far fewer than root may have.
const FDS_MAX: libc::rlim_t = 65_536;
/// Exit status of a child that did not reach `execve`.
pub(crate) const NOT_EXECUTED: i32 = 127;

/// The owner of the new process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    /// The agent's own user: privileges and standard error are kept.
    Agent,
    /// Another user, without supplementary groups and without capabilities.
    User {
        /// User id.
        uid: libc::uid_t,
        /// Group id.
        gid: libc::gid_t,
        /// The process of this user that asks, whose limits the new one gets.
        asker: libc::pid_t,
    },
}

/// Data for the child, prepared before the fork: a child may not allocate.
struct Plan {
    program: CString,
    argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    input: RawFd,
    /// `/dev/null`, writable.
    null: RawFd,
    owner: Owner,
}

/// Starts `program` with `input` as its standard input. Returns its process id; SIGCHLD reports its exit.
pub(crate) fn spawn(
    program: &Path,
    arguments: &[&str],
    input: BorrowedFd<'_>,
    owner: Owner,
) -> Result<i32, Errno> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(|_| Errno::EINVAL);
    let program = text(program.as_os_str().as_bytes())?;
    let mut arguments_kept = vec![program.clone()];
    for argument in arguments {
        arguments_kept.push(text(argument.as_bytes())?);
    }
    let environment = match owner {
        Owner::Agent => kept_environment(),
        Owner::User { .. } => Vec::new(),
    };
    let null = std::fs::OpenOptions::new()
        .write(true)
        .open("/dev/null")
        .map_err(|cause| errno(&cause))?;
    let plan = Plan {
        argv: pointers(&arguments_kept),
        envp: pointers(&environment),
        program,
        input: input.as_raw_fd(),
        null: null.as_raw_fd(),
        owner,
    };
    let (closed, open_in_child) = nix::unistd::pipe2(OFlag::O_CLOEXEC)?;
    // SAFETY: like fork, without the handlers of the C library, which the child does not use: it only makes
    // system calls, and shares no memory with the agent.
    let pid = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    match Errno::result(pid)? {
        // SAFETY: this is the child.
        0 => unsafe { run(&plan) },
        pid => {
            drop(open_in_child);
            // End of file once the child has closed its copy or exited.
            while nix::unistd::read(&closed, &mut [0]) == Err(Errno::EINTR) {}
            Ok(pid as i32)
        }
    }
}

fn kept_environment() -> Vec<CString> {
    let kept = |name: &str| -> Option<CString> {
        let mut line = OsString::from(name);
        line.push("=");
        line.push(std::env::var_os(name)?);
        CString::new(line.into_vec()).ok()
    };
    KEPT_VARIABLES.into_iter().filter_map(kept).collect()
}

fn pointers(list: &[CString]) -> Vec<*const libc::c_char> {
    list.iter()
        .map(|text| text.as_ptr())
        .chain([std::ptr::null()])
        .collect()
}

/// The child.
///
/// # Safety
/// Only in a fresh child; the plan's arrays end with NULL.
unsafe fn run(plan: &Plan) -> ! {
    // SAFETY: system calls on valid pointers, in a process with one thread that shares nothing.
    unsafe {
        libc::setsid();
        take_descriptors(plan);
        reset_signals();
        limit_descriptors();
        if let Owner::User { uid, gid, asker } = plan.owner {
            if !become_user(uid, gid) {
                libc::_exit(NOT_EXECUTED);
            }
            take_limits(asker);
        }
        // Nothing that it executes gains privileges.
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::execve(
            plan.program.as_ptr(),
            plan.argv.as_ptr(),
            plan.envp.as_ptr(),
        );
        libc::_exit(NOT_EXECUTED)
    }
}

/// Sets standard input, output and error, and closes everything else. The descriptors of the plan are above
/// 2: the agent has had those three open since its start.
///
/// # Safety
/// Only in a fresh child.
unsafe fn take_descriptors(plan: &Plan) {
    // SAFETY: system calls on integers and a valid structure.
    unsafe {
        libc::dup2(plan.input, 0);
        libc::dup2(plan.null, 1);
        if matches!(plan.owner, Owner::User { .. }) {
            libc::dup2(plan.null, 2);
        }
        close_from(3);
    }
}

/// # Safety
/// Only in a fresh child.
unsafe fn reset_signals() {
    /// Size of the kernel's signal set.
    const SET_BYTES: usize = 8;
    /// The default action, no flags, no mask: larger than the kernel's structure.
    const DEFAULT: [usize; 8] = [0; 8];
    // SAFETY: an empty set and the default action install no code. The C library does not permit resetting
    // the two signals that it reserves.
    unsafe {
        for number in 1..=libc::SIGRTMAX() {
            libc::syscall(
                libc::SYS_rt_sigaction,
                number,
                DEFAULT.as_ptr(),
                std::ptr::null_mut::<u8>(),
                SET_BYTES,
            );
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// # Safety
/// Only in a fresh child.
unsafe fn limit_descriptors() {
    // SAFETY: system calls on a valid structure.
    unsafe {
        let mut limit: libc::rlimit = std::mem::zeroed();
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_max = limit.rlim_max.min(FDS_MAX);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// Adopts the limits of a process of the same user, where they are lower than those of the service. If they
/// cannot be read, or the process has exited, the service's limits remain.
///
/// # Safety
/// Only in a fresh child.
unsafe fn take_limits(of: libc::pid_t) {
    /// Linux has sixteen kinds of limits.
    const LIMITS: libc::c_int = 16;
    // SAFETY: system calls on valid structures.
    unsafe {
        for what in 0..LIMITS {
            let mut theirs: libc::rlimit64 = std::mem::zeroed();
            let mut own: libc::rlimit64 = std::mem::zeroed();
            let none = std::ptr::null::<libc::rlimit64>();
            let read = of > 0
                && libc::syscall(libc::SYS_prlimit64, of, what, none, &raw mut theirs) == 0
                && libc::syscall(libc::SYS_prlimit64, 0, what, none, &raw mut own) == 0;
            if read {
                own.rlim_max = own.rlim_max.min(theirs.rlim_max);
                own.rlim_cur = theirs.rlim_cur.min(own.rlim_max);
                let unread = std::ptr::null_mut::<libc::rlimit64>();
                libc::syscall(libc::SYS_prlimit64, 0, what, &raw const own, unread);
            }
        }
    }
}

/// Gives up all privileges of root. The C library's wrappers for user and groups synchronise with threads
/// that this process does not have, hence the raw system calls.
///
/// # Safety
/// Only in a fresh child.
unsafe fn become_user(uid: libc::uid_t, gid: libc::gid_t) -> bool {
    /// `struct __user_cap_header_struct` and the data, both words of it.
    #[repr(C)]
    struct CapHeader {
        version: u32,
        pid: i32,
    }
    const CAP_VERSION_3: u32 = 0x2008_0522;
    const JOIN_SESSION_KEYRING: libc::c_int = 1;
    // SAFETY: system calls on integers and valid structures.
    unsafe {
        // A service may be exempt from the OOM killer or have a higher priority; a user's process is not.
        let score = libc::open(
            c"/proc/self/oom_score_adj".as_ptr(),
            libc::O_WRONLY | libc::O_CLOEXEC,
        );
        if score >= 0 {
            libc::write(score, c"0".as_ptr().cast(), 1);
            libc::close(score);
        }
        let usual: libc::sched_param = std::mem::zeroed();
        libc::sched_setscheduler(0, libc::SCHED_OTHER, &raw const usual);
        if libc::getpriority(libc::PRIO_PROCESS, 0) < 0 {
            libc::setpriority(libc::PRIO_PROCESS, 0, 0);
        }
        let no_groups: *const libc::gid_t = std::ptr::null();
        if libc::syscall(libc::SYS_setgroups, 0, no_groups) != 0
            || libc::syscall(libc::SYS_setresgid, gid, gid, gid) != 0
            || libc::syscall(libc::SYS_setresuid, uid, uid, uid) != 0
        {
            return false;
        }
        // Changing the user clears the capabilities, unless the service is configured to keep them.
        libc::prctl(
            libc::PR_CAP_AMBIENT,
            libc::PR_CAP_AMBIENT_CLEAR_ALL,
            0,
            0,
            0,
        );
        let header = CapHeader {
            version: CAP_VERSION_3,
            pid: 0,
        };
        let none = [0u32; 6];
        if libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr()) != 0 {
            return false;
        }
        // Leaves root's keyring; kernels without keyrings lack the call.
        libc::syscall(
            libc::SYS_keyctl,
            JOIN_SESSION_KEYRING,
            std::ptr::null::<u8>(),
        );
        true
    }
}

/// Whether a file is executable by anyone.
pub(crate) fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path)
        .is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}
