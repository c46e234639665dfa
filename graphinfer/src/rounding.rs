//! Measures how far embeddings from rows in 16 bits are from embeddings in f32.
//!
//! A sample of nodes is computed again in f32, from the raw features of all nodes that its layers
//! read. The sample is small, so this costs little beside the rounds.

use crate::InferError;
use crate::compare::{Difference, Outcome};
use crate::layer::{LayerInput, Rounds};
use crate::locate::narrow;
use crate::predict::labels;
use gnn::kernel::mix;
use gnn::{Block, BlockData, Dense, Input, SharedRows};
use schemas::{FeatureMeta, Labels, Row};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Nodes of a sample, at most.
const SAMPLE: u64 = 64;

/// Rows in f32 that are read for a sample, at most, counted in numbers: 32 MiB.
const NUMBERS_MAX: usize = 1 << 23;

/// In-edges that are read for a sample, at most.
const EDGES_MAX: usize = 1 << 20;

/// A node may read the limits divided by this number: as many as there are nodes in a sample.
const NODES_SHARE: usize = 64;

/// How much some nodes may read.
pub(crate) struct Limits {
    rows: usize,
    edges: usize,
}

impl Limits {
    /// Returns the limits of a whole sample divided by `share`; `width` is that of the widest rows.
    pub(crate) fn new(width: usize, share: usize) -> Self {
        Self {
            rows: NUMBERS_MAX / width.max(1) / share,
            edges: EDGES_MAX / share,
        }
    }

    pub(crate) fn allow(&self, rows: usize, edges: usize) -> bool {
        rows <= self.rows && edges <= self.edges
    }
}

/// Draws a sample among `num_nodes` nodes, by hashes of their positions in it, and returns what it
/// reads. Nodes that read more than their share of the limits are left out.
///
/// `find` returns what some nodes read; none if that is more than the limits divided by a number.
pub(crate) fn sample<N>(
    num_nodes: usize,
    find: impl Fn(Vec<usize>, usize) -> Option<N>,
) -> Option<N> {
    let draw = |at: u64| {
        let node = mix(at).checked_rem(num_nodes as u64)?;
        Some(usize::try_from(node).expect("a node number fits"))
    };
    let nodes: BTreeSet<usize> = (1..=SAMPLE).filter_map(draw).collect();
    let fits = |node: &usize| find(vec![*node], NODES_SHARE).is_some();
    let nodes: Vec<usize> = nodes.into_iter().filter(fits).collect();
    match nodes[..] {
        [] => None,
        _ => find(nodes, 1),
    }
}

/// Returns what the rounds have for the nodes of a sample: the rows of the embedding layer, and of
/// the last layer.
///
/// `inner` has the rows of the embedding layer, unless it is the last; `run` computes the last layer.
pub(crate) fn in_16_bits(
    rows: impl Iterator<Item = usize>,
    inner: Option<&SharedRows>,
    run: impl Fn(Range<usize>) -> Result<Dense, InferError>,
) -> Result<[Dense; 2], InferError> {
    let mut found = [Dense::zeros(0, 0), Dense::zeros(0, 0)];
    for row in rows {
        let last = run(row..row + 1)?;
        let embedding = match inner {
            Some(inner) => inner.slice(row..row + 1).to_dense(),
            None => last.clone(),
        };
        for (all, of_node) in found.iter_mut().zip([embedding, last]) {
            all.rows += 1;
            all.cols = of_node.cols;
            all.values.extend(of_node.values);
        }
    }
    Ok(found)
}

/// A sample of nodes with all nodes that its layers read.
struct Neighborhood {
    /// The sample, then the nodes that the layers read, from the last layer to the first.
    rows: Vec<usize>,
    /// By hop from the sample: how many of `rows` are up to this hop.
    ends: Vec<usize>,
}

impl Rounds<'_> {
    /// Compares the rows of the embedding layer, and the predictions, of a sample of nodes with
    /// those in f32. No node is compared in several processes, each of which has some in-edges.
    pub(crate) fn rounding(
        &self,
        input: &LayerInput,
        (inner, predicts): (Option<&SharedRows>, bool),
    ) -> Result<Difference, InferError> {
        if self.graph.cluster().num_processes() > 1 {
            return Ok(Difference::default());
        }
        let find = |nodes, share| self.neighborhood(nodes, share);
        let Some(sample) = sample(self.graph.num_nodes(), find) else {
            return Ok(Difference::default());
        };
        let [embedding, last] = self.in_f32(&sample)?;
        let layer = self.layer_on_processor(input);
        let nodes = sample.rows[..sample.ends[0]].iter().copied();
        let [of_rows, of_last] = in_16_bits(nodes, inner, |row| layer.run(row))?;
        let predicted = |rows: Dense| -> Result<Labels, InferError> {
            if !predicts {
                return Ok(Labels::None);
            }
            let logits = self.trained.model.head().run(rows)?;
            Ok(labels(&logits, self.trained.model.architecture().task))
        };
        let (of_16_bits, of_f32) = (predicted(of_last)?, predicted(last)?);
        Ok(Difference::between(
            &Outcome {
                rows: &embedding.values,
                dim: embedding.cols,
                predicted: &of_f32,
            },
            &Outcome {
                rows: &of_rows.values,
                dim: of_rows.cols,
                predicted: &of_16_bits,
            },
        ))
    }

    /// Finds the nodes that the layers read for some nodes; none if they read more than the limits
    /// divided by `share`.
    fn neighborhood(&self, nodes: Vec<usize>, share: usize) -> Option<Neighborhood> {
        let arch = self.trained.model.architecture();
        // Raw features that are sparse have few numbers, whatever their width.
        let is_sparse = matches!(self.graph.features(), FeatureMeta::Sparse { .. });
        let layers = 1 + usize::from(is_sparse)..=self.slices.len();
        let widths = layers.map(|layer| arch.input_dim(layer));
        let limits = Limits::new(widths.max().unwrap_or(1), share);
        let mut seen: BTreeSet<usize> = nodes.iter().copied().collect();
        let mut ends = vec![nodes.len()];
        let (mut rows, mut num_edges) = (nodes, 0);
        for slice in self.slices.iter().rev() {
            for at in 0..rows.len() {
                let in_edges = self.graph.in_edges(Row::from_index(rows[at]), slice.limit);
                num_edges += in_edges.src.len();
                // A long list is not even read.
                if !limits.allow(0, num_edges) {
                    return None;
                }
                for src in in_edges.src {
                    let src = self.graph.row(*src).index();
                    if seen.insert(src) {
                        rows.push(src);
                    }
                }
                if !limits.allow(rows.len(), num_edges) {
                    return None;
                }
            }
            ends.push(rows.len());
        }
        Some(Neighborhood { rows, ends })
    }

    /// Computes a sample in f32: its rows of the embedding layer and of the last layer.
    fn in_f32(&self, sample: &Neighborhood) -> Result<[Dense; 2], InferError> {
        let model = &self.trained.model;
        let place: BTreeMap<usize, usize> = sample.rows.iter().copied().zip(0..).collect();
        let mut input = self.graph.input_of(&sample.rows, self.trained)?;
        let mut found = None;
        for (slice, ends) in self.slices.iter().zip(sample.ends.windows(2).rev()) {
            let data = self.block_data(sample, &place, (slice.limit, ends[0], ends[1]));
            let block = Block::new(data)?;
            let rows = model.forward_layer(slice.layer, &block, &input)?;
            if slice.layer == self.embedding_layer {
                found = Some(first_rows(&rows, sample.ends[0]));
            }
            input = Input::Dense(rows);
        }
        let Input::Dense(last) = input else {
            unreachable!("a model has a layer, and its output is dense");
        };
        let found = found.expect("the embedding layer is one of those that are computed");
        Ok([found, last])
    }

    /// Returns the block of a layer: the first `num_dst` nodes of a sample read the first
    /// `num_src`.
    fn block_data(
        &self,
        sample: &Neighborhood,
        place: &BTreeMap<usize, usize>,
        (limit, num_dst, num_src): (usize, usize, usize),
    ) -> BlockData {
        let arch = self.trained.model.architecture();
        let columns = self.graph.columns();
        let src_rows = &sample.rows[..num_src];
        let mut data = BlockData {
            num_src,
            num_dst,
            num_active: num_dst,
            in_offset: vec![0],
            in_degree: pick(columns.in_degree(), src_rows),
            in_weight: columns.in_weight().map(|all| pick(all, src_rows)),
            self_loops: columns.self_loops().map(|all| pick(all, src_rows)),
            self_weight: columns.self_weight().map(|all| pick(all, src_rows)),
            node_key: vec![0; num_src],
            sampling: self.graph.sampling(),
            ..BlockData::default()
        };
        let (mut weight, mut feature) = (Vec::new(), Vec::new());
        for &row in &sample.rows[..num_dst] {
            let in_edges = self.graph.in_edges(Row::from_index(row), limit);
            let places = in_edges
                .src
                .iter()
                .map(|&src| place[&self.graph.row(src).index()]);
            data.in_src.extend(places.map(narrow));
            data.in_offset.push(narrow(data.in_src.len()));
            weight.extend(in_edges.weight.into_iter().flatten());
            feature.extend(in_edges.feature.into_iter().flatten());
        }
        data.edge_weight = arch.edge_weight.then_some(weight);
        data.edge_feature = arch.edge_dim.map(|cols| Dense {
            rows: data.in_src.len(),
            cols,
            values: feature,
        });
        data
    }
}

fn first_rows(all: &Dense, rows: usize) -> Dense {
    Dense {
        rows,
        cols: all.cols,
        values: all.values[..rows * all.cols].to_vec(),
    }
}

/// Returns the values of some rows.
pub(crate) fn pick<T: Copy>(all: &[T], rows: &[usize]) -> Vec<T> {
    rows.iter().map(|&row| all[row]).collect()
}
