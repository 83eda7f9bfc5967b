//! Blocks of code in the documents.

/// A block of a page.
pub struct Block<'a> {
    /// Its first line in the page, counted from 0.
    pub first: usize,
    /// Its lines.
    pub lines: Vec<&'a str>,
}

impl Block<'_> {
    /// Its text, as a program or a file has it.
    pub fn text(&self) -> String {
        self.lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// The blocks of a page of one kind, as `console`.
///
/// # Panics
/// A block has no end.
pub fn blocks<'a>(page: &'a str, kind: &str) -> Vec<Block<'a>> {
    let (mut found, mut inside) = (Vec::new(), None);
    for (number, line) in page.lines().enumerate() {
        let fence = line.trim_start().strip_prefix("```");
        match (fence, &mut inside) {
            (Some(word), None) => {
                let first = number + 1;
                let lines = Vec::new();
                inside = Some((word == kind, Block { first, lines }));
            }
            (Some(_), Some(_)) => {
                let ended = inside.take().filter(|(is_wanted, _)| *is_wanted);
                found.extend(ended.map(|(_, block)| block));
            }
            (None, Some((_, block))) => block.lines.push(line),
            (None, None) => {}
        }
    }
    assert!(inside.is_none(), "a block has no end");
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_one_kind_are_found() {
        let page = "no\n```c\n1\n\n  2\n```\n```text\nother\n```\n  ```c\n3\n  ```\nno\n";
        let found: Vec<_> = blocks(page, "c")
            .iter()
            .map(|block| (block.first, block.text()))
            .collect();
        assert_eq!(
            found,
            [(2, "1\n\n  2\n".to_owned()), (10, "3\n".to_owned())]
        );
    }

    #[test]
    #[should_panic(expected = "a block has no end")]
    fn a_block_without_an_end_is_found() {
        blocks("```c\n1\n", "text");
    }
}
