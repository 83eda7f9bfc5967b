//! Sizes and offsets of all public types, as the C compiler sees them in the committed headers.
//!
//! The compiler only translates to assembly, with each figure as text in it. So the 32-bit figures
//! need no 32-bit C library, and nothing has to run.

use std::collections::HashMap;
use std::process::Command;

use crate::Result;
use crate::compile::compile;
use crate::headers::{Header, Item, Kind};

/// One line of `layout.txt` asks for this: its key and the C expression.
struct Question {
    key: String,
    expression: String,
}

/// What goes before the includes, and what before the keys.
const DIALECTS: [(&str, &str); 2] = [("", ""), ("#define VIPL_CLAN_DIALECT\n", "clan:")];

/// The text of `headers/abi/layout.txt`.
pub(crate) fn text(headers: &[Header]) -> Result<String> {
    let mut text =
        "# Size of each public type and offset of each member, in bytes: name, LP64, ILP32.\n\
                    # `clan:` is before the names of what VIPL_CLAN_DIALECT makes different.\n\
                    # Written by `cargo xtask abi`; a change here breaks programs or plug-ins.\n"
            .to_owned();
    for (define, prefix) in DIALECTS {
        let questions = questions(headers, define, prefix);
        let (wide, narrow) = (
            ask(&questions, define, &[])?,
            ask(&questions, define, &["-m32"])?,
        );
        for Question { key, .. } in &questions {
            let (Some(wide), Some(narrow)) = (wide.get(key), narrow.get(key)) else {
                return Err(format!("the compiler did not tell {key}").into());
            };
            text.push_str(&format!("{key} {wide} {narrow}\n"));
        }
    }
    Ok(text)
}

fn questions(headers: &[Header], define: &str, prefix: &str) -> Vec<Question> {
    let asked = |item: &&Item| match &item.guard {
        None => define.is_empty(),
        Some(guard) => guard.contains('!') == define.is_empty(),
    };
    let mut questions = Vec::new();
    for item in headers
        .iter()
        .flat_map(|header| &header.items)
        .filter(asked)
    {
        if matches!(item.kind, Kind::Function(_)) {
            continue;
        }
        let name = &item.name;
        let expression = format!("sizeof({name})");
        questions.push(Question {
            key: format!("{prefix}{name}"),
            expression,
        });
        if let Kind::Record(_, members) = &item.kind {
            questions.extend(members.iter().map(|member| Question {
                key: format!("{prefix}{name}.{}", member.name()),
                expression: format!("offsetof({name}, {})", member.name()),
            }));
        }
    }
    questions
}

/// Asks the compiler; answers by key.
fn ask(questions: &[Question], define: &str, options: &[&str]) -> Result<HashMap<String, i64>> {
    let mut program = format!("{define}#include \"vipl_ext.h\"\n#include \"vipl_plugin.h\"\n");
    program.push_str("void layout(void);\nvoid layout(void) {\n");
    for Question { key, expression } in questions {
        program.push_str(&format!(
            "  __asm__ volatile(\".ascii \\\"layout %0 {key} \\\"\" : : \"i\"({expression}));\n"
        ));
    }
    program.push_str("}\n");
    let mut command = Command::new("gcc");
    command
        .args(["-xc", "-std=c99", "-ffreestanding", "-S", "-o", "-"])
        .args(options)
        .arg("-");
    let assembly = compile(&mut command, &program)?;
    let mut answers = HashMap::new();
    for line in assembly.lines() {
        let Some((_, rest)) = line.split_once("\"layout ") else {
            continue;
        };
        if let [figure, key, ..] = rest.split(' ').collect::<Vec<_>>()[..] {
            answers.insert(key.to_owned(), figure.trim_start_matches('$').parse()?);
        }
    }
    Ok(answers)
}

#[cfg(test)]
mod tests {
    use super::{Question, ask};
    use crate::workspace::have;

    /// One constant of each form that `headers/defines.rs` translates: C and Rust agree.
    #[test]
    fn constants_have_the_values_of_the_rust_sources() {
        if !have("gcc") {
            println!("SKIP gcc is not installed");
            return;
        }
        let expected = [
            (
                "VIP_STATUS_RESERVED",
                u64::from(vipl_abi::VIP_STATUS_RESERVED),
            ),
            ("VIP_SERVICE_DFC", u64::from(vipl_abi::VIP_SERVICE_DFC)),
            ("VIP_INFINITE", vipl_abi::VIP_INFINITE),
            (
                "VIP_DESCRIPTOR_ALIGNMENT",
                vipl_abi::VIP_DESCRIPTOR_ALIGNMENT as u64,
            ),
            ("VIPL_PTAG_NONE", u64::from(vipl_plugin_abi::VIPL_PTAG_NONE)),
            (
                "VIPL_E_INVALID",
                i64::from(vipl_plugin_abi::VIPL_E_INVALID) as u64,
            ),
            ("VIPL_PLUGIN_MAGIC", vipl_plugin_abi::VIPL_PLUGIN_MAGIC),
            (
                "VIPL_PLUGIN_FINGERPRINT",
                vipl_plugin_abi::VIPL_PLUGIN_FINGERPRINT,
            ),
        ];
        let questions = expected.map(|(name, _)| Question {
            key: name.to_owned(),
            expression: format!("(long){name}"),
        });
        let found = ask(&questions, "", &[]).expect("the compiler answers");
        for (name, value) in expected {
            assert_eq!(found[name] as u64, value, "{name}");
        }
    }
}
