//! Supervision pairs: reads them, gives each its split, and spreads them over the workers by hash.

use crate::StoreError;
use crate::arrow_file::{self, bounds, column};
use crate::ends::{End, Ends, FindNodes};
use crate::number::MISSING;
use crate::pair_set::{PairSet, pair_key};
use crate::units::OwnUnits;
use crate::walks::Visit;
use arrow::array::{
    Array, ArrayRef, AsArray, Float32Array, Int64Array, RecordBatch, UInt8Array, UInt32Array,
};
use arrow::datatypes::{Float32Type, Int64Type, UInt8Type, UInt32Type};
use cluster::Peer;
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use rayon::slice::ParallelSliceMut;
use schemas::{Ids, NoPair, NodeIdx, PairRows, PairsPlan, Split, SplitCounts, SplitShares, Unit};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

/// Supervision pairs in the order in which they are cut into parts: by split, then by a hash of the
/// two ids, then by src and dst.
///
/// With `time`, the list holds all pairs of tables, including those in no split, in the order of
/// time and hash.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Pairs {
    /// `[p]`
    pub src: Vec<NodeIdx>,
    /// `[p]`
    pub dst: Vec<NodeIdx>,
    /// `[p]`, never [`Split::None`] in a list without times.
    pub split: Vec<Split>,
    /// `[p]`, where pairs have labels.
    pub label: Option<Vec<f32>>,
    /// `[p]`, where pairs have weights.
    pub weight: Option<Vec<f32>>,
    /// Where pairs have hard negatives: `[p + 1]` offsets from 0, and the nodes.
    pub hard: Option<(Vec<u64>, Vec<NodeIdx>)>,
    /// `[p]`, as [`Pair::time`], in the list of all pairs.
    pub time: Option<Vec<i64>>,
}

/// A row of a table of pairs, or several of one pair as one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Pair {
    /// Of the ids of both ends, as [`PairsPlan::hash`] gives it.
    pub hash: u64,
    /// The src end.
    pub src: NodeIdx,
    /// The dst end.
    pub dst: NodeIdx,
    /// Row of the table; the first one of several.
    pub row: u64,
    /// Its split.
    pub split: Split,
    /// Place in the order of times; 0 without times.
    pub time: i64,
    /// 1 for a link, 0 for none.
    pub label: f32,
    /// 1 where pairs have no weights.
    pub weight: f32,
    /// Hard negatives.
    pub negatives: Box<[NodeIdx]>,
}

/// The pairs of a worker, and those of all workers whose edges are left out.
pub(crate) struct PlacedPairs {
    pub(crate) own: Pairs,
    /// All pairs of the worker with their times, if these are kept.
    pub(crate) timed: Option<Pairs>,
    /// Pairs of all workers by split.
    pub(crate) counts: SplitCounts,
    pub(crate) leaving: Arc<PairSet>,
}

/// A row that is no pair of two nodes: its number, what is wrong and an id.
type NotAPair = (u64, u8, String);

/// What is wrong with a row, by the number in [`NotAPair`].
const PROBLEMS: [NoPair; 4] = [NoPair::Src, NoPair::Dst, NoPair::Negatives, NoPair::Same];

/// Reads the pairs and places each on the worker of its hash. Equal pairs become one, whose weight
/// is the sum, and whose time is the first. `keeps_times`: whether the times of all pairs are kept.
///
/// # Errors
///
/// If a table cannot be read, a value cannot be used, an end is no node, or a split has no pair.
pub(crate) fn place_pairs(
    peer: &mut Peer<'_>,
    (plan, keeps_times): (&PairsPlan, bool),
    work: OwnUnits,
    ends: &Ends,
    shared: &OnceLock<Arc<PairSet>>,
) -> Result<PlacedPairs, StoreError> {
    let unknown = Rc::new(RefCell::new(None));
    let received = Rc::new(RefCell::new(Vec::<Pair>::new()));
    let outgoing = outgoing(plan, work, ends, peer.peers(), Rc::clone(&unknown));
    let take = Rc::clone(&received);
    peer.shuffle_each::<Vec<Pair>, StoreError>(outgoing, move |_, _, pairs| {
        take.borrow_mut().extend(pairs);
        Ok(())
    })?;
    let unknown: Vec<Option<NotAPair>> = peer.gather_all::<_, StoreError>(Ok(unknown.take()))?;
    check_ids(plan, unknown.into_iter().flatten().min())?;
    let mut rows = received.take();
    rows.sort_unstable_by_key(same_key);
    let mut pairs = peer.agree(distinct(plan, rows))?;
    if let (Some(shares), Some(_)) = (plan.shares(), &plan.spec().time) {
        split_by_time(peer, shares, &mut pairs)?;
    }
    let timed = keeps_times.then(|| Pairs::timed(plan, &pairs));
    let own_counts = keep_in_splits(plan, &mut pairs);
    let mut train = pairs.iter().filter(|pair| pair.split == Split::Train);
    let own = (own_counts, train.any(|pair| pair.weight > 0.0));
    let all = peer.gather_all::<_, StoreError>(Ok(own))?;
    let sum = |of: fn(&SplitCounts) -> u64| all.iter().map(|(counts, _)| of(counts)).sum();
    let counts = SplitCounts {
        train: sum(|counts| counts.train),
        val: sum(|counts| counts.val),
        test: sum(|counts| counts.test),
        none: 0,
    };
    plan.check_counts(&counts)?;
    if plan.keeps(Split::Train) && !all.iter().any(|(_, has_weight)| *has_weight) {
        return Err(plan.no_weight().into());
    }
    let leaving = gather_leaving(peer, plan, &pairs, shared)?;
    Ok(PlacedPairs {
        own: Pairs::of(plan, &pairs),
        timed,
        counts,
        leaving,
    })
}

/// Sorts the pairs of a worker that are in a split, removes the others, and returns the counts.
pub(crate) fn keep_in_splits(plan: &PairsPlan, pairs: &mut Vec<Pair>) -> SplitCounts {
    pairs.retain(|pair| plan.keeps(pair.split));
    pairs.sort_unstable_by_key(|pair| (pair.split, pair.hash, pair.src, pair.dst));
    let mut counts = SplitCounts::default();
    pairs.iter().for_each(|pair| counts.add(pair.split));
    counts
}

/// A key in the order of times and hashes; a pair and its reverse may have the same of both.
pub(crate) fn in_time(pair: &Pair) -> (u128, NodeIdx, NodeIdx) {
    (time_key(pair.time, pair.hash), pair.src, pair.dst)
}

/// Returns the worker of a pair.
pub(crate) fn worker_of(hash: u64, workers: usize) -> usize {
    let worker = (u128::from(hash) * workers as u128) >> 64;
    usize::try_from(worker).expect("below the number of workers")
}

/// Checks that all rows are pairs of two nodes; `first` is the first one that is none.
fn check_ids(plan: &PairsPlan, first: Option<NotAPair>) -> Result<(), StoreError> {
    match first {
        None => Ok(()),
        Some((row, problem, id)) => {
            let error = plan.no_pair(row, PROBLEMS[usize::from(problem)], &id);
            Err(error.into())
        }
    }
}

/// Reads the pairs of all units of a table that are in a split; equal pairs become one. They stand in
/// the order of hash, src and dst. `nodes` finds their ends. Where splits follow from times, all
/// pairs are read, and are in no split.
///
/// # Errors
///
/// If a table cannot be read, a value cannot be used, or an end is no node.
pub fn read_pairs(
    plan: &PairsPlan,
    nodes: &(impl FindNodes + Sync),
) -> Result<Vec<Pair>, StoreError> {
    let of_unit = |unit: &Unit| -> Result<(Vec<Pair>, Option<NotAPair>), StoreError> {
        let (mut read, unknown) = (Vec::new(), Rc::new(RefCell::new(None)));
        let mut reader = PairReader::new(plan, nodes, Rc::clone(&unknown));
        for rows in plan.batches(unit)? {
            reader.read(&rows?, |pair| read.push(pair));
        }
        Ok((read, unknown.take()))
    };
    // All units are read first, so that the error of the first one is returned.
    let read: Vec<Result<_, StoreError>> = plan.units().par_iter().map(of_unit).collect();
    let read = read.into_iter().collect::<Result<Vec<_>, _>>()?;
    let (units, unknown): (Vec<Vec<Pair>>, Vec<_>) = read.into_iter().unzip();
    check_ids(plan, unknown.into_iter().flatten().min())?;
    let mut rows = Vec::with_capacity(units.iter().map(Vec::len).sum());
    units.into_iter().for_each(|unit| rows.extend(unit));
    rows.par_sort_unstable_by_key(same_key);
    let mut pairs = distinct(plan, rows)?;
    if plan.spec().time.is_none() {
        pairs.retain(|pair| plan.keeps(pair.split));
    }
    Ok(pairs)
}

/// Reads the pairs of this worker's units; each batch goes to the worker of its hashes.
fn outgoing<'a>(
    plan: &'a PairsPlan,
    work: OwnUnits,
    ends: &'a Ends,
    workers: usize,
    unknown: Rc<RefCell<Option<NotAPair>>>,
) -> impl Iterator<Item = Result<(usize, Vec<Pair>), StoreError>> + 'a {
    type Sent = Vec<Result<(usize, Vec<Pair>), StoreError>>;
    let mut reader = PairReader::new(plan, ends, unknown);
    let batches = work.of(plan.units()).flat_map(
        |unit| -> Box<dyn Iterator<Item = Result<PairRows, StoreError>>> {
            match plan.batches(&unit) {
                Ok(batches) => Box::new(batches.map(|item| Ok(item?))),
                Err(e) => Box::new(std::iter::once(Err(e.into()))),
            }
        },
    );
    batches.flat_map(move |rows| -> Sent {
        let rows = match rows {
            Ok(rows) => rows,
            Err(e) => return vec![Err(e)],
        };
        let mut by_worker: Vec<Vec<Pair>> = vec![Vec::new(); workers];
        reader.read(&rows, |pair| {
            by_worker[worker_of(pair.hash, workers)].push(pair);
        });
        let by_worker = by_worker.into_iter().enumerate();
        let sent = by_worker.filter(|(_, pairs)| !pairs.is_empty());
        sent.map(Ok).collect()
    })
}

/// Turns rows into pairs.
struct PairReader<'a, N> {
    plan: &'a PairsPlan,
    nodes: &'a N,
    /// The ends of the taken rows.
    src: End,
    dst: End,
    negatives: End,
    /// Hashes of the ends of all rows, where these decide the splits.
    hashes: [Vec<u64>; 2],
    unknown: Rc<RefCell<Option<NotAPair>>>,
}

/// A row that may be in a split.
#[derive(Clone, Copy)]
struct Taken {
    /// Position among the rows.
    row: usize,
    /// [`Split::None`] where splits follow from all times.
    split: Split,
}

impl<'a, N: FindNodes> PairReader<'a, N> {
    fn new(plan: &'a PairsPlan, nodes: &'a N, unknown: Rc<RefCell<Option<NotAPair>>>) -> Self {
        Self {
            plan,
            nodes,
            src: End::default(),
            dst: End::default(),
            negatives: End::default(),
            hashes: Default::default(),
            unknown,
        }
    }

    /// Lists the rows that may be in a split.
    fn taken(&mut self, rows: &PairRows) -> Vec<Taken> {
        let has_others = rows.split.is_some() || rows.time.is_some();
        let shares = self.plan.shares().filter(|_| !has_others);
        if shares.is_some() {
            let ends = [&rows.ends.src, &rows.ends.dst].into_iter();
            for (ids, hashes) in ends.zip(&mut self.hashes) {
                hashes.clear();
                ids.hashes_into(hashes);
            }
        }
        let [src, dst] = &self.hashes;
        let split = |row: usize| match (&rows.split, shares) {
            (Some(split), _) => split[row],
            (None, Some(shares)) => shares.draw(self.plan.hash(src[row], dst[row])),
            // Splits by time follow when all times are known.
            (None, None) => Split::None,
        };
        let all = (0..rows.ends.src.len()).map(|row| Taken {
            row,
            split: split(row),
        });
        let taken = all.filter(|of| of.split != Split::None || rows.time.is_some());
        taken.collect()
    }

    /// Reads the pairs of some rows that may be in a split. Shares often put few rows in one, so only
    /// the ends of these are looked up.
    fn read(&mut self, rows: &PairRows, mut take: impl FnMut(Pair)) {
        let (plan, nodes) = (self.plan, self.nodes);
        let taken = self.taken(rows);
        nodes.look_up(
            plan.from(),
            &of_taken(&rows.ends.src, &taken),
            &mut self.src,
        );
        nodes.look_up(plan.to(), &of_taken(&rows.ends.dst, &taken), &mut self.dst);
        if let Some((_, ids)) = &rows.negatives {
            nodes.look_up(plan.to(), ids, &mut self.negatives);
        }
        for (place, &Taken { row: at, split }) in taken.iter().enumerate() {
            let (src, dst) = (self.src.numbers[place], self.dst.numbers[place]);
            // Edges check their own ends. A self-loop is an edge, but no pair.
            if plan.is_of_edges() && (src == MISSING || dst == MISSING || src == dst) {
                continue;
            }
            let negatives = rows.negatives.as_ref().map_or(0..0, |(ends, _)| {
                at.checked_sub(1).map_or(0, |before| ends[before])..ends[at]
            });
            if self.is_no_pair(rows, (at, [src, dst]), negatives.clone()) {
                continue;
            }
            let value = |values: &Option<Vec<f32>>| values.as_ref().map_or(1.0, |of| of[at]);
            take(Pair {
                hash: plan.hash(self.src.hashes[place], self.dst.hashes[place]),
                src,
                dst,
                row: rows.ends.rows.row(at),
                split,
                time: rows.time.as_ref().map_or(0, |of| of[at]),
                label: value(&rows.label),
                weight: value(&rows.weight),
                negatives: self.negatives.numbers[negatives].into(),
            });
        }
    }

    /// Notes the first id of a row that makes it no pair, if there is one.
    fn is_no_pair(
        &self,
        rows: &PairRows,
        (at, [src, dst]): (usize, [NodeIdx; 2]),
        negatives: std::ops::Range<usize>,
    ) -> bool {
        let is_missing = |&node: &usize| self.negatives.numbers[node] == MISSING;
        let (problem, id) = if src == MISSING {
            (0, rows.ends.src.display(at))
        } else if dst == MISSING {
            (1, rows.ends.dst.display(at))
        } else if let Some(node) = negatives.clone().find(is_missing)
            && let Some((_, ids)) = &rows.negatives
        {
            (2, ids.display(node))
        } else if src == dst {
            (3, rows.ends.dst.display(at))
        } else {
            return false;
        };
        let found = (rows.ends.rows.row(at), problem, id);
        let mut first = self.unknown.borrow_mut();
        if first.as_ref().is_none_or(|known| found < *known) {
            *first = Some(found);
        }
        true
    }
}

/// Returns the ids of the taken rows.
fn of_taken<'a>(ids: &'a Ids, taken: &[Taken]) -> Cow<'a, Ids> {
    if taken.len() == ids.len() {
        return Cow::Borrowed(ids);
    }
    let narrow = |row| u32::try_from(row).expect("a batch has fewer than 2^32 rows");
    let places: Vec<u32> = taken.iter().map(|of| narrow(of.row)).collect();
    Cow::Owned(ids.gather(&places))
}

/// A key in whose order equal pairs stand together, in the order of their rows.
fn same_key(pair: &Pair) -> (u64, NodeIdx, NodeIdx, u64) {
    (pair.hash, pair.src, pair.dst, pair.row)
}

/// Makes one pair of equal ones; `pairs` stand in the order of [`same_key`].
///
/// # Errors
///
/// If their splits or labels differ.
fn distinct(plan: &PairsPlan, mut pairs: Vec<Pair>) -> Result<Vec<Pair>, StoreError> {
    let mut disagreeing: Option<(u64, u64, &str)> = None;
    for equal in pairs.chunk_by(is_same) {
        let first = &equal[0];
        for other in &equal[1..] {
            let key = match (other.split == first.split, other.label == first.label) {
                (true, true) => continue,
                (false, _) => "split",
                (true, false) => "label",
            };
            let found = (other.row, first.row, key);
            disagreeing = Some(disagreeing.map_or(found, |known| known.min(found)));
        }
    }
    if let Some((row, earlier, key)) = disagreeing {
        return Err(plan.disagreeing(row, earlier, key).into());
    }
    let (mut start, mut num_distinct) = (0, 0);
    while start < pairs.len() {
        let all = &pairs[start..];
        let same = all.iter().take_while(|other| is_same(&all[0], other));
        let end = start + same.count();
        let mut pair = std::mem::take(&mut pairs[start]);
        if end > start + 1 {
            let others = &pairs[start + 1..end];
            let equal = || std::iter::once(&pair).chain(others);
            // The sum does not depend on the order of the rows.
            let mut weights: Vec<f32> = equal().map(|of| of.weight).collect();
            weights.sort_unstable_by(f32::total_cmp);
            let sum: f64 = weights.into_iter().map(f64::from).sum();
            #[expect(clippy::cast_possible_truncation, reason = "weights are 32-bit floats")]
            let sum = plan.spec().weight.as_ref().map_or(1.0, |_| sum as f32);
            let time = equal().map(|of| of.time).min().unwrap_or_default();
            let mut negatives = Vec::new();
            for &node in equal().flat_map(|of| &of.negatives) {
                if !negatives.contains(&node) {
                    negatives.push(node);
                }
            }
            (pair.weight, pair.time, pair.negatives) = (sum, time, negatives.into());
        }
        pairs[num_distinct] = pair;
        (start, num_distinct) = (end, num_distinct + 1);
    }
    pairs.truncate(num_distinct);
    Ok(pairs)
}

fn is_same(left: &Pair, right: &Pair) -> bool {
    (left.hash, left.src, left.dst) == (right.hash, right.src, right.dst)
}

/// The splits of pairs by time: the latest are test pairs, those before are val pairs, and those
/// before are train pairs, as many as the shares say. Pairs of one time are ordered by hash, so a
/// pair and its reverse of one time are in one split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSplits {
    /// The least keys of test, of val and of train pairs.
    bounds: [u128; 3],
}

impl TimeSplits {
    /// Finds the splits of all pairs; `keys` are those of [`time_key`], in any order.
    pub fn of(shares: &SplitShares, mut keys: Vec<u128>) -> Self {
        let num_pairs = keys.len();
        let bound = |most: u64| {
            let most = usize::try_from(most).expect("no split has more pairs than there are");
            // Pairs with this key are left out, all together.
            let last = num_pairs.checked_sub(most + 1);
            last.map_or(0, |at| *keys.select_nth_unstable(at).1 + 1)
        };
        Self {
            bounds: shares.latest(num_pairs as u64).map(bound),
        }
    }

    /// Returns the split of a pair.
    pub fn split(&self, key: u128) -> Split {
        match self.bounds.map(|bound| key >= bound) {
            [true, ..] => Split::Test,
            [_, true, _] => Split::Val,
            [.., true] => Split::Train,
            _ => Split::None,
        }
    }
}

/// Puts the pairs of all workers in splits by [`TimeSplits`], and in the order of their times.
fn split_by_time(
    peer: &mut Peer<'_>,
    shares: &SplitShares,
    pairs: &mut [Pair],
) -> Result<(), StoreError> {
    let key_of = |pair: &Pair| time_key(pair.time, pair.hash);
    pairs.sort_unstable_by_key(in_time);
    let counts = peer.gather_all::<_, StoreError>(Ok(pairs.len() as u64))?;
    let num_pairs: u64 = counts.into_iter().sum();
    let most = shares.latest(num_pairs);
    // The least key from which on there are at most so many pairs, found bit by bit: all keys below
    // `bound` leave too many.
    let mut bounds = [0u128; 3];
    for bit in (0..128).rev() {
        let tried = bounds.map(|bound| bound | 1 << bit);
        let from = |key: u128| pairs.len() - pairs.partition_point(|pair| key_of(pair) < key);
        let own = tried.map(|key| from(key - 1) as u64);
        let all = peer.gather_all::<_, StoreError>(Ok(own))?;
        for (at, bound) in bounds.iter_mut().enumerate() {
            let count: u64 = all.iter().map(|of| of[at]).sum();
            if count > most[at] {
                *bound = tried[at];
            }
        }
    }
    let splits = TimeSplits { bounds };
    for pair in pairs {
        pair.split = splits.split(key_of(pair));
    }
    Ok(())
}

/// Returns a number in the order of time and hash, as [`Pair`] has them.
pub fn time_key(time: i64, hash: u64) -> u128 {
    let time = time.cast_unsigned() ^ (1 << 63);
    u128::from(time) << 64 | u128::from(hash)
}

/// Returns the pairs of all workers whose edges are left out; the workers of a process share it.
fn gather_leaving(
    peer: &mut Peer<'_>,
    plan: &PairsPlan,
    pairs: &[Pair],
    shared: &OnceLock<Arc<PairSet>>,
) -> Result<Arc<PairSet>, StoreError> {
    let leaders = peer.gather_all::<_, StoreError>(Ok(peer.leads_process()))?;
    let leaving = pairs.iter().filter(|pair| plan.leaves(pair.split));
    let keys: Vec<u64> = leaving.map(|pair| pair_key(pair.src, pair.dst)).collect();
    let leaders = leaders.iter().enumerate().filter(|(_, leads)| **leads);
    let outgoing = leaders.map(|(to, _)| Ok((to, keys.clone())));
    let received = peer.shuffle::<Vec<u64>, StoreError>(outgoing)?;
    if peer.leads_process() {
        let all: Vec<u64> = received.into_iter().flat_map(|(_, own)| own).collect();
        shared.get_or_init(|| Arc::new(PairSet::of(all)));
    }
    peer.agree(Ok::<_, StoreError>(()))?;
    let set = shared.get().expect("the leader of the process has made it");
    Ok(Arc::clone(set))
}

impl Pairs {
    /// Makes the columns of pairs in a split, in their order.
    pub fn of(plan: &PairsPlan, pairs: &[Pair]) -> Self {
        let meta = plan.meta();
        let hard = meta.negatives.then(|| {
            let mut offset = vec![0];
            let mut nodes = Vec::new();
            for pair in pairs {
                nodes.extend_from_slice(&pair.negatives);
                offset.push(nodes.len() as u64);
            }
            (offset, nodes)
        });
        Self {
            src: pairs.iter().map(|pair| pair.src).collect(),
            dst: pairs.iter().map(|pair| pair.dst).collect(),
            split: pairs.iter().map(|pair| pair.split).collect(),
            label: meta
                .label
                .then(|| pairs.iter().map(|pair| pair.label).collect()),
            weight: meta
                .weight
                .then(|| pairs.iter().map(|pair| pair.weight).collect()),
            hard,
            time: None,
        }
    }

    /// Makes the columns of all pairs of a table, which stand in the order of time and hash.
    pub(crate) fn timed(plan: &PairsPlan, pairs: &[Pair]) -> Self {
        Self {
            time: Some(pairs.iter().map(|pair| pair.time).collect()),
            ..Self::of(plan, pairs)
        }
    }

    /// Returns the number of pairs.
    #[expect(
        clippy::len_without_is_empty,
        reason = "nobody asks whether there are none"
    )]
    pub fn len(&self) -> usize {
        self.src.len()
    }

    /// Puts the pairs of walks before those of tables, of which none is a train pair. The weight of
    /// the former is their number of visits, that of the latter is 1. Visits stand in the order of
    /// hash, src and dst.
    #[must_use]
    pub fn with_walks(self, visits: &[Visit]) -> Self {
        let num_pairs = visits.len();
        let of_visits = |of: fn(&Visit) -> NodeIdx| visits.iter().map(of);
        #[expect(clippy::cast_precision_loss, reason = "weights are 32-bit floats")]
        let times = |visit: &Visit| visit.times as f32;
        let ones = std::iter::repeat_n(1.0, self.len());
        Self {
            src: of_visits(|of| of.src).chain(self.src).collect(),
            dst: of_visits(|of| of.dst).chain(self.dst).collect(),
            split: std::iter::repeat_n(Split::Train, num_pairs)
                .chain(self.split)
                .collect(),
            weight: Some(visits.iter().map(times).chain(ones).collect()),
            label: None,
            hard: None,
            time: None,
        }
    }

    /// Returns the hard negatives of a pair.
    pub fn negatives(&self, pair: usize) -> &[NodeIdx] {
        let Some((offset, nodes)) = &self.hard else {
            return &[];
        };
        let end = |of: usize| usize::try_from(offset[of]).expect("negatives fit in memory");
        &nodes[end(pair)..end(pair + 1)]
    }

    /// Joins the pairs of all workers, in the order of the workers, by split.
    pub fn join(by_worker: &[Self]) -> Self {
        let mut all = Self {
            label: by_worker
                .first()
                .and_then(|of| of.label.as_ref())
                .map(|_| Vec::new()),
            weight: by_worker
                .first()
                .and_then(|of| of.weight.as_ref())
                .map(|_| Vec::new()),
            hard: by_worker
                .first()
                .and_then(|of| of.hard.as_ref())
                .map(|_| (vec![0], Vec::new())),
            ..Self::default()
        };
        for split in [Split::Train, Split::Val, Split::Test] {
            for own in by_worker {
                let start = own.split.partition_point(|&of| of < split);
                let end = own.split.partition_point(|&of| of <= split);
                all.extend(own, start..end);
            }
        }
        all
    }

    fn extend(&mut self, other: &Self, range: std::ops::Range<usize>) {
        self.src.extend_from_slice(&other.src[range.clone()]);
        self.dst.extend_from_slice(&other.dst[range.clone()]);
        self.split.extend_from_slice(&other.split[range.clone()]);
        for (own, others) in [
            (&mut self.label, &other.label),
            (&mut self.weight, &other.weight),
        ] {
            if let (Some(own), Some(others)) = (own, others) {
                own.extend_from_slice(&others[range.clone()]);
            }
        }
        if let Some((offset, nodes)) = &mut self.hard {
            for pair in range {
                nodes.extend_from_slice(other.negatives(pair));
                offset.push(nodes.len() as u64);
            }
        }
    }

    /// Makes a record batch of the pairs.
    pub(crate) fn to_batch(&self) -> RecordBatch {
        let numbers = |of: &[NodeIdx]| -> ArrayRef {
            Arc::new(UInt32Array::from(NodeIdx::raw_slice(of).to_vec()))
        };
        let split = self.split.iter().map(|&split| split as u8);
        let mut batch: Vec<(&str, ArrayRef)> = vec![
            ("src", numbers(&self.src)),
            ("dst", numbers(&self.dst)),
            ("split", Arc::new(UInt8Array::from_iter_values(split))),
        ];
        for (name, values) in [("label", &self.label), ("weight", &self.weight)] {
            if let Some(values) = values {
                batch.push((name, Arc::new(Float32Array::from(values.clone()))));
            }
        }
        if let Some((offset, nodes)) = &self.hard {
            batch.push(("negatives", arrow_file::list(offset, numbers(nodes))));
        }
        if let Some(times) = &self.time {
            batch.push(("time", Arc::new(Int64Array::from(times.clone()))));
        }
        arrow_file::batch(batch)
    }

    /// Reads the pairs of a file; none if a column is missing.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>, StoreError> {
        let mut pairs = Self::default();
        for batch in arrow_file::map_batches(path)? {
            let Some(read) = Self::read(&batch) else {
                return Ok(None);
            };
            pairs = read;
        }
        Ok(Some(pairs))
    }

    fn read(batch: &RecordBatch) -> Option<Self> {
        let numbers =
            |array: &ArrayRef| Some(NodeIdx::slice(&column::<UInt32Type>(array)?).to_vec());
        let time = match batch.column_by_name("time") {
            None => None,
            Some(array) => Some(column::<Int64Type>(array)?.to_vec()),
        };
        let split = column::<UInt8Type>(batch.column_by_name("split")?)?;
        let is_listed = |of: &Split| time.is_some() || *of != Split::None;
        let split = split.iter();
        let split = split.map(|&split| Split::of_number(split.into()).filter(is_listed));
        let floats = |name| {
            let array = batch.column_by_name(name);
            array.map(|array| Some(column::<Float32Type>(array)?.to_vec()))
        };
        let [label, weight] =
            ["label", "weight"].map(|name| floats(name).map_or(Some(None), |of| of.map(Some)));
        let hard = match batch.column_by_name("negatives") {
            None => None,
            Some(array) => {
                let lists = array.as_list_opt::<i64>()?;
                let nodes = numbers(lists.values())?;
                let ends = (0..lists.len()).map(|at| bounds(lists.offsets(), at).end as u64);
                Some((std::iter::once(0).chain(ends).collect(), nodes))
            }
        };
        Some(Self {
            src: numbers(batch.column_by_name("src")?)?,
            dst: numbers(batch.column_by_name("dst")?)?,
            split: split.collect::<Option<_>>()?,
            label: label?,
            weight: weight?,
            hard,
            time,
        })
    }
}
