//! Versions of embeddings: tables of changes in, the rows of a full run out, by the real binary.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arrow::array::{ArrayRef, Date32Array, Float32Array, Int64Array, ListArray, StringArray};
use arrow::datatypes::{Float32Type, Int32Type};
use schemas::{EmbeddingsDataset, Labels, SchemaError};

use crate::harness::{Bench, Job, Outcome, kill, mix};
use crate::needs::{has_modules, python, skip, slow};

const NUM_NODES: i64 = 300;

/// A node with out-edges alone. The first night removes it, and the second adds it again as it was.
const SOURCE: i64 = 902;

/// A graph whose tables change from night to night.
#[derive(Clone)]
pub(crate) struct World {
    /// Two features of each node.
    nodes: BTreeMap<i64, [f32; 2]>,
    edges: Vec<(i64, i64)>,
    /// The node that was removed last, with its features.
    gone: Option<(i64, [f32; 2])>,
    /// Whether (a, b) and (b, a) name the same edges.
    pub(crate) undirected: bool,
    /// Whether features also have categories, days and nulls.
    pub(crate) odd: bool,
    /// Whether edges have weights.
    pub(crate) weighted: bool,
    /// Whether tables of changes have labels and splits, which then change too.
    pub(crate) targets: bool,
    /// By how much the numbers are larger that labels and splits follow from; 0 if it is missing.
    shifts: BTreeMap<i64, i64>,
    /// By how much the numbers are larger that the weights of edges follow from; 0 if it is missing.
    weight_shifts: BTreeMap<(i64, i64), i64>,
    nights: usize,
    seed: u64,
    draws: u64,
}

/// Changes of one night. A node without features is deleted.
#[derive(Default)]
pub(crate) struct Night {
    nodes: BTreeMap<i64, Option<[f32; 2]>>,
    /// How many edges lead from one node to another afterwards; 0 deletes those that do.
    edges: BTreeMap<(i64, i64), usize>,
    odd: bool,
    /// [`World::weight_shifts`], if edges have weights.
    weight_shifts: Option<BTreeMap<(i64, i64), i64>>,
    /// [`World::shifts`], if the table has labels and splits.
    shifts: Option<BTreeMap<i64, i64>>,
}

impl World {
    pub(crate) const SEED: u64 = 29;

    pub(crate) fn new() -> World {
        Self::of_seed(Self::SEED)
    }

    pub(crate) fn of_seed(seed: u64) -> World {
        let mut world = World {
            nodes: BTreeMap::new(),
            edges: Vec::new(),
            gone: None,
            undirected: false,
            odd: false,
            weighted: false,
            targets: false,
            shifts: BTreeMap::new(),
            weight_shifts: BTreeMap::new(),
            nights: 0,
            seed,
            draws: 0,
        };
        for id in 0..NUM_NODES {
            let features = world.features();
            world.nodes.insert(3 * id, features);
        }
        for _ in 0..6 * NUM_NODES {
            let ends = (world.node(), world.node());
            world.edges.push(ends);
        }
        for _ in 0..4 {
            let ends = (SOURCE, world.node());
            world.edges.push(ends);
        }
        let features = world.features();
        world.nodes.insert(SOURCE, features);
        world
    }

    /// Returns some edge.
    pub(crate) fn edge(&self, at: usize) -> (i64, i64) {
        self.edges[at % self.edges.len()]
    }

    pub(crate) fn has_node(&self, id: i64) -> bool {
        self.nodes.contains_key(&id)
    }

    fn below(&mut self, end: usize) -> usize {
        self.draws += 1;
        usize::try_from(mix(self.seed, self.draws) % end as u64).unwrap()
    }

    fn node(&mut self) -> i64 {
        let at = self.below(self.nodes.len());
        *self.nodes.keys().nth(at).unwrap()
    }

    fn features(&mut self) -> [f32; 2] {
        [self.below(100) as f32 / 50.0, self.below(100) as f32 / 50.0]
    }

    /// Draws changes of every kind and applies them.
    pub(crate) fn night(&mut self) -> Night {
        let mut night = Night {
            odd: self.odd,
            ..Night::default()
        };
        for _ in 0..2 {
            let (node, features) = (self.node(), self.features());
            night.nodes.insert(node, Some(features));
        }
        if self.targets {
            for _ in 0..4 {
                let node = self.node();
                *self.shifts.entry(node).or_default() += 1;
                night.nodes.insert(node, Some(self.nodes[&node]));
            }
        }
        let new = 3 * i64::try_from(self.below(400)).unwrap() + 1;
        let features = self.features();
        night.nodes.insert(new, Some(features));
        for (src, dst) in [(self.node(), new), (new, self.node()), (new, new)] {
            night.edges.insert((src, dst), 1);
        }
        for _ in 0..3 {
            let at = self.below(self.edges.len());
            night.edges.insert(self.edges[at], 0);
            let ends = (self.node(), self.node());
            let count = 1 + self.below(3);
            night.edges.insert(ends, count);
        }
        if self.weighted && !self.undirected {
            let at = self.below(self.edges.len());
            let ends = self.edges[at];
            *self.weight_shifts.entry(ends).or_default() += 1;
            let parallel = self.edges.iter().filter(|&other| *other == ends);
            night.edges.insert(ends, parallel.count());
        }
        // A node comes back as it was, with out-edges alone.
        if let Some((id, as_before)) = self.gone.take() {
            night.nodes.insert(id, Some(as_before));
            night.edges.insert((id, self.node()), 1);
        }
        self.nights += 1;
        let gone = match self.nights {
            1 => SOURCE,
            _ => self.node(),
        };
        if let Entry::Vacant(free) = night.nodes.entry(gone) {
            free.insert(None);
            self.gone = Some((gone, self.nodes[&gone]));
            let is_of_gone = |ends: &(i64, i64)| ends.0 == gone || ends.1 == gone;
            night.edges.retain(|ends, _| !is_of_gone(ends));
            let of_gone = self.edges.iter().filter(|ends| is_of_gone(ends));
            night.edges.extend(of_gone.map(|ends| (*ends, 0)));
        }
        let has = |ends: &(i64, i64)| self.edges.contains(ends);
        night.edges.retain(|ends, count| *count > 0 || has(ends));
        night.shifts = self.targets.then(|| self.shifts.clone());
        night.weight_shifts = self.weighted.then(|| self.weight_shifts.clone());
        if self.undirected {
            let drawn = night.edges.clone();
            let is_first = |&(a, b): &(i64, i64)| a <= b || !drawn.contains_key(&(b, a));
            night.edges.retain(|ends, _| is_first(ends));
        }
        self.apply(&night);
        night
    }

    /// Changes edges alone.
    pub(crate) fn change_edges(&mut self) {
        for _ in 0..3 {
            let at = self.below(self.edges.len());
            self.edges.remove(at);
            let ends = (self.node(), self.node());
            self.edges.push(ends);
        }
    }

    /// Changes the features of a node alone.
    pub(crate) fn change_node(&mut self) {
        let (node, features) = (self.node(), self.features());
        self.nodes.insert(node, features);
    }

    /// Changes label and split of a node alone.
    pub(crate) fn change_target(&mut self) {
        let node = self.node();
        *self.shifts.entry(node).or_default() += 1;
    }

    fn apply(&mut self, night: &Night) {
        for (&id, features) in &night.nodes {
            match features {
                Some(features) => self.nodes.insert(id, *features),
                None => self.nodes.remove(&id),
            };
        }
        let is_named = |&(a, b): &(i64, i64)| {
            let reverse = self.undirected && night.edges.contains_key(&(b, a));
            reverse || night.edges.contains_key(&(a, b))
        };
        self.edges.retain(|ends| !is_named(ends));
        for (&ends, &count) in &night.edges {
            self.edges.extend(std::iter::repeat_n(ends, count));
        }
    }

    pub(crate) fn write(&self, bench: &Bench, dir: &str) {
        std::fs::create_dir_all(bench.path(dir)).unwrap();
        let features: Vec<[f32; 2]> = self.nodes.values().copied().collect();
        let mut columns = vec![("id", ids(self.nodes.keys().copied()))];
        columns.extend(target_columns(self.nodes.keys(), &self.shifts));
        columns.extend(feature_columns(&features, self.odd));
        bench.write_table(&format!("{dir}/nodes.parquet"), columns);
        let mut edges = vec![
            ("src", ids(self.edges.iter().map(|ends| ends.0))),
            ("dst", ids(self.edges.iter().map(|ends| ends.1))),
        ];
        if self.weighted {
            let shifts = &self.weight_shifts;
            edges.push(("w", weights(self.edges.iter().copied(), shifts)));
        }
        bench.write_table(&format!("{dir}/edges.parquet"), edges);
    }
}

impl Night {
    pub(crate) fn write(&self, bench: &Bench, dir: &str) {
        std::fs::create_dir_all(bench.path(dir)).unwrap();
        let op = |is_upsert: bool| if is_upsert { "upsert" } else { "delete" };
        let ops = self.nodes.values().map(|features| op(features.is_some()));
        let features = self.nodes.values().map(|of| of.unwrap_or_default());
        let mut columns = vec![
            ("id", ids(self.nodes.keys().copied())),
            ("op", Arc::new(StringArray::from_iter_values(ops))),
        ];
        if let Some(shifts) = &self.shifts {
            columns.extend(target_columns(self.nodes.keys(), shifts));
        }
        columns.extend(feature_columns(&features.collect::<Vec<_>>(), self.odd));
        bench.write_table(&format!("{dir}/nodes.parquet"), columns);
        let rows = self.edges.iter();
        let rows = rows
            .flat_map(|(ends, count)| std::iter::repeat_n((*ends, *count > 0), (*count).max(1)));
        let rows: Vec<((i64, i64), bool)> = rows.collect();
        let of_edges = rows.iter().map(|(_, is_upsert)| op(*is_upsert));
        let mut edges: Vec<(&str, ArrayRef)> = vec![
            ("src", ids(rows.iter().map(|(ends, _)| ends.0))),
            ("dst", ids(rows.iter().map(|(ends, _)| ends.1))),
            ("op", Arc::new(StringArray::from_iter_values(of_edges))),
        ];
        if let Some(shifts) = &self.weight_shifts {
            edges.push(("w", weights(rows.iter().map(|(ends, _)| *ends), shifts)));
        }
        bench.write_table(&format!("{dir}/edges.parquet"), edges);
    }
}

/// The columns of labels and splits. Some nodes whose numbers are shifted have none.
pub(crate) fn target_columns<'a>(
    nodes: impl Iterator<Item = &'a i64> + Clone,
    shifts: &BTreeMap<i64, i64>,
) -> Vec<(&'static str, ArrayRef)> {
    let shift = |id: &i64| shifts.get(id).copied().unwrap_or(0);
    let label = nodes.clone().map(|id| (id + shift(id)) % 2);
    let split = nodes.map(|id| match ((id + shift(id)) % 5, shift(id) % 3) {
        (_, 2) => None,
        (0, _) => Some("val"),
        (1, _) => Some("test"),
        _ => Some("train"),
    });
    vec![
        ("label", ids(label)),
        ("split", Arc::new(split.collect::<StringArray>())),
    ]
}

/// The columns of features: `x` and `y`, and if they are odd `kind`, `day`, `gap` and the sparse
/// `index` and `value`, which follow from these.
fn feature_columns(features: &[[f32; 2]], odd: bool) -> Vec<(&'static str, ArrayRef)> {
    let of = |column: usize| features.iter().map(move |row| row[column]);
    let mut columns = vec![("x", floats(of(0))), ("y", floats(of(1)))];
    if odd {
        let step = |value: f32| {
            let found = (0..100u8).find(|&step| f32::from(step) / 50.0 == value);
            i32::from(found.unwrap())
        };
        let kind = of(0).map(|x| ["a", "b", "c"][usize::try_from(step(x) % 3).unwrap()]);
        let gap = of(1).map(|y| (step(y) % 4 > 0).then_some(y));
        let kind: ArrayRef = Arc::new(StringArray::from_iter_values(kind));
        let day: ArrayRef = Arc::new(Date32Array::from_iter_values(of(1).map(step)));
        let gap: ArrayRef = Arc::new(Float32Array::from_iter(gap));
        columns.extend([("kind", kind), ("day", day), ("gap", gap)]);
        // A node has no number, one or two.
        let numbers = |[x, y]: [f32; 2]| {
            let all = [(step(x) % 5, x + 1.0), (5 + step(y) % 3, y)];
            all.into_iter().take(usize::try_from(step(x) % 3).unwrap())
        };
        let index = features
            .iter()
            .map(|&row| Some(numbers(row).map(|(at, _)| Some(at)).collect::<Vec<_>>()));
        let value = features.iter().map(|&row| {
            Some(
                numbers(row)
                    .map(|(_, value)| Some(value))
                    .collect::<Vec<_>>(),
            )
        });
        let index = ListArray::from_iter_primitive::<Int32Type, _, _>(index);
        let value = ListArray::from_iter_primitive::<Float32Type, _, _>(value);
        columns.extend([
            ("index", Arc::new(index) as ArrayRef),
            ("value", Arc::new(value) as ArrayRef),
        ]);
    }
    columns
}

fn ids(of: impl Iterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(of))
}

/// Weights of edges, which follow from their ends and shifts.
fn weights(of: impl Iterator<Item = (i64, i64)>, shifts: &BTreeMap<(i64, i64), i64>) -> ArrayRef {
    let shift = |ends| shifts.get(&ends).copied().unwrap_or(0);
    floats(of.map(|(src, dst)| ((src + 3 * dst + shift((src, dst))) % 7) as f32 / 3.0))
}

fn floats(of: impl Iterator<Item = f32>) -> ArrayRef {
    Arc::new(Float32Array::from_iter_values(of))
}

/// Name, input and work directory of a job.
pub(crate) fn head(work: &str, tables: &str) -> String {
    format!(
        "name = \"nightly\"\nseed = 7\nworkers = 2\nwork_dir = \"{work}\"\n\n[input.nodes]\n\
         path = \"{tables}/nodes.parquet\"\nid = \"id\"\nfeatures = [\"x\", \"y\"]\n\
         label = \"label\"\nsplit = \"split\"\n\n[input.edges]\npath = \"{tables}/edges.parquet\"\n\
         src = \"src\"\ndst = \"dst\"\n\n"
    )
}

/// The first version, of trained model `model`; `infer` are further keys of [infer].
pub(crate) fn first(model: &str, infer: &str) -> Job {
    Job(format!(
        "{}[flatten]\noutput = \"out/features\"\nhops = 2\nfanouts = [4, 3]\n\n\
         [train]\noutput = \"out/model\"\nmodel = \"{model}\"\nhidden = [8]\nepochs = 2\n\n\
         [infer]\noutput = \"out/v0\"\n{infer}\n[incremental]\n",
        head("work", "start")
    ))
}

/// A version whose output is `out/OUTPUT`.
pub(crate) fn version(output: &str, parent: &str, nights: &[&str], infer: &str) -> Job {
    let mut text = head("work", "start");
    for night in nights {
        writeln!(
            text,
            "[[input.changes]]\nnodes = \"{night}/nodes.parquet\"\n\
             edges = \"{night}/edges.parquet\"\n"
        )
        .unwrap();
    }
    Job(format!(
        "{text}[infer]\noutput = \"out/{output}\"\nmodel = \"out/model\"\n{infer}\n[incremental]\n\
         parent = \"out/{parent}\"\n"
    ))
}

/// A version of the whole tables in `tables`.
pub(crate) fn of_snapshot(output: &str, parent: &str, tables: &str, infer: &str) -> Job {
    let written = format!(
        "[input.snapshot]\nnodes = \"{tables}/nodes.parquet\"\n\
         edges = \"{tables}/edges.parquet\"\n\n[infer]\n"
    );
    version(output, parent, &[], infer).with("[infer]\n", &written)
}

/// A version that writes the store anew, with all changes.
pub(crate) fn rebuilding(job: &Job) -> Job {
    job.with("[incremental]\n", "[incremental]\nrebuild_share = 0.0\n")
}

/// Rows by id: bits of the embedding, and the prediction; 0 without one.
pub(crate) type Rows = BTreeMap<String, (Vec<u32>, u32)>;

pub(crate) fn rows(bench: &Bench, output: &str) -> Rows {
    let dataset = EmbeddingsDataset::open(&bench.path(output)).unwrap();
    let mut all = Rows::new();
    for part in 0..dataset.num_parts() {
        let of = dataset.read_part(part).unwrap();
        assert_eq!(of.ids.len() as u64, dataset.num_rows(part));
        let classes = match &of.prediction {
            Labels::Class(classes) => classes.clone(),
            Labels::None => vec![0; of.ids.len()],
            other => panic!("{other:?} are no classes"),
        };
        for (at, &class) in classes.iter().enumerate() {
            let row = &of.embedding[at * of.dim..][..of.dim];
            let bits = row.iter().map(|value| value.to_bits()).collect();
            let before = all.insert(of.ids.display(at), (bits, class));
            assert!(before.is_none(), "{output} has a node twice");
        }
    }
    all
}

/// Ids of the rows that an output has written itself.
fn own_ids(bench: &Bench, output: &str) -> BTreeSet<String> {
    let dataset = EmbeddingsDataset::open(&bench.path(output)).unwrap();
    let num_own = dataset.manifest().row_parts().count();
    let own = dataset.num_parts() - num_own..dataset.num_parts();
    let ids = own.map(|part| dataset.read_part(part).unwrap().ids);
    let ids = ids.flat_map(|ids| (0..ids.len()).map(|at| ids.display(at)).collect::<Vec<_>>());
    ids.collect()
}

/// Runs the full job on the tables in `tables`, in its own work directory. `adapt` changes the job.
pub(crate) fn full(bench: &Bench, tables: &str, infer: &str, adapt: impl Fn(Job) -> Job) -> Rows {
    let job = Job(format!(
        "{}[infer]\noutput = \"out/full-{tables}\"\nmodel = \"out/model\"\n{infer}\n",
        head(&format!("work-{tables}"), tables)
    ));
    bench.run(&adapt(job), &[]).ok();
    rows(bench, &format!("out/full-{tables}"))
}

/// Trains a model of class `model`, runs a chain of versions and compares each with a full run on
/// the changed tables.
fn check_chain(model: &str, infer: &str, keys: [&str; 2]) {
    check_chain_after(&[first(model, infer)], (model, infer), keys, &[]);
}

/// Runs the jobs `start`, of which the last one is the first of a chain of versions, and compares
/// each version with a full run on the changed tables. `args` are those of the jobs of the chain.
fn check_chain_after(
    start: &[Job],
    (model, infer): (&str, &str),
    [edges_from, edges_to]: [&str; 2],
    args: &[&str],
) {
    let (bench, mut world) = (Bench::empty(), World::new());
    let adapt = |job: Job| job.with(edges_from, edges_to);
    world.undirected = edges_to.contains("undirected");
    world.odd = edges_to.contains("kind") || edges_to.contains("sparse");
    world.weighted = edges_to.contains("weight");
    world.write(&bench, "start");
    for job in start {
        bench.run(&adapt(job.clone()), args).ok();
    }
    let before = rows(&bench, "out/v0");
    let (mut changed, mut rows_before) = (0, before.clone());
    for at in 1..=3 {
        let (night, tables) = (format!("night-{at}"), format!("tables-{at}"));
        world.night().write(&bench, &night);
        world.write(&bench, &tables);
        // The second night continues the version of a snapshot.
        let of_parent = if at == 2 { "s" } else { "v" };
        let (own, parent) = (format!("v{at}"), format!("{of_parent}{}", at - 1));
        let mut whole = of_snapshot(&format!("s{at}"), &parent, &tables, infer);
        let mut of_night = version(&own, &parent, &[&night], infer);
        if at == 2 {
            // The third night starts from a store that holds the changes.
            (whole, of_night) = (rebuilding(&whole), rebuilding(&of_night));
        }
        let outcome = bench.run(&adapt(of_night), args).ok();
        let expected = full(&bench, &tables, infer, adapt);
        let found = rows(&bench, &format!("out/{own}"));
        bench.run(&adapt(whole), args).ok();
        let of_whole = rows(&bench, &format!("out/s{at}"));
        assert!(of_whole == expected, "{model}, snapshot {at}");
        let report = |output: &str| {
            let mut report = bench.manifest(&format!("out/{output}"))["report"].take();
            let of_rounds = report.as_object_mut().unwrap();
            // They have seconds.
            of_rounds.retain(|key, _| key != "rounds" && key != "processes");
            report
        };
        assert_eq!(report(&format!("s{at}")), report(&own));
        assert_eq!(found.len(), world.nodes.len());
        assert!(found == expected, "{model}, version {at}: {outcome:?}");
        let manifest = bench.manifest(&format!("out/{own}"));
        let written = manifest["version"]["upserts"].as_u64().unwrap();
        let mode = manifest["report"]["mode"].as_str().unwrap();
        assert_eq!(mode == "full", written == world.nodes.len() as u64);
        changed += usize::from(mode == "incremental");
        // What a vector store would not learn of is as it was.
        let listed = own_ids(&bench, &format!("out/{own}"));
        let mut others = found.iter().filter(|(id, _)| !listed.contains(*id));
        assert!(
            others.all(|(id, row)| rows_before.get(id) == Some(row)),
            "{model}, {at}"
        );
        rows_before = found;
    }
    assert!(changed > 0, "{model}: every version was a full one");
    // The first version stands as it was.
    assert!(rows(&bench, "out/v0") == before);
}

const DIRECTED: [&str; 2] = ["dst = \"dst\"\n", "dst = \"dst\"\n"];
const WEIGHTED: [&str; 2] = ["dst = \"dst\"\n", "dst = \"dst\"\nweight = \"w\"\n"];
const UNDIRECTED: [&str; 2] = ["dst = \"dst\"\n", "dst = \"dst\"\nundirected = true\n"];

#[test]
fn versions_of_sage_are_full_runs() {
    check_chain("sage", "", DIRECTED);
}

/// The first run also flattens, so its store ranks in-edges by weight; the versions only infer.
#[test]
fn versions_of_all_in_edges_continue_a_store_of_another_sampling() {
    let (bench, mut world) = (Bench::empty(), World::new());
    world.weighted = true;
    world.write(&bench, "start");
    let infer = "sampling = \"none\"\n";
    let flatten = "hops = 2\nfanouts = [4, 3]\nsampling = \"weighted\"\n";
    let weighted = |job: Job| job.with(WEIGHTED[0], WEIGHTED[1]);
    let start = first("sage", infer).with("hops = 2\nfanouts = [4, 3]\n", flatten);
    bench.run(&weighted(start), &[]).ok();
    for at in 1..=3 {
        let (night, tables) = (format!("night-{at}"), format!("tables-{at}"));
        world.night().write(&bench, &night);
        world.write(&bench, &tables);
        let (own, parent) = (format!("v{at}"), format!("v{}", at - 1));
        if at == 3 {
            // A store that is lost is built again as it was.
            std::fs::remove_dir_all(bench.path("work/store")).unwrap();
        }
        bench
            .run(&weighted(version(&own, &parent, &[&night], infer)), &[])
            .ok();
        let expected = full(&bench, &tables, infer, |job| {
            let stages = format!("[flatten]\noutput = \"out/f-{tables}\"\n{flatten}\n[infer]\n");
            weighted(job.with("[infer]\n", &stages))
        });
        assert!(rows(&bench, &format!("out/{own}")) == expected, "{own}");
    }
}

/// Workers of a chain that runs in several processes.
pub(crate) const PROCESSES: [&str; 4] = ["--processes", "2", "--workers", "2"];

/// With three processes of one worker, and two of two.
#[test]
fn versions_in_several_processes_are_full_runs() {
    let three = ["--processes", "3", "--workers", "1"];
    for (model, keys, args) in [("gcn", DIRECTED, three), ("gat", WEIGHTED, PROCESSES)] {
        check_chain_after(&[first(model, "")], (model, ""), keys, &args);
    }
}

#[test]
fn versions_of_gat_are_full_runs() {
    check_chain("gat", "logits = true\nnormalize = true\n", UNDIRECTED);
}

#[test]
fn versions_of_gcn_are_full_runs() {
    check_chain("gcn", "rows_per_part = 70\n", UNDIRECTED);
}

#[test]
fn versions_of_sage_with_weights_are_full_runs() {
    check_chain("sage", "", WEIGHTED);
}

#[test]
fn versions_of_gcn_with_weights_are_full_runs() {
    check_chain("gcn", "", WEIGHTED);
}

#[test]
fn versions_of_learnable_rows_are_full_runs() {
    let learnable = ["split = \"split\"\n", "split = \"split\"\nembedding = 4\n"];
    check_chain("gatv2", "", learnable);
}

#[test]
fn versions_of_the_last_layer_are_full_runs() {
    check_chain("gin", "layer = 2\nprediction = true\n", DIRECTED);
}

#[test]
fn versions_of_sparse_features_are_full_runs() {
    let sparse = [
        "features = [\"x\", \"y\"]",
        "sparse = { index = \"index\", value = \"value\", width = 8 }\ntransform = \"row_normalize\"",
    ];
    check_chain("gcn", "", sparse);
    check_chain("sage", "", sparse);
    // With learnable rows, the input of layer 1 is dense.
    let learnable = format!("{}\nembedding = 4", sparse[1]);
    check_chain("sage", "", [sparse[0], &learnable]);
}

/// A model of links is trained on pairs; a job without [input.pairs], where all edges carry messages,
/// has its versions.
#[test]
fn versions_of_links_are_full_runs() {
    let unlabelled =
        head("work-train", "start").replace("label = \"label\"\nsplit = \"split\"\n", "");
    let training = Job(format!(
        "{unlabelled}[input.pairs]\nfrom_edges = true\n\
         share = {{ train = 0.8, val = 0.1, test = 0.1 }}\n\n[flatten]\noutput = \"out/features\"\n\
         hops = 2\nfanouts = [4, 3]\n\n[train]\noutput = \"out/model\"\nmodel = \"sage\"\n\
         hidden = [8, 8]\nepochs = 2\nloss = \"softmax\"\ndecoder = \"dot\"\n\
         negatives = {{ random = 4 }}\n"
    ));
    let kept = Job(format!(
        "{}[infer]\noutput = \"out/v0\"\nmodel = \"out/model\"\n\n[incremental]\n",
        head("work", "start")
    ));
    for keys in [DIRECTED, UNDIRECTED] {
        check_chain_after(&[training.clone(), kept.clone()], ("links", ""), keys, &[]);
    }
}

#[test]
fn versions_of_categories_times_and_nulls_are_full_runs() {
    let odd = [
        "features = [\"x\", \"y\"]",
        "features = [\"x\", \"y\", \"kind\", \"day\", \"gap\"]",
    ];
    check_chain("sage", "", odd);
}

#[test]
fn a_new_category_and_the_first_null_of_a_column_are_refused() {
    let (bench, mut world) = (Bench::empty(), World::new());
    world.odd = true;
    world.write(&bench, "start");
    let odd = |job: Job| job.with("[\"x\", \"y\"]", "[\"x\", \"kind\", \"day\"]");
    bench.run(&odd(first("sage", "")), &[]).ok();
    world.night().write(&bench, "night");
    let job = odd(version("v1", "v0", &["night"], ""));
    let check = |kind: &str, x: Option<f32>, expected: &str| {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("id", ids([0].into_iter())),
            ("x", Arc::new(Float32Array::from_iter([x]))),
            ("kind", Arc::new(StringArray::from_iter_values([kind]))),
            ("day", Arc::new(Date32Array::from_iter_values([3]))),
            ("op", Arc::new(StringArray::from_iter_values(["upsert"]))),
        ];
        bench.write_table("night/nodes.parquet", columns);
        check_refused(
            &bench,
            &job,
            3,
            &format!("error: job job.toml: stage infer: {expected}"),
        );
    };
    check(
        "d",
        Some(1.0),
        "column `kind` of night/nodes.parquet, row 0: is \"d\", a category that was not there before",
    );
    check(
        "a",
        None,
        "column `x` of `input.changes.nodes` is null for node 0; in the first table it has no null",
    );
}

/// Runs a script in Python.
pub(crate) fn run_python(bench: &Bench, python: &Path, script: &str) -> Outcome {
    let mut command = Command::new(python);
    command.args(["-c", script]).current_dir(bench.path(""));
    Outcome::of(&command.output().unwrap()).ok()
}

/// The page about versions.
const PAGE: &str = include_str!("../docs/job/incremental.md");

/// The blocks of a language on the page.
pub(crate) fn blocks(language: &str) -> Vec<&'static str> {
    blocks_of(PAGE, language)
}

/// The blocks of a language on a page.
pub(crate) fn blocks_of<'a>(page: &'a str, language: &str) -> Vec<&'a str> {
    let blocks = page
        .split(&format!("```{language}\n"))
        .skip(1)
        .collect::<Vec<_>>();
    let code = blocks
        .into_iter()
        .map(|block| block.split("```").next().unwrap());
    code.collect()
}

#[test]
fn the_jobs_of_the_page_run_and_its_reader_reads_a_version() {
    let (bench, mut world) = (Bench::empty(), World::new());
    world.write(&bench, "start");
    let [start, night, snapshot] = blocks("toml")[..] else {
        panic!("the page has two jobs and the table [input.snapshot]");
    };
    bench.run(&Job::of_text(start), &[]).ok();
    world.night().write(&bench, "changes/2026-11-26");
    bench
        .run(&Job::of_text(night), &["--date", "2026-11-26"])
        .ok();
    let expected = rows(&bench, "out/embeddings-2026-11-26");
    assert_eq!(expected.len(), world.nodes.len());
    world.write(&bench, "2026-11-26");
    let (before, rest) = night.split_once("[input.changes]").unwrap();
    let (_, after) = rest.split_once("[infer]").unwrap();
    let of_snapshot = Job::of_text(&format!("{before}{snapshot}\n[infer]{after}"));
    let of_snapshot = of_snapshot.with("output = \"out/embeddings-", "output = \"out/snapshot-");
    bench.run(&of_snapshot, &["--date", "2026-11-26"]).ok();
    assert!(rows(&bench, "out/snapshot-2026-11-26") == expected);
    let compact = "graphflat compact out/embeddings-2026-11-26 --output out/whole-2026-11-26 \
                   --work-dir work/items";
    assert!(PAGE.contains(compact));
    let words: Vec<&str> = compact.split_whitespace().skip(1).collect();
    bench.graphflat(&words).ok();
    assert!(rows(&bench, "out/whole-2026-11-26") == expected);
    let Some(python) = python() else { return };
    let script = format!(
        "{}\ntable = read_version('out/embeddings-2026-11-26', ['id', 'prediction'])\n\
         for id, prediction in zip(*(table[name].to_pylist() for name in table.column_names)):\n\
         \x20   print(id, prediction)\n",
        blocks("python")[0]
    );
    let outcome = run_python(&bench, &python, &script);
    let found = outcome.stdout.lines().map(|line| {
        let (id, class) = line.split_once(' ').unwrap();
        (id.to_owned(), class.parse::<u32>().unwrap())
    });
    let found: BTreeMap<String, u32> = found.collect();
    assert_eq!(outcome.stdout.lines().count(), expected.len());
    let expected = expected.into_iter().map(|(id, (_, class))| (id, class));
    assert!(found == expected.collect());
    bench
        .run(&Job::of_text(night), &["--date", "2026-11-26"])
        .ok();
}

/// A bench with a first version, and the nights that follow.
fn started(nights: usize) -> (Bench, World) {
    let (bench, mut world) = (Bench::empty(), World::new());
    world.write(&bench, "start");
    bench.run(&first("sage", ""), &[]).ok();
    for at in 1..=nights {
        world.night().write(&bench, &format!("night-{at}"));
    }
    (bench, world)
}

#[test]
fn two_nights_at_once_are_two_versions() {
    let (bench, world) = started(2);
    bench.run(&version("v1", "v0", &["night-1"], ""), &[]).ok();
    bench.run(&version("v2", "v1", &["night-2"], ""), &[]).ok();
    let both = version("both", "v0", &["night-1", "night-2"], "");
    bench.run(&both, &[]).ok();
    world.write(&bench, "after");
    let expected = full(&bench, "after", "", |job| job);
    assert!(rows(&bench, "out/v2") == expected && rows(&bench, "out/both") == expected);
    // All rows at once, as asked for.
    bench
        .run(&version("all", "v1", &["night-2"], ""), &["--full"])
        .ok();
    assert!(rows(&bench, "out/all") == expected);
    let why = bench.manifest("out/all")["report"]["why_full"].clone();
    assert_eq!(why, "--full is given");
    // What `all` has kept is not taken for what `v2` has.
    let (mut later, third) = (world, "night-3");
    later.night().write(&bench, third);
    later.write(&bench, "later");
    let expected_later = full(&bench, "later", "", |job| job);
    for parent in ["v2", "all"] {
        let own = format!("after-{parent}");
        bench.run(&version(&own, parent, &[third], ""), &[]).ok();
        assert!(
            rows(&bench, &format!("out/{own}")) == expected_later,
            "{own}"
        );
    }
    // The same again is skipped; another parent or other changes are not.
    bench.write(&both);
    let outcome = bench.graphflat(&["run", "job.toml", "--json"]).ok();
    let stage = outcome.events().last().unwrap()["stages"][0].clone();
    assert_eq!(stage["skipped"], true, "{stage}");
    let other = version("both", "v1", &["night-2"], "");
    let problem = bench.run(&other, &[]).stderr;
    assert!(problem.contains("another plan or input"), "{problem}");
}

#[test]
fn a_night_without_changes_is_a_version_too() {
    let (bench, mut world) = started(0);
    Night::default().write(&bench, "nothing");
    bench.run(&version("v1", "v0", &["nothing"], ""), &[]).ok();
    assert!(rows(&bench, "out/v1") == rows(&bench, "out/v0"));
    assert_eq!(bench.manifest("out/v1")["version"]["upserts"], 0);
    world.night().write(&bench, "night");
    bench.run(&version("v2", "v1", &["night"], ""), &[]).ok();
    bench.run(&version("v3", "v2", &["nothing"], ""), &[]).ok();
    world.write(&bench, "after");
    let expected = full(&bench, "after", "", |job| job);
    assert!(rows(&bench, "out/v2") == expected && rows(&bench, "out/v3") == expected);
}

#[test]
fn changes_list_what_a_vector_store_applies() {
    let (bench, mut world) = started(0);
    let before = rows(&bench, "out/v0");
    let night = world.night();
    night.write(&bench, "night-1");
    bench.run(&version("v1", "v0", &["night-1"], ""), &[]).ok();
    let after = rows(&bench, "out/v1");
    let Some(python) = python() else { return };
    if !has_modules(&python, &["duckdb", "pandas", "polars"]) {
        return skip::<()>("a Python with duckdb, pandas and polars").unwrap_or_default();
    }
    let script = "
import duckdb, pandas, polars
path = 'out/v1/changes/*.parquet'
rows = duckdb.sql(f'SELECT id, op, embedding[1] FROM \\'{path}\\'').fetchall()
for id, op, first in rows:
    print(id, op, first is not None)
for table in pandas.read_parquet('out/v1/changes'), polars.read_parquet(path).to_pandas():
    assert set(zip(table['id'], table['op'], table['embedding'].notna())) == {
        (id, op, first is not None) for id, op, first in rows
    }, table
";
    let outcome = run_python(&bench, &python, script);
    let mut upserts = BTreeSet::new();
    let mut deletes = BTreeSet::new();
    for line in outcome.stdout.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            [id, "upsert", "True"] => upserts.insert(id.to_owned()),
            [id, "delete", "False"] => deletes.insert(id.to_owned()),
            _ => panic!("{line}"),
        };
    }
    let removed = night
        .nodes
        .iter()
        .filter(|(_, features)| features.is_none());
    assert_eq!(deletes, removed.map(|(id, _)| id.to_string()).collect());
    for (id, row) in &after {
        let is_same = before.get(id) == Some(row);
        assert!(
            is_same || upserts.contains(id),
            "{id} differs and is not listed"
        );
    }
    let listed = bench.graphflat(&["versions", "out/v1"]).ok().stdout;
    let first_line = format!(
        "{} rows; parent ../v0, {} rows written, {} nodes removed\n",
        after.len(),
        upserts.len(),
        deletes.len()
    );
    assert!(listed.starts_with(&first_line), "{listed}");
    bench.graphflat(&["inspect", "out/v1"]).ok();
    // A version moves with the outputs beside it.
    std::fs::rename(bench.path("out"), bench.path("moved")).unwrap();
    assert!(rows(&bench, "moved/v1") == after);
    // Without them it cannot be read.
    std::fs::rename(bench.path("moved/v0"), bench.path("moved/gone")).unwrap();
    let problem = bench.graphflat(&["inspect", "moved/v1"]);
    assert_eq!(
        problem.stderr.trim_end(),
        "error: moved/v1 is broken: its rows lie in moved/v0 too, but there is no such directory"
    );
}

/// Runs a version of one night; it must fail with this message, and leave the parent as it is.
#[track_caller]
fn check_refused(bench: &Bench, job: &Job, code: i32, expected: &str) {
    let outcome = bench.run(job, &[]);
    assert_eq!((outcome.code, outcome.stderr.trim_end()), (code, expected));
    assert!(!bench.path("out/v1/_SUCCESS").exists());
}

#[test]
fn changes_that_do_not_fit_are_refused() {
    let (bench, world) = started(0);
    let before = rows(&bench, "out/v0");
    let job = version("v1", "v0", &["night"], "");
    let check =
        |nodes: &[(i64, Option<[f32; 2]>)], edges: &[((i64, i64), usize)], expected: &str| {
            let night = Night {
                odd: false,
                weight_shifts: None,
                shifts: None,
                nodes: nodes.iter().copied().collect(),
                edges: edges.iter().copied().collect(),
            };
            night.write(&bench, "night");
            check_refused(&bench, &job, 3, expected);
        };
    let context = "error: job job.toml: stage infer: ";
    let nodes_row = "row 0 of night/nodes.parquet: ";
    let edges_row = nodes_row.replace("nodes", "edges");
    check(
        &[(4000, None)],
        &[],
        &format!("{context}{nodes_row}no node has the id 4000 to delete"),
    );
    let missing = |ends| !world.edges.contains(&ends);
    let src = (0..).map(|id| 3 * id).find(|id| missing((*id, 0))).unwrap();
    check(
        &[],
        &[((src, 0), 0)],
        &format!("{context}{edges_row}no edge leads from {src} to 0 to delete"),
    );
    check(
        &[],
        &[((0, 4000), 1)],
        &format!("{context}{edges_row}column `dst`: no node has the id 4000"),
    );
    assert!(rows(&bench, "out/v0") == before);
}

#[test]
fn keys_that_do_not_fit_are_refused_before_any_work() {
    let (bench, mut world) = started(0);
    world.night().write(&bench, "night");
    let good = version("v1", "v0", &["night"], "");
    let check = |from: &str, to: &str, expected: &str| {
        let outcome = bench.run(&good.with(from, to), &[]);
        assert_eq!(outcome.code, 2, "{outcome:?}");
        let message = outcome.stderr.trim_end();
        assert!(message.ends_with(expected), "{message}\n{expected}");
        assert!(!bench.path("out/v1").exists());
    };
    let parent = "parent = \"out/v0\"";
    check(
        parent,
        "",
        "job job.toml: `incremental.parent`: is missing; it names the output of [infer] that \
         [input.changes] are applied to",
    );
    check(
        "[[input.changes]]\nnodes = \"night/nodes.parquet\"\nedges = \"night/edges.parquet\"\n",
        "",
        "`incremental.parent`: needs [input.changes], the tables of what has changed since, or \
         [input.snapshot], the whole tables as they are now",
    );
    check(
        "nodes = \"night",
        "node = \"night",
        "job.toml:19: unknown key `input.changes.node`; did you mean `nodes`? allowed: nodes, \
         edges, pairs",
    );
    check(
        "night/edges",
        "night/edge",
        "`input.changes.edges`: no such file or directory: night/edge.parquet",
    );
    check(
        parent,
        "parent = \"out/none\"",
        "out/none holds no finished output: there is no such directory",
    );
    check(
        parent,
        "parent = \"out/model\"",
        "out/model holds no finished output: it is the output of stage `train`, not embeddings",
    );
    check(
        "work_dir = \"work\"",
        "work_dir = \"other\"",
        "the parent out/v0 cannot be continued: its rows are not kept in other; versions need the \
         `work_dir` of their parent, which was run with [incremental], in one process if it was, else in \
         several; start with a run without a \
         parent",
    );
    check(
        "[infer]\n",
        "[infer]\nrows = \"bf16\"\n",
        "[incremental] cannot be used here: `infer.rows` keeps rows in 16 bits; leave it out",
    );
    check(
        "out/v1",
        "out/v0",
        "`infer.output`: out/v0 overlaps `incremental.parent`, out/v0; an output must not equal, \
         contain or lie in an input",
    );
    check(
        "[infer]\n",
        "[flatten]\noutput = \"out/f\"\nhops = 1\nfanouts = [1]\n\n[infer]\n",
        "`incremental.features`: is missing; it names the output of [flatten] that [input.changes] \
         are applied to",
    );
}

#[test]
fn snapshots_that_do_not_fit_are_refused_and_change_nothing() {
    let (bench, mut world) = started(0);
    let before = rows(&bench, "out/v0");
    world.night().write(&bench, "night");
    world.write(&bench, "now");
    let good = of_snapshot("v1", "v0", "now", "");
    let check = |job: &Job, code: i32, expected: &str| {
        let is_of_line = expected.starts_with("job.toml:");
        let place = if is_of_line { "" } else { "job job.toml: " };
        check_refused(&bench, job, code, &format!("error: {place}{expected}"));
    };
    check(
        &good.with("edges = \"now/edges.parquet\"\n", ""),
        2,
        "`input.snapshot.edges`: is missing; a snapshot has all tables of [input]",
    );
    check(
        &good.with(
            "[input.snapshot]\n",
            "[input.changes]\nnodes = \"night/nodes.parquet\"\n\n[input.snapshot]\n",
        ),
        2,
        "job.toml:21: `input.snapshot`: cannot be used with [input.changes]",
    );
    check(
        &good.with("now/nodes", "now/node"),
        2,
        "`input.snapshot.nodes`: no such file or directory: now/node.parquet",
    );
    // The tables of a night are no whole tables.
    bench.write_table(
        "now/edges.parquet",
        vec![
            ("src", ids([0, 3].into_iter())),
            ("dst", ids([3, 4000].into_iter())),
        ],
    );
    let context = "stage infer: ";
    check(
        &good,
        3,
        &format!("{context}row 1 of now/edges.parquet: column `dst`: no node has the id 4000"),
    );
    bench.write_table(
        "now/nodes.parquet",
        vec![
            ("id", ids([0, 3, 4, 4].into_iter())),
            ("x", floats([0.5; 4].into_iter())),
            ("y", floats([0.5; 4].into_iter())),
        ],
    );
    let twice = |row, id| {
        let problem = format!("node {id} stands in the table twice");
        format!("{context}row {row} of now/nodes.parquet: {problem}")
    };
    check(&good, 3, &twice(3, 4));
    bench.write_table(
        "now/nodes.parquet",
        vec![
            ("id", ids([0, 3, 0].into_iter())),
            ("x", floats([0.5; 3].into_iter())),
            ("y", floats([0.5; 3].into_iter())),
        ],
    );
    check(&good, 3, &twice(2, 0));
    assert!(rows(&bench, "out/v0") == before);
}

/// Runs a chain of snapshots, in which some tables have the files of the night before, or of one
/// before that.
pub(crate) fn check_same_tables(args: &[&str]) {
    let (bench, mut world) = (Bench::empty(), World::new());
    world.write(&bench, "start");
    bench.run(&first("sage", ""), args).ok();
    for at in 1..=7 {
        let (own, parent) = (format!("v{at}"), format!("v{}", at - 1));
        match at {
            1 | 5 => world.change_edges(),
            3 => world.change_node(),
            4 => drop(world.night()),
            // The sixth night has changes, and the seventh goes back to the fifth.
            6 => {
                let before = world.clone();
                world.night().write(&bench, "night");
                let of_night = version(&own, &parent, &["night"], "");
                bench.run(&of_night, args).ok();
                assert!(!args.is_empty() || !keeps_tables(&bench, &own));
                world = before;
                continue;
            }
            _ => (),
        }
        world.write(&bench, "now");
        let job = of_snapshot(&own, &parent, "now", "");
        // The fourth night writes a store that holds the changes.
        let job = if at == 4 { rebuilding(&job) } else { job };
        let all = if at == 3 { &["--full"][..] } else { &[] };
        bench.run(&job, &[args, all].concat()).ok();
        if args.is_empty() {
            assert!(keeps_tables(&bench, &own), "{own}");
        }
        std::fs::remove_dir_all(bench.path("out/full-now")).ok();
        let expected = full(&bench, "now", "", |of| of);
        assert!(rows(&bench, &format!("out/{own}")) == expected, "{own}");
    }
}

#[test]
fn snapshots_may_have_tables_of_the_parent() {
    check_same_tables(&[]);
}

/// Tells whether the record of a version names the whole tables that its graph was read from.
fn keeps_tables(bench: &Bench, output: &str) -> bool {
    let record = std::fs::read(kept_dir(bench, output).join("version.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    record["tables"]["nodes"][""].is_string() && record["tables"]["edges"][""].is_string()
}

#[test]
fn compacted_versions_keep_no_earlier_output_and_are_continued() {
    let (bench, mut world) = started(0);
    let mut parent = "v0".to_owned();
    for at in 1..=6 {
        let (night, tables, own) = (format!("n{at}"), format!("t{at}"), format!("v{at}"));
        world.night().write(&bench, &night);
        world.write(&bench, &tables);
        bench.run(&version(&own, &parent, &[&night], ""), &[]).ok();
        parent.clone_from(&own);
        let expected = full(&bench, &tables, "", |job| job);
        assert!(rows(&bench, &format!("out/{own}")) == expected);
        if at % 2 == 1 {
            continue;
        }
        let (from, to) = (format!("out/{own}"), format!("out/c{at}"));
        let compact = ["compact", &from, "--output", &to, "--work-dir", "work"];
        // A killed compaction goes on.
        for milliseconds in (0..24).step_by(2) {
            let mut child = bench
                .command(&compact)
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(milliseconds));
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let told = bench.graphflat(&compact).ok().stdout;
        let start = format!("{to}: {} rows, ", world.nodes.len());
        assert!(told.starts_with(&start), "{told}");
        assert!(told.ends_with("; versions can continue it\n"), "{told}");
        // A finished output stays as it is.
        let before = bench.data_files(&to);
        bench.graphflat(&compact).ok();
        assert_eq!(bench.data_files(&to), before);
        // No other output is needed, and no other version is listed.
        for name in ["v0", "c2", "c4"].into_iter().map(str::to_owned) {
            if format!("out/{name}") != to && bench.path(&format!("out/{name}")).exists() {
                std::fs::remove_dir_all(bench.path(&format!("out/{name}"))).unwrap();
            }
        }
        for version in [at - 1, at] {
            std::fs::remove_dir_all(bench.path(&format!("out/v{version}"))).unwrap();
        }
        assert!(rows(&bench, &to) == expected);
        let ids = EmbeddingsDataset::open(&bench.path(&to)).unwrap();
        let ids = (0..ids.num_parts()).map(|part| ids.read_part(part).unwrap().ids);
        let ids = ids
            .flat_map(|ids| ids.keys().unwrap().to_vec())
            .collect::<Vec<_>>();
        assert!(ids.is_sorted());
        let listed = bench.graphflat(&["versions", &to]).ok().stdout;
        assert_eq!(listed.lines().count(), 2, "{listed}");
        parent = format!("c{at}");
    }
    // What is kept of folded versions goes, too: the last two, the start of the chain, and the graph
    // features stay.
    let kept = std::fs::read_dir(bench.path("work/versions")).unwrap();
    let kept = kept.map(|entry| entry.unwrap().path().join("version.json"));
    assert!(kept.filter(|record| record.exists()).count() <= 5);
}

#[test]
fn a_compaction_that_does_not_fit_is_refused() {
    let (bench, mut world) = started(0);
    world.night().write(&bench, "night");
    bench.run(&version("v1", "v0", &["night"], ""), &[]).ok();
    let check = |args: &[&str], expected: &str| {
        let outcome = bench.graphflat(&[&["compact"], args].concat());
        assert_eq!((outcome.code, outcome.stderr.trim_end()), (2, expected));
        assert!(!bench.path("out/c1/_SUCCESS").exists());
    };
    check(
        &["out/v1", "--output", "out/v1/c"],
        "error: `--output`: out/v1/c overlaps PATH, out/v1",
    );
    check(
        &["out/v1", "--output", "out/c1", "--work-dir", "wrok"],
        "error: `--work-dir`: wrok is no local directory",
    );
    check(
        &["out/v1", "--output", "out/c1", "--work-dir", "start"],
        "error: `--work-dir` is start: it does not keep all rows of out/v1; name the `work_dir` of the \
         job that wrote it",
    );
    check(
        &["out/v1", "--output", "out/v0/c"],
        "error: `--output` is out/v0/c: it overlaps an output of the version, out/v0",
    );
    check(
        &["out/v1", "--output", "out/v0"],
        "error: `--output` is out/v0: it holds another output or other files; name another directory",
    );
    let compact = ["compact", "out/v1", "--output", "out/c1"];
    let told = bench.graphflat(&compact).ok().stdout;
    assert!(
        told.ends_with("without --work-dir no version can continue it\n"),
        "{told}"
    );
    assert!(rows(&bench, "out/c1") == rows(&bench, "out/v1"));
    let later = bench.graphflat(&[&compact[..], &["--work-dir", "work"]].concat());
    let finished = "`--work-dir` is work: it does not keep all rows of out/c1; name the `work_dir` of \
                    the job that wrote it\n";
    assert!(later.stderr.ends_with(finished), "{later:?}");
    world.night().write(&bench, "next");
    let refused = "error: job job.toml: the parent out/c1 cannot be continued: its rows are not kept \
                   in work; ";
    let outcome = bench.run(&version("v2", "c1", &["next"], ""), &[]);
    assert_eq!(outcome.code, 2);
    assert!(outcome.stderr.starts_with(refused), "{outcome:?}");
}

#[test]
fn an_output_without_parent_can_be_compacted_and_a_repeat_needs_no_earlier_one() {
    let (bench, mut world) = started(0);
    world.night().write(&bench, "night");
    bench.run(&version("v1", "v0", &["night"], ""), &[]).ok();
    let compact = |from: &str, to: &str| {
        let args = ["compact", from, "--output", to, "--work-dir", "work"];
        bench.graphflat(&args).ok();
    };
    compact("out/v0", "out/c0");
    assert!(rows(&bench, "out/c0") == rows(&bench, "out/v0"));
    bench.run(&version("w1", "c0", &["night"], ""), &[]).ok();
    assert!(rows(&bench, "out/w1") == rows(&bench, "out/v1"));
    compact("out/v1", "out/c1");
    std::fs::remove_dir_all(bench.path("out/v0")).unwrap();
    compact("out/v1", "out/c1");
    world.night().write(&bench, "next");
    world.write(&bench, "after");
    bench.run(&version("v2", "c1", &["next"], ""), &[]).ok();
    assert!(rows(&bench, "out/v2") == full(&bench, "after", "", |job| job));
}

#[test]
fn flags_and_tables_that_do_not_fit_are_refused() {
    let (bench, mut world) = started(0);
    world.night().write(&bench, "night");
    let good = version("v1", "v0", &["night"], "");
    let check = |job: &Job, flags: &[&str], expected: &str| {
        let outcome = bench.run(job, flags);
        assert_eq!(outcome.code, 2, "{outcome:?}");
        let message = outcome.stderr.trim_end();
        assert!(message.ends_with(expected), "{message}\n{expected}");
        assert!(!bench.path("out/v1/_SUCCESS").exists());
    };
    check(
        &first("sage", "").with("[incremental]", ""),
        &["--full"],
        "error: `--full`: is for versions, which have `incremental.parent` or `incremental.features`",
    );
    check(
        &good,
        &["--processes", "2"],
        "in one process if it was, else in several; start with a run without a parent",
    );
    // Other tables are another graph.
    world.write(&bench, "start");
    check(
        &good,
        &[],
        "is of another graph: the tables or keys of [input], `seed` or the sampling have changed \
         since; they must be those of the first run, with changes in [input.changes] or the tables of \
         today in [input.snapshot]",
    );
}

/// A finished version is skipped if its parent is gone; it says so where it needs the parent.
#[test]
fn a_finished_version_needs_no_parent_to_be_skipped() {
    let (bench, _) = started(2);
    let with_rows = version("v1", "v0", &["night-1"], "");
    let alone = version("v2", "v1", &["night-2"], "");
    bench.run(&with_rows, &[]).ok();
    bench.run(&alone, &["--full"]).ok();
    for name in ["v0", "v1"] {
        let (from, to) = (format!("out/{name}"), format!("out/gone-{name}"));
        std::fs::rename(bench.path(&from), bench.path(&to)).unwrap();
    }
    let skipped = |job: &Job, flags: &[&str]| {
        bench.write(job);
        let args = [&["run", "job.toml", "--json"], flags].concat();
        let outcome = bench.graphflat(&args).ok();
        let stage = outcome.events().last().unwrap()["stages"][0].clone();
        assert_eq!(stage["skipped"], true, "{stage}");
        outcome
    };
    let outcome = skipped(&alone, &["--full"]);
    assert!(!outcome.stdout.contains("is finished, but"), "{outcome:?}");
    std::fs::rename(bench.path("out/gone-v1"), bench.path("out/v1")).unwrap();
    let broken = skipped(&with_rows, &[]);
    let warning = "the version is finished, but out/v1 is broken: its rows lie in out/v0 too";
    let said = format!("{}{}", broken.stdout, broken.stderr);
    assert!(said.contains(warning), "{broken:?}");
    // Another one is not finished.
    let other = version("v3", "v0", &["night-1"], "");
    let problem = bench.run(&other, &[]);
    let expected = "out/v0 holds no finished output: there is no such directory";
    assert!(problem.stderr.contains(expected), "{problem:?}");
}

#[test]
fn models_whose_rows_cannot_be_kept_are_refused_before_training() {
    let (bench, world) = (Bench::empty(), World::new());
    world.write(&bench, "start");
    let good = first("sage", "");
    let check = |from: &str, to: &str, expected: &str| {
        let outcome = bench.run(&good.with(from, to), &[]);
        let message = outcome.stderr.trim_end();
        assert_eq!(outcome.code, 2, "{outcome:?}");
        assert!(message.ends_with(expected), "{message}\n{expected}");
        assert!(!bench.path("out").exists());
    };
    check(
        "model = \"sage\"",
        "model = \"lightgcn\"",
        "job.toml:25: `train.model`: is \"lightgcn\", which reads the rows of all layers; \
         [incremental] cannot keep them",
    );
    let keeps = |problem: &str| {
        format!("job job.toml: [incremental] cannot be used here: {problem}; leave it out")
    };
    check(
        "output = \"out/v0\"\n",
        "output = \"out/v0\"\nrows = \"bf16\"\n",
        &keeps("`infer.rows` keeps rows in 16 bits"),
    );
    check(
        "dst = \"dst\"\n",
        "dst = \"dst\"\ndangling = \"drop\"\n",
        "changes cannot be applied: with `dangling = \"drop\"`, a new node may have edges that were \
         left out before",
    );
}

#[test]
fn check_predicts_a_version_while_a_run_holds_its_lock() {
    let (bench, _) = started(1);
    bench.write(&version("v1", "v0", &["night-1"], ""));
    let alone = bench.graphflat(&["check", "job.toml"]).ok();
    let _lock = schemas::dataset::DirLock::take(&bench.path("work/versions")).unwrap();
    let beside = bench.graphflat(&["check", "job.toml"]).ok();
    assert!(beside.stdout.contains("version  incremental"), "{beside:?}");
    assert_eq!(beside.stdout, alone.stdout);
}

#[test]
fn check_predicts_the_bytes_of_rows_and_says_when_a_version_does_not_pay() {
    let (bench, mut world) = started(0);
    let line = "a run without a parent, on the whole tables of today, is likely as fast";
    let check = |night: Night, pays: bool| {
        night.write(&bench, "night");
        bench.write(&version("v1", "v0", &["night"], ""));
        let outcome = bench.graphflat(&["check", "job.toml", "--json"]).ok();
        let predicted = outcome.events().pop().unwrap()["version"]["bytes"].clone();
        let said = bench.graphflat(&["check", "job.toml"]).ok().stdout;
        assert_eq!(said.contains(line), !pays, "{said}");
        assert!(said.contains("version  the rows take about"), "{said}");
        bench.graphflat(&["run", "job.toml"]).ok();
        let parts = bench.manifest("out/v1")["parts"].clone();
        let of_rows = parts.as_array().unwrap().iter();
        let of_rows = of_rows.filter(|part| part["name"] != "version");
        let files = of_rows.flat_map(|part| part["files"].as_array().unwrap().clone());
        let written: u64 = files.map(|file| file["bytes"].as_u64().unwrap()).sum();
        let ratio = predicted.as_f64().unwrap() / written as f64;
        // Few rows share the columns' names and statistics of a file.
        let allowed = if pays { 0.1..1.1 } else { 0.7..1.4 };
        assert!(allowed.contains(&ratio), "{predicted} of {written}");
        std::fs::remove_dir_all(bench.path("out/v1")).unwrap();
    };
    let edges = world.edges.iter().step_by(2).map(|&ends| (ends, 0));
    let half = Night {
        edges: edges.collect(),
        ..Night::default()
    };
    check(half, false);
    check(world.night(), true);
}

#[cfg(unix)]
#[test]
fn a_parent_named_by_a_link_is_recorded_by_its_real_path() {
    let (bench, _) = started(2);
    let link = bench.path("out/latest");
    std::os::unix::fs::symlink("v0", &link).unwrap();
    bench
        .run(&version("v1", "latest", &["night-1"], ""), &[])
        .ok();
    let before = rows(&bench, "out/v1");
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("v1", &link).unwrap();
    let of_parent = |output: &str| bench.manifest(output)["version"]["parent"]["path"].clone();
    assert_eq!(of_parent("out/v1"), "../v0");
    assert!(rows(&bench, "out/v1") == before);
    bench
        .run(&version("v2", "latest", &["night-2"], ""), &[])
        .ok();
    assert_eq!(of_parent("out/v2"), "../v1");
    // A version that a link elsewhere names is read with the outputs beside it.
    let elsewhere = bench.path("newest");
    std::os::unix::fs::symlink("out/v2", elsewhere).unwrap();
    assert!(rows(&bench, "newest") == rows(&bench, "out/v2"));
}

/// Folders in `work/versions` of some outputs, with whether they have a graph; none if removed.
fn kept(bench: &Bench, outputs: &[&str]) -> Vec<Option<bool>> {
    let of_output = |output: &&str| {
        let dir = kept_dir(bench, output);
        dir.exists().then(|| dir.join("overlay").exists())
    };
    outputs.iter().map(of_output).collect()
}

/// Directory in which what later versions need of an output is kept.
fn kept_dir(bench: &Bench, output: &str) -> PathBuf {
    let name = bench.manifest(&format!("out/{output}"))["fingerprint"].clone();
    let name = name.as_str().unwrap().replace(':', "-");
    bench.path("work/versions").join(name)
}

#[test]
fn the_working_directory_keeps_the_graphs_of_two_versions() {
    let (bench, world) = started(5);
    let outputs = ["v0", "v1", "v2", "v3", "v4", "v5"];
    let run = |at: usize, flags: &[&str]| {
        let night = format!("night-{at}");
        let job = version(outputs[at], outputs[at - 1], &[&night], "");
        bench.run(&job, flags)
    };
    for at in 1..=3 {
        run(at, &[]).ok();
    }
    let [none, rows_alone, all] = [None, Some(false), Some(true)];
    assert_eq!(
        kept(&bench, &outputs[..4]),
        [rows_alone, rows_alone, all, all]
    );
    let early = version("early", "v1", &["night-2"], "");
    let problem = bench.run(&early, &[]).stderr;
    let too_old = "error: job job.toml: stage infer: the parent out/v1 cannot be continued: \
                    `work_dir` keeps the graphs of the last version and of its parent alone; name a \
                    later parent, or start with a run without a parent\n";
    assert_eq!(problem, too_old);
    // Rows of versions before one that computes all are not needed any more.
    run(4, &["--full"]).ok();
    assert_eq!(kept(&bench, &outputs[2..5]), [rows_alone, all, all]);
    run(5, &[]).ok();
    assert_eq!(kept(&bench, &outputs), [none, none, none, none, all, all]);
    world.write(&bench, "after");
    let expected = full(&bench, "after", "", |job| job);
    assert!(rows(&bench, "out/v5") == expected);
}

/// Lists the directories of stores that hold changes.
fn bases(bench: &Bench) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(bench.path("work/versions")).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let is_base = |path: &PathBuf| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        name.starts_with("base-")
    };
    paths.filter(is_base).collect()
}

#[test]
fn a_store_that_holds_changes_is_kept_as_long_as_a_version_starts_from_it() {
    let (bench, world) = started(5);
    let outputs = ["v0", "v1", "v2", "v3", "v4", "v5"];
    let job = |at: usize| version(outputs[at], outputs[at - 1], &[&format!("night-{at}")], "");
    bench.run(&job(1), &[]).ok();
    assert!(bases(&bench).is_empty());
    let of_second = rebuilding(&job(2));
    bench.write(&of_second);
    let of_check = bench.graphflat(&["check", "job.toml"]).ok().stdout;
    assert!(of_check.contains("version  writes a new store with all changes: "));
    bench.run(&of_second, &[]).ok();
    let of_v2 = bases(&bench);
    assert_eq!(of_v2.len(), 1);
    bench.run(&job(3), &[]).ok();
    assert_eq!(bases(&bench), of_v2);
    // The first run is finished, though nothing is kept of it.
    bench.write(&first("sage", ""));
    let rerun = bench.graphflat(&["run", "job.toml"]).ok().stderr;
    assert!(
        rerun.contains("versions cannot start from out/v0 any more: "),
        "{rerun}"
    );
    let of_fourth = job(4).with("workers = 2", "workers = 3");
    bench.write(&of_fourth);
    let predicted = bench.graphflat(&["check", "job.toml"]).ok().stdout;
    assert!(predicted.contains("version  incremental: "), "{predicted}");
    bench.run(&rebuilding(&of_fourth), &[]).ok();
    bench.run(&job(5), &[]).ok();
    let of_v4 = bases(&bench);
    assert!(of_v4.len() == 1 && of_v4 != of_v2);
    world.write(&bench, "after");
    let expected = full(&bench, "after", "", |of_run| of_run);
    assert!(rows(&bench, "out/v5") == expected);
    // The tables and keys are those of the first run.
    let others = version("others", "v5", &["night-5"], "");
    let others = others.with("start/edges.parquet", "after/edges.parquet");
    let refused = bench.run(&others, &[]).stderr;
    assert!(
        refused.contains("the parent out/v5 is of another graph: "),
        "{refused}"
    );
    // What is damaged or lost is named.
    let again = version("again", "v5", &["night-5"], "");
    std::fs::write(of_v4[0].join("2/nodes-001.arrow"), "damaged").unwrap();
    let problem = bench.run(&again, &[]).stderr;
    assert!(
        problem.contains("nodes-001.arrow: it has 7 bytes") && problem.contains("start with a run"),
        "{problem}"
    );
    std::fs::remove_dir_all(&of_v4[0]).unwrap();
    let lost = bench.run(&again, &[]).stderr;
    assert!(
        lost.contains("the parent out/v5 cannot be continued: "),
        "{lost}"
    );
}

/// Outputs that are compacted, or compute all rows, and write a store continue like others.
#[test]
fn new_stores_follow_compactions_and_full_versions() {
    let (bench, world) = started(3);
    bench.run(&version("v1", "v0", &["night-1"], ""), &[]).ok();
    let second = rebuilding(&version("v2", "v1", &["night-2"], ""));
    bench.run(&second, &[]).ok();
    // A version that computes all rows writes a store, whatever the share. Its parent starts from the
    // store of the tables.
    let of_key = version("all", "v1", &["night-2"], "normalize = true\n");
    bench.write(&of_key);
    let of_check = bench.graphflat(&["check", "job.toml"]).ok();
    let line = "version  all rows are computed from a new store with all changes\n";
    assert!(of_check.stdout.contains(line), "{of_check:?}");
    let all = version("all", "v1", &["night-2"], "");
    bench.run(&all, &["--full"]).ok();
    let manifest = bench.manifest("out/all");
    assert_eq!(manifest["report"]["rounds"].as_array().unwrap().len(), 3);
    assert!(!bench.path("out/all/changes").exists() && !bench.path("work/infer").exists());
    let compact = [
        "compact",
        "out/v2",
        "--output",
        "out/whole",
        "--work-dir",
        "work",
    ];
    bench.graphflat(&compact).ok();
    assert!(rows(&bench, "out/whole") == rows(&bench, "out/v2"));
    world.write(&bench, "after");
    let expected = full(&bench, "after", "", |job| job);
    for parent in ["v2", "all", "whole"] {
        let own = format!("after-{parent}");
        bench
            .run(&version(&own, parent, &["night-3"], ""), &[])
            .ok();
        assert!(rows(&bench, &format!("out/{own}")) == expected, "{own}");
    }
}

/// Each night writes a store that holds its changes. A node that one night removes comes back in the
/// next, with another number in each store.
#[test]
fn new_stores_night_after_night_are_full_runs() {
    let (bench, mut world) = started(0);
    let mut own = 0;
    for at in 1..=5 {
        let (night, tables) = (format!("night-{at}"), format!("tables-{at}"));
        world.night().write(&bench, &night);
        world.write(&bench, &tables);
        let output = format!("v{at}");
        let job = version(&output, &format!("v{}", at - 1), &[&night], "");
        bench.run(&rebuilding(&job), &[]).ok();
        assert_eq!(bases(&bench).len(), if at == 1 { 1 } else { 2 });
        let expected = full(&bench, &tables, "", |of_run| of_run);
        assert!(rows(&bench, &format!("out/{output}")) == expected, "{at}");
        let manifest = bench.manifest(&format!("out/{output}"));
        own += usize::from(manifest["report"]["mode"] == "incremental");
    }
    assert!(own >= 3, "too many versions computed all rows");
}

/// A version does not replace an output whose rows its parent keeps, even if it keeps none itself.
#[test]
fn an_output_whose_rows_the_parent_keeps_is_not_replaced() {
    let (bench, _) = started(2);
    bench.run(&version("v1", "v0", &["night-1"], ""), &[]).ok();
    let before = rows(&bench, "out/v1");
    let over = version("v0", "v1", &["night-2"], "");
    for flags in [&["--fresh"][..], &["--fresh", "--full"]] {
        let problem = bench.run(&over, flags).stderr;
        let expected = "the parent keeps rows of this output; name another one";
        assert!(problem.contains(expected), "{flags:?}: {problem}");
        assert!(rows(&bench, "out/v1") == before, "{flags:?}");
    }
}

/// Two chains of the same changes have stores of their own if they keep other in-edges.
#[test]
fn chains_of_other_fan_outs_have_stores_of_their_own() {
    let (bench, mut world) = started(1);
    bench
        .run(&rebuilding(&version("v1", "v0", &["night-1"], "")), &[])
        .ok();
    let all = |output: &str| {
        format!(
            "[infer]\noutput = \"out/{output}\"\nmodel = \"out/model\"\nsampling = \"none\"\n\n"
        )
    };
    let first = format!("{}{}[incremental]\n", head("work", "start"), all("a0"));
    bench.run(&Job(first), &[]).ok();
    let keys = "sampling = \"none\"\n";
    bench
        .run(&rebuilding(&version("a1", "a0", &["night-1"], keys)), &[])
        .ok();
    assert_eq!(bases(&bench).len(), 2);
    world.night().write(&bench, "night-2");
    world.write(&bench, "after");
    bench
        .run(&version("a2", "a1", &["night-2"], keys), &[])
        .ok();
    assert!(rows(&bench, "out/a2") == full(&bench, "after", keys, |job| job));
}

/// A version goes on with another number of workers, and with other keys of `[infer]`.
#[test]
fn versions_go_on_with_other_workers_and_keys() {
    let (bench, world) = started(2);
    let workers = |job: Job, count: &str| job.with("workers = 2", &format!("workers = {count}"));
    bench
        .run(&workers(version("v1", "v0", &["night-1"], ""), "1"), &[])
        .ok();
    let other = version("v2", "v1", &["night-2"], "normalize = true\n");
    bench.run(&workers(other, "2"), &[]).ok();
    world.write(&bench, "after");
    let expected = full(&bench, "after", "normalize = true\n", |job| job);
    assert!(rows(&bench, "out/v2") == expected);
    let why = bench.manifest("out/v2")["report"]["why_full"].clone();
    assert_eq!(
        why,
        "the model or a key of [infer] is another than the parent's"
    );
    // It keeps no row of earlier outputs.
    std::fs::remove_dir_all(bench.path("out/v1")).unwrap();
    assert!(rows(&bench, "out/v2") == expected);
}

/// A version computes all rows if the program that wrote the parent may compute other bytes.
#[test]
fn a_parent_of_another_engine_gives_no_rows() {
    let (bench, world) = started(1);
    let path = kept_dir(&bench, "v0").join("version.json");
    let mut record: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert!(record["plan"]["engine"].is_u64(), "{record:#}");
    record["plan"]["engine"] = 0.into();
    std::fs::write(&path, record.to_string()).unwrap();
    bench.run(&version("v1", "v0", &["night-1"], ""), &[]).ok();
    let why = bench.manifest("out/v1")["report"]["why_full"].clone();
    assert_eq!(
        why,
        "the parent was written by a version of graphflat that may compute other bytes"
    );
    // It keeps no row of earlier outputs.
    std::fs::remove_dir_all(bench.path("out/v0")).unwrap();
    world.write(&bench, "after");
    let expected = full(&bench, "after", "", |job| job);
    assert!(rows(&bench, "out/v1") == expected);
}

/// Kills of [`kills_at_random_moments_leave_whole_versions`].
const KILLS: usize = 100;

/// Reads an output again and again until `ends`: it must not be there, or have the rows `wanted`.
/// Returns how often it was there, and how often it was looked at.
fn poll(bench: &Bench, output: &str, wanted: &Rows, ends: &AtomicBool) -> [usize; 2] {
    let (mut whole, mut all) = (0, 0);
    while !ends.load(Ordering::Relaxed) {
        all += 1;
        match EmbeddingsDataset::open(&bench.path(output)) {
            Ok(_) => {
                assert!(
                    rows(bench, output) == *wanted,
                    "{output} while it is written"
                );
                whole += 1;
            }
            Err(SchemaError::NotFinished { .. }) => (),
            Err(error) => panic!("{output}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    [whole, all]
}

/// Kills the runs of a chain of versions at random moments. A version is there as a whole or not at
/// all, for a reader that polls all the time, and the chain ends with the rows of a chain that was
/// not killed.
#[test]
fn kills_at_random_moments_leave_whole_versions() {
    if !slow() {
        return;
    }
    let nights = ["night-1", "night-2", "night-3"];
    let (bench, _) = started(nights.len());
    let mut expected = Vec::new();
    let output = |chain: &str, at: usize| match at {
        0 => "v0".to_owned(),
        _ => format!("{chain}-{at}"),
    };
    let job = |chain: &str, at: usize| {
        let (own, parent) = (output(chain, at), output(chain, at - 1));
        let job = version(&own, &parent, &nights[at - 1..at], "");
        if at == 2 { rebuilding(&job) } else { job }
    };
    // The last night computes all rows.
    let flags = |at: usize| &["--full"][..usize::from(at == nights.len())];
    let mut longest = std::time::Duration::ZERO;
    for at in 1..=nights.len() {
        let started = std::time::Instant::now();
        bench.run(&job("calm", at), flags(at)).ok();
        longest = longest.max(started.elapsed());
        expected.push(rows(&bench, &format!("out/calm-{at}")));
    }
    let (mut killed, mut whole, mut draw, mut chain, mut polls) = (0, 0, 0, 0, [0; 2]);
    while killed < KILLS {
        chain += 1;
        let name = format!("killed{chain}");
        // A store that holds changes leaves nothing of the first run, which each chain starts from.
        let again = ["--stage", "infer", "--fresh"];
        bench.run(&first("sage", ""), &again).ok();
        for at in 1..=nights.len() {
            let (own, wanted) = (format!("out/{name}-{at}"), &expected[at - 1]);
            let ends = AtomicBool::new(false);
            let seen = std::thread::scope(|scope| {
                let reader = scope.spawn(|| poll(&bench, &own, wanted, &ends));
                // After some kills, the run ends.
                for _ in 0..4 {
                    bench.write(&job(&name, at));
                    let run = [&["run", "job.toml", "--quiet"], flags(at)].concat();
                    let child = bench.command(&run).spawn().unwrap();
                    draw += 1;
                    let share = mix(31, draw) % 1000;
                    std::thread::sleep(longest.mul_f64(share as f64 / 1000.0));
                    let has_ended = kill(child);
                    killed += usize::from(!has_ended);
                    if at > 1 {
                        let parent = rows(&bench, &format!("out/{name}-{}", at - 1));
                        assert!(parent == expected[at - 2]);
                    }
                    if bench.path(&format!("{own}/_SUCCESS")).exists() {
                        whole += usize::from(!has_ended);
                        assert!(rows(&bench, &own) == *wanted, "{own} after a kill");
                        break;
                    }
                }
                bench.run(&job(&name, at), flags(at)).ok();
                ends.store(true, Ordering::Relaxed);
                reader.join().unwrap()
            });
            polls = [polls[0] + seen[0], polls[1] + seen[1]];
            assert!(rows(&bench, &own) == *wanted, "{own}");
        }
    }
    let [there, all] = polls;
    assert!(
        0 < there && there < all,
        "{there} of {all} polls saw a version"
    );
    eprintln!("{killed} kills, {whole} after the output was whole; {there} of {all} polls saw it");
}

#[test]
fn two_runs_with_one_work_dir_exclude_each_other() {
    let (bench, _) = started(1);
    std::fs::create_dir_all(bench.path("work/versions")).unwrap();
    let lock = schemas::dataset::DirLock::take(&bench.path("work/versions")).unwrap();
    let job = version("v1", "v0", &["night-1"], "");
    let outcome = bench.run(&job, &[]);
    assert_eq!(outcome.code, 1, "{outcome:?}");
    assert!(outcome.stderr.contains("another run"), "{outcome:?}");
    drop(lock);
    bench.run(&job, &[]).ok();
}
