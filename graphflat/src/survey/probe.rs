//! Writes samples of an output to measure its bytes.

use super::nearby::Nearby;
use super::read::Survey;
use super::spread::spread;
use crate::{FlattenError, FlattenPlan, Parts};
use schemas::{
    Features, FlattenMeta, GraphShard, Labels, Layout, Opened, Output, SchemaError, ShardEdges,
    ShardNodes, write_part,
};
use std::collections::BTreeMap;

/// Number of parts that are probed.
pub(super) const PARTS_PROBED: usize = 3;

/// Approximate number of nodes in a probe: enough for a page of every column.
const PROBE_NODES: usize = 20_000;

/// Returns `rows` rows of features, by repeating the kept rows.
fn features(survey: &Survey, rows: usize) -> Features {
    let mut features = Features::empty(survey.meta.types[0].features);
    let have = match &survey.features {
        Features::None => 1,
        Features::Dense { dim, values } => values.len() / (*dim).max(1),
        Features::Sparse { offset, .. } => offset.len().saturating_sub(1),
    };
    let rows = (0..rows).map(|row| u32::try_from(row % have.max(1)).expect("few rows are kept"));
    features.extend_gather(&survey.features, &rows.collect::<Vec<u32>>());
    features
}

/// Returns `count` weights, by repeating the kept weights; zeros for a graph without edges.
fn weights(survey: &Survey, count: usize) -> Vec<f32> {
    let kept = match &survey.weights[..] {
        [] => &[0.0],
        kept => kept,
    };
    kept.iter().copied().cycle().take(count).collect()
}

/// Returns `rows` missing labels, since labels are a small part of any output.
fn labels(survey: &Survey, rows: usize) -> Labels {
    let mut labels = Labels::empty(survey.meta.types[0].label.as_ref());
    (0..rows).for_each(|_| labels.push_none());
    labels
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

    /// Returns bytes per node and bytes per edge in layout `shards`.
    pub(super) fn shards(&mut self, parts: &Parts<u32>) -> Result<(f64, f64), FlattenError> {
        let (mut nodes, mut edges) = ((0, 0), (0, 0));
        for part in spread(parts, PARTS_PROBED) {
            let (begin, _) = self.prefix(part);
            let shard = self.shard(begin);
            let files = self.write(&shard, Layout::Shards)?;
            let bytes = |table: &str| {
                let of_table = files.iter().filter(|(path, _)| path.starts_with(table));
                of_table.map(|(_, bytes)| *bytes).sum::<u64>()
            };
            nodes = (nodes.0 + bytes("nodes"), nodes.1 + shard.num_nodes());
            edges = (edges.0 + bytes("edges"), edges.1 + shard.num_edges());
        }
        let per = |(total, count): (u64, usize)| total as f64 / count.max(1) as f64;
        Ok((per(nodes), per(edges)))
    }

    /// Returns bytes per node in layout `rows`, including all other columns.
    pub(super) fn rows(&mut self, parts: &Parts<u32>) -> Result<f64, FlattenError> {
        let (mut bytes, mut nodes) = (0.0, 0.0);
        for part in spread(parts, PARTS_PROBED) {
            let (begin, num_nodes) = self.prefix(part);
            let shard = self.shard(begin);
            let files = self.write(&shard, Layout::Rows)?;
            let written = files.iter().map(|(_, size)| *size).sum::<u64>() as f64;
            // Per target, so that every probed part counts the same.
            let targets = begin.len().max(1) as f64;
            bytes += written / targets;
            nodes += num_nodes as f64 / targets;
        }
        Ok(bytes / f64::max(nodes, 1.0))
    }

    /// Returns the first targets whose neighbourhoods fill a probe, and the nodes of these
    /// neighbourhoods.
    fn prefix<'t>(&mut self, targets: &'t [u32]) -> (&'t [u32], usize) {
        let mut nodes = 0;
        let enough = targets.iter().position(|target| {
            nodes += self.nearby.hops(std::slice::from_ref(target)).len();
            nodes >= PROBE_NODES
        });
        let count = enough.map_or(targets.len(), |last| last + 1);
        (&targets[..count], nodes)
    }

    /// Returns the union of some targets' neighbourhoods, with features of the kept rows.
    fn shard(&mut self, targets: &[u32]) -> GraphShard {
        let (survey, ids) = (self.survey, &self.survey.ids);
        let mut hops = self.nearby.hops(targets);
        hops.sort_by(|&(a, a_hop), &(b, b_hop)| {
            let by_id = || ids.cmp(a as usize, ids, b as usize);
            a_hop.cmp(&b_hop).then_with(by_id)
        });
        let nodes: Vec<u32> = hops.iter().map(|&(node, _)| node).collect();
        let places: BTreeMap<u32, u32> = nodes.iter().copied().zip(0..).collect();
        let (mut in_offset, mut in_src) = (vec![0], Vec::new());
        for &(node, hop) in &hops {
            let in_edges = self.nearby.in_edges(node, hop);
            in_src.extend(in_edges.iter().map(|src| places[src]));
            in_offset.push(u32::try_from(in_src.len()).expect("a probe is small"));
        }
        let (num_nodes, num_edges) = (nodes.len(), in_src.len());
        let meta = &survey.meta.relations[0];
        let nodes = ShardNodes {
            ids: ids.gather(&nodes),
            hop: hops.iter().map(|&(_, hop)| hop).collect(),
            features: features(survey, num_nodes),
            labels: labels(survey, num_nodes),
            split: hops
                .iter()
                .map(|&(node, _)| survey.split[node as usize])
                .collect(),
            is_target: hops.iter().map(|&(_, hop)| hop == 0).collect(),
        };
        let edges = ShardEdges {
            from: 0,
            to: 0,
            in_degree: hops
                .iter()
                .map(|&(node, _)| survey.in_degree[node as usize])
                .collect(),
            in_weight: meta.edge_weight.then(|| weights(survey, num_nodes)),
            self_loops: meta.self_loops.then(|| vec![0; num_nodes]),
            self_weight: meta.self_weight().then(|| vec![0.0; num_nodes]),
            in_offset,
            in_src,
            edge_weight: meta.edge_weight.then(|| weights(survey, num_edges)),
            edge_feature: meta.edge_feature_dim.map(|dim| vec![0.5; dim * num_edges]),
        };
        GraphShard {
            target_type: 0,
            nodes: vec![nodes],
            edges: vec![edges],
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
        let at = std::env::temp_dir();
        let dir = tempfile::TempDir::with_prefix_in("graphflat-check-", &at).map_err(|source| {
            SchemaError::Io {
                action: "create a directory in",
                path: at,
                source,
            }
        })?;
        match Output::open(dir.path(), "flatten", "check", true)? {
            Opened::Open(output) => {
                let part = write_part(&output, 0, shard, &[], &self.survey.meta, &meta)?;
                Ok(part
                    .files
                    .into_iter()
                    .map(|file| (file.path, file.bytes))
                    .collect())
            }
            Opened::Done(_) => unreachable!("a fresh output is open"),
        }
    }
}
