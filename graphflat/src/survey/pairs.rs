//! Counts the pairs of each split, and makes the targets of their parts.

use super::read::Survey;
use super::walks::pairs_of_walks;
use crate::pair_parts::cut_pairs;
use crate::{FlattenError, FlattenPlan, Parts};
use hashbrown::HashMap;
use schemas::{
    GraphPlan, HardNegatives, Ids, Layout, NoPair, PairRows, PairsMeta, PairsPlan, PartPairs, Row,
    ShardNodes, Split, SplitCounts,
};

/// Parts whose targets are listed.
const PARTS_LISTED: usize = 256;

/// The pairs of an input.
#[derive(Clone, Debug, Default)]
pub struct PairSurvey {
    /// Pairs by split.
    pub counts: SplitCounts,
    /// Both ends of each pair, in the order in which pairs are cut into parts; with many walks, of
    /// some train pairs.
    ends: Vec<[u32; 2]>,
}

/// A pair with its split and its hash, in the order in which pairs are cut into parts.
pub(super) type Found = (Split, u64, [u32; 2]);

/// A pair while rows are read.
pub(super) struct Known {
    hash: u64,
    row: u64,
    pub(super) split: Split,
    time: i64,
    label: f32,
    /// Whether a row of the pair weighs more than 0.
    weighs: bool,
}

impl PairSurvey {
    /// Reads all pairs, if the graph has pairs: checks every value and gives each pair its split.
    /// With many walks, some of them are followed, and the count of train pairs is the most that there
    /// may be.
    ///
    /// # Errors
    ///
    /// The first value that is not allowed, with its file, column and row; a split without pairs.
    pub fn read(graph: &GraphPlan, survey: &Survey) -> Result<Option<Self>, FlattenError> {
        let Some(plan) = graph.pairs.as_deref() else {
            return Ok(None);
        };
        let mut pairs = HashMap::new();
        for unit in plan.units() {
            for batch in plan.batches(unit)? {
                take(&batch?, plan, survey, &mut pairs)?;
            }
        }
        if let (Some(shares), Some(_)) = (plan.shares(), &plan.spec().time) {
            let mut keys: Vec<(i64, u64)> = pairs.values().map(|of| (of.time, of.hash)).collect();
            keys.sort_unstable();
            let latest = shares.latest(keys.len() as u64);
            for known in pairs.values_mut() {
                // Pairs of one key are in one split, so those at a bound are in the earlier one.
                let before = keys.partition_point(|key| *key < (known.time, known.hash));
                let from = (keys.len() - before) as u64;
                known.split = match latest.map(|most| from <= most) {
                    [true, ..] => Split::Test,
                    [_, true, _] => Split::Val,
                    [.., true] => Split::Train,
                    _ => Split::None,
                };
            }
        }
        let kept = pairs.iter().filter(|(_, known)| plan.keeps(known.split));
        let mut all: Vec<Found> = kept
            .map(|(ends, known)| (known.split, known.hash, *ends))
            .collect();
        all.sort_unstable();
        let mut counts = SplitCounts::default();
        all.iter().for_each(|(split, ..)| counts.add(*split));
        plan.check_counts(&counts)?;
        let mut known = pairs.values();
        let is_weighed = known.any(|of| of.split == Split::Train && of.weighs);
        if plan.keeps(Split::Train) && !is_weighed {
            return Err(plan.no_weight().into());
        }
        if let Some(walks) = plan.walks() {
            let of_walks = pairs_of_walks((graph, survey), (plan, walks), &pairs)?;
            let (mut train, each) = of_walks;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a count of pairs is far below 2^53"
            )]
            let most = (train.len() as f64 * each) as u64;
            counts.train = most;
            train.append(&mut all);
            all = train;
        }
        let ends = all.into_iter().map(|(.., ends)| ends).collect();
        Ok(Some(Self { counts, ends }))
    }

    /// Returns the number of random negatives of a part.
    pub(super) fn num_random(&self, plan: &FlattenPlan, survey: &Survey) -> usize {
        let to = survey.meta.pairs.as_ref().map_or(0, |pairs| pairs.to);
        let num_nodes = survey.types()[to].ids.len();
        let wanted = plan.sample.negatives_per_part(num_nodes);
        wanted.expect("parts were made with them")
    }

    /// Returns the mean number of pairs of a src node that has pairs.
    #[must_use]
    pub fn pairs_per_src(&self) -> f64 {
        let mut srcs: Vec<u32> = self.ends.iter().map(|[src, _]| *src).collect();
        srcs.sort_unstable();
        srcs.dedup();
        self.ends.len() as f64 / srcs.len().max(1) as f64
    }

    /// Returns the ends of some pairs, spread evenly over all.
    pub(super) fn spread(&self, most: usize) -> impl Iterator<Item = &[u32; 2]> + Clone {
        let step = self.ends.len().div_ceil(most).max(1);
        self.ends.iter().step_by(step)
    }

    /// Returns the targets of some parts, spread evenly, and the number of all parts. Targets are ends
    /// of pairs, then random negatives, here spread evenly.
    pub(super) fn parts(
        &self,
        plan: &FlattenPlan,
        layout: Layout,
        survey: &Survey,
    ) -> Result<(Parts<u32>, usize), FlattenError> {
        let to = survey.meta.pairs.as_ref().map_or(0, |pairs| pairs.to);
        let of_type = &survey.types()[to];
        let num_random = plan.sample.negatives_per_part(of_type.ids.len())?;
        let features = survey.meta.types.iter().map(|of| of.features);
        let num_pairs = usize::try_from(self.counts.total()).unwrap_or(usize::MAX);
        let per_part = plan.sample.pairs_per_part(layout, num_pairs, features);
        let random = (0..num_random).map(|at| {
            let row = at * of_type.ids.len() / num_random;
            of_type.first + u32::try_from(row).expect("a node's row fits 32 bits")
        });
        let parts = cut_pairs(&self.counts, per_part);
        let num_listed = parts.len().min(PARTS_LISTED);
        let mut is_known = vec![false; survey.num_nodes()];
        let lists = (0..num_listed).map(|at| {
            let pairs = parts[at * parts.len() / num_listed].clone();
            // With more pairs than were found, parts have the same ones again.
            let pairs = pairs.flat_map(|pair| self.ends[pair % self.ends.len()]);
            let mut targets: Vec<u32> = Vec::new();
            for node in pairs.chain(random.clone()) {
                if !std::mem::replace(&mut is_known[node as usize], true) {
                    targets.push(node);
                }
            }
            targets
                .iter()
                .for_each(|&node| is_known[node as usize] = false);
            targets
        });
        Ok((Parts::of_lists(lists.collect()), parts.len()))
    }
}

/// Takes the pairs of some rows.
fn take(
    rows: &PairRows,
    plan: &PairsPlan,
    survey: &Survey,
    pairs: &mut HashMap<[u32; 2], Known>,
) -> Result<(), FlattenError> {
    let (srcs, dsts) = (&survey.types()[plan.from()], &survey.types()[plan.to()]);
    for at in 0..rows.ends.src.len() {
        let row = rows.ends.rows.row(at);
        let found = (
            srcs.place(&rows.ends.src, at),
            dsts.place(&rows.ends.dst, at),
        );
        // Edges check their own ends. A self-loop is an edge, but no pair.
        if plan.is_of_edges() && (found.0.is_none() || found.1.is_none() || found.0 == found.1) {
            continue;
        }
        let hash = plan.hash(rows.ends.src.hash(at), rows.ends.dst.hash(at));
        let split = match (&rows.split, &rows.time, plan.shares()) {
            (Some(split), ..) => split[at],
            (None, None, Some(shares)) => shares.draw(hash),
            _ => Split::None,
        };
        if split == Split::None && rows.time.is_none() {
            continue;
        }
        let no_pair = |what, ids: &Ids, of: usize| plan.no_pair(row, what, &ids.display(of));
        let (src, dst) = match found {
            (Some(src), Some(dst)) => (src, dst),
            (None, _) => return Err(no_pair(NoPair::Src, &rows.ends.src, at).into()),
            (_, None) => return Err(no_pair(NoPair::Dst, &rows.ends.dst, at).into()),
        };
        if let Some((ends, ids)) = &rows.negatives {
            let start = at.checked_sub(1).map_or(0, |before| ends[before]);
            let is_missing = |of: &usize| dsts.place(ids, *of).is_none();
            if let Some(of) = (start..ends[at]).find(is_missing) {
                return Err(no_pair(NoPair::Negatives, ids, of).into());
            }
        }
        if plan.from() == plan.to() && src == dst {
            return Err(no_pair(NoPair::Same, &rows.ends.dst, at).into());
        }
        let time = rows.time.as_ref().map_or(0, |of| of[at]);
        let label = rows.label.as_ref().map_or(1.0, |of| of[at]);
        let new = Known {
            hash,
            row,
            split,
            time,
            label,
            weighs: rows.weight.as_ref().is_none_or(|of| of[at] > 0.0),
        };
        match pairs.get_mut(&[src, dst]) {
            None => drop(pairs.insert([src, dst], new)),
            Some(known) if known.split != split => {
                return Err(plan.disagreeing(row, known.row, "split").into());
            }
            Some(known) if known.label != label => {
                return Err(plan.disagreeing(row, known.row, "label").into());
            }
            Some(known) => {
                known.time = known.time.min(time);
                known.weighs |= new.weighs;
            }
        }
    }
    Ok(())
}

/// Makes pairs that name every target of a probe.
pub(super) fn of_targets(meta: &PairsMeta, nodes: &[ShardNodes]) -> PartPairs {
    let targets = |type_idx: usize| {
        let hops = nodes[type_idx].hop.iter();
        hops.take_while(|hop| **hop == 0).count()
    };
    let (srcs, dsts) = (targets(meta.from), targets(meta.to));
    let num_pairs = match dsts {
        0 => 0,
        _ => srcs.max(dsts),
    };
    let rows = |count: usize| {
        (0..num_pairs)
            .map(|at| Row::from_index(at % count))
            .collect()
    };
    PartPairs {
        src: rows(srcs.max(1)),
        dst: rows(dsts.max(1)),
        label: meta.label.then(|| vec![1.0; num_pairs]),
        weight: meta.weight.then(|| vec![1.0; num_pairs]),
        split: vec![Split::Train; num_pairs],
        hard: meta.negatives.then(|| HardNegatives {
            offset: vec![0; num_pairs + 1],
            nodes: Vec::new(),
        }),
        random: Vec::new(),
    }
}
