//! Versions of embeddings of a graph with node types, by the real binary.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use arrow::array::{ArrayRef, Float32Array, Int64Array, StringArray};
use schemas::EmbeddingsDataset;

use crate::harness::{Bench, Job, kill, mix};
use crate::incremental::{PROCESSES, blocks, rebuilding, run_python, target_columns};
use crate::needs::{has_modules, python, skip, slow};

/// Users and items, numbered; the ids of items are text.
const TYPES: [&str; 2] = ["item", "user"];
const ITEM: usize = 0;
const USER: usize = 1;

/// Tables of edges: name, position of the source type and of the destination type.
const TABLES: [(&str, usize, usize); 3] = [
    ("buys", USER, ITEM),
    ("follows", USER, USER),
    ("near", ITEM, ITEM),
];
const NEAR: usize = 2;

type Ends = (i64, i64);

/// A graph whose tables change from night to night.
pub(crate) struct TypedWorld {
    /// By type: a feature of each node.
    nodes: [BTreeMap<i64, f32>; 2],
    /// By table.
    edges: [Vec<Ends>; 3],
    /// Whether the changes of users have labels and splits, which then change too.
    pub(crate) targets: bool,
    /// By how much the numbers are larger that labels and splits of users follow from.
    shifts: BTreeMap<i64, i64>,
    seed: u64,
    draws: u64,
}

/// Changes of one night. A node without features is deleted; so are edges with the count 0.
#[derive(Default)]
pub(crate) struct TypedNight {
    nodes: [BTreeMap<i64, Option<f32>>; 2],
    edges: [BTreeMap<Ends, usize>; 3],
    /// [`TypedWorld::shifts`], if the table of users has labels and splits.
    shifts: Option<BTreeMap<i64, i64>>,
}

impl TypedWorld {
    pub(crate) const SEED: u64 = 31;

    pub(crate) fn new() -> TypedWorld {
        Self::of_seed(Self::SEED)
    }

    pub(crate) fn of_seed(seed: u64) -> TypedWorld {
        let mut world = TypedWorld {
            nodes: Default::default(),
            edges: Default::default(),
            targets: false,
            shifts: BTreeMap::new(),
            seed,
            draws: 0,
        };
        for (node_type, count) in [(ITEM, 120), (USER, 200)] {
            for id in 0..count {
                let feature = world.feature();
                world.nodes[node_type].insert(3 * id, feature);
            }
        }
        for table in 0..TABLES.len() {
            for _ in 0..800 {
                let ends = world.ends(table);
                world.edges[table].push(ends);
            }
        }
        world
    }

    fn below(&mut self, end: usize) -> usize {
        self.draws += 1;
        usize::try_from(mix(self.seed, self.draws) % end as u64).unwrap()
    }

    fn feature(&mut self) -> f32 {
        self.below(100) as f32 / 50.0
    }

    fn node(&mut self, node_type: usize) -> i64 {
        let at = self.below(self.nodes[node_type].len());
        *self.nodes[node_type].keys().nth(at).unwrap()
    }

    fn ends(&mut self, table: usize) -> Ends {
        let (_, from, to) = TABLES[table];
        (self.node(from), self.node(to))
    }

    /// Draws changes of every kind and applies them.
    pub(crate) fn night(&mut self) -> TypedNight {
        let mut night = TypedNight::default();
        if self.targets {
            for _ in 0..4 {
                let node = self.node(USER);
                *self.shifts.entry(node).or_default() += 1;
                night.nodes[USER].insert(node, Some(self.nodes[USER][&node]));
            }
            night.shifts = Some(self.shifts.clone());
        }
        for node_type in [ITEM, USER] {
            let old = self.node(node_type);
            let new = 3 * i64::try_from(self.below(250)).unwrap() + 1;
            for node in [old, new] {
                night.nodes[node_type].insert(node, Some(self.feature()));
            }
            for (table, (_, from, to)) in TABLES.into_iter().enumerate() {
                let mut ends = self.ends(table);
                if to == node_type {
                    ends.1 = new;
                } else if from == node_type {
                    ends.0 = new;
                }
                night.edges[table].insert(ends, 1);
            }
        }
        for table in 0..TABLES.len() {
            let at = self.below(self.edges[table].len());
            night.edges[table].insert(self.edges[table][at], 0);
            let ends = self.ends(table);
            let count = 1 + self.below(3);
            night.edges[table].insert(ends, count);
        }
        let node_type = self.below(2);
        let gone = self.node(node_type);
        night.nodes[node_type].insert(gone, None);
        for (table, (_, from, to)) in TABLES.into_iter().enumerate() {
            let is_of_gone = |ends: &Ends| {
                (from == node_type && ends.0 == gone) || (to == node_type && ends.1 == gone)
            };
            let edges = &mut night.edges[table];
            edges.retain(|ends, _| !is_of_gone(ends));
            let of_gone = self.edges[table].iter().filter(|ends| is_of_gone(ends));
            edges.extend(of_gone.map(|ends| (*ends, 0)));
        }
        // In the undirected table (a, b) and (b, a) are one key.
        let drawn = night.edges[NEAR].clone();
        night.edges[NEAR].retain(|&(a, b), _| a <= b || !drawn.contains_key(&(b, a)));
        self.apply(&night);
        night
    }

    fn apply(&mut self, night: &TypedNight) {
        for (nodes, changes) in self.nodes.iter_mut().zip(&night.nodes) {
            for (&id, feature) in changes {
                match feature {
                    Some(feature) => nodes.insert(id, *feature),
                    None => nodes.remove(&id),
                };
            }
        }
        for (table, (edges, changes)) in self.edges.iter_mut().zip(&night.edges).enumerate() {
            let is_named = |&(a, b): &Ends| {
                changes.contains_key(&(a, b)) || (table == NEAR && changes.contains_key(&(b, a)))
            };
            edges.retain(|ends| !is_named(ends));
            for (&ends, &count) in changes {
                edges.extend(std::iter::repeat_n(ends, count));
            }
        }
    }

    pub(crate) fn write(&self, bench: &Bench, dir: &str) {
        std::fs::create_dir_all(bench.path(dir)).unwrap();
        for (node_type, nodes) in self.nodes.iter().enumerate() {
            let features = Float32Array::from_iter_values(nodes.values().copied());
            let mut columns: Vec<(&str, ArrayRef)> = vec![
                ("id", ids(node_type, nodes.keys().copied())),
                ("x", Arc::new(features)),
            ];
            columns.extend(target_columns(nodes.keys(), &self.shifts));
            bench.write_table(&format!("{dir}/{}.parquet", TYPES[node_type]), columns);
        }
        for ((name, from, to), edges) in TABLES.into_iter().zip(&self.edges) {
            bench.write_table(
                &format!("{dir}/{name}.parquet"),
                vec![
                    ("src", ids(from, edges.iter().map(|ends| ends.0))),
                    ("dst", ids(to, edges.iter().map(|ends| ends.1))),
                ],
            );
        }
    }
}

impl TypedNight {
    pub(crate) fn write(&self, bench: &Bench, dir: &str) {
        std::fs::create_dir_all(bench.path(dir)).unwrap();
        let op = |is_upsert: bool| if is_upsert { "upsert" } else { "delete" };
        for (node_type, nodes) in self.nodes.iter().enumerate() {
            let ops = nodes.values().map(|feature| op(feature.is_some()));
            let features: Float32Array = nodes.values().copied().collect();
            let mut columns: Vec<(&str, ArrayRef)> = vec![
                ("id", ids(node_type, nodes.keys().copied())),
                ("x", Arc::new(features)),
                ("op", Arc::new(StringArray::from_iter_values(ops))),
            ];
            if let Some(shifts) = self.shifts.as_ref().filter(|_| node_type == USER) {
                columns.extend(target_columns(nodes.keys(), shifts));
            }
            bench.write_table(&format!("{dir}/{}.parquet", TYPES[node_type]), columns);
        }
        for ((name, from, to), edges) in TABLES.into_iter().zip(&self.edges) {
            let rows = edges.iter();
            let rows = rows.flat_map(|(ends, count)| {
                std::iter::repeat_n((*ends, *count > 0), (*count).max(1))
            });
            let rows: Vec<(Ends, bool)> = rows.collect();
            let ops = rows.iter().map(|(_, is_upsert)| op(*is_upsert));
            bench.write_table(
                &format!("{dir}/{name}.parquet"),
                vec![
                    ("src", ids(from, rows.iter().map(|(ends, _)| ends.0))),
                    ("dst", ids(to, rows.iter().map(|(ends, _)| ends.1))),
                    ("op", Arc::new(StringArray::from_iter_values(ops))),
                ],
            );
        }
    }
}

fn ids(node_type: usize, of: impl Iterator<Item = i64>) -> ArrayRef {
    match node_type {
        ITEM => Arc::new(StringArray::from_iter_values(
            of.map(|id| format!("item-{id}")),
        )),
        _ => Arc::new(Int64Array::from_iter_values(of)),
    }
}

/// Name, input and work directory of a job.
pub(crate) fn head(work: &str, tables: &str) -> String {
    format!(
        "name = \"nightly\"\nseed = 7\nworkers = 2\nwork_dir = \"{work}\"\n\n\
         [input.nodes.user]\npath = \"{tables}/user.parquet\"\nid = \"id\"\nfeatures = [\"x\"]\n\
         label = \"label\"\nsplit = \"split\"\n\n\
         [input.nodes.item]\npath = \"{tables}/item.parquet\"\nid = \"id\"\nfeatures = [\"x\"]\n\n\
         [input.edges.buys]\npath = \"{tables}/buys.parquet\"\nfrom = \"user\"\nto = \"item\"\n\
         src = \"src\"\ndst = \"dst\"\nreverse = \"bought_by\"\n\n\
         [input.edges.follows]\npath = \"{tables}/follows.parquet\"\nfrom = \"user\"\n\
         to = \"user\"\nsrc = \"src\"\ndst = \"dst\"\n\n\
         [input.edges.near]\npath = \"{tables}/near.parquet\"\nfrom = \"item\"\nto = \"item\"\n\
         src = \"src\"\ndst = \"dst\"\nundirected = true\n\n"
    )
}

/// The first version, of a trained model; `infer` are further keys of [infer].
fn first(train: &str, infer: &str) -> Job {
    Job(format!(
        "{}[flatten]\noutput = \"out/features\"\nhops = 2\nfanouts = [4, 3]\n\n\
         [train]\noutput = \"out/model\"\n{train}\nepochs = 2\n\n\
         [infer]\noutput = \"out/v0\"\n{infer}\n[incremental]\n",
        head("work", "start")
    ))
}

/// The keys of tables in a list of changes or a snapshot.
pub(crate) fn tables(list: &str, dir: &str) -> String {
    let key = |kind: &str, name: &str| format!("{kind}.{name} = \"{dir}/{name}.parquet\"\n");
    let nodes = TYPES.map(|name| key("nodes", name)).concat();
    let edges = TABLES.map(|(name, ..)| key("edges", name)).concat();
    format!("[input.{list}]\n{nodes}{edges}\n")
}

/// A version whose output is `out/OUTPUT`.
fn version(output: &str, parent: &str, tables: &str, infer: &str) -> Job {
    Job(format!(
        "{}{tables}[infer]\noutput = \"out/{output}\"\nmodel = \"out/model\"\n{infer}\n\
         [incremental]\nparent = \"out/{parent}\"\n",
        head("work", "start")
    ))
}

/// By type and id: bits of the embedding, and the prediction.
pub(crate) type Rows = BTreeMap<(String, String), (Vec<u32>, String)>;

pub(crate) fn rows(bench: &Bench, output: &str) -> Rows {
    let dataset = EmbeddingsDataset::open(&bench.path(output)).unwrap();
    let mut all = Rows::new();
    for part in 0..dataset.num_parts() {
        let of = dataset.read_part(part).unwrap();
        for at in 0..of.ids.len() {
            let row = &of.embedding[at * of.dim..][..of.dim];
            let bits = row.iter().map(|value| value.to_bits()).collect();
            let key = (dataset.type_of_part(part).to_owned(), of.ids.display(at));
            let prediction = match of.prediction.num_rows() {
                Some(_) => format!("{:?}", of.prediction.slice(at..at + 1)),
                None => String::new(),
            };
            let before = all.insert(key, (bits, prediction));
            assert!(before.is_none(), "{output} has a node twice");
        }
    }
    all
}

/// Items have learnable rows in place of features.
fn learnable(job: &Job) -> Job {
    let end = "\n\n[input.edges.buys]";
    job.with(
        &format!("features = [\"x\"]{end}"),
        &format!("embedding = 4{end}"),
    )
}

/// Runs the full job on the tables in `tables`, in its own work directory.
fn full(bench: &Bench, tables: &str, infer: &str, adapt: impl Fn(&Job) -> Job) -> Rows {
    let job = Job(format!(
        "{}[infer]\noutput = \"out/full-{tables}\"\nmodel = \"out/model\"\n{infer}\n",
        head(&format!("work-{tables}"), tables)
    ));
    bench.run(&adapt(&job), &[]).ok();
    rows(bench, &format!("out/full-{tables}"))
}

/// Runs a chain of versions and compares each, and the last one's compaction, with a full run on the
/// changed tables.
fn check_chain(train: &str, infer: &str, adapt: impl Fn(&Job) -> Job) {
    check_chain_in(train, infer, adapt, &[]);
}

/// [`check_chain`] with arguments of the jobs of the chain.
fn check_chain_in(train: &str, infer: &str, adapt: impl Fn(&Job) -> Job, args: &[&str]) {
    let (bench, mut world) = (Bench::empty(), TypedWorld::new());
    world.write(&bench, "start");
    bench.run(&adapt(&first(train, infer)), args).ok();
    let mut changed = 0;
    for at in 1..=3 {
        let (night, whole) = (format!("night-{at}"), format!("tables-{at}"));
        world.night().write(&bench, &night);
        world.write(&bench, &whole);
        let expected = full(&bench, &whole, infer, &adapt);
        let parent = format!("v{}", at - 1);
        // The second night continues the version of a snapshot.
        let lists = match at {
            1 => [tables("changes", &night), tables("snapshot", &whole)],
            _ => [tables("snapshot", &whole), tables("changes", &night)],
        };
        for (name, list) in ["s", "v"].into_iter().zip(lists) {
            let own = format!("{name}{at}");
            let mut job = version(&own, &parent, &list, infer);
            if at == 2 {
                job = rebuilding(&job);
            }
            bench.run(&adapt(&job), args).ok();
            let found = rows(&bench, &format!("out/{own}"));
            assert_eq!(found.len(), expected.len(), "{train}, {own}");
            assert!(found == expected, "{train}, {own}");
            let manifest = bench.manifest(&format!("out/{own}"));
            changed += usize::from(manifest["report"]["mode"] == "incremental");
        }
    }
    assert!(changed > 3, "{train}: most versions were full ones");
    let compact = [
        "compact",
        "out/v3",
        "--output",
        "out/whole",
        "--work-dir",
        "work",
    ];
    bench.graphflat(&compact).ok();
    assert!(
        rows(&bench, "out/whole") == rows(&bench, "out/v3"),
        "{train}"
    );
    world.night().write(&bench, "night-4");
    world.write(&bench, "tables-4");
    let last = version("v4", "whole", &tables("changes", "night-4"), infer);
    bench.run(&adapt(&last), args).ok();
    assert!(
        rows(&bench, "out/v4") == full(&bench, "tables-4", infer, &adapt),
        "{train}"
    );
    assert_eq!(
        bench.manifest("out/v4")["version"]["kept"][0]["path"],
        "../whole"
    );
}

const SAGE: &str = "model = \"sage\"\nhidden = [8]";

#[test]
fn versions_of_sage_with_types_are_full_runs() {
    check_chain(SAGE, "types = \"all\"\nrows_per_part = 50\n", Job::clone);
}

#[test]
fn versions_of_rgcn_with_types_are_full_runs() {
    let train = "model = \"rgcn\"\nhidden = [8]";
    check_chain(train, "logits = true\n", Job::clone);
}

#[test]
fn versions_of_hgt_with_types_are_full_runs() {
    let train = "model = \"hgt\"\nhidden = [8]\nheads = 2";
    check_chain(train, "layer = 1\ntypes = \"all\"\n", Job::clone);
}

#[test]
fn versions_in_several_processes_are_full_runs() {
    let hgt = "model = \"hgt\"\nhidden = [8]\nheads = 2";
    check_chain_in(hgt, "layer = 1\ntypes = \"all\"\n", Job::clone, &PROCESSES);
    let simple_hgn = "model = \"simple_hgn\"\nhidden = [8]\nheads = 2";
    let infer = "layer = 2\ntypes = [\"user\"]\n";
    check_chain_in(simple_hgn, infer, Job::clone, &PROCESSES);
}

#[test]
fn versions_of_simple_hgn_with_types_are_full_runs() {
    let train = "model = \"simple_hgn\"\nhidden = [8]\nheads = 2";
    let infer = "layer = 2\ntypes = [\"user\"]\nnormalize = true\n";
    check_chain(train, infer, Job::clone);
}

#[test]
fn versions_of_items_alone_are_full_runs() {
    let train = "model = \"gatv2\"\nhidden = [8]\nheads = 2";
    check_chain(train, "types = [\"item\"]\n", Job::clone);
}

#[test]
fn versions_of_items_with_learnable_rows_are_full_runs() {
    check_chain(SAGE, "types = \"all\"\n", learnable);
}

#[test]
fn several_nights_at_once_and_other_types_are_full_runs() {
    let (bench, mut world) = (Bench::empty(), TypedWorld::new());
    world.write(&bench, "start");
    bench.run(&first(SAGE, "types = [\"user\"]\n"), &[]).ok();
    let mut nights = String::new();
    for night in ["night-1", "night-2"] {
        world.night().write(&bench, night);
        nights += &tables("changes", night).replace("[input.changes]", "[[input.changes]]");
    }
    world.write(&bench, "whole");
    let both = version("v2", "v0", &nights, "types = [\"user\"]\n");
    bench.run(&both, &[]).ok();
    let of_users = rows(&bench, "out/v2");
    let expected = full(&bench, "whole", "types = \"all\"\n", Job::clone);
    let is_user = |row: &(&(String, String), &(Vec<u32>, String))| row.0.0 == "user";
    assert!(of_users.iter().eq(expected.iter().filter(is_user)));
    // With other types, all rows are computed.
    TypedNight::default().write(&bench, "nothing");
    let all = version(
        "v3",
        "v2",
        &tables("changes", "nothing"),
        "types = \"all\"\n",
    );
    bench.run(&all, &[]).ok();
    assert!(rows(&bench, "out/v3") == expected);
    let why = bench.manifest("out/v3")["report"]["why_full"].clone();
    assert_eq!(
        why,
        "the model or a key of [infer] is another than the parent's"
    );
}

/// Kills until so many runs were killed before they had ended.
const KILLS: usize = 30;

#[test]
fn kills_leave_whole_versions_of_types() {
    if !slow() {
        return;
    }
    let (bench, mut world) = (Bench::empty(), TypedWorld::new());
    world.write(&bench, "start");
    let infer = "types = \"all\"\nrows_per_part = 20\n";
    bench.run(&first(SAGE, infer), &[]).ok();
    let before = rows(&bench, "out/v0");
    world.night().write(&bench, "night");
    world.write(&bench, "whole");
    let expected = full(&bench, "whole", infer, Job::clone);
    let job = |own: &str| version(own, "v0", &tables("changes", "night"), infer);
    let started = Instant::now();
    bench.run(&job("calm"), &[]).ok();
    let longest = started.elapsed();
    let (mut killed, mut draws) = (0, 0);
    while killed < KILLS {
        let own = format!("killed-{draws}");
        for _ in 0..3 {
            bench.write(&job(&own));
            let child = bench
                .command(&["run", "job.toml", "--quiet"])
                .spawn()
                .unwrap();
            draws += 1;
            std::thread::sleep(longest.mul_f64((mix(37, draws) % 1000) as f64 / 1000.0));
            killed += usize::from(!kill(child));
            assert!(rows(&bench, "out/v0") == before);
            let output = format!("out/{own}");
            if bench.path(&format!("{output}/_SUCCESS")).exists() {
                assert!(rows(&bench, &output) == expected, "{own} after a kill");
            }
        }
        bench.run(&job(&own), &[]).ok();
        assert!(rows(&bench, &format!("out/{own}")) == expected, "{own}");
    }
}

#[test]
fn mistakes_in_changes_of_a_type_are_named_and_change_nothing() {
    let (bench, mut world) = (Bench::empty(), TypedWorld::new());
    world.write(&bench, "start");
    bench.run(&first(SAGE, "types = \"all\"\n"), &[]).ok();
    let before = rows(&bench, "out/v0");
    world.night().write(&bench, "night");
    let job = version("v1", "v0", &tables("changes", "night"), "types = \"all\"\n");
    let refused = |wrong: &Job, code: i32, expected: &str| {
        let outcome = bench.run(wrong, &[]);
        assert_eq!(outcome.code, code, "{}", outcome.stderr);
        assert!(outcome.stderr.contains(expected), "{}", outcome.stderr);
        assert!(!bench.path("out/v1").exists());
    };
    let typo = job.with("nodes.item = \"night", "nodes.itm = \"night");
    let expected = "`input.changes.nodes.itm`: there is no node type `itm`; allowed are item, user";
    refused(&typo, 2, expected);
    let absent = job.with("night/item.parquet", "night/absent.parquet");
    refused(&absent, 2, "absent.parquet");
    // An edge to an item that is not there.
    let edges = |dst: &str| {
        vec![
            ("src", ids(USER, [0].into_iter())),
            (
                "dst",
                Arc::new(StringArray::from_iter_values([dst])) as ArrayRef,
            ),
            ("op", Arc::new(StringArray::from_iter_values(["upsert"]))),
        ]
    };
    bench.write_table("night/buys.parquet", edges("item-1000"));
    refused(
        &job,
        3,
        "row 0 of night/buys.parquet: column `dst`: no node has the id item-1000",
    );
    TypedNight::default().write(&bench, "night");
    bench.write_table("night/buys.parquet", edges("item-0"));
    bench.run(&job, &[]).ok();
    assert!(rows(&bench, "out/v0") == before);
    // What the job checks says is what it runs.
    bench.write(&job.with("out/v1", "out/v2"));
    let checked = bench.graphflat(&["check", "job.toml"]).ok().stdout;
    assert!(
        checked.contains("incremental: the changed rows are computed"),
        "{checked}"
    );
}

#[test]
fn readers_see_versions_of_types() {
    let (bench, mut world) = (Bench::empty(), TypedWorld::new());
    world.write(&bench, "start");
    bench.run(&first(SAGE, "types = \"all\"\n"), &[]).ok();
    world.night().write(&bench, "night");
    let job = version("v1", "v0", &tables("changes", "night"), "types = \"all\"\n");
    bench.run(&job, &[]).ok();
    let expected = rows(&bench, "out/v1");
    let listed = bench.graphflat(&["versions", "out/v1"]).ok().stdout;
    assert!(
        listed.starts_with(&format!("{} rows; parent ../v0", expected.len())),
        "{listed}"
    );
    bench.graphflat(&["inspect", "out/v1"]).ok();
    let Some(python) = python() else { return };
    if !has_modules(&python, &["duckdb"]) {
        return skip::<()>("a Python with duckdb").unwrap_or_default();
    }
    let script = format!(
        "{}\nimport duckdb\n\
         for name in ['item', 'user']:\n\
         \x20   for id in read_version('out/v1', ['id'], name)['id'].to_pylist():\n\
         \x20       print(name, id)\n\
         \x20   path = f'out/v1/changes/{{name}}/*.parquet'\n\
         \x20   for id, op in duckdb.sql(f\"SELECT id, op FROM '{{path}}'\").fetchall():\n\
         \x20       print(op, name, id)\n",
        blocks("python")[0]
    );
    let outcome = run_python(&bench, &python, &script);
    let mut found = BTreeSet::new();
    let mut ops: BTreeMap<&str, usize> = BTreeMap::new();
    for line in outcome.stdout.lines() {
        match line.split(' ').collect::<Vec<_>>()[..] {
            [name, id] => assert!(found.insert((name.to_owned(), id.to_owned()))),
            [op, _, _] => *ops.entry(op).or_default() += 1,
            _ => panic!("{line}"),
        }
    }
    assert_eq!(found, expected.into_keys().collect());
    let version = &bench.manifest("out/v1")["version"];
    assert_eq!(ops["upsert"] as u64, version["upserts"].as_u64().unwrap());
    assert_eq!(ops["delete"] as u64, version["deletes"].as_u64().unwrap());
}
