//! Rewords the messages of the TOML reader.

use crate::hints;

/// Returns the words between backticks.
pub(super) fn quoted(message: &str) -> impl Iterator<Item = &str> {
    message.split('`').skip(1).step_by(2)
}

/// Keys of earlier versions, with their replacements.
const REMOVED: [(&str, &str); 3] = [
    (
        "train.launch",
        "`run --processes N` runs a job in several processes; without it a training is threads",
    ),
    (
        "train.worker_failure",
        "`run --processes N --restarts R` starts a job again that lost a process",
    ),
    (
        "train.timeout_ms",
        "processes that say nothing for 10 s count as lost",
    ),
];

/// The words for a number that is not negative.
const WHOLE: &str = "a whole number from 0";

/// Keys of whole numbers that cannot be 0.
const FROM_1: &[&str] = &[
    "batch_size",
    "embedding",
    "epochs",
    "heads",
    "hops",
    "hub_threshold",
    "layer",
    "layers",
    "max_values",
    "num_classes",
    "out_heads",
    "rows_per_part",
    "samples_per_target",
    "servers",
    "targets_per_part",
    "width",
    "workers",
];

/// The problem of a key.
pub(super) struct Problem {
    /// Key, problem, allowed values.
    pub(super) text: String,
    /// The allowed key most similar to an unknown one, if one is close.
    pub(super) nearest: Option<String>,
    /// Dotted name of a missing key.
    pub(super) missing: Option<String>,
}

/// Rewords a message: it names the key in full, the value found, the allowed values and the nearest
/// allowed name.
pub(super) fn describe(message: &str, key: Option<&str>) -> Problem {
    let plain = |text| Problem {
        text,
        nearest: None,
        missing: None,
    };
    if let Some(name) = message.strip_prefix("missing field ") {
        let name = name.trim_matches('`');
        let missing = key.map_or(name.to_owned(), |table| format!("{table}.{name}"));
        return Problem {
            missing: Some(missing.clone()),
            ..plain(format!("missing key `{missing}`"))
        };
    }
    let mut words = quoted(message);
    let what = message.split_once(" `").map(|(what, _)| what);
    match (what, words.next()) {
        (Some("unknown field"), Some(unknown)) => {
            let key = key.unwrap_or(unknown);
            if let Some((_, instead)) = REMOVED.iter().find(|(name, _)| *name == key) {
                return plain(format!("`{key}` is no key any more: {instead}"));
            }
            let (hint, nearest) = alternatives(unknown, words);
            let text = format!("unknown key `{key}`; {hint}");
            let parent = key.rsplit_once('.').map(|(parent, _)| parent);
            let nearest = nearest.map(|name| match parent {
                Some(parent) => format!("{parent}.{name}"),
                None => name.to_owned(),
            });
            Problem {
                nearest,
                ..plain(text)
            }
        }
        (Some("unknown variant"), Some(unknown)) => {
            let (hint, _) = alternatives(unknown, words);
            let key = key.unwrap_or("?");
            plain(format!("`{key}` cannot be `{unknown}`; {hint}"))
        }
        _ => plain(match (mismatch(message), key) {
            (Some((found, wanted)), Some(key)) => {
                let name = key.rsplit('.').next().unwrap_or(key);
                let wanted = match wanted == WHOLE && FROM_1.contains(&name) {
                    true => "a whole number from 1",
                    false => &wanted,
                };
                format!("`{key}` is {found}; allowed is {wanted}")
            }
            (_, Some(key)) => format!("`{key}`: {message}"),
            (_, None) => message.to_owned(),
        }),
    }
}

/// Returns the most similar allowed name, followed by all allowed names.
fn alternatives<'a>(
    written: &str,
    allowed: impl Iterator<Item = &'a str>,
) -> (String, Option<&'a str>) {
    let allowed: Vec<&str> = allowed.collect();
    let nearest = hints::meant(written, &allowed);
    let hint = match nearest {
        Some(name) => format!("did you mean `{name}`? "),
        None => String::new(),
    };
    (format!("{hint}allowed: {}", allowed.join(", ")), nearest)
}

/// Splits a message about a value of a wrong type into the value found and the type allowed.
fn mismatch(message: &str) -> Option<(String, String)> {
    let rest = message
        .strip_prefix("invalid type: ")
        .or_else(|| message.strip_prefix("invalid value: "))?;
    let (found, wanted) = rest.split_once(", expected ")?;
    let (kind, value) = match found.split_once(' ') {
        Some(("floating", point)) => ("number", point.trim_start_matches("point ")),
        Some((kind, value)) => (kind, value),
        None => (found, ""),
    };
    let value = value.trim_matches('`');
    let found = match kind {
        "string" => format!("the string {value}"),
        "integer" | "number" => format!("the number {value}"),
        "boolean" => value.to_owned(),
        "sequence" => "a list".to_owned(),
        "map" => "a table".to_owned(),
        _ => found.replace('`', ""),
    };
    let wanted = match wanted {
        "u64" | "u32" | "usize" => WHOLE.to_owned(),
        "i64" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        "a boolean" => "true or false".to_owned(),
        "a string" => "a string, in quotes".to_owned(),
        "path string" => "a path, in quotes".to_owned(),
        "a sequence" if kind == "string" => format!("a list, such as [{value}]"),
        "a sequence" => "a list".to_owned(),
        "a map" => "a table".to_owned(),
        "parsable string" => "a size, such as \"2GiB\"".to_owned(),
        _ if wanted.starts_with("struct ") => "a table".to_owned(),
        _ => wanted.to_owned(),
    };
    Some((found, wanted))
}
