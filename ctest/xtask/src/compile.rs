//! Compiles every header alone, in each language, dialect and word size, with all warnings as
//! errors.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::Result;
use crate::workspace::{have, root};

/// Compiler and language options. C90 is for `vipl.h` only: old programs include it.
const LANGUAGES: [(&str, &[&str]); 6] = [
    ("gcc", &["-xc", "-std=c90"]),
    ("gcc", &["-xc", "-std=c99"]),
    (
        "clang",
        &[
            "-xc",
            "-std=c99",
            "-Weverything",
            "-Wno-padded",
            "-Wno-unknown-warning-option",
        ],
    ),
    ("g++", &["-xc++", "-std=c++98"]),
    ("g++", &["-xc++", "-std=c++17"]),
    ("clang++", &["-xc++", "-std=c++17"]),
];
const DIALECTS: [&str; 4] = [
    "",
    "#define VIPL_CLAN_DIALECT\n",
    "#define VIPL095\n",
    "#define VIPL_NO_ALIASES\n",
];
/// The 32-bit headers of the C library may be missing, hence freestanding.
const SIZES: [&[&str]; 2] = [&[], &["-m32", "-ffreestanding"]];

/// Compiles all; prints what was compiled and which compilers are missing.
pub(crate) fn check_all() -> Result {
    let mut count = 0;
    for (compiler, language) in LANGUAGES {
        if !have(compiler) {
            println!(
                "headers: {compiler} is not installed, {} not tried",
                language[1]
            );
            continue;
        }
        for size in SIZES {
            if !size.is_empty() && !cfg!(target_arch = "x86_64") {
                continue;
            }
            let old = matches!(language[1], "-std=c90" | "-std=c++98");
            let names: &[_] = if old {
                &["vipl.h"]
            } else {
                &["vipl.h", "vipl_ext.h", "vipl_plugin.h"]
            };
            for name in names {
                for dialect in DIALECTS {
                    // Twice, for the guard; a declaration, since ISO C wants one and clang warns of a variable.
                    let text = format!(
                        "{dialect}#include \"{name}\"\n#include \"{name}\"\nextern int x;\n"
                    );
                    let mut command = Command::new(compiler);
                    command.args(language).args(size);
                    compile(command.arg("-fsyntax-only").arg("-"), &text)?;
                    count += 1;
                }
            }
        }
    }
    if count == 0 {
        return Err("no C compiler found".into());
    }
    println!("headers: {count} compilations without a warning");
    Ok(())
}

/// Compiles one text from standard input; returns what the compiler wrote to standard output.
pub(crate) fn compile(command: &mut Command, text: &str) -> Result<String> {
    command
        .args(["-Wall", "-Wextra", "-pedantic", "-Werror", "-I"])
        .arg(root().join("headers"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn()?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(text.as_bytes())?;
    }
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout)?);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} fails for\n{text}\n{said}").into())
}
