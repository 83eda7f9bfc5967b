//! The constants, as written: `pub const NAME: TYPE = EXPRESSION;` becomes `#define NAME
//! expression`.
//!
//! Only what the sources use is translated: literals, `<<`, `|`, `T::MAX`, `size_of::<T>() as u64`.

/// Neighbouring constants; the source has a blank line around them.
pub(crate) type Group = Vec<Define>;

/// One constant.
#[derive(Debug, PartialEq)]
pub(crate) struct Define {
    /// Its comment.
    pub doc: Vec<String>,
    /// Its name.
    pub name: String,
    /// Its value in C.
    pub value: String,
}

/// Finds all public constants of a source file.
pub(crate) fn parse(source: &str) -> Vec<Group> {
    let mut groups = vec![Group::new()];
    let (mut doc, mut lines) = (Vec::new(), source.lines());
    while let Some(line) = lines.next() {
        if let Some(text) = line.strip_prefix("///") {
            doc.push(text.strip_prefix(' ').unwrap_or(text).to_owned());
            continue;
        }
        let doc = std::mem::take(&mut doc);
        let Some(rest) = line.strip_prefix("pub const ") else {
            if groups.last().is_some_and(|group| !group.is_empty()) {
                groups.push(Group::new());
            }
            continue;
        };
        let mut text = rest.to_owned();
        while !text.ends_with(';') {
            let Some(more) = lines.next() else { break };
            text = format!("{text} {}", more.trim());
        }
        let text = text.trim_end_matches(';');
        let parts = text
            .split_once(':')
            .and_then(|(name, rest)| Some((name, rest.split_once('=')?)));
        if let (Some((name, (kind, value))), Some(group)) = (parts, groups.last_mut()) {
            let value = value_in_c(kind.trim(), value.trim());
            group.push(Define {
                doc,
                name: name.to_owned(),
                value,
            });
        }
    }
    groups.retain(|group| !group.is_empty());
    groups
}

/// Translates one value of a Rust type.
fn value_in_c(kind: &str, value: &str) -> String {
    if value == "u32::MAX" {
        return "UINT32_C(0xFFFFFFFF)".to_owned();
    }
    if value
        .strip_suffix("::MAX")
        .is_some_and(|named| named == kind)
    {
        // No cast: C++ programs may be compiled with -Wold-style-cast.
        return match kind {
            "VIP_ULONG" => "(~0UL)".to_owned(),
            _ => format!("(({kind})-1)"),
        };
    }
    let value = sizes(&without_separators(value));
    let literal = value.chars().all(|c| c.is_ascii_alphanumeric());
    match kind {
        "VIP_ULONG" if literal => format!("{value}UL"),
        // Unsigned, so that `~` of it is no negative number (-Wsign-conversion).
        "VIP_UINT32" if literal => format!("{value}u"),
        "u64" if literal => format!("UINT64_C({value})"),
        _ if literal => value,
        _ => format!("({value})"),
    }
}

/// Drops the `_` of `0x0000_0001`, not those of names.
fn without_separators(value: &str) -> String {
    let mut out = String::new();
    for word in value.split_inclusive(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
        if word.starts_with(|c: char| c.is_ascii_digit()) {
            out.extend(word.chars().filter(|&c| c != '_'));
        } else {
            out.push_str(word);
        }
    }
    out
}

/// `core::mem::size_of::<T>() as u64` in C.
fn sizes(value: &str) -> String {
    value
        .replace(
            "core::mem::size_of::<usize>() as u64",
            "(uint64_t)sizeof(size_t)",
        )
        .replace("core::mem::size_of::<", "(uint64_t)sizeof(")
        .replace(">() as u64", ")")
}

#[cfg(test)]
mod tests {
    use super::{parse, value_in_c};

    #[test]
    fn values() {
        assert_eq!(value_in_c("VIP_UINT32", "0x0000_01FE"), "0x000001FEu");
        assert_eq!(value_in_c("VIP_BOOLEAN", "1"), "1");
        assert_eq!(value_in_c("VIP_ULONG", "VIP_ULONG::MAX"), "(~0UL)");
        assert_eq!(value_in_c("VIP_ULONG", "1"), "1UL");
        assert_eq!(value_in_c("VIP_USHORT", "1 << 14"), "(1 << 14)");
        assert_eq!(value_in_c("c_int", "-2"), "(-2)");
        assert_eq!(value_in_c("u32", "u32::MAX"), "UINT32_C(0xFFFFFFFF)");
        assert_eq!(value_in_c("u64", "0x4755_4C50"), "UINT64_C(0x47554C50)");
        assert_eq!(
            value_in_c("u64", "(core::mem::size_of::<vipl_vi>() as u64) << 40"),
            "(((uint64_t)sizeof(vipl_vi)) << 40)"
        );
    }

    #[test]
    fn groups_comments_and_long_constants() {
        let groups = parse(
            "/// One.\npub const A: u32 = 1;\npub const B: u32 =\n    2;\n\npub const C: u32 = 3;\n",
        );
        let names = |i: usize| {
            groups[i]
                .iter()
                .map(|d| d.name.as_str())
                .collect::<Vec<_>>()
        };
        assert_eq!((names(0), names(1)), (vec!["A", "B"], vec!["C"]));
        assert_eq!(
            (groups[0][0].doc.join(""), groups[0][1].value.as_str()),
            ("One.".into(), "2")
        );
    }
}
