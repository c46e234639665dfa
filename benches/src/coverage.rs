//! Every table of figures in the documentation: repeated by races, or the reason why not.

/// Whether and how the tables below a heading are repeated.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Repeated {
    /// By races whose `tables` name the heading.
    Raced,
    /// Not by a race, for a reason.
    Not(&'static str),
}

use Repeated::{Not, Raced};

const ACCURACY: &str = "accuracies depend on neither machine nor load; the page names the jobs";

const LINKS: &str = "accuracies do not depend on load; the scripts of benches/links repeat them";

/// `PAGE#HEADING`, the number of tables below the heading, and whether they are repeated.
pub(crate) const TABLES: &[(&str, usize, Repeated)] = &[
    ("BENCHMARKS.md#Benchmarks", 1, Not("a table of contents")),
    ("BENCHMARKS.md#Summary", 1, Raced),
    ("BENCHMARKS.md#Growth", 1, Raced),
    (
        "BENCHMARKS.md#Untyped graphs, before and after types",
        1,
        Not("it needs a build of an earlier commit"),
    ),
    (
        "docs/benchmarks/accuracy.md#Cora and Citeseer",
        1,
        Not(ACCURACY),
    ),
    (
        "docs/benchmarks/accuracy.md#Amazon, Coauthor and Tolokers",
        1,
        Not(ACCURACY),
    ),
    ("docs/benchmarks/accuracy.md#Typed graphs", 1, Not(ACCURACY)),
    ("docs/benchmarks/accuracy.md#BlogCatalog", 1, Not(ACCURACY)),
    ("docs/benchmarks/accuracy.md#Bitcoin OTC", 1, Not(ACCURACY)),
    (
        "docs/benchmarks/accuracy.md#Links of Debian",
        1,
        Not(ACCURACY),
    ),
    (
        "docs/benchmarks/accuracy.md#Parameter server",
        1,
        Not(ACCURACY),
    ),
    (
        "docs/benchmarks/training.md#Kernels",
        1,
        Not("`cargo bench -p gnn` prints it"),
    ),
    ("docs/benchmarks/training.md#Epochs", 3, Raced),
    (
        "docs/benchmarks/training.md#Vectorising, before and after",
        1,
        Not("it needs a build of an earlier commit"),
    ),
    (
        "docs/benchmarks/training.md#Attention over raw rows",
        1,
        Raced,
    ),
    ("docs/benchmarks/training.md#Typed graphs", 1, Raced),
    (
        "docs/benchmarks/training.md#Learnable rows",
        1,
        Not("`cargo bench -p graphtrainer --bench tables` prints it"),
    ),
    (
        "docs/benchmarks/training.md#Pruning and partitioning",
        2,
        Raced,
    ),
    (
        "docs/benchmarks/training.md#Parameter server",
        1,
        Not("an earlier version, on a busy machine"),
    ),
    ("docs/benchmarks/training.md#Streamed training", 2, Raced),
    (
        "docs/benchmarks/inference.md#Inference speed",
        1,
        Not("the sizes of the graphs, no figures"),
    ),
    ("docs/benchmarks/inference.md#Compute", 1, Raced),
    ("docs/benchmarks/inference.md#Whole process", 1, Raced),
    (
        "docs/benchmarks/inference_memory.md#Free memory between stages",
        1,
        Not("a comparison with an earlier version"),
    ),
    (
        "docs/benchmarks/inference_memory.md#Memory of the features",
        1,
        Not("a comparison with an earlier version"),
    ),
    (
        "docs/benchmarks/inference.md#A processor with a large cache",
        1,
        Raced,
    ),
    (
        "docs/benchmarks/inference.md#A processor with a small cache",
        1,
        Raced,
    ),
    ("docs/benchmarks/inference.md#Typed graphs", 2, Raced),
    (
        "docs/benchmarks/inference.md#Distance from the limit",
        1,
        Not("the peers' limits.py measures the machine's limits; our side is raced"),
    ),
    (
        "docs/benchmarks/inference_memory.md#Rows in 16 bits",
        1,
        Not("it compares our own rows in 16 bits with those in 32"),
    ),
    (
        "docs/benchmarks/inference_memory.md#Small memory",
        1,
        Not("it needs root, for a cgroup that limits the page cache"),
    ),
    ("docs/benchmarks/inference.md#Methods", 2, Raced),
    (
        "docs/benchmarks/flatten.md#Flatten speed",
        1,
        Not("the sizes of the graphs, no figures"),
    ),
    (
        "docs/benchmarks/flatten.md#Compared with other programs",
        1,
        Raced,
    ),
    (
        "docs/benchmarks/flatten.md#Typed graphs, compared with other programs",
        1,
        Raced,
    ),
    ("docs/benchmarks/flatten.md#Phases", 1, Raced),
    (
        "docs/benchmarks/flatten.md#The store, compared with pyarrow",
        2,
        Raced,
    ),
    (
        "docs/benchmarks/flatten.md#Size, workers and hubs",
        2,
        Raced,
    ),
    (
        "docs/benchmarks/flatten.md#Changes that made it faster",
        1,
        Not("a comparison with earlier versions"),
    ),
    (
        "docs/benchmarks/inference.md#Best items",
        2,
        Not("`cargo bench -p graphscore --bench best` measures it, before and after"),
    ),
    (
        "docs/benchmarks/versions.md#A night of graph features",
        5,
        Not("`benches/versions/features.py` prints them"),
    ),
    (
        "docs/benchmarks/versions.md#A night",
        5,
        Not("`benches/versions/nightly.py` and `typed.py` print them"),
    ),
    (
        "docs/benchmarks/version_chains.md#Late in a chain",
        2,
        Not("`benches/versions/nights.py` prints them"),
    ),
    ("docs/benchmarks/links.md#Citation graphs", 3, Not(LINKS)),
    ("docs/benchmarks/links.md#Debian's packages", 3, Not(LINKS)),
    (
        "docs/benchmarks/links.md#Bitcoin OTC, by time",
        1,
        Not(LINKS),
    ),
    (
        "docs/benchmarks/links.md#DBLP, author to paper",
        1,
        Not(LINKS),
    ),
    (
        "docs/benchmarks/links.md#Gowalla",
        5,
        Not("it needs the data set; `jobs/gowalla.toml` is our side"),
    ),
    (
        "docs/benchmarks/links.md#Speed of an epoch",
        1,
        Not("`benches/links/epoch.py` measures the other programs"),
    ),
    (
        "docs/benchmarks/processes.md#Processes on one machine",
        1,
        Raced,
    ),
    (
        "docs/benchmarks/processes.md#MinIO compared with the local disk",
        3,
        Not("it needs a running MinIO (tests/services)"),
    ),
];
