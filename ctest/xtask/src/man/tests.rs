//! Tests over all pages.

use std::collections::BTreeSet;

use super::*;

fn sources() -> Vec<Source> {
    Source::all(&root().join(TEXTS)).unwrap()
}

/// Codes of VIP_RETURN in a text.
fn codes(text: &str) -> BTreeSet<String> {
    let declared = declarations(&[&read("headers/vipl.h").unwrap(), ""]);
    let all = declared.iter().find(|one| one.name == "VIP_RETURN");
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: BTreeSet<&str> = text.split(|c| !is_word(c)).collect();
    let known = all.unwrap().items.iter().map(|item| item.name.clone());
    known.filter(|name| words.contains(name.as_str())).collect()
}

/// A page says which results a function has; so does the specification.
#[test]
fn results_are_those_of_the_specification() {
    let specification = read("docs/SPECIFICATION.md").unwrap();
    let mut count = 0;
    for part in specification.split("\n### 3.").skip(2) {
        let (title, body) = part.split_once('\n').unwrap();
        let name = title.split(' ').nth(1).unwrap();
        if !name.starts_with("Vip") {
            continue;
        }
        let mut sources = sources();
        let at = sources.iter().position(|source| source.names[0] == name);
        let said = sources[at.unwrap()].take("Return value").unwrap();
        let said = codes(&said);
        let body = body.split("\n## ").next().unwrap();
        let results = body
            .split("\n- ")
            .filter(|item| item.contains("VIP_SUCCESS"));
        let mut demanded = codes(&results.collect::<String>());
        if name == "VipDisconnect" {
            // What a provider might do that refuses to disconnect twice.
            demanded.remove("VIP_INVALID_STATE");
        }
        assert!(demanded.is_subset(&said), "{name}: {demanded:?}, {said:?}");
        // The specification describes this one as another one.
        if name != "VipConnectPeerWait" {
            let possible = codes(body);
            assert!(said.is_subset(&possible), "{name}: {said:?}, {possible:?}");
        }
        count += 1;
    }
    assert!(count > 30, "{count} functions");
}

#[test]
fn pages_explain_without_citing_the_specification() {
    for page in pages("0.0.0").unwrap() {
        for mark in ["[choice]", "[mem]", "(spec ", "\u{a7}"] {
            assert!(!page.text.contains(mark), "{}: {mark}", page.name);
        }
    }
}

#[test]
fn every_function_and_type_has_a_page() {
    let pages = pages("0.0.0").unwrap();
    let has = |name: &str, section| {
        let is_it = |page: &Page| page.name == name && page.section == section;
        assert!(pages.iter().any(is_it), "{name}({section})");
    };
    for name in ["VipPostRecv", "vipl_cq_arm", "vipl_free"] {
        has(name, 3);
    }
    for name in ["VIP_CONTROL_SEGMENT", "VIP_ERROR_CODE", "VIP_STATUS"] {
        has(name, 7);
    }
    let index = pages.iter().find(|page| page.name == "vipl").unwrap();
    for page in pages.iter().filter(|page| page.section == 3) {
        let name = text::escaped(&page.name);
        assert!(index.text.contains(&name), "{name}");
    }
}

#[test]
fn what_lacks_a_page_or_an_explanation_is_found() {
    let said = |header: &str| {
        let done = complete(&sources(), &declarations(&[header, ""]));
        done.err().map(|error| error.to_string())
    };
    let post = |more: &str| {
        format!(
            "/* Posts.\n *\n * - `Vi`: the VI.{more} */\nVIP_RETURN VipPostSend(VIP_VI_HANDLE Vi, int More);\n"
        )
    };
    assert_eq!(said(&post("\n * - `More`: more.")), None);
    let unexplained = "vipl.h: VipPostSend: nothing explains More";
    assert_eq!(said(&post("")).unwrap(), unexplained);
    let unknown = "docs/man: VipNew of vipl.h is on 0 pages";
    let header = "/* New. */\nVIP_RETURN VipNew(void);\n";
    assert_eq!(said(header).unwrap(), unknown);
}

#[test]
fn the_parameters_of_a_prototype_are_found() {
    let prototype = "VIP_RETURN VipX(VIP_VI_HANDLE Vi,\n  VIP_PVOID *Out,\n  void (*Handler)(int a,\n  int b));";
    assert_eq!(parameters(prototype), ["Vi", "Out", "Handler"]);
    assert_eq!(iso("23 Nov 2026 12:00:00 +0000").unwrap(), "2026-11-23");
}

#[test]
fn every_setting_of_the_sample_is_on_the_page() {
    let sample = read("pkgconfig/vipl.conf").unwrap();
    let pages = pages("0.0.0").unwrap();
    let page = pages.iter().find(|page| page.name == "vipl.conf").unwrap();
    let settings = sample
        .lines()
        .filter_map(|line| line.strip_prefix('#')?.split_once(" = "))
        .map(|(name, _)| name)
        .filter(|name| !name.contains(' '));
    for name in settings {
        assert!(page.text.contains(&text::escaped(name)), "{name}");
    }
}
