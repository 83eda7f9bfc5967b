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
    assert_eq!(lines[0], "2 proc 2 VIs out 2.00k in 0/s");
    assert_eq!(lines[1], "[1/7 processes] Tab: next");
    let headings: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(headings, ["pid", "program", "conn", "sent/s", "recv/s"]);
    assert_eq!(lines[11], "q quit Enter open s,r sort / find p hold");
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
    assert_eq!(lines[2], "VI          3 0x2001267");
    assert_eq!(lines[3], "process     4711 server4711");
    assert_eq!(lines[11], "q quit  arrows scroll  Esc back");
    for _ in 0..3 {
        screen.key(KeyCode::PageDown);
    }
    let end = self::lines(&mut screen, 40);
    assert_eq!(end[6], "errors      0");
    assert_eq!(end[8], "events, the latest first", "{end:#?}");
    assert_eq!(end[9], "   1.0 s  connected with process 4712");
    for _ in 0..3 {
        screen.key(KeyCode::PageUp);
    }
    assert_eq!(self::lines(&mut screen, 40), lines);
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

/// A VI about which there is more than a screen has room for, and its peer.
fn long() -> Model {
    let mut asking = seen(11, 100);
    let pages = &mut asking.pages;
    pages.cqs[0].handle = 0x300_0007;
    let vi = &mut pages.vis[0];
    (vi.recv_cq, vi.rdma) = (0x300_0007, 3);
    vi.remote_point = b"a discriminator of some words\0".to_vec();
    vi.local_point = vec![7; 64];
    let of_send = |status| Event {
        time: 1_000_000_000,
        happened: Happened::Failed(true, status),
    };
    vi.events = vec![of_send(0x2_0081), of_send(0x4_01fe)];
    let posted = |number| vipl_pages::read::Posted {
        number,
        descriptor: 0x7f5f_8e3f_1000 + number,
        memory: 0x9000_1000,
        status: [0, 1, 0x3_00e1, 0x4_0101][number as usize % 4],
        is_taken: number % 3 == 0,
    };
    vi.descriptors = [0..40, 99..104].map(|numbers| numbers.map(posted).collect());
    (vi.peer_pid, vi.peer_vi) = (12, 3);
    let mut other = seen(12, 100);
    (other.pages.vis[0].peer_pid, other.pages.vis[0].peer_vi) = (11, 3);
    model(&[(2_000_000_000, vec![asking, other])])
}

#[test]
fn all_of_a_vi_is_readable_on_40_and_80_columns() {
    let model = long();
    let process = &model.processes[0];
    let mut texts = Vec::new();
    for width in [40, 80] {
        let text = detail::text(&model, process, &process.vis[0], width);
        assert!(
            text.lines().all(|line| line.chars().count() <= width),
            "{text}"
        );
        let last = crate::once::last(&model, width);
        assert!(
            last.lines().all(|line| line.chars().count() <= width),
            "{last}"
        );
        // Nothing is cut: the words are the same at all widths.
        for text in [&text, &last] {
            for word in [
                "send queue: the last",
                "of 39",
                "0x7f5f8e3f1027",
                "0x90001000",
                "receive queue: the last 5 of 103",
                "REMOTE_DESC_ERROR",
                "process 12 VI 3",
            ] {
                assert!(text.contains(word), "{word}: {text}");
            }
        }
        texts.push(text);
    }
    let [narrow, wide] = &texts[..] else {
        unreachable!()
    };
    for text in [
        "CQ 0x3000007, 5 of 128 entries",
        "server12, via_lo: 2 on its send queue, 16 on its receive queue",
        "asked for   \"a discriminator of some words\\x00\"",
        "delivery, RDMA Write and Read, messages to 65536 B",
    ] {
        assert!(wide.contains(text), "{text}: {wide}");
        let words = |text: &str| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let (all, part) = (words(narrow), words(text));
        assert!(
            all.windows(part.len()).any(|some| some == part),
            "{text}: {narrow}"
        );
    }
    let mut screen = Screen::new(model, String::new());
    screen.go(Tab::Vis);
    screen.key(KeyCode::Enter);
    for _ in 0..9 {
        screen.key(KeyCode::PageDown);
    }
    let end = lines(&mut screen, 80);
    assert!(end[9].starts_with("  103  "), "{end:#?}");
}
