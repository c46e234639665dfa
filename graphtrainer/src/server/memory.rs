//! The parameter server of one process: memory shared by threads, behind locks.

use std::ops::Range;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use schemas::Ids;

use super::shard::{Shard, places, spread};
use super::tables::Tables;
use super::{
    Consistency, Optimizer, ParameterServer, Pulled, Pushed, ServerState, TableSpec, TensorSpec,
    squared_norm,
};
use crate::TrainError;

/// A [`ParameterServer`] whose tensors are spread over shards, each with a lock of its own.
#[derive(Debug)]
pub struct MemoryServer {
    consistency: Consistency,
    optimizer: Optimizer,
    num_parameters: usize,
    /// Range of each tensor in the flat vector, in order.
    places: Vec<Range<usize>>,
    shards: Vec<Mutex<Shard>>,
    progress: Mutex<Progress>,
    moved: Condvar,
    /// Squared norms of the tensors' gradients, update by update, if they are kept.
    squares: Option<Mutex<Vec<f64>>>,
    tables: Tables,
}

/// How long a pull waits before it checks again; a change wakes it at once.
const PATIENCE: Duration = Duration::from_secs(60);

/// The steps of the workers, and the buffers, which are too small for shards.
#[derive(Debug)]
struct Progress {
    /// Steps pushed, by worker.
    clocks: Vec<u64>,
    failed: Option<usize>,
    norm_sum: f64,
    buffers: Vec<f32>,
    /// Sync mode: targets and buffers of the step that is not complete, by worker.
    pending: Vec<Option<(u64, Vec<f32>)>>,
}

impl MemoryServer {
    /// Makes a server that starts from `state`, with `num_shards` shards.
    ///
    /// # Shapes
    ///
    /// - `state.parameters`: as long as all tensors together; `state.moments`: none, or as many
    ///   vectors of that length as the optimiser keeps
    ///
    /// # Panics
    ///
    /// If the shapes differ.
    pub fn new(
        tensors: &[TensorSpec],
        optimizer: Optimizer,
        consistency: Consistency,
        (num_workers, num_shards): (usize, usize),
        state: &ServerState,
    ) -> Self {
        let num_parameters = tensors.iter().map(|tensor| tensor.len).sum();
        assert_eq!(
            num_parameters,
            state.parameters.len(),
            "the state fits the tensors"
        );
        let places = places(tensors);
        let shards = spread(tensors, num_shards)
            .into_iter()
            .map(|share| {
                let moments = optimizer.num_moments();
                Mutex::new(Shard::new(share, moments, num_workers, state))
            })
            .collect();
        let progress = Progress {
            clocks: vec![state.step; num_workers],
            failed: None,
            norm_sum: state.norm_sum,
            buffers: state.buffers.clone(),
            pending: vec![None; num_workers],
        };
        Self {
            consistency,
            optimizer,
            num_parameters,
            places,
            shards,
            progress: Mutex::new(progress),
            moved: Condvar::new(),
            squares: None,
            tables: Tables::default(),
        }
    }

    /// Adds embedding tables, spread over as many shards as the tensors, with the rows of `state`. The
    /// norm and the clipping of a gradient leave their rows out.
    ///
    /// # Panics
    ///
    /// If the rows of `state` are of other tables.
    #[must_use]
    pub fn with_tables(mut self, specs: &[TableSpec], state: &ServerState) -> Self {
        let num_workers = lock(&self.progress).clocks.len();
        let counts = (num_workers, self.shards.len());
        self.tables = Tables::new(specs, self.optimizer.num_moments(), counts, state);
        self
    }

    pub(super) fn tables(&self) -> &Tables {
        &self.tables
    }

    /// Makes the server keep the values of [`take_squares`](Self::take_squares): 8 bytes per tensor
    /// and update.
    pub(super) fn keeping_squares(mut self) -> Self {
        self.squares = Some(Mutex::default());
        self
    }

    /// Returns the squared norms of the gradients of all updates since the last call, one per
    /// update and tensor. With those of other shards they give the norm of the whole gradient.
    pub(super) fn take_squares(&self) -> Vec<f64> {
        let taken = self
            .squares
            .as_ref()
            .map(|squares| std::mem::take(&mut *lock(squares)));
        taken.unwrap_or_default()
    }

    /// Pulls as [`ParameterServer::pull`] does, but returns none if the step is not allowed within
    /// `patience`.
    pub(super) fn pull_within(
        &self,
        step: u64,
        patience: Duration,
    ) -> Result<Option<Pulled>, TrainError> {
        let start = Instant::now();
        let mut progress = self.progress()?;
        while step > progress.slowest().saturating_add(self.lead_max()) {
            let Some(left) = patience.checked_sub(start.elapsed()) else {
                return Ok(None);
            };
            (progress, _) = self
                .moved
                .wait_timeout(progress, left)
                .unwrap_or_else(PoisonError::into_inner);
            if let Some(worker) = progress.failed {
                return Err(TrainError::PeerFailed { worker });
            }
        }
        let buffers = progress.buffers.clone();
        drop(progress);
        let mut parameters = vec![0.0; self.num_parameters];
        for shard in &self.shards {
            for tensor in &lock(shard).tensors {
                parameters[tensor.place.clone()].copy_from_slice(&tensor.values);
            }
        }
        Ok(Some(Pulled {
            parameters,
            buffers,
        }))
    }

    /// Returns how many steps a worker may be ahead of the slowest when it starts a step.
    fn lead_max(&self) -> u64 {
        match self.consistency {
            Consistency::Sync => 0,
            Consistency::Async => u64::MAX,
            Consistency::Bounded(staleness) => staleness,
        }
    }

    fn progress(&self) -> Result<MutexGuard<'_, Progress>, TrainError> {
        let progress = lock(&self.progress);
        match progress.failed {
            Some(worker) => Err(TrainError::PeerFailed { worker }),
            None => Ok(progress),
        }
    }

    /// Sync mode: keeps the gradient. The last worker's gradient completes the step: the sum of all
    /// gradients is applied before any worker can pull the next step.
    fn push_together(&self, pushed: &Pushed<'_>) -> Result<(), TrainError> {
        for shard in &self.shards {
            lock(shard).keep(pushed);
        }
        self.tables.keep(pushed.worker, pushed.rows);
        let mut progress = self.progress()?;
        progress.collect(pushed);
        let mut others = (0..).zip(&progress.clocks);
        if others.all(|(worker, &clock)| worker == pushed.worker || clock > pushed.step) {
            let mut sum = vec![0.0; self.num_parameters];
            for shard in &self.shards {
                lock(shard).take_sum(&mut sum);
            }
            progress.norm_sum += self.apply(pushed.step, &sum);
            self.tables.apply_kept(&self.optimizer.at(pushed.step));
        }
        progress.clocks[pushed.worker] += 1;
        Ok(())
    }

    /// Applies the gradient of one worker, unless it had no targets.
    fn push_alone(&self, pushed: &Pushed<'_>) -> Result<(), TrainError> {
        let norm = (pushed.num_targets > 0).then(|| {
            let optimizer = self.optimizer.at(pushed.step);
            self.tables.apply(&optimizer, pushed.rows);
            self.apply(pushed.step, pushed.gradient)
        });
        let mut progress = self.progress()?;
        if let Some(norm) = norm {
            progress.norm_sum += norm;
            progress.buffers.copy_from_slice(pushed.buffers);
        }
        progress.clocks[pushed.worker] += 1;
        Ok(())
    }

    /// Clips a gradient of the whole model, updates every tensor by it, and returns its norm before
    /// clipping.
    fn apply(&self, step: u64, gradient: &[f32]) -> f64 {
        let squares = self.places.iter();
        let squares: Vec<f64> = squares
            .map(|place| squared_norm(&gradient[place.clone()]))
            .collect();
        let norm = squares.iter().sum::<f64>().sqrt();
        if let Some(kept) = &self.squares {
            lock(kept).extend(squares);
        }
        let scale = self.optimizer.clip(norm);
        let clipped: Option<Vec<f32>> =
            scale.map(|scale| gradient.iter().map(|value| value * scale).collect());
        let gradient = clipped.as_deref().unwrap_or(gradient);
        let optimizer = self.optimizer.at(step);
        for shard in &self.shards {
            lock(shard).apply(&optimizer, gradient);
        }
        norm
    }
}

impl ParameterServer for MemoryServer {
    fn pull(&self, _worker: usize, step: u64) -> Result<Pulled, TrainError> {
        loop {
            if let Some(pulled) = self.pull_within(step, PATIENCE)? {
                return Ok(pulled);
            }
        }
    }

    fn pull_rows(&self, wanted: &[&Ids]) -> Result<Vec<Vec<f32>>, TrainError> {
        drop(self.progress()?);
        Ok(self.tables.read(wanted))
    }

    fn push(&self, pushed: Pushed<'_>) -> Result<(), TrainError> {
        assert_eq!(
            pushed.gradient.len(),
            self.num_parameters,
            "the gradient covers the whole model"
        );
        let expected = self.progress()?.clocks[pushed.worker];
        if pushed.step != expected {
            let Pushed { worker, step, .. } = pushed;
            return Err(TrainError::OutOfTurn {
                worker,
                step,
                expected,
            });
        }
        if self.consistency == Consistency::Sync {
            self.push_together(&pushed)?;
        } else {
            self.push_alone(&pushed)?;
        }
        self.moved.notify_all();
        Ok(())
    }

    fn fail(&self, worker: usize) {
        lock(&self.progress).failed.get_or_insert(worker);
        self.moved.notify_all();
    }

    fn state(&self) -> Result<ServerState, TrainError> {
        let progress = self.progress()?;
        let mut state = ServerState {
            step: progress.slowest(),
            updates: 0,
            norm_sum: progress.norm_sum,
            parameters: vec![0.0; self.num_parameters],
            buffers: progress.buffers.clone(),
            moments: vec![vec![0.0; self.num_parameters]; self.optimizer.num_moments()],
            tables: self.tables.state(),
        };
        drop(progress);
        for shard in &self.shards {
            let shard = lock(shard);
            state.updates = shard.updates;
            for tensor in &shard.tensors {
                state.parameters[tensor.place.clone()].copy_from_slice(&tensor.values);
                for (whole, part) in state.moments.iter_mut().zip(&tensor.moments) {
                    whole[tensor.place.clone()].copy_from_slice(part);
                }
            }
        }
        Ok(state)
    }
}

impl Progress {
    fn slowest(&self) -> u64 {
        self.clocks.iter().copied().min().unwrap_or(0)
    }

    /// Keeps a worker's buffers. The last worker's buffers complete the step: the server's buffers
    /// become the mean, weighted by targets.
    fn collect(&mut self, pushed: &Pushed<'_>) {
        self.pending[pushed.worker] = Some((pushed.num_targets, pushed.buffers.to_vec()));
        if self.buffers.is_empty() || self.pending.iter().any(Option::is_none) {
            return;
        }
        let pending: Vec<_> = self.pending.iter_mut().filter_map(Option::take).collect();
        let total: u64 = pending.iter().map(|(num_targets, _)| num_targets).sum();
        if total == 0 {
            return;
        }
        for (idx, value) in self.buffers.iter_mut().enumerate() {
            let weighted = pending
                .iter()
                .map(|(count, b)| *count as f64 * f64::from(b[idx]));
            #[expect(clippy::cast_possible_truncation, reason = "buffers are f32")]
            let mean = (weighted.sum::<f64>() / total as f64) as f32;
            *value = mean;
        }
    }
}

/// Locks also after a panic in another thread: the panicking worker reports its failure by `fail`,
/// and the next caller must get that error instead of a panic.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
