//! Measures how far embeddings of typed graphs from rows in 16 bits are from those in f32.
//!
//! A sample of nodes of the target type is computed again in f32, as in [`crate::rounding`].

use super::last_round::TypedParts;
use super::layer::TypedRounds;
use crate::InferError;
use crate::compare::{Difference, Outcome};
use crate::hubs::ReadColumns;
use crate::locate::narrow;
use crate::predict::labels;
use crate::rounding::{Limits, in_16_bits, pick, sample};
use gnn::typed::{RelationData, TypeNodes, TypedBlock, TypedBlockData};
use gnn::{Dense, ReadyInput};
use schemas::{FeatureMeta, Labels};
use std::collections::BTreeMap;
use store::InEdges;

/// A sample of nodes of the target type with all nodes that its layers read.
struct Neighborhood {
    /// By type: nodes, by their rows among those of the type, with their places here. The sample comes
    /// first, then the nodes that the layers read, from the last layer to the first.
    rows: Vec<Rows>,
    /// By hop from the sample, then by type: how many of `rows` are up to this hop.
    ends: Vec<Vec<usize>>,
}

/// Rows of a type, each once.
#[derive(Clone, Default)]
struct Rows {
    rows: Vec<usize>,
    places: BTreeMap<usize, usize>,
}

impl Rows {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn add(&mut self, row: usize) {
        let place = self.rows.len();
        if *self.places.entry(row).or_insert(place) == place {
            self.rows.push(row);
        }
    }
}

fn counts_of(rows: &[Rows]) -> Vec<usize> {
    rows.iter().map(Rows::len).collect()
}

impl TypedParts<'_> {
    /// Compares the rows of the embedding layer, and the predictions, of a sample of nodes of the
    /// target type with those in f32. No node is compared if this type is not written, or in several
    /// processes, each of which has some in-edges.
    pub(super) fn rounding(&self) -> Result<Difference, InferError> {
        let (rounds, graph) = (&self.rounds, self.rounds.graph);
        let target = graph.store().meta().graph.target_type;
        let written = self.types.iter().find(|of| of.written.node_type == target);
        let (Some(written), 1) = (written, graph.store().cluster().num_processes()) else {
            return Ok(Difference::default());
        };
        let find = |nodes, share| rounds.neighborhood(target, nodes, share);
        let Some(sample) = sample(graph.num_nodes(target), find) else {
            return Ok(Difference::default());
        };
        let predicts = written.written.columns.prediction.is_some();
        let (embedding, logits) = rounds.in_f32(&sample, predicts)?;
        let last = rounds.limits.len();
        let layer = rounds.layer_on_processor(last, (&self.before, &self.hubs));
        let first = graph.own_rows_of(target).start;
        let rows = sample.rows[target].rows[..sample.ends[0][target]].iter();
        let rows = rows.map(|row| first + row);
        let [of_rows, of_last] =
            in_16_bits(rows, self.inner.as_ref(), |row| layer.run(target, row))?;
        let (model, task) = (&rounds.trained.model, rounds.trained.record.shape.task);
        let predicted = match &logits {
            Some(_) => labels(&model.head().run(of_last)?, task),
            None => Labels::None,
        };
        let in_f32 = logits.map_or(Labels::None, |logits| labels(&logits, task));
        Ok(Difference::between(
            &Outcome {
                rows: &embedding.values,
                dim: embedding.cols,
                predicted: &in_f32,
            },
            &Outcome {
                rows: &of_rows.values,
                dim: of_rows.cols,
                predicted: &predicted,
            },
        ))
    }
}

impl TypedRounds<'_> {
    /// Finds the nodes that the layers read for some nodes of the target type; none if they read more
    /// than the limits of a sample divided by `share`.
    fn neighborhood(&self, target: usize, nodes: Vec<usize>, share: usize) -> Option<Neighborhood> {
        let (arch, schema) = (
            self.trained.model.architecture(),
            self.trained.model.schema(),
        );
        let of_layers = (1..=self.limits.len()).map(|layer| arch.input_dim(layer));
        // Raw features that are sparse have few numbers, whatever their width.
        let meta = self.graph.store().meta().graph.types.iter();
        let of_types = arch
            .types
            .iter()
            .zip(meta)
            .map(|(of, meta)| match meta.features {
                FeatureMeta::Sparse { .. } => of.embedding_dim.unwrap_or(0),
                FeatureMeta::None | FeatureMeta::Dense { .. } => of.features_dim(),
            });
        let allowed = Limits::new(of_layers.chain(of_types).max().unwrap_or(1), share);
        let mut rows = vec![Rows::default(); schema.types.len()];
        nodes.into_iter().for_each(|node| rows[target].add(node));
        let mut ends = vec![counts_of(&rows)];
        let mut num_edges = 0;
        for limits in self.limits.iter().rev() {
            let until_here = counts_of(&rows);
            for (relation, of) in schema.relations.iter().enumerate() {
                for at in 0..until_here[of.to] {
                    let row = rows[of.to].rows[at];
                    let in_edges = self.graph.in_edges(relation, row, limits[relation]);
                    num_edges += in_edges.src.len();
                    // A long list is not even read.
                    if !allowed.allow(0, num_edges) {
                        return None;
                    }
                    for &src in in_edges.src {
                        let row_of_src = self.graph.row_of_type(of.from, src);
                        rows[of.from].add(row_of_src as usize);
                    }
                    let num_rows = rows.iter().map(Rows::len).sum();
                    if !allowed.allow(num_rows, num_edges) {
                        return None;
                    }
                }
            }
            ends.push(counts_of(&rows));
        }
        Some(Neighborhood { rows, ends })
    }

    /// Computes a sample in f32: its rows of the embedding layer, and its logits if `with_logits`.
    fn in_f32(
        &self,
        sample: &Neighborhood,
        with_logits: bool,
    ) -> Result<(Dense, Option<Dense>), InferError> {
        let model = &self.trained.model;
        let num_layers = self.limits.len();
        let mut blocks = Vec::new();
        for layer in 1..=model.architecture().num_layers {
            // A layer after those that are computed is not run, so its block has no in-edges.
            let limits = self.limits.get(layer - 1);
            let hop = num_layers.saturating_sub(layer);
            let src = &sample.ends[hop + usize::from(limits.is_some())];
            let data = self.block_data(sample, limits, (&sample.ends[hop], src));
            blocks.push(TypedBlock::new(model.schema(), data)?);
        }
        let mut input = Vec::new();
        for (node_type, (of, &end)) in sample.rows.iter().zip(&sample.ends[num_layers]).enumerate()
        {
            let read = match &of.rows[..end] {
                [] => None,
                rows => self.graph.input_of(node_type, rows, self.trained)?,
            };
            input.push(read.map(ReadyInput::new).transpose()?);
        }
        Ok(model.forward_embedding((&blocks, &input), self.embedding_layer, with_logits)?)
    }

    /// Returns the block of a layer: of each type, the first `dst_ends` nodes of a sample read the first
    /// `src_ends`; without limits no in-edge is read.
    fn block_data(
        &self,
        sample: &Neighborhood,
        limits: Option<&Vec<usize>>,
        (dst_ends, src_ends): (&[usize], &[usize]),
    ) -> TypedBlockData {
        let counts = dst_ends.iter().zip(src_ends);
        let types = counts.map(|(&num_dst, &num_src)| TypeNodes {
            num_src,
            num_dst,
            num_active: num_dst,
            node_key: vec![0; num_src],
        });
        let relations = self.trained.model.schema().relations.iter().enumerate();
        let relations = relations.map(|(relation, of)| {
            let limit = limits.map_or(0, |limits| limits[relation]);
            let rows = &sample.rows[of.to].rows;
            let of_dst = rows[..dst_ends[of.to]].iter();
            let lists = of_dst.map(|&row| self.graph.in_edges(relation, row, limit));
            let lists: Vec<InEdges<'_>> = lists.collect();
            let place =
                |src| sample.rows[of.from].places[&(self.graph.row_of_type(of.from, src) as usize)];
            let mut in_offset = vec![0];
            let mut in_src = Vec::new();
            for list in &lists {
                in_src.extend(list.src.iter().map(|&src| narrow(place(src))));
                in_offset.push(narrow(in_src.len()));
            }
            let read =
                ReadColumns::of_relation(&self.trained.model.architecture().relations[relation]);
            let weights = || {
                lists
                    .iter()
                    .flat_map(|list| list.weight.into_iter().flatten())
            };
            let features = || {
                lists
                    .iter()
                    .flat_map(|list| list.feature.into_iter().flatten())
            };
            let columns = self.graph.columns(relation);
            let of_nodes = &rows[..src_ends[of.to]];
            RelationData {
                edge_weight: read.edge_weight.then(|| weights().copied().collect()),
                edge_feature: read.edge_dim.map(|cols| Dense {
                    rows: in_src.len(),
                    cols,
                    values: features().copied().collect(),
                }),
                in_offset,
                in_src,
                in_degree: pick(columns.in_degree(), of_nodes),
                in_weight: columns.in_weight().map(|all| pick(all, of_nodes)),
                self_loops: columns.self_loops().map(|all| pick(all, of_nodes)),
                self_weight: columns.self_weight().map(|all| pick(all, of_nodes)),
                sampling: self.graph.sampling(),
            }
        });
        TypedBlockData {
            types: types.collect(),
            relations: relations.collect(),
        }
    }
}
