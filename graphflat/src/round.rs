//! One reduce round: sends the outermost nodes to their owners, and gets their in-edges back.

use schemas::{
    FeatureMeta, Features, GraphShard, Ids, Labels, LocalIdx, NodeIdx, ShardEdges, ShardNodes,
    Split,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use store::{EdgeReads, Partition, ReadAhead, Store};

/// Nodes whose columns are appended together, few enough that their places stay in the cache.
const PLACES_AT_ONCE: usize = 1 << 10;

/// A request to an owner for the first in-edges of some of its nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct InEdgeAsk {
    pub(crate) to: usize,
    pub(crate) from: usize,
    pub(crate) sample: usize,
    pub(crate) relation: usize,
    pub(crate) limit: usize,
    pub(crate) nodes: Vec<NodeIdx>,
}

/// The in-edges of some nodes; `weight` and `feature` are empty if the input has none.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct InEdgeAnswer {
    pub(crate) to: usize,
    pub(crate) relation: usize,
    pub(crate) nodes: Vec<NodeIdx>,
    pub(crate) lengths: Vec<u32>,
    pub(crate) src: Vec<NodeIdx>,
    pub(crate) weight: Vec<f32>,
    pub(crate) feature: Vec<f32>,
}

/// A request to an owner for the columns of some of its nodes of one type.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ColumnAsk {
    pub(crate) to: usize,
    pub(crate) from: usize,
    pub(crate) type_idx: usize,
    pub(crate) nodes: Vec<NodeIdx>,
}

/// Columns of some nodes of one type.
///
/// Within a process, the columns stay in the maps of the store, unless the page cache cannot hold
/// these: then they are copied in the order of the files. They are also copied when the message is
/// serialized for another process.
#[derive(Clone, Debug)]
pub(crate) struct ColumnAnswer {
    pub(crate) to: usize,
    pub(crate) type_idx: usize,
    pub(crate) nodes: Vec<NodeIdx>,
    columns: AnswerColumns,
}

#[derive(Clone, Debug)]
enum AnswerColumns {
    Mapped {
        store: Store,
        owner: usize,
        /// Positions of the nodes in the owner's partition.
        locals: Vec<LocalIdx>,
    },
    /// The columns in the order of the message.
    Sent(Box<SentColumns>),
}

/// The serialized form of a [`ColumnAnswer`].
#[derive(Serialize, Deserialize)]
struct SentAnswer {
    to: u32,
    type_idx: u32,
    nodes: Vec<NodeIdx>,
    columns: Box<SentColumns>,
}

/// Copied columns of some nodes of one type.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SentColumns {
    ids: Ids,
    features: Features,
    labels: Labels,
    split: Vec<Split>,
    /// One for each relation into the type.
    degrees: Vec<SentDegrees>,
}

/// The degrees of some nodes that a relation leads to, as in [`ShardEdges`].
#[derive(Clone, Debug, Serialize, Deserialize)]
struct SentDegrees {
    in_degree: Vec<u32>,
    in_weight: Option<Vec<f32>>,
    self_loops: Option<Vec<u32>>,
    self_weight: Option<Vec<f32>>,
}

/// A relation into a type.
#[derive(Clone, Copy)]
struct InRelation {
    /// Position among all relations.
    relation: usize,
    /// Position among the relations into the type.
    at: usize,
}

impl InEdgeAsk {
    /// A request of a worker to itself for nothing.
    pub(crate) fn of_no_node(worker: usize) -> Self {
        Self {
            to: worker,
            from: worker,
            sample: 0,
            relation: 0,
            limit: 0,
            nodes: Vec::new(),
        }
    }
}

/// Counts of one worker in one round, as an owner; in the last round, as the writer of parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct RoundStats {
    /// Nodes that it was asked for, or wrote.
    pub(crate) nodes: u64,
    /// In-edges it sent, or wrote.
    pub(crate) in_edges: u64,
    /// Bytes it sent, or wrote.
    pub(crate) bytes: u64,
    /// Seconds of work, as an owner and on its own groups. Not in the manifest, so that manifests
    /// of equal jobs are equal, unless a job was killed and resumed.
    #[serde(skip)]
    pub(crate) seconds: f64,
}

/// Returns the first in-edges of each requested node, in rank order.
pub(crate) fn answer_lists(ask: InEdgeAsk, store: &Store, stats: &mut RoundStats) -> InEdgeAnswer {
    let partition = store.partition(ask.to);
    let mut lists = InEdgeAnswer {
        to: ask.from,
        relation: ask.relation,
        ..InEdgeAnswer::default()
    };
    let locals = ask.nodes.iter().map(|&node| store.placement().local(node));
    let locals: Vec<LocalIdx> = locals.collect();
    let mut ahead = ReadAhead::new(store, &locals);
    for local in locals {
        if let Some(next) = ahead.before(local) {
            partition.will_need_in_edges(ask.relation, ask.sample, next, EdgeReads::ALL);
        }
        let in_edges = partition.in_edges(ask.relation, ask.sample, local, ask.limit);
        lists
            .lengths
            .push(u32::try_from(in_edges.src.len()).expect("in-degrees fit 32 bits"));
        lists.src.extend_from_slice(in_edges.src);
        lists
            .weight
            .extend_from_slice(in_edges.weight.unwrap_or_default());
        lists
            .feature
            .extend_from_slice(in_edges.feature.unwrap_or_default());
    }
    lists.nodes = ask.nodes;
    let words = 2 * lists.nodes.len() + lists.src.len() + lists.weight.len() + lists.feature.len();
    stats.nodes += lists.nodes.len() as u64;
    stats.in_edges += lists.src.len() as u64;
    stats.bytes += 4 * words as u64;
    lists
}

/// Returns the columns of each requested node.
pub(crate) fn answer_columns(
    ask: ColumnAsk,
    store: &Store,
    stats: &mut RoundStats,
) -> ColumnAnswer {
    stats.nodes += ask.nodes.len() as u64;
    let partition = store.partition(ask.to);
    let local = |&node: &NodeIdx| {
        let local = store.placement().local(node);
        stats.bytes += partition.row_bytes(local) as u64;
        local
    };
    let locals = ask.nodes.iter().map(local).collect();
    let answer = ColumnAnswer {
        to: ask.from,
        type_idx: ask.type_idx,
        nodes: ask.nodes,
        columns: AnswerColumns::Mapped {
            store: store.clone(),
            owner: ask.to,
            locals,
        },
    };
    match store.is_cached_with(0) {
        true => answer,
        false => ColumnAnswer {
            columns: AnswerColumns::Sent(answer.sent()),
            ..answer
        },
    }
}

/// Appends columns of a type's nodes, without dense features, to a shard. `place` has the message and
/// the row in it of each node.
pub(crate) fn append_columns(
    messages: &[ColumnAnswer],
    place: &[(u32, u32)],
    type_idx: usize,
    shard: &mut GraphShard,
) {
    let GraphShard { nodes, edges, .. } = shard;
    let nodes = &mut nodes[type_idx];
    let mut at = Vec::with_capacity(place.len().min(PLACES_AT_ONCE));
    for places in place.chunks(PLACES_AT_ONCE) {
        let places = places.iter();
        at.clear();
        at.extend(places.map(|&(message, row)| messages[message as usize].at(row as usize)));
        append_each(&at, nodes);
        let relations = edges.iter_mut().enumerate();
        let into_type = relations.filter(|(_, of)| of.to == type_idx);
        for (position, (relation, of)) in into_type.enumerate() {
            let of_relation = InRelation {
                relation,
                at: position,
            };
            append_degrees(&at, of_relation, of);
        }
    }
}

/// Appends the columns of some nodes, column by column, so that many rows are fetched at once.
fn append_each(at: &[ColumnsAt<'_>], nodes: &mut ShardNodes) {
    nodes.ids.extend_each(at.iter().map(ColumnsAt::id));
    if let Features::Sparse { .. } = nodes.features {
        at.iter()
            .for_each(|row| row.sparse_into(&mut nodes.features));
    }
    at.iter().for_each(|row| row.label_into(&mut nodes.labels));
    nodes.split.extend(at.iter().map(ColumnsAt::split));
}

/// Appends the degrees of some nodes that a relation leads to.
fn append_degrees(at: &[ColumnsAt<'_>], relation: InRelation, edges: &mut ShardEdges) {
    let in_degree = |row: &ColumnsAt<'_>| row.in_degree(relation);
    edges.in_degree.extend(at.iter().map(in_degree));
    if let Some(in_weight) = &mut edges.in_weight {
        in_weight.extend(at.iter().filter_map(|row| row.in_weight(relation)));
    }
    if let Some(self_loops) = &mut edges.self_loops {
        self_loops.extend(at.iter().filter_map(|row| row.self_loops(relation)));
    }
    if let Some(self_weight) = &mut edges.self_weight {
        self_weight.extend(at.iter().filter_map(|row| row.self_weight(relation)));
    }
}

/// The location of a node's columns.
#[derive(Clone, Copy)]
enum ColumnsAt<'a> {
    Mapped(&'a Partition, LocalIdx),
    /// A message's columns, and the node's row.
    Sent(&'a SentColumns, usize),
}

impl<'a> ColumnsAt<'a> {
    fn id(&self) -> (&'a Ids, usize) {
        match *self {
            ColumnsAt::Mapped(partition, local) => partition.id(local),
            ColumnsAt::Sent(columns, i) => (&columns.ids, i),
        }
    }

    fn in_degree(&self, of: InRelation) -> u32 {
        match *self {
            ColumnsAt::Mapped(partition, local) => partition.in_degree(of.relation, local),
            ColumnsAt::Sent(columns, i) => columns.degrees[of.at].in_degree[i],
        }
    }

    fn in_weight(&self, of: InRelation) -> Option<f32> {
        match *self {
            ColumnsAt::Mapped(partition, local) => partition.in_weight(of.relation, local),
            ColumnsAt::Sent(columns, i) => Some(columns.degrees[of.at].in_weight.as_ref()?[i]),
        }
    }

    fn self_loops(&self, of: InRelation) -> Option<u32> {
        match *self {
            ColumnsAt::Mapped(partition, local) => partition.self_loops(of.relation, local),
            ColumnsAt::Sent(columns, i) => Some(columns.degrees[of.at].self_loops.as_ref()?[i]),
        }
    }

    fn self_weight(&self, of: InRelation) -> Option<f32> {
        match *self {
            ColumnsAt::Mapped(partition, local) => partition.self_weight(of.relation, local),
            ColumnsAt::Sent(columns, i) => Some(columns.degrees[of.at].self_weight.as_ref()?[i]),
        }
    }

    fn split(&self) -> Split {
        match *self {
            ColumnsAt::Mapped(partition, local) => partition.split(local),
            ColumnsAt::Sent(columns, i) => columns.split[i],
        }
    }

    fn label_into(&self, out: &mut Labels) {
        match *self {
            ColumnsAt::Mapped(partition, local) => partition.label_into(local, out),
            ColumnsAt::Sent(columns, i) => out.push_from(&columns.labels, narrow(i)),
        }
    }

    fn sparse_into(&self, out: &mut Features) {
        match *self {
            ColumnsAt::Mapped(partition, local) => partition.features_into(local, out),
            ColumnsAt::Sent(columns, i) => out.push_from(&columns.features, narrow(i)),
        }
    }
}

impl SentColumns {
    fn size_bytes(&self) -> usize {
        let words = |of: &SentDegrees| {
            let counts = of.in_degree.len() + of.self_loops.as_ref().map_or(0, Vec::len);
            let weights = [&of.in_weight, &of.self_weight];
            let weights = weights.into_iter().flatten().map(Vec::len).sum::<usize>();
            counts + weights
        };
        let degrees = 4 * self.degrees.iter().map(words).sum::<usize>();
        self.ids.size_bytes()
            + self.features.size_bytes()
            + degrees
            + self.labels.size_bytes()
            + self.split.len()
    }
}

impl ColumnAnswer {
    fn at(&self, row: usize) -> ColumnsAt<'_> {
        match &self.columns {
            AnswerColumns::Mapped {
                store,
                owner,
                locals,
            } => ColumnsAt::Mapped(store.partition(*owner), locals[row]),
            AnswerColumns::Sent(columns) => ColumnsAt::Sent(columns, row),
        }
    }

    /// Returns the dense features of the message's node number `row`, `[dim]`.
    pub(crate) fn dense(&self, row: usize) -> &[f32] {
        match self.at(row) {
            ColumnsAt::Mapped(partition, local) => partition.dense(local),
            ColumnsAt::Sent(columns, i) => match &columns.features {
                Features::Dense { dim, values } => &values[i * dim..(i + 1) * dim],
                Features::None | Features::Sparse { .. } => &[],
            },
        }
    }

    /// Returns the bytes of copied columns.
    pub(crate) fn copied_bytes(&self) -> usize {
        match &self.columns {
            AnswerColumns::Mapped { .. } => 0,
            AnswerColumns::Sent(columns) => columns.size_bytes(),
        }
    }

    /// Returns a copy of the columns in the order of the message.
    fn sent(&self) -> Box<SentColumns> {
        let (store, owner, locals) = match &self.columns {
            AnswerColumns::Mapped {
                store,
                owner,
                locals,
            } => (store, *owner, locals),
            AnswerColumns::Sent(columns) => return columns.clone(),
        };
        let graph = &store.meta().graph;
        let mut shard = GraphShard::empty(graph);
        let place: Vec<(u32, u32)> = (0..).zip(locals).map(|(row, _)| (0, row)).collect();
        append_columns(
            std::slice::from_ref(self),
            &place,
            self.type_idx,
            &mut shard,
        );
        if let FeatureMeta::Dense { .. } = graph.types[self.type_idx].features {
            let partition = store.partition(owner);
            let mut ahead = ReadAhead::new(store, locals);
            let features = &mut shard.nodes[self.type_idx].features;
            for &local in locals {
                if let Some(next) = ahead.before(local) {
                    partition.will_need_features(next);
                }
                partition.features_into(local, features);
            }
        }
        let nodes = shard.nodes.swap_remove(self.type_idx);
        let into_type = shard.edges.into_iter().filter(|of| of.to == self.type_idx);
        let degrees = into_type.map(|of| SentDegrees {
            in_degree: of.in_degree,
            in_weight: of.in_weight,
            self_loops: of.self_loops,
            self_weight: of.self_weight,
        });
        Box::new(SentColumns {
            ids: nodes.ids,
            features: nodes.features,
            labels: nodes.labels,
            split: nodes.split,
            degrees: degrees.collect(),
        })
    }
}

pub(crate) fn narrow(row: usize) -> u32 {
    u32::try_from(row).expect("a part holds below 2^32 nodes")
}

impl Serialize for ColumnAnswer {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let sent = SentAnswer {
            to: narrow(self.to),
            type_idx: narrow(self.type_idx),
            nodes: self.nodes.clone(),
            columns: self.sent(),
        };
        sent.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ColumnAnswer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let sent = SentAnswer::deserialize(deserializer)?;
        Ok(Self {
            to: sent.to as usize,
            type_idx: sent.type_idx as usize,
            nodes: sent.nodes,
            columns: AnswerColumns::Sent(sent.columns),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{generate, tests};
    use schemas::{EdgesSpec, GraphPlan, NodesSpec, Sampling};
    use serde_json::json;
    use std::path::Path;
    use std::sync::Arc;
    use store::{StorePlan, open_or_build};

    /// Builds the store of a random graph on two workers.
    fn store(dir: &Path) -> Store {
        generate(&tests::plan(200, 900), dir).unwrap();
        let nodes: NodesSpec = serde_json::from_value(json!({
            "path": "nodes.parquet", "id": "id", "features": ["features"], "label": "label",
            "split": "split",
        }))
        .unwrap();
        let edges: EdgesSpec = serde_json::from_value(json!({
            "path": "edges.parquet", "src": "src", "dst": "dst", "weight": "weight",
        }))
        .unwrap();
        let nodes = nodes.into_plan(dir).unwrap();
        let edges = edges.into_plan(dir).unwrap();
        let plan = StorePlan {
            graph: Arc::new(GraphPlan::untyped(nodes, edges).unwrap()),
            target_type: 0,
            seed: 7,
            sampling: Sampling::Uniform,
            keep: vec![5],
            samples: 1,
            redraw: false,
            left_out: false,
            hub_threshold: 100,
            workers: 2,
            memory_budget: 1 << 20,
            page_cache: None,
            dir: dir.join("store"),
            fresh: true,
        };
        open_or_build(&plan, &(Arc::new(|_: &schemas::progress::Event| {}) as _)).unwrap()
    }

    #[test]
    fn rows_are_the_same_in_another_process() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(dir.path());
        let placement = store.placement().clone();
        for to in 0..2 {
            let locals = placement.locals(to).step_by(3).collect::<Vec<_>>();
            let locals = locals.into_iter().rev();
            let nodes: Vec<NodeIdx> = locals.map(|local| placement.node(to, local)).collect();
            let ask = ColumnAsk {
                to,
                from: 1,
                type_idx: 0,
                nodes,
            };
            let mapped = answer_columns(ask, &store, &mut RoundStats::default());
            let sent: ColumnAnswer =
                serde_json::from_slice(&serde_json::to_vec(&mapped).unwrap()).unwrap();
            assert!(matches!(sent.columns, AnswerColumns::Sent(_)));
            assert_eq!((sent.to, &sent.nodes), (1, &mapped.nodes));
            let mut shards = [(); 2].map(|()| GraphShard::empty(&store.meta().graph));
            for row in 0..mapped.nodes.len() {
                assert_eq!(mapped.dense(row), sent.dense(row));
                assert_eq!(mapped.dense(row).len(), 3);
            }
            let place: Vec<(u32, u32)> = (0..narrow(mapped.nodes.len()))
                .map(|row| (0, row))
                .collect();
            for (shard, rows) in shards.iter_mut().zip([&mapped, &sent]) {
                append_columns(std::slice::from_ref(rows), &place, 0, shard);
            }
            assert_eq!(shards[0].num_nodes(), mapped.nodes.len());
            assert_eq!(shards[0], shards[1]);
        }
    }
}
