//! Checks of shards and graph features, made before writing and after reading.

use super::{GraphFeature, GraphShard};
use crate::columns::{FeatureMeta, Features, GraphMeta, Labels};
use crate::error::{Result, SchemaError};
use crate::ids::Ids;

/// Checks rules; an error names the table and the broken rule.
struct Rules {
    what: &'static str,
}

impl Rules {
    fn ensure(&self, holds: bool, problem: impl FnOnce() -> String) -> Result<()> {
        if holds {
            Ok(())
        } else {
            Err(self.broken(problem()))
        }
    }

    fn broken(&self, problem: String) -> SchemaError {
        SchemaError::Invalid {
            what: self.what,
            problem,
        }
    }

    fn len(&self, column: &str, len: usize, want: usize) -> Result<()> {
        self.ensure(len == want, || {
            format!("`{column}` holds {len} values, not {want}")
        })
    }

    fn opt_len<T>(&self, column: &str, values: Option<&Vec<T>>, want: usize) -> Result<()> {
        values.map_or(Ok(()), |values| self.len(column, values.len(), want))
    }

    /// Offsets start at 0, never fall and end at `end`.
    fn offsets<T: Copy + Ord + Into<u64>>(
        &self,
        column: &str,
        offsets: &[T],
        rows: usize,
        end: usize,
    ) -> Result<()> {
        self.len(column, offsets.len(), rows + 1)?;
        let spans = offsets[0].into() == 0 && offsets[rows].into() == end as u64;
        self.ensure(spans && offsets.is_sorted(), || {
            format!("`{column}` does not rise from 0 to {end}")
        })
    }

    fn features(&self, features: &Features, num_nodes: usize) -> Result<()> {
        match features {
            Features::None => Ok(()),
            Features::Dense { dim, values } => self.len("feature", values.len(), num_nodes * dim),
            Features::Sparse {
                dim,
                offset,
                index,
                value,
            } => {
                self.offsets("feature_offset", offset, num_nodes, index.len())?;
                self.len("feature_value", value.len(), index.len())?;
                let beyond = index.iter().find(|&&i| i as usize >= *dim);
                self.ensure(beyond.is_none(), || {
                    format!(
                        "`feature_index` holds {}, the width is {dim}",
                        beyond.unwrap_or(&0)
                    )
                })
            }
        }
    }

    fn labels(&self, labels: &Labels, num_nodes: usize) -> Result<()> {
        if let Labels::Multi { width, values, .. } = labels {
            self.len("label", values.len(), num_nodes * width)?;
        }
        labels
            .num_rows()
            .map_or(Ok(()), |rows| self.len("label", rows, num_nodes))
    }

    fn edge_features(&self, edge_feature: Option<&Vec<f32>>, num_edges: usize) -> Result<()> {
        let len = edge_feature.map_or(0, Vec::len);
        let fits = if num_edges == 0 {
            len == 0
        } else {
            len.is_multiple_of(num_edges)
        };
        self.ensure(fits, || {
            format!("`edge_feature` holds {len} values for {num_edges} edges")
        })
    }

    /// Ids of one hop ascend.
    fn ascending(&self, ids: &Ids, start: usize, end: usize) -> Result<()> {
        match (start + 1..end).find(|&i| ids.cmp(i - 1, ids, i).is_ge()) {
            Some(i) => Err(self.broken(format!(
                "node {} follows {} within a hop; ids must ascend",
                ids.display(i),
                ids.display(i - 1)
            ))),
            None => Ok(()),
        }
    }

    /// Edges lead at most one hop inwards, and every node but targets is reached from there.
    fn edges(&self, hop: &[u8], in_offset: &[u32], in_src: &[u32]) -> Result<()> {
        let mut is_reached: Vec<bool> = hop.iter().map(|&hop| hop == 0).collect();
        for (dst, ends) in in_offset.windows(2).enumerate() {
            for &src in &in_src[ends[0] as usize..ends[1] as usize] {
                let Some(&src_hop) = hop.get(src as usize) else {
                    let nodes = hop.len();
                    return Err(self.broken(format!("source {src} of {nodes} nodes")));
                };
                let outermost = hop[dst].saturating_add(1);
                self.ensure(src_hop <= outermost, || {
                    format!("an edge leads from hop {src_hop} to hop {}", hop[dst])
                })?;
                is_reached[src as usize] |= src_hop == outermost;
            }
        }
        match is_reached.iter().position(|is_reached| !is_reached) {
            Some(node) => Err(self.broken(format!(
                "no edge leads from node {node} of hop {} to the hop before",
                hop[node]
            ))),
            None => Ok(()),
        }
    }
}

impl GraphShard {
    /// Checks that lengths, offsets, positions and the order of the nodes agree.
    ///
    /// # Errors
    ///
    /// Names the first disagreement.
    pub fn validate(&self) -> Result<()> {
        let rules = Rules { what: "shard" };
        let (num_nodes, num_edges) = (self.num_nodes(), self.num_edges());
        rules.len("hop", self.hop.len(), num_nodes)?;
        rules.len("in_degree", self.in_degree.len(), num_nodes)?;
        rules.opt_len("in_weight", self.in_weight.as_ref(), num_nodes)?;
        rules.opt_len("self_loops", self.self_loops.as_ref(), num_nodes)?;
        rules.opt_len("self_weight", self.self_weight.as_ref(), num_nodes)?;
        rules.features(&self.features, num_nodes)?;
        rules.labels(&self.labels, num_nodes)?;
        rules.len("split", self.split.len(), num_nodes)?;
        rules.len("is_target", self.is_target.len(), num_nodes)?;
        rules.offsets("in_offset", &self.in_offset, num_nodes, num_edges)?;
        rules.opt_len("edge_weight", self.edge_weight.as_ref(), num_edges)?;
        rules.edge_features(self.edge_feature.as_ref(), num_edges)?;
        rules.ensure(self.hop.is_sorted(), || "`hop` falls".to_owned())?;
        let agrees = |(&hop, &is_target): (&u8, &bool)| (hop == 0) == is_target;
        rules.ensure(self.hop.iter().zip(&self.is_target).all(agrees), || {
            "targets and the nodes of hop 0 are not the same".to_owned()
        })?;
        let mut start = 0;
        for run in self.hop.chunk_by(|left, right| left == right) {
            rules.ascending(&self.ids, start, start + run.len())?;
            start += run.len();
        }
        let order = self.ids.sort_permutation();
        let same = |pair: &&[u32]| {
            self.ids
                .equal(pair[0] as usize, &self.ids, pair[1] as usize)
        };
        let twice = order.windows(2).find(same);
        rules.ensure(twice.is_none(), || {
            let node = twice.map_or(0, |pair| pair[0] as usize);
            format!("node {} occurs twice", self.ids.display(node))
        })?;
        rules.edges(&self.hop, &self.in_offset, &self.in_src)
    }

    /// Checks that the columns are those of `meta`; `features` is the shape of the shard's own
    /// features or of the lent ones.
    pub(super) fn agrees_with(
        &self,
        features: FeatureMeta,
        meta: &GraphMeta,
        hops: usize,
    ) -> Result<()> {
        let rules = Rules { what: "shard" };
        let column = |name: &'static str, there: bool, wanted: bool| {
            rules.ensure(there == wanted, || {
                let says = if wanted { "needs" } else { "has no" };
                format!("`{name}`: the graph {says} such a column")
            })
        };
        rules.ensure(self.ids.id_type() == meta.id_type, || {
            format!(
                "ids are {}, the graph's are {}",
                self.ids.id_type(),
                meta.id_type
            )
        })?;
        rules.ensure(features == meta.features, || {
            format!("features are {features:?}, the graph's {:?}", meta.features)
        })?;
        let is_kind = match (&self.labels, Labels::empty(meta.label.as_ref())) {
            (Labels::Multi { width, .. }, Labels::Multi { width: wanted, .. }) => *width == wanted,
            (found, wanted) => std::mem::discriminant(found) == std::mem::discriminant(&wanted),
        };
        rules.ensure(is_kind, || {
            "labels are of another kind than the graph's".to_owned()
        })?;
        column("in_weight", self.in_weight.is_some(), meta.edge_weight)?;
        column("edge_weight", self.edge_weight.is_some(), meta.edge_weight)?;
        column("self_loops", self.self_loops.is_some(), meta.self_loops)?;
        column(
            "self_weight",
            self.self_weight.is_some(),
            meta.self_weight(),
        )?;
        column(
            "edge_feature",
            self.edge_feature.is_some(),
            meta.edge_feature_dim.is_some(),
        )?;
        let values = self.num_edges() * meta.edge_feature_dim.unwrap_or(0);
        rules.opt_len("edge_feature", self.edge_feature.as_ref(), values)?;
        let last = self.hop.partition_point(|&hop| usize::from(hop) < hops);
        let is_last = |&hop: &u8| usize::from(hop) <= hops;
        rules.ensure(self.hop.last().is_none_or(is_last), || {
            format!("a hop above {hops}")
        })?;
        rules.ensure(self.in_offset[last] as usize == self.num_edges(), || {
            format!("nodes of the last hop, {hops}, have in-edges")
        })
    }
}

impl GraphFeature {
    /// Checks that lengths, offsets, positions and the order of the nodes agree.
    ///
    /// # Errors
    ///
    /// Names the first disagreement.
    pub fn validate(&self) -> Result<()> {
        let rules = Rules {
            what: "graph feature",
        };
        let (num_nodes, num_edges) = (self.num_nodes(), self.num_edges());
        rules.ensure(self.hop_offset.len() >= 2, || {
            "`hop_offset` is too short".to_owned()
        })?;
        let runs = self.hop_offset.len() - 1;
        rules.offsets("hop_offset", &self.hop_offset, runs, num_nodes)?;
        rules.ensure(self.hop_offset[1] == 1, || {
            "not one node at hop 0".to_owned()
        })?;
        rules.len("in_degree", self.in_degree.len(), num_nodes)?;
        rules.opt_len("in_weight", self.in_weight.as_ref(), num_nodes)?;
        rules.opt_len("self_loops", self.self_loops.as_ref(), num_nodes)?;
        rules.opt_len("self_weight", self.self_weight.as_ref(), num_nodes)?;
        rules.features(&self.features, num_nodes)?;
        rules.labels(&self.labels, 1)?;
        let inner = self.hop_offset[runs - 1] as usize;
        rules.offsets("in_offset", &self.in_offset, inner, num_edges)?;
        rules.opt_len("edge_weight", self.edge_weight.as_ref(), num_edges)?;
        rules.edge_features(self.edge_feature.as_ref(), num_edges)?;
        let mut hop = Vec::with_capacity(num_nodes);
        for (distance, ends) in (0..=u8::MAX).zip(self.hop_offset.windows(2)) {
            rules.ascending(&self.node_id, ends[0] as usize, ends[1] as usize)?;
            hop.resize(ends[1] as usize, distance);
        }
        rules.len("hop", hop.len(), num_nodes)?;
        rules.edges(&hop, &self.in_offset, &self.in_src)
    }
}
