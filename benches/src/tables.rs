//! The tables of the graphs: made once, then kept below `--data`.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::child::Launch;
use crate::list::Graph;
use crate::shapes;

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
        if graph == Graph::Ppi {
            shapes::write_ppi(&own)?;
            return Ok(tables(own, Format::Csv));
        }
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
            shapes::write_cora(&generated)?;
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

#[cfg(test)]
mod tests {
    use super::*;

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
