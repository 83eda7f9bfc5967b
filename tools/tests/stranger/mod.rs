//! A server that the tests talk to as strangers.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use vipl_client::Library;
use vipl_ctest::{library_dir, tool};

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A port that other runs of these tests do not use at the same time.
pub(crate) fn port(test: u16) -> u16 {
    20_000 + (std::process::id() % 13_000) as u16 * 3 + test
}

pub(crate) struct Server {
    child: Child,
    lines: Receiver<String>,
    pub(crate) port: u16,
}

impl Server {
    pub(crate) fn start(program: &str, port: u16, arguments: &[&str]) -> Self {
        let text = port.to_string();
        let mut child = tool(program, &[&["-p", &text], arguments].concat())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a server");
        let stdout = BufReader::new(child.stderr.take().expect("a pipe"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            stdout
                .lines()
                .map_while(Result::ok)
                .try_for_each(|l| sender.send(l))
        });
        let server = Server { child, lines, port };
        server.says("waiting for a client");
        server
    }

    /// Waits for a line with these words.
    pub(crate) fn says(&self, words: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE);
            let line = line.unwrap_or_else(|error| panic!("no line with {words:?}: {error}"));
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Whether it ends in order.
    pub(crate) fn ends(mut self) -> bool {
        self.child.wait().expect("the server").success()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn library() -> &'static Library {
    Library::open_at(library_dir().join("libvipl.so.1")).expect("the library")
}

/// A client whose tests are served.
pub(crate) fn plays(program: &str, port: u16, arguments: &[&str]) {
    let port = port.to_string();
    let output = tool(
        program,
        &[&["localhost", "-p", &port, "-s", "8"], arguments].concat(),
    )
    .output()
    .expect("a client");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
}
