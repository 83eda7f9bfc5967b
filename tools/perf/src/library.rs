//! `library`: RDMA Writes into memory that the library has allocated (`vipl_alloc`), which peers on this host map, beside
//! a cache line and beside messages between memory of the program. In processes of their own: where regions come from
//! is settled at the start.

use serde_json::Value;
use vipl_tools::{Error, Result};

use crate::bench::{Figure, Params, figure};
use crate::fresh::Fresh;
use crate::reference::Reference;

/// Bytes of the streams.
const STREAM: &str = "65536";

/// Measures all of it once.
pub(crate) fn measure(fresh: &Fresh, params: Params) -> Result<Vec<Figure>> {
    let seconds = params.time.as_secs_f64().to_string();
    let run = |memory: &str, words: &[&str]| {
        let both = ["--self", "--memory", memory, "--seconds", &seconds];
        let mut command = fresh.command(&[words, &both].concat())?;
        if let Some(count) = params.iterations {
            command.args(["-n", &count.to_string()]);
        }
        Fresh::answer(command, "library")
    };
    let small = run("library", &["write-latency", "-s", "8", "--limits"])?;
    let writes = run("library", &["write-bandwidth", "-s", STREAM])?;
    let messages = run("program", &["bandwidth", "-s", STREAM])?;
    let first = |test: &str, answer: &Value| {
        let mut results = answer["results"].as_array().into_iter().flatten();
        let found = results.find(|result| result["test"] == test);
        let value = found.and_then(|result| result["figures"][0]["value"].as_f64());
        value.ok_or_else(|| Error::Peer(format!("library: {test} gave no figure")))
    };
    let limits = small["results"][0]["limits"].as_array();
    let line = Reference::CacheLine.name();
    let mut lines = limits
        .into_iter()
        .flatten()
        .filter(|limit| limit["name"] == line);
    let ratio = lines.next().and_then(|limit| limit["ratio"].as_f64());
    let (messages, writes) = (
        first("bandwidth", &messages)?,
        first("write-bandwidth", &writes)?,
    );
    Ok(vec![
        figure("8 B ÷ line", ratio.unwrap_or(f64::NAN), ""),
        figure("8 B one way", first("write-latency", &small)?, "µs"),
        figure("64 KiB ÷ messages", writes / messages, ""),
        figure("64 KiB", writes, "GB/s"),
        figure("messages", messages, "GB/s"),
    ])
}
