//! The list of assertions, and identifiers in texts.

/// The specification; its §15 is the list, one item per assertion: `- ID: text [source] …`.
const SPECIFICATION: &str = include_str!("../../../docs/SPECIFICATION.md");

/// One line of the list.
#[derive(Debug)]
pub(crate) struct Assertion {
    /// `NIC-01`.
    pub(crate) id: &'static str,
    /// What is asserted.
    pub(crate) text: &'static str,
}

/// The group of an identifier: what stands before its number.
pub(crate) fn group(id: &str) -> &str {
    id.trim_end_matches(|c: char| c.is_ascii_digit())
        .trim_end_matches('-')
}

/// All assertions, in the order of the list.
pub(crate) fn all() -> Vec<Assertion> {
    SPECIFICATION
        .lines()
        .filter_map(|line| {
            let (id, text) = line.strip_prefix("- ")?.split_once(": ")?;
            let text = without_sources(text);
            is_id(id).then_some(Assertion { id, text })
        })
        .collect()
}

/// Cuts off the tags at the end that say where an assertion comes from.
fn without_sources(mut text: &str) -> &str {
    while let Some((rest, _)) = text.strip_suffix(']').and_then(|t| t.rsplit_once('[')) {
        text = rest.trim_end();
    }
    text
}

/// Capitals, a hyphen, two digits.
fn is_id(word: &str) -> bool {
    word.split_once('-').is_some_and(|(group, number)| {
        group.len() >= 2
            && group.bytes().all(|b| b.is_ascii_uppercase())
            && number.len() == 2
            && number.bytes().all(|b| b.is_ascii_digit())
    })
}

/// The identifiers of a list such as `NIC-01..03 VI-05`.
pub(crate) fn expand(list: &str) -> Vec<String> {
    let mut ids = Vec::new();
    for word in list.split_whitespace() {
        let Some((first, last)) = word.split_once("..") else {
            ids.push(word.to_owned());
            continue;
        };
        let group = group(first);
        let number = |text: &str| text.parse::<u32>().unwrap_or(0);
        let first = number(first.rsplit('-').next().unwrap_or_default());
        ids.extend((first..=number(last)).map(|n| format!("{group}-{n:02}")));
    }
    ids
}

/// Every identifier in a text.
pub(crate) fn ids_in(text: &str) -> Vec<&str> {
    text.split(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '-'))
        .filter(|word| is_id(word))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    #[test]
    fn the_list_is_whole() {
        let all = super::all();
        let ids: BTreeSet<&str> = all.iter().map(|assertion| assertion.id).collect();
        assert_eq!(all.len(), 289);
        assert_eq!(ids.len(), 289, "no identifier twice");
        assert_eq!(
            all[2].text,
            "sizeof(VIP_NIC_ATTRIBUTES) is 200 on x86-64, 136 on i386"
        );
        assert!(all.iter().all(|assertion| !assertion.text.ends_with(']')));
    }

    #[test]
    fn lists_of_identifiers() {
        assert_eq!(
            super::expand("VI-08..10 CQ-01"),
            ["VI-08", "VI-09", "VI-10", "CQ-01"]
        );
        assert_eq!(
            super::ids_in("\"E1 DERR-01\", XFER-123 A-12 R7 §15.X-1"),
            ["DERR-01"]
        );
    }
}
