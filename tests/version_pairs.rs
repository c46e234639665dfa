//! Versions of jobs with `[input.pairs]`: changes of edges and pairs in, the rows and graph features
//! of a full run out, by the real binary.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int64Array, ListArray, StringArray};
use arrow::datatypes::Int64Type;
use schemas::{GraphFeatureDataset, GraphShard};

use crate::harness::{Bench, Job, mix};
use crate::incremental::{PROCESSES, World, head, rows};

/// A pair of a table: its split, and a number that its label, weight and hard negatives follow from.
type Pair = (&'static str, i64);

/// A graph with pairs whose tables change from night to night.
struct PairWorld {
    world: World,
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
    fn new(world: World, has_table: bool) -> Self {
        let mut new = Self {
            pairs: has_table.then(BTreeMap::new),
            draws: 0,
            world,
        };
        for _ in 0..60 {
            let drawn = new.draw_pair();
            new.pairs.iter_mut().for_each(|pairs| pairs.extend([drawn]));
        }
        new
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
                true => self.world.edge(at),
                false => (self.world.edge(at).0, self.world.edge(at / 2).1),
            };
            if ends.0 != ends.1 {
                return (ends, (split, number));
            }
        }
    }

    /// Draws changes of every kind, applies them, and writes them to one folder and the whole tables
    /// to another.
    fn night(&mut self, bench: &Bench, night: &str, whole: &str) {
        self.world.night().write(bench, night);
        self.world.write(bench, whole);
        let Some(mut pairs) = self.pairs.take() else {
            return;
        };
        let mut changed = BTreeMap::new();
        for _ in 0..6 {
            let (ends, pair) = self.draw_pair();
            changed.insert(ends, Some(pair));
        }
        // A row in no split is no pair, and cannot be deleted.
        let known = pairs.iter().filter(|(_, pair)| !pair.0.is_empty());
        let known: Vec<(i64, i64)> = known.map(|(&ends, _)| ends).collect();
        for _ in 0..4 {
            changed.insert(known[self.below(known.len())], None);
        }
        let gone = |node: &i64| !self.world.has_node(*node);
        for (&ends, &(split, number)) in &pairs {
            let mut nodes = [ends.0, ends.1].into_iter().chain(negatives(number));
            if !split.is_empty() && nodes.any(|node| gone(&node)) {
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
        pairs.retain(|ends, pair| has_nodes(ends, pair));
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
        let unlabelled = head(work, tables).replace("label = \"label\"\nsplit = \"split\"\n", "");
        let path = self.pairs_in("path", tables);
        format!("{unlabelled}[input.pairs]\n{path}{keys}\n\n")
    }

    /// Tables of a version: the changes of a night, or the whole tables of a day.
    fn tables(&self, list: &str, dir: &str) -> String {
        let pairs = self.pairs_in("pairs", dir);
        format!(
            "[input.{list}]\nnodes = \"{dir}/nodes.parquet\"\nedges = \"{dir}/edges.parquet\"\n\
             {pairs}\n"
        )
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

/// Trains a model of links, runs a chain of versions of both stages, by changes and by snapshots, and
/// compares each with full runs on the changed tables. `args` are those of the jobs of the chain.
fn check_chain(
    mut world: PairWorld,
    (keys, flatten): (&str, &str),
    edge_keys: &str,
    args: &[&str],
) {
    let bench = Bench::empty();
    let adapt = |text: String| {
        let to = format!("dst = \"dst\"\n{edge_keys}\n[input.pairs]");
        Job(text.replace("dst = \"dst\"\n\n[input.pairs]", &to))
    };
    world.night(&bench, "unused", "start");
    let loss = if world.pairs.is_some() {
        "binary_cross_entropy"
    } else {
        "softmax"
    };
    let start = adapt(format!(
        "{}[flatten]\noutput = \"out/f0\"\n{FLATTEN}{flatten}\n[train]\noutput = \"out/model\"\n\
         model = \"sage\"\nhidden = [8, 8]\nepochs = 2\nloss = \"{loss}\"\ndecoder = \"dot\"\n\
         negatives = {{ random = 4 }}\n\n[infer]\noutput = \"out/v0\"\n\n[incremental]\n",
        world.head("work", "start", keys)
    ));
    bench.run(&start, args).ok();
    let mut kept = 0;
    for at in 1..=3 {
        let (night, whole) = (format!("night-{at}"), format!("tables-{at}"));
        world.night(&bench, &night, &whole);
        let stages = |suffix: &str| {
            format!(
                "[flatten]\noutput = \"out/f{suffix}\"\n{FLATTEN}{flatten}\n\
                 [infer]\noutput = \"out/v{suffix}\"\nmodel = \"out/model\"\n\n"
            )
        };
        let of_day = world.head(&format!("work-{whole}"), &whole, keys) + &stages(&whole);
        bench.run(&adapt(of_day), &[]).ok();
        let rows_of_day = rows(&bench, &format!("out/v{whole}"));
        let parts_of_day = parts(&bench, &format!("out/f{whole}"));
        // The second night continues the version of a snapshot.
        let parent = if at == 2 {
            "s1".to_owned()
        } else {
            (at - 1).to_string()
        };
        for (suffix, list, dir) in [
            (at.to_string(), "changes", &night),
            (format!("s{at}"), "snapshot", &whole),
        ] {
            let job = world.head("work", "start", keys)
                + &world.tables(list, dir)
                + &stages(&suffix)
                + &format!(
                    "[incremental]\nparent = \"out/v{parent}\"\nfeatures = \"out/f{parent}\"\n"
                );
            let outcome = bench.run(&adapt(job), args).ok();
            let found = rows(&bench, &format!("out/v{suffix}"));
            assert!(found == rows_of_day, "{keys}, {suffix}: {outcome:?}");
            let of_version = parts(&bench, &format!("out/f{suffix}"));
            assert_eq!(of_version.len(), parts_of_day.len(), "{keys}, {suffix}");
            for (part, (own, expected)) in of_version.iter().zip(&parts_of_day).enumerate() {
                assert!(own == expected, "{keys}, {suffix}, part {part}");
            }
            let manifest = bench.manifest(&format!("out/v{suffix}"));
            kept += usize::from(manifest["report"]["mode"] == "incremental");
            let why = &bench.manifest(&format!("out/f{suffix}"))["report"]["why_full"];
            assert_eq!(why, "the parts of pairs share random negatives");
        }
    }
    assert!(kept >= 4, "{keys}: too many versions were full ones");
}

#[test]
fn versions_with_pairs_that_are_edges_are_full_runs() {
    check_chain(PairWorld::new(World::new(), false), (EDGES, ""), "", &[]);
    let mut undirected = World::new();
    undirected.undirected = true;
    undirected.weighted = true;
    let keys = format!("{EDGES}\nexclude = \"none\"");
    let of_edges = "weight = \"w\"\nundirected = true\n";
    check_chain(
        PairWorld::new(undirected, false),
        (&keys, "layout = \"rows\"\n"),
        of_edges,
        &[],
    );
}

#[test]
fn versions_with_a_table_of_pairs_are_full_runs() {
    check_chain(PairWorld::new(World::new(), true), (TABLE, ""), "", &[]);
    let keys = format!("{TABLE}\nexclude = \"batch\"");
    check_chain(
        PairWorld::new(World::new(), true),
        (&keys, "layout = \"rows\"\n"),
        "",
        &PROCESSES,
    );
}
