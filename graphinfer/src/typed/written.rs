//! The types that an output has, and their columns.

use crate::InferError;
use crate::embedding::embedding_columns;
use crate::model::Record;
use crate::plan::InferPlan;
use schemas::{EmbeddingColumns, EmbeddingsWriter, GraphMeta, Output};

/// A type that is written.
pub(crate) struct WrittenColumns {
    pub(crate) node_type: usize,
    /// None if nodes have no types.
    pub(crate) name: Option<String>,
    pub(crate) columns: EmbeddingColumns,
}

impl WrittenColumns {
    /// Returns the columns of a graph without node types.
    pub(crate) fn of_untyped(
        plan: &InferPlan,
        record: &Record,
        graph: &GraphMeta,
    ) -> Result<Self, InferError> {
        let layer = record.embedding_layer(plan)?;
        Ok(Self {
            node_type: 0,
            name: None,
            columns: embedding_columns(plan, record, graph.target().id_type, layer)?,
        })
    }

    /// Returns the columns of some types, ascending; only the target type has more than embeddings.
    pub(crate) fn of_types(
        plan: &InferPlan,
        record: &Record,
        graph: &GraphMeta,
        is_written: &[bool],
    ) -> Result<Vec<Self>, InferError> {
        let layer = record.embedding_layer(plan)?;
        let mut written = Vec::new();
        for (node_type, of) in graph.types.iter().enumerate() {
            if !is_written[node_type] {
                continue;
            }
            let columns = match node_type == graph.target_type {
                true => embedding_columns(plan, record, of.id_type, layer)?,
                false => EmbeddingColumns {
                    are_changes: false,
                    id_type: of.id_type,
                    passed: None,
                    vectors: vec![("embedding", record.shape.output_dim(layer))],
                    precision: plan.precision,
                    prediction: None,
                },
            };
            written.push(Self {
                node_type,
                name: Some(of.name.clone()),
                columns,
            });
        }
        Ok(written)
    }

    /// Starts a part of the type, with its columns or those of changes.
    pub(crate) fn writer(
        &self,
        output: &Output,
        index: usize,
        columns: &EmbeddingColumns,
    ) -> Result<EmbeddingsWriter, InferError> {
        Ok(match &self.name {
            None => EmbeddingsWriter::create(output, index, columns)?,
            Some(name) => EmbeddingsWriter::of_type(output, name, index, columns)?,
        })
    }
}
