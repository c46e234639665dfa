//! The last round: a layer on every node, and its embeddings and predictions to part files meanwhile.

use crate::InferError;
use crate::checkpoint::RoundRows;
use crate::predict::labels;
use crate::round::{Layer, Rounds};
use gnn::{Head, SharedRows};
use schemas::{EmbeddingsWriter, LabelMeta, Labels, Output};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

/// Bytes of embeddings in a row group; part of what decides the bytes of a file.
const GROUP_BYTES: usize = 16 << 20;

/// What is written, and where.
pub(crate) struct Parts<'a> {
    pub(crate) rounds: &'a Rounds<'a>,
    pub(crate) output: &'a Output,
    pub(crate) rows_per_part: usize,
    /// How predictions are written, where they are.
    pub(crate) prediction: Option<LabelMeta>,
    /// The rows that are written, where they are not those of the last layer.
    pub(crate) inner: Option<SharedRows>,
}

/// One block of the last round.
struct Piece {
    /// Place among the parts that are to be written.
    part: usize,
    /// Place among the blocks of the part.
    block: usize,
    nodes: Range<usize>,
}

/// A part on its way.
struct Part {
    index: usize,
    nodes: Range<usize>,
    /// Blocks that are computed; taken when all are.
    blocks: Mutex<Vec<Option<Computed>>>,
}

/// What one block came to.
struct Computed {
    /// `[num_nodes * dim]`; empty where an inner layer's rows are written.
    embedding: Vec<f32>,
    predicted: Labels,
}

impl Parts<'_> {
    /// Computes the last layer and writes the parts that are not committed yet.
    ///
    /// Part `p` holds the nodes `p * rows_per_part..` in order of id, whatever the number of threads.
    /// The thread that computes a part's last block writes the part, while the others go on.
    pub(crate) fn run(&self, layer: usize, before: &RoundRows) -> Result<(), InferError> {
        let (parts, pieces) = self.plan(layer);
        let model = &self.rounds.trained.model;
        let state = || (self.rounds.layer(layer, before), model.head());
        self.rounds
            .threads
            .run(pieces.len(), state, |(conv, head), at| {
                let piece = &pieces[at];
                let computed = self.compute(piece, conv, head)?;
                match parts[piece.part].add(piece.block, computed) {
                    Some(blocks) => self.write(&parts[piece.part], &blocks),
                    None => Ok(()),
                }
            })
    }

    /// Lists the parts that are to be written, and their blocks.
    fn plan(&self, layer: usize) -> (Vec<Part>, Vec<Piece>) {
        let graph = self.rounds.graph;
        let num_parts = graph.num_nodes().div_ceil(self.rows_per_part);
        let open = (0..num_parts).filter(|&index| self.output.committed(index).is_none());
        let (mut parts, mut pieces) = (Vec::new(), Vec::new());
        for index in open {
            let start = index * self.rows_per_part;
            let nodes = start..(start + self.rows_per_part).min(graph.num_nodes());
            let ranges = self.rounds.ranges_of(nodes.clone(), layer);
            let blocks = Mutex::new(ranges.iter().map(|_| None).collect());
            let part = parts.len();
            let numbered = ranges.into_iter().enumerate();
            pieces.extend(numbered.map(|(block, nodes)| Piece { part, block, nodes }));
            parts.push(Part {
                index,
                nodes,
                blocks,
            });
        }
        (parts, pieces)
    }

    fn compute(
        &self,
        piece: &Piece,
        conv: &Layer<'_>,
        head: &Head<'_>,
    ) -> Result<Computed, InferError> {
        let rows = conv.run(piece.nodes.clone())?;
        let arch = self.rounds.trained.model.architecture();
        let (embedding, predicted) = match (&self.prediction, &self.inner) {
            (None, None) => (rows.values, Labels::None),
            (None, Some(_)) => (Vec::new(), Labels::None),
            (Some(_), None) => (rows.values.clone(), labels(&head.run(rows)?, arch)),
            (Some(_), Some(_)) => (Vec::new(), labels(&head.run(rows)?, arch)),
        };
        Ok(Computed {
            embedding,
            predicted,
        })
    }

    /// Writes and commits a part.
    fn write(&self, part: &Part, blocks: &[Computed]) -> Result<(), InferError> {
        let graph = self.rounds.graph;
        let id_type = graph.store().meta().graph.id_type;
        let label = self.prediction.as_ref();
        let arch = self.rounds.trained.model.architecture();
        let dim = match &self.inner {
            Some(rows) => rows.cols(),
            None => arch.output_dim(self.rounds.slices.len()),
        };
        let mut writer = EmbeddingsWriter::create(self.output, part.index, id_type, dim, label)?;
        let mut predicted = Labels::empty(label);
        blocks
            .iter()
            .for_each(|block| predicted.extend(&block.predicted));
        let mut rest = Rest::new(blocks);
        let group_rows = (GROUP_BYTES / (4 * dim)).max(1);
        for start in part.nodes.clone().step_by(group_rows) {
            let nodes = start..(start + group_rows).min(part.nodes.end);
            let gathered;
            let values = match &self.inner {
                Some(rows) => &rows.values()[nodes.start * dim..nodes.end * dim],
                None => {
                    gathered = rest.take(nodes.len() * dim);
                    &gathered[..]
                }
            };
            let rows = nodes.start - part.nodes.start..nodes.end - part.nodes.start;
            writer.write(&graph.ids(nodes), values, &predicted.slice(rows))?;
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

/// The numbers of blocks that are still to be written.
struct Rest<'a> {
    blocks: std::slice::Iter<'a, Computed>,
    values: &'a [f32],
}

impl<'a> Rest<'a> {
    fn new(blocks: &'a [Computed]) -> Self {
        Self {
            blocks: blocks.iter(),
            values: &[],
        }
    }

    /// Takes the next `len` numbers.
    fn take(&mut self, len: usize) -> Vec<f32> {
        let mut taken = Vec::with_capacity(len);
        while taken.len() < len {
            if self.values.is_empty() {
                let block = self.blocks.next();
                self.values = &block.expect("blocks cover the part").embedding;
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
