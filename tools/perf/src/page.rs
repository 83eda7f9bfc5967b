//! `--report`: one file of HTML with the pictures and all figures.

use std::fmt::Write as _;

use serde_json::Value;
use vipl_tools::report::number;
use vipl_tools::size;

use crate::chart::escaped;
use crate::kept::{results, same, word};

/// Where the window is narrow, pictures and tables are moved sideways: smaller they are not legible.
const STYLE: &str = "
body { font-family: sans-serif; color: #222222; background: #ffffff; color-scheme: light; max-width: 62em; margin: 1em auto; padding: 0 1em }
p { margin: 0.3em 0 }
svg { display: block; width: 100%; min-width: 44em; height: auto }
.wide { overflow-x: auto }
table { border-collapse: collapse }
td, th { padding: 0.2em 0.8em; border-bottom: 1px solid #d8d8d8; text-align: right; white-space: nowrap }
td:first-child, th:first-child { text-align: left; position: sticky; left: 0; background: #ffffff }
@media (max-width: 40em) { td, th { padding: 0.2em 0.4em } }
";

/// A page of one file: the lines of its head, the charts, and every figure with that of the other run beside it.
pub(crate) fn page(run: &Value, other: Option<&Value>, head: &[String], picture: &str) -> String {
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width\"/>\n<title>vip_perf: {}</title>\n<style>{STYLE}</style>\n</head>\n\
         <body>\n<h1>vip_perf</h1>\n",
        escaped(word(run, "device"))
    );
    for line in head {
        let _ = writeln!(text, "<p>{}</p>", escaped(line));
    }
    let _ = write!(text, "<div class=\"wide\">\n{picture}</div>\n");
    text += "<h2>All figures</h2>\n<div class=\"wide\">\n<table>\n<tr><th>test</th><th>size</th><th>CPUs</th><th>figure</th><th>value</th>";
    text += if other.is_some() {
        "<th>other run</th><th>change</th></tr>\n"
    } else {
        "</tr>\n"
    };
    for result in results(run) {
        let bytes = result["bytes"]
            .as_u64()
            .map_or(String::new(), |bytes| size::show(bytes as usize));
        for (kind, list) in [("", "figures"), ("limit: ", "limits"), ("peer: ", "peers")] {
            for figure in result[list].as_array().into_iter().flatten() {
                let (name, unit) = (word(figure, "name"), word(figure, "unit"));
                let value = figure["value"].as_f64().unwrap_or(f64::NAN);
                let (test, place) = (word(result, "test"), word(result, "placement"));
                let unsteady = if result["unsteady"] == true {
                    ", unsteady"
                } else {
                    ""
                };
                let cells = [
                    &format!("{test}{unsteady}"),
                    &bytes,
                    place,
                    &format!("{kind}{name}"),
                    &format!("{} {unit}", number(value)),
                ]
                .map(escaped);
                let _ = write!(text, "<tr><td>{}</td>", cells.join("</td><td>"));
                if let Some(other) = other {
                    let before = same(other, result, list, name);
                    let cells = match before {
                        Some(before) if before > 0.0 => [
                            format!("{} {unit}", number(before)),
                            format!("{:+.1} %", 100.0 * (value / before - 1.0)),
                        ],
                        _ => ["-".to_owned(), String::new()],
                    };
                    let _ = write!(
                        text,
                        "<td>{}</td>",
                        cells.map(|cell| escaped(&cell)).join("</td><td>")
                    );
                }
                text += "</tr>\n";
            }
        }
    }
    text + "</table>\n</div>\n</body>\n</html>\n"
}
