//! Committed text against generated text.

use std::path::Path;

use crate::Result;
use crate::workspace::root;

/// Lines shown of each side.
const LINES_SHOWN: usize = 20;

/// Writes the file, or with `check` compares it. `fix` is the command that would write it.
pub(crate) fn settle(path: &str, text: &str, check: bool, fix: &str) -> Result {
    let file = root().join(path);
    let old = std::fs::read_to_string(&file).unwrap_or_default();
    if old == text {
        println!("{path}: up to date");
        return Ok(());
    }
    if check {
        return Err(format!(
            "{path} is out of date; run `{fix}`\n{}",
            describe(&old, text)
        )
        .into());
    }
    std::fs::create_dir_all(file.parent().unwrap_or(Path::new(".")))?;
    std::fs::write(&file, text)?;
    println!("{path}: written");
    Ok(())
}

/// The lines between the first and the last difference, old and new.
pub(crate) fn describe(old: &str, new: &str) -> String {
    let (old, new): (Vec<_>, Vec<_>) = (old.lines().collect(), new.lines().collect());
    let same = |(a, b): &(&&str, &&str)| a == b;
    let head = old.iter().zip(&new).take_while(same).count();
    let tail = old[head..]
        .iter()
        .rev()
        .zip(new[head..].iter().rev())
        .take_while(same)
        .count();
    let mut text = format!("from line {}:\n", head + 1);
    for (sign, lines) in [
        ('-', &old[head..old.len() - tail]),
        ('+', &new[head..new.len() - tail]),
    ] {
        for line in lines.iter().take(LINES_SHOWN) {
            text.push_str(&format!("  {sign} {line}\n"));
        }
        if lines.len() > LINES_SHOWN {
            text.push_str(&format!("  {sign} … {} more\n", lines.len() - LINES_SHOWN));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::describe;

    #[test]
    fn only_the_changed_lines_are_shown() {
        assert_eq!(
            describe("a\nb\nc\n", "a\nx\ny\nc\n"),
            "from line 2:\n  - b\n  + x\n  + y\n"
        );
        assert_eq!(describe("a\na\n", "a\n"), "from line 2:\n  - a\n");
    }
}
