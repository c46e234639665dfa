//! The graph of each node, where graphs are the targets: nodes and edges are checked against it.

use crate::StoreError;
use crate::ends::{End, Ends, FindNodes};
use crate::number::MISSING;
use crate::units::OwnUnits;
use crate::{Placement, StorePlan};
use cluster::Peer;
use schemas::{NodeIdx, NodesPlan, RelationPlan};
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The graph of each node of a type.
#[derive(Debug)]
pub(crate) struct GraphsOfNodes {
    /// Position of the type.
    type_idx: usize,
    /// Number of the type's first node.
    first: NodeIdx,
    /// `[num_nodes]`, number of the graph; [`MISSING`] before it is known.
    graphs: Vec<NodeIdx>,
}

impl GraphsOfNodes {
    /// Tells whether both ends of a relation's edges must be nodes of one graph.
    pub(crate) fn binds(&self, relation: &RelationPlan) -> bool {
        [relation.from, relation.to] == [self.type_idx; 2]
    }

    /// Tells whether two nodes are of different graphs.
    #[inline]
    pub(crate) fn differ(&self, left: NodeIdx, right: NodeIdx) -> bool {
        let graph = |node: NodeIdx| self.graphs[(node.raw() - self.first.raw()) as usize];
        graph(left) != graph(right)
    }
}

/// Collects the graph of each node, where the job has graphs; the workers of a process share it.
/// `numbers` has the numbers of the graphs of this worker's rows, by unit.
///
/// # Errors
///
/// If a table cannot be read, the graph of a node is not in the table of graphs, or a graph has no
/// node.
pub(crate) fn gather_graphs(
    peer: &mut Peer<'_>,
    plan: &StorePlan,
    work: OwnUnits,
    ends: &Ends,
    (placement, numbers): (&Placement, &[Vec<NodeIdx>]),
    shared: &OnceLock<Arc<GraphsOfNodes>>,
) -> Result<Option<Arc<GraphsOfNodes>>, StoreError> {
    let Some(relation) = plan.graph.in_graph else {
        return Ok(None);
    };
    let relation = &plan.graph.relations[relation];
    let (members, unknown) = peer.agree(own_members(relation, work, ends))?;
    let unknown = peer.gather_all::<_, StoreError>(Ok(unknown))?;
    if let Some((row, id)) = unknown.into_iter().flatten().min() {
        return Err(relation.edges.unknown_graph(row, &id).into());
    }
    let leaders = peer.gather_all::<_, StoreError>(Ok(peer.leads_process()))?;
    let leaders = leaders.iter().enumerate().filter(|(_, leads)| **leads);
    let outgoing = leaders.map(|(to, _)| Ok((to, members.clone())));
    let received = peer.shuffle::<Vec<[NodeIdx; 2]>, StoreError>(outgoing)?;
    if peer.leads_process() {
        let nodes = placement.type_range(relation.from);
        let count = (nodes.end.raw() - nodes.start.raw()) as usize;
        let mut graphs = vec![MISSING; count];
        for [node, graph] in received.into_iter().flat_map(|(_, own)| own) {
            graphs[(node.raw() - nodes.start.raw()) as usize] = graph;
        }
        shared.get_or_init(|| {
            Arc::new(GraphsOfNodes {
                type_idx: relation.from,
                first: nodes.start,
                graphs,
            })
        });
    }
    peer.agree(Ok::<_, StoreError>(()))?;
    let found = shared.get().expect("the leader of the process has made it");
    let table = &plan.graph.types[relation.to].nodes;
    let graphs = placement.type_range(relation.to);
    let empty = own_empty(table, graphs, work, numbers, found);
    let empty = peer.agree(empty)?;
    let empty = peer.gather_all::<_, StoreError>(Ok(empty))?;
    match empty.into_iter().flatten().min() {
        None => Ok(Some(Arc::clone(found))),
        Some((row, id)) => Err(table.empty_graph(row, &id).into()),
    }
}

/// Nodes with their graphs, and the first row whose graph is unknown, with the id.
type Members = (Vec<[NodeIdx; 2]>, Option<(u64, String)>);

/// Reads the nodes of this worker's units, each with its graph.
fn own_members(
    relation: &RelationPlan,
    work: OwnUnits,
    ends: &Ends,
) -> Result<Members, StoreError> {
    let table = &relation.edges;
    let (mut nodes, mut graphs) = (End::default(), End::default());
    let (mut members, mut unknown) = (Vec::new(), None);
    for unit in work.of(table.units()) {
        for batch in table.end_batches(&unit)? {
            let rows = batch?;
            ends.look_up(relation.from, &rows.src, &mut nodes);
            ends.look_up(relation.to, &rows.dst, &mut graphs);
            let pairs = nodes.numbers.iter().zip(&graphs.numbers);
            for (at, (&node, &graph)) in pairs.enumerate() {
                if graph == MISSING {
                    unknown.get_or_insert_with(|| (rows.rows.row(at), rows.dst.display(at)));
                } else {
                    members.push([node, graph]);
                }
            }
        }
    }
    Ok((members, unknown))
}

/// Returns the first graph without nodes among the rows of this worker's units: its row and its id.
/// `numbers` has the number of each row, by unit.
fn own_empty(
    table: &NodesPlan,
    graphs: Range<NodeIdx>,
    work: OwnUnits,
    numbers: &[Vec<NodeIdx>],
    found: &GraphsOfNodes,
) -> Result<Option<(u64, String)>, StoreError> {
    let mut has_nodes = vec![false; (graphs.end.raw() - graphs.start.raw()) as usize];
    let at = |graph: NodeIdx| (graph.raw() - graphs.start.raw()) as usize;
    let known = found.graphs.iter().filter(|of| **of != MISSING);
    known.for_each(|&graph| has_nodes[at(graph)] = true);
    for (unit, of_unit) in work.of(table.units()).zip(numbers) {
        if let Some(row) = of_unit.iter().position(|&graph| !has_nodes[at(graph)]) {
            let keys = table.read_keys(&unit)?;
            return Ok(Some((keys.rows.row(row), keys.ids.display(row))));
        }
    }
    Ok(None)
}
