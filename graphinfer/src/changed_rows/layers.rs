//! A model whose rows can be kept from version to version, and what its layers read and give.

use crate::InferError;
use crate::config::{InferTargets, Method};
use crate::embedding::reads_logits;
use crate::hubs::HUB_EDGES;
use crate::infer::{Settings, check_model};
use crate::layer::first_not_finite;
use crate::model::{Record, Trained};
use crate::plan::InferPlan;
use crate::typed::{NeededTypes, TypedSettings, Wanted, WrittenColumns, check_typed_model};
use gnn::typed::{TypedHead, TypedKind};
use gnn::{Dense, Head, LayerKind, RowFormat};
use graphdelta::{After, Degrees, ReachPlan};
use graphtrainer::batch::EdgeColumns;
use graphtrainer::schema_of;
use schemas::{GraphMeta, NodeIdx};
use store::Store;

/// A model whose rows can be kept from version to version, and what its layers read.
pub(crate) struct Layers {
    /// With the defaults of the model's task.
    pub(crate) plan: InferPlan,
    pub(crate) trained: Trained,
    /// By layer, from layer 1, and relation: how many in-edges of a node are read.
    pub(crate) limits: Vec<Vec<usize>>,
    /// By relation: the columns of edges that the model reads.
    pub(crate) edges: Vec<EdgeColumns>,
    /// The types whose rows each layer computes.
    pub(crate) needed: NeededTypes,
    /// The types that are written, with their columns.
    pub(crate) written: Vec<WrittenColumns>,
    pub(crate) embedding_layer: usize,
    /// The settings by which rows are computed.
    pub(crate) plan_json: serde_json::Value,
}

/// The step from rows of the last layer to logits, for one thread.
pub(crate) enum AnyHead<'a> {
    Untyped(Head<'a>),
    Typed(TypedHead<'a>),
}

impl AnyHead<'_> {
    pub(crate) fn run(&self, rows: Dense) -> Result<Dense, InferError> {
        Ok(match self {
            Self::Untyped(head) => head.run(rows)?,
            Self::Typed(head) => head.run(rows)?,
        })
    }
}

impl Layers {
    /// Opens the model of a plan.
    pub(crate) fn open(plan: &InferPlan, store: &Store) -> Result<Self, InferError> {
        let graph = &store.meta().graph;
        let (trained, plan) = open_kept(plan)?;
        let edges = trained.edge_columns();
        match trained {
            Trained::Untyped(trained) => {
                let trained = check_model(&plan, *trained, store)?;
                let settings = Settings::new(&plan, &trained, store)?;
                let written = WrittenColumns::of_untyped(&plan, &trained.record, graph)?;
                let wanted = Wanted {
                    is_written: &[true],
                    embedding_layer: settings.embedding_layer,
                    logits_of: reads_logits(&written.columns).then_some(0),
                };
                let limits = settings.slices.iter().map(|slice| vec![slice.limit]);
                let limits: Vec<Vec<usize>> = limits.collect();
                Ok(Self {
                    needed: NeededTypes::new(&schema_of(graph), &limits, &wanted),
                    limits,
                    edges,
                    written: vec![written],
                    embedding_layer: settings.embedding_layer,
                    plan_json: settings.plan_json,
                    trained: Trained::Untyped(Box::new(trained)),
                    plan,
                })
            }
            Trained::Typed(trained) => {
                let trained = check_typed_model(&plan, *trained, store)?;
                let settings = TypedSettings::new(&plan, &trained, store)?;
                Ok(Self {
                    written: settings.columns(&plan, &trained, graph)?,
                    embedding_layer: settings.embedding_layer(),
                    plan_json: settings.plan_json,
                    limits: settings.sampled.limits,
                    edges,
                    needed: settings.sampled.needed,
                    trained: Trained::Typed(Box::new(trained)),
                    plan,
                })
            }
        }
    }

    /// Returns the number of layers that are computed.
    pub(crate) fn num_layers(&self) -> usize {
        self.limits.len()
    }

    pub(crate) fn record(&self) -> &Record {
        self.trained.record()
    }

    /// Returns the width of rows after a layer, from 1.
    pub(crate) fn output_dim(&self, layer: usize) -> usize {
        self.record().shape.output_dim(layer)
    }

    /// Returns the in-edges and degrees that the layers read.
    pub(crate) fn reach_plan(&self, graph: &GraphMeta) -> ReachPlan {
        let layers = (1..).zip(&self.limits).map(|(layer, limits)| {
            let relations = graph.relations.iter().zip(limits);
            let read = relations.map(|(of, &limit)| match self.needed.has(layer, of.to) {
                true => limit,
                false => 0,
            });
            read.collect()
        });
        ReachPlan {
            hops: Vec::new(),
            layers: layers.collect(),
            degrees: self.degrees(),
            weights: self.reads_weights(),
            hub_edges: HUB_EDGES,
        }
    }

    fn reads_weights(&self) -> bool {
        self.edges.iter().any(|of| of.weight)
    }

    /// Returns the in-degrees that the model reads besides those of changed in-edges.
    pub(super) fn degrees(&self) -> Degrees {
        match self.trained.kind() {
            TypedKind::Conv(LayerKind::Gcn) => Degrees::Sources,
            _ if self.reads_weights() => Degrees::Own,
            // From the mean of a sample the in-degree cancels, without weights (gnn/src/coefficient.rs).
            TypedKind::Conv(LayerKind::Sage | LayerKind::Gat | LayerKind::GatV2)
            | TypedKind::Rgcn
            | TypedKind::SimpleHgn
            | TypedKind::Hgt => Degrees::None,
            TypedKind::Conv(_) => Degrees::Own,
        }
    }

    /// Tells whether a layer reads more than the rows of the layer before: Simple-HGN mixes in the
    /// scores of earlier layers.
    pub(super) fn reads_earlier_rows(&self) -> bool {
        let Trained::Typed(trained) = &self.trained else {
            return false;
        };
        let mut layers = (1..=self.num_layers()).map(|layer| trained.model.layer_slice(layer));
        layers.any(|slice| slice.carried_dim().is_some())
    }

    /// Returns how many in-edges of a node of each relation versions keep: as many as a layer of the
    /// model reads, whatever the output has.
    pub(crate) fn keep(&self) -> Vec<usize> {
        let (record, sampling) = (self.record(), self.plan.sampling);
        let relations = 0..record.shape.num_relations;
        let keep = relations.map(|relation| {
            let limits = record.limits(record.shape.num_layers, relation, sampling);
            limits.into_iter().max().unwrap_or(0)
        });
        keep.collect()
    }

    /// Returns the step to logits, for one thread.
    pub(crate) fn head(&self) -> AnyHead<'_> {
        match &self.trained {
            Trained::Untyped(trained) => AnyHead::Untyped(trained.model.head()),
            Trained::Typed(trained) => AnyHead::Typed(trained.model.head()),
        }
    }

    /// Returns an error if the rows of some nodes after a layer hold a number that is not finite.
    pub(crate) fn check_finite(
        &self,
        (layer, rows): (usize, &Dense),
        (after, nodes): (&After, &[NodeIdx]),
    ) -> Result<(), InferError> {
        let Some(at) = first_not_finite(&rows.values) else {
            return Ok(());
        };
        let node = nodes[at / rows.cols];
        let (id, graph) = (after.display(node), &after.store().meta().graph);
        let id = match graph.is_typed() {
            false => id,
            true => format!("{id} of type `{}`", graph.types[after.type_of(node)].name),
        };
        Err(InferError::NotFinite {
            dir: self.record().dir.clone(),
            layer,
            id,
        })
    }
}

/// Opens the model of a plan, and refuses it if its rows cannot be kept. Returns it with the plan that
/// has the defaults of the model's task.
pub(crate) fn open_kept(plan: &InferPlan) -> Result<(Trained, InferPlan), InferError> {
    refuse_plan(plan)?;
    let opened = Trained::open(plan)?;
    let plan = opened.record().completed(plan);
    let problem = match () {
        () if opened.kind() == TypedKind::Conv(LayerKind::LightGcn) => {
            "lightgcn reads the rows of all layers"
        }
        () if opened.record().shape.has_readout => "the model gives embeddings of graphs",
        () => return Ok((opened, plan)),
    };
    Err(InferError::FullRun(problem))
}

/// Refuses a plan whose rows cannot be kept, whatever the model.
pub(crate) fn refuse_plan(plan: &InferPlan) -> Result<(), InferError> {
    let problem = match () {
        () if plan.method != Method::Layers => "`infer.method` is \"neighborhoods\"",
        () if plan.targets != InferTargets::All => "`infer.targets` is a list",
        () if plan.compare_sampling => "`infer.compare_sampling` is true",
        () if !plan.columns.is_empty() => "`infer.columns` copies columns of the node table",
        () if plan.rows != RowFormat::F32 => "`infer.rows` keeps rows in 16 bits",
        () => return Ok(()),
    };
    Err(InferError::FullRun(problem))
}
