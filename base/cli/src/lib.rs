//! What a program's command line tells about itself: help, its manual page, and completions for shells.
//!
//! A program reads its command line by [`output::parse`]. It flattens [`Generate`] into its options and calls [`Generate::print`] before it does anything else.

pub mod output;

use std::io;
use std::process::ExitCode;

use clap::{Args, CommandFactory, ValueEnum};
use clap_complete::Shell;

/// The option `--generate`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Generate {
    /// Print the manual page, or completions for a shell, and exit
    #[arg(long, value_name = "WHAT")]
    generate: Option<What>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Man,
    Bash,
    Fish,
    Zsh,
}

impl Generate {
    /// Prints what was asked for to the standard output; gives the program's exit code then. `section` is that of the
    /// manual page.
    pub fn print<Options: CommandFactory>(&self, section: u8) -> Option<ExitCode> {
        let text = text(self.generate?, Options::command(), section);
        Some(output::ended(text.and_then(|text| output::write(&text))))
    }
}

fn text(what: What, mut command: clap::Command, section: u8) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let shell = match what {
        What::Man => {
            clap_mangen::Man::new(command)
                .manual("VIPL Manual")
                .section(section.to_string())
                .render(&mut text)?;
            return Ok(text);
        }
        What::Bash => Shell::Bash,
        What::Fish => Shell::Fish,
        What::Zsh => Shell::Zsh,
    };
    let name = command.get_name().to_owned();
    clap_complete::generate(shell, &mut command, name, &mut text);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    /// Measures something.
    #[derive(Parser)]
    #[command(name = "measure", version)]
    struct Options {
        /// Bytes of a message
        #[arg(long)]
        size: Option<u32>,
        #[command(flatten)]
        generate: Generate,
    }

    #[test]
    fn everything_names_the_options() {
        for what in What::value_variants() {
            let text = text(*what, Options::command(), 1).unwrap();
            let text = String::from_utf8(text).unwrap();
            assert!(
                text.contains("size") && text.contains("measure"),
                "{what:?}"
            );
        }
    }

    #[test]
    fn nothing_is_printed_unasked() {
        let parse = |line: &str| Options::try_parse_from(line.split(' '));
        let asked = parse("measure --generate zsh").unwrap();
        assert_eq!(asked.generate.generate, Some(What::Zsh));
        assert!(parse("measure --generate csh").is_err());
        let plain = parse("measure --size 8").unwrap();
        assert_eq!(plain.size, Some(8));
        assert!(plain.generate.print::<Options>(1).is_none());
    }
}
