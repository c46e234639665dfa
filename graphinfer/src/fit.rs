//! Checks that a graph fits a model: its features, its columns and its sample.

use crate::InferError;
use crate::columns::{ColumnUse, differences, other_width};
use crate::model::{Record, StoreNeed, Trained, TrainedModel};
use crate::plan::InferPlan;
use gnn::{GnnError, Transform};
use graphtrainer::convert::raw_columns;
use schemas::{
    FeatureMeta, FlattenMeta, GraphColumns, GraphMeta, GraphPlan, Sampling, TypedColumns,
};
use store::StoreMeta;

impl Record {
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

    /// Checks that the model gives as many numbers a node as its labels have.
    pub(crate) fn check_labels(&self) -> Result<(), InferError> {
        let Some(prediction) = self.prediction() else {
            return Ok(());
        };
        let (width, out_dim) = (prediction.kind.width(), self.shape.out_dim);
        if width == out_dim {
            return Ok(());
        }
        Err(self.unfit(format!(
            "it gives {out_dim} numbers a node, its labels have {width}"
        )))
    }

    /// Returns the error of a graph that does not fit the model.
    pub(crate) fn unfit(&self, problem: String) -> InferError {
        let dir = self.dir.clone();
        InferError::Unfit { dir, problem }
    }

    /// Checks that a store keeps the in-edges that the layers read, with the ranks of the training.
    pub(crate) fn check_sample(&self, store: &StoreMeta) -> Result<(), InferError> {
        let unfit = |problem| Err(self.unfit(problem));
        let need = self.store_need();
        let kept = store.keep.0.iter().zip(&need.keep);
        let mut less =
            kept.filter(|(kept, wanted)| kept.is_some_and(|kept| kept < **wanted as u64));
        if let Some((Some(keep), _)) = less.next() {
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

impl TrainedModel {
    /// Checks that a store has everything that the model reads, and the sampling of the training.
    pub(crate) fn check(&self, store: &StoreMeta) -> Result<(), InferError> {
        self.check_graph(&store.graph)?;
        self.record.check_sample(store)
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
        let widths = other_width("input.nodes", &trained.features, &given.features);
        if let Some(problem) = widths {
            return Err(self.record.unfit(problem));
        }
        let arch = self.model.architecture();
        let by_weight = |meta: &FlattenMeta| meta.sampling != Sampling::Uniform;
        let is_weighted = arch.edge_weight || self.record.sampled.as_ref().is_some_and(by_weight);
        let edge_dim = given.num_edge_features().or(arch.edge_dim);
        let used = ColumnUse {
            features: given.num_features().is_none_or(|dim| dim == self.raw_dim()),
            weight: is_weighted && given.weight.is_some(),
            edge_features: arch.edge_dim.is_some() && edge_dim == arch.edge_dim,
        };
        let differences = differences(trained, given, used);
        if differences.is_empty() {
            return Ok(());
        }
        Err(InferError::Columns {
            dir: self.record.dir.clone(),
            differences: differences.join("; "),
        })
    }

    /// Checks that a graph has everything that the model reads.
    pub(crate) fn check_graph(&self, graph: &GraphMeta) -> Result<(), InferError> {
        let unfit = |problem| Err(self.record.unfit(problem));
        if graph.is_typed() {
            let names: Vec<&str> = graph.types.iter().map(|of| &of.name[..]).collect();
            return unfit(format!(
                "it was trained on a graph without node types, this one has {}",
                names.join(", ")
            ));
        }
        let arch = self.model.architecture();
        let of_nodes = &graph.types[0];
        let dim = of_nodes.features.dim();
        let raw_dim = self.raw_dim();
        if dim != raw_dim {
            return unfit(format!(
                "it reads {raw_dim} features a node, `input.nodes.features` have {dim}"
            ));
        }
        if let Err(GnnError::Transform { problem }) =
            self.transform.bind(&raw_columns(&of_nodes.columns))
        {
            return unfit(problem);
        }
        if let Some(problem) = self.record.misfit_of_ids(of_nodes) {
            return unfit(problem);
        }
        let is_sparse = matches!(of_nodes.features, FeatureMeta::Sparse { .. });
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
        self.record.check_labels()
    }

    /// Checks that the model has the planned layer and can give the planned columns.
    pub(crate) fn check_plan(&self, plan: &InferPlan) -> Result<(), InferError> {
        plan.refuse_types()?;
        self.record.check_plan(plan)
    }

    /// Returns the number of features of a node before the transform.
    fn raw_dim(&self) -> usize {
        raw_width(&self.transform, self.model.architecture().features_dim())
    }

    /// Prepares the transform for the columns of a graph, which was checked before.
    pub(crate) fn bound_to(self, graph: &GraphMeta) -> Result<Self, InferError> {
        let columns = raw_columns(&graph.types[0].columns);
        Ok(Self {
            transform: self.transform.bind(&columns)?,
            embedding: self.record.embeddings("")?,
            ..self
        })
    }
}

impl Trained {
    /// Checks that learnable rows have the width of the training, where the job gives their width.
    fn check_embeddings(&self, graph: &GraphPlan) -> Result<(), InferError> {
        let widths: Vec<(&str, Option<usize>)> = match self {
            Self::Untyped(trained) => {
                vec![("", trained.model.architecture().embedding_dim)]
            }
            Self::Typed(trained) => {
                let types = trained.model.architecture().types.iter();
                types.map(|of| (&of.name[..], of.embedding_dim)).collect()
            }
        };
        for (name, trained) in widths {
            let of_type = graph.type_idx(name).map(|at| &graph.types[at].nodes);
            let given = of_type.and_then(|nodes| Some((nodes.table_key(), nodes.embedding()?)));
            let Some((table, given)) = given.filter(|(_, given)| Some(*given) != trained) else {
                continue;
            };
            let had = match trained {
                Some(width) => format!("learnable rows of {width} numbers"),
                None => "no learnable rows".to_owned(),
            };
            return Err(self.record().unfit(format!(
                "`{table}.embedding` is {given}, the model has {had} there"
            )));
        }
        Ok(())
    }

    /// Prepares the transforms for the columns of a graph, which was checked before.
    pub(crate) fn bound_to(self, graph: &GraphMeta) -> Result<Self, InferError> {
        Ok(match self {
            Self::Untyped(trained) => Self::Untyped(Box::new(trained.bound_to(graph)?)),
            Self::Typed(trained) => Self::Typed(Box::new(trained.bound_to(graph)?)),
        })
    }
}

/// Returns the number of features of a node before a transform; the model reads `width` after it.
pub(crate) fn raw_width(transform: &Transform, width: usize) -> usize {
    match transform {
        Transform::Encode(encoder) => encoder.raw_width(),
        Transform::None | Transform::RowNormalize | Transform::Standardize { .. } => width,
    }
}

impl InferPlan {
    /// Returns what a store must hold for this plan and its finished model.
    ///
    /// # Errors
    ///
    /// If the model is missing or broken, or does not record the sampling of its training.
    pub fn store_need(&self) -> Result<StoreNeed, InferError> {
        Ok(Trained::open(self)?.record().store_need())
    }

    /// Checks that the finished model has the planned layer and fits a graph.
    ///
    /// # Errors
    ///
    /// If the model is missing or broken, or reads something that the graph lacks.
    pub fn check_graph(&self, graph: &GraphMeta) -> Result<(), InferError> {
        match Trained::open(self)? {
            Trained::Untyped(trained) => {
                trained.check_plan(self)?;
                trained.check_graph(graph)
            }
            Trained::Typed(trained) => {
                trained.check_graph(graph)?;
                trained.check_plan(self)
            }
        }
    }

    /// Returns the settings that decide the bytes of the output, with the layer that the embeddings
    /// come from.
    ///
    /// # Errors
    ///
    /// If the model is missing or broken, or lacks the planned layer.
    pub fn settings_of_model(&self) -> Result<serde_json::Value, InferError> {
        Trained::open(self)?.settings(self)
    }

    /// Checks that the columns and the direction of a graph are those of the training.
    ///
    /// # Errors
    ///
    /// If the model is missing or broken. [`InferError::Columns`] names each key that differs.
    pub fn check_graph_columns(&self, graph: &GraphPlan) -> Result<(), InferError> {
        let trained = Trained::open(self)?;
        trained.check_embeddings(graph)?;
        match trained {
            Trained::Untyped(trained) => {
                let (nodes, edges) = (&graph.types[0].nodes, &graph.relations[0].edges);
                trained.check_columns(self, Some(&GraphColumns::new(nodes, edges)))
            }
            Trained::Typed(trained) => trained.check_columns(self, Some(&TypedColumns::new(graph))),
        }
    }
}
