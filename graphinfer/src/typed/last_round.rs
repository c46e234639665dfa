//! The last round: computes the last layer, and writes each part when it is computed.

use super::layer::{TypedLayer, TypedRounds};
use crate::InferError;
use crate::checkpoint::RoundRows;
use crate::compare::{Difference, Outcome};
use crate::embedding::vectors;
use crate::part::{Computed, Part, Piece, pieces, write_part};
use crate::predict::labels;
use gnn::typed::TypedHead;
use gnn::{Dense, SharedRows};
use schemas::{EmbeddingColumns, EmbeddingsWriter, Labels, NodeIdx, Output, Row};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A type that is written.
pub(super) struct WrittenType {
    pub(super) node_type: usize,
    pub(super) columns: EmbeddingColumns,
    /// The nodes to write, ascending; none: all nodes of the type.
    pub(super) targets: Option<Vec<Row>>,
    /// Number of its first part among the parts of all types.
    pub(super) first_part: usize,
}

/// Settings and inputs of the last round.
pub(super) struct TypedParts<'a> {
    pub(super) rounds: TypedRounds<'a>,
    pub(super) output: &'a Output,
    pub(super) rows_per_part: usize,
    pub(super) normalize: bool,
    pub(super) types: Vec<WrittenType>,
    /// The rows that the last layer reads.
    pub(super) before: RoundRows,
    /// The rows of the embedding layer, if it is not the last layer.
    pub(super) inner: Option<SharedRows>,
    /// The type whose logits are computed.
    pub(super) logits_of: Option<usize>,
    /// The rounds of the other sampling and what its last layer reads, if the two are compared.
    pub(super) other: Option<(TypedRounds<'a>, RoundRows)>,
}

/// The layers and the head that one thread runs.
struct ThreadLayers<'a> {
    layer: TypedLayer<'a>,
    other: Option<TypedLayer<'a>>,
    head: TypedHead<'a>,
}

impl WrittenType {
    /// Returns the number of parts; a type without nodes to write has one without rows.
    pub(super) fn num_parts(&self, num_nodes: usize, rows_per_part: usize) -> usize {
        let num_rows = self.targets.as_ref().map_or(num_nodes, Vec::len);
        num_rows.div_ceil(rows_per_part).max(1)
    }
}

impl TypedParts<'_> {
    /// Computes the last layer and writes the parts that are not committed yet. Returns the time
    /// spent on writing, added up over all threads, and how the two samplings differ.
    pub(super) fn run(&self) -> Result<(Duration, Difference), InferError> {
        let (of_types, parts): (Vec<&WrittenType>, Vec<Part>) =
            self.open_parts().into_iter().unzip();
        let layer = self.rounds.limits.len();
        let pieces = pieces(&parts, |part, rows| {
            let node_type = of_types[part].node_type;
            let limits = self.rounds.needed.has(layer, node_type);
            let limits = limits.then(|| &self.rounds.limits[layer - 1][..]);
            self.rounds.graph.ranges(node_type, rows, limits)
        });
        for (part, of_type) in parts.iter().zip(&of_types) {
            if part.rows.is_empty() {
                self.write(of_type, part, &[])?;
            }
        }
        let state = || ThreadLayers {
            layer: self.rounds.layer(layer, &self.before),
            other: self
                .other
                .as_ref()
                .map(|(rounds, before)| rounds.layer(layer, before)),
            head: self.rounds.trained.model.head(),
        };
        let writing = AtomicU64::new(0);
        let differences = Mutex::new(vec![Difference::default(); pieces.len()]);
        let work = |layers: &mut ThreadLayers<'_>, at: usize| {
            let piece = &pieces[at];
            let (part, of_type) = (&parts[piece.part], of_types[piece.part]);
            let (computed, difference) = self.compute(of_type, piece, layers)?;
            differences.lock().unwrap_or_else(PoisonError::into_inner)[at] = difference;
            let Some(blocks) = part.add(piece.block, computed) else {
                return Ok(());
            };
            let started = Instant::now();
            self.write(of_type, part, &blocks)?;
            let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
            writing.fetch_add(micros, Ordering::Relaxed);
            Ok(())
        };
        self.rounds.threads.run(pieces.len(), state, work)?;
        let mut difference = Difference::default();
        let differences = differences.into_inner();
        let differences = differences.unwrap_or_else(PoisonError::into_inner);
        differences.iter().for_each(|other| difference.add(other));
        Ok((Duration::from_micros(writing.into_inner()), difference))
    }

    /// Returns the parts to compute.
    fn open_parts(&self) -> Vec<(&WrittenType, Part)> {
        let mut open = Vec::new();
        for of_type in &self.types {
            let rows = self.rounds.graph.rows_of(of_type.node_type);
            // A comparison covers the nodes of all parts of the target type.
            let is_compared = self.other.is_some() && self.is_target(of_type.node_type);
            for part in 0..of_type.num_parts(rows.len(), self.rows_per_part) {
                let index = of_type.first_part + part;
                if !is_compared && self.output.committed(index).is_some() {
                    continue;
                }
                let start = part * self.rows_per_part;
                let places = |num_rows: usize| start..(start + self.rows_per_part).min(num_rows);
                let picked = match &of_type.targets {
                    Some(targets) => targets[places(targets.len())].to_vec(),
                    None => {
                        let places = places(rows.len());
                        let there = rows.start + places.start..rows.start + places.end;
                        there.map(Row::from_index).collect()
                    }
                };
                open.push((of_type, Part::new(index, picked)));
            }
        }
        open
    }

    fn is_target(&self, node_type: usize) -> bool {
        self.rounds.graph.store().meta().graph.target_type == node_type
    }

    fn compute(
        &self,
        of_type: &WrittenType,
        piece: &Piece,
        layers: &ThreadLayers<'_>,
    ) -> Result<(Computed, Difference), InferError> {
        let (node_type, shape) = (of_type.node_type, &self.rounds.trained.record.shape);
        let last = self.rounds.limits.len();
        let run = |layer: &TypedLayer<'_>| {
            let rows = layer.run(node_type, piece.rows.clone())?;
            Ok::<_, InferError>(piece.pick(rows))
        };
        let is_needed = self.rounds.needed.has(last, node_type);
        let rows = is_needed.then(|| run(&layers.layer)).transpose()?;
        let of_logits = rows.as_ref().filter(|_| self.logits_of == Some(node_type));
        let logits = of_logits.map(|hidden| layers.head.run(hidden.clone()));
        let logits = logits.transpose()?;
        if let Some(known) = &logits {
            let place = |row: usize| piece.picked.as_ref().map_or(row, |picked| picked[row]);
            let row_of = |row| piece.rows.start + place(row);
            let of_head = (shape.num_layers, node_type);
            self.rounds.check_finite(known, of_head, row_of)?;
        }
        let predicted_of = |of_rows: &Option<Dense>| match of_rows {
            Some(known) => labels(known, shape.task),
            None => Labels::None,
        };
        let mut predicted = predicted_of(&logits);
        let mut difference = Difference::default();
        let other = layers.other.as_ref();
        let other = other.filter(|_| self.is_target(node_type));
        if let (Some(other), Some(rows)) = (other, &rows) {
            let other_rows = run(other)?;
            let other_logits = logits.as_ref().map(|_| layers.head.run(other_rows.clone()));
            let other_predicted = predicted_of(&other_logits.transpose()?);
            let outcome = |of_nodes, classes| Outcome {
                rows: of_nodes,
                dim: shape.output_dim(last),
                predicted: classes,
            };
            difference = Difference::between(
                &outcome(&rows.values, &predicted),
                &outcome(&other_rows.values, &other_predicted),
            );
        }
        if of_type.columns.prediction.is_none() {
            predicted = Labels::None;
        }
        let embedding = self.embedding(piece, rows);
        let settings = (shape.task, self.normalize);
        let vectors = vectors(&of_type.columns, embedding, logits.as_ref(), settings);
        Ok((Computed { vectors, predicted }, difference))
    }

    /// Returns the embeddings of a block, given the rows of the last layer.
    fn embedding(&self, piece: &Piece, last: Option<Dense>) -> Dense {
        match &self.inner {
            Some(inner) => piece.pick(Dense {
                rows: piece.rows.len(),
                cols: inner.cols(),
                values: inner.slice(piece.rows.clone()).values().to_vec(),
            }),
            None => last.expect("the embeddings of a written type are needed"),
        }
    }

    /// Writes and commits a part.
    fn write(
        &self,
        of_type: &WrittenType,
        part: &Part,
        blocks: &[Computed],
    ) -> Result<(), InferError> {
        if self.output.committed(part.index).is_some() {
            return Ok(());
        }
        let (graph, node_type) = (self.rounds.graph, of_type.node_type);
        let name = &self.rounds.trained.model.schema().types[node_type];
        let index = part.index - of_type.first_part;
        // Copied columns have one row for each node of the type.
        let first = graph.rows_of(node_type).start;
        let nodes = part
            .rows
            .iter()
            .map(|row| NodeIdx::from_index(row.index() - first));
        let nodes: Vec<NodeIdx> = nodes.collect();
        let ids = |rows: Range<usize>| graph.ids(node_type, &part.rows[rows]);
        let writer = EmbeddingsWriter::of_type(self.output, name, index, &of_type.columns)?;
        let entry = write_part(writer, &of_type.columns, (&nodes, &ids), blocks)?;
        Ok(self.output.commit_part(part.index, entry)?)
    }
}
