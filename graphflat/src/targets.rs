//! Which nodes get a neighbourhood.

use crate::config::Targets;
use crate::{FlattenError, NodeIdx, Peer, Store};
use schemas::{Ids, NodesPlan, NodesSpec, Split};
use std::path::Path;

/// Returns all targets, ascending, the same on every worker.
///
/// # Errors
///
/// No target at all, or a listed target that is no node.
pub(crate) fn select_targets(
    peer: &mut Peer<'_>,
    targets: &Targets,
    store: &Store,
) -> Result<Vec<NodeIdx>, FlattenError> {
    let worker = peer.index();
    let partition = store.partition(worker);
    let has_split = |wanted: fn(Split) -> bool| -> Vec<usize> {
        (0..partition.num_nodes())
            .filter(|&local| wanted(partition.split(local)))
            .collect()
    };
    let (mine, reason) = match targets {
        Targets::All => (
            (0..partition.num_nodes()).collect(),
            "the node table is empty",
        ),
        Targets::Labelled => {
            let reason = "no node has a split (train, val or test) in the `split` column of \
                          [input.nodes]; `targets = \"all\"` takes every node";
            (has_split(|split| split != Split::None), reason)
        }
        Targets::Train => {
            let reason = "no node has the split `train` in the `split` column of [input.nodes]";
            (has_split(|split| split == Split::Train), reason)
        }
        Targets::Listed(path) => (select_listed(peer, path, store)?, "the list is empty"),
    };
    let numbers: Vec<NodeIdx> = mine
        .into_iter()
        .map(|local| store.placement().node(worker, local))
        .collect();
    let mut all = peer.gather_all::<_, FlattenError>(Ok(numbers))?.concat();
    all.sort_unstable();
    if all.is_empty() {
        return Err(FlattenError::NoTargets {
            reason: reason.to_owned(),
        });
    }
    Ok(all)
}

/// Finds this worker's nodes among the listed ids.
fn select_listed(
    peer: &mut Peer<'_>,
    path: &Path,
    store: &Store,
) -> Result<Vec<usize>, FlattenError> {
    let listed = peer.agree(read_list(path, store))?;
    let order = listed.sort_permutation();
    let ids = store.partition(peer.index()).ids();
    let mut found = vec![false; listed.len()];
    let mut mine = Vec::new();
    for local in 0..ids.len() {
        let first = order.partition_point(|&i| listed.cmp(i as usize, ids, local).is_lt());
        let same = order[first..]
            .iter()
            .take_while(|&&i| listed.equal(i as usize, ids, local));
        let mut is_listed = false;
        for &i in same {
            found[i as usize] = true;
            is_listed = true;
        }
        if is_listed {
            mine.push(local);
        }
    }
    let found = peer.gather_all::<_, FlattenError>(Ok(found))?;
    let nowhere = (0..listed.len()).find(|&i| !found.iter().any(|f| f[i]));
    match nowhere {
        None => Ok(mine),
        Some(i) => Err(FlattenError::UnknownTarget {
            id: listed.display(i),
            file: path.to_owned(),
        }),
    }
}

/// Checks a list of targets: a table whose id column is named as the nodes'.
///
/// # Errors
///
/// A file or column that is not there.
pub(crate) fn list_plan(path: &Path, store: &Store) -> Result<NodesPlan, FlattenError> {
    let text = serde_json::json!({ "path": path, "id": store.meta().id_column });
    let spec: NodesSpec = serde_json::from_value(text).expect("path and id are all it needs");
    Ok(spec.into_plan(Path::new(""))?)
}

fn read_list(path: &Path, store: &Store) -> Result<Ids, FlattenError> {
    let plan = list_plan(path, store)?;
    let mut listed = Ids::new(plan.id_type());
    for unit in plan.units() {
        let keys = plan.read_keys(unit)?;
        listed.extend_from(&keys.ids, 0..keys.ids.len());
    }
    let wanted = store.meta().graph.id_type;
    listed
        .cast(wanted)
        .map_err(|row| FlattenError::UnknownTarget {
            id: listed.display(row),
            file: path.to_owned(),
        })
}
