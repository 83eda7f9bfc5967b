//! What the device sleeps on: sockets, and a timer with nanoseconds, while the timeout of `epoll_wait` is in
//! milliseconds.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use vipl_sys::clock;

/// Names of the timer and of the agent among the events.
const TIMER: u64 = u64::MAX - 1;
const AGENT: u64 = u64::MAX;
/// Events that one call takes.
const EVENTS: usize = 64;

/// No time limit.
pub(crate) const NEVER: u64 = u64::MAX;

/// The source of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// The agent's socket.
    Agent,
    /// The socket of the process in this place.
    Messages(usize),
    /// The process in this place has exited.
    End(usize),
    /// The data socket of this link.
    Link(usize),
}

/// Kinds of sources with a number; a name is the number times this, plus the kind.
const KINDS: u64 = 4;

impl Source {
    fn name(self) -> u64 {
        match self {
            Source::Agent => AGENT,
            Source::Messages(place) => place as u64 * KINDS,
            Source::End(place) => place as u64 * KINDS + 1,
            Source::Link(index) => index as u64 * KINDS + 2,
        }
    }

    fn named(name: u64) -> Source {
        let number = (name / KINDS) as usize;
        match name % KINDS {
            _ if name == AGENT => Source::Agent,
            0 => Source::Messages(number),
            1 => Source::End(number),
            _ => Source::Link(number),
        }
    }
}

/// An event.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) source: Source,
    /// It is an error.
    pub(crate) failed: bool,
}

/// Everything that may wake the device.
pub(crate) struct Events {
    epoll: OwnedFd,
    timer: Timer,
}

impl Events {
    pub(crate) fn new() -> io::Result<Events> {
        // SAFETY: no pointers; the descriptor is ours.
        let epoll = unsafe {
            let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        let events = Events {
            epoll,
            timer: Timer::new()?,
        };
        events.add(events.timer.fd.as_raw_fd(), TIMER)?;
        Ok(events)
    }

    /// Reports events of this file descriptor from now on.
    pub(crate) fn listen(&self, fd: RawFd, source: Source) -> io::Result<()> {
        self.add(fd, source.name())
    }

    fn add(&self, fd: RawFd, name: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: name,
        };
        // SAFETY: valid descriptors and a valid structure.
        let added = unsafe {
            let epoll = self.epoll.as_raw_fd();
            libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &raw mut event)
        };
        if added != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }

    /// Reports no more events of a file descriptor that other processes may hold open.
    pub(crate) fn unlisten(&self, fd: RawFd) {
        // SAFETY: valid descriptors.
        unsafe {
            let epoll = self.epoll.as_raw_fd();
            libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut());
        }
    }

    /// Takes events. `until`: waits for one until this time, in nanoseconds; [`NEVER`]: without a limit.
    pub(crate) fn take(&mut self, until: Option<u64>) -> io::Result<Vec<Event>> {
        if let Some(time) = until {
            self.timer.set(time);
        }
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS];
        let timeout = if until.is_some() { -1 } else { 0 };
        // SAFETY: room for as many events as it says.
        let found = unsafe {
            let epoll = self.epoll.as_raw_fd();
            libc::epoll_wait(epoll, events.as_mut_ptr(), EVENTS as i32, timeout)
        };
        if found < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::Interrupted => Ok(Vec::new()),
                _ => Err(error),
            };
        }
        let mut taken = Vec::new();
        for event in &events[..found as usize] {
            let name = event.u64;
            if name == TIMER {
                self.timer.set(NEVER);
                continue;
            }
            let failed = event.events & libc::EPOLLERR as u32 != 0;
            let source = Source::named(name);
            taken.push(Event { source, failed });
        }
        Ok(taken)
    }
}

/// A timer on the monotonic clock, readable from the time that was set.
struct Timer {
    fd: OwnedFd,
    time: u64,
}

impl Timer {
    fn new() -> io::Result<Timer> {
        // SAFETY: no pointers; the descriptor is ours.
        let fd = unsafe {
            let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
            let fd = libc::timerfd_create(libc::CLOCK_MONOTONIC, flags);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(fd)
        };
        Ok(Timer { fd, time: NEVER })
    }

    /// Sets the time, in nanoseconds; [`NEVER`]: none.
    fn set(&mut self, time: u64) {
        if time == self.time {
            return;
        }
        self.time = time;
        // 0 disarms a timer.
        let time = if time == NEVER { 0 } else { time.max(1) };
        let value = libc::itimerspec {
            it_interval: clock::timespec_at(0),
            it_value: clock::timespec_at(time),
        };
        // SAFETY: a valid structure; the old value is not wanted. It fails for no valid time.
        unsafe {
            let flags = libc::TFD_TIMER_ABSTIME;
            libc::timerfd_settime(
                self.fd.as_raw_fd(),
                flags,
                &raw const value,
                std::ptr::null_mut(),
            );
        }
    }
}
