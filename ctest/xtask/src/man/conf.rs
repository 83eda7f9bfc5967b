//! `vipl.conf(5)`, from the sample of the file.

use super::text::Text;
use super::{Edition, Page, reference};
use crate::Result;

/// The page. The sample has groups (`# --- NAME ---`); in them a comment before each setting (`#name = value`) or
/// table (`#[name]`).
pub(super) fn page(sample: &str, edition: &Edition) -> Result<Page> {
    let about = "settings of the Virtual Interface Architecture library";
    let mut text = Text::new("vipl.conf", 5, edition, about);
    text.section("Description");
    let mut comment: Vec<&str> = Vec::new();
    let mut entries: Vec<&str> = Vec::new();
    for line in sample.lines().chain([""]) {
        if let Some(title) = group(line) {
            text.section(title);
        } else if let Some(words) = line.strip_prefix("# ") {
            comment.push(words.trim());
        } else if let Some(entry) = line.strip_prefix('#').filter(|entry| !entry.is_empty()) {
            entries.push(entry);
        } else if line.is_empty() {
            finish(&mut text, &comment.join(" "), &entries)?;
            comment.clear();
            entries.clear();
        } else {
            return Err(format!("vipl.conf: {line:?} is no comment").into());
        }
    }
    text.section("Files");
    for (file, meaning) in [
        ("~/.config/vipl/vipl.conf", "of a user"),
        (
            "/etc/vipl/vipl.conf",
            "of the system; the only one for a set-user-ID program",
        ),
    ] {
        text.term(file, "", meaning);
    }
    text.section("Environment");
    text.markdown(
        "`VIPL_NAME` sets `name`, `VIPL_PLUGIN_NAME` the setting `name` of a plug-in. A program that runs with raised \
         privileges ignores the environment.",
    );
    reference::see_also(&mut text, "**vipinfo**(1), **vipkad**(8)");
    Ok(text.page())
}

/// The title of a group.
fn group(line: &str) -> Option<&str> {
    line.strip_prefix("# --- ")?.split(" ---").next()
}

/// A paragraph, a table or a setting.
fn finish(text: &mut Text, comment: &str, entries: &[&str]) -> Result {
    match entries {
        [] if comment.is_empty() => {}
        [] => text.markdown(comment),
        [table, lines @ ..] if table.starts_with('[') => {
            text.part(table);
            text.markdown(comment);
            if !lines.is_empty() {
                text.verbatim(&lines.join("\n"));
            }
        }
        [entry] => {
            let (name, value) = entry
                .split_once(" = ")
                .ok_or_else(|| format!("vipl.conf: {entry:?} is no setting"))?;
            text.term(name, &format!(" = {value}"), comment);
        }
        _ => return Err(format!("vipl.conf: {entries:?} is more than one setting").into()),
    }
    Ok(())
}
