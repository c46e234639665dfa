//! The last round: computes the last layer of every node, and writes each part when it is computed.

use crate::InferError;
use crate::compare::{Difference, Other, Outcome};
use crate::deliver::{OwnPart, SharedRound, ids_of, no_rows, run_among};
use crate::embedding::{reads_logits, vectors};
use crate::exchange::Crossing;
use crate::layer::{Layer, LayerInput, Rounds};
use crate::part::{Computed, Part, PartBuffers, Piece, in_turn, pieces, write_part};
use crate::predict::labels;
use crate::threads::Threads;
use cluster::Cluster;
use gnn::{Dense, Head, SharedRows};
use schemas::{EmbeddingColumns, EmbeddingsWriter, Ids, Labels, NodeIdx, Output, Row};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Settings and inputs of the last round.
pub(crate) struct PartsWriter<'a> {
    pub(crate) rounds: &'a Rounds<'a>,
    pub(crate) output: &'a Output,
    pub(crate) rows_per_part: usize,
    pub(crate) columns: EmbeddingColumns,
    pub(crate) normalize: bool,
    /// The nodes to write, ascending; none: all nodes.
    pub(crate) targets: Option<Vec<NodeIdx>>,
    /// The rows of the embedding layer, if it is not the last layer.
    pub(crate) inner: Option<SharedRows>,
    /// The rounds of the other sampling, if the two are compared.
    pub(crate) other: Option<Other<'a>>,
}

/// Results of the last round in one process.
#[derive(Default)]
pub(crate) struct Written {
    /// Time spent on writing parts: added up over all threads in one process; elapsed time with
    /// several processes.
    pub(crate) writing: Duration,
    pub(crate) difference: Difference,
    /// Bytes that processes exchanged; none in one process.
    pub(crate) crossing: Option<Crossing>,
}

/// The layers and the head that one thread runs.
struct ThreadLayers<'a> {
    layer: Layer<'a>,
    other: Option<Layer<'a>>,
    head: Head<'a>,
}

/// The last round of one of several processes.
struct Among<'a> {
    writer: &'a PartsWriter<'a>,
    input: &'a LayerInput,
}

impl PartsWriter<'_> {
    /// Computes the last layer and writes the parts that are not committed yet.
    ///
    /// Part `p` holds the written nodes from number `p * rows_per_part` on, in order of ids, for
    /// any number of threads and processes.
    pub(crate) fn run(&self, input: &LayerInput) -> Result<Written, InferError> {
        if self.num_written() == 0 {
            return self.write_no_row();
        }
        let among = Among {
            writer: self,
            input,
        };
        match self.rounds.graph.cluster().num_processes() {
            1 => self.run_alone(input),
            _ => run_among(&among, &self.open_parts()),
        }
    }

    /// Writes one part without rows, so that readers find the columns.
    fn write_no_row(&self) -> Result<Written, InferError> {
        let is_first = self.rounds.graph.cluster().process() == 0;
        if is_first && self.output.committed(0).is_none() {
            let id_type = self.columns.id_type;
            self.write(0, &[], |_| Ids::new(id_type), &no_rows(&self.columns))?;
        }
        Ok(Written::default())
    }

    /// Computes the last layer and writes the parts in a single process. The thread that computes
    /// the last block of a part writes the part, while other threads continue.
    fn run_alone(&self, input: &LayerInput) -> Result<Written, InferError> {
        let (writing, buffers) = (AtomicU64::new(0), PartBuffers::default());
        let write = |part: &Part, rows: Computed| {
            if self.output.committed(part.index).is_some() {
                return Ok(());
            }
            let started = Instant::now();
            let graph = self.rounds.graph;
            let nodes: Vec<NodeIdx> = part.rows.iter().map(|&row| graph.node(row)).collect();
            self.write(
                part.index,
                &nodes,
                |range| graph.ids(&part.rows[range]),
                &rows,
            )?;
            buffers.put(rows.vectors);
            let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
            writing.fetch_add(micros, Ordering::Relaxed);
            Ok(())
        };
        let parts = self.parts(self.open_parts());
        let difference = self.compute_all((&parts, &buffers), input, write)?;
        Ok(Written {
            writing: Duration::from_micros(writing.into_inner()),
            difference,
            crossing: None,
        })
    }

    /// Computes the own rows of some parts. `done` gets each part that has own rows, with these.
    fn compute_all(
        &self,
        (parts, buffers): (&[Part], &PartBuffers),
        input: &LayerInput,
        done: impl Fn(&Part, Computed) -> Result<(), InferError> + Sync,
    ) -> Result<Difference, InferError> {
        let pieces = self.pieces(parts, input.layer);
        let model = self.rounds.model;
        let differences = Mutex::new(vec![Difference::default(); pieces.len()]);
        let blocks: Vec<Range<usize>> = pieces.iter().map(|piece| piece.rows.clone()).collect();
        self.rounds.for_each_group(input, &blocks, |some, group| {
            let state = || ThreadLayers {
                layer: self.rounds.layer(input, group),
                other: self
                    .other
                    .as_ref()
                    .map(|other| other.rounds.layer(&other.input, None)),
                head: model.head(),
            };
            let order = in_turn(&pieces[some.clone()]);
            let work = |layers: &mut ThreadLayers<'_>, at: usize| {
                let at = some.start + order[at];
                let piece = &pieces[at];
                let (computed, difference) = self.compute(piece, layers)?;
                differences.lock().unwrap_or_else(PoisonError::into_inner)[at] = difference;
                let part = &parts[piece.part];
                match part.add(piece, computed, (&self.columns, buffers)) {
                    Some(rows) => done(part, rows),
                    None => Ok(()),
                }
            };
            self.rounds.threads.run(some.len(), state, work)
        })?;
        let mut difference = Difference::default();
        let differences = differences
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        differences.iter().for_each(|other| difference.add(other));
        Ok(difference)
    }

    /// Returns the number of nodes to write.
    fn num_written(&self) -> usize {
        match &self.targets {
            Some(targets) => targets.len(),
            None => self.rounds.graph.num_nodes(),
        }
    }

    /// Lists the parts to compute.
    pub(crate) fn open_parts(&self) -> Vec<usize> {
        let is_open = |index: &usize| {
            // A comparison covers the nodes of all parts.
            self.other.is_some() || self.output.committed(*index).is_none()
        };
        let num_parts = self.num_written().div_ceil(self.rows_per_part);
        (0..num_parts).filter(is_open).collect()
    }

    /// Returns the parts with these indices, each with its own rows.
    fn parts(&self, indices: Vec<usize>) -> Vec<Part> {
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
            Part::new(index, rows)
        };
        indices.into_iter().map(part).collect()
    }

    /// Cuts parts into blocks.
    fn pieces(&self, parts: &[Part], layer: usize) -> Vec<Piece> {
        pieces(parts, |_, rows| self.rounds.ranges_of(rows, layer))
    }

    fn compute(
        &self,
        piece: &Piece,
        state: &ThreadLayers<'_>,
    ) -> Result<(Computed, Difference), InferError> {
        let pick = |rows| piece.pick(rows);
        let rows = pick(state.layer.run(piece.rows.clone())?);
        let logits = self.logits(&rows, &state.head)?;
        let arch = self.rounds.trained.model.architecture();
        if let Some(known) = &logits {
            let place = |row: usize| piece.picked.as_ref().map_or(row, |picked| picked[row]);
            let own_row = |row| piece.rows.start + place(row);
            self.rounds.check_finite(known, arch.num_layers, own_row)?;
        }
        let predicted_of = |of_rows: &Option<Dense>| match of_rows {
            Some(known) => labels(known, arch.task),
            None => Labels::None,
        };
        let mut predicted = predicted_of(&logits);
        let mut difference = Difference::default();
        if let Some(other) = &state.other {
            let other_rows = pick(other.run(piece.rows.clone())?);
            let other_predicted = predicted_of(&self.logits(&other_rows, &state.head)?);
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
            Some(inner) => pick(inner.slice(piece.rows.clone()).to_dense()),
        };
        let vectors = vectors(
            &self.columns,
            embedding,
            logits.as_ref(),
            (arch.task, self.normalize),
        );
        let computed = Computed { vectors, predicted };
        Ok((computed, difference))
    }

    /// Computes logits, if the output contains predictions, logits or probabilities.
    fn logits(&self, rows: &Dense, head: &Head<'_>) -> Result<Option<Dense>, InferError> {
        if !reads_logits(&self.columns) {
            return Ok(None);
        }
        Ok(Some(head.run(rows.clone())?))
    }

    /// Writes and commits a part with these nodes; `ids` returns the ids of a range of them.
    fn write(
        &self,
        index: usize,
        nodes: &[NodeIdx],
        ids: impl Fn(Range<usize>) -> Ids,
        rows: &Computed,
    ) -> Result<(), InferError> {
        let writer = EmbeddingsWriter::create(self.output, index, &self.columns)?;
        let entry = write_part(writer, &self.columns, (nodes, &ids), rows)?;
        Ok(self.output.commit_part(index, entry)?)
    }
}

impl SharedRound for Among<'_> {
    fn cluster(&self) -> &Cluster {
        self.writer.rounds.graph.cluster()
    }

    fn threads(&self) -> &Threads {
        self.writer.rounds.threads
    }

    fn columns(&self, _part: usize) -> &EmbeddingColumns {
        &self.writer.columns
    }

    fn compute(
        &self,
        parts: &[usize],
        done: &(dyn Fn(OwnPart) + Sync),
    ) -> Result<Difference, InferError> {
        let graph = self.writer.rounds.graph;
        let parts = self.writer.parts(parts.to_vec());
        let given = (&parts[..], &PartBuffers::default());
        self.writer.compute_all(given, self.input, |part, rows| {
            let nodes = part.rows.iter().map(|&row| graph.node(row));
            done(OwnPart {
                part: part.index,
                nodes: nodes.collect(),
                ids: graph.ids(&part.rows),
                rows,
            });
            Ok(())
        })
    }

    fn is_committed(&self, part: usize) -> bool {
        self.writer.output.committed(part).is_some()
    }

    fn write(
        &self,
        part: usize,
        (nodes, ids): (&[NodeIdx], &Ids),
        rows: Computed,
    ) -> Result<(), InferError> {
        self.writer
            .write(part, nodes, |range| ids_of(ids, range), &rows)
    }
}
