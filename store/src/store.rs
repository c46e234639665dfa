//! A store, open for reading.

use crate::partition::Partition;
use crate::{Placement, StoreError, StoreMeta, StorePlan};
use cluster::Cluster;
use schemas::GraphColumns;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// A node with more in-edges than the threshold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hub {
    /// Its id.
    pub id: String,
    /// Its in-degree.
    pub in_degree: u64,
}

/// A stored graph, which flatten, streamed training and inference read.
#[derive(Clone, Debug)]
pub struct Store {
    meta: Arc<StoreMeta>,
    columns: Arc<GraphColumns>,
    placement: Placement,
    /// The processes and workers of the job; each process has the partitions of its own workers.
    cluster: Cluster,
    /// The partitions of this process.
    partitions: Arc<Vec<Partition>>,
}

impl Store {
    pub(crate) fn open(
        cluster: &Cluster,
        plan: &StorePlan,
        meta: StoreMeta,
    ) -> Result<Self, StoreError> {
        let placement = Placement::new(meta.num_nodes, meta.workers);
        let partitions = own_workers(cluster)
            .map(|worker| Partition::open(&plan.dir, worker, placement.num_local(worker), &meta));
        let partitions = Arc::new(partitions.collect::<Result<_, _>>()?);
        Ok(Self {
            meta: Arc::new(meta),
            columns: Arc::new(GraphColumns::new(&plan.nodes, &plan.edges)),
            placement,
            cluster: cluster.clone(),
            partitions,
        })
    }

    /// Returns the processes and workers that use the store.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the partitions of this process.
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Returns the description of the store.
    pub fn meta(&self) -> &StoreMeta {
        &self.meta
    }

    /// Returns the columns of the input tables that make the graph.
    pub fn columns(&self) -> &GraphColumns {
        &self.columns
    }

    /// Returns the entry `input` of a manifest: the tables' fingerprints and the graph's columns.
    pub fn manifest_input(&self) -> serde_json::Value {
        let mut input = self.meta.input.clone();
        input["columns"] = serde_json::json!(*self.columns);
        input
    }

    /// Returns the placement of nodes on workers.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Returns the nodes of this process with more than `threshold` in-edges.
    pub fn own_hubs(&self, threshold: u64) -> Vec<Hub> {
        let mut hubs = Vec::new();
        for partition in self.partitions.iter() {
            for local in partition.locals() {
                let in_degree = u64::from(partition.in_degree(local));
                if in_degree > threshold {
                    let id = partition.ids().display(local.index());
                    hubs.push(Hub { id, in_degree });
                }
            }
        }
        hubs
    }

    /// Returns the partition of a worker.
    ///
    /// # Panics
    ///
    /// If the worker belongs to another process.
    pub fn partition(&self, worker: usize) -> &Partition {
        &self.partitions[worker - self.cluster.first_worker()]
    }
}

fn own_workers(cluster: &Cluster) -> std::ops::Range<usize> {
    let first = cluster.first_worker();
    first..first + cluster.num_threads()
}
