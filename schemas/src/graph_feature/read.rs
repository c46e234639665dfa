//! Reads parts of graph features from Parquet, in either layout.

use std::path::PathBuf;

use arrow::array::AsArray;
use arrow::datatypes::{Float32Type, UInt8Type, UInt32Type};

use super::{
    FeatureEdges, FeatureNodes, GraphFeature, GraphShard, PartPairs, ShardEdges, ShardNodes, layout,
};
use crate::as_given;
use crate::columns::{FeatureMeta, Features, GraphMeta, Labels, RelationMeta, Split, TypeMeta};
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

/// Reads the tables of a shard; `source` returns a file of its part.
pub(super) fn read_shard<'a>(
    meta: &GraphMeta,
    source: impl Fn(usize) -> PartSource<'a>,
) -> Result<GraphShard> {
    let mut shard = GraphShard::empty(meta);
    for type_idx in 0..meta.types.len() {
        read_nodes(&mut shard, type_idx, &source(type_idx))?;
    }
    for relation in 0..meta.relations.len() {
        let num_nodes = shard.nodes[meta.relations[relation].to].len();
        let file = source(meta.types.len() + relation);
        read_edges(&mut shard.edges[relation], num_nodes, relation, &file)?;
    }
    if let Some(pairs) = &meta.pairs {
        let file = source(meta.types.len() + meta.relations.len());
        shard.pairs = Some(PartPairs::read(file.open()?, pairs)?);
    }
    let found = shard.validate(meta);
    found.map_err(|error| error.found_in(&source(0).path))?;
    Ok(shard)
}

/// Reads the nodes of a type, and the degrees of the relations that lead to them.
fn read_nodes(shard: &mut GraphShard, type_idx: usize, source: &PartSource<'_>) -> Result<()> {
    let (reader, meta) = (source.open()?, source.meta);
    shard.nodes[type_idx] = ShardNodes::with_capacity(&meta.types[type_idx], reader.num_rows);
    for relation in meta.relations_to(type_idx) {
        shard.edges[relation] =
            ShardEdges::with_capacity(&meta.relations[relation], reader.num_rows);
    }
    reader.for_each(|batch| {
        append_nodes(&mut shard.nodes[type_idx], batch, meta, type_idx)?;
        for relation in meta.relations_to(type_idx) {
            let name = &meta.relations[relation].name;
            append_degrees(&mut shard.edges[relation], batch, name)?;
        }
        Ok(())
    })
}

pub(super) fn append_degrees(edges: &mut ShardEdges, batch: &Batch<'_>, name: &str) -> Result<()> {
    let counts = |column| batch.numbers::<UInt32Type>(&layout::column(name, column));
    let floats = |column| batch.numbers::<Float32Type>(&layout::column(name, column));
    edges.in_degree.extend_from_slice(counts("in_degree")?);
    if let Some(in_weight) = &mut edges.in_weight {
        in_weight.extend_from_slice(floats("in_weight")?);
    }
    if let Some(self_loops) = &mut edges.self_loops {
        self_loops.extend_from_slice(counts("self_loops")?);
    }
    if let Some(self_weight) = &mut edges.self_weight {
        self_weight.extend_from_slice(floats("self_weight")?);
    }
    Ok(())
}

fn append_nodes(
    nodes: &mut ShardNodes,
    batch: &Batch<'_>,
    meta: &GraphMeta,
    type_idx: usize,
) -> Result<()> {
    append_ids(&mut nodes.ids, batch, "id")?;
    nodes
        .hop
        .extend_from_slice(batch.numbers::<UInt8Type>("hop")?);
    match &mut nodes.features {
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
    if !meta.may_be_targets(type_idx) {
        nodes.split.resize(nodes.hop.len(), Split::None);
        nodes.is_target.resize(nodes.hop.len(), false);
        return Ok(());
    }
    append_label_and_split(
        batch,
        &meta.types[type_idx],
        &mut nodes.labels,
        &mut nodes.split,
    )?;
    let is_target = batch.column("is_target")?;
    let Some(is_target) = is_target.as_boolean_opt() else {
        return Err(batch.broken("column `is_target` is not boolean".to_owned()));
    };
    nodes.is_target.extend(is_target.values());
    Ok(())
}

pub(super) fn append_ids(ids: &mut Ids, batch: &Batch<'_>, name: &str) -> Result<()> {
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
    meta: &TypeMeta,
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

/// Reads the edges of a relation to `num_nodes` nodes.
fn read_edges(
    edges: &mut ShardEdges,
    num_nodes: usize,
    relation: usize,
    source: &PartSource<'_>,
) -> Result<()> {
    let (reader, meta) = (source.open()?, &source.meta.relations[relation]);
    edges.in_src.reserve_exact(reader.num_rows);
    let mut num_in_edges = vec![0; num_nodes];
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
        edges
            .in_src
            .extend_from_slice(batch.numbers::<UInt32Type>("src")?);
        if let Some(weight) = &mut edges.edge_weight {
            weight.extend_from_slice(batch.numbers::<Float32Type>("weight")?);
        }
        if let (Some(values), Some(dim)) = (&mut edges.edge_feature, meta.edge_feature_dim) {
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
            path: source.path.clone(),
            problem: "2^32 edges or more".to_owned(),
        })?;
        edges.in_offset.push(end);
    }
    Ok(())
}

/// Reads a table of layout `rows`, row by row, with the numbers of the rows.
pub(super) fn read_rows(
    source: &PartSource<'_>,
    mut consume: impl FnMut(u64, GraphFeature) -> Result<()>,
) -> Result<()> {
    let (path, meta) = (&source.path, source.meta);
    source.open()?.for_each(|batch| {
        let columns = RowColumns::of(batch, meta)?;
        for row in 0..batch.rows.num_rows() {
            let feature = columns.feature(row, batch, meta)?;
            feature
                .validate(meta)
                .map_err(|error| error.found_in(path))?;
            consume(batch.first_row + row as u64, feature)?;
        }
        Ok(())
    })
}

type Floats = NumberList<Float32Type>;
type Positions = NumberList<UInt32Type>;

/// The columns of a batch of layout `rows`.
struct RowColumns {
    head: Head,
    /// By node type.
    nodes: Vec<NodeColumns>,
    /// By relation.
    edges: Vec<EdgeColumns>,
}

/// The columns that tell whose neighbourhoods the rows are.
enum Head {
    Targets {
        target: Ids,
        labels: Labels,
        split: Vec<Split>,
    },
    Pairs(PartPairs),
}

impl Head {
    fn of(batch: &Batch<'_>, meta: &GraphMeta) -> Result<Self> {
        if let Some(of) = &meta.pairs {
            let mut pairs = PartPairs::empty(of);
            pairs.append(batch, of)?;
            return Ok(Self::Pairs(pairs));
        }
        let mut target = Ids::new(meta.target().id_type);
        append_ids(&mut target, batch, "target")?;
        let mut labels = Labels::empty(meta.target().label.as_ref());
        let mut split = Vec::new();
        append_label_and_split(batch, meta.target(), &mut labels, &mut split)?;
        Ok(Self::Targets {
            target,
            labels,
            split,
        })
    }
}

/// The columns of a node type.
struct NodeColumns {
    node_id: Ids,
    node_id_offset: Vec<usize>,
    hop_offset: Positions,
    feature: Option<Floats>,
    feature_offset: Option<Positions>,
    feature_index: Option<Positions>,
}

/// The columns of a relation.
struct EdgeColumns {
    in_degree: Positions,
    in_weight: Option<Floats>,
    self_loops: Option<Positions>,
    self_weight: Option<Floats>,
    in_offset: Positions,
    in_src: Positions,
    edge_weight: Option<Floats>,
    edge_feature: Option<Floats>,
}

impl RowColumns {
    fn of(batch: &Batch<'_>, meta: &GraphMeta) -> Result<Self> {
        let nodes = meta.types.iter().map(|of| NodeColumns::of(batch, of));
        let edges = meta.relations.iter();
        let edges = edges.map(|of| EdgeColumns::of(batch, of));
        Ok(Self {
            head: Head::of(batch, meta)?,
            nodes: nodes.collect::<Result<_>>()?,
            edges: edges.collect::<Result<_>>()?,
        })
    }

    fn feature(&self, row: usize, batch: &Batch<'_>, meta: &GraphMeta) -> Result<GraphFeature> {
        let nodes = self.nodes.iter().zip(&meta.types);
        let nodes = nodes.map(|(columns, of)| columns.row(row, batch, of));
        let nodes: Vec<FeatureNodes> = nodes.collect::<Result<_>>()?;
        let (labels, split, pairs) = match &self.head {
            Head::Pairs(pairs) => (Labels::None, Split::None, Some(pairs.row(row))),
            Head::Targets {
                target,
                labels,
                split,
            } => {
                is_first(target, row, &nodes, (batch, meta))?;
                let own = match labels {
                    Labels::None => 0..0,
                    _ => row..row + 1,
                };
                (labels.slice(own), split[row], None)
            }
        };
        let edges = self.edges.iter().zip(&meta.relations);
        Ok(GraphFeature {
            target_type: meta.target_type,
            labels,
            split,
            pairs,
            nodes,
            edges: edges.map(|(columns, of)| columns.row(row, of)).collect(),
        })
    }
}

/// Checks that the target of a row is its first node.
fn is_first(
    target: &Ids,
    row: usize,
    nodes: &[FeatureNodes],
    (batch, meta): (&Batch<'_>, &GraphMeta),
) -> Result<()> {
    let first = &nodes[meta.target_type].node_id;
    if !first.is_empty() && first.equal(0, target, row) {
        return Ok(());
    }
    let (target, node_id) = (
        target.display(row),
        layout::column(&meta.target().name, "node_id"),
    );
    let starts = match first.is_empty() {
        true => "is empty".to_owned(),
        false => format!("starts with {}", first.display(0)),
    };
    Err(batch.broken(format!("`{node_id}` of target {target} {starts}")))
}

impl NodeColumns {
    fn of(batch: &Batch<'_>, meta: &TypeMeta) -> Result<Self> {
        let column = |name| layout::column(&meta.name, name);
        let positions = |name| batch.number_list::<UInt32Type>(&column(name));
        let floats = |name| batch.number_list::<Float32Type>(&column(name));
        let is_sparse = matches!(meta.features, FeatureMeta::Sparse { .. });
        let sparse = |name| is_sparse.then(|| positions(name)).transpose();
        let (node_id_offset, node_id) = batch.list(&column("node_id"))?;
        Ok(Self {
            node_id: Ids::from_array(node_id.as_ref())?,
            node_id_offset,
            hop_offset: positions("hop_offset")?,
            feature: match meta.features {
                FeatureMeta::None => None,
                FeatureMeta::Dense { .. } => Some(floats("node_feature")?),
                FeatureMeta::Sparse { .. } => Some(floats("feature_value")?),
            },
            feature_offset: sparse("feature_offset")?,
            feature_index: sparse("feature_index")?,
        })
    }

    fn row(&self, row: usize, batch: &Batch<'_>, meta: &TypeMeta) -> Result<FeatureNodes> {
        let mut node_id = Ids::new(meta.id_type);
        if self.node_id.id_type() != meta.id_type {
            let (found, column) = (
                self.node_id.id_type(),
                layout::column(&meta.name, "node_id"),
            );
            return Err(batch.broken(format!("`{column}` holds {found}, not {}", meta.id_type)));
        }
        let ids = self.node_id_offset[row]..self.node_id_offset[row + 1];
        node_id.extend_from(&self.node_id, ids);
        let values = || self.feature.as_ref().map(|lists| lists.row(row).to_vec());
        let features = match meta.features {
            FeatureMeta::None => Features::None,
            FeatureMeta::Dense { dim } => Features::Dense {
                dim,
                values: values().unwrap_or_default(),
            },
            FeatureMeta::Sparse { dim } => Features::Sparse {
                dim,
                offset: row_of(&self.feature_offset, row)
                    .iter()
                    .copied()
                    .map(u64::from)
                    .collect(),
                index: row_of(&self.feature_index, row).to_vec(),
                value: values().unwrap_or_default(),
            },
        };
        Ok(FeatureNodes {
            node_id,
            hop_offset: self.hop_offset.row(row).to_vec(),
            features,
        })
    }
}

impl EdgeColumns {
    fn of(batch: &Batch<'_>, meta: &RelationMeta) -> Result<Self> {
        let column = |name| layout::column(&meta.name, name);
        let positions = |name| batch.number_list::<UInt32Type>(&column(name));
        let floats = |there: bool, name| -> Result<Option<Floats>> {
            let read = || batch.number_list::<Float32Type>(&column(name));
            there.then(read).transpose()
        };
        let self_loops = meta.self_loops.then(|| positions("self_loops"));
        Ok(Self {
            in_degree: positions("in_degree")?,
            in_weight: floats(meta.edge_weight, "in_weight")?,
            self_loops: self_loops.transpose()?,
            self_weight: floats(meta.self_weight(), "self_weight")?,
            in_offset: positions("in_offset")?,
            in_src: positions("in_src")?,
            edge_weight: floats(meta.edge_weight, "edge_weight")?,
            edge_feature: floats(meta.edge_feature_dim.is_some(), "edge_feature")?,
        })
    }

    fn row(&self, row: usize, meta: &RelationMeta) -> FeatureEdges {
        let floats = |column: &Option<Floats>| column.as_ref().map(|lists| lists.row(row).to_vec());
        FeatureEdges {
            from: meta.from,
            to: meta.to,
            in_degree: self.in_degree.row(row).to_vec(),
            in_weight: floats(&self.in_weight),
            self_loops: self.self_loops.as_ref().map(|all| all.row(row).to_vec()),
            self_weight: floats(&self.self_weight),
            in_offset: self.in_offset.row(row).to_vec(),
            in_src: self.in_src.row(row).to_vec(),
            edge_weight: floats(&self.edge_weight),
            edge_feature: floats(&self.edge_feature),
        }
    }
}

fn row_of(column: &Option<Positions>, row: usize) -> &[u32] {
    column
        .as_ref()
        .map(|lists| lists.row(row))
        .unwrap_or_default()
}
