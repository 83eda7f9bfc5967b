//! A manual page as it grows: Markdown becomes requests of the macro package `man`.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use roff::{Inline, Roff, bold, italic, roman};

use super::Page;

/// A page that is being written.
pub(super) struct Text {
    name: String,
    section: u8,
    roff: Roff,
}

impl Text {
    /// A page with its title and its section NAME. `about` tells in a line what it describes; `name` may be
    /// several, separated by commas.
    pub(super) fn new(name: &str, section: u8, version: &str, about: &str) -> Text {
        let first = name.split(',').next().unwrap_or(name).to_owned();
        let mut roff = Roff::new();
        let version = format!("VIPL {version}");
        let number = section.to_string();
        let title = [first.as_str(), &number, "", &version, "VIPL Manual"];
        roff.control("TH", title);
        roff.control("SH", ["NAME"]);
        roff.text([roman(format!("{name} - {about}"))]);
        Text {
            name: first,
            section,
            roff,
        }
    }

    /// The finished page.
    pub(super) fn page(self) -> Page {
        Page {
            name: self.name,
            section: self.section,
            text: self.roff.render(),
        }
    }

    /// A new section.
    pub(super) fn section(&mut self, title: &str) {
        self.roff.control("SH", [title.to_uppercase().as_str()]);
    }

    /// A part of a section.
    pub(super) fn part(&mut self, title: &str) {
        self.roff.control("SS", [title]);
    }

    /// A term, and what it means.
    pub(super) fn term(&mut self, term: &str, more: &str, meaning: &str) {
        self.roff.control("TP", []);
        self.roff.text([bold(term), roman(more)]);
        self.roff.text([roman(meaning)]);
    }

    /// Lines that stay as they are.
    pub(super) fn verbatim(&mut self, lines: &str) {
        self.roff.control("PP", []);
        self.roff.control("EX", []);
        for line in lines.lines() {
            self.roff.text([roman(line)]);
        }
        self.roff.control("EE", []);
    }

    /// References to other pages.
    pub(super) fn see_also(&mut self, pages: &[(String, u8)]) {
        self.section("See also");
        let last = pages.len().saturating_sub(1);
        for (number, (name, section)) in pages.iter().enumerate() {
            let end = if number == last { ")" } else { ")," };
            let reference = [bold(name), roman(format!("({section}{end}"))];
            self.roff.text(reference);
        }
    }

    /// Markdown: headings of the second and third level, paragraphs, lists, code. A table becomes a list of terms, its
    /// first column; the headings of its columns are left out.
    pub(super) fn markdown(&mut self, source: &str) {
        let mut writer = Writer {
            page: self,
            line: Vec::new(),
            style: Style::Roman,
            items: 0,
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
            Tag::Item => {
                self.page.roff.control("IP", ["\\(bu", "2"]);
            }
            Tag::Paragraph if self.items == 0 => {
                self.page.roff.control("PP", []);
            }
            Tag::TableHead => self.heading_row = true,
            Tag::TableRow => {
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
        if !self.line.is_empty() {
            self.page.roff.text(std::mem::take(&mut self.line));
        }
    }
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
        let mut text = Text::new("a,b", 3, "1", "two letters");
        text.markdown(source);
        let page = text.page().text;
        let (_, body) = page.split_once("two letters\n").unwrap();
        body.to_owned()
    }

    #[test]
    fn markdown_becomes_requests() {
        assert_eq!(
            body("## One two\n\nWith `code`\nhere."),
            ".SH \"ONE TWO\"\n.PP\nWith \\fBcode\\fR here.\n"
        );
        assert_eq!(
            body("- first\n- second\n  - inner\n"),
            ".IP \\(bu 2\nfirst\n.IP \\(bu 2\nsecond\n.RS 4\n.IP \\(bu 2\ninner\n.RE\n"
        );
        assert_eq!(
            body("| a | b |\n|---|---|\n| `x` | y |\n"),
            ".TP\n\\fBx\\fR\ny. \n"
        );
        assert_eq!(body("```c\n.x\n```\n"), ".PP\n.EX\n\\&.x\n.EE\n");
    }
}
