//! One layer of one typed batch: src and dst nodes by type, and in-edges by relation.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::schema::Schema;
use super::touched::{Touched, sum_of_relations};
use super::union::Union;
use crate::block::{BlockData, light_root};
use crate::coefficient::round;
use crate::kernel::propagate::against;
use crate::kernel::{Partitioning, Shared, Spmm};
use crate::light::{LightLayer, LightSum};
use crate::{Block, Coefficients, Dense, GnnError, NodeColumns, RangeData, Sampling};

/// The nodes of one type in a typed block.
#[derive(Clone, Debug, Default)]
pub struct TypeNodes {
    /// Number of src nodes.
    pub num_src: usize,
    /// Number of dst nodes, which are the first src nodes.
    pub num_dst: usize,
    /// How many dst rows, from the first on, the targets need.
    pub num_active: usize,
    /// `[num_src]`: hash of each raw id; dropout masks depend on it.
    pub node_key: Vec<u64>,
}

/// The in-edges of one relation in a typed block; `in_src` holds positions among the src nodes of
/// the relation's `from` type. [`BlockData`] describes the fields of the same names.
///
/// `in_degree`, `in_weight`, `self_loops` and `self_weight` are those of the src nodes of the
/// relation's `to` type, counted over this relation's in-edges; of a relation between two types,
/// those of the dst nodes are enough.
#[derive(Clone, Debug, Default)]
pub struct RelationData {
    /// `[num_dst of to + 1]`.
    pub in_offset: Vec<u32>,
    /// `[num_edges]`.
    pub in_src: Vec<u32>,
    /// `[num_edges]`.
    pub edge_weight: Option<Vec<f32>>,
    /// `[num_edges, edge_dim]`.
    pub edge_feature: Option<Dense>,
    /// In-degree in the whole graph, before sampling.
    pub in_degree: Vec<u32>,
    /// Sum of in-edge weights in the whole graph; present exactly if `edge_weight` is.
    pub in_weight: Option<Vec<f32>>,
    /// Number of self-loops in the whole graph; none if no node has any.
    pub self_loops: Option<Vec<u32>>,
    /// Sum of the weights of self-loops in the whole graph.
    pub self_weight: Option<Vec<f32>>,
    /// How the kept in-edges were drawn.
    pub sampling: Sampling,
}

/// The plain data of a [`TypedBlock`].
#[derive(Clone, Debug, Default)]
pub struct TypedBlockData {
    /// By type.
    pub types: Vec<TypeNodes>,
    /// By relation.
    pub relations: Vec<RelationData>,
}

/// The in-edges of one relation into a range of the nodes of a type; the src nodes are all nodes of
/// the relation's `from` type.
#[derive(Clone, Debug)]
pub struct RelationRange {
    /// The relation, by position.
    pub relation: usize,
    /// The dst nodes and their in-edges.
    pub edges: RangeData,
    /// Columns of all nodes of the relation's `to` type, counted over this relation's in-edges.
    pub nodes: Arc<NodeColumns>,
}

/// The nodes of a type, as a block keeps them.
#[derive(Clone, Debug)]
struct NodesOfType {
    num_src: usize,
    num_dst: usize,
    num_active: usize,
    node_key: Shared<u64>,
}

/// A checked block of a typed graph, cheap to clone.
#[derive(Clone, Debug)]
pub struct TypedBlock {
    schema: Arc<Schema>,
    types: Vec<NodesOfType>,
    /// None for relations that a range of another type does not read.
    relations: Vec<Option<Block>>,
    /// The type and the nodes of a range; none if dst nodes are the first src nodes.
    range: Option<(usize, Range<usize>)>,
    /// The in-edges of all relations, with their own self-loops or with one added to each node.
    unions: [Arc<OnceLock<Union>>; 2],
    /// By relation.
    touched: Arc<[OnceLock<Touched>]>,
    /// By type: the sum of what its relations give; none if no relation has in-edges.
    sums: Arc<[OnceLock<Option<Spmm>>]>,
    light: Arc<OnceLock<Vec<Shared<f32>>>>,
    light_layer: Arc<OnceLock<LightLayer>>,
}

impl TypedBlock {
    /// Makes a block of `data`, after checking it.
    ///
    /// # Errors
    ///
    /// [`GnnError::Block`] names the first field that contradicts the others, and
    /// [`GnnError::Relation`] its relation.
    pub fn new(schema: &Arc<Schema>, data: TypedBlockData) -> Result<TypedBlock, GnnError> {
        check_counts(schema, data.types.len(), data.relations.len())?;
        for (of, name) in data.types.iter().zip(&schema.types) {
            of.check(name)?;
        }
        let ends = schema.relations.iter().zip(data.relations);
        let blocks = ends.map(|(ends, edges)| {
            let block = edges.into_block(&data.types, (ends.from, ends.to));
            block
                .map(Some)
                .map_err(|source| of_relation(&ends.name, source))
        });
        let relations = blocks.collect::<Result<_, _>>()?;
        let types = data.types.into_iter().map(|of| NodesOfType {
            num_src: of.num_src,
            num_dst: of.num_dst,
            num_active: of.num_active,
            node_key: of.node_key.into(),
        });
        Ok(Self::wrap(schema, types.collect(), relations, None))
    }

    /// Makes a block whose dst nodes are a range of the nodes of one type, and whose src nodes are
    /// all nodes of the graph, for forward passes without dropout.
    ///
    /// `num_nodes` is the number of nodes of each type; `edges` has each relation into the type
    /// once.
    ///
    /// # Errors
    ///
    /// As [`TypedBlock::new`].
    pub fn of_range(
        schema: &Arc<Schema>,
        num_nodes: &[usize],
        (node_type, range): (usize, Range<usize>),
        edges: Vec<RelationRange>,
    ) -> Result<TypedBlock, GnnError> {
        check_counts(schema, num_nodes.len(), schema.relations.len())?;
        let given: Vec<usize> = edges.iter().map(|of| of.relation).collect();
        let wanted: Vec<usize> = schema.into_type(node_type).collect();
        if given != wanted {
            let problem = format!("relations {given:?} are given, but {wanted:?} are needed");
            return Err(block_error("relations", problem));
        }
        if range.start > range.end || range.end > num_nodes[node_type] {
            let all = num_nodes[node_type];
            let problem = format!("nodes {range:?} are not among the {all} of the type");
            return Err(block_error("first", problem));
        }
        let mut relations = vec![None; schema.relations.len()];
        for of in edges {
            let (relation, ends) = (of.relation, &schema.relations[of.relation]);
            let block = of
                .into_block(&range, num_nodes[ends.from], ends.from == ends.to)
                .map_err(|source| of_relation(&ends.name, source))?;
            relations[relation] = Some(block);
        }
        let types = num_nodes.iter().enumerate().map(|(at, &num_src)| {
            let num_dst = if at == node_type { range.len() } else { 0 };
            NodesOfType {
                num_src,
                num_dst,
                num_active: num_dst,
                node_key: Vec::new().into(),
            }
        });
        let types = types.collect();
        Ok(Self::wrap(
            schema,
            types,
            relations,
            Some((node_type, range)),
        ))
    }

    fn wrap(
        schema: &Arc<Schema>,
        types: Vec<NodesOfType>,
        relations: Vec<Option<Block>>,
        range: Option<(usize, Range<usize>)>,
    ) -> TypedBlock {
        TypedBlock {
            schema: Arc::clone(schema),
            unions: Default::default(),
            touched: relations.iter().map(|_| OnceLock::new()).collect(),
            light: Arc::default(),
            light_layer: Arc::default(),
            sums: types.iter().map(|_| OnceLock::new()).collect(),
            types,
            relations,
            range,
        }
    }

    /// Sets how kernels split the rows of the block over threads.
    ///
    /// # Panics
    ///
    /// If the block has been cloned or used: set this right after [`TypedBlock::new`].
    #[must_use]
    pub fn with_partitioning(mut self, partitioning: Partitioning) -> TypedBlock {
        let set = |block: Block| block.with_partitioning(partitioning);
        let relations = self.relations.into_iter();
        self.relations = relations.map(|block| block.map(set)).collect();
        self
    }

    /// Returns the types and relations.
    #[must_use]
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Returns the number of src nodes of a type.
    #[must_use]
    pub fn num_src(&self, node_type: usize) -> usize {
        self.types[node_type].num_src
    }

    /// Returns the number of dst nodes of a type.
    #[must_use]
    pub fn num_dst(&self, node_type: usize) -> usize {
        self.types[node_type].num_dst
    }

    /// Returns how many dst rows of a type, from the first on, the targets need.
    #[must_use]
    pub fn num_active(&self, node_type: usize) -> usize {
        self.types[node_type].num_active
    }

    /// Returns the number of kept in-edges.
    #[must_use]
    pub fn num_edges(&self) -> usize {
        self.relations.iter().flatten().map(Block::num_edges).sum()
    }

    /// Returns the in-edges of a relation; none if the block is a range of another type than the
    /// relation's dst nodes.
    #[must_use]
    pub fn relation(&self, relation: usize) -> Option<&Block> {
        self.relations[relation].as_ref()
    }

    /// Returns the type and the nodes of a block made by [`TypedBlock::of_range`].
    #[must_use]
    pub fn range(&self) -> Option<&(usize, Range<usize>)> {
        self.range.as_ref()
    }

    /// Returns the keys of a type's src nodes.
    pub(crate) fn shared_key(&self, node_type: usize) -> &Shared<u64> {
        &self.types[node_type].node_key
    }

    /// Returns how kernels split the rows of the block over threads.
    pub(crate) fn partitioning(&self) -> Partitioning {
        let first = self.relations.iter().flatten().next();
        first.map_or_else(Partitioning::default, |block| block.csr().partitioning)
    }

    /// Returns the rows that a relation's in-edges touch; none as for
    /// [`relation`](TypedBlock::relation).
    pub(super) fn touched(&self, relation: usize) -> Option<&Touched> {
        let edges = self.relation(relation)?;
        Some(self.touched[relation].get_or_init(|| Touched::of(edges)))
    }

    /// Returns the sum of the rows that the relations into a type give; none if no relation has
    /// in-edges.
    pub(super) fn sum_of_relations(&self, node_type: usize) -> Option<Spmm> {
        let sum = self.sums[node_type].get_or_init(|| sum_of_relations(self, node_type));
        sum.clone()
    }

    /// Returns `LightGCN`'s coefficients of the in-edges of each relation, whose columns of nodes are
    /// those of all src nodes of its `to` type.
    pub(crate) fn light(&self) -> &[Shared<f32>] {
        self.light.get_or_init(|| {
            let types = 0..self.types.len();
            let roots = types.map(|t| self.light_roots(t, 0..self.num_src(t)));
            let roots: Vec<Vec<f64>> = roots.collect();
            let relations = self.relations.iter().zip(&self.schema.relations);
            let coefficients = relations.map(|(edges, ends)| {
                let edges = edges.as_ref().expect("it is no range of another type");
                let (csr, terms) = (edges.csr(), Coefficients::new(edges, false).sum());
                let mut all = Vec::with_capacity(csr.num_edges());
                for v in 0..csr.num_rows() {
                    let root = roots[ends.to][v];
                    all.extend(csr.row(v).map(|edge| {
                        let src = csr.col[edge] as usize;
                        round(f64::from(terms[edge]) * roots[ends.from][src] * root)
                    }));
                }
                all.into()
            });
            coefficients.collect()
        })
    }

    /// Returns the block as a layer of `LightGCN` that is trained.
    pub(crate) fn light_layer(&self) -> &LightLayer {
        self.light_layer.get_or_init(|| {
            let relations = self.relations.iter().flatten().zip(self.light());
            let sums = relations
                .zip(&self.schema.relations)
                .map(|((edges, edge), ends)| LightSum {
                    from: ends.from,
                    to: ends.to,
                    csr: Arc::clone(edges.csr()),
                    edge: edge.clone(),
                    back: against(edges.csr(), edge),
                });
            LightLayer {
                num_src: self.types.iter().map(|of| of.num_src).collect(),
                num_dst: self.types.iter().map(|of| of.num_dst).collect(),
                sums: sums.collect(),
            }
        })
    }

    /// Returns `LightGCN`'s factors of some nodes of a type, by their in-degrees in all relations.
    pub(crate) fn light_roots(&self, node_type: usize, nodes: Range<usize>) -> Vec<f64> {
        let into = || self.schema.into_type(node_type);
        let degree = |node: usize| -> f64 {
            let relations = into().filter_map(|at| self.relation(at));
            relations
                .map(|edges| f64::from(edges.in_degree()[node]))
                .sum()
        };
        nodes.map(|node| light_root(degree(node))).collect()
    }

    /// Returns the in-edges of all relations in one list; with `loops`, one self-loop takes the
    /// place of each node's own ones.
    pub(crate) fn union(&self, loops: bool) -> &Union {
        self.unions[usize::from(loops)].get_or_init(|| Union::of(self, loops))
    }
}

impl TypeNodes {
    fn check(&self, name: &str) -> Result<(), GnnError> {
        let TypeNodes {
            num_src,
            num_dst,
            num_active,
            ref node_key,
        } = *self;
        if num_dst > num_src {
            let problem = format!(
                "{num_dst} dst nodes of `{name}` cannot be a prefix of {num_src} src nodes"
            );
            return Err(block_error("num_dst", problem));
        }
        if num_active > num_dst {
            let problem =
                format!("{num_active} of {num_dst} dst rows of `{name}` cannot be active");
            return Err(block_error("num_active", problem));
        }
        if node_key.len() != num_src {
            let problem = format!("has {} entries for {num_src} of `{name}`", node_key.len());
            return Err(block_error("node_key", problem));
        }
        Ok(())
    }
}

impl RelationData {
    /// Makes the block of a relation.
    fn into_block(
        self,
        types: &[TypeNodes],
        (from, to): (usize, usize),
    ) -> Result<Block, GnnError> {
        let data = BlockData {
            num_src: types[from].num_src,
            num_dst: types[to].num_dst,
            in_offset: self.in_offset,
            in_src: self.in_src,
            edge_weight: self.edge_weight,
            edge_feature: self.edge_feature,
            in_degree: self.in_degree,
            in_weight: self.in_weight,
            self_loops: self.self_loops,
            self_weight: self.self_weight,
            node_key: types[from].node_key.clone(),
            num_active: types[to].num_active,
            sampling: self.sampling,
        };
        if from == to {
            Block::new(data)
        } else {
            Block::bipartite(data, &types[to].node_key)
        }
    }
}

impl RelationRange {
    /// Makes the block of a relation into a range of nodes.
    fn into_block(
        self,
        range: &Range<usize>,
        num_src: usize,
        is_one_type: bool,
    ) -> Result<Block, GnnError> {
        let num_dst = self.edges.in_offset.len().saturating_sub(1);
        if (self.edges.first, num_dst) != (range.start, range.len()) {
            let first = self.edges.first;
            let problem = format!("{num_dst} dst nodes from {first} on are not nodes {range:?}");
            return Err(block_error("first", problem));
        }
        if is_one_type {
            Block::of_range(self.edges, &self.nodes)
        } else {
            Block::bipartite_range(self.edges, num_src, &self.nodes)
        }
    }
}

fn check_counts(schema: &Schema, types: usize, relations: usize) -> Result<(), GnnError> {
    let wanted = (schema.types.len(), schema.relations.len());
    if (types, relations) == wanted {
        return Ok(());
    }
    let problem = format!(
        "has {types} types and {relations} relations, but the schema has {} and {}",
        wanted.0, wanted.1
    );
    Err(block_error("types", problem))
}

pub(super) fn block_error(field: &'static str, problem: String) -> GnnError {
    GnnError::Block { field, problem }
}

pub(super) fn of_relation(name: &str, source: GnnError) -> GnnError {
    GnnError::Relation {
        relation: name.to_owned(),
        source: Box::new(source),
    }
}
