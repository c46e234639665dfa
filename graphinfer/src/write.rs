//! The last round: a layer on every node, and what is wanted of it to part files meanwhile.

use crate::checkpoint::RoundRows;
use crate::compare::{Difference, Other, Outcome};
use crate::predict::{labels, normalize, probabilities};
use crate::round::{Layer, Rounds};
use crate::slice::TrainedModel;
use crate::{InferError, InferPlan};
use gnn::{Architecture, Dense, Head, SharedRows};
use schemas::{EmbeddingBatch, EmbeddingColumns, EmbeddingsWriter, IdType, Labels, Output};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Bytes of vectors in a row group; part of what decides the bytes of a file.
pub(crate) const GROUP_BYTES: usize = 16 << 20;

/// What is written, and where.
pub(crate) struct Parts<'a> {
    pub(crate) rounds: &'a Rounds<'a>,
    pub(crate) output: &'a Output,
    pub(crate) rows_per_part: usize,
    pub(crate) columns: EmbeddingColumns,
    pub(crate) normalize: bool,
    /// The nodes that are written, ascending; none: all.
    pub(crate) targets: Option<Vec<u32>>,
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
    nodes: Range<usize>,
    /// Rows of the block that are written; none: all.
    picked: Option<Vec<usize>>,
}

/// A part on its way.
struct Part {
    index: usize,
    /// The nodes that are written.
    nodes: Vec<u32>,
    /// Blocks that are computed; taken when all are.
    blocks: Mutex<Vec<Option<Computed>>>,
}

/// What one block came to.
struct Computed {
    /// A column of vectors each.
    vectors: Vec<Vec<f32>>,
    predicted: Labels,
}

/// What one thread works with.
struct Work<'a> {
    layer: Layer<'a>,
    other: Option<Layer<'a>>,
    head: Head<'a>,
}

impl Parts<'_> {
    /// Computes the last layer and writes the parts that are not committed yet.
    ///
    /// Part `p` holds the nodes `p * rows_per_part..` in order of id, whatever the number of threads.
    /// The thread that computes a part's last block writes the part, while the others go on. Returns
    /// the time that all threads together spent on writing.
    pub(crate) fn run(
        &self,
        layer: usize,
        before: &RoundRows,
    ) -> Result<(Duration, Difference), InferError> {
        let (parts, pieces) = self.plan(layer);
        let model = &self.rounds.trained.model;
        let state = || Work {
            layer: self.rounds.layer(layer, before),
            other: self
                .other
                .as_ref()
                .map(|other| other.rounds.layer(layer, &other.before)),
            head: model.head(),
        };
        let writing = AtomicU64::new(0);
        let differences = Mutex::new(vec![Difference::default(); pieces.len()]);
        let work = |work: &mut Work<'_>, at: usize| {
            let piece = &pieces[at];
            let (computed, difference) = self.compute(piece, work)?;
            differences.lock().unwrap_or_else(PoisonError::into_inner)[at] = difference;
            let part = &parts[piece.part];
            if let Some(blocks) = part.add(piece.block, computed)
                && self.output.committed(part.index).is_none()
            {
                let started = Instant::now();
                self.write(part, &blocks)?;
                let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
                writing.fetch_add(micros, Ordering::Relaxed);
            }
            Ok(())
        };
        self.rounds.threads.run(pieces.len(), state, work)?;
        let mut difference = Difference::default();
        let differences = differences
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        differences.iter().for_each(|other| difference.add(other));
        Ok((Duration::from_micros(writing.into_inner()), difference))
    }

    /// Lists the parts that are to be computed, and their blocks.
    fn plan(&self, layer: usize) -> (Vec<Part>, Vec<Piece>) {
        let num_rows = match &self.targets {
            Some(targets) => targets.len(),
            None => self.rounds.graph.num_nodes(),
        };
        let is_open = |index: &usize| {
            // A comparison takes in the nodes of all parts.
            self.other.is_some() || self.output.committed(*index).is_none()
        };
        let (mut parts, mut pieces) = (Vec::new(), Vec::new());
        for index in (0..num_rows.div_ceil(self.rows_per_part)).filter(is_open) {
            let start = index * self.rows_per_part;
            let rows = start..(start + self.rows_per_part).min(num_rows);
            let nodes: Vec<u32> = match &self.targets {
                Some(targets) => targets[rows].to_vec(),
                None => rows
                    .map(|node| u32::try_from(node).expect("nodes fit 32 bits"))
                    .collect(),
            };
            let first = pieces.len();
            let (from, to) = (nodes[0] as usize, nodes[nodes.len() - 1] as usize + 1);
            for range in self.rounds.ranges_of(from..to, layer) {
                let there = |end: usize| nodes.partition_point(|&node| (node as usize) < end);
                let picked = &nodes[there(range.start)..there(range.end)];
                if picked.is_empty() {
                    continue;
                }
                let places = picked.iter().map(|&node| node as usize - range.start);
                pieces.push(Piece {
                    part: parts.len(),
                    block: pieces.len() - first,
                    picked: (picked.len() < range.len()).then(|| places.collect()),
                    nodes: range,
                });
            }
            let blocks = (first..pieces.len()).map(|_| None).collect();
            parts.push(Part {
                index,
                nodes,
                blocks: Mutex::new(blocks),
            });
        }
        (parts, pieces)
    }

    fn compute(
        &self,
        piece: &Piece,
        work: &Work<'_>,
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
        let rows = pick(work.layer.run(piece.nodes.clone())?);
        let logits = self.logits(&rows, &work.head)?;
        let arch = self.rounds.trained.model.architecture();
        if let Some(known) = &logits {
            let place = |row: usize| piece.picked.as_ref().map_or(row, |picked| picked[row]);
            let node = |row| piece.nodes.start + place(row);
            self.rounds.check_finite(known, arch.num_layers, node)?;
        }
        let predicted_of = |of_rows: &Option<Dense>| match of_rows {
            Some(known) => labels(known, arch),
            None => Labels::None,
        };
        let mut predicted = predicted_of(&logits);
        let mut difference = Difference::default();
        if let Some(other) = &work.other {
            let other_rows = pick(other.run(piece.nodes.clone())?);
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
                rows: piece.nodes.len(),
                cols: inner.cols(),
                values: inner.slice(piece.nodes.clone()).values().to_vec(),
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

    /// Writes and commits a part.
    fn write(&self, part: &Part, blocks: &[Computed]) -> Result<(), InferError> {
        let graph = self.rounds.graph;
        let mut writer = EmbeddingsWriter::create(self.output, part.index, &self.columns)?;
        let mut predicted = Labels::empty(self.columns.prediction.as_ref());
        blocks
            .iter()
            .for_each(|block| predicted.extend(&block.predicted));
        let widths: Vec<usize> = self
            .columns
            .vectors
            .iter()
            .map(|(_, width)| *width)
            .collect();
        let mut columns: Vec<Rest<'_>> = (0..widths.len())
            .map(|column| Rest::new(blocks, column))
            .collect();
        let row_bytes = 4 * widths.iter().sum::<usize>();
        let mut start = 0;
        for nodes in part.nodes.chunks((GROUP_BYTES / row_bytes).max(1)) {
            let end = start + nodes.len();
            let pairs = columns.iter_mut().zip(&widths);
            let vectors: Vec<Vec<f32>> = pairs
                .map(|(rest, width)| rest.take(nodes.len() * width))
                .collect();
            writer.write(EmbeddingBatch {
                ids: &graph.ids(nodes),
                nodes,
                vectors: &vectors,
                prediction: &predicted.slice(start..end),
            })?;
            start = end;
        }
        let entry = writer.finish()?;
        Ok(self.output.commit_part(part.index, entry)?)
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
