//! The text of a job file, and where in it a key stands.

use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::JobError;

/// A job file as text; knows the line of every key.
#[derive(Debug)]
pub(crate) struct JobSource {
    path: PathBuf,
    text: String,
}

/// A key of the job file and where it stands.
struct Place {
    /// Dotted name, such as `flatten.hops`.
    key: String,
    /// Bytes of the key itself.
    name: std::ops::Range<usize>,
    /// Bytes of its value.
    value: std::ops::Range<usize>,
}

impl JobSource {
    /// Reads a job file.
    ///
    /// # Errors
    ///
    /// If the file cannot be read as UTF-8 text.
    pub(crate) fn read(path: &Path) -> Result<JobSource, JobError> {
        let text = std::fs::read_to_string(path).map_err(|source| JobError::Read {
            path: path.to_owned(),
            source,
        })?;
        Ok(JobSource {
            path: path.to_owned(),
            text,
        })
    }

    /// Keeps text that did not come from a file, under a name for messages.
    #[cfg(test)]
    pub(crate) fn from_text(name: &str, text: &str) -> JobSource {
        JobSource {
            path: name.into(),
            text: text.to_owned(),
        }
    }

    /// The whole text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Names the file, and the line of the key that a message is about.
    ///
    /// The key is the first quoted word of the message that is the dotted name of a key that the
    /// file has.
    pub(crate) fn locate(&self, message: &str) -> String {
        let places = self.places();
        let line = quoted(message).find_map(|word| {
            let place = places.iter().find(|place| place.key == word)?;
            Some(self.line(place.name.start))
        });
        match line {
            Some(line) => format!("{}:{line}", self.path.display()),
            None => format!("job {}", self.path.display()),
        }
    }

    /// Turns an error of the TOML reader into one line that names line, key and what is allowed.
    pub(crate) fn explain(&self, error: &toml::de::Error) -> JobError {
        let span = error.span().unwrap_or(0..0);
        let line = self.line(span.start);
        let places = self.places();
        // A key missing at the top level has an empty span at the start of the file.
        let place = places
            .iter()
            .filter(|_| !span.is_empty())
            .filter(|place| contains(&place.name, &span) || contains(&place.value, &span))
            .min_by_key(|place| place.name.len() + place.value.len());
        let key = place.map(|place| place.key.clone());
        let message = error.message().trim().replace('\n', ", ");
        let problem = describe(&message, key.as_deref());
        JobError::Syntax {
            path: self.path.clone(),
            line,
            problem,
        }
    }

    /// The 1-based line of a byte.
    fn line(&self, byte: usize) -> usize {
        1 + self.text.bytes().take(byte).filter(|&b| b == b'\n').count()
    }

    /// Every key of the file; none where it is not TOML.
    fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        if let Ok(table) = DeTable::parse(&self.text) {
            collect(table.get_ref(), "", &mut places);
        }
        places
    }
}

fn collect(table: &DeTable<'_>, prefix: &str, places: &mut Vec<Place>) {
    for (name, value) in table {
        let key = match prefix {
            "" => name.get_ref().to_string(),
            _ => format!("{prefix}.{}", name.get_ref()),
        };
        places.push(Place {
            key: key.clone(),
            name: name.span(),
            value: Spanned::span(value),
        });
        if let DeValue::Table(inner) = value.get_ref() {
            collect(inner, &key, places);
        }
    }
}

fn contains(outer: &std::ops::Range<usize>, inner: &std::ops::Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// The words between backticks.
fn quoted(message: &str) -> impl Iterator<Item = &str> {
    message.split('`').skip(1).step_by(2)
}

/// Rewords serde's messages so that they name the key in full and offer the nearest allowed name.
fn describe(message: &str, key: Option<&str>) -> String {
    let mut words = quoted(message);
    let first = words.next();
    if let (Some(unknown), Some((what, _))) = (first, message.split_once(" `"))
        && let "unknown field" | "unknown variant" = what
    {
        let allowed: Vec<&str> = words.collect();
        let nearest = allowed
            .iter()
            .map(|name| (strsim::jaro_winkler(unknown, name), *name))
            .filter(|(likeness, _)| *likeness > 0.8)
            .max_by(|a, b| a.0.total_cmp(&b.0));
        let hint = match nearest {
            Some((_, name)) => format!("did you mean `{name}`? "),
            None => String::new(),
        };
        let allowed = allowed.join(", ");
        return match what {
            "unknown field" => {
                format!(
                    "unknown key `{}`; {hint}allowed: {allowed}",
                    key.unwrap_or(unknown)
                )
            }
            _ => format!(
                "`{}` cannot be `{unknown}`; {hint}allowed: {allowed}",
                key.unwrap_or("?")
            ),
        };
    }
    let message = ["u64", "u32", "usize"]
        .into_iter()
        .fold(message.to_owned(), |text, kind| {
            text.replace(
                &format!("expected {kind}"),
                "expected a whole number from 0",
            )
        });
    match (message.strip_prefix("missing field "), key) {
        (Some(field), Some(table)) => {
            format!("missing key `{table}.{}`", field.trim_matches('`'))
        }
        (Some(field), None) => format!("missing key {field}"),
        (None, Some(key)) => format!("`{key}`: {message}"),
        (None, None) => message,
    }
}
