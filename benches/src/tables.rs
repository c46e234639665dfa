//! The tables of the graphs: made once, then kept below `--data`.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::child::Launch;
use crate::list::Graph;

/// The input tables of a graph.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) dir: PathBuf,
    pub(crate) format: Format,
}

/// Which columns the tables have.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Format {
    /// Those of the peers' `gen.py`, which peers read too. Splits are numbers.
    Peers,
    /// Those of `graphflat generate`, with a job file that describes them.
    Generated,
    /// CSV, one column for each feature.
    Csv,
}

/// Where tables are, and which programs make them.
pub(crate) struct Maker<'a> {
    pub(crate) data: &'a Path,
    pub(crate) program: &'a Path,
    /// A Python that runs the peers' generator, and this generator; `None` without peers.
    pub(crate) generator: Option<(&'a Path, &'a Path)>,
    pub(crate) limit: Duration,
}

impl Maker<'_> {
    /// Returns the tables of a graph; makes them if they are missing.
    ///
    /// Tables of the peers are preferred, because only these can be raced.
    ///
    /// # Errors
    ///
    /// If the program that makes them fails.
    pub(crate) fn tables(&self, graph: Graph) -> anyhow::Result<Tables> {
        let own = self.data.join(graph.name());
        if graph.is_typed() {
            self.generate(graph, &own)?;
            return Ok(tables(own, Format::Generated));
        }
        // Each program writes this file last.
        if own.join("meta.json").exists() {
            return Ok(tables(own, Format::Peers));
        }
        if let Some((python, generator)) = self.generator {
            let size = if graph == Graph::Mh {
                "M"
            } else {
                graph.name()
            };
            let mut args = vec![generator.as_os_str().to_owned()];
            args.extend(["--size", size, "--out"].map(Into::into));
            args.push(own.clone().into_os_string());
            if graph == Graph::Mh {
                args.extend(["--hub", "1000000"].map(Into::into));
            }
            self.make(python, args, &own)?;
            return Ok(tables(own, Format::Peers));
        }
        let generated = self.data.join(format!("{}-generated", graph.name()));
        if graph == Graph::C {
            write_cora(&generated)?;
            return Ok(tables(generated, Format::Csv));
        }
        self.generate(graph, &generated)?;
        Ok(tables(generated, Format::Generated))
    }

    fn generate(&self, graph: Graph, dir: &Path) -> anyhow::Result<()> {
        if dir.join("job.toml").exists() {
            return Ok(());
        }
        let (nodes, edges, features) = graph.size();
        let hub_in_edges = if graph == Graph::Mh { 1_000_000 } else { 0 };
        let mut words = format!(
            "--nodes {nodes} --edges {} --features {features} --classes 16 --weights --seed 1 --force",
            edges - hub_in_edges
        );
        if graph.is_typed() {
            words.push_str(" --types 4 --relations 6");
        }
        if hub_in_edges > 0 {
            words.push_str(" --hubs 1 --hub-in-edges 1000000");
        }
        let mut args = vec!["generate".into(), dir.as_os_str().to_owned()];
        args.extend(words.split(' ').map(Into::into));
        self.make(self.program, args, dir)
    }

    fn make(
        &self,
        program: &Path,
        args: Vec<std::ffi::OsString>,
        dir: &Path,
    ) -> anyhow::Result<()> {
        let problem = || format!("cannot make the tables {}", dir.display());
        fs::create_dir_all(dir).with_context(problem)?;
        let launch = Launch {
            program: program.to_owned(),
            args,
            env: Vec::new(),
            dir: self.data.to_owned(),
            one_core: false,
        };
        let ended = launch.run(self.limit).with_context(problem)?;
        fs::remove_file(self.data.join("stderr.txt")).with_context(problem)?;
        match ended.failure {
            Some(failure) => bail!("{}: {failure}", problem()),
            None => Ok(()),
        }
    }
}

fn tables(dir: PathBuf, format: Format) -> Tables {
    Tables { dir, format }
}

/// Number of classes of the graph with the shape of Cora.
pub(crate) const CORA_CLASSES: u64 = 7;

/// Writes a graph with the shape of Cora as CSV: the sizes, degrees and density of the features are
/// those of the peers' generator, but labels cannot be learnt.
fn write_cora(dir: &Path) -> anyhow::Result<()> {
    let (nodes, edges, features) = Graph::C.size();
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
        // 140, 500 and 1000 nodes, as in Cora.
        let split = match node {
            0..140 => "train",
            140..640 => "val",
            640..1640 => "test",
            _ => "",
        };
        write!(text, "{node},{},{split}", node % CORA_CLASSES)?;
        let ones = 10 + hash(node, 0) % 17;
        let mut row = vec![b'0'; usize::try_from(features)?];
        for at in 1..=ones {
            let feature = hash(node, at) % u64::from(features);
            row[usize::try_from(feature)?] = b'1';
        }
        for value in row {
            text.push(',');
            text.push(char::from(value));
        }
        text.push('\n');
    }
    let path = dir.join("nodes.csv");
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    let mut lines = String::from("src,dst\n");
    for edge in 0..edges / 2 {
        let src = hash(edge, 1 << 32) % nodes;
        let dst = (src + 1 + hash(edge, 1 << 33) % (nodes - 1)) % nodes;
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

    #[test]
    fn the_graph_like_cora_has_its_shape() {
        let dir = tempfile::tempdir().unwrap();
        write_cora(dir.path()).unwrap();
        let nodes = fs::read_to_string(dir.path().join("nodes.csv")).unwrap();
        let edges = fs::read_to_string(dir.path().join("edges.csv")).unwrap();
        assert_eq!(nodes.lines().count(), 2709);
        assert_eq!(edges.lines().count(), 10_557);
        let count = |split: &str| nodes.lines().filter(|line| line.contains(split)).count();
        assert_eq!([",train,", ",val,", ",test,"].map(count), [140, 500, 1000]);
        for row in nodes.lines().skip(1) {
            let features: Vec<&str> = row.split(',').skip(3).collect();
            assert_eq!(features.len(), 1433);
            let ones = features.iter().filter(|&&feature| feature == "1").count();
            assert!((8..27).contains(&ones), "{ones}");
        }
        let loops = edges.lines().filter(|line| {
            let (src, dst) = line.split_once(',').unwrap();
            src == dst
        });
        assert_eq!(loops.count(), 0);
    }

    #[test]
    fn tables_of_the_peers_are_preferred() {
        let dir = tempfile::tempdir().unwrap();
        let maker = Maker {
            data: dir.path(),
            program: Path::new("/bin/false"),
            generator: None,
            limit: Duration::from_secs(10),
        };
        let refused = maker.tables(Graph::S).unwrap_err().to_string();
        assert!(refused.contains("cannot make the tables"), "{refused}");
        fs::create_dir_all(dir.path().join("S-generated")).unwrap();
        fs::write(dir.path().join("S-generated/job.toml"), "").unwrap();
        assert_eq!(maker.tables(Graph::S).unwrap().format, Format::Generated);
        fs::create_dir_all(dir.path().join("S")).unwrap();
        fs::write(dir.path().join("S/meta.json"), "").unwrap();
        assert_eq!(maker.tables(Graph::S).unwrap().format, Format::Peers);
        assert_eq!(maker.tables(Graph::C).unwrap().format, Format::Csv);
    }
}
