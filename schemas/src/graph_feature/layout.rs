//! Columns of both layouts on disk.

use arrow::datatypes::{DataType, Field, Schema};

use super::pairs;
use crate::as_given;
use crate::columns::{FeatureMeta, GraphMeta, RelationMeta, TypeMeta};
use crate::dataset::part_name;
use crate::error::{Result, SchemaError};
use crate::fanout::{FlattenMeta, Layout};
use crate::parquet_file::{TABLE_SCHEMA, list_field};

/// Metadata key of the tables' schema version.
pub(super) const SCHEMA_KEY: &str = "graphflat.schema";

/// Metadata key of the description of the tables.
pub(super) const GRAPH_KEY: &str = "graphflat.graph";
/// Metadata key of how graph features were made.
pub(super) const FLATTEN_KEY: &str = "graphflat.flatten";

/// The metadata of each file.
pub(super) fn metadata(
    meta: &GraphMeta,
    flatten: &FlattenMeta,
) -> Result<[(&'static str, String); 3]> {
    let invalid = |error: serde_json::Error| SchemaError::Invalid {
        what: "table metadata",
        problem: error.to_string(),
    };
    Ok([
        (SCHEMA_KEY, TABLE_SCHEMA.to_owned()),
        (GRAPH_KEY, serde_json::to_string(meta).map_err(invalid)?),
        (
            FLATTEN_KEY,
            serde_json::to_string(flatten).map_err(invalid)?,
        ),
    ])
}

pub(super) fn rows_path(index: usize) -> String {
    format!("{}.parquet", part_name(index))
}

/// Path of the nodes of a type; of an untyped graph if the name is empty.
pub(super) fn nodes_path(type_name: &str, index: usize) -> String {
    path("nodes", type_name, index)
}

/// Path of the edges of a relation; of an untyped graph if the name is empty.
pub(super) fn edges_path(relation_name: &str, index: usize) -> String {
    path("edges", relation_name, index)
}

/// Path of the pairs of a part.
pub(super) fn pairs_path(index: usize) -> String {
    path("pairs", "", index)
}

fn path(table: &str, name: &str, index: usize) -> String {
    match name {
        "" => format!("{table}/{}", rows_path(index)),
        name => format!("{table}/{name}/{}", rows_path(index)),
    }
}

/// Returns the number of files of a part.
pub(super) fn num_files(meta: &GraphMeta, layout: Layout) -> usize {
    match layout {
        Layout::Rows => 1,
        Layout::Shards => {
            meta.types.len() + meta.relations.len() + usize::from(meta.pairs.is_some())
        }
    }
}

/// Name of a column of a type or a relation; of an untyped graph if the name is empty.
pub(super) fn column(name: &str, column: &str) -> String {
    match name {
        "" => column.to_owned(),
        name => format!("{name}.{column}"),
    }
}

fn push_if(fields: &mut Vec<Field>, there: bool, field: impl FnOnce() -> Field) {
    if there {
        fields.push(field());
    }
}

fn push_label_and_split(fields: &mut Vec<Field>, meta: &TypeMeta) -> Result<()> {
    if let Some(label) = &meta.label {
        fields.push(as_given::label_field("label", label)?);
    }
    if let Some(split) = &meta.split {
        fields.push(as_given::split_field(split)?);
    }
    Ok(())
}

/// Degree columns of the relations that lead to a type; `number` makes a field of a type.
fn push_degrees(
    fields: &mut Vec<Field>,
    meta: &GraphMeta,
    type_idx: usize,
    number: impl Fn(String, DataType) -> Field,
) {
    for relation in meta.relations_to(type_idx) {
        let relation = &meta.relations[relation];
        let field = |name, data_type| number(column(&relation.name, name), data_type);
        fields.push(field("in_degree", DataType::UInt32));
        push_if(fields, relation.edge_weight, || {
            field("in_weight", DataType::Float32)
        });
        push_if(fields, relation.self_loops, || {
            field("self_loops", DataType::UInt32)
        });
        push_if(fields, relation.self_weight(), || {
            field("self_weight", DataType::Float32)
        });
    }
}

/// One row a node whose degrees a version gives.
pub(super) fn degrees_fields(meta: &GraphMeta, type_idx: usize) -> Vec<Field> {
    let id_type = meta.types[type_idx].id_type.data_type();
    let mut fields = vec![Field::new("id", id_type, false)];
    push_degrees(&mut fields, meta, type_idx, |name, data_type| {
        Field::new(name, data_type, false)
    });
    fields
}

/// One row a target, or a pair.
pub(super) fn rows_schema(meta: &GraphMeta) -> Result<Schema> {
    let target = meta.target();
    let mut fields = Vec::new();
    match &meta.pairs {
        Some(pairs) => {
            let of_pairs = pairs::schema(pairs)?;
            fields.extend(of_pairs.fields().iter().map(|field| field.as_ref().clone()));
        }
        None => {
            fields.push(Field::new("target", target.id_type.data_type(), false));
            push_label_and_split(&mut fields, target)?;
        }
    }
    for (type_idx, nodes) in meta.types.iter().enumerate() {
        let list = |name, data_type| list_field(&column(&nodes.name, name), data_type);
        fields.push(list("node_id", nodes.id_type.data_type()));
        fields.push(list("hop_offset", DataType::UInt32));
        push_degrees(&mut fields, meta, type_idx, |name, data_type| {
            list_field(&name, data_type)
        });
        match nodes.features {
            FeatureMeta::None => {}
            FeatureMeta::Dense { .. } => fields.push(list("node_feature", DataType::Float32)),
            FeatureMeta::Sparse { .. } => fields.extend([
                list("feature_offset", DataType::UInt32),
                list("feature_index", DataType::UInt32),
                list("feature_value", DataType::Float32),
            ]),
        }
    }
    for edges in &meta.relations {
        let list = |name, data_type| list_field(&column(&edges.name, name), data_type);
        fields.push(list("in_offset", DataType::UInt32));
        fields.push(list("in_src", DataType::UInt32));
        push_if(&mut fields, edges.edge_weight, || {
            list("edge_weight", DataType::Float32)
        });
        push_if(&mut fields, edges.edge_feature_dim.is_some(), || {
            list("edge_feature", DataType::Float32)
        });
    }
    Ok(Schema::new(fields))
}

/// One row a node of a type of the shard.
pub(super) fn nodes_schema(meta: &GraphMeta, type_idx: usize) -> Result<Schema> {
    let nodes = &meta.types[type_idx];
    let mut fields = vec![
        Field::new("id", nodes.id_type.data_type(), false),
        Field::new("hop", DataType::UInt8, false),
    ];
    push_degrees(&mut fields, meta, type_idx, |name, data_type| {
        Field::new(name, data_type, false)
    });
    match nodes.features {
        FeatureMeta::None => {}
        FeatureMeta::Dense { .. } => fields.push(list_field("feature", DataType::Float32)),
        FeatureMeta::Sparse { .. } => fields.extend([
            list_field("feature_index", DataType::UInt32),
            list_field("feature_value", DataType::Float32),
        ]),
    }
    if meta.may_be_targets(type_idx) {
        push_label_and_split(&mut fields, nodes)?;
        fields.push(Field::new("is_target", DataType::Boolean, false));
    }
    Ok(Schema::new(fields))
}

/// One row an edge of a relation of the shard, sorted by (dst, rank).
pub(super) fn edges_schema(meta: &RelationMeta) -> Schema {
    let position = |name| Field::new(name, DataType::UInt32, false);
    let mut fields = vec![position("dst"), position("rank"), position("src")];
    push_if(&mut fields, meta.edge_weight, || {
        Field::new("weight", DataType::Float32, false)
    });
    push_if(&mut fields, meta.edge_feature_dim.is_some(), || {
        list_field("feature", DataType::Float32)
    });
    Schema::new(fields)
}
