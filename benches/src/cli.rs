//! The command line.

use std::path::PathBuf;

use clap::{Parser, value_parser};

/// Repeat the measurements of BENCHMARKS.md on this machine; with the peers' scripts, in turns with
/// the programs that they are compared with.
#[derive(Debug, Parser)]
#[command(name = "race", version)]
#[command(after_help = "\
Examples:
  race --list                       all races, and the tables that they repeat
  race                              our side of all races, or with the peers if they are found
  race infer 'epoch.*.S' --turns 5  these races only
  race --peer-python dgl=venv-dgl/bin/python --peer-python peers=venv/bin/python

Writes race.md (tables, the machine, versions), race.json (all runs) and a plot for each group to
--out. Exit codes: 0 done, 1 a competitor failed or a file cannot be written, 2 usage.")]
pub(crate) struct Cli {
    /// Races to run: names, their beginnings up to a dot, or globs. Default: all but those of
    /// XL, which need 30 GB of disk.
    #[arg(value_name = "NAME")]
    pub(crate) patterns: Vec<String>,
    /// Print the races and the tables of the documentation, and run nothing.
    #[arg(long)]
    pub(crate) list: bool,
    /// Number of measured runs of each competitor.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = turns)]
    pub(crate) turns: usize,
    /// Leave out the run of each program that warms up the page cache.
    #[arg(long)]
    pub(crate) no_warm_up: bool,
    /// Directory of the peers' scripts. Default: `../shared/peers` beside the checkout, if it
    /// exists.
    #[arg(long, value_name = "DIR")]
    pub(crate) peers: Option<PathBuf>,
    /// Run our side only.
    #[arg(long, conflicts_with = "peers")]
    pub(crate) no_peers: bool,
    /// The Python of a peer (dgl, duckdb, polars, pyarrow, pyg, spark, torch), or with the name
    /// `peers` of all but dgl. Default: `venv-NAME`, then `venv-peers`, in the working directory.
    #[arg(long, value_name = "NAME=PATH", value_parser = python)]
    pub(crate) peer_python: Vec<(String, PathBuf)>,
    /// Directory for the graphs, which are kept: 2.5 GB for all of them.
    #[arg(long, value_name = "DIR", default_value = "bench-work/data")]
    pub(crate) data: PathBuf,
    /// Directory for the report, and for the outputs of runs, which are removed.
    #[arg(long, value_name = "DIR", default_value = "bench-work/race")]
    pub(crate) out: PathBuf,
    /// The program `graphflat`. Default: the one beside this program, built if it is missing.
    #[arg(long, value_name = "PATH")]
    pub(crate) program: Option<PathBuf>,
    /// Longest time of one process; then it is killed and has failed.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 900,
        value_parser = value_parser!(u64).range(1..=86_400)
    )]
    pub(crate) limit: u64,
    /// Keep what `race.json` in --out has, and run only the races that are not complete there.
    #[arg(long)]
    pub(crate) resume: bool,
}

fn turns(written: &str) -> Result<usize, String> {
    let number = written
        .parse()
        .ok()
        .filter(|number| (1..=1000).contains(number));
    number.ok_or_else(|| "allowed is 1 to 1000".to_owned())
}

fn python(written: &str) -> Result<(String, PathBuf), String> {
    const NAMES: [&str; 8] = [
        "dgl", "duckdb", "peers", "polars", "pyarrow", "pyg", "spark", "torch",
    ];
    let (name, path) = written.split_once('=').unwrap_or((written, ""));
    if NAMES.contains(&name) && !path.is_empty() {
        Ok((name.to_owned(), path.into()))
    } else {
        Err(format!(
            "allowed is NAME=PATH with a name of {}",
            NAMES.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
        assert_eq!(python("dgl=a/b=c"), Ok(("dgl".to_owned(), "a/b=c".into())));
        for wrong in ["dgl", "dgl=", "jax=python"] {
            assert!(
                python(wrong).unwrap_err().contains("dgl, duckdb"),
                "{wrong}"
            );
        }
        assert!(turns("0").is_err() && turns("3") == Ok(3));
    }

    #[test]
    fn every_peer_can_have_a_python() {
        for family in crate::list::FAMILIES {
            for peer in family.peers {
                assert!(python(&format!("{}=x", peer.name)).is_ok(), "{}", peer.name);
            }
        }
    }
}
