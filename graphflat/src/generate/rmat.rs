//! R-MAT edges from the nodes of one type to those of the same or another type.

use super::draws::{Draws, Permutation, Purpose, bits_below, stream, unit};

/// Upper ends of R-MAT's first three quadrants in 32 bits: their shares are 0.57, 0.19 and 0.19,
/// and 0.05 is left for the fourth.
const QUADRANT_ENDS: [u64; 3] = [(57 << 32) / 100, (76 << 32) / 100, (95 << 32) / 100];

/// What the edges of a table lead from or to.
#[derive(Clone, Debug)]
pub(super) struct Side {
    /// Number of nodes.
    pub(super) nodes: u64,
    /// Maps a place in R-MAT's matrix, which decides the degree, to an id.
    pub(super) ids: Permutation,
}

/// Hubs of a table of edges: the first places of its dst nodes, which R-MAT gives most edges.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Hubs {
    pub(super) count: u64,
    /// Extra in-edges of each hub.
    pub(super) in_edges: u64,
}

/// The edges of a table.
#[derive(Clone, Debug)]
pub(super) struct Rmat {
    seed: u64,
    src: Side,
    dst: Side,
    /// Whether both ends are nodes of one type: then no edge is a self-loop.
    is_one_type: bool,
    /// Bits of the places of each side.
    bits: [u32; 2],
    edges: u64,
    hubs: Hubs,
    /// Number of extra in-edges of hubs; they have the first edge numbers.
    hub_edges: u64,
    /// Maps a row of the edge table to an edge number; spreads the edges of hubs over the table.
    edge_order: Permutation,
    /// Maps the number of a hub's extra in-edge to the distance from the hub's id to the source.
    hub_sources: Permutation,
}

impl Side {
    /// Describes the nodes of a type, whose seed orders the ids.
    pub(super) fn new(nodes: u64, seed: u64) -> Self {
        Self {
            nodes,
            ids: Permutation::new(nodes, stream(seed, Purpose::Ids)),
        }
    }
}

impl Rmat {
    /// Describes `edges` edges besides those of hubs. The caller checks the numbers.
    pub(super) fn new(
        seed: u64,
        (src, dst, is_one_type): (Side, Side, bool),
        edges: u64,
        hubs: Hubs,
    ) -> Self {
        let key = |purpose| stream(seed, purpose);
        let hub_edges = hubs.count * hubs.in_edges; // both are below 2^32
        let others = src.nodes - u64::from(is_one_type);
        Self {
            seed,
            bits: [&src, &dst].map(|side| bits_below(side.nodes)),
            edges,
            hubs,
            hub_edges,
            edge_order: Permutation::new(edges + hub_edges, key(Purpose::EdgeOrder)),
            hub_sources: Permutation::new(others, key(Purpose::HubSources)),
            src,
            dst,
            is_one_type,
        }
    }

    /// Returns the number of edges, including the in-edges of hubs.
    pub(super) fn num_edges(&self) -> u64 {
        self.edges + self.hub_edges
    }

    /// Returns the ids of the hubs.
    pub(super) fn hub_ids(&self) -> impl Iterator<Item = u64> {
        (0..self.hubs.count).map(|place| self.dst.ids.apply(place))
    }

    /// Returns source and destination of the edge in a row of the edge table, and whether it is an
    /// extra in-edge of a hub.
    pub(super) fn edge(&self, row: u64) -> (u64, u64, bool) {
        let edge = match self.hub_edges {
            0 => row,
            _ => self.edge_order.apply(row),
        };
        match edge.checked_sub(self.hub_edges) {
            Some(drawn) => {
                let (src, dst) = self.drawn_edge(drawn);
                (src, dst, false)
            }
            None => {
                let (src, dst) = self.hub_edge(edge);
                (src, dst, true)
            }
        }
    }

    /// Draws until both ends are nodes, and differ if they are of one type.
    fn drawn_edge(&self, edge: u64) -> (u64, u64) {
        let mut draws = self.draws(Purpose::Edge, edge);
        let [src_bits, dst_bits] = self.bits;
        loop {
            let (mut src, mut dst, mut bits) = (0, 0, 0);
            for level in 0..src_bits.max(dst_bits) {
                bits = if level % 2 == 0 {
                    draws.next()
                } else {
                    bits >> 32
                };
                let draw = bits & u64::from(u32::MAX);
                let [a, b, c] = QUADRANT_ENDS.map(|end| u64::from(draw >= end));
                // The side with fewer nodes is halved fewer times.
                if level < src_bits {
                    src = src << 1 | b;
                }
                if level < dst_bits {
                    // Set in the second and the fourth quadrant.
                    dst = dst << 1 | (a - b + c);
                }
            }
            let is_loop = self.is_one_type && src == dst;
            if !is_loop && src < self.src.nodes && dst < self.dst.nodes {
                return (self.src.ids.apply(src), self.dst.ids.apply(dst));
            }
        }
    }

    /// Returns an extra in-edge of a hub; those of one hub have different sources.
    fn hub_edge(&self, edge: u64) -> (u64, u64) {
        let hub = self.dst.ids.apply(edge / self.hubs.in_edges);
        let distance = self.hub_sources.apply(edge % self.hubs.in_edges);
        let distance = distance + u64::from(self.is_one_type);
        ((hub + distance) % self.src.nodes, hub)
    }

    /// Returns the weight of the edge in a row.
    pub(super) fn weight(&self, row: u64) -> f32 {
        unit(self.draws(Purpose::Weight, row).next())
    }

    /// Starts the draws of a purpose for the edge in a row.
    pub(super) fn draws(&self, purpose: Purpose, row: u64) -> Draws {
        Draws::new(stream(self.seed, purpose), row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rmat(src: u64, dst: u64, is_one_type: bool, edges: u64, hubs: Hubs) -> Rmat {
        let sides = (Side::new(src, 5), Side::new(dst, 5), is_one_type);
        Rmat::new(5, sides, edges, hubs)
    }

    #[test]
    fn edges_join_nodes_of_both_sides_for_any_number_of_them() {
        for (src, dst) in [(1, 1), (1, 100), (100, 1), (3, 129), (300, 7)] {
            let of = rmat(src, dst, false, 500, Hubs::default());
            let edges: Vec<_> = (0..500).map(|row| of.edge(row)).collect();
            assert!(edges.iter().all(|(from, to, _)| *from < src && *to < dst));
            let most = src.max(dst);
            let ends = edges
                .iter()
                .map(|(from, to, _)| if src < dst { to } else { from });
            let reached: std::collections::BTreeSet<&u64> = ends.collect();
            assert!(reached.len() as u64 > most.min(100) / 3, "{src} to {dst}");
        }
        for nodes in [2, 3, 5, 100, 129] {
            let of = rmat(nodes, nodes, true, 500, Hubs::default());
            let mut edges = (0..500).map(|row| of.edge(row));
            assert!(edges.all(|(src, dst, _)| src != dst && src.max(dst) < nodes));
        }
    }

    #[test]
    fn the_sources_of_a_hub_of_another_type_differ() {
        let hubs = Hubs {
            count: 3,
            in_edges: 20,
        };
        let of = rmat(20, 500, false, 100, hubs);
        let mut sources = std::collections::BTreeMap::<u64, Vec<u64>>::new();
        for (src, dst, _) in (0..of.num_edges())
            .map(|row| of.edge(row))
            .filter(|of| of.2)
        {
            sources.entry(dst).or_default().push(src);
        }
        for hub in of.hub_ids() {
            let mut found = sources.remove(&hub).unwrap();
            found.sort_unstable();
            assert!(found.into_iter().eq(0..20));
        }
        assert!(sources.is_empty());
    }

    #[test]
    fn quadrants_are_drawn_as_often_as_the_paper_has_it() {
        const NUM_EDGES: u64 = 100_000;
        for (src_bits, dst_bits) in [(16, 16), (16, 10), (9, 16)] {
            let (src, dst) = (1 << src_bits, 1 << dst_bits);
            let of = rmat(src, dst, src == dst, NUM_EDGES, Hubs::default());
            let places = |side: &Side| -> std::collections::BTreeMap<u64, u64> {
                let places = (0..side.nodes).map(|place| (side.ids.apply(place), place));
                places.collect()
            };
            let (from, to) = (places(&of.src), places(&of.dst));
            let mut counts = [0.0; 4];
            for (src_id, dst_id, _) in (0..NUM_EDGES).map(|row| of.edge(row)) {
                let upper = usize::from(from[&src_id] >= src / 2);
                let right = usize::from(to[&dst_id] >= dst / 2);
                counts[2 * upper + right] += 1.0 / NUM_EDGES as f64;
            }
            // Six standard deviations, and the few self-loops that are redrawn.
            let expected = [0.57, 0.19, 0.19, 0.05];
            for (count, share) in counts.into_iter().zip(expected) {
                assert!((count - share).abs() < 0.01, "{counts:?}");
            }
        }
    }
}
