//! The rows of one of several processes: type by type, those of its own nodes and of its halo.

use super::reads::Read;
use crate::InferError;
use crate::exchange::Exchange;
use crate::hubs::Hubs;
use crate::local::{Local, places, sources};
use gnn::typed::Schema;
use schemas::{NodeIdx, Row};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use store::Store;

/// The row numbers of a process, and the exchanges that fill its halo.
///
/// The rows of a type are those of its own nodes and then those of its halo, so that all rows of
/// some types lie next to each other in a file.
pub(super) struct TypedHalo {
    /// By type; nodes are numbered from the first node of the type, rows from its first row.
    pub(super) types: Vec<Local>,
    /// By the in-edges that are read.
    exchanges: BTreeMap<Vec<Read>, Arc<Exchange>>,
}

impl TypedHalo {
    /// Numbers the rows and agrees with the other processes on the rows to exchange for each of
    /// some lists of in-edges. `own` has the nodes of this process, ascending.
    pub(super) fn new(
        store: &Store,
        schema: &Schema,
        (own, reads): (Vec<NodeIdx>, BTreeSet<Vec<Read>>),
        hubs: &mut Hubs,
    ) -> Result<Self, InferError> {
        let mut most: BTreeMap<usize, usize> = BTreeMap::new();
        for &(relation, limit) in reads.iter().flatten() {
            let known = most.entry(relation).or_default();
            *known = limit.max(*known);
        }
        let most: Vec<Read> = most.into_iter().collect();
        let others = sources(store, &own, &most, hubs).nodes;
        let of_type = |node_type: usize| {
            let range = store.placement().type_range(node_type);
            let pick = |nodes: &[NodeIdx]| -> Vec<NodeIdx> {
                let picked = nodes[places(nodes, &range)].iter();
                let from = range.start.index();
                let picked = picked.map(|node| NodeIdx::from_index(node.index() - from));
                picked.collect()
            };
            let of_processes: Vec<Vec<NodeIdx>> = others.iter().map(|nodes| pick(nodes)).collect();
            let num_nodes = range.end.index() - range.start.index();
            Local::new(pick(&own), &of_processes, num_nodes)
        };
        let mut halo = Self {
            types: (0..schema.types.len()).map(of_type).collect(),
            exchanges: BTreeMap::new(),
        };
        hubs.number(|relation, node| {
            let from = schema.relations[relation].from;
            let first = store.placement().type_range(from).start.index();
            let in_type = NodeIdx::from_index(node.index() - first);
            halo.types[from].row(in_type).raw()
        });
        let (rows, mut exchanges) = (halo.rows(), BTreeMap::new());
        let pairs = rows.iter().zip(&halo.types);
        let own_rows = pairs.map(|(all, of)| all.start..all.start + of.own().len());
        let own_rows: Vec<Range<usize>> = own_rows.collect();
        let row = |node: NodeIdx| {
            let node_type = store.placement().type_of(node);
            let first = store.placement().type_range(node_type).start.index();
            let in_type = NodeIdx::from_index(node.index() - first);
            let in_type = halo.types[node_type].row(in_type);
            Row::from_index(rows[node_type].start + in_type.index())
        };
        for list in reads {
            let found = sources(store, &own, &list, hubs);
            let exchange = Exchange::agree(store.cluster(), (own_rows.clone(), &row), found)?;
            exchanges.insert(list, Arc::new(exchange));
        }
        halo.exchanges = exchanges;
        Ok(halo)
    }

    /// Returns the rows of each type.
    pub(super) fn rows(&self) -> Vec<Range<usize>> {
        let mut end = 0;
        let of_type = |of: &Local| {
            let start = end;
            end += of.own().len() + of.halo().len();
            start..end
        };
        self.types.iter().map(of_type).collect()
    }

    /// Returns the exchange of the rows that these in-edges read.
    pub(super) fn exchange(&self, reads: &[Read]) -> &Arc<Exchange> {
        &self.exchanges[reads]
    }

    /// Returns the exchange of all rows that a relation alone reads; none if it is never read alone.
    pub(super) fn of_relation(&self, relation: usize) -> Option<&Arc<Exchange>> {
        let lists = vec![(relation, 0)]..=vec![(relation, usize::MAX)];
        let lists = self.exchanges.range(lists);
        let mut alone = lists.filter(|(list, _)| list.len() == 1);
        alone.next_back().map(|(_, exchange)| exchange)
    }
}
