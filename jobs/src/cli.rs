//! The command line of the program.

use std::path::PathBuf;

use chrono::{DateTime, NaiveDate, NaiveTime, Utc};
use clap::{Args, Parser, Subcommand, ValueEnum, value_parser};

use crate::instruction_set::VERSION;
use crate::source::Edits;

/// Graph neural networks as batch jobs: flatten k-hop neighbourhoods, train on them, embed every
/// node.
#[derive(Debug, Parser)]
#[command(name = "graphflat", version = VERSION.as_str())]
#[command(
    after_help = "Exit codes: 0 done, 1 failed, 2 usage or job file, 3 input data, 130 and 143 interrupted.\n\
                  After 1, 130 and 143 the same command continues where it stopped."
)]
pub(crate) struct Cli {
    /// The command.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands of the program.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the stages of a job; finished ones are skipped, a half-finished one is continued.
    Run(RunArgs),
    /// Validate a job and its input without a shuffle, and predict rows, bytes and memory.
    Check(CheckArgs),
    /// Show the content of an output directory or a store.
    Inspect(InspectArgs),
    /// List a version of embeddings or graph features, and the outputs that it is made of.
    Versions(VersionsArgs),
    /// Write all rows of a version of embeddings or graph features to one output, so that earlier
    /// ones can be removed.
    Compact(CompactArgs),
    /// Write an R-MAT graph as input tables, and a job that runs on it.
    Generate(GenerateArgs),
}

/// A job file, and changes to it.
#[derive(Args, Debug)]
pub(crate) struct JobArgs {
    /// The job file (TOML); relative paths in it are relative to the working directory.
    #[arg(value_name = "JOB")]
    pub(crate) path: PathBuf,
    /// Set a key, such as `train.epochs=5` or `flatten.fanouts=[5,5]`, in place of the value in the
    /// file; a value that is not TOML is a string.
    #[arg(long, value_name = "KEY=VALUE", value_parser = assignment)]
    set: Vec<(String, String)>,
    /// The time (UTC) of `${date:...}` in the job file: `2026-11-20`, or with a time
    /// `2026-11-20T06:00:00Z`. Default: now.
    #[arg(long, value_name = "DATE", value_parser = date)]
    date: Option<DateTime<Utc>>,
    /// When the program started.
    #[arg(skip = Utc::now())]
    now: DateTime<Utc>,
}

impl JobArgs {
    /// Returns the changes to the job file.
    pub(crate) fn edits(&self) -> Edits {
        Edits {
            set: self.set.clone(),
            date: self.date.unwrap_or(self.now),
        }
    }
}

fn assignment(written: &str) -> Result<(String, String), String> {
    let is_key = |key: &&str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        key.split('.')
            .all(|name| !name.is_empty() && name.chars().all(allowed))
    };
    let (key, value) = written.split_once('=').unwrap_or(("", ""));
    let key = Some(key.trim()).filter(is_key);
    let key = key.ok_or("allowed is KEY=VALUE with a dotted key, such as train.epochs=5")?;
    Ok((key.to_owned(), value.trim().to_owned()))
}

fn date(written: &str) -> Result<DateTime<Utc>, String> {
    let day = written.parse::<NaiveDate>();
    let midnight = day.map(|day| day.and_time(NaiveTime::MIN).and_utc());
    midnight
        .or_else(|_| written.parse::<DateTime<Utc>>())
        .map_err(|_| "allowed is a day or a time, as 2026-11-20 or 2026-11-20T06:00:00Z".to_owned())
}

/// Arguments of `run`.
#[derive(Args, Debug)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Run only these stages.
    #[arg(long, value_delimiter = ',', value_name = "STAGE")]
    pub(crate) stage: Vec<Stage>,
    /// Start over: replace outputs and work files of earlier runs.
    #[arg(long)]
    fresh: bool,
    /// Stages that start over, for a restart of a job or for a process that another one started.
    #[arg(
        long,
        hide = true,
        value_delimiter = ',',
        value_name = "STAGE",
        conflicts_with = "fresh"
    )]
    fresh_stages: Vec<Stage>,
    /// The stage that a restart finds running, if it had started over: it continues the output that
    /// it has begun, and starts over without one.
    #[arg(long, hide = true, value_name = "STAGE", conflicts_with = "fresh")]
    pub(crate) begun_stage: Option<Stage>,
    /// Compute and write all rows of a version, not only those that its changes reach.
    #[arg(long)]
    pub(crate) full: bool,
    /// Write one JSON object a line to standard output: progress, then a summary.
    #[arg(long)]
    pub(crate) json: bool,
    /// Worker threads, in place of the job's `workers`; never changes the results.
    #[arg(short, long, value_name = "N")]
    pub(crate) workers: Option<usize>,
    /// Print errors only.
    #[arg(short, long, conflicts_with = "json")]
    pub(crate) quiet: bool,
    #[command(flatten)]
    pub(crate) processes: ProcessArgs,
}

impl RunArgs {
    /// Returns the stages that start over.
    pub(crate) fn fresh_stages(&self) -> Vec<Stage> {
        match self.fresh {
            true => Stage::ALL.to_vec(),
            false => self.fresh_stages.clone(),
        }
    }
}

/// Arguments of a job that runs in several processes.
#[derive(Args, Debug)]
pub(crate) struct ProcessArgs {
    /// Run in several processes, one for each line of this file, `host:port`; start each of them.
    #[arg(
        long,
        value_name = "FILE",
        requires = "process",
        conflicts_with = "processes"
    )]
    pub(crate) hosts: Option<PathBuf>,
    /// Line of --hosts that is this process, from 0.
    #[arg(long, value_name = "N", requires = "hosts")]
    pub(crate) process: Option<usize>,
    /// Run in N processes on this machine, with --workers workers each.
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1024))]
    pub(crate) processes: Option<u16>,
    /// Start the job of --processes again after it has lost a process, at most R times; it
    /// continues where it stopped.
    #[arg(long, value_name = "R", requires = "processes")]
    pub(crate) restarts: Option<u16>,
    /// Number of this process in a job that another process started; it reads the rest from
    /// standard input.
    #[arg(long, value_name = "N", hide = true, conflicts_with_all = ["hosts", "processes"])]
    pub(crate) launched: Option<usize>,
    /// Address to listen on, in place of the one in --hosts.
    #[arg(long, value_name = "ADDRESS", requires = "hosts")]
    pub(crate) bind: Option<String>,
    /// File with the shared secret of the processes of --hosts, in place of GRAPHFLAT_SECRET.
    #[arg(long, value_name = "FILE", requires = "hosts")]
    pub(crate) secret_file: Option<PathBuf>,
    /// Seconds within which all processes must have connected.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 60,
        value_parser = value_parser!(u64).range(1..=86_400)
    )]
    pub(crate) start_timeout: u64,
}

impl ProcessArgs {
    /// Tells whether the job runs in several processes.
    pub(crate) fn are_several(&self) -> bool {
        self.hosts.is_some() || self.launched.is_some() || self.processes.is_some_and(|num| num > 1)
    }

    /// Returns the number of this process among those of the job.
    pub(crate) fn number(&self) -> usize {
        self.process.or(self.launched).unwrap_or_default()
    }
}

/// Arguments of `check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    #[command(flatten)]
    pub(crate) job: JobArgs,
    /// Check for a run with --fresh: outputs of another plan are no error.
    #[arg(long)]
    pub(crate) fresh: bool,
    /// Write one JSON object to standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `inspect`.
#[derive(Args, Debug)]
pub(crate) struct InspectArgs {
    /// An output directory (graph features, model, embeddings or scores) or a store.
    pub(crate) path: PathBuf,
    /// Draw one target's neighbourhood as a graph in DOT.
    #[arg(long)]
    pub(crate) dot: bool,
    /// The target to show, by its id.
    #[arg(long, value_name = "ID")]
    pub(crate) target: Option<String>,
    /// Number of rows to show. Default: 5.
    #[arg(long, value_name = "N", conflicts_with_all = ["target", "dot"])]
    pub(crate) limit: Option<usize>,
    /// Write one JSON object to standard output, with whole vectors.
    #[arg(long, conflicts_with = "dot")]
    pub(crate) json: bool,
}

/// Arguments of `versions`.
#[derive(Args, Debug)]
pub(crate) struct VersionsArgs {
    /// The output of a version.
    pub(crate) path: PathBuf,
    /// Write one JSON object to standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `compact`.
#[derive(Args, Debug)]
pub(crate) struct CompactArgs {
    /// The output of a version.
    pub(crate) path: PathBuf,
    /// Directory of the new output.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    /// The `work_dir` of the jobs that write the versions, so that the next version can have the new
    /// output as its parent. Default: none can.
    #[arg(long, value_name = "DIR")]
    pub(crate) work_dir: Option<PathBuf>,
    /// Write one JSON object to standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `generate`.
#[derive(Args, Debug)]
pub(crate) struct GenerateArgs {
    /// Directory for `nodes.parquet`, `edges.parquet` and `job.toml`; with `--types`, for a file
    /// `nodes-t0.parquet` of each type and a file `edges-r0.parquet` of each relation.
    pub(crate) dir: PathBuf,
    /// Number of nodes, 1 to 2^32 - 2; need not be a power of two.
    #[arg(long, value_name = "N")]
    pub(crate) nodes: u64,
    /// Number of edges, at most 2^40; none is a self-loop, parallel edges occur.
    #[arg(long, value_name = "M")]
    pub(crate) edges: u64,
    /// Number of features of a node, at most 4096.
    #[arg(long, value_name = "D")]
    pub(crate) features: u32,
    /// Random seed: the same seed gives the same bytes.
    #[arg(long, value_name = "S")]
    pub(crate) seed: u64,
    /// Number of hubs: the nodes with the most edges get further in-edges.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) hubs: u64,
    /// Further in-edges of each hub, from as many other nodes.
    #[arg(long, value_name = "E", default_value_t = 0)]
    pub(crate) hub_in_edges: u64,
    /// Number of classes of the labels, 2 to 2^20.
    #[arg(long, value_name = "C", default_value_t = 16)]
    pub(crate) classes: u32,
    /// Give each edge a weight.
    #[arg(long)]
    pub(crate) weights: bool,
    /// Number of node types, 1 to 64: t0 has labels, which are learnt from neighbours of other
    /// types.
    #[arg(long, value_name = "T", requires = "relations")]
    pub(crate) types: Option<u32>,
    /// Number of relations, at least one less than types and at most 256; two hops from t0 reach
    /// all types.
    #[arg(long, value_name = "R", requires = "types")]
    pub(crate) relations: Option<u32>,
    /// Shares of the nodes by type, such as 0.5,0.3,0.2. Default: 1, 1/2, 1/3, and so on.
    #[arg(long, value_delimiter = ',', value_name = "SHARES", requires = "types")]
    pub(crate) type_shares: Vec<f64>,
    /// Shares of the edges by relation. Default: 1, 1/2, 1/3, and so on.
    #[arg(long, value_delimiter = ',', value_name = "SHARES", requires = "types")]
    pub(crate) relation_shares: Vec<f64>,
    /// Replace files of an earlier run.
    #[arg(long)]
    pub(crate) force: bool,
}

/// A stage of a job; stages run in this order.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd, ValueEnum)]
pub(crate) enum Stage {
    /// Flatten the neighbourhoods.
    Flatten,
    /// Train a model on them.
    Train,
    /// Embed every node.
    Infer,
    /// Score pairs of nodes by their embeddings.
    Score,
}

impl Stage {
    /// Every stage, in the order they run.
    pub(crate) const ALL: [Stage; 4] = [Stage::Flatten, Stage::Train, Stage::Infer, Stage::Score];

    /// The name of the stage, which is also its table in the job file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Stage::Flatten => "flatten",
            Stage::Train => "train",
            Stage::Infer => "infer",
            Stage::Score => "score",
        }
    }
}
