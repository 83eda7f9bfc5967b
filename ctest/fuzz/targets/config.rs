//! Settings: any file, any environment. No panic, no value outside its bounds, the environment wins, and
//! what cannot be used is told.
#![no_main]

use libfuzzer_sys::fuzz_target;
use vipl_core::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    // A NUL byte ends the file; then come variables, one a line.
    let (file, environment) = text.split_once('\0').unwrap_or((&text, ""));
    let variables: Vec<(String, String)> = environment
        .lines()
        .filter_map(|line| line.split_once('='))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    let seen = fuzzing::settings(file, &variables);
    for number in &seen.numbers {
        assert!(
            number.range.contains(&number.value),
            "{} is {}",
            number.name,
            number.value
        );
    }
    for (name, value) in &variables {
        // Of several with the same name the last one counts.
        let last = variables
            .iter()
            .rev()
            .find(|(other, _)| other.eq_ignore_ascii_case(name));
        let Some(setting) = name.strip_prefix("VIPL_").map(str::to_ascii_lowercase) else {
            continue;
        };
        let declared = seen.texts.iter().find(|(known, _, _)| *known == setting);
        if let (Some((_, text, source)), Some((_, expected))) = (declared, last) {
            assert_eq!((text, *source), (expected, "environment"), "{name}={value}");
        }
    }
    for (name, text, source) in &seen.texts {
        let prefix = format!("VIPL_{}", name.to_ascii_uppercase().replace('.', "_"));
        if *source == "environment" {
            let given = variables.iter().any(|(variable, _)| {
                let variable = variable.to_ascii_uppercase();
                variable == prefix
                    || name.split_once('.').is_some_and(|(_, key)| {
                        variable == format!("VIPL_{}", key.to_ascii_uppercase())
                    })
            });
            assert!(given, "{name} = {text:?} from nowhere");
        }
    }
    if seen.problems == 0 {
        // Every line was used: reading the same again gives the same.
        assert_eq!(seen, fuzzing::settings(file, &variables));
    }
});
