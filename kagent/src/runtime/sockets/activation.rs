//! A listening socket from a service manager (see sd_listen_fds(3)).

use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};

/// Whether a service manager started us with a listening socket (see sd_listen_fds(3)).
pub(crate) fn activated() -> bool {
    let number = |name| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse::<u32>().ok())
    };
    number("LISTEN_PID") == Some(std::process::id())
        && number("LISTEN_FDS").is_some_and(|count| count >= 1)
}

/// Takes descriptor 3, the first one passed by a service manager.
pub(crate) fn inherited_listener() -> OwnedFd {
    const FIRST: RawFd = 3;
    // SAFETY: the service manager passes this descriptor, as LISTEN_FDS and LISTEN_PID state, and nothing
    // else in this program uses it. This is called once.
    let fd = unsafe { OwnedFd::from_raw_fd(FIRST) };
    let _ = nix::fcntl::fcntl(
        fd.as_fd(),
        nix::fcntl::FcntlArg::F_SETFD(nix::fcntl::FdFlag::FD_CLOEXEC),
    );
    fd
}
