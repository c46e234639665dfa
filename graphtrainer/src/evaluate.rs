//! Evaluates a model on a split; batches are kept in memory if they fit.

use std::collections::BTreeMap;
use std::sync::Arc;

use gnn::{Dense, Labels, Mode};
use schemas::Split;

use crate::TrainError;
use crate::any_model::{AnyBlocks, AnyModel};
use crate::embedding::NodeEmbeddings;
use crate::learnable::trained_input;
use crate::memory::EVALUATION_TARGETS;
use crate::metric::{Evaluation, Metrics};
use crate::order::Order;
use crate::pipeline::start;
use crate::scores::SplitScores;
use crate::supply::Supply;
use crate::vectorise::Batch;

/// A model with its embedding tables.
pub(crate) type TrainedModel<'a> = (&'a AnyModel, &'a [Arc<NodeEmbeddings>]);

/// Evaluates models on one split, any number of times.
#[derive(Debug)]
pub(crate) struct Evaluator<'env> {
    supply: Supply<'env>,
    split: Split,
    order: Order,
    /// Largest number of bytes of kept batches.
    bytes_max: usize,
    /// All batches, after an evaluation in which they fit into memory.
    kept: Option<Vec<Arc<Batch>>>,
}

impl<'env> Evaluator<'env> {
    /// Prepares the evaluation of a split; with `bytes_max` 0 no batch is kept.
    pub(crate) fn new(
        supply: Supply<'env>,
        split: Split,
        batch_size: usize,
        bytes_max: usize,
    ) -> Self {
        let counts = supply.source.counts_of(split);
        let order = Order::new(counts, 0, batch_size.max(EVALUATION_TARGETS));
        Self {
            supply,
            split,
            order,
            bytes_max,
            kept: None,
        }
    }

    /// Returns the number of targets of the split.
    pub(crate) fn num_targets(&self) -> usize {
        self.order.num_targets()
    }

    /// Computes the metrics of a model with its embedding tables; none if the split is empty.
    pub(crate) fn evaluate(
        &mut self,
        model: &AnyModel,
        tables: &[Arc<NodeEmbeddings>],
    ) -> Result<Metrics, TrainError> {
        let evaluation = Evaluation::new(model.task(), model.out_dim());
        Ok(self.fill(evaluation, (model, tables))?.finish())
    }

    /// Adds the predictions of a model on the whole split to `evaluation`.
    pub(crate) fn fill(
        &mut self,
        mut evaluation: Evaluation,
        model: TrainedModel<'_>,
    ) -> Result<Evaluation, TrainError> {
        let mut computed = None;
        if let Some(batches) = &self.kept {
            for batch in batches {
                add(&mut evaluation, (model, &mut computed), batch)?;
            }
            return Ok(evaluation);
        }
        let (supply, order, split) = (self.supply, &self.order, self.split);
        let (mut kept, mut kept_bytes) = (Some(Vec::new()), 0);
        let mut last: Option<Arc<Batch>> = None;
        std::thread::scope(|scope| {
            let selections = order.as_stored().into_iter();
            for batch in start(scope, supply, (order, split), selections)? {
                let batch = batch?;
                add(&mut evaluation, (model, &mut computed), &batch)?;
                kept_bytes += batch.bytes_after(last.as_deref());
                last = Some(Arc::clone(&batch));
                if kept_bytes > self.bytes_max {
                    kept = None;
                }
                if let Some(kept) = &mut kept {
                    kept.push(batch);
                }
            }
            Ok::<_, TrainError>(())
        })?;
        self.kept = kept;
        Ok(evaluation)
    }
}

/// Evaluates a model on each split that has targets. Notes empty splits, and metrics that are not
/// finite, which are left out.
pub(crate) fn assess(
    evaluators: [(&str, Evaluator<'_>); 3],
    (model, tables): TrainedModel<'_>,
    names: &[String],
    notes: &mut Vec<String>,
) -> Result<BTreeMap<String, SplitScores>, TrainError> {
    let mut scores = BTreeMap::new();
    for (split, mut evaluator) in evaluators {
        if evaluator.num_targets() == 0 {
            notes.push(format!("the {split} split is empty"));
            continue;
        }
        let counting = Evaluation::new(model.task(), model.out_dim()).with_confusion();
        let evaluation = evaluator.fill(counting, (model, tables))?;
        let mut of_split = SplitScores::of(&evaluation, names);
        of_split.candidates = evaluation.candidates();
        for (metric, value) in evaluation.finish() {
            if value.is_finite() {
                of_split.metrics.insert(metric, value);
            } else {
                notes.push(format!("the {split} {metric} is {value} and left out"));
            }
        }
        scores.insert(split.to_owned(), of_split);
    }
    Ok(scores)
}

/// The logits of a batch's blocks.
type Computed = (Arc<AnyBlocks>, Dense);

/// Adds the predictions on a batch. `computed` is that of the batch before, which may share its
/// blocks.
fn add(
    evaluation: &mut Evaluation,
    ((model, tables), computed): (TrainedModel<'_>, &mut Option<Computed>),
    batch: &Batch,
) -> Result<(), TrainError> {
    let known = computed.take();
    let known = known.filter(|(blocks, _)| Arc::ptr_eq(blocks, &batch.blocks));
    let logits = match known {
        Some((_, logits)) => logits,
        None => {
            let learnable = trained_input(&batch.learnable, tables)?;
            model.forward(&batch.blocks, &learnable, Mode::Eval)?
        }
    };
    let (_, logits) = computed.insert((Arc::clone(&batch.blocks), logits));
    let logits = &*logits;
    if let (Labels::Pairs(pairs), Some(scorer)) = (&batch.labels, model.scorer()) {
        let loss = scorer.loss(logits, pairs);
        evaluation.add_pairs(&scorer, logits, pairs, loss);
        return Ok(());
    }
    let loss = gnn::loss(model.task(), logits, &batch.labels);
    evaluation.add(logits, &batch.labels, loss);
    Ok(())
}
