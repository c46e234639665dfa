//! The architecture of a model of a typed graph.

use gnn::typed::{RelationInput, TypeInput, TypedArchitecture, TypedKind};
use gnn::{LayerKind, Task};
use schemas::{FeatureMeta, RelationMeta, TypeMeta};

use super::Checks;
use crate::TrainError;
use crate::batch::EdgeColumns;
use crate::config::quoted;
use crate::encode::encoded_width_max;

/// Width of the embedding of a relation of `simple_hgn`, as its authors have it.
const RELATION_DIM: usize = 64;

/// Share of the attention of the layer before in `simple_hgn`, as its authors have it.
const ATTENTION_RESIDUAL: f32 = 0.05;

impl Checks<'_> {
    /// Returns the architecture of a model of a typed graph.
    pub(super) fn typed(
        &self,
        task: Task,
        out_dim: usize,
    ) -> Result<TypedArchitecture, TrainError> {
        let (plan, graph) = (&self.plan.result, self.graph);
        let is_hgn = plan.layer == TypedKind::SimpleHgn;
        let target_type = graph.target().name.clone();
        self.readout_allowed()?;
        self.light_allowed(task)?;
        self.relations_allowed()?;
        let (mut num_layers, mut hidden) = (self.num_layers()?, self.hidden(task));
        if let (Some(_), Some(&width)) = (plan.readout, hidden.last()) {
            num_layers += 1;
            hidden.push(width);
        }
        let relations = graph.relations.iter().zip(self.edge_columns()?);
        Ok(TypedArchitecture {
            layer: plan.layer,
            relation_aggregator: plan.relation_aggregator.unwrap_or_default(),
            aggregator: plan.aggregator,
            types: graph.types.iter().map(|of| self.type_input(of)).collect(),
            relations: relations.map(|of| self.relation_input(of)).collect(),
            target_type,
            projection: self.projection()?,
            num_layers,
            hidden,
            out_dim,
            heads: plan.heads,
            out_heads: plan.out_heads,
            num_bases: plan.bases,
            relation_dim: is_hgn.then(|| plan.relation_dim.unwrap_or(RELATION_DIM)),
            attention_residual: match plan.attention_residual {
                Some(share) => share,
                None if is_hgn => ATTENTION_RESIDUAL,
                None => 0.0,
            },
            dropout: plan.dropout,
            input_dropout: plan.input_dropout,
            attention_dropout: plan.attention_dropout,
            norm: plan.norm,
            residual: plan.residual,
            normalize_output: plan
                .normalize_output
                .unwrap_or(is_hgn && !matches!(task, Task::Links(_))),
            activation: plan.activation,
            task,
            readout: plan.readout,
        })
    }

    /// Checks that no key of models of typed graphs is given for an untyped graph.
    pub(super) fn typed_keys_absent(&self) -> Result<(), TrainError> {
        let plan = &self.plan.result;
        let aggregator = plan.relation_aggregator.map(quoted);
        let share = plan.attention_residual;
        let given = [
            ("relation_aggregator", aggregator),
            ("readout", plan.readout.map(quoted)),
            ("projection", plan.projection.map(|width| width.to_string())),
            ("bases", plan.bases.map(|count| count.to_string())),
            (
                "relation_dim",
                plan.relation_dim.map(|width| width.to_string()),
            ),
            ("attention_residual", share.map(|share| share.to_string())),
            (
                "normalize_output",
                plan.normalize_output.map(|is| is.to_string()),
            ),
        ];
        match given
            .into_iter()
            .find_map(|(key, value)| Some((key, value?)))
        {
            None => Ok(()),
            Some((key, value)) => {
                let input = self.input.to_owned();
                let problem = "its nodes and edges have no types: leave the key out".to_owned();
                Err(TrainError::Unfit {
                    input,
                    key,
                    value,
                    problem,
                })
            }
        }
    }

    /// Checks that a model with a readout has a conv for each relation, and a head after the readout.
    fn readout_allowed(&self) -> Result<(), TrainError> {
        let plan = &self.plan.result;
        if plan.readout.is_none() {
            return Ok(());
        }
        if !plan.layer.joins_relations() {
            let convs = TypedKind::names_of(TypedKind::joins_relations);
            let problem = format!("its targets are graphs, so allowed are {convs}");
            return Err(self.unfit("model", plan.layer.name(), problem));
        }
        if plan.hidden.len() != self.hops {
            let hops = self.hops;
            let problem = format!(
                "its neighbourhoods have {hops} hops and its targets are graphs, so it has {hops} \
                 widths: a linear head follows the readout"
            );
            return Err(self.unfit("hidden", &plan.hidden, problem));
        }
        Ok(())
    }

    /// Checks that a `lightgcn` has learnable rows of one width, and nothing else, to propagate.
    pub(super) fn light_allowed(&self, task: Task) -> Result<(), TrainError> {
        let plan = &self.plan.result;
        if plan.layer != TypedKind::Conv(LayerKind::LightGcn) {
            return Ok(());
        }
        let key = |name: &str, key: &str| match name {
            "" => format!("`input.nodes.{key}`"),
            name => format!("`input.nodes.{name}.{key}`"),
        };
        let mut first = None;
        for of in &self.graph.types {
            let (name, rows) = (&of.name, key(&of.name, "embedding"));
            let Some(&dim) = plan.embeddings.get(name) else {
                let problem = format!("lightgcn propagates learnable rows, but {rows} is missing");
                return Err(self.unfit("model", "lightgcn", problem));
            };
            if of.features != FeatureMeta::None {
                let features = key(name, "features");
                let problem = format!("lightgcn reads no features: leave {features} out");
                return Err(self.unfit("model", "lightgcn", problem));
            }
            let wanted = *first.get_or_insert(dim);
            if dim != wanted {
                let problem =
                    format!("{rows} is {dim}, but rows of another type are {wanted} wide");
                return Err(self.unfit("model", "lightgcn", problem));
            }
            if plan.hidden.iter().any(|&width| width != dim) {
                let problem = format!("every layer of lightgcn is as wide as the rows, {dim}");
                return Err(self.unfit("hidden", &plan.hidden, problem));
            }
            if let Some(width) = plan.projection.filter(|&width| width != dim) {
                let problem = format!("lightgcn projects nothing, and its rows are {dim} wide");
                return Err(self.unfit("projection", width, problem));
            }
        }
        let ends = self.graph.pairs.as_ref().map(|of| [of.from, of.to]);
        let has_in_edges = |of: usize| self.graph.relations.iter().any(|edges| edges.to == of);
        if let Some(of) = ends.into_iter().flatten().find(|&of| !has_in_edges(of)) {
            let problem = format!(
                "nodes of type `{}` have no in-edges, so they would be their learnable rows alone; \
                 set `reverse` of a relation from them",
                self.graph.types[of].name
            );
            return Err(self.unfit("model", "lightgcn", problem));
        }
        let hops = self.hops;
        if !matches!(task, Task::Links(_)) && plan.hidden.len() + 1 == hops {
            let problem = format!(
                "a linear head follows the {hops} layers of lightgcn, so it has {hops} widths"
            );
            return Err(self.unfit("hidden", &plan.hidden, problem));
        }
        Ok(())
    }

    /// Checks that the kind of the model can have every relation of the graph.
    fn relations_allowed(&self) -> Result<(), TrainError> {
        let (types, plan) = (&self.graph.types, &self.plan.result);
        let kind = plan.layer;
        if kind != TypedKind::Conv(LayerKind::Gcn) {
            return Ok(());
        }
        let mut relations = self.graph.relations.iter();
        let reads_out = |to: usize| plan.readout.is_some() && to == self.graph.target_type;
        let is_across = |of: &&RelationMeta| of.from != of.to && !reads_out(of.to);
        let Some(across) = relations.find(is_across) else {
            return Ok(());
        };
        let (from, to) = (&types[across.from].name, &types[across.to].name);
        let others = TypedKind::all().filter(|&other| other != kind);
        let others: Vec<&str> = others.map(TypedKind::name).collect();
        let problem = format!(
            "its relation `{}` leads from `{from}` to `{to}`, and gcn needs relations within a \
             type: allowed are {}",
            across.name,
            others.join(", ")
        );
        Err(self.unfit("model", kind.name(), problem))
    }

    /// Returns the width that features are projected to.
    fn projection(&self) -> Result<usize, TrainError> {
        let plan = &self.plan.result;
        let given = plan.projection.or_else(|| plan.hidden.first().copied());
        given.ok_or(TrainError::Missing {
            key: "projection",
            needed: "the width that the features of every type are projected to, where `hidden` \
                     has no width",
        })
    }

    /// Returns the input of a type; one without features and learnable rows has none.
    fn type_input(&self, meta: &TypeMeta) -> TypeInput {
        let embedding_dim = self.plan.result.embeddings.get(&meta.name).copied();
        let in_dim = encoded_width_max(meta) + embedding_dim.unwrap_or(0);
        TypeInput {
            name: meta.name.clone(),
            in_dim: Some(in_dim).filter(|&dim| dim > 0),
            embedding_dim,
        }
    }

    fn relation_input(&self, (meta, columns): (&RelationMeta, EdgeColumns)) -> RelationInput {
        let name = |node_type: usize| self.graph.types[node_type].name.clone();
        RelationInput {
            name: meta.name.clone(),
            from: name(meta.from),
            to: name(meta.to),
            edge_weight: columns.weight,
            edge_dim: columns.dim,
        }
    }
}
