//! Finds changes in whole tables: a snapshot is compared with the graph of the parent. Of several
//! processes, each reads some units of each table.

mod edges;
mod known;
mod shares;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cluster::Cluster;
use rayon::iter::{IntoParallelIterator, ParallelIterator};
use schemas::{
    ChangesSpec, ColumnMeta, EdgesPlan, Features, GraphPlan, Ids, LabelMeta, Labels, NodeIdx,
    NodesPlan, PairsPlan, Split, Unit, table_key,
};
use serde::{Deserialize, Serialize};
use store::read_pairs;

use crate::changes::{
    Changes, EdgeChanges, EdgeTable, NodeChanges, NodeList, NodeTable, OfStore, PairChanges,
    columns_as_stored, first_gap, no_table_of_pairs, relation_idx, type_idx, unknown_pairs,
};
use crate::numbers::{Numbers, TargetRow, relation_of_pairs, row_error, tables_of_pairs};
use crate::{DeltaError, WholeTables, is_own_part};

use known::Known;
use shares::{Found, tell_all};

/// Key of the tables in the job file.
const OF_SNAPSHOT: &str = "input.snapshot";

/// Rows of nodes that are compared at once.
const ROWS: usize = 1 << 13;

/// The whole tables of a graph, as they are now.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// By type.
    nodes: Vec<OfType>,
    edges: Vec<OfTable>,
    /// Supervision pairs, where the task is one of links.
    pairs: Option<Box<PairsPlan>>,
}

/// The node table of a type.
#[derive(Clone, Debug)]
struct OfType {
    name: String,
    plan: Arc<NodesPlan>,
    /// Columns of the store's features.
    stored: Vec<ColumnMeta>,
    /// Whether labels and splits are compared.
    has_targets: bool,
    /// Labels to compare.
    label: Option<LabelMeta>,
}

/// An edge table.
#[derive(Clone, Debug)]
struct OfTable {
    name: String,
    /// Position of the relation, not of its reverse.
    relation: usize,
    plan: Arc<EdgesPlan>,
}

/// Which tables have the files of those of the parent.
#[derive(Clone, Serialize, Deserialize)]
struct SameTables {
    /// By type.
    nodes: Vec<bool>,
    /// By table.
    edges: Vec<bool>,
}

/// Rows of a unit of a node table that are new or differ.
#[derive(Clone, Serialize, Deserialize)]
struct ChangedRows {
    ids: Ids,
    features: Features,
    labels: Labels,
    split: Vec<Split>,
    rows: Vec<u64>,
}

impl Snapshot {
    /// Opens the tables of a snapshot; `graph` is the plan of the tables of the store.
    ///
    /// # Errors
    ///
    /// If a table is missing or has other columns than that of the store: names key, file and
    /// column.
    pub fn open(
        spec: &ChangesSpec,
        base: &Path,
        graph: &GraphPlan,
        of_store: OfStore<'_>,
    ) -> Result<Self, DeltaError> {
        spec.nodes
            .keys()
            .try_for_each(|of| type_idx(graph, OF_SNAPSHOT, of).map(drop))?;
        spec.edges
            .keys()
            .try_for_each(|of| relation_idx(graph, OF_SNAPSHOT, of).map(drop))?;
        let missing = |kind: &str, name: &str| DeltaError::Missing {
            key: table_key(OF_SNAPSHOT, kind, name),
        };
        let types = graph.types.iter().enumerate();
        let nodes = types.map(|(type_idx, of_type)| {
            let name = &of_type.name;
            let path = spec.nodes.get(name).ok_or_else(|| missing("nodes", name))?;
            let table = NodeTable {
                base,
                path,
                type_idx,
                table: &of_type.nodes,
                of_store,
            };
            let plan = table.open(None);
            let plan = plan.map_err(|e| e.under_key(OF_SNAPSHOT, "nodes", name))?;
            Ok(OfType {
                name: name.clone(),
                stored: columns_as_stored(&plan, table.columns()).into_owned(),
                has_targets: table.labels().is_some(),
                label: table.label_meta().cloned(),
                plan: Arc::new(plan),
            })
        });
        let nodes = nodes.collect::<Result<_, DeltaError>>()?;
        let relations = graph.relations.iter().enumerate();
        let tables = relations.filter(|(_, of)| !of.reversed);
        let edges = tables.map(|(relation, of_relation)| {
            let name = &of_relation.name;
            let path = spec.edges.get(name).ok_or_else(|| missing("edges", name))?;
            let table = EdgeTable {
                base,
                path,
                graph,
                relation,
            };
            let plan = table.whole(of_store.sampling, None);
            let plan = plan.map_err(|e| e.under_key(OF_SNAPSHOT, "edges", name))?;
            Ok(OfTable {
                name: name.clone(),
                relation,
                plan,
            })
        });
        let edges = edges.collect::<Result<Vec<OfTable>, DeltaError>>()?;
        Ok(Self {
            pairs: open_pairs((spec, base), graph, &edges)?,
            nodes,
            edges,
        })
    }

    /// Returns fingerprints of the files of nodes and edges; reads each file once.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn tables(&self) -> Result<WholeTables, DeltaError> {
        let nodes = self.nodes.iter();
        let nodes = nodes.map(|of| Ok((of.name.clone(), of.plan.fingerprint()?)));
        let edges = self.edges.iter();
        let edges = edges.map(|of| Ok((of.name.clone(), of.plan.fingerprint()?)));
        Ok(WholeTables {
            nodes: nodes.collect::<Result<_, DeltaError>>()?,
            edges: edges.collect::<Result<_, DeltaError>>()?,
        })
    }

    /// Returns fingerprints of all tables; `tables` are those of nodes and edges.
    ///
    /// # Errors
    ///
    /// If a file cannot be read.
    pub fn fingerprints(&self, tables: &WholeTables) -> Result<serde_json::Value, DeltaError> {
        // Pairs that are edges have no files of their own.
        let pairs = self.pairs.as_ref().map(|of| of.fingerprint());
        let pairs = pairs.transpose()?.flatten();
        let nodes = self.nodes.iter().map(|of| &tables.nodes[&of.name]);
        let edges = self.edges.iter().map(|of| &tables.edges[&of.name]);
        let all = nodes.chain(edges).chain(&pairs);
        Ok(serde_json::json!({ "snapshot": all.collect::<Vec<_>>() }))
    }

    /// Finds what has changed since the graph of `numbers`, which no changes were applied to yet.
    /// `own` are the tables of the snapshot, `parent` those that the graph was read from, if they
    /// are known: a table with the same files is not compared.
    ///
    /// # Errors
    ///
    /// If a value is not allowed, a node stands twice, or an edge has an end that is no node: names
    /// file, column and row. If a local file has changed since it was opened.
    pub fn changes(
        &self,
        numbers: &Numbers,
        (own, parent): (&WholeTables, Option<&WholeTables>),
    ) -> Result<Changes, DeltaError> {
        let same = self.same_tables(numbers.store().cluster(), (own, parent))?;
        if same.are_all() && self.pairs.is_none() {
            return Ok(Changes::default());
        }
        let found = self.compare(numbers, &same)?;
        // Later nights do not compare them again.
        let nodes = self.nodes.iter().map(|of| of.plan.check_unchanged());
        let edges = self.edges.iter().map(|of| of.plan.check_unchanged());
        nodes.chain(edges).collect::<Result<(), _>>()?;
        Ok(found)
    }

    /// Tells which tables have the same files as those of the parent. All processes have found so:
    /// what they keep of the parent may differ.
    fn same_tables(
        &self,
        cluster: &Cluster,
        (own, parent): (&WholeTables, Option<&WholeTables>),
    ) -> Result<SameTables, DeltaError> {
        let nodes = self.nodes.iter().map(|of| {
            let before = parent.and_then(|tables| tables.nodes.get(&of.name));
            before == Some(&own.nodes[&of.name]) && of.plan.is_known_by_content()
        });
        let edges = self.edges.iter().map(|of| {
            let before = parent.and_then(|tables| tables.edges.get(&of.name));
            before == Some(&own.edges[&of.name]) && of.plan.is_known_by_content()
        });
        let found = SameTables {
            nodes: nodes.collect(),
            edges: edges.collect(),
        };
        let all = tell_all(cluster, vec![(cluster.process(), found.clone())])?;
        Ok(all.iter().fold(found, SameTables::and))
    }

    /// Finds what has changed in the tables that are not the same.
    fn compare(&self, numbers: &Numbers, same: &SameTables) -> Result<Changes, DeltaError> {
        let threads = numbers.store().cluster().num_threads();
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(DeltaError::Threads)?;
        pool.install(|| {
            let mut known = Known::new(numbers);
            let under_key =
                |e: DeltaError, of_type: &OfType| e.under_key(OF_SNAPSHOT, "nodes", &of_type.name);
            let types = self.nodes.iter().enumerate();
            let read = types.map(|(type_idx, of_type)| match same.nodes[type_idx] {
                true => {
                    known.mark_all_present(type_idx);
                    Ok(Found::new())
                }
                false => {
                    let read = of_type.read(type_idx, &known);
                    read.map_err(|e| under_key(e, of_type))
                }
            });
            let read = read.collect::<Result<Vec<_>, _>>()?;
            self.join_present(&known)?;
            let of_types = self.nodes.iter().zip(read).enumerate();
            let nodes = of_types.map(|(type_idx, (of_type, found))| {
                let changed = of_type.changes(type_idx, found, &mut known);
                changed.map_err(|e| under_key(e, of_type))
            });
            let nodes = nodes.collect::<Result<Vec<NodeChanges>, _>>()?;
            let edges = self.edges.iter().zip(&same.edges).map(|(of_table, same)| {
                let ends = &numbers.store().meta().graph.relations[of_table.relation];
                let is_gone = |type_idx: usize| !nodes[type_idx].deletes.ids.is_empty();
                // An edge may have an end that is gone.
                if *same && !is_gone(ends.from) && !is_gone(ends.to) {
                    return Ok(of_table.unchanged());
                }
                let changed = edges::changes(of_table.relation, &of_table.plan, &known);
                changed.map_err(|e| e.under_key(OF_SNAPSHOT, "edges", &of_table.name))
            });
            let edges = edges.collect::<Result<_, _>>()?;
            // The edges are no longer in memory.
            let pairs = self.pairs.as_ref().map(|plan| read_pairs(plan, &known));
            let pairs = pairs.transpose().map_err(|e| self.named(e.into()))?;
            Ok(Changes {
                nodes,
                edges,
                pairs: pairs.map(PairChanges::Whole),
            })
        })
    }

    /// Names the table of pairs in an error, if they have one.
    fn named(&self, error: DeltaError) -> DeltaError {
        match self.pairs.as_ref().is_some_and(|of| of.is_of_edges()) {
            true => error,
            false => error.under_key(OF_SNAPSHOT, "pairs", ""),
        }
    }

    /// Marks the nodes that other processes have found in their units.
    fn join_present(&self, known: &Known<'_>) -> Result<(), DeltaError> {
        let (numbers, cluster) = (known.numbers(), known.numbers().store().cluster());
        let Some(node) = known.join_present(cluster)? else {
            return Ok(());
        };
        // A unit of this process has its id, too.
        let type_idx = numbers.type_of(node);
        let of_type = &self.nodes[type_idx];
        for (_, unit) in own_units(cluster, of_type.plan.units()) {
            let keys = of_type.plan.read_keys(unit)?;
            let is_node = |at: &usize| known.find(type_idx, &keys.ids, *at) == Some(node);
            if let Some(at) = (0..keys.ids.len()).find(is_node) {
                return Err(of_type.twice(&keys.ids, at, keys.rows.row(at)));
            }
        }
        Ok(())
    }
}

/// Opens the pairs of a snapshot: their own table, or that of the relation whose edges they are.
fn open_pairs(
    (spec, base): (&ChangesSpec, &Path),
    graph: &GraphPlan,
    edges: &[OfTable],
) -> Result<Option<Box<PairsPlan>>, DeltaError> {
    let own = (tables_of_pairs(graph), &spec.pairs);
    let relation = own.0.and_then(|pairs| relation_of_pairs(graph, pairs));
    let (pairs, ends) = match (own, relation) {
        ((None, None), _) => return Ok(None),
        ((None, Some(_)), _) => {
            return Err(unknown_pairs(OF_SNAPSHOT, no_table_of_pairs(graph)));
        }
        ((Some(_), Some(_)), Some(_)) => {
            let problem = "the pairs are edges, and have no table of their own; leave it out";
            return Err(unknown_pairs(OF_SNAPSHOT, problem));
        }
        ((Some(pairs), None), Some(relation)) => {
            let mut tables = edges.iter();
            let table = tables.find(|of| of.relation == relation);
            let table = table.expect("a snapshot has all tables");
            (pairs, table.plan.as_ref().clone())
        }
        ((Some(pairs), Some(path)), None) => {
            let ends = pairs.ends_at(path, base, graph, BTreeMap::new());
            let named = |e| DeltaError::from(e).under_key(OF_SNAPSHOT, "pairs", "");
            (pairs, ends.map_err(named)?)
        }
        ((Some(_), None), None) => {
            return Err(DeltaError::Missing {
                key: table_key(OF_SNAPSHOT, "pairs", ""),
            });
        }
    };
    let named = |e| match relation {
        Some(_) => DeltaError::from(e),
        None => DeltaError::from(e).under_key(OF_SNAPSHOT, "pairs", ""),
    };
    Ok(Some(Box::new(pairs.with_table(ends).map_err(named)?)))
}

impl SameTables {
    fn are_all(&self) -> bool {
        self.nodes.iter().chain(&self.edges).all(|same| *same)
    }

    /// Leaves those that are the same in `other` too.
    fn and(mut self, other: &Self) -> Self {
        let own = self.nodes.iter_mut().chain(&mut self.edges);
        let theirs = other.nodes.iter().chain(&other.edges);
        own.zip(theirs).for_each(|(own, of)| *own &= of);
        self
    }
}

impl OfTable {
    /// Returns that nothing has changed.
    fn unchanged(&self) -> EdgeChanges {
        EdgeChanges {
            relation: self.relation,
            plan: Arc::clone(&self.plan),
            upserts: Vec::new(),
            deletes: Vec::new(),
        }
    }
}

impl OfType {
    /// Finds the nodes that are new or differ, in the units that this process reads.
    fn read(&self, type_idx: usize, known: &Known<'_>) -> Result<Found<ChangedRows>, DeltaError> {
        let cluster = known.numbers().store().cluster();
        per_unit(cluster, self.plan.units(), |(): &mut (), unit| {
            self.changed_rows(type_idx, unit, known)
        })
    }

    /// Finds the nodes that are new, differ or are gone; `own` are those that this process has found
    /// in its units.
    fn changes(
        &self,
        type_idx: usize,
        own: Found<ChangedRows>,
        known: &mut Known<'_>,
    ) -> Result<NodeChanges, DeltaError> {
        let numbers = known.numbers();
        let id_type = numbers.store().meta().graph.types[type_idx].id_type;
        let found = tell_all(numbers.store().cluster(), own)?;
        let mut upserts = NodeList {
            ids: Ids::new(id_type),
            rows: Vec::new(),
        };
        let mut new = self.plan.no_rows(self.label.as_ref(), 0);
        for changed in found {
            let ids = changed.ids.cast(id_type).map_err(|at| {
                let problem = format!("id {} does not fit {id_type}", changed.ids.display(at));
                row_error(self.plan.locate(changed.rows[at]), problem)
            })?;
            for (at, &row) in changed.rows.iter().enumerate() {
                if !known.add_new(type_idx, &ids, at) {
                    return Err(self.twice(&ids, at, row));
                }
            }
            upserts.ids.extend_from(&ids, 0..ids.len());
            upserts.rows.extend(changed.rows);
            new.features.extend(&changed.features);
            new.labels.extend(&changed.labels);
            new.split.extend(changed.split);
        }
        let mut deletes = NodeList {
            ids: Ids::new(id_type),
            rows: Vec::new(),
        };
        for node in known.gone(type_idx) {
            let (ids, row) = numbers.id(node);
            deletes.ids.push_from(ids, row);
            // No row removes it. Row 0 is never shown: removing a node that is there cannot fail.
            deletes.rows.push(0);
        }
        Ok(NodeChanges {
            type_idx,
            plan: Arc::clone(&self.plan),
            upserts,
            features: new.features,
            labels: new.labels,
            split: new.split,
            deletes,
        })
    }

    fn twice(&self, ids: &Ids, at: usize, row: u64) -> DeltaError {
        let problem = format!("node {} stands in the table twice", ids.display(at));
        row_error(self.plan.locate(row), problem)
    }

    /// Finds the rows of a unit whose nodes are new or differ, and marks those of the parent.
    fn changed_rows(
        &self,
        type_idx: usize,
        unit: &Unit,
        known: &Known<'_>,
    ) -> Result<ChangedRows, DeltaError> {
        let keys = self.plan.read_keys(unit)?;
        let label = self.label.as_ref();
        let mut changed = ChangedRows {
            ids: Ids::new(keys.ids.id_type()),
            features: Features::empty(self.plan.feature_meta()),
            labels: Labels::empty(label),
            split: Vec::new(),
            rows: Vec::new(),
        };
        let mut reader = self.plan.reader(unit, (label, &self.stored))?;
        let mut rows = self.plan.no_rows(label, ROWS);
        let mut first = 0;
        loop {
            rows.clear();
            reader.read(ROWS, &mut rows)?;
            if rows.ids.is_empty() {
                return Ok(changed);
            }
            if let Some((at, column)) = first_gap(&rows, &self.stored) {
                return Err(DeltaError::Gap {
                    table: String::new(),
                    column: column.name.clone(),
                    id: rows.ids.display(at),
                });
            }
            let nodes = 0..rows.ids.len();
            let nodes = nodes.map(|at| known.find(type_idx, &rows.ids, at));
            let nodes: Vec<Option<NodeIdx>> = nodes.collect();
            // A mark waits for all loads before it, so that rows are compared apart from it.
            let is_twice = |node: &Option<NodeIdx>| node.is_some_and(|of| !known.mark_present(of));
            if let Some(at) = nodes.iter().position(is_twice) {
                return Err(self.twice(&rows.ids, at, keys.rows.row(first + at)));
            }
            for (at, node) in nodes.into_iter().enumerate() {
                let new = (&rows.features, at);
                let target = TargetRow {
                    labels: &rows.labels,
                    split: &rows.split,
                    at,
                };
                let is_same = |found| {
                    let numbers = known.numbers();
                    let has_target = || !self.has_targets || numbers.has_target(found, target);
                    numbers.has_features(found, new) && has_target()
                };
                if !node.is_some_and(is_same) {
                    changed.ids.push_from(&rows.ids, at);
                    let place = u32::try_from(at).expect("rows are read in small blocks");
                    changed.features.push_from(&rows.features, place);
                    changed.labels.push_from(&rows.labels, place);
                    let split = rows.split.get(at).filter(|_| self.has_targets);
                    changed.split.extend(split);
                    changed.rows.push(keys.rows.row(first + at));
                }
            }
            first += rows.ids.len();
        }
    }
}

/// Lists the units of a table that this process reads, with their positions.
fn own_units<'a>(
    cluster: &'a Cluster,
    units: &'a [Unit],
) -> impl Iterator<Item = (usize, &'a Unit)> {
    let units = units.iter().enumerate();
    units.filter(|(at, _)| is_own_part(cluster, *at))
}

/// Runs `work` on the units of a table that this process reads, on all threads; returns the results
/// in their order. `work` gets scratch memory that some units use one after the other.
///
/// # Errors
///
/// The error of the first unit that fails.
fn per_unit<T: Send, S: Default + Send>(
    cluster: &Cluster,
    units: &[Unit],
    work: impl Fn(&mut S, &Unit) -> Result<T, DeltaError> + Send + Sync,
) -> Result<Found<T>, DeltaError> {
    let own: Vec<(usize, &Unit)> = own_units(cluster, units).collect();
    // Collects all results first, so that the error of the first unit is returned.
    let done = own.into_par_iter();
    let done = done.map_init(S::default, |scratch, (at, unit)| {
        Ok((at, work(scratch, unit)?))
    });
    let done: Vec<Result<(usize, T), DeltaError>> = done.collect();
    done.into_iter().collect()
}
