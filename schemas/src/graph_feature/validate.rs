//! Checks of shards and graph features, made before writing and after reading.

use super::{FeatureEdges, FeatureNodes, GraphFeature, GraphShard, ShardEdges, ShardNodes};
use crate::columns::{FeatureMeta, Features, GraphMeta, Labels, RelationMeta, TypeMeta};
use crate::error::{Result, SchemaError};
use crate::ids::Ids;

/// Checks rules of a type or a relation; an error names the table and the broken rule.
struct Rules<'a> {
    what: &'static str,
    /// Name of the type or the relation; empty in an untyped graph.
    name: &'a str,
}

/// The nodes of a type, for the rules of edges.
struct Ends<'a> {
    meta: &'a TypeMeta,
    /// `[n]`
    hop: &'a [u8],
    is_reached: Vec<bool>,
}

impl<'a> Ends<'a> {
    fn new(meta: &'a TypeMeta, hop: &'a [u8]) -> Self {
        Self {
            meta,
            hop,
            is_reached: hop.iter().map(|&hop| hop == 0).collect(),
        }
    }
}

impl Rules<'_> {
    fn ensure(&self, holds: bool, problem: impl FnOnce() -> String) -> Result<()> {
        if holds {
            Ok(())
        } else {
            Err(self.broken(&problem()))
        }
    }

    fn broken(&self, problem: &str) -> SchemaError {
        SchemaError::Invalid {
            what: self.what,
            problem: match self.name {
                "" => problem.to_owned(),
                name => format!("`{name}`: {problem}"),
            },
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
            Some(i) => Err(self.broken(&format!(
                "node {} follows {} within a hop; ids must ascend",
                ids.display(i),
                ids.display(i - 1)
            ))),
            None => Ok(()),
        }
    }

    /// The degree columns of the destinations of a relation.
    fn degrees(&self, columns: &DegreeColumns<'_>, num_nodes: usize) -> Result<()> {
        self.len("in_degree", columns.in_degree.len(), num_nodes)?;
        self.opt_len("in_weight", columns.in_weight, num_nodes)?;
        self.opt_len("self_loops", columns.self_loops, num_nodes)?;
        self.opt_len("self_weight", columns.self_weight, num_nodes)
    }

    /// Edges lead at most one hop inwards; marks the sources that are reached from a hop before.
    fn edges(
        &self,
        ends: &mut [Ends<'_>],
        (from, to): (usize, usize),
        in_offset: &[u32],
        in_src: &[u32],
    ) -> Result<()> {
        let (dst_hops, src_hops) = (ends[to].hop, ends[from].hop);
        let is_reached = &mut ends[from].is_reached;
        for (range, &dst_hop) in in_offset.windows(2).zip(dst_hops) {
            for &src in &in_src[range[0] as usize..range[1] as usize] {
                let Some(&src_hop) = src_hops.get(src as usize) else {
                    let nodes = src_hops.len();
                    return Err(self.broken(&format!("source {src} of {nodes} nodes")));
                };
                let outermost = dst_hop.saturating_add(1);
                self.ensure(src_hop <= outermost, || {
                    format!("an edge leads from hop {src_hop} to hop {dst_hop}")
                })?;
                is_reached[src as usize] |= src_hop == outermost;
            }
        }
        Ok(())
    }
}

/// Every node but targets is reached from the hop before.
fn all_reached(what: &'static str, all: &[Ends<'_>]) -> Result<()> {
    for ends in all {
        let name = &ends.meta.name;
        if let Some(node) = ends.is_reached.iter().position(|is_reached| !is_reached) {
            let hop = ends.hop[node];
            return Err(Rules { what, name }.broken(&format!(
                "no edge leads from node {node} of hop {hop} to the hop before"
            )));
        }
    }
    Ok(())
}

/// Checks that there are as many types and relations as in the graph, with the same ends.
fn same_lists(
    what: &'static str,
    (target_type, num_types): (usize, usize),
    ends: impl ExactSizeIterator<Item = (usize, usize)>,
    meta: &GraphMeta,
) -> Result<()> {
    let rules = Rules { what, name: "" };
    let (wanted_types, wanted_target) = (meta.types.len(), meta.target_type);
    let is_same = (num_types, target_type) == (wanted_types, wanted_target);
    rules.ensure(is_same, || {
        format!(
            "{num_types} node types with targets of type {target_type}, the graph has \
             {wanted_types} with targets of type {wanted_target}"
        )
    })?;
    let relations = meta.relations.iter().map(|of| (of.from, of.to));
    rules.ensure(ends.eq(relations), || {
        "the relations are not those of the graph".to_owned()
    })
}

/// Degree columns, of a shard or of a graph feature.
struct DegreeColumns<'a> {
    in_degree: &'a Vec<u32>,
    in_weight: Option<&'a Vec<f32>>,
    self_loops: Option<&'a Vec<u32>>,
    self_weight: Option<&'a Vec<f32>>,
}

impl GraphShard {
    /// Checks that lengths, offsets, positions and the order of the nodes agree.
    ///
    /// # Errors
    ///
    /// Names the first disagreement.
    pub fn validate(&self, meta: &GraphMeta) -> Result<()> {
        let what = "shard";
        let lists = (self.target_type, self.nodes.len());
        same_lists(
            what,
            lists,
            self.edges.iter().map(|edges| (edges.from, edges.to)),
            meta,
        )?;
        for (type_idx, (nodes, of)) in self.nodes.iter().zip(&meta.types).enumerate() {
            let name = &of.name;
            nodes.validate(&Rules { what, name }, meta.may_be_targets(type_idx))?;
        }
        for (edges, of) in self.edges.iter().zip(&meta.relations) {
            let rules = Rules {
                what,
                name: &of.name,
            };
            edges.validate(&rules, self.nodes[edges.to].len())?;
        }
        for (nodes, of) in self.nodes.iter().zip(&meta.types) {
            let name = &of.name;
            nodes.distinct(&Rules { what, name })?;
        }
        let nodes = self.nodes.iter().zip(&meta.types);
        let mut ends: Vec<_> = nodes.map(|(own, of)| Ends::new(of, &own.hop)).collect();
        for (edges, of) in self.edges.iter().zip(&meta.relations) {
            let rules = Rules {
                what,
                name: &of.name,
            };
            rules.edges(
                &mut ends,
                (edges.from, edges.to),
                &edges.in_offset,
                &edges.in_src,
            )?;
        }
        all_reached(what, &ends)?;
        match (&self.pairs, &meta.pairs) {
            (Some(pairs), Some(of)) => pairs.validate(self, of),
            (None, None) => Ok(()),
            (found, _) => Rules { what, name: "" }.ensure(false, || {
                let says = if found.is_some() { "has no" } else { "needs" };
                format!("`pairs`: the graph {says} such a table")
            }),
        }
    }

    /// Checks that the columns are those of `meta`; `features` has the shape of each type's own
    /// features or of the lent ones.
    pub(super) fn agrees_with(
        &self,
        features: &[FeatureMeta],
        meta: &GraphMeta,
        hops: usize,
    ) -> Result<()> {
        let what = "shard";
        for (type_idx, nodes) in self.nodes.iter().enumerate() {
            let (of, shape) = (&meta.types[type_idx], features[type_idx]);
            let name = &of.name;
            nodes.agrees_with(&Rules { what, name }, shape, of, hops)?;
        }
        for (edges, of) in self.edges.iter().zip(&meta.relations) {
            let rules = Rules {
                what,
                name: &of.name,
            };
            edges.agrees_with(&rules, &self.nodes[edges.to].hop, of, hops)?;
        }
        Ok(())
    }

    /// Returns the shape of each type's own features.
    pub(super) fn feature_metas(&self) -> Vec<FeatureMeta> {
        self.nodes
            .iter()
            .map(|nodes| nodes.features.meta())
            .collect()
    }
}

impl ShardNodes {
    fn validate(&self, rules: &Rules<'_>, has_targets: bool) -> Result<()> {
        let num_nodes = self.len();
        rules.len("hop", self.hop.len(), num_nodes)?;
        rules.features(&self.features, num_nodes)?;
        rules.labels(&self.labels, num_nodes)?;
        rules.len("split", self.split.len(), num_nodes)?;
        rules.len("is_target", self.is_target.len(), num_nodes)?;
        rules.ensure(self.hop.is_sorted(), || "`hop` falls".to_owned())?;
        let agrees = |(&hop, &is_target): (&u8, &bool)| (hop == 0) == is_target;
        rules.ensure(self.hop.iter().zip(&self.is_target).all(agrees), || {
            "targets and the nodes of hop 0 are not the same".to_owned()
        })?;
        rules.ensure(has_targets || !self.is_target.contains(&true), || {
            "targets are of another type".to_owned()
        })?;
        let mut start = 0;
        for run in self.hop.chunk_by(|left, right| left == right) {
            rules.ascending(&self.ids, start, start + run.len())?;
            start += run.len();
        }
        Ok(())
    }

    fn distinct(&self, rules: &Rules<'_>) -> Result<()> {
        let order = self.ids.sort_permutation();
        let same = |pair: &&[u32]| {
            self.ids
                .equal(pair[0] as usize, &self.ids, pair[1] as usize)
        };
        let twice = order.windows(2).find(same);
        rules.ensure(twice.is_none(), || {
            let node = twice.map_or(0, |pair| pair[0] as usize);
            format!("node {} occurs twice", self.ids.display(node))
        })
    }

    fn agrees_with(
        &self,
        rules: &Rules<'_>,
        features: FeatureMeta,
        meta: &TypeMeta,
        hops: usize,
    ) -> Result<()> {
        rules.ensure(self.ids.id_type() == meta.id_type, || {
            let (found, wanted) = (self.ids.id_type(), meta.id_type);
            format!("ids are {found}, the graph's are {wanted}")
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
        let is_last = |&hop: &u8| usize::from(hop) <= hops;
        rules.ensure(self.hop.last().is_none_or(is_last), || {
            format!("a hop above {hops}")
        })
    }
}

impl ShardEdges {
    fn validate(&self, rules: &Rules<'_>, num_nodes: usize) -> Result<()> {
        let columns = DegreeColumns {
            in_degree: &self.in_degree,
            in_weight: self.in_weight.as_ref(),
            self_loops: self.self_loops.as_ref(),
            self_weight: self.self_weight.as_ref(),
        };
        rules.degrees(&columns, num_nodes)?;
        rules.offsets("in_offset", &self.in_offset, num_nodes, self.len())?;
        rules.opt_len("edge_weight", self.edge_weight.as_ref(), self.len())?;
        rules.edge_features(self.edge_feature.as_ref(), self.len())
    }

    /// `hop` has the hops of the nodes that edges lead to.
    fn agrees_with(
        &self,
        rules: &Rules<'_>,
        hop: &[u8],
        meta: &RelationMeta,
        hops: usize,
    ) -> Result<()> {
        let column = |name: &'static str, there: bool, wanted: bool| {
            rules.ensure(there == wanted, || {
                let says = if wanted { "needs" } else { "has no" };
                format!("`{name}`: the graph {says} such a column")
            })
        };
        let has_features = meta.edge_feature_dim.is_some();
        column("in_weight", self.in_weight.is_some(), meta.edge_weight)?;
        column("edge_weight", self.edge_weight.is_some(), meta.edge_weight)?;
        column("self_loops", self.self_loops.is_some(), meta.self_loops)?;
        column(
            "self_weight",
            self.self_weight.is_some(),
            meta.self_weight(),
        )?;
        column("edge_feature", self.edge_feature.is_some(), has_features)?;
        let values = self.len() * meta.edge_feature_dim.unwrap_or(0);
        rules.opt_len("edge_feature", self.edge_feature.as_ref(), values)?;
        let last = hop.partition_point(|&hop| usize::from(hop) < hops);
        rules.ensure(self.in_offset[last] as usize == self.len(), || {
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
    pub fn validate(&self, meta: &GraphMeta) -> Result<()> {
        let what = "graph feature";
        let target_type = match meta.may_be_targets(self.target_type) {
            true => meta.target_type,
            false => self.target_type,
        };
        let lists = (target_type, self.nodes.len());
        same_lists(
            what,
            lists,
            self.edges.iter().map(|edges| (edges.from, edges.to)),
            meta,
        )?;
        let num_runs = self.target_nodes().hop_offset.len();
        for (type_idx, (nodes, of)) in self.nodes.iter().zip(&meta.types).enumerate() {
            let rules = Rules {
                what,
                name: &of.name,
            };
            let num_targets = match self.pairs {
                Some(_) => None,
                None => Some(usize::from(type_idx == self.target_type)),
            };
            nodes.validate(&rules, num_runs, num_targets)?;
        }
        self.roots_are_ends(meta)?;
        Rules {
            what,
            name: &meta.target().name,
        }
        .labels(&self.labels, 1)?;
        for (edges, of) in self.edges.iter().zip(&meta.relations) {
            edges.validate(
                &Rules {
                    what,
                    name: &of.name,
                },
                &self.nodes[edges.to],
            )?;
        }
        let hops: Vec<Vec<u8>> = self.nodes.iter().map(FeatureNodes::hop).collect();
        for ((nodes, of), hop) in self.nodes.iter().zip(&meta.types).zip(&hops) {
            let rules = Rules {
                what,
                name: &of.name,
            };
            rules.len("hop", hop.len(), nodes.node_id.len())?;
            for ends in nodes.hop_offset.windows(2) {
                rules.ascending(&nodes.node_id, ends[0] as usize, ends[1] as usize)?;
            }
        }
        let types = meta.types.iter().zip(&hops);
        let mut ends: Vec<_> = types.map(|(of, hop)| Ends::new(of, hop)).collect();
        for (edges, of) in self.edges.iter().zip(&meta.relations) {
            let rules = Rules {
                what,
                name: &of.name,
            };
            rules.edges(
                &mut ends,
                (edges.from, edges.to),
                &edges.in_offset,
                &edges.in_src,
            )?;
        }
        all_reached(what, &ends)
    }
}

impl GraphFeature {
    /// Checks that the nodes of hop 0 are the ends and negatives of the pair, if this is of one.
    fn roots_are_ends(&self, meta: &GraphMeta) -> Result<()> {
        let rules = Rules {
            what: "graph feature",
            name: "",
        };
        let (pairs, of) = match (&self.pairs, &meta.pairs) {
            (Some(pairs), Some(of)) => (pairs, of),
            (Some(_), None) => return Err(rules.broken("the graph has no pairs")),
            (None, _) => return Ok(()),
        };
        let roots = self.nodes.iter().map(|nodes| nodes.hop_offset[1] as usize);
        let mut is_named: Vec<Vec<bool>> = roots.map(|count| vec![false; count]).collect();
        for (type_idx, row) in pairs.roots(of) {
            match is_named[type_idx].get_mut(row.index()) {
                Some(is_named) => *is_named = true,
                None => return Err(rules.broken(&format!("end {row} of a pair is not of hop 0"))),
            }
        }
        rules.ensure(is_named.iter().flatten().all(|&is_named| is_named), || {
            "a node of hop 0 is no end and no negative".to_owned()
        })
    }
}

impl FeatureNodes {
    /// `num_targets`: nodes of hop 0, if there is just one target.
    fn validate(
        &self,
        rules: &Rules<'_>,
        num_runs: usize,
        num_targets: Option<usize>,
    ) -> Result<()> {
        let num_nodes = self.node_id.len();
        rules.ensure(self.hop_offset.len() >= 2, || {
            "`hop_offset` is too short".to_owned()
        })?;
        rules.len("hop_offset", self.hop_offset.len(), num_runs)?;
        rules.offsets("hop_offset", &self.hop_offset, num_runs - 1, num_nodes)?;
        let num_roots = self.hop_offset[1] as usize;
        if let Some(wanted) = num_targets.filter(|&wanted| wanted != num_roots) {
            let number = ["no node", "one node"][wanted];
            return Err(rules.broken(&format!("not {number} at hop 0")));
        }
        rules.features(&self.features, num_nodes)
    }

    /// The hop of each node.
    fn hop(&self) -> Vec<u8> {
        let mut hop = Vec::with_capacity(self.node_id.len());
        for (distance, ends) in (0..=u8::MAX).zip(self.hop_offset.windows(2)) {
            hop.resize(ends[1] as usize, distance);
        }
        hop
    }
}

impl FeatureEdges {
    /// `dsts` are the nodes that edges lead to; their own columns are valid.
    fn validate(&self, rules: &Rules<'_>, dsts: &FeatureNodes) -> Result<()> {
        let columns = DegreeColumns {
            in_degree: &self.in_degree,
            in_weight: self.in_weight.as_ref(),
            self_loops: self.self_loops.as_ref(),
            self_weight: self.self_weight.as_ref(),
        };
        rules.degrees(&columns, dsts.node_id.len())?;
        let inner = dsts.hop_offset[dsts.hop_offset.len() - 2] as usize;
        let num_edges = self.in_src.len();
        rules.offsets("in_offset", &self.in_offset, inner, num_edges)?;
        rules.opt_len("edge_weight", self.edge_weight.as_ref(), num_edges)?;
        rules.edge_features(self.edge_feature.as_ref(), num_edges)
    }
}
