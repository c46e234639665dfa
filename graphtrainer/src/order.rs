//! The order of targets: a pure function of seed, epoch and the parts' targets.

use std::ops::Range;

use schemas::{Split, hash_int};

use crate::source::Source;
use crate::{TrainError, TrainPlan};

/// Some targets of one part, as a range of its targets in the order of an epoch or of the part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// The part.
    pub(crate) part: usize,
    /// Range of the part's targets: in the epoch's order, or as stored.
    pub(crate) range: Range<usize>,
}

/// The targets of one worker's step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Selection {
    /// Targets of the global batch, by ascending part.
    pub(crate) segments: Vec<Segment>,
    /// Epoch of the order of the ranges; none: the order of the part.
    pub(crate) epoch: Option<u64>,
    /// The worker's range of the global batch, whose targets are sorted by part and position.
    pub(crate) share: Range<usize>,
}

impl Selection {
    /// Returns the segments, each with the worker's range in it; a segment's targets are sorted by
    /// position.
    pub(crate) fn shares(&self) -> impl Iterator<Item = (&Segment, Range<usize>)> {
        let mut before = 0;
        self.segments.iter().map(move |segment| {
            let len = segment.range.len();
            let start = self.share.start.clamp(before, before + len) - before;
            let end = self.share.end.clamp(before, before + len) - before;
            before += len;
            (segment, start..end)
        })
    }
}

/// Divides the targets of a split into batches.
///
/// The targets of an epoch form one stream: the parts in an order drawn by (seed, epoch), and in
/// each part the targets in an order drawn by (seed, epoch, id). Global batch j is the j-th section
/// of the stream. Its targets, sorted by part and position, are cut into one even share per worker.
/// So the global batches do not depend on the number of workers.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// Targets by part.
    counts: Vec<usize>,
    seed: u64,
    batch_size: usize,
    /// Targets that one worker computes together: sections of a segment. None: any cut will do.
    section: Option<usize>,
    /// Whether a batch has targets of one part alone.
    is_cut_at_parts: bool,
}

impl Order {
    /// Makes the order of `counts[part]` targets per part, in batches of `batch_size` over all
    /// workers.
    pub(crate) fn new(counts: Vec<usize>, seed: u64, batch_size: usize) -> Self {
        Self {
            counts,
            seed,
            batch_size,
            section: None,
            is_cut_at_parts: false,
        }
    }

    /// Cuts batches at the ends of parts, too.
    pub(crate) fn cut_at_parts(self, is_cut_at_parts: bool) -> Self {
        Self {
            is_cut_at_parts,
            ..self
        }
    }

    /// Keeps each section of so many targets of a part, in the order of the epoch, with one worker.
    pub(crate) fn in_sections(self, section: Option<usize>) -> Self {
        Self { section, ..self }
    }

    /// Returns a worker's range of a global batch.
    fn share(&self, segments: &[Segment], worker: usize, num_workers: usize) -> Range<usize> {
        let lens = || segments.iter().map(|segment| segment.range.len());
        let cut = |of: usize| (worker * of / num_workers, (worker + 1) * of / num_workers);
        let Some(section) = self.section else {
            let (start, end) = cut(lens().sum());
            return start..end;
        };
        let mut ends = vec![0];
        let mut before = 0;
        for len in lens() {
            let of_segment = (1..=len.div_ceil(section)).map(|at| before + (at * section).min(len));
            ends.extend(of_segment);
            before += len;
        }
        let (start, end) = cut(ends.len() - 1);
        ends[start]..ends[end]
    }

    /// Returns the number of targets.
    pub(crate) fn num_targets(&self) -> usize {
        self.counts.iter().sum()
    }

    /// Returns the number of global batches in an epoch, if batches are not cut at parts.
    pub(crate) fn num_batches(&self) -> usize {
        self.num_targets().div_ceil(self.batch_size)
    }

    /// Returns the batches of one worker in an epoch.
    pub(crate) fn of_worker(
        &self,
        epoch: u64,
        worker: usize,
        num_workers: usize,
    ) -> impl Iterator<Item = Selection> + Clone + use<> {
        let mut parts: Vec<usize> = (0..self.counts.len()).collect();
        parts.sort_by_key(|&part| (mix(&[self.seed, epoch, part as u64]), part));
        let batches = self.cut(&parts).into_iter().map(|segments| Selection {
            share: self.share(&segments, worker, num_workers),
            segments,
            epoch: Some(epoch),
        });
        batches.collect::<Vec<_>>().into_iter()
    }

    /// Returns batches of all targets in the order of the parts, for evaluation.
    pub(crate) fn as_stored(&self) -> Vec<Selection> {
        let parts: Vec<usize> = (0..self.counts.len()).collect();
        let whole = |segments: Vec<Segment>| {
            let len = segments.iter().map(|segment| segment.range.len()).sum();
            Selection {
                segments,
                epoch: None,
                share: 0..len,
            }
        };
        self.cut(&parts).into_iter().map(whole).collect()
    }

    /// Cuts the stream of the parts' targets into batches; segments by ascending part.
    fn cut(&self, parts: &[usize]) -> Vec<Vec<Segment>> {
        let mut batches = Vec::with_capacity(self.num_batches());
        let (mut batch, mut room) = (Vec::new(), self.batch_size);
        for &part in parts {
            let mut start = 0;
            while start < self.counts[part] {
                let end = self.counts[part].min(start + room);
                batch.push(Segment {
                    part,
                    range: start..end,
                });
                room -= end - start;
                start = end;
                let is_end = self.is_cut_at_parts && start == self.counts[part];
                if room == 0 || is_end {
                    batches.push(std::mem::take(&mut batch));
                    room = self.batch_size;
                }
            }
        }
        if !batch.is_empty() {
            batches.push(batch);
        }
        for segments in &mut batches {
            segments.sort_by_key(|segment| segment.part);
        }
        batches
    }

    /// Returns the targets of a part, positions in its shard, in the order of an epoch; `hash` is
    /// that of a target's ids.
    pub(crate) fn permuted(
        &self,
        epoch: u64,
        hash: impl Fn(u32) -> u64,
        targets: &[u32],
    ) -> Vec<u32> {
        let mut drawn: Vec<(u64, u32)> = targets
            .iter()
            .map(|&target| (mix(&[self.seed, epoch, hash(target)]), target))
            .collect();
        drawn.sort_unstable();
        drawn.into_iter().map(|(_, target)| target).collect()
    }
}

/// Divides the train targets into steps of all workers. The targets may be the src nodes of pairs.
///
/// # Errors
///
/// If a part cannot be read, whose src nodes must be counted.
pub(crate) fn training_order(plan: &TrainPlan, source: &Source) -> Result<Order, TrainError> {
    let result = &plan.result;
    let global_size = result.batch_size.saturating_mul(result.workers);
    let order = |counts| Order::new(counts, result.seed, global_size);
    let counts = source.counts_of(Split::Train);
    let Some(links) = source.graph.pairs.as_ref().map(|_| result.links()) else {
        return Ok(order(counts));
    };
    if !links.by_src {
        return Ok(order(counts).in_sections(links.section));
    }
    let of_part = |part| Ok(source.part(source.key(part, None))?.by_src().len());
    let counts = (0..counts.len()).map(of_part);
    Ok(order(counts.collect::<Result<_, TrainError>>()?))
}

/// Returns the random seed of a step's dropout.
pub(crate) fn step_seed(seed: u64, epoch: u64, step: u64) -> u64 {
    mix(&[seed, epoch, step, 1])
}

/// Mixes words into a draw; each position of the list has a fixed meaning.
pub(crate) fn mix(words: &[u64]) -> u64 {
    words
        .iter()
        .fold(0, |state, &word| hash_int(state ^ hash_int(word)))
}

#[cfg(test)]
mod tests {
    use schemas::Ids;

    use super::*;

    fn targets(order: &Order, selections: &[Selection]) -> Vec<(usize, u32)> {
        let mut found = Vec::new();
        for selection in selections {
            let mut batch = Vec::new();
            for Segment { part, range } in &selection.segments {
                let stored: Vec<u32> = (0..u32::try_from(order.counts[*part]).unwrap()).collect();
                let ids = Ids::from_keys(
                    schemas::IdType::Int64,
                    stored.iter().map(|&i| u64::from(i)).collect(),
                );
                let ordered = match selection.epoch {
                    Some(epoch) => order.permuted(epoch, |at| ids.hash(at as usize), &stored),
                    None => stored,
                };
                let mut segment = ordered[range.clone()].to_vec();
                segment.sort_unstable();
                batch.extend(segment.into_iter().map(|target| (*part, target)));
            }
            found.extend_from_slice(&batch[selection.share.clone()]);
        }
        found
    }

    #[test]
    fn workers_share_the_batches_of_one() {
        let order = Order::new(vec![5, 0, 7, 1], 3, 4);
        assert_eq!((order.num_targets(), order.num_batches()), (13, 4));
        for epoch in 0..3 {
            let one: Vec<_> = order.of_worker(epoch, 0, 1).collect();
            for num_workers in 1..=5 {
                let many: Vec<Vec<_>> = (0..num_workers)
                    .map(|worker| order.of_worker(epoch, worker, num_workers).collect())
                    .collect();
                for batch in 0..order.num_batches() {
                    let shares: Vec<_> = many
                        .iter()
                        .flat_map(|own| targets(&order, &own[batch..=batch]))
                        .collect();
                    assert_eq!(shares, targets(&order, &one[batch..=batch]));
                    assert_eq!(shares.len(), 4.min(13 - 4 * batch));
                }
            }
            let mut all = targets(&order, &one);
            all.sort_unstable();
            assert_eq!(all, targets(&order, &order.as_stored()), "each target once");
        }
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let order = |seed| Order::new(vec![40, 40], seed, 8);
        let first = |of: &Order, epoch| {
            let batch: Vec<_> = of.of_worker(epoch, 0, 1).take(1).collect();
            targets(of, &batch)
        };
        assert_eq!(first(&order(1), 0), first(&order(1), 0));
        assert_ne!(first(&order(1), 0), first(&order(1), 1));
        assert_ne!(first(&order(1), 0), first(&order(2), 0));
        assert_ne!(step_seed(1, 2, 3), step_seed(1, 3, 2));
    }

    #[test]
    fn batches_can_end_with_their_part() {
        let order = Order::new(vec![5, 0, 4, 1], 3, 4).cut_at_parts(true);
        let stored = order.as_stored();
        let parts = stored.iter().map(|of| match &of.segments[..] {
            [one] => (one.part, one.range.clone()),
            more => panic!("{more:?}"),
        });
        let expected = [(0, 0..4), (0, 4..5), (2, 0..4), (3, 0..1)];
        assert_eq!(parts.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn no_targets_give_no_batch() {
        let order = Order::new(vec![0, 0], 1, 8);
        assert_eq!((order.num_batches(), order.as_stored().len()), (0, 0));
    }
}
