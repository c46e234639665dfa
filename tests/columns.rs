//! Feature columns with categories, times and gaps: the same model as on columns that a slow
//! implementation encoded, on the day of the training and on another one.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;

use arrow::array::{
    Array as _, ArrayRef, AsArray as _, Float64Array, Int64Array, ListArray, StringArray,
    TimestampSecondArray,
};
use arrow::datatypes::Float32Type;

use crate::harness::{
    Bench, FLATTEN, FeatureKind, Graph, INFER, IdKind, Job, TRAIN, Table, assert_same_bytes,
    f32_lists, files_below, mix,
};
use crate::infer::batches;

const OUTPUT: &str = "out/embeddings";

/// Relative to the greatest value: the twin takes means in another order.
const TOLERANCE: f32 = 2e-4;

const DAY: i64 = 86_400;

/// The values of a node.
#[derive(Clone, Debug)]
struct Cells {
    age: Option<f64>,
    country: Option<String>,
    seen: Option<i64>,
    level: i64,
    position: Option<[f32; 2]>,
}

fn graph() -> Graph {
    Graph::new(90, IdKind::Utf8, FeatureKind::List)
}

/// Draws the values of all nodes. On a later day, there are other categories, in another order.
fn cells(graph: &Graph, is_later: bool) -> Vec<Cells> {
    let node = |node: usize| {
        let draw =
            |what: u64, of: u64| mix(100 + what + 50 * u64::from(is_later), node as u64) % of;
        let has = |what: u64| draw(what, 7) > 0;
        let countries: &[&str] = match is_later {
            false => &["cz", "de", "fr", "it"],
            true => &["aa", "de", "fr", "zz"],
        };
        let country = countries[usize::try_from(draw(1, 4)).unwrap()];
        // A country that no train node has, so that its code is the one of unseen categories.
        let is_rare = graph.split(node).is_none() && node.is_multiple_of(2);
        Cells {
            age: has(2).then(|| draw(3, 80) as f64 / 4.0),
            country: has(4).then(|| if is_rare { "rare" } else { country }.to_owned()),
            seen: has(5).then(|| (19_000 + draw(6, 700) as i64) * DAY + DAY / 4),
            level: draw(7, 3) as i64 * 5 - 5,
            position: has(8).then(|| [draw(9, 9) as f32, -(draw(10, 5) as f32)]),
        }
    };
    (0..graph.num_nodes).map(node).collect()
}

/// The node table with the values as people have them.
fn raw_table(graph: &Graph, cells: &[Cells]) -> Table {
    let mut table = graph.nodes();
    table.remove("features");
    let column = |values: ArrayRef| values;
    let ages: Float64Array = cells.iter().map(|cells| cells.age).collect();
    let countries: StringArray = cells.iter().map(|cells| cells.country.clone()).collect();
    let seen: TimestampSecondArray = cells.iter().map(|cells| cells.seen).collect();
    let levels: Int64Array = cells.iter().map(|cells| Some(cells.level)).collect();
    let positions = cells
        .iter()
        .map(|cells| cells.position.map(|of| of.map(Some)));
    let positions = ListArray::from_iter_primitive::<Float32Type, _, _>(positions);
    table.set("age", column(Arc::new(ages)));
    table.set("country", column(Arc::new(countries)));
    table.set("seen", column(Arc::new(seen)));
    table.set("level", column(Arc::new(levels)));
    table.set("position", column(Arc::new(positions)));
    let labels = table.column("label");
    let labels = labels.as_primitive::<arrow::datatypes::Int32Type>();
    let wide: Int64Array = labels.iter().map(|label| label.map(i64::from)).collect();
    table.set("label", Arc::new(wide));
    table
}

/// What the slow implementation learns from the train nodes.
struct Fit {
    age: f64,
    /// Mean and standard deviation.
    seen: (f64, f64),
    countries: BTreeSet<String>,
    levels: BTreeSet<String>,
    position: [f64; 2],
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn days(seconds: i64) -> f64 {
    seconds as f64 / DAY as f64
}

fn fit(graph: &Graph, rows: &[Cells]) -> Fit {
    let train: Vec<&Cells> = (0..graph.num_nodes)
        .filter(|&node| graph.split(node) == Some("train"))
        .map(|node| &rows[node])
        .collect();
    let ages: Vec<f64> = train.iter().filter_map(|cells| cells.age).collect();
    let seen: Vec<f64> = train
        .iter()
        .filter_map(|cells| cells.seen.map(days))
        .collect();
    let center = mean(&seen);
    let squares: Vec<f64> = seen.iter().map(|day| (day - center).powi(2)).collect();
    let position = |at: usize| {
        let values = train
            .iter()
            .filter_map(|cells| Some(f64::from(cells.position?[at])));
        mean(&values.collect::<Vec<_>>())
    };
    let texts = |level: i64| level.to_string();
    Fit {
        age: mean(&ages),
        seen: (center, mean(&squares).sqrt()),
        countries: train
            .iter()
            .filter_map(|cells| cells.country.clone())
            .collect(),
        levels: train.iter().map(|cells| texts(cells.level)).collect(),
        position: [position(0), position(1)],
    }
}

/// Encodes the values of a node.
#[expect(clippy::cast_possible_truncation, reason = "features are f32")]
fn encode(fit: &Fit, cells: &Cells) -> Vec<f32> {
    let flag = |is: bool| f32::from(u8::from(is));
    let mut row = vec![
        cells.age.unwrap_or(fit.age) as f32,
        flag(cells.age.is_none()),
    ];
    let country = cells.country.as_ref();
    row.extend(
        fit.countries
            .iter()
            .map(|known| flag(country == Some(known))),
    );
    row.push(flag(
        country.is_some_and(|country| !fit.countries.contains(country)),
    ));
    row.push(flag(country.is_none()));
    let day = cells.seen.map_or(fit.seen.0, days);
    row.push(((day - fit.seen.0) / fit.seen.1) as f32);
    row.push(flag(cells.seen.is_none()));
    let level = cells.level.to_string();
    row.extend(fit.levels.iter().map(|known| flag(*known == level)));
    let position = cells.position.map(|of| of.map(f64::from));
    row.extend(position.unwrap_or(fit.position).map(|x| x as f32));
    row.push(flag(position.is_none()));
    row
}

/// The node table with encoded values.
fn encoded_table(graph: &Graph, fit: &Fit, cells: &[Cells]) -> Table {
    let mut table = graph.nodes();
    let rows = cells.iter().map(|cells| encode(fit, cells));
    table.set("features", f32_lists(rows));
    table
}

const COLUMNS: &str = "features = [\"age\", \"country\", \"seen\", \"level\", \"position\"]\n\
     columns = { level = { kind = \"category\" } }";

fn encoded_job(graph: &Graph) -> Job {
    Job::new(graph, &[FLATTEN, TRAIN, INFER])
}

fn raw_job(graph: &Graph) -> Job {
    encoded_job(graph).with("features = [\"features\"]", COLUMNS)
}

fn embeddings(bench: &Bench) -> BTreeMap<String, Vec<f32>> {
    let mut found = BTreeMap::new();
    for batch in batches(bench, OUTPUT) {
        let ids = batch.column_by_name("id").unwrap().as_string::<i32>();
        let vectors = batch.column_by_name("embedding").unwrap();
        for row in 0..batch.num_rows() {
            let vector = vectors.as_fixed_size_list().value(row);
            let values = vector.as_primitive::<Float32Type>().values().to_vec();
            found.insert(ids.value(row).to_owned(), values);
        }
    }
    found
}

#[track_caller]
fn assert_close(found: &BTreeMap<String, Vec<f32>>, expected: &BTreeMap<String, Vec<f32>>) {
    assert!(found.keys().eq(expected.keys()));
    let most = expected
        .values()
        .flatten()
        .fold(0.0_f32, |most, x| most.max(x.abs()));
    assert!(most > 0.1, "embeddings are not all zero");
    for (id, values) in found {
        for (x, y) in values.iter().zip(&expected[id]) {
            assert!(
                (x - y).abs() <= TOLERANCE * most,
                "{id}: {values:?}, not {:?}",
                expected[id]
            );
        }
    }
}

#[test]
fn a_model_reads_columns_as_the_slow_twin_encodes_them_also_on_another_day() {
    let graph = graph();
    let (first, later) = (cells(&graph, false), cells(&graph, true));
    let fit = fit(&graph, &first);
    let (raw, twin) = (Bench::new(&graph), Bench::new(&graph));
    for (cells, args) in [(&first, &[][..]), (&later, &["--stage", "infer"])] {
        raw_table(&graph, cells).write(&raw.path("nodes.parquet"));
        encoded_table(&graph, &fit, cells).write(&twin.path("nodes.parquet"));
        raw.run(&raw_job(&graph), args).ok();
        twin.run(&encoded_job(&graph), args).ok();
        assert_close(&embeddings(&raw), &embeddings(&twin));
        fs::remove_dir_all(raw.path(OUTPUT)).unwrap();
        fs::remove_dir_all(twin.path(OUTPUT)).unwrap();
    }
}

#[test]
fn learnable_codes_streams_and_neighbourhoods_give_the_same_numbers() {
    let graph = graph();
    let bench = Bench::new(&graph);
    raw_table(&graph, &cells(&graph, false)).write(&bench.path("nodes.parquet"));
    let job = raw_job(&graph).with("[flatten]\n", "[flatten]\ntargets = \"all\"\n");
    let job = job.with("fanouts = [4, 3]", "fanouts = [\"all\", \"all\"]");
    bench.run(&job, &[]).ok();
    let expected = embeddings(&bench);
    let by_neighbourhood = job.and("method = \"neighborhoods\"");
    let columns = "columns = { level = { kind = \"category\" }, country = { one_hot = 0 } }";
    let sparse = job.with("columns = { level = { kind = \"category\" } }", columns);
    let streamed = job
        .with("output = \"out/features\"\n", "")
        .with("layout = \"shards\"\n", "")
        .with("[train]\n", "[train]\nstreamed = true\n");
    for changed in [by_neighbourhood, sparse, streamed] {
        bench.clear();
        bench.run(&changed, &[]).ok();
        assert_close(&embeddings(&bench), &expected);
    }
}

#[test]
fn workers_do_not_show_in_graph_features_with_gaps() {
    let graph = graph();
    let bench = Bench::new(&graph);
    raw_table(&graph, &cells(&graph, false)).write(&bench.path("nodes.parquet"));
    for layout in ["shards", "rows"] {
        let job = raw_job(&graph).with("\"shards\"", &format!("\"{layout}\""));
        bench.clear();
        bench.run(&job, &["--workers", "1"]).ok();
        let expected = bench.data_files("out/features");
        let model = bench.data_files("out/model");
        bench.clear();
        bench.run(&job, &["--workers", "3"]).ok();
        assert_same_bytes(&expected, &bench.data_files("out/features"), layout);
        assert_same_bytes(&model, &bench.data_files("out/model"), layout);
        let meta = &bench.manifest("out/features")["graph"];
        assert_eq!(meta["columns"][1]["gaps"], true, "{meta}");
    }
}

/// Writes a table as CSV; nulls are empty fields.
fn write_csv(bench: &Bench, name: &str, columns: &[(&str, Vec<String>)]) {
    let names: Vec<&str> = columns.iter().map(|(column, _)| *column).collect();
    let mut text = format!("{}\n", names.join(","));
    for row in 0..columns[0].1.len() {
        let fields: Vec<&str> = columns
            .iter()
            .map(|(_, values)| values[row].as_str())
            .collect();
        writeln!(text, "{}", fields.join(",")).unwrap();
    }
    fs::write(bench.path(name), text).unwrap();
}

fn text_of(table: &Table, name: &str) -> Vec<String> {
    let array = table.column(name);
    let options = arrow::util::display::FormatOptions::default().with_null("");
    let shown = arrow::util::display::ArrayFormatter::try_new(&array, &options).unwrap();
    (0..array.len())
        .map(|row| shown.value(row).to_string())
        .collect()
}

#[test]
fn csv_tables_give_the_bytes_of_parquet_tables() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let nodes = raw_table(&graph, &cells(&graph, false));
    nodes.write(&bench.path("nodes.parquet"));
    let job = raw_job(&graph).with(", \"position\"", "");
    bench.run(&job, &[]).ok();
    let outputs = ["out/features", "out/model", OUTPUT];
    let expected = outputs.map(|output| bench.data_files(output));
    bench.clear();
    let names = ["id", "label", "split", "age", "country", "seen", "level"];
    let node_columns = names.map(|name| (name, text_of(&nodes, name)));
    write_csv(&bench, "nodes.csv", &node_columns);
    let edges = graph.edge_table();
    let edge_columns = ["dst", "src"].map(|name| (name, text_of(&edges, name)));
    write_csv(&bench, "edges.csv", &edge_columns);
    let job = job
        .with("nodes.parquet", "nodes.csv")
        .with("edges.parquet", "edges.csv");
    bench.run(&job, &[]).ok();
    for (output, files) in outputs.iter().zip(&expected) {
        assert_same_bytes(files, &bench.data_files(output), output);
    }
    let checked = bench
        .graphflat(&["check", "job.toml", "--fresh"])
        .ok()
        .stdout;
    for line in [
        "columns  nodes are CSV: `id` string, `label` int64, `split` string, `age` float64, \
         `country` string, `seen` timestamp, `level` string\n",
        "         edges are CSV: `dst` string, `src` string\n",
        "         `age`: a number; a missing value becomes the train mean, and 1 in a column of its \
         own\n",
        "         `country`: 5 categories, a column of 0 and 1 each; missing values have one of their \
         own\n",
        "         `level`: 3 categories, a column of 0 and 1 each\n",
    ] {
        assert!(checked.contains(line), "{line}\nis not in\n{checked}");
    }
    let short = fs::read_to_string(bench.path("nodes.csv"))
        .unwrap()
        .replacen("train,", "train;", 1);
    let line = 1 + short.lines().position(|line| line.contains(';')).unwrap();
    fs::write(bench.path("nodes.csv"), short).unwrap();
    let failed = bench.run(&job, &["--fresh"]);
    assert_eq!(failed.code, 3);
    let problem = format!("nodes.csv, line {line}: has 6 fields, the header has 7");
    assert!(failed.stderr.contains(&problem), "{}", failed.stderr);
}

#[test]
fn columns_that_changed_since_the_training_are_refused() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let mut first = cells(&graph, false);
    first
        .iter_mut()
        .for_each(|cells| cells.age = cells.age.or(Some(1.0)));
    raw_table(&graph, &first).write(&bench.path("nodes.parquet"));
    bench.run(&raw_job(&graph), &[]).ok();
    let job = Job::new(&graph, &[INFER]).with("features = [\"features\"]", COLUMNS);
    let job = job.and("model = \"out/model\"");
    let check = |table: &Table, changed: &Job, problem: &str| {
        fs::remove_dir_all(bench.path("work")).ok();
        table.write(&bench.path("nodes.parquet"));
        let failed = bench.run(changed, &[]);
        assert_eq!(failed.code, 2, "{failed:?}");
        assert!(failed.stderr.contains(problem), "{}", failed.stderr);
        assert_eq!(
            failed.stderr.matches("error:").count(),
            1,
            "{}",
            failed.stderr
        );
        let files = files_below(&bench.path("work"));
        files.iter().any(|file| file.ends_with("store.json"))
    };
    let mut table = raw_table(&graph, &first);
    let was_built = check(
        &table,
        &job.with("columns = { level = { kind = \"category\" } }\n", ""),
        "`input.nodes.features` is [\"age\" (number), \"country\" (category), \"seen\" (time), \
         \"level\" (number), \"position\" (number)], the model was trained with",
    );
    assert!(
        !was_built,
        "the columns are compared before the store is built"
    );
    let country = table.column("country");
    table.set("age", country);
    assert!(!check(&table, &job, "\"age\" (category)"));
    let unchecked = job.and("check_columns = false");
    let kind = "column `age` has categories, in training it had numbers";
    assert!(!check(&table, &unchecked, kind));
    // Only the values of the table show this.
    let missing = raw_table(&graph, &cells(&graph, false));
    let gap = "column `age` has missing values, in training it had none";
    check(&missing, &job, gap);
    let later = ["check", "job.toml", "--set", "infer.output=out/later"];
    let checked = bench.graphflat(&later);
    assert_eq!(checked.code, 2, "{checked:?}");
    assert!(checked.stderr.contains(gap), "{}", checked.stderr);
}

#[test]
fn more_categories_than_allowed_are_refused() {
    let graph = graph();
    let bench = Bench::new(&graph);
    raw_table(&graph, &cells(&graph, false)).write(&bench.path("nodes.parquet"));
    let columns = "columns = { level = { kind = \"category\", max_values = 2 } }";
    let job = raw_job(&graph).with("columns = { level = { kind = \"category\" } }", columns);
    let failed = bench.run(&job, &[]);
    assert_eq!(failed.code, 3, "{failed:?}");
    let problem = "column `level` of nodes.parquet has 3 or more categories, allowed are 2: raise \
                   `input.nodes.columns.level.max_values`, or leave the column out";
    assert!(failed.stderr.contains(problem), "{}", failed.stderr);
}

#[test]
fn a_column_of_names_is_a_warning() {
    let graph = graph();
    let bench = Bench::new(&graph);
    let mut nodes = graph.nodes();
    nodes.remove("features");
    let names = (0..graph.num_nodes).map(|node| format!("name of {node}"));
    nodes.set(
        "name",
        Arc::new(StringArray::from_iter_values(names)) as ArrayRef,
    );
    nodes.write(&bench.path("nodes.parquet"));
    bench.write(&encoded_job(&graph).with("[\"features\"]", "[\"name\"]"));
    let ran = bench.graphflat(&["run", "job.toml"]).ok();
    let warning = "column `name` of `input.nodes` has 90 categories for 90 nodes";
    assert_eq!(ran.stderr.matches(warning).count(), 1, "{}", ran.stderr);
    let checked = bench.graphflat(&["check", "job.toml", "--fresh"]).ok();
    let line = "`name`: 90 categories, a learnable code each; most of them belong to one node only";
    assert!(checked.stdout.contains(line), "{}", checked.stdout);
}
