//! Compaction: all neighbourhoods of a version in one output, so that earlier ones can be removed.

use std::path::{Path, PathBuf};

use graphdelta::{Compaction, KeptVersions, NoRows, VersionRecord, write_nodes};
use schemas::progress::{Event, Progress};
use schemas::{
    ExtractScratch, GraphFeatureDataset, GraphShard, Manifest, NodeIdx, Opened, ShardBuilder,
    write_part,
};

use crate::FlattenError;

/// Must change when the same version gives other bytes than before.
const ENGINE_VERSION: u32 = 1;

/// Writes all neighbourhoods of the output in `from`, a version or not, to `to`, which keeps rows
/// of no other output, and returns its manifest. With the working directories of the processes that
/// wrote it, later versions can continue the new one.
///
/// A part has the targets that are left of a part of the version, and only their neighbourhoods.
///
/// # Errors
///
/// If `to` overlaps an output that has rows of `from`, or holds another output; if the graph of the
/// version is not kept in the working directory; if a file is broken or cannot be written.
pub fn compact(
    from: &Path,
    to: &Path,
    work_dirs: &[PathBuf],
    progress: &Progress,
) -> Result<Manifest, FlattenError> {
    let compaction = Compaction::new((from, to), work_dirs, ENGINE_VERSION)?;
    if let Some(manifest) = compaction.done::<NoRows>()? {
        return Ok(manifest);
    }
    let dataset = GraphFeatureDataset::open(from)?;
    if dataset.meta().pairs.is_some() {
        return Err(FlattenError::Key {
            key: "compact",
            value: from.display().to_string(),
            allowed:
                "an output of graph features of pairs, which cannot be compacted: it has no rows \
                      of other outputs"
                    .to_owned(),
        });
    }
    compaction.check_apart()?;
    let kept = compaction.lock::<NoRows>()?;
    let output = match compaction.open()? {
        Opened::Done(manifest) => return Ok(*manifest),
        Opened::Open(output) => output,
    };
    let parts = (0..dataset.num_parts()).filter(|&part| dataset.num_rows(part) > 0);
    let parts: Vec<usize> = parts.collect();
    let total: u64 = parts.iter().map(|&part| dataset.num_rows(part)).sum();
    let mut done = 0;
    for (index, &part) in parts.iter().enumerate() {
        if output.committed(index).is_none() {
            let shard = alone(&dataset, part)?;
            let (meta, flatten) = (dataset.meta(), dataset.flatten());
            let written = write_part(&output, index, &shard, &[], meta, flatten)?;
            output.commit_part(index, written)?;
        }
        done += dataset.num_rows(part);
        progress(&Event {
            stage: "compact",
            phase: "targets".to_owned(),
            done,
            total,
            message: None,
            fields: serde_json::Value::Null,
        });
    }
    for (versions, record) in kept {
        let nodes = left_nodes(&versions, (&compaction, &dataset))?;
        let dir = versions.begin()?;
        if record.overlay.is_some() {
            versions.link_overlay(&compaction.source.fingerprint, &dir)?;
        }
        let record = VersionRecord {
            parent: Some(compaction.source.fingerprint.clone()),
            earlier: Vec::new(),
            nodes: Some(write_nodes(&dir, &nodes)?),
            nodes_of_earlier: Vec::new(),
            ..record
        };
        versions.finish(&compaction.fingerprint, &record)?;
    }
    Ok(compaction.finish(output, &[])?)
}

/// Returns the neighbourhoods of the targets that are left in a part, without other nodes.
fn alone(dataset: &GraphFeatureDataset, part: usize) -> Result<GraphShard, FlattenError> {
    let shard = dataset.read_part(part)?;
    let mut builder = ShardBuilder::new(dataset.meta());
    let mut scratch = ExtractScratch::new(&shard);
    for target in shard.targets() {
        builder.push(&shard.extract(target, &dataset.flatten().fanouts, &mut scratch))?;
    }
    Ok(builder.finish())
}

/// Returns the nodes of the rows that are left of each output of a version, in their order.
fn left_nodes(
    versions: &KeptVersions,
    (compaction, dataset): (&Compaction<'_>, &GraphFeatureDataset),
) -> Result<Vec<NodeIdx>, FlattenError> {
    let not_kept = || FlattenError::from(compaction.not_kept(versions));
    let records = versions.records::<NoRows>(&compaction.source.fingerprint);
    let of_outputs = versions.nodes_of_outputs(&records.ok_or_else(not_kept)?)?;
    let of_outputs = of_outputs.into_iter();
    let of_outputs = of_outputs.map(|nodes| nodes.ok_or_else(not_kept));
    let all = of_outputs.collect::<Result<Vec<_>, _>>()?.concat();
    let (mut left, mut first) = (Vec::new(), 0);
    for part in 0..dataset.num_parts() {
        let rows = usize::try_from(dataset.part(part).rows).map_err(|_| not_kept())?;
        let of_part = all.get(first..first + rows).ok_or_else(not_kept)?;
        let mut replaced = dataset.replaced(part).iter().peekable();
        let nodes = (0u64..).zip(of_part);
        let is_left =
            |(row, _): &(u64, &NodeIdx)| replaced.next_if(|next| **next == *row).is_none();
        left.extend(nodes.filter(is_left).map(|(_, node)| *node));
        first += rows;
    }
    match first == all.len() {
        true => Ok(left),
        false => Err(not_kept()),
    }
}
