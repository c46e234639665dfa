//! Predicts the output of flatten, from walks over the graph and a probe of its files.

use super::nearby::{Nearby, gather};
use super::pairs::PairSurvey;
use super::probe::{PARTS_PROBED, Probe};
use super::read::Survey;
use super::spread::spread;
use crate::{FlattenError, FlattenPlan, Parts, Targets};
use schemas::{GraphPlan, IdListPlan, Layout, Split};

/// Number of targets whose neighbourhoods are counted one by one.
const TARGETS_COUNTED: usize = 1 << 14;

/// Number of pairs whose neighbourhoods are counted one by one.
const PAIRS_COUNTED: usize = 1 << 12;

/// Most edges walked for all of these targets; with large neighbourhoods fewer targets are counted.
const EDGES_WALKED: usize = 20_000_000;

/// Number of parts whose unions are counted.
const PARTS_COUNTED: usize = 16;

/// The predicted output of flatten.
#[derive(Clone, Debug, Default)]
pub struct Prediction {
    /// Targets, or pairs, times samples.
    pub rows: u64,
    /// Number of parts.
    pub parts: u64,
    /// Mean nodes of a target's neighbourhood.
    pub nodes_per_target: f64,
    /// Mean edges of a target's neighbourhood.
    pub edges_per_target: f64,
    /// Mean nodes of a part's union.
    pub nodes_per_shard: f64,
    /// Mean edges of a part's union.
    pub edges_per_shard: f64,
    /// The union of a batch.
    pub batch: BatchUnion,
    /// The union of a batch that has all targets of its part, the largest of those counted.
    pub part_batch: BatchUnion,
    /// Bytes of layout `rows`.
    pub bytes_rows: f64,
    /// Bytes of layout `shards`.
    pub bytes_shards: f64,
}

/// The union of the neighbourhoods of a batch's targets.
#[derive(Clone, Debug, Default)]
pub struct BatchUnion {
    /// Nodes within each distance of the targets, 0 first.
    pub nodes: Vec<f64>,
    /// Edges.
    pub edges: f64,
}

impl BatchUnion {
    /// Counts the union of all targets of the largest part of those that are counted.
    fn of_largest(nearby: &mut Nearby<'_>, parts: &Parts<u32>) -> Self {
        let parts = spread(parts, PARTS_COUNTED).into_iter();
        let largest = parts.max_by_key(|part| part.len()).unwrap_or_default();
        Self::count(nearby, largest, usize::MAX)
    }

    /// Counts the union of all targets, or of `most` targets that are spread evenly over them.
    fn count(nearby: &mut Nearby<'_>, targets: &[u32], most: usize) -> Self {
        let count = targets.len().min(most);
        let chosen: Vec<u32> = (0..count)
            .map(|at| targets[at * targets.len() / count])
            .collect();
        let nodes = nearby.hops(&chosen);
        let within = |hop| nodes.partition_point(|&(_, distance)| distance <= hop) as f64;
        let edges = nodes
            .iter()
            .map(|&(node, hop)| nearby.num_in_edges(node, hop));
        Self {
            nodes: (0..=nearby.num_hops()).map(within).collect(),
            edges: edges.sum::<usize>() as f64,
        }
    }
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

/// The targets of an input in parts.
struct Cut {
    /// All targets; with pairs, those of the parts.
    targets: Vec<u32>,
    /// The parts of layout `rows`, or some of them, and how many there are.
    rows: (Parts<u32>, usize),
    /// The same of layout `shards`.
    shards: (Parts<u32>, usize),
}

impl Cut {
    fn of(
        survey: &Survey,
        plan: &FlattenPlan,
        pairs: Option<&PairSurvey>,
    ) -> Result<Self, FlattenError> {
        let Some(pairs) = pairs else {
            let targets = targets(survey, plan)?;
            let cut = |layout| {
                let features = survey.meta.types.iter().map(|of_type| of_type.features);
                let parts = plan.sample().cut(targets.clone(), layout, features);
                let num_parts = parts.len();
                (parts, num_parts)
            };
            let (rows, shards) = (cut(Layout::Rows), cut(Layout::Shards));
            return Ok(Self {
                targets,
                rows,
                shards,
            });
        };
        let rows = pairs.parts(plan, Layout::Rows, survey)?;
        let shards = pairs.parts(plan, Layout::Shards, survey)?;
        let mut targets: Vec<u32> = shards.0.iter().flatten().copied().collect();
        targets.sort_unstable();
        targets.dedup();
        Ok(Self {
            targets,
            rows,
            shards,
        })
    }
}

/// Predicts the output of flattening, and the size of a batch of `batch_targets` targets. With pairs,
/// these are pairs: a batch has both ends of each, and the random negatives of a part.
///
/// Walks start from targets and from parts that are spread evenly over all of them, since targets
/// with the fewest in-edges come last. `pairs` are those of the input; their edges are counted as
/// those of the graph. A few parts are written to a temporary directory to measure
/// how well they compress.
///
/// # Errors
///
/// If a table cannot be read, or the probe cannot be written.
pub fn predict(
    survey: &Survey,
    graph: &GraphPlan,
    plan: &FlattenPlan,
    batch_targets: usize,
    pairs: Option<&PairSurvey>,
) -> Result<Prediction, FlattenError> {
    let Cut {
        targets,
        rows: (rows, num_rows_parts),
        shards: (shards, num_shards),
    } = &Cut::of(survey, plan, pairs)?;
    let (chosen, num_parts) = match plan.layout() {
        Layout::Rows => (rows, num_rows_parts),
        Layout::Shards => (shards, num_shards),
    };
    let counted = spread_targets(targets);
    let gathered;
    let kept = match &survey.kept {
        Some(kept) => kept,
        None => {
            let mut from = [spread(shards, PARTS_COUNTED), spread(chosen, PARTS_COUNTED)].concat();
            from.extend(
                [shards, rows]
                    .into_iter()
                    .flat_map(|parts| spread(parts, PARTS_PROBED)),
            );
            from.push(&counted);
            let mut from = from.concat();
            let ends = pairs.iter().flat_map(|pairs| pairs.spread(PAIRS_COUNTED));
            from.extend(ends.flatten());
            from.sort_unstable();
            from.dedup();
            gathered = gather(survey, graph, plan.sample().fanouts(), &from)?;
            &gathered
        }
    };
    let mut nearby = Nearby::new(survey, plan.sample().fanouts(), kept);
    let (nodes_per_target, edges_per_target) = means(&mut nearby, &singles(&counted));
    let row_nodes = match pairs {
        Some(pairs) => {
            let ends: Vec<&[u32]> = pairs.spread(PAIRS_COUNTED).map(|ends| &ends[..]).collect();
            let (nodes_per_pair, _) = means(&mut nearby, &ends);
            let num_random = pairs.num_random(plan, survey) * num_rows_parts;
            nodes_per_pair * pairs.counts.total() as f64 + nodes_per_target * num_random as f64
        }
        None => nodes_per_target * targets.len() as f64,
    } / *num_rows_parts as f64;
    let unions = Unions::count(&mut nearby, shards);
    let own_unions = match plan.layout() {
        Layout::Shards => unions,
        Layout::Rows => Unions::count(&mut nearby, chosen),
    };
    let batch_targets = pairs.map_or(batch_targets, |pairs| {
        batch_targets.saturating_mul(2) + pairs.num_random(plan, survey)
    });
    let batch = BatchUnion::count(&mut nearby, &counted, batch_targets);
    let part_batch = BatchUnion::of_largest(&mut nearby, chosen);
    let mut probe = Probe::new(nearby, survey, plan);
    let (of_nodes, of_edges) = probe.shards(shards)?;
    let of_rows = probe.rows(rows)?;
    let samples = f64::from(plan.samples());
    let shard_bytes = of_nodes.of_rows(unions.mean_nodes) + of_edges.of_rows(unions.mean_edges);
    Ok(Prediction {
        rows: pairs.map_or(targets.len() as u64, |pairs| pairs.counts.total())
            * u64::from(plan.samples()),
        parts: *num_parts as u64 * u64::from(plan.samples()),
        nodes_per_target,
        edges_per_target,
        nodes_per_shard: own_unions.mean_nodes,
        edges_per_shard: own_unions.mean_edges,
        batch,
        part_batch,
        bytes_rows: of_rows.of_rows(row_nodes) * *num_rows_parts as f64 * samples,
        bytes_shards: shard_bytes * *num_shards as f64 * samples,
    })
}

/// Returns all targets, or some of them, in an order whose every prefix is spread evenly.
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

fn singles(targets: &[u32]) -> Vec<&[u32]> {
    targets.iter().map(std::slice::from_ref).collect()
}

/// Returns the mean nodes and edges of the neighbourhoods of some targets, or pairs of targets.
fn means(nearby: &mut Nearby<'_>, roots: &[&[u32]]) -> (f64, f64) {
    let (mut counted, mut nodes, mut edges) = (0, 0, 0);
    for of_one in roots {
        if edges > EDGES_WALKED {
            break;
        }
        let size = nearby.size(of_one);
        counted += 1;
        nodes += size.nodes;
        edges += size.edges;
    }
    let mean = |sum: usize| sum as f64 / f64::from(counted.max(1));
    (mean(nodes), mean(edges))
}

/// Returns the targets in the order in which they are cut: by the first relation with in-edges, then
/// by smallest source, then by id.
fn targets(survey: &Survey, plan: &FlattenPlan) -> Result<Vec<u32>, FlattenError> {
    let target = survey.target();
    let of_target = |node: &u32| survey.types.at(*node).0 == survey.meta.target_type;
    let mut in_order: Vec<u32> = survey.order.iter().copied().filter(of_target).collect();
    in_order.sort_by_cached_key(|&node| {
        let sources = survey.relations_to(node).map(|relation| {
            let of = &survey.relations[relation];
            (relation, of.least_src[of.row(node)])
        });
        let mut sources = sources.filter(|(_, src)| *src != u32::MAX);
        sources.next().unwrap_or((usize::MAX, u32::MAX))
    });
    let row = |node: &u32| (node - target.first) as usize;
    let split = |node: &u32| target.split.get(row(node)).copied().unwrap_or_default();
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
        Targets::Listed(path) => {
            let (column, id_type) = (&survey.id_column, survey.meta.target().id_type);
            let list = IdListPlan::open("flatten.targets", path, column, id_type)?;
            let ids = list.read()?;
            let mut listed = vec![false; target.ids.len()];
            for at in 0..ids.len() {
                let node = target
                    .place(&ids, at)
                    .ok_or_else(|| list.unknown(&ids, at))?;
                listed[row(&node)] = true;
            }
            in_order
                .into_iter()
                .filter(|node| listed[row(node)])
                .collect()
        }
    };
    if targets.is_empty() {
        let reason = plan.sample().targets().why_none().to_owned();
        return Err(FlattenError::NoTargets { reason });
    }
    Ok(targets)
}
