use vipl_ctest::Pty;

use super::*;

#[test]
fn no_more_is_drawn_than_there_is_memory_for() {
    assert_eq!(area((80, 24)), Rect::new(0, 0, 80, 24));
    assert_eq!(area((0, 0)), Rect::ZERO);
    for size in [(u16::MAX, u16::MAX), (1024, u16::MAX), (u16::MAX, 512)] {
        assert_eq!(area(size), Rect::new(0, 0, 1024, 512));
    }
}

const PANICS: &str = "VIPSTAT_TEST_PANICS";

/// What `a_panic_is_readable` starts; alone it does nothing.
#[test]
fn panics_on_a_terminal() {
    if std::env::var_os(PANICS).is_some() {
        let _terminal = Terminal::new(Signals::new().unwrap()).unwrap();
        panic!("something is wrong");
    }
}

/// The message stands on the screen as it was before, with line feeds that begin a line.
#[test]
fn a_panic_is_readable() {
    let mut pty = Pty::new(80, 24);
    let before = pty.modes();
    let mut command = pty.shell("\"$@\"; echo ENDED; read line");
    command
        .arg(std::env::current_exe().unwrap())
        .args(["screen::terminal::tests::panics_on_a_terminal", "--exact"])
        .arg("--nocapture")
        .env(PANICS, "1");
    let mut shell = command.spawn().unwrap();
    pty.until("\x1b[?1049h");
    let screen = pty.until("\x1b[?1049l\x1b[?25h");
    assert!(!screen.contains("something is wrong"), "{screen}");
    let message = pty.until("ENDED");
    assert!(message.contains("something is wrong\r\n"), "{message:?}");
    assert_eq!(pty.modes(), before);
    pty.press("\n");
    shell.wait().unwrap();
}
