//! Numbers the nodes of a type by a parallel sample sort: a node's number is its position in the
//! order of ids, after the nodes of the types before.

use crate::StoreError;
use crate::placement::NUM_NODES_MAX;
use crate::units::OwnUnits;
use cluster::Peer;
use hashbrown::HashTable;
use schemas::{Categories, Ids, NodeIdx, NodeSource, NodesPlan};
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

/// One worker's range of the sorted ids of a type, in which ids are looked up.
pub(crate) struct Dictionary {
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

/// Distinct ids in order of arrival, with a hash table that finds the position of an id.
pub(crate) struct IdTable {
    ids: Ids,
    hashes: Vec<u64>,
    table: HashTable<u32>,
}

#[derive(Clone, Serialize, Deserialize)]
struct Sample {
    ids: Ids,
    /// Number of ids that each sampled id represents.
    stride: u64,
    class_names: Vec<String>,
    max_class: Option<u32>,
    categories: Categories,
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
    rows: Vec<u64>,
    unit_lengths: Vec<usize>,
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
    let order = mine.ids.sort_permutation();
    let samples = peer.gather_all::<_, StoreError>(Ok(sample(&mine, &order)))?;
    let splitters = choose_splitters(&samples, peer.peers());
    let positions = split_by_range(&mine, &order, &splitters);
    drop(order);
    // The memory taken here grows with the number of nodes, for any budget, so everything is
    // dropped as soon as possible.
    let (ids, rows, unit_lengths) = (mine.ids, mine.rows, mine.unit_lengths);
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
    let num_nodes: u64 = sizes.iter().sum();
    check_num_nodes(num_nodes)?;
    let before: u64 = sizes[..peer.index()].iter().sum();
    let first = u32::try_from(before).map(NodeIdx::from_raw);
    let first = first.expect("checked against the limit");
    let replies = places.into_iter().map(|(to, places)| {
        let numbers = places.into_iter().map(|place| first.after(place));
        Ok((to, numbers.collect::<Vec<_>>()))
    });
    let replies = peer.shuffle::<Vec<NodeIdx>, StoreError>(replies)?;
    let numbering = Numbering {
        units: scatter_to_units(&unit_lengths, &positions, &replies),
        num_nodes,
        class_names: union_of_names(&samples),
        max_class: samples.iter().filter_map(|s| s.max_class).max(),
        categories: peer.agree(union_of_categories(samples, plan))?,
    };
    Ok((
        numbering,
        Dictionary {
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
        rows: Vec::with_capacity(num_rows),
        unit_lengths: Vec::new(),
        class_names: BTreeSet::new(),
        max_class: None,
        categories: Categories::default(),
    };
    let types = source.types().iter().map(|(_, plan)| of_type(plan));
    let mut types: Vec<MyRows> = types.collect();
    for unit in work.of(source.units()) {
        let plans = source.types().iter().map(|(_, plan)| plan);
        let of_types = types.iter_mut().zip(plans);
        for ((mine, plan), keys) in of_types.zip(source.read_keys(unit)?) {
            mine.ids.extend_from(&keys.ids, 0..keys.ids.len());
            mine.rows.extend(keys.rows.iter());
            mine.unit_lengths.push(keys.ids.len());
            mine.class_names.extend(keys.class_names);
            mine.max_class = mine.max_class.max(keys.max_class);
            plan.merge_categories(&mut mine.categories, keys.categories)?;
        }
    }
    Ok(types)
}

fn sample(mine: &MyRows, order: &[u32]) -> Sample {
    let stride = mine.ids.len().div_ceil(SAMPLES_PER_WORKER).max(1);
    let picked: Vec<u32> = order.iter().copied().step_by(stride).collect();
    Sample {
        ids: mine.ids.gather(&picked),
        stride: stride as u64,
        class_names: mine.class_names.iter().cloned().collect(),
        max_class: mine.max_class,
        categories: mine.categories.clone(),
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

fn union_of_names(samples: &[Sample]) -> Vec<String> {
    let names: BTreeSet<&String> = samples.iter().flat_map(|s| &s.class_names).collect();
    names.into_iter().cloned().collect()
}

fn union_of_categories(samples: Vec<Sample>, plan: &NodesPlan) -> Result<Categories, StoreError> {
    let mut all = Categories::default();
    for sample in samples {
        plan.merge_categories(&mut all, sample.categories)?;
    }
    Ok(all)
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

impl Dictionary {
    /// Adds the number of the type's first node to all numbers.
    pub(crate) fn shift(&mut self, first: NodeIdx) {
        self.first = self.first.after(first.raw());
    }

    /// Returns the ids of this worker's range, ascending.
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
        let range = IdTable::from_distinct(self.range);
        let answers = questions.iter().map(|(from, ids)| {
            let find = |i| {
                let (place, _) = range.find(ids, i);
                place.map_or(MISSING, |place| self.first.after(place))
            };
            Ok((*from, (0..ids.len()).map(find).collect::<Vec<_>>()))
        });
        let answers = peer.shuffle::<Vec<NodeIdx>, StoreError>(answers)?;
        Ok(scatter_to_units(&[wanted.len()], &positions, &answers).swap_remove(0))
    }
}

impl IdTable {
    pub(crate) fn new(like: &Ids) -> Self {
        Self {
            ids: Ids::new(like.id_type()),
            hashes: Vec::new(),
            table: HashTable::new(),
        }
    }

    fn from_distinct(ids: Ids) -> Self {
        let hashes: Vec<u64> = (0..ids.len()).map(|i| ids.hash(i)).collect();
        let mut table = HashTable::with_capacity(ids.len());
        for (i, &hash) in (0..).zip(&hashes) {
            table.insert_unique(hash, i, |&j: &u32| hashes[j as usize]);
        }
        Self { ids, hashes, table }
    }

    /// Returns the position of an id; a new id is added first.
    pub(crate) fn place(&mut self, ids: &Ids, i: usize) -> u32 {
        let hash = ids.hash(i);
        let same = |&j: &u32| self.ids.cmp(j as usize, ids, i) == Ordering::Equal;
        if let Some(&place) = self.table.find(hash, same) {
            return place;
        }
        let place = u32::try_from(self.ids.len()).expect("fewer distinct ids than nodes fit");
        self.ids.push_from(ids, i);
        self.hashes.push(hash);
        self.table
            .insert_unique(hash, place, |&j| self.hashes[j as usize]);
        place
    }

    /// Returns the position of an id, if the table has it, and its hash.
    pub(crate) fn find(&self, ids: &Ids, i: usize) -> (Option<u32>, u64) {
        let hash = ids.hash(i);
        let same = |&j: &u32| self.ids.cmp(j as usize, ids, i) == Ordering::Equal;
        (self.table.find(hash, same).copied(), hash)
    }

    /// Returns the distinct ids, by position.
    pub(crate) fn ids(&self) -> &Ids {
        &self.ids
    }
}
