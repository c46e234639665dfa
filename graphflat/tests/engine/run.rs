//! Runs the engine on graphs in temporary directories.

use crate::graph::{Graph, Id};
use crate::tables::{Cut, edges_spec, nodes_spec, write_list, write_tables};
use graphflat::{FlattenError, FlattenPlan, FlattenSpec, HopSpec, Targets, flatten};
use schemas::progress::Progress;
use schemas::{
    EdgesSpec, ExtractScratch, Fanout, GraphFeature, GraphFeatureDataset, GraphPlan, IdType, Ids,
    Layout, Manifest, NodesSpec, Sampling, keep_at_hop,
};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use store::{Store, StorePlan, open_or_build};
use tempfile::TempDir;

/// All settings of a job that concern flatten.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) fanouts: Vec<Fanout>,
    pub(crate) sampling: Sampling,
    pub(crate) layout: Layout,
    pub(crate) targets: Choice,
    pub(crate) seed: u64,
    pub(crate) samples: u32,
    pub(crate) redraw: bool,
    pub(crate) workers: usize,
    pub(crate) hub_threshold: u64,
    pub(crate) memory_budget: usize,
    pub(crate) targets_per_part: usize,
}

/// The nodes that are targets.
#[derive(Clone, Debug)]
pub(crate) enum Choice {
    Labelled,
    All,
    Train,
    Listed(Vec<Id>),
}

/// The tables of a graph, in a directory that also holds its stores and outputs.
pub(crate) struct Tables {
    root: PathBuf,
    /// Removes the directory when dropped; none if another process removes it.
    _dir: Option<TempDir>,
    pub(crate) nodes: NodesSpec,
    pub(crate) edges: EdgesSpec,
    /// Type of the ids in a list of targets.
    pub(crate) list_type: Cell<IdType>,
}

impl Settings {
    /// Parses fan-outs such as `5,all`; all other settings have defaults.
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
            redraw: false,
            workers: 1,
            hub_threshold: 1000,
            memory_budget: 1 << 30,
            targets_per_part: 1000,
        }
    }
}

impl Tables {
    pub(crate) fn write(graph: &Graph, cut: Cut) -> Self {
        let dir = temporary_dir();
        write_tables(graph, dir.path(), cut);
        let tables = Self::open(graph, cut, dir.path());
        Self {
            _dir: Some(dir),
            ..tables
        }
    }

    /// Uses the tables that another process wrote.
    pub(crate) fn open(graph: &Graph, cut: Cut, root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            _dir: None,
            nodes: nodes_spec(graph, cut),
            edges: edges_spec(graph),
            list_type: Cell::new(graph.id_type),
        }
    }

    /// Replaces the tables by others with the same columns.
    pub(crate) fn rewrite(&self, graph: &Graph, cut: Cut) {
        write_tables(graph, &self.root, cut);
    }

    /// Writes each table as one file with one row group.
    pub(crate) fn whole(graph: &Graph) -> Self {
        let cut = Cut {
            files: 1,
            row_group: 1 << 20,
        };
        Self::write(graph, cut)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn store_plan(&self, settings: &Settings) -> Result<StorePlan, FlattenError> {
        let nodes = self.nodes.clone().into_plan(&self.root)?;
        let edges = self.edges.clone().into_plan(&self.root)?;
        let mut graph = GraphPlan::untyped(nodes, edges)?;
        if settings.sampling == Sampling::Weighted {
            graph = graph.with_non_negative_weights();
        }
        Ok(StorePlan {
            graph: Arc::new(graph),
            target_type: 0,
            seed: settings.seed,
            sampling: settings.sampling,
            keep: vec![keep_at_hop(&settings.fanouts, 0, 0)],
            samples: settings.samples,
            redraw: settings.redraw,
            left_out: false,
            hub_threshold: settings.hub_threshold,
            workers: settings.workers,
            memory_budget: settings.memory_budget,
            // A small budget stands for a small machine.
            page_cache: (settings.memory_budget < 1 << 20).then_some(0),
            dir: self.path("store"),
            fresh: false,
        })
    }

    pub(crate) fn store(&self, settings: &Settings) -> Result<Store, FlattenError> {
        Ok(open_or_build(&self.store_plan(settings)?, &silent())?)
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
        flatten(
            &self.flatten_plan(settings, output, fresh),
            &store,
            progress,
        )
    }

    pub(crate) fn flatten_plan(
        &self,
        settings: &Settings,
        output: &str,
        fresh: bool,
    ) -> FlattenPlan {
        let targets = match &settings.targets {
            Choice::Labelled => Targets::Labelled,
            Choice::All => Targets::All,
            Choice::Train => Targets::Train,
            Choice::Listed(ids) => {
                write_list(&self.path("targets.parquet"), self.list_type.get(), ids);
                Targets::Listed(PathBuf::from("targets.parquet"))
            }
        };
        let spec = FlattenSpec {
            pairs_per_part: None,
            negatives_per_part: None,
            output: Some(PathBuf::from(output)),
            hops: settings.fanouts.len(),
            fanouts: settings
                .fanouts
                .iter()
                .copied()
                .map(HopSpec::Every)
                .collect(),
            target_type: None,
            sampling: settings.sampling,
            layout: Some(settings.layout),
            targets,
            hub_threshold: Some(settings.hub_threshold),
            samples_per_target: Some(settings.samples),
            targets_per_part: Some(settings.targets_per_part),
        };
        spec.into_plan(&self.root, fresh).unwrap()
    }

    /// Flattens, and returns all neighbourhoods by sample and then by target id.
    pub(crate) fn features(&self, settings: &Settings) -> Vec<GraphFeature> {
        let output = self.path("out");
        if output.exists() {
            std::fs::remove_dir_all(&output).unwrap();
        }
        self.flatten(settings, "out").unwrap();
        read_features(&output)
    }
}

/// Makes a directory in memory if possible: the engine syncs every file, which takes minutes for
/// thousands of small files on a disk.
pub(crate) fn temporary_dir() -> TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

/// Progress that is ignored.
pub(crate) fn silent() -> Progress {
    Arc::new(|_| ())
}

/// Progress that records stage and phase of each event.
pub(crate) fn recorded() -> (Progress, Arc<Mutex<Vec<String>>>) {
    let events = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&events);
    let progress: Progress = Arc::new(move |event| {
        let line = format!("{} {}", event.stage, event.phase);
        record.lock().unwrap().push(line);
    });
    (progress, events)
}

/// Reads all files below a directory, by their relative path.
pub(crate) fn snapshot(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            let below = snapshot(&path).into_iter();
            files.extend(below.map(|(file, bytes)| (format!("{name}/{file}"), bytes)));
        } else {
            files.insert(name, std::fs::read(&path).unwrap());
        }
    }
    files
}

/// Reads the Parquet files below a directory, by their relative path.
///
/// Earlier runs that wrote to the directory must not change the bytes of these files.
pub(crate) fn snapshot_parts(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = snapshot(dir);
    files.retain(|name, _| name.ends_with(".parquet"));
    files
}

/// Reads and checks all neighbourhoods of an output; returns them by sample and then by target id.
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
        let validate = |feature: &GraphFeature| feature.validate(dataset.meta()).unwrap();
        read.iter().for_each(validate);
        features.extend(read);
    }
    in_id_order(features)
}

/// Sorts neighbourhoods by sample and then by target id.
///
/// The parts of an output are in the order of samples, but the targets of a sample are not in the
/// order of ids.
fn in_id_order(features: Vec<GraphFeature>) -> Vec<GraphFeature> {
    let mut samples: BTreeMap<String, usize> = BTreeMap::new();
    let mut keyed: Vec<(usize, GraphFeature)> = Vec::new();
    for feature in features {
        let sample = samples
            .entry(feature.target_nodes().node_id.display(0))
            .or_default();
        keyed.push((*sample, feature));
        *sample += 1;
    }
    fn ids(feature: &GraphFeature) -> &Ids {
        &feature.target_nodes().node_id
    }
    keyed.sort_by(|(a, left), (b, right)| a.cmp(b).then_with(|| ids(left).cmp(0, ids(right), 0)));
    keyed.into_iter().map(|(_, feature)| feature).collect()
}

/// Reads the parts of an output as shards, and extracts the neighbourhood of each target; returns
/// them by sample and then by target id.
pub(crate) fn extract_features(output: &Path) -> Vec<GraphFeature> {
    let dataset = GraphFeatureDataset::open(output).unwrap();
    let fanouts = &dataset.flatten().fanouts;
    let mut features = Vec::new();
    for part in 0..dataset.num_parts() {
        let shard = dataset.read_part(part).unwrap();
        shard.validate(dataset.meta()).unwrap();
        let mut scratch = ExtractScratch::new(&shard);
        let extract = |target| shard.extract(target, fanouts, &mut scratch);
        features.extend(shard.targets().map(extract));
    }
    in_id_order(features)
}
