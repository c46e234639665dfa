//! Checks that plan and data fit, and builds the model, before the first step.

mod edges;
mod fit;
mod links;
mod typed;

use std::fmt::Debug;
use std::path::Path;
use std::sync::Arc;

use gnn::kernel::Partitioning;
use gnn::typed::{Schema, TypedKind};
use gnn::{Architecture, ParameterInfo, Task, Transform};
use schemas::{FeatureMeta, GraphMeta, LabelKind, PairsMeta, Split};

use crate::any_model::{AnyArchitecture, AnyModel, schema_of};
use crate::batch::BlockOptions;
use crate::class_weight::{ClassWeights, balanced};
use crate::config::{Loss, ResultPlan};
use crate::embedding::NodeEmbeddings;
use crate::encode::encoded_width_max;
use crate::learnable::LearnableType;
use crate::link::LinkBatches;
use crate::metric::Metric;
use crate::server::{MESSAGE_BYTES_MAX, TableRows, TableSpec, TensorSpec, spread};
use crate::source::Source;
use crate::vectorise::{LastShared, Vectoriser};
use crate::{TrainError, TrainPlan};

/// The start of the training loop.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The model before its first update.
    pub(crate) model: AnyModel,
    pub(crate) schema: Arc<Schema>,
    pub(crate) options: BlockOptions,
    /// By type.
    pub(crate) transforms: Vec<Transform>,
    /// By type: whether the model reads features of its nodes.
    pub(crate) reads_features: Vec<bool>,
    /// The types whose nodes have learnable rows.
    pub(crate) learnable: Vec<LearnableType>,
    /// Weight of a target's loss by its class; empty: 1 for all.
    pub(crate) class_weights: Vec<f32>,
    pub(crate) monitor: Metric,
    /// Weight decay of each parameter.
    pub(crate) decays: Vec<f32>,
    /// How batches of pairs are made; none if targets are nodes.
    pub(crate) links: Option<LinkBatches>,
}

impl Prepared {
    /// Returns the embedding tables of the server.
    pub(crate) fn tables(&self) -> Vec<TableSpec> {
        self.learnable.iter().map(|of| of.table.clone()).collect()
    }

    /// Returns trained tables, given the rows of a state.
    pub(crate) fn trained_tables(&self, rows: &[Arc<TableRows>]) -> Vec<Arc<NodeEmbeddings>> {
        let specs: Vec<&TableSpec> = self.learnable.iter().map(|of| &of.table).collect();
        NodeEmbeddings::of_state(&specs, rows)
    }

    /// Returns the vectoriser; with `trains`, batches also get the values of the backward pass.
    pub(crate) fn vectoriser(&self, trains: bool) -> Vectoriser {
        let by_type = self.transforms.iter().zip(&self.reads_features);
        let transforms = by_type.map(|(transform, reads)| reads.then(|| transform.clone()));
        Vectoriser {
            schema: Arc::clone(&self.schema),
            options: BlockOptions {
                // Evaluation drops nothing.
                node_keys: self.options.node_keys && trains,
                ..self.options.clone()
            },
            transforms: transforms.collect(),
            learnable: self.learnable.clone(),
            class_weights: self.class_weights.clone(),
            trained: trains.then(|| self.model.clone()),
            links: self.links.clone(),
            shared: self.shares_blocks().then(LastShared::default),
        }
    }

    /// Tells whether all batches of a part have the same blocks. With neither dropout nor
    /// statistics of the batch, a model then computes the same rows in each of them.
    fn shares_blocks(&self) -> bool {
        self.model.is_light() && self.links.as_ref().is_some_and(LinkBatches::shares_blocks)
    }
}

/// The plan on the given data, with every default filled in.
#[derive(Debug)]
pub(crate) struct Resolved {
    pub(crate) arch: AnyArchitecture,
    pub(crate) monitor: Metric,
    /// Weight decay of each parameter.
    pub(crate) decays: Vec<f32>,
}

/// Checks the plan against the manifest of the data.
pub(crate) fn check(plan: &TrainPlan, source: &Source) -> Result<Resolved, TrainError> {
    let checks = Checks::of(plan, source);
    checks.splits(source)?;
    let arch = checks.architecture()?;
    arch.validate()?;
    checks.transforms_allowed()?;
    checks.embeddings_allowed()?;
    checks.class_weights_allowed(&arch)?;
    let monitor = checks.monitor(&arch)?;
    let decays = checks.decays(&arch)?;
    Ok(Resolved {
        arch,
        monitor,
        decays,
    })
}

/// Checks that servers in several processes can hold the model.
pub(crate) fn check_messages(
    plan: &TrainPlan,
    source: &Source,
    resolved: &Resolved,
) -> Result<(), TrainError> {
    Checks::of(plan, source).messages(&resolved.arch, &resolved.decays)
}

/// Initialises the model and fits the transform.
pub(crate) fn prepare(plan: &TrainPlan, source: &Source) -> Result<Prepared, TrainError> {
    let Resolved {
        mut arch,
        monitor,
        decays,
    } = check(plan, source)?;
    let checks = Checks::of(plan, source);
    let schema = Arc::new(schema_of(&source.graph));
    let transforms = checks.transforms(source, &schema)?;
    arch.set_feature_dims(&fit::widths(&source.graph, &transforms));
    arch.validate()?;
    let options = BlockOptions {
        fanouts: source.flatten.fanouts.clone(),
        sampling: source.flatten.sampling,
        pruning: plan.tuning.pruning,
        partitioning: if plan.tuning.edge_partitioning {
            Partitioning::EdgeBalanced
        } else {
            Partitioning::Off
        },
        edges: arch.edge_columns(),
        node_keys: arch.has_dropout(),
        source_degrees: arch.reads_source_degrees(),
    };
    let class_weights = match &plan.result.class_weights {
        None => Vec::new(),
        Some(ClassWeights::Listed(weights)) => weights.clone(),
        Some(ClassWeights::Balanced) => balanced(source, arch.out_dim())?,
    };
    let mut model = AnyModel::init(&arch, plan.result.seed)?;
    model.set_class_weights(class_weights.clone());
    if arch.task() == Task::Regression {
        model.set_label_scale(fit::label_scale(source)?)?;
    }
    let learnable = learnable(&source.graph, &arch, &plan.result);
    model.set_device(plan.tuning.device.open()?);
    checks.all_negatives_fit(source)?;
    let links = source.graph.pairs.as_ref().map(|meta| LinkBatches {
        plan: plan.result.links(),
        meta: meta.clone(),
        seed: plan.result.seed,
    });
    Ok(Prepared {
        links,
        schema,
        options,
        transforms,
        reads_features: arch.reads_features(),
        learnable,
        class_weights,
        monitor,
        decays,
        model,
    })
}

/// Lists the types whose nodes have learnable rows.
fn learnable(graph: &GraphMeta, arch: &AnyArchitecture, plan: &ResultPlan) -> Vec<LearnableType> {
    let types = graph.types.iter().zip(arch.embedding_dims()).enumerate();
    let learnable = types.filter_map(|(node_type, (of, dim))| {
        let table = TableSpec {
            name: of.name.clone(),
            id_type: of.id_type,
            dim: dim?,
            seed: plan.seed,
            weight_decay: plan.embedding_weight_decay,
        };
        Some(LearnableType { node_type, table })
    });
    learnable.collect()
}

/// Bytes of a message besides parameters and optimiser's state, mainly the model's buffers.
const ROOM_BYTES: usize = 16 << 20;

impl TrainPlan {
    /// Checks that the plan fits the graph features that it reads, which must exist.
    ///
    /// # Errors
    ///
    /// If they are not finished or cannot be read; every error that the training would return
    /// before its first step.
    pub fn check_input(&self) -> Result<(), TrainError> {
        let source = Source::open(&self.input, self.part_cache_bytes())?;
        check(self, &source).map(drop)
    }

    /// Checks that a graph whose neighbourhoods have `hops` hops has what the plan reads, labels
    /// aside.
    ///
    /// # Errors
    ///
    /// An error for missing or unfit columns of the graph.
    pub fn check_graph(&self, graph: &GraphMeta, hops: usize) -> Result<(), TrainError> {
        let checks = Checks::new(self, graph, hops);
        match &graph.pairs {
            Some(pairs) => checks.monitor(&checks.links(pairs)?).map(drop),
            None => {
                checks.link_keys_absent()?;
                checks.architecture_of(Task::Regression, 1).map(drop)
            }
        }
    }

    /// Returns the hops that convs read: the first hop of graphs is that of the readout.
    fn conv_hops(&self, hops: usize) -> usize {
        hops - usize::from(self.result.readout.is_some())
    }

    /// Checks that parameter servers of several processes can hold a model for this graph, whose
    /// neighbourhoods have `hops` hops. A graph whose labels were not read yet is passed with the
    /// narrowest label that it could have.
    ///
    /// # Errors
    ///
    /// [`TrainError::Key`] if more servers are needed; an error for missing or unfit columns of the
    /// graph.
    pub fn check_servers(&self, graph: &GraphMeta, hops: usize) -> Result<(), TrainError> {
        let checks = Checks::new(self, graph, hops);
        let arch = match &graph.pairs {
            Some(pairs) => checks.links(pairs)?,
            None => checks.architecture_of(Task::Regression, checks.label()?.width())?,
        };
        // An invalid architecture is reported later, when the true width of the labels is known.
        match arch.validate() {
            Ok(()) => checks.messages(&arch, &checks.decays(&arch)?),
            Err(_) => Ok(()),
        }
    }
}

/// Returns the description of a model's tensors for the server.
pub(crate) fn tensors(parameters: &[ParameterInfo], decays: &[f32]) -> Vec<TensorSpec> {
    let infos = parameters.iter().zip(decays);
    infos
        .map(|(info, &weight_decay)| TensorSpec {
            name: info.name.clone(),
            len: info.len(),
            weight_decay,
        })
        .collect()
}

struct Checks<'a> {
    plan: &'a TrainPlan,
    input: &'a Path,
    graph: &'a GraphMeta,
    hops: usize,
}

impl<'a> Checks<'a> {
    fn new(plan: &'a TrainPlan, graph: &'a GraphMeta, hops: usize) -> Self {
        Self {
            plan,
            input: &plan.input,
            graph,
            hops: plan.conv_hops(hops),
        }
    }

    fn of(plan: &'a TrainPlan, source: &'a Source) -> Self {
        Self {
            plan,
            input: &source.input,
            graph: &source.graph,
            hops: plan.conv_hops(source.flatten.hops),
        }
    }

    fn unfit(&self, key: &'static str, value: impl Debug, problem: String) -> TrainError {
        TrainError::Unfit {
            input: self.input.to_owned(),
            key,
            value: format!("{value:?}"),
            problem,
        }
    }

    fn untrainable(&self, problem: &'static str) -> TrainError {
        TrainError::Untrainable {
            input: self.input.to_owned(),
            problem,
        }
    }

    fn splits(&self, source: &Source) -> Result<(), TrainError> {
        if self.graph.pairs.is_none() && self.graph.target().split.is_none() {
            return Err(self.untrainable(match self.graph.is_typed() {
                true => "its targets have no splits (`input.nodes.TYPE.split`)",
                false => "its nodes have no splits (`input.nodes.split`)",
            }));
        }
        let empty = |split: Split| source.counts_of(split).iter().all(|&count| count == 0);
        let error = |split, reason| TrainError::EmptySplit {
            input: self.input.to_owned(),
            split,
            reason,
        };
        if empty(Split::Train) {
            return Err(error("train", "training needs at least one row in it"));
        }
        if empty(Split::Val) && self.plan.result.patience.is_some() {
            return Err(error(
                "val",
                "`train.patience` waits for a better metric on it",
            ));
        }
        if empty(Split::Val) && self.plan.result.monitor.is_some() {
            return Err(error("val", "`train.monitor` is a metric on it"));
        }
        Ok(())
    }

    fn architecture(&self) -> Result<AnyArchitecture, TrainError> {
        if let Some(pairs) = &self.graph.pairs {
            return self.links(pairs);
        }
        let label = self.label()?;
        self.link_keys_absent()?;
        let task = match label {
            LabelKind::Class { .. } | LabelKind::ClassName { .. } => Task::Classes,
            LabelKind::MultiLabel { .. } => Task::MultiLabel,
            LabelKind::Number => Task::Regression,
        };
        let fitting = Loss::of_task(task);
        let given = self.plan.result.loss;
        if let Some(loss) = given.filter(|loss| *loss != fitting) {
            let kind = match task {
                Task::Classes => "classes",
                Task::MultiLabel => "lists of zeros and ones",
                Task::Regression | Task::Links(_) => "numbers",
            };
            let problem = format!("its labels are {kind}, allowed is {}", fitting.name());
            return Err(self.unfit("loss", loss.name(), problem));
        }
        self.architecture_of(task, label.width())
    }

    fn label(&self) -> Result<&LabelKind, TrainError> {
        let label = self.graph.target().label.as_ref().map(|label| &label.kind);
        label.ok_or_else(|| {
            self.untrainable(match self.graph.is_typed() {
                true => {
                    "its targets have no labels (`input.nodes.TYPE.label`), and it has no pairs \
                     (`[input.pairs]`)"
                }
                false => {
                    "its nodes have no labels (`input.nodes.label`), and it has no pairs \
                     (`[input.pairs]`)"
                }
            })
        })
    }

    /// Checks that a decay of learnable rows has rows.
    fn decay_of_rows_allowed(&self) -> Result<(), TrainError> {
        let plan = &self.plan.result;
        if plan.embedding_weight_decay == 0.0 || !plan.embeddings.is_empty() {
            return Ok(());
        }
        let key = match self.graph.is_typed() {
            true => "input.nodes.TYPE.embedding",
            false => "input.nodes.embedding",
        };
        let problem = format!("its nodes have no learnable rows (`{key}`): leave it out");
        Err(self.unfit(
            "embedding_weight_decay",
            plan.embedding_weight_decay,
            problem,
        ))
    }

    fn architecture_of(&self, task: Task, out_dim: usize) -> Result<AnyArchitecture, TrainError> {
        self.decay_of_rows_allowed()?;
        Ok(match self.graph.is_typed() {
            true => AnyArchitecture::Typed(Box::new(self.typed(task, out_dim)?)),
            false => AnyArchitecture::Untyped(Box::new(self.untyped(task, out_dim)?)),
        })
    }

    fn untyped(&self, task: Task, out_dim: usize) -> Result<Architecture, TrainError> {
        let (plan, graph) = (&self.plan.result, self.graph);
        self.light_allowed(task)?;
        self.typed_keys_absent()?;
        let layer = match plan.layer {
            TypedKind::Conv(layer) => layer,
            kind => {
                let convs = TypedKind::names_of(|known| matches!(known, TypedKind::Conv(_)));
                let problem = format!("its nodes and edges have no types, so allowed are {convs}");
                return Err(self.unfit("model", kind.name(), problem));
            }
        };
        let embedding_dim = plan.embeddings.get("").copied();
        if graph.types[0].features == FeatureMeta::None && embedding_dim.is_none() {
            let problem = "its nodes have no features (`input.nodes.features` or `.sparse`) and no \
                           learnable rows (`input.nodes.embedding`)";
            return Err(self.untrainable(problem));
        }
        let edges = self.edge_columns()?[0];
        Ok(Architecture {
            layer,
            aggregator: plan.aggregator,
            in_dim: encoded_width_max(&graph.types[0]) + embedding_dim.unwrap_or(0),
            embedding_dim,
            edge_dim: edges.dim,
            edge_weight: edges.weight,
            num_layers: self.num_layers()?,
            hidden: self.hidden(task),
            out_dim,
            heads: plan.heads,
            out_heads: plan.out_heads,
            dropout: plan.dropout,
            input_dropout: plan.input_dropout,
            attention_dropout: plan.attention_dropout,
            norm: plan.norm,
            residual: plan.residual,
            activation: plan.activation,
            task,
        })
    }

    /// Returns the widths of the hidden layers. With links, the last width is that of the output.
    fn hidden(&self, task: Task) -> Vec<usize> {
        let given = &self.plan.result.hidden;
        let is_links = matches!(task, Task::Links(_));
        given[..given.len() - usize::from(is_links && !given.is_empty())].to_vec()
    }

    fn num_layers(&self) -> Result<usize, TrainError> {
        let (plan, hops) = (&self.plan.result, self.hops);
        if let Some(layers) = plan.layers.filter(|&layers| layers != hops) {
            let problem = format!("its neighbourhoods have {hops} hops, so allowed is {hops}");
            return Err(self.unfit("layers", layers, problem));
        }
        let given = plan.hidden.len();
        if given != hops && given + 1 != hops {
            let fewer = hops.saturating_sub(1);
            let problem = format!(
                "its neighbourhoods have {hops} hops, so allowed are {fewer} widths, or {hops} \
                 with a linear head"
            );
            return Err(self.unfit("hidden", &plan.hidden, problem));
        }
        Ok(hops)
    }

    /// Checks that a server's state fits into a message.
    fn messages(&self, arch: &AnyArchitecture, decays: &[f32]) -> Result<(), TrainError> {
        let (servers, optimizer) = (self.plan.tuning.servers, &self.plan.result.optimizer);
        let tensors = tensors(&arch.parameters(), decays);
        let vectors = optimizer.num_moments() + 1;
        let held = spread(&tensors, servers).into_iter().map(|shard| {
            let num_values: usize = shard.iter().map(|(place, _)| place.len()).sum();
            num_values.saturating_mul(4 * vectors)
        });
        if held.max() > Some(MESSAGE_BYTES_MAX - ROOM_BYTES) {
            let allowed = "parameters and optimiser's state of a server must fit into 2 GiB: \
                           use more servers";
            return Err(TrainError::of_key("servers", servers, allowed));
        }
        Ok(())
    }

    fn monitor(&self, arch: &AnyArchitecture) -> Result<Metric, TrainError> {
        let mut allowed = Metric::of_task(arch.task(), arch.out_dim()).to_vec();
        let shares = |pairs: &PairsMeta| self.plan.shares_blocks(pairs.exclude);
        let pairs = self.graph.pairs.as_ref().filter(|pairs| shares(pairs));
        if pairs.is_some_and(|pairs| pairs.from != pairs.to) {
            allowed.extend(Metric::OF_RANKING);
        }
        match self.plan.result.monitor {
            None => Ok(allowed[0]),
            Some(monitor) if allowed.contains(&monitor) => Ok(monitor),
            Some(monitor) if Metric::OF_RANKING.contains(&monitor) => {
                let problem = "pairs are ranked among all nodes by `model = \"lightgcn\"` with \
                               `negatives = { all = true }` or `whole_parts = true`, `exclude` \
                               \"all\" or \"none\" and ends of two types; monitor another metric";
                Err(self.unfit("monitor", monitor.name(), problem.to_owned()))
            }
            Some(monitor) => {
                let names: Vec<_> = allowed.iter().map(|metric| metric.name()).collect();
                let targets = match arch.task() {
                    Task::Links(_) => "pairs",
                    _ => "its labels",
                };
                let problem = format!("allowed for {targets}: {}", names.join(", "));
                Err(self.unfit("monitor", monitor.name(), problem))
            }
        }
    }

    /// Returns the weight decay of each parameter.
    fn decays(&self, arch: &AnyArchitecture) -> Result<Vec<f32>, TrainError> {
        let plan = &self.plan.result;
        let last = arch.last_layer();
        let layers = plan.weight_decay_layers.as_deref();
        if let Some(layer) = layers
            .unwrap_or(&[])
            .iter()
            .find(|l| !(1..=last).contains(*l))
        {
            return Err(TrainError::of_key(
                "weight_decay_layers",
                layer,
                format!("allowed is 1 to {last}"),
            ));
        }
        let decays = |layer: usize| layers.is_none_or(|layers| layers.contains(&layer));
        let of = |info: &gnn::ParameterInfo| {
            if decays(arch.layer_of(info)) {
                plan.weight_decay
            } else {
                0.0
            }
        };
        Ok(arch.parameters().iter().map(of).collect())
    }

    /// Checks that learnable rows belong to types of the graph.
    fn embeddings_allowed(&self) -> Result<(), TrainError> {
        let types = &self.graph.types;
        let mut names = self.plan.result.embeddings.keys();
        match names.find(|name| types.iter().all(|of| of.name != **name)) {
            None => Ok(()),
            Some(_) => Err(self.untrainable(
                "a type whose nodes have learnable rows (`input.nodes.TYPE.embedding`) is none of \
                 its node types",
            )),
        }
    }

    fn class_weights_allowed(&self, arch: &AnyArchitecture) -> Result<(), TrainError> {
        let weights = self.plan.result.class_weights.as_ref();
        weights.map_or(Ok(()), |weights| {
            let problem = weights.problem(arch.task(), arch.out_dim());
            problem.map_or(Ok(()), |problem| {
                Err(self.unfit("class_weights", weights, problem))
            })
        })
    }
}

#[cfg(test)]
mod tests;
