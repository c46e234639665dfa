//! Placement: the worker that owns a node, and the node's position among that worker's nodes.

use schemas::{LocalIdx, NodeIdx};
use std::ops::Range;
use std::sync::Arc;

/// The largest number of nodes a store holds.
pub const NUM_NODES_MAX: u64 = (u32::MAX - 1) as u64;

/// Maps a [`NodeIdx`] to the worker that owns it and to its position on that worker, and back.
///
/// The nodes of a type have consecutive numbers. Each type is spread over all workers, and a worker
/// holds its nodes of the first type, then those of the second type, and so on.
#[derive(Clone, Debug)]
pub struct Placement {
    num_nodes: usize,
    workers: usize,
    types: Arc<[TypePlacement]>,
    /// `[workers]`, number of nodes of each worker.
    num_local: Arc<[usize]>,
}

/// The part of a [`Placement`] for the nodes of one type. A node's *place* is its position among
/// its owner's nodes of the type.
#[derive(Clone, Debug)]
pub struct TypePlacement {
    /// Number of the type's first node.
    first: u32,
    spread: Spread,
    /// `[workers]`, position of the type's first node among all nodes of a worker.
    local_starts: Arc<[u32]>,
}

/// Spreads some nodes, numbered from 0, over workers.
///
/// Nodes are spread by the permutation `idx * multiplier mod num_nodes`, whose multiplier is near
/// the golden section of `num_nodes`, and cut into one contiguous range a worker. So each worker
/// holds the same number of nodes, and old ids (low, with many edges) and residue classes of ids
/// are spread over all workers.
#[derive(Clone, Debug)]
struct Spread {
    num_nodes: u64,
    by_num_nodes: Divisor,
    workers: u64,
    multiplier: u64,
    inverse: u64,
    /// `[workers + 1]`, first position of each worker.
    starts: Arc<[u64]>,
}

/// Divides many numbers by one divisor: multiplies by its reciprocal, several times faster than the
/// machine's division.
#[derive(Clone, Copy, Debug)]
struct Divisor {
    divisor: u64,
    reciprocal: u64,
}

impl Placement {
    /// Places the nodes of each type, given their numbers, on `workers` workers.
    ///
    /// # Panics
    ///
    /// If `workers` is zero, or there are more than 2^32 - 2 nodes.
    pub fn new(num_nodes: &[u64], workers: usize) -> Self {
        let all: u64 = num_nodes.iter().sum();
        assert!(
            workers > 0 && all <= NUM_NODES_MAX,
            "limits are checked by the caller"
        );
        let mut num_local = vec![0; workers];
        let (mut first, mut types) = (0, Vec::with_capacity(num_nodes.len()));
        for &count in num_nodes {
            let spread = Spread::new(count, workers);
            let starts = num_local.iter().map(|&start| narrow(start));
            let local_starts = starts.collect();
            for (worker, local) in num_local.iter_mut().enumerate() {
                *local += spread.num_local(worker) as u64;
            }
            types.push(TypePlacement {
                first: narrow(first),
                spread,
                local_starts,
            });
            first += count;
        }
        let index = |count: u64| usize::try_from(count).expect("bounded by NUM_NODES_MAX");
        Self {
            num_nodes: index(all),
            workers,
            types: types.into(),
            num_local: num_local.into_iter().map(index).collect(),
        }
    }

    /// Returns the number of nodes of the whole graph.
    pub fn num_nodes(&self) -> usize {
        self.num_nodes
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Returns the number of types.
    pub fn num_types(&self) -> usize {
        self.types.len()
    }

    /// Returns the placement of a type's nodes.
    pub fn of_type(&self, type_idx: usize) -> &TypePlacement {
        &self.types[type_idx]
    }

    /// Returns the type of a node.
    pub fn type_of(&self, node: NodeIdx) -> usize {
        match &*self.types {
            [_] => 0,
            types => types.partition_point(|of| of.first <= node.raw()) - 1,
        }
    }

    /// Returns the numbers of a type's nodes.
    pub fn type_range(&self, type_idx: usize) -> Range<NodeIdx> {
        let first = NodeIdx::from_raw(self.types[type_idx].first);
        first..first.after(narrow(self.types[type_idx].spread.num_nodes))
    }

    /// Returns the worker that owns a node.
    pub fn owner(&self, node: NodeIdx) -> usize {
        self.owner_and_local(node).0
    }

    /// Returns a node's position among the nodes of its owner.
    pub fn local(&self, node: NodeIdx) -> LocalIdx {
        self.owner_and_local(node).1
    }

    /// Returns the worker that owns a node, and the node's position on that worker.
    pub fn owner_and_local(&self, node: NodeIdx) -> (usize, LocalIdx) {
        let of_type = &self.types[self.type_of(node)];
        let (owner, place) = of_type.owner_and_place(node);
        (owner, place.after(of_type.local_starts[owner]))
    }

    /// Returns the node at position `local` of worker `owner`.
    pub fn node(&self, owner: usize, local: LocalIdx) -> NodeIdx {
        let of_type = &self.types[self.type_of_local(owner, local)];
        let place = local.raw() - of_type.local_starts[owner];
        of_type.node(owner, LocalIdx::from_raw(place))
    }

    /// Returns a node's position if one worker held all nodes. On each worker, nodes of a type that
    /// have consecutive positions lie one after the other.
    pub fn position(&self, node: NodeIdx) -> usize {
        let of_type = &self.types[self.type_of(node)];
        let position = of_type
            .spread
            .position(u64::from(node.raw() - of_type.first));
        NodeIdx::from_raw(of_type.first)
            .after(narrow(position))
            .index()
    }

    /// Returns the node at a [`Self::position`].
    pub fn at_position(&self, position: usize) -> NodeIdx {
        // The positions of a type are its numbers, in another order.
        let position = NodeIdx::from_index(position);
        let of_type = &self.types[self.type_of(position)];
        let at = u64::from(position.raw() - of_type.first);
        NodeIdx::from_raw(of_type.first).after(of_type.spread.at_position(at))
    }

    /// Returns the type of the node at position `local` of worker `owner`.
    pub fn type_of_local(&self, owner: usize, local: LocalIdx) -> usize {
        match &*self.types {
            [_] => 0,
            types => types.partition_point(|of| of.local_starts[owner] <= local.raw()) - 1,
        }
    }

    /// Returns the nodes of worker `owner`, by position.
    pub fn locals(&self, owner: usize) -> impl ExactSizeIterator<Item = LocalIdx> + use<> {
        (0..self.num_local[owner]).map(LocalIdx::from_index)
    }

    /// Returns how many nodes worker `owner` holds.
    pub fn num_local(&self, owner: usize) -> usize {
        self.num_local[owner]
    }

    /// Returns the segment of a node if all positions of its type are cut into `segments` equal
    /// segments. It does not depend on the number of workers. `k` times as many segments cut each of
    /// these into `k`.
    pub fn segment(&self, node: NodeIdx, segments: usize) -> usize {
        let of_type = &self.types[self.type_of(node)];
        let at = u64::from(node.raw() - of_type.first);
        of_type.spread.segment(at, segments)
    }

    /// Returns the first and the last worker that own a node of a segment of a type; none if the
    /// segment has no node.
    pub fn segment_owners(
        &self,
        type_idx: usize,
        segment: usize,
        segments: usize,
    ) -> Option<(usize, usize)> {
        self.types[type_idx]
            .spread
            .segment_owners(segment, segments)
    }
}

impl TypePlacement {
    /// Returns the worker that owns a node of the type, and the node's place.
    pub fn owner_and_place(&self, node: NodeIdx) -> (usize, LocalIdx) {
        self.spread
            .owner_and_place(u64::from(node.raw() - self.first))
    }

    /// Returns the node at a place of worker `owner`.
    pub fn node(&self, owner: usize, place: LocalIdx) -> NodeIdx {
        NodeIdx::from_raw(self.first + self.spread.node(owner, place))
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.local_starts.len()
    }

    /// Returns the number of nodes of the type.
    pub fn num_nodes(&self) -> usize {
        usize::try_from(self.spread.num_nodes).expect("bounded by NUM_NODES_MAX")
    }

    /// Returns how many nodes of the type worker `owner` holds.
    pub fn num_local(&self, owner: usize) -> usize {
        self.spread.num_local(owner)
    }

    /// Returns the position of the type's first node among all nodes of worker `owner`.
    pub fn local_start(&self, owner: usize) -> LocalIdx {
        LocalIdx::from_raw(self.local_starts[owner])
    }
}

fn narrow(count: u64) -> u32 {
    u32::try_from(count).expect("bounded by NUM_NODES_MAX")
}

impl Spread {
    fn new(num_nodes: u64, workers: usize) -> Self {
        let multiplier = coprime_near_golden_section(num_nodes);
        let inverse = modular_inverse(multiplier, num_nodes.max(1));
        let workers = workers as u64;
        // The first position that `position * workers / num_nodes` maps to a worker.
        let starts = (0..=workers).map(|owner| (owner * num_nodes).div_ceil(workers));
        Self {
            num_nodes,
            by_num_nodes: Divisor::new(num_nodes.max(1)),
            workers,
            multiplier,
            inverse,
            starts: starts.collect(),
        }
    }

    fn owner_and_place(&self, at: u64) -> (usize, LocalIdx) {
        let position = self.position(at);
        let (owner, _) = self.by_num_nodes.div_rem(position * self.workers);
        let owner = usize::try_from(owner).expect("< workers");
        let place = u32::try_from(position - self.starts[owner]).expect("< num_nodes");
        (owner, LocalIdx::from_raw(place))
    }

    fn node(&self, owner: usize, place: LocalIdx) -> u32 {
        self.at_position(self.starts[owner] + u64::from(place.raw()))
    }

    fn at_position(&self, position: u64) -> u32 {
        let (_, at) = self.by_num_nodes.div_rem(position * self.inverse);
        u32::try_from(at).expect("< num_nodes")
    }

    fn num_local(&self, owner: usize) -> usize {
        let count = self.starts[owner + 1] - self.starts[owner];
        usize::try_from(count).expect("< num_nodes")
    }

    fn segment(&self, at: u64, segments: usize) -> usize {
        let (segment, _) = self
            .by_num_nodes
            .div_rem(self.position(at) * segments as u64);
        usize::try_from(segment).expect("< segments")
    }

    fn segment_owners(&self, segment: usize, segments: usize) -> Option<(usize, usize)> {
        let start = |at: usize| (at as u64 * self.num_nodes).div_ceil(segments as u64);
        let (first, end) = (start(segment), start(segment + 1));
        let owner = |position: u64| {
            let (owner, _) = self.by_num_nodes.div_rem(position * self.workers);
            usize::try_from(owner).expect("< workers")
        };
        (first < end).then(|| (owner(first), owner(end - 1)))
    }

    fn position(&self, at: u64) -> u64 {
        let (_, position) = self.by_num_nodes.div_rem(at * self.multiplier);
        position
    }
}

impl Divisor {
    fn new(divisor: u64) -> Self {
        Self {
            divisor,
            reciprocal: u64::MAX / divisor,
        }
    }

    /// Returns quotient and remainder.
    fn div_rem(self, x: u64) -> (u64, u64) {
        // The reciprocal is too small by at most one, so that `x * reciprocal / 2^64` is too small
        // by at most x / 2^64 < 1, and its floor by at most one.
        let product = u128::from(x) * u128::from(self.reciprocal);
        let quotient = (product >> 64) as u64;
        let remainder = x - quotient * self.divisor;
        if remainder < self.divisor {
            (quotient, remainder)
        } else {
            (quotient + 1, remainder - self.divisor)
        }
    }
}

fn coprime_near_golden_section(n: u64) -> u64 {
    if n < 3 {
        return 1;
    }
    // floor(n * 0.6180339887...), in integers so that every machine gets the same placement.
    let section = n * 618_033_989 / 1_000_000_000;
    let near = (0..n).flat_map(|step| [section.saturating_sub(step), section + step]);
    near.into_iter()
        .find(|&m| m > 0 && m < n && gcd(m, n) == 1)
        .unwrap_or(1)
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Returns `x` with `a * x = 1 (mod n)`, by the extended Euclidean algorithm.
fn modular_inverse(a: u64, n: u64) -> u64 {
    let (mut r0, mut r1) = (i128::from(n), i128::from(a % n));
    let (mut t0, mut t1) = (0i128, 1i128);
    while r1 != 0 {
        let q = r0 / r1;
        (r0, r1) = (r1, r0 - q * r1);
        (t0, t1) = (t1, t0 - q * t1);
    }
    u64::try_from(t0.rem_euclid(i128::from(n))).expect("a residue of a u64")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(num_nodes: u64) -> impl Iterator<Item = NodeIdx> {
        (0..u32::try_from(num_nodes).unwrap()).map(NodeIdx::from_raw)
    }

    #[test]
    fn every_node_has_one_place_and_the_place_leads_back() {
        for num_nodes in [1, 2, 3, 7, 64, 1000, 1 << 12] {
            for workers in [1, 2, 3, 8] {
                let placement = Placement::new(&[num_nodes], workers);
                let mut seen = vec![0; workers];
                for node in nodes(num_nodes) {
                    let (owner, local) = (placement.owner(node), placement.local(node));
                    assert!(local.index() < placement.num_local(owner));
                    assert_eq!(placement.node(owner, local), node);
                    seen[owner] += 1;
                }
                let counts: Vec<_> = (0..workers).map(|w| placement.num_local(w)).collect();
                assert_eq!(seen, counts);
            }
        }
    }

    #[test]
    fn each_type_is_spread_as_if_it_were_alone() {
        for counts in [[5, 0, 7], [0, 1, 0], [100, 3, 1000], [1, 1, 1]] {
            for workers in [1, 2, 3, 8] {
                let placement = Placement::new(&counts, workers);
                let mut next = 0;
                let mut seen = vec![0; workers];
                for (type_idx, &count) in counts.iter().enumerate() {
                    let alone = Placement::new(&[count], workers);
                    let range = placement.type_range(type_idx);
                    assert_eq!(range.start.raw(), next);
                    next += u32::try_from(count).unwrap();
                    assert_eq!(range.end.raw(), next);
                    for at in nodes(count) {
                        let node = at.after(range.start.raw());
                        assert_eq!(placement.type_of(node), type_idx);
                        let (owner, local) = placement.owner_and_local(node);
                        let of_type = placement.of_type(type_idx);
                        let (same, place) = of_type.owner_and_place(node);
                        assert_eq!((same, place), alone.owner_and_local(at));
                        assert_eq!(local, of_type.local_start(owner).after(place.raw()));
                        assert_eq!(placement.type_of_local(owner, local), type_idx);
                        assert_eq!(placement.node(owner, local), node);
                        assert_eq!(of_type.node(owner, place), node);
                        assert_eq!(placement.at_position(placement.position(node)), node);
                        let start = placement.position(of_type.node(owner, LocalIdx::from_raw(0)));
                        assert_eq!(placement.position(node), start + place.index());
                        assert_eq!(placement.segment(node, 24), alone.segment(at, 24));
                        seen[owner] += 1;
                    }
                }
                assert_eq!(placement.num_nodes(), next as usize);
                let by_worker: Vec<_> = (0..workers).map(|w| placement.num_local(w)).collect();
                assert_eq!(seen, by_worker);
            }
        }
    }

    #[test]
    fn segments_are_those_of_any_number_of_workers() {
        for num_nodes in [1, 7, 240, 1000] {
            let one = Placement::new(&[num_nodes], 1);
            for workers in [2, 3, 5, 7, 8] {
                let several = Placement::new(&[num_nodes], workers);
                let mut owners = vec![Vec::new(); 24];
                for node in nodes(num_nodes) {
                    let segment = one.segment(node, 24);
                    assert_eq!(several.segment(node, 24), segment);
                    let finer = [2, 5, 16].map(|k| several.segment(node, 24 * k) / k);
                    assert_eq!(finer, [segment; 3]);
                    owners[segment].push(several.owner(node));
                }
                for (segment, of) in owners.iter().enumerate() {
                    let ends = of.iter().min().zip(of.iter().max());
                    let expected = ends.map(|(&first, &last)| (first, last));
                    assert_eq!(several.segment_owners(0, segment, 24), expected);
                }
            }
        }
    }

    #[test]
    fn a_reciprocal_divides_as_the_machine_does() {
        let near = |n: u64| [n.saturating_sub(1), n, n.saturating_add(1)];
        let large = near(NUM_NODES_MAX).map(|n| n * n);
        for divisor in (2..40).chain([1 << 20, 1 << 32]).flat_map(near) {
            let multiples = (0..64).flat_map(|shift| near((u64::MAX / divisor) >> shift));
            let multiples = multiples.flat_map(|m| near(m.saturating_mul(divisor)));
            for x in multiples.chain(large).chain([0, u64::MAX]) {
                let expected = (x / divisor, x % divisor);
                assert_eq!(
                    Divisor::new(divisor).div_rem(x),
                    expected,
                    "{x} / {divisor}"
                );
            }
        }
    }

    #[test]
    fn low_ids_and_even_ids_are_spread_evenly() {
        let placement = Placement::new(&[1 << 20], 4);
        for pick in [|n: u32| n < 1 << 12, |n: u32| n.is_multiple_of(256)] {
            let mut counts = [0u32; 4];
            for node in nodes(1 << 20).filter(|node| pick(node.raw())) {
                counts[placement.owner(node)] += 1;
            }
            assert!(
                counts.iter().all(|&c| (900..=1150).contains(&c)),
                "{counts:?}"
            );
        }
    }

    #[test]
    fn the_largest_graph_does_not_overflow() {
        let placement = Placement::new(&[NUM_NODES_MAX], 7);
        for node in [0, 1, u32::MAX / 2, u32::MAX - 2].map(NodeIdx::from_raw) {
            assert_eq!(
                placement.node(placement.owner(node), placement.local(node)),
                node
            );
        }
    }
}
