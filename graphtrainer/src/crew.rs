//! Runs workers of a training as threads of this process.

use std::sync::mpsc::{Sender, channel};
use std::thread::Scope;

use schemas::Split;
use schemas::threads::spawn_scoped;

use crate::order::Order;
use crate::pipeline::start;
use crate::prepare::Prepared;
use crate::server::ParameterServer;
use crate::supply::Supply;
use crate::worker::{Outcome, Task, Worker};
use crate::{TrainError, TrainPlan};

/// The values that the workers of one process share.
#[derive(Clone, Copy)]
pub(crate) struct Crew<'env> {
    pub(crate) plan: &'env TrainPlan,
    pub(crate) prepared: &'env Prepared,
    pub(crate) order: &'env Order,
    pub(crate) server: &'env dyn ParameterServer,
    pub(crate) supply: Supply<'env>,
    /// The epoch that they begin in, and its finished steps.
    pub(crate) begin: (u64, usize),
}

impl<'env> Crew<'env> {
    /// Starts a worker thread, which waits for tasks and sends their outcomes to `done`. It ends
    /// when the sender of its tasks is dropped.
    ///
    /// # Errors
    ///
    /// If the system refuses a thread.
    pub(crate) fn start<'scope>(
        self,
        scope: &'scope Scope<'scope, 'env>,
        worker: usize,
        done: &Sender<(usize, Outcome)>,
    ) -> Result<Sender<Task>, TrainError> {
        let (result, order) = (&self.plan.result, self.order);
        let (epoch, done_steps) = self.begin;
        let num_workers = result.workers;
        let all = (epoch..result.epochs)
            .flat_map(move |epoch| order.of_worker(epoch, worker, num_workers))
            .skip(done_steps);
        let own = Worker {
            worker,
            server: self.server,
            order,
            consistency: result.consistency,
            seed: result.seed,
            busy: self.supply.busy,
            model: self.prepared.model.clone(),
            batches: start(scope, self.supply, (order, Split::Train), all)?,
            format: result.gradient_format,
        };
        let (task_sender, tasks) = channel();
        let own_done = done.clone();
        spawn_scoped(scope, "worker", move || own.run(&tasks, &own_done))?;
        Ok(task_sender)
    }
}
