//! Input tables of every accepted shape, and every value and column that is refused.

mod bad;
mod columns;
mod csv;
mod csv_days;
mod feature_columns;
mod files;
mod graph;

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, BooleanArray, Float32Array, Float64Array, Int8Array, Int32Array, Int64Array,
    LargeListArray, ListArray, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use arrow::buffer::OffsetBuffer;
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float32Type, Int32Type, UInt8Type};
use parquet::arrow::ArrowWriter;
use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::file::properties::WriterProperties;

use super::{Categories, EdgeRows, NodeKeys, NodeRows};
use crate::columns::{Features, LabelKind, Labels, NO_CLASS, Split};
use crate::config::{
    Dangling, EdgesSpec, NodesSpec, NumericLabel, RowsWhere, SparseSpec, SplitShares, SplitSpec,
    SplitValues,
};
use crate::error::{ErrorKind, Result, RowPlace};
use crate::ids::{IdType, Ids};

type Columns<'a> = Vec<(&'a str, ArrayRef)>;

fn write(path: &Path, columns: &Columns<'_>, rows_a_group: usize) {
    let groups = WriterProperties::builder().set_max_row_group_row_count(Some(rows_a_group));
    write_with(path, columns, groups.build());
}

fn write_with(path: &Path, columns: &Columns<'_>, properties: WriterProperties) {
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let columns = columns
        .iter()
        .map(|(name, array)| (*name, Arc::clone(array), true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let file = std::fs::File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn ints(values: impl IntoIterator<Item = impl Into<Option<i64>>>) -> ArrayRef {
    Arc::new(values.into_iter().map(Into::into).collect::<Int64Array>())
}

fn floats(values: impl IntoIterator<Item = impl Into<Option<f32>>>) -> ArrayRef {
    Arc::new(values.into_iter().map(Into::into).collect::<Float32Array>())
}

fn strings(values: &[Option<&str>]) -> ArrayRef {
    Arc::new(StringArray::from(values.to_vec()))
}

fn float_lists(rows: &[Option<&[f32]>]) -> ArrayRef {
    let rows = rows
        .iter()
        .map(|row| row.map(|row| row.iter().copied().map(Some)));
    Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))
}

fn int_lists(rows: &[Option<&[i32]>]) -> ArrayRef {
    let rows = rows
        .iter()
        .map(|row| row.map(|row| row.iter().copied().map(Some)));
    Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(rows))
}

fn with_type(array: &ArrayRef, data_type: &DataType) -> ArrayRef {
    cast(array, data_type).unwrap()
}

fn dictionary() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Utf8))
}

/// `id`, and `x` as the only feature, from `nodes.parquet`.
fn nodes_spec() -> NodesSpec {
    NodesSpec {
        path: "nodes.parquet".into(),
        id: "id".to_owned(),
        features: Vec::new(),
        columns: BTreeMap::new(),
        sparse: None,
        label: None,
        label_kind: None,
        num_classes: None,
        split: None,
        split_values: None,
        transform: None,
        embedding: None,
        graph: None,
        rows_where: RowsWhere::new(),
    }
}

fn edges_spec() -> EdgesSpec {
    EdgesSpec {
        path: "edges.parquet".into(),
        src: "src".to_owned(),
        dst: "dst".to_owned(),
        dangling: Dangling::Error,
        ..EdgesSpec::default()
    }
}

/// Reads a whole table of nodes as a job does: keys of all units first, then all rows.
fn read_nodes(spec: NodesSpec, base: &Path) -> Result<(Option<LabelKind>, NodeRows)> {
    let plan = spec.into_plan(base)?;
    let keys: Vec<NodeKeys> = plan
        .units()
        .iter()
        .map(|unit| plan.read_keys(unit))
        .collect::<Result<_>>()?;
    let mut names: Vec<String> = keys
        .iter()
        .flat_map(|keys| keys.class_names.clone())
        .collect();
    names.sort();
    names.dedup();
    let mut categories = Categories::default();
    for unit_keys in &keys {
        plan.merge_categories(&mut categories, unit_keys.categories.clone())?;
    }
    let columns = plan.column_meta(categories, &[]);
    let max_class = keys.iter().filter_map(|keys| keys.max_class).max();
    let label = plan.label_meta(names, max_class)?;
    let mut rows = NodeRows {
        ids: Ids::new(plan.id_type()),
        features: Features::empty(plan.feature_meta()),
        labels: Labels::empty(label.as_ref()),
        split: Vec::new(),
        gaps: vec![false; columns.len()],
    };
    for (unit, unit_keys) in plan.units().iter().zip(&keys) {
        let read = plan.read_rows(unit, label.as_ref(), &columns)?;
        assert_eq!(read.ids, unit_keys.ids);
        assert_eq!(read.ids.len(), unit.num_rows);
        rows.ids.extend_from(&read.ids, 0..read.ids.len());
        rows.features.extend(&read.features);
        rows.labels.extend(&read.labels);
        rows.split.extend(read.split);
        let gaps = rows.gaps.iter_mut().zip(read.gaps);
        gaps.for_each(|(all, found)| *all |= found);
    }
    Ok((label.map(|label| label.kind), rows))
}

#[test]
fn nodes_are_read_some_at_a_time() {
    // At this width, a batch has 64 rows.
    let row: Vec<f32> = (0..1024u16).map(f32::from).collect();
    let lists: Vec<Option<&[f32]>> = vec![Some(&row); 200];
    let dir = tempfile::tempdir().unwrap();
    let columns = vec![("id", ints(0..200)), ("x", float_lists(&lists))];
    write(&dir.path().join("nodes.parquet"), &columns, 200);
    let mut spec = nodes_spec();
    spec.features = vec!["x".to_owned()];
    let plan = spec.into_plan(dir.path()).unwrap();
    let mut reader = plan.reader(&plan.units()[0], (None, &[])).unwrap();
    let (mut rows, mut all) = (plan.no_rows(None, 0), plan.no_rows(None, 0));
    for expected in [128, 72, 0] {
        rows.clear();
        reader.read(100, &mut rows).unwrap();
        assert_eq!(rows.ids.len(), expected);
        all.ids.extend_from(&rows.ids, 0..expected);
        all.features.extend(&rows.features);
        all.split.extend(&rows.split);
    }
    assert_eq!(all, plan.read_rows(&plan.units()[0], None, &[]).unwrap());
}

/// Writes columns as nodes in two row groups and reads them back.
fn nodes(
    columns: &Columns<'_>,
    change: impl FnOnce(&mut NodesSpec),
) -> Result<(Option<LabelKind>, NodeRows)> {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("nodes.parquet"), columns, 2);
    let mut spec = nodes_spec();
    change(&mut spec);
    read_nodes(spec, dir.path())
}

fn edges(
    columns: &Columns<'_>,
    change: impl FnOnce(&mut EdgesSpec),
    non_negative: bool,
) -> Result<EdgeRows> {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("edges.parquet"), columns, 2);
    let mut spec = edges_spec();
    change(&mut spec);
    let mut plan = spec.into_plan(dir.path())?;
    if non_negative {
        plan = plan.with_non_negative_weights();
    }
    let mut all: Option<EdgeRows> = None;
    for unit in plan.units() {
        let read = plan.read(unit)?;
        let Some(rows) = &mut all else {
            all = Some(read);
            continue;
        };
        rows.src.extend_from(&read.src, 0..read.src.len());
        rows.dst.extend_from(&read.dst, 0..read.dst.len());
        if let (Some(weight), Some(more)) = (&mut rows.weight, read.weight) {
            weight.extend(more);
        }
        if let (Some(feature), Some(more)) = (&mut rows.feature, read.feature) {
            feature.extend(more);
        }
    }
    Ok(all.unwrap())
}

fn ids_of(rows: &Ids) -> Vec<String> {
    (0..rows.len()).map(|i| rows.display(i)).collect()
}

#[test]
fn ids_of_every_type_are_read() {
    let check = |array: ArrayRef, id_type: IdType, expected: &[&str]| {
        let (_, rows) = nodes(&vec![("id", array)], |_| {}).unwrap();
        assert_eq!(rows.ids.id_type(), id_type);
        assert_eq!(ids_of(&rows.ids), expected);
    };
    let small = ints([5, 1, 3]);
    for (data_type, id_type) in [
        (DataType::Int8, IdType::Int32),
        (DataType::UInt16, IdType::Int32),
        (DataType::Int32, IdType::Int32),
        (DataType::UInt32, IdType::Int64),
        (DataType::Int64, IdType::Int64),
        (DataType::UInt64, IdType::UInt64),
    ] {
        check(with_type(&small, &data_type), id_type, &["5", "1", "3"]);
    }
    check(
        ints([-5, i64::MIN]),
        IdType::Int64,
        &["-5", "-9223372036854775808"],
    );
    let text = strings(&[Some("vim"), Some(""), Some("ü")]);
    for data_type in [
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Utf8View,
        dictionary(),
    ] {
        check(
            with_type(&text, &data_type),
            IdType::Utf8,
            &["vim", "", "ü"],
        );
    }
}

#[test]
fn features_come_from_lists_numbers_and_sparse_columns() {
    let check = |columns: Columns<'_>, features: &[&str], dim: usize, expected: &[f32]| {
        let mut all = vec![("id", ints([1, 2, 3]))];
        all.extend(columns);
        let names = features.iter().map(|name| (*name).to_owned()).collect();
        let (_, rows) = nodes(&all, |spec| spec.features = names).unwrap();
        assert_eq!(
            rows.features,
            Features::Dense {
                dim,
                values: expected.to_vec()
            }
        );
    };
    let list = float_lists(&[Some(&[1.0, 2.0]), Some(&[3.0, 4.0]), Some(&[5.0, 6.0])]);
    let all = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let item = Arc::new(Field::new("item", DataType::Float64, true));
    for data_type in [
        DataType::List(Arc::clone(&item)),
        DataType::LargeList(Arc::clone(&item)),
        DataType::FixedSizeList(item, 2),
    ] {
        check(vec![("x", with_type(&list, &data_type))], &["x"], 2, &all);
    }
    let age: ArrayRef = Arc::new(Int8Array::from(vec![-7, 8, 9]));
    let is_free: ArrayRef = Arc::new(BooleanArray::from(vec![true, false, true]));
    check(
        vec![("age", age), ("x", list), ("free", is_free)],
        &["free", "x", "age"],
        4,
        &[1.0, 1.0, 2.0, -7.0, 0.0, 3.0, 4.0, 8.0, 1.0, 5.0, 6.0, 9.0],
    );
    let index = int_lists(&[Some(&[3, 0]), Some(&[]), Some(&[8])]);
    let value = float_lists(&[Some(&[0.5, 1.0]), Some(&[]), Some(&[2.0])]);
    let columns = vec![("id", ints([1, 2, 3])), ("i", index), ("v", value)];
    let (_, rows) = nodes(&columns, |spec| spec.sparse = Some(sparse(9))).unwrap();
    let expected = Features::Sparse {
        dim: 9,
        offset: vec![0, 2, 2, 3],
        index: vec![3, 0, 8],
        value: vec![0.5, 1.0, 2.0],
    };
    assert_eq!(rows.features, expected);
}

fn sparse(width: u32) -> SparseSpec {
    SparseSpec {
        index: "i".to_owned(),
        value: "v".to_owned(),
        width,
    }
}

#[test]
fn labels_of_every_kind_are_read() {
    let check = |array: ArrayRef, kind: LabelKind, expected: &Labels| {
        let columns = vec![("id", ints([1, 2, 3])), ("y", array)];
        let (found, rows) = nodes(&columns, |spec| spec.label = Some("y".to_owned())).unwrap();
        assert_eq!(found, Some(kind));
        assert_eq!(format!("{:?}", rows.labels), format!("{expected:?}"));
        assert_eq!([0, 1, 2].map(|i| rows.labels.has(i)), [true, false, true]);
    };
    let classes = Labels::Class(vec![4, NO_CLASS, 0]);
    for no_class in [Some(-1), None] {
        let numbers = ints([Some(4), no_class, Some(0)]);
        for data_type in [DataType::Int8, DataType::Int64] {
            let numbers = with_type(&numbers, &data_type);
            check(numbers, LabelKind::Class { num_classes: 5 }, &classes);
        }
    }
    let names = strings(&[Some("vcs"), None, Some("admin")]);
    let kind = || LabelKind::ClassName {
        names: vec!["admin".to_owned(), "vcs".to_owned()],
    };
    for data_type in [
        DataType::Utf8,
        DataType::LargeUtf8,
        DataType::Utf8View,
        dictionary(),
    ] {
        check(
            with_type(&names, &data_type),
            kind(),
            &Labels::Class(vec![1, NO_CLASS, 0]),
        );
    }
    let several = int_lists(&[Some(&[1, 0, 1]), None, Some(&[0, 0, 0])]);
    let multi = Labels::Multi {
        width: 3,
        values: vec![1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        present: vec![true, false, true],
    };
    for item in [DataType::Boolean, DataType::UInt8, DataType::Float64] {
        let item = Arc::new(Field::new("item", item, true));
        for list in [
            DataType::List(Arc::clone(&item)),
            DataType::FixedSizeList(item, 3),
        ] {
            check(
                with_type(&several, &list),
                LabelKind::MultiLabel { width: 3 },
                &multi,
            );
        }
    }
    let numbers = Labels::Number(vec![0.5, f32::NAN, -2.0]);
    check(
        floats([Some(0.5), None, Some(-2.0)]),
        LabelKind::Number,
        &numbers,
    );
}

/// Iceberg and others number the fields of a file, including those of list items.
#[test]
fn labels_with_field_ids_are_written_again() {
    let number = HashMap::from([("PARQUET:field_id".to_owned(), "7".to_owned())]);
    let item = Field::new("element", DataType::Int32, true).with_metadata(number);
    let list_type = DataType::List(Arc::new(item));
    let labels = with_type(&int_lists(&[Some(&[1, 0]), Some(&[0, 1])]), &list_type);
    let dir = tempfile::tempdir().unwrap();
    let columns = vec![("id", ints([1, 2])), ("y", labels)];
    write(&dir.path().join("nodes.parquet"), &columns, 2);
    let spec = NodesSpec {
        label: Some("y".to_owned()),
        ..nodes_spec()
    };
    let plan = spec.into_plan(dir.path()).unwrap();
    let meta = plan.label_meta(Vec::new(), None).unwrap().unwrap();
    let rows = plan.read_rows(&plan.units()[0], Some(&meta), &[]).unwrap();
    let written = crate::as_given::label_array(&rows.labels, &meta).unwrap();
    assert_eq!(written.len(), 2);
    assert!(!meta.data_type.contains("field_id"), "{}", meta.data_type);
}

#[test]
fn splits_are_words_or_chosen_numbers() {
    let check = |array: ArrayRef, values: Option<SplitValues>, expected: &[Split]| {
        let ids = ints(0..i64::try_from(array.len()).unwrap());
        let change = |spec: &mut NodesSpec| {
            spec.split = Some(SplitSpec::Column("s".to_owned()));
            spec.split_values = values;
        };
        let (_, rows) = nodes(&vec![("id", ids), ("s", array)], change).unwrap();
        assert_eq!(rows.split, expected);
    };
    use Split::{None as Out, Test, Train, Val};
    let words = [
        Some("train"),
        Some("val"),
        Some("test"),
        Some("none"),
        Some(""),
        None,
    ];
    let words = strings(&words);
    for data_type in [DataType::Utf8, DataType::Utf8View, dictionary()] {
        check(
            with_type(&words, &data_type),
            None,
            &[Train, Val, Test, Out, Out, Out],
        );
    }
    let values = SplitValues {
        train: 2,
        val: 0,
        test: 1,
        none: None,
    };
    let numbers = ints([Some(2), Some(0), Some(1), Some(-1), None]);
    check(
        with_type(&numbers, &DataType::Int8),
        Some(values),
        &[Train, Val, Test, Out, Out],
    );
    let named = SplitValues {
        none: Some(3),
        ..values
    };
    let more = ints([Some(3), Some(-1), Some(0), None]);
    check(more, Some(named), &[Out, Out, Val, Out]);
}

#[test]
fn edges_are_read_with_weights_and_features() {
    let columns = vec![
        ("src", ints([1, 2, 3])),
        ("dst", with_type(&ints([4, 5, 6]), &DataType::Int32)),
        (
            "w",
            Arc::new(Float64Array::from(vec![0.5, -1.0, 2.0])) as ArrayRef,
        ),
        ("kind", ints([7, 8, 9])),
        (
            "x",
            float_lists(&[Some(&[0.1]), Some(&[0.2]), Some(&[0.3])]),
        ),
    ];
    let rows = edges(
        &columns,
        |spec| {
            spec.weight = Some("w".to_owned());
            spec.features = vec!["x".to_owned(), "kind".to_owned()];
        },
        false,
    );
    let rows = rows.unwrap();
    assert_eq!(ids_of(&rows.src), ["1", "2", "3"]);
    assert_eq!(ids_of(&rows.dst), ["4", "5", "6"]);
    assert_eq!(rows.dst.id_type(), IdType::Int64);
    assert_eq!(rows.weight, Some(vec![0.5, -1.0, 2.0]));
    assert_eq!(rows.feature, Some(vec![0.1, 7.0, 0.2, 8.0, 0.3, 9.0]));
}

#[test]
fn tables_of_many_files_are_one_table() {
    let dir = tempfile::tempdir().unwrap();
    let base = dir.path();
    let part = |name: &str, ids: &[i64]| {
        let columns = vec![("id", ints(ids.iter().copied()))];
        write(&base.join("nodes").join(name), &columns, 2);
    };
    part("b=2/part-1.parquet", &[4, 5, 6]);
    part("b=1/part-2.parquet", &[1, 2, 3]);
    part("b=2/_temporary/part-3.parquet", &[7]);
    part("b=2/.part-4.parquet", &[8]);
    std::fs::write(base.join("nodes/README.txt"), "not a table").unwrap();
    let spec = |path: &str| NodesSpec {
        path: path.into(),
        ..nodes_spec()
    };
    let absolute = format!("file://{}/nodes", base.display());
    for path in ["nodes", "nodes/b*", "nodes/b=?/*", &absolute] {
        let (_, rows) = read_nodes(spec(path), base).unwrap();
        assert_eq!(ids_of(&rows.ids), ["1", "2", "3", "4", "5", "6"], "{path}");
    }
    let plan = spec("nodes").into_plan(base).unwrap();
    let units = plan
        .units()
        .iter()
        .map(|u| (u.file, u.row_group, u.first_row, u.num_rows));
    assert!(units.eq([(0, 0, 0, 2), (0, 1, 2, 1), (1, 0, 3, 2), (1, 1, 5, 1)]));
    assert_eq!(plan.num_rows(), 6);
    assert_eq!(
        plan.locate(2),
        (base.join("nodes/b=1/part-2.parquet"), RowPlace::Row(2))
    );
    assert_eq!(
        plan.locate(3),
        (base.join("nodes/b=2/part-1.parquet"), RowPlace::Row(0))
    );

    let fingerprint = plan.fingerprint().unwrap();
    assert_eq!(
        fingerprint,
        spec("nodes")
            .into_plan(base)
            .unwrap()
            .fingerprint()
            .unwrap()
    );
    let moved = base.join("moved");
    std::fs::rename(base.join("nodes"), &moved).unwrap();
    assert_eq!(
        fingerprint,
        spec("moved")
            .into_plan(base)
            .unwrap()
            .fingerprint()
            .unwrap()
    );
    std::fs::rename(&moved, base.join("nodes")).unwrap();
    part("b=2/part-1.parquet", &[4, 5, 7]);
    assert_ne!(
        fingerprint,
        spec("nodes")
            .into_plan(base)
            .unwrap()
            .fingerprint()
            .unwrap()
    );
}

#[test]
fn files_of_every_compression_are_read() {
    for compression in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4,
        Compression::LZ4_RAW,
        Compression::ZSTD(ZstdLevel::default()),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let properties = WriterProperties::builder().set_compression(compression);
        let columns = vec![("id", ints(0..1000))];
        let path = dir.path().join("nodes.parquet");
        write_with(&path, &columns, properties.build());
        let (_, rows) = read_nodes(nodes_spec(), dir.path()).unwrap();
        assert_eq!(rows.ids.len(), 1000, "{compression}");
    }
}

#[test]
fn empty_tables_are_read() {
    let columns: Columns<'_> = vec![
        ("id", ints(Vec::<i64>::new())),
        ("x", float_lists(&[])),
        ("y", Arc::new(Int32Array::from(Vec::<i32>::new()))),
    ];
    let x = |spec: &mut NodesSpec| spec.features = vec!["x".to_owned()];
    let (_, rows) = nodes(&columns, x).unwrap();
    assert!(rows.ids.is_empty());
    assert_eq!(
        rows.features,
        Features::Dense {
            dim: 0,
            values: Vec::new()
        }
    );
}

#[test]
fn closest_names_are_suggested() {
    let check = |written: &str, expected: Option<&str>| {
        assert_eq!(
            super::closest(written, &["features", "label", "split"]),
            expected
        );
    };
    check("feature", Some("features"));
    check("Label", Some("label"));
    check("spilt", None);
    check("splits", Some("split"));
    check("id", None);
}
