//! The last round: computes the last layer, and writes each part when it is computed.

use super::layer::{TypedLayer, TypedRounds, TypedSources};
use super::written::WrittenColumns;
use crate::InferError;
use crate::checkpoint::RoundRows;
use crate::compare::{Difference, Outcome};
use crate::deliver::{OwnPart, SharedRound, ids_of, no_rows, run_among};
use crate::embedding::vectors;
use crate::last_round::Written;
use crate::layer::HubRows;
use crate::part::{Computed, Part, PartBuffers, Piece, in_turn, pieces, write_part};
use crate::predict::labels;
use crate::threads::Threads;
use cluster::Cluster;
use gnn::typed::TypedHead;
use gnn::{Dense, SharedRows};
use schemas::{EmbeddingColumns, Ids, Labels, NodeIdx, Output, Row};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A type that is written.
pub(super) struct WrittenType {
    pub(super) written: WrittenColumns,
    /// The nodes to write, ascending and numbered from the first node of the type; none: all nodes
    /// of the type.
    pub(super) targets: Option<Vec<NodeIdx>>,
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
    /// What the last layer aggregates, found for the first parts; a GPU gets it once.
    pub(super) sources: OnceLock<TypedSources>,
    /// The last layer's rows of own hubs.
    pub(super) hubs: HubRows,
    /// The rows of the embedding layer, if it is not the last layer.
    pub(super) inner: Option<SharedRows>,
    /// The type whose logits are computed.
    pub(super) logits_of: Option<usize>,
    /// The rounds of the other sampling, what its last layer reads, and that layer's rows of own
    /// hubs, if the two are compared.
    pub(super) other: Option<(TypedRounds<'a>, RoundRows, HubRows)>,
}

/// The rows of some parts that a process computes.
struct OpenParts<'a> {
    types: Vec<&'a WrittenType>,
    parts: Vec<Part>,
}

/// The layers and the head that one thread runs.
struct ThreadLayers<'a> {
    layer: TypedLayer<'a>,
    other: Option<TypedLayer<'a>>,
    head: TypedHead<'a>,
}

impl WrittenType {
    /// Returns the number of parts; a type without nodes to write has one without rows.
    /// `num_nodes` is the number of nodes of the type.
    pub(super) fn num_parts(&self, num_nodes: usize, rows_per_part: usize) -> usize {
        self.num_written(num_nodes).div_ceil(rows_per_part).max(1)
    }

    fn num_written(&self, num_nodes: usize) -> usize {
        self.targets.as_ref().map_or(num_nodes, Vec::len)
    }
}

impl TypedParts<'_> {
    /// Computes the last layer and writes the parts that are not committed yet.
    pub(super) fn run(&self) -> Result<Written, InferError> {
        let cluster = self.rounds.graph.store().cluster();
        let (whole, empty): (Vec<usize>, Vec<usize>) =
            self.open_parts().into_iter().partition(|&part| {
                let of_type = self.type_of(part);
                let num_nodes = self.rounds.graph.num_nodes(of_type.written.node_type);
                of_type.num_written(num_nodes) > 0
            });
        // Parts without rows, so that readers find the columns.
        for part in empty.into_iter().filter(|_| cluster.leads()) {
            let of_type = self.type_of(part);
            let none = Ids::new(of_type.written.columns.id_type);
            let rows = no_rows(&of_type.written.columns);
            self.write_part(of_type, part, (&[], &|_| none.clone()), &rows)?;
        }
        match cluster.num_processes() {
            1 => self.run_alone(&whole),
            _ => run_among(self, &whole),
        }
    }

    /// Computes and writes parts in a single process. The thread that computes the last block of a
    /// part writes the part, while other threads continue.
    fn run_alone(&self, parts: &[usize]) -> Result<Written, InferError> {
        let writing = AtomicU64::new(0);
        let buffers: Vec<PartBuffers> = self.types.iter().map(|_| PartBuffers::default()).collect();
        let write = |of_type: &WrittenType, part: &Part, rows: Computed| {
            let started = Instant::now();
            let (graph, node_type) = (self.rounds.graph, of_type.written.node_type);
            let nodes = self.nodes(of_type, part);
            let ids = |range: Range<usize>| graph.ids(node_type, &part.rows[range]);
            self.write_part(of_type, part.index, (&nodes, &ids), &rows)?;
            buffers[self.place_of(part.index)].put(rows.vectors);
            let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
            writing.fetch_add(micros, Ordering::Relaxed);
            Ok(())
        };
        let difference = self.compute_all(parts, &buffers, write)?;
        Ok(Written {
            writing: Duration::from_micros(writing.into_inner()),
            difference,
            crossing: None,
        })
    }

    /// Computes the own rows of some parts. `done` gets each part that has own rows, with these.
    /// `buffers` has memory for the parts of each written type. Returns how the two samplings
    /// differ.
    fn compute_all(
        &self,
        parts: &[usize],
        buffers: &[PartBuffers],
        done: impl Fn(&WrittenType, &Part, Computed) -> Result<(), InferError> + Sync,
    ) -> Result<Difference, InferError> {
        let OpenParts { types, parts } = self.own_parts(parts);
        let layer = self.rounds.limits.len();
        let pieces = pieces(&parts, |part, rows| {
            let node_type = types[part].written.node_type;
            let limits = self.rounds.needed.has(layer, node_type);
            let limits = limits.then(|| &self.rounds.limits[layer - 1][..]);
            self.rounds.graph.ranges(node_type, rows, limits)
        });
        let find_sources = || self.rounds.sources(layer, &self.before);
        let src = self.sources.get_or_init(find_sources);
        let compared = self.other.as_ref();
        let other_src = compared.map(|(rounds, before, _)| rounds.sources(layer, before));
        let state = || ThreadLayers {
            layer: self.rounds.layer(layer, (src, &self.before, &self.hubs)),
            other: compared
                .zip(other_src.as_ref())
                .map(|((rounds, before, hubs), read)| rounds.layer(layer, (read, before, hubs))),
            head: self.rounds.model.head(),
        };
        let differences = Mutex::new(vec![Difference::default(); pieces.len()]);
        let order = in_turn(&pieces);
        let work = |layers: &mut ThreadLayers<'_>, at: usize| {
            let at = order[at];
            let piece = &pieces[at];
            let (part, of_type) = (&parts[piece.part], types[piece.part]);
            let (computed, difference) = self.compute_block(of_type, piece, layers)?;
            differences.lock().unwrap_or_else(PoisonError::into_inner)[at] = difference;
            let buffers = &buffers[self.place_of(part.index)];
            match part.add(piece, computed, (&of_type.written.columns, buffers)) {
                Some(rows) => done(of_type, part, rows),
                None => Ok(()),
            }
        };
        self.rounds.threads.run(pieces.len(), state, work)?;
        let mut difference = Difference::default();
        let differences = differences.into_inner();
        let differences = differences.unwrap_or_else(PoisonError::into_inner);
        differences.iter().for_each(|other| difference.add(other));
        Ok(difference)
    }

    /// Lists the parts to compute, in ascending order.
    pub(super) fn open_parts(&self) -> Vec<usize> {
        let mut open = Vec::new();
        for of_type in &self.types {
            let num_nodes = self.rounds.graph.num_nodes(of_type.written.node_type);
            let num_parts = of_type.num_parts(num_nodes, self.rows_per_part);
            // A comparison covers the nodes of all parts of the target type.
            let is_compared = self.other.is_some() && self.is_target(of_type.written.node_type);
            let parts = of_type.first_part..of_type.first_part + num_parts;
            let is_open = |part: &usize| is_compared || self.output.committed(*part).is_none();
            open.extend(parts.filter(is_open));
        }
        open
    }

    /// Returns the type that a part is of.
    fn type_of(&self, part: usize) -> &WrittenType {
        &self.types[self.place_of(part)]
    }

    /// Returns the position of a part's type among the written types.
    fn place_of(&self, part: usize) -> usize {
        self.types.partition_point(|of| of.first_part <= part) - 1
    }

    /// Returns parts, each with its own rows.
    fn own_parts(&self, indices: &[usize]) -> OpenParts<'_> {
        let graph = self.rounds.graph;
        let part = |&index: &usize| {
            let of_type = self.type_of(index);
            let node_type = of_type.written.node_type;
            let num_written = of_type.num_written(graph.num_nodes(node_type));
            let start = (index - of_type.first_part) * self.rows_per_part;
            let places = start..(start + self.rows_per_part).min(num_written);
            let rows = match &of_type.targets {
                Some(targets) => {
                    let nodes = targets[places].iter();
                    let own = nodes.filter_map(|&node| graph.own_row(node_type, node));
                    own.collect()
                }
                None => {
                    let own = graph.own_rows_among(node_type, places);
                    own.map(Row::from_index).collect()
                }
            };
            (of_type, Part::new(index, rows))
        };
        let (types, parts) = indices.iter().map(part).unzip();
        OpenParts { types, parts }
    }

    /// Returns the nodes of a part's own rows, numbered from the first node of the type.
    fn nodes(&self, of_type: &WrittenType, part: &Part) -> Vec<NodeIdx> {
        let rows = part.rows.iter();
        let nodes = rows.map(|&row| self.rounds.graph.node(of_type.written.node_type, row));
        nodes.collect()
    }

    fn is_target(&self, node_type: usize) -> bool {
        self.rounds.graph.store().meta().graph.target_type == node_type
    }

    fn compute_block(
        &self,
        of_type: &WrittenType,
        piece: &Piece,
        layers: &ThreadLayers<'_>,
    ) -> Result<(Computed, Difference), InferError> {
        let (node_type, shape) = (of_type.written.node_type, &self.rounds.trained.record.shape);
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
        if of_type.written.columns.prediction.is_none() {
            predicted = Labels::None;
        }
        let embedding = self.embedding(piece, rows);
        let settings = (shape.task, self.normalize);
        let vectors = vectors(
            &of_type.written.columns,
            embedding,
            logits.as_ref(),
            settings,
        );
        Ok((Computed { vectors, predicted }, difference))
    }

    /// Returns the embeddings of a block, given the rows of the last layer.
    fn embedding(&self, piece: &Piece, last: Option<Dense>) -> Dense {
        match &self.inner {
            Some(inner) => piece.pick(inner.slice(piece.rows.clone()).to_dense()),
            None => last.expect("the embeddings of a written type are needed"),
        }
    }

    /// Writes and commits a part, unless it is committed. Copied columns have one row for each node
    /// of the type, so that its nodes are numbered from the first node of the type.
    fn write_part(
        &self,
        of_type: &WrittenType,
        index: usize,
        (nodes, ids): (&[NodeIdx], &dyn Fn(Range<usize>) -> Ids),
        rows: &Computed,
    ) -> Result<(), InferError> {
        if self.output.committed(index).is_some() {
            return Ok(());
        }
        let writer = of_type.written.writer(
            self.output,
            index - of_type.first_part,
            &of_type.written.columns,
        )?;
        let entry = write_part(writer, &of_type.written.columns, (nodes, ids), rows)?;
        Ok(self.output.commit_part(index, entry)?)
    }
}

impl SharedRound for TypedParts<'_> {
    fn cluster(&self) -> &Cluster {
        self.rounds.graph.store().cluster()
    }

    fn threads(&self) -> &Threads {
        self.rounds.threads
    }

    fn columns(&self, part: usize) -> &EmbeddingColumns {
        &self.type_of(part).written.columns
    }

    fn compute(
        &self,
        parts: &[usize],
        done: &(dyn Fn(OwnPart) + Sync),
    ) -> Result<Difference, InferError> {
        let buffers: Vec<PartBuffers> = self.types.iter().map(|_| PartBuffers::default()).collect();
        self.compute_all(parts, &buffers, |of_type, part, rows| {
            done(OwnPart {
                part: part.index,
                nodes: self.nodes(of_type, part),
                ids: self.rounds.graph.ids(of_type.written.node_type, &part.rows),
                rows,
            });
            Ok(())
        })
    }

    fn is_committed(&self, part: usize) -> bool {
        self.output.committed(part).is_some()
    }

    fn write(
        &self,
        part: usize,
        (nodes, ids): (&[NodeIdx], &Ids),
        rows: Computed,
    ) -> Result<(), InferError> {
        let ids = |range| ids_of(ids, range);
        self.write_part(self.type_of(part), part, (nodes, &ids), &rows)
    }
}
