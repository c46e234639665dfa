//! Selects the nodes that get a neighbourhood.

use crate::FlattenError;
use crate::config::Targets;
use cluster::Peer;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;
use schemas::{IdListPlan, Ids, LocalIdx, NodeIdx, Split};
use std::path::Path;
use store::Store;

/// Returns all targets in the order in which they are cut into parts, the same on every worker.
///
/// Targets with the same smallest source come together, and targets without in-edges come last. So
/// targets of one part share neighbours, and fewer nodes are in several parts. In a typed graph, the
/// source is that of the first relation in which the target has in-edges.
///
/// # Errors
///
/// If there is no target, or a listed target is not a node.
pub(crate) fn select_targets(
    peer: &mut Peer<'_>,
    targets: &Targets,
    store: &Store,
) -> Result<Vec<NodeIdx>, FlattenError> {
    let worker = peer.index();
    let partition = store.partition(worker);
    let graph = &store.meta().graph;
    let target_type = graph.target_type;
    let has_split = |wanted: fn(Split) -> bool| -> Vec<LocalIdx> {
        partition
            .locals(target_type)
            .filter(|&local| wanted(partition.split(local)))
            .collect()
    };
    let mine = match targets {
        Targets::All => partition.locals(target_type).collect(),
        Targets::Labelled => has_split(|split| split != Split::None),
        Targets::Train => has_split(|split| split == Split::Train),
        Targets::Listed(path) => select_listed(peer, path, store)?,
    };
    // By position of a relation among those that lead to targets; last, targets without in-edges.
    let relations: Vec<usize> = graph.relations_to(target_type).collect();
    let mut keyed: Vec<Vec<(NodeIdx, NodeIdx)>> = vec![Vec::new(); relations.len() + 1];
    for local in mine {
        let source = |&relation: &usize| partition.least_src(relation, local);
        // The least source in the first relation with in-edges: an order by sources of several
        // types would change with the names of types.
        let mut sources = relations.iter().map(source).enumerate();
        let first = sources.find(|(_, src)| *src != NodeIdx::MAX);
        let (at, src) = first.unwrap_or((relations.len(), NodeIdx::MAX));
        keyed[at].push((src, store.placement().node(worker, local)));
    }
    keyed.iter_mut().for_each(|of| of.sort_unstable());
    let by_worker = peer.gather_all::<_, FlattenError>(Ok(keyed))?;
    let mut all = Vec::new();
    for at in 0..=relations.len() {
        let start = all.len();
        by_worker
            .iter()
            .for_each(|of| all.extend_from_slice(&of[at]));
        // A stable sort merges sorted runs.
        all[start..].sort();
    }
    if all.is_empty() {
        return Err(FlattenError::NoTargets {
            reason: targets.why_none().to_owned(),
        });
    }
    Ok(all.into_iter().map(|(_, node)| node).collect())
}

impl Targets {
    /// Returns why a graph can have no target of this kind, and the mend.
    pub fn why_none(&self) -> &'static str {
        match self {
            Self::All => "the node table is empty",
            Self::Labelled => {
                "no node has a split (train, val or test) in the `split` column of \
                 [input.nodes]; `targets = \"all\"` takes every node"
            }
            Self::Train => "no node has the split `train` in the `split` column of [input.nodes]",
            Self::Listed(_) => "the list in `flatten.targets` is empty",
        }
    }
}

/// Finds this worker's nodes among the listed ids.
fn select_listed(
    peer: &mut Peer<'_>,
    path: &Path,
    store: &Store,
) -> Result<Vec<LocalIdx>, FlattenError> {
    let (plan, listed) = peer.agree(read_list(path, store))?;
    let mut places = HashTable::with_capacity(listed.len());
    let mut found = vec![false; listed.len()];
    for (at, is_found) in found.iter_mut().enumerate() {
        let same = |&other: &usize| listed.equal(other, &listed, at);
        match places.entry(listed.hash(at), same, |&other| listed.hash(other)) {
            Entry::Vacant(place) => drop(place.insert(at)),
            // A repeated id is found at its first place in the list.
            Entry::Occupied(_) => *is_found = true,
        }
    }
    let partition = store.partition(peer.index());
    let target_type = store.meta().graph.target_type;
    let (ids, mut mine) = (partition.ids(target_type), Vec::new());
    for (row, local) in partition.locals(target_type).enumerate() {
        let is_same = |&at: &usize| listed.equal(at, ids, row);
        if let Some(&at) = places.find(ids.hash(row), is_same) {
            found[at] = true;
            mine.push(local);
        }
    }
    let found = peer.gather_all::<_, FlattenError>(Ok(found))?;
    let nowhere = (0..listed.len()).find(|&i| !found.iter().any(|f| f[i]));
    match nowhere {
        None => Ok(mine),
        Some(i) => Err(plan.unknown(&listed, i).into()),
    }
}

/// Checks a list of targets: a table whose id column has the name of the nodes' id column.
///
/// # Errors
///
/// If the file or the column does not exist.
pub(crate) fn list_plan(path: &Path, store: &Store) -> Result<IdListPlan, FlattenError> {
    let (column, id_type) = (&store.meta().id_column, store.meta().graph.target().id_type);
    Ok(IdListPlan::open("flatten.targets", path, column, id_type)?)
}

fn read_list(path: &Path, store: &Store) -> Result<(IdListPlan, Ids), FlattenError> {
    let plan = list_plan(path, store)?;
    let listed = plan.read()?;
    Ok((plan, listed))
}
