//! The nodes of each type, and their positions.

use std::collections::BTreeSet;

use schemas::{
    Categories, EdgeRows, Features, GraphPlan, Ids, NodeKeys, NodesPlan, RelationPlan, RowNumbers,
    Split,
};
use store::StoreError;

use super::edge::Edge;
use super::id_index::IdIndex;
use crate::FlattenError;

/// Ids, classes and categories of a type while its table is read.
pub(super) struct TypeKeys {
    ids: Ids,
    rows: Vec<RowNumbers>,
    names: BTreeSet<String>,
    pub(super) max_class: Option<u32>,
    pub(super) categories: Categories,
}

impl TypeKeys {
    pub(super) fn new(nodes: &NodesPlan) -> Self {
        Self {
            categories: Categories::default(),
            ids: Ids::new(nodes.id_type()),
            rows: Vec::new(),
            names: BTreeSet::new(),
            max_class: None,
        }
    }

    /// Adds the keys of the next unit.
    ///
    /// # Errors
    ///
    /// If a column has more categories than allowed.
    pub(super) fn add(&mut self, nodes: &NodesPlan, found: NodeKeys) -> Result<(), FlattenError> {
        nodes.merge_categories(&mut self.categories, found.categories)?;
        self.ids.extend_from(&found.ids, 0..found.ids.len());
        self.rows.push(found.rows);
        self.names.extend(found.class_names);
        self.max_class = self.max_class.max(found.max_class);
        Ok(())
    }

    /// Returns the names of the classes, sorted.
    pub(super) fn names(&self) -> Vec<String> {
        self.names.iter().cloned().collect()
    }
}

/// The nodes of a type.
pub struct TypeSurvey {
    /// Ids in the order of the table.
    pub ids: Ids,
    /// `[num_nodes]`.
    pub split: Vec<Split>,
    /// Position of each id.
    index: IdIndex,
    /// Position of the first node.
    pub(super) first: u32,
    /// Features of some rows, spread over the table.
    pub(super) features: Features,
}

/// The nodes of all types.
pub(super) struct Types {
    types: Vec<TypeSurvey>,
    num_nodes: usize,
}

impl Types {
    /// Indexes the ids of each type; `rows` has its splits and some of its features.
    ///
    /// # Errors
    ///
    /// If two nodes of a type have the same id, or there are too many nodes.
    pub(super) fn new(
        graph: &GraphPlan,
        keys: Vec<TypeKeys>,
        rows: Vec<(Vec<Split>, Features)>,
    ) -> Result<Self, StoreError> {
        let count: usize = keys.iter().map(|keys| keys.ids.len()).sum();
        if u32::try_from(count).is_err() {
            return Err(StoreError::TooLarge {
                what: "nodes",
                count: count as u64,
                limit: u64::from(u32::MAX),
            });
        }
        let mut first = 0;
        let mut types = Vec::with_capacity(keys.len());
        for ((of_type, own), (split, features)) in graph.types.iter().zip(keys).zip(rows) {
            let len = u32::try_from(own.ids.len()).expect("all nodes were counted");
            types.push(TypeSurvey {
                index: IdIndex::new(&own.ids, &of_type.nodes, &own.rows)?,
                ids: own.ids,
                split,
                first,
                features,
            });
            first += len;
        }
        let num_nodes = count;
        Ok(Self { types, num_nodes })
    }

    pub(super) fn all(&self) -> &[TypeSurvey] {
        &self.types
    }

    pub(super) fn num_nodes(&self) -> usize {
        self.num_nodes
    }

    /// Returns the positions of all nodes, by type and then by id.
    pub(super) fn order(&self) -> Vec<u32> {
        let of_type = |of_type: &TypeSurvey| {
            let order = of_type.ids.sort_permutation();
            order
                .into_iter()
                .map(|row| of_type.first + row)
                .collect::<Vec<u32>>()
        };
        self.types.iter().flat_map(of_type).collect()
    }

    /// Returns the type of a node, and the row of the node in the type's table.
    pub(super) fn at(&self, node: u32) -> (usize, usize) {
        let type_idx = self.types.partition_point(|of_type| of_type.first <= node) - 1;
        // Types without nodes have the same first position as the next type.
        (type_idx, (node - self.types[type_idx].first) as usize)
    }

    /// Visits the edges of a relation's rows, and the reverses of undirected edges; returns the lost
    /// rows.
    pub(super) fn each_row(
        &self,
        relation: &RelationPlan,
        rows: &EdgeRows,
        mut visit: impl FnMut(Edge),
    ) -> Lost {
        let (src_type, dst_type) = match relation.reversed {
            false => (relation.from, relation.to),
            true => (relation.to, relation.from),
        };
        let (srcs, dsts) = (&self.types[src_type], &self.types[dst_type]);
        let is_undirected = relation.edges.undirected();
        let mut lost = Lost::default();
        for (at, row) in rows.rows.iter().enumerate() {
            match (srcs.place(&rows.src, at), dsts.place(&rows.dst, at)) {
                (Some(src), Some(dst)) => {
                    let (src, dst) = if relation.reversed {
                        (dst, src)
                    } else {
                        (src, dst)
                    };
                    visit(Edge { src, dst, row });
                    if is_undirected {
                        let (src, dst) = (dst, src);
                        visit(Edge { src, dst, row });
                    }
                }
                (src, _) => {
                    let is_src = src.is_none();
                    let ids = if is_src { &rows.src } else { &rows.dst };
                    lost.add(Lost {
                        rows: 1,
                        first: lost.first.is_none().then(|| (row, is_src, ids.display(at))),
                    });
                }
            }
        }
        lost
    }
}

impl TypeSurvey {
    /// Returns the position of an id; none if no node of the type has it.
    pub(super) fn place(&self, ids: &Ids, at: usize) -> Option<u32> {
        Some(self.first + self.index.find(&self.ids, ids, at)?)
    }
}

/// Edge rows with an end that is not a node.
#[derive(Default)]
pub(super) struct Lost {
    rows: u64,
    /// The first of these rows: its number, whether its unknown end is the source, that end's id.
    first: Option<(u64, bool, String)>,
}

impl Lost {
    /// Adds the rows of a later batch.
    pub(super) fn add(&mut self, later: Lost) {
        self.rows += later.rows;
        self.first = self.first.take().or(later.first);
    }

    /// Returns the number of rows; fails if there are any, unless the job drops these rows.
    pub(super) fn refuse(self, relation: &RelationPlan) -> Result<u64, FlattenError> {
        let edges = &relation.edges;
        let Some((row, is_src, id)) = self.first else {
            return Ok(0);
        };
        if edges.is_of_graphs() {
            return Err(edges.unknown_graph(row, &id).into());
        }
        if edges.dangling() == schemas::Dangling::Drop {
            return Ok(self.rows);
        }
        let (file, row) = edges.locate(row);
        let spec = edges.spec();
        let column = if is_src { &spec.src } else { &spec.dst }.clone();
        let dangling = StoreError::DanglingEdge {
            file,
            row,
            column: column.into(),
            id: id.into(),
            rows: self.rows,
            num_rows: edges.num_rows(),
            table: edges.table_key().into(),
        };
        Err(dangling.into())
    }
}
