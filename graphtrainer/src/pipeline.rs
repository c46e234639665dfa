//! Makes batches ahead of the model: read, vectorise and compute, on bounded queues.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;

use schemas::Split;
use schemas::threads::spawn_scoped;

use crate::TrainError;
use crate::class_weight;
use crate::fetch::{FetchedParts, fetch_ahead};
use crate::link::{BySrc, pair_key};
use crate::order::{Order, Segment, Selection};
use crate::source::{Part, PartKey};
use crate::supply::{PipelineStage, Supply, forward_error};
use crate::vectorise::{Batch, Chosen};

/// Batches that wait between two stages of a pipeline. A longer queue would only take memory: the
/// queue evens out batches of unequal size, and the slowest stage sets the pace.
const QUEUE_BATCHES: usize = 2;

/// The targets of a batch by part, and the epoch if pairs draw their negatives by it; equal targets
/// make equal batches.
type Targets = (Vec<(PartKey, Vec<u32>)>, Option<u64>);

/// Starts the threads that fetch, choose and vectorise for one consumer. Batches arrive in the
/// order of the selections. The first error of a thread arrives in place of a batch and ends the
/// threads; they also end when the receiver is dropped.
///
/// # Errors
///
/// If the system refuses a thread.
pub(crate) fn start<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    supply: Supply<'env>,
    (order, split): (&'env Order, Split),
    selections: impl Iterator<Item = Selection> + Clone + Send + 'scope,
) -> Result<Receiver<Result<Arc<Batch>, TrainError>>, TrainError> {
    let (chosen_sender, choices) = sync_channel::<Result<Chosen, TrainError>>(QUEUE_BATCHES);
    let (batch_sender, batches) = sync_channel(QUEUE_BATCHES);
    let parts = fetch_ahead(scope, supply, selections.clone())?;
    let reader = Reader {
        supply,
        order,
        split,
        parts,
        permuted: None,
    };
    let choose = move || forward_error(&chosen_sender, || reader.run(selections, &chosen_sender));
    spawn_scoped(scope, "choose", choose)?;
    let vectorise = move || {
        forward_error(&batch_sender, || vectorise(supply, &choices, &batch_sender));
    };
    spawn_scoped(scope, "vectorise", vectorise)?;
    Ok(batches)
}

/// Makes batches until there are no more targets, or the receiver is dropped.
fn vectorise(
    supply: Supply<'_>,
    choices: &Receiver<Result<Chosen, TrainError>>,
    batches: &SyncSender<Result<Arc<Batch>, TrainError>>,
) -> Result<(), TrainError> {
    let mut last: Option<(Targets, Arc<Batch>)> = None;
    for chosen in choices {
        let chosen = chosen?;
        let pieces = chosen.pieces.iter();
        let pieces = pieces.map(|(part, _, targets)| (*part, targets.clone()));
        let epoch = chosen.epoch.filter(|_| supply.vectoriser.links.is_some());
        let key: Targets = (pieces.collect(), epoch);
        // An epoch of one batch has the same targets every time. With several workers, the other
        // workers' targets may differ, and so the counts.
        let batch = match &last {
            Some((last_key, batch)) if *last_key == key && batch.counts == chosen.counts => {
                Arc::clone(batch)
            }
            _ => {
                let make = || supply.vectoriser.vectorise(&chosen);
                Arc::new(supply.busy.time(PipelineStage::Vectorise, make)?)
            }
        };
        last = Some((key, Arc::clone(&batch)));
        if batches.send(Ok(batch)).is_err() {
            break;
        }
    }
    Ok(())
}

/// Turns selections into targets of decoded parts.
struct Reader<'env> {
    supply: Supply<'env>,
    order: &'env Order,
    split: Split,
    parts: FetchedParts,
    /// The targets of a part in the order of an epoch, kept since consecutive batches use the same
    /// part.
    permuted: Option<((usize, u64), Vec<u32>)>,
}

impl Reader<'_> {
    /// Chooses targets until there are no more selections, or the receiver is dropped.
    fn run(
        mut self,
        selections: impl Iterator<Item = Selection>,
        chosen: &SyncSender<Result<Chosen, TrainError>>,
    ) -> Result<(), TrainError> {
        for selection in selections {
            let read = self.read(&selection)?;
            if chosen.send(Ok(read)).is_err() {
                break;
            }
        }
        Ok(())
    }

    fn read(&mut self, selection: &Selection) -> Result<Chosen, TrainError> {
        self.parts.advance(self.supply, selection)?;
        let busy = self.supply.busy;
        Ok(busy.time(PipelineStage::Read, || self.choose(selection)))
    }

    /// Returns the targets of a segment: positions in the part, or among its src nodes in `by_src`.
    fn targets_of(
        &mut self,
        segment: &Segment,
        (part, by_src): (&Part, Option<&BySrc>),
        epoch: Option<u64>,
    ) -> Vec<u32> {
        let stored = match by_src {
            None => Cow::Borrowed(part.targets(self.split)),
            Some(groups) => Cow::Owned((0..).take(groups.len()).collect()),
        };
        let Some(epoch) = epoch else {
            return stored[segment.range.clone()].to_vec();
        };
        let ordered = (segment.part, epoch);
        let known = self.permuted.take().filter(|(known, _)| *known == ordered);
        let links = self.supply.vectoriser.links.as_ref();
        let (_, permuted) = self.permuted.insert(known.unwrap_or_else(|| {
            let ids = &part.shard.target_nodes().ids;
            let hash = |target: u32| match (links, by_src) {
                (None, _) => ids.hash(target as usize),
                (Some(links), None) => pair_key(part, &links.meta, target as usize),
                (Some(links), Some(groups)) => {
                    let nodes = &part.shard.nodes[links.meta.from];
                    nodes.ids.hash(groups.node(target))
                }
            };
            (ordered, self.order.permuted(epoch, hash, &stored))
        }));
        permuted[segment.range.clone()].to_vec()
    }

    /// Takes the targets of a selection from the fetched parts.
    fn choose(&mut self, selection: &Selection) -> Chosen {
        let mut chosen = Chosen {
            epoch: selection.epoch,
            is_of_one_part: selection.segments.len() == 1,
            ..Chosen::default()
        };
        let links = self.supply.vectoriser.links.as_ref();
        let weights = &self.supply.vectoriser.class_weights;
        for (segment, own) in selection.shares() {
            if !self.supply.reads(&own) {
                chosen.counts.global += segment.range.len() as f64;
                continue;
            }
            let key = self.supply.source.key(segment.part, selection.epoch);
            let part = Arc::clone(self.parts.get(key));
            let is_trained = selection.epoch.is_some();
            let is_by_src = links.is_some_and(|links| links.plan.by_src && is_trained);
            let by_src = is_by_src.then(|| part.by_src());
            let mut targets = self.targets_of(segment, (&part, by_src), selection.epoch);
            if links.is_none() {
                targets.sort_unstable();
            }
            let (targets, own) = match by_src {
                None => {
                    let own = targets[own].to_vec();
                    (targets, own)
                }
                Some(groups) => (groups.pairs_of(&targets), groups.pairs_of(&targets[own])),
            };
            let total = |of: &[u32]| match links {
                None => class_weight::total(weights, &part.shard.target_nodes().labels, of),
                Some(links) => links.total_weight(&part, of, is_trained),
            };
            chosen.counts.global += total(&targets);
            chosen.counts.own += total(&own);
            if !own.is_empty() {
                chosen.pieces.push((key, part, own));
                if links.is_some() {
                    chosen.of_batch.push(targets);
                }
            }
        }
        chosen
    }
}
