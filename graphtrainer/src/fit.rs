//! The training loop: epochs, evaluation, early stopping, checkpoints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Instant;

use gnn::{Model, Transform};
use schemas::Split;
use schemas::progress::{Event, Progress};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::checkpoint::{Best, Checkpoint, Partial};
use crate::config::{Launch, ResultPlan, TuningPlan};
use crate::crew::Crew;
use crate::device::say;
use crate::evaluate::{Evaluator, assess};
use crate::metric::{Metric, Metrics};
use crate::order::training_order;
use crate::peers::{Team, TeamPlan};
use crate::pipeline::{Busy, Stage, Supply};
use crate::prepare::{Prepared, prepare, tensors};
use crate::process::{Processes, with_processes};
use crate::scores::{SplitScores, label_names};
use crate::server::{MemoryServer, Optimizer, ParameterServer, ServerState, Settings};
use crate::source::Source;
use crate::worker::{EpochShare, Workers};
use crate::{TrainError, TrainPlan};

/// A trained model and how it came about.
#[derive(Clone, Debug)]
pub struct Trained {
    /// The model with the parameters of the best epoch.
    pub model: Model,
    /// What is done to features before layer 1 reads them.
    pub transform: Transform,
    /// Metrics of the best epoch, named `train_`, `val_` or `test_` and the metric; those that are
    /// no finite number are left out.
    pub metrics: BTreeMap<String, f64>,
    /// The same by split, label by label.
    pub scores: BTreeMap<String, SplitScores>,
    /// The metric that chose the best epoch; none without val targets, when it is the last.
    pub monitor: Option<Metric>,
    /// 1-based.
    pub best_epoch: u64,
    /// Every epoch, in order.
    pub history: Vec<EpochReport>,
    /// The device that computed it: `cpu`, or the name of a GPU.
    pub device: String,
    /// What is worth knowing, such as a split that is empty.
    pub notes: Vec<String>,
}

/// What an epoch gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EpochReport {
    /// 1-based.
    pub epoch: u64,
    /// Mean training loss per target, with dropout, during the epoch; the weighted mean where
    /// classes have weights.
    pub loss: f64,
    /// Metrics on the val split after the epoch, as far as they are finite; none where it was not
    /// evaluated.
    pub val: Metrics,
    /// Step size of the epoch's last step.
    pub learning_rate: f32,
    /// Mean norm of the gradients of the epoch's updates, before they were clipped.
    pub gradient_norm: f64,
    /// Wall-clock seconds of the epoch since it began or was resumed, evaluation included.
    pub seconds: f64,
    /// Busy seconds of the stages `read`, `vectorise` and `compute`, summed over threads. Reading
    /// and vectorising run ahead, so theirs may belong to the next epoch's batches.
    pub busy: BTreeMap<String, f64>,
}

/// Trains a model on a source of graph features.
///
/// A checkpoint is written to `checkpoint` as often as planned, and one that is there is continued;
/// in sync mode the end is bit for bit that of a training that was never stopped. One that is broken
/// is noted and taken for none.
///
/// # Errors
///
/// [`TrainError::Unfit`] and its like before the first step, if the data do not fit the plan; later
/// whatever stopped a worker.
pub fn fit(
    plan: &TrainPlan,
    source: &Source,
    checkpoint: Option<PathBuf>,
    progress: &Progress,
) -> Result<Trained, TrainError> {
    fit_with(plan, source, checkpoint, progress, None)
}

/// Trains as [`fit`] does, with workers and servers in the processes of a team where there is one.
pub(crate) fn fit_with(
    plan: &TrainPlan,
    source: &Source,
    checkpoint: Option<PathBuf>,
    progress: &Progress,
    team: Option<&mut Team<'_>>,
) -> Result<Trained, TrainError> {
    let prepared = prepare(plan, source)?;
    let mut notes = Vec::from_iter(team.as_ref().and_then(|team| team.note(plan)));
    let resumed = match &checkpoint {
        Some(path) => resume(path, &mut notes)?,
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
    let keep_bytes = plan.part_cache_bytes();
    let batch_size = plan.result.batch_size;
    let mut val = Evaluator::new(supply, Split::Val, batch_size, keep_bytes);
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
    training.run(&prepared, training_supply, &mut val, team)?;
    let Training {
        state,
        mut model,
        monitor,
        ..
    } = training;
    let best = state.best.expect("the last epoch is judged in any case");
    model.set_flat(&best.parameters);
    model.set_buffers(&best.buffers);
    let train = Evaluator::new(supply, Split::Train, batch_size, 0);
    let test = Evaluator::new(supply, Split::Test, batch_size, 0);
    let evaluators = [("train", train), ("val", val), ("test", test)];
    let scores = assess(evaluators, &model, label_names(&source.graph), &mut notes)?;
    let named = |split: &str, of: &SplitScores| {
        let name = |(metric, value): (&String, &f64)| (format!("{split}_{metric}"), *value);
        of.metrics.iter().map(name).collect::<Vec<_>>()
    };
    let metrics = scores
        .iter()
        .flat_map(|(split, of)| named(split, of))
        .collect();
    if monitor.is_none() {
        notes.push("without val targets the last epoch is taken for the best".to_owned());
    }
    Ok(Trained {
        model,
        transform: prepared.transform,
        metrics,
        scores,
        monitor,
        best_epoch: best.epoch,
        history: state.history,
        device: state.device,
        notes,
    })
}

/// Reads the checkpoint to go on after, if there is one that is whole.
fn resume(path: &Path, notes: &mut Vec<String>) -> Result<Option<Checkpoint>, TrainError> {
    match Checkpoint::read(path) {
        // All draws are functions of the seed, so starting over gives the same model.
        Err(error @ TrainError::Checkpoint { .. }) => {
            tracing::warn!("training starts over: {error}");
            notes.push(format!("training started over: {error}"));
            Ok(None)
        }
        read => read,
    }
}

/// The state of a training that has not begun.
fn fresh(model: &Model) -> Checkpoint {
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

/// A training under way.
struct Training<'a> {
    plan: &'a TrainPlan,
    checkpoint: Option<PathBuf>,
    progress: &'a Progress,
    busy: &'a Busy,
    monitor: Option<Metric>,
    /// Holds the parameters of the last epoch, for evaluation.
    model: Model,
    state: Checkpoint,
}

/// How often the processes of a training are started again because a server was lost, at most,
/// without a step kept in between.
const RESTARTS_MAX: u32 = 3;

impl Training<'_> {
    /// Runs the epochs that are left.
    fn run<'env>(
        &mut self,
        prepared: &'env Prepared,
        supply: Supply<'env>,
        val: &mut Evaluator<'env>,
        team: Option<&mut Team<'_>>,
    ) -> Result<(), TrainError> {
        if self.is_over() {
            return Ok(());
        }
        match (team, self.plan.tuning.launch) {
            (Some(team), _) => self.run_team(prepared, supply, val, team),
            (None, Launch::Threads) => self.run_threads(prepared, supply, val),
            (None, Launch::Processes) => self.run_processes(prepared, supply, val),
        }
    }

    /// The epoch that is next, and its steps that are done.
    fn begin(&self) -> (u64, usize) {
        let partial = self.state.partial.as_ref();
        (self.state.epochs, partial.map_or(0, |done| done.steps))
    }

    fn run_threads<'env>(
        &mut self,
        prepared: &'env Prepared,
        supply: Supply<'env>,
        val: &mut Evaluator<'env>,
    ) -> Result<(), TrainError> {
        let result = &self.plan.result;
        let num_workers = result.workers;
        let order = training_order(self.plan, supply.source);
        let server = MemoryServer::new(
            &tensors(prepared.model.parameters(), &prepared.decays),
            optimizer(self.plan, order.num_batches()),
            result.consistency,
            (num_workers, self.plan.tuning.servers),
            &self.state.server,
        );
        let crew = Crew {
            plan: self.plan,
            prepared,
            order: &order,
            server: &server,
            supply,
            begin: self.begin(),
        };
        std::thread::scope(|scope| {
            let (done_sender, done) = channel();
            let start = |worker| crew.start(scope, worker, &done_sender);
            let tasks = (0..num_workers).map(start).collect();
            drop(done_sender);
            let workers = Workers {
                tasks,
                done,
                epoch_steps: order.num_batches(),
            };
            self.epochs(&workers, &server, val)
        })
    }

    /// Runs the epochs with workers and servers in all processes of a team.
    fn run_team(
        &mut self,
        prepared: &Prepared,
        supply: Supply<'_>,
        val: &mut Evaluator<'_>,
        team: &mut Team<'_>,
    ) -> Result<(), TrainError> {
        let order = training_order(self.plan, supply.source);
        let of_team = TeamPlan {
            plan: self.plan,
            prepared,
            order: &order,
            supply,
            settings: settings(self.plan, prepared, order.num_batches()),
            begin: self.begin(),
        };
        let state = self.state.server.clone();
        team.train(&of_team, state, |workers, server| {
            self.epochs(workers, server, val)
        })
    }

    /// Runs epochs until the last one.
    fn epochs(
        &mut self,
        workers: &Workers,
        server: &dyn ParameterServer,
        val: &mut Evaluator<'_>,
    ) -> Result<(), TrainError> {
        while !self.is_over() {
            self.epoch(workers, server, val)?;
        }
        Ok(())
    }

    /// Runs the epochs with workers and servers in processes of their own. Where a server is lost,
    /// all start again from the state after the last whole epoch, or run of steps between checkpoints.
    fn run_processes(
        &mut self,
        prepared: &Prepared,
        supply: Supply<'_>,
        val: &mut Evaluator<'_>,
    ) -> Result<(), TrainError> {
        let epoch_steps = training_order(self.plan, supply.source).num_batches();
        let settings = settings(self.plan, prepared, epoch_steps);
        let (mut steps_before, mut restarts) = (self.state.server.step, 0);
        loop {
            let processes = Processes::new(self.plan, &settings, epoch_steps, self.busy);
            let state = self.state.server.clone();
            let ended = with_processes(&processes, &state, |workers, server| {
                self.epochs(workers, server, val)
            });
            if self.state.server.step > steps_before {
                (steps_before, restarts) = (self.state.server.step, 0);
            }
            match ended {
                Err(error @ TrainError::ServerLost { .. }) if restarts < RESTARTS_MAX => {
                    restarts += 1;
                    tracing::warn!("{error}; training goes on after step {steps_before}");
                }
                ended => return ended,
            }
        }
    }

    fn is_over(&self) -> bool {
        let patience = self.plan.result.patience.unwrap_or(u64::MAX);
        self.state.epochs >= self.plan.result.epochs
            || self.state.evaluations_without_gain >= patience
    }

    /// Runs one epoch and decides whether it is the best.
    fn epoch(
        &mut self,
        workers: &Workers,
        server: &dyn ParameterServer,
        val: &mut Evaluator<'_>,
    ) -> Result<(), TrainError> {
        let start = Instant::now();
        let epoch = self.state.epochs + 1;
        let (loss, gradient_norm) = self.steps(workers, server)?;
        (self.state.epochs, self.state.partial) = (epoch, None);
        self.model.set_flat(&self.state.server.parameters);
        self.model.set_buffers(&self.state.server.buffers);
        let mut metrics = Metrics::new();
        let ResultPlan {
            evaluate_every,
            epochs,
            ..
        } = self.plan.result;
        if epoch.is_multiple_of(evaluate_every) || epoch == epochs {
            metrics = val.evaluate(&self.model)?;
            self.judge(&metrics)?;
        }
        // JSON knows no other numbers.
        metrics.retain(|_, value| value.is_finite());
        let stages = [
            ("read", Stage::Read),
            ("vectorise", Stage::Vectorise),
            ("compute", Stage::Compute),
        ];
        let seconds = stages.map(|(name, stage)| (name.to_owned(), self.busy.take_seconds(stage)));
        let steps = epoch * workers.epoch_steps as u64;
        let report = EpochReport {
            epoch,
            loss,
            val: metrics,
            learning_rate: optimizer(self.plan, workers.epoch_steps)
                .at(steps - 1)
                .learning_rate,
            gradient_norm,
            seconds: start.elapsed().as_secs_f64(),
            busy: BTreeMap::from(seconds),
        };
        self.state.history.push(report.clone());
        let TuningPlan {
            checkpoint_every,
            checkpoint_every_steps,
            ..
        } = self.plan.tuning;
        if epoch.is_multiple_of(checkpoint_every)
            || checkpoint_every_steps.is_some_and(|every| steps.is_multiple_of(every))
        {
            self.save()?;
        }
        (self.progress)(&self.event(&report));
        Ok(())
    }

    /// Runs the steps of the epoch that are left, with a checkpoint after every so many; returns the
    /// mean loss of the whole epoch and the mean norm of its gradients.
    fn steps(
        &mut self,
        workers: &Workers,
        server: &dyn ParameterServer,
    ) -> Result<(f64, f64), TrainError> {
        let (epoch, epoch_steps) = (self.state.epochs, workers.epoch_steps);
        loop {
            let partial = self.state.partial.get_or_insert_with(|| Partial {
                steps: 0,
                shares: vec![EpochShare::default(); workers.tasks.len()],
                before: (self.state.server.updates, self.state.server.norm_sum),
            });
            let every = self.plan.tuning.checkpoint_every_steps;
            let stop = next_stop(every, epoch, partial.steps, epoch_steps);
            // The state changes as a whole, or not at all where a server is lost.
            let mut shares = partial.shares.clone();
            workers.run(epoch, partial.steps..stop, &mut shares)?;
            self.state.server = server.state()?;
            (partial.steps, partial.shares) = (stop, shares);
            let (loss, (updates, norm_sum)) = (partial.mean(), partial.before);
            self.check_finite(loss)?;
            if stop == epoch_steps {
                let ServerState {
                    updates: all,
                    norm_sum: total,
                    ..
                } = self.state.server;
                return Ok((loss, (total - norm_sum) / (all - updates) as f64));
            }
            self.save()?;
        }
    }

    fn save(&self) -> Result<(), TrainError> {
        match &self.checkpoint {
            Some(path) => self.state.write(path),
            None => Ok(()),
        }
    }

    /// Refuses an epoch after which no further one, and no model, can be of use.
    fn check_finite(&self, loss: f64) -> Result<(), TrainError> {
        self.require_finite("the loss", loss)?;
        let mut parameters = self.state.server.parameters.iter();
        for info in self.model.parameters() {
            let mut own = parameters.by_ref().take(info.len());
            if let Some(&value) = own.find(|value| !value.is_finite()) {
                self.require_finite(&format!("a value of `{}`", info.name), value.into())?;
            }
            own.for_each(drop);
        }
        let mut buffers = self.state.server.buffers.iter();
        match buffers.find(|value| !value.is_finite()) {
            Some(&value) => self.require_finite("a running statistic", value.into()),
            None => Ok(()),
        }
    }

    fn require_finite(&self, what: &str, value: f64) -> Result<(), TrainError> {
        if value.is_finite() {
            return Ok(());
        }
        Err(TrainError::Diverged {
            // The one under way, or the one that was just finished.
            epoch: self.state.epochs + u64::from(self.state.partial.is_some()),
            what: what.to_owned(),
            value,
            learning_rate: self.plan.result.optimizer.learning_rate,
        })
    }

    /// Compares the epoch with the best so far: by the monitored metric, then by the val loss. Only a
    /// better metric starts the patience anew.
    fn judge(&mut self, metrics: &Metrics) -> Result<(), TrainError> {
        let (metric, val_loss) = match self.monitor {
            None => (0.0, 0.0),
            Some(monitor) => {
                let undefined = || TrainError::Undefined {
                    input: self.plan.input.clone(),
                    metric: monitor.name(),
                };
                let value = *metrics.get(monitor.name()).ok_or_else(undefined)?;
                self.require_finite(&format!("the val {}", monitor.name()), value)?;
                (
                    value,
                    metrics.get(Metric::Loss.name()).copied().unwrap_or(0.0),
                )
            }
        };
        let (is_better, is_gain) = match (&self.state.best, self.monitor) {
            (None, _) | (_, None) => (true, true),
            (Some(best), Some(monitor)) => {
                let gain = if monitor.is_gain() {
                    metric - best.metric
                } else {
                    best.metric - metric
                };
                let ties = gain == 0.0 && val_loss < best.val_loss;
                (gain > 0.0 || ties, gain > 0.0)
            }
        };
        self.state.evaluations_without_gain += 1;
        if is_gain {
            self.state.evaluations_without_gain = 0;
        }
        if is_better {
            self.state.best = Some(Best {
                epoch: self.state.epochs,
                metric,
                val_loss,
                parameters: self.state.server.parameters.clone(),
                buffers: self.state.server.buffers.clone(),
            });
        }
        Ok(())
    }

    fn event(&self, report: &EpochReport) -> Event {
        let mut message = format!("loss {:.4}", report.loss);
        let name = self.monitor.map_or("", Metric::name);
        if let Some(value) = report.val.get(name) {
            message += &format!(", val {name} {value:.4}");
        }
        let best = self.state.best.as_ref().map(|best| best.epoch);
        if best == Some(report.epoch) {
            message += " (best)";
        }
        Event {
            stage: "train",
            phase: "epoch".to_owned(),
            done: report.epoch,
            total: self.plan.result.epochs,
            message: Some(message),
            fields: json!({
                "epoch": report.epoch,
                "loss": report.loss,
                "val": report.val,
                "learning_rate": report.learning_rate,
                "gradient_norm": report.gradient_norm,
                "best_epoch": best,
                "seconds": report.seconds,
                "busy_seconds": report.busy,
            }),
        }
    }
}

/// Returns the step of an epoch, its last at most, before which the next checkpoint is due; they
/// are due after every `every` steps since the training began.
fn next_stop(every: Option<u64>, epoch: u64, step: usize, epoch_steps: usize) -> usize {
    let Some(every) = every else {
        return epoch_steps;
    };
    let done = epoch * epoch_steps as u64 + step as u64;
    let left = usize::try_from(every - done % every).unwrap_or(usize::MAX);
    step.saturating_add(left).min(epoch_steps)
}

/// What the parameter server as a whole holds.
fn settings(plan: &TrainPlan, prepared: &Prepared, epoch_steps: usize) -> Settings {
    Settings {
        tensors: tensors(prepared.model.parameters(), &prepared.decays),
        optimizer: optimizer(plan, epoch_steps),
        consistency: plan.result.consistency,
        workers: plan.result.workers,
    }
}

/// Returns the update rule with its schedule in steps.
fn optimizer(plan: &TrainPlan, epoch_steps: usize) -> Optimizer {
    let ResultPlan {
        optimizer,
        schedule,
        epochs,
        ..
    } = &plan.result;
    Optimizer {
        schedule: schedule.map(|schedule| schedule.in_steps(epoch_steps, *epochs)),
        ..*optimizer
    }
}
