//! Generated graphs: R-MAT edges and labelled nodes as input tables, for tests and benchmarks.
//!
//! R-MAT (Chakrabarti, Zhan, Faloutsos, "R-MAT: a recursive model for graph mining", SDM 2004)
//! halves the adjacency matrix in both directions, level by level, and draws one of the four
//! quadrants at each. Degrees are skewed, as in real graphs.
//!
//! A graph has one type of nodes, or several types and relations ([`TypedSpec`]).
//!
//! Every row is a pure function of the graph's description and the number of the row. So several
//! threads make batches, and only a few batches are in memory at a time.

mod draws;
mod nodes;
mod rmat;
mod table;
mod typed;

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array};
use arrow::datatypes::{DataType, Field, Schema};
use store::NUM_NODES_MAX;

use crate::FlattenError;
use nodes::{Nodes, Shown, ids};
use rmat::{Hubs, Rmat, Side};
use table::{Table, io};

pub use typed::{RELATIONS_MAX, TYPES_MAX, TypedPlan, TypedSpec, generate_typed};

/// File name of the node table.
pub const NODES_FILE: &str = "nodes.parquet";

/// File name of the edge table.
pub const EDGES_FILE: &str = "edges.parquet";

/// Largest number of edges of a graph, including the in-edges of hubs.
pub const EDGES_MAX: u64 = 1 << 40;

/// Largest number of features of a node.
pub const FEATURES_MAX: u32 = 4096;

/// Largest number of classes.
pub const CLASSES_MAX: u32 = 1 << 20;

/// Largest seed: the largest integer of a job file.
pub const SEED_MAX: u64 = i64::MAX as u64;

/// Rows of a row group of the edge table.
const EDGE_ROW_GROUP: usize = 1 << 20;

/// The description of a graph to generate; [`GraphSpec::into_plan`] checks it.
#[derive(Clone, Debug)]
pub struct GraphSpec {
    /// Number of nodes, 1 to 2^32 - 2; need not be a power of two. Their ids are `0..nodes`, in an
    /// order unrelated to degrees.
    pub nodes: u64,
    /// Number of edges drawn by R-MAT. None is a self-loop; parallel edges occur.
    pub edges: u64,
    /// Features of a node, at most [`FEATURES_MAX`]; 0 leaves the column out.
    pub features: u32,
    /// Classes of the labels, 2 to [`CLASSES_MAX`].
    pub classes: u32,
    /// Number of hubs, at most `nodes`: nodes whose degrees R-MAT makes high, with `hub_in_edges`
    /// more in-edges each.
    pub hubs: u64,
    /// Extra in-edges of each hub, each from a different node.
    pub hub_in_edges: u64,
    /// Whether edges have a weight, which is uniform in (0, 1].
    pub weights: bool,
    /// Random seed, at most [`SEED_MAX`].
    pub seed: u64,
}

/// A checked [`GraphSpec`] and values derived from it.
#[derive(Clone, Debug)]
pub struct GraphPlan {
    spec: GraphSpec,
    nodes: Nodes,
    rmat: Rmat,
}

impl GraphSpec {
    /// Checks the numbers.
    ///
    /// # Errors
    ///
    /// If a number is outside its limits; the error names them.
    pub fn into_plan(self) -> Result<GraphPlan, FlattenError> {
        within("--nodes", self.nodes, 1, NUM_NODES_MAX)?;
        self.check()?;
        let others = self.nodes - 1;
        let hubs_max = if others == 0 { 0 } else { self.nodes };
        within("--hubs", self.hubs, 0, hubs_max)?;
        let hubs = self.check_hub_in_edges(others)?;
        let side = Side::new(self.nodes, self.seed);
        let sides = (side.clone(), side, true);
        Ok(GraphPlan {
            rmat: Rmat::new(self.seed, sides, self.edges, hubs),
            nodes: Nodes {
                seed: self.seed,
                count: self.nodes,
                features: self.features,
                classes: self.classes,
                shown: Shown::Both,
            },
            spec: self,
        })
    }

    /// Checks the numbers of edges, features and classes, and the seed.
    fn check(&self) -> Result<(), FlattenError> {
        let edges_max = if self.nodes == 1 { 0 } else { EDGES_MAX };
        within("--edges", self.edges, 0, edges_max)?;
        within("--features", self.features.into(), 0, FEATURES_MAX.into())?;
        within("--classes", self.classes.into(), 2, CLASSES_MAX.into())?;
        within("--seed", self.seed, 0, SEED_MAX)
    }

    /// Checks the extra in-edges of hubs, which have so many possible sources.
    fn check_hub_in_edges(&self, sources: u64) -> Result<Hubs, FlattenError> {
        // With hubs, `hub_in_edges` is at least 1; without, it is 0.
        let hubs_given = u64::from(self.hubs > 0);
        within(
            "--hub-in-edges",
            self.hub_in_edges,
            hubs_given,
            hubs_given * sources,
        )?;
        // Both are below 2^32.
        if self.hubs * self.hub_in_edges > EDGES_MAX - self.edges {
            return Err(FlattenError::Key {
                key: "--hub-in-edges",
                value: format!("{} for {} hubs", self.hub_in_edges, self.hubs),
                allowed: format!("at most {EDGES_MAX} edges in all are allowed"),
            });
        }
        Ok(Hubs {
            count: self.hubs,
            in_edges: self.hub_in_edges,
        })
    }
}

/// Writes the node table and the edge table of a graph into a directory, creating the directory.
///
/// Both tables have temporary names until both are complete. Existing files are replaced.
///
/// # Errors
///
/// If a file cannot be written.
pub fn generate(plan: &GraphPlan, dir: &Path) -> Result<(), FlattenError> {
    std::fs::create_dir_all(dir).map_err(io("create", dir))?;
    let nodes = Table {
        path: dir.join(NODES_FILE),
        rows: plan.spec.nodes,
        row_group: plan.nodes.row_group(),
        schema: Arc::new(plan.nodes.schema()),
    };
    let edges = Table {
        path: dir.join(EDGES_FILE),
        rows: plan.num_edges(),
        row_group: EDGE_ROW_GROUP,
        schema: Arc::new(edge_schema(plan.spec.weights)),
    };
    nodes.write(|first, rows| plan.nodes.columns(first, rows))?;
    edges.write(|first, rows| plan.edge_columns(first, rows))?;
    nodes.put_in_place()?;
    edges.put_in_place()
}

impl GraphPlan {
    /// Returns the description that was checked.
    pub fn spec(&self) -> &GraphSpec {
        &self.spec
    }

    /// Returns the number of edges, including the in-edges of hubs.
    pub fn num_edges(&self) -> u64 {
        self.rmat.num_edges()
    }

    /// Returns the ids of the hubs.
    pub fn hub_ids(&self) -> impl Iterator<Item = u64> {
        self.rmat.hub_ids()
    }

    fn edge_columns(&self, first: u64, rows: usize) -> Vec<ArrayRef> {
        let ends = |row| {
            let (src, dst, _) = self.rmat.edge(row);
            (src, dst)
        };
        edge_columns((first, rows), ends, self.spec.weights.then_some(&self.rmat))
    }
}

fn edge_schema(weights: bool) -> Schema {
    let mut fields = ["src", "dst"]
        .map(|name| Field::new(name, DataType::Int64, false))
        .to_vec();
    if weights {
        fields.push(Field::new("weight", DataType::Float32, false));
    }
    Schema::new(fields)
}

/// Returns the columns of `rows` edges from row `first` on; `weighted` has their weights, if any.
fn edge_columns(
    (first, rows): (u64, usize),
    ends: impl Fn(u64) -> (u64, u64),
    weighted: Option<&Rmat>,
) -> Vec<ArrayRef> {
    let all = first..first + rows as u64;
    let (src, dst): (Vec<u64>, Vec<u64>) = all.clone().map(ends).unzip();
    let mut columns: Vec<ArrayRef> = vec![ids(src), ids(dst)];
    if let Some(rmat) = weighted {
        let weights = all.map(|row| rmat.weight(row));
        columns.push(Arc::new(Float32Array::from_iter_values(weights)));
    }
    columns
}

fn within(key: &'static str, value: u64, least: u64, most: u64) -> Result<(), FlattenError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    let allowed = match most {
        // One node has only self-loops, and without hubs there are no hub in-edges.
        0 => "only 0 is allowed here".to_owned(),
        _ => format!("{least} to {most} are allowed"),
    };
    Err(FlattenError::Key {
        key,
        value: value.to_string(),
        allowed,
    })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A small random graph with weights.
    pub(crate) fn plan(nodes: u64, edges: u64) -> GraphPlan {
        let spec = GraphSpec {
            nodes,
            edges,
            features: 3,
            classes: 4,
            hubs: 0,
            hub_in_edges: 0,
            weights: true,
            seed: 5,
        };
        spec.into_plan().unwrap()
    }

    #[test]
    fn rows_do_not_depend_on_the_batch_they_are_made_in() {
        let plan = plan(100, 100);
        let nodes = |first, rows| plan.nodes.columns(first, rows);
        let edges = |first, rows| plan.edge_columns(first, rows);
        let made = [
            (nodes(0, 100), nodes(30, 20)),
            (edges(0, 100), edges(30, 20)),
        ];
        for (whole, some) in made {
            for (column, part) in whole.iter().zip(some) {
                assert_eq!(&column.slice(30, 20), &part);
            }
        }
    }
}
