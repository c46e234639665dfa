//! Runs of the engine on graphs in temporary directories.

use crate::graph::{Graph, Id};
use crate::tables::{Cut, write_list, write_tables};
use graphflat::{FlattenError, FlattenSpec, Store, StorePlan, Targets, flatten, open_or_build};
use schemas::progress::Progress;
use schemas::{
    EdgesSpec, ExtractScratch, Fanout, GraphFeature, GraphFeatureDataset, Layout, Manifest,
    NodesSpec, Sampling, keep_at_hop,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempDir;

/// Everything a job says of flattening.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) fanouts: Vec<Fanout>,
    pub(crate) sampling: Sampling,
    pub(crate) layout: Layout,
    pub(crate) targets: Choice,
    pub(crate) seed: u64,
    pub(crate) samples: u32,
    pub(crate) workers: usize,
    pub(crate) hub_threshold: u64,
    pub(crate) targets_per_part: usize,
}

/// Which nodes are targets.
#[derive(Clone, Debug)]
pub(crate) enum Choice {
    Labelled,
    All,
    Train,
    Listed(Vec<Id>),
}

/// A graph's tables with room for stores and outputs; removed when dropped.
pub(crate) struct Tables {
    dir: TempDir,
    pub(crate) nodes: NodesSpec,
    pub(crate) edges: EdgesSpec,
    graph: Graph,
}

impl Settings {
    /// Fan-outs such as `5,all`; everything else plain.
    pub(crate) fn new(fanouts: &str) -> Self {
        let fanout = |text: &str| match text {
            "all" => Fanout::All,
            count => Fanout::Count(count.parse().unwrap()),
        };
        Self {
            fanouts: fanouts.split(',').map(fanout).collect(),
            sampling: Sampling::Uniform,
            layout: Layout::Rows,
            targets: Choice::All,
            seed: 7,
            samples: 1,
            workers: 1,
            hub_threshold: 1000,
            targets_per_part: 1000,
        }
    }
}

impl Tables {
    pub(crate) fn write(graph: &Graph, cut: Cut) -> Self {
        let dir = temporary_dir();
        let (nodes, edges) = write_tables(graph, dir.path(), cut);
        Self {
            dir,
            nodes,
            edges,
            graph: graph.clone(),
        }
    }

    /// One file and row group a table.
    pub(crate) fn whole(graph: &Graph) -> Self {
        let cut = Cut {
            files: 1,
            row_group: 1 << 20,
        };
        Self::write(graph, cut)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn store_plan(&self, settings: &Settings) -> Result<StorePlan, FlattenError> {
        let nodes = self.nodes.clone().into_plan(self.dir.path())?;
        let mut edges = self.edges.clone().into_plan(self.dir.path())?;
        edges = edges.with_id_type(nodes.id_type())?;
        if settings.sampling == Sampling::Weighted {
            edges = edges.with_non_negative_weights();
        }
        Ok(StorePlan {
            nodes: Arc::new(nodes),
            edges: Arc::new(edges),
            seed: settings.seed,
            sampling: settings.sampling,
            keep: keep_at_hop(&settings.fanouts, 0),
            samples: settings.samples,
            hub_threshold: settings.hub_threshold,
            workers: settings.workers,
            dir: self.path("store"),
            fresh: false,
        })
    }

    pub(crate) fn store(&self, settings: &Settings) -> Result<Store, FlattenError> {
        open_or_build(&self.store_plan(settings)?, &silent())
    }

    /// Builds the store, flattens it into `output` and returns the manifest.
    pub(crate) fn flatten(
        &self,
        settings: &Settings,
        output: &str,
    ) -> Result<Manifest, FlattenError> {
        self.flatten_with(settings, output, false, &silent())
    }

    pub(crate) fn flatten_with(
        &self,
        settings: &Settings,
        output: &str,
        fresh: bool,
        progress: &Progress,
    ) -> Result<Manifest, FlattenError> {
        let store = open_or_build(&self.store_plan(settings)?, progress)?;
        let plan = self
            .spec(settings, output)
            .into_plan(self.dir.path(), fresh)?;
        flatten(&plan, &store, progress)
    }

    fn spec(&self, settings: &Settings, output: &str) -> FlattenSpec {
        let targets = match &settings.targets {
            Choice::Labelled => Targets::Labelled,
            Choice::All => Targets::All,
            Choice::Train => Targets::Train,
            Choice::Listed(ids) => {
                write_list(&self.path("targets.parquet"), self.graph.id_type, ids);
                Targets::Listed(PathBuf::from("targets.parquet"))
            }
        };
        FlattenSpec {
            output: PathBuf::from(output),
            hops: settings.fanouts.len(),
            fanouts: settings.fanouts.clone(),
            sampling: settings.sampling,
            layout: settings.layout,
            targets,
            hub_threshold: Some(settings.hub_threshold),
            samples_per_target: settings.samples,
            targets_per_part: Some(settings.targets_per_part),
        }
    }

    /// Flattens and returns all neighbourhoods in the order they are written.
    pub(crate) fn features(&self, settings: &Settings) -> Vec<GraphFeature> {
        let output = self.path("out");
        if output.exists() {
            std::fs::remove_dir_all(&output).unwrap();
        }
        self.flatten(settings, "out").unwrap();
        read_features(&output)
    }
}

/// A directory in memory where there is one: the engine makes every file durable, and thousands of
/// small files made durable on a disk take minutes.
fn temporary_dir() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// Progress that nobody looks at.
pub(crate) fn silent() -> Progress {
    Arc::new(|_| ())
}

/// Reads all neighbourhoods of an output, part by part, and checks them on the way.
pub(crate) fn read_features(output: &Path) -> Vec<GraphFeature> {
    let dataset = GraphFeatureDataset::open(output).unwrap();
    dataset.verify().unwrap();
    let mut features = Vec::new();
    for part in 0..dataset.num_parts() {
        let read = dataset.read_features(part).unwrap();
        assert_eq!(
            dataset.part(part).rows,
            u64::try_from(read.len()).unwrap(),
            "rows of part {part}"
        );
        read.iter().for_each(|feature| feature.validate().unwrap());
        features.extend(read);
    }
    features
}

/// Reads all neighbourhoods of an output by way of shards.
pub(crate) fn extract_features(output: &Path) -> Vec<GraphFeature> {
    let dataset = GraphFeatureDataset::open(output).unwrap();
    let fanouts = &dataset.flatten().fanouts;
    let mut features = Vec::new();
    for part in 0..dataset.num_parts() {
        let shard = dataset.read_part(part).unwrap();
        shard.validate().unwrap();
        let mut scratch = ExtractScratch::new(&shard);
        let targets = (0..).zip(&shard.is_target).filter(|(_, is)| **is);
        features.extend(targets.map(|(i, _)| shard.extract(i, fanouts, &mut scratch)));
    }
    features
}
