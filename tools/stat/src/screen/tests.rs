use ratatui::Terminal;
use ratatui::backend::TestBackend;
use vipl_pages::read::Event;
use vipl_pages::record::Happened;

use super::*;
use crate::model::tests::{model, seen};

fn sample() -> Model {
    let mut first = seen(4711, 100);
    first.pages.vis[0].events = vec![
        Event {
            time: 500_000_000,
            happened: Happened::Created,
        },
        Event {
            time: 1_000_000_000,
            happened: Happened::Connected(4712),
        },
    ];
    let mut later = first.clone();
    later.pages.vis[0].send.posted += 2000;
    later.pages.vis[0].send.taken += 2000;
    model(&[
        (1_000_000_000, vec![first, seen(9, 0)]),
        (2_000_000_000, vec![later, seen(9, 0)]),
    ])
}

/// The lines of a screen of this width.
fn lines(screen: &mut Screen, width: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, 12)).unwrap();
    terminal.draw(|frame| screen.draw(frame)).unwrap();
    let text = terminal.backend().to_string();
    text.lines()
        .map(|line| line.trim_matches('"').trim_end().to_owned())
        .collect()
}

#[test]
fn processes_on_80_columns() {
    let mut screen = Screen::new(sample(), String::new());
    let lines = lines(&mut screen, 80);
    assert_eq!(lines[0], "vipstat 2 proc 2 VIs 2.00k sent/s 0 recv/s");
    assert_eq!(
        lines[1],
        "[1 processes] 2 VIs  3 NICs  4 CQs  5 counters  6 agent  7 devices"
    );
    assert_eq!(
        lines[2].split_whitespace().collect::<Vec<_>>()[..2],
        ["pid", "program"]
    );
    for heading in ["conn", "sent/s", "recv/s", "sent B/s", "errors"] {
        assert!(lines[2].contains(heading), "{lines:#?}");
    }
    assert!(
        lines[3].trim_start().starts_with("9  server9"),
        "{lines:#?}"
    );
    assert!(
        lines[4].starts_with("4711  server4711") && lines[4].contains("2.00k"),
        "{lines:#?}"
    );
    assert!(lines[11].starts_with("q quit  arrows move"), "{lines:#?}");
}

#[test]
fn a_narrow_screen_shows_what_matters() {
    let mut screen = Screen::new(sample(), String::new());
    let lines = lines(&mut screen, 40);
    assert_eq!(lines[1], "[1/7 processes] Tab: next");
    let headings: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(headings, ["pid", "program", "conn", "sent/s", "recv/s"]);
    assert_eq!(lines[11], "q quit Enter open s sort / filter p paus");
    assert!(lines.iter().all(|line| line.chars().count() <= 40));
}

#[test]
fn a_process_leads_to_its_vis_and_a_vi_to_its_events() {
    let mut screen = Screen::new(sample(), String::new());
    screen.key(KeyCode::Down);
    screen.key(KeyCode::Enter);
    assert_eq!((screen.tab, screen.filter.as_str()), (Tab::Vis, ""));
    for width in [40, 80] {
        let lines = lines(&mut screen, width);
        assert!(
            lines[3].contains("Connected") && lines[4].is_empty(),
            "{lines:#?}"
        );
        assert_eq!(lines[11], "process 4711 (Esc: all)");
    }
    screen.key(KeyCode::Enter);
    let lines = lines(&mut screen, 40);
    assert_eq!(lines[2], "VI 3 0x2001267");
    assert_eq!(lines[5], "peer process 4712 VI 7");
    assert_eq!(lines[7], "send: 2102 posted, 2100 done, 0 failed");
    assert_eq!(lines[8], "      2 on it, oldest 0 µs");
    screen.key(KeyCode::Esc);
    assert_eq!(screen.detail, None);
    for tab in ['1', '3', '4', '5'] {
        screen.key(KeyCode::Char(tab));
        let pids = screen.view().rows;
        assert!(pids.iter().all(|row| row.cells[0].text == "4711"));
    }
    screen.key(KeyCode::Esc);
    screen.key(KeyCode::Char('1'));
    assert_eq!(screen.view().rows.len(), 2);
}

#[test]
fn keys_sort_filter_and_quit() {
    let mut screen = Screen::new(sample(), String::new());
    screen.key(KeyCode::Char('/'));
    for c in "server9q".chars() {
        screen.key(KeyCode::Char(c));
    }
    screen.key(KeyCode::Backspace);
    screen.key(KeyCode::Enter);
    assert_eq!(screen.view().rows.len(), 1);
    screen.key(KeyCode::Esc);
    for _ in 0..6 {
        screen.key(KeyCode::Char('s'));
    }
    assert_eq!(
        screen.view().rows[0].cells[0].text,
        "4711",
        "the busiest first"
    );
    screen.key(KeyCode::Char('r'));
    assert_eq!(screen.view().rows[0].cells[0].text, "9");
    for (number, tab) in ('1'..='7').zip(Tab::ALL) {
        screen.key(KeyCode::Char(number));
        assert_eq!(screen.tab, tab);
        lines(&mut screen, 40);
    }
    screen.key(KeyCode::Tab);
    assert_eq!(screen.tab, Tab::Processes);
    screen.key(KeyCode::Char('p'));
    assert!(screen.paused);
    assert_eq!(screen.key(KeyCode::Char('q')), Next::Quit);
}

#[test]
fn nothing_to_show_and_any_size_are_fine() {
    let mut screen = Screen::new(Model::default(), String::new());
    assert_eq!(lines(&mut screen, 80)[2], "no process publishes anything");
    screen.key(KeyCode::Enter);
    screen.key(KeyCode::Down);
    for (width, height) in [(1, 1), (5, 3), (200, 50)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        let mut screen = Screen::new(sample(), String::new());
        terminal.draw(|frame| screen.draw(frame)).unwrap();
    }
}
