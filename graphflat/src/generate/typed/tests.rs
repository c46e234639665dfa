use super::*;
use crate::generate::EDGES_MAX;
use std::collections::BTreeMap;

fn spec(types: u32, relations: u32) -> TypedSpec {
    TypedSpec {
        graph: GraphSpec {
            nodes: 1000,
            edges: 5000,
            features: 4,
            classes: 5,
            hubs: 0,
            hub_in_edges: 0,
            weights: true,
            seed: 11,
        },
        types,
        relations,
        type_shares: Vec::new(),
        relation_shares: Vec::new(),
    }
}

fn counts(plan: &TypedPlan) -> (Vec<u64>, Vec<u64>) {
    let nodes = (0..plan.num_types()).map(|at| plan.num_nodes(at));
    let edges = (0..plan.num_relations()).map(|at| plan.num_edges(at));
    (nodes.collect(), edges.collect())
}

#[test]
fn shares_divide_nodes_and_edges() {
    let (nodes, edges) = counts(&spec(4, 6).into_plan().unwrap());
    assert_eq!(nodes, [479, 240, 160, 121]);
    assert_eq!(edges, [2041, 1020, 680, 511, 408, 340]);
    let given = TypedSpec {
        type_shares: vec![1.0, 8.0, 1.0],
        relation_shares: vec![0.5, 0.25, 0.25],
        ..spec(3, 3)
    };
    let of_given = counts(&given.into_plan().unwrap());
    assert_eq!(of_given.0, [101, 798, 101]);
    assert_eq!(of_given.1, [2500, 1250, 1250]);
    // Each type has a node, however small its share.
    let mut few = spec(5, 4);
    (few.graph.nodes, few.type_shares) = (5, vec![1e-9, 1.0, 1.0, 1.0, 1e9]);
    assert_eq!(counts(&few.into_plan().unwrap()).0, [1; 5]);
}

#[test]
fn two_hops_from_the_first_type_reach_all_types() {
    for (seed, types) in (0..40).zip((1..=8).cycle()) {
        for relations in [(types - 1).max(1), types + 2] {
            let mut described = spec(types, relations);
            described.graph.seed = seed;
            let plan = described.into_plan().unwrap();
            let all = (0..plan.num_relations()).map(|at| plan.ends(at));
            let ends: Vec<(usize, usize)> = all.collect();
            assert_eq!(ends.len(), relations as usize);
            let mut reached = vec![0];
            for _ in 0..2 {
                let more = ends.iter().filter(|(_, to)| reached.contains(to));
                let more: Vec<usize> = more.map(|(from, _)| *from).collect();
                reached.extend(more);
            }
            assert!(
                (0..types as usize).all(|at| reached.contains(&at)),
                "{ends:?}"
            );
        }
    }
}

#[test]
fn rows_do_not_depend_on_the_batch_they_are_made_in() {
    let plan = spec(3, 4).into_plan().unwrap();
    for nodes in &plan.types {
        let whole = nodes.columns(0, 100);
        for (column, part) in whole.iter().zip(nodes.columns(30, 20)) {
            assert_eq!(&column.slice(30, 20), &part);
        }
    }
    for relation in &plan.relations {
        let whole = plan.edge_columns(relation, 0, 100);
        for (column, part) in whole.iter().zip(plan.edge_columns(relation, 30, 20)) {
            assert_eq!(&column.slice(30, 20), &part);
        }
    }
}

#[test]
fn edges_from_other_types_come_from_the_class_of_their_ends() {
    for seed in 0..6 {
        let mut described = spec(3, 8);
        described.graph.seed = seed;
        let plan = described.into_plan().unwrap();
        for relation in &plan.relations {
            let (from, to) = (&plan.types[relation.from], &plan.types[relation.to]);
            let rows = relation.rmat.num_edges();
            let edges = (0..rows).map(|row| plan.edge(relation, row));
            let mut same = 0.0;
            for (src, dst) in edges {
                assert!(src < from.count && dst < to.count);
                assert!(relation.from != relation.to || src != dst);
                same += f64::from(u8::from(from.class(src) == to.class(dst))) / rows as f64;
            }
            // Of the edges that are not moved, a fifth joins nodes of one class; 0.07 is more than
            // four standard deviations of the smallest relation.
            let expected = match relation.from {
                0 => 0.2,
                _ => 0.75 + 0.25 * 0.2,
            };
            let slack = if relation.from == 0 { 0.2 } else { 0.07 };
            assert!(
                (same - expected).abs() < slack,
                "seed {seed}: {same}, {expected}"
            );
        }
    }
}

#[test]
fn hubs_of_the_first_type_have_in_edges_of_the_first_relation() {
    let mut described = spec(3, 5);
    (described.graph.hubs, described.graph.hub_in_edges) = (2, 200);
    let plan = described.into_plan().unwrap();
    assert_eq!(plan.ends(0), (1, 0));
    assert_eq!(counts(&plan).1[0], 2190 + 400);
    let relation = &plan.relations[0];
    let edges = (0..relation.rmat.num_edges()).map(|row| plan.edge(relation, row));
    let mut in_degrees = BTreeMap::<u64, u64>::new();
    edges.for_each(|(_, dst)| *in_degrees.entry(dst).or_default() += 1);
    assert!(plan.hub_ids().all(|hub| in_degrees[&hub] >= 200));
}

#[test]
fn impossible_numbers_are_refused_by_name() {
    type Change = fn(&mut TypedSpec);
    let cases: [(Change, &str); 12] = [
        (|of| of.types = 0, "--types"),
        (|of| of.types = 65, "--types"),
        (|of| of.relations = 2, "--relations"),
        (|of| of.relations = 257, "--relations"),
        (|of| of.graph.nodes = 3, "--nodes"),
        (|of| of.graph.edges = EDGES_MAX + 1, "--edges"),
        (|of| of.graph.classes = 1, "--classes"),
        (|of| of.type_shares = vec![1.0; 3], "--type-shares"),
        (
            |of| of.type_shares = vec![1.0, 0.0, 1.0, 1.0],
            "--type-shares",
        ),
        (
            |of| of.relation_shares = vec![f64::NAN; 6],
            "--relation-shares",
        ),
        (
            |of| (of.graph.hubs, of.graph.hub_in_edges) = (480, 1),
            "--hubs",
        ),
        (
            |of| (of.graph.hubs, of.graph.hub_in_edges) = (1, 241),
            "--hub-in-edges",
        ),
    ];
    for (change, expected) in cases {
        let mut described = spec(4, 6);
        change(&mut described);
        match described.into_plan() {
            Err(FlattenError::Key { key, .. }) => assert_eq!(key, expected),
            other => panic!("{expected}: {other:?}"),
        }
    }
    let mut one = spec(1, 1);
    (one.graph.nodes, one.graph.edges) = (1, 1);
    assert!(one.clone().into_plan().is_err());
    one.graph.edges = 0;
    one.into_plan().unwrap();
}
