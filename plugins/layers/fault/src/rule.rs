//! Rules: which call, what happens to it, and when.
//!
//! ```text
//!   rules   rule or seed=N, with ; between them
//!   rule    FUNCTION:WHAT[:WHEN,WHEN...]
//!   WHAT    VIP_ERROR_RESOURCE and other return codes: the call is answered with it, and not made
//!           VIP_ERROR_CONN_LOST and other asynchronous errors: the connection of the call's VI breaks before it
//!           delay=20us, 5ms, 1s: the call begins later
//!   WHEN    at=N  every=N  after=N  times=N  chance=0.01
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use vipl_abi::{VIP_ERROR_CODE, VIP_RETURN};
use vipl_plugin_sdk::abi::FUNCTIONS;
use vipl_plugin_sdk::layer::{Argument, arguments};
use vipl_sys::random::{self, Random};

/// Longest delay.
const DELAY_MAX: Duration = Duration::from_secs(3600);

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Answer(VIP_RETURN),
    Break(VIP_ERROR_CODE),
    Delay(Duration),
}

/// To which of its calls.
#[derive(Clone, Copy, Debug, PartialEq)]
struct When {
    after: u64,
    every: u64,
    times: u64,
    chance: Option<f64>,
}

/// One rule, and how often it was looked at.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) text: String,
    functions: Vec<bool>,
    pub(crate) what: What,
    when: When,
    calls: AtomicU64,
    hits: AtomicU64,
}

/// The rules of a process.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(crate) rules: Vec<Rule>,
    seed: u64,
}

impl Rules {
    /// Reads the rules.
    ///
    /// # Errors
    /// What is wrong with which of them.
    pub(crate) fn parse(text: &str) -> Result<Rules, String> {
        let mut all = Rules::default();
        for part in text
            .split(';')
            .map(str::trim)
            .filter(|part| !part.is_empty())
        {
            let parsed = match part.strip_prefix("seed=") {
                Some(seed) => number(seed).map(|seed| all.seed = seed),
                None => Rule::parse(part).map(|rule| all.rules.push(rule)),
            };
            parsed.map_err(|error| format!("{part:?}: {error}"))?;
        }
        Ok(all)
    }

    /// What happens to this call of a function, by the first rule that applies.
    pub(crate) fn applies(&self, function: u32) -> Option<Hit<'_>> {
        self.rules.iter().enumerate().find_map(|(place, rule)| {
            if !rule
                .functions
                .get(function as usize)
                .copied()
                .unwrap_or(false)
            {
                return None;
            }
            let call = rule.calls.fetch_add(1, Ordering::Relaxed) + 1;
            let before = rule.hits(call, self.seed ^ (place as u64) << 32)?;
            Some(Hit {
                rule,
                call,
                is_first: before == 0,
            })
        })
    }
}

/// A call to which a rule applies.
pub(crate) struct Hit<'a> {
    pub(crate) rule: &'a Rule,
    /// Of the calls of the rule's functions, from 1 on.
    pub(crate) call: u64,
    /// No call before was hit by the rule.
    pub(crate) is_first: bool,
}

impl Rule {
    fn parse(text: &str) -> Result<Rule, String> {
        let parts: Vec<&str> = text.split(':').map(str::trim).collect();
        let (function, what, when) = match parts[..] {
            [function, what] => (function, what, ""),
            [function, what, when] => (function, what, when),
            _ => return Err("a rule is FUNCTION:WHAT or FUNCTION:WHAT:WHEN".to_owned()),
        };
        let functions = matching(function)?;
        let what = what_of(what)?;
        if matches!(what, What::Break(_)) {
            let without_vi = (1..functions.len()).find(|number| {
                let first = arguments(*number as u32).first();
                functions[*number] && first.is_none_or(|(_, kind)| *kind != Argument::Vi)
            });
            if let Some(number) = without_vi {
                let name = FUNCTIONS[number - 1];
                return Err(format!(
                    "an asynchronous error breaks a VI's connection, and {name} is not a call on a VI"
                ));
            }
        }
        Ok(Rule {
            text: text.to_owned(),
            functions,
            what,
            when: when_of(when)?,
            calls: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        })
    }

    /// The hits before this one, if it hits this call.
    fn hits(&self, call: u64, seed: u64) -> Option<u64> {
        let When {
            after,
            every,
            times,
            chance,
        } = self.when;
        if call <= after || (call - after - 1) % every != every - 1 {
            return None;
        }
        // A number of the call's own, so that the order of threads does not change it.
        let drawn = |chance| Random::new(random::nth(seed, call)).chance(chance);
        if chance.is_some_and(|chance| !drawn(chance)) {
            return None;
        }
        let before = self.hits.fetch_add(1, Ordering::Relaxed);
        (before < times).then_some(before)
    }
}

/// The functions that a name with `*` at its end, or without, means; by their numbers.
fn matching(name: &str) -> Result<Vec<bool>, String> {
    let matches = |function: &str| match name.strip_suffix('*') {
        Some(start) => function.starts_with(start),
        None => function == name,
    };
    let mut all = vec![false];
    all.extend(FUNCTIONS.iter().map(|function| matches(function)));
    match all.contains(&true) {
        true => Ok(all),
        false => Err(format!(
            "{name:?} is no function; VipPostSend, VipPost* or * are"
        )),
    }
}

fn what_of(text: &str) -> Result<What, String> {
    use VIP_ERROR_CODE::*;
    if let Some(delay) = text.strip_prefix("delay=") {
        return delay_of(delay).map(What::Delay);
    }
    let answer = VIP_RETURN::ALL
        .into_iter()
        .find(|code| format!("{code:?}") == text);
    match answer {
        Some(VIP_RETURN::VIP_SUCCESS | VIP_RETURN::VIP_DESCRIPTOR_ERROR) => {
            return Err(format!(
                "a call that is not made cannot be answered with {text}"
            ));
        }
        Some(code) => return Ok(What::Answer(code)),
        None => {}
    }
    let found = VIP_ERROR_CODE::ALL
        .into_iter()
        // These break no connection.
        .filter(|code| {
            !matches!(
                code,
                VIP_ERROR_POST_DESC | VIP_ERROR_VI_OVERRUN | VIP_ERROR_CATASTROPHIC
            )
        })
        .find(|code| format!("{code:?}") == text);
    found.map(What::Break).ok_or_else(|| {
        format!("{text:?} is neither a return code (VIP_ERROR_RESOURCE), an asynchronous error that breaks a connection (VIP_ERROR_CONN_LOST), nor delay=5ms")
    })
}

fn delay_of(text: &str) -> Result<Duration, String> {
    let bad = || format!("delay={text}: a delay is a number with us, ms or s, an hour at most");
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let amount = digits.parse::<u64>().map_err(|_| bad())?;
    let delay = match &text[digits.len()..] {
        "us" => Duration::from_micros(amount),
        "ms" => Duration::from_millis(amount),
        "s" => Duration::from_secs(amount),
        _ => return Err(bad()),
    };
    (delay <= DELAY_MAX).then_some(delay).ok_or_else(bad)
}

fn when_of(text: &str) -> Result<When, String> {
    let mut when = When {
        after: 0,
        every: 1,
        times: u64::MAX,
        chance: None,
    };
    for part in text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        match part.split_once('=') {
            Some(("at", n)) => {
                (when.after, when.times) = (positive(n)? - 1, 1);
            }
            Some(("every", n)) => when.every = positive(n)?,
            Some(("after", n)) => when.after = number(n)?,
            Some(("times", n)) => when.times = number(n)?,
            Some(("chance", text)) => {
                let chance = text
                    .parse::<f64>()
                    .ok()
                    .filter(|chance| (0.0..=1.0).contains(chance));
                when.chance = Some(
                    chance.ok_or_else(|| format!("{part}: a chance is a number from 0 to 1"))?,
                );
            }
            _ => {
                return Err(format!(
                    "{part:?} is none of at=N, every=N, after=N, times=N, chance=0.01"
                ));
            }
        }
    }
    Ok(when)
}

fn number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a number"))
}

fn positive(text: &str) -> Result<u64, String> {
    number(text)?
        .checked_sub(1)
        .map(|less| less + 1)
        .ok_or_else(|| "calls are counted from 1".to_owned())
}

#[cfg(test)]
mod tests {
    use vipl_plugin_sdk::abi::{VIPL_CALL_POST_RECV, VIPL_CALL_POST_SEND, VIPL_CALL_SEND_WAIT};

    use super::*;

    /// Which of the first `calls` calls of VipPostSend a rule hits.
    fn hits(text: &str, calls: u64) -> Vec<u64> {
        let rules = Rules::parse(text).unwrap();
        let hit = |_| rules.applies(VIPL_CALL_POST_SEND).map(|hit| hit.call);
        (0..calls).filter_map(hit).collect()
    }

    #[test]
    fn a_rule_says_when() {
        assert_eq!(hits("VipPostSend:VIP_TIMEOUT", 3), [1, 2, 3]);
        assert_eq!(hits("VipPostSend:VIP_TIMEOUT:every=3", 10), [3, 6, 9]);
        assert_eq!(hits("VipPostSend:VIP_TIMEOUT:at=4", 10), [4]);
        assert_eq!(hits("VipPost*:VIP_TIMEOUT:after=2,times=2", 10), [3, 4]);
        assert_eq!(hits("VipPostRecv:VIP_TIMEOUT", 10), [0; 0]);
        assert_eq!(hits("VipPostSend:VIP_TIMEOUT:chance=0", 100), [0; 0]);
        assert_eq!(hits("*:VIP_TIMEOUT:chance=1", 100).len(), 100);
    }

    #[test]
    fn a_seed_decides_chance() {
        let rule = "VipPostSend:VIP_TIMEOUT:chance=0.25";
        let one = hits(&format!("{rule};seed=7"), 4000);
        assert_eq!(one, hits(&format!("seed=7;{rule}"), 4000));
        assert_ne!(one, hits(&format!("{rule};seed=8"), 4000));
        assert!((800..1200).contains(&one.len()), "{}", one.len());
    }

    #[test]
    fn the_first_rule_that_applies_counts() {
        let rules = Rules::parse("VipPostSend:VIP_TIMEOUT:at=2; VipPost*:delay=3ms ;").unwrap();
        let what = |function| rules.applies(function).map(|hit| hit.rule.what);
        let delay = Some(What::Delay(Duration::from_millis(3)));
        assert_eq!(what(VIPL_CALL_POST_RECV), delay);
        assert_eq!(what(VIPL_CALL_POST_SEND), delay);
        assert_eq!(
            what(VIPL_CALL_POST_SEND),
            Some(What::Answer(VIP_RETURN::VIP_TIMEOUT))
        );
        assert_eq!(what(VIPL_CALL_SEND_WAIT), None);
    }

    #[test]
    fn what_is_wrong_is_said() {
        for (text, said) in [
            ("VipPostSend", "FUNCTION:WHAT"),
            ("a:b:c:d", "FUNCTION:WHAT"),
            ("VipPastSend:VIP_TIMEOUT", "is no function"),
            ("VipPostSend:VIP_SUCCESS", "cannot be answered"),
            ("VipPostSend:VIP_WHATEVER", "neither a return code"),
            (
                "VipOpenNic:VIP_ERROR_CONN_LOST",
                "VipOpenNic is not a call on a VI",
            ),
            ("VipPostSend:delay=5", "us, ms or s"),
            ("VipPostSend:delay=2000000s", "an hour at most"),
            ("VipPostSend:VIP_TIMEOUT:often", "none of at=N"),
            ("VipPostSend:VIP_TIMEOUT:every=0", "counted from 1"),
            ("VipPostSend:VIP_TIMEOUT:chance=2", "from 0 to 1"),
            ("seed=x", "is not a number"),
        ] {
            let error = Rules::parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
        assert!(Rules::parse("").unwrap().rules.is_empty());
    }
}
