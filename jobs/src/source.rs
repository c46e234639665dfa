//! The text of a job file, and where in it a key stands.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::JobError;
use crate::hints;
use crate::variables::expand;

/// A job file as text, and what the command line changes of it; knows where every key stands.
#[derive(Debug)]
pub(crate) struct JobSource {
    path: PathBuf,
    text: String,
    sets: Vec<SetKey>,
    date: DateTime<Utc>,
}

/// What the command line changes of a job file.
#[derive(Clone, Debug)]
pub(crate) struct Edits {
    /// Dotted keys and their values, as written.
    pub(crate) set: Vec<(String, String)>,
    /// What `${date:...}` means.
    pub(crate) date: DateTime<Utc>,
}

/// A key that the command line sets, as if it stood in the file behind its end.
#[derive(Debug)]
struct SetKey {
    key: String,
    written: String,
    /// Bytes of the file and what else stands before.
    start: usize,
    /// So many blanks, and then the value as a key of its own: what is read from there has its place.
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
    pub(crate) fn read(path: &Path, edits: &Edits) -> Result<JobSource, JobError> {
        let text = std::fs::read_to_string(path).map_err(|source| JobError::Read {
            path: path.to_owned(),
            source,
        })?;
        Ok(JobSource::new(path, text, edits))
    }

    pub(crate) fn new(path: &Path, text: String, edits: &Edits) -> JobSource {
        let mut start = text.len() + 1;
        let mut sets = Vec::with_capacity(edits.set.len());
        for (key, value) in &edits.set {
            let set = SetKey::new(key, value, start);
            start = set.text.len() + 1;
            sets.push(set);
        }
        JobSource {
            path: path.to_owned(),
            text,
            sets,
            date: edits.date,
        }
    }

    /// Reads the keys: those of the file, those of the command line in their place, and in strings
    /// what their variables stand for.
    ///
    /// # Errors
    ///
    /// Names line and key, and what is allowed.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Result<T, JobError> {
        let mut table = DeTable::parse(&self.text).map_err(|e| self.explain(&e))?;
        for set in &self.sets {
            let failed = |problem| JobError::Syntax {
                place: self.place(set.start),
                problem,
            };
            set.insert_into(table.get_mut()).map_err(failed)?;
        }
        self.expand(table.get_mut(), "")?;
        T::deserialize(toml::Deserializer::from(table)).map_err(|e| self.explain(&e))
    }

    /// Puts in what the variables in the strings of a table stand for.
    fn expand(&self, table: &mut DeTable<'_>, prefix: &str) -> Result<(), JobError> {
        for (name, value) in table.iter_mut() {
            let key = dotted(prefix, name.get_ref());
            self.expand_value(value, &key)?;
        }
        Ok(())
    }

    fn expand_value(&self, value: &mut Spanned<DeValue<'_>>, key: &str) -> Result<(), JobError> {
        let start = value.span().start;
        match value.get_mut() {
            DeValue::String(text) => {
                let env = |name: &str| std::env::var(name).ok();
                let expanded = expand(text, self.date, env);
                *text = Cow::Owned(expanded.map_err(|problem| JobError::Syntax {
                    place: self.place(start),
                    problem: format!("`{key}`: {problem}"),
                })?);
                Ok(())
            }
            DeValue::Array(items) => items
                .iter_mut()
                .try_for_each(|item| self.expand_value(item, key)),
            DeValue::Table(inner) => self.expand(inner, key),
            _ => Ok(()),
        }
    }

    /// Names the file, and the line of the key that a message is about.
    ///
    /// The key is the first quoted word of the message that is the dotted name of a key that the
    /// file has.
    pub(crate) fn locate(&self, message: &str) -> String {
        let places = self.places();
        let named = quoted(message).find_map(|word| {
            let place = places.iter().find(|place| place.key == word)?;
            Some(self.place(place.name.start))
        });
        named.unwrap_or_else(|| format!("job {}", self.path.display()))
    }

    /// Turns an error of the TOML reader into one line that names line, key and what is allowed.
    pub(crate) fn explain(&self, error: &toml::de::Error) -> JobError {
        let span = error.span().unwrap_or(0..0);
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
            place: self.place(span.start),
            problem,
        }
    }

    /// Names where a byte stands: in a line of the file, from 1, or on the command line.
    fn place(&self, byte: usize) -> String {
        let sets = self.sets.iter().take_while(|set| set.start <= byte);
        match sets.last().filter(|_| byte > 0) {
            Some(set) => format!("--set {}", set.written),
            None => {
                let before = self.text.bytes().take(byte);
                let line = 1 + before.filter(|&b| b == b'\n').count();
                format!("{}:{line}", self.path.display())
            }
        }
    }

    /// Every key; none where the file is not TOML.
    fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        if let Ok(mut table) = DeTable::parse(&self.text) {
            for set in &self.sets {
                // What is wrong with it is told where it is set.
                set.insert_into(table.get_mut()).ok();
            }
            collect(table.get_ref(), "", &mut places);
        }
        places
    }
}

impl SetKey {
    fn new(key: &str, value: &str, start: usize) -> Self {
        let blanks = " ".repeat(start);
        let mut text = format!("{blanks}v = {value}");
        // What is no TOML value is a string without its quotes.
        if !DeTable::parse(&text).is_ok_and(|table| table.get_ref().len() == 1) {
            let quoted = toml::Value::String(value.to_owned());
            text = format!("{blanks}v = {quoted}");
        }
        Self {
            key: key.to_owned(),
            written: format!("{key}={value}"),
            start,
            text,
        }
    }

    /// Sets the key in a table, in place of what stands there.
    fn insert_into<'a>(&'a self, mut table: &mut DeTable<'a>) -> Result<(), String> {
        let at = |name: &str| Spanned::new(self.start..self.start + 1, Cow::Owned(name.to_owned()));
        let value = DeTable::parse(&self.text).ok();
        let value = value.and_then(|parsed| parsed.into_inner().remove("v"));
        let value = value.ok_or("is no value")?;
        let (tables, name) = self.key.rsplit_once('.').unwrap_or(("", &self.key));
        for outer in tables.split('.').filter(|outer| !outer.is_empty()) {
            let missing = || Spanned::new(value.span(), DeValue::Table(DeTable::new()));
            let inner = table.entry(at(outer)).or_insert_with(missing);
            let DeValue::Table(inner) = inner.get_mut() else {
                return Err(format!("`{outer}` is no table of the job file"));
            };
            table = inner;
        }
        table.remove(name);
        table.insert(at(name), value);
        Ok(())
    }
}

fn collect(table: &DeTable<'_>, prefix: &str, places: &mut Vec<Place>) {
    for (name, value) in table {
        let key = dotted(prefix, name.get_ref());
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

fn dotted(prefix: &str, name: &str) -> String {
    match prefix {
        "" => name.to_owned(),
        _ => format!("{prefix}.{name}"),
    }
}

fn contains(outer: &std::ops::Range<usize>, inner: &std::ops::Range<usize>) -> bool {
    outer.start <= inner.start && inner.end <= outer.end
}

/// The words between backticks.
fn quoted(message: &str) -> impl Iterator<Item = &str> {
    message.split('`').skip(1).step_by(2)
}

/// Keys that were allowed once, with what takes their place.
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

/// Rewords serde's messages so that they name the key in full and offer the nearest allowed name.
fn describe(message: &str, key: Option<&str>) -> String {
    let mut words = quoted(message);
    let first = words.next();
    if let (Some(unknown), Some((what, _))) = (first, message.split_once(" `"))
        && let "unknown field" | "unknown variant" = what
    {
        let removed = REMOVED.iter().find(|(name, _)| Some(*name) == key);
        if let Some((name, instead)) = removed {
            return format!("`{name}` is no key any more: {instead}");
        }
        let allowed: Vec<&str> = words.collect();
        let hint = match hints::meant(unknown, &allowed) {
            Some(name) => format!("did you mean `{name}`? "),
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
