//! The engine reaches what the twins reach, and draws what a store of the new tables holds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use graphdelta::{Degrees, Numbers, OutEdges, Reach, ReachPlan, reach};
use schemas::{NodeIdx, Sampling};
use store::Store;

use crate::case::{Draw, Shape, Snapshot, build};
use crate::night::NightTables;
use crate::twin::{self, Lists, Node};

/// In-edges of a node, as ids with weights.
type InEdges = Vec<(String, f32)>;

fn draw_plan(num_relations: usize, draw: &mut Draw) -> ReachPlan {
    let mut steps = |count: usize| -> Vec<Vec<usize>> {
        let mut limit = || draw.of(&[1, 2, 3, 5, 0, usize::MAX]);
        let mut step = || (0..num_relations).map(|_| limit()).collect();
        (0..count).map(|_| step()).collect()
    };
    ReachPlan {
        hops: steps(2),
        layers: steps(3),
        degrees: draw.of(&[Degrees::None, Degrees::Own, Degrees::Sources]),
    }
}

fn shown(shape: &Shape, nodes: &BTreeSet<Node>) -> BTreeSet<(usize, String)> {
    let nodes = nodes.iter();
    nodes.map(|&(at, id)| (at, shape.id(at, id))).collect()
}

fn check_reach(
    shape: &Shape,
    numbers: &Numbers,
    found: &Reach,
    expected: &[Vec<BTreeSet<Node>>; 2],
    what: &str,
) {
    let name = |node: &NodeIdx| (numbers.type_of(*node), numbers.display(*node));
    for (own, twin) in [&found.hops, &found.layers].into_iter().zip(expected) {
        assert_eq!(own.len(), twin.len());
        for (step, (nodes, of_twin)) in own.iter().zip(twin).enumerate() {
            let nodes: BTreeSet<_> = nodes.iter().map(name).collect();
            assert_eq!(nodes, shown(shape, of_twin), "{what}, step {step}");
        }
    }
}

/// Compares the changed in-edges with the twin's lists of both snapshots.
fn check_in_edges(
    shape: &Shape,
    numbers: &Numbers,
    found: &Reach,
    (old, new): (&[Lists], &[Lists]),
) {
    let mut expected = BTreeMap::new();
    for (relation, (before, after)) in old.iter().zip(new).enumerate() {
        let nodes: BTreeSet<&Node> = before.keys().chain(after.keys()).collect();
        for &node in nodes {
            let list = |of: &Lists| of.get(&node).cloned().unwrap_or_default();
            if list(before) != list(after) {
                let (edges, in_degree) = list(after);
                let edges = edges.into_iter();
                let edges: InEdges = edges.map(|(src, w)| (shape.id(src.0, src.1), w)).collect();
                let key = (relation, node.0, shape.id(node.0, node.1));
                expected.insert(key, (edges, in_degree));
            }
        }
    }
    let own = found.in_edges.iter().map(|of| {
        let key = (
            of.relation,
            numbers.type_of(of.dst),
            numbers.display(of.dst),
        );
        let edges = of.kept.edges.iter();
        let edges: InEdges = edges.map(|e| (numbers.display(e.src), e.weight)).collect();
        (key, (edges, of.kept.in_degree))
    });
    assert_eq!(own.collect::<BTreeMap<_, _>>(), expected);
}

/// Compares the twin's lists with those of a store.
fn check_store(shape: &Shape, store: &Store, lists: &[Lists]) {
    for (relation, of) in lists.iter().enumerate() {
        let mut found = BTreeMap::new();
        for partition in store.partitions() {
            for local in partition.locals(partition.relation_to(relation)) {
                let id = |node: NodeIdx| {
                    let (owner, at) = store.placement().owner_and_local(node);
                    let (ids, row) = store.partition(owner).id(at);
                    ids.display(row)
                };
                let kept = partition.in_edges(relation, 0, local, usize::MAX);
                let edges = kept.src.iter().zip(kept.weight.unwrap());
                let edges: InEdges = edges.map(|(&src, &weight)| (id(src), weight)).collect();
                let in_degree = u64::from(partition.in_degree(relation, local));
                let (ids, row) = partition.id(local);
                if in_degree > 0 {
                    found.insert(ids.display(row), (edges, in_degree));
                }
            }
        }
        let expected = of.iter().map(|(node, (edges, in_degree))| {
            let edges = edges.iter().map(|(src, w)| (shape.id(src.0, src.1), *w));
            (shape.id(node.0, node.1), (edges.collect(), *in_degree))
        });
        assert_eq!(found, expected.collect::<BTreeMap<_, (InEdges, u64)>>());
    }
}

fn check(shape: &Shape, seed: u64) {
    let mut draw = Draw(seed);
    let dir = tempfile::tempdir().unwrap();
    let before = shape.draw(&mut draw);
    let plan = draw_plan(shape.relations().len(), &mut draw);
    let sampling = draw.of(&[Sampling::Uniform, Sampling::Weighted, Sampling::Top]);
    let (mut after, mut nights): (Snapshot, Vec<_>) = (before.clone(), Vec::new());
    for night in 0..1 + draw.below(3) {
        let tables = NightTables::draw(shape, &after, &mut draw);
        tables.apply(shape, &mut after);
        nights.push(tables.write(shape, &dir.path().join(format!("night-{night}"))));
    }
    let graph = shape.write(&before, dir.path());
    let keep = plan.keep();
    let settings = (sampling, &keep[..]);
    let lists = [&before, &after].map(|of| twin::lists(shape, of, settings));
    let expected = twin::reach((&before, &after), (&lists[0], &lists[1]), &plan);
    let new = dir.path().join("new");
    std::fs::create_dir(&new).unwrap();
    let of_new = build(&shape.write(&after, &new), &new.join("store"), settings, 2);
    check_store(shape, &of_new, &lists[1]);
    for workers in [1, 2, 3, 8] {
        let store_dir = dir.path().join(format!("store-{workers}"));
        let store = build(&graph, &store_dir, settings, workers);
        check_store(shape, &store, &lists[0]);
        let out_dir = dir.path().join(format!("out-{workers}"));
        OutEdges::open_or_write(&store, &keep, &out_dir).unwrap();
        let out = OutEdges::open_or_write(&store, &keep, &out_dir).unwrap();
        let mut numbers = Numbers::of(&store, &graph).unwrap();
        let read = |of: &graphdelta::ChangesSpec| of.read(dir.path(), &graph, sampling).unwrap();
        let numbered = nights
            .iter()
            .map(|of| numbers.apply(read(of)).unwrap())
            .collect();
        let numbers = Arc::new(numbers);
        let found = reach(&numbers, numbered, &out, &plan).unwrap();
        let what = format!("seed {seed}, {workers} workers, {sampling:?}, {plan:?}");
        check_in_edges(shape, &numbers, &found, (&lists[0], &lists[1]));
        check_reach(shape, &numbers, &found, &expected, &what);
        let all = after.nodes.iter().enumerate();
        let all = all
            .flat_map(|(at, of)| of.keys().map(move |&id| (at, id)))
            .collect();
        for (layer, limits) in plan.layers.iter().enumerate() {
            let own = twin::work(&expected[1][layer + 1], &lists[1], limits);
            assert_eq!(found.work(&numbers, &plan)[layer], own, "{what}");
            let full = twin::work(&all, &lists[1], limits);
            assert_eq!(found.full_work(&numbers, &plan)[layer], full, "{what}");
        }
    }
}

#[test]
fn changes_of_untyped_graphs_reach_what_a_bitmap_walk_reaches() {
    (0..40).for_each(|seed| check(&Shape::untyped(seed % 2 == 1), seed));
}

#[test]
fn changes_of_typed_graphs_reach_what_a_bitmap_walk_reaches() {
    (100..130).for_each(|seed| check(&Shape::typed(), seed));
}

#[test]
fn no_change_reaches_nothing() {
    let (shape, mut draw) = (Shape::untyped(false), Draw(5));
    let dir = tempfile::tempdir().unwrap();
    let graph = shape.write(&shape.draw(&mut draw), dir.path());
    let plan = draw_plan(1, &mut draw);
    let store = build(
        &graph,
        &dir.path().join("store"),
        (Sampling::Uniform, &plan.keep()),
        2,
    );
    let out = OutEdges::open_or_write(&store, &plan.keep(), &dir.path().join("out")).unwrap();
    let numbers = Arc::new(Numbers::of(&store, &graph).unwrap());
    let found = reach(&numbers, Vec::new(), &out, &plan).unwrap();
    assert!(found.in_edges.is_empty());
    assert!(found.hops.iter().chain(&found.layers).all(Vec::is_empty));
}
