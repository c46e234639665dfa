//! The pairs of random walks, from walks over the surveyed edges.

use super::pairs::{Found, Known};
use super::read::Survey;
use crate::FlattenError;
use hashbrown::HashMap;
use schemas::{GraphPlan, PairsPlan, Split, WalksSpec};

/// Walks that are followed; with more, they stand for all of them.
const WALKS_FOLLOWED: u64 = 1 << 18;

/// The in-edges of all nodes that walks go over.
struct Steps {
    /// By node, its range in `sources`; then the end.
    offset: Vec<usize>,
    /// Sources by relation, then in the order of ids.
    sources: Vec<u32>,
}

impl Steps {
    fn read(
        graph: &GraphPlan,
        survey: &Survey,
        leaves: impl Fn(usize, u32, u32) -> bool,
    ) -> Result<Self, FlattenError> {
        let mut rank = vec![0; survey.num_nodes()];
        for (at, &node) in (0u32..).zip(&survey.order) {
            rank[node as usize] = at;
        }
        let mut edges: Vec<(u32, u32, u32)> = Vec::new();
        survey.each_edge(graph, |relation, edge| {
            if !leaves(relation, edge.src, edge.dst) {
                let relation = u32::try_from(relation).expect("relations fit 32 bits");
                edges.push((edge.dst, relation, rank[edge.src as usize]));
            }
        })?;
        edges.sort_unstable();
        let mut offset = Vec::with_capacity(survey.num_nodes() + 1);
        let mut start = 0;
        for node in 0..survey.num_nodes() {
            offset.push(start);
            let own = edges[start..].iter();
            start += own.take_while(|(dst, ..)| *dst as usize == node).count();
        }
        offset.push(start);
        let sources = edges.into_iter();
        let sources = sources.map(|(.., at)| survey.order[at as usize]).collect();
        Ok(Self { offset, sources })
    }

    /// Returns the source of one of a node's in-edges.
    fn draw(&self, node: u32, (key, step): (u64, u32)) -> Option<u32> {
        let own = self.offset[node as usize]..self.offset[node as usize + 1];
        let own = &self.sources[own];
        own.get(WalksSpec::step(key, step, own.len())).copied()
    }
}

/// Returns the pairs of walks as pairs of the survey. With many walks, the pairs of some of them, and
/// how many pairs all walks have for each of these.
pub(super) fn pairs_of_walks(
    (graph, survey): (&GraphPlan, &Survey),
    (plan, walks): (&PairsPlan, WalksSpec),
    known: &HashMap<[u32; 2], Known>,
) -> Result<(Vec<Found>, f64), FlattenError> {
    let is_left_out = |ends: &[u32; 2]| {
        let found = known.get(ends);
        found.is_some_and(|of| plan.leaves(of.split))
    };
    let steps = Steps::read(graph, survey, |relation, src, dst| {
        let is_of_pairs = plan.relations().contains(&relation);
        is_of_pairs && (is_left_out(&[src, dst]) || is_left_out(&[dst, src]))
    })?;
    let (starts, ends) = (&survey.types()[plan.from()], &survey.types()[plan.to()]);
    let num_walks = starts.ids.len() as u64 * u64::from(walks.per_node);
    let num_followed = num_walks.min(WALKS_FOLLOWED);
    let mut found = Vec::new();
    for at in 0..num_followed {
        let number = u128::from(at) * u128::from(num_walks) / u128::from(num_followed);
        let number = u64::try_from(number).expect("below the number of walks");
        let row = usize::try_from(number / u64::from(walks.per_node)).expect("it is a row");
        let start_hash = starts.ids.hash(row);
        let walk = number % u64::from(walks.per_node);
        let walk = u32::try_from(walk).expect("below the walks of a node");
        let key = walks.key(start_hash, walk);
        let start = starts.first + u32::try_from(row).expect("rows fit 32 bits");
        let mut node = start;
        for step in 0..walks.length {
            let Some(next) = steps.draw(node, (key, step)) else {
                break;
            };
            node = next;
            let (of_type, visited) = survey.types.at(node);
            if of_type == plan.to() && node != start {
                let hash = plan.hash(start_hash, ends.ids.hash(visited));
                found.push((Split::Train, hash, [start, node]));
            }
        }
    }
    found.sort_unstable();
    found.dedup();
    if found.is_empty() {
        return Err(plan.no_visits().into());
    }
    Ok((found, num_walks as f64 / num_followed as f64))
}
