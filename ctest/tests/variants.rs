//! The same programs under other circumstances: another vendor's library, a foreign device name, without
//! copies from process to process, under valgrind, with other compilers, with both dialects.

use std::sync::atomic::{AtomicU32, Ordering};

use vipl_ctest::{
    CompilerChoice, Program, Run, find_tool, library_dir, program, skip, source, start_together,
    work_dir,
};

/// A program that is linked with a library of another vendor runs on this one under LD_PRELOAD.
#[test]
fn preloaded_over_another_library() {
    let dir = work_dir().join("stub");
    Program::new(source("programs/stub.c"))
        .shared()
        .flag("-Wl,-soname,libvipl.so")
        .build(&dir.join("libvipl.so"));
    let tour = Program::new(source("programs/tour.c"))
        .linked_in(&dir)
        .build(&dir.join("tour"));
    // Without the preload it is the stub that answers.
    let alone = Run::compatible(&tour).without("LD_LIBRARY_PATH").finish();
    assert!(
        !alone.status.success(),
        "{}",
        alone.report("the stub does nothing")
    );
    assert!(
        alone.stdout.contains("VIP_ERROR_NOT_SUPPORTED"),
        "{}",
        alone.report("is the stub")
    );
    for name in ["libvipl.so", "libvipl.so.1"] {
        let real = library_dir().join(name);
        Run::compatible(&tour)
            .without("LD_LIBRARY_PATH")
            .env("LD_PRELOAD", &real)
            .pass();
        Run::compatible(&tour)
            .without("LD_LIBRARY_PATH")
            .env("LD_PRELOAD", &real)
            .arg("-1")
            .pass();
    }
}

/// Programs have the device names of their time built in.
#[test]
fn foreign_device_names() {
    let everything = "*=loopback:";
    for device in ["/dev/clanvi0", "/dev/via_eth0", "VINIC", "nic0"] {
        Run::compatible(program("tour"))
            .env("VIPL_DEVICE_MAP", everything)
            .arg("-d")
            .arg(device)
            .pass();
    }
    Run::compatible(program("tour"))
        .env("VIPL_DEVICE_MAP", "clanvi0=loopback:;via_eth1=nothing:")
        .env("VIPL_DEVICE", "/dev/clanvi0")
        .pass();
    // A name that the map does not have is not changed by it.
    let lost = Run::compatible(program("tour"))
        .env("VIPL_DEVICE_MAP", "clanvi0=loopback:")
        .env("VIPL_DEVICE", "/dev/clanvi1")
        .finish();
    assert!(
        !lost.status.success(),
        "{}",
        lost.report("clanvi1 is not mapped")
    );
    assert!(
        lost.log(&["warn", "error"])
            .iter()
            .any(|line| line.contains("clanvi1"))
    );
}

/// The configuration file can hold the map, too.
#[test]
fn device_map_in_a_file() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), "[device_map]\nclanvi0 = \"loopback:\"\n").expect("a file");
    Run::compatible(program("tour"))
        .env("VIPL_CONFIG", file.path())
        .arg("-d")
        .arg("/dev/clanvi0")
        .pass();
}

/// A correct program is correct under AddressSanitizer, too: nothing that this library allocates is taken for a
/// leak. The library is the ordinary one; the sanitizer replaces the allocator of the whole process.
#[test]
fn no_leaks_under_address_sanitizer() {
    let dir = vipl_ctest::work_dir().join("leaks");
    std::fs::create_dir_all(&dir).expect("a folder");
    let probe = dir.join("probe.c");
    std::fs::write(&probe, "int main(void) { return 0; }\n").expect("a file");
    let probed = std::process::Command::new(std::env::var_os("CC").unwrap_or("cc".into()))
        .arg("-fsanitize=address")
        .arg(&probe)
        .arg("-o")
        .arg(dir.join("probe"))
        .output()
        .expect("a compiler");
    let works = || std::process::Command::new(dir.join("probe")).output();
    if !probed.status.success() || !works().is_ok_and(|run| run.status.success()) {
        return vipl_ctest::skip("the compiler has no AddressSanitizer that works here");
    }
    for name in ["simple", "tour", "registration"] {
        let program = Program::new(source(format!("programs/{name}.c")))
            .flag("-fsanitize=address")
            .linked()
            .build(&dir.join(name));
        for device in ["via_lo", "sim:"] {
            Run::compatible(&program)
                .env(
                    "ASAN_OPTIONS",
                    "detect_leaks=1:handle_segv=0:allow_user_segv_handler=1",
                )
                .env("VIPL_SINGLE_COPY", "true")
                .arg("-d")
                .arg(device)
                .pass();
        }
    }
}

/// Waits that never spin, and waits that spin long.
#[test]
fn with_and_without_spinning() {
    for microseconds in ["0", "2000"] {
        for name in ["tour", "waits", "notify"] {
            Run::strict(program(name))
                .env("VIPL_SPIN_US", microseconds)
                .pass();
        }
    }
}

fn valgrind(name: &str, arguments: &[&str]) {
    if find_tool("valgrind").is_none() {
        skip("there is no valgrind here");
        return;
    }
    let mut run = Run::strict("valgrind")
        .arg("--quiet")
        .arg("--error-exitcode=9")
        .arg("--trace-children=yes")
        .arg("--trace-children-skip=*/vipkad")
        .arg(program(name))
        .seconds(300);
    for argument in arguments {
        run = run.arg(argument);
    }
    let finished = run.pass();
    assert!(
        !finished.stderr.contains("== "),
        "{}",
        finished.report("valgrind has found something")
    );
}

#[test]
fn tour_under_valgrind() {
    valgrind("tour", &[]);
}

#[test]
fn tour_of_one_process_under_valgrind() {
    valgrind("tour", &["-1"]);
}

#[test]
fn nulls_under_valgrind() {
    valgrind("nulls", &[]);
}

/// A number for the connection points of one run.
fn number() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let next = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("{}", std::process::id() * 100 + next)
}

/// ABI-11: programs of both dialects, and of each alone, exchange messages.
#[test]
fn dialects() {
    for server in ["dialect_clan", "dialect_intel"] {
        for client in ["dialect_clan", "dialect_intel"] {
            let number = number();
            start_together(vec![
                Run::strict(program(server)).arg("server").arg(&number),
                Run::strict(program(client)).arg("client").arg(&number),
            ]);
        }
    }
}

/// The programs are plain C99: another compiler makes the same of them.
#[test]
fn other_compilers() {
    for name in ["gcc", "clang"] {
        if find_tool(name).is_none() {
            skip(&format!("there is no {name} here"));
            continue;
        }
        for (source_name, flags) in [
            ("tour", "-O2"),
            ("nulls", "-O0"),
            ("dialect_clan", "-O2"),
            ("dialect_intel", "-O2"),
        ] {
            let output = work_dir()
                .join("compilers")
                .join(format!("{source_name}-{name}"));
            Program::new(source("programs").join(format!("{source_name}.c")))
                .compiler(CompilerChoice::Named(name))
                .flag(flags)
                .linked()
                .build(&output);
            if source_name == "tour" {
                Run::compatible(&output).pass();
            }
        }
    }
}

/// The same program, linked with a static glance at nothing but the soname: `libvipl.so.1`.
#[test]
fn the_soname_is_what_programs_record() {
    let Some(readelf) = find_tool("readelf") else {
        skip("there is no readelf here");
        return;
    };
    let dynamic = |file: &std::path::Path| {
        let output = std::process::Command::new(&readelf)
            .arg("-d")
            .arg(file)
            .output()
            .expect("readelf");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let library = dynamic(&library_dir().join("libvipl.so.1"));
    assert!(
        library.contains("Library soname: [libvipl.so.1]"),
        "{library}"
    );
    let tour = dynamic(&program("tour"));
    assert!(tour.contains("Shared library: [libvipl.so.1]"), "{tour}");
}

/// POST-11: nothing on the way of a message is put off until its first use. On loopback with single copy, too.
#[test]
fn no_system_call_from_the_first_post_on() {
    for copy in ["true", "false"] {
        Run::strict(program("quiet"))
            .env("VIPL_SINGLE_COPY", copy)
            .pass();
        Run::compatible(program("quiet"))
            .env("VIPL_SINGLE_COPY", copy)
            .pass();
    }
}

/// Programs that poll their memory for RDMA Writes are served by the thread that watches for them.
#[test]
fn polled_memory() {
    for device in ["loopback:", "sim:"] {
        Run::strict(program("polled_memory"))
            .arg("-d")
            .arg(device)
            .pass();
    }
}

/// What `cargo xtask deep` runs.
mod deep {
    use super::*;

    /// Where the kernel forbids copies from process to process the data goes another way.
    #[test]
    #[ignore = "cargo xtask deep"]
    fn without_single_copy() {
        for name in ["tour", "rdma", "errors", "memory", "simple"] {
            for run in [
                Run::strict(program(name)),
                Run::strict(program(name)).arg("-1"),
            ] {
                run.env("VIPL_SINGLE_COPY", "false").pass();
            }
        }
    }

    #[test]
    #[ignore = "cargo xtask deep"]
    fn without_single_copy_at_length() {
        Run::strict(program("xfer"))
            .env("VIPL_SINGLE_COPY", "false")
            .pass();
        Run::compatible(program("compat"))
            .env("VIPL_SINGLE_COPY", "false")
            // It destroys a VI twice on purpose.
            .pass();
        Run::strict(program("kill"))
            .env("VIPL_SINGLE_COPY", "false")
            .pass();
        Run::strict(program("rdma"))
            .env("VIPL_SINGLE_COPY", "false")
            .env("VIPL_MAX_TRANSFER_SIZE", "4194304")
            .pass();
    }
}
