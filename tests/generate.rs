//! Generated graphs: the same arguments give the same bytes, and the generated job file runs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::sync::Arc;

use arrow::array::{Array as _, AsArray as _, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{Float32Type, Int64Type};
use expect_test::{Expect, expect};
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

use crate::harness::{Bench, assert_same_bytes};
use crate::train::number;

/// Arguments of a graph with several batches of nodes; no number of rows is a power of two.
const SMALL: &str = "--nodes 20000 --edges 300000 --features 4 --seed 9 --weights";

fn generate(bench: &Bench, dir: &str, args: &str) {
    let args: Vec<&str> = ["generate", dir]
        .into_iter()
        .chain(args.split(' '))
        .collect();
    bench.graphflat(&args).ok();
}

fn table(bench: &Bench, file: &str) -> RecordBatch {
    let file = File::open(bench.path(file)).unwrap();
    let reader = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
    let schema = Arc::clone(reader.schema());
    let batches: Vec<RecordBatch> = reader.build().unwrap().map(Result::unwrap).collect();
    concat_batches(&schema, &batches).unwrap()
}

fn numbers<'a>(table: &'a RecordBatch, column: &str) -> &'a [i64] {
    table[column].as_primitive::<Int64Type>().values()
}

fn in_degrees(edges: &RecordBatch) -> BTreeMap<i64, usize> {
    let mut degrees = BTreeMap::new();
    for &dst in numbers(edges, "dst") {
        *degrees.entry(dst).or_default() += 1;
    }
    degrees
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_other_ones() {
    let bench = Bench::empty();
    generate(&bench, "one", SMALL);
    generate(&bench, "two", SMALL);
    assert_same_bytes(&bench.data_files("one"), &bench.data_files("two"), "again");
    generate(
        &bench,
        "two",
        &format!("{} --force", SMALL.replace("seed 9", "seed 10")),
    );
    let (one, two) = (bench.data_files("one"), bench.data_files("two"));
    assert!(one.iter().all(|(name, bytes)| two[name] != *bytes));
}

#[test]
fn tables_are_as_the_arguments_say() {
    let bench = Bench::empty();
    generate(&bench, "data", SMALL);
    let nodes = table(&bench, "data/nodes.parquet");
    expect![[r#"
        id Int64 nulls: false
        features List(non-null Float32) nulls: false
        label Int32 nulls: false
        split Utf8 nulls: true"#]]
    .assert_eq(&columns(&nodes));
    assert!(numbers(&nodes, "id").iter().copied().eq(0..20_000));
    let features = nodes["features"].as_list::<i32>().values();
    assert_eq!(features.len(), 4 * 20_000);
    let splits = nodes["split"].as_string::<i32>();
    let count = |split| splits.iter().filter(|have| *have == split).count();
    let counts = [Some("train"), Some("val"), Some("test"), None].map(count);
    assert_eq!(counts, [2000, 1000, 1000, 16_000]);
    let edges = table(&bench, "data/edges.parquet");
    expect![[r#"
        src Int64 nulls: false
        dst Int64 nulls: false
        weight Float32 nulls: false"#]]
    .assert_eq(&columns(&edges));
    assert_eq!(edges.num_rows(), 300_000);
    let weights = edges["weight"].as_primitive::<Float32Type>().values();
    assert!(weights.iter().all(|&weight| 0.0 < weight && weight <= 1.0));
    for (&src, &dst) in numbers(&edges, "src").iter().zip(numbers(&edges, "dst")) {
        assert!(src != dst && (0..20_000).contains(&src) && (0..20_000).contains(&dst));
    }
    let left = fs::read_dir(bench.path("data")).unwrap().count();
    assert_eq!(left, 3, "nothing temporary is left");
}

fn columns(table: &RecordBatch) -> String {
    let schema = table.schema();
    let lines = schema.fields().iter().map(|field| {
        let nulls = field.is_nullable();
        format!("{} {} nulls: {nulls}", field.name(), field.data_type())
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The 1 % of the nodes with the most in-edges have over 10 % of all in-edges. If edges were drawn
/// evenly, these nodes would have about 2 %.
#[test]
fn degrees_are_skewed_and_ids_do_not_tell_them() {
    let bench = Bench::empty();
    generate(&bench, "data", SMALL);
    let degrees = in_degrees(&table(&bench, "data/edges.parquet"));
    let mut sorted: Vec<usize> = degrees.values().copied().collect();
    sorted.sort_unstable_by(|a, b| b.cmp(a));
    let top: usize = sorted.iter().take(200).sum();
    assert!(top > 300_000 / 10, "{top} in-edges at 200 of 20000 nodes");
    let low: usize = degrees.range(..10_000).map(|(_, degree)| degree).sum();
    assert!(
        (120_000..180_000).contains(&low),
        "{low} in-edges at the lower half of the ids"
    );
}

#[test]
fn hubs_have_their_in_edges_from_as_many_other_nodes() {
    let bench = Bench::empty();
    let args = "--nodes 3000 --edges 5000 --features 1 --seed 1";
    generate(
        &bench,
        "data",
        &format!("{args} --hubs 2 --hub-in-edges 2500"),
    );
    generate(&bench, "plain", args);
    let edges = table(&bench, "data/edges.parquet");
    assert_eq!(edges.num_rows(), 10_000);
    let pairs = |table: &RecordBatch| {
        let mut pairs: Vec<(i64, i64)> = Vec::new();
        let (src, dst) = (numbers(table, "src"), numbers(table, "dst"));
        pairs.extend(src.iter().copied().zip(dst.iter().copied()));
        pairs
    };
    let with_hubs = pairs(&edges);
    let job = fs::read_to_string(bench.path("data/job.toml")).unwrap();
    let line = job.lines().nth(1).unwrap();
    let named = line.strip_prefix("# 2 hubs with 2500 further in-edges each: ");
    let hubs: Vec<i64> = named
        .unwrap_or_else(|| panic!("{line}"))
        .split(", ")
        .map(|id| id.parse().unwrap())
        .collect();
    let mut by_degree: Vec<(usize, i64)> = Vec::new();
    by_degree.extend(
        in_degrees(&edges)
            .into_iter()
            .map(|(id, degree)| (degree, id)),
    );
    by_degree.sort_unstable_by(|a, b| b.cmp(a));
    for hub in hubs {
        assert!(
            by_degree[..2].iter().any(|&(_, id)| id == hub),
            "{hub} of {:?}",
            &by_degree[..4]
        );
        let mut src: Vec<i64> = with_hubs
            .iter()
            .filter(|e| e.1 == hub)
            .map(|e| e.0)
            .collect();
        src.sort_unstable();
        src.dedup();
        assert!(
            src.len() >= 2500 && !src.contains(&hub),
            "{} sources",
            src.len()
        );
    }
    // All edges of the graph generated without hubs are there, in another order.
    let mut rest = BTreeMap::<(i64, i64), i64>::new();
    with_hubs
        .iter()
        .for_each(|&edge| *rest.entry(edge).or_default() += 1);
    pairs(&table(&bench, "plain/edges.parquet"))
        .iter()
        .for_each(|&edge| *rest.entry(edge).or_default() -= 1);
    assert!(rest.values().all(|&count| count >= 0));
    // The edges of hubs are spread over the table.
    let first: BTreeMap<i64, usize> = in_degrees(&edges.slice(0, 5000));
    let (degree, hub) = by_degree[0];
    assert!(
        (degree / 3..2 * degree / 3).contains(&first[&hub]),
        "{} of {degree}",
        first[&hub]
    );
}

#[test]
fn the_job_runs_as_it_is_and_learns_the_labels() {
    let bench = Bench::empty();
    let args = "--nodes 3000 --edges 20000 --features 16 --seed 3 --classes 4 --weights";
    generate(&bench, "some data", args);
    bench.graphflat(&["check", "some data/job.toml"]).ok();
    bench
        .graphflat(&["run", "some data/job.toml", "--quiet"])
        .ok();
    let text = fs::read_to_string(bench.path("some data/out/model/model.json")).unwrap();
    let model = serde_json::from_str(&text).unwrap();
    let accuracy = number(&model, "test_accuracy").expect("test_accuracy");
    assert!(accuracy > 0.5, "accuracy is {accuracy}; guesses have 0.25");
    // Small graphs, without labels to learn.
    for small in [
        "--nodes 1 --edges 0 --features 0 --seed 0",
        "--nodes 21 --edges 50 --features 2 --seed 0",
    ] {
        generate(&bench, "small", &format!("{small} --force"));
        bench
            .graphflat(&["run", "small/job.toml", "--quiet", "--fresh"])
            .ok();
    }
}

/// Arguments of a graph with four types.
const TYPED: &str = "--nodes 6000 --edges 60000 --features 16 --seed 3 --classes 4 --types 4 \
                     --relations 6 --hubs 2 --hub-in-edges 1000 --weights";

#[test]
fn a_typed_graph_has_a_table_for_each_type_and_relation() {
    let bench = Bench::empty();
    generate(&bench, "one", TYPED);
    generate(&bench, "two", TYPED);
    assert_same_bytes(&bench.data_files("one"), &bench.data_files("two"), "again");
    let shown = |file: &str| {
        let read = table(&bench, file);
        format!(
            "{} rows: {}",
            read.num_rows(),
            columns(&read).replace('\n', ", ")
        )
    };
    let mut names: Vec<String> = bench.data_files("one").into_keys().collect();
    names.retain(|name| name.ends_with(".parquet"));
    let told: Vec<String> = names
        .iter()
        .map(|name| format!("{name} {}", shown(&format!("one/{name}"))))
        .collect();
    expect![[r#"
        edges-r0.parquet 26490 rows: src Int64 nulls: false, dst Int64 nulls: false, weight Float32 nulls: false
        edges-r1.parquet 12245 rows: src Int64 nulls: false, dst Int64 nulls: false, weight Float32 nulls: false
        edges-r2.parquet 8163 rows: src Int64 nulls: false, dst Int64 nulls: false, weight Float32 nulls: false
        edges-r3.parquet 6122 rows: src Int64 nulls: false, dst Int64 nulls: false, weight Float32 nulls: false
        edges-r4.parquet 4898 rows: src Int64 nulls: false, dst Int64 nulls: false, weight Float32 nulls: false
        edges-r5.parquet 4082 rows: src Int64 nulls: false, dst Int64 nulls: false, weight Float32 nulls: false
        nodes-t0.parquet 2879 rows: id Int64 nulls: false, features List(non-null Float32) nulls: false, label Int32 nulls: false, split Utf8 nulls: true
        nodes-t1.parquet 1440 rows: id Int64 nulls: false, features List(non-null Float32) nulls: false
        nodes-t2.parquet 960 rows: id Int64 nulls: false, features List(non-null Float32) nulls: false
        nodes-t3.parquet 721 rows: id Int64 nulls: false, features List(non-null Float32) nulls: false"#]]
    .assert_eq(&told.join("\n"));
    let job = fs::read_to_string(bench.path("one/job.toml")).unwrap();
    assert!(job.contains("from = \"t1\"\nto = \"t0\"\n"), "{job}");
    let one = bench.data_files("one");
    let other = TYPED.replace("--seed 3", "--seed 4 --force");
    generate(&bench, "two", &other);
    let two = bench.data_files("two");
    assert!(one.iter().all(|(name, bytes)| two[name] != *bytes));
    let shares = "--type-shares 0.1,0.2,0.3,0.4 --relation-shares 1,1,1,1,1,5 --force";
    generate(&bench, "two", &format!("{TYPED} {shares}"));
    let rows = |file: &str| table(&bench, file).num_rows();
    assert_eq!(rows("two/nodes-t3.parquet"), 2399);
    assert_eq!(rows("two/edges-r5.parquet"), 30_000);
}

/// The job of a typed graph runs, and its labels are not learnt without the other types.
#[test]
fn a_typed_job_runs_as_it_is_and_learns_from_other_types() {
    let bench = Bench::empty();
    generate(&bench, "data", TYPED);
    bench.graphflat(&["check", "data/job.toml"]).ok();
    let accuracy = |args: &[&str]| {
        let run = [&["run", "data/job.toml", "--quiet"], args].concat();
        bench.graphflat(&run).ok();
        let text = fs::read_to_string(bench.path("data/out/model/model.json")).unwrap();
        let model = serde_json::from_str(&text).unwrap();
        number(&model, "test_accuracy").expect("test_accuracy")
    };
    let found = accuracy(&[]);
    let text = fs::read_to_string(bench.path("data/job.toml")).unwrap();
    // The tables of the other types and of the relations with them are left out.
    let tables: Vec<&str> = text.split("\n[").collect();
    let is_kept = |table: &&&str| {
        let of_nodes = !table.starts_with("input.nodes") || table.starts_with("input.nodes.t0");
        let inner = table.contains("from = \"t0\"\nto = \"t0\"");
        of_nodes && (!table.starts_with("input.edges") || inner)
    };
    let mut kept: Vec<String> = tables
        .iter()
        .filter(is_kept)
        .map(|&of| of.to_owned())
        .collect();
    if !kept.iter().any(|of| of.starts_with("input.edges")) {
        let loops = "input.edges.loops]\npath = \"data/edges-r0.parquet\"\nfrom = \"t0\"\nto = \
                     \"t0\"\nsrc = \"dst\"\ndst = \"dst\"\n";
        kept.insert(2, loops.to_owned());
    }
    fs::write(bench.path("data/job.toml"), kept.join("\n[")).unwrap();
    let alone = accuracy(&["--fresh"]);
    assert!(found > 0.6, "accuracy is {found}; guesses have 0.25");
    assert!(alone < 0.4, "accuracy without other types is {alone}");
    // Small graphs, without labels to learn.
    for small in [
        "--nodes 3 --edges 0 --features 0 --seed 0 --types 3 --relations 2",
        "--nodes 30 --edges 50 --features 2 --seed 0 --types 1 --relations 3",
    ] {
        generate(&bench, "small", &format!("{small} --force"));
        bench
            .graphflat(&["run", "small/job.toml", "--quiet", "--fresh"])
            .ok();
    }
}

#[track_caller]
fn refused(bench: &Bench, args: &str, expected: Expect) {
    let args: Vec<&str> = ["generate"].into_iter().chain(args.split(' ')).collect();
    let outcome = bench.graphflat(&args);
    assert_eq!(outcome.code, 2, "{outcome:#?}");
    expected.assert_eq(&outcome.stderr);
    assert_eq!(outcome.stdout, "");
}

#[test]
fn numbers_outside_their_limits_are_one_line_and_write_nothing() {
    let bench = Bench::empty();
    let check = |args: &str, expected: Expect| refused(&bench, &format!("data {args}"), expected);
    check(
        "--nodes 0 --edges 0 --features 1 --seed 1",
        expect![[r#"
        error: `--nodes` is 0: 1 to 4294967294 are allowed
    "#]],
    );
    check(
        "--nodes 4294967295 --edges 0 --features 1 --seed 1",
        expect![[r#"
            error: `--nodes` is 4294967295: 1 to 4294967294 are allowed
        "#]],
    );
    check(
        "--nodes 1 --edges 1 --features 1 --seed 1",
        expect![[r#"
        error: `--edges` is 1: only 0 is allowed here
    "#]],
    );
    check(
        "--nodes 9 --edges 1099511627777 --features 1 --seed 1",
        expect![[r#"
            error: `--edges` is 1099511627777: 0 to 1099511627776 are allowed
        "#]],
    );
    check(
        "--nodes 9 --edges 1 --features 4097 --seed 1",
        expect![[r#"
            error: `--features` is 4097: 0 to 4096 are allowed
        "#]],
    );
    check(
        "--nodes 9 --edges 1 --features 1 --seed 9223372036854775808",
        expect![[r#"
            error: `--seed` is 9223372036854775808: 0 to 9223372036854775807 are allowed
        "#]],
    );
    check(
        "--nodes 9 --edges 1 --features 1 --seed 1 --classes 1",
        expect![[r#"
            error: `--classes` is 1: 2 to 1048576 are allowed
        "#]],
    );
    assert_eq!(fs::read_dir(bench.path("")).unwrap().count(), 0);
}

#[test]
fn hubs_outside_their_limits_are_one_line_and_write_nothing() {
    let bench = Bench::empty();
    let check = |args: &str, expected: Expect| refused(&bench, &format!("data {args}"), expected);
    check(
        "--nodes 9 --edges 1 --features 1 --seed 1 --hubs 10 --hub-in-edges 1",
        expect![[r#"
            error: `--hubs` is 10: 0 to 9 are allowed
        "#]],
    );
    check(
        "--nodes 9 --edges 1 --features 1 --seed 1 --hubs 1 --hub-in-edges 9",
        expect![[r#"
            error: `--hub-in-edges` is 9: 1 to 8 are allowed
        "#]],
    );
    check(
        "--nodes 9 --edges 1 --features 1 --seed 1 --hubs 1",
        expect![[r#"
            error: `--hub-in-edges` is 0: 1 to 8 are allowed
        "#]],
    );
    check(
        "--nodes 9 --edges 1 --features 1 --seed 1 --hub-in-edges 1",
        expect![[r#"
            error: `--hub-in-edges` is 1: only 0 is allowed here
        "#]],
    );
    check(
        "--nodes 4294967294 --edges 1 --features 1 --seed 1 --hubs 4294967294 \
         --hub-in-edges 4294967293",
        expect![[r#"
            error: `--hub-in-edges` is 4294967293 for 4294967294 hubs: at most 1099511627776 edges in all are allowed
        "#]],
    );
    refused(
        &bench,
        "s3://bucket/data --nodes 9 --edges 1 --features 1 --seed 1",
        expect![[r#"
            error: `DIR`: s3://bucket/data is the URL of a store; this has to be a local path
        "#]],
    );
    assert_eq!(fs::read_dir(bench.path("")).unwrap().count(), 0);
}

#[test]
fn types_outside_their_limits_are_one_line_and_write_nothing() {
    let bench = Bench::empty();
    let check = |args: &str, expected: Expect| {
        let graph = "data --nodes 90 --edges 9 --features 1 --seed 1";
        refused(&bench, &format!("{graph} {args}"), expected);
    };
    check(
        "--types 65 --relations 64",
        expect![[r#"
            error: `--types` is 65: 1 to 64 are allowed
        "#]],
    );
    check(
        "--types 4 --relations 2",
        expect![[r#"
            error: `--relations` is 2: 3 to 256 are allowed
        "#]],
    );
    check(
        "--types 2 --relations 1 --type-shares 1,2,3",
        expect![[r#"
            error: `--type-shares` is 1,2,3: 2 numbers above 0 are allowed
        "#]],
    );
    check(
        "--types 2 --relations 2 --relation-shares 1,-1",
        expect![[r#"
            error: `--relation-shares` is 1,-1: 2 numbers above 0 are allowed
        "#]],
    );
    check(
        "--types 2 --relations 1 --hubs 1 --hub-in-edges 31",
        expect![[r#"
            error: `--hub-in-edges` is 31: 1 to 30 are allowed
        "#]],
    );
    assert_eq!(fs::read_dir(bench.path("")).unwrap().count(), 0);
}

#[test]
fn files_that_are_there_are_replaced_only_by_force() {
    let bench = Bench::empty();
    let args = "data --nodes 9 --edges 1 --features 1 --seed 1";
    for name in ["nodes.parquet", "edges.parquet", "job.toml"] {
        fs::create_dir_all(bench.path("data")).unwrap();
        fs::write(bench.path("data").join(name), "mine").unwrap();
        let line = format!("error: output data holds {name} already; --force replaces it\n");
        let outcome = bench.graphflat(
            &["generate"]
                .into_iter()
                .chain(args.split(' '))
                .collect::<Vec<_>>(),
        );
        assert_eq!((outcome.code, outcome.stderr), (2, line));
        assert_eq!(fs::read(bench.path("data").join(name)).unwrap(), b"mine");
        fs::remove_dir_all(bench.path("data")).unwrap();
    }
    generate(&bench, "data", "--nodes 9 --edges 1 --features 1 --seed 1");
    generate(
        &bench,
        "data",
        "--nodes 8 --edges 1 --features 1 --seed 1 --force",
    );
    assert_eq!(table(&bench, "data/nodes.parquet").num_rows(), 8);
}
