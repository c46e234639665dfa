//! One look at the whole input: every value is checked, degrees are counted, nothing is shuffled.

use std::collections::HashMap;

use graphflat::FlattenError;
use schemas::{
    Dangling, EdgeRows, EdgesPlan, Features, GraphMeta, Ids, LabelMeta, NodesPlan, Split,
};

use crate::error::JobError;

/// Rows of features kept to measure how well they compress.
pub(crate) const FEATURE_ROWS: usize = 4096;

/// What a look at the input tables found.
pub(crate) struct Survey {
    /// Ids in the order of the table.
    pub(crate) ids: Ids,
    /// Position of each id's hash.
    places: HashMap<u64, u32>,
    /// `[num_nodes]`.
    pub(crate) split: Vec<Split>,
    /// `[num_nodes]`.
    pub(crate) in_degree: Vec<u32>,
    /// Edges, reverses of undirected ones included, dropped ones not.
    pub(crate) num_edges: u64,
    /// Edge rows left out because an end is no node.
    pub(crate) dropped_edges: u64,
    /// Features of some rows spread over the table.
    pub(crate) features: Features,
    /// What the tables hold.
    pub(crate) meta: GraphMeta,
}

/// An edge by the positions of its ends, with its row over all files.
#[derive(Clone, Copy)]
pub(crate) struct Edge {
    pub(crate) src: u32,
    pub(crate) dst: u32,
    pub(crate) row: u64,
}

impl Survey {
    /// Reads every row of both tables.
    ///
    /// # Errors
    ///
    /// The first value that is not allowed: its file, column and row.
    pub(crate) fn read(nodes: &NodesPlan, edges: &EdgesPlan) -> Result<Survey, JobError> {
        let (ids, label) = read_keys(nodes)?;
        let places = index(&ids, nodes)?;
        let (split, features) = read_rows(nodes, label.as_ref())?;
        let meta = GraphMeta {
            id_type: nodes.id_type(),
            features: nodes.feature_meta(),
            label,
            split: nodes.split_meta(),
            edge_weight: edges.has_weight(),
            edge_feature_dim: edges.feature_dim(),
            self_loops: false,
        };
        let mut survey = Survey {
            in_degree: vec![0; ids.len()],
            ids,
            places,
            split,
            num_edges: 0,
            dropped_edges: 0,
            features,
            meta,
        };
        let (mut degrees, mut count, mut loops) = (vec![0_u32; survey.ids.len()], 0, false);
        survey.dropped_edges = survey.each_edge(edges, |edge| {
            degrees[edge.dst as usize] += 1;
            count += 1;
            loops |= edge.src == edge.dst;
        })?;
        survey.in_degree = degrees;
        survey.num_edges = count;
        survey.meta.self_loops = loops;
        Ok(survey)
    }

    /// Number of nodes.
    pub(crate) fn num_nodes(&self) -> usize {
        self.ids.len()
    }

    /// Mean bytes of a node's features in memory.
    pub(crate) fn feature_bytes(&self) -> f64 {
        match &self.features {
            Features::None => 0.0,
            Features::Dense { dim, .. } => *dim as f64 * 4.0,
            Features::Sparse { offset, index, .. } => {
                let rows = offset.len().saturating_sub(1).max(1);
                8.0 * (1.0 + index.len() as f64 / rows as f64)
            }
        }
    }

    /// Visits every edge, and the reverse of every undirected one; returns the rows left out.
    ///
    /// # Errors
    ///
    /// If an end is no node and the job does not drop such edges, or a value is not allowed.
    pub(crate) fn each_edge(
        &self,
        edges: &EdgesPlan,
        mut visit: impl FnMut(Edge),
    ) -> Result<u64, JobError> {
        let mut dropped = 0;
        for unit in edges.units() {
            let rows = edges.read(unit)?;
            for (row, at) in (unit.first_row..).zip(0..rows.src.len()) {
                match (self.place(&rows.src, at), self.place(&rows.dst, at)) {
                    (Some(src), Some(dst)) => {
                        visit(Edge { src, dst, row });
                        if edges.undirected() {
                            visit(Edge {
                                src: dst,
                                dst: src,
                                row,
                            });
                        }
                    }
                    _ if edges.dangling() == Dangling::Drop => dropped += 1,
                    (src, _) => return Err(dangling(edges, &rows, at, row, src.is_none())),
                }
            }
        }
        Ok(dropped)
    }

    /// The position of an id, where a node has it.
    pub(crate) fn place(&self, ids: &Ids, at: usize) -> Option<u32> {
        let place = *self.places.get(&ids.hash(at))?;
        self.ids.equal(place as usize, ids, at).then_some(place)
    }
}

fn read_keys(nodes: &NodesPlan) -> Result<(Ids, Option<LabelMeta>), JobError> {
    let mut ids = Ids::new(nodes.id_type());
    let (mut names, mut max_class) = (std::collections::BTreeSet::new(), None);
    for unit in nodes.units() {
        let keys = nodes.read_keys(unit)?;
        ids.extend_from(&keys.ids, 0..keys.ids.len());
        names.extend(keys.class_names);
        max_class = max_class.max(keys.max_class);
    }
    let label = nodes.label_meta(names.into_iter().collect(), max_class)?;
    Ok((ids, label))
}

fn index(ids: &Ids, nodes: &NodesPlan) -> Result<HashMap<u64, u32>, JobError> {
    let mut places = HashMap::with_capacity(ids.len());
    for at in 0..ids.len() {
        let place = u32::try_from(at).map_err(|_| FlattenError::TooLarge {
            what: "nodes",
            count: ids.len() as u64,
            limit: u64::from(u32::MAX),
        });
        if let Some(first) = places.insert(ids.hash(at), place?)
            && ids.equal(first as usize, ids, at)
        {
            let (first_file, first_row) = nodes.locate(u64::from(first));
            let (second_file, second_row) = nodes.locate(at as u64);
            let id = ids.display(at);
            let twin = FlattenError::DuplicateNode {
                id,
                first_file,
                first_row,
                second_file,
                second_row,
            };
            return Err(twin.into());
        }
    }
    Ok(places)
}

fn read_rows(
    nodes: &NodesPlan,
    label: Option<&LabelMeta>,
) -> Result<(Vec<Split>, Features), JobError> {
    let mut split = Vec::new();
    let mut kept = Features::empty(nodes.feature_meta());
    let stride = usize::try_from(nodes.num_rows())
        .unwrap_or(usize::MAX)
        .div_ceil(FEATURE_ROWS);
    for unit in nodes.units() {
        let rows = nodes.read_rows(unit, label)?;
        for (at, row) in (0..).zip(split.len()..split.len() + rows.ids.len()) {
            if row % stride.max(1) == 0 {
                kept.push_from(&rows.features, at);
            }
        }
        split.extend(rows.split);
    }
    Ok((split, kept))
}

fn dangling(edges: &EdgesPlan, rows: &EdgeRows, at: usize, row: u64, is_src: bool) -> JobError {
    let (file, row) = edges.locate(row);
    let spec = edges.spec();
    let (column, ids) = if is_src {
        (&spec.src, &rows.src)
    } else {
        (&spec.dst, &rows.dst)
    };
    let id = ids.display(at);
    FlattenError::DanglingEdge {
        file,
        row,
        column: column.clone(),
        id,
        count: 1,
    }
    .into()
}
