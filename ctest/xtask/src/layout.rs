//! Sizes and offsets of all public types, as the C compiler sees them in the committed headers.
//!
//! The compiler only translates to assembly, with each figure as text in it. So the 32-bit figures
//! need no 32-bit C library, and nothing has to run.

use std::collections::HashMap;
use std::process::Command;

use crate::Result;
use crate::compile::compile;
use crate::headers::Header;

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

/// A type of a header.
struct Type<'a> {
    /// The `#if` line around it.
    guard: Option<&'a str>,
    name: &'a str,
    members: Vec<&'a str>,
}

/// The types that a header declares.
fn types(text: &str) -> Vec<Type<'_>> {
    let mut types = Vec::new();
    let mut guard = None;
    let mut lines = text.lines().map(str::trim_start);
    while let Some(line) = lines.next() {
        if line.starts_with("#if ") {
            guard = Some(line);
        } else if line == "#endif" {
            guard = None;
        } else if let Some(declared) = line.strip_prefix("typedef ") {
            let words: Vec<&str> = declared.split(' ').collect();
            let (name, members) = match words[..] {
                [keyword, name, "{"] => {
                    let members = lines.by_ref().take_while(|line| !line.starts_with('}'));
                    let is_record = keyword != "enum";
                    (
                        name,
                        members.filter_map(member).filter(|_| is_record).collect(),
                    )
                }
                _ => (last_word(declared.trim_end_matches(';')), Vec::new()),
            };
            types.push(Type {
                guard,
                name,
                members,
            });
        }
    }
    types
}

/// The member that a line declares: `T name;`, `T name[64];`, `T (*name)(…`. A further line of parameters has none.
fn member(line: &str) -> Option<&str> {
    let is_code = !line.starts_with(['/', '*']);
    let head = match line.split_once("(*") {
        Some((_, rest)) => rest.split(')').next()?,
        None => line
            .strip_suffix(';')
            .filter(|line| !line.ends_with(')'))?
            .split('[')
            .next()?,
    };
    is_code.then(|| last_word(head))
}

fn last_word(text: &str) -> &str {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    &text[text.rfind(|c| !is_word(c)).map_or(0, |at| at + 1)..]
}

fn questions(headers: &[Header], define: &str, prefix: &str) -> Vec<Question> {
    let asked = |one: &Type<'_>| match one.guard {
        None => define.is_empty(),
        Some(guard) => guard.contains('!') == define.is_empty(),
    };
    let mut questions = Vec::new();
    for Type { name, members, .. } in headers
        .iter()
        .flat_map(|header| types(&header.text))
        .filter(asked)
    {
        questions.push(Question {
            key: format!("{prefix}{name}"),
            expression: format!("sizeof({name})"),
        });
        questions.extend(members.iter().map(|member| Question {
            key: format!("{prefix}{name}.{member}"),
            expression: format!("offsetof({name}, {member})"),
        }));
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
    use super::{Question, ask, member};
    use crate::headers::constants::defines;
    use crate::workspace::{have, root};

    /// All constants of both headers: C and Rust have the same, with the same values.
    #[test]
    fn constants_have_the_values_of_the_rust_sources() {
        let read = |file: &str| std::fs::read_to_string(root().join(file)).expect("constants");
        let defined = read("base/abi/src/constants.h")
            + &defines(&read("base/abi/src/constants.rs")).expect("constants")
            + &read("base/plugin-abi/src/constants.h");
        let names = defined
            .lines()
            .filter_map(|line| line.strip_prefix("#define "));
        let mut names: Vec<&str> = names.filter_map(|line| line.split(' ').next()).collect();
        // Another spelling of an enumerator.
        names.retain(|name| *name != "VIP_ERROR");
        let values = [vipl_abi::CONSTANTS, vipl_plugin_abi::CONSTANTS].concat();
        let known: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, known);
        if !have("gcc") {
            println!("SKIP gcc is not installed");
            return;
        }
        let question = |name: &&str| Question {
            key: (*name).to_owned(),
            expression: format!("(long){name}"),
        };
        let questions: Vec<Question> = names.iter().map(question).collect();
        let found = ask(&questions, "", &[]).expect("the compiler answers");
        for (name, value) in values {
            assert_eq!(found[name], value, "{name}");
        }
    }

    #[test]
    fn members_of_each_form() {
        let lines = [
            "uint32_t size;",
            "VIP_CHAR Name[64];",
            "const struct x *regions;",
            "int (*poll)(const struct vipl_nic *nic,",
            "void (*raise)(int a);",
        ];
        assert_eq!(
            lines.map(member),
            ["size", "Name", "regions", "poll", "raise"].map(Some)
        );
        let others = ["/* A comment;", "* more;", "struct x *out);", "uint64_t a,"];
        assert_eq!(others.map(member), [None; 4]);
    }
}
