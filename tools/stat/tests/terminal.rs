//! The screen of `vipstat` on a terminal: that it ends with the terminal, and leaves it as it was, whatever ends it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Child;

use vipl_ctest::Pty;

const VIPSTAT: &str = env!("CARGO_BIN_EXE_vipstat");
const TAKEN: &str = "\x1b[?1049h";
const RESTORED: &str = "\x1b[m\x1b[?1049l\x1b[?25h";
/// What the last line has on a screen of any width.
const DRAWN: &str = "quit";
/// Keys and signals are for the program, and the terminal stays as it leaves it, until the test presses Enter.
const SCRIPT: &str = r#"ulimit -c 0; trap : INT QUIT; "$@"; echo "ENDED $?"; read line"#;

/// `vipstat` with its screen on this terminal, and something drawn.
fn start(pty: &mut Pty, script: &str) -> (Child, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let closed = fs::Permissions::from_mode(0o700);
    fs::set_permissions(folder.path(), closed).expect("a mode");
    let mut command = pty.shell(script);
    // Between two looks is longer than the test.
    command.args([VIPSTAT, "-i", "3600", "--folder"]);
    command
        .arg(folder.path())
        .env("VIPL_LIBRARY", "/nonexistent")
        .env("TEST_FOLDER", folder.path());
    let shell = command.spawn().expect("sh");
    pty.until(TAKEN);
    pty.until(DRAWN);
    (shell, folder)
}

/// Sends a signal to what the shell runs.
fn send(shell: &Child, signal: i32) {
    let pid = shell.id();
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let child = children.expect("its children").trim().parse();
    // SAFETY: a process of this test.
    unsafe { libc::kill(child.expect("a process"), signal) };
}

fn end(mut shell: Child, pty: &mut Pty) {
    pty.press("\n");
    assert!(shell.wait().expect("its end").success());
}

#[test]
fn whatever_ends_it_the_terminal_is_as_before() {
    let signals = [
        libc::SIGTERM,
        libc::SIGINT,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGABRT,
    ];
    let signals = signals.map(|signal| ("", signal, 128 + signal));
    let keys = [("q", 0, 0), ("\x03", 0, 128 + libc::SIGINT)];
    for (key, signal, code) in signals.into_iter().chain(keys) {
        let mut pty = Pty::new(80, 24);
        let before = pty.modes();
        let (shell, _folder) = start(&mut pty, SCRIPT);
        assert_ne!(pty.modes(), before);
        match signal {
            0 => pty.press(key),
            _ => send(&shell, signal),
        }
        pty.until(RESTORED);
        let after = pty.until(&format!("ENDED {code}\r\n"));
        assert!(!after.contains('\x1b'), "{key:?} {signal}: {after:?}");
        assert_eq!(pty.modes(), before, "{key:?} {signal}");
        end(shell, &mut pty);
    }
}

/// A process that ignores SIGHUP, as one started by `nohup`, finds the end of file. Its message may go to the terminal that has
/// gone; then it is lost, and that is all.
#[test]
fn it_ends_with_its_terminal() {
    for stderr in [r#"2>"$TEST_FOLDER/errors""#, ""] {
        let script = format!(r#"trap "" HUP; "$@" {stderr}; echo $? >"$TEST_FOLDER/code""#);
        let mut pty = Pty::new(80, 24);
        let (mut shell, folder) = start(&mut pty, &script);
        pty.hang_up();
        shell.wait().expect("its end");
        let file = |name| fs::read_to_string(folder.path().join(name)).expect("a file");
        assert_eq!(file("code"), "1\n", "{stderr}");
        if !stderr.is_empty() {
            let errors = file("errors");
            let expected = "vipstat: cannot use the terminal: ";
            assert!(errors.starts_with(expected), "{errors}");
        }
    }
}

/// A signal that was ignored when it began stays so.
#[test]
fn ignored_signals_stay_ignored() {
    let mut pty = Pty::new(80, 24);
    let (shell, _folder) = start(&mut pty, &SCRIPT.replace("trap :", "trap \"\""));
    send(&shell, libc::SIGINT);
    pty.press("\x03");
    pty.press("/xyz");
    pty.until("z_");
    pty.press("\rq");
    pty.until("ENDED 0\r\n");
    end(shell, &mut pty);
}

/// Ctrl-Z gives the terminal to the shell; `fg` takes it again and draws all.
#[test]
fn ctrl_z_gives_the_terminal_to_the_shell() {
    let mut pty = Pty::new(80, 24);
    let before = pty.modes();
    let script = r#"set -m; "$@"; echo STOPPED; read line; fg; echo "ENDED $?"; read line"#;
    let (shell, _folder) = start(&mut pty, script);
    let on_screen = pty.modes();
    pty.press("\x1a");
    let stopped = pty.until("STOPPED");
    assert!(stopped.contains(RESTORED), "{stopped:?}");
    assert_eq!(pty.modes(), before);
    pty.press("go on\n");
    pty.until(TAKEN);
    pty.until(DRAWN);
    assert_eq!(pty.modes(), on_screen);
    pty.press("q");
    pty.until(RESTORED);
    pty.until("ENDED 0\r\n");
    assert_eq!(pty.modes(), before);
    end(shell, &mut pty);
}

/// A size for which there is no memory, and one that changes.
#[test]
fn any_size_is_drawn() {
    let mut pty = Pty::new(u16::MAX, u16::MAX);
    let (shell, _folder) = start(&mut pty, SCRIPT);
    pty.set_size(40, 12);
    pty.until("\x1b[12;1H");
    pty.set_size(0, 0);
    pty.set_size(80, 24);
    pty.until("\x1b[24;1H");
    pty.press("q");
    pty.until("ENDED 0\r\n");
    end(shell, &mut pty);
}
