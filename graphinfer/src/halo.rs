//! The rows of other processes' nodes that a process keeps.

use crate::InferError;
use crate::exchange::Exchange;
use crate::hubs::Hubs;
use crate::local::{Local, sources};
use schemas::NodeIdx;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use store::Store;

/// The row numbers of one of several processes, and the exchanges that fill the halo.
pub(crate) struct Halo {
    pub(crate) local: Local,
    /// By the number of in-edges that a round reads of a node. The exchange of the largest number
    /// covers all others.
    pub(crate) exchanges: BTreeMap<usize, Arc<Exchange>>,
}

impl Halo {
    /// Numbers the rows and agrees with the other processes on the rows to exchange.
    pub(crate) fn new(
        store: &Store,
        own: Vec<NodeIdx>,
        limits: &BTreeSet<usize>,
        hubs: &mut Hubs,
    ) -> Result<Self, InferError> {
        let mut found: BTreeMap<_, _> = limits
            .iter()
            .map(|&limit| (limit, sources(store, &own, &[(0, limit)], hubs)))
            .collect();
        let largest = found.last_entry().expect("a model has a layer");
        let local = Local::new(own, &largest.get().nodes, store.placement().num_nodes());
        hubs.number(|_, node| local.row(node).raw());
        let agree = |(limit, of)| {
            let own_rows = std::iter::once(0..local.own().len()).collect();
            let row = |node| local.row(node);
            let exchange = Exchange::agree(store.cluster(), (own_rows, &row), of)?;
            Ok((limit, Arc::new(exchange)))
        };
        let exchanges = found.into_iter().map(agree);
        let exchanges = exchanges.collect::<Result<_, InferError>>()?;
        Ok(Self { local, exchanges })
    }
}
