//! Evaluates a model on a split; batches are kept in memory if they fit.

use std::collections::BTreeMap;
use std::sync::Arc;

use cluster::Cluster;
use gnn::{Dense, Labels, Mode};
use schemas::{PairsMeta, Split};

use crate::any_model::{AnyBlocks, AnyModel};
use crate::embedding::NodeEmbeddings;
use crate::learnable::trained_input;
use crate::link::{KnownLinks, RankedPart, RowLinks};
use crate::memory::EVALUATION_TARGETS;
use crate::metric::Evaluation;
use crate::order::{Order, Selection};
use crate::peers::Team;
use crate::pipeline::start;
use crate::ranking::rank_all;
use crate::scores::SplitScores;
use crate::source::Source;
use crate::supply::Supply;
use crate::vectorise::Batch;
use crate::{TrainError, TrainPlan};

/// A model with its embedding tables.
pub(crate) type TrainedModel<'a> = (&'a AnyModel, &'a [Arc<NodeEmbeddings>]);

/// Evaluates models on one split, any number of times.
#[derive(Debug)]
pub(crate) struct Evaluator<'env> {
    supply: Supply<'env>,
    split: Split,
    order: Order,
    /// This process and the number of processes that evaluate together.
    share: (usize, usize),
    /// Largest number of bytes of kept batches.
    bytes_max: usize,
    /// All batches, after an evaluation in which they fit into memory.
    kept: Option<Vec<Arc<Batch>>>,
    /// By ranked part, after an evaluation: links of the splits before, which are no candidates.
    known: Vec<RowLinks>,
}

impl<'env> Evaluator<'env> {
    /// Prepares the evaluation of a split. The batches of val are kept if they fit into the memory for
    /// parts; the other splits are evaluated once.
    ///
    /// Of the processes of `cluster`, each evaluates a range of the batches.
    pub(crate) fn of_plan(
        supply: Supply<'env>,
        split: Split,
        plan: &TrainPlan,
        cluster: Option<&Cluster>,
    ) -> Self {
        let counts = supply.source.counts_of(split);
        let shares_blocks = supply.vectoriser.shared.is_some();
        let batch_size = plan.result.batch_size.max(EVALUATION_TARGETS);
        Self {
            supply,
            split,
            order: Order::new(counts, 0, batch_size).cut_at_parts(shares_blocks),
            share: cluster.map_or((0, 1), |of| (of.process(), of.num_processes())),
            bytes_max: match split {
                Split::Val => plan.part_cache_bytes(),
                _ => 0,
            },
            kept: None,
            known: Vec::new(),
        }
    }

    /// Returns the number of targets of the split.
    pub(crate) fn num_targets(&self) -> usize {
        self.order.num_targets()
    }

    /// Evaluates a model on the whole split, with the share of each process of a team. The result
    /// does not depend on the number of processes.
    pub(crate) fn evaluate(
        &mut self,
        trained: TrainedModel<'_>,
        team: Option<&Team<'_>>,
        with_confusion: bool,
    ) -> Result<Evaluation, TrainError> {
        let (model, _) = trained;
        let mut whole = empty(model, with_confusion);
        let num_batches = self.order.as_stored().len();
        if num_batches == 0 {
            return Ok(whole);
        }
        // The leader has the first batch.
        let team = team.filter(|_| num_batches > 1);
        if let Some(team) = team {
            team.start(model, self.split, with_confusion);
        }
        let own = self.evaluations(trained, with_confusion);
        let all = match team {
            Some(team) => team.gather(own)?,
            None => own?,
        };
        all.into_iter().for_each(|of_batch| whole.append(of_batch));
        Ok(whole)
    }

    /// Evaluates a model on the share: on each batch, since the sums of all shares are added in the
    /// order of batches. Returns one evaluation if the share is the whole.
    pub(crate) fn evaluations(
        &mut self,
        trained: TrainedModel<'_>,
        with_confusion: bool,
    ) -> Result<Vec<Evaluation>, TrainError> {
        let mut filling = SplitEvaluation {
            evaluations: Vec::new(),
            is_whole: self.share.1 == 1,
            with_confusion,
            trained,
            known: Known {
                source: self.supply.source,
                split: self.split,
                links: None,
                of_parts: std::mem::take(&mut self.known),
            },
            num_ranked: 0,
            computed: None,
        };
        if let Some(batches) = &self.kept {
            for batch in batches {
                filling.add(batch)?;
            }
            let (evaluations, known) = filling.finish()?;
            self.known = known;
            return Ok(evaluations);
        }
        let (supply, order, split) = (self.supply, &self.order, self.split);
        let mut selections = order.as_stored();
        let (process, num_processes) = self.share;
        debug_assert!(
            num_processes == 1 || supply.vectoriser.shared.is_none(),
            "a part that is ranked is in one share"
        );
        let cut = |at: usize| (at * selections.len()).div_ceil(num_processes);
        let own = selections.drain(cut(process)..cut(process + 1));
        let own: Vec<Selection> = own.collect();
        let (mut kept, mut kept_bytes) = (Some(Vec::new()), 0);
        let mut last: Option<Arc<Batch>> = None;
        std::thread::scope(|scope| {
            for batch in start(scope, supply, (order, split), own.into_iter())? {
                let batch = batch?;
                filling.add(&batch)?;
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
        let (evaluations, known) = filling.finish()?;
        (self.kept, self.known) = (kept, known);
        Ok(evaluations)
    }
}

/// Returns an evaluation of no targets.
fn empty(model: &AnyModel, with_confusion: bool) -> Evaluation {
    let evaluation = Evaluation::new(model.task(), model.out_dim());
    match with_confusion {
        true => evaluation.with_confusion(),
        false => evaluation,
    }
}

/// Evaluates a model on each split that has targets. Notes empty splits, and metrics that are not
/// finite, which are left out.
pub(crate) fn assess(
    evaluators: [(&str, Evaluator<'_>); 3],
    trained: TrainedModel<'_>,
    (names, team): (&[String], Option<&Team<'_>>),
    notes: &mut Vec<String>,
) -> Result<BTreeMap<String, SplitScores>, TrainError> {
    let mut scores = BTreeMap::new();
    for (split, mut evaluator) in evaluators {
        if evaluator.num_targets() == 0 {
            notes.push(format!("the {split} split is empty"));
            continue;
        }
        let evaluation = evaluator.evaluate(trained, team, true)?;
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

/// The logits of some blocks, and the links that are ranked by them.
struct Computed {
    blocks: Arc<AnyBlocks>,
    logits: Dense,
    /// Src and dst row of each link, if the links of the part are ranked among all its targets.
    ranked: Option<(Arc<RankedPart>, RowLinks)>,
}

/// The links that are no candidates, since they are those of the splits before.
struct Known<'a> {
    source: &'a Source,
    split: Split,
    /// The links of all parts, read when they are first needed.
    links: Option<KnownLinks>,
    /// The links as rows, by part of the split in the order of evaluation.
    of_parts: Vec<RowLinks>,
}

impl Known<'_> {
    /// Returns the links of part `at`: the next one, or one that was ranked before.
    fn of_part(
        &mut self,
        at: usize,
        part: &RankedPart,
        meta: &PairsMeta,
    ) -> Result<&RowLinks, TrainError> {
        if at == self.of_parts.len() {
            let links = match self.links.take() {
                Some(links) => links,
                None => KnownLinks::before(self.split, self.source, meta)?,
            };
            self.of_parts.push(part.rows_of(&links));
            self.links = Some(links);
        }
        Ok(&self.of_parts[at])
    }
}

/// The evaluation of a model on a split, batch by batch.
struct SplitEvaluation<'a> {
    /// One for each batch, or one for all.
    evaluations: Vec<Evaluation>,
    /// Whether the batches are those of the whole split.
    is_whole: bool,
    with_confusion: bool,
    trained: TrainedModel<'a>,
    known: Known<'a>,
    /// Parts that were ranked.
    num_ranked: usize,
    /// The logits of the batch before, which may share its blocks.
    computed: Option<Computed>,
}

impl SplitEvaluation<'_> {
    /// Adds the predictions on a batch.
    fn add(&mut self, batch: &Batch) -> Result<(), TrainError> {
        let (model, tables) = self.trained;
        let is_same = |of: &Computed| Arc::ptr_eq(&of.blocks, &batch.blocks);
        if !self.computed.as_ref().is_some_and(is_same) {
            self.rank()?;
            let learnable = trained_input(&batch.learnable, tables)?;
            let ranked = batch.ranked.clone();
            self.computed = Some(Computed {
                blocks: Arc::clone(&batch.blocks),
                logits: model.forward(&batch.blocks, &learnable, Mode::Eval)?,
                ranked: ranked.map(|part| (part, Vec::new())),
            });
        }
        let Some(Computed { logits, ranked, .. }) = &mut self.computed else {
            return Ok(());
        };
        let mut evaluation = empty(model, self.with_confusion);
        if let (Labels::Pairs(pairs), Some(scorer)) = (&batch.labels, model.scorer()) {
            let loss = scorer.loss(logits, pairs);
            evaluation.add_pairs(&scorer, logits, pairs, loss);
            if let Some((_, links)) = ranked {
                let all = (0..pairs.len()).filter(|&pair| pairs.exists(pair));
                links.extend(all.map(|pair| (pairs.src[pair], pairs.dst[pair])));
            }
        } else {
            let loss = gnn::loss(model.task(), logits, &batch.labels);
            evaluation.add(logits, &batch.labels, loss);
        }
        match self.evaluations.last_mut() {
            Some(whole) if self.is_whole => whole.append(evaluation),
            _ => self.evaluations.push(evaluation),
        }
        Ok(())
    }

    /// Ranks the links of the last part among all its targets.
    fn rank(&mut self) -> Result<(), TrainError> {
        let (model, _) = self.trained;
        let computed = self.computed.take();
        let ranked = computed.and_then(|of| Some((of.logits, of.ranked?)));
        let (Some((logits, (part, links))), Some(scorer)) = (ranked, model.scorer()) else {
            return Ok(());
        };
        let Some(meta) = &self.known.source.graph.pairs else {
            return Ok(());
        };
        let known = self.known.of_part(self.num_ranked, &part, meta)?;
        self.num_ranked += 1;
        let queries = part.queries(links, known);
        let items = part.items();
        let of_items = &logits.values[items.start * logits.cols..items.end * logits.cols];
        let of_items = Dense {
            rows: items.len(),
            cols: logits.cols,
            values: of_items.to_vec(),
        };
        let ranks = rank_all(&scorer, &logits, &of_items, &queries);
        if let Some(last) = self.evaluations.last_mut() {
            last.add_ranks(&queries, &ranks, items.len());
        }
        Ok(())
    }

    /// Returns the evaluations of the batches, and the known links of each part.
    fn finish(mut self) -> Result<(Vec<Evaluation>, Vec<RowLinks>), TrainError> {
        self.rank()?;
        Ok((self.evaluations, self.known.of_parts))
    }
}
