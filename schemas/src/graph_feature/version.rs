//! Tables of a version of graph features besides its rows: what it replaces, and the degrees of
//! nodes in rows that it keeps.

use std::path::Path;

use arrow::datatypes::Schema;
use hashbrown::HashTable;

use super::read::{append_degrees, append_ids};
use super::{FeatureEdges, GraphFeature, GraphShard, ShardEdges, layout};
use crate::columns::GraphMeta;
use crate::dataset::{
    DEGREES, FileEntry, Manifest, Output, PartEntry, ReplacedRows, VERSION, write_replaced,
};
use crate::error::Result;
use crate::ids::Ids;
use crate::parquet_file::{TABLE_SCHEMA, TableReader};
use crate::table_writer::{Column, Strings, TableWriter};

/// Rows of a batch.
const ROWS: usize = 1 << 16;

/// Writes the tables of a version of graph features besides its rows. `degrees` has the ids of
/// nodes whose degrees rows of earlier outputs may hold as they were, and their degrees now; its
/// other columns are not read. The caller commits the part.
///
/// # Errors
///
/// If a file cannot be written.
pub fn write_changed_degrees(
    output: &Output,
    replaced: &ReplacedRows,
    degrees: &GraphShard,
    meta: &GraphMeta,
) -> Result<PartEntry> {
    let mut files = vec![write_replaced(output, replaced, layout::SCHEMA_KEY)?];
    for type_idx in 0..meta.types.len() {
        files.push(write_degrees(output, degrees, (meta, type_idx))?);
    }
    Ok(PartEntry {
        name: VERSION.to_owned(),
        files,
        rows: 0,
        targets: None,
    })
}

/// Returns the name of the table of degrees of a type; of an untyped graph if the name is empty.
fn file_name(type_name: &str) -> String {
    match type_name {
        "" => format!("{DEGREES}.parquet"),
        name => format!("{DEGREES}-{name}.parquet"),
    }
}

fn write_degrees(
    output: &Output,
    degrees: &GraphShard,
    (meta, type_idx): (&GraphMeta, usize),
) -> Result<FileEntry> {
    let schema = Schema::new(layout::degrees_fields(meta, type_idx));
    let name = file_name(&meta.types[type_idx].name);
    let metadata = [(layout::SCHEMA_KEY, TABLE_SCHEMA.to_owned())];
    let mut table = TableWriter::create(output, &name, schema, Strings::Distinct, &metadata)?;
    let ids = &degrees.nodes[type_idx].ids;
    for start in (0..ids.len()).step_by(ROWS) {
        let rows = start..(start + ROWS).min(ids.len());
        let mut arrays = vec![ids.slice_to_array(rows.clone())];
        for relation in meta.relations_to(type_idx) {
            degrees.edges[relation].degree_arrays(rows.clone(), &mut arrays);
        }
        table.write(arrays.into_iter().map(Column::from).collect())?;
    }
    table.finish()
}

/// Degrees of nodes that replace those in rows of earlier outputs.
#[derive(Debug)]
pub(super) struct NewDegrees {
    degrees: GraphShard,
    /// By type, rows of nodes by the hashes of their ids.
    places: Vec<HashTable<u32>>,
}

/// The columns of degrees of the nodes that a relation leads to.
struct DegreeColumns<'a> {
    in_degree: &'a mut [u32],
    in_weight: Option<&'a mut Vec<f32>>,
    self_loops: Option<&'a mut Vec<u32>>,
    self_weight: Option<&'a mut Vec<f32>>,
}

impl DegreeColumns<'_> {
    /// Replaces the degrees of node `at` by those in a row.
    fn replace(&mut self, at: usize, (of, row): (&ShardEdges, usize)) {
        fn copy<T: Copy>(
            to: &mut Option<&mut Vec<T>>,
            at: usize,
            (from, row): (&Option<Vec<T>>, usize),
        ) {
            if let (Some(to), Some(from)) = (to, from) {
                to[at] = from[row];
            }
        }
        self.in_degree[at] = of.in_degree[row];
        copy(&mut self.in_weight, at, (&of.in_weight, row));
        copy(&mut self.self_loops, at, (&of.self_loops, row));
        copy(&mut self.self_weight, at, (&of.self_weight, row));
    }
}

impl ShardEdges {
    fn degrees_mut(&mut self) -> DegreeColumns<'_> {
        DegreeColumns {
            in_degree: &mut self.in_degree,
            in_weight: self.in_weight.as_mut(),
            self_loops: self.self_loops.as_mut(),
            self_weight: self.self_weight.as_mut(),
        }
    }
}

impl FeatureEdges {
    fn degrees_mut(&mut self) -> DegreeColumns<'_> {
        DegreeColumns {
            in_degree: &mut self.in_degree,
            in_weight: self.in_weight.as_mut(),
            self_loops: self.self_loops.as_mut(),
            self_weight: self.self_weight.as_mut(),
        }
    }
}

impl NewDegrees {
    /// Reads the degrees of a version; none if it keeps no rows.
    pub(super) fn read(dir: &Path, manifest: &Manifest, meta: &GraphMeta) -> Result<Option<Self>> {
        let version = manifest.parts.iter().find(|part| part.name == VERSION);
        let Some(version) = version.filter(|_| manifest.version.is_some()) else {
            return Ok(None);
        };
        let mut degrees = GraphShard::empty(meta);
        let mut places = Vec::new();
        for (type_idx, of_type) in meta.types.iter().enumerate() {
            let table = file_name(&of_type.name);
            if let Some(entry) = version.files.iter().find(|file| file.path == table) {
                let path = dir.join(&entry.path);
                let reader = TableReader::open(&path, entry, layout::SCHEMA_KEY)?;
                reader.for_each(|batch| {
                    append_ids(&mut degrees.nodes[type_idx].ids, batch, "id")?;
                    for relation in meta.relations_to(type_idx) {
                        let name = &meta.relations[relation].name;
                        append_degrees(&mut degrees.edges[relation], batch, name)?;
                    }
                    Ok(())
                })?;
            }
            let ids = &degrees.nodes[type_idx].ids;
            let hash = |&row: &u32| ids.hash(row as usize);
            let mut rows = HashTable::with_capacity(ids.len());
            for row in (0u32..).take(ids.len()) {
                rows.insert_unique(hash(&row), row, hash);
            }
            places.push(rows);
        }
        Ok(Some(Self { degrees, places }))
    }

    /// Replaces the degrees of a shard.
    pub(super) fn apply_to_shard(&self, shard: &mut GraphShard) {
        let GraphShard { nodes, edges, .. } = shard;
        let mut edges: Vec<_> = edges
            .iter_mut()
            .map(|of| (of.to, of.degrees_mut()))
            .collect();
        for (type_idx, of_type) in nodes.iter().enumerate() {
            self.replace(type_idx, &of_type.ids, &mut edges);
        }
    }

    /// Replaces the degrees of a neighbourhood.
    pub(super) fn apply_to_feature(&self, feature: &mut GraphFeature) {
        let GraphFeature { nodes, edges, .. } = feature;
        let mut edges: Vec<_> = edges
            .iter_mut()
            .map(|of| (of.to, of.degrees_mut()))
            .collect();
        for (type_idx, of_type) in nodes.iter().enumerate() {
            self.replace(type_idx, &of_type.node_id, &mut edges);
        }
    }

    /// Replaces the degrees of nodes of a type; `edges` has type `to` and degrees of each relation.
    fn replace(&self, type_idx: usize, ids: &Ids, edges: &mut [(usize, DegreeColumns<'_>)]) {
        let (own, places) = (&self.degrees.nodes[type_idx].ids, &self.places[type_idx]);
        if places.is_empty() {
            return;
        }
        for at in 0..ids.len() {
            let is_same = |&row: &u32| own.equal(row as usize, ids, at);
            let Some(&row) = places.find(ids.hash(at), is_same) else {
                continue;
            };
            let relations = edges.iter_mut().zip(&self.degrees.edges);
            for ((_, columns), of) in relations.filter(|((to, _), _)| *to == type_idx) {
                columns.replace(at, (of, row as usize));
            }
        }
    }
}
