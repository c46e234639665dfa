//! Checks that a graph with node types fits a model.

use crate::InferError;
use crate::columns::{ColumnUse, other_width, typed_differences};
use crate::fit::raw_width;
use crate::model::TypedTrained;
use crate::plan::InferPlan;
use gnn::{GnnError, Transform};
use graphtrainer::convert::raw_columns;
use schemas::{FeatureMeta, GraphMeta, RelationMeta, Sampling, TypeMeta, TypedColumns};
use std::collections::BTreeSet;
use store::StoreMeta;

impl TypedTrained {
    /// Checks that a store has everything that the model reads, and the sampling of the training.
    pub(crate) fn check(&self, store: &StoreMeta) -> Result<(), InferError> {
        self.check_graph(&store.graph)?;
        self.record.check_sample(store)
    }

    /// Checks that the model has the planned layer and types, and can give the planned columns.
    pub(crate) fn check_plan(&self, plan: &InferPlan) -> Result<(), InferError> {
        self.settings(plan)?;
        self.record.check_plan(plan)
    }

    /// Checks that the columns of types and relations are those of the training.
    pub(crate) fn check_columns(
        &self,
        plan: &InferPlan,
        given: Option<&TypedColumns>,
    ) -> Result<(), InferError> {
        let given = given.filter(|_| plan.check_columns);
        let (Some(trained), Some(given)) = (&self.columns, given) else {
            return Ok(());
        };
        let mut types = given.types.iter();
        let widths = types.find_map(|(name, now)| {
            let before = trained.types.get(name)?;
            let table = format!("input.nodes.{name}");
            other_width(&table, &before.features, &now.features)
        });
        if let Some(problem) = widths {
            return Err(self.record.unfit(problem));
        }
        let sampled = self.record.sampled.as_ref();
        let by_weight = sampled.is_some_and(|of| of.sampling != Sampling::Uniform);
        let relations = &self.model.architecture().relations;
        let used = |name: &str| {
            let read = relations.iter().find(|of| of.name == name);
            ColumnUse {
                features: false,
                weight: by_weight || read.is_some_and(|of| of.edge_weight),
                edge_features: read.is_some_and(|of| of.edge_dim.is_some()),
            }
        };
        let differences = typed_differences(trained, given, used);
        if differences.is_empty() {
            return Ok(());
        }
        Err(InferError::Columns {
            dir: self.record.dir.clone(),
            differences: differences.join("; "),
        })
    }

    /// Checks that a graph has the types and relations of the model, and everything that the model
    /// reads of them.
    pub(crate) fn check_graph(&self, graph: &GraphMeta) -> Result<(), InferError> {
        match self.misfit(graph) {
            Some(problem) => Err(self.record.unfit(problem)),
            None => self.record.check_labels(),
        }
    }

    /// Prepares the transforms for the columns of a graph, which was checked before.
    pub(crate) fn bound_to(self, graph: &GraphMeta) -> Result<Self, InferError> {
        let types = self.transforms.iter().zip(&graph.types);
        let bound = types.map(|(transform, of)| transform.bind(&raw_columns(&of.columns)));
        let transforms = bound.collect::<Result<_, _>>()?;
        let embeddings = graph
            .types
            .iter()
            .map(|of| self.record.embeddings(&of.name));
        Ok(Self {
            embeddings: embeddings.collect::<Result<_, _>>()?,
            transforms,
            ..self
        })
    }

    /// Returns the first difference between a graph and what the model reads.
    fn misfit(&self, graph: &GraphMeta) -> Option<String> {
        let arch = self.model.architecture();
        if !graph.is_typed() {
            let names: Vec<&str> = arch.types.iter().map(|of| &of.name[..]).collect();
            let names = names.join(", ");
            return Some(format!(
                "it was trained on node types ({names}), the nodes of the graph have none"
            ));
        }
        let model_types = arch.types.iter().map(|of| &of.name[..]);
        let graph_types = graph.types.iter().map(|of| &of.name[..]);
        if let Some(problem) = other_names("node type", model_types, graph_types) {
            return Some(problem);
        }
        let model_relations = arch.relations.iter().map(|of| &of.name[..]);
        let graph_relations = graph.relations.iter().map(|of| &of.name[..]);
        if let Some(problem) = other_names("relation", model_relations, graph_relations) {
            return Some(problem);
        }
        let target = &graph.target().name;
        if *target != arch.target_type {
            return Some(format!(
                "it was trained on the target type `{}`, the job has `{target}`",
                arch.target_type
            ));
        }
        let mut types = graph.types.iter().enumerate();
        let of_types = types.find_map(|(at, of)| self.misfit_of_type(at, of));
        of_types.or_else(|| {
            let mut relations = graph.relations.iter().enumerate();
            relations.find_map(|(at, of)| self.misfit_of_relation(at, (of, graph)))
        })
    }

    fn misfit_of_type(&self, at: usize, given: &TypeMeta) -> Option<String> {
        let (transform, name) = (&self.transforms[at], &given.name);
        let encoded = self.model.architecture().types[at].features_dim();
        let wanted = raw_width(transform, encoded);
        let dim = given.features.dim();
        if wanted != dim {
            return Some(format!(
                "it reads {wanted} features a node, `input.nodes.{name}.features` have {dim}"
            ));
        }
        if let Err(GnnError::Transform { problem }) = transform.bind(&raw_columns(&given.columns)) {
            return Some(format!("of type `{name}`, {problem}"));
        }
        if let Some(problem) = self.record.misfit_of_ids(given) {
            return Some(problem);
        }
        let is_sparse = matches!(given.features, FeatureMeta::Sparse { .. });
        let fills = matches!(transform, Transform::Standardize { .. });
        (is_sparse && fills).then(|| {
            format!(
                "it standardises the features of type `{name}`, which would fill its sparse ones"
            )
        })
    }

    fn misfit_of_relation(
        &self,
        at: usize,
        (given, graph): (&RelationMeta, &GraphMeta),
    ) -> Option<String> {
        let (wanted, name) = (&self.model.architecture().relations[at], &given.name);
        let ends = [given.from, given.to].map(|end| &graph.types[end].name[..]);
        if ends != [&wanted.from[..], &wanted.to[..]] {
            return Some(format!(
                "relation `{name}` led from `{}` to `{}` in training, it leads from `{}` to `{}`",
                wanted.from, wanted.to, ends[0], ends[1]
            ));
        }
        if wanted.edge_weight && !given.edge_weight {
            return Some(format!(
                "it uses the edge weights of relation `{name}`, which has none"
            ));
        }
        let dim = given.edge_feature_dim.unwrap_or(0);
        let wanted = wanted.edge_dim.filter(|&wanted| wanted != dim)?;
        Some(format!(
            "it reads {wanted} features an edge of relation `{name}`, which has {dim}"
        ))
    }
}

/// Returns a sentence on the first name that only the model or only the graph has.
fn other_names<'a>(
    what: &str,
    of_model: impl Iterator<Item = &'a str>,
    of_graph: impl Iterator<Item = &'a str>,
) -> Option<String> {
    let of_model: BTreeSet<&str> = of_model.collect();
    let of_graph: BTreeSet<&str> = of_graph.collect();
    if let Some(name) = of_model.difference(&of_graph).next() {
        return Some(format!(
            "it was trained on {what} `{name}`, which the graph lacks"
        ));
    }
    let name = of_graph.difference(&of_model).next()?;
    Some(format!(
        "the graph has {what} `{name}`, on which it was not trained"
    ))
}
