//! Generated graphs as Parquet tables, job files around them, and runs of the real binary on both.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;

use arrow::array::{
    ArrayRef, FixedSizeListArray, Float32Array, Int32Array, Int64Array, ListArray, StringArray,
};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::record_batch::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use tempfile::TempDir;

/// Width of the generated features.
pub(crate) const FEATURE_DIM: usize = 6;
/// Classes of the generated labels.
pub(crate) const NUM_CLASSES: usize = 3;

/// How the ids of a generated graph are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum IdKind {
    /// 64-bit integers, some negative, in no order.
    Int64,
    /// Strings, in no order.
    Utf8,
}

/// How the features of a generated graph are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FeatureKind {
    /// One list column.
    List,
    /// One fixed-size list column.
    FixedList,
    /// One column a feature.
    Columns,
    /// An index list and a value list.
    Sparse,
    /// No features at all.
    None,
}

/// Kills a process; tells whether it had ended before.
pub(crate) fn kill(mut child: Child) -> bool {
    let has_ended = child.try_wait().unwrap().is_some();
    child.kill().unwrap(); // SIGKILL: no handler runs
    child.wait().unwrap();
    has_ended
}

/// A 64-bit mix: the only source of random numbers in the tests.
pub(crate) fn mix(seed: u64, value: u64) -> u64 {
    let mut z = seed.wrapping_add(value.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A small graph with all special cases: a hub (node 0), self-loops (node 1), parallel edges (2 ->
/// 3, three times) and an isolated node (the last).
#[derive(Clone, Debug)]
pub(crate) struct Graph {
    pub(crate) num_nodes: usize,
    /// `(src, dst)` as node positions.
    pub(crate) edges: Vec<(usize, usize)>,
    pub(crate) ids: IdKind,
    pub(crate) features: FeatureKind,
    pub(crate) weights: bool,
}

impl Graph {
    /// Draws `num_nodes` nodes in three communities and about six edges a node.
    pub(crate) fn new(num_nodes: usize, ids: IdKind, features: FeatureKind) -> Graph {
        let last = num_nodes - 1;
        let mut edges = vec![(1, 1), (1, 1), (2, 3), (2, 3), (2, 3)];
        for src in 1..last {
            if src % 3 == 0 || num_nodes < 30 {
                edges.push((src, 0));
            }
            for draw in 0..5_u64 {
                let key = (src as u64) * 8 + draw;
                let mut dst = usize::try_from(mix(11, key) % last as u64).unwrap();
                if draw < 4 {
                    dst = dst - dst % NUM_CLASSES + src % NUM_CLASSES; // stay in the community
                }
                if dst < last && dst != src {
                    edges.push((src, dst));
                }
            }
        }
        Graph {
            num_nodes,
            edges,
            ids,
            features,
            weights: false,
        }
    }

    /// The graph with a weight on every edge.
    pub(crate) fn with_weights(mut self) -> Graph {
        self.weights = true;
        self
    }

    /// The graph with `count` more in-edges of node 4, from all other nodes that have edges in
    /// turn.
    pub(crate) fn with_in_edges(mut self, count: usize) -> Graph {
        let others = (1..self.num_nodes - 1).filter(|&src| src != 4).cycle();
        self.edges.extend(others.take(count).map(|src| (src, 4)));
        self
    }

    /// The id of a node, as text.
    pub(crate) fn id(&self, node: usize) -> String {
        match self.ids {
            IdKind::Int64 => self.int_id(node).to_string(),
            IdKind::Utf8 => format!("node/{:x}-{node}", mix(5, node as u64) % 4096),
        }
    }

    fn int_id(&self, node: usize) -> i64 {
        let place = (node * 37 + 11) % 1009;
        place as i64 * 1_000_003 - 30_000_000
    }

    fn id_column(&self, nodes: impl Iterator<Item = usize>) -> ArrayRef {
        match self.ids {
            IdKind::Int64 => Arc::new(Int64Array::from_iter_values(
                nodes.map(|node| self.int_id(node)),
            )),
            IdKind::Utf8 => Arc::new(StringArray::from_iter_values(
                nodes.map(|node| self.id(node)),
            )),
        }
    }

    /// The features of a node, from which its class follows only roughly.
    pub(crate) fn feature(&self, node: usize) -> [f32; FEATURE_DIM] {
        std::array::from_fn(|column| {
            let noise = (mix(3, (node * FEATURE_DIM + column) as u64) % 1000) as f32 / 1000.0;
            let signal = if column % NUM_CLASSES == node % NUM_CLASSES {
                0.6
            } else {
                0.0
            };
            if self.features == FeatureKind::Sparse && noise < 0.4 {
                0.0
            } else {
                noise + signal
            }
        })
    }

    /// `train`, `val`, `test` or none.
    pub(crate) fn split(&self, node: usize) -> Option<&'static str> {
        match mix(17, node as u64) % 10 {
            0..5 => Some("train"),
            5..7 => Some("val"),
            7..9 => Some("test"),
            _ => None,
        }
    }

    /// The node table: `id`, the features, `label` (class numbers), `name` (class names) and
    /// `split`.
    pub(crate) fn nodes(&self) -> Table {
        let nodes = 0..self.num_nodes;
        let mut table = Table::default();
        table.set("id", self.id_column(nodes.clone()));
        let rows: Vec<[f32; FEATURE_DIM]> = nodes.clone().map(|node| self.feature(node)).collect();
        match self.features {
            FeatureKind::List => {
                table.set("features", f32_lists(rows.iter().map(|row| row.to_vec())));
            }
            FeatureKind::FixedList => {
                let item = Arc::new(Field::new("element", DataType::Float32, true));
                let values = Float32Array::from_iter_values(rows.iter().flatten().copied());
                let dim = i32::try_from(FEATURE_DIM).unwrap();
                let lists = FixedSizeListArray::new(item, dim, Arc::new(values), None);
                table.set("features", Arc::new(lists));
            }
            FeatureKind::Columns => {
                for column in 0..FEATURE_DIM {
                    let values = rows.iter().map(|row| row[column]);
                    table.set(
                        &format!("f{column}"),
                        Arc::new(Float32Array::from_iter_values(values)),
                    );
                }
            }
            FeatureKind::Sparse => {
                let present = |row: &[f32; FEATURE_DIM]| -> Vec<(usize, f32)> {
                    row.iter()
                        .copied()
                        .enumerate()
                        .filter(|&(_, value)| value != 0.0)
                        .collect()
                };
                let index = rows.iter().map(|row| {
                    present(row)
                        .into_iter()
                        .map(|(column, _)| i32::try_from(column).unwrap())
                        .collect()
                });
                table.set("feat_idx", i32_lists(index));
                let value = rows
                    .iter()
                    .map(|row| present(row).into_iter().map(|(_, v)| v).collect());
                table.set("feat_val", f32_lists(value));
            }
            FeatureKind::None => {}
        }
        let class = nodes
            .clone()
            .map(|node| i32::try_from(node % NUM_CLASSES).unwrap());
        table.set("label", Arc::new(Int32Array::from_iter_values(class)));
        let name = nodes
            .clone()
            .map(|node| format!("class {}", node % NUM_CLASSES));
        table.set("name", Arc::new(StringArray::from_iter_values(name)));
        table.set(
            "split",
            Arc::new(StringArray::from_iter(nodes.map(|node| self.split(node)))),
        );
        table
    }

    /// The weight of the edge at a position.
    pub(crate) fn weight(&self, edge: usize) -> f32 {
        (1 + mix(23, edge as u64) % 7) as f32 / 4.0
    }

    /// The edge table: `src`, `dst` and, on request, `weight`.
    pub(crate) fn edge_table(&self) -> Table {
        let mut table = Table::default();
        table.set(
            "src",
            self.id_column(self.edges.iter().map(|&(src, _)| src)),
        );
        table.set(
            "dst",
            self.id_column(self.edges.iter().map(|&(_, dst)| dst)),
        );
        if self.weights {
            let weights = (0..self.edges.len()).map(|edge| self.weight(edge));
            table.set("weight", Arc::new(Float32Array::from_iter_values(weights)));
        }
        table
    }

    /// The tables `[input.nodes]` and `[input.edges]` of a job file on this graph.
    pub(crate) fn input_toml(&self) -> String {
        let features = match self.features {
            FeatureKind::List | FeatureKind::FixedList => "features = [\"features\"]\n".to_owned(),
            FeatureKind::Columns => {
                let names: Vec<String> = (0..FEATURE_DIM).map(|c| format!("\"f{c}\"")).collect();
                format!("features = [{}]\n", names.join(", "))
            }
            FeatureKind::Sparse => format!(
                "sparse = {{ index = \"feat_idx\", value = \"feat_val\", width = {FEATURE_DIM} }}\n"
            ),
            FeatureKind::None => String::new(),
        };
        let weight = if self.weights {
            "weight = \"weight\"\n"
        } else {
            ""
        };
        format!(
            "[input.nodes]\npath = \"nodes.parquet\"\nid = \"id\"\n{features}label = \"label\"\n\
             split = \"split\"\n\n[input.edges]\npath = \"edges.parquet\"\nsrc = \"src\"\n\
             dst = \"dst\"\n{weight}\n"
        )
    }
}

/// A Parquet table being built.
#[derive(Clone, Default)]
pub(crate) struct Table(Vec<(String, ArrayRef)>);

impl Table {
    /// Adds or replaces a column.
    pub(crate) fn set(&mut self, name: &str, values: ArrayRef) {
        match self.0.iter_mut().find(|(have, _)| have == name) {
            Some(column) => column.1 = values,
            None => self.0.push((name.to_owned(), values)),
        }
    }

    /// The values of a column.
    pub(crate) fn column(&self, name: &str) -> ArrayRef {
        Arc::clone(
            &self
                .0
                .iter()
                .find(|(have, _)| have == name)
                .expect("the column is there")
                .1,
        )
    }

    /// Some of the rows.
    pub(crate) fn slice(&self, offset: usize, length: usize) -> Table {
        let columns = self.0.iter();
        let part =
            |(name, column): &(String, ArrayRef)| (name.clone(), column.slice(offset, length));
        Table(columns.map(part).collect())
    }

    /// Removes a column.
    pub(crate) fn remove(&mut self, name: &str) {
        self.0.retain(|(have, _)| have != name);
    }

    /// Writes the table in row groups of 40 rows, so that even small graphs have several.
    pub(crate) fn write(&self, path: &Path) {
        let fields: Vec<Field> = self
            .0
            .iter()
            .map(|(name, values)| Field::new(name, values.data_type().clone(), true))
            .collect();
        let schema = Arc::new(Schema::new(fields));
        let columns = self
            .0
            .iter()
            .map(|(_, values)| Arc::clone(values))
            .collect();
        let batch = RecordBatch::try_new(Arc::clone(&schema), columns).unwrap();
        let properties = WriterProperties::builder()
            .set_max_row_group_row_count(Some(40))
            .build();
        let file = File::create(path).unwrap();
        let mut writer = ArrowWriter::try_new(file, schema, Some(properties)).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
    }
}

/// A column of float lists.
pub(crate) fn f32_lists(rows: impl Iterator<Item = Vec<f32>>) -> ArrayRef {
    let rows: Vec<Vec<f32>> = rows.collect();
    let offsets = OffsetBuffer::from_lengths(rows.iter().map(Vec::len));
    let values = Float32Array::from_iter_values(rows.into_iter().flatten());
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    Arc::new(ListArray::new(item, offsets, Arc::new(values), None))
}

/// A column of integer lists.
pub(crate) fn i32_lists(rows: impl Iterator<Item = Vec<i32>>) -> ArrayRef {
    let rows: Vec<Vec<i32>> = rows.collect();
    let offsets = OffsetBuffer::from_lengths(rows.iter().map(Vec::len));
    let values = Int32Array::from_iter_values(rows.into_iter().flatten());
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    Arc::new(ListArray::new(item, offsets, Arc::new(values), None))
}

/// The text of a job file; a test changes a piece of it.
#[derive(Clone, Debug)]
pub(crate) struct Job(pub(crate) String);

/// `[flatten]` of the generated jobs.
pub(crate) const FLATTEN: &str = "[flatten]\noutput = \"out/features\"\nhops = 2\n\
     fanouts = [4, 3]\nsampling = \"uniform\"\nlayout = \"shards\"\ntargets_per_part = 16\n\n";
/// `[train]` of the generated jobs.
pub(crate) const TRAIN: &str = "[train]\noutput = \"out/model\"\nmodel = \"sage\"\n\
     hidden = [8]\nepochs = 4\nbatch_size = 16\n\n";
/// `[infer]` of the generated jobs.
pub(crate) const INFER: &str = "[infer]\noutput = \"out/embeddings\"\n\n";

impl Job {
    /// A job on a graph with the given stage tables.
    pub(crate) fn new(graph: &Graph, stages: &[&str]) -> Job {
        let mut text = "name = \"small\"\nseed = 7\nworkers = 2\n\n".to_owned();
        text.push_str(&graph.input_toml());
        stages.iter().for_each(|stage| text.push_str(stage));
        Job(text)
    }

    /// A job of the given text.
    pub(crate) fn of_text(text: &str) -> Job {
        Job(text.to_owned())
    }

    /// The job with one piece of its text replaced; the piece must be there.
    pub(crate) fn with(&self, from: &str, to: &str) -> Job {
        assert!(
            self.0.contains(from),
            "{from:?} is not in the job:\n{}",
            self.0
        );
        Job(self.0.replacen(from, to, 1))
    }

    /// The job with lines added at its end, which belong to its last table.
    pub(crate) fn and(&self, lines: &str) -> Job {
        Job(format!("{}\n{lines}\n", self.0.trim_end()))
    }
}

/// Result of a run of the program: exit code and both output streams.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) code: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Outcome {
    pub(crate) fn of(output: &Output) -> Outcome {
        Outcome {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// The outcome, if the run succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> Outcome {
        assert_eq!(self.code, 0, "the run failed: {self:#?}");
        self
    }

    /// The JSON objects on standard output, one a line; anything else there is a failure.
    #[track_caller]
    pub(crate) fn events(&self) -> Vec<serde_json::Value> {
        let parse = |line| serde_json::from_str(line).expect("one JSON object a line");
        self.stdout.lines().map(parse).collect()
    }
}

/// A directory with the tables of one graph, where jobs run.
pub(crate) struct Bench {
    dir: TempDir,
}

impl Bench {
    /// Writes a Parquet table of some columns.
    pub(crate) fn write_table(&self, name: &str, columns: Vec<(&str, ArrayRef)>) {
        let mut table = Table::default();
        for (column, values) in columns {
            table.set(column, values);
        }
        table.write(&self.path(name));
    }

    /// Writes the tables of a graph into a new temporary directory.
    pub(crate) fn new(graph: &Graph) -> Bench {
        let bench = Bench::empty();
        graph.nodes().write(&bench.path("nodes.parquet"));
        graph.edge_table().write(&bench.path("edges.parquet"));
        bench
    }

    /// A new temporary directory without tables.
    pub(crate) fn empty() -> Bench {
        Bench {
            dir: TempDir::with_prefix("graphflat-test-").unwrap(),
        }
    }

    /// A path inside the directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The program, set up to run here.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_graphflat"));
        command.args(args).current_dir(self.dir.path());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    /// Runs the program here.
    pub(crate) fn graphflat(&self, args: &[&str]) -> Outcome {
        Outcome::of(&self.command(args).output().unwrap())
    }

    /// Writes the job file `job.toml`.
    pub(crate) fn write(&self, job: &Job) {
        fs::write(self.path("job.toml"), &job.0).unwrap();
    }

    /// Writes a job and runs it quietly with more arguments.
    pub(crate) fn run(&self, job: &Job, args: &[&str]) -> Outcome {
        self.write(job);
        self.graphflat(&[&["run", "job.toml", "--quiet"], args].concat())
    }

    /// Removes outputs and work files, keeps the tables.
    pub(crate) fn clear(&self) {
        for name in ["out", "work"] {
            if self.path(name).exists() {
                fs::remove_dir_all(self.path(name)).unwrap();
            }
        }
    }

    /// The data files of an output (tables, weights, epochs and scores) by relative path.
    pub(crate) fn data_files(&self, output: &str) -> BTreeMap<String, Vec<u8>> {
        let keep = |path: &Path| {
            path.extension()
                .is_some_and(|e| e == "parquet" || e == "safetensors" || e == "jsonl")
                || path.ends_with("evaluation.json")
                || path.ends_with("ranking.json")
        };
        let root = self.path(output);
        let files: BTreeMap<String, Vec<u8>> = files_below(&root)
            .into_iter()
            .filter(|path| keep(path))
            .map(|path| {
                let name = path
                    .strip_prefix(&root)
                    .unwrap()
                    .to_string_lossy()
                    .into_owned();
                (name, fs::read(path).unwrap())
            })
            .collect();
        assert!(!files.is_empty(), "{output} holds no data file");
        files
    }

    /// Returns the notes of the parts that a run has committed to an unfinished output.
    pub(crate) fn committed_notes(&self, output: &str) -> Vec<PathBuf> {
        let notes = std::fs::read_dir(self.path(output).join("_progress"));
        let notes = notes.into_iter().flatten();
        let notes = notes.map(|note| note.unwrap().path());
        let is_note = |path: &PathBuf| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("part-") && name.ends_with(".json")
        };
        notes.filter(is_note).collect()
    }

    /// The manifest of an output.
    pub(crate) fn manifest(&self, output: &str) -> serde_json::Value {
        let text = fs::read_to_string(self.path(output).join("_manifest.json")).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

/// Every file below a directory, sorted; empty if the directory does not exist.
pub(crate) fn files_below(dir: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).into_iter().flatten() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path)
            } else {
                files.push(path)
            }
        }
    }
    files.sort();
    files
}

/// Fails with the names of the files that differ between two outputs.
#[track_caller]
pub(crate) fn assert_same_bytes(
    left: &BTreeMap<String, Vec<u8>>,
    right: &BTreeMap<String, Vec<u8>>,
    what: &str,
) {
    let mut report = String::new();
    for name in left.keys().chain(right.keys()) {
        if left.get(name) != right.get(name) {
            let size = |files: &BTreeMap<String, Vec<u8>>| files.get(name).map(Vec::len);
            let (a, b) = (size(left), size(right));
            writeln!(report, "{name}: {a:?} and {b:?} bytes").expect("writing to a string");
        }
    }
    assert!(report.is_empty(), "outputs differ, {what}:\n{report}");
}
