//! Versions of graph features: tables of changes in, the neighbourhoods of a full run out, by the
//! real binary.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, AsArray as _, Float32Array, Int64Array, StringArray};
use arrow::datatypes::Int64Type;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use schemas::{ExtractScratch, GraphFeature, GraphFeatureDataset, SplitCounts};

use crate::harness::{Bench, Job, mix};
use crate::incremental::{PROCESSES, World, blocks, blocks_of, head, rebuilding, run_python};
use crate::incremental_typed::{self, TypedWorld};
use crate::needs::python;

/// The graphs of a chain, and how a job names their tables.
pub(crate) trait Chain {
    /// Draws the changes of a night, applies them, and writes them to one folder and the whole
    /// tables to another.
    fn night(&mut self, bench: &Bench, night: &str, whole: &str);

    /// Name, input and work directory of a job.
    fn head(work: &str, tables: &str) -> String;

    /// The changes of a night, or the whole tables of a day, in a folder.
    fn list(name: &str, dir: &str) -> String;
}

impl Chain for World {
    fn night(&mut self, bench: &Bench, night: &str, whole: &str) {
        self.night().write(bench, night);
        self.write(bench, whole);
    }

    fn head(work: &str, tables: &str) -> String {
        head(work, tables)
    }

    fn list(name: &str, dir: &str) -> String {
        format!(
            "[input.{name}]\nnodes = \"{dir}/nodes.parquet\"\nedges = \"{dir}/edges.parquet\"\n\n"
        )
    }
}

impl Chain for TypedWorld {
    fn night(&mut self, bench: &Bench, night: &str, whole: &str) {
        self.night().write(bench, night);
        self.write(bench, whole);
    }

    fn head(work: &str, tables: &str) -> String {
        incremental_typed::head(work, tables)
    }

    fn list(name: &str, dir: &str) -> String {
        incremental_typed::tables(name, dir)
    }
}

/// Graph features of the tables in `tables`; `flatten` are further keys of [flatten].
pub(crate) fn features<C: Chain>(work: &str, tables: &str, output: &str, flatten: &str) -> Job {
    Job(format!(
        "{}[flatten]\noutput = \"out/{output}\"\nhops = 2\nfanouts = [4, 3]\n{flatten}\n",
        C::head(work, tables)
    ))
}

/// A version of graph features whose output is `out/OUTPUT`, of the tables in `list`.
pub(crate) fn version<C: Chain>(output: &str, parent: &str, list: &str, flatten: &str) -> Job {
    let written = format!("{list}[flatten]\n");
    let job = features::<C>("work", "start", output, flatten).with("[flatten]\n", &written);
    Job(format!(
        "{}\n[incremental]\nfeatures = \"out/{parent}\"\n",
        job.0
    ))
}

/// Reads the neighbourhoods of all targets, by id. Checks that both ways to read a part agree, and
/// that parts have as many targets as the manifests say.
pub(crate) fn read(bench: &Bench, output: &str) -> BTreeMap<String, GraphFeature> {
    let dataset = GraphFeatureDataset::open(&bench.path(output)).unwrap();
    let mut all = BTreeMap::new();
    for part in 0..dataset.num_parts() {
        let shard = dataset.read_part(part).unwrap();
        let mut scratch = ExtractScratch::new(&shard);
        let (fanouts, ids) = (&dataset.flatten().fanouts, &shard.target_nodes().ids);
        let mut of_shard = BTreeMap::new();
        for target in shard.targets() {
            let feature = shard.extract(target, fanouts, &mut scratch);
            of_shard.insert(ids.display(target as usize), feature);
        }
        let mut of_rows = BTreeMap::new();
        for feature in dataset.read_features(part).unwrap() {
            let id = feature.target_nodes().node_id.display(0);
            assert!(of_rows.insert(id, feature).is_none());
        }
        assert!(of_rows == of_shard, "{output}, part {part}");
        for (id, feature) in of_rows {
            let before = all.insert(id, feature);
            assert!(before.is_none(), "{output} has a target twice");
        }
    }
    all
}

/// Returns the number of targets of each split, as the manifests say.
fn counts(bench: &Bench, output: &str) -> [u64; 4] {
    let dataset = GraphFeatureDataset::open(&bench.path(output)).unwrap();
    let parts = 0..dataset.num_parts();
    let of_parts = parts.map(|part| dataset.part(part).targets.unwrap());
    of_parts.fold([0; 4], |[train, val, test, none], of: SplitCounts| {
        [
            train + of.train,
            val + of.val,
            test + of.test,
            none + of.none,
        ]
    })
}

/// Runs a chain of versions, by changes and by snapshots, and compares each with a full run on the
/// changed tables.
fn check_chain<C: Chain>(world: C, flatten: &str, adapt: impl Fn(Job) -> Job) {
    check_chain_in(world, flatten, adapt, &[]);
}

/// [`check_chain`] with arguments of the jobs of the chain.
fn check_chain_in<C: Chain>(
    mut world: C,
    flatten: &str,
    adapt: impl Fn(Job) -> Job,
    args: &[&str],
) {
    let bench = Bench::empty();
    world.night(&bench, "unused", "start");
    let start = features::<C>("work", "start", "v0", flatten);
    let start = adapt(Job(format!("{}\n[incremental]\n", start.0)));
    bench.run(&start, args).ok();
    let before = read(&bench, "out/v0");
    let mut kept = 0;
    for at in 1..=4 {
        let (night, whole) = (format!("night-{at}"), format!("tables-{at}"));
        world.night(&bench, &night, &whole);
        let of_day = features::<C>(&format!("work-{whole}"), &whole, &whole, flatten);
        bench.run(&adapt(of_day), &[]).ok();
        let expected = read(&bench, &format!("out/{whole}"));
        // The second night continues the version of a snapshot.
        let parent = format!("{}{}", if at == 2 { "s" } else { "v" }, at - 1);
        for (own, list, dir) in [("v", "changes", &night), ("s", "snapshot", &whole)] {
            let own = format!("{own}{at}");
            let mut job = version::<C>(&own, &parent, &C::list(list, dir), flatten);
            if at == 2 || at == 3 {
                job = rebuilding(&job);
            }
            let outcome = bench.run(&adapt(job), args).ok();
            let output = format!("out/{own}");
            let found = read(&bench, &output);
            assert!(
                found.keys().eq(expected.keys()),
                "{own}, {flatten}: {outcome:?}"
            );
            for (id, feature) in &found {
                assert_eq!(feature, &expected[id], "{own}, {flatten}: target {id}");
            }
            assert_eq!(
                counts(&bench, &output),
                counts(&bench, &format!("out/{whole}"))
            );
            let manifest = bench.manifest(&output);
            let written = manifest["version"]["upserts"].as_u64().unwrap();
            let is_full = manifest["report"]["mode"] == "full";
            assert_eq!(is_full, written == found.len() as u64, "{manifest}");
            kept += usize::from(!is_full);
        }
        let reports =
            ["v", "s"].map(|of| bench.manifest(&format!("out/{of}{at}"))["report"].clone());
        assert_eq!(reports[0], reports[1]);
    }
    assert!(kept >= 6, "{flatten}: too many versions were full ones");
    // The first version stands as it was.
    assert!(read(&bench, "out/v0") == before);
    check_alone(&bench, args, |name, parent| {
        adapt(version::<C>(
            name,
            parent,
            &C::list("changes", "night-4"),
            flatten,
        ))
    });
}

/// Checks that a version which computes all, and one that continues a compacted output, need no
/// output of the chain v0, v1, v2, v3. `job` is a version of the fourth night.
fn check_alone(bench: &Bench, args: &[&str], job: impl Fn(&str, &str) -> Job) {
    let expected = read(bench, "out/v4");
    bench
        .run(&job("all", "v3"), &[args, &["--full"]].concat())
        .ok();
    let compact = [
        "compact",
        "out/v3",
        "--output",
        "out/c3",
        "--work-dir",
        "work",
    ];
    bench.graphflat(&compact).ok();
    assert!(read(bench, "out/c3") == read(bench, "out/v3"));
    assert_eq!(counts(bench, "out/c3"), counts(bench, "out/v3"));
    let outputs = std::fs::read_dir(bench.path("out")).unwrap();
    for output in outputs.map(|entry| entry.unwrap().path()) {
        if !output.ends_with("all") && !output.ends_with("c3") {
            std::fs::remove_dir_all(output).unwrap();
        }
    }
    assert!(read(bench, "out/all") == expected);
    bench.run(&job("after", "c3"), args).ok();
    assert!(read(bench, "out/after") == expected);
    let listed = bench.graphflat(&["versions", "out/after"]).ok().stdout;
    assert_eq!(listed.lines().count(), 3, "{listed}");
}

pub(crate) fn world() -> World {
    world_of_seed(World::SEED)
}

pub(crate) fn world_of_seed(seed: u64) -> World {
    let mut world = World::of_seed(seed);
    world.targets = true;
    world
}

fn typed_world() -> TypedWorld {
    typed_world_of_seed(TypedWorld::SEED)
}

pub(crate) fn typed_world_of_seed(seed: u64) -> TypedWorld {
    let mut world = TypedWorld::of_seed(seed);
    world.targets = true;
    world
}

#[test]
fn versions_of_rows_are_full_runs() {
    check_chain(world(), "layout = \"rows\"\n", |job| job);
}

#[test]
fn versions_of_shards_are_full_runs() {
    check_chain(world(), "targets_per_part = 70\n", |job| job);
}

#[test]
fn versions_in_several_processes_are_full_runs() {
    let rows = "layout = \"rows\"\ntargets_per_part = 50\n";
    check_chain_in(world(), rows, |job| job, &PROCESSES);
    check_chain_in(
        typed_world(),
        "targets_per_part = 20\n",
        |job| job,
        &PROCESSES,
    );
}

#[test]
fn versions_of_all_targets_with_weights_are_full_runs() {
    let mut world = world();
    world.weighted = true;
    let weighted = |job: Job| job.with("dst = \"dst\"\n", "dst = \"dst\"\nweight = \"w\"\n");
    check_chain(
        world,
        "targets = \"all\"\nsampling = \"weighted\"\n",
        weighted,
    );
}

#[test]
fn versions_of_train_targets_without_direction_are_full_runs() {
    let mut world = world();
    world.undirected = true;
    let undirected = |job: Job| job.with("dst = \"dst\"\n", "dst = \"dst\"\nundirected = true\n");
    check_chain(
        world,
        "targets = \"train\"\nlayout = \"rows\"\ntargets_per_part = 50\n",
        undirected,
    );
}

#[test]
fn versions_of_sparse_features_are_full_runs() {
    let mut world = world();
    world.odd = true;
    let sparse = "sparse = { index = \"index\", value = \"value\", width = 8 }";
    check_chain(world, "", |job| {
        job.with("features = [\"x\", \"y\"]", sparse)
    });
}

#[test]
fn versions_of_typed_graphs_are_full_runs() {
    check_chain(typed_world(), "layout = \"rows\"\n", |job| job);
    check_chain(typed_world(), "targets_per_part = 60\n", |job| job);
}

/// A bench with a first version, and the nights that follow.
fn started(nights: usize, flatten: &str) -> (Bench, World) {
    let (bench, mut world) = (Bench::empty(), world());
    world.write(&bench, "start");
    let start = features::<World>("work", "start", "v0", flatten);
    bench
        .run(&Job(format!("{}\n[incremental]\n", start.0)), &[])
        .ok();
    for at in 1..=nights {
        world.night().write(&bench, &format!("night-{at}"));
    }
    (bench, world)
}

/// A version of one night.
fn of_night(output: &str, parent: &str, night: &str, flatten: &str) -> Job {
    version::<World>(output, parent, &World::list("changes", night), flatten)
}

/// A model is trained on a version each night, and its embeddings are those of the day.
#[test]
fn a_model_is_trained_on_a_version() {
    let (bench, world) = started(2, "");
    let start = features::<World>("work", "start", "v0", "");
    let embeddings = "[infer]\noutput = \"out/e0\"\nmodel = \"out/m0\"\n\n[incremental]\n";
    let training = |output: &str| {
        format!(
            "[train]\noutput = \"out/{output}\"\nmodel = \"sage\"\nhidden = [8]\nepochs = 2\n\n"
        )
    };
    let of_start = Job(format!("{}\n{}", start.0, training("m0")));
    bench.run(&of_start, &[]).ok();
    let kept = Job(format!("{}{embeddings}", head("work", "start")));
    bench.run(&kept, &[]).ok();
    for (at, before) in [(1, 0), (2, 1)] {
        let (own, parent) = (format!("v{at}"), format!("v{before}"));
        let job = of_night(&own, &parent, &format!("night-{at}"), "");
        let stages = format!(
            "{}[infer]\noutput = \"out/e{at}\"\n\n[incremental]\nparent = \"out/e{before}\"\n",
            training(&format!("m{at}"))
        );
        bench.run(&job.with("[incremental]\n", &stages), &[]).ok();
    }
    let why = bench.manifest("out/e2")["report"]["why_full"].clone();
    assert_eq!(
        why,
        "the model or a key of [infer] is another than the parent's"
    );
    // As many targets as in a full run.
    world.write(&bench, "now");
    let whole = features::<World>("work-now", "now", "now", "");
    bench
        .run(&Job(format!("{}\n{}", whole.0, training("m-now"))), &[])
        .ok();
    let targets = |model: &str| {
        let path = bench.path(&format!("out/{model}/evaluation.json"));
        let text = std::fs::read_to_string(path).unwrap();
        let found: serde_json::Value = serde_json::from_str(&text).unwrap();
        ["train", "val", "test"].map(|split| found["splits"][split]["num_targets"].clone())
    };
    assert_eq!(targets("m2"), targets("m-now"));
    // Inference on the neighbourhoods of the version sees the degrees of today.
    let by_neighborhoods = |input: &str| {
        Job(format!(
            "{}[infer]\noutput = \"out/by-{input}\"\nmodel = \"out/m2\"\ninput = \"out/{input}\"\n\
             method = \"neighborhoods\"\n",
            head("work", "start")
        ))
    };
    let rows = ["v2", "now"].map(|input| {
        bench.run(&by_neighborhoods(input), &[]).ok();
        crate::incremental::rows(&bench, &format!("out/by-{input}"))
    });
    assert!(rows[0] == rows[1]);
    // It is listed and shown as a whole.
    let listed = bench.graphflat(&["versions", "out/v2"]).ok().stdout;
    let total: u64 = counts(&bench, "out/v2").iter().sum();
    let first_line = format!("{total} rows; parent ../v1, ");
    assert!(listed.starts_with(&first_line), "{listed}");
    assert_eq!(listed.lines().count(), 4, "{listed}");
    let shown = bench.graphflat(&["inspect", "out/v2"]).ok().stdout;
    let all = format!("version: {total} rows in all, of 3 outputs; parent ../v1\n");
    assert!(shown.contains(&all), "{shown}");
}

/// Groups of [`write_groups`].
const GROUPS: i64 = 40;

/// Writes groups of six nodes. Node 0 of a group hears from nodes 2 to 5, and node 1 from node 0.
/// In the night three of the edges to node 0 go.
fn write_groups(bench: &Bench) {
    let column = |values: Vec<i64>| -> ArrayRef { Arc::new(Int64Array::from(values)) };
    let ends = |of: &[[i64; 2]]| {
        let [src, dst] = [0, 1].map(|end| column(of.iter().map(|edge| edge[end]).collect()));
        vec![("src", src), ("dst", dst)]
    };
    let nodes: Vec<i64> = (0..6 * GROUPS).collect();
    let numbers = |sign: f32| -> ArrayRef {
        let number = |node: &i64| sign * f32::from(u8::try_from(node % 7).unwrap());
        Arc::new(Float32Array::from_iter_values(nodes.iter().map(number)))
    };
    let splits = StringArray::from_iter_values(nodes.iter().map(|_| "train"));
    let edges = nodes.iter().filter(|&node| node % 6 > 0);
    let edges = edges.map(|&node| match node % 6 {
        1 => [node - 1, node],
        at => [node, node - at],
    });
    let edges: Vec<[i64; 2]> = edges.collect();
    for dir in ["start", "night"] {
        std::fs::create_dir(bench.path(dir)).unwrap();
    }
    bench.write_table(
        "start/nodes.parquet",
        vec![
            ("id", column(nodes.clone())),
            ("x", numbers(1.0)),
            ("y", numbers(-1.0)),
            ("label", column(nodes.iter().map(|node| node % 2).collect())),
            ("split", Arc::new(splits)),
        ],
    );
    bench.write_table("start/edges.parquet", ends(&edges));
    let gone: Vec<[i64; 2]> = edges.into_iter().filter(|[src, _]| src % 6 > 2).collect();
    let ops = StringArray::from_iter_values(gone.iter().map(|_| "delete"));
    let mut changes = ends(&gone);
    changes.push(("op", Arc::new(ops)));
    bench.write_table("night/edges.parquet", changes);
}

/// A part that is kept lists in-edges of a replaced target that are gone. Its other targets read
/// fewer of them, also without pruning.
#[test]
fn a_training_without_pruning_reads_no_edges_that_are_gone() {
    let bench = Bench::empty();
    write_groups(&bench);
    let fanouts = |job: Job| job.with("[4, 3]", "[4, 1]");
    let start = fanouts(features::<World>("work", "start", "v0", ""));
    bench
        .run(&Job(format!("{}\n[incremental]\n", start.0)), &[])
        .ok();
    let list = "[input.changes]\nedges = \"night/edges.parquet\"\n\n";
    bench
        .run(&fanouts(version::<World>("v1", "v0", list, "")), &[])
        .ok();
    // Node 1 is kept where the first edge of node 0 in the sample stays.
    let report = bench.manifest("out/v1")["report"].clone();
    let reached = report["reached"]["targets"].as_i64().unwrap();
    assert!((GROUPS + 1..2 * GROUPS).contains(&reached), "{report}");
    let metrics = [true, false].map(|pruning| {
        let output = format!("out/model-{pruning}");
        let job = Job(format!(
            "{}[train]\ninput = \"out/v1\"\noutput = \"{output}\"\nmodel = \"sage\"\n\
             hidden = [8]\nepochs = 2\nbatch_size = 1000\npruning = {pruning}\n",
            head("work", "start")
        ));
        bench.run(&job, &[]).ok();
        let text = std::fs::read_to_string(bench.path(&output).join("model.json")).unwrap();
        let model: serde_json::Value = serde_json::from_str(&text).unwrap();
        model["metrics"].clone()
    });
    assert_eq!(metrics[0], metrics[1]);
}

/// Writes the tables of the start, and runs both stages on them.
fn start_both_stages(bench: &Bench, world: &World) {
    world.write(bench, "start");
    let start = features::<World>("work", "start", "f0", "");
    let rest = "[train]\noutput = \"out/model\"\nmodel = \"gcn\"\nhidden = [8]\nepochs = 2\n\n\
                [infer]\noutput = \"out/e0\"\n\n[incremental]\n";
    bench.run(&Job(format!("{}\n{rest}", start.0)), &[]).ok();
}

/// Version `at` of both stages, of the tables in `list`.
fn of_both_stages(at: usize, list: &str) -> Job {
    let before = at - 1;
    let job = version::<World>(&format!("f{at}"), &format!("f{before}"), list, "");
    let embeddings = format!(
        "[infer]\noutput = \"out/e{at}\"\nmodel = \"out/model\"\n\n[incremental]\n\
         parent = \"out/e{before}\"\n"
    );
    job.with("[incremental]\n", &embeddings)
}

/// Snapshots of which some tables have the files of the night before.
#[test]
fn snapshots_of_both_stages_may_have_tables_of_the_parent() {
    let (bench, mut world) = (Bench::empty(), world());
    start_both_stages(&bench, &world);
    for at in 1..=4 {
        match at {
            1 | 4 => world.change_edges(),
            3 => world.change_target(),
            _ => (),
        }
        world.write(&bench, "now");
        let job = of_both_stages(at, &World::list("snapshot", "now"));
        bench.run(&job, &[]).ok();
        let of_day = features::<World>("work-f-now", "now", &format!("full{at}"), "");
        bench.run(&of_day, &[]).ok();
        let [own, expected] = ["f", "full"].map(|of| format!("out/{of}{at}"));
        assert!(read(&bench, &own) == read(&bench, &expected), "{own}");
        assert_eq!(counts(&bench, &own), counts(&bench, &expected));
        std::fs::remove_dir_all(bench.path("out/full-now")).ok();
        let of_rows = crate::incremental::full(&bench, "now", "", |of| of);
        let found = crate::incremental::rows(&bench, &format!("out/e{at}"));
        assert!(found == of_rows, "e{at}");
    }
}

/// A night's versions of graph features and embeddings, in one job, find once what the changes
/// reach.
#[test]
fn versions_of_both_stages_are_full_runs() {
    let (bench, mut world) = (Bench::empty(), world());
    start_both_stages(&bench, &world);
    for at in 1..=4 {
        let (night, whole) = (format!("night-{at}"), format!("tables-{at}"));
        world.night().write(&bench, &night);
        world.write(&bench, &whole);
        let list = match at % 2 {
            0 => World::list("snapshot", &whole),
            _ => World::list("changes", &night),
        };
        let mut job = of_both_stages(at, &list);
        if at == 2 {
            job = rebuilding(&job);
        }
        // The third night is cut between the stages.
        if at == 3 {
            bench.run(&job, &["--stage", "flatten"]).ok();
        }
        bench.run(&job, &[]).ok();
        let of_day = features::<World>(
            &format!("work-f-{whole}"),
            &whole,
            &format!("f-{whole}"),
            "",
        );
        bench.run(&of_day, &[]).ok();
        let expected = read(&bench, &format!("out/f-{whole}"));
        assert!(
            read(&bench, &format!("out/f{at}")) == expected,
            "night {at}"
        );
        let expected_rows = crate::incremental::full(&bench, &whole, "", |of_rows| of_rows);
        let found = crate::incremental::rows(&bench, &format!("out/e{at}"));
        assert!(found == expected_rows, "night {at}");
    }
}

/// A model that was trained with another seed has a store of its own, so the stages share nothing.
#[test]
fn both_stages_may_have_stores_of_their_own() {
    let (bench, world) = started(1, "");
    let training = "[train]\noutput = \"out/model\"\nmodel = \"sage\"\nhidden = [8]\nepochs = 1\n";
    let other = features::<World>("work-other", "start", "other", "");
    let other = other.with("seed = 7", "seed = 9");
    bench
        .run(&Job(format!("{}\n{training}", other.0)), &[])
        .ok();
    let infer =
        |output: &str| format!("[infer]\noutput = \"out/{output}\"\nmodel = \"out/model\"\n");
    let first = format!("{}{}\n[incremental]\n", head("work", "start"), infer("e0"));
    bench.run(&Job(first), &[]).ok();
    let both = format!("{}\n[incremental]\nparent = \"out/e0\"\n", infer("e1"));
    let job = of_night("v1", "v0", "night-1", "").with("[incremental]\n", &both);
    bench.run(&job, &[]).ok();
    world.write(&bench, "now");
    let whole = features::<World>("work-now", "now", "now", "");
    let whole = Job(format!("{}\n{}", whole.0, infer("e-now")));
    bench.run(&whole, &[]).ok();
    assert!(read(&bench, "out/v1") == read(&bench, "out/now"));
    let rows = ["out/e1", "out/e-now"].map(|output| crate::incremental::rows(&bench, output));
    assert!(rows[0] == rows[1]);
}

/// Runs the job of `out/v1`, which must fail with a message that ends so.
#[track_caller]
fn check_refused(bench: &Bench, job: &Job, code: i32, expected: &str) {
    let outcome = bench.run(job, &[]);
    let message = outcome.stderr.trim_end();
    assert_eq!(outcome.code, code, "{outcome:?}");
    assert!(message.ends_with(expected), "{message}\n{expected}");
    assert!(!bench.path("out/v1/_SUCCESS").exists());
}

#[test]
fn features_that_do_not_fit_are_refused() {
    let (bench, _) = started(1, "");
    let before = read(&bench, "out/v0");
    let good = of_night("v1", "v0", "night-1", "");
    let check = |job: &Job, code: i32, expected: &str| check_refused(&bench, job, code, expected);
    let parent = "features = \"out/v0\"";
    check(
        &good.with(parent, ""),
        2,
        "`incremental.features`: is missing; it names the output of [flatten] that [input.changes] \
         are applied to",
    );
    check(
        &good.with(parent, &format!("{parent}\nparent = \"out/v0\"")),
        2,
        "job.toml:30: `incremental.parent`: is an output of [infer], but the job has no table \
         [infer]; leave it out",
    );
    check(
        &good.with(parent, "features = \"out/none\""),
        2,
        "out/none holds no finished output: there is no such directory",
    );
    check(
        &good.with("work_dir = \"work\"", "work_dir = \"other\""),
        2,
        "the parent out/v0 cannot be continued: its rows are not kept in other; versions need the \
         `work_dir` of their parent, which was run with [incremental], in one process if it was, else in \
         several; start with a run without a \
         parent",
    );
    // More in-edges than those that an earlier version has drawn again.
    let wider = of_night("wider", "v0", "night-1", "").with("[4, 3]", "[5, 3]");
    bench.run(&wider, &[]).ok();
    let why = bench.manifest("out/wider")["report"]["why_full"].clone();
    assert_eq!(why, "a key of [flatten] is another than the parent's");
    check(
        &of_night("v1", "wider", "night-1", "").with("[4, 3]", "[6, 3]"),
        2,
        "was computed with other fan-outs; start with a run without a parent",
    );
    check(
        &good.with("dst = \"dst\"\n", "dst = \"dst\"\ndangling = \"drop\"\n"),
        2,
        "changes cannot be applied: with `dangling = \"drop\"`, a new node may have edges that were \
         left out before",
    );
    let streamed = "[train]\noutput = \"out/m\"\nmodel = \"sage\"\nhidden = [8]\nepochs = 1\n\
                    streamed = true\n\n[incremental]\n";
    let without = good.with("output = \"out/v1\"\n", "").with(parent, "");
    check(
        &without.with("[incremental]\n", streamed),
        2,
        "`train.streamed`: draws neighbourhoods from the tables of [input], without what has changed \
         since; leave it out",
    );
    assert!(read(&bench, "out/v0") == before);
}

/// Tables of changes need labels and splits, with the classes of the first table.
#[test]
fn labels_that_do_not_fit_are_refused() {
    let (bench, mut world) = started(0, "");
    let before = read(&bench, "out/v0");
    let good = of_night("v1", "v0", "night-1", "");
    let check = |job: &Job, code: i32, expected: &str| check_refused(&bench, job, code, expected);
    world.targets = false;
    world.night().write(&bench, "night-1");
    check(
        &good,
        2,
        "`input.changes.nodes`: no column `label` in night-1/nodes.parquet; its columns are id, op, x, y",
    );
    let text = |value: &str| Arc::new(StringArray::from_iter_values([value])) as ArrayRef;
    let number = |value: i64| Arc::new(Int64Array::from_iter_values([value])) as ArrayRef;
    let float = || Arc::new(Float32Array::from_iter_values([0.5])) as ArrayRef;
    let columns = vec![
        ("id", number(0)),
        ("op", text("upsert")),
        ("label", number(2)),
        ("split", text("train")),
        ("x", float()),
        ("y", float()),
    ];
    bench.write_table("night-1/nodes.parquet", columns);
    check(
        &good,
        3,
        "column `label` of night-1/nodes.parquet, row 0: is 2; allowed are class numbers from 0 below \
         2, and -1 or null for none",
    );
    assert!(read(&bench, "out/v0") == before);
    // Labels of another kind.
    let other_kind = vec![
        ("id", number(0)),
        ("op", text("upsert")),
        ("label", text("a")),
        ("split", text("train")),
        ("x", float()),
        ("y", float()),
    ];
    bench.write_table("night-1/nodes.parquet", other_kind);
    check(
        &good,
        3,
        "job job.toml: the changes of `input.nodes` have labels that are class names, but the table has \
         labels that are class numbers",
    );
    // An output without what versions need.
    let alone = features::<World>("work-alone", "start", "alone", "");
    bench.run(&alone, &[]).ok();
    bench.write(&Job(format!("{}\n[incremental]\n", alone.0)));
    let told = bench.graphflat(&["run", "job.toml", "--json"]).ok();
    let said = format!("{}{}", told.stdout, told.stderr);
    assert!(said.contains("cannot start from out/alone"), "{told:?}");
}

/// The page about versions of graph features.
const PAGE: &str = include_str!("../docs/job/feature_versions.md");

/// The nightly training of the page runs, and its reader reads rows with the degrees of today.
#[test]
fn the_nightly_training_of_the_page_runs_and_its_reader_reads_a_version() {
    let (bench, mut world) = (Bench::empty(), world());
    world.write(&bench, "start");
    let start = blocks("toml")[0];
    let [night] = blocks_of(PAGE, "toml")[..] else {
        panic!("the page has one job");
    };
    bench.run(&Job::of_text(start), &[]).ok();
    world.night().write(&bench, "changes/2026-11-25");
    let first_night = |job: &Job, parent: &str| {
        let set = format!("incremental.features={parent}");
        bench
            .run(job, &["--date", "2026-11-25", "--set", &set])
            .ok();
    };
    first_night(&Job::of_text(night), "out/features");
    world.night().write(&bench, "changes/2026-11-26");
    let of_second = ["--date", "2026-11-26"];
    bench.run(&Job::of_text(night), &of_second).ok();
    // The same in the layout that the reader reads.
    let rows = |job: &str, at: &str| {
        let text = job.split("[train]").next().unwrap();
        let (_, rest) = job.split_once("[incremental]").unwrap();
        let text = text.replace("[flatten]\n", "[flatten]\nlayout = \"rows\"\n");
        let text = format!("{text}[incremental]{rest}").replace("out/features", at);
        Job::of_text(&text)
    };
    let start_of_rows = start.split("[infer]").next().unwrap();
    let start_of_rows = format!("{start_of_rows}[incremental]\n");
    bench.run(&rows(&start_of_rows, "out/rows"), &[]).ok();
    first_night(&rows(night, "out/rows"), "out/rows");
    bench.run(&rows(night, "out/rows"), &of_second).ok();
    let expected = read(&bench, "out/features-2026-11-26");
    assert!(read(&bench, "out/rows-2026-11-26") == expected);
    let Some(python) = python() else { return };
    let script = format!(
        "{}\n{}\nfor row in read_features('out/rows-2026-11-26').to_pylist():\n\
         \x20   print(row['target'], row['node_id'], row['in_degree'])\n",
        blocks("python")[0],
        blocks_of(PAGE, "python")[0],
    );
    let outcome = run_python(&bench, &python, &script);
    let mut found: Vec<&str> = outcome.stdout.lines().collect();
    found.sort_unstable();
    let lines = expected.iter().map(|(id, feature)| {
        let ids = &feature.target_nodes().node_id;
        let ids: Vec<String> = (0..ids.len()).map(|at| ids.display(at)).collect();
        format!("{id} [{}] {:?}", ids.join(", "), feature.edges[0].in_degree)
    });
    let mut lines: Vec<String> = lines.collect();
    lines.sort_unstable();
    assert_eq!(found, lines);
}

#[test]
fn check_predicts_a_version_of_features() {
    let (bench, _) = started(1, "");
    bench.write(&of_night("v1", "v0", "night-1", ""));
    let told = bench.graphflat(&["check", "job.toml"]).ok().stdout;
    assert!(
        told.contains("features  incremental: the changed neighbourhoods are flattened\n"),
        "{told}"
    );
    let report = bench.graphflat(&["check", "job.toml", "--json"]).ok();
    let events = report.events();
    let mut predicted = events.last().unwrap()["features_version"].clone();
    let bytes = predicted.as_object_mut().unwrap().remove("bytes").unwrap();
    bench.graphflat(&["run", "job.toml"]).ok();
    let manifest = bench.manifest("out/v1");
    assert_eq!(manifest["report"], predicted);
    // The targets are one part, which check has written too.
    let files = manifest["parts"][0]["files"].as_array().unwrap();
    let written = files.iter().map(|of| of["bytes"].as_u64().unwrap());
    assert_eq!(bytes.as_u64().unwrap(), written.sum::<u64>());
    assert!(
        told.contains("features  the neighbourhoods take about "),
        "{told}"
    );
    assert_eq!(
        predicted["reached"]["targets"],
        manifest["version"]["upserts"]
    );
    // A finished version needs no parent any more, neither here nor in a run.
    std::fs::remove_dir_all(bench.path("out/v0")).unwrap();
    bench.graphflat(&["check", "job.toml"]).ok();
    bench.graphflat(&["run", "job.toml"]).ok();
}

/// Several nights at once: a target may change in one of them and be gone in the next.
#[test]
fn several_nights_are_one_version() {
    let (bench, world) = started(3, "");
    let nights = (1..=3).map(|at| {
        let night = World::list("changes", &format!("night-{at}"));
        night.replace("[input.changes]", "[[input.changes]]")
    });
    let nights: String = nights.collect();
    bench
        .run(&version::<World>("v1", "v0", &nights, ""), &[])
        .ok();
    world.write(&bench, "now");
    bench
        .run(&features::<World>("work-now", "now", "now", ""), &[])
        .ok();
    assert!(read(&bench, "out/v1") == read(&bench, "out/now"));
    assert_eq!(counts(&bench, "out/v1"), counts(&bench, "out/now"));
}

/// Listed targets, one of which only the changes bring.
#[test]
fn versions_of_listed_targets_are_full_runs() {
    let (bench, mut world) = (Bench::empty(), world());
    world.write(&bench, "start");
    let ids = |tables: &str| {
        let path = bench.path(&format!("{tables}/nodes.parquet"));
        let reader = ParquetRecordBatchReaderBuilder::try_new(File::open(path).unwrap());
        let batches = reader.unwrap().build().unwrap().map(Result::unwrap);
        let ids = batches.map(|batch| Arc::clone(batch.column_by_name("id").unwrap()));
        ids.collect::<Vec<ArrayRef>>()
    };
    let before = ids("start");
    world.night().write(&bench, "night-1");
    world.write(&bench, "now");
    let number = |column: &ArrayRef, row: usize| column.as_primitive::<Int64Type>().value(row);
    let numbers = |columns: &[ArrayRef]| {
        let all = columns.iter();
        let all = all.flat_map(|column| (0..column.len()).map(move |row| number(column, row)));
        all.collect::<BTreeSet<i64>>()
    };
    let (old, now) = (numbers(&before), numbers(&ids("now")));
    let new = now
        .difference(&old)
        .next()
        .copied()
        .expect("a night brings nodes");
    let listed = old.intersection(&now).step_by(3).copied().chain([new]);
    let listed: ArrayRef = Arc::new(Int64Array::from_iter_values(listed));
    bench.write_table("listed.parquet", vec![("id", listed)]);
    let key = "targets = \"listed.parquet\"\n";
    let without_new = old.intersection(&now).step_by(3).copied();
    let without_new: ArrayRef = Arc::new(Int64Array::from_iter_values(without_new));
    bench.write_table("first.parquet", vec![("id", without_new)]);
    let first = "targets = \"first.parquet\"\n";
    let start = features::<World>("work", "start", "v0", first);
    bench
        .run(&Job(format!("{}\n[incremental]\n", start.0)), &[])
        .ok();
    let job = of_night("v1", "v0", "night-1", key);
    bench.write(&job);
    bench.graphflat(&["check", "job.toml"]).ok();
    bench.run(&job, &[]).ok();
    bench
        .run(&features::<World>("work-now", "now", "now", key), &[])
        .ok();
    assert!(read(&bench, "out/v1") == read(&bench, "out/now"));
    let same = of_night("same", "v0", "night-1", first);
    bench.run(&same, &[]).ok();
    bench
        .run(&features::<World>("work-first", "now", "first", first), &[])
        .ok();
    assert!(read(&bench, "out/same") == read(&bench, "out/first"));
}

/// A killed run leaves its parent as it was, and goes on.
#[test]
fn killed_versions_of_features_go_on() {
    let kills = if crate::needs::slow() { 30 } else { 6 };
    for layout in [
        "layout = \"rows\"\ntargets_per_part = 20\n",
        "targets_per_part = 20\n",
    ] {
        let (bench, world) = started(1, layout);
        let before = read(&bench, "out/v0");
        let job = rebuilding(&of_night("calm", "v0", "night-1", layout));
        let started = std::time::Instant::now();
        bench.run(&job, &[]).ok();
        let longest = started.elapsed();
        let expected = read(&bench, "out/calm");
        world.write(&bench, "now");
        let own = rebuilding(&of_night("v1", "v0", "night-1", layout));
        for kill in 0..kills {
            bench.write(&own);
            let mut run = bench.command(&["run", "job.toml", "--quiet"]);
            let mut child = run.spawn().unwrap();
            let share = mix(37, kill) % 1000;
            std::thread::sleep(longest.mul_f64(share as f64 / 1000.0) + Duration::from_millis(1));
            child.kill().unwrap(); // SIGKILL: no handler runs
            child.wait().unwrap();
            assert!(read(&bench, "out/v0") == before);
            if bench.path("out/v1/_SUCCESS").exists() {
                assert!(read(&bench, "out/v1") == expected);
                std::fs::remove_dir_all(bench.path("out/v1")).unwrap();
            }
        }
        bench.run(&own, &[]).ok();
        assert!(read(&bench, "out/v1") == expected);
        let same = ["out/calm", "out/v1"].map(|output| bench.data_files(output));
        assert_eq!(same[0], same[1]);
    }
}
