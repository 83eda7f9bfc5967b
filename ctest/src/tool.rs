//! Programs of the product, run with the library under test.

use std::ffi::OsStr;
use std::process::{Command, Output, Stdio};

use crate::library::library_dir;

/// A program with the library under test, its usual settings and no standard input.
pub fn tool(program: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments);
    with_library(&mut command);
    command
}

/// Gives a command the library under test, its usual settings and no standard input.
pub fn with_library(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("VIPL_") {
            command.env_remove(name);
        }
    }
    command
        .env("VIPL_LIBRARY", library_dir().join("libvipl.so.1"))
        .env("VIPL_CONFIG", "/dev/null")
        .stdin(Stdio::null());
}

/// Runs a tool: how it ended, its standard output and its standard error.
pub fn run_tool(program: &str, arguments: &[&str]) -> (Output, String, String) {
    let output = tool(program, arguments).output().expect("a tool");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let logged = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, said, logged)
}

/// A tool fails, and says why, if its standard output is full, closed or open for reading only.
pub fn fails_without_output(program: &str, arguments: &[&str]) {
    for redirection in [">&-", "1</dev/null", ">/dev/full"] {
        let line = format!("exec \"$0\" \"$@\" {redirection}");
        let output = tool("sh", &[&["-c", &line, program], arguments].concat())
            .output()
            .expect("a shell");
        let logged = String::from_utf8_lossy(&output.stderr);
        let context = format!("{program} {arguments:?} {redirection}: {logged}");
        assert_eq!(output.status.code(), Some(1), "{context}");
        assert!(
            logged.contains("cannot write to standard output"),
            "{context}"
        );
        assert!(!logged.contains("panicked"), "{context}");
    }
}

/// The help of a tool is wrapped at the width of the terminal.
pub fn help_fits(program: &str) {
    // What cannot be broken is longer than a narrow terminal.
    for (columns, most) in [("40", 60), ("80", 80)] {
        let mut command = tool(program, &["--help"]);
        let output = command.env("COLUMNS", columns).output().expect("a tool");
        let help = String::from_utf8_lossy(&output.stdout);
        let lengths = help.lines().map(|line| line.chars().count());
        let longest = lengths.max().unwrap_or(0);
        assert!(longest > 0 && longest <= most, "{longest}: {help}");
    }
}
