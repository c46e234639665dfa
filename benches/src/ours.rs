//! Our side of a race: job files for the program `graphflat`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};
use toml::{Table, Value};

use crate::child::{Ended, Launch};
use crate::figure;
use crate::list::{Graph, Model, Ours, RowFormat, Work};
use crate::machine::cores;
use crate::tables::{Format, Tables};

/// Where the program and its outputs are.
pub(crate) struct Program<'a> {
    pub(crate) path: &'a Path,
    /// The root of the checkout.
    pub(crate) root: &'a Path,
    /// Directory for graph features and models that several runs read.
    pub(crate) prepared: &'a Path,
    pub(crate) limit: Duration,
}

impl Program<'_> {
    /// Makes what the runs of a race read: graph features for trainings, a model for inference.
    ///
    /// # Errors
    ///
    /// If the program fails.
    pub(crate) fn prepare(&self, graph: Graph, tables: &Tables, work: Work) -> anyhow::Result<()> {
        let hops = match work {
            Work::Train {
                hops,
                streamed: false,
                ..
            } => hops,
            Work::Infer { .. } | Work::InferSamples { .. } => 2,
            _ => return Ok(()),
        };
        let features = self.features(graph, hops);
        if !is_complete(&features) {
            let mut flatten = flatten_keys(graph, hops);
            flatten.insert("output".to_owned(), text(&features)?);
            flatten.insert("targets".to_owned(), "train".into());
            self.make(graph, tables, [("flatten", flatten)])?;
        }
        let model = match work {
            Work::Infer { model, .. } => model,
            Work::InferSamples { .. } => Model::Sage,
            _ => return Ok(()),
        };
        let output = self.model(graph, model);
        if !is_complete(&output) {
            let mut train = train_keys(graph, model, hops, false);
            // A hidden width for each layer: a linear head follows, which inference leaves out.
            train.insert(
                "hidden".to_owned(),
                Value::Array(vec![64.into(), 64.into()]),
            );
            if model == Model::Gat {
                train.insert("heads".to_owned(), 8.into());
            }
            train.insert("epochs".to_owned(), 1.into());
            train.insert("input".to_owned(), text(&features)?);
            train.insert("output".to_owned(), text(&output)?);
            self.make(graph, tables, [("train", train)])?;
        }
        Ok(())
    }

    fn features(&self, graph: Graph, hops: usize) -> PathBuf {
        self.prepared
            .join(graph.name())
            .join(format!("features-{hops}"))
    }

    fn model(&self, graph: Graph, model: Model) -> PathBuf {
        self.prepared
            .join(graph.name())
            .join(format!("model-{}", model.name()))
    }

    /// Runs stages without measuring them.
    fn make<const N: usize>(
        &self,
        graph: Graph,
        tables: &Tables,
        stages: [(&str, Table); N],
    ) -> anyhow::Result<()> {
        let dir = self.prepared.join(graph.name());
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        let job = job(graph, tables, &dir, false, stages)?;
        let ended = self
            .launch(&dir, &job, cores(), 0, false)?
            .run(self.limit)?;
        let store = dir.join("work");
        if store.exists() {
            fs::remove_dir_all(&store).with_context(|| store.display().to_string())?;
        }
        match ended.failure {
            Some(failure) => bail!("cannot prepare {}: {failure}", graph.name()),
            None => Ok(()),
        }
    }

    /// Returns the start of one run, which writes to the directory `scratch`.
    ///
    /// # Errors
    ///
    /// If the job file cannot be written.
    pub(crate) fn start(
        &self,
        graph: Graph,
        tables: Option<&Tables>,
        ours: &Ours,
        scratch: &Path,
    ) -> anyhow::Result<Launch> {
        let workers = if ours.one_core || ours.processes > 0 {
            1
        } else {
            cores()
        };
        if let Work::Job(path) = ours.work {
            // The job's outputs start at the working directory, as do its tables.
            let jobs = scratch.join("jobs");
            std::os::unix::fs::symlink(self.root.join("jobs"), &jobs)
                .with_context(|| jobs.display().to_string())?;
            return self.launch(scratch, Path::new(path), workers, 0, ours.one_core);
        }
        let tables = tables.context("the race has a graph")?;
        let job = self.job_of(graph, tables, ours.work, scratch)?;
        let is_large = graph == Graph::L && matches!(ours.work, Work::Infer { .. });
        if let Some(budget) = ours.memory_budget.or(is_large.then_some("1GiB")) {
            set_budget(&job, budget)?;
        }
        self.launch(scratch, &job, workers, ours.processes, ours.one_core)
    }

    fn job_of(
        &self,
        graph: Graph,
        tables: &Tables,
        work: Work,
        scratch: &Path,
    ) -> anyhow::Result<PathBuf> {
        let output = |name: &str| text(&scratch.join(name));
        match work {
            Work::Store => {
                let mut flatten = flatten_keys(graph, 2);
                flatten.insert("output".to_owned(), output("features")?);
                flatten.insert("targets".to_owned(), "train".into());
                job(graph, tables, scratch, true, [("flatten", flatten)])
            }
            Work::Flatten { layout, targets } => {
                let mut flatten = flatten_keys(graph, 2);
                flatten.insert("output".to_owned(), output("features")?);
                flatten.insert("layout".to_owned(), layout.into());
                flatten.insert("targets".to_owned(), targets.into());
                job(graph, tables, scratch, true, [("flatten", flatten)])
            }
            Work::Train {
                model,
                dropout,
                hops,
                streamed,
                workers,
                without,
            } => {
                let mut train = train_keys(graph, model, hops, dropout);
                if workers > 1 {
                    let share = i64::from(BATCH_SIZE / u32::from(workers));
                    train.insert("batch_size".to_owned(), share.into());
                    train.insert("workers".to_owned(), i64::from(workers).into());
                }
                train.insert("output".to_owned(), output("model")?);
                for key in without {
                    train.insert((*key).to_owned(), false.into());
                }
                if streamed {
                    train.insert("streamed".to_owned(), true.into());
                    let mut flatten = flatten_keys(graph, hops);
                    flatten.insert("targets".to_owned(), "train".into());
                    return job(
                        graph,
                        tables,
                        scratch,
                        false,
                        [("flatten", flatten), ("train", train)],
                    );
                }
                train.insert("input".to_owned(), text(&self.features(graph, hops))?);
                job(graph, tables, scratch, false, [("train", train)])
            }
            Work::Infer { model, rows } => {
                let mut infer = Table::new();
                infer.insert("output".to_owned(), output("embeddings")?);
                infer.insert("model".to_owned(), text(&self.model(graph, model))?);
                infer.insert("sampling".to_owned(), "none".into());
                infer.insert("prediction".to_owned(), false.into());
                if rows == RowFormat::Bf16 {
                    infer.insert("rows".to_owned(), "bf16".into());
                }
                if graph.is_typed() {
                    infer.insert("types".to_owned(), "all".into());
                }
                job(graph, tables, scratch, false, [("infer", infer)])
            }
            Work::InferSamples { neighborhoods } => {
                self.job_of_samples(graph, tables, neighborhoods, scratch)
            }
            Work::Job(path) => Ok(path.into()),
        }
    }

    /// Writes the job that infers all nodes on their samples.
    fn job_of_samples(
        &self,
        graph: Graph,
        tables: &Tables,
        neighborhoods: bool,
        scratch: &Path,
    ) -> anyhow::Result<PathBuf> {
        let output = |name: &str| text(&scratch.join(name));
        let mut infer = Table::new();
        infer.insert("output".to_owned(), output("embeddings")?);
        infer.insert("model".to_owned(), text(&self.model(graph, Model::Sage))?);
        infer.insert("prediction".to_owned(), false.into());
        if !neighborhoods {
            return job(graph, tables, scratch, false, [("infer", infer)]);
        }
        infer.insert("method".to_owned(), "neighborhoods".into());
        let mut flatten = flatten_keys(graph, 2);
        flatten.insert("output".to_owned(), output("features")?);
        flatten.insert("layout".to_owned(), "rows".into());
        flatten.insert("targets".to_owned(), "all".into());
        let stages = [("flatten", flatten), ("infer", infer)];
        job(graph, tables, scratch, false, stages)
    }

    fn launch(
        &self,
        dir: &Path,
        job: &Path,
        workers: usize,
        processes: usize,
        one_core: bool,
    ) -> anyhow::Result<Launch> {
        let mut args = vec!["run".into(), job.as_os_str().to_owned(), "--json".into()];
        args.extend(["--workers".into(), workers.to_string().into()]);
        if processes > 0 {
            args.extend(["--processes".into(), processes.to_string().into()]);
        }
        Ok(Launch {
            program: self.path.to_owned(),
            args,
            env: Vec::new(),
            dir: dir.to_owned(),
            one_core,
        })
    }
}

/// Returns the seconds of the work that a run is about.
///
/// # Errors
///
/// If the program did not print or write them.
pub(crate) fn work_seconds(
    graph: Graph,
    ours: &Ours,
    ended: &Ended,
    scratch: &Path,
) -> anyhow::Result<f64> {
    // A second run of the same outputs would skip its stages.
    let job_seconds = figure::job_seconds(&ended.lines)?;
    match ours.work {
        Work::Store => figure::store_written(&ended.lines),
        Work::Train { .. } => {
            figure::epoch_seconds(&manifest(&scratch.join("model"))?, graph.epochs().1)
        }
        Work::Infer { model, .. } if ours.processes == 0 => {
            // Attention and typed graphs project in round 0; elsewhere it only moves features
            // between files, and peers hold these in memory.
            let first = usize::from(model != Model::Gat && !graph.is_typed());
            let workers = if ours.one_core { 1 } else { cores() };
            figure::layer_seconds(&manifest(&scratch.join("embeddings"))?, first, workers)
        }
        Work::Flatten { .. } | Work::Job(_) | Work::Infer { .. } | Work::InferSamples { .. } => {
            Ok(job_seconds)
        }
    }
}

fn manifest(dir: &Path) -> anyhow::Result<serde_json::Value> {
    let path = dir.join("_manifest.json");
    let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

fn is_complete(dir: &Path) -> bool {
    dir.join("_SUCCESS").exists()
}

fn text(path: &Path) -> anyhow::Result<Value> {
    let text = path
        .to_str()
        .with_context(|| format!("{} is not UTF-8", path.display()))?;
    Ok(text.into())
}

/// Writes the job file of some stages into a directory, where its store will be too.
fn job<const N: usize>(
    graph: Graph,
    tables: &Tables,
    dir: &Path,
    weights: bool,
    stages: [(&str, Table); N],
) -> anyhow::Result<PathBuf> {
    let mut job = Table::new();
    job.insert("name".to_owned(), "race".into());
    job.insert("seed".to_owned(), 7.into());
    job.insert("work_dir".to_owned(), text(&dir.join("work"))?);
    job.insert("input".to_owned(), input(graph, tables, weights)?.into());
    for (name, keys) in stages {
        job.insert(name.to_owned(), keys.into());
    }
    let path = dir.join("job.toml");
    fs::write(&path, job.to_string()).with_context(|| path.display().to_string())?;
    Ok(path)
}

fn set_budget(job: &Path, budget: &str) -> anyhow::Result<()> {
    let written = fs::read_to_string(job).with_context(|| job.display().to_string())?;
    // Keys of the top level come before the first table.
    fs::write(job, format!("memory_budget = \"{budget}\"\n{written}"))
        .with_context(|| job.display().to_string())
}

/// Returns `[input]`; weights only if they are asked for, because only flatten's peers read them.
fn input(graph: Graph, tables: &Tables, weights: bool) -> anyhow::Result<Table> {
    let path = |name: &str| text(&tables.dir.join(name));
    if graph.is_typed() {
        let job = tables.dir.join("job.toml");
        let written = fs::read_to_string(&job).with_context(|| job.display().to_string())?;
        let mut table: Table = written.parse().with_context(|| job.display().to_string())?;
        let mut input = table
            .remove("input")
            .and_then(|input| input.as_table().cloned());
        let input = input
            .take()
            .context("the job of a generated graph has [input]")?;
        return Ok(if weights {
            input
        } else {
            without_weights(input)
        });
    }
    let (nodes, edges) = match tables.format {
        Format::Csv => ("nodes.csv", "edges.csv"),
        _ => ("nodes.parquet", "edges.parquet"),
    };
    let features = match tables.format {
        Format::Csv => (0..graph.size().2)
            .map(|at| format!("f{at}").into())
            .collect(),
        _ => vec!["features".into()],
    };
    let mut of_nodes = Table::new();
    of_nodes.insert("path".to_owned(), path(nodes)?);
    of_nodes.insert("id".to_owned(), "id".into());
    of_nodes.insert("features".to_owned(), Value::Array(features));
    of_nodes.insert("label".to_owned(), "label".into());
    let classes = i64::try_from(graph.classes())?;
    of_nodes.insert("num_classes".to_owned(), classes.into());
    of_nodes.insert("split".to_owned(), "split".into());
    if tables.format == Format::Peers {
        let mut values = Table::from_iter([("train", 0), ("val", 1), ("test", 2)].map(number));
        if graph == Graph::C {
            values.extend([("none", 3)].map(number));
        }
        of_nodes.insert("split_values".to_owned(), values.into());
    }
    let mut of_edges = Table::new();
    of_edges.insert("path".to_owned(), path(edges)?);
    of_edges.insert("src".to_owned(), "src".into());
    of_edges.insert("dst".to_owned(), "dst".into());
    if weights {
        of_edges.insert("weight".to_owned(), "weight".into());
    }
    let both = [("nodes", of_nodes), ("edges", of_edges)];
    Ok(both
        .into_iter()
        .map(|(name, table)| (name.to_owned(), table.into()))
        .collect())
}

fn number((name, number): (&str, i64)) -> (String, Value) {
    (name.to_owned(), number.into())
}

fn without_weights(mut input: Table) -> Table {
    let relations = input.get_mut("edges").and_then(Value::as_table_mut);
    for (_, relation) in relations.into_iter().flatten() {
        if let Some(keys) = relation.as_table_mut() {
            keys.remove("weight");
        }
    }
    input
}

/// Returns `[flatten]`: fan-outs of 10, or all in-edges of small graphs.
fn flatten_keys(graph: Graph, hops: usize) -> Table {
    let fanout: Value = if graph.has_all_in_edges() {
        "all".into()
    } else {
        10.into()
    };
    let mut keys = Table::new();
    let length = i64::try_from(hops).unwrap_or(i64::MAX);
    keys.insert("hops".to_owned(), length.into());
    keys.insert("fanouts".to_owned(), Value::Array(vec![fanout; hops]));
    keys
}

/// Targets of a training's step, of all workers together.
const BATCH_SIZE: u32 = 1024;

/// Returns `[train]`: the models and settings of the peers' scripts.
fn train_keys(graph: Graph, model: Model, hops: usize, dropout: bool) -> Table {
    let is_cora = graph == Graph::C;
    let rate = if dropout { 0.5 } else { 0.0 };
    let is_gat = model == Model::Gat;
    let hidden: i64 = match (is_cora, is_gat) {
        (true, false) => 16,
        _ => 64,
    };
    let epochs = i64::try_from(graph.epochs().0).unwrap_or(i64::MAX);
    let mut keys = Table::new();
    keys.insert("model".to_owned(), model.name().into());
    keys.insert(
        "hidden".to_owned(),
        Value::Array(vec![hidden.into(); hops - 1]),
    );
    keys.insert("dropout".to_owned(), rate.into());
    keys.insert("learning_rate".to_owned(), 0.01.into());
    keys.insert("batch_size".to_owned(), i64::from(BATCH_SIZE).into());
    keys.insert("epochs".to_owned(), epochs.into());
    keys.insert("device".to_owned(), "cpu".into());
    if is_gat {
        keys.insert("heads".to_owned(), (if is_cora { 8 } else { 4 }).into());
        keys.insert("activation".to_owned(), "elu".into());
    }
    if is_cora {
        keys.insert("weight_decay".to_owned(), 5e-4.into());
        keys.insert("input_dropout".to_owned(), rate.into());
        if is_gat && dropout {
            keys.insert("attention_dropout".to_owned(), 0.6.into());
        }
    }
    keys
}

#[cfg(test)]
mod tests;
