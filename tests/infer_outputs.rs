//! All outputs of inference; kills at any moment do not change them.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use arrow::array::{AsArray as _, Float32Array, StringArray};
use arrow::datatypes::{DataType, Float16Type, Float32Type, Int32Type};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, NUM_CLASSES, Outcome, TRAIN, Table,
    assert_same_bytes, f32_lists, kill, mix,
};
use crate::infer::batches;
use crate::needs::slow;

const OUTPUT: &str = "out/embeddings";

fn graph() -> Graph {
    Graph::new(90, IdKind::Utf8, FeatureKind::List)
}

fn job(graph: &Graph) -> Job {
    Job::new(graph, &[FLATTEN, TRAIN, INFER])
}

/// Returns a column of vectors by id.
pub(crate) fn vectors(bench: &Bench, column: &str) -> BTreeMap<String, Vec<f32>> {
    let mut vectors = BTreeMap::new();
    for batch in batches(bench, OUTPUT) {
        let ids = batch.column_by_name("id").unwrap().as_string::<i32>();
        let lists = batch.column_by_name(column).unwrap().as_fixed_size_list();
        for row in 0..batch.num_rows() {
            let list = lists.value(row);
            let values = match list.as_primitive_opt::<Float32Type>() {
                Some(values) => values.values().to_vec(),
                None => {
                    let halves = list.as_primitive::<Float16Type>().values();
                    halves.iter().map(|half| half.to_f32()).collect()
                }
            };
            vectors.insert(ids.value(row).to_owned(), values);
        }
    }
    vectors
}

#[test]
fn vectors_are_written_as_asked_for() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let job = job(&graph).and("layer = 2");
    bench.run(&job, &[]).ok();
    let plain = vectors(&bench, "embedding");
    let asked = "logits = true\nprobabilities = true\nnormalize = true\nprecision = \"f16\"";
    bench.run(&job.and(asked), &["--fresh"]).ok();
    let (unit, logits) = (vectors(&bench, "embedding"), vectors(&bench, "logits"));
    let probability = vectors(&bench, "probability");
    for batch in batches(&bench, OUTPUT) {
        for column in ["embedding", "logits", "probability"] {
            let vectors = batch.column_by_name(column).unwrap().as_fixed_size_list();
            assert_eq!(vectors.value_type(), DataType::Float16, "{column}");
        }
    }
    assert_eq!(unit.len(), graph.num_nodes);
    for (id, embedding) in &plain {
        // Without a head, the embeddings of the last layer are the logits.
        let length = embedding.iter().map(|x| x * x).sum::<f32>().sqrt();
        let close = |x: f32, y: f32| (x - y).abs() <= 1e-3 * y.abs().max(1.0); // f16 has 11 bits
        for at in 0..NUM_CLASSES {
            assert!(close(logits[id][at], embedding[at]), "{id}");
            assert!(close(unit[id][at], embedding[at] / length), "{id}");
        }
        let sum: f32 = embedding.iter().map(|x| x.exp()).sum();
        for at in 0..NUM_CLASSES {
            assert!(
                close(probability[id][at], embedding[at].exp() / sum),
                "{id}"
            );
        }
    }
}

#[test]
fn stored_neighbourhoods_give_the_same_numbers() {
    let graph = graph();
    let bench = Bench::new(&graph);
    for layer in ["", "layer = 2\n"] {
        let job = job(&graph)
            .with("targets_per_part = 16", "targets = \"all\"")
            .and(layer);
        bench.run(&job, &["--fresh"]).ok();
        let (sliced, predicted) = (vectors(&bench, "embedding"), predictions(&bench));
        bench
            .run(&job.and("method = \"neighborhoods\""), &["--fresh"])
            .ok();
        let stored = vectors(&bench, "embedding");
        assert_eq!(stored.len(), graph.num_nodes);
        for (id, expected) in &sliced {
            let scale = expected.iter().fold(0.0, |most: f32, x| most.max(x.abs()));
            let close = |(x, y): (&f32, &f32)| (x - y).abs() <= 1e-5 * scale;
            assert!(
                stored[id].iter().zip(expected).all(close),
                "{id}: {:?}",
                stored[id]
            );
        }
        assert_eq!(predictions(&bench), predicted);
    }
    let other = job(&graph).with("fanouts = [4, 3]", "fanouts = [2, 3]");
    bench.run(&job(&graph), &["--fresh"]).ok();
    bench.run(&other, &["--fresh", "--stage", "flatten"]).ok();
    let unlike = other.and("method = \"neighborhoods\"");
    let outcome = bench.run(&unlike, &["--fresh", "--stage", "infer"]);
    let what = "the graph features were drawn otherwise than those it was trained on";
    assert!(outcome.stderr.contains(what), "{}", outcome.stderr);
    // With several samples, each target has several rows in the features, and would have several
    // here.
    let twice = job(&graph).with("targets_per_part = 16", "samples_per_target = 2");
    bench.run(&twice, &["--fresh", "--stage", "flatten"]).ok();
    let twice = twice.and("method = \"neighborhoods\"");
    let refused = bench.run(&twice, &["--fresh", "--stage", "infer"]);
    let said = refused
        .stderr
        .contains("`flatten.samples_per_target`: is 2");
    assert!(said, "{}", refused.stderr);
}

/// Returns the predicted class of each node.
fn predictions(bench: &Bench) -> BTreeMap<String, i32> {
    let mut predictions = BTreeMap::new();
    for batch in batches(bench, OUTPUT) {
        let ids = batch.column_by_name("id").unwrap().as_string::<i32>();
        let classes = batch.column_by_name("prediction").unwrap();
        let classes = classes.as_primitive::<Int32Type>().values();
        let rows = ids.iter().zip(classes.iter());
        predictions.extend(rows.map(|(id, class)| (id.unwrap().to_owned(), *class)));
    }
    predictions
}

#[test]
fn columns_of_the_node_table_are_handed_on() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let asked = job(&graph).and("columns = [\"name\", \"label\", \"tags\"]\nrows_per_part = 20");
    // Several labels a node, which `label` may have too.
    let mut nodes = graph.nodes();
    let tags = |node: usize| vec![(node % 2) as f32, (node % 3) as f32];
    nodes.set("tags", f32_lists((0..graph.num_nodes).map(tags)));
    nodes.write(&bench.path("nodes.parquet"));
    bench.run(&asked, &[]).ok();
    let mut rows = 0;
    for batch in batches(&bench, OUTPUT) {
        let ids = batch.column_by_name("id").unwrap().as_string::<i32>();
        let names = batch.column_by_name("name").unwrap().as_string::<i32>();
        let labels = batch
            .column_by_name("label")
            .unwrap()
            .as_primitive::<Int32Type>();
        let lists = batch.column_by_name("tags").unwrap().as_list::<i32>();
        for row in 0..batch.num_rows() {
            let node = (0..graph.num_nodes).find(|&n| graph.id(n) == ids.value(row));
            let class = node.unwrap() % NUM_CLASSES;
            assert_eq!(names.value(row), format!("class {class}"));
            assert_eq!(labels.value(row), i32::try_from(class).unwrap());
            let found = lists.value(row);
            let found = found.as_primitive::<Float32Type>().values();
            assert_eq!(found[..], tags(node.unwrap()));
            rows += 1;
        }
    }
    assert_eq!(rows, graph.num_nodes);
    for (columns, what) in [
        ("[\"nme\"]", "`infer.columns`"),
        ("[\"id\"]", "is the name of a column that inference writes"),
        ("[\"name\", \"name\"]", "`name` is named twice"),
    ] {
        let wrong = job(&graph).and(&format!("columns = {columns}"));
        for args in [&["check"][..], &["run"]] {
            bench.write(&wrong);
            let outcome = bench.graphflat(&[args, &["job.toml"]].concat());
            assert_ne!(outcome.code, 0, "{columns}");
            assert!(
                outcome.stderr.contains(what),
                "{columns}: {}",
                outcome.stderr
            );
        }
    }
}

#[test]
fn listed_nodes_alone_are_written() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&job(&graph), &[]).ok();
    let all = vectors(&bench, "embedding");
    let listed: Vec<usize> = (0..graph.num_nodes).filter(|node| node % 7 == 2).collect();
    let list = |nodes: &[usize]| {
        let column = graph.nodes().column("id");
        let indices = nodes.iter().map(|&node| u32::try_from(node).unwrap());
        let indices = arrow::array::UInt32Array::from_iter_values(indices);
        let mut table = Table::default();
        table.set("id", arrow::compute::take(&column, &indices, None).unwrap());
        table.write(&bench.path("list.parquet"));
    };
    // Unsorted, and one id twice.
    list(&[&listed[5..], &listed[..6]].concat());
    let asked = job(&graph).and("targets = \"list.parquet\"\nrows_per_part = 4");
    for workers in ["1", "3"] {
        bench.run(&asked, &["--fresh", "--workers", workers]).ok();
        let some = vectors(&bench, "embedding");
        let expected: BTreeMap<String, Vec<f32>> = listed
            .iter()
            .map(|&node| (graph.id(node), all[&graph.id(node)].clone()))
            .collect();
        assert_eq!(some, expected);
        // As where the page cache cannot hold the files, which are then read in their order.
        bench.write(&asked);
        let args = [
            "run",
            "job.toml",
            "--quiet",
            "--fresh",
            "--workers",
            workers,
        ];
        let copied = bench
            .command(&args)
            .env("GRAPHFLAT_PAGE_CACHE", "0")
            .output();
        Outcome::of(&copied.unwrap()).ok();
        assert_eq!(vectors(&bench, "embedding"), expected, "copied");
    }
    // An empty list gives a table with the columns and without rows.
    list(&[]);
    for workers in ["1", "3"] {
        bench.run(&asked, &["--fresh", "--workers", workers]).ok();
        assert_eq!(bench.data_files(OUTPUT).len(), 1);
        let part = File::open(bench.path(OUTPUT).join("part-00000.parquet")).unwrap();
        let reader = ParquetRecordBatchReaderBuilder::try_new(part).unwrap();
        let fields = reader.schema().fields().iter();
        let columns: Vec<&str> = fields.map(|field| field.name().as_str()).collect();
        assert_eq!(columns, ["id", "embedding", "prediction"]);
        assert_eq!(vectors(&bench, "embedding").len(), 0);
    }
    // A wrong list leaves no output, so that a run with the right list can write it.
    bench.clear();
    let stages = ["--stage", "flatten,train"];
    bench.run(&job(&graph), &stages).ok();
    let mut wrong = Table::default();
    wrong.set("id", Arc::new(StringArray::from(vec!["nobody"])));
    wrong.write(&bench.path("list.parquet"));
    let refused = bench.run(&asked, &[]);
    assert_eq!(refused.code, 3, "{}", refused.stderr);
    assert!(refused.stderr.contains("nobody"), "{}", refused.stderr);
    list(&listed);
    bench.run(&asked, &[]).ok();
    assert_eq!(vectors(&bench, "embedding").len(), listed.len());
    let missing = job(&graph).and("targets = \"nowhere.parquet\"");
    let outcome = bench.run(&missing, &["--fresh"]);
    assert_eq!(outcome.code, 2, "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("`infer.targets`"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn the_report_says_how_far_the_two_samplings_differ() {
    let graph = graph();
    let bench = Bench::new(&graph);
    for (fanouts, sampling) in [("[\"all\", \"all\"]", "as_trained"), ("[2, 1]", "none")] {
        let plain = job(&graph)
            .with("[4, 3]", fanouts)
            .and(&format!("sampling = \"{sampling}\""));
        bench.run(&plain, &["--fresh"]).ok();
        let expected = bench.data_files(OUTPUT);
        bench
            .run(&plain.and("compare_sampling = true"), &["--fresh"])
            .ok();
        assert_same_bytes(
            &expected,
            &bench.data_files(OUTPUT),
            "comparing changes no row",
        );
        let report = &bench.manifest(OUTPUT)["report"]["sampling_compared"];
        assert_eq!(report["nodes"], graph.num_nodes);
        let distance = report["mean_distance"].as_f64().unwrap();
        assert_eq!(distance > 0.01, fanouts == "[2, 1]", "{report}");
        assert_eq!(
            report["other_predictions"].as_f64().unwrap() > 0.0,
            distance > 0.0
        );
    }
}

/// A later snapshot: more nodes, other edges, no labels and no splits.
#[test]
fn a_new_snapshot_of_the_tables_is_embedded_by_the_old_model() {
    let graph = graph();
    let bench = Bench::new(&graph);
    bench.run(&Job::new(&graph, &[FLATTEN, TRAIN]), &[]).ok();
    let later = Graph::new(150, IdKind::Utf8, FeatureKind::List);
    let mut nodes = later.nodes();
    for column in ["label", "name", "split"] {
        nodes.remove(column);
    }
    nodes.write(&bench.path("nodes.parquet"));
    later.edge_table().write(&bench.path("edges.parquet"));
    let alone = Job::new(&later, &[INFER])
        .with("label = \"label\"\n", "")
        .with("split = \"split\"\n", "")
        .and("model = \"out/model\"\nprobabilities = true");
    for sampling in ["as_trained", "none"] {
        let job = alone.and(&format!("sampling = \"{sampling}\""));
        bench.run(&job, &["--fresh"]).ok();
        let embeddings = vectors(&bench, "embedding");
        assert_eq!(embeddings.len(), later.num_nodes);
        let mut predicted = 0;
        for batch in batches(&bench, OUTPUT) {
            let classes = batch.column_by_name("prediction").unwrap();
            predicted += classes.as_primitive::<Int32Type>().values().len();
        }
        assert_eq!(predicted, later.num_nodes);
        for shares in vectors(&bench, "probability").values() {
            assert!((shares.iter().sum::<f32>() - 1.0).abs() < 1e-5);
        }
    }
}

#[test]
fn a_snapshot_without_nodes_has_no_embeddings() {
    // Lists of a fixed width, since an empty table shows their width too.
    let graph = Graph::new(90, IdKind::Utf8, FeatureKind::FixedList);
    let bench = Bench::new(&graph);
    for model in ["sage", "gat"] {
        let train = TRAIN.replace("sage", model);
        bench
            .run(&Job::new(&graph, &[FLATTEN, &train]), &["--fresh"])
            .ok();
        let [nodes, edges] = [graph.nodes(), graph.edge_table()].map(|table| table.slice(0, 0));
        nodes.write(&bench.path("none-nodes.parquet"));
        edges.write(&bench.path("none-edges.parquet"));
        let job = Job::new(&graph, &[INFER])
            .with("nodes.parquet", "none-nodes.parquet")
            .with("edges.parquet", "none-edges.parquet")
            .with("label = \"label\"\n", "")
            .with("split = \"split\"\n", "")
            .and("model = \"out/model\"");
        bench.run(&job, &["--fresh"]).ok();
        assert_eq!(vectors(&bench, "embedding").len(), 0);
    }
}

#[test]
fn numbers_have_no_probability() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let mut nodes = graph.nodes();
    let values = (0..graph.num_nodes).map(|node| node as f32);
    nodes.set("label", Arc::new(Float32Array::from_iter_values(values)));
    nodes.write(&bench.path("nodes.parquet"));
    let numbers = job(&graph).with("\"label\"", "\"label\"\nlabel_kind = \"number\"");
    bench.write(&numbers.and("probabilities = true"));
    for command in ["check", "run"] {
        let outcome = bench.graphflat(&[command, "job.toml"]);
        assert_eq!(outcome.code, 2, "{}", outcome.stderr);
        let what = "`infer.probabilities`";
        assert!(outcome.stderr.contains(what), "{}", outcome.stderr);
    }
}

/// Kills of [`kills_at_random_moments_change_no_embedding`].
const RANDOM_KILLS: usize = 50;

/// Kills of each other way to infer; more if none of them left work to continue.
const RANDOM_KILLS_OTHERWISE: usize = 12;

/// Returns a bench with a trained model and the text of its job, whose last table is `[infer]`.
fn bench_to_kill_on() -> (Bench, String) {
    let bench = Bench::empty();
    let generated = "generate graph --nodes 20000 --edges 200000 --features 16 --seed 3";
    bench
        .graphflat(&generated.split(' ').collect::<Vec<_>>())
        .ok();
    let text = "name = \"kills\"\nseed = 7\nworkers = 3\nwork_dir = \"work\"\n\
         [input.nodes]\npath = \"graph/nodes.parquet\"\nid = \"id\"\nfeatures = [\"features\"]\n\
         label = \"label\"\nsplit = \"split\"\n\
         [input.edges]\npath = \"graph/edges.parquet\"\nsrc = \"src\"\ndst = \"dst\"\n\
         [flatten]\noutput = \"out/features\"\nhops = 3\nfanouts = [3, 3, 3]\n\
         [train]\noutput = \"out/model\"\nmodel = \"gat\"\nhidden = [32, 32]\nheads = 4\nepochs = 1\n\
         [infer]\noutput = \"out/embeddings\"\nrows_per_part = 1000\n";
    (bench, text.to_owned())
}

/// Number of kills after which rounds, and committed parts, were left for the next run.
#[derive(Debug, Default)]
struct Found {
    rounds: usize,
    parts: usize,
}

/// Kills inference at `kills` random moments, and checks that runs which continue end with the same
/// bytes and the same comparison of samplings. One of `kills_a_run` runs, drawn by chance, ends;
/// the others are killed too. Every fourth run is killed when it has committed a part: writing
/// takes a small share of the time, and a random moment may never lie in it.
fn kill_at_random_moments(bench: &Bench, kills: usize, kills_a_run: u64) -> Found {
    let only = ["run", "job.toml", "--quiet", "--stage", "infer"];
    let clear = || std::fs::remove_dir_all(bench.path(OUTPUT)).unwrap();
    let committed_parts = || bench.committed_notes(OUTPUT).len();
    let ends = || {
        bench.graphflat(&only).ok();
        let compared = bench.manifest(OUTPUT)["report"]["sampling_compared"].clone();
        (bench.data_files(OUTPUT), compared)
    };
    let expected = ends();
    let check = |what: &str| {
        let (files, compared) = ends();
        assert_same_bytes(&expected.0, &files, what);
        assert_eq!(compared, expected.1, "{what}");
        let left = bench.path("work/infer").exists();
        assert!(!left, "rounds are removed in the end");
    };
    clear();
    let started = std::time::Instant::now();
    bench.graphflat(&only).ok();
    let micros = u64::try_from(started.elapsed().as_micros()).unwrap();
    clear();
    let (mut killed, mut draw, mut found) = (0, 0_u64, Found::default());
    while killed < kills || found.rounds + found.parts == 0 {
        draw += 1;
        let parts_before = committed_parts();
        let mut child = bench.command(&only).spawn().unwrap();
        if draw.is_multiple_of(4) {
            while child.try_wait().unwrap().is_none() && committed_parts() <= parts_before {
                std::thread::sleep(std::time::Duration::from_micros(100));
            }
        } else {
            std::thread::sleep(std::time::Duration::from_micros(mix(1, draw) % micros));
        }
        let has_ended = kill(child);
        killed += usize::from(!has_ended);
        if mix(2, draw).is_multiple_of(kills_a_run) {
            found.rounds += usize::from(bench.path("work/infer/rounds.json").exists());
            found.parts += usize::from(committed_parts() > 0);
            check(&format!("after draw {draw}"));
            clear();
        }
    }
    check("at last");
    found
}

#[test]
fn kills_at_random_moments_change_no_embedding() {
    if !slow() {
        return;
    }
    let (bench, job) = bench_to_kill_on();
    std::fs::write(bench.path("job.toml"), job + "sampling = \"none\"\n").unwrap();
    bench
        .graphflat(&["run", "job.toml", "--quiet", "--stage", "flatten,train"])
        .ok();
    let found = kill_at_random_moments(&bench, RANDOM_KILLS, 3);
    assert!(found.rounds > 0 && found.parts > 0, "{found:?}");
}

#[test]
fn kills_change_neither_comparisons_nor_what_neighbourhoods_give() {
    if !slow() {
        return;
    }
    let (bench, job) = bench_to_kill_on();
    // Stored neighbourhoods are read part by part.
    let job = job.replace("hops = 3", "hops = 3\ntargets_per_part = 1000");
    std::fs::write(bench.path("job.toml"), &job).unwrap();
    bench
        .graphflat(&["run", "job.toml", "--quiet", "--stage", "flatten,train"])
        .ok();
    for (keys, is_compared) in [
        ("rows_per_part = 1000\ncompare_sampling = true", true),
        ("method = \"neighborhoods\"", false),
        ("rows_per_part = 1000\nrows = \"bf16\"", false),
    ] {
        let job = job.replace("rows_per_part = 1000", keys);
        std::fs::write(bench.path("job.toml"), job).unwrap();
        kill_at_random_moments(&bench, RANDOM_KILLS_OTHERWISE, 1);
        let compared = &bench.manifest(OUTPUT)["report"]["sampling_compared"];
        assert_eq!(compared.is_object(), is_compared, "{keys}: {compared}");
        std::fs::remove_dir_all(bench.path(OUTPUT)).unwrap();
    }
}
