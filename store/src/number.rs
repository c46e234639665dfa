//! Numbers the nodes of a type: a node's number is its position in the order of ids, after the nodes
//! of the types before. Of integer ids without gaps it is their distance from the first one; other
//! ids are sorted by a parallel sample sort.

use crate::StoreError;
use crate::edge_hash::IdRun;
use crate::id_table::IdTable;
use crate::placement::NUM_NODES_MAX;
use crate::units::OwnUnits;
use cluster::Peer;
use schemas::{Categories, Ids, NodeIdx, NodeSource, NodesPlan, RowNumbers};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// Number of an id that no node has.
pub const MISSING: NodeIdx = NodeIdx::MAX;

/// Number of ids that each worker samples to choose the ranges; the ranges then differ in size by
/// about one part in this number.
const SAMPLES_PER_WORKER: usize = 1024;

/// Greatest number of rows for which memory is reserved before they are read: the counts in footers
/// are unchecked.
const ROWS_EXPECTED_MAX: usize = 1 << 26;

/// The ids of a type, in which ids are looked up.
pub(crate) enum Dictionary {
    /// Integer ids without gaps.
    Run(RunIds),
    /// Any other ids, sorted.
    Range(IdRange),
}

/// All ids of a type that are integers without gaps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunIds {
    first_key: u64,
    num_nodes: u64,
    ids: IdRun,
}

/// One worker's range of the sorted ids of a type.
pub(crate) struct IdRange {
    /// Range `r` holds the ids from `splitters[r - 1]` to before `splitters[r]`.
    splitters: Ids,
    /// The ids of the range, ascending.
    range: Ids,
    /// Number of the range's first id.
    first: NodeIdx,
}

/// Result of numbering the nodes of a type that a worker reads.
pub(crate) struct Numbering {
    /// The number of each row, for each of this worker's units.
    pub(crate) units: Vec<Vec<NodeIdx>>,
    /// Number of nodes of the type.
    pub(crate) num_nodes: u64,
    /// Distinct names of string labels in the whole table, ascending.
    pub(crate) class_names: Vec<String>,
    /// Greatest class number in the whole table.
    pub(crate) max_class: Option<u32>,
    /// Categories of feature columns in the whole table.
    pub(crate) categories: Categories,
}

/// What a worker's rows of a type hold.
#[derive(Clone, Serialize, Deserialize)]
struct Summary {
    num_rows: u64,
    /// Least and greatest key; none if there is no row, or ids are strings.
    bounds: Option<(u64, u64)>,
    class_names: Vec<String>,
    max_class: Option<u32>,
    categories: Categories,
}

#[derive(Clone, Serialize, Deserialize)]
struct Sample {
    ids: Ids,
    /// Number of ids that each sampled id represents.
    stride: u64,
}

#[derive(Clone, Serialize, Deserialize)]
struct KeyBatch {
    ids: Ids,
    /// Row of each id over all files, for messages.
    rows: Vec<u64>,
}

/// The ids of a type in the rows that one worker reads.
pub(crate) struct MyRows {
    ids: Ids,
    /// Numbers of the rows over all files, by unit.
    rows: Vec<RowNumbers>,
    class_names: BTreeSet<String>,
    max_class: Option<u32>,
    categories: Categories,
}

/// Numbers the nodes of a type from 0 and makes the dictionary in which edge ends are looked up.
///
/// # Errors
///
/// If an id occurs twice, there are too many nodes, or a peer fails.
pub(crate) fn number_type(
    peer: &mut Peer<'_>,
    plan: &NodesPlan,
    mine: MyRows,
) -> Result<(Numbering, Dictionary), StoreError> {
    let summaries = peer.gather_all::<_, StoreError>(Ok(mine.summary()))?;
    let num_nodes = summaries.iter().map(|of| of.num_rows).sum();
    check_num_nodes(num_nodes)?;
    let names: BTreeSet<&String> = summaries.iter().flat_map(|of| &of.class_names).collect();
    let class_names = names.into_iter().cloned().collect();
    let max_class = summaries.iter().filter_map(|of| of.max_class).max();
    let (units, dictionary) = match run_of_ids(peer, &mine, &summaries)? {
        Some(run) => (run.units(&mine), Dictionary::Run(run)),
        None => {
            let (units, range) = sort_ids(peer, plan, mine)?;
            (units, Dictionary::Range(range))
        }
    };
    let numbering = Numbering {
        units,
        num_nodes,
        class_names,
        max_class,
        categories: peer.agree(union_of_categories(summaries, plan))?,
    };
    Ok((numbering, dictionary))
}

/// Returns the run of all workers' ids; none unless they are distinct integers without gaps.
fn run_of_ids(
    peer: &mut Peer<'_>,
    mine: &MyRows,
    summaries: &[Summary],
) -> Result<Option<RunIds>, StoreError> {
    let bounds = || summaries.iter().filter_map(|of| of.bounds);
    let least = bounds().map(|(least, _)| least).min();
    let greatest = bounds().map(|(_, greatest)| greatest).max();
    let num_nodes: u64 = summaries.iter().map(|of| of.num_rows).sum();
    let (Some(keys), Some((first_key, last_key))) = (mine.ids.keys(), least.zip(greatest)) else {
        return Ok(None);
    };
    if last_key - first_key != num_nodes - 1 || !are_distinct(peer, keys, (first_key, num_nodes))? {
        return Ok(None);
    }
    let first_value = mine.ids.value_bits(first_key);
    Ok(Some(RunIds {
        first_key,
        num_nodes,
        ids: IdRun {
            first: NodeIdx::from_raw(0),
            first_value,
        },
    }))
}

/// Tells whether no key of the workers occurs twice; all are among `num_keys` from the first one on.
fn are_distinct(
    peer: &mut Peer<'_>,
    keys: &[u64],
    (first_key, num_keys): (u64, u64),
) -> Result<bool, StoreError> {
    // A bit for each key; each worker joins the bits of one share of the keys.
    let num_words = usize::try_from(num_keys.div_ceil(64)).expect("no more than nodes");
    let mut bits = vec![0; num_words];
    let mut distinct = true;
    let mut set = |word: &mut u64, more: u64| {
        distinct &= *word & more == 0;
        *word |= more;
    };
    for key in keys {
        let at = key - first_key;
        let word = usize::try_from(at / 64).expect("below num_words");
        set(&mut bits[word], 1 << (at % 64));
    }
    let share = num_words.div_ceil(peer.peers());
    let outgoing = bits.chunks(share).enumerate();
    let outgoing = outgoing.map(|(to, words)| Ok((to, words.to_vec())));
    let mut joined = vec![0; share];
    for (_, words) in peer.shuffle::<Vec<u64>, StoreError>(outgoing)? {
        let pairs = joined.iter_mut().zip(words);
        pairs.for_each(|(word, more)| set(word, more));
    }
    let all = peer.gather_all::<_, StoreError>(Ok(distinct))?;
    Ok(all.into_iter().all(|of| of))
}

/// Sorts the ids of all workers; returns the number of each row by unit, and this worker's range.
fn sort_ids(
    peer: &mut Peer<'_>,
    plan: &NodesPlan,
    mine: MyRows,
) -> Result<(Vec<Vec<NodeIdx>>, IdRange), StoreError> {
    let order = mine.ids.sort_permutation();
    let samples = peer.gather_all::<_, StoreError>(Ok(sample(&mine.ids, &order)))?;
    let splitters = choose_splitters(&samples, peer.peers());
    let positions = split_by_range(&mine, &order, &splitters);
    drop(order);
    // The memory taken here grows with the number of nodes, for any budget, so everything is
    // dropped as soon as possible.
    let unit_lengths = mine.unit_lengths();
    let rows: Vec<u64> = mine.rows.iter().flat_map(RowNumbers::iter).collect();
    let ids = mine.ids;
    let batches = positions.iter().map(|places| KeyBatch {
        ids: ids.gather(places),
        rows: places.iter().map(|&i| rows[i as usize]).collect(),
    });
    let batches: Vec<KeyBatch> = batches.collect();
    drop((ids, rows));
    let outgoing = batches.into_iter().enumerate().map(Ok);
    let received = peer.shuffle::<KeyBatch, StoreError>(outgoing)?;
    let (range, places) = peer.agree(sort_range(received, plan))?;
    let sizes = peer.gather_all::<_, StoreError>(Ok(range.len() as u64))?;
    let before: u64 = sizes[..peer.index()].iter().sum();
    let first = u32::try_from(before).map(NodeIdx::from_raw);
    let first = first.expect("checked against the limit");
    let replies = places.into_iter().map(|(to, places)| {
        let numbers = places.into_iter().map(|place| first.after(place));
        Ok((to, numbers.collect::<Vec<_>>()))
    });
    let replies = peer.shuffle::<Vec<NodeIdx>, StoreError>(replies)?;
    let units = scatter_to_units(&unit_lengths, &positions, &replies);
    Ok((
        units,
        IdRange {
            splitters,
            range,
            first,
        },
    ))
}

/// Refuses more nodes than numbers.
pub(crate) fn check_num_nodes(num_nodes: u64) -> Result<(), StoreError> {
    match num_nodes <= NUM_NODES_MAX {
        true => Ok(()),
        false => Err(StoreError::TooLarge {
            what: "nodes in the node table",
            count: num_nodes,
            limit: NUM_NODES_MAX,
        }),
    }
}

/// Reads the ids of each type of a source, and their classes.
///
/// # Errors
///
/// If a table cannot be read, or an id is null.
pub(crate) fn read_keys(source: &NodeSource, work: OwnUnits) -> Result<Vec<MyRows>, StoreError> {
    let num_rows: usize = work.of(source.units()).map(|unit| unit.num_rows).sum();
    // Rows that a type does not take need no memory.
    let num_rows = num_rows.min(ROWS_EXPECTED_MAX) / source.types().len();
    let of_type = |plan: &NodesPlan| MyRows {
        ids: Ids::with_capacity(plan.id_type(), num_rows),
        rows: Vec::new(),
        class_names: BTreeSet::new(),
        max_class: None,
        categories: Categories::default(),
    };
    let types = source.types().iter().map(|(_, plan)| of_type(plan));
    let mut types: Vec<MyRows> = types.collect();
    for unit in work.of(source.units()) {
        let plans = source.types().iter().map(|(_, plan)| plan);
        let of_types = types.iter_mut().zip(plans);
        for ((mine, plan), keys) in of_types.zip(source.read_keys(&unit)?) {
            mine.ids.extend_from(&keys.ids, 0..keys.ids.len());
            mine.rows.push(keys.rows);
            mine.class_names.extend(keys.class_names);
            mine.max_class = mine.max_class.max(keys.max_class);
            plan.merge_categories(&mut mine.categories, keys.categories)?;
        }
    }
    Ok(types)
}

fn sample(ids: &Ids, order: &[u32]) -> Sample {
    let stride = ids.len().div_ceil(SAMPLES_PER_WORKER).max(1);
    let picked: Vec<u32> = order.iter().copied().step_by(stride).collect();
    Sample {
        ids: ids.gather(&picked),
        stride: stride as u64,
    }
}

/// Cuts the order of ids into as many ranges as there are workers, by the weighted samples.
fn choose_splitters(samples: &[Sample], ranges: usize) -> Ids {
    let mut pool = Ids::new(samples[0].ids.id_type());
    let mut weights = Vec::new();
    for sample in samples {
        pool.extend_from(&sample.ids, 0..sample.ids.len());
        weights.resize(pool.len(), sample.stride);
    }
    let total: u64 = weights.iter().sum();
    let mut splitters = Ids::new(pool.id_type());
    let mut seen = 0;
    for i in pool.sort_permutation() {
        let wanted = total * (splitters.len() as u64 + 1);
        if seen * ranges as u64 >= wanted && splitters.len() + 1 < ranges {
            splitters.push_from(&pool, i as usize);
        }
        seen += weights[i as usize];
    }
    splitters
}

fn union_of_categories(all: Vec<Summary>, plan: &NodesPlan) -> Result<Categories, StoreError> {
    let mut categories = Categories::default();
    for summary in all {
        plan.merge_categories(&mut categories, summary.categories)?;
    }
    Ok(categories)
}

fn range_of(splitters: &Ids, ids: &Ids, i: usize) -> usize {
    let (mut low, mut high) = (0, splitters.len());
    while low < high {
        let middle = (low + high) / 2;
        if splitters.cmp(middle, ids, i) == Ordering::Greater {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// Returns, for each range, the positions of its ids among this worker's rows.
fn split_by_range(mine: &MyRows, order: &[u32], splitters: &Ids) -> Vec<Vec<u32>> {
    let mut positions = vec![Vec::new(); splitters.len() + 1];
    let mut range = 0;
    for &i in order {
        while range < splitters.len()
            && splitters.cmp(range, &mine.ids, i as usize) != Ordering::Greater
        {
            range += 1;
        }
        positions[range].push(i);
    }
    positions
}

/// The sorted ids of a range, and for each sender the positions of the ids that it sent.
type SortedRange = (Ids, Vec<(usize, Vec<u32>)>);

fn sort_range(
    received: Vec<(usize, KeyBatch)>,
    plan: &NodesPlan,
) -> Result<SortedRange, StoreError> {
    let num_ids = received.iter().map(|(_, batch)| batch.ids.len()).sum();
    let mut all = Ids::with_capacity(plan.id_type(), num_ids);
    let mut rows = Vec::with_capacity(num_ids);
    let mut lengths = Vec::with_capacity(received.len());
    for (from, batch) in received {
        all.extend_from(&batch.ids, 0..batch.ids.len());
        rows.extend_from_slice(&batch.rows);
        lengths.push((from, batch.ids.len()));
    }
    let order = all.sort_permutation();
    for pair in order.windows(2) {
        let (a, b) = (pair[0] as usize, pair[1] as usize);
        if all.cmp(a, &all, b) == Ordering::Equal {
            let (first, second) = (rows[a].min(rows[b]), rows[a].max(rows[b]));
            let (first_file, first_row) = plan.locate(first);
            let (second_file, second_row) = plan.locate(second);
            let id = all.display(a);
            return Err(StoreError::DuplicateNode {
                id,
                first_file,
                first_row,
                second_file,
                second_row,
            });
        }
    }
    drop(rows);
    let range = all.gather(&order);
    drop(all);
    let mut place_of = vec![0; order.len()];
    for (place, &i) in (0..).zip(&order) {
        place_of[i as usize] = place;
    }
    drop(order);
    let mut place_of = place_of.into_iter();
    let places = lengths
        .into_iter()
        .map(|(from, length)| (from, place_of.by_ref().take(length).collect()))
        .collect();
    Ok((range, places))
}

fn scatter_to_units(
    unit_lengths: &[usize],
    positions: &[Vec<u32>],
    replies: &[(usize, Vec<NodeIdx>)],
) -> Vec<Vec<NodeIdx>> {
    let mut numbers = vec![MISSING; unit_lengths.iter().sum()];
    for (range, places) in replies {
        for (&position, &number) in positions[*range].iter().zip(places) {
            numbers[position as usize] = number;
        }
    }
    let mut numbers = numbers.into_iter();
    unit_lengths
        .iter()
        .map(|&length| numbers.by_ref().take(length).collect())
        .collect()
}

impl Numbering {
    /// Adds the number of the type's first node to all numbers.
    pub(crate) fn shift(&mut self, first: NodeIdx) {
        let numbers = self.units.iter_mut().flatten();
        numbers.for_each(|number| *number = number.after(first.raw()));
    }
}

impl MyRows {
    fn summary(&self) -> Summary {
        let keys = self.ids.keys().unwrap_or_default().iter().copied();
        Summary {
            num_rows: self.ids.len() as u64,
            bounds: keys.clone().min().zip(keys.max()),
            class_names: self.class_names.iter().cloned().collect(),
            max_class: self.max_class,
            categories: self.categories.clone(),
        }
    }

    fn unit_lengths(&self) -> Vec<usize> {
        self.rows.iter().map(RowNumbers::len).collect()
    }
}

impl RunIds {
    /// Returns the number of an id, [`MISSING`] if no node has it.
    pub(crate) fn number(&self, key: u64) -> NodeIdx {
        let at = key.wrapping_sub(self.first_key);
        // The offset of a node is below 2^32, and so is its number.
        #[expect(
            clippy::cast_possible_truncation,
            reason = "an offset that is cut is not below `num_nodes`"
        )]
        let number = NodeIdx::from_raw(self.ids.first.raw().wrapping_add(at as u32));
        if at < self.num_nodes { number } else { MISSING }
    }

    /// Returns the ids, by which edges are hashed.
    pub(crate) fn ids(&self) -> IdRun {
        self.ids
    }

    /// Returns the number of each row, by unit.
    fn units(&self, mine: &MyRows) -> Vec<Vec<NodeIdx>> {
        let keys = mine.ids.keys().expect("a run has integers");
        let mut numbers = keys.iter().map(|&key| self.number(key));
        let lengths = mine.unit_lengths().into_iter();
        lengths
            .map(|length| numbers.by_ref().take(length).collect())
            .collect()
    }
}

impl Dictionary {
    /// Adds the number of the type's first node to all numbers.
    pub(crate) fn shift(&mut self, first: NodeIdx) {
        let number = match self {
            Self::Run(run) => &mut run.ids.first,
            Self::Range(range) => &mut range.first,
        };
        *number = number.after(first.raw());
    }
}

impl IdRange {
    /// Returns the ids of the range, ascending.
    pub(crate) fn ids(&self) -> &Ids {
        &self.range
    }

    /// Returns the numbers of distinct ids, each looked up at the worker of its range; [`MISSING`]
    /// where no node has the id.
    ///
    /// # Errors
    ///
    /// If a peer fails.
    pub(crate) fn resolve(
        self,
        peer: &mut Peer<'_>,
        wanted: &Ids,
    ) -> Result<Vec<NodeIdx>, StoreError> {
        let mut positions = vec![Vec::new(); peer.peers()];
        for i in 0..wanted.len() {
            let position = u32::try_from(i).expect("fewer distinct ids than nodes fit");
            positions[range_of(&self.splitters, wanted, i)].push(position);
        }
        let asked = positions
            .iter()
            .enumerate()
            .map(|(to, list)| Ok((to, wanted.gather(list))));
        let questions = peer.shuffle::<Ids, StoreError>(asked)?;
        let places = 0..u32::try_from(self.range.len()).expect("fewer ids than nodes fit");
        let numbers: Vec<NodeIdx> = places.map(|place| self.first.after(place)).collect();
        let range = IdTable::of_distinct(self.range);
        let mut hashes = Vec::new();
        let answers = questions.iter().map(|(from, ids)| {
            let mut found = Vec::with_capacity(ids.len());
            hashes.clear();
            range.look_up(ids, (&numbers, MISSING), (&mut found, &mut hashes));
            Ok((*from, found))
        });
        let answers = peer.shuffle::<Vec<NodeIdx>, StoreError>(answers)?;
        Ok(scatter_to_units(&[wanted.len()], &positions, &answers).swap_remove(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cluster::{Cluster, run_workers};
    use schemas::IdType;

    /// Returns the numbers that workers give their ids without sorting them; none if they have to be
    /// sorted.
    fn numbers_of_run(by_worker: &[Vec<u64>]) -> Option<Vec<Vec<NodeIdx>>> {
        let cluster = Cluster::of_threads(by_worker.len());
        let by_worker = by_worker.to_vec();
        let of_workers = run_workers(&cluster, move |peer| {
            let keys = by_worker[peer.index()].clone();
            // Two units.
            let (first, second): (Vec<u64>, Vec<u64>) =
                (0..keys.len() as u64).partition(|at| *at < 2);
            let mine = MyRows {
                ids: Ids::from_keys(IdType::Int64, keys),
                rows: vec![RowNumbers::listed(first), RowNumbers::listed(second)],
                class_names: BTreeSet::new(),
                max_class: None,
                categories: Categories::default(),
            };
            let summaries = peer.gather_all::<_, StoreError>(Ok(mine.summary()))?;
            let run = run_of_ids(peer, &mine, &summaries)?;
            Ok::<_, StoreError>(run.map(|run| run.units(&mine).concat()))
        });
        of_workers.unwrap().into_iter().collect()
    }

    #[test]
    fn ids_without_gaps_are_numbered_in_any_order_and_by_any_worker() {
        let first = 1 << 40;
        for (num_ids, workers) in [(1, 1), (1, 3), (64, 2), (200, 1), (1000, 3)] {
            let mut by_worker = vec![Vec::new(); workers];
            for at in 0..num_ids {
                // 7 and the counts have no common factor, so that each id occurs once.
                let id = at * 7 % num_ids;
                by_worker[usize::try_from(id * 31 % 17).unwrap() % workers].push(first + id);
            }
            let expected = by_worker.iter().map(|keys| {
                let numbers = keys.iter().map(|key| u32::try_from(key - first).unwrap());
                numbers.map(NodeIdx::from_raw).collect()
            });
            let expected: Vec<Vec<NodeIdx>> = expected.collect();
            assert_eq!(numbers_of_run(&by_worker), Some(expected), "{num_ids}");
        }
    }

    #[test]
    fn ids_with_a_gap_or_a_duplicate_are_sorted() {
        for by_worker in [
            vec![vec![10, 12], vec![13]],
            vec![vec![10, 12, 12], vec![13]],
            vec![vec![10, 12], vec![12, 13]],
            vec![vec![], vec![]],
        ] {
            assert_eq!(numbers_of_run(&by_worker), None, "{by_worker:?}");
        }
    }

    #[test]
    fn ids_without_gaps_are_numbered_by_subtraction() {
        let first = NodeIdx::from_raw(7);
        let run = RunIds {
            first_key: 1000,
            num_nodes: 50,
            ids: IdRun {
                first,
                first_value: 1000,
            },
        };
        for key in [0, 999, 1000, 1001, 1049, 1050, 1000 + (1 << 32), u64::MAX] {
            let expected = (1000..1050).contains(&key).then(|| key - 993);
            let expected = expected.map_or(u64::from(MISSING.raw()), |number| number);
            assert_eq!(u64::from(run.number(key).raw()), expected, "{key}");
        }
    }
}
