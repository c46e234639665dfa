//! Tests nodes with so many in-edges of a relation that these are aggregated in segments.

use crate::case::{Case, TOLERANCE, assert_rounded, assert_within, read};
use crate::graph::Graph;
use crate::models::{Trained, architectures, plain};
use crate::twin;
use crate::{check_workers, kinds};
use gnn::typed::{TypedArchitecture, TypedKind};
use gnn::{Aggregator, LayerKind};
use schemas::{FlattenMeta, GraphMeta, Layout, use_at_layer};
use serde_json::{Value, json};

/// More in-edges make a node a hub.
const HUB_EDGES: usize = 8192;

/// Largest error if thousands of in-edges are added one after the other, as those of a node that is
/// no hub: an f32 sum of 8192 numbers of a size is off by up to 2^-24 * 8192 / 2 in the worst case.
const ADDED_IN_TURN: f64 = 5e-5;

/// In-edges by relation and node. Node 0 is a hub in a relation within its type, so that self-loops
/// are among the in-edges, and in one from the other type. The others are hubs in one relation.
const HUBS: [(usize, usize, usize); 5] = [
    (0, 0, 20_000),
    (2, 0, 9000),
    (1, 3, 8500),
    (2, 7, 16_000),
    (4, 2, 9000),
];

/// A graph, how its model is said to be trained, and the in-edges that a store keeps.
struct Hubs {
    case: Case,
    flatten: FlattenMeta,
    meta: GraphMeta,
    keep: Vec<usize>,
}

impl Hubs {
    /// `hops` has the fan-outs of the model.
    fn new(graph: &Graph, hops: &Value) -> Self {
        let case = Case::new(graph);
        let plan = case.sample(hops, Layout::Shards);
        let (_, flatten) = case.flatten(&plan);
        let num_relations = case.graph.relations.len();
        let keep = vec![usize::MAX; num_relations];
        let meta = case.store(1, &keep).meta().graph.clone();
        Self {
            case,
            flatten,
            meta,
            keep,
        }
    }

    /// Compares inference with the formulas, and the bytes of several numbers of workers.
    fn check(&self, arch: &TypedArchitecture, name: &str, (sampling, tolerance): (&str, f64)) {
        let (case, what) = (&self.case, format!("{:?} {name}{sampling}", arch.layer));
        let dir = case.path().join(format!("model-{name}"));
        let trained = Trained::new(dir, arch, (&self.flatten, &self.meta));
        let of_layer = |layer| -> Vec<usize> {
            let all = 0..self.meta.relations.len();
            let limit = |of| match sampling.is_empty() {
                true => use_at_layer(&self.flatten.fanouts, of, layer),
                false => usize::MAX,
            };
            all.map(limit).collect()
        };
        let limits = [of_layer(1), of_layer(2)];
        let expected = twin::forward(&case.store(1, &self.keep), &trained, &limits);
        for layer in [1, 2] {
            let extra = format!(r#", "types": "all", "layer": {layer}{sampling}"#);
            let output = format!("out-{name}-{layer}");
            let (_, output) = case.infer(&trained, (2, &self.keep), (&output, &extra));
            for (node_type, of) in self.meta.types.iter().enumerate() {
                let what = format!("{what}, layer {layer} of `{}`", of.name);
                let got = read(&output, &of.name);
                assert_within(tolerance, &what, &got, &expected.layers[layer][node_type]);
            }
        }
        check_workers(case, &trained, &self.keep, name, sampling);
        let in_16_bits = format!(r#"{sampling}, "rows": "bf16""#);
        let name = format!("{name}-bf16");
        check_workers(case, &trained, &self.keep, &name, &in_16_bits);
        let extra = format!(r#", "types": "all", "layer": 2{in_16_bits}"#);
        let output = (&format!("out-{name}")[..], &extra[..]);
        let (_, output) = case.infer(&trained, (2, &self.keep), output);
        for (node_type, of) in self.meta.types.iter().enumerate() {
            let what = format!("{what}, 16 bits, `{}`", of.name);
            let got = read(&output, &of.name);
            assert_rounded(&what, &got, (&expected.layers[..=2], node_type));
        }
    }
}

/// All in-edges are read, whatever the model was trained on.
const ALL: &str = r#", "sampling": "none""#;

fn check_kinds(within: bool, kinds: impl Iterator<Item = TypedKind>) {
    let more = HUBS.iter().filter(|of| !within || of.0 < 2);
    let more: Vec<(usize, usize, usize)> = more.copied().collect();
    let graph = Graph::with_in_edges(5, within, &more);
    let hubs = Hubs::new(&graph, &json!([2, 2]));
    for kind in kinds {
        for (at, arch) in architectures(kind, &hubs.meta).iter().enumerate() {
            hubs.check(arch, &format!("{}-{at}", kind.name()), (ALL, TOLERANCE));
        }
    }
}

#[test]
fn hubs_of_convs_by_relation_agree_with_the_formulas() {
    let is_other = |kind: &TypedKind| *kind != TypedKind::Conv(LayerKind::Gcn);
    check_kinds(false, kinds().filter(is_other));
}

#[test]
fn hubs_of_one_type_agree_with_the_formulas() {
    check_kinds(true, kinds());
}

/// The same in-edges are those of a hub for a layer that reads all of them, and of no hub for one
/// that reads one less.
#[test]
fn a_limit_at_or_above_the_in_degree_makes_a_hub() {
    let kinds = [
        TypedKind::Conv(LayerKind::Sage),
        TypedKind::Conv(LayerKind::GatV2),
        TypedKind::Rgcn,
        TypedKind::SimpleHgn,
        TypedKind::Hgt,
    ];
    for in_degree in [HUB_EDGES, HUB_EDGES + 1] {
        let known = Graph::with_in_edges(9, false, &[]).in_degree(2, 5);
        let graph = Graph::with_in_edges(9, false, &[(2, 5, in_degree - known)]);
        assert_eq!(graph.in_degree(2, 5), in_degree);
        for first in [in_degree - 1, in_degree, in_degree + 1] {
            let hubs = Hubs::new(&graph, &json!([first, first]));
            let tolerance = match in_degree > HUB_EDGES && first >= in_degree {
                true => TOLERANCE,
                false => ADDED_IN_TURN,
            };
            for kind in kinds {
                let arch = TypedArchitecture {
                    aggregator: Aggregator::Mean,
                    ..plain(kind, &hubs.meta)
                };
                hubs.check(&arch, kind.name(), ("", tolerance));
            }
        }
    }
}
