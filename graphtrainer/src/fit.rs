//! Trains one model: resumes from a checkpoint, runs the epochs, evaluates the best one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gnn::Transform;
use schemas::progress::{Event, Progress};
use schemas::{Exclude, Split};

use crate::any_model::AnyModel;
use crate::checkpoint::Checkpoint;
use crate::device::say;
use crate::embedding::NodeEmbeddings;
use crate::epoch_report::EpochReport;
use crate::epochs::Training;
use crate::evaluate::{Evaluator, assess};
use crate::metric::Metric;
use crate::peers::Leader;
use crate::prepare::prepare;
use crate::scores::{SplitScores, label_names};
use crate::server::ServerState;
use crate::source::Source;
use crate::supply::{Busy, Supply};
use crate::{TrainError, TrainPlan};

/// A trained model, with its history and metrics.
#[derive(Clone, Debug)]
pub struct Trained {
    /// The model with the parameters of the best epoch.
    pub model: AnyModel,
    /// By type, the transform of raw features before layer 1 reads them.
    pub transforms: Vec<Transform>,
    /// The embedding tables of the best epoch: one for each type whose nodes have learnable rows.
    pub embeddings: Vec<Arc<NodeEmbeddings>>,
    /// Metrics of the best epoch, named by split and metric, such as `test_accuracy`; metrics that
    /// are not finite are left out.
    pub metrics: BTreeMap<String, f64>,
    /// Scores of each split, label by label.
    pub scores: BTreeMap<String, SplitScores>,
    /// The metric that chose the best epoch; none without val targets, when the last epoch is the
    /// best.
    pub monitor: Option<Metric>,
    /// 1-based.
    pub best_epoch: u64,
    /// Every epoch, in order.
    pub history: Vec<EpochReport>,
    /// The device that computed the model: `cpu`, or the name of a GPU.
    pub device: String,
    /// Notes for the user, such as an empty split.
    pub notes: Vec<String>,
}

/// Trains a model on a source of graph features.
///
/// A checkpoint is written to `checkpoint` as often as planned, and an existing one is resumed. In
/// sync mode the resumed training ends with the same bits as an uninterrupted one. A broken
/// checkpoint is noted, and the training starts over.
///
/// # Errors
///
/// [`TrainError::Unfit`] and similar errors before the first step, if the data do not fit the plan;
/// later the error that stopped a worker.
pub fn fit(
    plan: &TrainPlan,
    source: &Source,
    checkpoint: Option<PathBuf>,
    progress: &Progress,
) -> Result<Trained, TrainError> {
    fit_with(plan, source, checkpoint, progress, None)
}

/// Trains as [`fit`] does; with `leader`, on the workers and servers of all processes.
pub(crate) fn fit_with(
    plan: &TrainPlan,
    source: &Source,
    checkpoint: Option<PathBuf>,
    progress: &Progress,
    mut leader: Option<&mut Leader<'_>>,
) -> Result<Trained, TrainError> {
    let prepared = prepare(plan, source)?;
    let mut notes = Vec::from_iter(leader.as_ref().and_then(|leader| leader.note(plan)));
    let resumed = match &checkpoint {
        Some(path) => resume((plan, path), &mut notes, progress)?,
        None => None,
    };
    let device = say(plan, &prepared, resumed.as_ref(), &mut notes, progress);
    let busy = Busy::default();
    let vectoriser = prepared.vectoriser(false);
    let of_training = prepared.vectoriser(true);
    let supply = Supply {
        source,
        vectoriser: &vectoriser,
        busy: &busy,
    };
    let cluster = leader
        .as_ref()
        .and_then(|leader| leader.evaluates(&prepared));
    let evaluator = |split| Evaluator::of_plan(supply, split, plan, cluster);
    let mut val = evaluator(Split::Val);
    let mut training = Training {
        plan,
        checkpoint,
        progress,
        busy: &busy,
        monitor: (val.num_targets() > 0).then_some(prepared.monitor),
        model: prepared.model.clone(),
        state: Checkpoint {
            device,
            ..resumed.unwrap_or_else(|| fresh(&prepared.model))
        },
    };
    let training_supply = Supply {
        vectoriser: &of_training,
        ..supply
    };
    leader.iter_mut().try_for_each(|of| of.wait_until_ready())?;
    training.run(&prepared, training_supply, &mut val, leader.as_deref_mut())?;
    let Training {
        state,
        mut model,
        monitor,
        ..
    } = training;
    let best = state.best.expect("the last epoch is always evaluated");
    model.set_flat(&best.parameters);
    model.set_buffers(&best.buffers);
    let embeddings = prepared.trained_tables(&best.tables);
    let (train, test) = (evaluator(Split::Train), evaluator(Split::Test));
    let evaluators = [("train", train), ("val", val), ("test", test)];
    let team = leader.and_then(|leader| leader.team(&prepared));
    let scores = assess(
        evaluators,
        (&model, &embeddings),
        (label_names(&source.graph), team.as_ref()),
        &mut notes,
    )?;
    notes.extend(notes_of(source, monitor));
    Ok(Trained {
        model,
        transforms: prepared.transforms,
        embeddings,
        metrics: named_metrics(&scores),
        scores,
        monitor,
        best_epoch: best.epoch,
        history: state.history,
        device: state.device,
        notes,
    })
}

/// Says what the source of a training gives up.
fn notes_of(source: &Source, monitor: Option<Metric>) -> Vec<String> {
    let no_val = "without val targets the last epoch counts as the best";
    let pairs = source.graph.pairs.as_ref();
    let of_pairs = pairs.map(|pairs| protocol(pairs.exclude));
    let notes = monitor.is_none().then_some(no_val).into_iter();
    notes.chain(of_pairs).map(str::to_owned).collect()
}

/// Says which pairs carry messages, and what is then equal or given up.
fn protocol(exclude: Exclude) -> &'static str {
    match exclude {
        Exclude::All => {
            "exclude = \"all\": no pair carries messages, so models hear less than with the other \
             protocols. On one sample and without dropout, embeddings in training are those of \
             inference"
        }
        Exclude::Batch => {
            "exclude = \"batch\": train pairs carry messages, except in their own batches. In \
             inference and in train metrics they always do, so both ends of a train pair have other \
             embeddings than in its batch; val and test pairs never carry messages"
        }
        Exclude::None => {
            "exclude = \"none\": train pairs carry messages, also in their own batches. So train \
             losses and train metrics show pairs that the model has seen as edges; val and test \
             pairs never carry messages"
        }
    }
}

/// Returns the metrics of all splits, each named by split and metric.
fn named_metrics(scores: &BTreeMap<String, SplitScores>) -> BTreeMap<String, f64> {
    let named = |(split, of): (&String, &SplitScores)| {
        let name = |(metric, value): (&String, &f64)| (format!("{split}_{metric}"), *value);
        of.metrics.iter().map(name).collect::<Vec<_>>()
    };
    scores.iter().flat_map(named).collect()
}

/// Reads the checkpoint to resume from; none if it does not exist or is broken.
fn resume(
    (plan, path): (&TrainPlan, &Path),
    notes: &mut Vec<String>,
    progress: &Progress,
) -> Result<Option<Checkpoint>, TrainError> {
    match Checkpoint::read(path) {
        // All draws are functions of the seed, so starting over gives the same model.
        Err(error @ TrainError::Checkpoint { .. }) => {
            tracing::warn!("training starts over: {error}");
            notes.push(format!("training started over: {error}"));
            Ok(None)
        }
        read => Ok(read?.inspect(|state| report_resumed(plan, state, progress))),
    }
}

/// Reports the epoch and step after which a training resumes.
fn report_resumed(plan: &TrainPlan, checkpoint: &Checkpoint, progress: &Progress) {
    let (epochs, all) = (checkpoint.epochs, plan.result.epochs);
    let steps = match &checkpoint.partial {
        Some(partial) => format!(" and {} steps", partial.steps),
        None => String::new(),
    };
    progress(&Event {
        stage: "train",
        phase: "resume".to_owned(),
        done: epochs,
        total: 0,
        message: Some(format!("goes on after {epochs} of {all} epochs{steps}")),
        fields: serde_json::Value::Null,
    });
}

/// Returns the state before the first step.
fn fresh(model: &AnyModel) -> Checkpoint {
    let server = ServerState {
        parameters: model.flat(),
        buffers: model.buffers().to_vec(),
        ..ServerState::default()
    };
    Checkpoint {
        server,
        ..Checkpoint::default()
    }
}
