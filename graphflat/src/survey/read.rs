//! Reads the whole input without a shuffle: checks every value and counts degrees.

use schemas::{
    Dangling, EdgeRows, EdgesPlan, FeatureMeta, Features, GraphMeta, HopFanouts, Ids, LabelMeta,
    NodesPlan, Split, UntypedMeta, keep_at_hop,
};
use store::StoreError;

use super::edge::Edge;
use super::id_index::IdIndex;
use super::kept::Kept;
use crate::FlattenError;

/// Number of rows whose features are kept to measure their compression; narrow rows may be more.
const FEATURE_ROWS: usize = 4096;

/// Number of feature values kept of narrow rows, if these are more than [`FEATURE_ROWS`] rows.
const FEATURE_NUMBERS: usize = 1 << 18;

/// Edge rows whose weights are kept to measure their compression.
const WEIGHT_ROWS: u64 = 1 << 16;

/// The result of reading the input tables once.
pub struct Survey {
    /// Name of the id column.
    pub(super) id_column: String,
    /// Ids in the order of the table.
    pub ids: Ids,
    /// Position of each id.
    index: IdIndex,
    /// Positions in the order of their ids.
    pub(super) order: Vec<u32>,
    /// `[num_nodes]`.
    pub split: Vec<Split>,
    /// `[num_nodes]`.
    pub in_degree: Vec<u32>,
    /// `[num_nodes]`: index in `order` of the node's source with the smallest id; `u32::MAX` if the
    /// node has no in-edges.
    pub(super) least_src: Vec<u32>,
    /// In-edges of every node, at most as many as the largest fan-out; `None` if this is too much.
    pub(super) kept: Option<Kept>,
    /// Number of edges: an undirected edge counts twice, a dropped edge not at all.
    pub num_edges: u64,
    /// Edge rows dropped because an end is not a node.
    pub dropped_edges: u64,
    /// Features of some rows, spread over the table.
    pub(super) features: Features,
    /// Weights of some edge rows, spread over the table.
    pub(super) weights: Vec<f32>,
    /// Types and columns of the tables.
    pub meta: GraphMeta,
}

impl Survey {
    /// Reads every row of both tables, and keeps as many in-edges as the largest fan-out allows.
    ///
    /// # Errors
    ///
    /// The first value that is not allowed, with its file, column and row.
    pub fn read(
        nodes: &NodesPlan,
        edges: &EdgesPlan,
        fanouts: &[HopFanouts],
    ) -> Result<Survey, FlattenError> {
        let (ids, label) = read_keys(nodes)?;
        let index = IdIndex::new(&ids, nodes)?;
        let (split, features) = read_rows(nodes, label.as_ref())?;
        let meta = GraphMeta::from(UntypedMeta {
            id_type: nodes.id_type(),
            features: nodes.feature_meta(),
            label,
            split: nodes.split_meta(),
            edge_weight: edges.has_weight(),
            edge_feature_dim: edges.feature_dim(),
            self_loops: false,
        });
        let mut survey = Survey {
            in_degree: vec![0; ids.len()],
            least_src: vec![u32::MAX; ids.len()],
            kept: None,
            id_column: nodes.spec().id.clone(),
            order: ids.sort_permutation(),
            ids,
            index,
            split,
            num_edges: 0,
            dropped_edges: 0,
            features,
            weights: Vec::new(),
            meta,
        };
        survey.read_edges(edges, keep_at_hop(fanouts, 0, 0))?;
        Ok(survey)
    }

    /// Checks and counts every edge, and keeps some in-edges of every node.
    fn read_edges(&mut self, edges: &EdgesPlan, limit: usize) -> Result<(), FlattenError> {
        let mut rank = vec![0; self.num_nodes()];
        for (at, &node) in (0u32..).zip(&self.order) {
            rank[node as usize] = at;
        }
        let mut degrees = std::mem::take(&mut self.in_degree);
        let mut least_src = std::mem::take(&mut self.least_src);
        let mut kept = Kept::room(self.num_nodes(), limit);
        let (mut count, mut loops, mut lost) = (0, false, Lost::default());
        let stride = edges.num_rows().div_ceil(WEIGHT_ROWS).max(1);
        for unit in edges.units() {
            for batch in edges.batches(unit)? {
                let rows = batch?;
                lost.add(self.each_row(edges, &rows, |edge| {
                    let dst = edge.dst as usize;
                    least_src[dst] = least_src[dst].min(rank[edge.src as usize]);
                    if let Some(kept) = &mut kept {
                        kept.add(edge, degrees[dst], limit);
                    }
                    degrees[dst] += 1;
                    count += 1;
                    loops |= edge.src == edge.dst;
                }));
                let weights = rows.rows.iter().zip(rows.weight.into_iter().flatten());
                let spread = weights.filter(|(row, _)| row % stride == 0);
                self.weights.extend(spread.map(|(_, weight)| weight));
            }
        }
        (self.in_degree, self.least_src, self.kept) = (degrees, least_src, kept);
        (self.num_edges, self.dropped_edges) = (count, lost.rows);
        self.meta.relations[0].self_loops = loops;
        lost.refuse(edges)
    }

    /// Returns the number of nodes.
    pub fn num_nodes(&self) -> usize {
        self.ids.len()
    }

    /// Returns the mean bytes of a node's features in memory.
    pub fn feature_bytes(&self) -> f64 {
        match &self.features {
            Features::None => 0.0,
            Features::Dense { dim, .. } => *dim as f64 * 4.0,
            Features::Sparse { offset, index, .. } => {
                let rows = offset.len().saturating_sub(1).max(1);
                8.0 * (1.0 + index.len() as f64 / rows as f64)
            }
        }
    }

    /// Returns the mean number of a node's features that are not zero.
    pub fn stored_features(&self) -> f64 {
        match &self.features {
            Features::None => 0.0,
            Features::Dense { dim, values } => {
                let rows = values.len() / (*dim).max(1);
                let stored = values.iter().filter(|&&value| value != 0.0).count();
                stored as f64 / rows.max(1) as f64
            }
            Features::Sparse { offset, index, .. } => {
                let rows = offset.len().saturating_sub(1).max(1);
                index.len() as f64 / rows as f64
            }
        }
    }

    /// Visits every edge again, and the reverse of every undirected one.
    ///
    /// # Errors
    ///
    /// If the table cannot be read any more.
    pub(super) fn each_edge(
        &self,
        edges: &EdgesPlan,
        mut visit: impl FnMut(Edge),
    ) -> Result<(), FlattenError> {
        for unit in edges.units() {
            for batch in edges.end_batches(unit)? {
                self.each_row(edges, &batch?, &mut visit);
            }
        }
        Ok(())
    }

    /// Visits the edges of a batch, and the reverses of undirected edges; returns the lost rows.
    fn each_row(&self, edges: &EdgesPlan, rows: &EdgeRows, visit: impl FnMut(Edge)) -> Lost {
        let place = |ids: &Ids, at| self.place(ids, at);
        each_row(edges, rows, (place, place), visit)
    }

    /// Returns the position of an id; none if no node has it.
    pub(super) fn place(&self, ids: &Ids, at: usize) -> Option<u32> {
        self.index.find(&self.ids, ids, at)
    }
}

/// Visits the edges of a batch, and the reverses of undirected edges; returns the lost rows.
///
/// `src` and `dst` return the position of a source's and of a destination's id; none if no node has
/// it.
pub(super) fn each_row(
    edges: &EdgesPlan,
    rows: &EdgeRows,
    (src, dst): (
        impl Fn(&Ids, usize) -> Option<u32>,
        impl Fn(&Ids, usize) -> Option<u32>,
    ),
    mut visit: impl FnMut(Edge),
) -> Lost {
    let mut lost = Lost::default();
    for (at, row) in rows.rows.iter().enumerate() {
        match (src(&rows.src, at), dst(&rows.dst, at)) {
            (Some(src), Some(dst)) => {
                visit(Edge { src, dst, row });
                if edges.undirected() {
                    let (src, dst) = (dst, src);
                    visit(Edge { src, dst, row });
                }
            }
            (found, _) => {
                let is_src = found.is_none();
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

pub(super) fn read_keys(nodes: &NodesPlan) -> Result<(Ids, Option<LabelMeta>), FlattenError> {
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

pub(super) fn read_rows(
    nodes: &NodesPlan,
    label: Option<&LabelMeta>,
) -> Result<(Vec<Split>, Features), FlattenError> {
    let mut split = Vec::new();
    let mut kept = Features::empty(nodes.feature_meta());
    let width = match nodes.feature_meta() {
        FeatureMeta::Dense { dim } => dim.max(1),
        FeatureMeta::None | FeatureMeta::Sparse { .. } => FEATURE_NUMBERS,
    };
    let most = (FEATURE_NUMBERS / width).max(FEATURE_ROWS);
    let stride = usize::try_from(nodes.num_rows())
        .unwrap_or(usize::MAX)
        .div_ceil(most);
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

/// Edge rows with an end that is not a node.
#[derive(Default)]
pub(super) struct Lost {
    pub(super) rows: u64,
    /// The first of these rows: its number, whether its unknown end is the source, that end's id.
    first: Option<(u64, bool, String)>,
}

impl Lost {
    /// Adds the rows of a later batch.
    pub(super) fn add(&mut self, later: Lost) {
        self.rows += later.rows;
        self.first = self.first.take().or(later.first);
    }

    /// Fails if there is such a row, unless the job drops these rows.
    pub(super) fn refuse(self, edges: &EdgesPlan) -> Result<(), FlattenError> {
        let Some((row, is_src, id)) = self.first else {
            return Ok(());
        };
        if edges.dangling() == Dangling::Drop {
            return Ok(());
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
