//! Seconds for each edge on graphs of several sizes, from the races of one family.

use crate::list::Graph;
use crate::record::{Competitor, Measured, Record, Run};

/// The size of a graph, and the nanoseconds that each of its edges takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Point {
    pub(crate) edges: u64,
    pub(crate) nanoseconds: f64,
}

/// A family of races on graphs of at least two sizes.
#[derive(Clone, Debug)]
pub(crate) struct Growth {
    /// `GROUP.WHAT`.
    pub(crate) family: String,
    /// Our side, from the smallest graph to the largest.
    pub(crate) ours: Vec<Point>,
    /// The fastest peer on each graph.
    pub(crate) best_peer: Vec<Point>,
}

impl Growth {
    /// Returns how many times an edge of the largest graph takes as long as one of M; without a
    /// larger graph than M, as one of the smallest.
    pub(crate) fn factor(points: &[Point]) -> Option<f64> {
        let (last, smaller) = points.split_last()?;
        let mut smaller = smaller.iter();
        let first = smaller.clone().next()?;
        let base = smaller.find(|point| point.edges == Graph::M.size().1);
        Some(last.nanoseconds / base.unwrap_or(first).nanoseconds)
    }
}

/// Graphs that differ in size only.
const SIZES: [&str; 4] = ["S", "M", "L", "XL"];

/// Returns the growth of each family that ran on at least two of the graphs S, M, L and XL.
pub(crate) fn growths(record: &Record) -> Vec<Growth> {
    let mut growths: Vec<Growth> = Vec::new();
    for race in &record.races {
        let Some((family, graph)) = race.name.rsplit_once('.') else {
            continue;
        };
        // These compare our own runs with each other.
        if !SIZES.contains(&graph) || family.starts_with("cores.") || family.starts_with("proc") {
            continue;
        }
        let at = growths.iter().position(|growth| growth.family == family);
        let at = at.unwrap_or_else(|| {
            growths.push(Growth {
                family: family.to_owned(),
                ours: Vec::new(),
                best_peer: Vec::new(),
            });
            growths.len() - 1
        });
        let figure = race.headline();
        growths[at]
            .ours
            .extend(race.ours().and_then(|ours| point(race, ours, figure)));
        let best = race.best_peer(figure).map(|(peer, _)| peer);
        growths[at]
            .best_peer
            .extend(best.and_then(|peer| point(race, peer, figure)));
    }
    for growth in &mut growths {
        growth.ours.sort_by_key(|point| point.edges);
        growth.best_peer.sort_by_key(|point| point.edges);
    }
    growths.retain(|growth| growth.ours.len() > 1);
    growths
}

fn point(race: &Measured, competitor: &Competitor, figure: fn(&Run) -> f64) -> Option<Point> {
    #[expect(
        clippy::cast_precision_loss,
        reason = "graphs have less than 2^52 edges"
    )]
    let edges = race.edges as f64;
    Some(Point {
        edges: race.edges,
        nanoseconds: competitor.median(figure)? * 1e9 / edges,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_that_of_the_graphs_beyond_m() {
        let points = |all: &[(u64, f64)]| -> Vec<Point> {
            let point = |&(edges, nanoseconds)| Point { edges, nanoseconds };
            all.iter().map(point).collect()
        };
        let [s, m, l] = [Graph::S, Graph::M, Graph::L].map(|graph| graph.size().1);
        let all = points(&[(s, 100.0), (m, 50.0), (l, 75.0)]);
        assert_eq!(Growth::factor(&all), Some(1.5));
        assert_eq!(Growth::factor(&all[..2]), Some(0.5));
        assert_eq!(
            Growth::factor(&points(&[(s, 100.0), (l, 75.0)])),
            Some(0.75)
        );
        assert_eq!(Growth::factor(&all[..1]), None);
    }
}
