//! Finds the rows of earlier outputs that are no rows of a version.

use schemas::{KeptOutput, NodeIdx, ReplacedRows};
use store::MISSING;

use crate::After;

/// The last row of a node that is no row of the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GoneRow {
    /// Position of its output among those that are kept.
    pub output: usize,
    /// Position of its part in the output.
    pub part: usize,
    /// Its node.
    pub node: NodeIdx,
}

/// Rows of earlier outputs that are no rows of a version.
#[derive(Clone, Debug, Default)]
pub struct Replaced {
    /// By file.
    pub rows: ReplacedRows,
    /// The last row of each node that has one here.
    pub last: Vec<GoneRow>,
}

/// The outputs of which a version keeps rows.
#[derive(Clone, Copy, Debug)]
pub struct KeptRowsOf<'a> {
    /// Oldest first; the parent is the last.
    pub outputs: &'a [KeptOutput],
    /// Nodes of the rows of each output, [`MISSING`] of rows that were replaced before; none if it
    /// has those of the store.
    pub nodes: &'a [Option<Vec<NodeIdx>>],
    /// Position of the file of a part whose rows are counted.
    pub file: usize,
}

impl KeptRowsOf<'_> {
    /// Finds the rows that are no rows of a version. `written`: the nodes of the rows that it
    /// writes; `left_out`: other nodes that have no row in it. Removed nodes have none.
    ///
    /// # Errors
    ///
    /// Completes a sentence that starts with the parent, if its outputs have other rows than were
    /// kept.
    pub fn replaced(
        &self,
        after: &After,
        written: &[NodeIdx],
        left_out: &[NodeIdx],
    ) -> Result<Replaced, String> {
        let end = after.end();
        // The position of the latest output that has a row of the node.
        let mut latest = vec![0u32; end];
        for (at, of_output) in (0u32..).zip(self.nodes) {
            for node in of_output.iter().flatten() {
                if *node != MISSING {
                    latest[node.index()] = at;
                }
            }
        }
        let mut gone = vec![false; end];
        let removed = after.overlay().removed();
        for node in written.iter().chain(left_out).copied().chain(removed) {
            gone[node.index()] = true;
        }
        let mut replaced = Replaced::default();
        for ((at, of_output), output) in (0u32..).zip(self.nodes).zip(self.outputs) {
            let mut first = 0;
            for (part, entry) in output.parts.iter().enumerate() {
                let rows = usize::try_from(entry.rows).map_err(|e| e.to_string())?;
                let node = |row: usize| match of_output {
                    Some(in_order) => in_order.get(first + row).copied(),
                    None => {
                        Some(NodeIdx::from_index(first + row)).filter(|node| node.index() < end)
                    }
                };
                let mut of_part = Vec::new();
                for row in 0..rows {
                    let Some(node) = node(row) else {
                        return Err(format!("has other rows than were kept of {}", output.path));
                    };
                    let is_latest = node != MISSING && latest[node.index()] == at;
                    if is_latest && !gone[node.index()] {
                        continue;
                    }
                    of_part.push(row as u64);
                    if is_latest {
                        replaced.last.push(GoneRow {
                            output: at as usize,
                            part,
                            node,
                        });
                    }
                }
                first += rows;
                let file = entry.files.get(self.file).filter(|_| !of_part.is_empty());
                if let Some(file) = file {
                    let name = format!("{}/{}", output.path, file.path);
                    replaced.rows.insert(name, of_part);
                }
            }
        }
        Ok(replaced)
    }
}
