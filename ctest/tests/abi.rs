//! The headers and the exported names: what was compiled in 1999 must still fit (spec §2).

use std::process::Command;

use vipl_ctest::{Program, Run, headers, library_dir, program, skip, source, work_dir};

/// Sizes and offsets on LP64, in the order in which `layout.c` prints them (spec §2.1 to §2.7).
const LAYOUT: &str = include_str!("layout_lp64.txt");

fn printed(name: &str, flags: &[&str]) -> String {
    let output = work_dir().join("abi").join(name);
    let mut layout = Program::new(source("programs/layout.c"));
    for flag in flags {
        layout = layout.flag(*flag);
    }
    layout.build(&output);
    let output = Command::new(output).output().expect("layout");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("plain text")
}

#[test]
fn layout_on_lp64() {
    let expected: Vec<&str> = LAYOUT
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let found = printed("layout", &[]);
    let found: Vec<&str> = found.lines().collect();
    for (expected, found) in expected.iter().zip(&found) {
        assert_eq!(expected, found);
    }
    assert_eq!(expected.len(), found.len());
    // VIPL095 asks for what is the default.
    assert_eq!(
        printed("layout-095", &["-DVIPL095"])
            .lines()
            .collect::<Vec<_>>(),
        found
    );
    assert_eq!(
        printed("layout-both", &["-DVIPL095", "-DVIPL_CLAN_DIALECT"])
            .lines()
            .collect::<Vec<_>>(),
        found
    );
}

#[test]
fn layout_of_the_clan_dialect() {
    let found = printed("layout-clan", &["-DVIPL_CLAN_DIALECT"]);
    for line in [
        "VIP_DESCRIPTOR 48",
        "VIP_DESCRIPTOR.Control 0",
        "VIP_DESCRIPTOR.Data 32",
    ] {
        assert!(found.lines().any(|found| found == line), "{line}\n{found}");
    }
}

/// The compiler checks `layout_ilp32.c`; no 32-bit libraries are needed for that.
#[test]
fn layout_on_ilp32() {
    let compile = |file: &std::path::Path| {
        Command::new("cc")
            .args(["-std=c99", "-pedantic", "-Wall", "-Wextra", "-Werror"])
            .args(["-m32", "-ffreestanding", "-fsyntax-only", "-I"])
            .arg(headers())
            .arg(file)
            .output()
            .expect("cc")
    };
    let probe = work_dir().join("probe32.c");
    std::fs::write(&probe, "typedef char four[sizeof(void *) == 4 ? 1 : -1];\n").expect("a file");
    if !compile(&probe).status.success() {
        skip("cc knows no -m32 here");
        return;
    }
    let done = compile(&source("programs/layout_ilp32.c"));
    assert!(
        done.status.success(),
        "{}",
        String::from_utf8_lossy(&done.stderr)
    );
}

/// Each header compiles alone, in C99, C11 and C++, with every warning an error.
#[test]
fn headers_alone() {
    for (compiler, extension, standards) in [
        ("cc", "c", &["c99", "c11", "gnu17"][..]),
        ("c++", "cpp", &["c++11", "c++17", "c++20"]),
    ] {
        for standard in standards {
            for header in ["vipl.h", "vipl_plugin.h", "vipl_ext.h"] {
                if !headers().join(header).exists() {
                    continue;
                }
                for dialect in ["VIPL095", "VIPL_CLAN_DIALECT"] {
                    // A plug-in is written in the default dialect.
                    if header == "vipl_plugin.h" && dialect == "VIPL_CLAN_DIALECT" {
                        continue;
                    }
                    let file = work_dir().join(format!("alone.{}.{extension}", std::process::id()));
                    let used = match header {
                        "vipl.h" => {
                            "unsigned long used(unsigned status);\n\
                             unsigned long used(unsigned status)\n\
                             { return (status & ~VIP_STATUS_DONE) + VIP_INFINITE + VIP_SMI_AUTODISCOVERY; }\n"
                        }
                        _ => "",
                    };
                    let text = format!(
                        "#define {dialect}\n#include \"{header}\"\n#include \"{header}\"\n{used}"
                    );
                    let cast = (extension == "cpp").then_some("-Wold-style-cast");
                    std::fs::write(&file, text).expect("a file");
                    let done = Command::new(compiler)
                        .arg(format!("-std={standard}"))
                        .args(["-pedantic", "-Wall", "-Wextra", "-Wshadow", "-Werror"])
                        .arg("-Wsign-conversion")
                        .args(cast)
                        .args(["-fsyntax-only", "-I"])
                        .arg(headers())
                        .arg(&file)
                        .output()
                        .expect(compiler);
                    assert!(
                        done.status.success(),
                        "{header} in {standard} with {dialect}:\n{}",
                        String::from_utf8_lossy(&done.stderr)
                    );
                }
            }
        }
    }
}

#[test]
fn a_program_in_cxx() {
    Run::strict(program("cxx")).pass();
    Run::compatible(program("cxx")).pass();
}

/// ABI-12, by the loader's own look-up.
#[test]
fn exported_functions() {
    let output = work_dir().join("abi").join("symbols");
    let symbols = Program::new(source("programs/symbols.c")).build(&output);
    for name in ["libvipl.so.1", "libvipl.so"] {
        Run::compatible(&symbols)
            .arg(library_dir().join(name))
            .pass();
    }
}

/// The library's names are its own: `Vip…` and `vipl_…`, and nothing a program could have, too.
#[test]
fn nothing_else_is_exported() {
    let Some(nm) = vipl_ctest::find_tool("nm") else {
        skip("there is no nm here");
        return;
    };
    let output = Command::new(nm)
        .args(["-D", "--defined-only"])
        .arg(library_dir().join("libvipl.so.1"))
        .output()
        .expect("nm");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text
        .lines()
        .filter_map(|line| line.split_whitespace().nth(2));
    let foreign: Vec<&str> = names
        .filter(|name| !name.starts_with("Vip") && !name.starts_with("vipl_"))
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}
