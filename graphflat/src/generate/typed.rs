//! Generated graphs with node types and relations.
//!
//! The first type has labels, and its features are noise. The features of the other types show a
//! class, and most edges from them come from a node of the class of the node that they lead to. So
//! the label of a node is learnt from its neighbours of other types alone.

use std::path::Path;
use std::sync::Arc;

use arrow::array::ArrayRef;
use store::NUM_NODES_MAX;

use super::draws::{Draws, Purpose, stream, unit};
use super::nodes::{Nodes, Shown};
use super::rmat::{Hubs, Rmat, Side};
use super::table::{Table, io};
use super::{EDGE_ROW_GROUP, GraphSpec, edge_columns, edge_schema, within};
use crate::FlattenError;

/// Largest number of types.
pub const TYPES_MAX: u32 = 64;

/// Largest number of relations.
pub const RELATIONS_MAX: u32 = 256;

/// Share of the edges from other types than the first that come from a node of the class of the
/// node that they lead to.
const SAME_CLASS_SHARE: f32 = 0.75;

/// The description of a typed graph to generate; [`TypedSpec::into_plan`] checks it.
#[derive(Clone, Debug)]
pub struct TypedSpec {
    /// Nodes and edges of all types and relations, and features of each type. Hubs are nodes of the
    /// first type, whose further in-edges are of the first relation.
    pub graph: GraphSpec,
    /// Number of types, 1 to [`TYPES_MAX`].
    pub types: u32,
    /// Number of relations, at least `types - 1`, at most [`RELATIONS_MAX`].
    pub relations: u32,
    /// The nodes of each type in proportion; empty: type i has a share of 1 / (i + 1).
    pub type_shares: Vec<f64>,
    /// The edges of each relation in proportion; empty: relation i has a share of 1 / (i + 1).
    pub relation_shares: Vec<f64>,
}

/// A checked [`TypedSpec`] and values derived from it.
#[derive(Clone, Debug)]
pub struct TypedPlan {
    spec: TypedSpec,
    types: Vec<Nodes>,
    relations: Vec<Relation>,
}

#[derive(Clone, Debug)]
struct Relation {
    from: usize,
    to: usize,
    rmat: Rmat,
}

impl TypedSpec {
    /// Checks the numbers, and draws the ends of the relations.
    ///
    /// # Errors
    ///
    /// If a number is outside its limits, or shares are not one positive number each.
    pub fn into_plan(self) -> Result<TypedPlan, FlattenError> {
        let (num_types, num_relations) = (self.types, self.relations);
        within("--types", num_types.into(), 1, TYPES_MAX.into())?;
        // Each type but the first needs a relation that leads to another type.
        let relations_min = (num_types - 1).max(1);
        within(
            "--relations",
            num_relations.into(),
            relations_min.into(),
            RELATIONS_MAX.into(),
        )?;
        let graph = &self.graph;
        within("--nodes", graph.nodes, num_types.into(), NUM_NODES_MAX)?;
        graph.check()?;
        let spare = graph.nodes - u64::from(num_types);
        let type_shares = shares("--type-shares", &self.type_shares, num_types)?;
        let counts = divided(spare, &type_shares)
            .into_iter()
            .map(|count| 1 + count);
        let counts: Vec<u64> = counts.collect();
        let ends = draw_ends(graph.seed, &counts, num_relations);
        let hubs = self.check_hubs(ends[0], &counts)?;
        let edge_shares = shares("--relation-shares", &self.relation_shares, num_relations)?;
        let edges = divided(graph.edges, &edge_shares);
        let types = self.types_of(&counts);
        let relations = self.relations_of(&types, ends.into_iter().zip(edges), hubs);
        Ok(TypedPlan {
            spec: self,
            types,
            relations,
        })
    }

    fn types_of(&self, counts: &[u64]) -> Vec<Nodes> {
        let graph = &self.graph;
        let nodes = |(at, &count): (usize, &u64)| Nodes {
            seed: seed_of(graph.seed, Purpose::Type, at),
            count,
            features: graph.features,
            classes: graph.classes,
            shown: if at == 0 {
                Shown::Labels
            } else {
                Shown::Features
            },
        };
        counts.iter().enumerate().map(nodes).collect()
    }

    fn relations_of(
        &self,
        types: &[Nodes],
        of_relations: impl Iterator<Item = ((usize, usize), u64)>,
        hubs: Hubs,
    ) -> Vec<Relation> {
        let side = |at: usize| Side::new(types[at].count, types[at].seed);
        let relation = |(at, ((from, to), edges)): (usize, ((usize, usize), u64))| {
            let seed = seed_of(self.graph.seed, Purpose::Relation, at);
            let sides = (side(from), side(to), from == to);
            let own_hubs = if at == 0 { hubs } else { Hubs::default() };
            Relation {
                from,
                to,
                rmat: Rmat::new(seed, sides, edges, own_hubs),
            }
        };
        of_relations.enumerate().map(relation).collect()
    }

    /// Checks the hubs, which are nodes of the first type and have in-edges of the first relation.
    fn check_hubs(&self, ends: (usize, usize), counts: &[u64]) -> Result<Hubs, FlattenError> {
        let graph = &self.graph;
        let sources = counts[ends.0] - u64::from(ends.0 == ends.1);
        let hubs_max = if sources == 0 { 0 } else { counts[ends.1] };
        within("--hubs", graph.hubs, 0, hubs_max)?;
        graph.check_hub_in_edges(sources)
    }
}

/// Writes the tables of a typed graph into a directory, creating the directory.
///
/// Tables have temporary names until all are complete. Existing files are replaced.
///
/// # Errors
///
/// If a file cannot be written.
pub fn generate_typed(plan: &TypedPlan, dir: &Path) -> Result<(), FlattenError> {
    std::fs::create_dir_all(dir).map_err(io("create", dir))?;
    let mut written = Vec::new();
    for (at, nodes) in plan.types.iter().enumerate() {
        let table = Table {
            path: dir.join(TypedPlan::nodes_file(at)),
            rows: nodes.count,
            row_group: nodes.row_group(),
            schema: Arc::new(nodes.schema()),
        };
        table.write(|first, rows| nodes.columns(first, rows))?;
        written.push(table);
    }
    for (at, relation) in plan.relations.iter().enumerate() {
        let table = Table {
            path: dir.join(TypedPlan::edges_file(at)),
            rows: relation.rmat.num_edges(),
            row_group: EDGE_ROW_GROUP,
            schema: Arc::new(edge_schema(plan.spec.graph.weights)),
        };
        table.write(|first, rows| plan.edge_columns(relation, first, rows))?;
        written.push(table);
    }
    written.iter().try_for_each(Table::put_in_place)
}

impl TypedPlan {
    /// Returns the description that was checked.
    pub fn spec(&self) -> &TypedSpec {
        &self.spec
    }

    /// Returns the number of types. Type `i` is named `t` and the number; type 0 has labels.
    pub fn num_types(&self) -> usize {
        self.types.len()
    }

    /// Returns the number of nodes of a type.
    pub fn num_nodes(&self, node_type: usize) -> u64 {
        self.types[node_type].count
    }

    /// Returns the number of relations. Relation `i` is named `r` and the number.
    pub fn num_relations(&self) -> usize {
        self.relations.len()
    }

    /// Returns the types that a relation leads from and to.
    pub fn ends(&self, relation: usize) -> (usize, usize) {
        let of = &self.relations[relation];
        (of.from, of.to)
    }

    /// Returns the number of edges of a relation, including the in-edges of hubs.
    pub fn num_edges(&self, relation: usize) -> u64 {
        self.relations[relation].rmat.num_edges()
    }

    /// Returns the ids of the hubs, which are nodes of type 0.
    pub fn hub_ids(&self) -> impl Iterator<Item = u64> {
        self.relations[0].rmat.hub_ids()
    }

    /// Returns the file name of the nodes of a type.
    pub fn nodes_file(node_type: usize) -> String {
        format!("nodes-t{node_type}.parquet")
    }

    /// Returns the file name of the edges of a relation.
    pub fn edges_file(relation: usize) -> String {
        format!("edges-r{relation}.parquet")
    }

    /// Returns source and destination of an edge. Most edges from another type than the first come
    /// from a node of the class of the node that they lead to.
    fn edge(&self, relation: &Relation, row: u64) -> (u64, u64) {
        let (src, dst, is_of_hub) = relation.rmat.edge(row);
        let draw = || unit(relation.rmat.draws(Purpose::SameClass, row).next());
        // The sources of a hub differ, and those of the first type have classes of their own.
        if is_of_hub || relation.from == 0 || draw() > SAME_CLASS_SHARE {
            return (src, dst);
        }
        let classes = u64::from(self.spec.graph.classes);
        let near = src - src % classes + self.types[relation.to].class(dst);
        let is_node = near < self.types[relation.from].count;
        let is_loop = relation.from == relation.to && near == dst;
        match is_node && !is_loop {
            true => (near, dst),
            false => (src, dst),
        }
    }

    fn edge_columns(&self, relation: &Relation, first: u64, rows: usize) -> Vec<ArrayRef> {
        let weighted = self.spec.graph.weights.then_some(&relation.rmat);
        edge_columns((first, rows), |row| self.edge(relation, row), weighted)
    }
}

/// Returns the seed of a type or a relation.
fn seed_of(seed: u64, purpose: Purpose, at: usize) -> u64 {
    Draws::new(stream(seed, purpose), at as u64).next()
}

/// Draws which types each relation leads from and to.
///
/// The first relations lead from each type but the first to the first or to one that leads there.
/// So two hops from the first type reach all types. The others join any two types.
fn draw_ends(seed: u64, counts: &[u64], relations: u32) -> Vec<(usize, usize)> {
    let types = counts.len();
    let mut draws = Draws::new(stream(seed, Purpose::Ends), 0);
    let mut below = |count: usize| {
        let drawn = draws.next() % count as u64;
        usize::try_from(drawn).expect("below a count")
    };
    // Types from which an edge leads to the first type, and the first type.
    let mut near = vec![0];
    let mut ends = Vec::new();
    for from in 1..types {
        let to = near[below(near.len())];
        if to == 0 {
            near.push(from);
        }
        ends.push((from, to));
    }
    while ends.len() < relations as usize {
        let (from, to) = (below(types), below(types));
        // A type of one node has no edges but self-loops; a graph of one node has no edges.
        if from != to || counts[from] > 1 || types == 1 {
            ends.push((from, to));
        }
    }
    ends
}

/// Returns the shares that are given, or those of the default.
fn shares(key: &'static str, given: &[f64], count: u32) -> Result<Vec<f64>, FlattenError> {
    if given.is_empty() {
        return Ok((1..=count).map(|at| 1.0 / f64::from(at)).collect());
    }
    let is_share = |share: &f64| share.is_finite() && *share > 0.0;
    if given.len() == count as usize && given.iter().all(is_share) {
        return Ok(given.to_vec());
    }
    let given: Vec<String> = given.iter().map(f64::to_string).collect();
    Err(FlattenError::Key {
        key,
        value: given.join(","),
        allowed: format!("{count} numbers above 0 are allowed"),
    })
}

/// Divides a number in proportion to shares.
fn divided(total: u64, shares: &[f64]) -> Vec<u64> {
    let all: f64 = shares.iter().sum();
    let (mut before, mut sum) = (0, 0.0);
    let ends = shares.iter().enumerate().map(|(at, share)| {
        sum += share;
        // The last end is exact for any rounding.
        let end = match at + 1 == shares.len() {
            true => total,
            false => rounded(total, sum / all).clamp(before, total),
        };
        let count = end - before;
        before = end;
        count
    });
    ends.collect()
}

/// Returns a share of a number, rounded.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the share is 0 to 1, and the number is at most 2^40"
)]
fn rounded(total: u64, share: f64) -> u64 {
    (total as f64 * share).round() as u64
}

#[cfg(test)]
mod tests;
