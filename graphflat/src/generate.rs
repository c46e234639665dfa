//! Generated graphs: R-MAT edges and labelled nodes as input tables, for tests and benchmarks.
//!
//! R-MAT (Chakrabarti, Zhan, Faloutsos, "R-MAT: a recursive model for graph mining", SDM 2004)
//! halves the adjacency matrix in both directions, level by level, and draws one of the four
//! quadrants at each. Degrees are skewed, as in real graphs.
//!
//! Every row is a pure function of the graph's description and the number of the row. So several
//! threads make batches, and only a few batches are in memory at a time.

mod draws;
mod table;

use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int32Array, Int64Array, ListArray, StringArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Schema};
use store::NUM_NODES_MAX;

use crate::FlattenError;
use draws::{Draws, Permutation, Purpose, bits_below, signed, stream, unit};
use table::{Table, io};

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

/// Largest number of rows of a row group of the node table; fewer if features are wide.
const NODE_ROW_GROUP: usize = 1 << 16;

/// Feature values of a row group, which the writer holds in memory.
const ROW_GROUP_VALUES_MAX: usize = 1 << 24;

/// Upper ends of R-MAT's first three quadrants in 32 bits: their shares are 0.57, 0.19 and 0.19,
/// and 0.05 is left for the fourth.
const QUADRANT_ENDS: [u64; 3] = [(57 << 32) / 100, (76 << 32) / 100, (95 << 32) / 100];

/// Distance between class centres in each feature, relative to the noise.
const CLASS_SIGNAL: f32 = 0.5;

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
    /// Bits of a node's number.
    scale: u32,
    /// Number of extra in-edges of hubs; they have the first edge numbers.
    hub_edges: u64,
    /// Maps a row of the edge table to an edge number; spreads the edges of hubs over the table.
    edge_order: Permutation,
    /// Maps a place in R-MAT's matrix, which decides the degree, to an id.
    ids: Permutation,
    /// Maps the number of a hub's extra in-edge to the distance from the hub to the source.
    hub_sources: Permutation,
}

impl GraphSpec {
    /// Checks the numbers.
    ///
    /// # Errors
    ///
    /// If a number is outside its limits; the error names them.
    pub fn into_plan(self) -> Result<GraphPlan, FlattenError> {
        within("--nodes", self.nodes, 1, NUM_NODES_MAX)?;
        let edges_max = if self.nodes == 1 { 0 } else { EDGES_MAX };
        within("--edges", self.edges, 0, edges_max)?;
        within("--features", self.features.into(), 0, FEATURES_MAX.into())?;
        within("--classes", self.classes.into(), 2, CLASSES_MAX.into())?;
        let others = self.nodes - 1;
        within(
            "--hubs",
            self.hubs,
            0,
            if others == 0 { 0 } else { self.nodes },
        )?;
        // With hubs, `hub_in_edges` is at least 1; without, it is 0.
        let hubs_given = u64::from(self.hubs > 0);
        within(
            "--hub-in-edges",
            self.hub_in_edges,
            hubs_given,
            hubs_given * others,
        )?;
        within("--seed", self.seed, 0, SEED_MAX)?;
        // Both are below 2^32.
        let hub_edges = self.hubs * self.hub_in_edges;
        if hub_edges > EDGES_MAX - self.edges {
            return Err(FlattenError::Key {
                key: "--hub-in-edges",
                value: format!("{} for {} hubs", self.hub_in_edges, self.hubs),
                allowed: format!("at most {EDGES_MAX} edges in all are allowed"),
            });
        }
        let key = |purpose| stream(self.seed, purpose);
        Ok(GraphPlan {
            scale: bits_below(self.nodes),
            hub_edges,
            edge_order: Permutation::new(self.edges + hub_edges, key(Purpose::EdgeOrder)),
            ids: Permutation::new(self.nodes, key(Purpose::Ids)),
            hub_sources: Permutation::new(others, key(Purpose::HubSources)),
            spec: self,
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
        row_group: plan.node_row_group(),
        schema: Arc::new(plan.node_schema()),
    };
    let edges = Table {
        path: dir.join(EDGES_FILE),
        rows: plan.num_edges(),
        row_group: EDGE_ROW_GROUP,
        schema: Arc::new(plan.edge_schema()),
    };
    nodes.write(|first, rows| plan.node_columns(first, rows))?;
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
        self.spec.edges + self.hub_edges
    }

    /// Returns the ids of the hubs.
    pub fn hub_ids(&self) -> impl Iterator<Item = u64> {
        (0..self.spec.hubs).map(|place| self.ids.apply(place))
    }

    /// Returns source and destination of the edge in a row of the edge table.
    fn edge(&self, row: u64) -> (u64, u64) {
        if self.hub_edges == 0 {
            return self.rmat_edge(row);
        }
        match self.edge_order.apply(row) {
            edge if edge < self.hub_edges => self.hub_edge(edge),
            edge => self.rmat_edge(edge - self.hub_edges),
        }
    }

    /// Draws until both ends are nodes, and differ.
    fn rmat_edge(&self, edge: u64) -> (u64, u64) {
        let mut draws = self.draws(Purpose::Edge, edge);
        loop {
            let (mut src, mut dst, mut bits) = (0, 0, 0);
            for level in 0..self.scale {
                bits = if level % 2 == 0 {
                    draws.next()
                } else {
                    bits >> 32
                };
                let draw = bits & u64::from(u32::MAX);
                let [a, b, c] = QUADRANT_ENDS.map(|end| u64::from(draw >= end));
                src = src << 1 | b;
                // Set in the second and the fourth quadrant.
                dst = dst << 1 | (a - b + c);
            }
            if src != dst && src.max(dst) < self.spec.nodes {
                return (self.ids.apply(src), self.ids.apply(dst));
            }
        }
    }

    /// Returns an extra in-edge of a hub; those of one hub have different sources.
    fn hub_edge(&self, edge: u64) -> (u64, u64) {
        let hub = self.ids.apply(edge / self.spec.hub_in_edges);
        let distance = 1 + self.hub_sources.apply(edge % self.spec.hub_in_edges);
        ((hub + distance) % self.spec.nodes, hub)
    }

    fn weight(&self, row: u64) -> f32 {
        unit(self.draws(Purpose::Weight, row).next())
    }

    fn class(&self, node: u64) -> u64 {
        self.draws(Purpose::Class, node).next() % u64::from(self.spec.classes)
    }

    /// Appends noise around the centre of the node's class.
    fn push_features(&self, node: u64, values: &mut Vec<f32>) {
        let mut centre = self.draws(Purpose::ClassCentre, self.class(node));
        let mut noise = self.draws(Purpose::Feature, node);
        let value = |_| signed(noise.next()) + CLASS_SIGNAL * signed(centre.next());
        values.extend((0..self.spec.features).map(value));
    }

    fn draws(&self, purpose: Purpose, row: u64) -> Draws {
        Draws::new(stream(self.spec.seed, purpose), row)
    }

    fn node_row_group(&self) -> usize {
        let values = self.spec.features.max(1) as usize;
        (ROW_GROUP_VALUES_MAX / values).min(NODE_ROW_GROUP)
    }

    fn node_schema(&self) -> Schema {
        let mut fields = vec![Field::new("id", DataType::Int64, false)];
        if self.spec.features > 0 {
            let features = DataType::List(Arc::new(feature_field()));
            fields.push(Field::new("features", features, false));
        }
        fields.push(Field::new("label", DataType::Int32, false));
        fields.push(Field::new("split", DataType::Utf8, true));
        Schema::new(fields)
    }

    fn node_columns(&self, first: u64, rows: usize) -> Vec<ArrayRef> {
        let nodes = first..first + rows as u64;
        let mut columns: Vec<ArrayRef> = vec![ids(nodes.clone())];
        if self.spec.features > 0 {
            let dim = self.spec.features as usize;
            let mut values = Vec::with_capacity(rows * dim);
            nodes
                .clone()
                .for_each(|node| self.push_features(node, &mut values));
            let offsets = OffsetBuffer::from_repeated_length(dim, rows);
            let values = Arc::new(Float32Array::from(values));
            let lists = ListArray::new(Arc::new(feature_field()), offsets, values, None);
            columns.push(Arc::new(lists));
        }
        let labels = nodes
            .clone()
            .map(|node| i32::try_from(self.class(node)).expect("below CLASSES_MAX"));
        columns.push(Arc::new(Int32Array::from_iter_values(labels)));
        columns.push(Arc::new(nodes.map(split).collect::<StringArray>()));
        columns
    }

    fn edge_schema(&self) -> Schema {
        let mut fields = ["src", "dst"]
            .map(|name| Field::new(name, DataType::Int64, false))
            .to_vec();
        if self.spec.weights {
            fields.push(Field::new("weight", DataType::Float32, false));
        }
        Schema::new(fields)
    }

    fn edge_columns(&self, first: u64, rows: usize) -> Vec<ArrayRef> {
        let all = first..first + rows as u64;
        let (src, dst): (Vec<u64>, Vec<u64>) = all.clone().map(|row| self.edge(row)).unzip();
        let mut columns: Vec<ArrayRef> = vec![ids(src), ids(dst)];
        if self.spec.weights {
            let weights = all.map(|row| self.weight(row));
            columns.push(Arc::new(Float32Array::from_iter_values(weights)));
        }
        columns
    }
}

/// Assigns every tenth node to train, every twentieth each to validation and to test.
fn split(node: u64) -> Option<&'static str> {
    match node % 20 {
        0 | 10 => Some("train"),
        5 => Some("val"),
        15 => Some("test"),
        _ => None,
    }
}

fn feature_field() -> Field {
    Field::new("item", DataType::Float32, false)
}

fn ids(ids: impl IntoIterator<Item = u64>) -> ArrayRef {
    let ids = ids
        .into_iter()
        .map(|id| i64::try_from(id).expect("below 2^32"));
    Arc::new(Int64Array::from_iter_values(ids))
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
    fn edges_join_two_nodes_for_any_number_of_them() {
        for nodes in [2, 3, 5, 100, 129] {
            let plan = plan(nodes, 500);
            for (src, dst) in (0..500).map(|row| plan.edge(row)) {
                assert!(
                    src != dst && src.max(dst) < nodes,
                    "{src} -> {dst} of {nodes}"
                );
            }
        }
    }

    #[test]
    fn rows_do_not_depend_on_the_batch_they_are_made_in() {
        let plan = plan(100, 100);
        for make in [GraphPlan::node_columns, GraphPlan::edge_columns] {
            let whole = make(&plan, 0, 100);
            for (column, part) in whole.iter().zip(make(&plan, 30, 20)) {
                assert_eq!(&column.slice(30, 20), &part);
            }
        }
    }

    #[test]
    fn quadrants_are_drawn_as_often_as_the_paper_has_it() {
        const NUM_EDGES: u64 = 100_000;
        let plan = plan(1 << 16, NUM_EDGES);
        let place: std::collections::BTreeMap<u64, u64> = (0..1 << 16)
            .map(|place| (plan.ids.apply(place), place))
            .collect();
        let mut counts = [0.0; 4];
        for (src, dst) in (0..NUM_EDGES).map(|row| plan.edge(row)) {
            let half = |id| usize::from(place[id] >= 1 << 15);
            counts[2 * half(&src) + half(&dst)] += 1.0 / NUM_EDGES as f64;
        }
        // Six standard deviations, and the few self-loops that are redrawn.
        let expected = [0.57, 0.19, 0.19, 0.05];
        for (count, share) in counts.into_iter().zip(expected) {
            assert!((count - share).abs() < 0.01, "{counts:?}");
        }
    }
}
