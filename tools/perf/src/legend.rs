//! What the words of results mean that do not say it themselves.

use serde_json::Value;
use vipl_tools::placement::NEAR_NS;

use crate::kept::{results, word};

/// A sentence for each of them that stands in these results.
pub(crate) fn legend(run: &Value) -> Vec<String> {
    let has = |test: &str| results(run).any(|result| word(result, "test") == test);
    let mut lines = Vec::new();
    if has("latency") || has("write-latency") {
        lines.push(
            "one way: half a round trip, the median of short series; mean: with all interruptions, so it can be several times \
             that; p99: of single messages, where 100 or more were timed"
                .to_owned(),
        );
    }
    if has("company") {
        lines.push("company: one way and waiting are means of all round trips".to_owned());
    }
    if results(run).any(|result| result["placement"].is_string()) {
        lines.push(format!(
            "CPUs: far, where a cache line takes {NEAR_NS} ns or more from one processor to the other; else near"
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_words_that_stand_there_are_explained() {
        let of = |test: &str, placement: Value| {
            legend(&json!({"results": [{"test": test, "placement": placement}]}))
        };
        let both = of("latency", json!("far"));
        assert!(
            both[0].contains("the median") && both[1].contains("120 ns"),
            "{both:?}"
        );
        assert_eq!(both.len(), 2);
        let company = of("company", Value::Null);
        assert!(
            company.len() == 1 && company[0].contains("means"),
            "{company:?}"
        );
        assert!(of("bandwidth", Value::Null).is_empty());
    }
}
