//! The learnable rows of a batch: which nodes they belong to, and the input that they complete.

use std::sync::Arc;

use gnn::{Dense, GnnError, Input, ReadyInput};
use schemas::Ids;

use crate::batch::{Piece, Place};
use crate::embedding::NodeEmbeddings;
use crate::id_index::IdIndex;
use crate::server::{RowGradient, TableSpec};

/// A node type whose nodes have learnable rows.
#[derive(Clone, Debug)]
pub(crate) struct LearnableType {
    /// Position among the types of the graph.
    pub(crate) node_type: usize,
    pub(crate) table: TableSpec,
}

impl LearnableType {
    /// Returns the type as messages name it.
    pub(crate) fn shown(&self) -> String {
        match self.table.name.as_str() {
            "" => "the nodes".to_owned(),
            name => format!("`{name}`"),
        }
    }
}

/// The nodes of a batch that have rows in one embedding table.
#[derive(Debug)]
pub(crate) struct BatchRows {
    node_type: usize,
    dim: usize,
    /// `[n]`, distinct.
    pub(crate) ids: Ids,
    /// `[num_src of the first block]`: position of each node's row. A node that is in several parts
    /// is in the block several times.
    position: Vec<u32>,
    /// Whether node i has row i.
    is_in_order: bool,
    /// `[num_src, _]`: the transformed features, which come before the row.
    features: Option<Dense>,
}

/// The input of layer 1 of types with learnable rows, by type of the graph; empty if there are none.
pub(crate) type LearnableInput = Vec<Option<ReadyInput>>;

impl BatchRows {
    /// Lists the distinct nodes of a type in a batch.
    pub(crate) fn of(
        of: &LearnableType,
        pieces: &[Piece<'_>],
        places: &[Place],
        features: Option<Dense>,
    ) -> Self {
        let mut index = IdIndex::new(of.table.id_type);
        let position = places.iter().map(|place| {
            let nodes = &pieces[place.piece as usize].shard.nodes[of.node_type];
            let (position, _) = index.insert(&nodes.ids, place.node as usize);
            u32::try_from(position).expect("an index holds fewer than 2^32 ids")
        });
        let position: Vec<u32> = position.collect();
        Self {
            node_type: of.node_type,
            dim: of.table.dim,
            is_in_order: (0..).zip(&position).all(|(at, &position)| at == position),
            position,
            ids: index.into_ids(),
            features,
        }
    }

    /// Returns the features of each node with its row behind them; none without nodes. `values` has
    /// the row of each id.
    fn input(&self, values: Vec<f32>) -> Result<Option<ReadyInput>, GnnError> {
        if self.position.is_empty() {
            return Ok(None);
        }
        if self.is_in_order && self.features.is_none() {
            let dense = Dense {
                rows: self.position.len(),
                cols: self.dim,
                values,
            };
            return Ok(Some(ReadyInput::new(Input::Dense(dense))?));
        }
        let rows = self.position.iter().map(|&position| {
            let start = position as usize * self.dim;
            &values[start..start + self.dim]
        });
        let dense = with_rows(self.features.as_ref(), self.dim, rows);
        Ok(Some(ReadyInput::new(Input::Dense(dense))?))
    }

    /// Adds up the gradients of each row. `slopes` has those of the nodes of the batch.
    fn gradient(&self, slopes: Dense) -> RowGradient {
        if self.is_in_order {
            return RowGradient {
                ids: self.ids.clone(),
                values: slopes.values,
            };
        }
        let mut values = vec![0.0; self.ids.len() * self.dim];
        for (&position, slope) in self
            .position
            .iter()
            .zip(slopes.values.chunks_exact(self.dim))
        {
            let start = position as usize * self.dim;
            let total = &mut values[start..start + self.dim];
            total
                .iter_mut()
                .zip(slope)
                .for_each(|(total, value)| *total += value);
        }
        RowGradient {
            ids: self.ids.clone(),
            values,
        }
    }

    /// Returns the approximate memory in bytes.
    pub(crate) fn bytes(&self) -> usize {
        let features = self
            .features
            .as_ref()
            .map_or(0, |rows| 4 * rows.values.len());
        self.ids.size_bytes() + 4 * self.position.len() + features
    }
}

/// Returns features with learnable rows of width `dim` behind them.
///
/// # Panics
///
/// If there are fewer rows of features.
pub fn with_rows<'a>(
    features: Option<&Dense>,
    dim: usize,
    rows: impl ExactSizeIterator<Item = &'a [f32]>,
) -> Dense {
    let num_rows = rows.len();
    let cols = features.map_or(0, |features| features.cols) + dim;
    let mut values = Vec::with_capacity(num_rows * cols);
    for (at, row) in rows.enumerate() {
        if let Some(features) = features {
            values.extend_from_slice(features.row(at));
        }
        values.extend_from_slice(row);
    }
    Dense {
        rows: num_rows,
        cols,
        values,
    }
}

/// Returns the input of each type, given the rows of each table.
fn inputs(
    batch: &[BatchRows],
    mut input: impl FnMut(usize, &BatchRows) -> Result<Option<ReadyInput>, GnnError>,
) -> Result<LearnableInput, GnnError> {
    let mut all = Vec::new();
    for (table, of_table) in batch.iter().enumerate() {
        all.resize(of_table.node_type + 1, None);
        all[of_table.node_type] = input(table, of_table)?;
    }
    Ok(all)
}

/// Returns the input of a batch with the rows that a server returned, by table.
pub(crate) fn pulled_input(
    batch: &[BatchRows],
    mut pulled: Vec<Vec<f32>>,
) -> Result<LearnableInput, GnnError> {
    inputs(batch, |table, rows| {
        rows.input(std::mem::take(&mut pulled[table]))
    })
}

/// Returns the input of a batch with trained rows. Nodes without one get the mean of the table.
pub(crate) fn trained_input(
    batch: &[BatchRows],
    tables: &[Arc<NodeEmbeddings>],
) -> Result<LearnableInput, GnnError> {
    inputs(batch, |table, rows| {
        let ids = 0..rows.ids.len();
        let found = ids.flat_map(|at| tables[table].row(&rows.ids, at));
        rows.input(found.copied().collect())
    })
}

/// Returns the gradient of each table. `slopes` has those of the nodes of the batch, by type.
pub(crate) fn gradients(batch: &[BatchRows], mut slopes: Vec<Option<Dense>>) -> Vec<RowGradient> {
    let of_table = |rows: &BatchRows| match slopes[rows.node_type].take() {
        Some(slopes) => rows.gradient(slopes),
        None => RowGradient {
            ids: Ids::new(rows.ids.id_type()),
            values: Vec::new(),
        },
    };
    batch.iter().map(of_table).collect()
}
