//! The embeddings of one type, as rows of an end, read part by part.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use gnn::{Dense, Scorer};
use rayon::prelude::*;
use schemas::{EmbeddingsDataset, Ids};

use crate::ScoreError;

/// An end of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Src,
    Dst,
}

/// The rows of the nodes of one type as one end of pairs, in the order of their ids.
pub(crate) struct EndRows<'a> {
    scorer: &'a Scorer,
    dataset: &'a EmbeddingsDataset,
    dir: PathBuf,
    end: End,
    /// Parts of the embeddings, and the first row of each, with the end of the last one.
    parts: Vec<usize>,
    starts: Vec<usize>,
    /// Parts that were read, up to some bytes; when they are more, all are dropped.
    cache: Mutex<BTreeMap<usize, Arc<EndPart>>>,
    cache_bytes: usize,
}

/// One part of the embeddings of a type.
pub(crate) struct EndPart {
    pub(crate) ids: Ids,
    /// The rows that the decoder joins.
    pub(crate) rows: Dense,
}

impl EndPart {
    fn bytes(&self) -> usize {
        self.ids.size_bytes() + 4 * self.rows.values.len()
    }
}

impl<'a> EndRows<'a> {
    /// Lists the parts of a type. Up to `cache_bytes` of them stay in memory.
    pub(crate) fn new(
        (scorer, dataset): (&'a Scorer, &'a EmbeddingsDataset),
        (dir, name): (PathBuf, &str),
        end: End,
        cache_bytes: usize,
    ) -> Self {
        let parts = dataset.parts_of(name);
        let mut starts = vec![0];
        for &part in &parts {
            let rows = usize::try_from(dataset.num_rows(part));
            starts.push(starts[starts.len() - 1] + rows.expect("nodes fit 32 bits"));
        }
        Self {
            scorer,
            dataset,
            dir,
            end,
            parts,
            starts,
            cache: Mutex::default(),
            cache_bytes,
        }
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.starts[self.parts.len()]
    }

    /// Returns the number of parts.
    pub(crate) fn num_parts(&self) -> usize {
        self.parts.len()
    }

    /// Returns the rows of a part.
    pub(crate) fn range(&self, part: usize) -> Range<usize> {
        self.starts[part]..self.starts[part + 1]
    }

    /// Returns a part, which is read unless it is in memory.
    pub(crate) fn part(&self, part: usize) -> Result<Arc<EndPart>, ScoreError> {
        let lock = || self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = lock().get(&part) {
            return Ok(Arc::clone(found));
        }
        let read = Arc::new(self.read(part)?);
        let mut cache = lock();
        let held: usize = cache.values().map(|of| of.bytes()).sum();
        if held + read.bytes() > self.cache_bytes {
            cache.clear();
        }
        cache.insert(part, Arc::clone(&read));
        Ok(read)
    }

    fn read(&self, part: usize) -> Result<EndPart, ScoreError> {
        let read = self.dataset.read_part(self.parts[part])?;
        let (rows, dim) = (read.ids.len(), self.scorer.dim());
        let wrong = |problem: String| {
            let dir = self.dir.clone();
            Err(ScoreError::Embeddings { dir, problem })
        };
        if rows > 0 && read.dim != dim {
            let found = read.dim;
            return wrong(format!(
                "are {found} wide; the decoder of the model joins {dim} numbers"
            ));
        }
        if rows != self.range(part).len() {
            let wanted = self.range(part).len();
            return wrong(format!(
                "have {rows} rows in a part, their manifest says {wanted}"
            ));
        }
        let embeddings = Dense {
            rows,
            cols: dim,
            values: read.embedding,
        };
        Ok(EndPart {
            ids: read.ids,
            rows: match self.end {
                End::Src => self.scorer.src_rows(&embeddings),
                End::Dst => self.scorer.dst_rows(&embeddings),
            },
        })
    }

    /// Returns the ids and the rows of a range.
    pub(crate) fn slice(&self, range: Range<usize>) -> Result<EndPart, ScoreError> {
        let cols = self.scorer.dim();
        let (mut ids, mut values) = (None, Vec::with_capacity(range.len() * cols));
        for part in self.parts_of(range.clone()) {
            let (of_part, read) = (self.range(part), self.part(part)?);
            let start = range.start.max(of_part.start) - of_part.start;
            let end = range.end.min(of_part.end) - of_part.start;
            let found = ids.get_or_insert_with(|| Ids::new(read.ids.id_type()));
            found.extend_from(&read.ids, start..end);
            values.extend_from_slice(&read.rows.values[start * cols..end * cols]);
        }
        let rows = range.len();
        Ok(EndPart {
            ids: ids.expect("a range has rows"),
            rows: Dense { rows, cols, values },
        })
    }

    /// Returns the parts that have rows of a range that is not empty.
    fn parts_of(&self, range: Range<usize>) -> Range<usize> {
        let first = self.starts.partition_point(|&start| start <= range.start) - 1;
        first..self.starts.partition_point(|&start| start < range.end)
    }

    /// Returns the rows at some ascending positions.
    pub(crate) fn gather(&self, positions: &[u32]) -> Result<Dense, ScoreError> {
        let cols = self.scorer.dim();
        let mut values = Vec::with_capacity(positions.len() * cols);
        let mut left = positions;
        while let Some(&first) = left.first() {
            let part = self
                .starts
                .partition_point(|&start| start <= first as usize)
                - 1;
            let (of_part, read) = (self.range(part), self.part(part)?);
            let here = left.partition_point(|&at| (at as usize) < of_part.end);
            for &at in &left[..here] {
                values.extend_from_slice(read.rows.row(at as usize - of_part.start));
            }
            left = &left[here..];
        }
        let rows = positions.len();
        Ok(Dense { rows, cols, values })
    }

    /// The error of a score of a node that is not a finite number.
    pub(crate) fn not_finite(&self, id: &str) -> ScoreError {
        ScoreError::Embeddings {
            dir: self.dir.clone(),
            problem: format!("give a score of node {id} that is not a finite number"),
        }
    }

    /// Returns all ids; none if there is no part.
    pub(crate) fn ids(&self) -> Result<Option<Ids>, ScoreError> {
        let mut ids: Option<Ids> = None;
        for part in 0..self.num_parts() {
            let read = self.part(part)?;
            let all = ids.get_or_insert_with(|| Ids::new(read.ids.id_type()));
            all.extend_from(&read.ids, 0..read.ids.len());
        }
        Ok(ids)
    }
}

/// Finds ids among ascending ids; an error has the position of the first one that is missing.
pub(crate) fn find(ids: &Ids, wanted: &Ids) -> Result<Vec<u32>, usize> {
    let found = (0..wanted.len()).into_par_iter().map(|at| {
        let (mut low, mut high) = (0, ids.len());
        while low < high {
            let middle = low.midpoint(high);
            match ids.cmp(middle, wanted, at) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => {
                    return Some(u32::try_from(middle).expect("nodes fit 32 bits"));
                }
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    });
    let found: Vec<Option<u32>> = found.collect();
    let missing = found.iter().position(Option::is_none);
    match missing {
        Some(at) => Err(at),
        None => Ok(found.into_iter().flatten().collect()),
    }
}
