//! Rows that are computed from those of the version before have the bits of a full run.
#![cfg(test)]

#[expect(dead_code, reason = "the tests of the walk use more")]
#[path = "../../../graphdelta/tests/changes/case.rs"]
mod case;
#[path = "../../../graphdelta/tests/changes/night.rs"]
mod night;
#[expect(dead_code, reason = "the tests of the walk use more")]
#[path = "../../../graphdelta/tests/changes/pairs.rs"]
mod pairs;

use std::path::Path;
use std::sync::Arc;

use gnn::typed::{TypedModel, TypedModelFile, save_typed};
use graphdelta::{After, Changes, Numbers, OfStore, OutEdges, Overlay, reach};
use graphinfer::{InferContext, InferPlan, InferSpec, KeptRows, changed_rows, infer, reach_plan};
use schemas::{
    EmbeddingsDataset, Fanout, FlattenMeta, HopFanouts, Layout, Progress, RelationMeta, Sampling,
};
use serde_json::{Value, json};
use store::Store;

use case::{Draw, Edge, SPARSE_WIDTH, Shape, Snapshot, Table, build};
use night::NightTables;

/// More in-edges make a node a hub.
const HUB_EDGES: usize = 1 << 13;

/// Graph, model and samples of a test.
struct Case {
    /// What differs from the plain architecture.
    model: Value,
    typed: bool,
    /// The model reads edge weights.
    weighted: bool,
    sparse: bool,
    undirected: bool,
    sampling: Sampling,
    /// Of two layers; `usize::MAX` is all.
    fanouts: [usize; 2],
    seed: u64,
    hub: Hub,
    /// Nights, a version each.
    nights: usize,
}

/// What happens to a node with many in-edges.
#[derive(Clone, Copy, PartialEq)]
enum Hub {
    /// There is none.
    None,
    /// It appears and vanishes.
    Changing,
    /// It stays as it is. Each night adds a node without edges, which moves its segments.
    Moving,
    /// It has [`CROSSED`] in-edges, and one more of the least weight in every other night.
    Crossing,
}

/// A fan-out: all in-edges of a hub with so many are aggregated in segments, those of a node with more
/// in the order of ranks.
const CROSSED: usize = HUB_EDGES + 100;

/// What a chain of versions has met.
#[derive(Debug, Default)]
struct Met {
    computed: usize,
    all: usize,
    hubs_appeared: usize,
    hubs_vanished: usize,
    /// Rows that came out as they were, although they were computed.
    kept: usize,
}

impl Case {
    fn shape(&self) -> Shape {
        let shape = match self.typed {
            // Its relations must lead from a type to itself.
            true if self.model["layer"] == "gcn" => Shape {
                tables: vec![
                    Table {
                        name: "likes",
                        from: 0,
                        to: 0,
                        undirected: false,
                        reverse: Some("are_liked"),
                    },
                    Shape::typed().tables[1].clone(),
                ],
                ..Shape::typed()
            },
            true => Shape::typed(),
            false => Shape::untyped(self.undirected),
        };
        Shape {
            sparse: self.sparse,
            ..shape
        }
    }

    fn save_model(&self, shape: &Shape, dir: &Path) {
        let fanouts = self.fanouts.map(|most| match most {
            usize::MAX => Fanout::All,
            most => Fanout::Count(u32::try_from(most).unwrap()),
        });
        let of_hop = |fanout| HopFanouts::from(vec![fanout; shape.relations().len()]);
        let flatten = FlattenMeta {
            hops: 2,
            fanouts: fanouts.into_iter().map(of_hop).collect(),
            sampling: self.sampling,
            seed: 11,
            samples_per_target: 1,
            layout: Layout::Shards,
        };
        let mut architecture = json!({
            "layer": "sage", "aggregator": "mean", "hidden": [8, 6], "num_layers": 2,
            "out_dim": 3, "heads": 1, "out_heads": 1,
            "dropout": 0.0, "input_dropout": 0.0, "attention_dropout": 0.0, "norm": "none",
            "residual": false, "activation": "relu", "task": "classes",
        });
        let own = match self.typed {
            true => typed_keys(shape, self.weighted),
            false => json!({
                "in_dim": in_dim(shape), "edge_dim": null, "edge_weight": self.weighted,
            }),
        };
        for keys in [&own, &self.model] {
            for (key, value) in keys.as_object().unwrap() {
                architecture[key] = value.clone();
            }
        }
        let extra = json!({ "flatten": flatten });
        let model = &dir.join("model");
        std::fs::create_dir(model).unwrap();
        if self.typed {
            let file = json!({ "architecture": architecture, "extra": extra });
            let file: TypedModelFile = serde_json::from_value(file).unwrap();
            let parameters = TypedModel::init(&file.architecture, 7).unwrap();
            save_typed(model, &parameters, &file).unwrap();
        } else {
            let file = json!({ "transform": "none", "architecture": architecture, "extra": extra });
            let file: gnn::ModelFile = serde_json::from_value(file).unwrap();
            let parameters = gnn::Model::init(&file.architecture, 7).unwrap();
            gnn::save(model, &parameters, &file).unwrap();
        }
    }

    /// Draws the first tables; a hub has many parallel edges.
    fn draw(&self, shape: &Shape, draw: &mut Draw) -> Snapshot {
        let mut snapshot = shape.draw(draw);
        if self.hub != Hub::None {
            let ends = [shape.tables[0].from, shape.tables[0].to];
            let ids = ends.map(|at| snapshot.nodes[at].keys().copied().collect());
            let [from, to]: [Vec<i64>; 2] = ids;
            let known = snapshot.edges[0].iter().filter(|edge| edge.dst == to[0]);
            let count = match self.hub {
                Hub::Crossing => CROSSED - known.count(),
                _ => HUB_EDGES + 200,
            };
            let edges = (0..count).map(|_| Edge {
                src: draw.of(&from),
                dst: to[0],
                weight: 1.0,
            });
            snapshot.edges[0].extend(edges);
        }
        snapshot
    }

    /// Draws the changes of a night; with a hub, some nights add many in-edges to it.
    fn draw_night(
        &self,
        (shape, now, version): (&Shape, &Snapshot, usize),
        draw: &mut Draw,
    ) -> NightTables {
        if self.hub == Hub::Moving {
            // Its id comes first, so all other nodes move among the ids.
            let new = (-i64::try_from(version).unwrap(), Some(1.0));
            let mut nodes = vec![Vec::new(); shape.types.len()];
            nodes[shape.tables[0].from].push(new);
            return NightTables {
                nodes,
                edges: vec![Vec::new(); shape.tables.len()],
                ..NightTables::default()
            };
        }
        if self.hub == Hub::Crossing {
            let is_added = version % 2 == 1;
            let (node, hub) = (
                -1,
                *now.nodes[shape.tables[0].to]
                    .keys()
                    .find(|id| **id >= 0)
                    .unwrap(),
            );
            let mut nodes = vec![Vec::new(); shape.types.len()];
            nodes[shape.tables[0].from].push((node, is_added.then_some(1.0)));
            let mut edges = vec![Vec::new(); shape.tables.len()];
            edges[0].push((node, hub, is_added.then_some(0.5)));
            return NightTables {
                nodes,
                edges,
                ..NightTables::default()
            };
        }
        let mut tables = NightTables::draw(shape, now, draw);
        if self.hub == Hub::Changing && version % 2 == 1 {
            let ids = |of_type: usize| -> Vec<i64> {
                let removed = |id: &i64| tables.nodes[of_type].contains(&(*id, None));
                let ids = now.nodes[of_type].keys().copied();
                ids.filter(|id| !removed(id)).collect()
            };
            let hub = ids(shape.tables[0].to)[0];
            let src = *ids(shape.tables[0].from).last().unwrap();
            tables.edges[0].retain(|&(a, b, _)| (a, b) != (src, hub) && (a, b) != (hub, src));
            tables.edges[0].extend((0..HUB_EDGES + 200).map(|_| (src, hub, Some(1.0))));
        }
        tables
    }
}

/// Width of the features.
fn in_dim(shape: &Shape) -> usize {
    if shape.sparse { SPARSE_WIDTH } else { 1 }
}

/// The keys of an architecture of a typed graph.
fn typed_keys(shape: &Shape, weighted: bool) -> Value {
    let types = shape.types.iter();
    let types: Vec<Value> = types
        .map(|name| json!({ "name": name, "in_dim": in_dim(shape) }))
        .collect();
    let relations = shape.relations().into_iter().map(|(name, from, to)| {
        json!({
            "name": name, "from": shape.types[from], "to": shape.types[to],
            "edge_weight": weighted, "edge_dim": null,
        })
    });
    json!({
        "types": types, "relations": relations.collect::<Vec<Value>>(), "target_type": "a",
        "relation_aggregator": "sum", "projection": 4, "num_bases": null, "relation_dim": null,
        "attention_residual": 0.0, "normalize_output": false,
    })
}

/// The plan of an output of all types.
fn plan(shape: &Shape, dir: &Path, output: &str, layer: usize) -> InferPlan {
    let mut spec = json!({ "output": output, "layer": layer });
    if shape.types.len() > 1 {
        spec["types"] = json!("all");
    }
    let spec: InferSpec = serde_json::from_value(spec).unwrap();
    let context = InferContext {
        model: Some(dir.join("model")),
        input: None,
        base: dir.to_owned(),
        nodes: None,
        work_dir: dir.join("work"),
        fresh: false,
    };
    spec.into_plan(context).unwrap()
}

/// Compares the rows of every layer with those of a full run on the tables.
fn check_full(
    (shape, dir, store): (&Shape, &Path, &Store),
    (after, rows): (&After, &KeptRows),
    (version, what): (usize, &str),
) {
    let quiet: Progress = Arc::new(|_| {});
    let nodes = after.nodes();
    for layer in 1..=2 {
        let plan = plan(shape, dir, &format!("full-{version}-{layer}"), layer);
        infer(&plan, store, &quiet).unwrap();
        let full = EmbeddingsDataset::open(plan.output()).unwrap();
        // A part for each type.
        let parts = 0..full.num_parts();
        let parts: Vec<_> = parts.map(|part| full.read_part(part).unwrap()).collect();
        let places = parts
            .iter()
            .flat_map(|of| (0..of.ids.len()).map(move |at| (of, at)));
        let places: Vec<_> = places.collect();
        assert_eq!(places.len(), nodes.len(), "{what}");
        for ((part, at), &node) in places.into_iter().zip(&nodes) {
            assert_eq!(part.ids.display(at), after.display(node), "{what}");
            let bits = |of: &[f32]| of.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let expected = &part.embedding[at * part.dim..][..part.dim];
            let id = after.display(node);
            let own = rows.row(layer, node);
            assert_eq!(
                bits(own),
                bits(expected),
                "{what}, version {version}, layer {layer}, node {id}"
            );
        }
    }
}

fn num_hubs(after: &After) -> usize {
    let relations = after.store().meta().graph.relations.iter().enumerate();
    let of_relation = |(relation, of): (usize, &RelationMeta)| {
        let nodes = after.nodes().into_iter();
        let nodes = nodes.filter(|&node| after.type_of(node) == of.to);
        let hubs = nodes.filter(|&node| after.in_degree(relation, node) > HUB_EDGES as u64);
        hubs.count()
    };
    relations.map(of_relation).sum()
}

fn check(case: &Case, met: &mut Met) {
    let what = format!(
        "{}, typed {}, weighted {}, sparse {}, undirected {}, {:?}, {:?}, seed {}",
        case.model,
        case.typed,
        case.weighted,
        case.sparse,
        case.undirected,
        case.sampling,
        case.fanouts,
        case.seed
    );
    let (shape, mut draw) = (case.shape(), Draw(case.seed));
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    case.save_model(&shape, dir);
    let mut now = case.draw(&shape, &mut draw);
    let graph = shape.write(&now, dir);
    let keep = vec![case.fanouts[0].max(case.fanouts[1]); shape.relations().len()];
    let settings = (case.sampling, &keep[..]);
    let store = build(&graph, &dir.join("store"), settings, 2);
    let plan = plan(&shape, dir, "none", 2);
    let limits = reach_plan(&plan, &store).unwrap();
    let out = OutEdges::open_or_write(&store, &limits.keep(), &dir.join("out")).unwrap();
    let mut overlay = Overlay::default();
    let stored = Arc::new(Numbers::of(&store, &graph, overlay.clone()).unwrap());
    let mut after = After::new(&stored, overlay.clone());
    let (mut rows, _) = changed_rows(&plan, &after, None).unwrap();
    check_full((&shape, dir, &store), (&after, &rows), (0, &what));
    let mut kept = Vec::new();
    for version in 1..=case.nights {
        let tables = case.draw_night((&shape, &now, version), &mut draw);
        tables.apply(&shape, &mut now);
        let own = dir.join(format!("version-{version}"));
        let changes = tables.write(&shape, &own);
        let mut numbers = Numbers::of(&store, &graph, overlay).unwrap();
        let changes = Changes::read(&changes, dir, &graph, OfStore::plain(case.sampling)).unwrap();
        let nights = vec![numbers.apply(changes).unwrap()];
        let (reached, of_version) =
            reach(&Arc::new(numbers.clone()), nights, &out, &limits).unwrap();
        overlay = of_version;
        let hubs = num_hubs(&after);
        after = After::new(&Arc::new(numbers), overlay.clone());
        met.hubs_appeared += usize::from(num_hubs(&after) > hubs);
        met.hubs_vanished += usize::from(num_hubs(&after) < hubs);
        // Rows of the parent come from the disk: each version has written those that it changed.
        let of_rows = own.join("rows");
        std::fs::create_dir(&of_rows).unwrap();
        kept.push((of_rows.clone(), rows.write(&of_rows, 2).unwrap()));
        let mut parent = KeptRows::default();
        for (of_earlier, files) in &kept {
            parent.add(of_earlier, files).unwrap();
        }
        let old = parent.clone();
        let (new, computed) = changed_rows(&plan, &after, Some((&reached, parent))).unwrap();
        for (layer, nodes) in (1..).zip(&computed) {
            met.computed += nodes.len();
            met.all += after.nodes().len();
            let is_kept = |node| old.get(layer, node) == Some(new.row(layer, node));
            met.kept += nodes.iter().filter(|&&node| is_kept(node)).count();
        }
        rows = new;
        let full = shape.write(&now, &own);
        let full = build(&full, &own.join("store"), settings, 2);
        check_full((&shape, dir, &full), (&after, &rows), (version, &what));
    }
}

fn models() -> Vec<Value> {
    vec![
        json!({ "layer": "sage" }),
        json!({ "layer": "sage", "aggregator": "max", "hidden": [8], "residual": true }),
        json!({ "layer": "gcn" }),
        json!({ "layer": "gcn", "hidden": [3, 9], "norm": "layer" }),
        json!({ "layer": "gat", "heads": 2 }),
        json!({ "layer": "gatv2", "heads": 2, "residual": true }),
        json!({ "layer": "gin" }),
    ]
}

/// Models of typed graphs.
fn typed_models() -> Vec<Value> {
    vec![
        json!({ "layer": "sage" }),
        json!({ "layer": "sage", "aggregator": "max", "hidden": [8], "residual": true,
                "relation_aggregator": "max" }),
        json!({ "layer": "gcn", "norm": "layer" }),
        json!({ "layer": "gat", "heads": 2 }),
        json!({ "layer": "gatv2", "heads": 2, "residual": true, "relation_aggregator": "mean" }),
        json!({ "layer": "gin" }),
        json!({ "layer": "rgcn", "num_bases": 2 }),
        json!({ "layer": "simple_hgn", "heads": 2, "relation_dim": 3, "attention_residual": 0.3 }),
        json!({ "layer": "hgt", "heads": 2 }),
    ]
}

/// Chains of versions, one for each model and sampling.
struct Chains<'a> {
    nights: usize,
    seed: u64,
    samplings: &'a [Sampling],
    fanouts: [usize; 2],
    hub: Hub,
    sparse: bool,
}

fn check_models(seed: u64, samplings: &[Sampling], fanouts: [usize; 2], hub: Hub) -> Met {
    let chains = Chains {
        nights: 3,
        seed,
        samplings,
        fanouts,
        hub,
        sparse: false,
    };
    chains.check()
}

impl Chains<'_> {
    fn check(&self) -> Met {
        let mut met = Met::default();
        let reads_weights = |model: &Value| {
            let kind = model["layer"].as_str().unwrap();
            model["aggregator"].is_null() && ["sage", "gcn", "gat", "gin", "rgcn"].contains(&kind)
        };
        let mut all = Vec::new();
        for (typed, of) in [(false, models()), (true, typed_models())] {
            let weighted: Vec<Value> = of.iter().filter(|of| reads_weights(of)).cloned().collect();
            all.extend(of.into_iter().map(|model| (typed, false, model)));
            all.extend(weighted.into_iter().map(|model| (typed, true, model)));
        }
        for (at, (typed, weighted, model)) in (0..).zip(all) {
            for (nth, &sampling) in (0..).zip(self.samplings) {
                let case = Case {
                    model: model.clone(),
                    typed,
                    weighted,
                    sparse: self.sparse,
                    undirected: (at + nth) % 2 == 1 && self.hub != Hub::Crossing,
                    sampling,
                    fanouts: self.fanouts,
                    seed: self.seed + 10 * at + nth,
                    hub: self.hub,
                    nights: self.nights,
                };
                check(&case, &mut met);
            }
        }
        met
    }
}

const SAMPLINGS: [Sampling; 3] = [Sampling::Uniform, Sampling::Weighted, Sampling::Top];

#[test]
fn sampled_rows_have_the_bits_of_a_full_run() {
    let met = check_models(1000, &SAMPLINGS, [3, 2], Hub::None);
    assert!(met.computed < met.all && met.kept > 0, "{met:?}");
}

/// 780 nights in all.
#[test]
fn chains_of_thirty_versions_have_the_bits_of_full_runs() {
    let chains = Chains {
        nights: 30,
        seed: 6000,
        samplings: &[Sampling::Uniform],
        fanouts: [3, 2],
        hub: Hub::None,
        sparse: false,
    };
    let met = chains.check();
    assert!(met.computed < met.all && met.kept > 0, "{met:?}");
}

/// A hub aggregates sparse features that are projected first, or made dense.
#[test]
fn rows_of_sparse_features_have_the_bits_of_a_full_run() {
    for (fanouts, hub, seed) in [
        ([3, 2], Hub::None, 8000),
        ([usize::MAX; 2], Hub::Changing, 9000),
    ] {
        let chains = Chains {
            nights: 3,
            seed,
            samplings: &[Sampling::Uniform],
            fanouts,
            hub,
            sparse: true,
        };
        let met = chains.check();
        assert!(met.computed < met.all && met.kept > 0, "{met:?}");
    }
}

#[test]
fn rows_of_all_in_edges_have_the_bits_of_a_full_run() {
    let met = check_models(2000, &[Sampling::Uniform; 2], [usize::MAX; 2], Hub::None);
    assert!(met.computed < met.all && met.kept > 0, "{met:?}");
}

#[test]
fn hubs_that_appear_and_vanish_have_the_bits_of_a_full_run() {
    let met = check_models(3000, &[Sampling::Uniform], [usize::MAX; 2], Hub::Changing);
    assert!(met.hubs_appeared > 2 && met.hubs_vanished > 2, "{met:?}");
}

/// The second layer reads a sample, in which rows of hubs differ after the first layer.
#[test]
fn hubs_of_the_first_layer_alone_have_the_bits_of_a_full_run() {
    let met = check_models(4000, &[Sampling::Uniform], [3, usize::MAX], Hub::Changing);
    assert!(met.hubs_appeared > 2 && met.hubs_vanished > 2, "{met:?}");
}

/// Nothing but segments of a hub differs, in the first layer; the second reads a sample.
#[test]
fn hubs_whose_segments_move_have_the_bits_of_a_full_run() {
    let met = check_models(5000, &[Sampling::Uniform], [3, usize::MAX], Hub::Moving);
    assert!(met.computed > 0 && met.kept > 0, "{met:?}");
}

/// The first in-edges of the node stay as they are, but a full run adds them up in another order.
#[test]
fn in_edges_that_pass_a_large_fan_out_have_the_bits_of_a_full_run() {
    let met = check_models(7000, &[Sampling::Top], [CROSSED, 3], Hub::Crossing);
    assert!(met.computed > 0 && met.kept > 0, "{met:?}");
}
