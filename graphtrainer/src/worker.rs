//! One worker: pulls parameters, computes a step on its share of the batch, pushes the gradient.

use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};

use gnn::Mode;
use schemas::Ids;
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::any_model::AnyModel;
use crate::exact;
use crate::learnable::{gradients, pulled_input};
use crate::order::{Order, step_seed};
use crate::server::{Consistency, GradientFormat, ParameterServer, Pushed};
use crate::supply::{Busy, PipelineStage};
use crate::vectorise::Batch;

/// The values that a worker needs.
pub(crate) struct Worker<'env> {
    pub(crate) worker: usize,
    pub(crate) server: &'env dyn ParameterServer,
    pub(crate) order: &'env Order,
    pub(crate) consistency: Consistency,
    pub(crate) seed: u64,
    pub(crate) busy: &'env Busy,
    /// The worker's own copy, whose parameters every pull overwrites.
    pub(crate) model: AnyModel,
    /// The worker's batches, epoch after epoch.
    pub(crate) batches: Receiver<Result<Arc<Batch>, TrainError>>,
    pub(crate) format: GradientFormat,
}

/// Some steps of one epoch.
#[derive(Clone, Debug)]
pub(crate) struct Task {
    pub(crate) epoch: u64,
    pub(crate) steps: Range<usize>,
    /// The worker's share in the epoch before these steps.
    pub(crate) share: EpochShare,
}

/// The sums of a worker's steps in an epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct EpochShare {
    #[serde(with = "exact")]
    pub(crate) loss_sum: f64,
    /// Total weight of its targets in the mean.
    #[serde(with = "exact")]
    pub(crate) count: f64,
}

impl Worker<'_> {
    /// Computes the steps of each task, until the sender of tasks is dropped. A failure is reported
    /// to the server first, so that no other worker waits for this one.
    pub(crate) fn run(mut self, tasks: &Receiver<Task>, done: &Sender<(usize, Outcome)>) {
        while let Ok(task) = tasks.recv() {
            let outcome = self.steps(task);
            let failed = outcome.is_err();
            if failed {
                self.server.fail(self.worker);
            }
            if done.send((self.worker, outcome)).is_err() || failed {
                return;
            }
        }
    }

    fn steps(&mut self, task: Task) -> Outcome {
        let num_steps = self.order.num_batches();
        let Task {
            epoch,
            steps,
            mut share,
        } = task;
        for batch_idx in steps {
            let step = epoch * num_steps as u64 + batch_idx as u64;
            let batch = self.batches.recv().map_err(|_source| TrainError::Ended {
                thread: "a vectorising thread",
            })??;
            let pulled = self.server.pull(self.worker, step)?;
            let busy = self.busy;
            let seed = step_seed(self.seed, epoch, batch_idx as u64);
            let covered = match self.consistency {
                Consistency::Sync => batch.counts.global,
                Consistency::Async | Consistency::Bounded(_) => batch.counts.own,
            };
            share.loss_sum += busy.time(PipelineStage::Compute, || {
                self.model.set_flat(&pulled.parameters);
                self.model.set_buffers(&pulled.buffers);
                self.step(&batch, step, covered, seed)
            })?;
            share.count += batch.counts.own;
        }
        Ok(share)
    }

    /// Computes and pushes one gradient; returns the sum of the losses.
    fn step(&self, batch: &Batch, step: u64, covered: f64, seed: u64) -> Result<f64, TrainError> {
        let (worker, num_targets) = (self.worker, batch.num_targets as u64);
        if batch.num_targets == 0 {
            // The last batch of an epoch can have fewer targets than there are workers.
            let gradient = vec![0.0; self.model.num_values()];
            let buffers = self.model.buffers();
            let pushed = Pushed {
                worker,
                step,
                gradient: &gradient,
                num_targets,
                buffers,
                rows: &[],
            };
            self.server.push(pushed)?;
            return Ok(0.0);
        }
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a batch has far fewer than 2^24 targets"
        )]
        // If no class of the batch has weight, every loss is 0, and so is the gradient.
        let normalizer = if covered > 0.0 { covered as f32 } else { 1.0 };
        let wanted: Vec<&Ids> = batch.learnable.iter().map(|of| &of.ids).collect();
        let pulled = match wanted.is_empty() {
            true => Vec::new(),
            false => self.server.pull_rows(&wanted)?,
        };
        let learnable = pulled_input(&batch.learnable, pulled)?;
        let mut computed = self.model.loss_and_gradient(
            (&batch.blocks, &learnable),
            &batch.labels,
            normalizer,
            Mode::Train { seed },
        )?;
        self.format.round(&mut computed.gradient);
        let mut rows = gradients(&batch.learnable, computed.rows);
        rows.iter_mut()
            .for_each(|of_table| self.format.round(&mut of_table.values));
        let (gradient, buffers) = (&computed.gradient[..], &computed.buffers[..]);
        self.server.push(Pushed {
            worker,
            step,
            gradient,
            num_targets,
            buffers,
            rows: &rows,
        })?;
        Ok(computed.loss_sum)
    }
}

impl Drop for Worker<'_> {
    /// Releases the workers that wait for a worker that panicked, so that the panic reaches the
    /// caller.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.server.fail(self.worker);
        }
    }
}

/// The sums of a worker in its epoch up to the end of a task, or its error.
pub(crate) type Outcome = Result<EpochShare, TrainError>;

/// The ends of the channels to the workers.
pub(crate) struct Workers {
    pub(crate) tasks: Vec<Sender<Task>>,
    pub(crate) done: Receiver<(usize, Outcome)>,
    /// Steps of an epoch.
    pub(crate) epoch_steps: usize,
}

impl Workers {
    /// Makes every worker run some steps of an epoch. `shares` holds each worker's sums in the
    /// epoch, and is updated. If several workers fail, the error that caused the others is
    /// returned.
    pub(crate) fn run(
        &self,
        epoch: u64,
        steps: Range<usize>,
        shares: &mut [EpochShare],
    ) -> Result<(), TrainError> {
        for (sender, &share) in self.tasks.iter().zip(&*shares) {
            let steps = steps.clone();
            // A worker that has ended has sent the reason in its last outcome, or the channel is
            // closed.
            let _ = sender.send(Task {
                epoch,
                steps,
                share,
            });
        }
        let mut failure: Option<TrainError> = None;
        for _ in 0..self.tasks.len() {
            let Ok((worker, outcome)) = self.done.recv() else {
                let ended = || TrainError::Ended { thread: "a worker" };
                return Err(failure.unwrap_or_else(ended));
            };
            match (outcome, &failure) {
                (Ok(share), _) => shares[worker] = share,
                (Err(error), None | Some(TrainError::PeerFailed { .. })) => failure = Some(error),
                (Err(_), Some(_)) => {}
            }
        }
        failure.map_or(Ok(()), Err)
    }
}
