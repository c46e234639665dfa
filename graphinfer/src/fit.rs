//! Checks that a graph fits a model: its features, its columns and its sample.

use crate::InferError;
use crate::columns::{ColumnUse, differences};
use crate::model::{StoreNeed, TrainedModel};
use crate::plan::InferPlan;
use gnn::Transform;
use schemas::{FeatureMeta, FlattenMeta, GraphColumns, GraphMeta, Sampling};
use store::StoreMeta;

impl TrainedModel {
    /// Checks that graph features were sampled like the graph features of the training.
    pub(crate) fn check_flatten(&self, found: &FlattenMeta) -> Result<(), InferError> {
        let wanted = self.sampled.as_ref();
        let is_same = wanted.is_some_and(|wanted| {
            (&wanted.fanouts, wanted.sampling, wanted.seed)
                == (&found.fanouts, found.sampling, found.seed)
        });
        if found.samples_per_target != 1 {
            let samples = found.samples_per_target;
            let problem = format!(
                "the graph features hold {samples} samples a target, of which only the first is the \
                 one it was trained on; `flatten.samples_per_target` has to be 1"
            );
            let dir = self.dir.clone();
            return Err(InferError::Unfit { dir, problem });
        }
        if is_same {
            return Ok(());
        }
        Err(InferError::Unfit {
            dir: self.dir.clone(),
            problem: format!(
                "the graph features were drawn otherwise than those it was trained on: {found:?}"
            ),
        })
    }

    /// Checks that a store has everything that the model reads, and the sampling of the training.
    pub(crate) fn check(&self, store: &StoreMeta) -> Result<(), InferError> {
        self.check_graph(&store.graph)?;
        self.check_sample(store)
    }

    /// Checks that the columns and the direction of a graph are those of the training.
    pub(crate) fn check_columns(
        &self,
        plan: &InferPlan,
        given: Option<&GraphColumns>,
    ) -> Result<(), InferError> {
        let given = given.filter(|_| plan.check_columns);
        let (Some(trained), Some(given)) = (&self.columns, given) else {
            return Ok(());
        };
        let arch = self.model.architecture();
        let by_weight = |meta: &FlattenMeta| meta.sampling != Sampling::Uniform;
        let is_weighted = arch.edge_weight || self.sampled.as_ref().is_some_and(by_weight);
        let edge_dim = given.num_edge_features().or(arch.edge_dim);
        let used = ColumnUse {
            features: given.num_features().is_none_or(|dim| dim == arch.in_dim),
            weight: is_weighted && given.weight.is_some(),
            edge_features: arch.edge_dim.is_some() && edge_dim == arch.edge_dim,
        };
        let differences = differences(trained, given, used);
        if differences.is_empty() {
            return Ok(());
        }
        Err(InferError::Columns {
            dir: self.dir.clone(),
            differences: differences.join("; "),
        })
    }

    /// Checks that a graph has everything that the model reads.
    pub(crate) fn check_graph(&self, graph: &GraphMeta) -> Result<(), InferError> {
        let unfit = |problem| {
            Err(InferError::Unfit {
                dir: self.dir.clone(),
                problem,
            })
        };
        let arch = self.model.architecture();
        let dim = graph.types[0].features.dim();
        if dim != arch.in_dim {
            return unfit(format!(
                "it reads {} features a node, the nodes have {dim}",
                arch.in_dim
            ));
        }
        let is_sparse = matches!(graph.types[0].features, FeatureMeta::Sparse { .. });
        if is_sparse && matches!(self.transform, Transform::Standardize { .. }) {
            let problem = "it standardises features, which would fill the nodes' sparse ones";
            return unfit(problem.to_owned());
        }
        if arch.edge_weight && !graph.relations[0].edge_weight {
            return unfit("it uses edge weights, the edges have none".to_owned());
        }
        let edge_dim = graph.relations[0].edge_feature_dim.unwrap_or(0);
        if let Some(wanted) = arch.edge_dim.filter(|&wanted| wanted != edge_dim) {
            let problem = format!("it reads {wanted} features an edge, the edges have {edge_dim}");
            return unfit(problem);
        }
        let kind = self.prediction().kind;
        if kind.width() != arch.out_dim {
            let (width, out_dim) = (kind.width(), arch.out_dim);
            return unfit(format!(
                "it gives {out_dim} numbers a node, its labels have {width}"
            ));
        }
        Ok(())
    }

    fn check_sample(&self, store: &StoreMeta) -> Result<(), InferError> {
        let unfit = |problem| {
            Err(InferError::Unfit {
                dir: self.dir.clone(),
                problem,
            })
        };
        let need = self.store_need()?;
        let kept = store.keep.0.iter().flatten().min();
        if let Some(keep) = kept.filter(|keep| **keep < need.keep as u64) {
            return unfit(format!(
                "it reads more in-edges a node than the store's {keep}"
            ));
        }
        match need.sample {
            Some(sample) if (sample.sampling, sample.seed) != (store.sampling, store.seed) => {
                unfit(format!(
                    "it was trained on sampling {:?} with seed {}, the store has {:?} with seed {}; \
                     `infer.sampling` = \"none\" reads all in-edges",
                    sample.sampling, sample.seed, store.sampling, store.seed
                ))
            }
            _ => Ok(()),
        }
    }
}

impl InferPlan {
    /// Returns what a store must hold for this plan and its finished model.
    ///
    /// # Errors
    ///
    /// If the model is missing or broken, or does not record the sampling of its training.
    pub fn store_need(&self) -> Result<StoreNeed, InferError> {
        TrainedModel::open(self)?.store_need()
    }

    /// Checks that the finished model has the planned layer and fits a graph.
    ///
    /// # Errors
    ///
    /// If the model is missing or broken, or reads something that the graph lacks.
    pub fn check_graph(&self, graph: &GraphMeta) -> Result<(), InferError> {
        let trained = TrainedModel::open(self)?;
        trained.check_plan(self)?;
        trained.check_graph(graph)
    }

    /// Returns the settings that decide the bytes of the output, with the layer that the embeddings
    /// come from.
    ///
    /// # Errors
    ///
    /// If the model is missing or broken, or lacks the planned layer.
    pub fn settings_of_model(&self) -> Result<serde_json::Value, InferError> {
        TrainedModel::open(self)?.settings(self)
    }

    /// Checks that the columns and the direction of a graph are those of the training.
    ///
    /// # Errors
    ///
    /// If the model is missing or broken. [`InferError::Columns`] names each key that differs.
    pub fn check_graph_columns(&self, given: &GraphColumns) -> Result<(), InferError> {
        TrainedModel::open(self)?.check_columns(self, Some(given))
    }
}
