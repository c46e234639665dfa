//! Predicts what flattening will write, from one part's neighbourhoods and a probe of its files.

use std::collections::BTreeMap;

use graphflat::{FlattenError, FlattenPlan, Targets};
use schemas::{
    Fanout, Features, FlattenMeta, GraphShard, Labels, Layout, Opened, Output, Split, hash_int,
    keep_at_hop, write_part,
};

use super::survey::{FEATURE_ROWS, Survey};
use crate::error::JobError;
use crate::job::Job;

/// Targets whose neighbourhoods are counted one by one.
const TARGETS_COUNTED: usize = 1024;

/// Nodes written in a probe, about: enough for a page of every column.
const PROBE_NODES: usize = 30_000;

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
    /// Nodes of a shard.
    pub(crate) nodes_per_shard: f64,
    /// Bytes of layout `rows`.
    pub(crate) bytes_rows: f64,
    /// Bytes of layout `shards`.
    pub(crate) bytes_shards: f64,
}

/// The kept in-edges of the nodes near some targets.
struct Nearby<'a> {
    survey: &'a Survey,
    fanouts: &'a [Fanout],
    /// Sources by destination, in rank order.
    in_edges: BTreeMap<u32, Vec<u32>>,
}

/// Some targets' neighbourhoods, as their distance from the nearest target.
type Hops = BTreeMap<u32, u8>;

/// Predicts the output of flattening.
///
/// The neighbourhoods of one part's targets are gathered in one pass over the edge table a hop, and
/// a few of them are written to a temporary directory, to see how well they compress.
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
    let per_part = plan
        .targets_per_part(targets.len(), survey.meta.features)
        .min(targets.len())
        .max(1);
    let parts = targets.len().div_ceil(per_part);
    let first = parts / 2 * per_part; // a part from the middle, whole unless there is only one
    let part = &targets[first.min(targets.len() - per_part.min(targets.len()))..];
    let part = &part[..per_part.min(part.len())];
    let nearby = Nearby::gather(job, survey, plan, part)?;

    let stride = part.len().div_ceil(TARGETS_COUNTED).max(1);
    let counted: Vec<(usize, usize)> = part
        .iter()
        .step_by(stride)
        .map(|&target| nearby.size(&nearby.hops(&[target])))
        .collect();
    let mean = |count: &dyn Fn(&(usize, usize)) -> usize| {
        counted.iter().map(count).sum::<usize>() as f64 / counted.len().max(1) as f64
    };
    let (union_nodes, union_edges) = nearby.size(&nearby.hops(part));
    let samples = f64::from(plan.samples());
    let (nodes, edges) = (mean(&|size| size.0), mean(&|size| size.1));

    let probe = Probe {
        nearby: &nearby,
        plan,
        job,
    };
    let shards = probe.shards(part)?;
    let rows = probe.rows(part)?;
    let in_parts = targets.len() as f64 / per_part as f64 * samples;
    Ok(Prediction {
        rows: targets.len() as u64 * u64::from(plan.samples()),
        parts: parts as u64 * u64::from(plan.samples()),
        nodes_per_target: nodes,
        edges_per_target: edges,
        nodes_per_shard: union_nodes as f64,
        bytes_rows: rows * nodes * targets.len() as f64 * samples,
        bytes_shards: (shards.0 * union_nodes as f64 + shards.1 * union_edges as f64) * in_parts,
    })
}

/// The targets in the order in which they are cut into parts: by first source, then by id.
fn targets(job: &Job, survey: &Survey, plan: &FlattenPlan) -> Result<Vec<u32>, JobError> {
    let mut in_order = survey.ids.sort_permutation();
    let mut place = vec![0; in_order.len()];
    for (at, &node) in (0u32..).zip(&in_order) {
        place[node as usize] = at;
    }
    let mut least_src = vec![u32::MAX; in_order.len()];
    survey.each_edge(&job.edges, |edge| {
        let least = &mut least_src[edge.dst as usize];
        *least = place[edge.src as usize].min(*least);
    })?;
    in_order.sort_by_key(|&node| least_src[node as usize]);
    let split = |node: &u32| {
        survey
            .split
            .get(*node as usize)
            .copied()
            .unwrap_or_default()
    };
    let targets: Vec<u32> = match plan.targets() {
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
        let reason = plan.targets().why_none().to_owned();
        return Err(FlattenError::NoTargets { reason }.into());
    }
    Ok(targets)
}

impl<'a> Nearby<'a> {
    /// Gathers the kept in-edges of every node within `hops - 1` of a target.
    fn gather(
        job: &Job,
        survey: &'a Survey,
        plan: &'a FlattenPlan,
        targets: &[u32],
    ) -> Result<Nearby<'a>, JobError> {
        let fanouts = plan.fanouts();
        let mut in_edges: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        let mut frontier = vec![false; survey.num_nodes()];
        let mut reached = vec![false; survey.num_nodes()];
        for &target in targets {
            frontier[target as usize] = true;
            reached[target as usize] = true;
        }
        for hop in 0..fanouts.len() {
            let limit = keep_at_hop(fanouts, hop);
            let mut drawn: BTreeMap<u32, Vec<(u64, u32)>> = BTreeMap::new();
            survey.each_edge(&job.edges, |edge| {
                if frontier[edge.dst as usize] {
                    let draws = drawn.entry(edge.dst).or_default();
                    draws.push((hash_int(edge.row ^ (u64::from(edge.src) << 32)), edge.src));
                    if draws.len() >= limit.saturating_mul(2) {
                        draws.sort_unstable();
                        draws.truncate(limit);
                    }
                }
            })?;
            frontier.fill(false);
            for (dst, mut draws) in drawn {
                draws.sort_unstable();
                draws.truncate(limit);
                for &(_, src) in &draws {
                    if !std::mem::replace(&mut reached[src as usize], true) {
                        frontier[src as usize] = true;
                    }
                }
                in_edges.insert(dst, draws.into_iter().map(|(_, src)| src).collect());
            }
        }
        Ok(Nearby {
            survey,
            fanouts,
            in_edges,
        })
    }

    /// A node's in-edges at a distance from its target.
    fn in_edges(&self, node: u32, hop: u8) -> &[u32] {
        let all = self.in_edges.get(&node).map_or(&[][..], Vec::as_slice);
        &all[..all.len().min(keep_at_hop(self.fanouts, usize::from(hop)))]
    }

    /// Walks from some targets to the last hop.
    fn hops(&self, targets: &[u32]) -> Hops {
        let mut hops: Hops = targets.iter().map(|&target| (target, 0)).collect();
        let mut frontier = targets.to_vec();
        for hop in 0..self.fanouts.len() {
            let hop = u8::try_from(hop).expect("hops fit in 8 bits");
            let mut next = Vec::new();
            for node in frontier {
                for &src in self.in_edges(node, hop) {
                    hops.entry(src).or_insert_with(|| {
                        next.push(src);
                        hop + 1
                    });
                }
            }
            frontier = next;
        }
        hops
    }

    /// Nodes and edges of a union.
    fn size(&self, hops: &Hops) -> (usize, usize) {
        let edges = hops
            .iter()
            .map(|(&node, &hop)| self.in_edges(node, hop).len())
            .sum();
        (hops.len(), edges)
    }

    /// The longest prefix of some targets whose neighbourhoods make about a probe.
    fn prefix<'t>(&self, targets: &'t [u32]) -> &'t [u32] {
        let mut nodes = 0;
        let enough = targets.iter().position(|&target| {
            nodes += self.hops(&[target]).len();
            nodes >= PROBE_NODES
        });
        &targets[..enough.map_or(targets.len(), |last| last + 1)]
    }

    /// The union of some targets' neighbourhoods, with the features of other nodes.
    fn shard(&self, targets: &[u32]) -> GraphShard {
        let survey = self.survey;
        let hops = self.hops(targets);
        let mut nodes: Vec<u32> = hops.keys().copied().collect();
        let ids = &survey.ids;
        nodes.sort_by(|&a, &b| {
            let by_id = || ids.cmp(a as usize, ids, b as usize);
            hops[&a].cmp(&hops[&b]).then_with(by_id)
        });
        let places: BTreeMap<u32, u32> = nodes.iter().copied().zip(0..).collect();
        let (mut in_offset, mut in_src) = (vec![0], Vec::new());
        for node in &nodes {
            in_src.extend(
                self.in_edges(*node, hops[node])
                    .iter()
                    .map(|src| places[src]),
            );
            in_offset.push(u32::try_from(in_src.len()).expect("a probe is small"));
        }
        let weights = |count: usize, present: bool| present.then(|| vec![1.0; count]);
        let (num_nodes, num_edges) = (nodes.len(), in_src.len());
        GraphShard {
            ids: ids.gather(&nodes),
            hop: nodes.iter().map(|node| hops[node]).collect(),
            in_degree: nodes
                .iter()
                .map(|node| survey.in_degree[*node as usize])
                .collect(),
            in_weight: weights(num_nodes, survey.meta.edge_weight),
            self_loops: survey.meta.self_loops.then(|| vec![0; num_nodes]),
            self_weight: weights(num_nodes, survey.meta.self_weight()),
            features: features(survey, num_nodes),
            labels: labels(survey, num_nodes),
            split: nodes
                .iter()
                .map(|node| survey.split[*node as usize])
                .collect(),
            is_target: nodes.iter().map(|node| hops[node] == 0).collect(),
            in_offset,
            in_src,
            edge_weight: weights(num_edges, survey.meta.edge_weight),
            edge_feature: survey
                .meta
                .edge_feature_dim
                .map(|dim| vec![0.5; dim * num_edges]),
        }
    }
}

/// The kept rows of features, over and over.
fn features(survey: &Survey, rows: usize) -> Features {
    let mut features = Features::empty(survey.meta.features);
    let have = survey
        .num_nodes()
        .div_ceil(survey.num_nodes().div_ceil(FEATURE_ROWS).max(1));
    let rows = (0..rows).map(|row| u32::try_from(row % have.max(1)).expect("few rows are kept"));
    features.extend_gather(&survey.features, &rows.collect::<Vec<u32>>());
    features
}

/// As many missing labels: labels are a small part of any output.
fn labels(survey: &Survey, rows: usize) -> Labels {
    let mut labels = Labels::empty(survey.meta.label.as_ref());
    (0..rows).for_each(|_| labels.push_none());
    labels
}

/// Writes samples of an output to see how many bytes they take.
struct Probe<'a> {
    nearby: &'a Nearby<'a>,
    plan: &'a FlattenPlan,
    job: &'a Job,
}

impl Probe<'_> {
    /// Bytes a node and bytes an edge in layout `shards`.
    fn shards(&self, part: &[u32]) -> Result<(f64, f64), JobError> {
        let shard = self.nearby.shard(self.nearby.prefix(part));
        let files = self.write(&shard, Layout::Shards)?;
        let bytes = |table: &str| {
            let of_table = files.iter().filter(|(path, _)| path.starts_with(table));
            of_table.map(|(_, bytes)| *bytes).sum::<u64>() as f64
        };
        let per = |total: f64, count: usize| total / count.max(1) as f64;
        Ok((
            per(bytes("nodes"), shard.ids.len()),
            per(bytes("edges"), shard.in_src.len()),
        ))
    }

    /// Bytes a node in layout `rows`, everything else included.
    fn rows(&self, part: &[u32]) -> Result<f64, JobError> {
        let targets = self.nearby.prefix(part);
        let nodes: usize = targets
            .iter()
            .map(|&target| self.nearby.hops(&[target]).len())
            .sum();
        let files = self.write(&self.nearby.shard(targets), Layout::Rows)?;
        Ok(files.iter().map(|(_, bytes)| *bytes).sum::<u64>() as f64 / nodes.max(1) as f64)
    }

    /// Writes a shard to a temporary directory; returns path and bytes of each file.
    fn write(&self, shard: &GraphShard, layout: Layout) -> Result<Vec<(String, u64)>, JobError> {
        let meta = FlattenMeta {
            hops: self.plan.fanouts().len(),
            fanouts: self.plan.fanouts().to_vec(),
            sampling: self.plan.sampling(),
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
                let part = write_part(&output, 0, shard, &self.nearby.survey.meta, &meta)?;
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
