//! `cargo xtask walks`: the commands of the chapter docs/DIAGNOSIS.md, run as a reader would run them, over an installation.
//!
//! All of them are lines of one shell. What each one prints is compared with what the chapter says it prints, without numbers, times, addresses
//! and white space; `...` stands for any lines. Pictures that the chapter shows must have been drawn by its commands, with the
//! same words in them; those in PNG are what Perfetto shows of the trace of the same name. So the chapter changes with the tools,
//! or a check fails. All traces are read by Perfetto as well.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use vipl_ctest::blocks;

use crate::Result;
use crate::traces::{self, Perfetto};
use crate::workspace::{Workspace, have, root};

const CHAPTER: &str = "docs/DIAGNOSIS.md";
/// Its pictures, beside it.
const PICTURES: &str = "diagnosis/";
/// Where the chapter's installation is.
const PREFIX: &str = "/opt/vipl";
/// Seconds for all commands.
const SECONDS: &str = "300";
/// One more trace, of two processes that poll.
const POLLS: &str = "VIPL_LAYERS=trace VIPL_TRACE_FILE=polls.json vip_pingpong --self -s 8,4k -n 1000 -w 0 >/dev/null";
/// Ends the output of a command; no tool prints it.
const MARK: &str = "\u{1e}";

/// Arguments of `cargo xtask walks`.
#[derive(Args)]
pub(crate) struct Options {
    /// The installation
    #[arg(long, default_value = PREFIX)]
    prefix: PathBuf,
    /// Write what is different into the chapter, and the pictures beside it
    #[arg(long)]
    write: bool,
}

/// Runs the command.
pub(crate) fn run(options: &Options) -> Result {
    walk(&options.prefix, options.write)
}

/// A command of the chapter, and the lines that it prints there.
#[derive(Debug, PartialEq)]
struct Shown {
    command: String,
    /// Lines of the chapter: from, to.
    from: usize,
    to: usize,
}

/// Walks through the chapter; fails with the commands that print something else.
pub(crate) fn walk(prefix: &Path, write: bool) -> Result {
    if !have("make") || !have("pkg-config") || !have("bash") || !have("timeout") {
        println!("SKIP the walks: make, pkg-config, bash or timeout is not installed");
        return Ok(());
    }
    let chapter = root().join(CHAPTER);
    let text = fs::read_to_string(&chapter)?;
    let lines: Vec<&str> = text.lines().collect();
    let all = commands(&text);
    let folder = tempfile::tempdir()?;
    let commands = all.iter().map(|shown| shown.command.as_str());
    let commands: Vec<&str> = commands.chain([POLLS]).collect();
    let printed = execute(prefix, folder.path(), &commands)?;
    let (mut wrong, mut new) = (Vec::new(), Vec::new());
    let mut done = 0;
    for (shown, said) in all.iter().zip(&printed) {
        let expected = &lines[shown.from..shown.to];
        new.extend(
            lines[done..shown.from]
                .iter()
                .map(|line| (*line).to_owned()),
        );
        done = shown.to;
        if matches(expected, said) {
            new.extend(expected.iter().map(|line| (*line).to_owned()));
        } else {
            wrong.push(format!("$ {}\n{}", shown.command, said.join("\n")));
            new.extend(said.iter().cloned());
        }
    }
    new.extend(lines[done..].iter().map(|line| (*line).to_owned()));
    let traces = traces(&folder.path().join("work"), &mut wrong)?;
    let pictures = pictures(&text, folder.path(), &chapter, write, &mut wrong)?;
    if write {
        fs::write(&chapter, new.join("\n") + "\n")?;
        println!("{} commands, {} written", all.len(), wrong.len());
        return Ok(());
    }
    if wrong.is_empty() {
        let count = all.len();
        println!("walks: {count} commands, {pictures} pictures, {traces} traces");
        return Ok(());
    }
    let wrong = wrong.join("\n");
    Err(format!("{CHAPTER} says otherwise; `cargo xtask walks --write` writes it:\n{wrong}").into())
}

/// Checks the files that the layer `trace` has written, and draws a picture of each; how many there are.
fn traces(work: &Path, wrong: &mut Vec<String>) -> Result<usize> {
    let mut perfetto = match Perfetto::start(&Workspace::load()?.target) {
        Ok(perfetto) => Some(perfetto),
        Err(error) => {
            println!("SKIP traces in Perfetto: {error}");
            None
        }
    };
    if let Some(perfetto) = &mut perfetto {
        let planted = work.join("wrong");
        fs::write(&planted, traces::WRONG)?;
        if let Ok(seen) = perfetto.read(&planted) {
            wrong.push(format!("Perfetto finds nothing wrong in {seen:?}"));
        }
    }
    let mut files = Vec::new();
    for found in fs::read_dir(work)? {
        let path = found?.path();
        // Those that `%p` names are of one process, and lack the other end of their arrows.
        if path.extension().is_some_and(|kind| kind == "json")
            && fs::read(&path)?.starts_with(b"[\n")
        {
            files.push(path);
        }
    }
    files.sort();
    for file in &files {
        let name = file.display();
        let text = fs::read_to_string(file)?;
        let ours = traces::check(&text).map_err(|error| format!("{name}: {error}"))?;
        let slices: usize = ours.slices.values().sum();
        let (processes, arrows) = (ours.processes, ours.arrows);
        println!("{name}: {processes} processes, {slices} slices and marks, {arrows} arrows");
        let Some(perfetto) = &mut perfetto else {
            continue;
        };
        let theirs = perfetto
            .read(file)
            .map_err(|error| format!("{name}: {error}"))?;
        if theirs != ours {
            wrong.push(format!("{name} has {ours:?}; Perfetto sees {theirs:?}"));
        }
        fs::write(file.with_extension("png"), perfetto.picture(processes)?)?;
    }
    Ok(files.len())
}

/// The commands in the blocks of the console.
fn commands(text: &str) -> Vec<Shown> {
    let mut all: Vec<Shown> = Vec::new();
    for block in blocks(text, "console") {
        for (next, line) in (block.first + 1..).zip(block.lines) {
            if let Some(command) = line.strip_prefix("$ ") {
                all.push(Shown {
                    command: command.to_owned(),
                    from: next,
                    to: next,
                });
            } else if let Some(last) = all.last_mut() {
                last.to = next;
            }
        }
    }
    all
}

/// What each command prints, in lines, with the chapter's prefix.
fn execute(prefix: &Path, folder: &Path, all: &[&str]) -> Result<Vec<Vec<String>>> {
    // Processes of other programs of this user are no part of the chapter.
    let mut script = format!(
        "exec 2>&1 </dev/null\nPREFIX={}\nvipstat() {{ command vipstat --folder \"$VIPL_PUBLISH\" \"$@\"; }}\n",
        prefix.display()
    );
    for command in all {
        let command = command.replace(PREFIX, "$PREFIX");
        script += &format!("{command}\nprintf '{MARK}\\n'\n");
    }
    // What still runs is in the shell's process group or is its child.
    script += "kill -KILL $(jobs -p) 2>/dev/null\ntrue\n";
    // The library wants it in memory, and private.
    let pages = tempfile::Builder::new()
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in("/dev/shm")?;
    let work = folder.join("work");
    fs::create_dir(&work)?;
    let path = std::env::var("PATH").unwrap_or_default();
    let mut shell = Command::new("timeout");
    shell.args(["--kill-after=5", SECONDS, "bash", "-c", &script]);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VIPL_") {
            shell.env_remove(name);
        }
    }
    shell
        .current_dir(&work)
        .env("PATH", format!("{}:{path}", prefix.join("bin").display()))
        .env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"))
        .env("HOME", folder)
        .env("XDG_RUNTIME_DIR", folder)
        .env("VIPL_CONFIG", "/dev/null")
        .env("VIPL_PUBLISH", pages.path())
        // No table is broken, however long the process ids are.
        .env("COLUMNS", "160")
        .stdin(Stdio::null());
    // An agent of its own, and not the one that serves this user already.
    let socket = folder.join("agent");
    let mut agent = Command::new(prefix.join("libexec/vipl/vipkad"))
        .arg("--socket")
        .arg(&socket)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let output = shell.env("VIPL_AGENT", &socket).output();
    let _ = agent.kill();
    agent.wait()?;
    let output = output?;
    let said = String::from_utf8_lossy(&output.stdout)
        .replace(&*prefix.to_string_lossy(), PREFIX)
        .replace(&*work.to_string_lossy(), "/home/user");
    let mut parts: Vec<Vec<String>> = said
        .split(&format!("{MARK}\n"))
        .map(|part| {
            part.lines()
                .map(|line| line.trim_end().to_owned())
                .collect()
        })
        .collect();
    parts.truncate(parts.len() - 1);
    if parts.len() != all.len() {
        let last = all.get(parts.len()).copied().unwrap_or_default();
        return Err(format!("{}: `{last}` does not end:\n{said}", output.status).into());
    }
    Ok(parts)
}

/// Whether a command has printed what it is expected to.
fn matches(expected: &[&str], said: &[String]) -> bool {
    let Some((first, rest)) = expected.split_first() else {
        return said.is_empty();
    };
    if *first == "..." {
        return (0..=said.len()).any(|skipped| matches(rest, &said[skipped..]));
    }
    said.split_first()
        .is_some_and(|(line, others)| plain(first) == plain(line) && matches(rest, others))
}

/// A line without what is different each time: numbers become `N`, white space one space.
fn plain(line: &str) -> String {
    let mut plain = String::new();
    for word in line.split_whitespace() {
        if !plain.is_empty() {
            plain.push(' ');
        }
        let mut rest = match word {
            // Of two processors.
            "near" => "far",
            "ns" | "ms" | "s" => "µs",
            word => word,
        };
        while let Some(c) = rest.chars().next() {
            let number = rest
                .strip_prefix("0x")
                .map(|hex| 2 + length(hex, |c| c.is_ascii_hexdigit()))
                .unwrap_or_else(|| length(rest, |c| c.is_ascii_digit() || c == '.'));
            if c.is_ascii_digit() {
                plain.push('N');
                rest = &rest[number..];
                // 1.2k, 3.40M
                rest = rest.strip_prefix(['k', 'K', 'M', 'G']).unwrap_or(rest);
            } else {
                plain.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    plain
}

fn length(text: &str, is_part: impl Fn(char) -> bool) -> usize {
    text.find(|c| !is_part(c)).unwrap_or(text.len())
}

/// Compares the chapter's pictures with those that were drawn, or writes them; how many there are.
fn pictures(
    text: &str,
    folder: &Path,
    chapter: &Path,
    write: bool,
    wrong: &mut Vec<String>,
) -> Result<usize> {
    let names: Vec<&str> = text
        .split(&format!("]({PICTURES}"))
        .skip(1)
        .filter_map(|rest| rest.split(')').next())
        .collect();
    for name in &names {
        let path = chapter.with_file_name(PICTURES).join(name);
        let drawn = match fs::read(folder.join("work").join(name)) {
            // There is no Perfetto.
            Err(_) if name.ends_with(".png") && path.is_file() => continue,
            drawn => drawn.map_err(|error| format!("no command has drawn {name}: {error}"))?,
        };
        let old = fs::read(&path).unwrap_or_default();
        if write {
            fs::create_dir_all(chapter.with_file_name(PICTURES))?;
            fs::write(path, drawn)?;
        } else if name.ends_with(".png") {
            // Their size stands behind the same bytes in each.
            if old.get(..24) != drawn.get(..24) {
                wrong.push(format!("{name} has another size"));
            }
        } else {
            let [old, drawn] = [old, drawn].map(|text| words(&String::from_utf8_lossy(&text)));
            if old != drawn {
                wrong.push(format!("{name} has other words: {drawn:?}"));
            }
        }
    }
    Ok(names.len())
}

/// The words in a picture that are not numbers or sizes, sorted.
fn words(picture: &str) -> Vec<String> {
    let texts = picture.split("<text").skip(1).filter_map(|rest| {
        let (_, text) = rest.split_once('>')?;
        text.split('<').next()
    });
    // Which processors were used is different on each machine.
    let plain = |text: &str| text.replace(", near", "").replace(", far", "");
    let mut words: Vec<String> = texts
        .filter(|text| !text.contains(|c: char| c.is_ascii_digit()))
        .map(plain)
        .collect();
    words.sort();
    words.dedup();
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_stand_in_blocks_of_the_console() {
        let text = "$ no\n```console\n$ one\na\nb\n$ two\n```\n```text\n$ no\n```\n```console\n$ three\nc\n```";
        let shown = |command: &str, from, to| Shown {
            command: command.to_owned(),
            from,
            to,
        };
        let expected = [
            shown("one", 3, 5),
            shown("two", 6, 6),
            shown("three", 12, 13),
        ];
        assert_eq!(commands(text), expected);
    }

    #[test]
    fn outputs_are_compared_without_what_is_different_each_time() {
        let said = |lines: &[&str]| -> Vec<String> {
            lines.iter().map(|line| (*line).to_owned()).collect()
        };
        let expected = ["vipl[12] warn: VI 0x2ab at 1.20k ms", "...", "end"];
        assert!(matches(
            &expected,
            &said(&["vipl[7]  warn: VI 0x17 at 3 µs", "x", "y", "end"])
        ));
        assert!(matches(
            &expected,
            &said(&["vipl[7] warn: VI 0x17 at 3 µs", "end"])
        ));
        for other in [
            &["vipl[7] error: VI 0x17 at 3 µs", "end"][..],
            &["vipl[7] warn: VI 0x17 at 3 µs"],
            &["vipl[7] warn: VI 0x17 at 3 µs", "end", "more"],
            &[],
        ] {
            assert!(!matches(&expected, &said(other)), "{other:?}");
        }
    }

    #[test]
    fn a_walk_runs_in_one_shell() {
        let folder = tempfile::tempdir().unwrap();
        let text = "```console\n$ a=/opt/vipl/x; sleep 60 &\n$ echo $a; ls $HOME >/dev/null\n```\n";
        let prefix = folder.path().join("opt");
        fs::create_dir_all(prefix.join("libexec/vipl")).unwrap();
        std::os::unix::fs::symlink("/bin/true", prefix.join("libexec/vipl/vipkad")).unwrap();
        let all = commands(text);
        let all: Vec<&str> = all.iter().map(|shown| shown.command.as_str()).collect();
        let printed = execute(&prefix, folder.path(), &all).unwrap();
        assert_eq!(printed, [vec![], vec!["/opt/vipl/x".to_owned()]]);
    }

    #[test]
    fn pictures_have_words() {
        let picture = "<svg><text x=\"1\">Latency</text><text>8 B</text><text>Latency</text><text>p</text></svg>";
        assert_eq!(words(picture), ["Latency", "p"]);
    }
}
