//! Rows of inner layers that later versions need of earlier ones, beside their graphs, in the
//! working directory.

use crate::InferError;
use crate::identity::kept_plan;
use crate::kept_rows::KeptRows;
use crate::rows::RowRecord;
use cluster::gather_processes;
use graphdelta::{
    KeptVersions, NewStore, Reached, RebuildPlan, VersionRecord, WholeTables, link, write_nodes,
};
use schemas::{FileEntry, Manifest, NodeIdx};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use store::Store;

/// Files of kept rows.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct RowFiles {
    /// Rows of all nodes of the store after each inner layer, where a full run has left them.
    stored: Vec<RowRecord>,
    /// Rows that the version has changed, for each inner layer.
    changed: Vec<FileEntry>,
}

/// What is kept of a version.
pub(crate) type KeptRecord = VersionRecord<RowFiles>;

/// A version from which the next one is computed.
pub(crate) struct OpenVersion {
    pub(crate) record: KeptRecord,
    pub(crate) rows: KeptRows,
    /// Nodes of the rows of each output, the version's own last; none: the nodes of the store.
    pub(crate) nodes: Vec<Option<Vec<NodeIdx>>>,
}

/// A version of which all rows are computed, by the rounds of a full run on a store that holds its
/// changes.
pub(crate) struct FullVersion<'a> {
    pub(crate) versions: &'a KeptVersions,
    pub(crate) new: &'a NewStore,
    /// Fingerprint of the parent.
    pub(crate) parent: String,
    /// In-edges of a node that the overlay of the next version has at most.
    pub(crate) keep: Vec<usize>,
    /// The whole tables that its graph was read from; none if tables of changes made it.
    pub(crate) tables: Option<WholeTables>,
    /// The manifest, without parts and the report of the rounds.
    pub(crate) manifest: Manifest,
}

/// Where the rows of a full run are kept.
pub(crate) enum Keeping<'a> {
    Nowhere,
    /// They are those of the tables.
    Tables(KeptVersions),
    Version(&'a FullVersion<'a>),
}

/// A new version.
pub(crate) struct NewVersion<'a> {
    pub(crate) parent: &'a str,
    pub(crate) plan: &'a Value,
    pub(crate) earlier: Vec<String>,
    pub(crate) reached: &'a Reached,
    /// In-edges of a node that its overlay has at most.
    pub(crate) keep: &'a [usize],
    pub(crate) rebuild: RebuildPlan<'a>,
    /// Nodes of the rows of each earlier output.
    pub(crate) nodes_of_earlier: &'a [Option<Vec<NodeIdx>>],
    pub(crate) rows: &'a KeptRows,
    /// Layers whose rows are kept.
    pub(crate) num_layers: usize,
    pub(crate) nodes: &'a [NodeIdx],
}

/// Opens a version with the rows and nodes of the earlier ones; none if it is not kept.
pub(crate) fn open(
    versions: &KeptVersions,
    fingerprint: &str,
) -> Result<Option<OpenVersion>, InferError> {
    let Some(mut records) = versions.records::<RowFiles>(fingerprint) else {
        return Ok(None);
    };
    let mut rows = KeptRows::default();
    for (name, record) in &records {
        let (dir, of_stage) = (versions.path(name), &record.of_stage);
        if !of_stage.stored.is_empty() {
            rows = KeptRows::of_files(&dir, &of_stage.stored)?;
        }
        rows.add(&dir, &of_stage.changed)?;
    }
    let nodes = versions.nodes_of_outputs(&records)?;
    let own = records.pop();
    Ok(own.map(|(_, record)| OpenVersion {
        record,
        rows,
        nodes,
    }))
}

impl Keeping<'_> {
    /// Keeps the rows of a full run. `keep_rows` puts their files into a directory; `nodes` are those
    /// of the rows of its output, none if it has those of the store. Returns when all processes have
    /// kept theirs.
    pub(crate) fn keep(
        &self,
        (fingerprint, plan): (&str, &Value),
        store: &Store,
        (nodes, keep_rows): (
            Option<&[NodeIdx]>,
            impl FnOnce(&Path) -> Result<Vec<RowRecord>, InferError>,
        ),
    ) -> Result<(), InferError> {
        let versions = match self {
            Self::Nowhere => return Ok(()),
            Self::Tables(versions) => versions,
            Self::Version(of) => of.versions,
        };
        let dir = versions.begin()?;
        let of_stage = RowFiles {
            stored: keep_rows(&dir)?,
            changed: Vec::new(),
        };
        let mut record = VersionRecord {
            nodes: nodes.map(|nodes| write_nodes(&dir, nodes)).transpose()?,
            ..VersionRecord::new(store, &kept_plan(plan), of_stage)
        };
        if let Self::Version(of) = self {
            of.new.keep_in(versions, &dir, &of.keep)?;
            record.parent = Some(of.parent.clone());
            record.overlay = Some(of.keep.clone());
            record.tables = of.tables.clone();
        }
        versions.finish(fingerprint, &record)?;
        gather_processes(store.cluster(), ())?;
        Ok(())
    }
}

/// Keeps a version.
pub(crate) fn keep(
    versions: &KeptVersions,
    fingerprint: &str,
    version: NewVersion<'_>,
) -> Result<(), InferError> {
    let dir = versions.begin()?;
    let after = &version.reached.after;
    let store = after.store();
    let (rows, num_layers) = (version.rows, version.num_layers);
    rows.release();
    let to = (versions, &*dir);
    let graph = version
        .reached
        .keep_graph(to, version.keep, version.rebuild)?;
    let of_stage = match graph.nodes_before() {
        None => RowFiles {
            stored: Vec::new(),
            changed: rows.write(&dir, num_layers)?,
        },
        Some(nodes) => RowFiles {
            stored: rows.write_stored(&dir, (num_layers, nodes))?,
            changed: Vec::new(),
        },
    };
    let gone: Vec<NodeIdx> = after.overlay().removed().collect();
    let earlier = version.nodes_of_earlier;
    let record = VersionRecord {
        parent: Some(version.parent.to_owned()),
        earlier: version.earlier,
        nodes: Some(write_nodes(&dir, &graph.numbers_of(version.nodes))?),
        nodes_of_earlier: graph.write_earlier(&dir, earlier, &gone, store)?,
        overlay: Some(version.keep.to_vec()),
        tables: version.reached.tables.clone(),
        base: graph.base,
        ..VersionRecord::new(store, version.plan, of_stage)
    };
    Ok(versions.finish(fingerprint, &record)?)
}

/// Keeps a version under another name, with all that its rows need in one directory. `nodes`: those
/// of the rows of its output, in their order.
pub(crate) fn keep_compacted(
    versions: &KeptVersions,
    (fingerprint, of): (&str, &str),
    version: OpenVersion,
    nodes: &[NodeIdx],
) -> Result<(), InferError> {
    let dir = versions.begin()?;
    let records = versions.records::<RowFiles>(of);
    let mut stored = Vec::new();
    for (name, record) in records.into_iter().flatten() {
        let from = versions.path(&name);
        for rows in record.of_stage.stored {
            link(&from.join(&rows.name), &dir.join(&rows.name))?;
            stored.push(rows);
        }
    }
    if version.record.overlay.is_some() {
        versions.link_overlay(of, &dir)?;
    }
    let num_layers = version.record.of_stage.changed.len();
    let record = VersionRecord {
        parent: Some(of.to_owned()),
        earlier: Vec::new(),
        nodes: Some(write_nodes(&dir, nodes)?),
        nodes_of_earlier: Vec::new(),
        of_stage: RowFiles {
            stored,
            changed: version.rows.write_all(&dir, num_layers)?,
        },
        ..version.record
    };
    Ok(versions.finish(fingerprint, &record)?)
}
