//! The map: reads the input and writes one partition a worker.

use crate::arrow_file;
use crate::edges::{EdgeRules, place_edges};
use crate::ends::Ends;
use crate::error::StoreCause;
use crate::graphs::{GraphsOfNodes, gather_graphs};
use crate::in_edge_files::write_in_edges;
use crate::meta::{CountsByWorker, EdgeCounts, Keep, META_FILE, VERSION};
use crate::nodes::{NodePlaces, OwnedNodes, place_nodes};
use crate::number::{Dictionary, Numbering, check_num_nodes, number_type, read_keys};
use crate::pair_set::PairSet;
use crate::pairs::{Pairs, PlacedPairs, place_pairs};
use crate::scatter::Takes;
use crate::units::OwnUnits;
use crate::walks::WalkedGraph;
use crate::whole::remove_others;
use crate::{Partition, Placement, StoreError, StoreMeta, StorePlan};
use cluster::{Cluster, Peer, run_workers};
use schemas::progress::{Event, Progress};
use schemas::{
    ColumnMeta, EdgeSource, FileEntry, GraphMeta, NodeIdx, NodeSource, PairsPlan, SplitCounts,
    TypePlan, WalksSpec, describe_where,
};
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// What the workers of a process make once.
#[derive(Default)]
struct Shared {
    leaving: OnceLock<Arc<PairSet>>,
    graphs: OnceLock<Arc<GraphsOfNodes>>,
}

/// Files and description of one worker's partition.
struct Built {
    files: Vec<FileEntry>,
    meta: StoreMeta,
}

/// Builds the store and returns its description; the file of the description is written last.
pub(crate) fn build(
    cluster: &Cluster,
    plan: &StorePlan,
    fingerprint: &str,
    input: serde_json::Value,
    progress: &Progress,
) -> Result<StoreMeta, StoreError> {
    let failed = |source: StoreCause| StoreError::File {
        verb: "write",
        path: plan.dir.clone(),
        source,
    };
    remove_store(&plan.dir).map_err(|e| failed(e.into()))?;
    let (worker_plan, worker_progress) = (plan.clone(), Arc::clone(progress));
    let (fingerprint, input) = (fingerprint.to_owned(), input);
    let shared = Arc::new(Shared::default());
    let built = run_workers(cluster, move |peer| {
        let described = (&*fingerprint, &input);
        build_partition(peer, &worker_plan, &worker_progress, described, &shared)
    });
    let built = built.inspect_err(|_| {
        // The incomplete store is of no use. The first error is reported, not one of its removal.
        remove_store(&plan.dir).ok();
    })?;
    let files = built.iter().flat_map(|b| b.files.clone()).collect();
    let first = built
        .into_iter()
        .next()
        .expect("there is at least one worker");
    let meta = StoreMeta {
        files,
        ..first.meta
    };
    meta.write(&plan.dir).map_err(failed)?;
    if cluster.process() == 0 {
        warn_of_empty(plan, &meta);
        warn_of_silent(plan, &meta);
    }
    Ok(meta)
}

/// Warns of relations whose edges are nearly all left out, since they are pairs: a model learns
/// nothing from such a relation.
fn warn_of_silent(plan: &StorePlan, meta: &StoreMeta) {
    let (Some(pairs), true) = (&meta.graph.pairs, meta.edges.left_out > 0) else {
        return;
    };
    let relations = plan.graph.relations.iter().enumerate();
    let relations = relations.filter(|(at, of)| !of.reversed && pairs.relations.contains(at));
    for (at, of) in relations {
        let (left_out, left) = (meta.edges.left_out, meta.edges.in_edges_of(at));
        // Self-loops are no pairs, so that a few edges may be left.
        if left <= left_out / 100 {
            tracing::warn!(
                "of `{}` {left} in-edges carry messages; {left_out} are pairs, which \
                 `input.pairs.exclude` = {} leaves out: take fewer edges as pairs, or set \
                 `exclude = \"batch\"`",
                of.edges.table_key(),
                serde_json::json!(pairs.exclude)
            );
        }
    }
}

/// Warns of types and relations without rows, if `where` takes some rows of a table: a value may be
/// misspelt.
fn warn_of_empty(plan: &StorePlan, meta: &StoreMeta) {
    let types = plan.graph.types.iter().zip(&meta.nodes_by_type);
    let types = types.filter(|(_, count)| **count == 0);
    let types = types.map(|(of, _)| (of.nodes.table_key(), &of.nodes.spec().rows_where));
    let relations = plan.graph.relations.iter().enumerate();
    let is_empty = |at| meta.edges.in_edges_of(at) == 0 && meta.edges.dropped_rows_of(at) == 0;
    let relations = relations.filter(|(at, of)| is_empty(*at) && !of.reversed);
    let relations = relations.map(|(_, of)| (of.edges.table_key(), &of.edges.spec().rows_where));
    for (table, wanted) in types.chain(relations) {
        if !wanted.is_empty() {
            tracing::warn!("`{table}` has no rows with {}", describe_where(wanted));
        }
    }
}

/// Removes an earlier store, its description first: without it, the other files are no store.
fn remove_store(dir: &Path) -> std::io::Result<()> {
    match std::fs::remove_file(dir.join(META_FILE)) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    remove_others(dir)?;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let is_own = [
            "nodes-",
            "degrees-",
            "in-edges-",
            "left-out-",
            "pairs-",
            "timed-pairs-",
        ]
        .iter()
        .any(|own| name.starts_with(own));
        if is_own && (name.ends_with(".arrow") || name.ends_with(".tmp")) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn build_partition(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    progress: &Progress,
    (fingerprint, input): (&str, &serde_json::Value),
    shared: &Shared,
) -> Result<Built, StoreError> {
    let work = OwnUnits {
        worker: peer.index(),
        workers: peer.peers(),
    };
    let node_sources = plan.graph.node_sources();
    announce(peer, progress, "numbering nodes", 0);
    let numbered = number_all(peer, plan, &node_sources, work)?;
    let (placement, mut graph) = (numbered.placement, numbered.graph);
    announce(peer, progress, "reading nodes", 1);
    let read = (&node_sources[..], &numbered.numbers[..]);
    let node_files = write_all_nodes(peer, plan, work, read, (&placement, &mut graph))?;
    let own_graphs = numbers_of_graphs(plan, &node_sources, numbered.numbers);
    announce(peer, progress, "reading edges", 2);
    let first = |type_idx| placement.type_range(type_idx).start;
    let sources = plan.graph.edge_sources();
    let ends = Ends::gather(
        peer,
        &plan.graph,
        &sources,
        work,
        numbered.dictionaries,
        first,
    )?;
    let pairs = plan.graph.pairs.as_ref().map(|pairs| {
        let to_place = (&**pairs, plan.keeps_times());
        place_pairs(peer, to_place, work, &ends, &shared.leaving)
    });
    let mut pairs = pairs.transpose()?;
    let timed = write_timed(peer, plan, pairs.as_mut())?;
    let places = (&placement, &own_graphs[..]);
    let graphs = gather_graphs(peer, plan, work, &ends, places, &shared.graphs)?;
    let rules = EdgeRules::new(&ends, pairs.as_ref().map(|of| &of.leaving), graphs.as_ref());
    let (relations, mut files) = build_edges(peer, plan, work, &sources, rules, &placement)?;
    files.extend(node_files);
    for (meta, (has_self_loops, _)) in graph.relations.iter_mut().zip(&relations) {
        meta.self_loops = *has_self_loops;
    }
    let counts = relations.into_iter().map(|(_, counts)| counts).collect();
    let mut meta = StoreMeta {
        version: VERSION,
        fingerprint: fingerprint.to_owned(),
        input: input.clone(),
        keep: Keep::of(&plan.keep),
        sampling: plan.sampling,
        seed: plan.seed,
        samples: plan.samples,
        redraw: plan.redraw,
        keeps_left_out: plan.keeps_left_out(),
        keeps_times: plan.keeps_times(),
        base: None,
        workers: peer.peers(),
        id_column: plan.graph.types[plan.target_type].nodes.spec().id.clone(),
        num_nodes: placement.num_nodes() as u64,
        nodes_by_type: match plan.graph.is_typed() {
            true => numbered.num_nodes,
            false => Vec::new(),
        },
        graph,
        edges: EdgeCounts::of_relations(counts, plan.graph.is_typed()),
        pairs: None,
        files: Vec::new(),
    };
    if let Some(placed) = pairs {
        let (file, of_splits) = finish_pairs(peer, plan, (&meta, &placement), placed)?;
        files.push(file);
        files.extend(timed);
        meta.pairs = Some(of_splits);
    }
    announce(peer, progress, "written", 3);
    Ok(Built { files, meta })
}

/// Reads the rows of all types and writes those of this worker; marks columns with missing values in
/// `graph`. `numbers` are those of the rows, by source.
fn write_all_nodes(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    work: OwnUnits,
    (sources, numbers): (&[NodeSource], &[RowNumbers]),
    (placement, graph): (&Placement, &mut GraphMeta),
) -> Result<Vec<FileEntry>, StoreError> {
    let mut node_files = Vec::new();
    for (source, of_rows) in sources.iter().zip(numbers) {
        let places = NodePlaces {
            source,
            numbers: of_rows,
            graph,
            placement,
        };
        let (nodes, gaps) = place_nodes(peer, plan, work, places)?;
        let gaps = peer.gather_all::<_, StoreError>(Ok(gaps))?;
        mark_gaps(graph, source, &gaps);
        let written = write_nodes(peer.index(), plan, source, nodes, graph);
        node_files.extend(peer.agree(written)?);
    }
    Ok(node_files)
}

/// Writes all pairs of this worker with their times, if they are kept; they do not stay in memory.
fn write_timed(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    placed: Option<&mut PlacedPairs>,
) -> Result<Option<FileEntry>, StoreError> {
    let timed = placed.and_then(|of| of.timed.take());
    let written = timed.map(|all| write_pairs(&plan.files().timed_pairs(peer.index()), &all));
    peer.agree(written.transpose())
}

/// Adds the pairs of walks over the written in-edges, and writes the pairs of this worker; returns
/// the counts of all workers by split.
fn finish_pairs(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    graph: (&StoreMeta, &Placement),
    placed: PlacedPairs,
) -> Result<(FileEntry, SplitCounts), StoreError> {
    let pairs = plan.graph.pairs.as_ref();
    let pairs = pairs.expect("they were placed by their plan");
    let (own, counts) = match pairs.walks() {
        None => (placed.own, placed.counts),
        Some(walks) => add_walks(peer, (plan, pairs), graph, placed, walks)?,
    };
    let written = write_pairs(&plan.files().pairs(peer.index()), &own);
    Ok((peer.agree(written)?, counts))
}

/// Adds the pairs of walks to those of tables, and to the counts.
fn add_walks(
    peer: &mut Peer<'_>,
    (plan, pairs): (&StorePlan, &PairsPlan),
    (meta, placement): (&StoreMeta, &Placement),
    placed: PlacedPairs,
    walks: WalksSpec,
) -> Result<(Pairs, SplitCounts), StoreError> {
    let opened = Partition::open(&plan.dir, peer.index(), placement, meta);
    let types = 0..meta.graph.types.len();
    let graph = WalkedGraph {
        partition: &peer.agree(opened)?,
        placement,
        plan: pairs,
        relations: types
            .map(|of| meta.graph.relations_to(of).collect())
            .collect(),
    };
    let visits = graph.walk(peer, walks)?;
    let all = peer.gather_all::<_, StoreError>(Ok(visits.len() as u64))?;
    let counts = SplitCounts {
        train: all.iter().sum(),
        ..placed.counts
    };
    match counts.train {
        0 => Err(pairs.no_visits().into()),
        _ => Ok((placed.own.with_walks(&visits), counts)),
    }
}

/// Returns the numbers of the graphs of this worker's rows, by unit; none if no graphs are targets.
fn numbers_of_graphs(
    plan: &StorePlan,
    sources: &[NodeSource],
    numbers: Vec<RowNumbers>,
) -> Vec<Vec<NodeIdx>> {
    let members = sources.iter().flat_map(NodeSource::types);
    let mut members = members.zip(numbers.into_iter().flatten());
    let of_graphs = members.find(|((of, _), _)| Some(*of) == plan.graph.graphs_type());
    of_graphs.map_or_else(Vec::new, |(_, of_units)| of_units)
}

/// The number of each row of a source, by type of the source, then by unit.
type RowNumbers = Vec<Vec<Vec<NodeIdx>>>;

/// All nodes with their numbers.
struct Numbered {
    /// By source.
    numbers: Vec<RowNumbers>,
    /// One for each type.
    dictionaries: Vec<Dictionary>,
    /// Number of nodes of each type.
    num_nodes: Vec<u64>,
    placement: Placement,
    graph: GraphMeta,
}

/// Numbers the nodes of all types and places them.
fn number_all(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    sources: &[NodeSource],
    work: OwnUnits,
) -> Result<Numbered, StoreError> {
    let types = &plan.graph.types;
    let mut by_type: Vec<Option<(Numbering, Dictionary)>> = types.iter().map(|_| None).collect();
    for source in sources {
        let keys = peer.agree(read_keys(source, work))?;
        for ((type_idx, table), mine) in source.types().iter().zip(keys) {
            by_type[*type_idx] = Some(number_type(peer, table, mine)?);
        }
    }
    let by_type = by_type
        .into_iter()
        .map(|of| of.expect("each type has a source"));
    let (mut numberings, mut dictionaries): (Vec<_>, Vec<_>) = by_type.unzip();
    let num_nodes: Vec<u64> = numberings.iter().map(|of| of.num_nodes).collect();
    check_num_nodes(num_nodes.iter().sum())?;
    let placement = Placement::new(&num_nodes, peer.peers());
    for (type_idx, of) in numberings.iter_mut().zip(&mut dictionaries).enumerate() {
        let first = placement.type_range(type_idx).start;
        of.0.shift(first);
        of.1.shift(first);
    }
    let labelled = &mut numberings[plan.target_type];
    let names = std::mem::take(&mut labelled.class_names);
    let label = types[plan.target_type]
        .nodes
        .label_meta(names, labelled.max_class);
    let label = peer.agree(label.map_err(StoreError::from))?;
    // Which columns have gaps and which relations have self-loops is not known yet.
    let mut graph = plan.graph.meta(plan.target_type, label);
    let all = graph.types.iter_mut().zip(types).zip(&mut numberings);
    for (at, ((meta, of_type), of)) in all.enumerate() {
        let categories = std::mem::take(&mut of.categories);
        meta.columns = of_type.nodes.column_meta(categories, &[]);
        if peer.index() == 0 && at == plan.target_type {
            warn_of_unshared(of_type, &meta.columns, of.num_nodes);
        }
    }
    let mut units: Vec<_> = numberings.into_iter().map(|of| Some(of.units)).collect();
    let numbers = sources.iter().map(|source| {
        let of_types = source
            .types()
            .iter()
            .map(|(type_idx, _)| units[*type_idx].take());
        of_types
            .map(|of_type| of_type.expect("a type has one source"))
            .collect()
    });
    Ok(Numbered {
        numbers: numbers.collect(),
        dictionaries,
        num_nodes,
        placement,
        graph,
    })
}

/// Warns of columns of the target type in which nearly every node has a category of its own. In other
/// types, a model learns such a category from the neighbourhoods that its node is in.
fn warn_of_unshared(of_type: &TypePlan, columns: &[ColumnMeta], num_nodes: u64) {
    for column in columns
        .iter()
        .filter(|column| column.is_unshared(num_nodes))
    {
        let table = of_type.nodes.table_key();
        let count = column.num_categories();
        tracing::warn!(
            "column `{}` of `{table}` has {count} categories for {num_nodes} nodes; a model learns \
             nothing from a value that one node has; consider to leave the column out",
            column.name
        );
    }
}

/// Marks the columns of a source's types with missing values in the rows that some worker read.
fn mark_gaps(graph: &mut GraphMeta, source: &NodeSource, by_worker: &[Vec<Vec<bool>>]) {
    for (member, (type_idx, _)) in source.types().iter().enumerate() {
        let meta = &mut graph.types[*type_idx];
        let mut columns = std::mem::take(&mut meta.columns);
        for (at, column) in columns.iter_mut().enumerate() {
            column.gaps = by_worker.iter().any(|found| found[member][at]);
        }
        meta.columns = ColumnMeta::of_graph(columns);
    }
}

/// Whether a relation has self-loops, and its counts.
type BuiltRelation = (bool, CountsByWorker);

/// Reads the edges of all relations, and ranks and writes them source by source.
fn build_edges(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    work: OwnUnits,
    sources: &[EdgeSource],
    rules: EdgeRules<'_>,
    placement: &Placement,
) -> Result<(Vec<BuiltRelation>, Vec<FileEntry>), StoreError> {
    let graph = &plan.graph;
    let mut relations = vec![(false, CountsByWorker::default()); graph.relations.len()];
    let mut files = Vec::new();
    for source in sources {
        let owned = place_edges(peer, plan, source, work, rules, placement)?;
        for edges in owned {
            let relation = edges.relation;
            let counts = CountsByWorker {
                received: edges.received_by_worker.clone(),
                dropped_rows: edges.dropped_rows,
                left_out: edges.left_out,
            };
            let of_type = placement.of_type(graph.relations[relation].to);
            let written = write_in_edges(peer.index(), plan, edges, of_type);
            let (has_self_loops, more) = peer.agree(written)?;
            files.extend(more);
            let self_loops = peer.gather_all::<_, StoreError>(Ok(has_self_loops))?;
            relations[relation] = (self_loops.contains(&true), counts);
        }
    }
    if plan.keeps_left_out() {
        files.extend(build_left_out(peer, plan, work, sources, rules, placement)?);
    }
    Ok((relations, files))
}

/// Reads the edges of the relations of pairs again, and writes those that equal a pair: changes of
/// pairs may bring them back.
fn build_left_out(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    work: OwnUnits,
    sources: &[EdgeSource],
    rules: EdgeRules<'_>,
    placement: &Placement,
) -> Result<Vec<FileEntry>, StoreError> {
    // One list, of all in-edges.
    let plan = StorePlan {
        samples: 0,
        redraw: true,
        ..plan.clone()
    };
    let rules = EdgeRules {
        takes: Takes::LeftOut,
        ..rules
    };
    let pairs = plan.graph.pairs.as_ref();
    let is_of_pairs = |relation: &usize| pairs.is_some_and(|of| of.relations().contains(relation));
    let mut files = Vec::new();
    for source in sources {
        let mut relations = source.relations().iter().map(|(relation, _)| relation);
        if !relations.any(is_of_pairs) {
            continue;
        }
        for edges in place_edges(peer, &plan, source, work, rules, placement)? {
            if is_of_pairs(&edges.relation) {
                let of_type = placement.of_type(plan.graph.relations[edges.relation].to);
                let written = write_in_edges(peer.index(), &plan, edges, of_type);
                files.extend(peer.agree(written)?.1);
            }
        }
    }
    Ok(files)
}

/// Writes the pairs of a worker.
pub(crate) fn write_pairs(path: &Path, pairs: &Pairs) -> Result<FileEntry, StoreError> {
    let mut file = None;
    arrow_file::append(&mut file, path, &pairs.to_batch())?;
    file.expect("a batch was written").finish()
}

fn announce(peer: &Peer<'_>, progress: &Progress, phase: &str, done: u64) {
    if peer.leads_process() {
        progress(&Event {
            stage: "store",
            phase: phase.to_owned(),
            done,
            total: 3,
            message: None,
            fields: serde_json::Value::Null,
        });
    }
}

/// Writes the columns of a source's types.
fn write_nodes(
    worker: usize,
    plan: &StorePlan,
    source: &NodeSource,
    nodes: Vec<OwnedNodes>,
    graph: &GraphMeta,
) -> Result<Vec<FileEntry>, StoreError> {
    let types = source.types().iter().zip(nodes);
    let write = |((type_idx, _), of_type): (&(usize, _), OwnedNodes)| {
        let path = plan.files().nodes(*type_idx, worker);
        let mut file = None;
        let meta = &graph.types[*type_idx];
        of_type.for_each_batch(meta, |batch| arrow_file::append(&mut file, &path, batch))?;
        file.expect("a batch was written").finish()
    };
    types.map(write).collect()
}
