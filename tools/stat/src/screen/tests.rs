use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::style::Modifier;
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
        "[1] processes  [2] VIs  [3] NICs  [4] CQs  [5] counters  [6] agent  [7] devices"
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
    assert_eq!(
        lines[11],
        "> columns 1/2  ? help  q quit  Enter open  Esc back  s sort  / filter"
    );
}

#[test]
fn a_narrow_screen_shows_what_matters() {
    let mut screen = Screen::new(sample(), String::new());
    let lines = lines(&mut screen, 40);
    assert_eq!(lines[0], "2 proc 2 VIs out 2.00k in 0/s");
    assert_eq!(lines[1], "[1] processes  Tab: 1 of 7  ?: help");
    let headings: Vec<&str> = lines[2].split_whitespace().collect();
    assert_eq!(headings, ["pid", "program", "conn", "sent/s", "recv/s"]);
    assert_eq!(lines[11], "> columns 1/5  ? help q quit Enter open");
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
        let parts = if width == 40 { 5 } else { 2 };
        assert_eq!(
            lines[11],
            format!("> columns 1/{parts}  process 4711 (Esc: all)")
        );
    }
    screen.key(KeyCode::Enter);
    let lines = lines(&mut screen, 40);
    assert_eq!(lines[2], "VI          3 0x2001267");
    assert_eq!(lines[3], "process     4711 server4711");
    assert_eq!(lines[11], "? help  q quit  arrows scroll  Esc back");
    for _ in 0..3 {
        screen.key(KeyCode::PageDown);
    }
    let end = self::lines(&mut screen, 40);
    assert_eq!(end[6], "errors      0");
    assert_eq!(end[8], "before now  event", "{end:#?}");
    assert_eq!(end[9], "     1.0 s  connected with process 4712");
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
        let firsts: Vec<_> = screen
            .view()
            .rows
            .into_iter()
            .map(|row| row.cells[0].text.clone())
            .collect();
        match firsts
            .iter()
            .map(|text| text.parse::<u64>())
            .collect::<Result<Vec<_>, _>>()
        {
            Ok(numbers) => assert!(numbers.is_sorted(), "{tab:?}: {numbers:?}"),
            Err(_) => assert!(firsts.is_sorted(), "{tab:?}: {firsts:?}"),
        }
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
    assert_eq!(
        lines(&mut screen, 80)[2],
        "no process publishes anything; vipstat --last shows one that has ended"
    );
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
        let last = crate::once::last(&model, &[], width);
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

/// The page that is shown is marked by its style alone, so that no mark is taken for a number.
#[test]
fn the_page_that_is_shown_is_reversed() {
    let mut screen = Screen::new(sample(), String::new());
    screen.go(Tab::Vis);
    for (width, from) in [(80, 15), (40, 0)] {
        let mut terminal = Terminal::new(TestBackend::new(width, 12)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let buffer = terminal.backend().buffer();
        let is_reversed = |x: &u16| buffer[(*x, 1)].modifier.contains(Modifier::REVERSED);
        let reversed: Vec<u16> = (0..width).filter(is_reversed).collect();
        let expected: Vec<u16> = (from..from + 7).collect();
        assert_eq!(reversed, expected, "[2] VIs");
    }
}

/// Columns that have no room are a key away, and each is in one part.
#[test]
fn every_column_can_be_seen() {
    for width in [40, 80] {
        for tab in Tab::ALL {
            let mut screen = Screen::new(long(), String::new());
            screen.model.agent = Some(serde_json::json!({"budgets": [
                {"name": "connection handles of the NICs of one process", "used": 1, "limit": 65_536}
            ]}));
            screen.model.devices =
                Some(serde_json::json!([{"name": "via_lo", "plugin": "loopback"}]));
            screen.go(tab);
            let mut seen = Vec::new();
            loop {
                let lines = lines(&mut screen, width);
                let part = screen.part;
                seen.push(lines[2].clone());
                screen.key(KeyCode::Char('>'));
                self::lines(&mut screen, width);
                if screen.part == part {
                    break;
                }
            }
            let missing = |heading: &&str| !seen.iter().any(|line| line.contains(heading));
            let columns = screen.view().columns;
            let headings = columns.iter().map(|column| column.heading);
            let missing: Vec<&str> = headings.filter(missing).collect();
            assert!(missing.is_empty(), "{tab:?} {width}: {missing:?} {seen:#?}");
            screen.key(KeyCode::Char('<'));
            assert!(screen.part + 2 >= seen.len());
        }
    }
    // What tells why something hangs comes first.
    let mut screen = Screen::new(sample(), String::new());
    screen.go(Tab::Vis);
    let wide = lines(&mut screen, 80);
    for heading in [
        "pid", "state", "peer", "sent", "recv", "on SQ", "on RQ", "errors",
    ] {
        assert!(wide[2].contains(heading), "{heading}: {wide:#?}");
    }
    let narrow = lines(&mut screen, 40);
    let headings: Vec<&str> = narrow[2].split_whitespace().collect();
    assert_eq!(headings, ["pid", "VI", "state", "sent", "recv", "on", "SQ"]);
}

#[test]
fn help_names_every_key() {
    let mut screen = Screen::new(sample(), String::new());
    screen.key(KeyCode::Char('?'));
    for width in [40, 80] {
        let text = help::text(width.into());
        assert!(
            text.lines()
                .all(|line| line.chars().count() <= width.into()),
            "{text}"
        );
        assert!(lines(&mut screen, width)[2].starts_with("1 to 7 "));
    }
    for _ in 0..20 {
        screen.key(KeyCode::PageDown);
    }
    let end = lines(&mut screen, 80);
    assert!(end[10].starts_with("room, overflows "), "{end:#?}");
    assert_eq!(end[11], "? back  arrows scroll  q quit");
    // A VI that was open is open again.
    for leave in [KeyCode::Esc, KeyCode::Char('?')] {
        screen.go(Tab::Vis);
        screen.key(KeyCode::Enter);
        screen.key(KeyCode::Char('?'));
        screen.key(KeyCode::Enter);
        screen.key(leave);
        assert!(!screen.help && screen.detail.is_some());
    }
    // Typed, it is a character.
    screen.go(Tab::Vis);
    screen.key(KeyCode::Char('/'));
    screen.key(KeyCode::Char('?'));
    assert!(!screen.help && screen.filter == "?");
}
