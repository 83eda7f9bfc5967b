//! The course, docs/learn: what its pages show is what happens. Each block of commands is run as a reader runs it, in a copy of the
//! folder, and prints what the page says; each block of C is in a program; the answers of the exercises are commands of the pages, too.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use vipl_ctest::{
    Finished, Run, blocks, find_tool, headers, library_dir, source, tools_dir, work_dir,
};

/// What a line begins with whose rest differs from run to run.
const LOOSE: [&str; 2] = ["Unreliable: ", "server: \""];
/// Programs with mistakes, on purpose.
const WRONG: [&str; 2] = ["broken", "puzzle"];

fn course() -> PathBuf {
    source("../docs/learn")
}

/// The files of the course, by their paths below its folder, with these ends of their names.
fn files(kinds: &[&str]) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for below in ["", "answers/"] {
        for entry in fs::read_dir(course().join(below)).expect("a folder") {
            let name = entry.expect("an entry").file_name();
            let name = name.to_str().expect("a plain name");
            if kinds.iter().any(|kind| name.ends_with(kind)) {
                found.insert(format!("{below}{name}"));
            }
        }
    }
    found
}

fn page(name: &str) -> String {
    fs::read_to_string(course().join(name)).expect("a page")
}

/// A copy of the course, in which programs are built by `cc` with all warnings and with what `pkg-config` says of the library under
/// test.
struct Copy {
    folder: PathBuf,
    path: String,
}

impl Copy {
    fn new(name: &str) -> Copy {
        let folder = work_dir().join("learn").join(name);
        let _ = fs::remove_dir_all(&folder);
        let bin = folder.join(".bin");
        fs::create_dir_all(folder.join("answers")).expect("a folder");
        fs::create_dir_all(&bin).expect("a folder");
        for file in files(&[".c", ".h"]) {
            fs::copy(course().join(&file), folder.join(&file)).expect("a copy");
        }
        let compiler = std::env::var_os("CC").map_or_else(|| find_tool("cc"), |cc| Some(cc.into()));
        let compiler = compiler.expect("a C compiler");
        let flags = "-Wall -Wextra -Wpedantic -Werror";
        let compile = format!("exec {} {flags} \"$@\"", compiler.display());
        let (headers, library) = (headers(), library_dir());
        let (headers, library) = (headers.display(), library.display());
        let link = format!("echo -I{headers} -L{library} -lvipl");
        for (name, line) in [("cc", compile), ("pkg-config", link)] {
            let script = bin.join(name);
            fs::write(&script, format!("#!/bin/sh\n{line}\n")).expect("a script");
            fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("chmod");
        }
        let path = std::env::var("PATH").expect("PATH");
        let path = format!("{}:{}:{path}", bin.display(), tools_dir().display());
        Copy { folder, path }
    }

    /// Runs commands in the folder; both outputs are one.
    fn run(&self, commands: &str) -> Finished {
        let folder = self.folder.display();
        let script = format!("exec 2>&1; cd '{folder}' || exit\n{commands}");
        let run = Run::compatible("/bin/sh").arg("-c").arg(script);
        let run = run.env("PATH", &self.path).seconds(120);
        run.env("VIPL_LIBRARY", library_dir().join("libvipl.so.1"))
            .finish()
    }
}

/// A line without what differs from run to run: processes, addresses, measured numbers, folders of sources, blanks.
fn plain(line: &str) -> String {
    let words: Vec<String> = line.split_whitespace().map(plain_word).collect();
    words.join(" ")
}

fn plain_word(word: &str) -> String {
    if let Some(rest) = word.strip_prefix("vipl[") {
        return rest
            .trim_start_matches(|c: char| c.is_ascii_digit())
            .to_owned();
    }
    let place = word.find(".c:").or_else(|| word.find(".h:"));
    let folders = place.and_then(|place| word[..place].rfind('/'));
    let word = &word[folders.map_or(0, |last| last + 1)..];
    let number = word.trim_end_matches([',', ';', ':', ')']);
    let rest = &word[number.len()..];
    let is_hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
    let is_decimal = |text: &str| text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    match number {
        _ if number.strip_prefix("0x").is_some_and(is_hex) => format!("0x{rest}"),
        _ if number.contains('.') && number != "..." && is_decimal(number) => {
            format!("0.0{rest}")
        }
        _ => word.to_owned(),
    }
}

/// Whether a line of the output is the line of a page, in which `...` stands for anything.
fn fits(line: &str, expected: &str) -> bool {
    let mut pieces = expected.split("...");
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = line.strip_prefix(first) else {
        return false;
    };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else {
        return rest.is_empty();
    };
    for piece in middle {
        match rest.find(piece) {
            Some(place) => rest = &rest[place + piece.len()..],
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// How the output differs from the page. Processes print at the same time, so the order of lines does not count; a line `...` stands for
/// any others.
fn difference(output: &str, expected: &[&str]) -> Option<String> {
    let mut lines: Vec<String> = output.lines().map(plain).collect();
    let loosen = |line: &&str| match LOOSE.iter().find(|begin| line.starts_with(**begin)) {
        Some(begin) => plain(&format!("{begin}...")).replace(" ...", "..."),
        None => plain(line),
    };
    let (others, mut expected): (Vec<String>, Vec<String>) =
        expected.iter().map(loosen).partition(|line| line == "...");
    // Those that fit one line only choose first.
    expected.sort_by_key(|line| line.contains("..."));
    for wanted in expected {
        match lines.iter().position(|line| fits(line, &wanted)) {
            Some(found) => drop(lines.remove(found)),
            None => return Some(format!("not printed: {wanted}")),
        }
    }
    (others.is_empty() && !lines.is_empty()).then(|| format!("not in the page: {lines:#?}"))
}

/// Runs all commands of a page, and compares what they print.
fn read(name: &str) {
    let (text, copy) = (page(name), Copy::new(name));
    let blocks = blocks(&text, "console");
    assert!(!blocks.is_empty(), "{name} has no commands");
    for block in blocks {
        let commands: Vec<&str> = block
            .lines
            .iter()
            .filter_map(|line| line.strip_prefix("$ "))
            .collect();
        let is_output = |line: &&&str| !line.starts_with("$ ");
        let expected: Vec<&str> = block.lines.iter().filter(is_output).copied().collect();
        let finished = copy.run(&commands.join("\n"));
        let shown = finished.report(&format!("{name}: {commands:#?}"));
        assert!(!finished.timed_out, "{shown}");
        if let Some(wrong) = difference(&finished.stdout, &expected) {
            panic!("{wrong}\n{shown}");
        }
    }
}

#[test]
fn the_first_page() {
    read("README.md");
}

#[test]
fn lesson_1() {
    read("1-message.md");
}

#[test]
fn lesson_2() {
    read("2-queues.md");
}

#[test]
fn lesson_3() {
    read("3-completion.md");
}

#[test]
fn lesson_4() {
    read("4-rdma-write.md");
}

#[test]
fn lesson_5() {
    read("5-rdma-read.md");
}

#[test]
fn lesson_6() {
    read("6-completion-queues.md");
}

#[test]
fn lesson_7() {
    read("7-reliability.md");
}

#[test]
fn lesson_8() {
    read("8-break-it.md");
}

#[test]
fn lesson_9() {
    read("9-two-hosts.md");
}

#[test]
fn lesson_10() {
    read("10-measure.md");
}

/// Each block of C stands in a program, line by line.
#[test]
fn the_code_of_the_pages_is_that_of_the_programs() {
    let trimmed = |text: &str| -> String {
        text.lines()
            .map(|line| format!("{}\n", line.trim()))
            .collect()
    };
    let read = |name: &String| trimmed(&page(name));
    let programs: Vec<String> = files(&[".c", ".h"]).iter().map(read).collect();
    let mut count = 0;
    for name in files(&[".md"]) {
        for block in blocks(&page(&name), "c") {
            let code = trimmed(&block.text());
            let is_there = programs.iter().any(|program| program.contains(&code));
            assert!(is_there, "{name} shows what is in no program:\n{code}");
            count += 1;
        }
    }
    assert!(count > 30, "{count} blocks");
}

/// No program without a command that builds it, and no page that the first one does not name.
#[test]
fn nothing_is_left_out() {
    let pages = files(&[".md"]);
    let texts: Vec<String> = pages.iter().map(|name| page(name)).collect();
    for program in files(&[".c"]) {
        let builds =
            |line: &&str| line.starts_with("$ cc ") && line.contains(&format!(" {program} -o "));
        let is_built = |text: &String| {
            let blocks = blocks(text, "console");
            blocks.iter().any(|block| block.lines.iter().any(builds))
        };
        assert!(texts.iter().any(is_built), "no page builds {program}");
    }
    let first = page("README.md");
    for name in pages.iter().filter(|name| *name != "README.md") {
        assert!(
            first.contains(&format!("({name})")),
            "README.md has no {name}"
        );
    }
    for picture in files(&[".svg"]) {
        let shows = |text: &String| text.contains(&format!("]({picture})"));
        assert!(texts.iter().any(shows), "no page has {picture}");
    }
}

/// The identifiers of a text.
fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

/// Names of functions and constants in the dictionary are in the headers; those of others, where their headers are installed.
#[test]
fn the_names_of_the_dictionary_exist() {
    let page = page("DICTIONARY.md");
    let code: Vec<&str> = page.split('`').skip(1).step_by(2).collect();
    let own = headers();
    let mut count = 0;
    for (folder, files, prefixes) in [
        (own.clone(), "vipl", ["Vip", "VIP_", "vipl_"]),
        (
            "/usr/include/infiniband".into(),
            "verbs",
            ["ibv_", "IBV_", "IBV_"],
        ),
        (
            "/usr/include/rdma".into(),
            "rdma_cma",
            ["rdma_", "RDMA_", "RDMA_"],
        ),
        ("/usr/include/rdma".into(), "f", ["fi_", "FI_", "FI_"]),
    ] {
        let mut known = String::new();
        for entry in fs::read_dir(&folder).into_iter().flatten() {
            let entry = entry.expect("an entry");
            if entry.file_name().to_string_lossy().starts_with(files) {
                known += &fs::read_to_string(entry.path()).expect("a header");
            }
        }
        if known.is_empty() {
            println!("SKIP {prefixes:?}: {} has no such header", folder.display());
            continue;
        }
        let known: BTreeSet<&str> = identifiers(&known).collect();
        let names = code.iter().flat_map(|code| identifiers(code));
        for name in names.filter(|name| prefixes.iter().any(|begin| name.starts_with(begin))) {
            assert!(known.contains(name), "no header has {name}");
            count += 1;
        }
    }
    assert!(count > 50, "{count} names");
}

/// What readers copy from: no finding of `validate`, but that clients which are sent nothing post no receive.
#[test]
fn the_programs_have_no_finding() {
    let copy = Copy::new("findings");
    let layers = "export VIPL_LAYERS=validate VIPL_VALIDATE_SILENCE=VAL-51";
    for program in files(&[".c"]) {
        let name = program
            .trim_end_matches(".c")
            .rsplit('/')
            .next()
            .unwrap_or_default();
        if WRONG.contains(&name) {
            continue;
        }
        let run = match name {
            "host_server" => continue,
            "host_client" | "patient" => {
                format!("./host_server via_lo 1 & ./{name} localhost; wait")
            }
            _ => format!("./{name}"),
        };
        let server = "[ -x host_server ] || cc -g host_server.c -o host_server $(pkg-config)";
        let build = format!("{server}; cc -g {program} -o {name} $(pkg-config) -pthread");
        let finished = copy.run(&format!("{build}\n{layers}\n{run}"));
        let shown = finished.report(&program);
        assert!(finished.status.success() && !finished.timed_out, "{shown}");
        assert!(!finished.stdout.contains("VAL-"), "{shown}");
    }
}

#[test]
fn a_page_that_is_not_true_is_found() {
    let output = "7 messages at 0x7ffe10, 1.25 us\nvipl[12] warn plugin: VAL-11 at /tmp/a/b.c:7 (call): x\nlast";
    let page = [
        "7 messages at 0x55, 99.5 us",
        "vipl[7] warn plugin: VAL-11 at b.c:7 (call): x",
        "last",
    ];
    assert_eq!(difference(output, &page), None);
    for (place, wrong) in [
        (0, "8 messages at 0x55, 99.5 us"),
        (2, "lost"),
        (1, "vipl[7] warn ...: y"),
    ] {
        let mut page = page;
        page[place] = wrong;
        assert!(difference(output, &page).is_some(), "{wrong}");
    }
    assert!(difference(output, &page[..2]).is_some());
    assert_eq!(difference(output, &["...", "last"]), None);
    assert_eq!(
        difference(output, &["7 ... us", "...", "vipl[7] ... (call): x"]),
        None
    );
}
