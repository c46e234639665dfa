//! Finds the rows of earlier outputs that are no rows of a version.

use schemas::{KeptOutput, NodeIdx, ReplacedRows};
use store::MISSING;

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
    /// Finds the rows that are no rows of a version. All its nodes, removed ones included, have a
    /// number below `num_nodes`. `gone`: the nodes of the rows that it writes, and those that have
    /// no row in it.
    ///
    /// # Errors
    ///
    /// Completes a sentence that starts with the parent, if its outputs have other rows than were
    /// kept.
    ///
    /// # Panics
    ///
    /// If a node has a number that is not below `num_nodes`.
    pub fn replaced(&self, num_nodes: usize, gone: &[NodeIdx]) -> Result<Replaced, String> {
        // By node: the latest output that has a row of it, and `GONE` if that is no row of the
        // version.
        let mut latest = vec![0u32; num_nodes];
        for (at, nodes) in self.later() {
            for node in nodes {
                latest[node.index()] = at;
            }
        }
        for node in gone {
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
                None => self.superseded(gone, num_rows),
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

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};
    use schemas::{FileEntry, PartEntry};

    use super::*;

    /// Describes an output whose parts have so many rows, each in two files.
    fn output(at: usize, rows_of_parts: &[u64]) -> KeptOutput {
        let file = |path: String| FileEntry {
            path,
            bytes: 0,
            checksum: String::new(),
        };
        let parts = rows_of_parts.iter().enumerate().map(|(part, &rows)| {
            let files = ["targets", "nodes"];
            PartEntry {
                name: format!("part-{part}"),
                files: files.map(|of| file(format!("{of}-{part}"))).into(),
                rows,
                targets: None,
            }
        });
        KeptOutput {
            path: format!("../v{at}"),
            fingerprint: String::new(),
            parts: parts.collect(),
        }
    }

    /// Cuts rows into one to four parts, some of them empty.
    fn cut(num_rows: usize, rng: &mut StdRng) -> Vec<u64> {
        let num_parts = rng.random_range(1..5);
        let mut ends: Vec<usize> = (1..num_parts)
            .map(|_| rng.random_range(0..=num_rows))
            .chain([0, num_rows])
            .collect();
        ends.sort_unstable();
        ends.windows(2).map(|of| (of[1] - of[0]) as u64).collect()
    }

    /// Draws outputs, and the nodes of the rows of each; those of the first one are the first nodes
    /// of the store.
    fn draw(num_stored: usize, end: usize, rng: &mut StdRng) -> Vec<Vec<NodeIdx>> {
        let mut outputs = vec![(0..num_stored).map(NodeIdx::from_index).collect()];
        let later = (0..rng.random_range(0..4)).map(|_| {
            let share = rng.random_range(0.0..1.0);
            let all = (0..end).filter(|_| rng.random_bool(share));
            let mut nodes: Vec<NodeIdx> = all.map(NodeIdx::from_index).collect();
            for node in &mut nodes {
                if rng.random_bool(0.1) {
                    *node = MISSING;
                }
            }
            nodes
        });
        outputs.extend(later);
        outputs
    }

    /// Looks at every row: it is a row of the version if its node is not gone and no later output
    /// has a row of it.
    fn twin(outputs: &[KeptOutput], nodes: &[Vec<NodeIdx>], gone: &[NodeIdx]) -> Replaced {
        let gone: BTreeSet<NodeIdx> = gone.iter().copied().collect();
        let mut replaced = Replaced::default();
        for (at, output) in outputs.iter().enumerate() {
            let mut rows = nodes[at].iter();
            for (part, entry) in output.parts.iter().enumerate() {
                for row in 0..entry.rows {
                    let node = *rows.next().unwrap();
                    let is_last = nodes[at + 1..].iter().all(|later| !later.contains(&node));
                    if node != MISSING && is_last && !gone.contains(&node) {
                        continue;
                    }
                    let name = format!("../v{at}/nodes-{part}");
                    replaced.rows.entry(name).or_default().push(row);
                    if node != MISSING && is_last {
                        replaced.last.push(GoneRow {
                            output: at,
                            part,
                            node,
                        });
                    }
                }
            }
        }
        replaced
    }

    #[test]
    fn rows_are_those_that_a_look_at_every_row_finds() {
        let mut found: BTreeMap<&str, usize> = BTreeMap::new();
        for seed in 0..300 {
            let rng = &mut StdRng::seed_from_u64(seed);
            let num_stored = rng.random_range(1..40);
            let end = num_stored + rng.random_range(0..5);
            let nodes = draw(num_stored, end, rng);
            let outputs: Vec<KeptOutput> = (nodes.iter().enumerate())
                .map(|(at, of)| output(at, &cut(of.len(), rng)))
                .collect();
            let share = [0.0, 0.1, 0.6][rng.random_range(0..3)];
            let all = (0..end).filter(|_| rng.random_bool(share));
            let gone: Vec<NodeIdx> = all.map(NodeIdx::from_index).collect();
            let expected = twin(&outputs, &nodes, &gone);
            let listed: Vec<_> = nodes.into_iter().map(Some).collect();
            let mut unlisted = listed.clone();
            unlisted[0] = None;
            for (name, of_outputs) in [("listed", listed), ("unlisted", unlisted)] {
                let of_kept = KeptRowsOf {
                    outputs: &outputs,
                    nodes: &of_outputs,
                    file: 1,
                };
                let got = of_kept.replaced(end, &gone).unwrap();
                assert_eq!(got.rows, expected.rows, "{name}, seed {seed}");
                assert_eq!(got.last, expected.last, "{name}, seed {seed}");
            }
            for (name, is_there) in [
                ("nothing is gone", gone.is_empty()),
                ("one output", outputs.len() == 1),
                ("rows are replaced", !expected.rows.is_empty()),
                ("last rows are gone", !expected.last.is_empty()),
            ] {
                *found.entry(name).or_default() += usize::from(is_there);
            }
        }
        assert!(found.values().all(|&times| times > 20), "{found:?}");
    }

    #[test]
    fn outputs_with_more_rows_than_nodes_are_refused() {
        let outputs = [output(1, &[3, 2])];
        for nodes in [None, Some(vec![NodeIdx::from_index(0); 4])] {
            let of_kept = KeptRowsOf {
                outputs: &outputs,
                nodes: &[nodes],
                file: 0,
            };
            let problem = of_kept.replaced(4, &[]).unwrap_err();
            assert_eq!(problem, "has other rows than were kept of ../v1");
        }
    }
}
