//! The rows of the list of races.

use super::Figure::{Process, Work as OfWork};
use super::Graph::{C, Debian, L, M, Mh, Ppi, S, T, Ts, Xl};
use super::Model::{Gat, Gcn, Rgcn, Sage};
use super::{Family, Graph, Model, Ours, Peer, RowFormat, Script, Work};

/// All races, in the order in which they are run.
#[rustfmt::skip]
pub(crate) const FAMILIES: &[Family] = &[
    family("store.build", &[S, M, L], PHASES, OfWork, &[ours(Work::Store)], &[PYARROW]),
    family("flatten.rows", &[S, M, L, Mh], ROWS, Process, &[ours(ROWS_OF_TENTH)], FLATTENERS),
    family("flatten.shards", &[S, M, L, Mh], SHARDS, Process, &[ours(SHARDS_OF_ALL)], &[]),
    family("flatten.memory", &[L], SIZES, Process, BUDGETS, &[]),
    family("processes.rows", &[S, M], THREADS, Process, &processes(ROWS_OF_TENTH), &[]),
    family("processes.shards", &[S, M], THREADS, Process, &processes(SHARDS_OF_ALL), &[]),
    family("processes.infer-sage", &[S, M], THREADS, Process, &processes(infer(Sage)), &[]),
    family("infer.sage", &[S, M, L], INFER, OfWork, &row_formats(Sage), INFER_SAGE),
    family("infer.gat", &[S, M, L], INFER, OfWork, &row_formats(Gat), INFER_GAT),
    family("epoch.gcn", &[S, M], EPOCHS, OfWork, &[ours(train(Gcn))], &batches("gcn")),
    family("epoch.gcn-dropout", &[S, M], EPOCHS, OfWork, &[ours(dropout(Gcn))], &batches_dropout("gcn")),
    family("epoch.sage", &[S, M], EPOCHS, OfWork, &[ours(train(Sage))], &batches("sage")),
    family("epoch.sage-dropout", &[S, M], EPOCHS, OfWork, &[ours(dropout(Sage))], &batches_dropout("sage")),
    family("epoch.gat", &[S, M], EPOCHS, OfWork, &[ours(train(Gat))], &batches("gat")),
    family("epoch.gat-dropout", &[S, M], EPOCHS, OfWork, &[ours(dropout(Gat))], &batches_dropout("gat")),
    family("epoch.gcn", &[C], EPOCHS, OfWork, &[ours(train(Gcn))], &whole("gcn")),
    family("epoch.gcn-dropout", &[C], EPOCHS, OfWork, &[ours(dropout(Gcn))], &whole_dropout("gcn")),
    family("epoch.sage", &[C], EPOCHS, OfWork, &[ours(train(Sage))], &whole("sage")),
    family("epoch.sage-dropout", &[C], EPOCHS, OfWork, &[ours(dropout(Sage))], &whole_dropout("sage")),
    family("epoch.gat", &[C], EPOCHS, OfWork, &[ours(train(Gat))], WHOLE_GAT),
    family("epoch.gat-dropout", &[C], EPOCHS, OfWork, &[ours(dropout(Gat))], WHOLE_GAT_DROPOUT),
    family("cores.rows", &[S, M], SIZES, Process, &cores(ROWS_OF_TENTH), &[]),
    family("cores.shards", &[S, M], SIZES, Process, &cores(SHARDS_OF_ALL), &[]),
    family("cores.epoch-gcn", &[S, M], EPOCHS, OfWork, &cores_of_training(Gcn), &batches_cores("gcn")),
    family("cores.epoch-sage", &[S, M], EPOCHS, OfWork, &cores_of_training(Sage), &batches_cores("sage")),
    family("cores.epoch-gat", &[S, M], EPOCHS, OfWork, &cores_of_training(Gat), &batches_cores("gat")),
    family("typed.flatten", &[Ts, T], TYPED_FLATTEN, Process, &[ours(ROWS_OF_LABELLED)], &[]),
    family("typed.epoch-sage", &[Ts, T], TYPED_EPOCHS, OfWork, &[ours(train(Sage))], &[]),
    family("typed.epoch-rgcn", &[Ts, T], TYPED_EPOCHS, OfWork, &[ours(train(Rgcn))], &[]),
    family("typed.infer-sage", &[Ts, T], TYPED_INFER, OfWork, &[ours(infer(Sage))], &[]),
    family("pruning.gcn-1", &[S, Ppi], PRUNING, OfWork, &pruned(Gcn, 1), &[]),
    family("pruning.gcn-2", &[S, Ppi], PRUNING, OfWork, &pruned(Gcn, 2), &[]),
    family("pruning.gcn-3", &[S, Ppi], PRUNING, OfWork, &pruned(Gcn, 3), &[]),
    family("pruning.sage-1", &[S, Ppi], PRUNING, OfWork, &pruned(Sage, 1), &[]),
    family("pruning.sage-2", &[S, Ppi], PRUNING, OfWork, &pruned(Sage, 2), &[]),
    family("pruning.sage-3", &[S, Ppi], PRUNING, OfWork, &pruned(Sage, 3), &[]),
    family("pruning.gat-1", &[S, Ppi], PRUNING, OfWork, &pruned(Gat, 1), &[]),
    family("pruning.gat-2", &[S, Ppi], PRUNING, OfWork, &pruned(Gat, 2), &[]),
    family("pruning.gat-3", &[S, Ppi], PRUNING, OfWork, &pruned(Gat, 3), &[]),
    family("streamed.sage", &[S, M], STREAMED, OfWork, STREAMS, &[]),
    family("scale.store", &[S, M, L, Xl], GROWTH, OfWork, &[in_1gib(Work::Store)], &[]),
    family("scale.flatten", &[S, M, L, Xl], GROWTH, Process, &[in_1gib(SHARDS_OF_TENTH)], &[]),
    family("scale.epoch", &[S, M, L, Xl], GROWTH, OfWork, &[in_1gib(train(Sage))], &[]),
    family("scale.infer", &[S, M, L, Xl], GROWTH, OfWork, &[in_1gib(infer(Sage))], &[]),
    family("methods.sage", &[S, M], METHODS, Process, METHODS_OF_INFER, &[]),
    family("job.debian", &[Debian], DEBIAN, Process, &[ours(Work::Job("jobs/debian.toml"))], &[]),
];

const SUMMARY: &str = "BENCHMARKS.md#Summary";
const PHASES: &[&str] = &[
    "docs/benchmarks/flatten.md#Phases",
    "docs/benchmarks/flatten.md#The store, compared with pyarrow",
];
const ROWS: &[&str] = &[
    SUMMARY,
    "docs/benchmarks/flatten.md#Compared with other programs",
    SIZE,
];
const SHARDS: &[&str] = &[
    "docs/benchmarks/flatten.md#Compared with other programs",
    SIZE,
];
const SIZE: &str = "docs/benchmarks/flatten.md#Size, workers and hubs";
const SIZES: &[&str] = &[SIZE];
const THREADS: &[&str] = &["docs/benchmarks/processes.md#Processes on one machine"];
const INFER: &[&str] = &[
    SUMMARY,
    "docs/benchmarks/inference.md#Compute",
    "docs/benchmarks/inference.md#Whole process",
    "docs/benchmarks/inference.md#A processor with a large cache",
    "docs/benchmarks/inference.md#A processor with a small cache",
];
const EPOCHS: &[&str] = &[
    SUMMARY,
    "docs/benchmarks/training.md#Epochs",
    "docs/benchmarks/training.md#Attention over raw rows",
];
const TYPED_FLATTEN: &[&str] = &[
    SUMMARY,
    "docs/benchmarks/flatten.md#Typed graphs, compared with other programs",
];
const TYPED_EPOCHS: &[&str] = &[SUMMARY, "docs/benchmarks/training.md#Typed graphs"];
const TYPED_INFER: &[&str] = &[SUMMARY, "docs/benchmarks/inference.md#Typed graphs"];
const PRUNING: &[&str] = &["docs/benchmarks/training.md#Pruning and partitioning"];
const STREAMED: &[&str] = &["docs/benchmarks/training.md#Streamed training"];
const GROWTH: &[&str] = &["BENCHMARKS.md#Growth"];
const METHODS: &[&str] = &["docs/benchmarks/inference.md#Methods"];
const DEBIAN: &[&str] = &[SUMMARY];

const fn family(
    name: &'static str,
    graphs: &'static [Graph],
    tables: &'static [&'static str],
    figure: super::Figure,
    ours: &'static [Ours],
    peers: &'static [Peer],
) -> Family {
    Family {
        name,
        graphs,
        tables,
        figure,
        ours,
        peers,
    }
}

const fn ours(work: Work) -> Ours {
    Ours {
        label: "",
        work,
        one_core: false,
        processes: 0,
        memory_budget: None,
    }
}

const fn in_1gib(work: Work) -> Ours {
    Ours {
        memory_budget: Some("1GiB"),
        ..ours(work)
    }
}

const fn labelled(label: &'static str, work: Work) -> Ours {
    Ours {
        label,
        ..ours(work)
    }
}

// A tenth of the nodes of an untyped graph are in the train split.
const ROWS_OF_TENTH: Work = flatten("rows", "train");
const ROWS_OF_LABELLED: Work = flatten("rows", "labelled");
const SHARDS_OF_ALL: Work = flatten("shards", "all");
const SHARDS_OF_TENTH: Work = flatten("shards", "train");

const fn flatten(layout: &'static str, targets: &'static str) -> Work {
    Work::Flatten { layout, targets }
}

const BUDGETS: &[Ours] = &[within("2GiB"), within("512MiB")];

const fn within(memory_budget: &'static str) -> Ours {
    Ours {
        memory_budget: Some(memory_budget),
        ..labelled(memory_budget, SHARDS_OF_ALL)
    }
}

const METHODS_OF_INFER: &[Ours] = &[
    ours(INFER_BY_LAYERS),
    labelled(
        "flatten and neighborhoods",
        Work::InferSamples {
            neighborhoods: true,
        },
    ),
];

const INFER_BY_LAYERS: Work = Work::InferSamples {
    neighborhoods: false,
};

const fn infer(model: Model) -> Work {
    Work::Infer {
        model,
        rows: RowFormat::F32,
    }
}

const fn row_formats(model: Model) -> [Ours; 2] {
    let rows = RowFormat::Bf16;
    let in_16_bits = labelled("rows in 16 bits", Work::Infer { model, rows });
    [ours(infer(model)), in_16_bits]
}

const fn processes(work: Work) -> [Ours; 3] {
    let two = Ours {
        processes: 2,
        ..labelled("2 processes", work)
    };
    let four = Ours {
        processes: 4,
        ..labelled("4 processes", work)
    };
    [ours(work), two, four]
}

const fn cores(work: Work) -> [Ours; 2] {
    let one = Ours {
        one_core: true,
        ..labelled("one core", work)
    };
    [ours(work), one]
}

/// Also two workers, each with half of the batch.
const fn cores_of_training(model: Model) -> [Ours; 3] {
    let [both, one] = cores(train(model));
    let two_workers = Work::Train {
        model,
        dropout: false,
        hops: 2,
        streamed: false,
        workers: 2,
        without: &[],
    };
    [both, one, labelled("two workers", two_workers)]
}

const fn train(model: Model) -> Work {
    training(model, 2, &[])
}

const fn training(model: Model, hops: usize, without: &'static [&'static str]) -> Work {
    Work::Train {
        model,
        dropout: false,
        hops,
        streamed: false,
        workers: 1,
        without,
    }
}

const fn dropout(model: Model) -> Work {
    Work::Train {
        model,
        dropout: true,
        hops: 2,
        streamed: false,
        workers: 1,
        without: &[],
    }
}

const STREAMS: &[Ours] = &[
    ours(train(Sage)),
    labelled(
        "streamed",
        Work::Train {
            model: Sage,
            dropout: false,
            hops: 2,
            streamed: true,
            workers: 1,
            without: &[],
        },
    ),
];

const fn pruned(model: Model, layers: usize) -> [Ours; 4] {
    [
        ours(training(model, layers, &[])),
        labelled("no pruning", training(model, layers, &["pruning"])),
        labelled(
            "no partitioning",
            training(model, layers, &["edge_partitioning"]),
        ),
        labelled(
            "neither",
            training(model, layers, &["pruning", "edge_partitioning"]),
        ),
    ]
}

/// Reads both tables, which our store build reads too.
const READ_TABLES: &str = "\
import json, sys, time
import pyarrow, pyarrow.parquet as parquet
start = time.perf_counter()
tables = [parquet.read_table(f'{sys.argv[2]}/{name}.parquet') for name in ('nodes', 'edges')]
seconds = time.perf_counter() - start
print(json.dumps(dict(seconds=seconds, version=pyarrow.__version__)))
";

const PYARROW: Peer = Peer {
    name: "pyarrow",
    label: "read_table",
    script: Script::Text(READ_TABLES),
    ..peer("pyarrow", "", &[], &["numpy", "pyarrow"])
};

const fn peer(
    name: &'static str,
    file: &'static str,
    args: &'static [&'static str],
    needs: &'static [&'static str],
) -> Peer {
    Peer {
        name,
        label: "",
        script: Script::File(file),
        model: None,
        args,
        needs,
        graphs: &[],
        one_core: false,
    }
}

const FLATTENERS: &[Peer] = &[
    peer("polars", "flatten_polars.py", &[], &["polars"]),
    peer("duckdb", "flatten_duckdb.py", &[], &["duckdb"]),
    peer(
        "dgl",
        "flatten_dgl.py",
        &["--writers", "2", "--no-sample-only"],
        DGL,
    ),
    peer(
        "pyg",
        "flatten_pyg.py",
        &["--backend", "pyg-lib", "--writers", "2", "--no-sample-only"],
        PYG_LIB,
    ),
    Peer {
        graphs: &[S, M],
        ..peer("spark", "flatten_spark.py", &[], &["pyspark"])
    },
];

const DGL: &[&str] = &["dgl", "torch", "numpy", "scipy", "pyarrow"];
const TORCH: &[&str] = &["torch", "torch_geometric", "numpy", "scipy", "pyarrow"];
const PYG: &[&str] = &["torch", "torch_geometric", "numpy", "pyarrow"];
const PYG_LIB: &[&str] = &["torch", "torch_geometric", "pyg_lib", "numpy", "pyarrow"];

const INFER_SAGE: &[Peer] = &[
    of_model(peer("dgl", "infer_dgl.py", &[], DGL), "sage"),
    of_model(
        Peer {
            label: "CSR",
            ..peer("torch", "infer_pyg.py", &["--mode", "csr"], TORCH)
        },
        "sage",
    ),
    of_model(
        Peer {
            label: "adj_t",
            graphs: &[S],
            ..peer("pyg", "infer_pyg.py", &["--mode", "adj_t"], TORCH)
        },
        "sage",
    ),
];

const INFER_GAT: &[Peer] = &[
    of_model(peer("dgl", "infer_dgl.py", &[], DGL), "gat"),
    of_model(
        Peer {
            label: "CSR",
            ..peer("torch", "infer_pyg.py", &["--mode", "csr"], TORCH)
        },
        "gat",
    ),
];

const fn of_model(peer: Peer, model: &'static str) -> Peer {
    Peer {
        model: Some(model),
        ..peer
    }
}

const EPOCHS_OF_PEERS: &[&str] = &["--epochs", "5", "--dropout", "0"];
const EPOCHS_DROPOUT: &[&str] = &["--epochs", "5", "--dropout", "0.5"];
const TRIMMED: &[&str] = &["--trim", "--epochs", "5", "--dropout", "0"];
const TRIMMED_DROPOUT: &[&str] = &["--trim", "--epochs", "5", "--dropout", "0.5"];

const fn batches(model: &'static str) -> [Peer; 2] {
    [
        of_model(peer("dgl", "train_dgl.py", EPOCHS_OF_PEERS, DGL), model),
        of_model(peer("pyg", "train_pyg.py", TRIMMED, PYG_LIB), model),
    ]
}

const fn batches_dropout(model: &'static str) -> [Peer; 2] {
    [
        of_model(peer("dgl", "train_dgl.py", EPOCHS_DROPOUT, DGL), model),
        of_model(peer("pyg", "train_pyg.py", TRIMMED_DROPOUT, PYG_LIB), model),
    ]
}

const fn batches_cores(model: &'static str) -> [Peer; 2] {
    let [all, _] = batches(model);
    let one = Peer {
        label: "one core",
        one_core: true,
        ..all
    };
    [all, one]
}

const WHOLE: &[&str] = &[
    "--mode",
    "full",
    "--epochs",
    "100",
    "--warmup",
    "10",
    "--dropout",
    "0",
];
const WHOLE_DROPOUT: &[&str] = &[
    "--mode",
    "full",
    "--epochs",
    "100",
    "--warmup",
    "10",
    "--dropout",
    "0.5",
];
const SPARSE: &[&str] = &[
    "--adj",
    "sparse",
    "--mode",
    "full",
    "--epochs",
    "100",
    "--warmup",
    "10",
    "--dropout",
    "0",
];
const SPARSE_DROPOUT: &[&str] = &[
    "--adj",
    "sparse",
    "--mode",
    "full",
    "--epochs",
    "100",
    "--warmup",
    "10",
    "--dropout",
    "0.5",
];

const fn whole(model: &'static str) -> [Peer; 3] {
    whole_with(model, WHOLE, SPARSE)
}

const fn whole_dropout(model: &'static str) -> [Peer; 3] {
    whole_with(model, WHOLE_DROPOUT, SPARSE_DROPOUT)
}

const fn whole_with(
    model: &'static str,
    args: &'static [&'static str],
    sparse: &'static [&'static str],
) -> [Peer; 3] {
    let of_sparse = Peer {
        label: "sparse",
        ..peer("pyg", "train_pyg.py", sparse, PYG)
    };
    [
        of_model(peer("dgl", "train_dgl.py", args, DGL), model),
        of_model(peer("pyg", "train_pyg.py", args, PYG), model),
        of_model(of_sparse, model),
    ]
}

// PyG's attention takes no sparse matrix.
const WHOLE_GAT: &[Peer] = &[
    of_model(peer("dgl", "train_dgl.py", WHOLE, DGL), "gat"),
    of_model(peer("pyg", "train_pyg.py", WHOLE, PYG), "gat"),
];
const WHOLE_GAT_DROPOUT: &[Peer] = &[
    of_model(peer("dgl", "train_dgl.py", WHOLE_DROPOUT, DGL), "gat"),
    of_model(peer("pyg", "train_pyg.py", WHOLE_DROPOUT, PYG), "gat"),
];
