//! Measurements that need processes of their own, which have never used the library before.

use std::process::{Command, Stdio};

use serde_json::Value;
use vipl_tools::{Error, Result};

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

    /// Runs it, and returns its first figure.
    pub(crate) fn first_figure(command: Command, test: &str) -> Result<f64> {
        let answer = Self::answer(command, test)?;
        let value = answer["results"][0]["figures"][0]["value"].as_f64();
        value.ok_or_else(|| Error::Peer(format!("{test} gave no figure")))
    }
}
