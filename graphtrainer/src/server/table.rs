//! Embedding tables: a learnable row for each node of a type, on the shards of the parameter server.
//!
//! The start value of a row is a pure function of the table and the node's id. A shard holds only
//! rows that had a gradient, so its memory and the time of a step follow these rows, whatever the
//! number of nodes.

use rayon::prelude::*;
use schemas::xxh::hash_bytes;
use schemas::{IdType, Ids, hash_int};
use serde::{Deserialize, Serialize};

use super::Optimizer;
use crate::id_index::IdIndex;

/// Rows that one thread updates at a time, where most rows of a table have a gradient.
const CHUNK: usize = 1 << 10;

/// A row without a gradient.
const NONE: usize = usize::MAX;

/// The embedding table of a node type.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TableSpec {
    /// Name of the type; empty in an untyped graph.
    pub name: String,
    /// Type of the ids of its nodes.
    pub id_type: IdType,
    /// Width of a row.
    pub dim: usize,
    /// Seed of the start values.
    pub seed: u64,
    /// Weight decay of rows that have a gradient.
    pub weight_decay: f32,
}

/// The rows of an embedding table that have had a gradient, in the order of their ids.
#[derive(Clone, Debug, PartialEq)]
pub struct TableRows {
    /// `[n]`, distinct.
    pub ids: Ids,
    /// `[n * dim]`, row-major.
    pub values: Vec<f32>,
    /// The optimiser's vectors, each as long as `values` (none for plain SGD, or if training does not
    /// go on from these rows).
    pub moments: Vec<Vec<f32>>,
}

/// Gradients of some rows of an embedding table.
#[derive(Clone, Debug, PartialEq)]
pub struct RowGradient {
    /// `[n]`, distinct.
    pub ids: Ids,
    /// `[n * dim]`, row-major.
    pub values: Vec<f32>,
}

impl TableSpec {
    /// Returns the start value of column `column` of the row of a node: uniform in
    /// `[-1 / sqrt(dim), 1 / sqrt(dim))`, as `torch_geometric.nn.inits.uniform` draws for a fan-in of
    /// `dim`. It depends on the seed, the name of the table, the id and the column only.
    pub fn start_value(&self, ids: &Ids, at: usize, column: usize) -> f32 {
        self.start_of_row(ids, at).value(column)
    }

    fn start_of_row(&self, ids: &Ids, at: usize) -> StartRow {
        let of_table = hash_int(self.seed ^ self.salt());
        #[expect(
            clippy::cast_possible_truncation,
            reason = "values are f32, widths are small"
        )]
        let bound = (1.0 / (self.dim as f64).sqrt()) as f32;
        StartRow {
            hash: hash_int(of_table ^ ids.hash(at)),
            bound,
        }
    }

    fn salt(&self) -> u64 {
        hash_bytes(self.name.as_bytes())
    }

    /// Returns the positions of the ids that each of `num_shards` shards holds.
    pub(super) fn by_shard(&self, ids: &Ids, num_shards: usize) -> Vec<Vec<u32>> {
        let salt = self.salt();
        let mut shards = vec![Vec::new(); num_shards];
        for (position, at) in (0..).zip(0..ids.len()) {
            shards[shard_of(ids, at, (salt, num_shards))].push(position);
        }
        shards
    }

    /// Returns the shard that holds the row of id `at` of a column.
    pub(super) fn shard(&self, ids: &Ids, at: usize, num_shards: usize) -> usize {
        match num_shards {
            1 => 0,
            _ => shard_of(ids, at, (self.salt(), num_shards)),
        }
    }
}

fn shard_of(ids: &Ids, at: usize, (salt, num_shards): (u64, usize)) -> usize {
    let shard = hash_int(ids.hash(at) ^ salt) % num_shards as u64;
    usize::try_from(shard).expect("a shard's number is below their count")
}

/// The start values of a row.
#[derive(Clone, Copy)]
struct StartRow {
    hash: u64,
    bound: f32,
}

impl StartRow {
    fn value(self, column: usize) -> f32 {
        let bits = hash_int(self.hash.wrapping_add(column as u64)) >> 40;
        #[expect(clippy::cast_possible_truncation, reason = "24 bits fit f32")]
        let unit = (bits as f64 / f64::from(1 << 23)) as f32 - 1.0;
        unit * self.bound
    }
}

impl TableRows {
    /// Makes a table without rows.
    pub fn empty(id_type: IdType) -> Self {
        Self {
            ids: Ids::new(id_type),
            values: Vec::new(),
            moments: Vec::new(),
        }
    }

    /// Returns the bytes of ids, values and moments.
    pub(crate) fn size_bytes(&self) -> usize {
        let moments = self.moments.iter().map(Vec::len).sum::<usize>();
        self.ids.size_bytes() + size_of::<f32>() * (self.values.len() + moments)
    }

    /// Copies ids and values, which is all that a finished model has.
    pub(crate) fn without_moments(&self) -> Self {
        Self {
            ids: self.ids.clone(),
            values: self.values.clone(),
            moments: Vec::new(),
        }
    }

    /// Joins the rows of several shards, in the order of their ids.
    pub(super) fn join(id_type: IdType, shards: &[Self], dim: usize) -> Self {
        let mut ids = Ids::new(id_type);
        let mut places = Vec::new();
        for (shard, rows) in shards.iter().enumerate() {
            ids.extend_from(&rows.ids, 0..rows.ids.len());
            places.extend((0..rows.ids.len()).map(|row| (shard, row * dim..(row + 1) * dim)));
        }
        let order = ids.sort_permutation();
        let joined = |of: &dyn Fn(&Self) -> &[f32]| {
            let mut all = Vec::with_capacity(places.len() * dim);
            for &position in &order {
                let (shard, range) = &places[position as usize];
                all.extend_from_slice(&of(&shards[*shard])[range.clone()]);
            }
            all
        };
        let num_moments = shards.iter().map(|rows| rows.moments.len()).max();
        let moments = 0..num_moments.unwrap_or(0);
        Self {
            values: joined(&|rows| &rows.values),
            moments: moments
                .map(|moment| joined(&|rows| &rows.moments[moment]))
                .collect(),
            ids: ids.gather(&order),
        }
    }

    /// Returns the rows at some positions.
    pub(super) fn gather(&self, positions: &[u32], dim: usize) -> Self {
        let of = |values: &[f32]| gather(values, positions, dim);
        Self {
            ids: self.ids.gather(positions),
            values: of(&self.values),
            moments: self.moments.iter().map(|moment| of(moment)).collect(),
        }
    }
}

impl RowGradient {
    /// Returns the gradients at some positions.
    pub(super) fn gather(&self, positions: &[u32], dim: usize) -> Self {
        Self {
            ids: self.ids.gather(positions),
            values: gather(&self.values, positions, dim),
        }
    }
}

fn gather(values: &[f32], positions: &[u32], dim: usize) -> Vec<f32> {
    let mut gathered = Vec::with_capacity(positions.len() * dim);
    for &position in positions {
        let start = position as usize * dim;
        gathered.extend_from_slice(&values[start..start + dim]);
    }
    gathered
}

/// The rows of an embedding table that one shard holds.
#[derive(Debug)]
pub(super) struct Table {
    spec: TableSpec,
    index: IdIndex,
    values: Vec<f32>,
    moments: Vec<Vec<f32>>,
    /// Sync mode: the gradients of the step that is not complete, by worker.
    pending: Vec<Option<RowGradient>>,
}

impl Table {
    pub(super) fn new(spec: &TableSpec, num_moments: usize, num_workers: usize) -> Self {
        Self {
            index: IdIndex::new(spec.id_type),
            spec: spec.clone(),
            values: Vec::new(),
            moments: vec![Vec::new(); num_moments],
            pending: vec![None; num_workers],
        }
    }

    /// Adds rows of a state; returns false, and adds none, if the table has one of them or they are
    /// not distinct. Without moments, they start at 0.
    #[must_use]
    pub(super) fn load(&mut self, rows: &TableRows) -> bool {
        let mut seen = IdIndex::new(self.spec.id_type);
        let all = 0..rows.ids.len();
        let is_new = |at| self.index.find(&rows.ids, at).is_none() && seen.insert(&rows.ids, at).1;
        if !all.clone().all(is_new) {
            return false;
        }
        for at in all {
            self.index.insert(&rows.ids, at);
        }
        self.values.extend_from_slice(&rows.values);
        let len = self.values.len();
        for (moment, own) in self.moments.iter_mut().enumerate() {
            if let Some(values) = rows.moments.get(moment) {
                own.extend_from_slice(values);
            }
            own.resize(len, 0.0);
        }
        true
    }

    /// Writes the row of id `at` of a column.
    pub(super) fn read(&self, ids: &Ids, at: usize, row: &mut [f32]) {
        let dim = self.spec.dim;
        if let Some(position) = self.index.find(ids, at) {
            row.copy_from_slice(&self.values[position * dim..(position + 1) * dim]);
            return;
        }
        let start = self.spec.start_of_row(ids, at);
        for (column, value) in row.iter_mut().enumerate() {
            *value = start.value(column);
        }
    }

    /// Keeps a worker's gradients until those of all workers have arrived.
    pub(super) fn keep(&mut self, worker: usize, gradient: RowGradient) {
        self.pending[worker] = Some(gradient);
    }

    /// Updates the rows by the sum of the kept gradients. Gradients of a row are added up in the order
    /// of the workers.
    pub(super) fn apply_kept(&mut self, optimizer: &Optimizer, update: u64) {
        let kept: Vec<RowGradient> = self.pending.iter_mut().filter_map(Option::take).collect();
        let sum = sum(self.spec.id_type, kept, self.spec.dim);
        self.apply(optimizer, update, &sum);
    }

    /// Updates the rows that have a gradient. The moments of the others stay, as in
    /// `torch.optim.SparseAdam`.
    pub(super) fn apply(&mut self, optimizer: &Optimizer, update: u64, gradient: &RowGradient) {
        let (dim, decay) = (self.spec.dim, self.spec.weight_decay);
        let rows = 0..gradient.ids.len();
        let positions = rows.map(|at| self.position(&gradient.ids, at));
        let positions: Vec<usize> = positions.collect();
        if 2 * positions.len() < self.len() {
            let slopes = gradient.values.chunks_exact(dim);
            for (position, slope) in positions.into_iter().zip(slopes) {
                let own = position * dim..(position + 1) * dim;
                let moments = self.moments.iter_mut();
                let mut moments: Vec<_> = moments.map(|moment| &mut moment[own.clone()]).collect();
                let row = &mut self.values[own];
                optimizer.update(update, row, slope, &mut moments, decay);
            }
            return;
        }
        let mut slots = vec![NONE; self.len()];
        for (at, position) in positions.into_iter().enumerate() {
            slots[position] = at;
        }
        let chunks = self.values.par_chunks_mut(CHUNK * dim);
        let chunks = chunks.zip(chunks_of(&mut self.moments, (slots.len(), dim)));
        let chunks = chunks.zip(slots.par_chunks(CHUNK));
        chunks.for_each(|((values, mut moments), of_chunk)| {
            for (row, &at) in of_chunk.iter().enumerate().filter(|(_, at)| **at != NONE) {
                let own = row * dim..(row + 1) * dim;
                let slope = &gradient.values[at * dim..(at + 1) * dim];
                let moments = moments.iter_mut();
                let mut moments: Vec<_> = moments.map(|moment| &mut moment[own.clone()]).collect();
                optimizer.update(update, &mut values[own], slope, &mut moments, decay);
            }
        });
    }

    /// Returns the position of the row of id `at` of a column, which is added unless it is there.
    fn position(&mut self, ids: &Ids, at: usize) -> usize {
        let (position, is_new) = self.index.insert(ids, at);
        if is_new {
            let start = self.spec.start_of_row(ids, at);
            let columns = 0..self.spec.dim;
            self.values
                .extend(columns.map(|column| start.value(column)));
            let len = self.values.len();
            self.moments.iter_mut().for_each(|own| own.resize(len, 0.0));
        }
        position
    }

    /// Returns the number of rows.
    pub(super) fn len(&self) -> usize {
        self.index.ids().len()
    }

    /// Returns some rows, in the order in which they were added.
    pub(super) fn rows(&self, range: std::ops::Range<usize>) -> TableRows {
        let dim = self.spec.dim;
        let mut ids = Ids::new(self.spec.id_type);
        ids.extend_from(self.index.ids(), range.clone());
        let values = range.start * dim..range.end * dim;
        let moments = self.moments.iter();
        TableRows {
            ids,
            values: self.values[values.clone()].to_vec(),
            moments: moments.map(|own| own[values.clone()].to_vec()).collect(),
        }
    }
}

/// Cuts the optimiser's vectors into chunks of [`CHUNK`] rows, for a table of `num_rows` rows.
fn chunks_of(moments: &mut [Vec<f32>], (num_rows, dim): (usize, usize)) -> Vec<Vec<&mut [f32]>> {
    let mut chunks = Vec::new();
    chunks.resize_with(num_rows.div_ceil(CHUNK), Vec::new);
    for moment in moments {
        for (chunk, own) in chunks.iter_mut().zip(moment.chunks_mut(CHUNK * dim)) {
            chunk.push(own);
        }
    }
    chunks
}

/// Adds up gradients, row by row, in their order.
fn sum(id_type: IdType, mut gradients: Vec<RowGradient>, dim: usize) -> RowGradient {
    if gradients.len() == 1 {
        return gradients.swap_remove(0);
    }
    let mut index = IdIndex::new(id_type);
    let mut values = Vec::new();
    for gradient in gradients {
        for (at, slope) in gradient.values.chunks_exact(dim).enumerate() {
            let (position, is_new) = index.insert(&gradient.ids, at);
            if is_new {
                values.extend_from_slice(slope);
                continue;
            }
            let total = &mut values[position * dim..(position + 1) * dim];
            total
                .iter_mut()
                .zip(slope)
                .for_each(|(total, value)| *total += value);
        }
    }
    RowGradient {
        ids: index.into_ids(),
        values,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str, dim: usize, seed: u64) -> TableSpec {
        TableSpec {
            name: name.to_owned(),
            id_type: IdType::Int64,
            dim,
            seed,
            weight_decay: 0.0,
        }
    }

    fn ids(len: u64) -> Ids {
        Ids::from_keys(IdType::Int64, (0..len).collect())
    }

    /// The mean of 64000 values in [-1, 1) / sqrt(64) has a deviation of 0.0003.
    const MEAN_TOLERANCE: f64 = 0.0015;

    /// And their variance, 1 / (3 * 64), one of 2e-5.
    const VARIANCE_TOLERANCE: f64 = 1e-4;

    #[test]
    fn start_values_are_uniform_and_differ_by_seed_table_id_and_column() {
        let (table, ids) = (spec("author", 64, 5), ids(1000));
        let values: Vec<f64> = (0..1000)
            .flat_map(|at| (0..64).map(move |column| (at, column)))
            .map(|(at, column)| f64::from(table.start_value(&ids, at, column)))
            .collect();
        let count = values.len() as f64;
        assert!(values.iter().all(|value| value.abs() <= 0.125));
        let mean = values.iter().sum::<f64>() / count;
        assert!(mean.abs() < MEAN_TOLERANCE, "{mean}");
        let variance = values.iter().map(|value| value * value).sum::<f64>() / count;
        let wanted = 1.0 / 192.0;
        assert!((variance - wanted).abs() < VARIANCE_TOLERANCE, "{variance}");
        let first = table.start_value(&ids, 0, 0);
        for other in [
            table.start_value(&ids, 1, 0),
            table.start_value(&ids, 0, 1),
            spec("paper", 64, 5).start_value(&ids, 0, 0),
            spec("author", 64, 6).start_value(&ids, 0, 0),
        ] {
            assert_ne!(first, other);
        }
    }

    /// Fixed for all time: a model must start the same in every later version.
    #[test]
    fn start_values_never_change() {
        let mut names = Ids::new(IdType::Utf8);
        names.push_str("vim");
        let text = TableSpec {
            id_type: IdType::Utf8,
            ..spec("package", 4, 7)
        };
        let numbers = spec("", 4, 7);
        let row = |table: &TableSpec, ids: &Ids| -> Vec<f32> {
            (0..4)
                .map(|column| table.start_value(ids, 0, column))
                .collect()
        };
        assert_eq!(row(&text, &names), START_OF_TEXT);
        assert_eq!(row(&numbers, &ids(1)), START_OF_NUMBER);
    }

    const START_OF_TEXT: [f32; 4] = [-0.351_709_9, 0.076_859_176, 0.176_892_04, -0.334_154_37];
    const START_OF_NUMBER: [f32; 4] = [-0.428_589_7, -0.32219, 0.231_662_1, -0.435_536_92];

    #[test]
    fn every_id_belongs_to_one_shard() {
        let (table, ids) = (spec("author", 2, 5), ids(3000));
        let shards = table.by_shard(&ids, 3);
        let mut all: Vec<u32> = shards.concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..3000));
        assert!(
            shards
                .iter()
                .all(|shard| (900..1100).contains(&shard.len()))
        );
    }
}
