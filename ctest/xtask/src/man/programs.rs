//! Sections 1 and 8: what a program says of its command line, and the rest from `docs/man`.

use std::path::Path;

use super::source::Source;
use super::text::Text;
use super::{Edition, Page, generate, reference};
use crate::Result;

/// The sections of a page by `clap_mangen` that are taken over.
const TAKEN: [&str; 3] = ["SYNOPSIS", "DESCRIPTION", "OPTIONS"];

/// What a page of a program has, beside the options.
const NEEDED: [&str; 2] = ["Exit status", "Examples"];

/// The page of a program that was built in a folder.
pub(super) fn page(mut source: Source, built: &Path, edition: &Edition) -> Result<Page> {
    let name = source.names[0].clone();
    let about = source
        .about
        .clone()
        .ok_or_else(|| format!("docs/man/{name}: no line says what it is"))?;
    let mut text = Text::new(&name, source.section, edition, &about);
    let has = |title: &&str| source.sections.iter().any(|(known, _)| known == title);
    if let Some(title) = NEEDED.iter().find(|title| !has(title)) {
        return Err(format!("docs/man/{name}: no section {title}").into());
    }
    let generated = generate(built, &name, "man")?;
    if !generated.contains("Exit status: 0: ") {
        return Err(format!("{name} --help does not tell its exit statuses").into());
    }
    for section in generated.split("\n.SH ").skip(1) {
        let (title, body) = section.split_once('\n').unwrap_or((section, ""));
        if TAKEN.contains(&title) {
            text.section(title);
            text.raw(body);
        }
        if title == "DESCRIPTION"
            && let Some(more) = source.take("Description")
        {
            text.markdown(&more);
        }
    }
    let references = source.take("See also").unwrap_or_default();
    for (title, body) in &source.sections {
        text.section(title);
        text.markdown(body);
    }
    reference::see_also(&mut text, &references);
    Ok(text.page())
}
