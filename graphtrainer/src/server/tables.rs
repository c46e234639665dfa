//! The embedding tables of a server in memory, spread over its shards by node.

use std::sync::{Arc, Mutex};

use rayon::prelude::*;
use schemas::Ids;

use super::memory::lock;
use super::table::Table;
use super::{Optimizer, RowGradient, ServerState, TableRows, TableSpec};

/// Fewest rows that one thread reads.
const ROWS_MIN: usize = 256;

/// Embedding tables whose rows are spread over shards, each with a lock of its own.
#[derive(Debug, Default)]
pub(super) struct Tables {
    specs: Vec<TableSpec>,
    shards: Vec<Mutex<Shard>>,
}

/// Some rows of each table.
#[derive(Debug)]
struct Shard {
    tables: Vec<Table>,
    /// Number of updates of the server, which optimisers count.
    updates: u64,
}

impl Tables {
    /// Makes the tables, with the rows of a state.
    pub(super) fn new(
        specs: &[TableSpec],
        num_moments: usize,
        (num_workers, num_shards): (usize, usize),
        state: &ServerState,
    ) -> Self {
        let shard = |_| {
            let tables = specs.iter();
            let table = |spec| Table::new(spec, num_moments, num_workers);
            Mutex::new(Shard {
                tables: tables.map(table).collect(),
                updates: state.updates,
            })
        };
        let num_shards = if specs.is_empty() { 0 } else { num_shards };
        let tables = Self {
            specs: specs.to_vec(),
            shards: (0..num_shards).map(shard).collect(),
        };
        for (table, rows) in state.tables.iter().enumerate() {
            assert!(tables.load(table, rows), "a state has each row once");
        }
        tables
    }

    pub(super) fn specs(&self) -> &[TableSpec] {
        &self.specs
    }

    /// Adds rows of a state to a table; returns false if it has one of them.
    #[must_use]
    pub(super) fn load(&self, table: usize, rows: &TableRows) -> bool {
        let spec = &self.specs[table];
        let places = spec.by_shard(&rows.ids, self.shards.len());
        let load = |(shard, positions): (&Mutex<Shard>, Vec<u32>)| {
            lock(shard).tables[table].load(&rows.gather(&positions, spec.dim))
        };
        self.shards.iter().zip(places).all(load)
    }

    /// Returns rows of each table, `[ids, dim]`.
    pub(super) fn read(&self, wanted: &[&Ids]) -> Vec<Vec<f32>> {
        let read = |(table, (spec, ids)): (usize, (&TableSpec, &&Ids))| {
            let mut rows = vec![0.0; ids.len() * spec.dim];
            // Locked in the order of the shards, as everywhere.
            let held: Vec<_> = self.shards.iter().map(lock).collect();
            let each = rows.par_chunks_exact_mut(spec.dim).enumerate();
            each.with_min_len(ROWS_MIN).for_each(|(at, row)| {
                let shard = spec.shard(ids, at, held.len());
                held[shard].tables[table].read(ids, at, row);
            });
            rows
        };
        self.specs
            .iter()
            .zip(wanted)
            .enumerate()
            .map(read)
            .collect()
    }

    /// Calls `update` with each shard, and with its part of the gradients of each table.
    fn for_each_part(
        &self,
        gradients: &[RowGradient],
        mut update: impl FnMut(&mut Shard, usize, RowGradient),
    ) {
        for (table, (spec, gradient)) in self.specs.iter().zip(gradients).enumerate() {
            if let [shard] = &self.shards[..] {
                update(&mut lock(shard), table, gradient.clone());
                continue;
            }
            let places = spec.by_shard(&gradient.ids, self.shards.len());
            for (shard, positions) in self.shards.iter().zip(places) {
                let part = gradient.gather(&positions, spec.dim);
                update(&mut lock(shard), table, part);
            }
        }
    }

    /// Keeps a worker's gradients until those of all workers have arrived.
    pub(super) fn keep(&self, worker: usize, gradients: &[RowGradient]) {
        self.for_each_part(gradients, |shard, table, part| {
            shard.tables[table].keep(worker, part);
        });
    }

    /// Updates the rows by the sums of the kept gradients.
    pub(super) fn apply_kept(&self, optimizer: &Optimizer) {
        for shard in &self.shards {
            let mut held = lock(shard);
            held.updates += 1;
            let update = held.updates;
            let tables = held.tables.iter_mut();
            tables.for_each(|table| table.apply_kept(optimizer, update));
        }
    }

    /// Updates the rows by the gradients of one worker.
    pub(super) fn apply(&self, optimizer: &Optimizer, gradients: &[RowGradient]) {
        for shard in &self.shards {
            lock(shard).updates += 1;
        }
        self.for_each_part(gradients, |shard, table, part| {
            let update = shard.updates;
            shard.tables[table].apply(optimizer, update, &part);
        });
    }

    /// Returns all rows of each table.
    pub(super) fn state(&self) -> Vec<Arc<TableRows>> {
        let joined = |(table, spec): (usize, &TableSpec)| {
            let shards = self.shards.iter().map(|shard| {
                let held = lock(shard);
                let rows = &held.tables[table];
                rows.rows(0..rows.len())
            });
            let shards: Vec<TableRows> = shards.collect();
            Arc::new(TableRows::join(spec.id_type, &shards, spec.dim))
        };
        self.specs.iter().enumerate().map(joined).collect()
    }

    /// Returns at most `count` rows of a table of a server of one shard, from position `start` on.
    pub(super) fn page(&self, table: usize, start: usize, count: usize) -> TableRows {
        let held = lock(&self.shards[0]);
        let rows = &held.tables[table];
        let start = start.min(rows.len());
        rows.rows(start..rows.len().min(start.saturating_add(count)))
    }
}
