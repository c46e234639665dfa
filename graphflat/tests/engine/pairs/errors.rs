//! Errors of pairs: one clear line each.

use super::Tables;
use super::world::{IdKind, World, write};
use crate::draw::Draw;
use crate::run::temporary_dir;
use arrow::array::{ArrayRef, Float32Array, Int64Array, StringArray, UInt64Array};
use graphflat::{FlattenError, FlattenSpec};
use schemas::InputSpec;
use serde_json::{Value, json};
use std::sync::Arc;

/// Users with integer ids and items with texts.
fn world() -> World {
    World {
        is_typed: true,
        kinds: [IdKind::Run, IdKind::Text],
        table: Some(Vec::new()),
        by_time: false,
        ..World::random(&mut Draw::new(1))
    }
}

/// Checks the error of a table of pairs.
fn check(pairs: Value, rows: Vec<(&str, ArrayRef)>, expected: &str) {
    let (dir, world) = (temporary_dir(), world());
    world.write(dir.path());
    write(&dir.path().join("pairs.parquet"), rows);
    let mut input = serde_json::to_value(world.input()).unwrap();
    input["pairs"] = pairs;
    for (key, value) in [
        ("path", "pairs.parquet"),
        ("src", "u"),
        ("dst", "v"),
        ("from", "user"),
        ("to", "item"),
    ] {
        input["pairs"][key] = value.into();
    }
    let input: InputSpec = serde_json::from_value(input).unwrap();
    let error = match input.into_plan(dir.path()) {
        Err(error) => error.to_string(),
        Ok(plan) => {
            let plan = Arc::new(plan);
            let tables = Tables { dir, plan };
            let spec = json!({ "hops": 1, "fanouts": [2] });
            let flatten = tables.flatten_plan(&spec, "out");
            let error = tables.store(&flatten, 2, "store").unwrap_err();
            error.to_string()
        }
    };
    let shown = error.lines().count();
    assert!(
        error.contains(expected) && shown == 1,
        "{error} should say {expected}"
    );
}

fn users(keys: &[i64]) -> ArrayRef {
    Arc::new(Int64Array::from(keys.to_vec()))
}

fn texts(texts: &[&str]) -> ArrayRef {
    Arc::new(StringArray::from(texts.to_vec()))
}

fn both(u: &[i64], v: &[&str]) -> Vec<(&'static str, ArrayRef)> {
    vec![("u", users(u)), ("v", texts(v))]
}

#[test]
fn bad_ends_splits_and_times_are_one_clear_line() {
    let share = json!({ "train": 0.5, "val": 0.5, "seed": 1 });
    check(
        json!({ "share": share }),
        both(&[5, 6, 1000], &["n5", "n6", "n7"]),
        "row 2: is 1000, which is no node's id",
    );
    check(
        json!({ "share": share }),
        both(&[5, 6, 7], &["n5", "none", "n7"]),
        "row 1: is none, which is no node's id",
    );
    check(
        json!({ "share": { "train": 0.000001, "seed": 1 } }),
        both(&[5, 6], &["n5", "n6"]),
        "`input.pairs.share`: puts no pair in split `train`",
    );
    let mut timed = both(&[5, 6], &["n5", "n6"]);
    let times: ArrayRef = Arc::new(Int64Array::from(vec![Some(3), None]));
    timed.push(("at", times));
    check(
        json!({ "share": share, "time": "at" }),
        timed,
        "row 1: is null",
    );
}

#[test]
fn bad_columns_are_one_clear_line() {
    let share = json!({ "train": 0.5, "val": 0.5, "seed": 1 });
    let mut unlike = both(&[5, 5], &["n5", "n5"]);
    unlike.push(("s", texts(&["train", "val"])));
    check(
        json!({ "split": "s" }),
        unlike,
        "differs from that of the same pair in row 0",
    );
    let mut labelled = both(&[5, 6], &["n5", "n6"]);
    labelled.push(("l", Arc::new(Float32Array::from(vec![1.0, 0.5]))));
    check(
        json!({ "share": share, "label": "l" }),
        labelled,
        "is 0.5; a label of a pair is 1 (a link) or 0 (none)",
    );
    let mut weighted = both(&[5, 6], &["n5", "n6"]);
    weighted.push(("w", Arc::new(UInt64Array::from(vec![1, 2]))));
    check(
        json!({ "share": share, "weight": "x" }),
        weighted,
        "`input.pairs.weight`",
    );
    let mut weightless = both(&[5, 6], &["n5", "n6"]);
    weightless.push(("w", Arc::new(Float32Array::from(vec![0.0, 0.0]))));
    check(
        json!({ "share": { "train": 1.0 }, "weight": "w" }),
        weightless,
        "`input.pairs.weight`: is 0 for each train pair",
    );
    let ints = vec![("u", users(&[5])), ("v", users(&[5]))];
    check(
        json!({ "share": share }),
        ints,
        "both must be integers or both strings",
    );
}

#[test]
fn a_part_has_no_more_negatives_than_there_are_nodes() {
    let world = World::random(&mut Draw::new(2));
    let tables = Tables::write(&world);
    let num_nodes = world.sizes[world.to()];
    let check = |flatten: Value, expected: &str| {
        let spec: FlattenSpec = serde_json::from_value(flatten).unwrap();
        let graph = (&*tables.plan, tables.target_type());
        let errors = spec
            .into_plan_of(graph, tables.dir.path(), false)
            .unwrap_err();
        let errors: Vec<String> = errors.iter().map(FlattenError::to_string).collect();
        assert_eq!(errors, [expected]);
    };
    let with = |key: &str, value: Value| {
        let mut spec = json!({ "output": "o", "hops": 1, "fanouts": [2] });
        spec[key] = value;
        spec
    };
    check(
        with("negatives_per_part", (num_nodes + 1).into()),
        &format!(
            "`flatten.negatives_per_part` is {}: the dst ends have a type of {num_nodes} nodes; \
             allowed are 0 to that",
            num_nodes + 1
        ),
    );
    let ends = "with [input.pairs] the ends of pairs are the targets; leave it out";
    check(
        with("targets", "all".into()),
        &format!("`flatten.targets` is given: {ends}"),
    );
    check(
        with("targets_per_part", 5.into()),
        &format!("`flatten.targets_per_part` is given: {ends}"),
    );
}
