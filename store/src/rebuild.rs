//! Writes a store of a graph that no table holds: that of another store after changes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use arrow::array::RecordBatch;
use cluster::Cluster;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use schemas::{Features, FileEntry, Ids, Labels, LocalIdx, NodeIdx, Split, SplitCounts, TypeMeta};

use crate::arrow_file::{self, NODES_PER_BATCH};
use crate::buckets::Bucket;
use crate::build::write_pairs;
use crate::edges::layout_of;
use crate::error::StoreCause;
use crate::in_edge_files::{CopiedLists, EdgesToRank, rank_and_write};
use crate::meta::{CountsByWorker, EdgeCounts, VERSION, verify};
use crate::node_columns::{feature_columns, label_columns, split_column};
use crate::pairs::{Pair, Pairs, in_time, keep_in_splits, worker_of};
use crate::sample::{InEdge, edge_hash, relation_salt};
use crate::scatter::Takes;
use crate::{Partition, Placement, Store, StoreError, StoreMeta, StorePlan, input_fingerprint};

/// Record batches of nodes that are read before they leave the memory.
const RELEASED_BATCHES: usize = 8;

/// A graph of which a store is written. Its nodes are numbered as those of a store: type by type,
/// in the order of their ids.
pub trait SourceGraph: Sync {
    /// Returns the number of nodes of each type.
    fn num_nodes(&self) -> Vec<u64>;

    /// Returns the hash of a node's id.
    fn id_hash(&self, node: NodeIdx) -> u64;

    /// Appends the columns of a node.
    fn read_node(&self, node: NodeIdx, out: &mut NodeTable);

    /// Removes nodes that were read from the memory of this process, where they are in a file.
    fn release_nodes(&self);

    /// Returns where the lists of a node's in-edges are copied from: a store with the same seed,
    /// sampling and kept in-edges that has the same in-edges. None if any of them has changed.
    fn unchanged(&self, relation: usize, dst: NodeIdx, left_out: bool) -> Option<Unchanged<'_>>;

    /// Calls `visit` with source, weight and features of all in-edges of a node that carry
    /// messages or, with `left_out`, of those that are left out because they equal a pair. Parallel
    /// edges come in their order.
    fn visit_in_edges(
        &self,
        relation: usize,
        dst: NodeIdx,
        left_out: bool,
        visit: &mut dyn FnMut(NodeIdx, f32, &[f32]),
    );

    /// Returns the supervision pairs of tables in any order, those in no split too where they have
    /// times.
    fn pairs(&self) -> Vec<Pair>;
}

/// A node of another store whose in-edges are copied.
#[derive(Clone, Copy)]
pub struct Unchanged<'a> {
    /// The partition that has the node.
    pub partition: &'a Partition,
    /// Its position there.
    pub local: LocalIdx,
    /// Numbers of all nodes by those of that store, in the same order within a type; none if they are
    /// the same.
    pub now: Option<&'a [NodeIdx]>,
}

/// Columns of some nodes of one type, `[n]` each.
#[derive(Debug)]
pub struct NodeTable {
    /// Ids.
    pub ids: Ids,
    /// Features.
    pub features: Features,
    /// Labels, if the type has any.
    pub labels: Labels,
    /// Splits.
    pub split: Vec<Split>,
}

/// Writes the store of a graph to `plan.dir`, which must be empty, and returns its description. All
/// partitions are written, whatever the number of processes. But for random walks, whose pairs a
/// version draws anew, the files are those of a store that is built from tables of the graph.
///
/// `like` is the store whose graph was changed, and `base` names the changes.
///
/// # Errors
///
/// If a file cannot be written.
pub fn rebuild(
    graph: &impl SourceGraph,
    (like, base): (&StoreMeta, &str),
    plan: &StorePlan,
) -> Result<StoreMeta, StoreError> {
    let num_nodes = graph.num_nodes();
    let placement = Placement::new(&num_nodes, plan.workers);
    let rebuild = Rebuild {
        graph,
        plan,
        like,
        placement: &placement,
    };
    let mut meta = StoreMeta {
        version: VERSION,
        base: Some(base.to_owned()),
        workers: plan.workers,
        num_nodes: placement.num_nodes() as u64,
        nodes_by_type: match plan.graph.is_typed() {
            true => num_nodes,
            false => Vec::new(),
        },
        files: rebuild.write_nodes()?,
        ..like.clone()
    };
    rebuild.write_edges(&mut meta)?;
    if let Some(counts) = like.pairs {
        let (files, of_tables) = rebuild.write_pairs()?;
        let walks = plan.graph.pairs.as_ref().and_then(|of| of.walks());
        meta.files.extend(files);
        meta.pairs = Some(SplitCounts {
            train: walks.map_or(of_tables.train, |_| counts.train),
            ..of_tables
        });
    }
    let of = serde_json::json!({ "base": meta.edges_fingerprint(), "workers": meta.workers });
    meta.fingerprint = schemas::xxh::fingerprint(of.to_string().as_bytes());
    meta.write(&plan.dir).map_err(|source| StoreError::File {
        verb: "write",
        path: plan.dir.clone(),
        source,
    })?;
    Ok(meta)
}

struct Rebuild<'a, G> {
    graph: &'a G,
    plan: &'a StorePlan,
    like: &'a StoreMeta,
    placement: &'a Placement,
}

impl<G: SourceGraph> Rebuild<'_, G> {
    /// Writes the nodes of all workers.
    fn write_nodes(&self) -> Result<Vec<FileEntry>, StoreError> {
        let types = 0..self.placement.num_types();
        let all = types.flat_map(|type_idx| self.workers().map(move |of| (type_idx, of)));
        let all: Vec<(usize, usize)> = all.collect();
        let written = all.into_par_iter().map(|(type_idx, worker)| {
            let placement = self.placement.of_type(type_idx);
            let (meta, count) = (
                &self.like.graph.types[type_idx],
                placement.num_local(worker),
            );
            let path = self.plan.files().nodes(type_idx, worker);
            let mut file = None;
            for (batch, start) in (0..count.max(1)).step_by(NODES_PER_BATCH).enumerate() {
                if batch.is_multiple_of(RELEASED_BATCHES) {
                    self.graph.release_nodes();
                }
                let mut table = NodeTable::new(meta);
                for place in start..(start + NODES_PER_BATCH).min(count) {
                    let node = placement.node(worker, LocalIdx::from_index(place));
                    self.graph.read_node(node, &mut table);
                }
                arrow_file::append(&mut file, &path, &table.into_batch())?;
            }
            file.expect("a batch was written").finish()
        });
        // All are written first, so that the error of the first one is returned.
        let written: Vec<Result<FileEntry, StoreError>> = written.collect();
        self.graph.release_nodes();
        written.into_iter().collect()
    }

    /// Writes the in-edges of all workers, and completes the description.
    fn write_edges(&self, meta: &mut StoreMeta) -> Result<(), StoreError> {
        let nodes = (0..self.placement.num_nodes()).into_par_iter();
        let hashes = nodes.map(|node| self.graph.id_hash(NodeIdx::from_index(node)));
        let hashes: Vec<u64> = hashes.collect();
        let mut counts = Vec::new();
        for relation in 0..self.plan.graph.relations.len() {
            let messages = self.rank(self.plan, (relation, Takes::Messages), &hashes)?;
            let (has_self_loops, received) = (messages.has_self_loops, messages.received);
            meta.files.extend(messages.files);
            meta.graph.relations[relation].self_loops |= has_self_loops;
            counts.push(CountsByWorker {
                dropped_rows: self.like.edges.dropped_rows_of(relation),
                left_out: 0,
                received,
            });
        }
        let pairs = self.plan.graph.pairs.as_ref();
        let of_pairs = pairs.filter(|_| self.plan.keeps_left_out());
        let one_list = StorePlan {
            samples: 0,
            redraw: true,
            ..self.plan.clone()
        };
        for &relation in of_pairs.iter().flat_map(|of| of.relations()) {
            let left_out = self.rank(&one_list, (relation, Takes::LeftOut), &hashes)?;
            meta.files.extend(left_out.files);
            counts[relation].left_out = left_out.received.iter().sum();
        }
        meta.edges = EdgeCounts::of_relations(counts, self.plan.graph.is_typed());
        Ok(())
    }

    /// Ranks and writes the in-edges of a relation; `hashes` are those of all ids.
    fn rank(
        &self,
        plan: &StorePlan,
        (relation, takes): (usize, Takes),
        hashes: &[u64],
    ) -> Result<Ranked, StoreError> {
        let of_relation = &plan.graph.relations[relation];
        let placement = self.placement.of_type(of_relation.to);
        let (layout, salt) = (layout_of(placement), relation_salt(&of_relation.name));
        let left_out = takes == Takes::LeftOut;
        let copied = |worker: usize, place: LocalIdx| {
            let dst = placement.node(worker, place);
            let node = self.graph.unchanged(relation, dst, left_out)?;
            Some(CopiedLists {
                node,
                relation,
                takes,
            })
        };
        // Returns the number of in-edges.
        let gather = |worker: usize, at: usize, bucket: &mut Bucket| {
            bucket.clear();
            let mut num_copied = 0;
            for place in layout.nodes(at) {
                let place = LocalIdx::from_index(place);
                if place.index() >= placement.num_local(worker) {
                    bucket.end_node();
                    continue;
                }
                if let Some(lists) = copied(worker, place) {
                    num_copied += lists.num_edges();
                } else {
                    let dst = placement.node(worker, place);
                    let dst_hash = hashes[dst.index()];
                    let mut take = |src: NodeIdx, weight: f32, feature: &[f32]| {
                        let hash = edge_hash(salt, hashes[src.index()], dst_hash);
                        bucket.push(InEdge { hash, src, weight }, feature);
                    };
                    self.graph
                        .visit_in_edges(relation, dst, left_out, &mut take);
                }
                bucket.end_node();
            }
            num_copied + bucket.num_edges() as u64
        };
        let written = self.workers().into_par_iter().map(|worker| {
            let edges = EdgesToRank {
                relation,
                takes,
                layout,
                hubs: BTreeMap::new(),
            };
            let mut received = 0;
            let counted = |at: usize, bucket: &mut Bucket| received += gather(worker, at, bucket);
            let lists = |place: LocalIdx| copied(worker, place);
            let written = rank_and_write((worker, plan), edges, placement, (counted, lists))?;
            Ok((written, received))
        });
        let written: Vec<Result<_, StoreError>> = written.collect();
        let mut all = Ranked::default();
        for of_worker in written {
            let ((has_self_loops, files), received) = of_worker?;
            all.has_self_loops |= has_self_loops;
            all.files.extend(files);
            all.received.push(received);
        }
        Ok(all)
    }

    /// Writes the pairs of tables; returns the counts of all workers.
    fn write_pairs(&self) -> Result<(Vec<FileEntry>, SplitCounts), StoreError> {
        let plan = self.plan.graph.pairs.as_ref();
        let plan = plan.expect("the store has pairs");
        let mut by_worker: Vec<Vec<Pair>> = self.workers().map(|_| Vec::new()).collect();
        for pair in self.graph.pairs() {
            by_worker[worker_of(pair.hash, self.plan.workers)].push(pair);
        }
        let (mut files, mut counts) = (Vec::new(), SplitCounts::default());
        for (worker, mut pairs) in by_worker.into_iter().enumerate() {
            let names = self.plan.files();
            if self.plan.keeps_times() {
                pairs.sort_unstable_by_key(in_time);
                let timed = Pairs::timed(plan, &pairs);
                files.push(write_pairs(&names.timed_pairs(worker), &timed)?);
            }
            let own = keep_in_splits(plan, &mut pairs);
            counts.train += own.train;
            counts.val += own.val;
            counts.test += own.test;
            files.push(write_pairs(&names.pairs(worker), &Pairs::of(plan, &pairs))?);
        }
        Ok((files, counts))
    }

    fn workers(&self) -> Range<usize> {
        0..self.plan.workers
    }
}

/// The files of a relation's in-edges.
#[derive(Default)]
struct Ranked {
    has_self_loops: bool,
    files: Vec<FileEntry>,
    /// In-edges of each worker.
    received: Vec<u64>,
}

impl NodeTable {
    fn new(meta: &TypeMeta) -> Self {
        Self {
            ids: Ids::new(meta.id_type),
            features: Features::empty(meta.features),
            labels: Labels::empty(meta.label.as_ref()),
            split: Vec::new(),
        }
    }

    fn into_batch(self) -> RecordBatch {
        let num_nodes = self.split.len();
        let mut columns = vec![
            ("id", self.ids.to_array()),
            ("split", split_column(&self.split)),
        ];
        columns.extend(feature_columns(self.features, num_nodes));
        columns.extend(label_columns(self.labels, num_nodes));
        arrow_file::batch(columns)
    }
}

/// Tells whether a directory holds a store whose files are as they were written.
pub fn is_intact(dir: &Path) -> bool {
    let meta = StoreMeta::read(dir).ok().flatten();
    meta.is_some_and(|meta| verify(dir, &meta.files).is_ok())
}

/// Opens a store that [`rebuild`] has written to `plan.dir`, with all partitions, for the processes
/// and workers of `cluster`; none: as many threads as it has partitions. It may have another number
/// of partitions than `cluster` has workers. None if it is one of other tables, or of another seed,
/// sampling or target type.
///
/// # Errors
///
/// If a file is missing or was changed, or a table cannot be read.
pub fn open_rebuilt(
    cluster: Option<&Cluster>,
    plan: &StorePlan,
) -> Result<Option<Store>, StoreError> {
    let meta = StoreMeta::read(&plan.dir)?.ok_or_else(|| StoreError::File {
        verb: "read",
        path: plan.dir.clone(),
        source: StoreCause::Damaged("it holds no store".to_owned()),
    })?;
    let own = (
        meta.version,
        meta.seed,
        meta.sampling,
        meta.graph.target_type,
    );
    let is_same = own == (VERSION, plan.seed, plan.sampling, plan.target_type)
        && meta.input == input_fingerprint(&plan.graph)?;
    if !is_same {
        return Ok(None);
    }
    verify(&plan.dir, &meta.files)?;
    let all = Cluster::of_threads(meta.workers);
    let store = Store::open_in(&all, plan, meta, |_| &plan.dir)?;
    Ok(Some(store.used_by(cluster.unwrap_or(&all))))
}

/// Opens a store that [`open_rebuilt`] has opened with the same plan, with the partitions of this
/// process alone.
///
/// # Errors
///
/// If a file cannot be read.
pub fn open_share(whole: &Store, plan: &StorePlan) -> Result<Store, StoreError> {
    Store::open(whole.cluster(), plan, whole.meta().clone())
}
