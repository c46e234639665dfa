//! Fits what a model keeps of its train targets: transforms of features, and the unit of labels.

use gnn::typed::Schema;
use gnn::{LabelScale, StandardizeFit, Transform};
use schemas::{FeatureMeta, Split};

use super::Checks;
use crate::TrainError;
use crate::batch::{Piece, nodes_of};
use crate::source::{Part, Source};

impl Checks<'_> {
    /// Returns the transform that the plan has for the features of a type.
    fn transform_of(&self, node_type: usize) -> Option<schemas::Transform> {
        let (plan, of) = (&self.plan.result, &self.graph.types[node_type]);
        let wanted = match self.graph.is_typed() {
            true => plan.transforms.get(&of.name).copied(),
            false => plan.transform,
        };
        wanted.filter(|_| of.features.dim() > 0)
    }

    /// Checks that sparse features are not standardised.
    pub(super) fn transforms_allowed(&self) -> Result<(), TrainError> {
        for (node_type, of) in self.graph.types.iter().enumerate() {
            let is_sparse = matches!(of.features, FeatureMeta::Sparse { .. });
            if self.transform_of(node_type) != Some(schemas::Transform::Standardize) || !is_sparse {
                continue;
            }
            return Err(self.untrainable(match self.graph.is_typed() {
                true => {
                    "the features of a type are sparse, which `input.nodes.TYPE.transform` = \
                     \"standardize\" would fill: allowed is \"row_normalize\""
                }
                false => {
                    "its features are sparse, which `input.nodes.transform` = \"standardize\" would \
                     fill: allowed is \"row_normalize\""
                }
            }));
        }
        Ok(())
    }

    /// Fits the transform of each type's features, each occurrence in a part counted.
    ///
    /// The features of the target type are fitted to the train targets, those of the other types
    /// to the nodes in the neighbourhoods of the train targets.
    pub(super) fn transforms(
        &self,
        source: &Source,
        schema: &Schema,
    ) -> Result<Vec<Transform>, TrainError> {
        let types = self.graph.types.iter().enumerate();
        let mut fits: Vec<Option<StandardizeFit>> = types
            .map(|(node_type, of)| {
                let wanted = self.transform_of(node_type);
                let is_fitted = wanted == Some(schemas::Transform::Standardize);
                is_fitted.then(|| StandardizeFit::new(of.features.dim()))
            })
            .collect();
        if fits.iter().any(Option::is_some) {
            for idx in 0..source.counts.len() {
                let part = source.part(source.key(idx, None))?;
                self.add_rows(&mut fits, source, schema, &part);
            }
        }
        let fitted = fits.into_iter().enumerate();
        let transform = |(node_type, fit): (usize, Option<StandardizeFit>)| match (
            self.transform_of(node_type),
            fit,
        ) {
            (Some(schemas::Transform::RowNormalize), _) => Transform::RowNormalize,
            (_, Some(fit)) => fit.finish(),
            (_, None) => Transform::None,
        };
        Ok(fitted.map(transform).collect())
    }

    /// Adds the rows of a part that transforms are fitted to.
    fn add_rows(
        &self,
        fits: &mut [Option<StandardizeFit>],
        source: &Source,
        schema: &Schema,
        part: &Part,
    ) {
        let targets = part.targets(Split::Train);
        let target_type = self.graph.target_type;
        if let Some(fit) = &mut fits[target_type] {
            let rows = targets
                .iter()
                .map(|&target| part.dense_row(target_type, target));
            rows.for_each(|row| fit.add(row));
        }
        let mut others = (0..fits.len()).filter(|&at| at != target_type);
        if !others.any(|at| fits[at].is_some()) {
            return;
        }
        let piece = Piece {
            shard: &part.shard,
            targets,
        };
        let nodes = nodes_of(&[piece], schema, &source.flatten.fanouts);
        for (node_type, (fit, places)) in fits.iter_mut().zip(&nodes).enumerate() {
            if let Some(fit) = fit.as_mut().filter(|_| node_type != target_type) {
                let rows = places
                    .iter()
                    .map(|place| part.dense_row(node_type, place.node));
                rows.for_each(|row| fit.add(row));
            }
        }
    }
}

/// Returns mean and deviation of the labels of train targets, each occurrence counted.
pub(super) fn label_scale(source: &Source) -> Result<LabelScale, TrainError> {
    let mut fit = StandardizeFit::new(1);
    for idx in 0..source.counts.len() {
        let part = source.part(source.key(idx, None))?;
        if let schemas::Labels::Number(values) = &part.shard.target_nodes().labels {
            let targets = part.targets(Split::Train).iter();
            targets.for_each(|&target| fit.add(&[values[target as usize]]));
        }
    }
    Ok(fit.label_scale())
}
