//! The last round: a layer on every node, and what is wanted of it to part files meanwhile.

use crate::compare::{Difference, Other, Outcome};
use crate::exchange::Crossing;
use crate::predict::{labels, normalize, probabilities};
use crate::round::{Layer, LayerInput, Rounds};
use crate::slice::TrainedModel;
use crate::{InferError, InferPlan};
use gnn::{Architecture, Dense, Head, SharedRows};
use schemas::{
    EmbeddingBatch, EmbeddingColumns, EmbeddingsWriter, IdType, Ids, Labels, NodeIdx, Output, Row,
};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of vectors in a row group; part of what decides the bytes of a file.
pub(crate) const GROUP_BYTES: usize = 16 << 20;

/// What is written, and where.
pub(crate) struct PartsWriter<'a> {
    pub(crate) rounds: &'a Rounds<'a>,
    pub(crate) output: &'a Output,
    pub(crate) rows_per_part: usize,
    pub(crate) columns: EmbeddingColumns,
    pub(crate) normalize: bool,
    /// The nodes that are written, ascending; none: all.
    pub(crate) targets: Option<Vec<NodeIdx>>,
    /// The rows that are written, where they are not those of the last layer.
    pub(crate) inner: Option<SharedRows>,
    /// What predictions are compared with, if they are.
    pub(crate) other: Option<Other<'a>>,
}

/// One block of the last round.
struct Piece {
    /// Place among the parts.
    part: usize,
    /// Place among the blocks of the part.
    block: usize,
    /// The own rows that are computed.
    rows: Range<usize>,
    /// Those of them that are written; none: all.
    picked: Option<Vec<usize>>,
}

/// A part on its way.
pub(crate) struct Part {
    pub(crate) index: usize,
    /// The own rows that are written.
    pub(crate) rows: Vec<Row>,
    /// Blocks that are computed; taken when all are.
    blocks: Mutex<Vec<Option<Computed>>>,
}

/// What one block came to.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Computed {
    /// A column of vectors each.
    pub(crate) vectors: Vec<Vec<f32>>,
    pub(crate) predicted: Labels,
}

/// What the last round has done in a process.
#[derive(Default)]
pub(crate) struct Written {
    /// Time that all threads together spent on writing.
    pub(crate) writing: Duration,
    pub(crate) difference: Difference,
    /// Rows that crossed between processes, where there are several.
    pub(crate) crossing: Option<Crossing>,
}

/// What one thread works with.
struct ThreadLayers<'a> {
    layer: Layer<'a>,
    other: Option<Layer<'a>>,
    head: Head<'a>,
}

impl PartsWriter<'_> {
    /// Computes the last layer and writes the parts that are not committed yet.
    ///
    /// Part `p` holds the nodes `p * rows_per_part..` in order of id, whatever the number of threads
    /// and processes.
    pub(crate) fn run(&self, input: &LayerInput) -> Result<Written, InferError> {
        if self.num_written() == 0 {
            return self.write_no_row();
        }
        match self.rounds.graph.cluster().num_processes() {
            1 => self.run_alone(input),
            _ => self.run_among(input),
        }
    }

    /// Writes one part without a row, so that readers find the columns.
    fn write_no_row(&self) -> Result<Written, InferError> {
        let is_first = self.rounds.graph.cluster().leads();
        if is_first && self.output.committed(0).is_none() {
            let id_type = self.columns.id_type;
            self.write(0, &[], |_| Ids::new(id_type), &[])?;
        }
        Ok(Written::default())
    }

    /// Does so alone: the thread that computes a part's last block writes the part, while the others
    /// go on.
    fn run_alone(&self, input: &LayerInput) -> Result<Written, InferError> {
        let writing = AtomicU64::new(0);
        let write = |part: &Part, blocks: Vec<Computed>| {
            if self.output.committed(part.index).is_some() {
                return Ok(());
            }
            let started = Instant::now();
            let graph = self.rounds.graph;
            let nodes: Vec<NodeIdx> = part.rows.iter().map(|&row| graph.node(row)).collect();
            self.write(
                part.index,
                &nodes,
                |rows| graph.ids(&part.rows[rows]),
                &blocks,
            )?;
            let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
            writing.fetch_add(micros, Ordering::Relaxed);
            Ok(())
        };
        let parts = self.parts(self.open_parts());
        let difference = self.compute_all(&parts, input, write)?;
        Ok(Written {
            writing: Duration::from_micros(writing.into_inner()),
            difference,
            crossing: None,
        })
    }

    /// Computes some parts; `done` gets each with all of its blocks when they are.
    pub(crate) fn compute_all(
        &self,
        parts: &[Part],
        input: &LayerInput,
        done: impl Fn(&Part, Vec<Computed>) -> Result<(), InferError> + Sync,
    ) -> Result<Difference, InferError> {
        let pieces = self.pieces(parts, input.layer);
        let model = &self.rounds.trained.model;
        let state = || ThreadLayers {
            layer: self.rounds.layer(input),
            other: self
                .other
                .as_ref()
                .map(|other| other.rounds.layer(&other.input)),
            head: model.head(),
        };
        let differences = Mutex::new(vec![Difference::default(); pieces.len()]);
        let work = |work: &mut ThreadLayers<'_>, at: usize| {
            let piece = &pieces[at];
            let (computed, difference) = self.compute(piece, work)?;
            differences.lock().unwrap_or_else(PoisonError::into_inner)[at] = difference;
            let part = &parts[piece.part];
            match part.add(piece.block, computed) {
                Some(blocks) => done(part, blocks),
                None => Ok(()),
            }
        };
        self.rounds.threads.run(pieces.len(), state, work)?;
        let mut difference = Difference::default();
        let differences = differences
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        differences.iter().for_each(|other| difference.add(other));
        Ok(difference)
    }

    /// Returns the number of nodes that are written.
    fn num_written(&self) -> usize {
        match &self.targets {
            Some(targets) => targets.len(),
            None => self.rounds.graph.num_nodes(),
        }
    }

    /// Lists the parts that are to be computed.
    pub(crate) fn open_parts(&self) -> Vec<usize> {
        let is_open = |index: &usize| {
            // A comparison takes in the nodes of all parts.
            self.other.is_some() || self.output.committed(*index).is_none()
        };
        let num_parts = self.num_written().div_ceil(self.rows_per_part);
        (0..num_parts).filter(is_open).collect()
    }

    /// Prepares parts, with the own rows of each.
    pub(crate) fn parts(&self, indices: Vec<usize>) -> Vec<Part> {
        let graph = self.rounds.graph;
        let part = |index: usize| {
            let start = index * self.rows_per_part;
            let places = start..(start + self.rows_per_part).min(self.num_written());
            let rows = match &self.targets {
                Some(targets) => {
                    let own = targets[places].iter().map(|&node| graph.own_row(node));
                    own.flatten().collect()
                }
                None => graph.own_rows(places).map(Row::from_index).collect(),
            };
            let blocks = Mutex::default();
            Part {
                index,
                rows,
                blocks,
            }
        };
        indices.into_iter().map(part).collect()
    }

    /// Cuts parts into blocks.
    fn pieces(&self, parts: &[Part], layer: usize) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        for (at, part) in parts.iter().enumerate() {
            let (Some(&from), Some(&to)) = (part.rows.first(), part.rows.last()) else {
                continue;
            };
            let first = pieces.len();
            for range in self.rounds.ranges_of(from.index()..to.index() + 1, layer) {
                let there = |end: usize| part.rows.partition_point(|&row| row.index() < end);
                let picked = &part.rows[there(range.start)..there(range.end)];
                if picked.is_empty() {
                    continue;
                }
                let places = picked.iter().map(|&row| row.index() - range.start);
                pieces.push(Piece {
                    part: at,
                    block: pieces.len() - first,
                    picked: (picked.len() < range.len()).then(|| places.collect()),
                    rows: range,
                });
            }
            let blocks = (first..pieces.len()).map(|_| None).collect();
            *part.blocks.lock().unwrap_or_else(PoisonError::into_inner) = blocks;
        }
        pieces
    }

    fn compute(
        &self,
        piece: &Piece,
        work: &ThreadLayers<'_>,
    ) -> Result<(Computed, Difference), InferError> {
        let pick = |rows: Dense| match &piece.picked {
            None => rows,
            Some(picked) => Dense {
                rows: picked.len(),
                cols: rows.cols,
                values: picked
                    .iter()
                    .flat_map(|&row| rows.row(row).to_vec())
                    .collect(),
            },
        };
        let rows = pick(work.layer.run(piece.rows.clone())?);
        let logits = self.logits(&rows, &work.head)?;
        let arch = self.rounds.trained.model.architecture();
        if let Some(known) = &logits {
            let place = |row: usize| piece.picked.as_ref().map_or(row, |picked| picked[row]);
            let own_row = |row| piece.rows.start + place(row);
            self.rounds.check_finite(known, arch.num_layers, own_row)?;
        }
        let predicted_of = |of_rows: &Option<Dense>| match of_rows {
            Some(known) => labels(known, arch),
            None => Labels::None,
        };
        let mut predicted = predicted_of(&logits);
        let mut difference = Difference::default();
        if let Some(other) = &work.other {
            let other_rows = pick(other.run(piece.rows.clone())?);
            let other_predicted = predicted_of(&self.logits(&other_rows, &work.head)?);
            let outcome = |of_nodes, classes| Outcome {
                rows: of_nodes,
                dim: arch.output_dim(self.rounds.slices.len()),
                predicted: classes,
            };
            difference = Difference::between(
                &outcome(&rows.values, &predicted),
                &outcome(&other_rows.values, &other_predicted),
            );
        }
        if self.columns.prediction.is_none() {
            predicted = Labels::None;
        }
        let embedding = match &self.inner {
            None => rows,
            Some(inner) => pick(Dense {
                rows: piece.rows.len(),
                cols: inner.cols(),
                values: inner.slice(piece.rows.clone()).values().to_vec(),
            }),
        };
        let vectors = vectors(
            &self.columns,
            embedding,
            logits.as_ref(),
            (arch, self.normalize),
        );
        let computed = Computed { vectors, predicted };
        Ok((computed, difference))
    }

    /// Computes logits, where anything reads them.
    fn logits(&self, rows: &Dense, head: &Head<'_>) -> Result<Option<Dense>, InferError> {
        let is_read = self.columns.prediction.is_some() || self.columns.vectors.len() > 1;
        if !is_read {
            return Ok(None);
        }
        Ok(Some(head.run(rows.clone())?))
    }

    /// Writes and commits a part of these nodes; `ids` returns the ids of some of them.
    pub(crate) fn write(
        &self,
        index: usize,
        nodes: &[NodeIdx],
        ids: impl Fn(Range<usize>) -> Ids,
        blocks: &[Computed],
    ) -> Result<(), InferError> {
        let mut writer = EmbeddingsWriter::create(self.output, index, &self.columns)?;
        let mut predicted = Labels::empty(self.columns.prediction.as_ref());
        blocks
            .iter()
            .for_each(|block| predicted.extend(&block.predicted));
        let widths = self.widths();
        let mut columns: Vec<Rest<'_>> = (0..widths.len())
            .map(|column| Rest::new(blocks, column))
            .collect();
        let row_bytes = 4 * widths.iter().sum::<usize>();
        let mut start = 0;
        for chunk in nodes.chunks((GROUP_BYTES / row_bytes).max(1)) {
            let end = start + chunk.len();
            let pairs = columns.iter_mut().zip(&widths);
            let vectors: Vec<Vec<f32>> = pairs
                .map(|(rest, width)| rest.take(chunk.len() * width))
                .collect();
            writer.write(EmbeddingBatch {
                ids: &ids(start..end),
                nodes: chunk,
                vectors: &vectors,
                prediction: &predicted.slice(start..end),
            })?;
            start = end;
        }
        let entry = writer.finish()?;
        Ok(self.output.commit_part(index, entry)?)
    }

    /// Returns the widths of the columns of vectors.
    pub(crate) fn widths(&self) -> Vec<usize> {
        let widths = self.columns.vectors.iter().map(|(_, width)| *width);
        widths.collect()
    }
}

impl Part {
    /// Keeps what a block came to; returns all of the part when it is the last one.
    fn add(&self, block: usize, computed: Computed) -> Option<Vec<Computed>> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks[block] = Some(computed);
        if blocks.iter().any(Option::is_none) {
            return None;
        }
        Some(std::mem::take(&mut *blocks).into_iter().flatten().collect())
    }
}

/// Returns the columns of vectors of some nodes, as they are written.
pub(crate) fn vectors(
    columns: &EmbeddingColumns,
    mut embedding: Dense,
    logits: Option<&Dense>,
    (arch, is_normalized): (&Architecture, bool),
) -> Vec<Vec<f32>> {
    if is_normalized {
        normalize(&mut embedding.values, embedding.cols);
    }
    let mut vectors = vec![embedding.values];
    for (name, _) in &columns.vectors[1..] {
        let logits = logits.expect("computed where they are written");
        vectors.push(match *name {
            "probability" => probabilities(logits, arch),
            _ => logits.values.clone(),
        });
    }
    vectors
}

/// Returns the columns to write.
pub(crate) fn embedding_columns(
    plan: &InferPlan,
    trained: &TrainedModel,
    id_type: IdType,
    embedding_layer: usize,
) -> Result<EmbeddingColumns, InferError> {
    let arch = trained.model.architecture();
    let mut vectors = vec![("embedding", arch.output_dim(embedding_layer))];
    for (is_wanted, name) in [(plan.logits, "logits"), (plan.probabilities, "probability")] {
        vectors.extend(is_wanted.then_some((name, arch.out_dim)));
    }
    let nodes = plan.nodes.as_ref().filter(|_| !plan.columns.is_empty());
    let passed = nodes
        .map(|nodes| nodes.read_passed(&plan.columns))
        .transpose()?;
    Ok(EmbeddingColumns {
        id_type,
        passed: passed.map(Arc::new),
        vectors,
        precision: plan.precision,
        prediction: plan.prediction.then(|| trained.prediction()),
    })
}

/// The numbers of a column of blocks that are still to be written.
struct Rest<'a> {
    blocks: std::slice::Iter<'a, Computed>,
    column: usize,
    values: &'a [f32],
}

impl<'a> Rest<'a> {
    fn new(blocks: &'a [Computed], column: usize) -> Self {
        Self {
            blocks: blocks.iter(),
            column,
            values: &[],
        }
    }

    /// Takes the next `len` numbers.
    fn take(&mut self, len: usize) -> Vec<f32> {
        let mut taken = Vec::with_capacity(len);
        while taken.len() < len {
            if self.values.is_empty() {
                let block = self.blocks.next();
                self.values = &block.expect("blocks cover the part").vectors[self.column];
            }
            let (now, later) = self
                .values
                .split_at(self.values.len().min(len - taken.len()));
            taken.extend_from_slice(now);
            self.values = later;
        }
        taken
    }
}
