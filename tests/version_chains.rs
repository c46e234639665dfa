//! Long chains of versions of graph features and embeddings in one job, by the real binary: every
//! night equals a full run on its tables, and so does the compaction of the last one.

use std::collections::BTreeMap;

use schemas::GraphFeature;

use crate::harness::{Bench, Job};
use crate::incremental::{PROCESSES, World, rebuilding};
use crate::incremental_features::{self, Chain};
use crate::incremental_typed::{Rows, TypedWorld, rows};

/// Nights of a chain; the seven chains below have 210.
const NIGHTS: usize = 30;

/// Workers of the nights; ten nights have the same number.
const WORKERS: [usize; 3] = [1, 8, 3];

/// What the jobs of a chain have in common.
struct Keys<'a> {
    train: &'a str,
    flatten: &'a str,
    /// What is replaced in every job, and by what.
    input: [&'a str; 2],
    /// Arguments of the versions; with none, the number of workers changes.
    args: &'a [&'a str],
}

/// Neighbourhoods by target, and rows of embeddings.
type Both = (BTreeMap<String, GraphFeature>, Rows);

/// Reads both outputs of a job.
fn read(bench: &Bench, name: &str) -> Both {
    let features = incremental_features::read(bench, &format!("out/{name}-features"));
    (features, rows(bench, &format!("out/{name}-rows")))
}

impl Keys<'_> {
    fn job<C: Chain>(&self, [work, tables, output]: [&str; 3], list: &str, end: &str) -> Job {
        let train = match output {
            "v0" => self.train,
            _ => "",
        };
        let job = Job(format!(
            "{}{list}[flatten]\noutput = \"out/{output}-features\"\nhops = 2\nfanouts = [4, 3]\n{}\n\
             {train}[infer]\noutput = \"out/{output}-rows\"\nmodel = \"out/model\"\n\n{end}",
            C::head(work, tables),
            self.flatten
        ));
        job.with(self.input[0], self.input[1])
    }

    fn version<C: Chain>(&self, output: &str, parent: &str, list: &str) -> Job {
        let end = format!(
            "[incremental]\nfeatures = \"out/{parent}-features\"\nparent = \"out/{parent}-rows\"\n"
        );
        self.job::<C>(["work", "start", output], list, &end)
    }
}

/// Runs a chain of versions, some of them of snapshots and some with a store of their own, and
/// compares each with a full run. Ends with a compaction and a night that continues it.
fn check<C: Chain>(mut world: C, keys: &Keys<'_>) {
    let bench = Bench::empty();
    world.night(&bench, "unused", "start");
    let first = keys.job::<C>(["work", "start", "v0"], "", "[incremental]\n");
    bench.run(&first, keys.args).ok();
    let (mut parent, mut kept) = ("v0".to_owned(), [0; 2]);
    for at in 1..=NIGHTS + 1 {
        let (own, night, day) = (format!("v{at}"), format!("night-{at}"), format!("day-{at}"));
        world.night(&bench, &night, &day);
        let full = keys.job::<C>([&format!("work-{day}"), &day, &day], "", "");
        bench.run(&full, &[]).ok();
        let list = match at % 7 {
            0 => C::list("snapshot", &day),
            _ => C::list("changes", &night),
        };
        let mut job = keys.version::<C>(&own, &parent, &list);
        if at % 10 == 5 {
            job = rebuilding(&job);
        }
        if keys.args.is_empty() {
            let workers = WORKERS[at / 10 % WORKERS.len()];
            job = job.with("workers = 2\n", &format!("workers = {workers}\n"));
        }
        bench.run(&job, keys.args).ok();
        let expected = read(&bench, &day);
        assert!(read(&bench, &own) == expected, "{}, {own}", keys.train);
        for (count, stage) in kept.iter_mut().zip(["features", "rows"]) {
            let manifest = bench.manifest(&format!("out/{own}-{stage}"));
            *count += usize::from(manifest["report"]["mode"] == "incremental");
        }
        parent = own;
        if at == NIGHTS {
            for stage in ["features", "rows"] {
                let [from, to] = [&parent, "whole"].map(|of| format!("out/{of}-{stage}"));
                let compact = ["compact", &from, "--output", &to, "--work-dir", "work"];
                bench.graphflat(&compact).ok();
            }
            parent = "whole".to_owned();
            assert!(read(&bench, &parent) == expected, "{}", keys.train);
        }
        for of_day in [format!("work-{day}"), day, night] {
            std::fs::remove_dir_all(bench.path(&of_day)).unwrap();
        }
    }
    eprintln!(
        "{kept:?} of {} versions kept neighbourhoods and rows",
        NIGHTS + 1
    );
    assert!(kept.iter().all(|&of| of > 2 * NIGHTS / 3), "{kept:?}");
}

const UNCHANGED: [&str; 2] = ["[flatten]", "[flatten]"];

fn world(seed: u64) -> World {
    let mut world = World::of_seed(seed);
    world.targets = true;
    world
}

fn typed_world(seed: u64) -> TypedWorld {
    let mut world = TypedWorld::of_seed(seed);
    world.targets = true;
    world
}

/// The table [train] of a model.
macro_rules! train {
    ($keys:literal) => {
        concat!(
            "[train]\noutput = \"out/model\"\nhidden = [8]\nepochs = 2\n",
            $keys,
            "\n\n"
        )
    };
}

/// Nodes become hubs and stop being some.
#[test]
fn thirty_nights_of_shards_are_full_runs() {
    let keys = Keys {
        train: train!("model = \"sage\""),
        flatten: "targets_per_part = 70\nhub_threshold = 12\n",
        input: UNCHANGED,
        args: &[],
    };
    check(world(101), &keys);
}

#[test]
fn thirty_nights_of_rows_with_weights_are_full_runs() {
    let mut weighted = world(102);
    weighted.weighted = true;
    let keys = Keys {
        train: train!("model = \"gat\""),
        flatten: "layout = \"rows\"\nsampling = \"weighted\"\n",
        input: ["dst = \"dst\"\n", "dst = \"dst\"\nweight = \"w\"\n"],
        args: &[],
    };
    check(weighted, &keys);
}

#[test]
fn thirty_nights_without_direction_are_full_runs() {
    let mut undirected = world(103);
    undirected.undirected = true;
    let keys = Keys {
        train: train!("model = \"gatv2\""),
        flatten: "targets = \"train\"\n",
        input: ["dst = \"dst\"\n", "dst = \"dst\"\nundirected = true\n"],
        args: &[],
    };
    check(undirected, &keys);
}

#[test]
fn thirty_nights_of_sparse_features_are_full_runs() {
    let mut sparse = world(104);
    sparse.odd = true;
    let keys = Keys {
        train: train!("model = \"gin\""),
        flatten: "",
        input: [
            "features = [\"x\", \"y\"]",
            "sparse = { index = \"index\", value = \"value\", width = 8 }",
        ],
        args: &[],
    };
    check(sparse, &keys);
}

#[test]
fn thirty_nights_in_two_processes_are_full_runs() {
    let keys = Keys {
        train: train!("model = \"sage\"\naggregator = \"max\""),
        flatten: "layout = \"rows\"\n",
        input: UNCHANGED,
        args: &PROCESSES,
    };
    check(world(105), &keys);
}

#[test]
fn thirty_nights_of_typed_rows_are_full_runs() {
    let keys = Keys {
        train: train!("model = \"sage\""),
        flatten: "layout = \"rows\"\n",
        input: UNCHANGED,
        args: &[],
    };
    check(typed_world(106), &keys);
}

#[test]
fn thirty_nights_of_typed_shards_are_full_runs() {
    let keys = Keys {
        train: train!("model = \"hgt\""),
        flatten: "targets_per_part = 60\n",
        input: UNCHANGED,
        args: &[],
    };
    check(typed_world(107), &keys);
}
