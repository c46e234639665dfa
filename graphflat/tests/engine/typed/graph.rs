//! Random typed graphs, in memory and as tables.

use crate::draw::Draw;
use crate::graph::{Edge, Features, Graph, Id, Kind, LabelColumn, Shape, Weights};
use crate::tables::{Cut, Ends, nodes_spec, write_edges, write_nodes};
use graphflat::{HopSpec, RelationFanout};
use schemas::{EdgesSpec, Fanout, InputSpec, NodesSpec};
use std::collections::BTreeMap;
use std::path::Path;

const CUT: Cut = Cut {
    files: 2,
    row_group: 7,
};

/// A relation may have the name of a type.
const TYPES: [&str; 5] = ["Author", "a-b", "cites", "paper", "venue9"];
const RELATIONS: [&str; 8] = [
    "Author", "a_b", "cites", "has", "paper", "to", "writes", "x-2",
];

/// A graph whose types and relations are sorted by name.
#[derive(Clone)]
pub(super) struct TypedGraph {
    pub(super) types: Vec<NodeType>,
    /// Relations of tables.
    pub(super) relations: Vec<Relation>,
    pub(super) target_type: usize,
}

/// A node type.
#[derive(Clone)]
pub(super) struct NodeType {
    pub(super) name: String,
    /// The nodes: a graph without edges.
    pub(super) nodes: Graph,
}

/// A relation with its table.
#[derive(Clone)]
pub(super) struct Relation {
    pub(super) name: String,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) edges: Vec<Edge>,
    pub(super) weights: Weights,
    pub(super) edge_dim: usize,
    pub(super) undirected: bool,
    /// Name of the relation of the reverse edges.
    pub(super) reverse: Option<String>,
}

impl TypedGraph {
    /// Draws 2 to 5 types and 1 to 8 relations: within a type, several between the same two, and
    /// types without any.
    pub(super) fn random(draw: &mut Draw) -> Self {
        let num_types = 2 + draw.below(4);
        let names = some_of(draw, &TYPES, num_types);
        let target_type = draw.below(num_types);
        let types = names.into_iter().enumerate();
        let types = types.map(|(at, name)| random_type(draw, name, at == target_type));
        let types: Vec<NodeType> = types.collect();
        let num_relations = 1 + draw.below(8);
        let mut unused = some_of(draw, &RELATIONS, num_relations);
        let mut relations = Vec::new();
        while !unused.is_empty() {
            let name = unused.remove(0);
            // The reverse may come before or after its relation by name.
            let reverse = (!unused.is_empty() && draw.one_in(3))
                .then(|| unused.remove(draw.below(unused.len())));
            relations.push(random_relation(draw, &types, name, reverse));
        }
        Self {
            types,
            relations,
            target_type,
        }
    }

    /// Draws one number for all relations, or numbers for some of the relations that can be reached.
    pub(super) fn random_hops(&self, draw: &mut Draw) -> Vec<HopSpec> {
        let choices = [Fanout::Count(1), Fanout::Count(3), Fanout::All];
        let num_hops = 1 + draw.below(3);
        let mut reached = vec![self.target_type];
        let mut hops = Vec::new();
        for _ in 0..num_hops {
            let relations = self.expanded();
            let ends = relations.iter().filter(|of| reached.contains(&of.to));
            let mut named = BTreeMap::new();
            for relation in ends {
                if !draw.one_in(4) {
                    named.insert(relation.name.clone(), RelationFanout(draw.pick(&choices)));
                }
            }
            let by_name = draw.one_in(2) && !named.is_empty();
            let followed = relations.iter().filter(|of| {
                reached.contains(&of.to) && (!by_name || named.contains_key(&of.name))
            });
            let sources: Vec<usize> = followed.map(|of| of.from).collect();
            reached.extend(sources);
            hops.push(match by_name {
                true => HopSpec::ByRelation(named),
                false => HopSpec::Every(draw.pick(&choices)),
            });
        }
        hops
    }

    pub(super) fn has_signed_weights(&self) -> bool {
        self.relations
            .iter()
            .any(|of| of.weights == Weights::Signed)
    }

    /// Returns all relations with their reverses, sorted by name; each edge of an undirected
    /// relation stands before its own reverse.
    pub(super) fn expanded(&self) -> Vec<Relation> {
        let mut all = Vec::new();
        for relation in &self.relations {
            let reversed = |edge: &Edge| Edge {
                src: edge.dst.clone(),
                dst: edge.src.clone(),
                ..edge.clone()
            };
            if let Some(name) = &relation.reverse {
                all.push(Relation {
                    name: name.clone(),
                    from: relation.to,
                    to: relation.from,
                    edges: relation.edges.iter().map(reversed).collect(),
                    ..relation.clone()
                });
            }
            let mut own = relation.clone();
            if relation.undirected {
                let both = relation.edges.iter();
                own.edges = both
                    .flat_map(|edge| [edge.clone(), reversed(edge)])
                    .collect();
            }
            all.push(own);
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Writes the tables below `dir`, in folders with the names of types and relations.
    pub(super) fn write(&self, dir: &Path) {
        for of_type in &self.types {
            write_nodes(
                &of_type.nodes,
                &dir.join(format!("n-{}", of_type.name)),
                CUT,
            );
        }
        for relation in &self.relations {
            let ends = Ends {
                src: self.types[relation.from].nodes.id_type,
                dst: self.types[relation.to].nodes.id_type,
                weighted: relation.weights != Weights::None,
                edge_dim: relation.edge_dim,
            };
            let dir = dir.join(format!("e-{}", relation.name));
            write_edges(&relation.edges, ends, &dir, CUT);
        }
    }

    /// Returns the table `[input]` of a job.
    pub(super) fn input(&self) -> InputSpec {
        let nodes = self.types.iter().map(|of| {
            let spec = NodesSpec {
                path: format!("n-{}", of.name).as_str().into(),
                ..nodes_spec(&of.nodes, CUT)
            };
            (of.name.clone(), spec)
        });
        let edges = self.relations.iter().map(|of| {
            let features: &[&str] = if of.edge_dim > 0 { &["kind"] } else { &[] };
            let spec = EdgesSpec {
                path: format!("e-{}", of.name).as_str().into(),
                src: "from".to_owned(),
                dst: "to".to_owned(),
                from: Some(self.types[of.from].name.clone()),
                to: Some(self.types[of.to].name.clone()),
                reverse: of.reverse.clone(),
                undirected: of.undirected,
                weight: (of.weights != Weights::None).then(|| "weight".to_owned()),
                features: features.iter().map(|&name| name.to_owned()).collect(),
                ..EdgesSpec::default()
            };
            (of.name.clone(), spec)
        });
        InputSpec {
            pairs: None,
            graphs: None,
            changes: Vec::new(),
            snapshot: None,
            nodes: nodes.collect(),
            edges: edges.collect(),
        }
    }
}

/// Renames the types, so that their order is reversed; returns the new names in the old order.
pub(super) fn rename_types(graph: &TypedGraph) -> (TypedGraph, Vec<String>) {
    let last = graph.types.len() - 1;
    let mut renamed = graph.clone();
    let names: Vec<String> = (0..=last).map(|at| format!("t{}", last - at)).collect();
    for (of_type, name) in renamed.types.iter_mut().zip(&names) {
        of_type.name.clone_from(name);
    }
    renamed.types.reverse();
    renamed.target_type = last - graph.target_type;
    for relation in &mut renamed.relations {
        (relation.from, relation.to) = (last - relation.from, last - relation.to);
    }
    (renamed, names)
}

fn some_of(draw: &mut Draw, names: &[&str], num: usize) -> Vec<String> {
    let mut chosen: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    while chosen.len() > num {
        chosen.remove(draw.below(chosen.len()));
    }
    chosen
}

/// Draws the nodes of a type. Ids of several types overlap.
fn random_type(draw: &mut Draw, name: String, is_target: bool) -> NodeType {
    let shape = Shape {
        nodes: 1 + draw.below(25),
        edges: 0,
        features: draw.pick(&[Features::None, Features::Dense, Features::Sparse]),
        ..Shape::random(draw)
    };
    let mut nodes = shape.graph(draw);
    if !is_target {
        (nodes.labels, nodes.splits) = (LabelColumn::None, None);
    } else if matches!(shape.labels, Kind::None) {
        nodes.labels = LabelColumn::None;
    }
    NodeType { name, nodes }
}

/// Draws a relation with parallel edges, self-loops and two hubs.
fn random_relation(
    draw: &mut Draw,
    types: &[NodeType],
    name: String,
    reverse: Option<String>,
) -> Relation {
    let (from, to) = (draw.below(types.len()), draw.below(types.len()));
    let (sources, dsts) = (&types[from].nodes.ids, &types[to].nodes.ids);
    let weights = draw.pick(&[Weights::None, Weights::Few, Weights::Many, Weights::Signed]);
    let shape = Shape {
        weights,
        edge_dim: draw.pick(&[0, 0, 1, 3]),
        ..Shape::random(draw)
    };
    let mut edges: Vec<Edge> = Vec::new();
    for _ in 0..draw.below(120) {
        let (src, dst): (Id, Id) = if !edges.is_empty() && draw.one_in(6) {
            let parallel = &edges[draw.below(edges.len())];
            (parallel.src.clone(), parallel.dst.clone())
        } else {
            let most = if draw.one_in(3) {
                dsts.len().min(2)
            } else {
                dsts.len()
            };
            (draw.pick(sources), dsts[draw.below(most)].clone())
        };
        edges.push(shape.edge(draw, src, dst));
    }
    Relation {
        name,
        from,
        to,
        edges,
        weights,
        edge_dim: shape.edge_dim,
        undirected: reverse.is_none() && from == to && draw.one_in(2),
        reverse,
    }
}
