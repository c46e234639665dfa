//! Surveys a graph with node types: reads every row of every table, and counts in-degrees.

use std::sync::Arc;

use schemas::{EdgesPlan, GraphPlan, Ids, LabelMeta, NodesPlan, Split};

use super::id_index::IdIndex;
use super::read::{Lost, each_row, read_keys, read_rows};
use crate::FlattenError;

/// The result of reading the tables of all types and relations once.
#[derive(Debug)]
pub struct GraphSurvey {
    /// Number of nodes of each type.
    pub num_nodes: Vec<usize>,
    /// By relation.
    pub relations: Vec<RelationSurvey>,
    /// Labels of the target type.
    pub label: Option<LabelMeta>,
    /// `[num_targets]`: splits of the target type.
    pub split: Vec<Split>,
}

/// The edges of a relation.
#[derive(Clone, Debug, Default)]
pub struct RelationSurvey {
    /// Number of edges: an undirected edge counts twice, a dropped edge not at all.
    pub num_edges: u64,
    /// Edge rows dropped because an end is not a node.
    pub dropped_edges: u64,
    /// In-degree of each node of the relation's destination type.
    pub in_degree: Vec<u32>,
}

/// The nodes of a type.
struct TypeNodes {
    ids: Ids,
    index: IdIndex,
}

impl TypeNodes {
    fn place(&self, ids: &Ids, at: usize) -> Option<u32> {
        self.index.find(&self.ids, ids, at)
    }
}

impl GraphSurvey {
    /// Reads every row of all tables.
    ///
    /// # Errors
    ///
    /// The first value that is not allowed, with its file, column and row.
    pub fn read(graph: &GraphPlan, target_type: usize) -> Result<GraphSurvey, FlattenError> {
        let mut nodes = Vec::with_capacity(graph.types.len());
        let (mut label, mut split) = (None, Vec::new());
        for (idx, of_type) in graph.types.iter().enumerate() {
            let (read, of_nodes, splits) = read_nodes(&of_type.nodes)?;
            nodes.push(read);
            if idx == target_type {
                (label, split) = (of_nodes, splits);
            }
        }
        let mut relations = vec![RelationSurvey::default(); graph.relations.len()];
        for (idx, relation) in graph.relations.iter().enumerate() {
            if relation.reversed {
                continue;
            }
            let ends = (&nodes[relation.from], &nodes[relation.to]);
            let (forward, backward) = read_edges(&relation.edges, ends)?;
            relations[idx] = forward;
            let mut others = graph.relations.iter();
            let reverse = others
                .position(|other| other.reversed && Arc::ptr_eq(&other.edges, &relation.edges));
            if let Some(reverse) = reverse {
                relations[reverse] = backward;
            }
        }
        Ok(GraphSurvey {
            num_nodes: nodes.iter().map(|of_type| of_type.ids.len()).collect(),
            relations,
            label,
            split,
        })
    }
}

/// Reads the table of a type, with its labels and splits.
fn read_nodes(
    nodes: &NodesPlan,
) -> Result<(TypeNodes, Option<LabelMeta>, Vec<Split>), FlattenError> {
    let (ids, label) = read_keys(nodes)?;
    let index = IdIndex::new(&ids, nodes)?;
    let (split, _) = read_rows(nodes, label.as_ref())?;
    Ok((TypeNodes { ids, index }, label, split))
}

/// Reads the table of a relation; returns the relation and its reverse.
fn read_edges(
    edges: &EdgesPlan,
    (from, to): (&TypeNodes, &TypeNodes),
) -> Result<(RelationSurvey, RelationSurvey), FlattenError> {
    let mut in_degree = vec![0; to.ids.len()];
    let mut out_degree = vec![0; from.ids.len()];
    let (mut num_edges, mut lost) = (0, Lost::default());
    let src = |ids: &Ids, at| from.place(ids, at);
    let dst = |ids: &Ids, at| to.place(ids, at);
    for unit in edges.units() {
        for batch in edges.batches(unit)? {
            lost.add(each_row(edges, &batch?, (src, dst), |edge| {
                in_degree[edge.dst as usize] += 1;
                out_degree[edge.src as usize] += 1;
                num_edges += 1;
            }));
        }
    }
    let dropped_edges = lost.rows;
    lost.refuse(edges)?;
    let survey = |in_degree| RelationSurvey {
        num_edges,
        dropped_edges,
        in_degree,
    };
    Ok((survey(in_degree), survey(out_degree)))
}
