//! Measurements that need processes of their own, which have never used the library before.

use std::process::{Command, Stdio};

use serde_json::Value;
use vipl_tools::{Error, Result};

use crate::bench::{Figure, figure};

/// How such a process is started: the options that it takes over.
#[derive(Clone, Debug)]
pub(crate) struct Fresh {
    pub(crate) arguments: Vec<String>,
}

impl Fresh {
    /// This program with these words and the options, to print JSON.
    pub(crate) fn command(&self, words: &[&str]) -> Result<Command> {
        let program =
            std::env::current_exe().map_err(|error| Error::io("finding myself", error))?;
        let mut command = Command::new(program);
        command
            .args(words)
            .args(&self.arguments)
            .args(["--fresh", "--json", "--runs", "1"]);
        Ok(command)
    }

    /// Runs it, and returns what it has printed.
    pub(crate) fn answer(mut command: Command, test: &str) -> Result<Value> {
        let output = command
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output();
        let output = output.map_err(|error| Error::io(format!("starting {test}"), error))?;
        let answer: Option<Value> = serde_json::from_slice(&output.stdout).ok();
        let failed = || Error::Peer(format!("{test} failed"));
        let answer = answer.ok_or_else(failed)?;
        match answer["error"].as_str() {
            Some(error) => Err(Error::Peer(format!("{test}: {error}"))),
            None => Ok(answer),
        }
    }

    /// Runs it, and returns the figures of its only test.
    pub(crate) fn figures(command: Command, test: &str) -> Result<Vec<Figure>> {
        let answer = Self::answer(command, test)?;
        let figures = answer["results"][0]["figures"].as_array();
        let figures = figures.and_then(|all| all.iter().map(figure_of).collect());
        figures.ok_or_else(|| Error::Peer(format!("{test} gave no figures")))
    }

    /// Runs it, and returns its first figure.
    pub(crate) fn first_figure(command: Command, test: &str) -> Result<f64> {
        let figures = Self::figures(command, test)?;
        let value = figures.first().map(|figure| figure.value);
        value.ok_or_else(|| Error::Peer(format!("{test} gave no figure")))
    }
}

const UNITS: [&str; 5] = ["KiB", "ms", "µs", "/s", ""];

fn figure_of(found: &Value) -> Option<Figure> {
    let unit = UNITS.iter().find(|unit| found["unit"] == **unit)?;
    let name = found["name"].as_str()?.to_owned();
    // What could not be known is no number: null.
    let value = match found.get("value")? {
        Value::Null => f64::NAN,
        value => value.as_f64()?,
    };
    Some(figure(name, value, unit))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn figures_come_back_from_the_other_process() {
        let found = json!({"name": "after one message", "value": 1.0, "unit": "KiB"});
        let expected = figure("after one message", 1.0, "KiB");
        assert_eq!(figure_of(&found), Some(expected));
        assert_eq!(figure_of(&json!({"name": "x", "value": 1.0})), None);
        let unknown = figure_of(&json!({"name": "p99", "value": null, "unit": "µs"}));
        assert!(unknown.is_some_and(|figure| figure.value.is_nan()));
    }
}
