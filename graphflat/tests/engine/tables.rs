//! Graphs as Parquet tables of several files and row groups.

use crate::graph::{Edge, Graph, Id, LabelColumn, NodeFeatures};
use arrow::array::{
    ArrayRef, Float32Array, Float64Array, Int32Array, Int64Array, ListArray, RecordBatch,
    StringArray, UInt64Array,
};
use arrow::datatypes::{Float32Type, Int8Type, UInt16Type};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use schemas::{
    Dangling, EdgesSpec, IdType, NodesSpec, NumericLabel, SparseSpec, Split, SplitSpec, SplitValues,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// How a table is split into files and row groups.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) files: usize,
    pub(crate) row_group: usize,
}

const SPLIT_VALUES: SplitValues = SplitValues {
    train: 0,
    val: 1,
    test: 2,
    none: None,
};

/// Writes both tables of a graph below `dir`; splits are words if `cut` has one file, else numbers.
pub(crate) fn write_tables(graph: &Graph, dir: &Path, cut: Cut) {
    write_nodes(graph, &dir.join("nodes"), cut);
    let ends = Ends {
        src: graph.id_type,
        dst: graph.id_type,
        weighted: graph.weighted,
        edge_dim: graph.edge_dim,
    };
    write_edges(&graph.edges, ends, &dir.join("edges"), cut);
}

/// Writes a node table into the folder `dir`.
pub(crate) fn write_nodes(graph: &Graph, dir: &Path, cut: Cut) {
    write_table(dir, graph.ids.len(), cut, |rows| {
        node_columns(graph, rows, cut.files == 1)
    });
}

/// The columns of an edge table.
#[derive(Clone, Copy)]
pub(crate) struct Ends {
    pub(crate) src: IdType,
    pub(crate) dst: IdType,
    pub(crate) weighted: bool,
    pub(crate) edge_dim: usize,
}

/// Writes an edge table into the folder `dir`.
pub(crate) fn write_edges(edges: &[Edge], ends: Ends, dir: &Path, cut: Cut) {
    write_table(dir, edges.len(), cut, |rows| {
        edge_columns(&edges[rows], ends)
    });
}

pub(crate) fn nodes_spec(graph: &Graph, cut: Cut) -> NodesSpec {
    let dense = matches!(graph.features, NodeFeatures::Dense(_));
    let sparse = match &graph.features {
        NodeFeatures::Sparse { width, .. } => Some(SparseSpec {
            index: "position".to_owned(),
            value: "value".to_owned(),
            width: *width,
        }),
        _ => None,
    };
    let features: &[&str] = if dense { &["first", "others"] } else { &[] };
    NodesSpec {
        path: "nodes".into(),
        id: "name".to_owned(),
        features: features.iter().map(|&name| name.to_owned()).collect(),
        columns: BTreeMap::new(),
        sparse,
        label: (!matches!(graph.labels, LabelColumn::None)).then(|| "label".to_owned()),
        // Random labels may all be whole numbers, which would be taken for classes.
        label_kind: matches!(graph.labels, LabelColumn::Number(_)).then_some(NumericLabel::Number),
        split: graph
            .splits
            .as_ref()
            .map(|_| SplitSpec::Column("split".to_owned())),
        split_values: (graph.splits.is_some() && cut.files > 1).then_some(SPLIT_VALUES),
        ..NodesSpec::default()
    }
}

pub(crate) fn edges_spec(graph: &Graph) -> EdgesSpec {
    let features: &[&str] = if graph.edge_dim > 0 { &["kind"] } else { &[] };
    EdgesSpec {
        path: "edges".into(),
        src: "from".to_owned(),
        dst: "to".to_owned(),
        undirected: graph.undirected,
        weight: graph.weighted.then(|| "weight".to_owned()),
        features: features.iter().map(|&name| name.to_owned()).collect(),
        dangling: Dangling::Error,
        ..EdgesSpec::default()
    }
}

/// Writes a list of ids, for the key `targets` of a job.
pub(crate) fn write_list(path: &Path, id_type: IdType, ids: &[Id]) {
    let cut = Cut {
        files: 1,
        row_group: 2,
    };
    write_file(path, ids.len(), cut, |rows| {
        vec![("name", id_array(id_type, ids[rows].iter()))]
    });
}

type Columns = Vec<(&'static str, ArrayRef)>;

fn write_table(dir: &Path, rows: usize, cut: Cut, columns: impl Fn(Range<usize>) -> Columns) {
    std::fs::create_dir_all(dir).unwrap();
    for file in 0..cut.files {
        let (start, end) = (rows * file / cut.files, rows * (file + 1) / cut.files);
        let path = dir.join(format!("{file:02}.parquet"));
        write_file(&path, end - start, cut, |range| {
            columns(start + range.start..start + range.end)
        });
    }
}

fn write_file(path: &Path, rows: usize, cut: Cut, columns: impl Fn(Range<usize>) -> Columns) {
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns(0..rows)
            .into_iter()
            .map(|(name, array)| (name, array, true)),
    )
    .unwrap();
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(Some(cut.row_group))
        .build();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

fn node_columns(graph: &Graph, rows: Range<usize>, splits_are_words: bool) -> Columns {
    let mut columns = vec![(
        "name",
        id_array(graph.id_type, graph.ids[rows.clone()].iter()),
    )];
    match &graph.features {
        NodeFeatures::None => {}
        NodeFeatures::Dense(all) => {
            let first = all[rows.clone()].iter().map(|row| f64::from(row[0]));
            columns.push(("first", Arc::new(Float64Array::from_iter_values(first))));
            let others = all[rows.clone()].iter().map(|row| &row[1..]);
            columns.push(("others", floats(others)));
        }
        NodeFeatures::Sparse { rows: all, .. } => {
            let positions = all[rows.clone()].iter().map(|row| {
                Some(
                    row.iter()
                        .map(|&(position, _)| Some(u16::try_from(position).unwrap()))
                        .collect::<Vec<_>>(),
                )
            });
            let positions = ListArray::from_iter_primitive::<UInt16Type, _, _>(positions);
            columns.push(("position", Arc::new(positions)));
            let values: Vec<Vec<f32>> = all[rows.clone()]
                .iter()
                .map(|row| row.iter().map(|&(_, value)| value).collect())
                .collect();
            columns.push(("value", floats(values.iter().map(Vec::as_slice))));
        }
    }
    columns.extend(label_column(&graph.labels, rows.clone()));
    if let Some(splits) = &graph.splits {
        columns.push(("split", split_column(&splits[rows], splits_are_words)));
    }
    columns
}

fn edge_columns(edges: &[Edge], ends: Ends) -> Columns {
    let mut columns: Columns = vec![
        ("from", id_array(ends.src, edges.iter().map(|e| &e.src))),
        ("to", id_array(ends.dst, edges.iter().map(|e| &e.dst))),
    ];
    if ends.weighted {
        let weights = edges.iter().map(|e| e.weight);
        columns.push(("weight", Arc::new(Float32Array::from_iter_values(weights))));
    }
    if ends.edge_dim > 0 {
        columns.push(("kind", floats(edges.iter().map(|e| e.feature.as_slice()))));
    }
    columns
}

fn floats<'a>(rows: impl Iterator<Item = &'a [f32]>) -> ArrayRef {
    let rows = rows.map(|row| Some(row.iter().copied().map(Some).collect::<Vec<_>>()));
    Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(rows))
}

fn id_array<'a>(id_type: IdType, ids: impl Iterator<Item = &'a Id>) -> ArrayRef {
    let int = |id: &Id| match id {
        Id::Int(id) => *id,
        Id::Text(text) => panic!("{text:?} is not an integer"),
    };
    match id_type {
        IdType::Int32 => Arc::new(Int32Array::from_iter_values(
            ids.map(|id| i32::try_from(int(id)).unwrap()),
        )),
        IdType::Int64 => Arc::new(Int64Array::from_iter_values(
            ids.map(|id| i64::try_from(int(id)).unwrap()),
        )),
        IdType::UInt64 => Arc::new(UInt64Array::from_iter_values(
            ids.map(|id| u64::try_from(int(id)).unwrap()),
        )),
        IdType::Utf8 => Arc::new(StringArray::from_iter_values(ids.map(|id| match id {
            Id::Int(id) => panic!("{id} is not a string"),
            Id::Text(text) => text,
        }))),
    }
}

fn label_column(labels: &LabelColumn, rows: Range<usize>) -> Option<(&'static str, ArrayRef)> {
    let array: ArrayRef = match labels {
        LabelColumn::None => return None,
        LabelColumn::Class(all) => Arc::new(Int64Array::from_iter(
            all[rows].iter().map(|class| class.map(i64::from)),
        )),
        LabelColumn::Name(all) => Arc::new(StringArray::from_iter(&all[rows])),
        LabelColumn::Multi(all) => {
            let rows = all[rows].iter().map(|row| {
                row.as_ref()
                    .map(|row| row.iter().map(|&is| Some(i8::from(is))).collect::<Vec<_>>())
            });
            Arc::new(ListArray::from_iter_primitive::<Int8Type, _, _>(rows))
        }
        LabelColumn::Number(all) => Arc::new(Float32Array::from_iter(all[rows].iter().copied())),
    };
    Some(("label", array))
}

fn split_column(splits: &[Split], are_words: bool) -> ArrayRef {
    let number = |split: &Split| match split {
        Split::None => None,
        Split::Train => Some(SPLIT_VALUES.train),
        Split::Val => Some(SPLIT_VALUES.val),
        Split::Test => Some(SPLIT_VALUES.test),
    };
    let word = |split: &Split| (*split != Split::None).then(|| split.as_str());
    if are_words {
        Arc::new(StringArray::from_iter(splits.iter().map(word)))
    } else {
        Arc::new(Int64Array::from_iter(splits.iter().map(number)))
    }
}
