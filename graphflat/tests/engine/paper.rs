//! Implements AGL's GraphFlat literally (PVLDB 13, section 3.2.1): map, then merge and propagate k
//! times.
//!
//! Here whole neighbourhoods with their features move along the edges in every round. The engine
//! moves ids and fetches features once. Both must compute the same neighbourhoods.

use crate::draw::Draw;
use crate::graph::{Graph, Id, Shape, Weights};
use crate::naive::{self, node_features};
use crate::run::{Choice, Settings, Tables};
use schemas::{Fanout, Features, GraphFeature, Ids, Sampling};
use std::collections::BTreeMap;

/// An edge of the shuffle; `place` is twice its row, plus one if it is reversed.
#[derive(Clone)]
struct Edge {
    place: usize,
    src: Id,
    dst: Id,
    weight: f32,
    feature: Vec<f32>,
}

/// The neighbourhood of a node, as far as the rounds have propagated it.
#[derive(Clone)]
struct Neighbourhood {
    nodes: BTreeMap<Id, NodeInfo>,
    /// The kept in-edges of each node that has some, in rank order.
    in_edges: BTreeMap<Id, Vec<Edge>>,
}

#[derive(Clone)]
struct NodeInfo {
    /// Smallest distance to the node of the neighbourhood.
    hop: usize,
    features: Features,
}

/// The three kinds of information that the map emits, each under the id of a node.
enum Info {
    Own(Neighbourhood),
    InEdge(Edge, Neighbourhood),
    OutEdge(Edge),
}

type Shuffled = BTreeMap<Id, Vec<Info>>;

/// Emits each node's own information, and each edge at both of its ends.
fn map(graph: &Graph) -> Shuffled {
    let mut shuffled = Shuffled::new();
    let mut alone = BTreeMap::new();
    for (row, id) in graph.ids.iter().enumerate() {
        let features = node_features(graph, &[row]);
        let nodes = BTreeMap::from([(id.clone(), NodeInfo { hop: 0, features })]);
        let in_edges = BTreeMap::new();
        let own = Neighbourhood { nodes, in_edges };
        emit(&mut shuffled, id, Info::Own(own.clone()));
        alone.insert(id, own);
    }
    for (row, edge) in graph.edges.iter().enumerate() {
        let directions: &[bool] = if graph.undirected {
            &[false, true]
        } else {
            &[false]
        };
        for &reversed in directions {
            let (mut src, mut dst) = (&edge.src, &edge.dst);
            if reversed {
                (src, dst) = (dst, src);
            }
            let directed = Edge {
                place: 2 * row + usize::from(reversed),
                src: src.clone(),
                dst: dst.clone(),
                weight: edge.weight,
                feature: edge.feature.clone(),
            };
            let neighbour = alone[src].clone();
            emit(
                &mut shuffled,
                dst,
                Info::InEdge(directed.clone(), neighbour),
            );
            emit(&mut shuffled, src, Info::OutEdge(directed));
        }
    }
    shuffled
}

fn emit(shuffled: &mut Shuffled, key: &Id, info: Info) {
    shuffled.entry(key.clone()).or_default().push(info);
}

/// Runs one reduce round: merges the information of each id, then sends it along its out-edges.
fn reduce(shuffled: Shuffled, keep: usize, settings: &Settings, sample: u64) -> Shuffled {
    let mut next = Shuffled::new();
    for (id, infos) in shuffled {
        let (mut own, mut in_edges, mut out_edges) = (None, Vec::new(), Vec::new());
        for info in infos {
            match info {
                Info::Own(neighbourhood) => own = Some(neighbourhood),
                Info::InEdge(edge, neighbourhood) => in_edges.push((edge, neighbourhood)),
                Info::OutEdge(edge) => out_edges.push(edge),
            }
        }
        let mut own = own.unwrap();
        merge(&mut own, &id, in_edges, keep, settings, sample);
        for edge in out_edges {
            let info = Info::InEdge(edge.clone(), own.clone());
            emit(&mut next, &edge.dst, info);
            emit(&mut next, &id, Info::OutEdge(edge));
        }
        emit(&mut next, &id, Info::Own(own));
    }
    next
}

/// Merges the first `keep` in-edges, and the neighbourhoods of their sources, into a node's own.
fn merge(
    own: &mut Neighbourhood,
    id: &Id,
    mut in_edges: Vec<(Edge, Neighbourhood)>,
    keep: usize,
    settings: &Settings,
    sample: u64,
) {
    in_edges.sort_by_key(|(edge, _)| edge.place);
    let ends: Vec<_> = in_edges.iter().map(|(e, _)| (&e.src, e.weight)).collect();
    let mut order = naive::rank(&ends, id, settings, sample);
    order.truncate(keep);
    let mut kept = Vec::new();
    for i in order {
        let (edge, neighbour) = &in_edges[i];
        kept.push(edge.clone());
        for (node, info) in &neighbour.nodes {
            let hop = info.hop + 1;
            let known = own.nodes.entry(node.clone()).or_insert(NodeInfo {
                hop,
                features: info.features.clone(),
            });
            known.hop = known.hop.min(hop);
        }
        for (dst, list) in &neighbour.in_edges {
            unite(own, dst, list.clone());
        }
    }
    unite(own, id, kept);
}

/// Keeps the longer of two lists of a node's in-edges; the shorter must be its beginning.
fn unite(own: &mut Neighbourhood, dst: &Id, list: Vec<Edge>) {
    if list.is_empty() {
        return;
    }
    let known = own.in_edges.entry(dst.clone()).or_default();
    let same = known.iter().zip(&list).all(|(a, b)| a.place == b.place);
    assert!(same, "a node's in-edges are the same ones everywhere");
    if list.len() > known.len() {
        *known = list;
    }
}

/// Returns all neighbourhoods of k hops after k rounds.
fn graph_flat(graph: &Graph, settings: &Settings, sample: u64) -> BTreeMap<Id, Neighbourhood> {
    let mut shuffled = map(graph);
    let hops = settings.fanouts.len();
    for round in 1..=hops {
        // A neighbourhood after this round is used at distance `hops - round` of a target.
        let keep = naive::keep(settings, hops - round);
        shuffled = reduce(shuffled, keep, settings, sample);
    }
    let own = |infos: Vec<Info>| {
        infos.into_iter().find_map(|info| match info {
            Info::Own(neighbourhood) => Some(neighbourhood),
            _ => None,
        })
    };
    shuffled
        .into_iter()
        .map(|(id, infos)| (id, own(infos).unwrap()))
        .collect()
}

/// A neighbourhood in a form that does not depend on its implementation.
#[derive(Debug, Default, PartialEq)]
struct Rendered {
    /// Hop and features of each node.
    nodes: BTreeMap<String, (usize, String)>,
    /// Source, weight and features of each node's in-edges, in rank order.
    in_edges: BTreeMap<String, Vec<(String, f32, Vec<f32>)>>,
}

impl Rendered {
    fn of_paper(neighbourhood: &Neighbourhood) -> Self {
        let node = |(id, info): (&Id, &NodeInfo)| {
            let features = format!("{:?}", info.features);
            (display(id), (info.hop, features))
        };
        let edge = |edge: &Edge| (display(&edge.src), edge.weight, edge.feature.clone());
        let list = |(id, list): (&Id, &Vec<Edge>)| (display(id), list.iter().map(edge).collect());
        Self {
            nodes: neighbourhood.nodes.iter().map(node).collect(),
            in_edges: neighbourhood.in_edges.iter().map(list).collect(),
        }
    }

    fn of_engine(feature: &GraphFeature, edge_dim: usize) -> Self {
        let mut rendered = Self::default();
        let name = |ids: &Ids, i: u32| ids.display(usize::try_from(i).unwrap());
        let (nodes, edges) = (&feature.nodes[0], &feature.edges[0]);
        for (hop, range) in nodes.hop_offset.windows(2).enumerate() {
            for i in range[0]..range[1] {
                let features = format!("{:?}", nodes.features.gather(&[i]));
                let id = name(&nodes.node_id, i);
                assert!(rendered.nodes.insert(id, (hop, features)).is_none());
            }
        }
        for (dst, range) in (0..).zip(edges.in_offset.windows(2)) {
            let edge = |e: u32| {
                let at = usize::try_from(e).unwrap();
                let weight = edges.edge_weight.as_ref().map_or(1.0, |all| all[at]);
                let features = edges.edge_feature.as_deref();
                let features = features.map(|all| &all[at * edge_dim..(at + 1) * edge_dim]);
                let src = name(&nodes.node_id, edges.in_src[at]);
                (src, weight, features.unwrap_or_default().to_vec())
            };
            let list: Vec<_> = (range[0]..range[1]).map(edge).collect();
            if !list.is_empty() {
                rendered.in_edges.insert(name(&nodes.node_id, dst), list);
            }
        }
        rendered
    }
}

fn display(id: &Id) -> String {
    match id {
        Id::Int(id) => id.to_string(),
        Id::Text(text) => text.clone(),
    }
}

fn random_case(case: u64, fanouts: &[&str]) -> (Graph, Settings) {
    let mut draw = Draw::new(1000 + case);
    let shape = Shape::random(&mut draw);
    let small = Shape {
        nodes: 1 + shape.nodes / 3,
        edges: shape.edges / 3,
        ..shape
    };
    let sampling = match small.weights {
        Weights::Few | Weights::Many => Sampling::Weighted,
        Weights::Signed => Sampling::Top,
        Weights::None => Sampling::Uniform,
    };
    let settings = Settings {
        sampling,
        targets: Choice::All,
        seed: draw.bits() >> 20,
        samples: draw.pick(&[1, 2]),
        workers: 1 + draw.below(4),
        hub_threshold: draw.pick(&[2, u64::from(u32::MAX)]),
        targets_per_part: draw.pick(&[4, 1000]),
        ..Settings::new(&draw.pick(&fanouts.iter().map(|&f| f.to_owned()).collect::<Vec<_>>()))
    };
    (small.graph(&mut draw), settings)
}

#[test]
fn map_merge_and_propagate_give_the_engines_neighbourhoods() {
    for case in 0..60 {
        let fanouts = ["1", "3", "3,2", "2,3", "2,all,1", "all,all", "2,1,3"];
        let (graph, settings) = random_case(case, &fanouts);
        let found = Tables::whole(&graph).features(&settings);
        let mut found = found.iter().map(|f| Rendered::of_engine(f, graph.edge_dim));
        for sample in 0..u64::from(settings.samples) {
            for (target, neighbourhood) in graph_flat(&graph, &settings, sample) {
                let expected = Rendered::of_paper(&neighbourhood);
                let one = found.next().unwrap();
                assert_eq!(one, expected, "case {case}, {target:?}, {settings:?}");
            }
        }
        assert!(found.next().is_none());
    }
}

/// Returns distances to `target` by relaxing all edges k times; nodes further away are absent.
fn distances(graph: &Graph, target: &Id, hops: usize) -> BTreeMap<Id, usize> {
    let mut distance = BTreeMap::from([(target.clone(), 0)]);
    for _ in 0..hops {
        let before = distance.clone();
        for edge in &graph.edges {
            let mut relax = |src: &Id, dst: &Id| {
                if let Some(hop) = before.get(dst).filter(|hop| **hop < hops) {
                    let known = distance.entry(src.clone()).or_insert(hop + 1);
                    *known = (*known).min(hop + 1);
                }
            };
            relax(&edge.src, &edge.dst);
            if graph.undirected {
                relax(&edge.dst, &edge.src);
            }
        }
    }
    distance
}

#[test]
fn without_sampling_the_exact_neighbourhood_of_k_hops_comes_out() {
    for case in 0..40 {
        let (graph, mut settings) = random_case(case, &["all", "all,all", "all,all,all"]);
        settings.samples = 1;
        let hops = settings.fanouts.len();
        assert!(settings.fanouts.iter().all(|f| *f == Fanout::All));
        let found = Tables::whole(&graph).features(&settings);
        let targets = naive::targets(&graph, &settings.targets);
        assert_eq!(found.len(), targets.len());
        for (feature, target) in found.iter().zip(&targets) {
            let distance = distances(&graph, target, hops);
            let rendered = Rendered::of_engine(feature, graph.edge_dim);
            let nodes = rendered.nodes.iter().map(|(id, info)| (id.clone(), info.0));
            let expected = distance.iter().map(|(id, hop)| (display(id), *hop));
            let expected: BTreeMap<_, _> = expected.collect();
            assert_eq!(nodes.collect::<BTreeMap<_, _>>(), expected, "case {case}");
            let mut edges: Vec<(String, String)> = Vec::new();
            for edge in &graph.edges {
                let mut directions = vec![(&edge.src, &edge.dst)];
                if graph.undirected {
                    directions.push((&edge.dst, &edge.src));
                }
                let inner = |dst: &Id| distance.get(dst).is_some_and(|hop| *hop < hops);
                directions.retain(|(_, dst)| inner(dst));
                edges.extend(directions.iter().map(|(u, v)| (display(u), display(v))));
            }
            let lists = rendered.in_edges.iter();
            let kept = lists.flat_map(|(dst, list)| {
                list.iter().map(move |(src, ..)| (src.clone(), dst.clone()))
            });
            let mut kept: Vec<_> = kept.collect();
            kept.sort();
            edges.sort();
            assert_eq!(kept, edges, "case {case}, {target:?}");
        }
    }
}
