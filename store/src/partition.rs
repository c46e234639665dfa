//! One worker's part of the graph, in mapped files.

use crate::arrow_file::{NODES_PER_BATCH, map_batches, open_batches};
use crate::edge_columns::{DegreeColumns, EdgeLists, EdgeReads, InEdges};
use crate::error::StoreCause;
use crate::map::MappedFile;
use crate::meta::StoreFiles;
use crate::node_columns::NodeColumns;
use crate::{Pairs, Placement, Store, StoreError, StoreMeta};
use arrow::array::RecordBatch;
use schemas::{Features, IdType, Ids, Labels, LocalIdx, NodeIdx, Split};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// One worker's nodes with their in-edges.
///
/// A node is given by its position ([`LocalIdx`]). The nodes of the first type come first, then
/// those of the second type, and so on.
pub struct Partition {
    types: Vec<TypeNodes>,
    relations: Vec<RelationEdges>,
    pairs: Option<Pairs>,
    /// File of all pairs with their times, where these are kept.
    timed_path: Option<PathBuf>,
    timed_pairs: OnceLock<Pairs>,
}

/// The nodes of one type.
struct TypeNodes {
    /// Position of the first node.
    first: usize,
    num_nodes: usize,
    ids: Ids,
    /// They point into the file.
    columns: Vec<NodeColumns>,
    file: MappedFile,
}

/// The in-edges of one relation.
struct RelationEdges {
    /// Type of the nodes that the edges lead to, and its first position.
    to: usize,
    first: usize,
    degrees: Vec<DegreeColumns>,
    /// By sample, then by record batch; after the samples comes the list of all in-edges, if it is
    /// kept.
    in_edges: Vec<Vec<EdgeLists>>,
    /// In-edges that are left out because they equal a pair, by record batch; empty if they are not
    /// kept.
    left_out: Vec<EdgeLists>,
    edge_dim: usize,
    has_self_loops: bool,
    /// The files of all lists.
    files: Vec<MappedFile>,
}

fn damaged(file: &Path) -> StoreError {
    StoreError::File {
        verb: "read",
        path: file.to_owned(),
        source: StoreCause::Damaged("a column is missing".into()),
    }
}

impl TypeNodes {
    fn open(path: &Path, id_type: IdType, first: usize) -> Result<Self, StoreError> {
        let (file, batches) = open_batches(path)?;
        let rows = batches.iter().map(RecordBatch::num_rows).sum();
        let mut ids = Ids::with_capacity(id_type, rows);
        let mut columns = Vec::new();
        for batch in batches {
            let column = batch.column_by_name("id").ok_or_else(|| damaged(path))?;
            let more = Ids::from_array(column)?;
            ids.extend_from(&more, 0..more.len());
            columns.push(NodeColumns::of(&batch).ok_or_else(|| damaged(path))?);
        }
        Ok(Self {
            first,
            num_nodes: ids.len(),
            ids,
            columns,
            file,
        })
    }
}

impl RelationEdges {
    fn open(
        files: StoreFiles<'_>,
        (worker, relation): (usize, usize),
        first: usize,
        meta: &StoreMeta,
    ) -> Result<Self, StoreError> {
        let degree_path = files.degrees(relation, worker);
        let degrees = map_batches(&degree_path)?
            .iter()
            .map(DegreeColumns::of)
            .collect();
        let degrees = Option::<Vec<_>>::ok_or_else(degrees, || damaged(&degree_path))?;
        let mut mapped = Vec::new();
        let mut open_list = |path: &Path| -> Result<Vec<EdgeLists>, StoreError> {
            let (file, batches) = open_batches(path)?;
            mapped.push(file);
            let lists = batches.iter().map(EdgeLists::of).collect();
            Option::<Vec<_>>::ok_or_else(lists, || damaged(path))
        };
        let lists = 0..meta.samples as usize + usize::from(meta.redraw);
        let lists = lists.map(|list| open_list(&files.in_edges(relation, worker, list)));
        let in_edges = lists.collect::<Result<_, _>>()?;
        let pairs = meta.graph.pairs.as_ref().filter(|_| meta.keeps_left_out);
        let left_out = match pairs.is_some_and(|of| of.relations.contains(&relation)) {
            true => open_list(&files.left_out(relation, worker))?,
            false => Vec::new(),
        };
        let described = &meta.graph.relations[relation];
        Ok(Self {
            to: described.to,
            first,
            degrees,
            in_edges,
            left_out,
            edge_dim: described.edge_feature_dim.unwrap_or(0),
            has_self_loops: described.self_loops,
            files: mapped,
        })
    }

    /// Returns the degrees of the record batch of a node, and the node's row there.
    fn degrees(&self, local: LocalIdx) -> (&DegreeColumns, usize) {
        let place = local.index() - self.first;
        (
            &self.degrees[place / NODES_PER_BATCH],
            place % NODES_PER_BATCH,
        )
    }

    /// Returns the lists of a sample in the record batch of a node, and the node's row there.
    fn lists(&self, sample: usize, local: LocalIdx) -> (&EdgeLists, usize) {
        let place = local.index() - self.first;
        (
            &self.in_edges[sample][place / NODES_PER_BATCH],
            place % NODES_PER_BATCH,
        )
    }
}

impl Partition {
    pub(crate) fn open(
        dir: &Path,
        worker: usize,
        placement: &Placement,
        meta: &StoreMeta,
    ) -> Result<Self, StoreError> {
        let files = StoreFiles {
            dir,
            is_typed: meta.graph.is_typed(),
        };
        let first = |type_idx: usize| placement.of_type(type_idx).local_start(worker).index();
        let types = meta.graph.types.iter().enumerate().map(|(type_idx, of)| {
            let path = files.nodes(type_idx, worker);
            TypeNodes::open(&path, of.id_type, first(type_idx))
        });
        let relations = meta.graph.relations.iter().enumerate();
        let relations = relations.map(|(relation, of)| {
            RelationEdges::open(files, (worker, relation), first(of.to), meta)
        });
        let pairs = meta.pairs.map(|_| open_pairs(&files.pairs(worker)));
        let timed = meta.pairs.filter(|_| meta.keeps_times);
        Ok(Self {
            types: types.collect::<Result<_, _>>()?,
            relations: relations.collect::<Result<_, _>>()?,
            pairs: pairs.transpose()?,
            timed_path: timed.map(|_| files.timed_pairs(worker)),
            timed_pairs: OnceLock::new(),
        })
    }

    /// Returns the supervision pairs of this worker, where the task is one of links.
    pub fn pairs(&self) -> Option<&Pairs> {
        self.pairs.as_ref()
    }

    /// Reads the times of all pairs, if they are kept. Only versions need them.
    ///
    /// # Errors
    ///
    /// If their file cannot be read.
    pub fn read_timed_pairs(&self) -> Result<(), StoreError> {
        if let (Some(path), None) = (&self.timed_path, self.timed_pairs.get()) {
            let read = open_pairs(path)?;
            self.timed_pairs.get_or_init(|| read);
        }
        Ok(())
    }

    /// Returns all pairs of this worker's tables with their times, including pairs in no split;
    /// none unless they were [read](Self::read_timed_pairs).
    pub fn timed_pairs(&self) -> Option<&Pairs> {
        self.timed_pairs.get()
    }

    /// Returns the number of nodes.
    pub fn num_nodes(&self) -> usize {
        self.types.iter().map(|of| of.num_nodes).sum()
    }

    /// Returns the positions of the nodes of a type.
    pub fn locals(
        &self,
        type_idx: usize,
    ) -> impl ExactSizeIterator<Item = LocalIdx> + Clone + use<> {
        let of_type = &self.types[type_idx];
        (of_type.first..of_type.first + of_type.num_nodes).map(LocalIdx::from_index)
    }

    /// Returns the type of a node.
    pub fn type_of(&self, local: LocalIdx) -> usize {
        match self.types.as_slice() {
            [_] => 0,
            types => types.partition_point(|of| of.first <= local.index()) - 1,
        }
    }

    /// Returns the ids of a type's nodes, in the order of their positions.
    pub fn ids(&self, type_idx: usize) -> &Ids {
        &self.types[type_idx].ids
    }

    /// Returns the ids of a node's type, and the node's row among them.
    pub fn id(&self, local: LocalIdx) -> (&Ids, usize) {
        let of_type = &self.types[self.type_of(local)];
        (&of_type.ids, local.index() - of_type.first)
    }

    /// Returns the type of the nodes that a relation's edges lead to. Only these nodes have degrees
    /// and in-edges of the relation.
    pub fn relation_to(&self, relation: usize) -> usize {
        self.relations[relation].to
    }

    /// Returns a node's in-degree in the input graph.
    pub fn in_degree(&self, relation: usize, local: LocalIdx) -> u32 {
        let (degrees, row) = self.relations[relation].degrees(local);
        degrees.in_degree[row]
    }

    /// Returns the first of a node's sources in the order of ids; the greatest number if it has
    /// none.
    pub fn least_src(&self, relation: usize, local: LocalIdx) -> NodeIdx {
        let (degrees, row) = self.relations[relation].degrees(local);
        degrees.least_src()[row]
    }

    /// Returns the sum of the weights of a node's in-edges, where the input has weights.
    pub fn in_weight(&self, relation: usize, local: LocalIdx) -> Option<f32> {
        let (degrees, row) = self.relations[relation].degrees(local);
        Some(degrees.in_weight.as_ref()?[row])
    }

    /// Returns the number of a node's self-loops; none if no node has any.
    pub fn self_loops(&self, relation: usize, local: LocalIdx) -> Option<u32> {
        let edges = &self.relations[relation];
        let (degrees, row) = edges.degrees(local);
        edges.has_self_loops.then(|| degrees.self_loops[row])
    }

    /// Returns the sum of the weights of a node's self-loops, where they have weights.
    pub fn self_weight(&self, relation: usize, local: LocalIdx) -> Option<f32> {
        let edges = &self.relations[relation];
        let (degrees, row) = edges.degrees(local);
        let weights = degrees.self_weight.as_ref();
        Some(weights.filter(|_| edges.has_self_loops)?[row])
    }

    /// Returns a node's split.
    pub fn split(&self, local: LocalIdx) -> Split {
        let (columns, row) = self.columns(local);
        columns.split(row)
    }

    /// Returns the bytes of a node's id, features, degree, label and split.
    pub fn row_bytes(&self, local: LocalIdx) -> usize {
        let (ids, row) = self.id(local);
        let id = ids.key_bytes(row).map_or(8, <[u8]>::len);
        let (columns, row_there) = self.columns(local);
        id + columns.feature_bytes(row_there) + 9
    }

    /// Returns the bytes of all sparse features; 0 where features are not sparse.
    pub fn sparse_bytes(&self) -> usize {
        let columns = self.types.iter().flat_map(|of| &of.columns);
        columns.map(NodeColumns::sparse_bytes).sum()
    }

    /// Returns a node's dense features, `[dim]`; nothing where features are not dense.
    pub fn dense(&self, local: LocalIdx) -> &[f32] {
        let (columns, row) = self.columns(local);
        columns.dense(row)
    }

    /// Appends a node's features.
    pub fn features_into(&self, local: LocalIdx, out: &mut Features) {
        let (columns, row) = self.columns(local);
        columns.features_into(row, out);
    }

    /// Appends a node's label.
    pub fn label_into(&self, local: LocalIdx, out: &mut Labels) {
        let (columns, row) = self.columns(local);
        columns.label_into(row, out);
    }

    /// Prefetches where a node's in-edges start, before [`in_edges`](Self::in_edges) looks it up.
    pub fn prefetch_in_edges(&self, relation: usize, sample: usize, local: LocalIdx) {
        let (lists, row) = self.relations[relation].lists(sample, local);
        lists.prefetch(row);
    }

    /// Returns a node's first in-edges of a relation in rank order, at most `limit` of them.
    pub fn in_edges(
        &self,
        relation: usize,
        sample: usize,
        local: LocalIdx,
        limit: usize,
    ) -> InEdges<'_> {
        let edges = &self.relations[relation];
        let (lists, row) = edges.lists(sample, local);
        lists.in_edges(row, limit, edges.edge_dim)
    }

    /// Starts to read the in-edges of some nodes that a relation leads to, in one sample.
    pub fn will_need_in_edges(
        &self,
        relation: usize,
        sample: usize,
        locals: Range<LocalIdx>,
        reads: EdgeReads,
    ) {
        let edges = &self.relations[relation];
        for (batch, rows) in batches(edges.first, locals) {
            edges.in_edges[sample][batch].will_need(rows, edges.edge_dim, reads);
        }
    }

    /// Starts to read the features of some nodes of one type.
    pub fn will_need_features(&self, locals: Range<LocalIdx>) {
        let of_type = &self.types[self.type_of(locals.start)];
        for (batch, rows) in batches(of_type.first, locals) {
            of_type.columns[batch].will_need_features(rows);
        }
    }

    /// Removes the features, labels and splits from the memory of this process. They stay in the page
    /// cache, and come back when they are read.
    pub fn release_nodes(&self) {
        self.types.iter().for_each(|of| of.file.release());
    }

    /// Removes the lists of in-edges from the memory of this process, as [`Self::release_nodes`] does
    /// with the nodes.
    pub(crate) fn release_in_edges(&self) {
        let files = self.relations.iter().flat_map(|of| &of.files);
        files.for_each(MappedFile::release);
    }

    /// Returns all of a node's in-edges of a relation by source and ordinal, from a store built with
    /// `redraw`.
    pub fn unranked(&self, relation: usize, local: LocalIdx) -> InEdges<'_> {
        let last = self.relations[relation].in_edges.len() - 1;
        self.in_edges(relation, last, local, usize::MAX)
    }

    /// As [`will_need_in_edges`](Self::will_need_in_edges), of the lists of [`unranked`](Self::unranked).
    pub fn will_need_unranked(&self, relation: usize, locals: Range<LocalIdx>, reads: EdgeReads) {
        let last = self.relations[relation].in_edges.len() - 1;
        self.will_need_in_edges(relation, last, locals, reads);
    }

    /// Returns all of a node's in-edges of a relation that are left out because they equal a pair, by
    /// source and ordinal; none if the store does not keep them.
    pub fn left_out(&self, relation: usize, local: LocalIdx) -> Option<InEdges<'_>> {
        let edges = &self.relations[relation];
        let place = local.index() - edges.first;
        let lists = edges.left_out.get(place / NODES_PER_BATCH)?;
        Some(lists.in_edges(place % NODES_PER_BATCH, usize::MAX, edges.edge_dim))
    }

    /// Returns the columns of the record batch of a node, and the node's row there.
    fn columns(&self, local: LocalIdx) -> (&NodeColumns, usize) {
        let of_type = &self.types[self.type_of(local)];
        let place = local.index() - of_type.first;
        (
            &of_type.columns[place / NODES_PER_BATCH],
            place % NODES_PER_BATCH,
        )
    }
}

fn open_pairs(path: &Path) -> Result<Pairs, StoreError> {
    Pairs::open(path)?.ok_or_else(|| damaged(path))
}

/// Lists the record batches of some positions, with the rows of each; `first` is the position of
/// the first row of the first batch.
fn batches(first: usize, locals: Range<LocalIdx>) -> impl Iterator<Item = (usize, Range<usize>)> {
    let (start, end) = (locals.start.index() - first, locals.end.index() - first);
    let touched = start / NODES_PER_BATCH..end.div_ceil(NODES_PER_BATCH);
    touched.map(move |batch| {
        let before = batch * NODES_PER_BATCH;
        let rows = start.max(before) - before..end.min(before + NODES_PER_BATCH) - before;
        (batch, rows)
    })
}

/// Announces, while positions ascend, those that are read next: about 2^16 positions at once.
///
/// Does nothing where few of the positions are read, or the page cache holds the files.
#[derive(Debug)]
pub struct ReadAhead {
    until: LocalIdx,
    end: LocalIdx,
}

/// Positions whose pages are read at once.
const AHEAD: u32 = 1 << 16;

/// Where at least one of so many positions is read, the pages between are read too.
const SPARSE: usize = 64;

impl ReadAhead {
    /// Starts with the first of `locals`, which ascend.
    pub fn new(store: &Store, locals: &[LocalIdx]) -> Self {
        let start = locals.first().copied().unwrap_or_default();
        let last = locals.last().copied().unwrap_or_default();
        let span = last.index() - start.index();
        let is_dense = span / SPARSE < locals.len();
        let reads = is_dense && !locals.is_empty() && !store.is_cached_with(0);
        Self {
            until: start,
            end: if reads { last.after(1) } else { start },
        }
    }

    /// Returns the positions to announce before `local` is read; none if they were announced.
    pub fn before(&mut self, local: LocalIdx) -> Option<Range<LocalIdx>> {
        if local < self.until || self.until >= self.end {
            return None;
        }
        let start = local;
        self.until = start.after(AHEAD).min(self.end);
        Some(start..self.until)
    }
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partition")
            .field("num_nodes", &self.num_nodes())
            .finish_non_exhaustive()
    }
}
