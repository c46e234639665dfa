//! Writes the rows of a version, and finds the rows of earlier outputs that they replace.

use crate::InferError;
use crate::changed_rows::{AnyHead, Layers};
use crate::embedding::{reads_logits, vectors};
use crate::kept_rows::KeptRows;
use crate::part::{Computed, write_part};
use crate::plan::InferPlan;
use crate::predict::labels;
use crate::threads::Threads;
use crate::typed::WrittenColumns;
use graphdelta::{After, is_own_part};
use schemas::{DeletedNodes, EmbeddingColumns, Labels, NodeIdx, Output};
use std::ops::Range;

/// The nodes of a type that a version writes.
pub(super) struct WrittenNodes<'a> {
    of_type: &'a WrittenColumns,
    /// In the order of ids.
    pub(super) nodes: Vec<NodeIdx>,
    /// Number of its first part among the parts of all types.
    pub(super) first_part: usize,
}

impl WrittenNodes<'_> {
    /// Returns the number of parts. A version without rows of the type has one too, so that readers
    /// find the columns.
    pub(super) fn num_parts(&self, plan: &InferPlan) -> usize {
        self.nodes.len().div_ceil(plan.rows_per_part).max(1)
    }
}

/// Writes the parts of a version.
pub(super) struct VersionWriter<'a> {
    pub(super) output: &'a Output,
    pub(super) layers: &'a Layers,
    pub(super) after: &'a After,
    pub(super) rows: &'a KeptRows,
}

impl<'a> VersionWriter<'a> {
    /// Lists the nodes to write by type; `computed` has the nodes that each layer has computed.
    pub(super) fn written(&self, computed: &[Vec<NodeIdx>]) -> Vec<WrittenNodes<'a>> {
        let (layers, last) = (self.layers, self.layers.num_layers());
        let mut first_part = 0;
        let written = layers.written.iter().map(|of_type| {
            // Types that the last layer does not compute are written as the embedding layer has them.
            let of_layer = match layers.needed.has(last, of_type.node_type) {
                true => &computed[last - 1],
                false => self.rows.changed(layers.embedding_layer),
            };
            let of_layer = of_layer.iter().copied();
            let is_own = |node: &NodeIdx| self.after.type_of(*node) == of_type.node_type;
            let mut nodes: Vec<NodeIdx> = of_layer.filter(is_own).collect();
            self.after.sort(&mut nodes);
            let written = WrittenNodes {
                of_type,
                nodes,
                first_part,
            };
            first_part += written.num_parts(&layers.plan);
            written
        });
        written.collect()
    }

    /// Lists the removed nodes of the types that are written.
    pub(super) fn deleted(&self) -> Vec<DeletedNodes<'a>> {
        let mut deleted = self.after.removed_now();
        self.after.sort(&mut deleted);
        let of_types = self.layers.written.iter().map(|of| {
            let nodes = deleted.iter().copied();
            let nodes = nodes.filter(|&node| self.after.type_of(node) == of.node_type);
            let nodes: Vec<NodeIdx> = nodes.collect();
            DeletedNodes {
                type_name: of.name.as_deref(),
                ids: self.after.ids(of.node_type, &nodes),
                columns: &of.columns,
            }
        });
        of_types.collect()
    }

    /// Writes and commits the rows of some nodes: the parts of this process.
    pub(super) fn write_parts(
        &self,
        written: &[WrittenNodes<'_>],
        threads: &Threads,
    ) -> Result<(), InferError> {
        let (plan, cluster) = (&self.layers.plan, self.after.store().cluster());
        let parts = written.iter().flat_map(|of| {
            let in_type = 0..of.num_parts(plan);
            in_type.map(move |part| (of, part))
        });
        let parts: Vec<(&WrittenNodes<'_>, usize)> = parts.collect();
        let head = || self.layers.head();
        threads.run(parts.len(), head, |head, at| {
            let (of, part) = parts[at];
            let index = of.first_part + part;
            if !is_own_part(cluster, index) || self.output.committed(index).is_some() {
                return Ok(());
            }
            let start = part * plan.rows_per_part;
            let end = (start + plan.rows_per_part).min(of.nodes.len());
            let nodes = &of.nodes[start..end];
            let rows = self.compute(of.of_type, nodes, head)?;
            let columns = EmbeddingColumns {
                are_changes: true,
                ..of.of_type.columns.clone()
            };
            let writer = of.of_type.writer(self.output, part, &columns)?;
            let ids = |range: Range<usize>| self.after.ids(of.of_type.node_type, &nodes[range]);
            let entry = write_part(writer, &columns, (nodes, &ids), &rows)?;
            Ok(self.output.commit_part(index, entry)?)
        })
    }

    /// Returns the columns of some nodes' rows.
    fn compute(
        &self,
        of_type: &WrittenColumns,
        nodes: &[NodeIdx],
        head: &AnyHead<'_>,
    ) -> Result<Computed, InferError> {
        let (layers, shape) = (self.layers, &self.layers.record().shape);
        let dense = |layer: usize| self.rows.gather(layer, nodes, layers.output_dim(layer));
        let logits = reads_logits(&of_type.columns)
            .then(|| head.run(dense(layers.num_layers())))
            .transpose()?;
        if let Some(logits) = &logits {
            layers.check_finite((shape.num_layers, logits), (self.after, nodes))?;
        }
        let predicts = of_type.columns.prediction.is_some();
        let predicted = match logits.as_ref().filter(|_| predicts) {
            Some(logits) => labels(logits, shape.task),
            None => Labels::None,
        };
        let embedding = dense(layers.embedding_layer);
        let of_task = (shape.task, layers.plan.normalize);
        Ok(Computed {
            vectors: vectors(&of_type.columns, embedding, logits.as_ref(), of_task),
            predicted,
        })
    }
}
