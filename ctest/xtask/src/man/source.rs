//! A page's text as people write it: `docs/man/NAME.SECTION.md`.
//!
//! ```text
//! % VipPostSend, VipPostRecv          its names; for programs and subjects also `- what it is`
//! % constants VIP_STATUS_             of a page of types: constants that begin so, or are these
//!
//! ## Description
//! ...
//! ```

use std::fs;
use std::path::Path;

use crate::Result;

/// One file.
pub(super) struct Source {
    /// The first one is that of the file.
    pub(super) names: Vec<String>,
    pub(super) section: u8,
    /// What it is, for the section NAME.
    pub(super) about: Option<String>,
    /// What the names of its constants begin with.
    pub(super) constants: Vec<String>,
    /// Title and Markdown of each section.
    pub(super) sections: Vec<(String, String)>,
}

impl Source {
    /// All files of a folder, sorted.
    pub(super) fn all(folder: &Path) -> Result<Vec<Source>> {
        let mut sources = Vec::new();
        for found in fs::read_dir(folder)? {
            let path = found?.path();
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            let text = fs::read_to_string(&path)?;
            let source = Source::new(&file, &text);
            sources.push(source.ok_or_else(|| format!("docs/man/{file}: no page"))?);
        }
        sources.sort_by(|a, b| (a.section, &a.names).cmp(&(b.section, &b.names)));
        Ok(sources)
    }

    /// A file of this name with this text.
    fn new(file: &str, text: &str) -> Option<Source> {
        let (name, section) = file.strip_suffix(".md")?.rsplit_once('.')?;
        let (head, body) = text.split_once("\n\n")?;
        let mut lines = head.lines();
        let first = lines.next()?.strip_prefix("% ")?;
        let (names, about) = match first.split_once(" - ") {
            Some((names, about)) => (names, Some(about.to_owned())),
            None => (first, None),
        };
        let names: Vec<String> = names.split(", ").map(str::to_owned).collect();
        let mut constants = Vec::new();
        for line in lines {
            let words = line.strip_prefix("% constants ")?.split(' ');
            constants.extend(words.map(str::to_owned));
        }
        let sections = format!("\n{body}");
        let sections = sections.split("\n## ").skip(1).map(|section| {
            let (title, text) = section.split_once('\n').unwrap_or((section, ""));
            (title.trim().to_owned(), text.trim().to_owned())
        });
        Some(Source {
            section: section.parse().ok()?,
            about,
            constants,
            sections: sections.collect(),
            names,
        })
        .filter(|source| source.names[0] == name)
    }

    /// The text of a section, and takes it away.
    pub(super) fn take(&mut self, title: &str) -> Option<String> {
        let at = self.sections.iter().position(|(name, _)| name == title)?;
        Some(self.sections.remove(at).1)
    }
}

#[cfg(test)]
mod tests {
    use super::Source;

    #[test]
    fn a_file_has_names_and_sections() {
        let text = "% vip_a, vip_b - two\n% constants VIP_A_ VIP_B\n\n## Description\n\nOne.\n\n### Part\n\n## Notes\n- two\n";
        let mut source = Source::new("vip_a.7.md", text).unwrap();
        assert_eq!(source.names, ["vip_a", "vip_b"]);
        assert_eq!((source.section, source.about.as_deref()), (7, Some("two")));
        assert_eq!(source.constants, ["VIP_A_", "VIP_B"]);
        assert_eq!(source.take("Description").unwrap(), "One.\n\n### Part");
        assert_eq!(source.sections, [("Notes".to_owned(), "- two".to_owned())]);
        assert!(Source::new("vip_c.7.md", text).is_none());
        assert!(Source::new("vip_a.7.md", "vip_a\n\n## A\n").is_none());
    }
}
