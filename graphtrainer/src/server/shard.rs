//! One shard of the parameter server: some tensors, the optimiser's state and the gradients of a step.

use std::ops::Range;

use super::{Optimizer, Pushed, ServerState, TensorSpec};

/// Some tensors with their optimiser state, and the gradients of a step that is not complete.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) tensors: Vec<Tensor>,
    pub(super) updates: u64,
    /// Sync mode: one slot per worker, with its gradients of this shard's tensors one after the
    /// other.
    pending: Vec<Option<Vec<f32>>>,
}

#[derive(Debug)]
pub(super) struct Tensor {
    /// Its range in the flat vector.
    pub(super) place: Range<usize>,
    weight_decay: f32,
    pub(super) values: Vec<f32>,
    pub(super) moments: Vec<Vec<f32>>,
}

impl Shard {
    /// Copies its tensors' values from a state, and their moments if the state has moments.
    pub(super) fn new(
        share: Vec<(Range<usize>, &TensorSpec)>,
        num_moments: usize,
        num_workers: usize,
        state: &ServerState,
    ) -> Self {
        let tensor = |(place, spec): (Range<usize>, &TensorSpec)| Tensor {
            values: state.parameters[place.clone()].to_vec(),
            moments: (0..num_moments)
                .map(|moment| match state.moments.get(moment) {
                    Some(values) => values[place.clone()].to_vec(),
                    None => vec![0.0; place.len()],
                })
                .collect(),
            place,
            weight_decay: spec.weight_decay,
        };
        Self {
            tensors: share.into_iter().map(tensor).collect(),
            updates: state.updates,
            pending: vec![None; num_workers],
        }
    }

    /// Keeps a worker's gradient until those of all workers have arrived.
    pub(super) fn keep(&mut self, pushed: &Pushed<'_>) {
        let tensors = self.tensors.iter();
        let own = tensors
            .flat_map(|tensor| &pushed.gradient[tensor.place.clone()])
            .copied();
        self.pending[pushed.worker] = Some(own.collect());
    }

    /// Adds up the kept gradients, in worker order, into their ranges of the flat vector.
    pub(super) fn take_sum(&mut self, flat: &mut [f32]) {
        let gradients: Vec<Vec<f32>> = self.pending.iter_mut().filter_map(Option::take).collect();
        let mut start = 0;
        for tensor in &self.tensors {
            let own = start..start + tensor.values.len();
            let sum = &mut flat[tensor.place.clone()];
            for (idx, gradient) in gradients.iter().enumerate() {
                let part = &gradient[own.clone()];
                if idx == 0 {
                    sum.copy_from_slice(part);
                } else {
                    sum.iter_mut()
                        .zip(part)
                        .for_each(|(total, value)| *total += value);
                }
            }
            start = own.end;
        }
    }

    /// Updates every tensor by its part of the gradient.
    pub(super) fn apply(&mut self, optimizer: &Optimizer, gradient: &[f32]) {
        self.updates += 1;
        for tensor in &mut self.tensors {
            let mut moments: Vec<_> = tensor.moments.iter_mut().map(|m| &mut m[..]).collect();
            optimizer.update(
                self.updates,
                &mut tensor.values,
                &gradient[tensor.place.clone()],
                &mut moments,
                tensor.weight_decay,
            );
        }
    }
}

/// Returns the range of each tensor in the flat vector.
pub(super) fn places(tensors: &[TensorSpec]) -> Vec<Range<usize>> {
    let mut start = 0;
    let place = |tensor: &TensorSpec| {
        let place = start..start + tensor.len;
        start = place.end;
        place
    };
    tensors.iter().map(place).collect()
}

/// Spreads tensors over shards: the largest first, each to the shard with the fewest values.
/// Returns each tensor with its range in the flat vector.
pub(crate) fn spread(
    tensors: &[TensorSpec],
    num_shards: usize,
) -> Vec<Vec<(Range<usize>, &TensorSpec)>> {
    let mut places: Vec<_> = places(tensors).into_iter().zip(tensors).collect();
    places.sort_by(|(_, a), (_, b)| b.len.cmp(&a.len).then_with(|| a.name.cmp(&b.name)));
    let mut shards = vec![(0, Vec::new()); num_shards];
    for (place, tensor) in places {
        if let Some((held, shard)) = shards.iter_mut().min_by_key(|(held, _)| *held) {
            *held += tensor.len;
            shard.push((place, tensor));
        }
    }
    // As in the flat vector: norms are added up in this order on every server.
    for (_, shard) in &mut shards {
        shard.sort_by_key(|(place, _)| place.start);
    }
    shards.into_iter().map(|(_, shard)| shard).collect()
}
