//! Finds the rows of earlier outputs that are no rows of a version.

use schemas::{KeptOutput, NodeIdx, ReplacedRows};
use store::MISSING;

use crate::After;

/// Bit beside the latest output that has a row of a node: that row is no row of the version.
const GONE: u32 = 1 << 31;

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
    /// has those of the store, which only the first output can have.
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
        let gone: Vec<NodeIdx> = written
            .iter()
            .chain(left_out)
            .copied()
            .chain(after.overlay().removed())
            .collect();
        // By node: the latest output that has a row of it, and `GONE` if that is no row of the
        // version.
        let mut latest = vec![0u32; after.end()];
        for (at, nodes) in self.later() {
            for node in nodes {
                latest[node.index()] = at;
            }
        }
        for node in &gone {
            latest[node.index()] |= GONE;
        }
        let mut replaced = Replaced::default();
        for ((at, of_output), output) in (0u32..).zip(self.nodes).zip(self.outputs) {
            let other_rows = || format!("has other rows than were kept of {}", output.path);
            let num_rows: u64 = output.parts.iter().map(|part| part.rows).sum();
            let num_rows = usize::try_from(num_rows).map_err(|_| other_rows())?;
            let of_rows: Vec<(usize, NodeIdx)> = match of_output {
                Some(in_order) => {
                    let in_order = in_order.get(..num_rows).ok_or_else(other_rows)?;
                    let all = in_order.iter().copied().enumerate();
                    all.filter(|&(_, node)| node == MISSING || latest[node.index()] != at)
                        .collect()
                }
                None if num_rows > latest.len() => return Err(other_rows()),
                None => self.superseded(&gone, num_rows),
            };
            let (mut rest, mut first) = (&of_rows[..], 0);
            for (part, entry) in output.parts.iter().enumerate() {
                let end = first + usize::try_from(entry.rows).map_err(|_| other_rows())?;
                let (own, of_others) = rest.split_at(rest.partition_point(|of| of.0 < end));
                rest = of_others;
                let nodes = own.iter().map(|of| of.1);
                let last =
                    nodes.filter(|&node| node != MISSING && latest[node.index()] == at | GONE);
                replaced.last.extend(last.map(|node| GoneRow {
                    output: at as usize,
                    part,
                    node,
                }));
                let file = entry.files.get(self.file).filter(|_| !own.is_empty());
                if let Some(file) = file {
                    let rows = own.iter().map(|of| (of.0 - first) as u64).collect();
                    let name = format!("{}/{}", output.path, file.path);
                    replaced.rows.insert(name, rows);
                }
                first = end;
            }
        }
        Ok(replaced)
    }

    /// Lists the outputs after the first one by position, with the nodes that they have rows of.
    fn later(&self) -> impl Iterator<Item = (u32, impl Iterator<Item = NodeIdx>)> {
        let later = (0..).zip(self.nodes).skip(1);
        later.map(|(at, nodes)| {
            let nodes = nodes.iter().flatten().copied();
            (at, nodes.filter(|&node| node != MISSING))
        })
    }

    /// Returns the rows of the first output, if it has those of the first `num_rows` nodes of the
    /// store, whose nodes have a row in a later output or are in `gone`; looks at no other row.
    fn superseded(&self, gone: &[NodeIdx], num_rows: usize) -> Vec<(usize, NodeIdx)> {
        let later = self.later().flat_map(|(_, nodes)| nodes);
        let nodes = later.chain(gone.iter().copied());
        let mut rows: Vec<(usize, NodeIdx)> = nodes.map(|node| (node.index(), node)).collect();
        rows.retain(|of| of.0 < num_rows);
        rows.sort_unstable();
        rows.dedup();
        rows
    }
}
