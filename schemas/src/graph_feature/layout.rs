//! Columns of both layouts on disk.

use arrow::datatypes::{DataType, Field, Schema};

use crate::as_given;
use crate::columns::{FeatureMeta, GraphMeta};
use crate::dataset::part_name;
use crate::error::{Result, SchemaError};
use crate::fanout::FlattenMeta;
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

pub(super) fn nodes_path(index: usize) -> String {
    format!("nodes/{}", rows_path(index))
}

pub(super) fn edges_path(index: usize) -> String {
    format!("edges/{}", rows_path(index))
}

fn push_if(fields: &mut Vec<Field>, there: bool, field: impl FnOnce() -> Field) {
    if there {
        fields.push(field());
    }
}

fn push_label_and_split(fields: &mut Vec<Field>, meta: &GraphMeta) -> Result<()> {
    if let Some(label) = &meta.label {
        fields.push(as_given::label_field("label", label)?);
    }
    if let Some(split) = &meta.split {
        fields.push(as_given::split_field(split)?);
    }
    Ok(())
}

/// One row a target.
pub(super) fn rows_schema(meta: &GraphMeta) -> Result<Schema> {
    let floats = |name| list_field(name, DataType::Float32);
    let positions = |name| list_field(name, DataType::UInt32);
    let mut fields = vec![Field::new("target", meta.id_type.data_type(), false)];
    push_label_and_split(&mut fields, meta)?;
    fields.push(list_field("node_id", meta.id_type.data_type()));
    fields.extend([positions("hop_offset"), positions("in_degree")]);
    push_if(&mut fields, meta.edge_weight, || floats("in_weight"));
    push_if(&mut fields, meta.self_loops, || positions("self_loops"));
    push_if(&mut fields, meta.self_weight(), || floats("self_weight"));
    match meta.features {
        FeatureMeta::None => {}
        FeatureMeta::Dense { .. } => fields.push(floats("node_feature")),
        FeatureMeta::Sparse { .. } => fields.extend([
            positions("feature_offset"),
            positions("feature_index"),
            floats("feature_value"),
        ]),
    }
    fields.extend([positions("in_offset"), positions("in_src")]);
    push_if(&mut fields, meta.edge_weight, || floats("edge_weight"));
    push_if(&mut fields, meta.edge_feature_dim.is_some(), || {
        floats("edge_feature")
    });
    Ok(Schema::new(fields))
}

/// One row a node of the shard.
pub(super) fn nodes_schema(meta: &GraphMeta) -> Result<Schema> {
    let number = |name| Field::new(name, DataType::Float32, false);
    let mut fields = vec![
        Field::new("id", meta.id_type.data_type(), false),
        Field::new("hop", DataType::UInt8, false),
        Field::new("in_degree", DataType::UInt32, false),
    ];
    push_if(&mut fields, meta.edge_weight, || number("in_weight"));
    push_if(&mut fields, meta.self_loops, || {
        Field::new("self_loops", DataType::UInt32, false)
    });
    push_if(&mut fields, meta.self_weight(), || number("self_weight"));
    match meta.features {
        FeatureMeta::None => {}
        FeatureMeta::Dense { .. } => fields.push(list_field("feature", DataType::Float32)),
        FeatureMeta::Sparse { .. } => fields.extend([
            list_field("feature_index", DataType::UInt32),
            list_field("feature_value", DataType::Float32),
        ]),
    }
    push_label_and_split(&mut fields, meta)?;
    fields.push(Field::new("is_target", DataType::Boolean, false));
    Ok(Schema::new(fields))
}

/// One row an edge of the shard, sorted by (dst, rank).
pub(super) fn edges_schema(meta: &GraphMeta) -> Schema {
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
