//! The remaining threads of a process whose application has ended its own.

use std::io;

/// Names of threads of the library and its plug-ins that run no code of the application.
const HELPERS: [&str; 6] = [
    "vipl-agent",
    "vipl-watch",
    "vipl-poll",
    "vipl-register",
    "vipl-trace",
    "vipl-validate",
];
/// The name of threads that call the application's handlers.
const HANDLER: &str = "vipl-handler";

/// The remaining threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    threads: Vec<u32>,
    /// Whether some of them call the application's handlers.
    pub handlers: bool,
}

/// The threads of this process, if its first one has ended and all others are the library's. `None` also if
/// the system does not report them. The list is not read atomically: two calls must agree.
pub fn by_program() -> Option<Left> {
    use std::fs::{read_link, read_to_string};
    // While the first thread exists, the process has its program file.
    match read_link("/proc/self/exe") {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        _ => return None,
    }
    let first = std::process::id();
    let stat = read_to_string(format!("/proc/self/task/{first}/stat")).ok()?;
    let (_, after_name) = stat.rsplit_once(") ")?;
    if !after_name.starts_with('Z') {
        return None;
    }
    let before = count()?;
    let mut left = Left {
        threads: Vec::new(),
        handlers: false,
    };
    for entry in std::fs::read_dir("/proc/self/task").ok()? {
        let id: u32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
        let name = read_to_string(format!("/proc/self/task/{id}/comm")).ok()?;
        let name = name.trim_end_matches('\n');
        let is_ours = HELPERS.contains(&name) || name == HANDLER;
        // A thread inherits the name of its creator: a program with such a name may have threads of that
        // name.
        if is_ours == (id == first) {
            return None;
        }
        left.handlers |= name == HANDLER;
        left.threads.push(id);
    }
    // The list ends early if a thread ends while it is read.
    (left.threads.len() == before && count() == Some(before)).then_some(left)
}

/// Number of threads of this process.
pub(crate) fn count() -> Option<usize> {
    use std::os::unix::fs::MetadataExt;
    // A folder has two links and one for each folder in it.
    let links = std::fs::metadata("/proc/self/task").ok()?.nlink();
    usize::try_from(links).ok()?.checked_sub(2)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::thread::spawn_with_signals_blocked;

    /// The result of a child that ends its first thread and checks from another one with this name; 2: none.
    fn look_from(name: &'static str, other: Option<&'static str>) -> i32 {
        // SAFETY: the child starts threads and ends; it takes no lock of this process.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                if let Some(other) = other {
                    let _ = spawn_with_signals_blocked(other, || {
                        loop {
                            std::thread::park();
                        }
                    });
                }
                let _ = spawn_with_signals_blocked(name, || {
                    while std::fs::read_link("/proc/self/exe").is_ok() {
                        std::thread::yield_now();
                    }
                    // The other thread may not have its name yet.
                    for _ in 0..100 {
                        if let Some(left) = by_program() {
                            libc::_exit(i32::from(left.handlers));
                        }
                        crate::clock::sleep(std::time::Duration::from_millis(1));
                    }
                    libc::_exit(2);
                });
                // Ends this thread only.
                libc::syscall(libc::SYS_exit, 0);
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
            assert!(libc::WIFEXITED(status), "{status}");
            libc::WEXITSTATUS(status)
        }
    }

    #[test]
    fn only_the_librarys_threads_count_for_none() {
        assert_eq!(by_program(), None);
        assert_eq!(look_from("vipl-agent", None), 0);
        assert_eq!(look_from("vipl-agent", Some("vipl-watch")), 0);
        assert_eq!(look_from("vipl-agent", Some("vipl-handler")), 1);
        assert_eq!(look_from("vipl-agent", Some("another")), 2);
        assert_eq!(look_from("another", None), 2);
    }
}
