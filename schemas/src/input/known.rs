//! What a trained model says of the input tables: how their CSV columns were read.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::columns::{FeatureColumn, GraphMeta};
use crate::config::ColumnKind;
use crate::graph_columns::{GraphColumns, TypedColumns};
use crate::ids::IdType;

/// The node tables of a training, by type; the type is empty if nodes have no types.
///
/// The types of CSV columns are inferred from the values of one day, so they may differ from those
/// of the training.
pub type KnownInput = BTreeMap<String, KnownNodes>;

/// The node table of a training.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownNodes {
    /// Type of the ids.
    pub id_type: Option<IdType>,
    /// Kinds of the feature columns.
    pub kinds: BTreeMap<String, ColumnKind>,
}

impl KnownNodes {
    /// Reads the entries `graph` and `columns` that a trainer keeps with its model. Entries that
    /// cannot be read say nothing.
    pub fn of_model(graph: &Value, columns: &Value) -> KnownInput {
        let mut known = KnownInput::new();
        if let Ok(graph) = serde_json::from_value::<GraphMeta>(graph.clone()) {
            for of_type in graph.types {
                known.entry(of_type.name).or_default().id_type = Some(of_type.id_type);
            }
        }
        let kinds = |features: Vec<FeatureColumn>| {
            let features = features.into_iter();
            features.map(|column| (column.name, column.kind)).collect()
        };
        if let Ok(columns) = serde_json::from_value::<GraphColumns>(columns.clone()) {
            known.entry(String::new()).or_default().kinds = kinds(columns.features);
        } else if let Ok(columns) = serde_json::from_value::<TypedColumns>(columns.clone()) {
            for (name, of_type) in columns.types {
                known.entry(name).or_default().kinds = kinds(of_type.features);
            }
        }
        known
    }
}
