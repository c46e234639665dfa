//! Reads parts of graph features from Parquet, in either layout.

use std::path::PathBuf;

use arrow::array::AsArray;
use arrow::datatypes::{Float32Type, UInt8Type, UInt32Type};

use super::{GraphFeature, GraphShard, layout};
use crate::as_given;
use crate::columns::{FeatureMeta, Features, GraphMeta, Labels, Split};
use crate::dataset::FileEntry;
use crate::error::{Result, SchemaError};
use crate::fanout::FlattenMeta;
use crate::ids::Ids;
use crate::parquet_file::{Batch, NumberList, TableReader};

/// A file of a part, and its entry in the manifest.
pub(super) struct PartSource<'a> {
    pub(super) path: PathBuf,
    pub(super) entry: &'a FileEntry,
    pub(super) meta: &'a GraphMeta,
    pub(super) flatten: &'a FlattenMeta,
}

impl PartSource<'_> {
    /// Opens the file and checks that its bytes and its metadata agree with the manifest.
    fn open(&self) -> Result<TableReader<'_>> {
        let reader = TableReader::open(&self.path, self.entry, layout::SCHEMA_KEY)?;
        reader.agrees(layout::GRAPH_KEY, self.meta)?;
        reader.agrees(layout::FLATTEN_KEY, self.flatten)?;
        Ok(reader)
    }
}

/// Reads the two tables of a shard.
pub(super) fn read_shard(nodes: &PartSource<'_>, edges: &PartSource<'_>) -> Result<GraphShard> {
    let (reader, meta) = (nodes.open()?, nodes.meta);
    let mut shard = GraphShard::with_capacity(meta, reader.num_rows);
    reader.for_each(|batch| append_nodes(&mut shard, batch, meta))?;
    read_edges(&mut shard, edges)?;
    let found = shard.validate();
    found.map_err(|error| error.found_in(&nodes.path))?;
    Ok(shard)
}

fn append_nodes(shard: &mut GraphShard, batch: &Batch<'_>, meta: &GraphMeta) -> Result<()> {
    append_ids(&mut shard.ids, batch, "id")?;
    shard
        .hop
        .extend_from_slice(batch.numbers::<UInt8Type>("hop")?);
    shard
        .in_degree
        .extend_from_slice(batch.numbers::<UInt32Type>("in_degree")?);
    if let Some(in_weight) = &mut shard.in_weight {
        in_weight.extend_from_slice(batch.numbers::<Float32Type>("in_weight")?);
    }
    if let Some(self_loops) = &mut shard.self_loops {
        self_loops.extend_from_slice(batch.numbers::<UInt32Type>("self_loops")?);
    }
    if let Some(self_weight) = &mut shard.self_weight {
        self_weight.extend_from_slice(batch.numbers::<Float32Type>("self_weight")?);
    }
    match &mut shard.features {
        Features::None => {}
        Features::Dense { dim, values } => {
            let lists = batch.number_list::<Float32Type>("feature")?;
            if lists.lens().any(|len| len != *dim) {
                return Err(batch.broken(format!("a `feature` does not hold {dim} values")));
            }
            values.extend_from_slice(lists.all());
        }
        Features::Sparse {
            offset,
            index,
            value,
            ..
        } => {
            let indices = batch.number_list::<UInt32Type>("feature_index")?;
            let values = batch.number_list::<Float32Type>("feature_value")?;
            if !indices.lens().eq(values.lens()) {
                return Err(batch.broken("feature lists of one node differ in length".to_owned()));
            }
            for len in indices.lens() {
                offset.push(offset[offset.len() - 1] + len as u64);
            }
            index.extend_from_slice(indices.all());
            value.extend_from_slice(values.all());
        }
    }
    append_label_and_split(batch, meta, &mut shard.labels, &mut shard.split)?;
    let is_target = batch.column("is_target")?;
    let Some(is_target) = is_target.as_boolean_opt() else {
        return Err(batch.broken("column `is_target` is not boolean".to_owned()));
    };
    shard.is_target.extend(is_target.values());
    Ok(())
}

fn append_ids(ids: &mut Ids, batch: &Batch<'_>, name: &str) -> Result<()> {
    let array = batch.column(name)?;
    let read = Ids::from_array(array.as_ref())?;
    if read.id_type() != ids.id_type() {
        let (found, wanted) = (read.id_type(), ids.id_type());
        return Err(batch.broken(format!("column `{name}` is {found}, not {wanted}")));
    }
    ids.extend_from(&read, 0..read.len());
    Ok(())
}

fn append_label_and_split(
    batch: &Batch<'_>,
    meta: &GraphMeta,
    labels: &mut Labels,
    split: &mut Vec<Split>,
) -> Result<()> {
    if let Some(label) = &meta.label {
        as_given::read_labels(batch, "label", label, labels)?;
    }
    match &meta.split {
        Some(meta) => as_given::read_splits(batch, meta, split)?,
        None => split.resize(split.len() + batch.rows.num_rows(), Split::None),
    }
    Ok(())
}

fn read_edges(shard: &mut GraphShard, edges: &PartSource<'_>) -> Result<()> {
    let (reader, meta) = (edges.open()?, edges.meta);
    shard.in_src.reserve_exact(reader.num_rows);
    let mut num_in_edges = vec![0; shard.num_nodes()];
    let mut last_dst = 0;
    reader.for_each(|batch| {
        let dsts = batch.numbers::<UInt32Type>("dst")?;
        for (&dst, &rank) in dsts.iter().zip(batch.numbers::<UInt32Type>("rank")?) {
            match num_in_edges.get_mut(dst as usize) {
                Some(count) if dst >= last_dst && rank == *count => *count += 1,
                _ => {
                    let problem = format!("edge of dst {dst} and rank {rank} is out of order");
                    return Err(batch.broken(problem));
                }
            }
            last_dst = dst;
        }
        shard
            .in_src
            .extend_from_slice(batch.numbers::<UInt32Type>("src")?);
        if let Some(weight) = &mut shard.edge_weight {
            weight.extend_from_slice(batch.numbers::<Float32Type>("weight")?);
        }
        if let (Some(values), Some(dim)) = (&mut shard.edge_feature, meta.edge_feature_dim) {
            let lists = batch.number_list::<Float32Type>("feature")?;
            if lists.lens().any(|len| len != dim) {
                return Err(batch.broken(format!("a `feature` does not hold {dim} values")));
            }
            values.extend_from_slice(lists.all());
        }
        Ok(())
    })?;
    let mut end: u32 = 0;
    for count in num_in_edges {
        end = end.checked_add(count).ok_or_else(|| SchemaError::Broken {
            path: edges.path.clone(),
            problem: "2^32 edges or more".to_owned(),
        })?;
        shard.in_offset.push(end);
    }
    Ok(())
}

/// Reads a table of layout `rows`, row by row.
pub(super) fn read_rows(
    source: &PartSource<'_>,
    mut consume: impl FnMut(GraphFeature) -> Result<()>,
) -> Result<()> {
    let (path, meta) = (&source.path, source.meta);
    source.open()?.for_each(|batch| {
        let columns = RowColumns::of(batch, meta)?;
        for row in 0..batch.rows.num_rows() {
            let feature = columns.feature(row, batch, meta)?;
            feature.validate().map_err(|error| error.found_in(path))?;
            consume(feature)?;
        }
        Ok(())
    })
}

type Floats = NumberList<Float32Type>;
type Positions = NumberList<UInt32Type>;

/// The columns of a batch of layout `rows`.
struct RowColumns {
    target: Ids,
    labels: Labels,
    split: Vec<Split>,
    node_id: Ids,
    node_id_offset: Vec<usize>,
    hop_offset: Positions,
    in_degree: Positions,
    in_weight: Option<Floats>,
    self_loops: Option<Positions>,
    self_weight: Option<Floats>,
    feature: Option<Floats>,
    feature_offset: Option<Positions>,
    feature_index: Option<Positions>,
    in_offset: Positions,
    in_src: Positions,
    edge_weight: Option<Floats>,
    edge_feature: Option<Floats>,
}

impl RowColumns {
    fn of(batch: &Batch<'_>, meta: &GraphMeta) -> Result<Self> {
        let floats = |there: bool, name: &str| -> Result<Option<Floats>> {
            there
                .then(|| batch.number_list::<Float32Type>(name))
                .transpose()
        };
        let positions = |name: &str| batch.number_list::<UInt32Type>(name);
        let is_sparse = matches!(meta.features, FeatureMeta::Sparse { .. });
        let sparse = |name: &str| is_sparse.then(|| positions(name)).transpose();
        let mut target = Ids::new(meta.id_type);
        append_ids(&mut target, batch, "target")?;
        let (mut labels, mut split) = (Labels::empty(meta.label.as_ref()), Vec::new());
        append_label_and_split(batch, meta, &mut labels, &mut split)?;
        let (node_id_offset, node_id) = batch.list("node_id")?;
        Ok(Self {
            target,
            labels,
            split,
            node_id: Ids::from_array(node_id.as_ref())?,
            node_id_offset,
            hop_offset: positions("hop_offset")?,
            in_degree: positions("in_degree")?,
            in_weight: floats(meta.edge_weight, "in_weight")?,
            self_loops: meta
                .self_loops
                .then(|| positions("self_loops"))
                .transpose()?,
            self_weight: floats(meta.self_weight(), "self_weight")?,
            feature: match meta.features {
                FeatureMeta::None => None,
                FeatureMeta::Dense { .. } => floats(true, "node_feature")?,
                FeatureMeta::Sparse { .. } => floats(true, "feature_value")?,
            },
            feature_offset: sparse("feature_offset")?,
            feature_index: sparse("feature_index")?,
            in_offset: positions("in_offset")?,
            in_src: positions("in_src")?,
            edge_weight: floats(meta.edge_weight, "edge_weight")?,
            edge_feature: floats(meta.edge_feature_dim.is_some(), "edge_feature")?,
        })
    }

    fn feature(&self, row: usize, batch: &Batch<'_>, meta: &GraphMeta) -> Result<GraphFeature> {
        let mut node_id = Ids::new(meta.id_type);
        let ids = self.node_id_offset[row]..self.node_id_offset[row + 1];
        if self.node_id.id_type() != meta.id_type || ids.is_empty() {
            return Err(batch.broken("`node_id` is of another type, or empty".to_owned()));
        }
        node_id.extend_from(&self.node_id, ids);
        if !node_id.equal(0, &self.target, row) {
            let (first, target) = (node_id.display(0), self.target.display(row));
            return Err(batch.broken(format!("`node_id` of target {target} starts with {first}")));
        }
        let floats = |column: &Option<Floats>| column.as_ref().map(|lists| lists.row(row).to_vec());
        let features = match meta.features {
            FeatureMeta::None => Features::None,
            FeatureMeta::Dense { dim } => Features::Dense {
                dim,
                values: floats(&self.feature).unwrap_or_default(),
            },
            FeatureMeta::Sparse { dim } => Features::Sparse {
                dim,
                offset: row_of(&self.feature_offset, row)
                    .iter()
                    .copied()
                    .map(u64::from)
                    .collect(),
                index: row_of(&self.feature_index, row).to_vec(),
                value: floats(&self.feature).unwrap_or_default(),
            },
        };
        Ok(GraphFeature {
            labels: self.labels.slice(match self.labels {
                Labels::None => 0..0,
                _ => row..row + 1,
            }),
            split: self.split[row],
            node_id,
            hop_offset: self.hop_offset.row(row).to_vec(),
            in_degree: self.in_degree.row(row).to_vec(),
            in_weight: floats(&self.in_weight),
            self_loops: self.self_loops.as_ref().map(|all| all.row(row).to_vec()),
            self_weight: floats(&self.self_weight),
            features,
            in_offset: self.in_offset.row(row).to_vec(),
            in_src: self.in_src.row(row).to_vec(),
            edge_weight: floats(&self.edge_weight),
            edge_feature: floats(&self.edge_feature),
        })
    }
}

fn row_of(column: &Option<Positions>, row: usize) -> &[u32] {
    column
        .as_ref()
        .map(|lists| lists.row(row))
        .unwrap_or_default()
}
