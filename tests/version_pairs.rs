//! Versions of jobs with `[input.pairs]`: changes of edges and pairs in, the rows and graph features
//! of a full run out, by the real binary.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Date32Array, Float32Array, Int64Array, ListArray, StringArray};
use arrow::datatypes::Int64Type;
use schemas::{GraphFeatureDataset, GraphShard};

use crate::harness::{Bench, Job, Outcome, mix};
use crate::incremental::{PROCESSES, World, head};
use crate::incremental_typed::{self, TypedWorld, rows};

/// A pair of a table: its split, and a number that its label, weight and hard negatives follow from.
type Pair = (&'static str, i64);

/// A graph whose tables change from night to night.
enum Graph {
    Untyped(World),
    /// Users buy items.
    Typed(TypedWorld),
}

/// A graph with pairs whose tables change from night to night.
struct PairWorld {
    graph: Graph,
    /// Pairs of a table of their own, by src and dst; none if pairs are edges.
    pairs: Option<BTreeMap<(i64, i64), Pair>>,
    draws: u64,
}

/// Keys of a table of pairs.
const TABLE: &str = "src = \"src\"\ndst = \"dst\"\nsplit = \"split\"\nlabel = \"label\"\n\
                     weight = \"weight\"\nnegatives = \"negatives\"";

/// Keys of pairs that are edges.
const EDGES: &str = "from_edges = true\nshare = { train = 0.3, val = 0.1, test = 0.1 }";

impl PairWorld {
    fn new(graph: Graph, has_table: bool) -> Self {
        let mut new = Self {
            pairs: has_table.then(BTreeMap::new),
            draws: 0,
            graph,
        };
        for _ in 0..if has_table { 60 } else { 0 } {
            let drawn = new.draw_pair();
            new.pairs.iter_mut().for_each(|pairs| pairs.extend([drawn]));
        }
        new
    }

    /// The graph of a table of pairs, which has no types.
    fn untyped(&self) -> &World {
        match &self.graph {
            Graph::Untyped(world) => world,
            Graph::Typed(_) => panic!("pairs of a typed graph are edges"),
        }
    }

    fn below(&mut self, end: usize) -> usize {
        self.draws += 1;
        usize::try_from(mix(31, self.draws) % end as u64).unwrap()
    }

    /// Draws a pair; two in three are edges.
    fn draw_pair(&mut self) -> ((i64, i64), Pair) {
        let split = ["train", "train", "val", "test", ""][self.below(5)];
        let number = i64::try_from(self.below(90)).unwrap();
        loop {
            let (at, is_edge) = (self.below(1 << 20), self.below(3) > 0);
            let ends = match is_edge {
                true => self.untyped().edge(at),
                false => (self.untyped().edge(at).0, self.untyped().edge(at / 2).1),
            };
            if ends.0 != ends.1 {
                return (ends, (split, number));
            }
        }
    }

    /// Draws changes of every kind, applies them, and writes them to one folder and the whole tables
    /// to another.
    fn night(&mut self, bench: &Bench, night: &str, whole: &str) {
        match &mut self.graph {
            Graph::Untyped(world) => {
                world.night().write(bench, night);
                world.write(bench, whole);
            }
            Graph::Typed(world) => {
                world.night().write(bench, night);
                world.write(bench, whole);
            }
        }
        let Some(mut pairs) = self.pairs.take() else {
            return;
        };
        let mut changed = BTreeMap::new();
        for _ in 0..6 {
            let (ends, pair) = self.draw_pair();
            changed.insert(ends, Some(pair));
        }
        // Some of these rows are in no split.
        let known: Vec<(i64, i64)> = pairs.keys().copied().collect();
        for _ in 0..4 {
            changed.insert(known[self.below(known.len())], None);
        }
        let gone = |node: &i64| !self.untyped().has_node(*node);
        for (&ends, &(_, number)) in &pairs {
            let mut nodes = [ends.0, ends.1].into_iter().chain(negatives(number));
            if nodes.any(|node| gone(&node)) {
                changed.insert(ends, None);
            }
        }
        let has_nodes = |ends: &(i64, i64), pair: &Pair| {
            let mut nodes = [ends.0, ends.1].into_iter().chain(negatives(pair.1));
            !nodes.any(|node| gone(&node))
        };
        changed.retain(|ends, pair| pair.as_ref().is_none_or(|pair| has_nodes(ends, pair)));
        for (&ends, pair) in &changed {
            match pair {
                Some(pair) => pairs.insert(ends, *pair),
                None => pairs.remove(&ends),
            };
        }
        let changed: Vec<_> = changed.into_iter().collect();
        bench.write_table(&format!("{night}/pairs.parquet"), columns(&changed, true));
        let all = pairs.iter().map(|(&ends, &pair)| (ends, Some(pair)));
        let all: Vec<_> = all.collect();
        bench.write_table(&format!("{whole}/pairs.parquet"), columns(&all, false));
        self.pairs = Some(pairs);
    }

    /// The key of a table of pairs in a folder, if pairs have one; `key` is its name.
    fn pairs_in(&self, key: &str, dir: &str) -> String {
        match &self.pairs {
            Some(_) => format!("{key} = \"{dir}/pairs.parquet\"\n"),
            None => String::new(),
        }
    }

    /// Name, input and work directory of a job; `keys` are those of [input.pairs].
    fn head(&self, work: &str, tables: &str, keys: &str) -> String {
        let labelled = match &self.graph {
            Graph::Untyped(_) => head(work, tables),
            Graph::Typed(_) => incremental_typed::head(work, tables),
        };
        let unlabelled = labelled.replace("label = \"label\"\nsplit = \"split\"\n", "");
        let path = self.pairs_in("path", tables);
        format!("{unlabelled}[input.pairs]\n{path}{keys}\n\n")
    }

    /// Tables of a version: the changes of a night, or the whole tables of a day.
    fn tables(&self, list: &str, dir: &str) -> String {
        let pairs = self.pairs_in("pairs", dir);
        match &self.graph {
            Graph::Untyped(_) => format!(
                "[input.{list}]\nnodes = \"{dir}/nodes.parquet\"\n\
                 edges = \"{dir}/edges.parquet\"\n{pairs}\n"
            ),
            Graph::Typed(_) => incremental_typed::tables(list, dir),
        }
    }
}

/// Hard negatives of a pair: nodes whose ids are multiples of 3, one of them twice, or none.
fn negatives(number: i64) -> Vec<i64> {
    match number % 4 {
        0 => Vec::new(),
        _ => vec![3 * number, 3 * (number + 7), 3 * number],
    }
}

/// The columns of pairs; those without a value are deleted.
fn columns(rows: &[((i64, i64), Option<Pair>)], has_op: bool) -> Vec<(&'static str, ArrayRef)> {
    let ids = |of: fn(&(i64, i64)) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(
            rows.iter().map(|(ends, _)| of(ends)),
        ))
    };
    let values = || rows.iter().map(|(_, pair)| pair.unwrap_or_default());
    let numbers = |of: fn(i64) -> f32| -> ArrayRef {
        Arc::new(Float32Array::from_iter_values(
            values().map(|pair| of(pair.1)),
        ))
    };
    let splits = values().map(|pair| Some(pair.0).filter(|split| !split.is_empty()));
    let hard = values().map(|pair| Some(negatives(pair.1).into_iter().map(Some)));
    let hard = ListArray::from_iter_primitive::<Int64Type, _, _>(hard);
    let mut columns = vec![
        ("src", ids(|ends| ends.0)),
        ("dst", ids(|ends| ends.1)),
        (
            "split",
            Arc::new(splits.collect::<StringArray>()) as ArrayRef,
        ),
        ("label", numbers(|number| (number % 2) as f32)),
        ("weight", numbers(|number| 0.5 + (number % 5) as f32)),
        ("negatives", Arc::new(hard)),
    ];
    if has_op {
        let ops = rows
            .iter()
            .map(|(_, pair)| if pair.is_some() { "upsert" } else { "delete" });
        columns.push(("op", Arc::new(StringArray::from_iter_values(ops))));
    }
    columns
}

const FLATTEN: &str = "hops = 2\nfanouts = [4, 3]\npairs_per_part = 40\nnegatives_per_part = 12\n";

/// Reads all parts of graph features.
fn parts(bench: &Bench, output: &str) -> Vec<GraphShard> {
    let dataset = GraphFeatureDataset::open(&bench.path(output)).unwrap();
    (0..dataset.num_parts())
        .map(|part| dataset.read_part(part).unwrap())
        .collect()
}

/// Keys of the jobs of a chain.
#[derive(Clone, Copy)]
struct Keys<'a> {
    /// Of [input.pairs].
    pairs: &'a str,
    /// Of [input.edges] of an untyped graph.
    edges: &'a str,
    /// Of [flatten].
    flatten: &'a str,
    model: &'a str,
    /// Arguments of the jobs of the chain.
    args: &'a [&'a str],
}

const PLAIN: Keys<'_> = Keys {
    pairs: EDGES,
    edges: "",
    flatten: "",
    model: "sage",
    args: &[],
};

impl Keys<'_> {
    /// Runs a job, with the keys of [input.edges].
    fn run(&self, bench: &Bench, text: &str, args: &[&str]) -> Outcome {
        let to = format!("dst = \"dst\"\n{}\n[input.pairs]", self.edges);
        let job = Job(text.replace("dst = \"dst\"\n\n[input.pairs]", &to));
        bench.run(&job, args).ok()
    }

    fn flatten(&self, output: &str) -> String {
        let more = self.flatten;
        format!("[flatten]\noutput = \"out/f{output}\"\n{FLATTEN}{more}\n")
    }

    fn train(&self, output: &str) -> String {
        let loss = match self.pairs.contains("label") {
            true => "binary_cross_entropy",
            false => "softmax",
        };
        format!(
            "[train]\noutput = \"out/{output}\"\nmodel = \"{}\"\nhidden = [8, 8]\nepochs = 2\n\
             loss = \"{loss}\"\ndecoder = \"dot\"\nnegatives = {{ random = 4 }}\n\n",
            self.model
        )
    }

    fn both(&self, output: &str) -> String {
        let infer = format!("[infer]\noutput = \"out/v{output}\"\nmodel = \"out/model\"\n\n");
        self.flatten(output) + &infer
    }
}

/// Trains a model of links, runs a chain of versions of both stages, by changes and by snapshots, and
/// compares each with full runs on the changed tables.
fn check_chain(graph: Graph, has_table: bool, keys: Keys<'_>) {
    let (bench, mut world) = (Bench::empty(), PairWorld::new(graph, has_table));
    let what = format!("{}, {}", keys.model, keys.pairs);
    world.night(&bench, "unused", "start");
    let start = world.head("work", "start", keys.pairs);
    let infer = "[infer]\noutput = \"out/v0\"\n\n[incremental]\n";
    let first = start.clone() + &keys.flatten("0") + &keys.train("model") + infer;
    keys.run(&bench, &first, keys.args);
    let mut kept = 0;
    for at in 1..=3 {
        let (night, whole) = (format!("night-{at}"), format!("tables-{at}"));
        world.night(&bench, &night, &whole);
        let of_day = world.head(&format!("work-{whole}"), &whole, keys.pairs);
        keys.run(&bench, &(of_day + &keys.both(&whole)), &[]);
        let rows_of_day = rows(&bench, &format!("out/v{whole}"));
        let parts_of_day = parts(&bench, &format!("out/f{whole}"));
        // The second night continues the version of a snapshot.
        let parent = match at {
            2 => "s1".to_owned(),
            _ => (at - 1).to_string(),
        };
        let mut parents =
            format!("[incremental]\nfeatures = \"out/f{parent}\"\nparent = \"out/v{parent}\"\n");
        if at == 2 {
            // The third night starts from a store that holds the changes.
            parents.push_str("rebuild_share = 0.0\n");
        }
        for (own, list, dir) in [
            (at.to_string(), "changes", &night),
            (format!("s{at}"), "snapshot", &whole),
        ] {
            let job = start.clone() + &world.tables(list, dir) + &keys.both(&own) + &parents;
            let outcome = keys.run(&bench, &job, keys.args);
            let found = rows(&bench, &format!("out/v{own}"));
            assert!(found == rows_of_day, "{what}, {own}: {outcome:?}");
            let own_parts = parts(&bench, &format!("out/f{own}"));
            assert_eq!(own_parts.len(), parts_of_day.len(), "{what}, {own}");
            for (part, (of_own, expected)) in own_parts.iter().zip(&parts_of_day).enumerate() {
                assert!(of_own == expected, "{what}, {own}, part {part}");
            }
            let manifest = bench.manifest(&format!("out/v{own}"));
            kept += usize::from(manifest["report"]["mode"] == "incremental");
            let why = &bench.manifest(&format!("out/f{own}"))["report"]["why_full"];
            assert_eq!(why, "the parts of pairs share random negatives");
        }
    }
    assert!(kept >= 4, "{what}: too many versions were full ones");
    check_training(&bench, &world, keys);
}

/// Checks that a training on the version of the last night gives the model of one on the full run.
fn check_training(bench: &Bench, world: &PairWorld, keys: Keys<'_>) {
    let of_version = world.head("work", "start", keys.pairs)
        + &world.tables("changes", "night-3")
        + &keys.flatten("3")
        + &keys.train("of-version")
        + "[incremental]\nfeatures = \"out/f2\"\n";
    keys.run(bench, &of_version, keys.args);
    let of_day = world.head("work-tables-3", "tables-3", keys.pairs)
        + &keys.flatten("tables-3")
        + &keys.train("of-day");
    keys.run(bench, &of_day, &[]);
    let weights = |model: &str| {
        let path = bench.path(&format!("out/{model}/model.safetensors"));
        std::fs::read(path).unwrap()
    };
    assert!(weights("of-version") == weights("of-day"), "{}", keys.pairs);
}

/// The tables of a job do not have the pairs of a version, so they are neither known nor ranked.
#[test]
fn pairs_of_a_version_are_not_scored_by_other_tables() {
    let (bench, mut world) = (
        Bench::empty(),
        PairWorld::new(Graph::Untyped(World::new()), false),
    );
    world.night(&bench, "unused", "start");
    let start = world.head("work", "start", EDGES);
    let first = start.clone()
        + &PLAIN.flatten("0")
        + &PLAIN.train("model")
        + "[infer]\noutput = \"out/v0\"\n\n[incremental]\n";
    PLAIN.run(&bench, &first, &[]);
    world.night(&bench, "night", "tables");
    let version = start.clone()
        + &world.tables("changes", "night")
        + "[infer]\noutput = \"out/v1\"\nmodel = \"out/model\"\n\n\
           [incremental]\nparent = \"out/v0\"\n";
    PLAIN.run(&bench, &version, &[]);
    let compact = [
        "compact",
        "out/v1",
        "--output",
        "out/whole",
        "--work-dir",
        "work",
    ];
    bench.graphflat(&compact).ok();
    let score = |head: &str, keys: &str| {
        let job = format!(
            "{head}[score]\ninput = \"out/whole\"\nmodel = \"out/model\"\n\
             output = \"out/best\"\n{keys}\n"
        );
        bench.run(&Job(job), &[])
    };
    for head in [&start, &world.head("work-tables", "tables", EDGES)] {
        for keys in ["evaluate = true", "top_k = 3\nexclude_known = true"] {
            let outcome = score(head, keys);
            assert_eq!(outcome.code, 2, "{outcome:?}");
            let expected =
                "are those of a version, whose pairs and edges are not those of the tables";
            assert!(outcome.stderr.contains(expected), "{outcome:?}");
            assert!(!bench.path("out/best").exists());
        }
    }
    score(&start, "top_k = 3").ok();
}

#[test]
fn versions_with_pairs_that_are_edges_are_full_runs() {
    check_chain(Graph::Untyped(World::new()), false, PLAIN);
    let mut undirected = World::new();
    (undirected.undirected, undirected.weighted) = (true, true);
    let keys = Keys {
        pairs: &format!("{EDGES}\nexclude = \"none\""),
        edges: "weight = \"w\"\nundirected = true\n",
        flatten: "layout = \"rows\"\n",
        ..PLAIN
    };
    check_chain(Graph::Untyped(undirected), false, keys);
}

#[test]
fn versions_with_pairs_of_two_types_are_full_runs() {
    let sage = Keys {
        pairs: &EDGES.replace("true", "\"buys\""),
        ..PLAIN
    };
    check_chain(Graph::Typed(TypedWorld::new()), false, sage);
    let hgt = Keys {
        flatten: "layout = \"rows\"\n",
        model: "hgt",
        args: &PROCESSES,
        ..sage
    };
    check_chain(Graph::Typed(TypedWorld::new()), false, hgt);
}

#[test]
fn versions_with_a_table_of_pairs_are_full_runs() {
    let table = Keys {
        pairs: TABLE,
        ..PLAIN
    };
    check_chain(Graph::Untyped(World::new()), true, table);
    let share = "share = { train = 0.4, val = 0.2, test = 0.2 }";
    let in_processes = Keys {
        pairs: &(TABLE.replace("split = \"split\"", share) + "\nexclude = \"batch\""),
        flatten: "layout = \"rows\"\n",
        args: &PROCESSES,
        ..PLAIN
    };
    check_chain(Graph::Untyped(World::new()), true, in_processes);
    let mut weighted = World::new();
    weighted.weighted = true;
    let gcn = Keys {
        edges: "weight = \"w\"\n",
        model: "gcn",
        ..table
    };
    check_chain(Graph::Untyped(weighted), true, gcn);
}

/// A graph without labels: its pairs are those of walks, which each version walks anew.
#[test]
fn versions_with_walks_are_full_runs() {
    let walks = "walks = { length = 3, per_node = 2 }";
    let alone = Keys {
        pairs: &format!("{walks}\nexclude = \"none\""),
        ..PLAIN
    };
    check_chain(Graph::Untyped(World::new()), false, alone);
    let mut undirected = World::new();
    (undirected.undirected, undirected.weighted) = (true, true);
    let held_out = EDGES.replace("train = 0.3", "train = 0.0");
    let with_tests = Keys {
        pairs: &format!("{walks}\nexclude = \"batch\"\n{held_out}"),
        edges: "weight = \"w\"\nundirected = true\n",
        flatten: "layout = \"rows\"\n",
        args: &PROCESSES,
        ..PLAIN
    };
    check_chain(Graph::Untyped(undirected), false, with_tests);
    let typed = Keys {
        pairs: &format!(
            "{walks}\nexclude = \"none\"\n{}",
            held_out.replace("true", "\"buys\"")
        ),
        ..PLAIN
    };
    check_chain(Graph::Typed(TypedWorld::new()), false, typed);
    let of_two_types = Keys {
        pairs: &format!("{walks}\nfrom = \"item\"\nto = \"user\"\nexclude = \"none\""),
        ..PLAIN
    };
    check_chain(Graph::Typed(TypedWorld::new()), false, of_two_types);
}

#[test]
fn walks_have_no_table_of_pairs() {
    let bench = Bench::empty();
    let mut world = PairWorld::new(Graph::Untyped(World::new()), false);
    world.night(&bench, "unused", "start");
    let keys = "walks = { length = 2, per_node = 1 }\nexclude = \"none\"";
    let start = world.head("work", "start", keys);
    let first = start.clone()
        + &PLAIN.train("model")
        + &flatten_alone()
        + "[infer]\noutput = \"out/v0\"\n\n[incremental]\n";
    bench.run(&Job(first), &[]).ok();
    world.night(&bench, "night", "tables");
    for (list, dir) in [("changes", "night"), ("snapshot", "tables")] {
        let own_table = format!("pairs = \"{dir}/edges.parquet\"\n\n[infer]");
        let version = start.clone()
            + &world.tables(list, dir)
            + "[infer]\noutput = \"out/v1\"\nmodel = \"out/model\"\n\n\
               [incremental]\nparent = \"out/v0\"\n";
        let outcome = bench.run(&Job(version.replace("\n[infer]", &own_table)), &[]);
        assert_eq!(outcome.code, 2, "{outcome:?}");
        let expected = format!(
            "`input.{list}.pairs`: the pairs are those of `input.pairs.walks`, which have no table; \
             leave it out"
        );
        assert!(outcome.stderr.contains(&expected), "{outcome:?}");
        bench.run(&Job(version), &[]).ok();
        std::fs::remove_dir_all(bench.path("out/v1")).unwrap();
    }
}

/// New pairs move others to other splits.
#[test]
fn versions_with_splits_by_time_are_full_runs() {
    let of_edges = Keys {
        pairs: &format!("{EDGES}\ntime = \"src\""),
        ..PLAIN
    };
    check_chain(Graph::Untyped(World::new()), false, of_edges);
    let share = "share = { train = 0.4, val = 0.2, test = 0.2 }\ntime = \"weight\"";
    let of_table = Keys {
        pairs: &TABLE.replace("split = \"split\"", share),
        args: &PROCESSES,
        ..PLAIN
    };
    check_chain(Graph::Untyped(World::new()), true, of_table);
    let of_walks = EDGES
        .replace("train = 0.3", "train = 0.0")
        .replace("true", "\"buys\"");
    let typed = Keys {
        pairs: &format!(
            "walks = {{ length = 3, per_node = 2 }}\nexclude = \"batch\"\n{of_walks}\n\
             time = \"src\""
        ),
        ..PLAIN
    };
    check_chain(Graph::Typed(TypedWorld::new()), false, typed);
}

/// Integers may follow floats; dates cannot be put in one order with them.
#[test]
fn times_of_changes_are_those_of_the_first_tables() {
    let bench = Bench::empty();
    let mut world = PairWorld::new(Graph::Untyped(World::new()), true);
    world.night(&bench, "unused", "start");
    let share = "share = { train = 0.4, val = 0.2, test = 0.2 }\ntime = \"weight\"";
    let keys = TABLE.replace("split = \"split\"", share);
    let keys = keys.replace("weight = \"weight\"\n", "");
    let start = world.head("work", "start", &keys);
    let train = PLAIN
        .train("model")
        .replace("softmax", "binary_cross_entropy");
    let first = start.clone()
        + &flatten_alone()
        + &train
        + "[infer]\noutput = \"out/v0\"\n\n[incremental]\n";
    bench.run(&Job(first), &[]).ok();
    let pairs = world.pairs.iter().flatten();
    let pairs: Vec<_> = pairs.map(|(&ends, &pair)| (ends, Some(pair))).collect();
    let times = || pairs.iter().map(|(ends, _)| ends.0);
    let as_float = times().map(|time| time as f32);
    let days = times().map(|time| i32::try_from(time).unwrap());
    let floats: ArrayRef = Arc::new(Float32Array::from_iter_values(as_float));
    let integers: ArrayRef = Arc::new(Int64Array::from_iter_values(times()));
    let dates: ArrayRef = Arc::new(Date32Array::from_iter_values(days));
    let write = |dir: &str, has_op, column: &ArrayRef| {
        let mut table = columns(&pairs, has_op);
        let time = table.iter_mut().find(|(name, _)| *name == "weight");
        time.unwrap().1 = Arc::clone(column);
        std::fs::create_dir_all(bench.path(dir)).unwrap();
        bench.write_table(&format!("{dir}/pairs.parquet"), table);
    };
    let infer =
        |output: &str| format!("[infer]\noutput = \"out/{output}\"\nmodel = \"out/model\"\n\n");
    let parent = "[incremental]\nparent = \"out/v0\"\n";
    for (list, dir) in [("changes", "night"), ("snapshot", "tables")] {
        let has_op = list == "changes";
        write(dir, has_op, &dates);
        // Only the pairs change.
        let whole = "nodes = \"start/nodes.parquet\"\nedges = \"start/edges.parquet\"\n";
        let others = if has_op { "" } else { whole };
        let tables = format!("[input.{list}]\n{others}pairs = \"{dir}/pairs.parquet\"\n\n");
        let start = start.clone() + &tables;
        let outcome = bench.run(&Job(start.clone() + &infer(list) + parent), &[]);
        assert_eq!(outcome.code, 2, "{outcome:?}");
        let expected = format!(
            "`input.{list}.pairs`: column `weight` of {dir}/pairs.parquet has the type Date32, but \
             the times of the first tables are Float32; they cannot be compared"
        );
        assert!(outcome.stderr.contains(&expected), "{}", outcome.stderr);
        assert!(!bench.path(&format!("out/{list}")).exists());
        write(dir, has_op, &integers);
        bench.run(&Job(start + &infer(list) + parent), &[]).ok();
    }
    write("tables", false, &floats);
    let of_day = world.head("work-full", "start", &keys);
    let full = of_day.replace("start/pairs.parquet", "tables/pairs.parquet") + &infer("full");
    bench.run(&Job(full), &[]).ok();
    let expected = rows(&bench, "out/full");
    for list in ["changes", "snapshot"] {
        assert!(rows(&bench, &format!("out/{list}")) == expected, "{list}");
    }
}

fn flatten_alone() -> String {
    format!("[flatten]\noutput = \"out/f\"\n{FLATTEN}\n")
}
