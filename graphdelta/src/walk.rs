//! The dataflow that walks from changed nodes to what reads them.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use cluster::Peer;
use differential_dataflow::input::{Input, InputSession};
use differential_dataflow::operators::ThresholdTotal;
use differential_dataflow::operators::arrange::arrangement::arrange_core;
use differential_dataflow::operators::arrange::{Arranged, TraceAgent};
use differential_dataflow::trace::implementations::{
    ContainerChunker, KeyBatcher, KeyBuilder, KeySpine, ValBatcher, ValBuilder, ValSpine,
};
use differential_dataflow::{AsCollection, VecCollection};
use schemas::NodeIdx;
use timely::dataflow::channels::pact::{Exchange, Pipeline};
use timely::dataflow::operators::Exchange as _;
use timely::dataflow::operators::probe::Handle;

use crate::numbers::Numbers;
use crate::out_edges::{OutEdge, OutEdges};
use crate::reach::{Degrees, Reach, ReachPlan, Seed, Updates};
use crate::trace::{StoreTrace, Time, arrange};

type Nodes<'scope> = VecCollection<'scope, Time, u32, isize>;
type Seeds<'scope> = VecCollection<'scope, Time, (u32, Seed), isize>;
type ChangedOut<'scope> = Arranged<'scope, TraceAgent<ValSpine<u32, u64, Time, isize>>>;
type Counts = Rc<RefCell<BTreeMap<u32, isize>>>;

/// Where walks lead: the out-edges of the store, and their changes.
struct Adjacency<'scope> {
    numbers: Arc<Numbers>,
    stored: Arranged<'scope, StoreTrace>,
    changed: ChangedOut<'scope>,
}

/// The limits of the steps of a walk, and the seeds that each step adds.
struct Walk<'a> {
    steps: Vec<&'a [usize]>,
    degrees: Degrees,
}

impl<'scope> Adjacency<'scope> {
    /// Returns each node of a collection once, at its owner.
    fn distinct(&self, nodes: Nodes<'scope>) -> Nodes<'scope> {
        let numbers = Arc::clone(&self.numbers);
        let by_owner = Exchange::new(move |((node, ()), _, _): &((u32, ()), Time, isize)| {
            numbers.owner(NodeIdx::from_raw(*node)) as u64
        });
        let keyed = nodes.map(|node| (node, ()));
        let arranged = arrange_core::<
            _,
            _,
            ContainerChunker<Vec<((u32, ()), Time, isize)>>,
            KeyBatcher<u32, Time, isize>,
            KeyBuilder<u32, Time, isize>,
            KeySpine<u32, Time, isize>,
        >(keyed.inner, by_owner, "Nodes");
        // `distinct_total` (0.25.1) keeps a node whose count falls to zero.
        arranged.threshold_semigroup(|_, new, old| {
            let is_there = |count: &isize| isize::from(*count > 0);
            let diff = is_there(new) - old.map_or(0, is_there);
            (diff != 0).then_some(diff)
        })
    }

    /// Returns the destinations that read one of some nodes within `limits`, once for each edge.
    fn out(&self, nodes: Nodes<'scope>, limits: &[usize]) -> Nodes<'scope> {
        let numbers = Arc::clone(&self.numbers);
        let by_slot = nodes.map(move |node| (numbers.slot(NodeIdx::from_raw(node)), ()));
        let by_slot = arrange_core::<
            _,
            _,
            ContainerChunker<Vec<((u32, ()), Time, isize)>>,
            KeyBatcher<u32, Time, isize>,
            KeyBuilder<u32, Time, isize>,
            KeySpine<u32, Time, isize>,
        >(by_slot.inner, Pipeline, "Slots");
        let within = |of: Vec<usize>| {
            move |_: &u32, edge: &u64, (): &()| OutEdge(*edge).within(&of).map(NodeIdx::raw)
        };
        let stored = self.stored.clone();
        let stored = stored.join_core(by_slot.clone(), within(limits.to_vec()));
        let changed = self.changed.clone();
        stored.concat(changed.join_core(by_slot, within(limits.to_vec())))
    }

    /// Returns the nodes that are reached before the first step of a walk and after each.
    fn walk(&self, seeds: &Seeds<'scope>, walk: &Walk<'_>) -> Vec<Nodes<'scope>> {
        let reads_sources = walk.degrees == Degrees::Sources;
        let start = seeds.clone().flat_map(move |(node, seed)| match seed {
            Seed::Input => Some(node),
            Seed::Degree => reads_sources.then_some(node),
            Seed::Sample { .. } => None,
        });
        let mut reached = vec![self.distinct(start)];
        for &limits in &walk.steps {
            let before = reached.last().expect("it has a start").clone();
            let (limits, reads_degrees) = (limits.to_vec(), walk.degrees != Degrees::None);
            let out = self.out(before.clone(), &limits);
            let own = seeds.clone().flat_map(move |(node, seed)| match seed {
                Seed::Input => None,
                Seed::Degree => reads_degrees.then_some(node),
                Seed::Sample { relation, first } => (first < limits[relation]).then_some(node),
            });
            reached.push(self.distinct(out.concat(own).concat(before)));
        }
        reached
    }
}

/// Walks from the seeds of all nights over the edges that are there after them.
pub(crate) fn run_dataflow(
    peer: &mut Peer<'_>,
    numbers: &Arc<Numbers>,
    updates: Vec<Updates>,
    out: &OutEdges,
    plan: &ReachPlan,
) -> Reach {
    let own = Arc::clone(out.of_worker(peer.index()));
    let walk = |steps: Vec<_>, degrees| Walk { steps, degrees };
    let of_hops = plan.hops.iter().rev().map(Vec::as_slice).collect();
    let of_layers = plan.layers.iter().map(Vec::as_slice).collect();
    let walks = [walk(of_hops, Degrees::None), walk(of_layers, plan.degrees)];
    let probe = Handle::new();
    let worker = peer.worker();
    let (mut seeds, mut changed, counts) = worker.dataflow::<Time, _, _>(|scope| {
        let (seeds_input, seeds) = scope.new_collection::<(u32, Seed), isize>();
        let (changed_input, changed) = scope.new_collection::<(u32, u64), isize>();
        let adjacency = Adjacency {
            numbers: Arc::clone(numbers),
            stored: arrange(scope, own),
            changed: arrange_changed(numbers, changed),
        };
        let counts = walks.map(|of| {
            let reached = adjacency.walk(&seeds, &of).into_iter();
            let counts = reached.map(|nodes| counted(nodes, &probe));
            counts.collect::<Vec<Counts>>()
        });
        (seeds_input, changed_input, counts)
    });
    // The store and the parent are there at time 0, and the first night is 1.
    for (time, night) in (0..).zip(updates) {
        advance(&mut seeds, time);
        advance(&mut changed, time);
        for (seed, diff) in night.seeds {
            seeds.update(seed, diff);
        }
        for ((src, edge), diff) in night.out_edges {
            changed.update((src, edge.0), diff);
        }
    }
    drop((seeds, changed));
    while !probe.done() {
        worker.step_or_park(None);
    }
    let present = |of: &Counts| {
        let nodes = of.take().into_iter();
        let nodes = nodes.filter(|&(_, count)| count > 0);
        nodes.map(|(node, _)| NodeIdx::from_raw(node)).collect()
    };
    let [hops, layers] = counts.map(|of| of.iter().map(present).collect());
    Reach {
        hops,
        layers,
        ..Reach::default()
    }
}

/// Counts how often each node is in a collection.
fn counted(nodes: Nodes<'_>, probe: &Handle<Time>) -> Counts {
    let counts = Counts::default();
    let count = Rc::clone(&counts);
    let nodes = nodes.inspect(move |&(node, _, diff)| {
        *count.borrow_mut().entry(node).or_insert(0) += diff;
    });
    nodes.probe_with(probe);
    counts
}

fn advance<D: differential_dataflow::ExchangeData>(
    input: &mut InputSession<Time, D, isize>,
    time: Time,
) {
    input.advance_to(time);
    input.flush();
}

/// Arranges changes of out-edges at the owners of their sources.
fn arrange_changed<'scope>(
    numbers: &Arc<Numbers>,
    changed: VecCollection<'scope, Time, (u32, u64), isize>,
) -> ChangedOut<'scope> {
    type Update = ((u32, u64), Time, isize);
    // The keys become positions only at the owner.
    let at_owner = changed.inner.exchange({
        let numbers = Arc::clone(numbers);
        move |((src, _), _, _): &Update| numbers.owner(NodeIdx::from_raw(*src)) as u64
    });
    let numbers = Arc::clone(numbers);
    let by_slot = at_owner
        .as_collection()
        .map(move |(src, edge): (u32, u64)| (numbers.slot(NodeIdx::from_raw(src)), edge));
    arrange_core::<
        _,
        _,
        ContainerChunker<Vec<Update>>,
        ValBatcher<u32, u64, Time, isize>,
        ValBuilder<u32, u64, Time, isize>,
        ValSpine<u32, u64, Time, isize>,
    >(by_slot.inner, Pipeline, "ChangedOutEdges")
}
