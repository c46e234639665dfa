//! Reads a job file with mistakes, so that all of them are reported together.

use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::types::name_tables;
use super::{JobSource, SetKey, collect, contains, describe};
use crate::error::Mistake;

/// Greatest number of mistakes that are reported.
const MISTAKES_MAX: usize = 100;

/// What the parser says of a key that is set twice.
const DUPLICATE: &str = "duplicate key";

/// Position of keys that a job file lacks: after all its bytes.
const NOWHERE: usize = 1 << 48;

/// The mistakes that were found while a job file was read.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// The mistakes, in the order in which they were found.
    pub(crate) mistakes: Vec<Mistake>,
    /// Keys that were removed or inserted, and keys that were probably meant by unknown ones.
    /// Errors about them follow from a mistake that is reported.
    mended: BTreeSet<String>,
}

/// A change of a job file that makes its keys readable.
#[derive(Debug, PartialEq)]
enum Mend {
    /// Removes a key.
    Remove(String),
    /// Inserts a missing key.
    Insert(String),
}

impl Reading {
    /// Tells whether an error about a key follows from a mistake that is reported.
    pub(super) fn is_mended(&self, key: &str) -> bool {
        self.mended.iter().any(|mended| is_in(key, mended))
    }

    /// Tells whether an error names a mended table, such as `[train]`.
    pub(super) fn names_table(&self, error: &str) -> bool {
        self.mended
            .iter()
            .any(|mended| error.contains(&format!("[{mended}]")))
    }
}

/// Tells whether a key equals `outer`, or is a key of that table.
fn is_in(key: &str, outer: &str) -> bool {
    let rest = key.strip_prefix(outer);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl JobSource {
    /// Reads the keys of the file. Keys of the command line replace those of the file, and
    /// variables in strings are replaced by their values.
    ///
    /// If there are mistakes, the mended job is returned, if it can be read: keys that cannot be
    /// read are left out, and missing keys have placeholders.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> (Option<T>, Reading) {
        let mut reading = Reading::default();
        let (_, errors) = DeTable::parse_recoverable(&self.text);
        if !errors.is_empty() {
            let errors = errors.iter().map(|error| {
                let at = error.span().unwrap_or(0..0).start;
                (at, error.message().trim().replace('\n', ", "))
            });
            reading.mistakes = self.syntax_mistakes(errors.collect());
            return (None, reading);
        }
        let mut mends = Vec::new();
        let mut table = self.build(&mends, |set, problem| {
            reading.mistakes.push(self.mistake(set.start, &problem));
        });
        self.expand(table.get_mut(), "", &mut |at, key, problem| {
            let problem = format!("`{key}`: {problem}");
            reading.mistakes.push(self.mistake(at, &problem));
            reading.mended.insert(key.to_owned());
        });
        while reading.mistakes.len() < MISTAKES_MAX {
            let mut places = Vec::new();
            collect(table.get_ref(), "", &mut places);
            name_tables(table.get_mut());
            let error = match T::deserialize(toml::Deserializer::from(table)) {
                Ok(spec) => return (Some(spec), reading),
                Err(error) => error,
            };
            let span = error.span().unwrap_or(0..0);
            // A key missing at the top level has an empty span at the start of the file.
            let place = places
                .iter()
                .filter(|_| !span.is_empty())
                .filter(|place| contains(&place.name, &span) || contains(&place.value, &span))
                .min_by_key(|place| place.name.len() + place.value.len());
            let key = place.map(|place| place.key.as_str());
            let message = error.message().trim().replace('\n', ", ");
            let problem = describe(&message, key);
            let mend = match (&problem.missing, key) {
                (Some(missing), _) => Some(Mend::Insert(missing.clone())),
                (None, Some(key)) => Some(Mend::Remove(key.to_owned())),
                (None, None) => None,
            };
            let subject = problem.missing.as_deref().or(key);
            if !subject.is_some_and(|of| reading.is_mended(of)) {
                let mistake = self.mistake(span.start, &problem.text);
                reading.mistakes.push(mistake);
            }
            reading.mended.extend(subject.map(str::to_owned));
            reading.mended.extend(problem.nearest);
            match mend.filter(|mend| !mends.contains(mend)) {
                Some(mend) => mends.push(mend),
                None => return (None, reading),
            }
            table = self.build(&mends, |_, _| {});
            self.expand(table.get_mut(), "", &mut |_, _, _| {});
        }
        (None, reading)
    }

    /// Names the keys that are set twice. The parser reports every key below a table's second header
    /// too; these errors are left out.
    fn syntax_mistakes(&self, mut errors: Vec<(usize, String)>) -> Vec<Mistake> {
        errors.sort_by_key(|&(at, _)| at);
        let mut mistakes = Vec::new();
        let mut next_table = 0;
        for (at, message) in errors {
            if message != DUPLICATE {
                mistakes.push(self.mistake(at, &message));
                continue;
            }
            if at < next_table {
                continue;
            }
            let start = self.text[..at].rfind('\n').map_or(0, |end| end + 1);
            let rest = &self.text[start..];
            let line = rest.lines().next().unwrap_or_default().trim();
            let key = if line.starts_with('[') {
                next_table = start + table_len(rest);
                line.trim_matches(['[', ']'])
            } else {
                line.split('=').next().unwrap_or_default().trim()
            };
            mistakes.push(self.mistake(at, &format!("`{key}` is in the file twice")));
        }
        mistakes
    }

    /// Returns the mended keys of the file, replaced by those of the command line.
    ///
    /// Calls `failed` with each wrong key of the command line and its problem.
    fn build(
        &self,
        mends: &[Mend],
        mut failed: impl FnMut(&SetKey, String),
    ) -> Spanned<DeTable<'_>> {
        let mut table = DeTable::parse(&self.text).expect("it was parsed before");
        for set in &self.sets {
            if let Err(problem) = set.insert_into(table.get_mut()) {
                failed(set, problem);
            }
        }
        for (at, mend) in (NOWHERE..).step_by(2).zip(mends) {
            match mend {
                Mend::Remove(key) => remove(table.get_mut(), key),
                Mend::Insert(key) => {
                    if let Some((of, name)) = find(table.get_mut(), key) {
                        let name = Spanned::new(at..at + 1, name.to_owned().into());
                        of.insert(name, Spanned::new(at..at + 1, placeholder(key)));
                    }
                }
            }
        }
        table
    }
}

/// Returns the bytes of a table of a job file, from its header to the next one. Lines of a list that
/// goes on over several lines are no headers.
fn table_len(text: &str) -> usize {
    let (mut len, mut open) = (0, 0_usize);
    for (at, line) in text.split_inclusive('\n').enumerate() {
        if at > 0 && open == 0 && line.trim_start().starts_with('[') {
            break;
        }
        len += line.len();
        let mut quote = None;
        for c in line.chars() {
            match (quote, c) {
                (None, '#') => break,
                (None, '"' | '\'') => quote = Some(c),
                (Some(open_quote), _) if c == open_quote => quote = None,
                (None, '[') => open += 1,
                (None, ']') => open = open.saturating_sub(1),
                _ => {}
            }
        }
    }
    len
}

/// Removes a key; from a list of tables, of each of them.
fn remove(table: &mut DeTable<'_>, key: &str) {
    let Some((outer, rest)) = key.split_once('.') else {
        table.remove(key);
        return;
    };
    match table.get_mut(outer).map(Spanned::get_mut) {
        Some(DeValue::Table(inner)) => remove(inner, rest),
        Some(DeValue::Array(items)) => {
            for item in items.iter_mut() {
                if let DeValue::Table(inner) = item.get_mut() {
                    remove(inner, rest);
                }
            }
        }
        _ => {}
    }
}

/// Returns the table of a key, and the key's name in it.
fn find<'t, 'i, 'k>(
    table: &'t mut DeTable<'i>,
    key: &'k str,
) -> Option<(&'t mut DeTable<'i>, &'k str)> {
    let Some((outer, rest)) = key.split_once('.') else {
        return Some((table, key));
    };
    match table.get_mut(outer)?.get_mut() {
        DeValue::Table(inner) => find(inner, rest),
        _ => None,
    }
}

/// Tells whether a key of a node table holds a number.
fn is_number(key: &str) -> bool {
    key.ends_with(".sparse.width") || key.contains(".split_values.")
}

/// Returns a readable value for a missing key.
fn placeholder<'a>(key: &str) -> DeValue<'a> {
    let text = match key {
        "seed" | "flatten.hops" | "train.epochs" => "1",
        "flatten.fanouts" => "[1]",
        "input" | "input.nodes" | "input.edges" => "{}",
        "train.model" => "\"gcn\"",
        "train.schedule.kind" => "\"constant\"",
        _ if key.starts_with("input.nodes.") && is_number(key) => "1",
        _ => "\"\"",
    };
    let value = DeValue::parse(text).expect("it is a constant");
    value.into_inner()
}
