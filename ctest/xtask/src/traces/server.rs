//! A server of files for a browser on this host: pages that load code cannot be read from files.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// A folder, and files with names of their own. It serves until the process ends.
pub(crate) struct Server {
    port: u16,
    files: Arc<Mutex<Vec<(&'static str, PathBuf)>>>,
}

impl Server {
    /// Serves a folder on a port that is free.
    pub(crate) fn start(folder: &Path) -> io::Result<Server> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let port = listener.local_addr()?.port();
        let files: Arc<Mutex<Vec<(&'static str, PathBuf)>>> = Arc::default();
        let (folder, known) = (folder.to_owned(), files.clone());
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (folder, known) = (folder.clone(), known.clone());
                // Browsers connect in advance, so one that says nothing must keep no other waiting.
                thread::spawn(move || answer(&stream, &folder, &known));
            }
        });
        Ok(Server { port, files })
    }

    /// Serves this file, too.
    pub(crate) fn add(&self, name: &'static str, file: &Path) {
        let mut files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.retain(|known| known.0 != name);
        files.push((name, file.to_owned()));
    }

    /// The address of its first page.
    pub(crate) fn address(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }
}

/// Answers one request.
fn answer(
    mut stream: &TcpStream,
    folder: &Path,
    known: &Mutex<Vec<(&'static str, PathBuf)>>,
) -> io::Result<()> {
    let mut request = String::new();
    let mut lines = BufReader::new(stream);
    lines.read_line(&mut request)?;
    // The rest of it, so that the connection is not reset with the answer under way.
    let mut line = String::new();
    while lines.read_line(&mut line)? > 2 {
        line.clear();
    }
    let path = request.split_whitespace().nth(1).unwrap_or_default();
    let name = path.split('?').next().unwrap_or_default();
    let name = name.trim_start_matches('/');
    let file = {
        let known = known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().find(|known| known.0 == name);
        found.map(|found| found.1.clone())
    };
    let file = file.unwrap_or_else(|| match name {
        "" => folder.join("index.html"),
        name => folder.join(name),
    });
    let is_inside = !name.contains("..");
    let Some(content) = fs::read(&file).ok().filter(|_| is_inside) else {
        return stream.write_all(
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
        );
    };
    let kind = match file.extension().and_then(|kind| kind.to_str()) {
        Some("html") => "text/html",
        Some("js") => "text/javascript",
        Some("css") => "text/css",
        Some("wasm") => "application/wasm",
        Some("json") => "application/json",
        _ => "application/octet-stream",
    };
    let length = content.len();
    write!(
        stream,
        "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    )?;
    stream.write_all(&content)
}
