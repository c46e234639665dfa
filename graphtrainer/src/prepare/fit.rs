//! Fits what a model keeps of its train targets: transforms of features, and the unit of labels.

use gnn::typed::Schema;
use gnn::{LabelScale, StandardizeFit, Transform};
use schemas::{FeatureMeta, GraphMeta, Split, TypeMeta};

use super::Checks;
use crate::TrainError;
use crate::batch::{Piece, Place, nodes_of};
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
    /// to the nodes in the neighbourhoods of the train targets. With pairs, the train targets are the
    /// ends of the train pairs, and their types the target types.
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

    /// Lists the train targets of a part by type; none for a type that has no targets.
    fn train_targets(&self, part: &Part) -> Vec<Option<Vec<u32>>> {
        let mut targets = vec![None; self.graph.types.len()];
        let train = part.targets(Split::Train);
        let Some(meta) = &self.graph.pairs else {
            targets[self.graph.target_type] = Some(train.to_vec());
            return targets;
        };
        let pairs = part.pairs();
        for (node_type, ends) in [(meta.from, &pairs.src), (meta.to, &pairs.dst)] {
            let own: &mut Vec<u32> = targets[node_type].get_or_insert_default();
            own.extend(train.iter().map(|&pair| ends[pair as usize].raw()));
            own.sort_unstable();
            own.dedup();
        }
        targets
    }

    /// Adds the rows of a part that transforms are fitted to.
    fn add_rows(
        &self,
        fits: &mut [TransformFit],
        source: &Source,
        schema: &Schema,
        part: &Part,
    ) -> Result<(), TrainError> {
        let targets = self.train_targets(part);
        for (fit, (node_type, own)) in fits.iter_mut().zip(targets.iter().enumerate()) {
            if !fit.reads_rows() {
                continue;
            }
            for &target in own.iter().flatten() {
                fit.add(part.dense_row(node_type, target))?;
            }
        }
        let mut others = (0..fits.len()).filter(|&at| targets[at].is_none());
        if !others.any(|at| fits[at].reads_rows()) {
            return Ok(());
        }
        let piece = Piece {
            shard: &part.shard,
            targets: &[],
        };
        let place = |&node: &u32| Place { piece: 0, node };
        let roots = targets
            .iter()
            .map(|own| own.iter().flatten().map(place).collect());
        let nodes = nodes_of(&[piece], schema, roots.collect(), &source.flatten.fanouts);
        for (node_type, (fit, places)) in fits.iter_mut().zip(&nodes).enumerate() {
            if targets[node_type].is_none() && fit.reads_rows() {
                for found in places {
                    fit.add(part.dense_row(node_type, found.node))?;
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
