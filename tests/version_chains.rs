//! Long chains of versions of graph features and embeddings in one job, by the real binary: every
//! night equals a full run on its tables, and so does the compaction of the last one.

use std::collections::BTreeMap;

use schemas::GraphFeature;

use crate::harness::{Bench, Job};
use crate::incremental::{PROCESSES, rebuilding};
use crate::incremental_features::{self, Chain, typed_world_of_seed, world_of_seed};
use crate::incremental_typed::{Rows, rows};

/// Nights of a chain; the seven chains below have 210.
const NIGHTS: usize = 30;

/// Workers of the nights; ten nights have the same number.
const WORKERS: [usize; 3] = [1, 8, 3];

/// What the jobs of a chain have in common.
struct Keys<'a> {
    /// Further keys of `[train]`.
    train: &'a str,
    /// Further keys of `[flatten]`.
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
            "v0" => format!(
                "[train]\noutput = \"out/model\"\n{}\nhidden = [8]\nepochs = 2\n\n",
                self.train
            ),
            _ => String::new(),
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

/// Keys of GraphSAGE; nothing is replaced.
const KEYS: Keys<'static> = Keys {
    train: "model = \"sage\"",
    flatten: "",
    input: ["[flatten]", "[flatten]"],
    args: &[],
};

/// Nodes become hubs and stop being some.
#[test]
fn thirty_nights_of_shards_are_full_runs() {
    let keys = Keys {
        flatten: "targets_per_part = 70\nhub_threshold = 12\n",
        ..KEYS
    };
    check(world_of_seed(101), &keys);
}

#[test]
fn thirty_nights_of_rows_with_weights_are_full_runs() {
    let mut weighted = world_of_seed(102);
    weighted.weighted = true;
    let keys = Keys {
        train: "model = \"gat\"",
        flatten: "layout = \"rows\"\nsampling = \"weighted\"\n",
        input: ["dst = \"dst\"\n", "dst = \"dst\"\nweight = \"w\"\n"],
        ..KEYS
    };
    check(weighted, &keys);
}

#[test]
fn thirty_nights_without_direction_are_full_runs() {
    let mut undirected = world_of_seed(103);
    undirected.undirected = true;
    let keys = Keys {
        train: "model = \"gatv2\"",
        flatten: "targets = \"train\"\n",
        input: ["dst = \"dst\"\n", "dst = \"dst\"\nundirected = true\n"],
        ..KEYS
    };
    check(undirected, &keys);
}

#[test]
fn thirty_nights_of_sparse_features_are_full_runs() {
    let mut sparse = world_of_seed(104);
    sparse.odd = true;
    let keys = Keys {
        train: "model = \"gin\"",
        input: [
            "features = [\"x\", \"y\"]",
            "sparse = { index = \"index\", value = \"value\", width = 8 }",
        ],
        ..KEYS
    };
    check(sparse, &keys);
}

#[test]
fn thirty_nights_in_two_processes_are_full_runs() {
    let keys = Keys {
        train: "model = \"sage\"\naggregator = \"max\"",
        flatten: "layout = \"rows\"\n",
        args: &PROCESSES,
        ..KEYS
    };
    check(world_of_seed(105), &keys);
}

#[test]
fn thirty_nights_of_typed_rows_are_full_runs() {
    let keys = Keys {
        flatten: "layout = \"rows\"\n",
        ..KEYS
    };
    check(typed_world_of_seed(106), &keys);
}

#[test]
fn thirty_nights_of_typed_shards_are_full_runs() {
    let keys = Keys {
        train: "model = \"hgt\"",
        flatten: "targets_per_part = 60\n",
        ..KEYS
    };
    check(typed_world_of_seed(107), &keys);
}
