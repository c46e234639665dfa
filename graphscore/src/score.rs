//! The score stage: writes the best items, the scores of listed pairs and the ranking.

use std::io::Write as _;
use std::ops::Range;
use std::sync::mpsc::sync_channel;

use cluster::{Cluster, gather_processes, open_output};
use gnn::Scorer;
use schemas::threads::spawn_scoped;
use schemas::{
    BestItemRows, EmbeddingsDataset, Event, Ids, Manifest, Opened, Output, PairListPlan, PartEntry,
    Progress, SchemaError, ScoresWriter,
};
use serde_json::{Value, json};
use store::Store;

use crate::ScoreError;
use crate::best::{BestSearch, FoundItems};
use crate::evaluate::{Ranking, RankingFile};
use crate::known::{KnownPairs, RowLists};
use crate::listed::ListedPairs;
use crate::model::open_decoder;
use crate::plan::ScorePlan;
use crate::rows::{End, EndRows};

/// Must change when the same plan gives other bytes than before.
const ENGINE_VERSION: u32 = 1;

/// File name of the metrics of the ranking.
pub const RANKING_JSON: &str = "ranking.json";

/// Items of all queries that are written at once.
const ITEMS_WRITTEN: usize = 1 << 20;

/// Computes and commits scores as planned; returns the manifest.
///
/// `store` holds the pairs of the job; it is needed if [`ScorePlan::reads_pairs`]. The processes of
/// the cluster write parts in turn, and process 0 finishes the output. A finished output of the
/// same plan and embeddings is returned as it is; an unfinished one keeps its committed parts.
///
/// # Errors
///
/// If the embeddings or the model are missing or do not fit, or there are fewer items than wanted,
/// before anything is written; if something cannot be read or written; if another process fails.
///
/// # Panics
///
/// If the plan needs a store and none is given.
pub fn score(
    plan: &ScorePlan,
    cluster: &Cluster,
    store: Option<&Store>,
    progress: &Progress,
) -> Result<Manifest, ScoreError> {
    cluster.set_phase("score, its start");
    let scorer = open_decoder(&plan.model)?;
    let dataset = plan.open_embeddings()?;
    plan.check_normalized(&scorer, &dataset)?;
    let rows = Rows::new(plan, &scorer, &dataset);
    rows.check(plan)?;
    let store = plan.reads_pairs().then(|| store.expect("it has the pairs"));
    if let Some(store) = store {
        check_tables(plan, store, &dataset)?;
    }
    let plan_json = plan.settings();
    let input = input_json(plan, store, &dataset)?;
    let fingerprint = fingerprint(&plan_json, &input);
    if let Some(manifest) = finished(plan, &fingerprint, cluster)? {
        return Ok(manifest);
    }
    let known = store.map(|store| KnownPairs::gather(plan, store));
    let known = known.transpose()?.unwrap_or_default();
    if plan.evaluate && known.links[1..].iter().all(Vec::is_empty) {
        let problem = "is true; no val or test pair is a link".to_owned();
        let key = "score.evaluate";
        return Err(ScoreError::Key { key, problem });
    }
    let output = match open_output::<ScoreError>(
        cluster,
        (&plan.output, "score", &fingerprint),
        plan.fresh,
    )? {
        // Another run has finished the output in the meantime.
        Opened::Done(manifest) => return Ok(*manifest),
        Opened::Open(output) => output,
    };
    let stage = Scoring {
        plan,
        scorer: &scorer,
        rows: &rows,
        known: &known,
        output: &output,
        cluster,
        progress,
    };
    let ranking = stage.run()?;
    for parts in gather_processes(cluster, output.committed_parts())? {
        output.adopt_parts(parts);
    }
    let manifest = Manifest {
        parts: output.parts(),
        report: report(&rows, ranking.as_ref()),
        ..Manifest::new(
            "score",
            fingerprint,
            (plan_json, input),
            dataset.manifest().seed,
        )
    };
    if cluster.leads() {
        output.finish(&manifest)?;
    }
    gather_processes(cluster, ())?;
    Ok(manifest)
}

/// The rows of both ends of pairs.
struct Rows<'a> {
    src: EndRows<'a>,
    dst: EndRows<'a>,
}

impl<'a> Rows<'a> {
    fn new(plan: &ScorePlan, scorer: &'a Scorer, dataset: &'a EmbeddingsDataset) -> Self {
        let of = |of_type: usize, end| {
            let name = &plan.graph.types[of_type].name;
            let place = (plan.input.clone(), &**name);
            EndRows::new((scorer, dataset), place, end, plan.cache_bytes / 2)
        };
        Self {
            src: of(plan.pairs.from(), End::Src),
            dst: of(plan.pairs.to(), End::Dst),
        }
    }

    /// Returns the rows of the queries and those of the items.
    fn ends(&self, plan: &ScorePlan) -> [&EndRows<'a>; 2] {
        match plan.is_reversed {
            false => [&self.src, &self.dst],
            true => [&self.dst, &self.src],
        }
    }

    /// Checks the width of the embeddings and the number of items.
    fn check(&self, plan: &ScorePlan) -> Result<(), ScoreError> {
        for rows in [&self.src, &self.dst] {
            if rows.num_parts() > 0 {
                rows.part(0)?;
            }
        }
        let mut counts = vec![0; plan.graph.types.len()];
        counts[plan.pairs.from()] = self.src.len() as u64;
        counts[plan.pairs.to()] = self.dst.len() as u64;
        plan.check_items(&counts)
    }
}

/// Checks that embeddings were computed from the tables of a store.
fn check_tables(
    plan: &ScorePlan,
    store: &Store,
    dataset: &EmbeddingsDataset,
) -> Result<(), ScoreError> {
    let (computed, given) = (&dataset.manifest().input, store.manifest_input());
    let names = ["nodes", "edges", "pairs"];
    match names.iter().all(|&name| computed[name] == given[name]) {
        true => Ok(()),
        false => Err(ScoreError::Embeddings {
            dir: plan.input.clone(),
            problem: "were computed from other tables, so their pairs are not known; run [infer] \
                      again"
                .to_owned(),
        }),
    }
}

/// Returns the identity of what is read.
fn input_json(
    plan: &ScorePlan,
    store: Option<&Store>,
    dataset: &EmbeddingsDataset,
) -> Result<Value, ScoreError> {
    let mut input = json!({ "embeddings": dataset.manifest().fingerprint });
    if let Some(list) = &plan.listed {
        input["listed"] = json!(list.fingerprint()?);
    }
    if let Some(store) = store {
        let tables = store.manifest_input();
        for name in ["nodes", "edges", "pairs"] {
            input[name] = tables[name].clone();
        }
        // Splits depend on the keys of the pairs.
        input["supervision"] = json!(plan.pairs.spec());
    }
    Ok(input)
}

fn fingerprint(plan: &Value, input: &Value) -> String {
    let identity = json!({ "engine": ENGINE_VERSION, "plan": plan, "input": input });
    schemas::xxh::fingerprint(identity.to_string().as_bytes())
}

/// Returns the manifest of a finished output, which process 0 looks for. All processes must have
/// the same fingerprint.
fn finished(
    plan: &ScorePlan,
    fingerprint: &str,
    cluster: &Cluster,
) -> Result<Option<Manifest>, ScoreError> {
    let found = match (plan.fresh, cluster.leads()) {
        (false, true) => Output::done(&plan.output, "score", fingerprint)?,
        _ => None,
    };
    let mut told = gather_processes(cluster, (fingerprint.to_owned(), found))?;
    if let Some(process) = told.iter().position(|(theirs, _)| *theirs != told[0].0) {
        return Err(ScoreError::Unlike { process });
    }
    Ok(told.swap_remove(0).1)
}

fn report(rows: &Rows<'_>, ranking: Option<&RankingFile>) -> Value {
    let mut report = json!({ "src_nodes": rows.src.len(), "dst_nodes": rows.dst.len() });
    if let Some(ranking) = ranking {
        report["metrics"] = json!(ranking.metrics());
        report["ranking"] = json!(ranking);
    }
    report
}

/// A running score stage. Its parts are those of the best items, those of the listed pairs, and the
/// ranking, in this order.
struct Scoring<'a> {
    plan: &'a ScorePlan,
    scorer: &'a Scorer,
    rows: &'a Rows<'a>,
    known: &'a KnownPairs,
    output: &'a Output,
    cluster: &'a Cluster,
    progress: &'a Progress,
}

impl Scoring<'_> {
    /// Writes the parts that are not committed yet; returns the ranking, if it is planned.
    fn run(&self) -> Result<Option<RankingFile>, ScoreError> {
        let mut next = 0;
        if let Some(top_k) = self.plan.top_k {
            next = self.best_items(top_k)?;
        }
        if let Some(list) = &self.plan.listed {
            self.listed_pairs(list, next)?;
            next += list.units().len();
        }
        match self.plan.evaluate {
            true => self.ranking(next).map(Some),
            false => Ok(None),
        }
    }

    /// Lists the parts of this process that are not committed.
    fn open_parts(&self, parts: Range<usize>) -> Vec<usize> {
        let (processes, process) = (self.cluster.num_processes(), self.cluster.process());
        let is_own = |part: &usize| part % processes == process;
        let open = parts.filter(is_own);
        open.filter(|&part| self.output.committed(part).is_none())
            .collect()
    }

    fn report(&self, phase: &str, (done, total): (usize, usize)) {
        (self.progress)(&Event {
            stage: "score",
            phase: phase.to_owned(),
            done: done as u64,
            total: total as u64,
            message: None,
            fields: Value::Null,
        });
    }

    /// Writes the best items of all queries; returns the number of parts. A part is written while
    /// the items of the next one are searched.
    fn best_items(&self, top_k: usize) -> Result<usize, ScoreError> {
        self.cluster.set_phase("score, the best items");
        let [queries, items] = self.rows.ends(self.plan);
        let num_parts = queries.len().div_ceil(self.plan.rows_per_part);
        let open = self.open_parts(0..num_parts);
        if open.is_empty() {
            return Ok(num_parts);
        }
        let item_ids = items.ids()?.expect("there are as many items as wanted");
        let are_known = self.plan.exclude_known;
        let known = are_known.then(|| self.known.all(queries.len(), self.plan.is_reversed));
        let [of_queries, of_items] = self.plan.types();
        let search = BestSearch {
            scorer: self.scorer,
            queries,
            items,
            are_of_one_type: of_queries == of_items,
            top_k,
            known: &known.unwrap_or_else(RowLists::default),
        };
        let rows_of = |part: usize| {
            let first = part * self.plan.rows_per_part;
            first..(first + self.plan.rows_per_part).min(queries.len())
        };
        let (sender, found) = sync_channel::<(usize, FoundItems)>(0);
        std::thread::scope(|scope| {
            let write = || {
                for (done, (part, of_part)) in (1..).zip(found) {
                    let entry = self.write_items(part, &of_part, &item_ids)?;
                    self.output.commit_part(part, entry)?;
                    self.report("items", (done, open.len()));
                }
                Ok::<_, ScoreError>(())
            };
            let writer = spawn_scoped(scope, "writer", write)?;
            let mut parts = open.iter();
            let searched = loop {
                let Some(&part) = parts.next() else {
                    break Ok(());
                };
                match search.run(rows_of(part)) {
                    Err(error) => break Err(error),
                    Ok(of_part) => {
                        // A writer that has failed takes no more parts; its error is returned.
                        if sender.send((part, of_part)).is_err() {
                            break Ok(());
                        }
                    }
                }
            };
            drop(sender);
            writer.join().expect("a panic has ended the process")?;
            searched
        })?;
        Ok(num_parts)
    }

    fn write_items(
        &self,
        part: usize,
        found: &FoundItems,
        item_ids: &Ids,
    ) -> Result<PartEntry, ScoreError> {
        let types = [found.queries.id_type(), item_ids.id_type()];
        let mut writer = ScoresWriter::items(self.output, part, types)?;
        let mut first = 0;
        while first < found.queries.len() {
            let before = first.checked_sub(1).map_or(0, |at| found.ends[at]);
            let within = |&end: &usize| end <= before + ITEMS_WRITTEN;
            let last = found.ends.partition_point(within).max(first + 1);
            let items = before..found.ends[last - 1];
            let mut queries = Ids::new(found.queries.id_type());
            queries.extend_from(&found.queries, first..last);
            writer.write_items(&BestItemRows {
                ids: queries,
                ends: found.ends[first..last]
                    .iter()
                    .map(|end| end - before)
                    .collect(),
                items: item_ids.gather(&found.items[items.clone()]),
                scores: found.scores[items].to_vec(),
            })?;
            first = last;
        }
        Ok(writer.finish()?)
    }

    /// Writes the scores of listed pairs; the first part has a number.
    fn listed_pairs(&self, list: &PairListPlan, first: usize) -> Result<(), ScoreError> {
        self.cluster.set_phase("score, listed pairs");
        let open = self.open_parts(first..first + list.units().len());
        if open.is_empty() {
            return Ok(());
        }
        let none = || Ids::new(schemas::IdType::UInt64);
        let ids = |rows: &EndRows<'_>| Ok::<_, ScoreError>(rows.ids()?.unwrap_or_else(none));
        let (src, dst) = (&self.rows.src, &self.rows.dst);
        let listed = ListedPairs {
            scorer: self.scorer,
            list,
            src: (src, ids(src)?),
            dst: (dst, ids(dst)?),
        };
        for (done, &part) in (1..).zip(&open) {
            let at = part - first;
            let entry = listed.write(self.output, at, &list.units()[at])?;
            self.output.commit_part(part, entry)?;
            self.report("pairs", (done, open.len()));
        }
        Ok(())
    }

    /// Ranks val and test pairs, and writes the metrics as a part.
    fn ranking(&self, part: usize) -> Result<RankingFile, ScoreError> {
        self.cluster.set_phase("score, the ranking");
        let path = self.output.parts_dir().join(RANKING_JSON);
        if self.output.committed(part).is_some() {
            let text = schemas::storage::read(&path)?.unwrap_or_default();
            let read = serde_json::from_slice(&text);
            return Ok(read.map_err(|source| SchemaError::Json { path, source })?);
        }
        let ranking = Ranking {
            scorer: self.scorer,
            src: &self.rows.src,
            dst: &self.rows.dst,
            known: self.known,
            are_of_one_type: self.plan.pairs.from() == self.plan.pairs.to(),
            cutoffs: &self.plan.cutoffs,
        };
        let ranked = ranking.run(self.cluster)?;
        self.report("ranking", (1, 1));
        if self.cluster.leads() {
            let text = json!(ranked).to_string();
            let mut file = self.output.create(RANKING_JSON)?;
            let written = writeln!(file, "{text}");
            written.map_err(|source| ScoreError::Write { path, source })?;
            let entry = PartEntry {
                name: "ranking".to_owned(),
                files: vec![file.finish()?],
                rows: 0,
                targets: None,
            };
            self.output.commit_part(part, entry)?;
        }
        Ok(ranked)
    }
}
