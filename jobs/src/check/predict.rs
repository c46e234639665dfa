//! Predicts what flattening will write, from walks all over the graph and a probe of its files.

use std::collections::BTreeMap;

use graphflat::{FlattenError, FlattenPlan, Parts, Targets};
use schemas::{
    Features, FlattenMeta, GraphShard, Labels, Layout, Opened, Output, Split, write_part,
};

use super::nearby::{Kept, Nearby};
use super::survey::Survey;
use crate::error::JobError;
use crate::job::Job;

/// Targets whose neighbourhoods are counted one by one.
const TARGETS_COUNTED: usize = 1 << 14;

/// Edges walked at most for all of them; fewer are counted where they are large.
const EDGES_WALKED: usize = 20_000_000;

/// Parts whose unions are counted.
const PARTS_COUNTED: usize = 16;

/// Parts of which a probe is written.
const PARTS_PROBED: usize = 3;

/// Nodes written in a probe, about: enough for a page of every column.
const PROBE_NODES: usize = 20_000;

/// What flattening is expected to write.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prediction {
    /// Targets, times samples.
    pub(crate) rows: u64,
    /// Part files of a table.
    pub(crate) parts: u64,
    /// Mean nodes of a target's neighbourhood.
    pub(crate) nodes_per_target: f64,
    /// Mean edges of a target's neighbourhood.
    pub(crate) edges_per_target: f64,
    /// Mean nodes of a part's union.
    pub(crate) nodes_per_shard: f64,
    /// Mean edges of a part's union.
    pub(crate) edges_per_shard: f64,
    /// Bytes of layout `rows`.
    pub(crate) bytes_rows: f64,
    /// Bytes of layout `shards`.
    pub(crate) bytes_shards: f64,
}

/// All parts, or some spread evenly over them.
fn spread(parts: &Parts<u32>, most: usize) -> Vec<&[u32]> {
    let count = parts.len().min(most);
    (0..count)
        .map(|at| parts.get((2 * at + 1) * parts.len() / (2 * count)))
        .collect()
}

/// The unions of a layout's parts.
#[derive(Clone, Copy, Default)]
struct Unions {
    mean_nodes: f64,
    mean_edges: f64,
}

impl Unions {
    fn count(nearby: &mut Nearby<'_>, parts: &Parts<u32>) -> Unions {
        let parts = spread(parts, PARTS_COUNTED);
        let mut unions = Unions::default();
        for part in &parts {
            let size = nearby.size(part);
            unions.mean_nodes += size.nodes as f64 / parts.len() as f64;
            unions.mean_edges += size.edges as f64 / parts.len() as f64;
        }
        unions
    }
}

/// Predicts the output of flattening.
///
/// Neighbourhoods are walked from targets and from parts spread evenly over all of them, since
/// those with the fewest in-edges stand last; a few of them are written to a temporary directory,
/// to see how well they compress.
///
/// # Errors
///
/// If a table cannot be read, or the probe cannot be written.
pub(crate) fn predict(
    job: &Job,
    survey: &Survey,
    plan: &FlattenPlan,
) -> Result<Prediction, JobError> {
    let targets = targets(job, survey, plan)?;
    let features = survey.meta.features;
    let cut = |layout| plan.sample().cut(targets.clone(), layout, features);
    let (rows, shards) = (&cut(Layout::Rows), &cut(Layout::Shards));
    let chosen = match plan.layout() {
        Layout::Rows => rows,
        Layout::Shards => shards,
    };
    let counted = spread_targets(&targets);
    let gathered;
    let kept = match &survey.kept {
        Some(kept) => kept,
        None => {
            let mut from = [spread(shards, PARTS_COUNTED), spread(chosen, PARTS_COUNTED)].concat();
            from.extend(spread(rows, PARTS_PROBED));
            from.push(&counted);
            let mut from = from.concat();
            from.sort_unstable();
            from.dedup();
            gathered = Kept::gather(job, survey, plan.sample().fanouts(), &from)?;
            &gathered
        }
    };
    let mut nearby = Nearby::new(survey, plan.sample().fanouts(), kept);
    let (nodes, edges) = means(&mut nearby, &counted);
    let unions = Unions::count(&mut nearby, shards);
    let own_unions = match plan.layout() {
        Layout::Shards => unions,
        Layout::Rows => Unions::count(&mut nearby, chosen),
    };
    let mut probe = Probe {
        nearby,
        survey,
        plan,
        job,
    };
    let (node_bytes, edge_bytes) = probe.shards(shards)?;
    let row_node_bytes = probe.rows(rows)?;
    let samples = f64::from(plan.samples());
    let shard_bytes = node_bytes * unions.mean_nodes + edge_bytes * unions.mean_edges;
    Ok(Prediction {
        rows: targets.len() as u64 * u64::from(plan.samples()),
        parts: chosen.len() as u64 * u64::from(plan.samples()),
        nodes_per_target: nodes,
        edges_per_target: edges,
        nodes_per_shard: own_unions.mean_nodes,
        edges_per_shard: own_unions.mean_edges,
        bytes_rows: row_node_bytes * nodes * targets.len() as f64 * samples,
        bytes_shards: shard_bytes * shards.len() as f64 * samples,
    })
}

/// All targets, or some of them in an order of which every beginning is spread evenly.
fn spread_targets(targets: &[u32]) -> Vec<u32> {
    const GOLDEN: u64 = 0x9e37_79b9; // 2^32 / the golden ratio
    if targets.len() <= TARGETS_COUNTED {
        return targets.to_vec();
    }
    let place = |at: u64| {
        let share = (at * GOLDEN) & u64::from(u32::MAX);
        usize::try_from((share * targets.len() as u64) >> 32).expect("below the number of targets")
    };
    (0..TARGETS_COUNTED as u64)
        .map(|at| targets[place(at)])
        .collect()
}

/// Mean nodes and edges of some targets' neighbourhoods.
fn means(nearby: &mut Nearby<'_>, targets: &[u32]) -> (f64, f64) {
    let (mut counted, mut nodes, mut edges) = (0, 0, 0);
    for target in targets {
        if edges > EDGES_WALKED {
            break;
        }
        let size = nearby.size(std::slice::from_ref(target));
        counted += 1;
        nodes += size.nodes;
        edges += size.edges;
    }
    let mean = |sum: usize| sum as f64 / f64::from(counted.max(1));
    (mean(nodes), mean(edges))
}

/// The targets in the order in which they are cut into parts: by first source, then by id.
fn targets(job: &Job, survey: &Survey, plan: &FlattenPlan) -> Result<Vec<u32>, JobError> {
    let mut in_order = survey.order.clone();
    in_order.sort_by_key(|&node| survey.least_src[node as usize]);
    let split = |node: &u32| {
        survey
            .split
            .get(*node as usize)
            .copied()
            .unwrap_or_default()
    };
    let targets: Vec<u32> = match plan.sample().targets() {
        Targets::All => in_order,
        Targets::Labelled => in_order
            .into_iter()
            .filter(|node| split(node) != Split::None)
            .collect(),
        Targets::Train => in_order
            .into_iter()
            .filter(|node| split(node) == Split::Train)
            .collect(),
        Targets::Listed(_) => {
            let list = job.target_list()?.expect("the job names a list");
            let ids = list.read()?;
            let mut listed = vec![false; survey.num_nodes()];
            for at in 0..ids.len() {
                let node = survey
                    .place(&ids, at)
                    .ok_or_else(|| list.unknown(&ids, at))?;
                listed[node as usize] = true;
            }
            in_order
                .into_iter()
                .filter(|node| listed[*node as usize])
                .collect()
        }
    };
    if targets.is_empty() {
        let reason = plan.sample().targets().why_none().to_owned();
        return Err(FlattenError::NoTargets { reason }.into());
    }
    Ok(targets)
}

/// The kept rows of features, over and over.
fn features(survey: &Survey, rows: usize) -> Features {
    let mut features = Features::empty(survey.meta.features);
    let have = match &survey.features {
        Features::None => 1,
        Features::Dense { dim, values } => values.len() / (*dim).max(1),
        Features::Sparse { offset, .. } => offset.len().saturating_sub(1),
    };
    let rows = (0..rows).map(|row| u32::try_from(row % have.max(1)).expect("few rows are kept"));
    features.extend_gather(&survey.features, &rows.collect::<Vec<u32>>());
    features
}

/// The kept weights, over and over.
fn weights(survey: &Survey, count: usize) -> Vec<f32> {
    survey.weights.iter().copied().cycle().take(count).collect()
}

/// As many missing labels: labels are a small part of any output.
fn labels(survey: &Survey, rows: usize) -> Labels {
    let mut labels = Labels::empty(survey.meta.label.as_ref());
    (0..rows).for_each(|_| labels.push_none());
    labels
}

/// Writes samples of an output to see how many bytes they take.
struct Probe<'a> {
    nearby: Nearby<'a>,
    survey: &'a Survey,
    plan: &'a FlattenPlan,
    job: &'a Job,
}

impl Probe<'_> {
    /// Bytes a node and bytes an edge in layout `shards`.
    fn shards(&mut self, parts: &Parts<u32>) -> Result<(f64, f64), JobError> {
        let (mut nodes, mut edges) = ((0, 0), (0, 0));
        for part in spread(parts, PARTS_PROBED) {
            let (begin, _) = self.prefix(part);
            let shard = self.shard(begin);
            let files = self.write(&shard, Layout::Shards)?;
            let bytes = |table: &str| {
                let of_table = files.iter().filter(|(path, _)| path.starts_with(table));
                of_table.map(|(_, bytes)| *bytes).sum::<u64>()
            };
            nodes = (nodes.0 + bytes("nodes"), nodes.1 + shard.ids.len());
            edges = (edges.0 + bytes("edges"), edges.1 + shard.in_src.len());
        }
        let per = |(total, count): (u64, usize)| total as f64 / count.max(1) as f64;
        Ok((per(nodes), per(edges)))
    }

    /// Bytes a node in layout `rows`, everything else included.
    fn rows(&mut self, parts: &Parts<u32>) -> Result<f64, JobError> {
        let (mut bytes, mut nodes) = (0.0, 0.0);
        for part in spread(parts, PARTS_PROBED) {
            let (begin, num_nodes) = self.prefix(part);
            let shard = self.shard(begin);
            let files = self.write(&shard, Layout::Rows)?;
            let written = files.iter().map(|(_, size)| *size).sum::<u64>() as f64;
            // As if it were of as many targets as the others.
            let targets = begin.len().max(1) as f64;
            bytes += written / targets;
            nodes += num_nodes as f64 / targets;
        }
        Ok(bytes / f64::max(nodes, 1.0))
    }

    /// The first of some targets, whose neighbourhoods make about a probe, and their nodes.
    fn prefix<'t>(&mut self, targets: &'t [u32]) -> (&'t [u32], usize) {
        let mut nodes = 0;
        let enough = targets.iter().position(|target| {
            nodes += self.nearby.hops(std::slice::from_ref(target)).len();
            nodes >= PROBE_NODES
        });
        let count = enough.map_or(targets.len(), |last| last + 1);
        (&targets[..count], nodes)
    }

    /// The union of some targets' neighbourhoods, with the features of other nodes.
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
        let dim = survey.meta.edge_feature_dim;
        GraphShard {
            ids: ids.gather(&nodes),
            hop: hops.iter().map(|&(_, hop)| hop).collect(),
            in_degree: nodes
                .iter()
                .map(|node| survey.in_degree[*node as usize])
                .collect(),
            in_weight: survey.meta.edge_weight.then(|| weights(survey, num_nodes)),
            self_loops: survey.meta.self_loops.then(|| vec![0; num_nodes]),
            self_weight: survey.meta.self_weight().then(|| vec![0.0; num_nodes]),
            features: features(survey, num_nodes),
            labels: labels(survey, num_nodes),
            split: nodes
                .iter()
                .map(|node| survey.split[*node as usize])
                .collect(),
            is_target: hops.iter().map(|&(_, hop)| hop == 0).collect(),
            in_offset,
            in_src,
            edge_weight: survey.meta.edge_weight.then(|| weights(survey, num_edges)),
            edge_feature: dim.map(|dim| vec![0.5; dim * num_edges]),
        }
    }

    /// Writes a shard to a temporary directory; returns path and bytes of each file.
    fn write(&self, shard: &GraphShard, layout: Layout) -> Result<Vec<(String, u64)>, JobError> {
        let meta = FlattenMeta {
            hops: self.plan.sample().fanouts().len(),
            fanouts: self.plan.sample().fanouts().to_vec(),
            sampling: self.plan.sample().sampling(),
            seed: self.job.seed,
            samples_per_target: 1,
            layout,
        };
        let at = std::env::temp_dir();
        let dir = tempfile::TempDir::with_prefix_in("graphflat-check-", &at).map_err(|source| {
            JobError::Io {
                action: "create a directory in",
                path: at,
                source,
            }
        })?;
        match Output::open(dir.path(), "flatten", "check", true)? {
            Opened::Open(output) => {
                let part = write_part(&output, 0, shard, None, &self.survey.meta, &meta)?;
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
