//! Vectorises: turns targets of decoded parts into the blocks, input and labels of a batch.

use std::sync::{Arc, Mutex, PoisonError};

use gnn::typed::Schema;
use gnn::{Block, Dense, Input, Labels, Pairs, ReadyInput, SparseRows, Transform};

use crate::TrainError;
use crate::any_model::{AnyBlocks, AnyModel};
use crate::batch::{BlockOptions, Layers, Piece, Place, features_of, layers_of, layers_of_roots};
use crate::convert;
use crate::learnable::{BatchRows, LearnableType};
use crate::link::{LinkBatches, RankedPart, SharedTargets};
use crate::memory::{BLOCK_EDGE_BYTES, BLOCK_NODE_BYTES, DENSE_PER_SPARSE};
use crate::source::{Part, PartKey};

/// Number of values of a batch that are checked to see whether most are zero.
const SAMPLE_VALUES: usize = 1 << 14;

/// A batch, ready to compute.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) blocks: Arc<AnyBlocks>,
    /// One row per target.
    pub(crate) labels: Labels,
    pub(crate) num_targets: usize,
    pub(crate) counts: Counts,
    /// By embedding table; their input is not in `blocks`.
    pub(crate) learnable: Arc<Vec<BatchRows>>,
    /// The targets of the part, if its pairs are ranked among them.
    pub(crate) ranked: Option<Arc<RankedPart>>,
}

/// Blocks of all targets of a part, which several batches share.
#[derive(Debug)]
struct SharedBlocks {
    key: PartKey,
    targets: Arc<SharedTargets>,
    blocks: Arc<AnyBlocks>,
    learnable: Arc<Vec<BatchRows>>,
    /// Dst nodes of the last block, by type.
    num_dst: Vec<usize>,
    ranked: Option<Arc<RankedPart>>,
}

/// The shared blocks that were made last.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastShared(Arc<Mutex<Option<Arc<SharedBlocks>>>>);

/// The total weight of targets in the mean of the losses: their number, or the sum of their class
/// weights.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counts {
    /// Of the worker's own targets.
    pub(crate) own: f64,
    /// Of the targets of the global batch.
    pub(crate) global: f64,
}

/// The settings for making batches of targets.
#[derive(Clone, Debug)]
pub(crate) struct Vectoriser {
    pub(crate) schema: Arc<Schema>,
    pub(crate) options: BlockOptions,
    /// By type; none for a type whose features the model does not read.
    pub(crate) transforms: Vec<Option<Transform>>,
    /// The types whose nodes have learnable rows.
    pub(crate) learnable: Vec<LearnableType>,
    /// The model that is trained on the batches; its backward pass needs prepared blocks.
    pub(crate) trained: Option<AnyModel>,
    /// Weight of a target's loss by its class; empty: 1 for all.
    pub(crate) class_weights: Vec<f32>,
    /// How batches of pairs are made; none if targets are nodes.
    pub(crate) links: Option<LinkBatches>,
    /// Kept if batches of pairs share their blocks.
    pub(crate) shared: Option<LastShared>,
}

/// Targets of a batch, with their decoded parts.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    /// The epoch of training; none in evaluation.
    pub(crate) epoch: Option<u64>,
    /// With links, the targets are pairs, in the order of the epoch.
    pub(crate) pieces: Vec<(PartKey, Arc<Part>, Vec<u32>)>,
    /// Whether all targets of the global batch are of one part.
    pub(crate) is_of_one_part: bool,
    /// With links, by piece: the pairs of the part in the global batch.
    pub(crate) of_batch: Vec<Vec<u32>>,
    pub(crate) counts: Counts,
}

impl Vectoriser {
    pub(crate) fn vectorise(&self, chosen: &Chosen) -> Result<Batch, TrainError> {
        let pieces: Vec<Piece<'_>> = chosen
            .pieces
            .iter()
            .map(|(_, part, targets)| Piece {
                shard: &part.shard,
                targets: if self.links.is_some() { &[] } else { targets },
            })
            .collect();
        let shared = self.shared_blocks(chosen, &pieces)?;
        if let (Some(shared), Some(links)) = (shared, &self.links) {
            let targets = links.targets(chosen, self.schema.types.len(), Some(&shared.targets));
            let pairs = targets.into_pairs(&shared.num_dst);
            return Ok(Batch {
                blocks: Arc::clone(&shared.blocks),
                labels: Labels::Pairs(pairs.into()),
                num_targets: num_targets(chosen),
                counts: chosen.counts,
                learnable: Arc::clone(&shared.learnable),
                ranked: shared.ranked.clone(),
            });
        }
        let (layers, pairs) = match &self.links {
            None => (layers_of(&pieces, &self.schema, &self.options), None),
            Some(links) => self.link_layers(links, chosen, &pieces),
        };
        let (blocks, learnable) = self.blocks(chosen, &pieces, layers)?;
        Ok(Batch {
            blocks: Arc::new(blocks),
            labels: pairs.map_or_else(|| labels_of(&pieces), |pairs| Labels::Pairs(pairs.into())),
            num_targets: num_targets(chosen),
            counts: chosen.counts,
            learnable: Arc::new(learnable),
            ranked: None,
        })
    }

    /// Returns the blocks of all targets of the part that the pairs are of; none if batches have
    /// blocks of their own, or the pairs of the global batch are of several parts. All workers then
    /// have blocks of their own, so that the rows that are updated do not depend on their number.
    fn shared_blocks(
        &self,
        chosen: &Chosen,
        pieces: &[Piece<'_>],
    ) -> Result<Option<Arc<SharedBlocks>>, TrainError> {
        let (Some(last), [(key, part, _)]) = (&self.shared, &chosen.pieces[..]) else {
            return Ok(None);
        };
        if !chosen.is_of_one_part {
            return Ok(None);
        }
        let mut last = last.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = last.as_ref().filter(|known| known.key == *key) {
            return Ok(Some(Arc::clone(known)));
        }
        let targets = Arc::new(SharedTargets::of(part, self.schema.types.len()));
        let start = (targets.roots().to_vec(), None);
        let layers = layers_of_roots(pieces, &self.schema, start, &self.options);
        let num_dst = num_dst(&layers);
        let (blocks, learnable) = self.blocks(chosen, pieces, layers)?;
        let links = self.links.as_ref().filter(|links| links.ranks());
        let ranked = links.map(|links| Arc::new(links.ranked(&targets, &num_dst)));
        let made = Arc::new(SharedBlocks {
            key: *key,
            targets,
            blocks: Arc::new(blocks),
            learnable: Arc::new(learnable),
            num_dst,
            ranked,
        });
        *last = Some(Arc::clone(&made));
        Ok(Some(made))
    }

    /// Makes blocks with their input, and lists the nodes that have learnable rows.
    fn blocks(
        &self,
        chosen: &Chosen,
        pieces: &[Piece<'_>],
        Layers { data, nodes }: Layers,
    ) -> Result<(AnyBlocks, Vec<BatchRows>), TrainError> {
        let mut input = Vec::with_capacity(nodes.len());
        for (node_type, (transform, places)) in self.transforms.iter().zip(&nodes).enumerate() {
            let of_features = transform.as_ref().map(|transform| {
                let mut rows = match dense_elsewhere(chosen, node_type, places) {
                    Some(rows) => Input::Dense(rows),
                    None => features_of(pieces, node_type, places),
                };
                transform.apply(&mut rows)?;
                Ok::<_, TrainError>(rows)
            });
            input.push(of_features.transpose()?);
        }
        let learnable = self.learnable.iter().map(|of| {
            let features = input[of.node_type].take().map(convert::dense);
            BatchRows::of(of, pieces, &nodes[of.node_type], features)
        });
        let learnable = learnable.collect();
        let ready = |rows: Option<Input>| -> Result<Option<ReadyInput>, TrainError> {
            let rows = rows.map(|rows| ReadyInput::new(sparse_where_few(rows)));
            Ok(rows.transpose()?)
        };
        let input = input.into_iter().map(ready).collect::<Result<_, _>>()?;
        let blocks = AnyBlocks::new(&self.schema, data, input, self.options.partitioning)?;
        if let Some(model) = &self.trained {
            model.prepare(&blocks);
        }
        Ok((blocks, learnable))
    }
}

/// Returns the number of chosen targets.
fn num_targets(chosen: &Chosen) -> usize {
    let pieces = chosen.pieces.iter();
    pieces.map(|(_, _, targets)| targets.len()).sum()
}

/// Returns the number of dst nodes of the last layer, by type.
fn num_dst(layers: &Layers) -> Vec<usize> {
    let of_last = layers.data.last().map(|last| last.types.iter());
    let of_types = of_last.into_iter().flatten();
    of_types.map(|of_type| of_type.num_dst).collect()
}

impl Vectoriser {
    /// Collects the layers of the ends and negatives of the chosen pairs, and the pairs as rows of
    /// the last layer.
    fn link_layers(
        &self,
        links: &LinkBatches,
        chosen: &Chosen,
        pieces: &[Piece<'_>],
    ) -> (Layers, Option<Pairs>) {
        let mut targets = links.targets(chosen, self.schema.types.len(), None);
        let roots = std::mem::take(&mut targets.roots);
        let left_out = links.left_out(chosen, self.schema.relations.len());
        let start = (roots, left_out.as_ref());
        let layers = layers_of_roots(pieces, &self.schema, start, &self.options);
        let num_dst = num_dst(&layers);
        (layers, Some(targets.into_pairs(&num_dst)))
    }
}

/// Makes dense features sparse if few of them are not zero, as in a bag of words. The linear maps
/// of the first layer then cost time in proportion to the stored values.
///
/// Inference does not do this: an embedding must not depend on the other nodes of its block.
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

/// Gathers the dense features of a batch's nodes of one type, if they are stored beside the shards.
fn dense_elsewhere(chosen: &Chosen, node_type: usize, nodes: &[Place]) -> Option<Dense> {
    let cols = chosen.pieces.first()?.1.dense_dim(node_type)?;
    let mut values = Vec::with_capacity(nodes.len() * cols);
    for place in nodes {
        let (_, part, _) = &chosen.pieces[place.piece as usize];
        values.extend_from_slice(part.dense_row(node_type, place.node));
    }
    Some(Dense {
        rows: nodes.len(),
        cols,
        values,
    })
}

/// Gathers the labels of a batch's targets.
fn labels_of(pieces: &[Piece<'_>]) -> Labels {
    let mut gathered = pieces.first().map_or(schemas::Labels::None, |p| {
        p.shard.target_nodes().labels.empty_like()
    });
    for Piece { shard, targets } in pieces {
        gathered.extend_gather(&shard.target_nodes().labels, targets);
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
    /// Returns the approximate memory of the batch in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.label_bytes() + self.block_bytes()
    }

    /// Returns the approximate memory that the batch adds to that of `last`, whose blocks it may
    /// share.
    pub(crate) fn bytes_after(&self, last: Option<&Self>) -> usize {
        match last {
            Some(last) if Arc::ptr_eq(&last.blocks, &self.blocks) => self.label_bytes(),
            _ => self.bytes(),
        }
    }

    fn label_bytes(&self) -> usize {
        match &self.labels {
            Labels::Classes(classes) => classes.len() * 4,
            Labels::MultiLabel(dense) | Labels::Regression(dense) => dense.values.len() * 4,
            Labels::Pairs(pairs) => pairs.bytes(),
        }
    }

    /// Returns the memory of the blocks and their input.
    fn block_bytes(&self) -> usize {
        let blocks = self.blocks.each().into_iter().map(block_bytes);
        let learnable = self.learnable.iter().map(BatchRows::bytes);
        self.blocks.input_bytes() + blocks.sum::<usize>() + learnable.sum::<usize>()
    }
}

/// Returns the memory of a block in bytes.
fn block_bytes(block: &Block) -> usize {
    let of_edges = BLOCK_EDGE_BYTES + 4 * usize::from(block.edge_weight().is_some());
    let floats = [block.in_weight(), block.self_weight()];
    let of_nodes = BLOCK_NODE_BYTES + 4 * floats.iter().flatten().count();
    let features = block
        .edge_feature()
        .map_or(0, |feature| feature.values.len());
    block.num_edges() * of_edges + block.num_src() * of_nodes + 4 * features
}

#[cfg(test)]
mod tests {
    use gnn::kernel::Partitioning;
    use schemas::{Fanout, GraphShard, HopFanouts, Sampling, Split};

    use super::*;
    use crate::any_model::schema_of;
    use crate::batch::EdgeColumns;
    use crate::random::{Graph, Shape, flatten_meta};
    use crate::source::Source;

    /// Makes one batch of all train targets of a graph, with or without edge weights and features.
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
            schema: Arc::new(schema_of(&graph.meta())),
            options: BlockOptions {
                node_keys: true,
                fanouts: HopFanouts::untyped(&fanouts),
                sampling: Sampling::Uniform,
                pruning: true,
                partitioning: Partitioning::EdgeBalanced,
                edges: vec![EdgeColumns {
                    weight: with_edges,
                    dim: graph.shape.edge_dim.filter(|_| with_edges),
                }],
                source_degrees: true,
            },
            transforms: vec![Some(Transform::None)],
            trained: None,
            learnable: Vec::new(),
            class_weights: Vec::new(),
            links: None,
            shared: None,
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
        let first = plain.blocks.each()[0];
        let (nodes, edges) = (first.num_src(), first.num_edges());
        // Each edge has a weight and seven features, each node two sums of weights.
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

    #[test]
    fn shared_blocks_are_counted_once() {
        let graph = Graph::new(Shape::default(), 5);
        let one = batch(&graph, false);
        let other = Batch {
            blocks: Arc::clone(&one.blocks),
            labels: one.labels.clone(),
            num_targets: one.num_targets,
            counts: one.counts,
            learnable: Arc::clone(&one.learnable),
            ranked: None,
        };
        assert_eq!(other.bytes_after(Some(&one)), 4 * one.num_targets);
        assert_eq!(other.bytes_after(None), one.bytes());
        assert_eq!(batch(&graph, false).bytes_after(Some(&one)), one.bytes());
    }
}
