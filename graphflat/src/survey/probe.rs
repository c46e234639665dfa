//! Writes samples of an output to measure its bytes.

use super::nearby::Nearby;
use super::pairs::of_targets;
use super::read::Survey;
use super::relation::RelationSurvey;
use super::spread::spread;
use crate::probe_files::probe_files;
use crate::{FlattenError, FlattenPlan, Parts};
use schemas::{
    Features, FlattenMeta, GraphShard, Labels, Layout, ShardEdges, ShardNodes, Split, TypeMeta,
    write_part,
};
use std::collections::BTreeMap;

/// Number of parts that are probed.
pub(super) const PARTS_PROBED: usize = 3;

/// One of this many targets of a probe makes a small probe.
const FEW_TARGETS: usize = 8;

/// Approximate number of nodes in a probe: enough for a page of every column.
const PROBE_NODES: usize = 20_000;

/// Returns `rows` rows of a type's features, by repeating the kept rows.
fn features(survey: &Survey, type_idx: usize, rows: usize) -> Features {
    let kept = &survey.types()[type_idx].features;
    let mut features = Features::empty(survey.meta.types[type_idx].features);
    let have = match kept {
        Features::None => 1,
        Features::Dense { dim, values } => values.len() / (*dim).max(1),
        Features::Sparse { offset, .. } => offset.len().saturating_sub(1),
    };
    let rows = (0..rows).map(|row| u32::try_from(row % have.max(1)).expect("few rows are kept"));
    features.extend_gather(kept, &rows.collect::<Vec<u32>>());
    features
}

/// Returns `count` weights of a relation, by repeating the kept weights; zeros without edges.
fn weights(relation: &RelationSurvey, count: usize) -> Vec<f32> {
    let kept = match &relation.weights[..] {
        [] => &[0.0],
        kept => kept,
    };
    kept.iter().copied().cycle().take(count).collect()
}

/// Returns `rows` missing labels, since labels are a small part of any output.
fn labels(meta: &TypeMeta, rows: usize) -> Labels {
    let mut labels = Labels::empty(meta.label.as_ref());
    (0..rows).for_each(|_| labels.push_none());
    labels
}

/// The bytes of a part's rows: those of its files without rows, and those of each row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct PartBytes {
    fixed: f64,
    each: f64,
}

impl PartBytes {
    /// Draws a line through measured pairs of rows and bytes: the pairs at even positions have few
    /// rows, the others many.
    fn of(measured: &[(usize, u64)]) -> PartBytes {
        let mean = |first: usize| {
            let pairs = measured.iter().skip(first).step_by(2);
            let count = pairs.clone().count().max(1) as f64;
            let sums = pairs.fold((0.0, 0.0), |(rows, bytes), &(more_rows, more_bytes)| {
                (rows + more_rows as f64, bytes + more_bytes as f64)
            });
            (sums.0 / count, sums.1 / count)
        };
        let ((few, of_few), (many, of_many)) = (mean(0), mean(1));
        let each = (of_many - of_few) / (many - few);
        if few < many && (0.0..=of_few / few.max(1.0)).contains(&each) {
            let fixed = of_few - each * few;
            return PartBytes { fixed, each };
        }
        PartBytes {
            fixed: 0.0,
            each: of_many / many.max(1.0),
        }
    }

    /// Returns the bytes of `rows` rows.
    pub(super) fn of_rows(self, rows: f64) -> f64 {
        self.fixed + self.each * rows
    }
}

/// Writes samples of an output to measure their bytes.
pub(super) struct Probe<'a> {
    nearby: Nearby<'a>,
    survey: &'a Survey,
    plan: &'a FlattenPlan,
}

impl<'a> Probe<'a> {
    /// Makes a probe of the neighbourhoods that `nearby` walks.
    pub(super) fn new(nearby: Nearby<'a>, survey: &'a Survey, plan: &'a FlattenPlan) -> Self {
        Self {
            nearby,
            survey,
            plan,
        }
    }

    /// Returns the bytes of a part's nodes and of its edges in layout `shards`.
    pub(super) fn shards(
        &mut self,
        parts: &Parts<u32>,
    ) -> Result<(PartBytes, PartBytes), FlattenError> {
        let (mut nodes, mut edges) = (Vec::new(), Vec::new());
        // The first two targets are the ends of the first pair.
        let least = self.least_targets();
        for part in spread(parts, PARTS_PROBED) {
            let num_targets = self.union_prefix(part);
            for begin in [&part[..part.len().min(least)], &part[..num_targets]] {
                let shard = self.shard(begin);
                let files = self.write(&shard, Layout::Shards)?;
                let bytes = |table: &str| {
                    let of_table = files.iter().filter(|(path, _)| path.starts_with(table));
                    of_table.map(|(_, bytes)| *bytes).sum::<u64>()
                };
                nodes.push((shard.num_nodes(), bytes("nodes")));
                edges.push((shard.num_edges(), bytes("edges")));
            }
        }
        Ok((PartBytes::of(&nodes), PartBytes::of(&edges)))
    }

    /// Returns the least number of targets of a part.
    fn least_targets(&self) -> usize {
        1 + usize::from(self.survey.meta.pairs.is_some())
    }

    /// Returns how many first targets' neighbourhoods fill a probe together.
    fn union_prefix(&mut self, targets: &[u32]) -> usize {
        let mut count = targets.len().min(self.least_targets());
        while count < targets.len() && self.nearby.size(&targets[..count]).nodes < PROBE_NODES {
            count = (2 * count).min(targets.len());
        }
        count
    }

    /// Returns the bytes of a part in layout `rows` by its nodes, with all other columns.
    pub(super) fn rows(&mut self, parts: &Parts<u32>) -> Result<PartBytes, FlattenError> {
        let mut measured = Vec::new();
        let least = self.least_targets();
        for part in spread(parts, PARTS_PROBED) {
            let (begin, num_nodes) = self.prefix(part);
            let few = &begin[..begin
                .len()
                .div_ceil(FEW_TARGETS)
                .max(least)
                .min(begin.len())];
            let num_few = few
                .iter()
                .map(|target| self.nearby.size(std::slice::from_ref(target)).nodes)
                .sum();
            for (targets, nodes) in [(few, num_few), (begin, num_nodes)] {
                let shard = self.shard(targets);
                let files = self.write(&shard, Layout::Rows)?;
                measured.push((nodes, files.iter().map(|(_, size)| *size).sum()));
            }
        }
        Ok(PartBytes::of(&measured))
    }

    /// Returns the first targets whose neighbourhoods fill a probe, and the nodes of these
    /// neighbourhoods.
    fn prefix<'t>(&mut self, targets: &'t [u32]) -> (&'t [u32], usize) {
        let (least, mut nodes) = (self.least_targets(), 0);
        let enough = targets.iter().enumerate().position(|(at, target)| {
            nodes += self.nearby.hops(std::slice::from_ref(target)).len();
            at + 1 >= least && nodes >= PROBE_NODES
        });
        let count = enough.map_or(targets.len(), |last| last + 1);
        (&targets[..count], nodes)
    }

    /// Returns the union of some targets' neighbourhoods, with features of the kept rows.
    fn shard(&mut self, targets: &[u32]) -> GraphShard {
        let survey = self.survey;
        let mut members: Vec<Vec<(u32, u8)>> = vec![Vec::new(); survey.types().len()];
        for (node, hop) in self.nearby.hops(targets) {
            members[survey.types.at(node).0].push((node, hop));
        }
        for (of_type, own) in survey.types().iter().zip(&mut members) {
            let (ids, row) = (&of_type.ids, |node: u32| (node - of_type.first) as usize);
            own.sort_by(|&(a, a_hop), &(b, b_hop)| {
                a_hop.cmp(&b_hop).then_with(|| ids.cmp(row(a), ids, row(b)))
            });
        }
        let nodes = members.iter().enumerate();
        let nodes = nodes.map(|(type_idx, own)| self.nodes(type_idx, own));
        let nodes: Vec<ShardNodes> = nodes.collect();
        let relations = 0..survey.relations.len();
        GraphShard {
            target_type: survey.meta.target_type,
            pairs: survey
                .meta
                .pairs
                .as_ref()
                .map(|meta| of_targets(meta, &nodes)),
            nodes,
            edges: relations
                .map(|relation| self.edges(relation, &members))
                .collect(),
        }
    }

    fn nodes(&self, type_idx: usize, members: &[(u32, u8)]) -> ShardNodes {
        let survey = self.survey;
        let (of_type, meta) = (&survey.types()[type_idx], &survey.meta.types[type_idx]);
        let is_target_type = survey.meta.may_be_targets(type_idx);
        let rows: Vec<u32> = members
            .iter()
            .map(|&(node, _)| node - of_type.first)
            .collect();
        let split = |&row: &u32| match is_target_type {
            true => of_type.split[row as usize],
            false => Split::None,
        };
        ShardNodes {
            ids: of_type.ids.gather(&rows),
            hop: members.iter().map(|&(_, hop)| hop).collect(),
            features: features(survey, type_idx, rows.len()),
            labels: labels(meta, rows.len()),
            split: rows.iter().map(split).collect(),
            is_target: members
                .iter()
                .map(|&(_, hop)| is_target_type && hop == 0)
                .collect(),
        }
    }

    fn edges(&self, relation: usize, members: &[Vec<(u32, u8)>]) -> ShardEdges {
        let (of, meta) = (
            &self.survey.relations[relation],
            &self.survey.meta.relations[relation],
        );
        let srcs = members[meta.from].iter().map(|&(node, _)| node);
        let places: BTreeMap<u32, u32> = srcs.zip(0..).collect();
        let dsts = &members[meta.to];
        let (mut in_offset, mut in_src) = (vec![0], Vec::new());
        for &(node, hop) in dsts {
            let in_edges = self.nearby.in_edges(relation, node, hop);
            in_src.extend(in_edges.iter().map(|src| places[src]));
            in_offset.push(u32::try_from(in_src.len()).expect("a probe is small"));
        }
        let (num_nodes, num_edges) = (dsts.len(), in_src.len());
        ShardEdges {
            from: meta.from,
            to: meta.to,
            in_degree: dsts
                .iter()
                .map(|&(node, _)| of.in_degree[of.row(node)])
                .collect(),
            in_weight: meta.edge_weight.then(|| weights(of, num_nodes)),
            self_loops: meta.self_loops.then(|| vec![0; num_nodes]),
            self_weight: meta.self_weight().then(|| vec![0.0; num_nodes]),
            in_offset,
            in_src,
            edge_weight: meta.edge_weight.then(|| weights(of, num_edges)),
            edge_feature: meta.edge_feature_dim.map(|dim| vec![0.5; dim * num_edges]),
        }
    }

    /// Writes a shard to a temporary directory; returns path and bytes of each file.
    fn write(
        &self,
        shard: &GraphShard,
        layout: Layout,
    ) -> Result<Vec<(String, u64)>, FlattenError> {
        let meta = FlattenMeta {
            hops: self.plan.sample().fanouts().len(),
            fanouts: self.plan.sample().fanouts().to_vec(),
            sampling: self.plan.sample().sampling(),
            seed: 0,
            samples_per_target: 1,
            layout,
        };
        let files = probe_files(&std::env::temp_dir(), |output| {
            let part = write_part(output, 0, shard, &[], &self.survey.meta, &meta)?;
            Ok(part)
        })?;
        Ok(files.into_iter().map(|of| (of.path, of.bytes)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_a_part_are_those_of_its_files_and_of_its_rows() {
        // Files of 500 bytes, and 3 bytes a row.
        let line = PartBytes::of(&[(10, 530), (1000, 3500), (30, 590), (3000, 9500)]);
        assert_eq!(line.of_rows(100.0), 800.0);
        // As many rows with one target as with all.
        let same = PartBytes::of(&[(10, 530), (10, 530)]);
        assert_eq!(same.of_rows(20.0), 1060.0);
        assert_eq!(PartBytes::of(&[(0, 100), (0, 100)]).of_rows(0.0), 0.0);
    }
}
