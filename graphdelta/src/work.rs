//! The work that computing reached rows takes, beside that of all rows.

use crate::numbers::Numbers;
use crate::reach::{Reach, ReachPlan};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};
use schemas::NodeIdx;

/// Work of one layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Rows that are computed.
    pub rows: u64,
    /// In-edges that are read for them.
    pub in_edges: u64,
}

impl Reach {
    /// Returns the work of each layer if only reached rows are computed; `is_computed` tells whether a
    /// layer, from 1, computes the rows of a type.
    pub fn work(
        &self,
        numbers: &Numbers,
        plan: &ReachPlan,
        is_computed: impl Fn(usize, usize) -> bool,
    ) -> Vec<Work> {
        let layers = (1..).zip(&self.layers[1..]).zip(&plan.layers);
        let work = layers.map(|((layer, reached), limits)| {
            let computed = reached.iter().copied();
            let computed = computed.filter(|&node| is_computed(layer, numbers.type_of(node)));
            let nodes: Vec<NodeIdx> = computed.collect();
            Work {
                rows: nodes.len() as u64,
                in_edges: self.in_edges_of(numbers, &nodes, limits),
            }
        });
        work.collect()
    }

    /// Returns the work of each layer if all rows are computed; `is_computed` as for [`Self::work`].
    pub fn full_work(
        &self,
        numbers: &Numbers,
        plan: &ReachPlan,
        is_computed: impl Fn(usize, usize) -> bool,
    ) -> Vec<Work> {
        let relations = numbers.store().meta().graph.relations.len();
        let in_edges = |limits: &[usize]| -> u64 {
            let stored = (0..relations).map(|relation| {
                let limit = limits[relation] as u64;
                let partitions = numbers.store().partitions().par_iter();
                let of_partitions = partitions.map(|partition| -> u64 {
                    let locals = partition.locals(partition.relation_to(relation));
                    let in_degrees = locals.map(|local| partition.in_degree(relation, local));
                    in_degrees.map(|count| u64::from(count).min(limit)).sum()
                });
                of_partitions.sum::<u64>()
            });
            let of_parent = numbers.parent().kept.iter();
            let before = of_parent.fold(stored.sum::<u64>(), |sum, (&(relation, dst), kept)| {
                let limit = limits[relation] as u64;
                let old = numbers.stored_in_degree(relation, dst);
                sum - old.min(limit) + kept.in_degree.min(limit)
            });
            self.in_edges.iter().fold(before, |sum, of| {
                let limit = limits[of.relation] as u64;
                let old = numbers.in_degree(of.relation, of.dst);
                sum - old.min(limit) + of.kept.in_degree.min(limit)
            })
        };
        let num_nodes = numbers.num_nodes_of_types();
        let layers = (1..).zip(&plan.layers).map(|(layer, limits)| {
            let of_types = num_nodes.iter().enumerate();
            let computed = of_types.filter(|&(of, _)| is_computed(layer, of));
            Work {
                rows: computed.map(|(_, &num)| num as u64).sum(),
                in_edges: in_edges(limits),
            }
        });
        layers.collect()
    }

    /// Returns the number of in-edges that are read to compute some nodes.
    fn in_edges_of(&self, numbers: &Numbers, nodes: &[NodeIdx], limits: &[usize]) -> u64 {
        let relations = &numbers.store().meta().graph.relations;
        let in_degree = |relation: usize, node: NodeIdx| {
            let key = |of: &crate::ChangedInEdges| (of.relation, of.dst);
            match self.in_edges.binary_search_by_key(&(relation, node), key) {
                Ok(at) => self.in_edges[at].kept.in_degree,
                Err(_) => numbers.in_degree(relation, node),
            }
        };
        let of_node = |&node: &NodeIdx| -> u64 {
            let leading = limits.iter().enumerate();
            let leading = leading.filter(|&(at, _)| relations[at].to == numbers.type_of(node));
            leading
                .map(|(at, &limit)| in_degree(at, node).min(limit as u64))
                .sum()
        };
        nodes.par_iter().map(of_node).sum()
    }
}
