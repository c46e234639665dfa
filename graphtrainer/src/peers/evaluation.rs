//! The evaluation of one model by all processes, a range of the batches each.

use std::collections::BTreeMap;

use cluster::{Cluster, gather_to_first};
use schemas::Split;

use super::{Command, EvaluateCommand, Failure, LineSender};
use crate::any_model::AnyModel;
use crate::evaluate::Evaluator;
use crate::metric::Evaluation;
use crate::prepare::Prepared;
use crate::supply::Supply;
use crate::{TrainError, TrainPlan};

/// The followers that evaluate a model with the leader.
pub(crate) struct Team<'a> {
    cluster: &'a Cluster,
    /// To each follower.
    senders: Vec<&'a LineSender>,
}

impl<'a> Team<'a> {
    /// Returns the team of all processes; none for a model with learnable rows, which only the leader
    /// has.
    pub(super) fn new(
        cluster: &'a Cluster,
        senders: Vec<&'a LineSender>,
        prepared: &Prepared,
    ) -> Option<Self> {
        let evaluates = prepared.learnable.is_empty();
        evaluates.then_some(Self { cluster, senders })
    }

    /// Makes all followers evaluate their shares of a split.
    pub(crate) fn start(&self, model: &AnyModel, split: Split, with_confusion: bool) {
        let command = Command::Evaluate(EvaluateCommand {
            split,
            with_confusion,
            parameters: model.flat(),
            buffers: model.buffers().to_vec(),
        });
        self.senders.iter().for_each(|sender| sender.send(&command));
    }

    /// Returns the evaluations of all processes, in the order of the batches.
    pub(crate) fn gather(
        &self,
        own: Result<Vec<Evaluation>, TrainError>,
    ) -> Result<Vec<Evaluation>, TrainError> {
        let (told, own_error) = told(own);
        let all = gather_to_first(self.cluster, told)?;
        if let Some(error) = own_error {
            return Err(error);
        }
        let mut evaluations = Vec::new();
        for (process, of_process) in all.into_iter().enumerate() {
            let of_process = of_process.map_err(|failure| failure.into_error(process))?;
            evaluations.extend(of_process);
        }
        Ok(evaluations)
    }
}

/// What a process tells the leader.
type Told = Result<Vec<Evaluation>, Failure>;

/// Returns what a process tells the leader, and its own error.
fn told(own: Result<Vec<Evaluation>, TrainError>) -> (Told, Option<TrainError>) {
    match own {
        Ok(evaluations) => (Ok(evaluations), None),
        Err(error) => (Err(Failure::of(&error)), Some(error)),
    }
}

/// The evaluation in a follower.
pub(super) struct FollowerEvaluation<'a> {
    plan: &'a TrainPlan,
    cluster: &'a Cluster,
    supply: Supply<'a>,
    /// Receives the parameters of each evaluation.
    model: AnyModel,
    /// Made when their split is first evaluated.
    evaluators: BTreeMap<Split, Evaluator<'a>>,
}

impl<'a> FollowerEvaluation<'a> {
    pub(super) fn new(
        plan: &'a TrainPlan,
        cluster: &'a Cluster,
        (prepared, supply): (&Prepared, Supply<'a>),
    ) -> Self {
        Self {
            plan,
            cluster,
            supply,
            model: prepared.model.clone(),
            evaluators: BTreeMap::new(),
        }
    }

    /// Evaluates this process's share and sends it to the leader. Returns the error of the share: the
    /// leader will end the training.
    ///
    /// # Errors
    ///
    /// If another process is lost.
    pub(super) fn run(
        &mut self,
        command: EvaluateCommand,
    ) -> Result<Option<TrainError>, TrainError> {
        let EvaluateCommand {
            split,
            with_confusion,
            parameters,
            buffers,
        } = command;
        self.model.set_flat(&parameters);
        self.model.set_buffers(&buffers);
        let make = || Evaluator::of_plan(self.supply, split, self.plan, Some(self.cluster));
        let evaluator = self.evaluators.entry(split).or_insert_with(make);
        let own = evaluator.evaluations((&self.model, &[]), with_confusion);
        let (told, own_error) = told(own);
        gather_to_first(self.cluster, told)?;
        Ok(own_error)
    }
}
