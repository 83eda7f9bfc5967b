//! `pinned`: VipRecvWait in two processes that may use one CPU each, as a batch system starts them, and in
//! two that may use all. Each needs processes of its own: what a process may use is settled when it starts.

use vipl_tools::pin::Pair;
use vipl_tools::{Result, sys};

use crate::bench::{Figure, Params, figure};
use crate::fresh::Fresh;

/// Measures both, one after the other.
pub(crate) fn wait(fresh: &Fresh, cpus: Pair, params: Params) -> Result<Vec<Figure>> {
    let (bytes, seconds) = (
        params.bytes.to_string(),
        params.time.as_secs_f64().to_string(),
    );
    let words = [
        "latency",
        "--self",
        "--wait",
        "-s",
        &bytes,
        "--seconds",
        &seconds,
        "--cpu",
    ];
    let of = |place: &str| {
        let mut command = fresh.command(&[&words[..], &[place]].concat())?;
        if let Some(count) = params.iterations {
            command.args(["-n", &count.to_string()]);
        }
        Ok::<_, vipl_tools::Error>(command)
    };
    let mut command = of(&format!("{},{}", cpus.0, cpus.1))?;
    sys::start_on(&mut command, Some(cpus.0));
    let pinned = Fresh::first_figure(command, "latency")?;
    let mut command = of("all")?;
    sys::start_on(&mut command, None);
    let free = Fresh::first_figure(command, "latency")?;
    Ok(vec![
        figure("pinned ÷ not pinned", pinned / free, ""),
        figure("pinned", pinned, "µs"),
        figure("not pinned", free, "µs"),
    ])
}
