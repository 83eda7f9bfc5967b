//! The findings for people, no wider than their terminal; or one JSON document.

use serde_json::{Value, json};

use super::{Finding, Verdict};
use crate::report::wrapped;
use crate::{Result, report};

/// What lines of a finding that follow its first are indented by.
const INDENT: &str = "    ";

/// The answer, printed while it grows.
pub(super) struct Page {
    device: String,
    host: Option<String>,
    json: bool,
    width: usize,
    findings: Vec<Finding>,
}

impl Page {
    pub(super) fn new(device: &str, host: Option<&str>, json: bool) -> Self {
        Self {
            device: device.to_owned(),
            host: host.map(str::to_owned),
            json,
            width: report::width(),
            findings: Vec::new(),
        }
    }

    /// Adds what one check has found.
    pub(super) fn add(&mut self, found: Vec<Finding>) -> Result<()> {
        if !self.json {
            let texts = found.iter().map(|finding| text(finding, self.width));
            report::print(&texts.collect::<String>())?;
        }
        self.findings.extend(found);
        Ok(())
    }

    /// Prints the end, and gives the worst that was found.
    pub(super) fn finish(self) -> Result<Verdict> {
        let count = |verdict| {
            let of = |finding: &&Finding| finding.verdict() == verdict;
            self.findings.iter().filter(of).count()
        };
        let (broken, slow) = (count(Verdict::Broken), count(Verdict::Slow));
        let worst = self.findings.iter().map(Finding::verdict).max();
        let worst = worst.unwrap_or(Verdict::Fine);
        if self.json {
            let document = json!({"device": self.device, "host": self.host, "verdict": worst.name(),
                "findings": self.findings.iter().map(Finding::json).collect::<Value>()});
            report::print(&format!("{document:#}\n"))?;
            return Ok(worst);
        }
        let to = self
            .host
            .map_or(String::new(), |host| format!(" to {host}"));
        let end = format!("{}{to}: {}.", self.device, sum(broken, slow));
        report::print(&format!("\n{}", wrapped(&end, self.width, "", "")))?;
        Ok(worst)
    }
}

/// The findings in one sentence, by their numbers.
fn sum(broken: usize, slow: usize) -> String {
    let slows = match slow {
        0 => String::new(),
        1 => "1 finding slows or limits it".to_owned(),
        _ => format!("{slow} findings slow or limit it"),
    };
    let breaks = match broken {
        0 if slow == 0 => return "no problem found".to_owned(),
        0 => "nothing keeps it from working".to_owned(),
        1 => "1 finding keeps it from working".to_owned(),
        _ => format!("{broken} findings keep it from working"),
    };
    match &*slows {
        "" => breaks,
        slows => format!("{breaks}, {slows}"),
    }
}

fn text(finding: &Finding, width: usize) -> String {
    let (name, found) = (finding.name(), finding.found());
    let Some(means) = finding.means() else {
        let mark = match finding.verdict() {
            Verdict::Unknown => "?  ",
            _ => "ok ",
        };
        return wrapped(&format!("{name}: {found}"), width, mark, INDENT);
    };
    let mark = match finding.verdict() {
        Verdict::Broken => "BROKEN ",
        _ => "SLOW   ",
    };
    let mut text = wrapped(&format!("{name}: {found}"), width, mark, INDENT);
    text += &wrapped(means, width, INDENT, INDENT);
    if let Some(mend) = finding.mend() {
        text += &wrapped(mend, width, "  > ", INDENT);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    #[test]
    fn the_end_is_a_sentence() {
        for (broken, slow, said) in [
            (0, 0, "no problem found"),
            (1, 0, "1 finding keeps it from working"),
            (
                2,
                1,
                "2 findings keep it from working, 1 finding slows or limits it",
            ),
            (
                0,
                2,
                "nothing keeps it from working, 2 findings slow or limit it",
            ),
        ] {
            assert_eq!(sum(broken, slow), said);
        }
    }

    #[test]
    fn nothing_is_wider_than_the_terminal() {
        let long = format!("the file /{} is there", "folder/".repeat(20));
        let findings = [
            Kind::MemoryAccess.found(&long).mended_by(&long),
            Finding::fine("agent", &long),
            Finding::unknown("x", "no"),
        ];
        for width in [12, 40, 80] {
            for finding in &findings {
                let text = text(finding, width);
                let wide = text.lines().find(|line| line.chars().count() > width);
                assert_eq!(wide, None, "{text}");
                let joined: String = text.split_whitespace().collect();
                let all: String = finding.found().split_whitespace().collect();
                assert!(joined.contains(&all), "{text}");
            }
        }
    }

    #[test]
    fn a_finding_says_what_it_means_and_what_mends_it() {
        let finding = Kind::PrivateAgent
            .found("VIPL_AGENT=off")
            .mended_by("unset VIPL_AGENT");
        let expected = "BROKEN private-agent: VIPL_AGENT=off\n    every process has an agent of its own, so two \
                        processes cannot connect\n  > unset VIPL_AGENT\n";
        assert_eq!(text(&finding, 100), expected);
        assert_eq!(
            text(&Finding::fine("agent", "here"), 80),
            "ok agent: here\n"
        );
        assert_eq!(text(&Finding::unknown("agent", "no"), 80), "?  agent: no\n");
    }
}
