//! A manual page as it grows: Markdown becomes requests of the macro package `man`.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use roff::{Inline, Roff, bold, italic, roman};

use super::{Edition, Page};

/// A page that is being written.
pub(super) struct Text {
    name: String,
    section: u8,
    roff: Roff,
    /// Nothing follows the title of the section yet.
    is_fresh: bool,
    /// What comes before `roff`.
    before: String,
}

/// Between the names of a term there is a comma or a word.
const WORD: usize = 5;
/// Lines of a page are not longer, except in examples.
const WIDTH: usize = 78;

impl Text {
    /// A page with its title and its section NAME. `about` tells in a line what it describes; `name` may be
    /// several, separated by commas.
    pub(super) fn new(name: &str, section: u8, edition: &Edition, about: &str) -> Text {
        let first = name.split(',').next().unwrap_or(name).to_owned();
        let mut roff = Roff::new();
        let version = format!("VIPL {}", edition.version);
        let number = section.to_string();
        let title = [
            first.as_str(),
            &number,
            &edition.date,
            &version,
            "VIPL Manual",
        ];
        roff.control("TH", title);
        // Names stay whole, for people who search and copy. groff's macros take the register.
        roff.control("nh", []);
        roff.control("nr", ["HY", "0"]);
        roff.control("ad", ["l"]);
        roff.control("SH", ["NAME"]);
        roff.text([roman(format!("{name} - {about}"))]);
        Text {
            name: first,
            section,
            roff,
            is_fresh: false,
            before: String::new(),
        }
    }

    /// The finished page.
    pub(super) fn page(mut self) -> Page {
        self.settle();
        Page {
            name: self.name,
            section: self.section,
            text: self.before,
        }
    }

    /// Writes what is there, in lines that are not too long.
    fn settle(&mut self) {
        let rendered = std::mem::take(&mut self.roff).render();
        // Each text begins with the definition of the apostrophe, which is needed once.
        let definition = if self.before.is_empty() { 0 } else { 2 };
        let mut is_code = false;
        for line in rendered.lines().skip(definition) {
            is_code = line == ".EX" || (is_code && line != ".EE");
            if is_code {
                self.before += &format!("{line}\n");
            } else {
                self.before += &folded(line);
            }
        }
    }

    /// Requests that are ready.
    pub(super) fn raw(&mut self, requests: &str) {
        self.is_fresh = false;
        self.settle();
        let mut last = "";
        for line in requests.lines().filter(|line| !line.trim().is_empty()) {
            if (line, last) != (".br", ".br") {
                self.before += &folded(line);
            }
            last = line;
        }
    }

    /// A paragraph begins.
    fn paragraph(&mut self) {
        if !std::mem::take(&mut self.is_fresh) {
            self.roff.control("PP", []);
        }
    }

    /// A new section.
    pub(super) fn section(&mut self, title: &str) {
        self.roff.control("SH", [title.to_uppercase().as_str()]);
        self.is_fresh = true;
    }

    /// A part of a section.
    pub(super) fn part(&mut self, title: &str) {
        self.roff.control("SS", [title]);
        self.is_fresh = true;
    }

    /// A term, and what it means.
    pub(super) fn term(&mut self, term: &str, more: &str, meaning: &str) {
        self.is_fresh = false;
        self.roff.control("TP", []);
        self.roff.text([bold(term), roman(more)]);
        self.markdown_line(meaning);
    }

    /// Lines that stay as they are.
    pub(super) fn verbatim(&mut self, lines: &str) {
        self.paragraph();
        self.roff.control("EX", []);
        for line in lines.lines() {
            self.roff.text([roman(line)]);
        }
        self.roff.control("EE", []);
    }

    /// One paragraph of Markdown, without a request before it.
    fn markdown_line(&mut self, source: &str) {
        self.is_fresh = true;
        self.markdown(source);
    }

    /// Markdown: headings of the second and third level, paragraphs, lists, code. A table becomes a list of terms, its
    /// first column; the headings of its columns are left out.
    pub(super) fn markdown(&mut self, source: &str) {
        let mut writer = Writer {
            page: self,
            line: Vec::new(),
            style: Style::Roman,
            items: 0,
            is_item: false,
            code: None,
            heading_row: false,
            first_cell: false,
        };
        for event in Parser::new_ext(source, Options::ENABLE_TABLES) {
            writer.event(event);
        }
    }
}

/// How a text stands in a page.
#[cfg(test)]
pub(super) fn escaped(text: &str) -> String {
    let page = Roff::new().text([roman(text)]).render();
    page.lines().next_back().unwrap_or_default().to_owned()
}

#[derive(Clone, Copy, PartialEq)]
enum Style {
    Roman,
    Bold,
    Italic,
}

/// Turns the events of the parser into requests.
struct Writer<'a> {
    page: &'a mut Text,
    /// Of the paragraph or heading that is being read.
    line: Vec<Inline>,
    style: Style,
    /// Depth of lists.
    items: u32,
    /// The line that is being read is the first one of an item.
    is_item: bool,
    /// The code block that is being read.
    code: Option<String>,
    /// The row that is being read has the names of the columns.
    heading_row: bool,
    /// The cell that is being read is the first of its row.
    first_cell: bool,
}

impl Writer<'_> {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(&tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => match &mut self.code {
                Some(code) => code.push_str(&text),
                None => self.put(&text, self.style),
            },
            Event::Code(text) => self.put(&text, Style::Bold),
            Event::SoftBreak | Event::HardBreak => self.put(" ", Style::Roman),
            _ => {}
        }
    }

    fn put(&mut self, text: &str, style: Style) {
        self.line.push(match style {
            Style::Roman => roman(text),
            Style::Bold => bold(text),
            Style::Italic => italic(text),
        });
    }

    fn start(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::List(_) => {
                self.flush();
                if self.items > 0 {
                    self.page.roff.control("RS", ["4"]);
                }
                self.items += 1;
            }
            Tag::Item => self.is_item = true,
            Tag::Paragraph if self.items == 0 => self.page.paragraph(),
            Tag::TableHead => self.heading_row = true,
            Tag::TableRow => {
                self.page.is_fresh = false;
                self.page.roff.control("TP", []);
                self.first_cell = true;
            }
            Tag::Strong => self.style = Style::Bold,
            Tag::Emphasis => self.style = Style::Italic,
            Tag::CodeBlock(_) => {
                self.flush();
                self.code = Some(String::new());
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Heading(level) => {
                let line = std::mem::take(&mut self.line);
                let title: String = line.iter().map(plain).collect();
                if level as u8 <= 2 {
                    self.page.section(&title);
                } else {
                    self.page.part(&title);
                }
            }
            TagEnd::TableHead => {
                self.heading_row = false;
                self.line.clear();
            }
            TagEnd::TableCell if self.heading_row => {}
            TagEnd::TableCell if self.first_cell => {
                self.first_cell = false;
                let term: String = self.line.iter().map(plain).collect();
                self.line = vec![bold(term)];
                self.flush();
            }
            TagEnd::TableCell if !self.line.is_empty() => self.put(". ", Style::Roman),
            TagEnd::Paragraph | TagEnd::Item | TagEnd::TableRow => self.flush(),
            TagEnd::List(_) => {
                self.items -= 1;
                if self.items > 0 {
                    self.page.roff.control("RE", []);
                }
            }
            TagEnd::Strong | TagEnd::Emphasis => self.style = Style::Roman,
            TagEnd::CodeBlock => {
                let code = self.code.take().unwrap_or_default();
                self.page.verbatim(&code);
            }
            _ => {}
        }
    }

    fn flush(&mut self) {
        if self.line.is_empty() {
            return;
        }
        let mut line = std::mem::take(&mut self.line);
        if self.items > 0 {
            self.page.is_fresh = false;
            let roff = &mut self.page.roff;
            if !std::mem::take(&mut self.is_item) {
                roff.control("IP", []);
            } else if let Some(term) = term(&mut line) {
                roff.control("TP", []);
                roff.text(term);
            } else {
                roff.control("IP", ["\\(bu", "2"]);
            }
        }
        self.page.roff.text(line);
    }
}

/// Takes the term off an item that explains one: `name`: what it means.
fn term(line: &mut Vec<Inline>) -> Option<Vec<Inline>> {
    if !matches!(line.first(), Some(Inline::Bold(_))) {
        return None;
    }
    for (at, inline) in line.iter().enumerate() {
        let Inline::Roman(text) = inline else {
            continue;
        };
        if let Some((before, after)) = text.split_once(": ")
            && before.len() <= WORD
        {
            let (before, after) = (roman(before), roman(after));
            let rest = line.split_off(at + 1);
            let mut term = std::mem::replace(line, rest);
            line.insert(0, after);
            term[at] = before;
            return Some(term);
        }
        if text.len() > WORD {
            return None;
        }
    }
    None
}

/// A line of text as several that are not too long. None of them is a request.
fn folded(line: &str) -> String {
    let (mut out, mut width) = (String::new(), 0);
    if line.starts_with(['.', '\'']) {
        return format!("{line}\n");
    }
    for word in line.split(' ').filter(|word| !word.is_empty()) {
        if width > 0 && width + 1 + word.len() <= WIDTH {
            out.push(' ');
            width += 1;
        } else if width > 0 {
            out.push('\n');
            width = 0;
            if word.starts_with(['.', '\'']) {
                out += "\\&";
            }
        }
        out += word;
        width += word.len();
    }
    out + "\n"
}

fn plain(inline: &Inline) -> &str {
    match inline {
        Inline::Roman(text) | Inline::Bold(text) | Inline::Italic(text) => text,
        Inline::LineBreak => " ",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn body(source: &str) -> String {
        let edition = Edition {
            version: "1".to_owned(),
            date: "2026-11-23".to_owned(),
        };
        let mut text = Text::new("a,b", 3, &edition, "two letters");
        text.markdown(source);
        let page = text.page().text;
        let (_, body) = page.split_once("two letters\n").unwrap();
        body.to_owned()
    }

    #[test]
    fn markdown_becomes_requests() {
        assert_eq!(
            body("## One two\n\nWith `code`\nhere."),
            ".SH \"ONE TWO\"\nWith \\fBcode\\fR here.\n"
        );
        assert_eq!(
            body("- first\n- second\n  - inner\n"),
            ".IP \\(bu 2\nfirst\n.IP \\(bu 2\nsecond\n.RS 4\n.IP \\(bu 2\ninner\n.RE\n"
        );
        assert_eq!(
            body("| a | b |\n|---|---|\n| `x` | y |\n"),
            ".TP\n\\fBx\\fR\ny.\n"
        );
        assert_eq!(body("```c\n.x\n```\n"), ".PP\n.EX\n\\&.x\n.EE\n");
        assert_eq!(
            body("- `a`, `b` (1): two\n- `c` is none: no\n"),
            ".TP\n\\fBa\\fR, \\fBb\\fR (1)\ntwo\n.IP \\(bu 2\n\\fBc\\fR is none: no\n"
        );
        let long = "word ".repeat(20) + "'it'";
        let folded = body(&long);
        assert!(folded.lines().all(|line| line.len() <= WIDTH), "{folded}");
        assert_eq!(folded.lines().count(), 3);
    }
}
