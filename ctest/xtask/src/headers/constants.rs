//! Constants of Rust as `#define` lines of C, with their comments.

use crate::Result;

/// The constants of a source that declares them by `constants!`. Empty lines separate groups, as they do there.
pub(crate) fn defines(source: &str) -> Result<String> {
    let (_, body) = source
        .split_once("constants! {\n")
        .ok_or("no constants are declared")?;
    let (body, _) = body.split_once("\n}").ok_or("constants! has no end")?;
    let mut out = String::new();
    let mut comment: Vec<&str> = Vec::new();
    for line in body.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            comment.push(text.trim());
        } else if line.is_empty() {
            out.push('\n');
        } else {
            let define = define(line).ok_or_else(|| format!("constants: {line:?}"))?;
            if !comment.is_empty() {
                out += &format!("/* {} */\n", comment.join("\n * "));
            }
            out += &format!("{define}\n");
            comment.clear();
        }
    }
    Ok(out)
}

/// `pub const NAME: TYPE = VALUE;`
fn define(line: &str) -> Option<String> {
    let (name, rest) = line.strip_prefix("pub const ")?.split_once(": ")?;
    let (kind, value) = rest.strip_suffix(';')?.split_once(" = ")?;
    let value = value.replace('_', "");
    let value = match (kind, value.as_str()) {
        ("VIP_ULONG", "VIPULONG::MAX") => "(~0UL)".to_owned(),
        ("VIP_ULONG", _) => format!("{value}UL"),
        ("VIP_UINT32", _) => format!("{value}u"),
        _ if value.contains(' ') => format!("({value})"),
        _ => value,
    };
    Some(format!("#define {name} {value}"))
}

#[cfg(test)]
mod tests {
    use super::defines;

    #[test]
    fn a_constant_is_a_define_with_its_comment() {
        let source = "constants! {\n    /// No\n    /// limit.\n    pub const A: VIP_ULONG = VIP_ULONG::MAX;\n\n    \
                      pub const B: VIP_UINT32 = 0x0000_0001;\n    pub const C: VIP_UINT16 = 1 << 14;\n}\n";
        let expected =
            "/* No\n * limit. */\n#define A (~0UL)\n\n#define B 0x00000001u\n#define C (1 << 14)\n";
        assert_eq!(defines(source).unwrap(), expected);
        assert!(defines("constants! {\n    pub static A: u8 = 1;\n}\n").is_err());
    }
}
