//! Ranks the in-edges of a worker's nodes and writes them.

use crate::arrow_file::{self, BatchFile, NODES_PER_BATCH, append};
use crate::buckets::{Bucket, BucketLayout};
use crate::edge_columns::InEdges;
use crate::edges::OwnedEdges;
use crate::hub::{HubPart, Totals};
use crate::number::MISSING;
use crate::sample::Ranker;
use crate::scatter::Takes;
use crate::{StoreError, StorePlan, TypePlacement, Unchanged};
use arrow::array::{ArrayRef, Float32Array, RecordBatch, UInt32Array};
use schemas::{FileEntry, LocalIdx, NodeIdx};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sums over all in-edges of some nodes, `[num_nodes]` each.
#[derive(Default)]
struct Degrees {
    in_degree: Vec<u32>,
    in_weight: Vec<f32>,
    self_loops: Vec<u32>,
    self_weight: Vec<f32>,
    least_src: Vec<u32>,
}

/// The files of one worker's in-edges of a relation, being written.
struct InEdgeFiles<'a> {
    plan: &'a StorePlan,
    relation: usize,
    worker: usize,
    takes: Takes,
    degrees: Option<BatchFile>,
    /// One entry for each list of the plan.
    lists: Vec<Option<BatchFile>>,
    has_self_loops: bool,
}

/// The in-edges of a relation and of one worker's nodes, without those that a bucket holds.
pub(crate) struct EdgesToRank {
    /// Position of the relation.
    pub(crate) relation: usize,
    /// Which edges of the relation these are.
    pub(crate) takes: Takes,
    pub(crate) layout: BucketLayout,
    /// Re-indexed nodes, by place; buckets are not asked for their edges.
    pub(crate) hubs: BTreeMap<LocalIdx, HubPart>,
}

/// The ranked in-edges of a node in another store, which are copied as they are.
pub(crate) struct CopiedLists<'a> {
    pub(crate) node: Unchanged<'a>,
    pub(crate) relation: usize,
    pub(crate) takes: Takes,
}

/// Ranks and writes the in-edges of a relation and of this worker's nodes; returns whether any is a
/// self-loop, and the files. Edges that are left out have no degrees, and one list.
pub(crate) fn write_in_edges(
    worker: usize,
    plan: &StorePlan,
    edges: OwnedEdges,
    placement: &TypePlacement,
) -> Result<(bool, Vec<FileEntry>), StoreError> {
    let to_rank = EdgesToRank {
        relation: edges.relation,
        takes: edges.takes,
        layout: *edges.buckets.layout(),
        hubs: edges.hubs,
    };
    let node_at = |place| placement.node(worker, place);
    let gather = |at: usize, bucket: &mut Bucket| edges.buckets.gather_own(at, node_at, bucket);
    rank_and_write((worker, plan), to_rank, placement, (gather, |_| None))
}

/// Does the same as [`write_in_edges`]; `gather` collects the in-edges of a bucket of own nodes, but
/// for those nodes of which `copied` returns lists.
pub(crate) fn rank_and_write<'a>(
    (worker, plan): (usize, &StorePlan),
    edges: EdgesToRank,
    placement: &TypePlacement,
    (mut gather, copied): (
        impl FnMut(usize, &mut Bucket),
        impl Fn(LocalIdx) -> Option<CopiedLists<'a>>,
    ),
) -> Result<(bool, Vec<FileEntry>), StoreError> {
    let (relation, takes, layout) = (edges.relation, edges.takes, edges.layout);
    let table = &plan.graph.relations[relation].edges;
    let dim = table.feature_dim().unwrap_or(0);
    let mut files = InEdgeFiles::new((worker, plan), relation, takes);
    let mut hubs = edges.hubs.into_iter().peekable();
    let (mut bucket, mut ranker) = (Bucket::default(), Ranker::default());
    let list_plans = plan.lists(relation);
    let no_columns = || ListColumns::of_lists(list_plans.len(), table.has_weight());
    let (mut degrees, mut lists) = (Degrees::default(), no_columns());
    let num_local = placement.num_local(worker);
    for place in (0..num_local).map(LocalIdx::from_index) {
        let b = layout.own(place);
        let at = place.index() - layout.nodes(b).start;
        if at == 0 {
            gather(b, &mut bucket);
        }
        if let Some(copied) = copied(place) {
            degrees.push(&copied.totals())?;
            for (sample, list) in lists.iter_mut().enumerate() {
                list.copy(copied.list(sample), copied.node.now);
            }
        } else if let Some((_, hub)) = hubs.next_if(|hub| hub.0 == place) {
            degrees.push(&hub.totals.rounded())?;
            for (list, whole) in lists.iter_mut().zip(&hub.lists) {
                let (in_edges, features) = whole.to_ranked();
                let in_edges = in_edges.iter();
                let in_edges = in_edges.map(|edge| (edge.src, edge.weight, edge.at as usize));
                list.push(in_edges, &features, dim);
            }
        } else {
            let (in_edges, features) = bucket.node(at, dim);
            degrees.push(&Totals::of(placement.node(worker, place), in_edges))?;
            ranker.start();
            for (list, of) in lists.iter_mut().zip(&list_plans) {
                let first = ranker.first(in_edges, of.order, of.keep);
                let kept = first.iter().map(|&position| {
                    let edge = &in_edges[position as usize];
                    (edge.src, edge.weight, position as usize)
                });
                list.push(kept, features, dim);
            }
        }
        if (place.index() + 1).is_multiple_of(NODES_PER_BATCH) {
            let full = std::mem::replace(&mut lists, no_columns());
            files.append(std::mem::take(&mut degrees), full)?;
        }
    }
    // An empty partition still gets its files, with one empty batch.
    if num_local == 0 || !num_local.is_multiple_of(NODES_PER_BATCH) {
        files.append(degrees, lists)?;
    }
    files.finish()
}

impl<'a> CopiedLists<'a> {
    pub(crate) fn num_edges(&self) -> u64 {
        match self.takes {
            Takes::Messages => {
                let of = &self.node;
                of.partition.in_degree(self.relation, of.local).into()
            }
            Takes::LeftOut => self.list(0).src.len() as u64,
        }
    }

    /// Sums over the in-edges; those that are left out have no degrees.
    fn totals(&self) -> Totals<f32> {
        let (of, relation, local) = (self.node.partition, self.relation, self.node.local);
        let now = self.node.now;
        let least = of.least_src(relation, local);
        match self.takes {
            Takes::LeftOut => Totals::default(),
            Takes::Messages => Totals {
                in_degree: of.in_degree(relation, local).into(),
                in_weight: of.in_weight(relation, local).unwrap_or_default(),
                self_weight: of.self_weight(relation, local).unwrap_or_default(),
                self_loops: of.self_loops(relation, local).unwrap_or_default().into(),
                least_src: (least != MISSING)
                    .then(|| now.map_or(least, |of_now| of_now[least.index()])),
            },
        }
    }

    /// Returns one of the node's lists.
    fn list(&self, sample: usize) -> InEdges<'a> {
        let (of, relation, local) = (self.node.partition, self.relation, self.node.local);
        match self.takes {
            Takes::Messages => of.in_edges(relation, sample, local, usize::MAX),
            Takes::LeftOut => of.left_out(relation, local).unwrap_or_default(),
        }
    }
}

impl<'a> InEdgeFiles<'a> {
    fn new((worker, plan): (usize, &'a StorePlan), relation: usize, takes: Takes) -> Self {
        let mut lists = Vec::new();
        lists.resize_with(plan.lists(relation).len(), || None);
        Self {
            plan,
            relation,
            worker,
            takes,
            degrees: None,
            lists,
            has_self_loops: false,
        }
    }

    fn append(&mut self, degrees: Degrees, lists: Vec<ListColumns>) -> Result<(), StoreError> {
        let edges = &self.plan.graph.relations[self.relation].edges;
        let files = self.plan.files();
        self.has_self_loops |= degrees.self_loops.iter().any(|&count| count > 0);
        if self.takes == Takes::Messages {
            let degree_batch = degrees.into_batch(edges.has_weight());
            append(
                &mut self.degrees,
                &files.degrees(self.relation, self.worker),
                &degree_batch,
            )?;
        }
        for (l, list) in lists.into_iter().enumerate() {
            let batch = list.into_batch(edges.feature_dim().unwrap_or(0));
            let path = match self.takes {
                Takes::Messages => files.in_edges(self.relation, self.worker, l),
                Takes::LeftOut => files.left_out(self.relation, self.worker),
            };
            append(&mut self.lists[l], &path, &batch)?;
        }
        Ok(())
    }

    fn finish(self) -> Result<(bool, Vec<FileEntry>), StoreError> {
        let lists = self.lists.into_iter();
        let lists = lists.map(|file| file.expect("a batch was written"));
        let entries = lists.chain(self.degrees).map(BatchFile::finish);
        Ok((self.has_self_loops, entries.collect::<Result<_, _>>()?))
    }
}

/// In-edge lists of some nodes, before they become a record batch.
struct ListColumns {
    offset: Vec<u64>,
    src: Vec<u32>,
    /// Where the input has weights.
    weight: Option<Vec<f32>>,
    feature: Vec<f32>,
}

impl ListColumns {
    /// Makes empty columns, one for each of some lists.
    fn of_lists(num_lists: usize, is_weighted: bool) -> Vec<Self> {
        let empty = |_| Self {
            offset: vec![0],
            src: Vec::new(),
            weight: is_weighted.then(Vec::new),
            feature: Vec::new(),
        };
        (0..num_lists).map(empty).collect()
    }

    /// Appends the in-edges of a node: source, weight, and position of the features in `feature`.
    fn push(
        &mut self,
        edges: impl Iterator<Item = (NodeIdx, f32, usize)> + Clone,
        feature: &[f32],
        dim: usize,
    ) {
        self.src.extend(edges.clone().map(|(src, ..)| src.raw()));
        if let Some(weights) = &mut self.weight {
            weights.extend(edges.clone().map(|(_, weight, _)| weight));
        }
        if dim > 0 {
            for (.., at) in edges {
                self.feature
                    .extend_from_slice(&feature[at * dim..(at + 1) * dim]);
            }
        }
        self.offset.push(self.src.len() as u64);
    }

    /// Appends the ranked in-edges of a node, with the numbers `now` of their sources.
    fn copy(&mut self, list: InEdges<'_>, now: Option<&[NodeIdx]>) {
        match now {
            None => self.src.extend_from_slice(bytemuck::cast_slice(list.src)),
            Some(now) => {
                let src = list.src.iter().map(|src| now[src.index()].raw());
                self.src.extend(src);
            }
        }
        if let (Some(weights), Some(of_list)) = (&mut self.weight, list.weight) {
            weights.extend_from_slice(of_list);
        }
        self.feature
            .extend_from_slice(list.feature.unwrap_or_default());
        self.offset.push(self.src.len() as u64);
    }

    fn into_batch(self, dim: usize) -> RecordBatch {
        let mut columns = vec![(
            "src",
            arrow_file::list(&self.offset, Arc::new(UInt32Array::from(self.src))),
        )];
        if let Some(weight) = self.weight {
            let weight: ArrayRef = Arc::new(Float32Array::from(weight));
            columns.push(("weight", arrow_file::list(&self.offset, weight)));
        }
        if dim > 0 {
            let offset: Vec<u64> = self.offset.iter().map(|o| o * dim as u64).collect();
            let feature: ArrayRef = Arc::new(Float32Array::from(self.feature));
            columns.push(("feature", arrow_file::list(&offset, feature)));
        }
        arrow_file::batch(columns)
    }
}

impl Degrees {
    fn push(&mut self, totals: &Totals<f32>) -> Result<(), StoreError> {
        let narrow = |count: u64| {
            u32::try_from(count).map_err(|_| StoreError::TooLarge {
                what: "in-edges of one node",
                count,
                limit: u64::from(u32::MAX),
            })
        };
        self.in_degree.push(narrow(totals.in_degree)?);
        self.in_weight.push(totals.in_weight);
        self.self_loops.push(narrow(totals.self_loops)?);
        self.self_weight.push(totals.self_weight);
        self.least_src
            .push(totals.least_src.unwrap_or(MISSING).raw());
        Ok(())
    }

    fn into_batch(self, weighted: bool) -> RecordBatch {
        let counts = |values: Vec<u32>| -> ArrayRef { Arc::new(UInt32Array::from(values)) };
        let floats = |values: Vec<f32>| -> ArrayRef { Arc::new(Float32Array::from(values)) };
        let mut columns = vec![
            ("in_degree", counts(self.in_degree)),
            ("least_src", counts(self.least_src)),
            ("self_loops", counts(self.self_loops)),
        ];
        if weighted {
            columns.push(("in_weight", floats(self.in_weight)));
            columns.push(("self_weight", floats(self.self_weight)));
        }
        arrow_file::batch(columns)
    }
}
