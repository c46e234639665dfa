//! The training loop: epochs, evaluation, early stopping, checkpoints.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Instant;

use schemas::progress::{Event, Progress};
use serde_json::json;

use crate::any_model::AnyModel;
use crate::checkpoint::{Best, Checkpoint, Partial};
use crate::config::{ResultPlan, TuningPlan};
use crate::crew::Crew;
use crate::epoch_report::EpochReport;
use crate::evaluate::Evaluator;
use crate::metric::{Metric, Metrics};
use crate::order::training_order;
use crate::peers::{Leader, LedTraining, Team};
use crate::prepare::{Prepared, tensors};
use crate::server::{MemoryServer, Optimizer, ParameterServer, ServerState, Settings};
use crate::supply::{Busy, PipelineStage, Supply};
use crate::worker::{EpochShare, Workers};
use crate::{TrainError, TrainPlan};

/// The workers, the parameter server, and the followers if there are some that evaluate.
type Trainers<'a> = (&'a Workers, &'a dyn ParameterServer, Option<&'a Team<'a>>);

/// A running training.
pub(crate) struct Training<'a> {
    pub(crate) plan: &'a TrainPlan,
    pub(crate) checkpoint: Option<PathBuf>,
    pub(crate) progress: &'a Progress,
    pub(crate) busy: &'a Busy,
    pub(crate) monitor: Option<Metric>,
    /// Receives the parameters of each epoch, for evaluation.
    pub(crate) model: AnyModel,
    pub(crate) state: Checkpoint,
}

impl Training<'_> {
    /// Runs the remaining epochs.
    pub(crate) fn run<'env>(
        &mut self,
        prepared: &'env Prepared,
        supply: Supply<'env>,
        val: &mut Evaluator<'env>,
        leader: Option<&mut Leader<'_>>,
    ) -> Result<(), TrainError> {
        if self.is_over() {
            return Ok(());
        }
        match leader {
            Some(leader) => self.run_processes(prepared, supply, val, leader),
            None => self.run_threads(prepared, supply, val),
        }
    }

    /// Returns the next epoch and its finished steps.
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
        let order = training_order(self.plan, supply.source)?;
        let server = MemoryServer::new(
            &tensors(prepared.model.parameters(), &prepared.decays),
            optimizer(self.plan, order.num_batches()),
            result.consistency,
            (num_workers, self.plan.tuning.servers),
            &self.state.server,
        )
        .with_tables(&prepared.tables(), &self.state.server);
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
            let tasks = (0..num_workers).map(start).collect::<Result<_, _>>()?;
            drop(done_sender);
            let workers = Workers {
                tasks,
                done,
                epoch_steps: order.num_batches(),
            };
            self.epochs(prepared, (&workers, &server, None), val)
        })
    }

    /// Runs the epochs with the workers and servers of all processes.
    fn run_processes(
        &mut self,
        prepared: &Prepared,
        supply: Supply<'_>,
        val: &mut Evaluator<'_>,
        leader: &mut Leader<'_>,
    ) -> Result<(), TrainError> {
        let order = training_order(self.plan, supply.source)?;
        let training = LedTraining {
            plan: self.plan,
            prepared,
            order: &order,
            supply,
            settings: settings(self.plan, prepared, order.num_batches()),
            begin: self.begin(),
        };
        let state = self.state.server.clone();
        leader.train(&training, state, |workers, server, team| {
            self.epochs(prepared, (workers, server, team), val)
        })
    }

    /// Runs epochs until the training is over.
    fn epochs(
        &mut self,
        prepared: &Prepared,
        trainers: Trainers<'_>,
        val: &mut Evaluator<'_>,
    ) -> Result<(), TrainError> {
        while !self.is_over() {
            self.epoch(prepared, trainers, val)?;
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        let patience = self.plan.result.patience.unwrap_or(u64::MAX);
        self.state.epochs >= self.plan.result.epochs
            || self.state.evaluations_without_gain >= patience
    }

    /// Runs one epoch and decides whether it is the best.
    fn epoch(
        &mut self,
        prepared: &Prepared,
        (workers, server, team): Trainers<'_>,
        val: &mut Evaluator<'_>,
    ) -> Result<(), TrainError> {
        let start = Instant::now();
        let epoch = self.state.epochs + 1;
        let (loss, gradient_norm) = self.steps(prepared, workers, server)?;
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
            let tables = prepared.trained_tables(&self.state.server.tables);
            metrics = val.evaluate((&self.model, &tables), team, false)?.finish();
            self.judge(&metrics)?;
        }
        // JSON has only finite numbers.
        metrics.retain(|_, value| value.is_finite());
        let stages = [
            ("read", PipelineStage::Read),
            ("vectorise", PipelineStage::Vectorise),
            ("compute", PipelineStage::Compute),
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

    /// Runs the remaining steps of the epoch, with a checkpoint after every
    /// `checkpoint_every_steps`; returns the mean loss of the whole epoch and the mean norm of its
    /// gradients.
    fn steps(
        &mut self,
        prepared: &Prepared,
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
            // The state changes as a whole, or not at all if a server is lost.
            let mut shares = partial.shares.clone();
            workers.run(epoch, partial.steps..stop, &mut shares)?;
            self.state.server = server.state()?;
            (partial.steps, partial.shares) = (stop, shares);
            let (loss, (updates, norm_sum)) = (partial.mean(), partial.before);
            self.check_finite(prepared, loss)?;
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

    /// Refuses a loss or a parameter that is not finite: no epoch after it could give a model.
    fn check_finite(&self, prepared: &Prepared, loss: f64) -> Result<(), TrainError> {
        self.require_finite("the loss", loss)?;
        let mut parameters = self.state.server.parameters.iter();
        for info in self.model.parameters() {
            let mut own = parameters.by_ref().take(info.len());
            if let Some(&value) = own.find(|value| !value.is_finite()) {
                self.require_finite(&format!("a value of `{}`", info.name), value.into())?;
            }
            own.for_each(drop);
        }
        let tables = self.state.server.tables.iter().zip(&prepared.learnable);
        for (rows, of) in tables {
            let mut values = rows.values.iter();
            if let Some(&value) = values.find(|value| !value.is_finite()) {
                let what = format!("a value of the embedding of {}", of.shown());
                self.require_finite(&what, value.into())?;
            }
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
            // The running epoch, or the one that has just ended.
            epoch: self.state.epochs + u64::from(self.state.partial.is_some()),
            what: what.to_owned(),
            value,
            learning_rate: self.plan.result.optimizer.learning_rate,
        })
    }

    /// Compares the epoch with the best so far: by the monitored metric, then by the val loss. Only
    /// a better metric resets the patience.
    fn judge(&mut self, metrics: &Metrics) -> Result<(), TrainError> {
        let (metric, val_loss) = match self.monitor {
            None => (0.0, 0.0),
            Some(monitor) => {
                let undefined = || TrainError::Undefined {
                    input: self.plan.input.clone(),
                    metric: monitor.name(),
                    why: monitor.why_undefined(),
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
            let tables = self.state.server.tables.iter();
            let tables = tables
                .map(|rows| Arc::new(rows.without_moments()))
                .collect();
            self.state.best = Some(Best {
                epoch: self.state.epochs,
                metric,
                val_loss,
                parameters: self.state.server.parameters.clone(),
                buffers: self.state.server.buffers.clone(),
                tables,
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

/// Returns the step of an epoch before which the next checkpoint is due, or the epoch's last step.
/// Checkpoints are due after every `every` steps since the training began.
fn next_stop(every: Option<u64>, epoch: u64, step: usize, epoch_steps: usize) -> usize {
    let Some(every) = every else {
        return epoch_steps;
    };
    let done = epoch * epoch_steps as u64 + step as u64;
    let left = usize::try_from(every - done % every).unwrap_or(usize::MAX);
    step.saturating_add(left).min(epoch_steps)
}

/// Returns the settings of the whole parameter server.
fn settings(plan: &TrainPlan, prepared: &Prepared, epoch_steps: usize) -> Settings {
    Settings {
        tensors: tensors(prepared.model.parameters(), &prepared.decays),
        optimizer: optimizer(plan, epoch_steps),
        consistency: plan.result.consistency,
        workers: plan.result.workers,
        tables: prepared.tables(),
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
