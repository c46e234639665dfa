//! Graphs with the shapes of public data sets, as CSV tables: the sizes are those of the data, but
//! labels cannot be learnt.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;

use crate::list::Graph;

/// Writes a graph with the shape of Cora; its degrees and the density of its features are those of
/// the peers' generator.
///
/// # Errors
///
/// If a file cannot be written.
pub(crate) fn write_cora(dir: &Path) -> anyhow::Result<()> {
    let (nodes, edges, features) = Graph::C.size();
    let split_of = |node: u64| match node {
        // 140, 500 and 1000 nodes, as in Cora.
        0..140 => "train",
        140..640 => "val",
        640..1640 => "test",
        _ => "",
    };
    let row_of = |node: u64| -> anyhow::Result<Vec<f32>> {
        let mut row = vec![0.0; usize::try_from(features)?];
        for at in 1..=10 + hash(node, 0) % 17 {
            let feature = hash(node, at) % u64::from(features);
            row[usize::try_from(feature)?] = 1.0;
        }
        Ok(row)
    };
    let ends_of = |edge: u64| {
        let src = hash(edge, 1 << 32) % nodes;
        (src, (src + 1 + hash(edge, 1 << 33) % (nodes - 1)) % nodes)
    };
    write(
        dir,
        Graph::C,
        &split_of,
        &row_of,
        (0..edges / 2).map(ends_of),
    )
}

/// Nodes of the graphs of PPI (Hamilton et al., NIPS 2017): 20 of train nodes, 2 of val nodes and 2
/// of test nodes.
const PPI: [u64; 24] = [
    1767, 1377, 2263, 2339, 1578, 1021, 1823, 2488, 591, 3312, 2401, 1878, 1819, 3480, 2794, 2326,
    2650, 2815, 3163, 3021, 3230, 3284, 3224, 2300,
];

/// Writes a graph with the shape of PPI: 24 graphs without edges between them, 14.4 links a node,
/// one label of 121 in place of 121 labels. One end of a link is drawn evenly, the other so that a
/// tenth of the nodes has a third of these ends.
///
/// # Errors
///
/// If a file cannot be written.
pub(crate) fn write_ppi(dir: &Path) -> anyhow::Result<()> {
    let (nodes, edges, features) = Graph::Ppi.size();
    let mut starts = vec![0];
    for size in PPI {
        starts.push(starts[starts.len() - 1] + size);
    }
    let (train, val) = (starts[20], starts[22]);
    let split_of = |node: u64| match node {
        _ if node < train => "train",
        _ if node < val => "val",
        _ => "test",
    };
    let row_of = |node: u64| -> anyhow::Result<Vec<f32>> {
        let value = |at: u32| u16::try_from(hash(node, u64::from(at)) >> 48);
        let values = (0..features).map(|at| Ok(f32::from(value(at)?) / 65536.0));
        values.collect()
    };
    let ends_of = |edge: u64| {
        // The graph of the link is that of a node drawn evenly.
        let drawn = hash(edge, 1 << 32) % nodes;
        let graph = starts.partition_point(|&start| start <= drawn) - 1;
        let size = PPI[graph];
        let [first, one, other] = [33, 34, 35].map(|bit| hash(edge, 1 << bit) % size);
        let second = one * other / size;
        let second = if second == first {
            (first + 1) % size
        } else {
            second
        };
        (starts[graph] + first, starts[graph] + second)
    };
    write(
        dir,
        Graph::Ppi,
        &split_of,
        &row_of,
        (0..edges / 2).map(ends_of),
    )
}

/// Writes the tables of a graph; each link becomes an edge in each direction.
fn write(
    dir: &Path,
    graph: Graph,
    split_of: &dyn Fn(u64) -> &'static str,
    row_of: &dyn Fn(u64) -> anyhow::Result<Vec<f32>>,
    links: impl Iterator<Item = (u64, u64)>,
) -> anyhow::Result<()> {
    let (nodes, _, features) = graph.size();
    let last = dir.join("edges.csv");
    if last.exists() {
        return Ok(());
    }
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let mut text = String::from("id,label,split");
    for feature in 0..features {
        write!(text, ",f{feature}")?;
    }
    text.push('\n');
    for node in 0..nodes {
        write!(text, "{node},{},{}", node % graph.classes(), split_of(node))?;
        for value in row_of(node)? {
            write!(text, ",{value}")?;
        }
        text.push('\n');
    }
    let path = dir.join("nodes.csv");
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    let mut lines = String::from("src,dst\n");
    for (src, dst) in links {
        write!(lines, "{src},{dst}\n{dst},{src}\n")?;
    }
    fs::write(&last, lines).with_context(|| last.display().to_string())
}

/// SplitMix64's finaliser.
fn hash(a: u64, b: u64) -> u64 {
    let mut bits = a
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .wrapping_add(b.wrapping_mul(0xD1B5_4A32_D192_ED03));
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the columns of a table, without its heading.
    fn rows(path: &Path) -> Vec<Vec<String>> {
        let text = fs::read_to_string(path).unwrap();
        let cells = |line: &str| line.split(',').map(str::to_owned).collect();
        text.lines().skip(1).map(cells).collect()
    }

    fn with_split(nodes: &[Vec<String>], split: &str) -> usize {
        nodes.iter().filter(|row| row[2] == split).count()
    }

    #[test]
    fn the_graph_like_cora_has_its_shape() {
        let dir = tempfile::tempdir().unwrap();
        write_cora(dir.path()).unwrap();
        let nodes = rows(&dir.path().join("nodes.csv"));
        let edges = rows(&dir.path().join("edges.csv"));
        assert_eq!((nodes.len(), edges.len()), (2708, 10_556));
        let splits = ["train", "val", "test"].map(|split| with_split(&nodes, split));
        assert_eq!(splits, [140, 500, 1000]);
        for row in &nodes {
            assert_eq!(row.len(), 3 + 1433);
            let ones = row[3..].iter().filter(|&feature| feature == "1").count();
            assert!((8..27).contains(&ones), "{ones}");
        }
        assert!(edges.iter().all(|edge| edge[0] != edge[1]));
    }

    #[test]
    fn the_graph_like_ppi_has_its_shape() {
        let dir = tempfile::tempdir().unwrap();
        write_ppi(dir.path()).unwrap();
        let nodes = rows(&dir.path().join("nodes.csv"));
        let edges = rows(&dir.path().join("edges.csv"));
        assert_eq!((nodes.len(), edges.len()), (56_944, 1_637_432));
        let splits = ["train", "val", "test"].map(|split| with_split(&nodes, split));
        assert_eq!(splits, [44_906, 6514, 5524]);
        assert!(nodes.iter().all(|row| row.len() == 3 + 50));
        let mut in_degrees = vec![0; nodes.len()];
        for edge in &edges {
            let [src, dst] = [0, 1].map(|end| edge[end].parse::<usize>().unwrap());
            assert_ne!(src, dst);
            // No link between train nodes and others.
            assert_eq!(nodes[src][2], nodes[dst][2]);
            in_degrees[dst] += 1;
        }
        in_degrees.sort_unstable();
        let most: usize = in_degrees.iter().rev().take(5694).sum();
        let share = most * 100 / edges.len();
        assert!((20..35).contains(&share), "{share}");
    }
}
