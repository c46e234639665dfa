//! Batches made ahead of the model: read, vectorise, compute on bounded queues.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::Scope;
use std::time::Instant;

use gnn::{Block, Dense, Input, Labels, Model, ReadyInput, SparseRows, Transform};
use schemas::Split;

use crate::TrainError;
use crate::batch::{BlockOptions, Piece, Place, blocks_of};
use crate::class_weight;
use crate::fetch::{FetchedParts, fetch_ahead};
use crate::order::{Order, Selection};
use crate::source::{Part, PartKey, Source};

/// Batches that wait between two stages of a pipeline. More would only hold memory: the queue
/// evens out batches of unequal size, and the slowest stage sets the pace anyway.
const QUEUE_BATCHES: usize = 2;

/// Values of a batch that are looked at to see whether most are zero.
const SAMPLE_VALUES: usize = 1 << 14;

/// Dense values that are multiplied in the time of a sparse one, about twice over: then it is worth
/// its while.
const DENSE_PER_SPARSE: usize = 32;

/// Targets ready to be computed.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) blocks: Vec<Block>,
    pub(crate) input: ReadyInput,
    /// One row a target.
    pub(crate) labels: Labels,
    pub(crate) num_targets: usize,
    pub(crate) counts: Counts,
}

/// What targets count in the mean of the losses: their number, or the weights of their classes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// The worker's own.
    pub(crate) own: f64,
    /// Those of the global batch.
    pub(crate) global: f64,
}

/// How batches are made of targets.
#[derive(Clone, Debug)]
pub(crate) struct Vectoriser {
    pub(crate) options: BlockOptions,
    pub(crate) transform: Transform,
    /// The model that is trained on the batches: what its backward pass reads is made with them.
    pub(crate) trained: Option<Model>,
    /// What a target's loss counts by its class; none: all alike.
    pub(crate) class_weights: Vec<f32>,
}

/// Time the stages were busy, summed over their threads.
#[derive(Debug, Default)]
pub(crate) struct Busy {
    read_ns: AtomicU64,
    vectorise_ns: AtomicU64,
    compute_ns: AtomicU64,
}

/// A stage of the pipeline.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stage {
    Read,
    Vectorise,
    Compute,
}

impl Stage {
    const ALL: [Self; 3] = [Self::Read, Self::Vectorise, Self::Compute];
}

/// Targets of a batch, their parts decoded.
#[derive(Debug, Default)]
struct Chosen {
    pieces: Vec<(PartKey, Arc<Part>, Vec<u32>)>,
    counts: Counts,
}

/// The same without the parts: what tells one batch from another.
type Targets = Vec<(PartKey, Vec<u32>)>;

/// What everything that makes batches shares.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Supply<'env> {
    pub(crate) source: &'env Source,
    pub(crate) vectoriser: &'env Vectoriser,
    pub(crate) busy: &'env Busy,
}

impl Supply<'_> {
    /// Tells whether the part of a segment is read, of which a worker has these targets: those of
    /// others are looked at only for the weights of their classes.
    fn reads(&self, own: &Range<usize>) -> bool {
        !own.is_empty() || !self.vectoriser.class_weights.is_empty()
    }

    /// Returns the parts that a batch of a worker takes, in its order.
    pub(crate) fn part_keys(&self, selection: &Selection) -> Vec<PartKey> {
        let read = selection.shares().filter(|(_, own)| self.reads(own));
        let keys = read.map(|(segment, _)| self.source.key(segment.part, selection.epoch));
        keys.collect()
    }
}

/// Starts the reading and vectorising threads of one consumer; batches arrive in order of the
/// selections. The first error of a thread arrives in place of a batch and ends them; they also end
/// when the receiver is dropped.
pub(crate) fn start<'scope, 'env>(
    scope: &'scope Scope<'scope, 'env>,
    supply: Supply<'env>,
    (order, split): (&'env Order, Split),
    selections: impl Iterator<Item = Selection> + Clone + Send + 'scope,
) -> Receiver<Result<Arc<Batch>, TrainError>> {
    let (chosen_sender, choices) = sync_channel::<Result<Chosen, TrainError>>(QUEUE_BATCHES);
    let (batch_sender, batches) = sync_channel(QUEUE_BATCHES);
    let parts = fetch_ahead(scope, supply, selections.clone());
    scope.spawn(move || {
        forward_error(&chosen_sender, || {
            let mut reader = Reader {
                supply,
                order,
                split,
                parts,
                permuted: None,
            };
            for selection in selections {
                let read = reader.read(&selection)?;
                if chosen_sender.send(Ok(read)).is_err() {
                    break;
                }
            }
            Ok(())
        });
    });
    scope.spawn(move || {
        forward_error(&batch_sender, || {
            let mut last: Option<(Targets, Arc<Batch>)> = None;
            for chosen in choices {
                let chosen = chosen?;
                let key: Targets = chosen
                    .pieces
                    .iter()
                    .map(|(part, _, targets)| (*part, targets.clone()))
                    .collect();
                // An epoch of one batch has the same targets every time. Of several workers, the
                // others may have had other targets with these.
                let batch = match &last {
                    Some((last_key, batch))
                        if *last_key == key && batch.counts == chosen.counts =>
                    {
                        Arc::clone(batch)
                    }
                    _ => Arc::new(
                        supply
                            .busy
                            .time(Stage::Vectorise, || supply.vectoriser.vectorise(&chosen))?,
                    ),
                };
                last = Some((key, Arc::clone(&batch)));
                if batch_sender.send(Ok(batch)).is_err() {
                    break;
                }
            }
            Ok(())
        });
    });
    batches
}

/// Runs a thread's work; its error is the last thing its receiver gets.
pub(crate) fn forward_error<T>(
    sender: &SyncSender<Result<T, TrainError>>,
    work: impl FnOnce() -> Result<(), TrainError>,
) {
    if let Err(error) = work() {
        // Nobody listens any more: the training ended for another reason.
        let _ = sender.send(Err(error));
    }
}

/// Turns selections into targets of decoded parts.
struct Reader<'env> {
    supply: Supply<'env>,
    order: &'env Order,
    split: Split,
    parts: FetchedParts,
    /// The targets of a part in the order of an epoch: the batches of a part follow each other.
    permuted: Option<((usize, u64), Vec<u32>)>,
}

impl Reader<'_> {
    fn read(&mut self, selection: &Selection) -> Result<Chosen, TrainError> {
        self.parts.advance(self.supply, selection)?;
        let busy = self.supply.busy;
        Ok(busy.time(Stage::Read, || self.choose(selection)))
    }

    /// Takes the targets out of the parts at hand.
    fn choose(&mut self, selection: &Selection) -> Chosen {
        let mut chosen = Chosen::default();
        let weights = &self.supply.vectoriser.class_weights;
        for (segment, own) in selection.shares() {
            if !self.supply.reads(&own) {
                chosen.counts.global += segment.range.len() as f64;
                continue;
            }
            let key = self.supply.source.key(segment.part, selection.epoch);
            let part = Arc::clone(self.parts.get(key));
            let stored = part.targets(self.split);
            let mut targets = match selection.epoch {
                None => stored[segment.range.clone()].to_vec(),
                Some(epoch) => {
                    let ordered = (segment.part, epoch);
                    if self
                        .permuted
                        .as_ref()
                        .is_none_or(|(known, _)| *known != ordered)
                    {
                        let permuted = self.order.permuted(epoch, &part.shard.ids, stored);
                        self.permuted = Some((ordered, permuted));
                    }
                    self.permuted
                        .as_ref()
                        .map_or(&[][..], |(_, all)| &all[segment.range.clone()])
                        .to_vec()
                }
            };
            targets.sort_unstable();
            let own = &targets[own];
            let total = |of: &[u32]| class_weight::total(weights, &part.shard.labels, of);
            chosen.counts.global += total(&targets);
            chosen.counts.own += total(own);
            if !own.is_empty() {
                let own = own.to_vec();
                chosen.pieces.push((key, part, own));
            }
        }
        chosen
    }
}

impl Vectoriser {
    fn vectorise(&self, chosen: &Chosen) -> Result<Batch, TrainError> {
        let pieces: Vec<Piece<'_>> = chosen
            .pieces
            .iter()
            .map(|(_, part, targets)| Piece {
                shard: &part.shard,
                targets,
            })
            .collect();
        let mut vectorised = blocks_of(&pieces, &self.options)?;
        if let Some(rows) = dense_elsewhere(chosen, &vectorised.nodes) {
            vectorised.input = Input::Dense(rows);
        }
        self.transform.apply(&mut vectorised.input)?;
        let input = ReadyInput::new(sparse_where_few(vectorised.input))?;
        if let Some(model) = &self.trained {
            model.prepare(&vectorised.blocks, &input);
        }
        Ok(Batch {
            blocks: vectorised.blocks,
            input,
            labels: labels_of(&pieces),
            num_targets: pieces.iter().map(|piece| piece.targets.len()).sum(),
            counts: chosen.counts,
        })
    }
}

/// Takes dense features as sparse if few of them are not zero, as in a bag of words: the maps of
/// the first layer then cost as much as these.
///
/// Inference does not: an embedding must not depend on which nodes share a block with it.
fn sparse_where_few(input: Input) -> Input {
    let Input::Dense(dense) = &input else {
        return input;
    };
    let sample = &dense.values[..dense.values.len().min(SAMPLE_VALUES)];
    let stored = sample.iter().filter(|&&value| value != 0.0).count();
    if sample.is_empty() || stored > sample.len() / DENSE_PER_SPARSE {
        return input;
    }
    let most = dense.values.len() / DENSE_PER_SPARSE;
    SparseRows::from_dense(dense, most).map_or(input, Input::Sparse)
}

/// Gathers the dense features of a batch's nodes, where they lie beside the shards.
fn dense_elsewhere(chosen: &Chosen, nodes: &[Place]) -> Option<Dense> {
    let cols = chosen.pieces.first()?.1.dense_dim()?;
    let mut values = Vec::with_capacity(nodes.len() * cols);
    for place in nodes {
        let (_, part, _) = &chosen.pieces[place.piece as usize];
        values.extend_from_slice(part.dense_row(place.node));
    }
    Some(Dense {
        rows: nodes.len(),
        cols,
        values,
    })
}

/// Gathers the labels of a batch's targets.
fn labels_of(pieces: &[Piece<'_>]) -> Labels {
    let mut gathered = pieces
        .first()
        .map_or(schemas::Labels::None, |p| p.shard.labels.empty_like());
    for Piece { shard, targets } in pieces {
        gathered.extend_gather(&shard.labels, targets);
    }
    match gathered {
        schemas::Labels::None => Labels::Classes(Vec::new()),
        schemas::Labels::Class(classes) => Labels::Classes(classes),
        schemas::Labels::Multi {
            width,
            values,
            present,
        } => Labels::MultiLabel(Dense {
            rows: present.len(),
            cols: width,
            values,
        }),
        schemas::Labels::Number(values) => Labels::Regression(Dense {
            rows: values.len(),
            cols: 1,
            values,
        }),
    }
}

impl Batch {
    /// Returns about how much memory the batch takes.
    pub(crate) fn bytes(&self) -> usize {
        let labels = match &self.labels {
            Labels::Classes(classes) => classes.len() * 4,
            Labels::MultiLabel(dense) | Labels::Regression(dense) => dense.values.len() * 4,
        };
        self.input.bytes() + labels + self.blocks.iter().map(block_bytes).sum::<usize>()
    }
}

/// Memory of a block: the edges stand twice, by dst and by src.
fn block_bytes(block: &Block) -> usize {
    let of_edges = 16 + 4 * usize::from(block.edge_weight().is_some());
    let floats = [block.in_weight(), block.self_weight()];
    let of_nodes = 32 + 4 * floats.iter().flatten().count();
    let features = block
        .edge_feature()
        .map_or(0, |feature| feature.values.len());
    block.num_edges() * of_edges + block.num_src() * of_nodes + 4 * features
}

impl Busy {
    /// Runs `work` and adds its time to a stage.
    pub(crate) fn time<T>(&self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let done = work();
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.of(stage).fetch_add(ns, Ordering::Relaxed);
        done
    }

    /// Returns the seconds of a stage since the last call, and starts again from 0.
    pub(crate) fn take_seconds(&self, stage: Stage) -> f64 {
        self.of(stage).swap(0, Ordering::Relaxed) as f64 * 1e-9
    }

    /// Returns the nanoseconds of every stage since the last call, and starts again from 0.
    pub(crate) fn take_ns(&self) -> [u64; 3] {
        Stage::ALL.map(|stage| self.of(stage).swap(0, Ordering::Relaxed))
    }

    /// Adds what [`take_ns`](Self::take_ns) returned in another process.
    pub(crate) fn add_ns(&self, all: [u64; 3]) {
        for (stage, ns) in Stage::ALL.into_iter().zip(all) {
            self.of(stage).fetch_add(ns, Ordering::Relaxed);
        }
    }

    fn of(&self, stage: Stage) -> &AtomicU64 {
        match stage {
            Stage::Read => &self.read_ns,
            Stage::Vectorise => &self.vectorise_ns,
            Stage::Compute => &self.compute_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use gnn::kernel::Partitioning;
    use schemas::{Fanout, GraphShard, Sampling};

    use super::*;
    use crate::random::{Graph, Shape, flatten_meta};

    /// One batch of all train targets of a graph, with or without what its edges carry.
    fn batch(graph: &Graph, with_edges: bool) -> Batch {
        let fanouts = [Fanout::Count(4)];
        let shards = graph.parts(1, &fanouts);
        let counts = shards.iter().map(GraphShard::split_counts).collect();
        let metas = (graph.meta(), flatten_meta(&fanouts, Sampling::Uniform));
        let source = Source::new("memory".into(), metas, counts, 0, move |idx| {
            Ok(shards[idx].clone())
        });
        let key = source.key(0, None);
        let part = source.part(key).unwrap();
        let targets = part.targets(Split::Train).to_vec();
        let vectoriser = Vectoriser {
            options: BlockOptions {
                fanouts: fanouts.to_vec(),
                sampling: Sampling::Uniform,
                pruning: true,
                partitioning: Partitioning::EdgeBalanced,
                edge_weight: with_edges,
                edge_dim: graph.shape.edge_dim.filter(|_| with_edges),
            },
            transform: Transform::None,
            trained: None,
            class_weights: Vec::new(),
        };
        let chosen = Chosen {
            pieces: vec![(key, part, targets)],
            ..Chosen::default()
        };
        vectoriser.vectorise(&chosen).unwrap()
    }

    #[test]
    fn every_column_of_a_batch_counts_against_its_memory() {
        let edge_dim = Some(7);
        let mut graph = Graph::new(
            Shape {
                weights: true,
                edge_dim,
                ..Shape::default()
            },
            5,
        );
        let plain = batch(&graph, false);
        let (nodes, edges) = (plain.blocks[0].num_src(), plain.blocks[0].num_edges());
        // A weight and seven features an edge, two sums of weights a node.
        let of_edges = 4 * (8 * edges + 2 * nodes);
        assert_eq!(batch(&graph, true).bytes(), plain.bytes() + of_edges);
        let (rows, width) = (graph.ids.len(), 100);
        graph.labels = schemas::Labels::Multi {
            width,
            values: vec![0.0; rows * width],
            present: vec![true; rows],
        };
        let of_labels = 4 * (width - 1) * plain.num_targets;
        assert_eq!(batch(&graph, false).bytes(), plain.bytes() + of_labels);
    }
}
