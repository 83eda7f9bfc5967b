//! The installed files for CMake and for gdb, the examples and the course.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{Bench, DEVICE, run_quietly};
use crate::Result;
use crate::workspace::{have, output};

const PROJECT: &str = include_str!("CMakeLists.txt");
const PRINTED: &str = include_str!("printers.c");

/// What is printed in gdb, and how.
const PRINTERS: &[(&str, &str)] = &[
    (
        "m.d",
        "RDMAWRITE|IMMEDIATE, 3 segments, 27 bytes, DONE|LENGTH_ERROR|OP_RDMA_WRITE|IMMEDIATE = {ImmediateData = 7, \
         remote = 0x1000, memory handle 5, local[1] = 0x2000, 20 bytes, memory handle 6, local[2] = 0x3000, 7 bytes, \
         memory handle 6}",
    ),
    (
        "m.d.CS",
        "RDMAWRITE|IMMEDIATE, 3 segments, 27 bytes, DONE|LENGTH_ERROR|OP_RDMA_WRITE|IMMEDIATE = {ImmediateData = 7, Next \
         = 0x0}",
    ),
    ("a.net", "host 02:56:49:4c:00:01, discriminator 'hello'"),
    ("level", "RELIABLE_DELIVERY"),
    ("none", "NULL"),
    (
        "(VIP_CQ_HANDLE)0x0300000102000003",
        "0x300000102000003 (CQ in slot 3)",
    ),
    ("state", "VIP_STATE_CONNECT_PENDING"),
    ("result", "VIP_SUCCESS"),
    (
        "$vip_status(0x10021)",
        "\"DONE|DESC_FLUSHED_ERROR|OP_RECEIVE\"",
    ),
];

/// A project that finds the installation configures, builds with the library and with the archive, and runs.
pub(super) fn cmake(bench: &Bench) -> Result {
    if !have("cmake") || !have("make") {
        println!("SKIP the files for CMake: cmake or make is not installed");
        return Ok(());
    }
    let source = bench.folder.join("cmake");
    fs::create_dir(&source)?;
    fs::write(source.join("CMakeLists.txt"), PROJECT)?;
    fs::copy(bench.source, source.join("smoke.c"))?;
    let build = source.join("build");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&source).arg("-B").arg(&build);
    let prefix = format!("-DCMAKE_PREFIX_PATH={}", bench.prefix.display());
    run_quietly(configure.arg(prefix))?;
    run_quietly(Command::new("cmake").arg("--build").arg(&build))?;
    for (program, argument) in [("shared", Some(DEVICE)), ("archive", None)] {
        let mut command = Command::new(build.join(program));
        let text = output(bench.environment(command.args(argument)))?;
        println!("CMake, {program}: {}", text.trim().replace('\n', "; "));
    }
    Ok(())
}

/// The installed examples are built by their Makefile, elsewhere, and run.
pub(super) fn examples(bench: &Bench) -> Result {
    if !have("make") || !have("pkg-config") {
        println!("SKIP the examples: make or pkg-config is not installed");
        return Ok(());
    }
    let folder = bench.folder.join("examples");
    fs::create_dir(&folder)?;
    let makefile = bench.prefix.join("share/doc/vipl/examples/Makefile");
    let mut make = Command::new("make");
    make.current_dir(&folder).arg("-f").arg(makefile);
    make.env("PKG_CONFIG_PATH", bench.prefix.join("lib/pkgconfig"));
    run_quietly(make.arg("CFLAGS=-O2 -Werror"))?;
    let mut hello = Command::new(folder.join("hello"));
    // The programs find the library themselves.
    let text = output(
        bench
            .environment(hello.arg(DEVICE))
            .env_remove("LD_LIBRARY_PATH"),
    )?;
    println!("examples: {}", text.trim());
    Ok(())
}

/// The installed course is copied as its first page says; a program and an answer are built by the commands of the pages, and run.
pub(super) fn course(bench: &Bench) -> Result {
    let installed = bench.prefix.join("share/doc/vipl/learn");
    let copy = bench.folder.join("learn");
    let mut command = Command::new("cp");
    run_quietly(command.arg("-rL").arg(&installed).arg(&copy))?;
    for program in ["message", "answers/reply"] {
        let mut compiler = Command::new("cc");
        compiler
            .current_dir(&copy)
            .arg("-g")
            .arg(format!("{program}.c"));
        run_quietly(compiler.args(["-o", "program"]).args(bench.flags()?))?;
        let text = output(bench.environment(&mut Command::new(copy.join("program"))))?;
        println!("the course, {program}: {}", text.trim());
    }
    let mut count = 0;
    for found in fs::read_dir(&installed)? {
        let page = found?.path();
        if page.extension().is_some_and(|kind| kind == "md") {
            count += 1;
            links(&page)?;
        }
    }
    println!("the course: {count} pages, each file that they name is there");
    Ok(())
}

/// No link of a page leads to a file that is not installed.
fn links(page: &Path) -> Result {
    let text = fs::read_to_string(page)?;
    for link in text.split("](").skip(1) {
        let target = link.split([')', '#']).next().unwrap_or_default();
        let is_file = !target.is_empty() && !target.contains("://");
        if is_file && !page.with_file_name(target).exists() {
            return Err(format!("{}: {target} is not installed", page.display()).into());
        }
    }
    Ok(())
}

/// gdb loads the printers with the library, and prints each type as it should.
pub(super) fn gdb(bench: &Bench) -> Result {
    if !have("gdb") {
        println!("SKIP the printers: gdb is not installed");
        return Ok(());
    }
    let source = bench.folder.join("printers.c");
    fs::write(&source, PRINTED)?;
    let program = bench.folder.join("printers");
    let mut compiler = Command::new("cc");
    compiler
        .args(["-std=c99", "-g", "-O0"])
        .arg(&source)
        .arg("-o")
        .arg(&program);
    run_quietly(compiler.args(bench.flags()?))?;
    let mut gdb = Command::new("gdb");
    gdb.args(["--quiet", "--batch", "-nx"]);
    let scripts = bench.prefix.join("share/gdb/auto-load");
    for setting in [
        "set debuginfod enabled off".to_owned(),
        format!("add-auto-load-safe-path {}", scripts.display()),
        format!("add-auto-load-scripts-directory {}", scripts.display()),
    ] {
        gdb.arg("-iex").arg(setting);
    }
    for line in ["break stop", "run", "set print pretty off", "set width 0"] {
        gdb.arg("-ex").arg(line);
    }
    for (expression, _) in PRINTERS {
        gdb.arg("-ex").arg(format!("print {expression}"));
    }
    gdb.arg("--args").arg(&program).arg(DEVICE);
    let text = output(bench.environment(&mut gdb))?;
    for (number, (expression, expected)) in PRINTERS.iter().enumerate() {
        let line = format!("${} = {expected}", number + 1);
        if !text.lines().any(|said| said == line) {
            return Err(format!("gdb: {expression} is not printed as {expected}:\n{text}").into());
        }
    }
    println!("gdb: {} values printed by name", PRINTERS.len());
    Ok(())
}
