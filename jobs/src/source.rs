//! The text of a job file, and the position of each key.

mod mend;
mod types;
mod wording;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use chrono::{DateTime, Utc};
use schemas::ErrorKind;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub(crate) use mend::Reading;
use wording::{describe, quoted};

use crate::error::{JobError, Mistake, chain};
use crate::variables::expand;

/// Greatest size of a job file in bytes.
const BYTES_MAX: u64 = 1 << 24;

/// A job file as text, and the changes of the command line; finds the position of every key.
#[derive(Debug)]
pub(crate) struct JobSource {
    path: PathBuf,
    text: String,
    sets: Vec<SetKey>,
    date: DateTime<Utc>,
}

/// Changes of a job file by the command line.
#[derive(Clone, Debug)]
pub(crate) struct Edits {
    /// Dotted keys and their values, as written.
    pub(crate) set: Vec<(String, String)>,
    /// The time of `${date:...}`.
    pub(crate) date: DateTime<Utc>,
}

/// A key that the command line sets. Its position is after the end of the file.
#[derive(Debug)]
struct SetKey {
    key: String,
    written: String,
    /// Position: the bytes of the file and of the keys that were set before.
    start: usize,
    /// `start` blanks, then the value as a TOML key: so errors of the value have positions from
    /// `start` on.
    text: String,
}

/// A key of the job file and its position.
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
    /// If the file cannot be read, is too large, or is no UTF-8 text.
    pub(crate) fn read(path: &Path, edits: &Edits) -> Result<JobSource, JobError> {
        let failed = |source| JobError::Read {
            path: path.to_owned(),
            source,
        };
        let refused = |problem: &str| JobError::Syntax {
            place: path.display().to_string(),
            problem: problem.to_owned(),
        };
        if std::fs::metadata(path).map_err(failed)?.len() > BYTES_MAX {
            return Err(refused("is larger than 16 MiB; a job file is a TOML text"));
        }
        let bytes = std::fs::read(path).map_err(failed)?;
        if bytes.starts_with(b"PAR1") {
            let problem = "is a Parquet table; a job file is a TOML text that names the tables to \
                           read, as in docs/job.md";
            return Err(refused(problem));
        }
        let text = String::from_utf8(bytes)
            .map_err(|_| refused("is not UTF-8 text; a job file is a TOML text"))?;
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

    /// Replaces the variables in the strings of a table by their values; a string with an invalid
    /// variable becomes empty.
    fn expand(&self, table: &mut DeTable<'_>, prefix: &str, failed: &mut Failed<'_>) {
        for (name, value) in table.iter_mut() {
            let key = dotted(prefix, name.get_ref());
            self.expand_value(value, &key, failed);
        }
    }

    fn expand_value(&self, value: &mut Spanned<DeValue<'_>>, key: &str, failed: &mut Failed<'_>) {
        let start = value.span().start;
        match value.get_mut() {
            DeValue::String(text) => {
                let env = |name: &str| std::env::var(name).ok();
                let expanded = expand(text, self.date, env);
                let expanded = expanded.unwrap_or_else(|problem| {
                    failed(start, key, &problem);
                    String::new()
                });
                *text = Cow::Owned(expanded);
            }
            DeValue::Array(items) => items
                .iter_mut()
                .for_each(|item| self.expand_value(item, key, failed)),
            DeValue::Table(inner) => self.expand(inner, key, failed),
            _ => {}
        }
    }

    /// Turns the error of a check into a mistake that names the file and the line of the key. None
    /// if the error names a key that was mended: that key is a mistake already.
    ///
    /// The key is the first quoted word of the error that is the dotted name of a key of the file.
    pub(crate) fn blame(&self, error: &JobError, reading: &Reading) -> Option<Mistake> {
        let text = chain(error);
        if quoted(&text).any(|word| reading.is_mended(word)) || reading.names_table(&text) {
            return None;
        }
        let places = self.places();
        let named = quoted(&text).find_map(|word| places.iter().find(|place| place.key == word));
        let (at, place) = match named {
            Some(place) => (place.name.start, self.place(place.name.start)),
            None => (usize::MAX, format!("job {}", self.path.display())),
        };
        Some(Mistake {
            at,
            line: format!("{place}: {text}"),
            kind: error.kind(),
        })
    }

    /// Returns the place of a byte: a line of the file, from 1, or an argument of the command line.
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

    fn mistake(&self, at: usize, problem: &str) -> Mistake {
        Mistake {
            at,
            line: format!("{}: {problem}", self.place(at)),
            kind: ErrorKind::Usage,
        }
    }

    /// Returns all keys with their positions; none if the file is not TOML.
    fn places(&self) -> Vec<Place> {
        let mut places = Vec::new();
        if let Ok(mut table) = DeTable::parse(&self.text) {
            for set in &self.sets {
                // Its errors are reported where it is set.
                set.insert_into(table.get_mut()).ok();
            }
            collect(table.get_ref(), "", &mut places);
        }
        places
    }
}

/// Receives position, key and problem of a string with an invalid variable.
type Failed<'a> = dyn FnMut(usize, &str, &str) + 'a;

impl SetKey {
    fn new(key: &str, value: &str, start: usize) -> Self {
        let blanks = " ".repeat(start);
        let mut text = format!("{blanks}v = {value}");
        // A value that is not TOML is a string without quotes.
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

    /// Sets the key in a table, in place of its value there.
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
                return Err(format!("`{outer}` is a key of the job file, not a table"));
            };
            table = inner;
        }
        let is_table = |of: &Spanned<DeValue<'_>>| of.get_ref().is_table();
        if table.get(name).is_some_and(is_table) && !is_table(&value) {
            let key = &self.key;
            return Err(format!(
                "`{key}` is a table of the job file; set its keys one by one, as in \
                 --set {key}.KEY=VALUE"
            ));
        }
        table.remove(name);
        table.insert(at(name), value);
        Ok(())
    }
}

/// Keys whose values are lists of tables, as `[[input.changes]]`.
const LISTS: [&str; 1] = ["input.changes"];

fn collect(table: &DeTable<'_>, prefix: &str, places: &mut Vec<Place>) {
    for (name, value) in table {
        let key = dotted(prefix, name.get_ref());
        places.push(Place {
            key: key.clone(),
            name: name.span(),
            value: Spanned::span(value),
        });
        match value.get_ref() {
            DeValue::Table(inner) => collect(inner, &key, places),
            DeValue::Array(items) if LISTS.contains(&&*key) => {
                let tables = items.iter().filter_map(|item| item.get_ref().as_table());
                tables.for_each(|inner| collect(inner, &key, places));
            }
            _ => {}
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
