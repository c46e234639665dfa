//! Input tables in every encoding, all their columns read.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    ArrayRef, BinaryArray, Float32Array, Float64Array, Int32Array, Int64Array, ListArray,
    RecordBatch, StringArray,
};
use arrow::datatypes::{Float32Type, Int32Type};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::schema::types::ColumnPath;
use schemas::{Categories, EdgesSpec, NodesSpec};
use serde_json::json;

use crate::Subject;

const NODES: usize = 120;
const EDGES: usize = 400;

type Columns = Vec<(&'static str, ArrayRef)>;

fn nodes(text_ids: bool) -> Columns {
    let numbers = 0..NODES as i64;
    let id: ArrayRef = match text_ids {
        true => Arc::new(StringArray::from_iter_values(
            numbers.clone().map(|i| format!("node-{}", i * 7919 % 1009)),
        )),
        false => Arc::new(Int64Array::from_iter_values(
            numbers.clone().map(|i| i * 7919 % 1009),
        )),
    };
    let features = numbers.clone().map(|i| {
        let row = [i as f32, 0.5, -(i as f32)].map(Some);
        Some(row)
    });
    let label = numbers.clone().map(|i| {
        let names = ["admin", "devel", "libs"];
        (i % 5 != 0).then(|| names[usize::try_from(i % 3).unwrap()])
    });
    let split = numbers
        .clone()
        .map(|i| [Some("train"), Some("val"), Some("test"), None][usize::try_from(i % 4).unwrap()]);
    let index = numbers
        .clone()
        .map(|i| Some((0..i % 4).map(|at| Some(i32::try_from(at * 3).unwrap()))));
    let value = numbers
        .clone()
        .map(|i| Some((0..i % 4).map(|at| Some(at as f32))));
    vec![
        ("id", id),
        (
            "features",
            Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(
                features,
            )),
        ),
        (
            "width",
            Arc::new(Float64Array::from_iter_values(
                numbers.clone().map(|i| i as f64 / 3.0),
            )),
        ),
        (
            "count",
            Arc::new(Int32Array::from_iter_values(
                numbers.clone().map(|i| i32::try_from(i % 17).unwrap()),
            )),
        ),
        (
            "index",
            Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(index)),
        ),
        (
            "value",
            Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(value)),
        ),
        ("label", Arc::new(label.collect::<StringArray>())),
        ("split", Arc::new(split.collect::<StringArray>())),
        (
            "blob",
            Arc::new(BinaryArray::from_iter_values(
                numbers.map(|i| vec![7; usize::try_from(i % 9).unwrap()]),
            )),
        ),
    ]
}

fn edges() -> Columns {
    let ids = |factor: i64| {
        let ids = (0..EDGES as i64).map(|edge| edge * factor % NODES as i64 * 7919 % 1009);
        Arc::new(Int64Array::from_iter_values(ids))
    };
    let weight = (0..EDGES).map(|edge| edge as f32 / 7.0);
    let kind = (0..EDGES).map(|edge| Some([Some(edge as f32), Some(1.0)]));
    vec![
        ("src", ids(17)),
        ("dst", ids(31)),
        ("weight", Arc::new(Float32Array::from_iter_values(weight))),
        (
            "kind",
            Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(kind)),
        ),
    ]
}

/// Encodings and compressions, by name.
fn writers(text_ids: bool) -> Vec<(&'static str, WriterProperties)> {
    let small = || {
        WriterProperties::builder()
            .set_max_row_group_row_count(Some(70))
            .set_data_page_row_count_limit(32)
            .set_write_batch_size(16)
    };
    let zstd = Compression::ZSTD(ZstdLevel::try_new(1).unwrap());
    let floats = [
        "features.list.item",
        "value.list.item",
        "kind.list.item",
        "weight",
        "width",
    ];
    let mut ints = vec!["src", "dst", "count", "index.list.item"];
    let mut texts = vec!["label", "split", "blob"];
    match text_ids {
        true => texts.push("id"),
        false => ints.push("id"),
    }
    let mut split = small().set_dictionary_enabled(false).set_compression(zstd);
    let mut deltas = small()
        .set_dictionary_enabled(false)
        .set_writer_version(WriterVersion::PARQUET_2_0);
    let path =
        |name: &str| ColumnPath::from(name.split('.').map(str::to_owned).collect::<Vec<_>>());
    for name in floats {
        split = split.set_column_encoding(path(name), Encoding::BYTE_STREAM_SPLIT);
    }
    for name in ints {
        deltas = deltas.set_column_encoding(path(name), Encoding::DELTA_BINARY_PACKED);
    }
    for name in texts {
        deltas = deltas.set_column_encoding(path(name), Encoding::DELTA_BYTE_ARRAY);
        split = split.set_column_encoding(path(name), Encoding::DELTA_LENGTH_BYTE_ARRAY);
    }
    vec![
        (
            "dictionaries",
            small().set_compression(Compression::SNAPPY).build(),
        ),
        ("plain", small().set_dictionary_enabled(false).build()),
        ("split", split.build()),
        ("deltas", deltas.build()),
        ("lz4", small().set_compression(Compression::LZ4_RAW).build()),
        (
            "whole",
            WriterProperties::builder().set_compression(zstd).build(),
        ),
    ]
}

fn write(path: &Path, columns: &Columns, properties: WriterProperties) {
    let nullable = columns
        .iter()
        .map(|(name, array)| (*name, Arc::clone(array), true));
    let batch = RecordBatch::try_from_iter_with_nullable(nullable).unwrap();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

/// Reads a table of nodes with every function that reads one.
fn read_nodes(spec: &NodesSpec) -> schemas::Result<u64> {
    let plan = spec.clone().into_plan(Path::new(""))?;
    let (mut names, mut max, mut text) = (Vec::new(), None, String::new());
    let mut categories = Categories::default();
    for unit in plan.units() {
        let keys = plan.read_keys(unit)?;
        names.extend(keys.class_names);
        max = max.max(keys.max_class);
        plan.merge_categories(&mut categories, keys.categories)?;
        text.push_str(&format!("{:?}", plan.read_splits(unit)?));
    }
    names.sort();
    names.dedup();
    let label = plan.label_meta(names, max)?;
    let columns = plan.column_meta(categories, &[]);
    for unit in plan.units() {
        let rows = plan.read_rows(unit, label.as_ref(), &columns)?;
        text.push_str(&format!("{rows:?}"));
    }
    plan.fingerprint()?;
    Ok(schemas::xxh::hash_bytes(text.as_bytes()))
}

fn read_edges(spec: &EdgesSpec) -> schemas::Result<u64> {
    let plan = spec.clone().into_plan(Path::new(""))?;
    let mut text = String::new();
    for unit in plan.units() {
        text.push_str(&format!("{:?}", plan.read(unit)?));
        for batch in plan.end_batches(unit)? {
            text.push_str(&format!("{:?}", batch?));
        }
    }
    Ok(schemas::xxh::hash_bytes(text.as_bytes()))
}

pub(crate) fn subjects(root: &Path) -> Vec<Subject> {
    let mut subjects = Vec::new();
    for text_ids in [false, true] {
        for (name, properties) in writers(text_ids) {
            let dir = root.join(format!("nodes-{name}-{text_ids}"));
            std::fs::create_dir_all(&dir).unwrap();
            let path = dir.join("nodes.parquet");
            write(&path, &nodes(text_ids), properties.clone());
            let features = match text_ids {
                true => json!({ "features": ["features", "width", "count"] }),
                false => json!({ "sparse": { "index": "index", "value": "value", "width": 20 } }),
            };
            let mut spec = json!({ "path": path, "id": "id", "label": "label", "split": "split" });
            let keys = spec.as_object_mut().unwrap();
            keys.extend(features.as_object().unwrap().clone());
            let spec: NodesSpec = serde_json::from_value(spec).unwrap();
            subjects.push(Subject::new(name, &dir, false, move || read_nodes(&spec)));
        }
    }
    for (name, properties) in writers(false) {
        let dir = root.join(format!("edges-{name}"));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join("edges.parquet");
        write(&path, &edges(), properties);
        let spec = json!({
            "path": path, "src": "src", "dst": "dst", "weight": "weight", "features": ["kind"],
        });
        let spec: EdgesSpec = serde_json::from_value(spec).unwrap();
        subjects.push(Subject::new(name, &dir, false, move || read_edges(&spec)));
    }
    subjects
}
