//! Two guests with two virtual cables between them. Nothing of this machine's network is touched.
//!
//! ```text
//!   guest 0 ─ eth0, rxe0 ══════ eth0, rxe0 ─ guest 1     10.9.0.1, 10.9.0.2; fd09::1, fd09::2
//!           ─ eth1 ════════════════════ eth1 ─           10.8.0.1, 10.8.0.2: for orders while eth0 is down
//! ```
//!
//! A line `GUEST-CABLE off` or `GUEST-CABLE on` of a guest unplugs its eth0 from outside, or plugs it in again.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Instant;

use super::{Guest, Kernel, good, initramfs, machine};
use crate::Result;
use crate::workspace::built;

/// What stands between the commands of the two.
const BETWEEN: &str = "::";
/// What a guest's line begins with that is about its end of the cable.
const CABLE: &str = "GUEST-CABLE ";
/// What the last words of a kernel begin with. Emulated processors err: one kernel died of a thread whose flags were part of an
/// address. So a death is followed by a second try, and by none after that: what a test causes comes again.
const PANIC: &str = "Kernel panic - not syncing: ";

/// The commands of both.
fn commands(words: &[String]) -> Result<[Vec<String>; 2]> {
    let mut parts = words.split(|word| word == BETWEEN).map(<[String]>::to_vec);
    match (parts.next(), parts.next(), parts.next()) {
        (Some(first), Some(second), None) if !first.is_empty() && !second.is_empty() => {
            Ok([first, second])
        }
        _ => Err(format!("two guests run COMMAND0 {BETWEEN} COMMAND1").into()),
    }
}

/// Runs a command in each of two guests; without commands, the tests between two hosts where guests can be had.
pub(super) fn run(options: &Guest, words: &[String], within: Option<u32>) -> Result {
    let kernel = match options.prepare() {
        Err(why) if words.is_empty() => {
            println!("test two ... ignored, {why}");
            return Ok(());
        }
        kernel => kernel?,
    };
    let begun = Instant::now();
    let left = || within.map(|all| all.saturating_sub(begun.elapsed().as_secs() as u32));
    let mut is_first = true;
    loop {
        let commands = match words {
            [] => suite(left())?,
            words => commands(words)?,
        };
        let ends = boot(options, &kernel, &commands)?;
        let died = ends.iter().enumerate().find_map(|(side, end)| {
            let words = end.died.as_ref()?;
            Some(format!("the kernel of guest {side} died: {words}"))
        });
        match died {
            Some(why) if is_first && left() != Some(0) => {
                println!("guest: {why}; once more\nunstable: two guests");
                is_first = false;
            }
            Some(why) => return Err(why.into()),
            None => return all_good(&commands, ends),
        }
    }
}

/// The first command that has not ended with 0 is an error.
fn all_good(commands: &[Vec<String>; 2], ends: Vec<End>) -> Result {
    for (command, end) in commands.iter().zip(ends) {
        let end = end.status.map_err(Into::into).and_then(good);
        end.map_err(|why| format!("`{}`: {why}", command.join(" ")))?;
    }
    Ok(())
}

/// The tests between two hosts, whose C programs are compiled here.
fn suite(within: Option<u32>) -> Result<[Vec<String>; 2]> {
    let program = built()?.join("vipl-guests");
    let compile = &mut Command::new(&program);
    crate::workspace::run(compile.arg("compile").env("CTEST_NO_BUILD", "1"))?;
    let program = program.to_string_lossy().into_owned();
    let mut both = ["run", "serve"].map(|word| vec![program.clone(), word.to_owned()]);
    both[0].extend(within.map(|seconds| format!("--within={seconds}")));
    Ok(both)
}

/// Starts both and prints what they print, labelled. It ends with both; one that fails ends the other.
fn boot(options: &Guest, kernel: &Kernel, commands: &[Vec<String>; 2]) -> Result<Vec<End>> {
    println!(
        "guest: booting Linux {} twice without KVM",
        kernel.release()
    );
    let begun = Instant::now();
    let folder = tempfile::Builder::new().prefix("vipl-guest-").tempdir()?;
    let folder = folder.path();
    let monitors = [0, 1].map(|side| folder.join(format!("monitor{side}")));
    let mut running = Vec::new();
    for (side, command) in commands.iter().enumerate() {
        let image = folder.join(format!("initramfs{side}"));
        let content = initramfs(kernel, command, options.writable.as_deref())?;
        std::fs::write(&image, content)?;
        let mut guest = machine(options, kernel, &image, &format!("side={side}"));
        guest.arg("-monitor").arg(format!(
            "unix:{},server=on,wait=off",
            monitors[side].display()
        ));
        for cable in 0..2 {
            guest.args(["-netdev", &end(folder, side, cable), "-device"]);
            guest.arg(format!(
                "virtio-net-pci,netdev=cable{cable},id=eth{cable},mac=52:54:00:09:0{cable}:0{side}"
            ));
        }
        let guest = guest.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        running.push(guest.map_err(|error| format!("timeout: {error}"))?);
    }
    let monitors = &monitors;
    let ends = thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(&mut running)
            .map(|(side, guest)| scope.spawn(move || follow(side, guest, monitors)))
            .collect();
        let ends = threads
            .into_iter()
            .map(|thread| thread.join().expect("it does not panic"));
        ends.collect::<Vec<_>>()
    });
    println!("guest: {:.0} s", begun.elapsed().as_secs_f64());
    Ok(ends)
}

/// One end of a cable, for QEMU: datagrams between two sockets in a folder.
fn end(folder: &Path, side: usize, cable: usize) -> String {
    let socket = |side| folder.join(format!("cable{cable}-{side}"));
    format!(
        "dgram,id=cable{cable},local.type=unix,local.path={},remote.type=unix,remote.path={}",
        socket(side).display(),
        socket(1 - side).display()
    )
}

/// What became of a guest.
struct End {
    /// Of its command: see [`super::follow`].
    status: std::result::Result<Option<i32>, String>,
    /// The last words of its kernel, if that has died.
    died: Option<String>,
}

/// Prints a guest's lines until it ends, and unplugs its cable where they say so.
fn follow(side: usize, guest: &mut Child, monitors: &[PathBuf; 2]) -> End {
    let mut died = None;
    let status = super::follow(guest, |line| {
        if let Some((_, words)) = line.split_once(PANIC) {
            died = Some(words.to_owned());
        }
        if let Some(state) = line.strip_prefix(CABLE) {
            command(&monitors[side], &format!("set_link eth0 {}", state.trim()));
            return Ok(());
        }
        // Verdicts of tests stand alone, for those who count them.
        let label = if line.starts_with("test ") {
            String::new()
        } else {
            format!("{side} ")
        };
        let mut out = std::io::stdout().lock();
        // The guest has to be read to its end in any case.
        let _ = writeln!(out, "{label}{line}").and_then(|()| out.flush());
        Ok(())
    });
    if !matches!(status, Ok(Some(0))) {
        command(&monitors[1 - side], "quit");
    }
    let status = status.map_err(|why| why.to_string());
    End { status, died }
}

/// Gives a command to a guest's monitor. A guest that has ended has none.
fn command(monitor: &Path, line: &str) {
    if let Ok(mut monitor) = UnixStream::connect(monitor) {
        let _ = writeln!(monitor, "{line}");
        // Its greeting and its answer: a monitor that hangs up early may not have read the command.
        let _ = monitor.shutdown(std::net::Shutdown::Write);
        let _ = std::io::copy(&mut monitor, &mut std::io::sink());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_guest_has_a_command() {
        let words = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let [first, second] = commands(&words("a b :: c")).expect("two");
        assert_eq!((first, second), (words("a b"), words("c")));
        for wrong in ["a", "a ::", ":: a", "a :: b :: c"] {
            assert!(commands(&words(wrong)).is_err(), "{wrong}");
        }
    }
}
