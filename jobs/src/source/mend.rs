//! Reads a job file in spite of mistakes, so that all of them are told at once.

use serde::de::DeserializeOwned;
use std::collections::BTreeSet;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{JobSource, SetKey, collect, contains, describe};
use crate::error::Mistake;

/// Mistakes told at most.
const MISTAKES_MAX: usize = 100;

/// Where keys stand that a job file lacks: behind every byte of it.
const NOWHERE: usize = 1 << 48;

/// What reading a job file found wrong.
#[derive(Debug, Default)]
pub(crate) struct Reading {
    /// The mistakes, in the order in which they were found.
    pub(crate) mistakes: Vec<Mistake>,
    /// Keys that are not as they are written, or stand for missing ones; and keys that unknown ones
    /// were probably meant to be. Errors about them follow from a mistake that is told.
    mended: BTreeSet<String>,
}

/// A change of a job file without which its keys cannot be read.
#[derive(Debug, PartialEq)]
enum Mend {
    /// Leaves a key out.
    Remove(String),
    /// Puts in a key that is missing.
    Insert(String),
}

impl Reading {
    /// Tells whether an error about a key follows from a mistake that is told.
    pub(super) fn is_mended(&self, key: &str) -> bool {
        self.mended.iter().any(|mended| is_in(key, mended))
    }

    /// Tells whether an error names a table, as `[train]`, that was mended.
    pub(super) fn names_table(&self, error: &str) -> bool {
        self.mended
            .iter()
            .any(|mended| error.contains(&format!("[{mended}]")))
    }
}

/// Tells whether a key is another one, or one of its table.
fn is_in(key: &str, outer: &str) -> bool {
    let rest = key.strip_prefix(outer);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

impl JobSource {
    /// Reads the keys: those of the file, those of the command line in their place, and in strings
    /// what their variables stand for.
    ///
    /// With mistakes, what is read is the job without them, if that can be read at all: a key that
    /// cannot be read is left out, one that is missing stands for something.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> (Option<T>, Reading) {
        let mut reading = Reading::default();
        let (_, errors) = DeTable::parse_recoverable(&self.text);
        if !errors.is_empty() {
            for error in errors {
                let message = error.message().trim().replace('\n', ", ");
                let at = error.span().unwrap_or(0..0).start;
                reading.mistakes.push(self.mistake(at, &message));
            }
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

    /// The keys of the file, with those of the command line in their place, mended.
    ///
    /// Hands `failed` what is wrong with a key of the command line.
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
                Mend::Remove(key) => {
                    drop(find(table.get_mut(), key).map(|(of, name)| of.remove(name)))
                }
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

/// Finds the table that a key stands in, and its name there.
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

/// Something that can be read where a key is missing.
fn placeholder<'a>(key: &str) -> DeValue<'a> {
    let text = match key {
        "seed" | "flatten.hops" | "train.epochs" | "input.nodes.sparse.width" => "1",
        "flatten.fanouts" => "[1]",
        "input" | "input.nodes" | "input.edges" => "{}",
        "train.model" => "\"gcn\"",
        "train.schedule.kind" => "\"constant\"",
        _ if key.starts_with("input.nodes.split_values.") => "1",
        _ => "\"\"",
    };
    let value = DeValue::parse(text).expect("it is a constant");
    value.into_inner()
}
