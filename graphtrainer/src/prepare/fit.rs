//! Fits what a model keeps of its train targets: transforms of features, and the unit of labels.

use gnn::typed::Schema;
use gnn::{LabelScale, StandardizeFit, Transform};
use schemas::{FeatureMeta, GraphMeta, Split, TypeMeta};

use super::Checks;
use crate::TrainError;
use crate::batch::{Piece, nodes_of};
use crate::encode::TransformFit;
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
        let fits = types.map(|(node_type, of)| {
            let one_hot = self.plan.result.one_hot.get(&of.name);
            TransformFit::new(of, self.transform_of(node_type), one_hot)
        });
        let mut fits: Vec<TransformFit> = fits.collect();
        if fits.iter().any(TransformFit::reads_rows) {
            for idx in 0..source.counts.len() {
                let part = source.part(source.key(idx, None))?;
                self.add_rows(&mut fits, source, schema, &part)?;
            }
        }
        let fitted = fits.into_iter().map(TransformFit::finish);
        Ok(fitted.collect::<Result<_, _>>()?)
    }

    /// Adds the rows of a part that transforms are fitted to.
    fn add_rows(
        &self,
        fits: &mut [TransformFit],
        source: &Source,
        schema: &Schema,
        part: &Part,
    ) -> Result<(), TrainError> {
        let targets = part.targets(Split::Train);
        let target_type = self.graph.target_type;
        if fits[target_type].reads_rows() {
            for &target in targets {
                fits[target_type].add(part.dense_row(target_type, target))?;
            }
        }
        let mut others = (0..fits.len()).filter(|&at| at != target_type);
        if !others.any(|at| fits[at].reads_rows()) {
            return Ok(());
        }
        let piece = Piece {
            shard: &part.shard,
            targets,
        };
        let nodes = nodes_of(&[piece], schema, &source.flatten.fanouts);
        for (node_type, (fit, places)) in fits.iter_mut().zip(&nodes).enumerate() {
            if node_type != target_type && fit.reads_rows() {
                for place in places {
                    fit.add(part.dense_row(node_type, place.node))?;
                }
            }
        }
        Ok(())
    }
}

/// Returns the widths of transformed features, by type.
pub(super) fn widths(graph: &GraphMeta, transforms: &[Transform]) -> Vec<usize> {
    let types = graph.types.iter().zip(transforms);
    let width = |(of, transform): (&TypeMeta, &Transform)| transform.width(of.features.dim());
    types.map(width).collect()
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
