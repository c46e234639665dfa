//! Draws the neighbourhoods of a part on demand, for any seed, without files.

use crate::flatten::ENGINE_VERSION;
use crate::group::{Group, GroupFeatures};
use crate::pair_parts::PartTargets;
use crate::round::{InEdgeAnswer, InEdgeAsk, RoundStats, answer_columns};
use crate::{FlattenError, SamplePlan, Targets, targets};
use schemas::threads::spawn_scoped;
use schemas::{
    DenseRows, DrawParts, FlattenMeta, GraphShard, IdListPlan, Layout, LocalIdx, Neighborhoods,
    SchemaError, SplitCounts,
};
use store::sample::{Drawer, relation_salt};
use store::{EdgeReads, ReadAhead, Store};

/// The neighbourhoods of all targets, drawn part by part, for a seed given with each draw.
///
/// The shard of part p drawn with seed s is the shard that [`flatten`](crate::flatten) writes as
/// part p with seed s. All partitions are mapped into this process, so nothing is exchanged.
/// Several threads may draw parts at once; each draw uses one thread per partition.
#[derive(Debug)]
pub struct Waves {
    store: Store,
    plan: SamplePlan,
    parts: PartTargets,
    /// Hash of each node's id, by the number of the node.
    hashes: Vec<u64>,
    fingerprint: String,
}

impl DrawParts for Waves {
    fn draw_part(&self, idx: usize, seed: u64) -> Result<Neighborhoods, SchemaError> {
        let (shard, rows) = self.draw(idx, seed)?;
        let lend = |of_type| Box::new(of_type) as Box<dyn DenseRows + Send + Sync>;
        let dense = rows.into_iter().map(|of_type| of_type.map(lend)).collect();
        Ok(Neighborhoods { shard, dense })
    }
}

impl Waves {
    /// Selects the targets and cuts them into parts.
    ///
    /// # Errors
    ///
    /// If there is no target, or a listed target is not a node.
    ///
    /// # Panics
    ///
    /// If the store does not keep all in-edges, or has partitions in other processes.
    pub fn open(plan: &SamplePlan, store: &Store) -> Result<Self, FlattenError> {
        let meta = store.meta();
        assert!(meta.redraw, "the store was built without all in-edges");
        assert_eq!(
            store.cluster().num_processes(),
            1,
            "streamed draws need all partitions in one process"
        );
        Ok(Self {
            fingerprint: fingerprint(plan, store)?,
            parts: plan.part_targets(Layout::Shards, store)?,
            hashes: hashes(store),
            store: store.clone(),
            plan: plan.clone(),
        })
    }

    /// Returns the fingerprint of the input and of all settings that change a shard, without its
    /// seed.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// Returns the metadata that flatten would write with the store's own seed.
    pub fn flatten_meta(&self) -> FlattenMeta {
        FlattenMeta {
            hops: self.plan.fanouts.len(),
            fanouts: self.plan.fanouts.clone(),
            sampling: self.plan.sampling,
            seed: self.store.meta().seed,
            samples_per_target: 1,
            layout: Layout::Shards,
        }
    }

    /// Returns the number of targets of each part, or of its pairs, by split.
    pub fn target_counts(&self) -> Vec<SplitCounts> {
        let counts = |part: usize| {
            if let Some(counts) = self.parts.pair_counts(part) {
                return counts;
            }
            let mut counts = SplitCounts::default();
            for target in self.parts.part(part, 0).nodes {
                let (owner, local) = self.store.placement().owner_and_local(target);
                counts.add(self.store.partition(owner).split(local));
            }
            counts
        };
        (0..self.parts.len()).map(counts).collect()
    }

    /// Draws the neighbourhoods of a part.
    ///
    /// Dense features stay in the map of the store and are returned, by node type, beside the shard,
    /// whose nodes of the type then have no features. Sparse features are in the shard.
    ///
    /// # Errors
    ///
    /// If the system refuses a thread.
    ///
    /// # Panics
    ///
    /// If there is no part `part`.
    pub fn draw(
        &self,
        part: usize,
        seed: u64,
    ) -> schemas::Result<(GraphShard, Vec<Option<GroupFeatures>>)> {
        let (placement, graph) = (self.store.placement(), &self.store.meta().graph);
        let mut group = Group::new(part, 0, self.parts.part(part, seed), &self.store);
        for _ in &self.plan.fanouts {
            let asks = group.ask_lists(0, &self.plan.fanouts, placement);
            for lists in self.draw_lists(asks, seed)? {
                group.merge(lists);
            }
            group.propagate(placement);
        }
        for ask in group.ask_columns(0, placement) {
            let mut stats = RoundStats::default();
            group.keep_columns(answer_columns(ask, &self.store, &mut stats));
        }
        let pairs = group.pairs.as_ref();
        let pairs = pairs.map(|drawn| self.parts.place(drawn, &group));
        let (mut shard, features) = group.assemble(graph);
        shard.pairs = pairs;
        Ok((shard, features))
    }

    /// Draws the first in-edges of some nodes, with one thread per partition.
    fn draw_lists(&self, asks: Vec<InEdgeAsk>, seed: u64) -> schemas::Result<Vec<InEdgeAnswer>> {
        let mut by_owner = vec![Vec::new(); self.store.placement().workers()];
        asks.into_iter().for_each(|ask| by_owner[ask.to].push(ask));
        std::thread::scope(|scope| {
            let draw_all = |own: Vec<InEdgeAsk>| {
                let mut drawer = Drawer::default();
                let own = own.into_iter();
                own.map(|ask| self.draw_of_partition(ask, seed, &mut drawer))
                    .collect::<Vec<_>>()
            };
            let asked = by_owner.into_iter().filter(|own| !own.is_empty());
            let draw = |own| spawn_scoped(scope, "draw", move || draw_all(own));
            let threads: Vec<_> = asked.map(draw).collect::<schemas::Result<_>>()?;
            let drawn = threads.into_iter().map(|thread| thread.join());
            Ok(drawn
                .flat_map(|lists| lists.expect("a panic has ended the process"))
                .collect())
        })
    }

    fn draw_of_partition(&self, ask: InEdgeAsk, seed: u64, drawer: &mut Drawer) -> InEdgeAnswer {
        let (placement, partition) = (self.store.placement(), self.store.partition(ask.to));
        let relation = &self.store.meta().graph.relations[ask.relation];
        let dim = relation.edge_feature_dim.unwrap_or(0);
        let salt = relation_salt(&relation.name);
        let mut lists = InEdgeAnswer {
            relation: ask.relation,
            ..InEdgeAnswer::default()
        };
        let locals = ask.nodes.iter().map(|&node| placement.local(node));
        let locals: Vec<LocalIdx> = locals.collect();
        let mut ahead = ReadAhead::new(&self.store, &locals);
        for (&node, &local) in ask.nodes.iter().zip(&locals) {
            if let Some(next) = ahead.before(local) {
                partition.will_need_unranked(ask.relation, next, EdgeReads::ALL);
            }
            let all = partition.unranked(ask.relation, local);
            let sample = (self.plan.sampling, seed);
            let columns = (all.src, all.weight);
            let before = lists.src.len();
            for at in drawer.draw(sample, salt, node, columns, &self.hashes, ask.limit) {
                lists.src.push(all.src[at]);
                lists.weight.extend(all.weight.map(|weight| weight[at]));
                let of_edge = all.feature.map(|all| &all[at * dim..(at + 1) * dim]);
                lists.feature.extend_from_slice(of_edge.unwrap_or_default());
            }
            let length = u32::try_from(lists.src.len() - before);
            lists.lengths.push(length.expect("in-degrees fit 32 bits"));
        }
        lists.nodes = ask.nodes;
        lists
    }
}

/// Returns the hash of each node's id.
fn hashes(store: &Store) -> Vec<u64> {
    let placement = store.placement();
    let mut hashes = vec![0; placement.num_nodes()];
    for owner in 0..placement.workers() {
        let partition = store.partition(owner);
        for local in placement.locals(owner) {
            let (ids, row) = partition.id(local);
            let hash = ids.hash(row);
            hashes[placement.node(owner, local).index()] = hash;
        }
    }
    hashes
}

fn fingerprint(plan: &SamplePlan, store: &Store) -> Result<String, FlattenError> {
    let list = match &plan.targets {
        Targets::Listed(path) => Some(targets::list_plan(path, store)?),
        _ => None,
    };
    plan.fingerprint(&store.meta().input, store.meta().seed, list.as_ref())
}

impl SamplePlan {
    /// Returns the fingerprint of the neighbourhoods that [`Waves`] draw of an input, without the
    /// seed of a draw; it includes the content of `list`, the list of targets.
    ///
    /// # Errors
    ///
    /// If the list cannot be read.
    pub fn fingerprint(
        &self,
        input: &serde_json::Value,
        seed: u64,
        list: Option<&IdListPlan>,
    ) -> Result<String, FlattenError> {
        let mut settings = serde_json::json!({
            "engine": ENGINE_VERSION,
            "input": input,
            "seed": seed,
            "fanouts": self.fanouts,
            "sampling": self.sampling,
            "targets": self.targets,
            "targets_per_part": self.targets_per_part,
        });
        self.add_graph(&mut settings);
        // A list of targets is identified by its content, not by its path.
        if let Some(list) = list {
            settings["targets"] = list.fingerprint()?.into();
        }
        Ok(schemas::xxh::fingerprint(settings.to_string().as_bytes()))
    }
}
