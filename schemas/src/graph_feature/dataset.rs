//! Finished flatten outputs, read back in either layout.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::read::{self, PartSource};
use super::version::NewDegrees;
use super::{ExtractScratch, GraphFeature, GraphShard, ShardBuilder, layout};
use crate::columns::GraphMeta;
use crate::dataset::{
    MANIFEST, Manifest, PartEntry, RowsPart, read_manifest, rows_parts, verify_checksums,
    verify_sizes,
};
use crate::error::{Result, SchemaError};
use crate::fanout::{FlattenMeta, Layout};
use crate::ids::Ids;

/// A finished flatten output. The rows of a version are those of earlier outputs that it keeps,
/// with the degrees of today, and its own.
#[derive(Clone, Debug)]
pub struct GraphFeatureDataset {
    dir: PathBuf,
    manifest: Manifest,
    meta: GraphMeta,
    flatten: FlattenMeta,
    /// Those of earlier outputs first.
    parts: Vec<RowsPart>,
    /// Degrees in parts of earlier outputs.
    degrees: Option<Arc<NewDegrees>>,
}

impl GraphFeatureDataset {
    /// Opens a finished flatten output.
    ///
    /// # Errors
    ///
    /// If it is not finished or of another stage, or a file has another size than the manifest
    /// says; of a version also if an earlier output, of which it keeps rows, is gone.
    pub fn open(dir: &Path) -> Result<Self> {
        let manifest = read_manifest(dir)?;
        let described = manifest.graph.clone().zip(manifest.flatten.clone());
        let Some((meta, flatten)) = described.filter(|_| manifest.stage == "flatten") else {
            let stage = &manifest.stage;
            let problem = format!("it is the output of stage `{stage}`, not graph features");
            return Err(SchemaError::NotFinished {
                dir: dir.to_owned(),
                problem,
            });
        };
        verify_sizes(dir, &manifest.parts)?;
        let parts = rows_parts(dir, &manifest, layout::SCHEMA_KEY)?;
        for RowsPart { entry: part, .. } in &parts {
            if part.files.len() != layout::num_files(&meta, flatten.layout) {
                let problem = format!("part {} has {} files", part.name, part.files.len());
                return Err(SchemaError::Broken {
                    path: dir.join(MANIFEST),
                    problem,
                });
            }
        }
        let (relations, mut hops) = (meta.relations.len(), flatten.fanouts.iter());
        if let Some(hop) = hops.find(|hop| hop.as_ref().len() != relations) {
            return Err(SchemaError::Broken {
                path: dir.join(MANIFEST),
                problem: format!("a hop has the fan-outs {hop} for {relations} relations"),
            });
        }
        Ok(Self {
            dir: dir.to_owned(),
            degrees: NewDegrees::read(dir, &manifest, &meta)?.map(Arc::new),
            manifest,
            meta,
            flatten,
            parts,
        })
    }

    /// Compares every file's checksum with the manifest.
    ///
    /// # Errors
    ///
    /// Names the first file that differs.
    pub fn verify(&self) -> Result<()> {
        verify_checksums(&self.dir, &self.manifest.parts)?;
        let mut kept = self.parts.iter().filter(|part| part.is_kept);
        kept.try_for_each(|part| verify_checksums(&part.dir, std::slice::from_ref(&part.entry)))
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the description of the tables.
    pub fn meta(&self) -> &GraphMeta {
        &self.meta
    }

    /// Returns how the graph features were made.
    pub fn flatten(&self) -> &FlattenMeta {
        &self.flatten
    }

    /// Returns the number of parts.
    pub fn num_parts(&self) -> usize {
        self.parts.len()
    }

    /// Returns the entry of a part in a manifest. If a version has replaced rows of the part,
    /// `targets` counts those that are left.
    ///
    /// # Panics
    ///
    /// If there is no such part.
    pub fn part(&self, index: usize) -> &PartEntry {
        &self.parts[index].entry
    }

    /// Returns the number of targets of a part, or of its pairs.
    ///
    /// # Panics
    ///
    /// If there is no such part.
    pub fn num_rows(&self, index: usize) -> u64 {
        let part = &self.parts[index];
        part.entry.rows.saturating_sub(part.replaced.len() as u64)
    }

    /// Returns the rows of a part that a version has replaced, ascending; in layout `shards`, rows
    /// of the target type's nodes.
    ///
    /// # Panics
    ///
    /// If there is no such part.
    pub fn replaced(&self, index: usize) -> &[u64] {
        &self.parts[index].replaced
    }

    /// Reads a part of either layout as one shard.
    ///
    /// # Errors
    ///
    /// If a file is broken.
    ///
    /// # Panics
    ///
    /// If there is no such part.
    pub fn read_part(&self, index: usize) -> Result<GraphShard> {
        let part = &self.parts[index];
        let path = part.dir.join(&part.entry.files[0].path);
        let shard = match self.flatten.layout {
            Layout::Shards => self.read_shard(index)?,
            Layout::Rows => {
                let mut builder = ShardBuilder::new(&self.meta);
                self.read_rows(index, |feature| builder.push(&feature))
                    .map_err(|error| error.found_in(&path))?;
                builder.finish()
            }
        };
        if let (Layout::Rows, Some(pairs), Some(of)) =
            (self.flatten.layout, &shard.pairs, &self.meta.pairs)
        {
            let valid = pairs.validate(&shard, of);
            valid.map_err(|error| error.found_in(&path))?;
        }
        let agrees = shard.agrees_with(&shard.feature_metas(), &self.meta, self.flatten.hops);
        agrees.map_err(|error| error.found_in(&path))?;
        let (stated, found) = (self.part(index).targets, shard.split_counts());
        if stated.is_some_and(|stated| stated != found) {
            let stated = stated.unwrap_or_default();
            let problem = format!("it holds {found:?}, its manifest says {stated:?}");
            return Err(SchemaError::Broken { path, problem });
        }
        Ok(shard)
    }

    /// Reads a part of either layout target by target; rows are in the order of the file.
    ///
    /// # Errors
    ///
    /// If a file is broken.
    ///
    /// # Panics
    ///
    /// If there is no such part.
    pub fn read_features(&self, index: usize) -> Result<Vec<GraphFeature>> {
        self.find_features(index, None, usize::MAX)
    }

    /// Reads the first `limit` neighbourhoods of a part; with `target`, of the target with this id.
    /// In layout `rows` they may be those of pairs; with `target`, of the pairs and negatives with
    /// it.
    ///
    /// Targets of a shard often share most of their nodes, so that all neighbourhoods together are
    /// far larger than the part.
    ///
    /// # Errors
    ///
    /// If a file is broken.
    ///
    /// # Panics
    ///
    /// If there is no such part.
    pub fn find_features(
        &self,
        index: usize,
        target: Option<&str>,
        limit: usize,
    ) -> Result<Vec<GraphFeature>> {
        let is_wanted = |ids: &Ids, at| target.is_none_or(|target| ids.display(at) == target);
        let mut features = Vec::new();
        match self.flatten.layout {
            Layout::Rows => self.read_rows(index, |feature| {
                let mut roots = feature.nodes.iter().flat_map(|nodes| {
                    let roots = 0..nodes.hop_offset[1] as usize;
                    roots.map(|at| (&nodes.node_id, at))
                });
                if features.len() < limit && roots.any(|(ids, at)| is_wanted(ids, at)) {
                    features.push(feature);
                }
                Ok(())
            })?,
            Layout::Shards => {
                let shard = self.read_part(index)?;
                let mut scratch = ExtractScratch::new(&shard);
                let fanouts = &self.flatten.fanouts;
                let types = (0..shard.nodes.len()).filter(|&at| self.meta.may_be_targets(at));
                let wanted = types.flat_map(|type_idx| {
                    let ids = &shard.nodes[type_idx].ids;
                    let targets = shard.targets_of(type_idx);
                    let wanted = targets.filter(|&at| is_wanted(ids, at as usize));
                    wanted.map(move |at| (type_idx, at))
                });
                let extract = |found| shard.extract_of(found, fanouts, &mut scratch);
                features.extend(wanted.take(limit).map(extract));
            }
        }
        Ok(features)
    }

    /// Reads a part of layout `shards`; nodes whose rows a version has replaced are no targets.
    fn read_shard(&self, index: usize) -> Result<GraphShard> {
        let mut shard = read::read_shard(&self.meta, |file| self.source(index, file))?;
        let part = &self.parts[index];
        let is_target = &mut shard.nodes[self.meta.target_type].is_target;
        for &row in &part.replaced {
            let row = usize::try_from(row).unwrap_or(usize::MAX);
            let found = is_target.get_mut(row).filter(|is_target| **is_target);
            let found = found.ok_or_else(|| SchemaError::Broken {
                path: part.dir.join(&part.entry.files[0].path),
                problem: format!("row {row}, which a version replaces, is no target"),
            })?;
            *found = false;
        }
        if let Some(degrees) = self.new_degrees(index) {
            degrees.apply_to_shard(&mut shard);
        }
        Ok(shard)
    }

    /// Reads a part of layout `rows` row by row, without the rows that a version has replaced.
    fn read_rows(
        &self,
        index: usize,
        mut consume: impl FnMut(GraphFeature) -> Result<()>,
    ) -> Result<()> {
        let degrees = self.new_degrees(index);
        let mut replaced = self.parts[index].replaced.iter().peekable();
        read::read_rows(&self.source(index, 0), |row, mut feature| {
            if replaced.next_if(|next| **next == row).is_some() {
                return Ok(());
            }
            if let Some(degrees) = degrees {
                degrees.apply_to_feature(&mut feature);
            }
            consume(feature)
        })
    }

    /// Returns the degrees that replace those in a part.
    fn new_degrees(&self, index: usize) -> Option<&NewDegrees> {
        let degrees = self.degrees.as_deref();
        degrees.filter(|_| self.parts[index].is_kept)
    }

    fn source(&self, index: usize, file: usize) -> PartSource<'_> {
        let part = &self.parts[index];
        let entry = &part.entry.files[file];
        PartSource {
            path: part.dir.join(&entry.path),
            entry,
            meta: &self.meta,
            flatten: &self.flatten,
        }
    }
}
