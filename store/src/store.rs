//! A store, open for reading.

use crate::page_cache::page_cache_bytes;
use crate::partition::Partition;
use crate::{Placement, StoreError, StoreMeta, StorePlan};
use cluster::Cluster;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use schemas::{GraphColumns, TypedColumns};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::Arc;

/// A node with more in-edges than the threshold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hub {
    /// Its id.
    pub id: String,
    /// Its in-degree.
    pub in_degree: u64,
    /// The relation of the in-edges; empty if nodes have no types.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub relation: String,
}

/// A stored graph, which flatten, streamed training and inference read.
#[derive(Clone, Debug)]
pub struct Store {
    meta: Arc<StoreMeta>,
    /// None if nodes have types.
    columns: Option<Arc<GraphColumns>>,
    /// None if nodes have no types.
    typed_columns: Option<Arc<TypedColumns>>,
    placement: Placement,
    /// The processes and workers of the job.
    cluster: Cluster,
    /// The worker of the first partition that is open here.
    first_worker: usize,
    /// Those of the workers of this process, or of all.
    partitions: Arc<Vec<Partition>>,
    /// Bytes of files that the page cache can hold.
    page_cache: u64,
    memory_budget: usize,
}

impl Store {
    pub(crate) fn open(
        cluster: &Cluster,
        plan: &StorePlan,
        meta: StoreMeta,
    ) -> Result<Self, StoreError> {
        Self::open_in(cluster, plan, meta, |_| &plan.dir)
    }

    /// Opens the partitions of the workers of this process; `dir_of` returns the directory of one.
    pub(crate) fn open_in<'a>(
        cluster: &Cluster,
        plan: &StorePlan,
        meta: StoreMeta,
        dir_of: impl Fn(usize) -> &'a Path + Sync,
    ) -> Result<Self, StoreError> {
        let placement = Placement::new(&meta.num_nodes_by_type(), meta.workers);
        let open = |worker| Partition::open(dir_of(worker), worker, &placement, &meta);
        let opened = own_workers(cluster).into_par_iter().map(open);
        // All are opened first, so that the error of the first one is returned.
        let opened: Vec<Result<Partition, StoreError>> = opened.collect();
        let partitions = Arc::new(opened.into_iter().collect::<Result<_, _>>()?);
        Ok(Self {
            meta: Arc::new(meta),
            columns: (!plan.graph.is_typed()).then(|| {
                let (nodes, edges) = (&plan.graph.types[0].nodes, &plan.graph.relations[0].edges);
                Arc::new(GraphColumns::new(nodes, edges))
            }),
            typed_columns: plan
                .graph
                .is_typed()
                .then(|| Arc::new(TypedColumns::new(&plan.graph))),
            placement,
            cluster: cluster.clone(),
            first_worker: cluster.first_worker(),
            partitions,
            page_cache: plan
                .page_cache
                .unwrap_or_else(|| page_cache_bytes(plan.memory_budget)),
            memory_budget: plan.memory_budget,
        })
    }

    /// Returns the processes and workers that use the store.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the store with other open partitions: those of all workers.
    pub(crate) fn with_all(&self, partitions: Vec<Partition>) -> Self {
        Self {
            first_worker: 0,
            partitions: Arc::new(partitions),
            ..self.clone()
        }
    }

    /// Returns the store as the processes and workers of `cluster` use it.
    pub(crate) fn used_by(&self, cluster: &Cluster) -> Self {
        Self {
            cluster: cluster.clone(),
            ..self.clone()
        }
    }

    /// Tells whether the partitions of all processes are open here.
    pub fn is_whole(&self) -> bool {
        self.partitions.len() == self.placement.workers()
    }

    /// Returns the partitions of this process, or of all if the store [is whole](Self::is_whole).
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Returns the description of the store.
    pub fn meta(&self) -> &StoreMeta {
        &self.meta
    }

    /// Returns the columns of the input tables that make the graph; none if nodes have types.
    pub fn columns(&self) -> Option<&GraphColumns> {
        self.columns.as_deref()
    }

    /// Returns the columns of the input tables of a graph with node types; none if nodes have none.
    pub fn typed_columns(&self) -> Option<&TypedColumns> {
        self.typed_columns.as_deref()
    }

    /// Returns the entry `input` of a manifest: the tables' fingerprints and the graph's columns.
    pub fn manifest_input(&self) -> serde_json::Value {
        let mut input = self.meta.input.clone();
        if let Some(columns) = &self.columns {
            input["columns"] = serde_json::json!(**columns);
        }
        if let Some(columns) = &self.typed_columns {
            input["columns"] = serde_json::json!(**columns);
        }
        input
    }

    /// Returns the placement of nodes on workers.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Returns the nodes of this process with more than `threshold` in-edges of a relation.
    pub fn own_hubs(&self, threshold: u64) -> Vec<Hub> {
        let mut hubs = Vec::new();
        for (relation, of) in self.meta.graph.relations.iter().enumerate() {
            for partition in self.partitions.iter() {
                for local in partition.locals(of.to) {
                    let in_degree = u64::from(partition.in_degree(relation, local));
                    if in_degree > threshold {
                        let (ids, row) = partition.id(local);
                        hubs.push(Hub {
                            id: ids.display(row),
                            in_degree,
                            relation: of.name.clone(),
                        });
                    }
                }
            }
        }
        hubs
    }

    /// Returns the memory budget of the job in this process.
    pub fn memory_budget(&self) -> usize {
        self.memory_budget
    }

    /// Returns how many bytes of files the page cache can hold.
    pub fn page_cache(&self) -> u64 {
        self.page_cache
    }

    /// Tells whether the page cache can hold the files of this process and `more` bytes of others.
    ///
    /// If not, rows that are read in any order are read from the disk again and again.
    pub fn is_cached_with(&self, more: u64) -> bool {
        let own = self.meta.files.iter().map(|file| file.bytes).sum::<u64>();
        own.saturating_add(more) <= self.page_cache
    }

    /// [Releases](Partition::release_nodes) the nodes of this process.
    pub fn release_nodes(&self) {
        self.partitions.iter().for_each(Partition::release_nodes);
    }

    /// Releases the nodes and the in-edges of this process.
    pub fn release(&self) {
        self.release_nodes();
        self.partitions.iter().for_each(Partition::release_in_edges);
    }

    /// Returns the partition of a worker.
    ///
    /// # Panics
    ///
    /// If the worker belongs to another process, and the store is not [whole](Self::is_whole).
    pub fn partition(&self, worker: usize) -> &Partition {
        &self.partitions[worker - self.first_worker]
    }
}

fn own_workers(cluster: &Cluster) -> std::ops::Range<usize> {
    let first = cluster.first_worker();
    first..first + cluster.num_threads()
}
