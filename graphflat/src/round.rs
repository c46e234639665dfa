//! One reduce round: the outermost nodes go to their owners, their in-edges come back.

use crate::{NodeIdx, Store};
use schemas::{Features, Ids, Labels, Split};
use serde::{Deserialize, Serialize};

/// Asks an owner for the first in-edges of some of its nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AskLists {
    pub(crate) to: usize,
    pub(crate) from: usize,
    pub(crate) sample: usize,
    pub(crate) limit: usize,
    pub(crate) nodes: Vec<NodeIdx>,
}

/// The in-edges of some nodes; `weight` and `feature` are empty where the input has none.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Lists {
    pub(crate) to: usize,
    pub(crate) nodes: Vec<NodeIdx>,
    pub(crate) lengths: Vec<u32>,
    pub(crate) src: Vec<NodeIdx>,
    pub(crate) weight: Vec<f32>,
    pub(crate) feature: Vec<f32>,
}

/// Asks an owner for the columns of some of its nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct AskRows {
    pub(crate) to: usize,
    pub(crate) from: usize,
    pub(crate) nodes: Vec<NodeIdx>,
}

/// Columns of some nodes; weights and self-loops are empty where the graph has none.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Rows {
    pub(crate) to: usize,
    pub(crate) nodes: Vec<NodeIdx>,
    pub(crate) ids: Ids,
    pub(crate) in_degree: Vec<u32>,
    pub(crate) in_weight: Vec<f32>,
    pub(crate) self_loops: Vec<u32>,
    pub(crate) self_weight: Vec<f32>,
    pub(crate) features: Features,
    pub(crate) labels: Labels,
    pub(crate) split: Vec<Split>,
}

/// What one worker sent as an owner in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RoundStats {
    /// Nodes it was asked for.
    pub(crate) nodes: u64,
    /// In-edges it sent.
    pub(crate) in_edges: u64,
    /// Bytes it sent.
    pub(crate) bytes: u64,
}

/// Answers with the first in-edges of each node asked for, in rank order.
pub(crate) fn answer_lists(ask: AskLists, store: &Store, stats: &mut RoundStats) -> Lists {
    let partition = store.partition(ask.to);
    let mut lists = Lists {
        to: ask.from,
        ..Lists::default()
    };
    for &node in &ask.nodes {
        let local = store.placement().local(node);
        let in_edges = partition.in_edges(ask.sample, local, ask.limit);
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

/// Answers with the columns of each node asked for.
pub(crate) fn answer_rows(ask: AskRows, store: &Store, stats: &mut RoundStats) -> Rows {
    let (partition, meta) = (store.partition(ask.to), store.meta());
    let mut rows = Rows {
        to: ask.from,
        nodes: Vec::new(),
        ids: Ids::with_capacity(meta.graph.id_type, ask.nodes.len()),
        in_degree: Vec::with_capacity(ask.nodes.len()),
        in_weight: Vec::new(),
        self_loops: Vec::new(),
        self_weight: Vec::new(),
        features: Features::empty(meta.graph.features),
        labels: Labels::empty(meta.graph.label.as_ref()),
        split: Vec::with_capacity(ask.nodes.len()),
    };
    for &node in &ask.nodes {
        let local = store.placement().local(node);
        rows.ids.push_from(partition.ids(), local);
        rows.in_degree.push(partition.in_degree(local));
        rows.in_weight.extend(partition.in_weight(local));
        rows.self_loops.extend(partition.self_loops(local));
        rows.self_weight.extend(partition.self_weight(local));
        partition.features_into(local, &mut rows.features);
        partition.label_into(local, &mut rows.labels);
        rows.split.push(partition.split(local));
    }
    rows.nodes = ask.nodes;
    stats.nodes += rows.nodes.len() as u64;
    stats.bytes +=
        (rows.ids.size_bytes() + rows.features.size_bytes()) as u64 + 8 * rows.nodes.len() as u64;
    rows
}
