//! A page of a headless browser, and its DevTools protocol. Commands and answers are JSON, each with a NUL behind it, and
//! travel over the browser's descriptors 3 and 4.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Result;
use crate::browser::Browser;

/// Seconds until the browser is ended, whatever it does.
const SECONDS: &str = "180";

/// A page.
pub(crate) struct Page {
    browser: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    /// The number of the last command.
    number: u64,
    session: Option<String>,
    _profile: TempDir,
}

impl Page {
    /// Starts a browser with an empty page of so many pixels.
    pub(crate) fn open(browser: &Browser, (width, height): (u32, u32)) -> Result<Page> {
        let profile = tempfile::tempdir()?;
        let mut child = Command::new("timeout")
            .args(["--kill-after=5", SECONDS, "sh", "-c"])
            .arg("exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null")
            .arg(browser.program())
            .args(["--headless", "--no-sandbox", "--disable-gpu"])
            .args(["--no-first-run", "--remote-debugging-pipe"])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(format!("--window-size={width},{height}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (commands, answers) = pipes.ok_or("no pipes")?;
        let mut page = Page {
            browser: child,
            commands,
            answers: BufReader::new(answers),
            number: 0,
            session: None,
            _profile: profile,
        };
        let target = page.call("Target.createTarget", json!({"url": "about:blank"}))?;
        let target = json!({"targetId": target["targetId"], "flatten": true});
        let attached = page.call("Target.attachToTarget", target)?;
        page.session = attached["sessionId"].as_str().map(str::to_owned);
        Ok(page)
    }

    /// Calls a method of the protocol; returns its result.
    pub(crate) fn call(&mut self, method: &str, parameters: Value) -> Result<Value> {
        self.number += 1;
        let mut command = json!({"id": self.number, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            command["sessionId"] = session.as_str().into();
        }
        self.commands.write_all(format!("{command}\0").as_bytes())?;
        loop {
            let mut answer = Vec::new();
            self.answers.read_until(0, &mut answer)?;
            if answer.pop().is_none() {
                return Err(format!("{method}: the browser has ended").into());
            }
            let mut answer: Value = serde_json::from_slice(&answer)?;
            // All others are events.
            if answer["id"] != self.number {
                continue;
            }
            if !answer["error"].is_null() {
                return Err(format!("{method}: {}", answer["error"]).into());
            }
            return Ok(answer["result"].take());
        }
    }

    /// Evaluates an expression in the page, waits for it if it is a promise, and returns its value.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Result<Value> {
        let parameters =
            json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", parameters)?;
        let exception = &answer["exceptionDetails"];
        if !exception.is_null() {
            return Err(format!("the browser says: {exception}").into());
        }
        Ok(answer["result"]["value"].take())
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.session = None;
        let _ = self.call("Browser.close", json!({}));
        let _ = self.browser.wait();
    }
}
