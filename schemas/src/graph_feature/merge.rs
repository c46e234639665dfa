//! Merges the neighbourhoods of several targets into their union.

use hashbrown::HashTable;

use super::extract::{gather, gather_rows, of_nodes};
use super::{GraphFeature, GraphShard};
use crate::columns::{Features, GraphMeta, Labels, Split};
use crate::error::{Result, SchemaError};
use crate::ids::Ids;

/// Row of a node that is no target, and so has no label and no split.
const NO_ROW: u32 = u32::MAX;

/// Collects graph features of one sample into a shard.
#[derive(Debug)]
pub struct ShardBuilder {
    /// Nodes in order of arrival.
    ids: Ids,
    hop: Vec<u8>,
    in_degree: Vec<u32>,
    in_weight: Option<Vec<f32>>,
    self_loops: Option<Vec<u32>>,
    self_weight: Option<Vec<f32>>,
    features: Features,
    /// Row in `labels` and `split` of a target, else [`NO_ROW`].
    target_row: Vec<u32>,
    labels: Labels,
    split: Vec<Split>,
    /// Start and length of each node's in-edges in the edge columns, which keep replaced lists too.
    lists: Vec<(usize, usize)>,
    in_src: Vec<u32>,
    edge_weight: Option<Vec<f32>>,
    edge_feature: Option<Vec<f32>>,
    edge_dim: usize,
    /// Nodes by the hash of their id.
    index: HashTable<u32>,
    /// Position in the union of each node of the graph feature being added.
    local: Vec<u32>,
}

impl ShardBuilder {
    /// Starts an empty union.
    pub fn new(meta: &GraphMeta) -> Self {
        Self {
            ids: Ids::new(meta.id_type),
            hop: Vec::new(),
            in_degree: Vec::new(),
            in_weight: meta.edge_weight.then(Vec::new),
            self_loops: meta.self_loops.then(Vec::new),
            self_weight: meta.self_weight().then(Vec::new),
            features: Features::empty(meta.features),
            target_row: Vec::new(),
            labels: Labels::empty(meta.label.as_ref()),
            split: Vec::new(),
            lists: Vec::new(),
            in_src: Vec::new(),
            edge_weight: meta.edge_weight.then(Vec::new),
            edge_feature: meta.edge_feature_dim.map(|_| Vec::new()),
            edge_dim: meta.edge_feature_dim.unwrap_or(0),
            index: HashTable::new(),
            local: Vec::new(),
        }
    }

    /// Adds a neighbourhood.
    ///
    /// # Errors
    ///
    /// If it was drawn with other settings than the ones before: of two in-edge lists of a node the
    /// shorter must be a prefix of the longer.
    ///
    /// # Panics
    ///
    /// If its columns are not the ones of the graph.
    pub fn push(&mut self, feature: &GraphFeature) -> Result<()> {
        self.local.clear();
        for (hop, ends) in (0..=u8::MAX).zip(feature.hop_offset.windows(2)) {
            for node in ends[0]..ends[1] {
                let local = self.add_node(feature, node, hop);
                self.local.push(local);
            }
        }
        let target = self.local[0] as usize;
        if self.target_row[target] == NO_ROW {
            self.target_row[target] = position(self.split.len());
            self.labels.extend(&feature.labels);
            self.split.push(feature.split);
        }
        for node in 0..feature.in_offset.len() - 1 {
            self.add_list(feature, node)?;
        }
        Ok(())
    }

    fn add_node(&mut self, feature: &GraphFeature, node: u32, hop: u8) -> u32 {
        let i = node as usize;
        let found = self.index.find(feature.node_id.hash(i), |&known| {
            self.ids.equal(known as usize, &feature.node_id, i)
        });
        if let Some(&known) = found {
            let least = &mut self.hop[known as usize];
            *least = hop.min(*least);
            return known;
        }
        let new = position(self.ids.len());
        self.ids.push_from(&feature.node_id, i);
        let ids = &self.ids;
        self.index
            .insert_unique(ids.hash(new as usize), new, |&known| {
                ids.hash(known as usize)
            });
        self.hop.push(hop);
        self.in_degree.push(feature.in_degree[i]);
        push_value(&mut self.in_weight, feature.in_weight.as_deref(), i);
        push_value(&mut self.self_loops, feature.self_loops.as_deref(), i);
        push_value(&mut self.self_weight, feature.self_weight.as_deref(), i);
        self.features.push_from(&feature.features, node);
        self.target_row.push(NO_ROW);
        self.lists.push((0, 0));
        new
    }

    fn add_list(&mut self, feature: &GraphFeature, node: usize) -> Result<()> {
        let dst = self.local[node] as usize;
        let edges = feature.in_edges(node);
        let (start, len) = self.lists[dst];
        let to_local = |&src: &u32| self.local[src as usize];
        let in_src = &feature.in_src[edges.clone()];
        let mut both = in_src
            .iter()
            .map(to_local)
            .zip(&self.in_src[start..start + len]);
        if !both.all(|(src, &known)| src == known) {
            return Err(SchemaError::Invalid {
                what: "union of graph features",
                problem: format!(
                    "two of them keep different in-edges of node {}",
                    self.ids.display(dst)
                ),
            });
        }
        if edges.len() <= len {
            return Ok(());
        }
        self.lists[dst] = (self.in_src.len(), edges.len());
        self.in_src.extend(in_src.iter().map(to_local));
        if let (Some(all), Some(weight)) = (&mut self.edge_weight, &feature.edge_weight) {
            all.extend_from_slice(&weight[edges.clone()]);
        }
        if let (Some(all), Some(values)) = (&mut self.edge_feature, &feature.edge_feature) {
            all.extend_from_slice(&values[edges.start * self.edge_dim..edges.end * self.edge_dim]);
        }
        Ok(())
    }

    /// Returns the union.
    pub fn finish(self) -> GraphShard {
        let mut order = self.ids.sort_permutation();
        order.sort_by_key(|&node| self.hop[node as usize]);
        let mut new_position = vec![0; order.len()];
        for (new, &old) in (0..).zip(&order) {
            new_position[old as usize] = new;
        }
        let mut in_offset = Vec::with_capacity(order.len() + 1);
        in_offset.push(0);
        let mut edges = Vec::new();
        for &node in &order {
            let (start, len) = self.lists[node as usize];
            edges.extend((start..start + len).map(position));
            in_offset.push(position(edges.len()));
        }
        let mut labels = self.labels.empty_like();
        let mut split = Vec::with_capacity(order.len());
        for &node in &order {
            match self.target_row[node as usize] {
                NO_ROW => {
                    labels.push_none();
                    split.push(Split::None);
                }
                row => {
                    labels.push_from(&self.labels, row);
                    split.push(self.split[row as usize]);
                }
            }
        }
        GraphShard {
            ids: self.ids.gather(&order),
            hop: gather(&self.hop, &order).collect(),
            in_degree: gather(&self.in_degree, &order).collect(),
            in_weight: of_nodes(&self.in_weight, &order),
            self_loops: of_nodes(&self.self_loops, &order),
            self_weight: of_nodes(&self.self_weight, &order),
            features: self.features.gather(&order),
            labels,
            split,
            is_target: order
                .iter()
                .map(|&n| self.target_row[n as usize] != NO_ROW)
                .collect(),
            in_offset,
            in_src: gather(&self.in_src, &edges)
                .map(|src| new_position[src as usize])
                .collect(),
            edge_weight: self
                .edge_weight
                .map(|weight| gather(&weight, &edges).collect()),
            edge_feature: self.edge_feature.map(|values| {
                let mut gathered = Vec::with_capacity(edges.len() * self.edge_dim);
                gather_rows(&mut gathered, &values, self.edge_dim, &edges);
                gathered
            }),
        }
    }
}

fn position(i: usize) -> u32 {
    u32::try_from(i).expect("a part holds fewer than 2^32 nodes and edges")
}

fn push_value<T: Copy>(all: &mut Option<Vec<T>>, values: Option<&[T]>, i: usize) {
    if let Some(all) = all {
        all.push(values.expect("the graph has this column")[i]);
    }
}

impl GraphShard {
    /// Unites neighbourhoods: a node keeps its longest in-edge list and its least hop.
    ///
    /// # Errors
    ///
    /// As [`ShardBuilder::push`].
    pub fn from_features<'a>(
        features: impl IntoIterator<Item = &'a GraphFeature>,
        meta: &GraphMeta,
    ) -> Result<Self> {
        let mut builder = ShardBuilder::new(meta);
        for feature in features {
            builder.push(feature)?;
        }
        Ok(builder.finish())
    }
}
