//! Plug-ins as a third party makes them: the example in C, bad ones, and where they are looked for.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use vipl_ctest::{
    Block, Finished, Program, Run, blocks, headers, library_dir, program, source, work_dir,
};

/// A folder of this test alone, empty.
fn folder(name: &str) -> PathBuf {
    let dir = work_dir().join("plugins").join(name);
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).expect("a folder");
    dir
}

/// Builds the example plug-in into a folder.
fn example_in(dir: &Path) -> PathBuf {
    Program::new(source("../examples/plugin.c"))
        .flag("-O2")
        .shared()
        .build(&dir.join("libvipl_example.so"))
}

/// Builds a bad plug-in; `wrong` is what is wrong with it, without the `BAD_`.
fn bad_in(dir: &Path, file: &str, wrong: &str) -> PathBuf {
    let mut program = Program::new(source("badplugins/bad.c")).shared();
    if !wrong.is_empty() {
        program = program.flag(format!("-DBAD_{wrong}"));
    }
    program.build(&dir.join(file))
}

/// Opens devices with a plug-in path.
fn opens(path: &str, names: &[&str]) -> Finished {
    let mut run = Run::compatible(program("opens"))
        .env("VIPL_PLUGIN_PATH", path)
        .allow("");
    for name in names {
        run = run.arg(name);
    }
    run.pass()
}

/// The bad plug-in is refused with a line that has all of `said`; loopback is unharmed.
fn refused(wrong: &str, said: &[&str]) {
    let dir = folder(&format!("bad-{wrong}"));
    let file = bad_in(&dir, "libvipl_bad.so", wrong);
    refused_file(&dir, &file, said);
}

fn refused_file(dir: &Path, file: &Path, said: &[&str]) {
    let path = dir.to_str().expect("a plain name");
    let file = file.to_str().expect("a plain name");
    for device in ["bad:", "bad"] {
        let finished = opens(path, &[device, "/dev/via_lo", device]);
        assert_eq!(
            finished
                .stdout
                .matches("does not open: VIP_INVALID_PARAMETER")
                .count(),
            2,
            "{}",
            finished.report("the device must not open")
        );
        assert!(
            finished.stdout.contains("/dev/via_lo opens as"),
            "{}",
            finished.report("loopback")
        );
        let lines: Vec<&str> = finished
            .log(&["warn", "error"])
            .into_iter()
            .filter(|line| line.contains(file))
            .collect();
        assert_eq!(
            lines.len(),
            1,
            "{}",
            finished.report("one line about the file")
        );
        for word in said {
            assert!(
                lines[0].contains(word),
                "{}",
                finished.report(&format!("the line has no {word:?}"))
            );
        }
    }
    // Beside it, everything works.
    Run::compatible(program("simple"))
        .env("VIPL_PLUGIN_PATH", path)
        .allow(file)
        .pass();
}

#[test]
fn without_the_symbol() {
    refused("NO_SYMBOL", &["vipl_plugin_v1"]);
}

#[test]
fn with_a_wrong_magic() {
    refused(
        "MAGIC",
        &["magic", "0x47554c504c504956", "0x47554c504c504957"],
    );
}

#[test]
fn with_a_short_description() {
    refused("SIZE", &["size", "0x18"]);
}

#[test]
fn of_another_major_version() {
    refused("MAJOR", &["abi_major", "0x1", "0x2"]);
}

/// Its size is not one that the minor version which it states can have.
#[test]
fn whose_size_and_minor_version_differ() {
    refused("MINOR", &["vipl_plugin.size", "abi_minor 2"]);
}

/// A plug-in that was compiled with the header of a newer minor version is used: what it has more is ignored.
/// `libvipl/core/src/plugin/file.rs` tests what an older one lacks.
#[test]
fn of_a_newer_minor_version() {
    let dir = folder("minor-newer");
    Program::new(source("badplugins/bad.c"))
        .shared()
        .flag("-DBAD_NEWER")
        .flag("-DBAD_INFO=(void)0")
        .build(&dir.join("libvipl_bad.so"));
    let finished = opens(dir.to_str().expect("a plain name"), &["bad:"]);
    assert!(
        finished.stdout.contains("bad: opens as"),
        "{}",
        finished.report("a newer version")
    );
}

#[test]
fn with_another_layout() {
    refused("FINGERPRINT", &["fingerprint", "expected", "found"]);
}

#[test]
fn of_an_unknown_kind() {
    refused("KIND", &["kind", "0x1", "0x4d"]);
}

#[test]
fn with_another_name_than_its_file() {
    refused("NAME", &["bad", "another"]);
}

#[test]
fn that_needs_features_of_the_future() {
    refused("REQUIRED", &["0x10000000000"]);
}

#[test]
fn without_init() {
    refused("NO_INIT", &["init"]);
}

#[test]
fn whose_init_fails() {
    refused("INIT", &["init", "-1"]);
}

#[test]
fn without_a_mandatory_operation() {
    refused("MISSING_OP", &["progress"]);
}

#[test]
fn with_a_table_that_is_too_short() {
    refused("TABLE_SIZE", &["vipl_provider.size", "abi_minor 2"]);
}

/// A device that cannot be is refused with the field, what it is and what it may be.
#[test]
fn that_describes_an_impossible_device() {
    for (number, (wrong, said)) in [
        (
            "info->reliability_support = 0",
            "reliability_support is 0, allowed are 1 to 7",
        ),
        (
            "info->reliability_support = 9",
            "reliability_support is 9, allowed are 1 to 7",
        ),
        (
            "info->transfer_max = 1000",
            "transfer_max is 1000, allowed are 32768 to ",
        ),
        (
            "info->address_len = 33",
            "address_len is 33, allowed are 1 to 32",
        ),
        (
            "info->data_address_len = 257",
            "data_address_len is 257, allowed are 0 to 256",
        ),
        (
            "info->discriminator_max = 65",
            "discriminator_max is 65, allowed are 1 to 64",
        ),
        (
            "info->regions_max = 1000",
            "regions_max is 1000, allowed are powers of two",
        ),
        (
            "info->descriptors_max = 0",
            "descriptors_max is 0, allowed are powers of two",
        ),
        (
            "info->vis_max = 100000",
            "vis_max is 100000, allowed are 1 to 65536",
        ),
        (
            "info->rdma_read_support = 4",
            "rdma_read_support is 0x4, allowed are levels of",
        ),
        ("memset(info->name, 'x', 64)", "name has no NUL"),
    ]
    .into_iter()
    .enumerate()
    {
        let dir = folder(&format!("impossible-{number}"));
        Program::new(source("badplugins/bad.c"))
            .shared()
            .flag(format!("-DBAD_INFO={wrong}"))
            .build(&dir.join("libvipl_bad.so"));
        let finished = opens(dir.to_str().expect("a plain name"), &["bad:"]);
        let lines = finished.log(&["warn", "error"]);
        assert_eq!(lines.len(), 1, "{}", finished.report("one line"));
        for part in ["impossible device", said, "libvipl_bad.so"] {
            assert!(lines[0].contains(part), "{}", finished.report(part));
        }
    }
    // The same device without the mistake opens.
    let dir = folder("possible");
    Program::new(source("badplugins/bad.c"))
        .shared()
        .flag("-DBAD_INFO=(void)0")
        .build(&dir.join("libvipl_bad.so"));
    let finished = opens(dir.to_str().expect("a plain name"), &["bad:"]);
    assert!(
        finished.stdout.contains("bad: opens as"),
        "{}",
        finished.report("opens")
    );
}

/// A plug-in that crashes in its `init` is named, as the process ends.
#[test]
fn whose_init_crashes() {
    if !cfg!(target_arch = "x86_64") {
        return vipl_ctest::skip("faults are not caught on this machine");
    }
    let dir = folder("init-fault");
    let file = bad_in(&dir, "libvipl_bad.so", "INIT_FAULT");
    let finished = Run::compatible(program("opens"))
        .env("VIPL_PLUGIN_PATH", &dir)
        .arg("bad:")
        .finish();
    assert!(!finished.status.success(), "{}", finished.report("ends"));
    let line = format!(
        "vipl: a fault while the plug-in {} was in its init",
        file.display()
    );
    assert_eq!(
        finished.stderr.trim_end(),
        line,
        "{}",
        finished.report("one line")
    );
}

/// The head of a library of the other word size is enough for the system's loader.
#[test]
fn for_programs_of_the_other_word_size() {
    let (other, class) = if usize::BITS == 64 { (32, 1) } else { (64, 2) };
    let dir = folder("other-class");
    let file = dir.join("libvipl_bad.so");
    let mut library = vec![0; 64];
    library[..7].copy_from_slice(&[0x7F, b'E', b'L', b'F', class, 1, 1]);
    std::fs::write(&file, library).expect("a file");
    let own = usize::BITS;
    let said = format!("is for {other}-bit programs, and this one has {own} bits");
    refused_file(&dir, &file, &[&said]);
}

#[test]
fn that_is_no_library_at_all() {
    let dir = folder("bad-no-elf");
    let file = dir.join("libvipl_bad.so");
    std::fs::write(&file, "this is not a shared library\n").expect("a file");
    refused_file(&dir, &file, &["cannot be loaded"]);
    let empty = folder("bad-empty");
    let file = empty.join("libvipl_bad.so");
    std::fs::write(&file, "").expect("a file");
    refused_file(&empty, &file, &["cannot be loaded"]);
}

#[test]
fn that_lacks_a_symbol_it_uses() {
    let dir = folder("bad-unresolved");
    let text = "extern int nobody_has_this(void);\nint here(void);\n\
                int here(void) { return nobody_has_this(); }\n";
    std::fs::write(dir.join("unresolved.c"), text).expect("a file");
    let file = Program::new(dir.join("unresolved.c"))
        .shared()
        .build(&dir.join("libvipl_bad.so"));
    refused_file(&dir, &file, &["cannot be loaded", "nobody_has_this"]);
}

/// A plug-in that is in order, but opens nothing; unknown optional features are no reason to refuse it.
#[test]
fn whose_device_does_not_open() {
    let dir = folder("good-but-closed");
    bad_in(&dir, "libvipl_bad.so", "");
    let finished = opens(
        dir.to_str().expect("a plain name"),
        &["bad:", "bad", "via_lo"],
    );
    assert_eq!(
        finished.stdout.matches("VIP_INVALID_PARAMETER").count(),
        2,
        "{}",
        finished.stdout
    );
    assert!(
        finished.stdout.contains("via_lo opens as"),
        "{}",
        finished.stdout
    );
    assert!(
        !finished.stderr.contains("refused"),
        "{}",
        finished.report("is not refused")
    );
}

/// Of two files with one name the first one in the path is taken, and the second one is not opened.
#[test]
fn two_of_one_name() {
    let (first, second) = (folder("two-first"), folder("two-second"));
    example_in(&first);
    bad_in(&second, "libvipl_example.so", "MAGIC");
    let path = format!("{}:{}", first.display(), second.display());
    let finished = opens(&path, &["example", "example:"]);
    assert_eq!(
        finished.stdout.matches("opens as example").count(),
        2,
        "{}",
        finished.report("first wins")
    );
    assert!(
        !finished.stderr.contains("two-second"),
        "{}",
        finished.report("the second is not looked at")
    );
    // The other way round: a refused file does not hide a good one further on.
    let path = format!("{}:{}", second.display(), first.display());
    let finished = opens(&path, &["example"]);
    assert!(
        finished.stdout.contains("opens as example"),
        "{}",
        finished.report("goes on looking")
    );
    assert!(
        finished.stderr.contains("magic"),
        "{}",
        finished.report("and says why")
    );
}

/// A file of the library's own folder is found without any setting, as is one in `vipl/abi1/` there.
#[test]
fn beside_the_library() {
    for place in ["", "vipl/abi1"] {
        let dir = folder(&format!("beside{}", place.replace('/', "-")));
        for file in ["libvipl.so.1", "libvipl_loopback.so", "vipkad"] {
            std::fs::copy(library_dir().join(file), dir.join(file)).expect("a copy");
        }
        let plugins = dir.join(place);
        std::fs::create_dir_all(&plugins).expect("a folder");
        example_in(&plugins);
        let opens_it = |run: Run| {
            let finished = run.arg("example").arg("via_lo").pass();
            assert!(
                finished.stdout.contains("opens as example"),
                "{}",
                finished.report("example")
            );
            assert!(
                finished.stdout.contains("via_lo opens as via_lo"),
                "{}",
                finished.report("loopback")
            );
        };
        // The program's own rpath names the library of the other tests; the preloaded one comes first.
        opens_it(Run::compatible(program("opens")).env("LD_PRELOAD", dir.join("libvipl.so.1")));
    }
}

/// An empty path, missing folders, relative ones: no harm. What is named and missing is told once.
#[test]
fn odd_paths() {
    for (path, lines) in [
        ("", 0),
        (":", 0),
        ("/nowhere/at/all", 1),
        ("::/nowhere::", 1),
    ] {
        let finished = opens(path, &["via_lo", "via_lo"]);
        assert_eq!(
            finished.log(&["warn", "error"]).len(),
            lines,
            "{}",
            finished.report("complaints")
        );
    }
    let finished = opens("relative/folder", &["via_lo"]);
    assert!(
        finished.stderr.contains("relative/folder"),
        "{}",
        finished.report("is told")
    );
}

/// MOD-03: a plug-in that is dropped in while a program runs makes its device openable.
#[test]
fn dropped_in_while_a_program_runs() {
    let dir = folder("dropped");
    let plugin = example_in(&folder("dropped-from"));
    let run = Run::compatible(program("opens"))
        .env("VIPL_PLUGIN_PATH", &dir)
        .arg("-w")
        .arg(&dir)
        .arg("example");
    let dropping = std::thread::spawn(move || {
        let begun = Instant::now();
        while !dir.join("tried").exists() {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "the program has not tried"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        std::fs::rename(plugin, dir.join("libvipl_example.so")).expect("rename");
        std::fs::write(dir.join("go"), "").expect("a file");
    });
    let finished = run.pass();
    dropping
        .join()
        .expect("the thread that drops the plug-in in");
    assert!(
        finished.stdout.contains("example opens as example"),
        "{}",
        finished.report("opens")
    );
}

/// The example plug-in carries everything that does not need RDMA or another level (MOD-01, MOD-02).
#[test]
fn the_example_in_c() {
    let dir = folder("example");
    example_in(&dir);
    let over_example = |run: Run| {
        run.env("VIPL_PLUGIN_PATH", &dir).arg("-d").arg("example:")
        // Some of the programs give bad handles on purpose.
    };
    for name in ["simple", "threads", "forked"] {
        over_example(Run::strict(program(name))).pass();
        over_example(Run::strict(program(name)).arg("-1")).pass();
        over_example(Run::compatible(program(name))).pass();
    }
    for name in [
        "queue",
        "cq",
        "notify",
        "kill",
        "never_close",
        "exit_in_handler",
        "dlopen_loop",
    ] {
        over_example(Run::strict(program(name))).pass();
    }
    // One binary, two devices, by name alone.
    Run::compatible(program("simple"))
        .env("VIPL_PLUGIN_PATH", &dir)
        .arg("-d")
        .arg("via_lo")
        .pass();
    Run::compatible(program("simple"))
        .env("VIPL_PLUGIN_PATH", &dir)
        .env("VIPL_DEVICE_MAP", "*=example:")
        .arg("-d")
        .arg("/dev/clanvi0")
        .pass();
}

/// The example in Rust carries the same; the conformance suite runs all programs over it.
#[test]
fn the_example_in_rust() {
    for name in ["simple", "queue", "cq", "kill"] {
        Run::strict(program(name))
            .env("VIPL_PLUGIN_PATH", vipl_ctest::example_in_rust())
            .arg("-d")
            .arg("example_rs:")
            .pass();
    }
}

/// Rules 25 and 39: a descriptor that cannot be written any more ends the connection and not the process, also
/// when a thread of the plug-in meets it.
#[test]
fn the_example_survives_a_read_only_descriptor() {
    let dir = folder("example-read-only");
    example_in(&dir);
    for mode in [Run::strict, Run::compatible] {
        mode(program("failing"))
            .env("VIPL_PLUGIN_PATH", &dir)
            .env("VIPL_DEVICE", "example:")
            .arg("read-only")
            .pass();
    }
}

/// A plug-in in C that reads its descriptors by their numbers carries what the example does.
#[test]
fn a_plugin_with_a_window() {
    let dir = folder("window");
    Program::new(source("badplugins/window.c"))
        .shared()
        .build(&dir.join("libvipl_window.so"));
    for name in ["simple", "queue", "cq"] {
        for mode in [Run::strict, Run::compatible] {
            mode(program(name))
                .env("VIPL_PLUGIN_PATH", &dir)
                .arg("-d")
                .arg("window:")
                .pass();
        }
    }
}

/// E18: a device that fails for good takes every VI of its NIC with it, and the program is told once.
#[test]
fn a_device_that_fails() {
    for (mode, name) in [
        (Run::strict as fn(PathBuf) -> Run, "strict"),
        (Run::compatible, "compatible"),
    ] {
        let dir = folder(&format!("failing-{name}"));
        Program::new(source("badplugins/failing.c"))
            .shared()
            .build(&dir.join("libvipl_failing.so"));
        mode(program("catastrophe"))
            .env("VIPL_PLUGIN_PATH", &dir)
            .env("FAILING_WHEN", dir.join("now"))
            .allow("has failed")
            .arg("-d")
            .arg("failing:")
            .pass();
    }
}

/// The command in its first comment compiles the example, word for word.
#[test]
fn the_example_says_how_to_compile_it() {
    let dir = source("../examples");
    let text = std::fs::read_to_string(dir.join("plugin.c")).expect("the example");
    let command = text
        .lines()
        .find_map(|line| line.strip_prefix(" * Compile:  "))
        .expect("the command");
    let output = folder("command").join("libvipl_example.so");
    let command = command
        .replace("-o libvipl_example.so", &format!("-o {}", output.display()))
        .replace("../headers", &headers().display().to_string());
    let status = std::process::Command::new("sh")
        .args(["-ec", &command])
        .current_dir(&dir)
        .status()
        .expect("sh");
    assert!(status.success() && output.is_file(), "{command}");
}

/// What the guide quotes are lines of the examples, so they compile.
#[test]
fn the_guide_quotes_the_examples() {
    let read = |path: &str| std::fs::read_to_string(source(path)).expect("a text");
    let guide = read("../plugins/PLUGINS.md");
    let quotes = |language: &str, examples: &[&str]| {
        let text: String = examples.iter().map(|path| read(path)).collect();
        let blocks = blocks(&guide, language);
        for block in blocks.iter().map(Block::text) {
            assert!(text.contains(&block), "{examples:?} have no {block}");
        }
        blocks.len()
    };
    assert!(quotes("c", &["../examples/plugin.c"]) >= 4);
    assert!(
        quotes(
            "rust",
            &[
                "../examples/plugin-rs/plugin.rs",
                "../examples/plugin-rs/tests.rs"
            ]
        ) >= 2
    );
    assert!(quotes("toml", &["../examples/plugin-rs/Cargo.toml"]) >= 2);
}
