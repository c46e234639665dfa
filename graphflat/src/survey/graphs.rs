//! Checks the graphs of nodes, where graphs are the targets.

use schemas::GraphPlan;

use super::Survey;
use crate::FlattenError;

/// Stands for the graph of a node before it is known.
const UNKNOWN: u32 = u32::MAX;

impl Survey {
    /// Checks that each graph has a node, and that the ends of edges are nodes of one graph.
    ///
    /// # Errors
    ///
    /// The first row that breaks this.
    pub(super) fn check_graphs(&self, graph: &GraphPlan) -> Result<(), FlattenError> {
        let Some(in_graph) = graph.in_graph else {
            return Ok(());
        };
        let members = &graph.relations[in_graph];
        self.find_empty(graph, in_graph)?;
        let mut graphs = vec![UNKNOWN; self.num_nodes()];
        self.each_edge(graph, |relation, edge| {
            if relation == in_graph {
                graphs[edge.src as usize] = edge.dst;
            }
        })?;
        let mut crossing = None;
        self.each_edge(graph, |relation, edge| {
            let of = &graph.relations[relation];
            let is_bound = [of.from, of.to] == [members.from; 2];
            let [src, dst] = [edge.src, edge.dst].map(|node| graphs[node as usize]);
            // A reverse edge follows its edge.
            if is_bound && src != dst && crossing.is_none() && !of.reversed {
                crossing = Some((relation, edge));
            }
        })?;
        let Some((relation, edge)) = crossing else {
            return Ok(());
        };
        let ids = [edge.src, edge.dst].map(|node| {
            let (type_idx, row) = self.types.at(node);
            self.types()[type_idx].ids.display(row)
        });
        let edges = &graph.relations[relation].edges;
        Err(edges.between_graphs(edge.row, [&ids[0], &ids[1]]).into())
    }

    fn find_empty(&self, graph: &GraphPlan, in_graph: usize) -> Result<(), FlattenError> {
        let degrees = &self.relations[in_graph];
        if degrees.in_degree.iter().all(|&degree| degree > 0) {
            return Ok(());
        }
        let graphs = graph.relations[in_graph].to;
        let (table, known) = (&graph.types[graphs].nodes, &self.types()[graphs]);
        for unit in table.units() {
            let keys = table.read_keys(unit)?;
            for at in 0..keys.ids.len() {
                let node = known.place(&keys.ids, at);
                if node.is_some_and(|node| degrees.in_degree[degrees.row(node)] == 0) {
                    let (row, id) = (keys.rows.row(at), keys.ids.display(at));
                    return Err(table.empty_graph(row, &id).into());
                }
            }
        }
        Ok(())
    }
}
