//! What the checkers of `ctest/fuzz`, `ctest/loom` and `ctest/sanitize` have in common: compiling for a
//! checker, and running things for a limited time.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Result;
use crate::workspace::{output, root};

/// The machine that the compiler makes code for, as it calls it.
pub(crate) fn host_triple() -> Result<String> {
    let text = output(rustc().arg("-vV"))?;
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.ok_or("rustc does not tell its host")?.to_owned())
}

/// The compiler that cargo uses.
pub(crate) fn rustc() -> Command {
    let mut command = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    command.current_dir(root());
    command
}

/// The runtime library of a sanitizer that came with the compiler, if it did.
pub(crate) fn runtime(sanitizer: &str) -> Result<Option<PathBuf>> {
    let sysroot = output(rustc().args(["--print", "sysroot"]))?;
    let folder = Path::new(sysroot.trim())
        .join("lib/rustlib")
        .join(host_triple()?)
        .join("lib");
    let ending = format!("_rt.{sanitizer}.a");
    let files = std::fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.path()));
    let mut found = files.filter(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("librustc") && name.ends_with(&ending)
    });
    Ok(found.next())
}

/// A program that runs, with what it says so far.
pub(crate) struct Running {
    child: Child,
    said: Option<JoinHandle<String>>,
    begun: Instant,
}

/// How a program ended.
pub(crate) struct Ended {
    /// Exit code; `None` for a signal, or when the time was up.
    pub code: Option<i32>,
    /// The time was up.
    pub late: bool,
    /// Standard output and standard error.
    pub said: String,
    /// How long it took.
    pub time: Duration,
}

impl Running {
    /// Starts a program as the first of its own process group.
    pub(crate) fn start(command: &mut Command) -> Result<Running> {
        let (mut reader, writer) = std::io::pipe()?;
        command
            .stdin(Stdio::null())
            .stdout(writer.try_clone()?)
            .stderr(writer)
            .process_group(0);
        let begun = Instant::now();
        let child = command.spawn();
        // Our ends for writing are in it.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = child.map_err(|e| format!("{:?}: {e}", command.get_program()))?;
        let said = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // An error ends the text, no more.
            let _ = reader.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Ok(Running {
            child,
            said: Some(said),
            begun,
        })
    }

    /// Waits for its end, but not longer than this after its start; then ends its whole group.
    pub(crate) fn end(mut self, limit: Duration) -> Result<Ended> {
        let mut late = false;
        let status = loop {
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            if self.begun.elapsed() > limit {
                late = true;
                self.kill_group();
                break self.child.wait()?;
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let time = self.begun.elapsed();
        // Children that outlived it would hold the pipe.
        self.kill_group();
        let said = self.said.take().and_then(|reader| reader.join().ok());
        Ok(Ended {
            code: if late { None } else { status.code() },
            late,
            said: said.unwrap_or_default(),
            time,
        })
    }

    fn kill_group(&self) {
        // The group is the one that was made for this child; no process may be left in it.
        let group = format!("-{}", self.child.id());
        let _ = Command::new("kill")
            .args(["-KILL", "--", &group])
            .stderr(Stdio::null())
            .status();
    }
}

impl Ended {
    /// Ended by itself and well.
    pub(crate) fn is_good(&self) -> bool {
        self.code == Some(0)
    }

    /// For people.
    pub(crate) fn ending(&self) -> String {
        match (self.late, self.code) {
            (true, _) => format!("no end after {} s", self.time.as_secs()),
            (_, Some(code)) => format!("ended with {code}"),
            (_, None) => "was ended by a signal".to_owned(),
        }
    }
}
