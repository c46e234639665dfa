//! The list of races: one row for each family, with its graphs, our runs and the peers' scripts.

mod rows;

pub(crate) use rows::FAMILIES;

/// A graph that races run on.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(crate) enum Graph {
    /// 2^17 nodes, 2 million edges, 64 features.
    S,
    /// 2^20 nodes, 16 million edges, 64 features.
    M,
    /// 2^22 nodes, 64 million edges, 32 features.
    L,
    /// 2^24 nodes, 256 million edges, 32 features.
    Xl,
    /// M with a node of 1,000,000 in-edges.
    Mh,
    /// The shape of Cora: 2708 nodes, 10,556 edges, 1433 features.
    C,
    /// The shape of PPI: 24 graphs, 56,944 nodes, 818,716 edges in both directions, 50 features.
    Ppi,
    /// 4 node types and 6 relations, of the size of S.
    Ts,
    /// 4 node types and 6 relations, of the size of M.
    T,
    /// Data of the repository.
    Debian,
}

impl Graph {
    /// Last part of a race's name, and folder of the graph below `--data`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::S => "S",
            Self::M => "M",
            Self::L => "L",
            Self::Xl => "XL",
            Self::Mh => "MH",
            Self::C => "C",
            Self::Ppi => "PPI",
            Self::Ts => "TS",
            Self::T => "T",
            Self::Debian => "debian",
        }
    }

    pub(crate) fn is_typed(self) -> bool {
        matches!(self, Self::Ts | Self::T)
    }

    /// Nodes, edges and features, as `graphflat generate` is asked for them.
    pub(crate) fn size(self) -> (u64, u64, u32) {
        match self {
            Self::S => (1 << 17, 2_000_000, 64),
            Self::M => (1 << 20, 16_000_000, 64),
            Self::L => (1 << 22, 64_000_000, 32),
            Self::Xl => (1 << 24, 256_000_000, 32),
            Self::Mh => (1 << 20, 17_000_000, 64),
            Self::C => (2708, 10_556, 1433),
            Self::Ppi => (56_944, 2 * 818_716, 50),
            Self::Ts => (1 << 17, 1 << 21, 64),
            Self::T => (1 << 20, 1 << 24, 64),
            Self::Debian => (63_666, 302_741, 64),
        }
    }

    /// Number of classes of the labels.
    pub(crate) fn classes(self) -> u64 {
        match self {
            Self::C => 7,
            Self::Ppi => 121,
            _ => 16,
        }
    }

    /// Whether trainings and inference read all in-edges; otherwise samples of 10.
    pub(crate) fn has_all_in_edges(self) -> bool {
        matches!(self, Self::C | Self::Ppi)
    }

    /// Epochs of our trainings, and how many of them are measured: the last ones.
    pub(crate) fn epochs(self) -> (usize, usize) {
        match self {
            Self::C => (110, 100),
            Self::S | Self::Ts => (9, 8),
            _ => (5, 4),
        }
    }
}

/// Kind of layer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Model {
    Gcn,
    Sage,
    Gat,
    Rgcn,
}

impl Model {
    /// Value of `train.model`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Gcn => "gcn",
            Self::Sage => "sage",
            Self::Gat => "gat",
            Self::Rgcn => "rgcn",
        }
    }
}

/// How inference keeps rows between layers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum RowFormat {
    F32,
    Bf16,
}

/// What our side does in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Work {
    /// Builds the store; the time until it is written.
    Store,
    /// Flattens to `layout`; the time of the job.
    Flatten {
        layout: &'static str,
        targets: &'static str,
    },
    /// Trains; the median time of an epoch.
    Train {
        model: Model,
        dropout: bool,
        hops: usize,
        streamed: bool,
        /// Workers that share each batch.
        workers: u16,
        /// Keys of `[train]` that are false.
        without: &'static [&'static str],
    },
    /// Infers all nodes on all in-edges, with rows of a format between the layers; the time of the
    /// layers.
    Infer { model: Model, rows: RowFormat },
    /// Infers all nodes on their samples from the tables; the time of the job. Either by layers, or
    /// flattens the neighbourhood of each node and computes it alone.
    InferSamples { neighborhoods: bool },
    /// Runs a job of the repository; the time of the job.
    Job(&'static str),
}

/// A run of our side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ours {
    /// What differs from the other runs of the race; empty in the first one.
    pub(crate) label: &'static str,
    pub(crate) work: Work,
    /// Only the first core is used, by one worker.
    pub(crate) one_core: bool,
    /// Number of processes on this machine, with one worker each; 0 for one process.
    pub(crate) processes: usize,
    pub(crate) memory_budget: Option<&'static str>,
}

/// A program that does the same work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Peer {
    /// Name in reports, and of its Python in `--peer-python`.
    pub(crate) name: &'static str,
    /// What distinguishes it from another peer of the same name; may be empty.
    pub(crate) label: &'static str,
    pub(crate) script: Script,
    /// Value of `--model`.
    pub(crate) model: Option<&'static str>,
    /// Arguments after `--data DIR --threads N --model MODEL`.
    pub(crate) args: &'static [&'static str],
    /// Packages of Python that it imports.
    pub(crate) needs: &'static [&'static str],
    /// The only graphs that it runs on; empty for all.
    pub(crate) graphs: &'static [Graph],
    pub(crate) one_core: bool,
}

/// The program of a peer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Script {
    /// A file in the directory of the peers.
    File(&'static str),
    /// Python that this program brings; it takes a directory of tables and prints a JSON line.
    Text(&'static str),
}

/// Which figure a race is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Figure {
    /// The part of the run that the race is about, without start and reading.
    Work,
    /// From the start of the process to its end.
    Process,
}

/// Races that differ in their graph only.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Family {
    /// `GROUP.WHAT`; a race adds the graph.
    pub(crate) name: &'static str,
    pub(crate) graphs: &'static [Graph],
    /// `PAGE#HEADING` of the tables that these races repeat.
    pub(crate) tables: &'static [&'static str],
    pub(crate) figure: Figure,
    pub(crate) ours: &'static [Ours],
    pub(crate) peers: &'static [Peer],
}

/// A family on one graph.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Race {
    pub(crate) family: &'static Family,
    pub(crate) graph: Graph,
}

impl Race {
    pub(crate) fn name(&self) -> String {
        format!("{}.{}", self.family.name, self.graph.name())
    }

    /// The peers that run on this race's graph.
    pub(crate) fn peers(&self) -> impl Iterator<Item = &'static Peer> {
        let graph = self.graph;
        let peers = self.family.peers.iter();
        peers.filter(move |peer| peer.graphs.is_empty() || peer.graphs.contains(&graph))
    }
}

/// Returns the part of a race's name before the first dot.
pub(crate) fn group_of(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

/// Returns all races, in the order in which they are run.
pub(crate) fn races() -> Vec<Race> {
    let of_family = |family: &'static Family| {
        let graphs = family.graphs.iter();
        graphs.map(move |&graph| Race { family, graph })
    };
    FAMILIES.iter().flat_map(of_family).collect()
}

/// Returns the races whose names match one of the patterns; without patterns all of them but those
/// of XL, which need much disk.
///
/// A pattern is a glob, or the beginning of a name up to a dot: `infer` is `infer.*`.
///
/// # Errors
///
/// If a pattern is no glob or matches no race; the text lists all names.
pub(crate) fn select(patterns: &[String]) -> anyhow::Result<Vec<Race>> {
    let all = races();
    if patterns.is_empty() {
        let is_usual = |race: &Race| race.graph != Graph::Xl;
        return Ok(all.into_iter().filter(is_usual).collect());
    }
    let mut chosen = vec![false; all.len()];
    for pattern in patterns {
        let whole = glob::Pattern::new(pattern)?;
        let start = glob::Pattern::new(&format!("{pattern}.*"))?;
        let mut matched = false;
        for (race, is_chosen) in all.iter().zip(&mut chosen) {
            let name = race.name();
            if whole.matches(&name) || start.matches(&name) {
                (matched, *is_chosen) = (true, true);
            }
        }
        if !matched {
            let names: Vec<String> = all.iter().map(Race::name).collect();
            anyhow::bail!(
                "no race matches {pattern}; the races are {}",
                names.join(", ")
            );
        }
    }
    let chosen = all.into_iter().zip(chosen);
    Ok(chosen
        .filter(|(_, is_chosen)| *is_chosen)
        .map(|(race, _)| race)
        .collect())
}

#[cfg(test)]
mod tests;
