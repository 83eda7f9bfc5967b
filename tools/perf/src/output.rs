//! What is printed: results as text, JSON or CSV.

use serde_json::json;
use vipl_client::Library;
use vipl_tools::{Result, host, report};

use crate::bench::Measured;
use crate::cli::{Job, Options, conditions};
use crate::legend::legend;
use crate::picture::Pictures;
use crate::show;

/// Collects results and prints them in the form that was asked for.
pub(crate) struct Output {
    form: Form,
    head: serde_json::Value,
    results: Vec<Measured>,
    pending: Vec<Measured>,
    pictures: Option<Pictures>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Text,
    Json,
    Csv,
}

impl Output {
    pub(crate) fn new(options: &Options, vipl: &Library, job: &Job) -> Result<Self> {
        let form = match (options.json, options.csv) {
            (true, _) => Form::Json,
            (_, true) => Form::Csv,
            _ => Form::Text,
        };
        if form == Form::Text {
            let machine = host::lines(vipl);
            report::print(&format!("{machine}# {}\n", conditions(options, job)))?;
        }
        let head = json!({"machine": host::json(vipl), "device": options.device(),
            "conditions": conditions(options, job), "cpus": [job.cpus.0, job.cpus.1]});
        Ok(Self {
            form,
            head,
            results: Vec::new(),
            pending: Vec::new(),
            pictures: Pictures::new(options)?,
        })
    }

    pub(crate) fn add(&mut self, measured: Vec<Measured>) {
        self.pending.extend(measured);
    }

    /// A test is complete.
    pub(crate) fn flush(&mut self) -> Result<()> {
        if self.form == Form::Text {
            for of_device in self
                .pending
                .chunk_by(|one, other| one.device == other.device)
            {
                report::print(&format!("\n{}\n", show::table(of_device).trim_end()))?;
            }
        }
        self.results.append(&mut self.pending);
        Ok(())
    }

    pub(crate) fn finish(mut self) -> Result<()> {
        let results: Vec<_> = self.results.iter().map(Measured::to_json).collect();
        self.head["results"] = json!(results);
        if let Some(pictures) = &self.pictures {
            pictures.draw(&self.head)?;
        }
        match self.form {
            Form::Text => {
                let legend = legend(&self.head);
                let lines = legend
                    .iter()
                    .map(|line| report::wrapped(line, show::WIDTH, "# ", "#   "));
                let lines: String = lines.collect();
                let blank = if lines.is_empty() { "" } else { "\n" };
                report::print(&format!("{blank}{lines}"))
            }
            Form::Csv => report::print(&show::csv(&self.results)),
            Form::Json => report::print(&format!("{:#}\n", self.head)),
        }
    }
}
