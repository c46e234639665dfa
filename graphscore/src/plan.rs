//! The checked plan of a score job.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use schemas::path::join;
use schemas::{FromEdges, GraphPlan, Ids, PairListPlan, PairsPlan, Split};
use serde_json::{Value, json};

use crate::ScoreError;
use crate::config::ScoreSpec;

/// Default number of queries in one part, if few items are wanted.
const ROWS_PER_PART: usize = 65_536;

/// Best items of all queries of a part, if `score.rows_per_part` does not say otherwise: 64 MiB of
/// items and scores.
const ITEMS_PER_PART: usize = 1 << 23;

/// What the job says outside of table `[score]`.
#[derive(Clone, Debug)]
pub struct ScoreContext {
    /// Output of `[infer]`, if the job has one.
    pub input: Option<PathBuf>,
    /// Model of `[infer]`, or output of `[train]`, if the job has one.
    pub model: Option<PathBuf>,
    /// Directory that relative paths start from.
    pub base: PathBuf,
    /// The tables of the job.
    pub graph: Arc<GraphPlan>,
    /// Bytes of memory of the job; a quarter of them holds embeddings that are read more than once.
    pub memory_budget: usize,
    /// Whether an existing output is replaced.
    pub fresh: bool,
}

/// A checked score job. [`score`](crate::score) checks the keys that depend on the embeddings.
#[derive(Clone, Debug)]
pub struct ScorePlan {
    pub(crate) output: PathBuf,
    pub(crate) input: PathBuf,
    pub(crate) model: PathBuf,
    pub(crate) graph: Arc<GraphPlan>,
    pub(crate) pairs: Arc<PairsPlan>,
    /// Whether the queries are the dst ends of pairs.
    pub(crate) is_reversed: bool,
    pub(crate) top_k: Option<usize>,
    pub(crate) exclude_known: bool,
    pub(crate) rows_per_part: usize,
    pub(crate) listed: Option<PairListPlan>,
    pub(crate) evaluate: bool,
    pub(crate) cutoffs: Vec<u32>,
    pub(crate) cache_bytes: usize,
    pub(crate) fresh: bool,
}

impl ScoreSpec {
    /// Checks the keys, resolves the paths and opens the table of listed pairs.
    ///
    /// # Errors
    ///
    /// All mistakes, at least one.
    pub fn into_plan(self, ctx: ScoreContext) -> Result<ScorePlan, Vec<ScoreError>> {
        let input = self.input.clone().or(ctx.input);
        let model = self.model.clone().or(ctx.model);
        let mut found = self.mistakes(input.is_some(), model.is_some(), ctx.graph.pairs.is_some());
        let (Some(input), Some(model), Some(pairs)) = (input, model, ctx.graph.pairs.clone())
        else {
            return Err(found);
        };
        if pairs.walks().is_some() && pairs.spec().from_edges.is_none() {
            found.extend(self.unknown_links());
        }
        let is_reversed = self.is_reversed(&ctx.graph, &pairs);
        let is_reversed = is_reversed.map_err(|error| found.push(error)).ok();
        let ends = [pairs.from(), pairs.to()];
        let listed = self.pairs.clone();
        let listed = listed.map(|spec| spec.plan(&ctx.base, &ctx.graph, ends));
        let listed = listed.transpose();
        let listed = listed.map_err(|errors| found.extend(errors.into_iter().map(Into::into)));
        let top_k = self.top_k.map_or(1, |top_k| top_k as usize);
        match (is_reversed, listed) {
            (Some(is_reversed), Ok(listed)) if found.is_empty() => Ok(ScorePlan {
                output: join(&ctx.base, &self.output),
                input: join(&ctx.base, &input),
                model: join(&ctx.base, &model),
                is_reversed,
                pairs,
                top_k: self.top_k.map(|_| top_k),
                exclude_known: self.exclude_known,
                rows_per_part: self
                    .rows_per_part
                    .unwrap_or((ITEMS_PER_PART / top_k).clamp(1, ROWS_PER_PART)),
                listed,
                evaluate: self.evaluate,
                cutoffs: self.cutoffs(),
                cache_bytes: ctx.memory_budget / 4,
                fresh: ctx.fresh,
                graph: ctx.graph,
            }),
            _ => Err(found),
        }
    }

    /// Returns the mistakes of keys that need links, if all pairs are those of walks.
    fn unknown_links(&self) -> Vec<ScoreError> {
        let keys = [
            ("score.exclude_known", self.exclude_known),
            ("score.evaluate", self.evaluate),
        ];
        let wrong = keys.into_iter().filter(|(_, is_given)| *is_given);
        let problem = "is true, but pairs of `input.pairs.walks` are no links; it needs \
                       `input.pairs.from_edges`";
        wrong
            .map(|(key, _)| ScoreError::Key {
                key,
                problem: problem.to_owned(),
            })
            .collect()
    }

    /// Tells whether the queries are the dst ends of pairs.
    fn is_reversed(&self, graph: &GraphPlan, pairs: &PairsPlan) -> Result<bool, ScoreError> {
        let Some(queries) = &self.queries else {
            return Ok(false);
        };
        let wrong = |problem: String| {
            let key = "score.queries";
            Err(ScoreError::Key { key, problem })
        };
        if !graph.is_typed() {
            let problem = "is for node types, as in [input.nodes.TYPE]; leave it out";
            return wrong(problem.to_owned());
        }
        let [from, to] = [pairs.from(), pairs.to()].map(|of| &graph.types[of].name);
        if queries == from || queries == to {
            return Ok(queries != from);
        }
        let problem = match graph.type_idx(queries) {
            Some(_) => "no end of the pairs is of this type",
            None => "there is no such node type",
        };
        wrong(format!(
            "is {queries:?}; {problem}; allowed are {from:?} and {to:?}"
        ))
    }
}

impl ScorePlan {
    /// Returns the directory that will be written.
    pub fn output(&self) -> &Path {
        &self.output
    }

    /// Returns the directory of the embeddings.
    pub fn input(&self) -> &Path {
        &self.input
    }

    /// Returns the directory of the model.
    pub fn model(&self) -> &Path {
        &self.model
    }

    /// Returns the positions of the types of queries and items.
    pub(crate) fn types(&self) -> [usize; 2] {
        let [from, to] = [self.pairs.from(), self.pairs.to()];
        if self.is_reversed {
            [to, from]
        } else {
            [from, to]
        }
    }

    /// Returns the names of the types of both ends of pairs; empty if nodes have no types.
    pub fn end_types(&self) -> [&str; 2] {
        [self.pairs.from(), self.pairs.to()].map(|of| &*self.graph.types[of].name)
    }

    /// Tells whether the pairs of the store are read.
    pub fn reads_pairs(&self) -> bool {
        self.exclude_known || self.evaluate
    }

    /// Returns the relation whose edges are known besides the pairs, and must all be kept in the
    /// store; none if all of them are pairs, or pairs have a table of their own.
    pub fn known_relation(&self) -> Option<usize> {
        let name = match self.pairs.spec().from_edges.as_ref()? {
            FromEdges::All(_) => "",
            FromEdges::Relation(name) => name,
        };
        // Shares that leave no edge out add up to 1, up to rounding.
        let all = self.pairs.shares().map(|of| of.train + of.val + of.test);
        let has_train_pairs = self.pairs.keeps(Split::Train);
        let are_all_pairs = has_train_pairs && all.is_some_and(|sum| sum > 1.0 - 1e-9);
        let is_read = self.reads_pairs() && !are_all_pairs;
        self.graph.relation_idx(name).filter(|_| is_read)
    }

    /// Tells whether the reverse of a known pair is known too: its edges have both directions.
    pub(crate) fn are_both_directions_known(&self) -> bool {
        let relations = self.pairs.relations().iter();
        let mut edges = relations.map(|&at| &self.graph.relations[at].edges);
        self.pairs.is_of_edges() && edges.any(|of| of.undirected())
    }

    /// Returns the settings that decide the bytes of the output, but for the listed pairs.
    pub fn settings(&self) -> Value {
        let name = |of: usize| &self.graph.types[of].name;
        json!({
            "queries": name(self.types()[0]),
            "items": name(self.types()[1]),
            "top_k": self.top_k,
            "exclude_known": self.exclude_known,
            "rows_per_part": self.top_k.map(|_| self.rows_per_part),
            "lists_pairs": self.listed.is_some(),
            "cutoffs": self.evaluate.then_some(&self.cutoffs),
        })
    }

    /// Returns the number of queries, and of the items that each of them has. A node is no item of
    /// its own.
    pub fn num_queries_and_items(&self, num_nodes: &[u64]) -> (u64, u64) {
        let [queries, items] = self.types();
        let own = u64::from(queries == items);
        (num_nodes[queries], num_nodes[items].saturating_sub(own))
    }

    /// Returns the approximate memory of the stage in bytes, for embeddings of this width.
    pub fn memory_bytes(&self, num_nodes: &[u64], dim: usize) -> f64 {
        let (num_queries, num_items) = self.num_queries_and_items(num_nodes);
        let row = (4 * dim + 8) as f64;
        let held = ((num_queries + num_items) as f64 * row).min(self.cache_bytes as f64);
        let queries = (self.rows_per_part as f64).min(num_queries as f64);
        // Found items: while they are searched, sorted, and written as the next ones are searched.
        let found = self
            .top_k
            .map_or(0.0, |top_k| queries * top_k as f64 * 40.0);
        held + queries * row + found
    }

    /// Returns the number of best items of a query, if they are searched.
    pub fn top_k(&self) -> Option<usize> {
        self.top_k
    }

    /// Checks that there are as many items as each query wants; `num_nodes` are the nodes of each
    /// type that have embeddings.
    ///
    /// # Errors
    ///
    /// Names `score.top_k` and the number of items.
    pub fn check_items(&self, num_nodes: &[u64]) -> Result<(), ScoreError> {
        let (_, num_items) = self.num_queries_and_items(num_nodes);
        match self.top_k {
            Some(top_k) if top_k as u64 > num_items => Err(ScoreError::Key {
                key: "score.top_k",
                problem: format!("is {top_k}; a query has {num_items} items"),
            }),
            _ => Ok(()),
        }
    }

    /// Checks that there are pairs to rank, if val and test pairs are ranked; `val` and `test` tell
    /// whether these splits have pairs.
    ///
    /// # Errors
    ///
    /// Names `score.evaluate`.
    pub fn check_splits(&self, [val, test]: [bool; 2]) -> Result<(), ScoreError> {
        if !self.evaluate || val || test {
            return Ok(());
        }
        Err(ScoreError::Key {
            key: "score.evaluate",
            problem: format!(
                "is true, but `input.pairs.{}` puts no pair in the splits val and test",
                self.pairs.split_key()
            ),
        })
    }

    /// Checks that each end of the listed pairs will have an embedding: that it is the id of a node.
    /// `written` are a type and its only nodes that get embeddings.
    ///
    /// # Errors
    ///
    /// If a table cannot be read. Names file, column and row of the first end without an embedding.
    pub fn check_listed(&self, written: Option<(usize, &Ids)>) -> Result<(), ScoreError> {
        let Some(list) = &self.listed else {
            return Ok(());
        };
        let types = [self.pairs.from(), self.pairs.to()];
        let mut missing = [HashSet::new(), HashSet::new()];
        for unit in list.units() {
            for item in list.batches(unit)? {
                let rows = item?;
                for (ends, hashes) in [&rows.src, &rows.dst].into_iter().zip(&mut missing) {
                    hashes.extend((0..ends.len()).map(|at| ends.hash(at)));
                }
            }
        }
        let mut found = |of_type: usize, ids: &Ids| {
            let ends = types.iter().zip(&mut missing);
            for (_, hashes) in ends.filter(|(of_end, _)| **of_end == of_type) {
                for at in 0..ids.len() {
                    hashes.remove(&ids.hash(at));
                }
            }
        };
        for of_type in BTreeSet::from(types) {
            match written.filter(|(of_list, _)| *of_list == of_type) {
                Some((_, ids)) => found(of_type, ids),
                None => {
                    let nodes = &self.graph.types[of_type].nodes;
                    for unit in nodes.units() {
                        found(of_type, &nodes.read_keys(unit)?.ids);
                    }
                }
            }
        }
        first_missing(list, &missing)
    }
}

/// Returns the error for the first row of listed pairs with an end of the given hashes, by column.
fn first_missing(list: &PairListPlan, missing: &[HashSet<u64>; 2]) -> Result<(), ScoreError> {
    if missing.iter().all(HashSet::is_empty) {
        return Ok(());
    }
    for unit in list.units() {
        for item in list.batches(unit)? {
            let rows = item?;
            for at in 0..rows.src.len() {
                for (of, ends) in [&rows.src, &rows.dst].into_iter().enumerate() {
                    if missing[of].contains(&ends.hash(at)) {
                        let (row, id) = (rows.rows.row(at), ends.display(at));
                        return Err(list.unknown(row, of == 0, &id).into());
                    }
                }
            }
        }
    }
    Ok(())
}
