//! The flatten stage: reads the store and commits graph features.

use crate::pair_parts::{PairParts, PartTargets};
use crate::round::RoundStats;
use crate::targets::{self, select_targets};
use crate::version::{KeepFull, warn_if_not_kept};
use crate::wave::{WorkerStats, run_waves};
use crate::wave_context::WaveContext;
use crate::{FlattenError, FlattenPlan, SamplePlan, Targets};
use cluster::{gather_processes, open_output, run_workers};
use schemas::progress::{Event, Progress};
use schemas::{FlattenMeta, IdListPlan, Layout, Manifest, NodeIdx, Opened, Output, PartEntry};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use store::{Hub, Store};

/// Version of the engine. Raise it when the same plan gives other bytes than before.
pub(crate) const ENGINE_VERSION: u32 = 5;

/// Flattens the k-hop neighbourhoods of the targets and commits them.
///
/// Follows AGL's GraphFlat (PVLDB 13, section 3.2) with two changes: the k rounds move ids instead
/// of features, and the features of a wave's nodes move once after the rounds. A finished output of
/// the same plan is returned as it is; an unfinished one is resumed.
///
/// # Errors
///
/// If there are no targets, the output directory holds something else, or a part cannot be written.
///
/// # Panics
///
/// If the store was built for another sampling, or keeps fewer samples or in-edges than the plan
/// needs.
pub fn flatten(
    plan: &FlattenPlan,
    store: &Store,
    progress: &Progress,
) -> Result<Manifest, FlattenError> {
    assert_fits(plan, store);
    store.cluster().set_phase("flatten, its start");
    let fingerprint = fingerprint(plan, store)?;
    // Before the output is opened, so that a job without targets leaves no files.
    let parts = Arc::new(plan.sample.part_targets(plan.layout, store)?);
    let output = match open_output::<FlattenError>(
        store.cluster(),
        (&plan.output, "flatten", &fingerprint),
        plan.fresh,
    )? {
        Opened::Done(manifest) => {
            warn_if_not_kept(plan, &fingerprint, store)?;
            return Ok(*manifest);
        }
        Opened::Open(output) => Arc::new(output),
    };
    let versions = KeepFull::start(plan, store)?;
    let meta = meta_of(plan, store);
    let context = WaveContext {
        store: store.clone(),
        output: Arc::clone(&output),
        meta: meta.clone(),
        parts: Arc::clone(&parts),
        memory_budget: plan.memory_budget,
        progress: Arc::clone(progress),
        failed: Arc::new(AtomicBool::new(false)),
    };
    let cluster = store.cluster();
    report_resumed(&context);
    let stats = run_workers(cluster, move |peer| run_waves(peer, &context))?;
    let share = Share {
        seconds: seconds(&stats),
        stats,
        parts: output.committed_parts(),
        hubs: store.own_hubs(plan.sample.hub_threshold),
    };
    let shares = gather_processes(cluster, share)?;
    let (all_stats, hubs) = join(shares, &output);
    cluster.set_phase("flatten, its end");
    if cluster.leads() {
        announce_rounds(meta.hops, &all_stats, progress);
    }
    if let Some(versions) = versions {
        versions.finish((plan, &fingerprint), store, &parts)?;
    }
    let planned = (plan.settings(), store.manifest_input());
    let manifest = Manifest {
        graph: Some(store.meta().graph.clone()),
        flatten: Some(meta),
        parts: output.parts(),
        report: report(plan, store, &hubs, &all_stats),
        ..Manifest::new("flatten", fingerprint, planned, store.meta().seed)
    };
    if cluster.leads() {
        let output = Arc::into_inner(output).expect("the workers have ended");
        output.finish(&manifest)?;
    }
    Ok(manifest)
}

/// Returns how graph features of a plan are made.
pub(crate) fn meta_of(plan: &FlattenPlan, store: &Store) -> FlattenMeta {
    FlattenMeta {
        hops: plan.sample.fanouts.len(),
        fanouts: plan.sample.fanouts.clone(),
        sampling: plan.sample.sampling,
        seed: store.meta().seed,
        samples_per_target: plan.samples,
        layout: plan.layout,
    }
}

/// Reports how many parts a resumed run finds.
fn report_resumed(context: &WaveContext) {
    let committed = context.output.committed_parts().len();
    if committed == 0 {
        return;
    }
    let parts = context.parts.len() * context.meta.samples_per_target as usize;
    (context.progress)(&Event {
        stage: "flatten",
        phase: "resume".to_owned(),
        done: committed as u64,
        total: 0,
        message: Some(format!("{committed} of {parts} parts are whole")),
        fields: serde_json::Value::Null,
    });
}

/// The results of one process.
#[derive(Serialize, Deserialize)]
struct Share {
    /// By worker and round.
    stats: Vec<WorkerStats>,
    /// Seconds of each worker and round, which the serialized stats leave out.
    seconds: Vec<Vec<f64>>,
    parts: BTreeMap<usize, PartEntry>,
    hubs: Vec<Hub>,
}

fn seconds(stats: &[WorkerStats]) -> Vec<Vec<f64>> {
    let of_worker = |rounds: &WorkerStats| rounds.iter().map(|round| round.seconds).collect();
    stats.iter().map(of_worker).collect()
}

/// Joins the results of all processes: counts by worker, and hubs, the largest first.
fn join(shares: Vec<Share>, output: &Output) -> (Vec<WorkerStats>, Vec<Hub>) {
    let (mut stats, mut hubs) = (Vec::new(), Vec::new());
    for mut share in shares {
        let workers = share.stats.iter_mut().zip(&share.seconds);
        let rounds = workers.flat_map(|(rounds, seconds)| rounds.iter_mut().zip(seconds));
        rounds.for_each(|(round, seconds)| round.seconds = *seconds);
        stats.extend(share.stats);
        hubs.extend(share.hubs);
        output.adopt_parts(share.parts);
    }
    hubs.sort_by(|a, b| b.in_degree.cmp(&a.in_degree).then_with(|| a.id.cmp(&b.id)));
    (stats, hubs)
}

/// Checks that the store has the plan's sampling, and enough samples and in-edges.
fn assert_fits(plan: &FlattenPlan, store: &Store) {
    let meta = store.meta();
    assert_eq!(
        meta.sampling, plan.sample.sampling,
        "the store was built for another sampling"
    );
    assert!(
        meta.samples >= plan.samples,
        "the store has fewer samples than the plan"
    );
    let keeps_enough = meta.keep.is_enough(&plan.sample.keep_by_relation());
    assert!(
        keeps_enough,
        "the store keeps fewer in-edges than the plan needs"
    );
}

impl SamplePlan {
    /// Selects the targets or collects the pairs, and cuts them into parts.
    ///
    /// # Errors
    ///
    /// If there is no target, a listed target is not a node, or a part has more random negatives
    /// than there are nodes.
    pub(crate) fn part_targets(
        &self,
        layout: Layout,
        store: &Store,
    ) -> Result<PartTargets, FlattenError> {
        let graph = &store.meta().graph;
        if graph.pairs.is_some() {
            return Ok(PartTargets::Pairs(PairParts::gather(self, layout, store)?));
        }
        let targets = all_targets(&self.targets, store)?;
        let features = graph.types.iter().map(|of| of.features);
        Ok(PartTargets::Nodes(self.cut(targets, layout, features)))
    }
}

/// Returns all targets in the order in which they are cut into parts.
///
/// # Errors
///
/// As [`select_targets`].
fn all_targets(targets: &Targets, store: &Store) -> Result<Vec<NodeIdx>, FlattenError> {
    let (targets, store) = (targets.clone(), store.clone());
    let cluster = store.cluster().clone();
    let mut all = run_workers(&cluster, move |peer| select_targets(peer, &targets, &store))?;
    Ok(all.swap_remove(0))
}

fn fingerprint(plan: &FlattenPlan, store: &Store) -> Result<String, FlattenError> {
    let list = match &plan.sample.targets {
        Targets::Listed(path) => Some(targets::list_plan(path, store)?),
        _ => None,
    };
    plan.fingerprint(&store.meta().input, store.meta().seed, list.as_ref())
}

impl FlattenPlan {
    /// Returns the fingerprint of the plan's output for an input and a seed; it includes the
    /// content of `list`, the list of targets.
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
            "plan": self.settings(),
        });
        // A list of targets is identified by its content, not by its path.
        if let Some(list) = list {
            settings["plan"]["targets"] = list.fingerprint()?.into();
        }
        Ok(schemas::xxh::fingerprint(settings.to_string().as_bytes()))
    }
}

/// Returns the names of the rounds that workers count.
fn round_names(hops: usize) -> Vec<String> {
    let rounds = (1..=hops).map(|hop| format!("round {hop}"));
    rounds
        .chain(["features", "write"].map(str::to_owned))
        .collect()
}

/// Returns the hubs, and the counts of each worker in each round.
fn report(
    plan: &FlattenPlan,
    store: &Store,
    hubs: &[Hub],
    stats: &[WorkerStats],
) -> serde_json::Value {
    let names = round_names(plan.sample.fanouts.len())
        .into_iter()
        .enumerate();
    let rounds = names.map(|(round, name)| {
        let workers: Vec<_> = stats.iter().map(|worker| worker[round]).collect();
        serde_json::json!({ "name": name, "workers": workers })
    });
    let mut report = serde_json::json!({
        "hubs": hubs,
        "edges": store.meta().edges,
        "rounds": rounds.collect::<Vec<_>>(),
    });
    if let Some(pairs) = &store.meta().pairs {
        report["pairs"] = serde_json::json!(pairs);
    }
    report
}

/// Reports how the work of each round was spread over the workers.
fn announce_rounds(hops: usize, stats: &[WorkerStats], progress: &Progress) {
    let names = round_names(hops);
    let total = names.len() as u64;
    for (round, name) in names.into_iter().enumerate() {
        let of_workers = || stats.iter().map(|worker| worker[round]);
        let sum = |figure: fn(RoundStats) -> u64| of_workers().map(figure).sum::<u64>();
        let seconds: Vec<f64> = of_workers().map(|did| did.seconds).collect();
        let least = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let most = seconds.iter().copied().fold(0.0, f64::max);
        progress(&Event {
            stage: "flatten",
            phase: "work".to_owned(),
            done: round as u64 + 1,
            total,
            message: Some(format!(
                "{name}: {} nodes, {} in-edges, {} bytes, {least:.2} to {most:.2} s a worker",
                sum(|did| did.nodes),
                sum(|did| did.in_edges),
                sum(|did| did.bytes),
            )),
            fields: serde_json::json!({
                "name": name,
                "workers": of_workers().collect::<Vec<_>>(),
                "seconds": seconds,
            }),
        });
    }
}
