//! The in-edges that a layer reads, by the matrix that it aggregates.

use super::need::NeededTypes;
use gnn::typed::{Schema, TypedLayerSlice};
use std::collections::BTreeSet;

pub(super) use crate::local::Read;

/// The in-edges that a layer reads. Each list is in the order of relations.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LayerReads {
    /// By source of the layer.
    pub(super) sources: Vec<Vec<Read>>,
    /// Those whose sources are the rows of the layer before, unprojected.
    pub(super) rows: Vec<Read>,
}

impl LayerReads {
    /// Lists what a layer reads for the types that it computes; `limits` are those of the layer.
    pub(super) fn new(
        slice: &TypedLayerSlice<'_>,
        schema: &Schema,
        (layer, needed, limits): (usize, &NeededTypes, &[usize]),
    ) -> Self {
        let is_read = |relation: &usize| {
            limits[*relation] > 0 && needed.has(layer, schema.relations[*relation].to)
        };
        let of_source = |source: usize| -> Vec<Read> {
            let relations = slice.relations_of(source).filter(is_read);
            relations.map(|at| (at, limits[at])).collect()
        };
        let sources: Vec<Vec<Read>> = (0..slice.sources().len()).map(of_source).collect();
        let pairs = slice.sources().iter().zip(&sources);
        let unprojected = pairs.filter(|(source, _)| !source.projects);
        let rows: BTreeSet<Read> = unprojected.flat_map(|(_, of)| of).copied().collect();
        Self {
            rows: rows.into_iter().collect(),
            sources,
        }
    }

    /// Returns the lists, without those of no relation.
    pub(super) fn lists(self) -> impl Iterator<Item = Vec<Read>> {
        let all = self.sources.into_iter().chain([self.rows]);
        all.filter(|reads| !reads.is_empty())
    }
}
