//! What changes have made of a store so far: the part of a version that the store does not hold.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray, Float32Array, RecordBatch, StringArray};
use arrow::array::{Int64Array, UInt32Array, UInt64Array};
use arrow::datatypes::{Float32Type, Int64Type, UInt32Type, UInt64Type};
use hashbrown::HashMap;
use rayon::slice::ParallelSliceMut;
use schemas::xxh::{file_checksum, fingerprint};
use schemas::{FeatureMeta, Features, FileEntry, Ids, LabelMeta, Labels, NodeIdx, Split};
use serde::{Deserialize, Serialize};
use store::arrow_file::{self, append, bounds, map_batches};
use store::{Store, StoreCause, StoreError};

use crate::DeltaError;
use crate::in_edges::{Edits, KeptEdges};
use crate::numbers::{NewEdge, PairEnds, PairRow};

const META: &str = "overlay.json";

/// File of labels and splits, which older overlays lack.
const TARGETS: &str = "targets.arrow";

/// Files of pairs and of the edges that they leave out, which overlays without pairs lack.
const PAIRS: &str = "pairs.arrow";
const LEFT_OUT: &str = "left-out.arrow";

/// File of nodes whose in-edges were edited before the store was rebuilt; most overlays lack it.
const EDITED_BEFORE: &str = "edited-before.arrow";

/// File of the first in-edges that differ, which follow from the others.
const KEPT: &str = "kept.arrow";

/// Rows of a record batch.
const ROWS: usize = 1 << 13;

/// Values by relation and destination of in-edges.
pub(crate) type ByInEdges<T> = HashMap<(usize, NodeIdx), T>;

/// Nodes and in-edges that differ from those of a store, after all changes of a version and its
/// parents. The default is the store itself.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Overlay {
    /// Type and id of added nodes, removed or not; their numbers follow those of the store.
    pub(crate) added: Vec<(usize, Ids)>,
    pub(crate) removed: BTreeSet<NodeIdx>,
    /// Features of nodes that were added or replaced, one row each.
    pub(crate) inputs: BTreeMap<NodeIdx, Features>,
    /// Label and split of such nodes, one row each; none where labels are not read.
    pub(crate) targets: BTreeMap<NodeIdx, (Labels, Split)>,
    pub(crate) edits: ByInEdges<Arc<Edits>>,
    /// First in-edges that differ from the store's, or whose number does.
    pub(crate) kept: ByInEdges<Arc<KeptEdges>>,
    /// Pairs that were added, replaced or removed, by src and dst.
    pub(crate) pairs: BTreeMap<PairEnds, Option<PairRow>>,
    /// Edges that are left out because they equal a pair.
    pub(crate) left_out: ByInEdges<Arc<Edits>>,
    /// Relation and destination of in-edges that were edited before the store was rebuilt.
    pub(crate) edited_before: BTreeSet<(usize, NodeIdx)>,
}

/// Description of the files, written last.
#[derive(Debug, Serialize, Deserialize)]
struct Meta {
    /// Fingerprint of the store's nodes and edges, which numbers follow from.
    store: String,
    /// In-edges of a node and relation that [`Overlay::kept`] has at most.
    keep: Vec<usize>,
    files: Vec<FileEntry>,
}

/// A column of lists, being filled.
struct Lists<T> {
    offset: Vec<u64>,
    values: Vec<T>,
}

impl<T> Lists<T> {
    fn of<L: IntoIterator<Item = T>>(lists: impl Iterator<Item = L>) -> Self {
        let (mut offset, mut values) = (vec![0], Vec::new());
        for list in lists {
            values.extend(list);
            offset.push(values.len() as u64);
        }
        Self { offset, values }
    }
}

impl Lists<f32> {
    fn column(self) -> ArrayRef {
        arrow_file::list(&self.offset, Arc::new(Float32Array::from(self.values)))
    }
}

impl Lists<u32> {
    fn column(self) -> ArrayRef {
        arrow_file::list(&self.offset, Arc::new(UInt32Array::from(self.values)))
    }
}

fn numbers(of: impl Iterator<Item = u32>) -> ArrayRef {
    Arc::new(UInt32Array::from_iter_values(of))
}

fn narrow(at: usize) -> u32 {
    u32::try_from(at).expect("relations, types and rows are fewer than nodes")
}

/// Names and record batches of the files.
type Tables = Vec<(&'static str, Vec<RecordBatch>)>;

impl Overlay {
    /// Lists the removed nodes, ascending.
    pub fn removed(&self) -> impl Iterator<Item = NodeIdx> {
        self.removed.iter().copied()
    }

    /// Returns the number of sources of in-edges that were edited, for all destinations.
    pub(crate) fn num_edits(&self) -> u64 {
        self.edits.values().map(|of| of.len() as u64).sum()
    }

    /// Returns the number of nodes that were added, replaced or removed.
    pub(crate) fn num_node_changes(&self) -> u64 {
        (self.inputs.len() + self.removed.len()) as u64
    }

    /// Returns the type of a node; none if there is no such node.
    fn type_of(&self, store: &Store, node: NodeIdx) -> Option<usize> {
        match node.index().checked_sub(store.placement().num_nodes()) {
            Some(at) => Some(self.added.get(at)?.0),
            None => Some(store.placement().type_of(node)),
        }
    }

    /// Writes the overlay to a new directory. `keep`: how many in-edges its lists have at most.
    ///
    /// # Errors
    ///
    /// If the files cannot be written.
    pub fn write(&self, store: &Store, keep: &[usize], dir: &Path) -> Result<(), DeltaError> {
        self.write_named(store, keep, dir).map(drop)
    }

    /// [`Self::write`]; returns a name of the store with the changes, whatever the number of
    /// workers and `keep`.
    pub(crate) fn write_named(
        &self,
        store: &Store,
        keep: &[usize],
        dir: &Path,
    ) -> Result<String, DeltaError> {
        let failed = |source: StoreCause| StoreError::File {
            verb: "write",
            path: dir.to_owned(),
            source,
        };
        std::fs::create_dir_all(dir).map_err(|e| failed(e.into()))?;
        let mut files = Vec::new();
        for (name, batches) in self.tables() {
            let (mut file, path) = (None, dir.join(name));
            for batch in &batches {
                append(&mut file, &path, batch)?;
            }
            files.push(file.expect("a batch was written").finish()?);
        }
        let of_graph = files.iter().filter(|file| file.path != KEPT);
        let of_graph: Vec<&FileEntry> = of_graph.collect();
        let (own, graph) = (store.meta(), store.meta().edges_fingerprint());
        let named = serde_json::json!({
            "store": graph,
            "changes": of_graph,
            "keep": own.keep,
            "target_type": own.graph.target_type,
            "lists": [own.samples, u32::from(own.redraw)],
            "pairs": [own.keeps_left_out, own.keeps_times],
        });
        let meta = Meta {
            store: graph,
            keep: keep.to_vec(),
            files,
        };
        let finish = || -> Result<(), StoreCause> {
            let temporary = dir.join("overlay.json.tmp");
            std::fs::write(&temporary, serde_json::to_vec_pretty(&meta)?)?;
            Ok(std::fs::rename(temporary, dir.join(META))?)
        };
        finish().map_err(failed)?;
        Ok(fingerprint(named.to_string().as_bytes()))
    }

    fn tables(&self) -> Tables {
        let added: Vec<&(usize, Ids)> = self.added.iter().collect();
        let removed: Vec<NodeIdx> = self.removed.iter().copied().collect();
        let inputs: Vec<_> = self.inputs.iter().collect();
        let targets: Vec<_> = self.targets.iter().collect();
        let (edits, left_out) = (listed(&self.edits), listed(&self.left_out));
        let pairs: Vec<_> = self.pairs.iter().collect();
        let mut kept: Vec<_> = self.kept.iter().collect();
        kept.par_sort_unstable_by_key(|of| *of.0);
        let mut tables = vec![
            ("added.arrow", in_batches(&added, added_batch)),
            (
                "removed.arrow",
                in_batches(&removed, |of| {
                    arrow_file::batch(vec![("node", numbers(of.iter().map(|node| node.raw())))])
                }),
            ),
            ("inputs.arrow", in_batches(&inputs, inputs_batch)),
            (TARGETS, in_batches(&targets, targets_batch)),
            ("edits.arrow", in_batches(&edits, edits_batch)),
            (KEPT, in_batches(&kept, kept_batch)),
        ];
        if !self.edited_before.is_empty() {
            let before: Vec<_> = self.edited_before.iter().collect();
            tables.push((EDITED_BEFORE, in_batches(&before, edited_batch)));
        }
        if !pairs.is_empty() || !left_out.is_empty() {
            tables.push((PAIRS, in_batches(&pairs, pairs_batch)));
            tables.push((LEFT_OUT, in_batches(&left_out, edits_batch)));
        }
        tables
    }

    /// Reads an overlay of a store.
    ///
    /// # Errors
    ///
    /// If it cannot be read, was changed, or belongs to another store or to fewer in-edges.
    pub fn read(store: &Store, keep: &[usize], dir: &Path) -> Result<Self, DeltaError> {
        Ok(Self::read_with_files(store, keep, dir)?.0)
    }

    /// [`Self::read`], with the files that it has besides labels and splits.
    pub(crate) fn read_with_files(
        store: &Store,
        keep: &[usize],
        dir: &Path,
    ) -> Result<(Self, Vec<FileEntry>), DeltaError> {
        let meta = Meta::read(store, keep, dir)?;
        let mut overlay = Self::default();
        let types = &store.meta().graph.types;
        let mut read = |name: &str, take: &mut TakeRow<'_>| overlay.read_rows(dir, name, take);
        read("added.arrow", &mut |all, columns, row| {
            let type_idx = columns.number("type", row)? as usize;
            let id_type = types.get(type_idx)?.id_type;
            let mut id = Ids::new(id_type);
            match id_type.is_integer() {
                true => id = Ids::from_keys(id_type, vec![columns.wide("key", row)?]),
                false => id.push_str(columns.text("text", row)?),
            }
            all.added.push((type_idx, id));
            Some(())
        })?;
        read("removed.arrow", &mut |all, columns, row| {
            let node = columns.number("node", row)?;
            all.removed.insert(NodeIdx::from_raw(node));
            Some(())
        })?;
        read("inputs.arrow", &mut |all, columns, row| {
            let node = NodeIdx::from_raw(columns.number("node", row)?);
            let of_type = &types[all.type_of(store, node)?];
            let features = columns.features(of_type.features, row)?;
            all.inputs.insert(node, features);
            Some(())
        })?;
        if meta.files.iter().any(|file| file.path == TARGETS) {
            read(TARGETS, &mut |all, columns, row| {
                let node = NodeIdx::from_raw(columns.number("node", row)?);
                let of_type = &types[all.type_of(store, node)?];
                let target = columns.target(of_type.label.as_ref(), row)?;
                all.targets.insert(node, target);
                Some(())
            })?;
        }
        read("edits.arrow", &mut |all, columns, row| {
            let (key, src, edges) = columns.edit(row)?;
            Arc::make_mut(all.edits.entry(key).or_default()).push(src, edges)
        })?;
        read(KEPT, &mut |all, columns, row| {
            let (key, kept) = columns.kept(row)?;
            all.kept.insert(key, Arc::new(kept));
            Some(())
        })?;
        if meta.files.iter().any(|file| file.path == EDITED_BEFORE) {
            read(EDITED_BEFORE, &mut |all, columns, row| {
                all.edited_before.insert(columns.key(row)?);
                Some(())
            })?;
        }
        if meta.files.iter().any(|file| file.path == PAIRS) {
            overlay.read_pairs(dir)?;
        }
        let mut files = meta.files;
        files.retain(|file| file.path != TARGETS);
        Ok((overlay, files))
    }

    /// Reads the pairs, and the edges that they leave out.
    fn read_pairs(&mut self, dir: &Path) -> Result<(), StoreError> {
        self.read_rows(dir, PAIRS, &mut |all, columns, row| {
            let (ends, pair) = columns.pair(row)?;
            all.pairs.insert(ends, pair);
            Some(())
        })?;
        self.read_rows(dir, LEFT_OUT, &mut |all, columns, row| {
            let (key, src, edges) = columns.edit(row)?;
            Arc::make_mut(all.left_out.entry(key).or_default()).push(src, edges)
        })
    }

    /// Calls `take` with each row of a file; it returns none if a column is missing.
    fn read_rows(
        &mut self,
        dir: &Path,
        name: &str,
        take: &mut TakeRow<'_>,
    ) -> Result<(), StoreError> {
        for batch in map_batches(&dir.join(name))? {
            for row in 0..batch.num_rows() {
                let taken = take(self, Columns(&batch), row);
                taken.ok_or_else(|| damaged(dir, "a column or the order is wrong".to_owned()))?;
            }
        }
        Ok(())
    }
}

/// Takes a row of a file of an overlay; none if a column is missing.
type TakeRow<'a> = dyn FnMut(&mut Overlay, Columns<'_>, usize) -> Option<()> + 'a;

impl Meta {
    /// Reads the description of an overlay of a store, and checks its files.
    fn read(store: &Store, keep: &[usize], dir: &Path) -> Result<Self, DeltaError> {
        let text = schemas::storage::read(&dir.join(META))?;
        let text = text.ok_or_else(|| damaged(dir, format!("{META} is missing")))?;
        let meta: Self = serde_json::from_slice(&text).map_err(|e| damaged(dir, e.to_string()))?;
        if meta.store != store.meta().edges_fingerprint() || meta.keep != keep {
            return Err(DeltaError::OtherBase {
                path: dir.to_owned(),
            });
        }
        for expected in &meta.files {
            if file_checksum(&dir.join(&expected.path))? != expected.checksum {
                let what = format!("{} was changed since it was written", expected.path);
                return Err(damaged(dir, what).into());
            }
        }
        Ok(meta)
    }
}

fn damaged(dir: &Path, what: String) -> StoreError {
    StoreError::File {
        verb: "read",
        path: dir.to_owned(),
        source: StoreCause::Damaged(what),
    }
}

fn in_batches<T>(rows: &[T], batch: impl Fn(&[T]) -> RecordBatch) -> Vec<RecordBatch> {
    match rows {
        [] => vec![batch(&[])],
        rows => rows.chunks(ROWS).map(batch).collect(),
    }
}

fn added_batch(of: &[&(usize, Ids)]) -> RecordBatch {
    let keys = of.iter().map(|(_, id)| id.as_int(0).unwrap_or(0));
    let texts = of.iter().map(|(_, id)| id.as_str(0).unwrap_or_default());
    arrow_file::batch(vec![
        (
            "type",
            numbers(of.iter().map(|(type_idx, _)| narrow(*type_idx))),
        ),
        ("key", Arc::new(UInt64Array::from_iter_values(keys))),
        ("text", Arc::new(StringArray::from_iter_values(texts))),
    ])
}

fn inputs_batch(of: &[(&NodeIdx, &Features)]) -> RecordBatch {
    let (mut indices, mut values) = (Vec::new(), Vec::new());
    for (_, features) in of {
        let (index, of_row): (&[u32], &[f32]) = match features {
            Features::None => (&[], &[]),
            Features::Dense { values: dense, .. } => (&[], dense),
            Features::Sparse { index, value, .. } => (index, value),
        };
        indices.push(index.to_vec());
        values.push(of_row.to_vec());
    }
    arrow_file::batch(vec![
        ("node", numbers(of.iter().map(|(node, _)| node.raw()))),
        ("index", Lists::of(indices.into_iter()).column()),
        ("value", Lists::of(values.into_iter()).column()),
    ])
}

fn targets_batch(of: &[(&NodeIdx, &(Labels, Split))]) -> RecordBatch {
    // Of a label of several classes, `class` says whether the node has it.
    let class = |labels: &Labels| match labels {
        Labels::Class(class) => class[0],
        Labels::Multi { present, .. } => u32::from(present[0]),
        Labels::None | Labels::Number(_) => 0,
    };
    let values = |labels: &Labels| match labels {
        Labels::Multi { values, .. } | Labels::Number(values) => values.clone(),
        Labels::None | Labels::Class(_) => Vec::new(),
    };
    let splits = of.iter().map(|(_, target)| target.1 as u32);
    let targets = of.iter().map(|(_, target)| &target.0);
    arrow_file::batch(vec![
        ("node", numbers(of.iter().map(|(node, _)| node.raw()))),
        ("class", numbers(targets.clone().map(class))),
        ("value", Lists::of(targets.map(values)).column()),
        ("split", numbers(splits)),
    ])
}

/// Returns relation, destination and source of edited edges, ascending, with the edges.
fn listed(edits: &ByInEdges<Arc<Edits>>) -> Vec<(usize, NodeIdx, NodeIdx, &Vec<NewEdge>)> {
    let edits = edits.iter().flat_map(|(&(relation, dst), edits)| {
        let of_dst = edits.iter();
        of_dst.map(move |(src, edges)| (relation, dst, src, edges))
    });
    let mut edits: Vec<_> = edits.collect();
    edits.par_sort_unstable_by_key(|&(relation, dst, src, _)| (relation, dst, src));
    edits
}

fn pairs_batch(of: &[(&PairEnds, &Option<PairRow>)]) -> RecordBatch {
    let rows = of.iter().map(|(_, row)| row.as_ref());
    let is_there = rows.clone().map(|row| u32::from(row.is_some()));
    let times = rows.clone().map(|row| row.map_or(0, |row| row.time));
    let splits = rows
        .clone()
        .map(|row| row.map_or(Split::None, |row| row.split) as u32);
    let floats = |value: fn(&PairRow) -> f32| -> ArrayRef {
        let values = rows.clone().map(|row| row.map_or(0.0, value));
        Arc::new(Float32Array::from_iter_values(values))
    };
    let negatives = rows.clone().map(|row| {
        let nodes = row.map_or(&[][..], |row| &row.negatives);
        nodes.iter().map(|node| node.raw())
    });
    arrow_file::batch(vec![
        ("src", numbers(of.iter().map(|(ends, _)| ends.0.raw()))),
        ("dst", numbers(of.iter().map(|(ends, _)| ends.1.raw()))),
        ("split", numbers(splits)),
        ("label", floats(|row| row.label)),
        ("weight", floats(|row| row.weight)),
        ("negatives", Lists::of(negatives).column()),
        ("time", Arc::new(Int64Array::from_iter_values(times))),
        ("is_there", numbers(is_there)),
    ])
}

fn edits_batch(of: &[(usize, NodeIdx, NodeIdx, &Vec<NewEdge>)]) -> RecordBatch {
    let weights = of.iter().map(|row| row.3.iter().map(|edge| edge.weight));
    let features = of
        .iter()
        .map(|row| row.3.iter().flat_map(|edge| edge.feature.clone()));
    arrow_file::batch(vec![
        ("relation", numbers(of.iter().map(|row| narrow(row.0)))),
        ("dst", numbers(of.iter().map(|row| row.1.raw()))),
        ("src", numbers(of.iter().map(|row| row.2.raw()))),
        ("weight", Lists::of(weights).column()),
        ("feature", Lists::of(features).column()),
    ])
}

fn edited_batch(of: &[&(usize, NodeIdx)]) -> RecordBatch {
    arrow_file::batch(vec![
        ("relation", numbers(of.iter().map(|key| narrow(key.0)))),
        ("dst", numbers(of.iter().map(|key| key.1.raw()))),
    ])
}

fn kept_batch(of: &[(&(usize, NodeIdx), &Arc<KeptEdges>)]) -> RecordBatch {
    let src = of.iter();
    let src = src.map(|(_, kept)| kept.src.iter().map(|node| node.raw()));
    let weights = of.iter().map(|(_, kept)| kept.weight.iter().copied());
    let features = of.iter().map(|(_, kept)| kept.feature.iter().copied());
    let in_degrees = of.iter().map(|(_, kept)| kept.in_degree);
    let self_loops = of.iter().map(|(_, kept)| kept.self_loops);
    arrow_file::batch(vec![
        ("relation", numbers(of.iter().map(|(key, _)| narrow(key.0)))),
        ("dst", numbers(of.iter().map(|(key, _)| key.1.raw()))),
        (
            "in_degree",
            Arc::new(UInt64Array::from_iter_values(in_degrees)),
        ),
        (
            "self_loops",
            Arc::new(UInt64Array::from_iter_values(self_loops)),
        ),
        ("src", Lists::of(src).column()),
        ("weight", Lists::of(weights).column()),
        ("feature", Lists::of(features).column()),
    ])
}

/// The columns of a record batch, by row; none where a column is missing.
struct Columns<'a>(&'a RecordBatch);

impl<'a> Columns<'a> {
    fn number(&self, name: &str, row: usize) -> Option<u32> {
        let column = self
            .0
            .column_by_name(name)?
            .as_primitive_opt::<UInt32Type>()?;
        Some(column.value(row))
    }

    fn wide(&self, name: &str, row: usize) -> Option<u64> {
        let column = self
            .0
            .column_by_name(name)?
            .as_primitive_opt::<UInt64Type>()?;
        Some(column.value(row))
    }

    fn text(&self, name: &str, row: usize) -> Option<&'a str> {
        Some(
            self.0
                .column_by_name(name)?
                .as_string_opt::<i32>()?
                .value(row),
        )
    }

    fn floats(&self, name: &str, row: usize) -> Option<&'a [f32]> {
        let lists = self.0.column_by_name(name)?.as_list_opt::<i64>()?;
        let values = lists.values().as_primitive_opt::<Float32Type>()?;
        values.values().get(bounds(lists.offsets(), row))
    }

    fn list(&self, name: &str, row: usize) -> Option<&'a [u32]> {
        let lists = self.0.column_by_name(name)?.as_list_opt::<i64>()?;
        let values = lists.values().as_primitive_opt::<UInt32Type>()?;
        values.values().get(bounds(lists.offsets(), row))
    }

    fn key(&self, row: usize) -> Option<(usize, NodeIdx)> {
        let relation = self.number("relation", row)? as usize;
        Some((relation, NodeIdx::from_raw(self.number("dst", row)?)))
    }

    /// Returns the features of some edges with their weights.
    fn edges(&self, row: usize) -> Option<Vec<NewEdge>> {
        let (weights, features) = (self.floats("weight", row)?, self.floats("feature", row)?);
        let dim = features.len() / weights.len().max(1);
        let edges = weights.iter().enumerate().map(|(at, &weight)| NewEdge {
            weight,
            feature: features[at * dim..(at + 1) * dim].to_vec(),
        });
        Some(edges.collect())
    }

    fn pair(&self, row: usize) -> Option<(PairEnds, Option<PairRow>)> {
        let node = |name| Some(NodeIdx::from_raw(self.number(name, row)?));
        let float = |name| {
            let column = self.0.column_by_name(name)?;
            Some(column.as_primitive_opt::<Float32Type>()?.value(row))
        };
        let times = self.0.column_by_name("time");
        let times = times.map(|of| Some(of.as_primitive_opt::<Int64Type>()?.value(row)));
        let pair = PairRow {
            split: self.split(row)?,
            label: float("label")?,
            weight: float("weight")?,
            time: times.unwrap_or(Some(0))?,
            negatives: NodeIdx::slice(self.list("negatives", row)?).to_vec(),
        };
        // Older overlays have no pairs in no split.
        let is_there = match self.0.column_by_name("is_there") {
            Some(_) => self.number("is_there", row)? == 1,
            None => pair.split != Split::None,
        };
        Some(((node("src")?, node("dst")?), is_there.then_some(pair)))
    }

    fn split(&self, row: usize) -> Option<Split> {
        Split::of_number(self.number("split", row)?)
    }

    fn edit(&self, row: usize) -> Option<((usize, NodeIdx), NodeIdx, Vec<NewEdge>)> {
        let src = NodeIdx::from_raw(self.number("src", row)?);
        Some((self.key(row)?, src, self.edges(row)?))
    }

    fn kept(&self, row: usize) -> Option<((usize, NodeIdx), KeptEdges)> {
        let kept = KeptEdges {
            src: NodeIdx::slice(self.list("src", row)?).to_vec(),
            weight: self.floats("weight", row)?.to_vec(),
            feature: self.floats("feature", row)?.to_vec(),
            in_degree: self.wide("in_degree", row)?,
            self_loops: self.wide("self_loops", row)?,
        };
        Some((self.key(row)?, kept))
    }

    /// Returns a label and a split, as [`targets_batch`] writes them.
    fn target(&self, meta: Option<&LabelMeta>, row: usize) -> Option<(Labels, Split)> {
        let (class, values) = (self.number("class", row)?, self.floats("value", row)?);
        let mut labels = Labels::empty(meta);
        match &mut labels {
            Labels::None => {}
            Labels::Class(classes) => classes.push(class),
            Labels::Multi {
                values: all,
                present,
                ..
            } => {
                all.extend_from_slice(values);
                present.push(class == 1);
            }
            Labels::Number(numbers) => numbers.extend_from_slice(values),
        }
        Some((labels, self.split(row)?))
    }

    fn features(&self, meta: FeatureMeta, row: usize) -> Option<Features> {
        let (index, values) = (self.list("index", row)?, self.floats("value", row)?);
        Some(match meta {
            FeatureMeta::None => Features::None,
            FeatureMeta::Dense { dim } => Features::Dense {
                dim,
                values: values.to_vec(),
            },
            FeatureMeta::Sparse { dim } => Features::Sparse {
                dim,
                offset: vec![0, index.len() as u64],
                index: index.to_vec(),
                value: values.to_vec(),
            },
        })
    }
}
