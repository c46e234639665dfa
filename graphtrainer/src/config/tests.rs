//! Tests the errors of tables `[train]` that are not valid.

use super::*;
use crate::server::Consistency;

/// Makes the plan of a table.
pub(crate) fn plan(text: &str) -> Result<TrainPlan, String> {
    let spec: TrainSpec = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    let ctx = TrainContext {
        input: Some("features".into()),
        job_seed: 7,
        transform: None,
        one_hot: std::collections::BTreeMap::new(),
        base: "/job".into(),
        fresh: false,
    };
    spec.into_plan(ctx).map_err(|error| {
        assert_eq!(error.kind(), schemas::ErrorKind::Usage);
        error.to_string()
    })
}

fn check(extra: &str, expected: &str) {
    let text = format!("model = \"gat\"\nepochs = 3\nhidden = [16]\noutput = \"m\"\n{extra}");
    let got = plan(&text).expect_err("the table is wrong");
    assert!(got.contains(expected), "`{got}` lacks `{expected}`");
}

#[test]
fn wrong_keys_are_named_with_what_is_allowed() {
    check("hiden = [3]", "unknown field `hiden`, expected one of");
    check(
        "norm = \"group\"",
        "unknown variant `group`, expected one of `none`, `batch`, `layer`",
    );
    check(
        "monitor = \"mcc\"",
        "unknown variant `mcc`, expected one of `accuracy`",
    );
    check(
        "optimizer = \"lion\"",
        "expected one of `sgd`, `adam`, `adamw`",
    );
    check(
        "mode = \"bounded\"",
        "`train.staleness` is missing: how many steps",
    );
    check(
        "staleness = 2",
        "`train.staleness` is 2: only mode \"bounded\"",
    );
    if !gnn::Device::HAS_GPU {
        check(
            "device = \"gpu\"",
            "`train.device` is \"gpu\": this program was built without GPUs: build it with `cargo \
             build --release --features gpu`, or take one of",
        );
    }
    check(
        "dropout = 1.0",
        "`train.dropout` is 1: allowed is 0 to below 1",
    );
    check(
        "input_dropout = -0.1",
        "`train.input_dropout` is -0.1: allowed",
    );
    check(
        "learning_rate = 0",
        "`train.learning_rate` is 0: allowed is above 0, at most 1000",
    );
    check("learning_rate = nan", "`train.learning_rate` is NaN");
    check("weight_decay = -1", "`train.weight_decay` is -1");
    check(
        "momentum = 0.9",
        "`train.momentum` is 0.9: only optimizer \"sgd\"",
    );
    check(
        "optimizer = \"sgd\"\nmomentum = 1",
        "`train.momentum` is 1: allowed is 0 to below 1",
    );
}

#[test]
fn wrong_schedules_are_named_with_what_is_allowed() {
    let check_schedule = |keys: &str, expected: &str| {
        check(&format!("schedule = {{ {keys} }}"), expected);
    };
    check_schedule(
        "kind = \"exp\"",
        "expected one of `constant`, `step`, `cosine`, `linear`",
    );
    check_schedule(
        "kind = \"cosine\", warmup = 3",
        "`train.schedule.warmup` is 3: allowed is 0 to below `train.epochs`, 3",
    );
    check_schedule(
        "kind = \"cosine\", warmup = nan",
        "`train.schedule.warmup` is NaN",
    );
    check_schedule(
        "kind = \"step\"",
        "`train.schedule.every` is missing: epochs between two falls",
    );
    check_schedule(
        "kind = \"step\", every = 0",
        "`train.schedule.every` is 0: allowed is above 0, at most 1000000",
    );
    check_schedule(
        "kind = \"step\", every = 2, factor = -1",
        "`train.schedule.factor` is -1: allowed is above 0, at most 1000",
    );
    check_schedule(
        "kind = \"linear\", every = 2",
        "`train.schedule.every` is 2: only kind \"step\" has it",
    );
    check_schedule(
        "kind = \"linear\", floor = 1.5",
        "`train.schedule.floor` is 1.5: allowed is 0 to 1",
    );
    check_schedule(
        "kind = \"step\", every = 2, floor = 0.1",
        "`train.schedule.floor` is 0.1: only kinds \"cosine\" and \"linear\" have it",
    );
    check(
        "clip_norm = 0",
        "`train.clip_norm` is 0: allowed is above 0, at most 1000000000",
    );
    check("clip_norm = inf", "`train.clip_norm` is inf");
}

#[test]
fn wrong_class_weights_are_named_with_what_is_allowed() {
    let none = "a list of numbers, one per class, or \"balanced\"";
    check("class_weights = \"fair\"", none);
    check("class_weights = 3", none);
    check(
        "class_weights = [1, -0.5]",
        "`train.class_weights` is -0.5: allowed is 0 to 1000000000",
    );
    check("class_weights = [1, nan]", "`train.class_weights` is NaN");
    check(
        "class_weights = [0, 0]",
        "`train.class_weights` is [0.0, 0.0]: at least one weight must be above 0",
    );
}

#[test]
fn wrong_sizes_are_named_with_what_is_allowed() {
    check(
        "heads = 3",
        "`train.heads` is 3: has to divide the widths in `hidden`, [16]",
    );
    check("heads = 0", "`train.heads` is 0: allowed is 1 to 1024");
    check(
        "aggregator = \"max\"",
        "`train.aggregator` is \"max\": only sage",
    );
    check(
        "batch_size = 0",
        "`train.batch_size` is 0: allowed is 1 to 4294967294",
    );
    check(
        "patience = 0",
        "`train.patience` is 0: allowed is 1 to 1000000",
    );
    check(
        "workers = 1025",
        "`train.workers` is 1025: allowed is 1 to 1024",
    );
    check(
        "workers = 2\nnorm = \"batch\"",
        "`train.workers` is 2: with `train.norm` = \"batch\" mode \"sync\" allows 1",
    );
    check("servers = 0", "`train.servers` is 0");
    check(
        "evaluate_every = 0",
        "`train.evaluate_every` is 0: allowed is 1 to 1000000",
    );
    check("checkpoint_every = 0", "`train.checkpoint_every` is 0");
    check(
        "checkpoint_every_steps = 0",
        "`train.checkpoint_every_steps` is 0: allowed is 1 to 1000000000000",
    );
    check(
        "input = \"gs://bucket/x\"",
        "`train.input`: gs://bucket/x is the URL of a store that is not supported",
    );
    check("layers = 0", "`train.layers` is 0");
    check("gradient_format = \"f16\"", "unknown variant `f16`");
}

#[test]
fn what_one_worker_may_several_may_out_of_step() {
    for extra in ["", "mode = \"async\"\nworkers = 4"] {
        let text =
            format!("model = \"gcn\"\nepochs = 3\noutput = \"m\"\nnorm = \"batch\"\n{extra}");
        assert!(plan(&text).is_ok(), "{extra}");
    }
}

#[test]
fn attention_keys_need_attention() {
    for extra in ["heads = 2", "out_heads = 2", "attention_dropout = 0.5"] {
        let text = format!("model = \"gcn\"\nepochs = 3\noutput = \"m\"\n{extra}");
        let got = plan(&text).expect_err("gcn has no attention");
        assert!(
            got.contains("only gat, gatv2, simple_hgn and hgt have attention"),
            "{got}"
        );
    }
    let got = plan("model = \"gcn\"\nepochs = 1\nhidden = [0]\noutput = \"m\"").unwrap_err();
    assert!(got.contains("`train.hidden` is 0"), "{got}");
}

#[test]
fn keys_of_typed_graphs_need_their_kind() {
    let check_kind = |table: &str, expected: &str| {
        let text = format!("epochs = 3\nhidden = [16]\noutput = \"m\"\n{table}");
        let got = plan(&text).expect_err("the table is wrong");
        assert!(got.contains(expected), "`{got}` lacks `{expected}`");
    };
    check_kind(
        "model = \"han\"",
        "unknown variant `han`, expected one of `gcn`, `sage`, `gat`, `gatv2`, `gin`, `lightgcn`, `rgcn`, \
         `simple_hgn`, `hgt`",
    );
    check_kind(
        "model = \"hgt\"\nrelation_aggregator = \"mean\"",
        "`train.relation_aggregator` is \"mean\": only gcn, sage, gat, gatv2 and gin have an output",
    );
    check_kind(
        "model = \"sage\"\nrelation_aggregator = \"first\"",
        "unknown variant `first`, expected one of `sum`, `mean`, `max`",
    );
    check_kind(
        "model = \"sage\"\nbases = 4",
        "`train.bases` is 4: only rgcn has bases",
    );
    check_kind(
        "model = \"rgcn\"\nbases = 0",
        "`train.bases` is 0: allowed is 1 to 1048576",
    );
    check_kind(
        "model = \"hgt\"\nrelation_dim = 8",
        "`train.relation_dim` is 8: only simple_hgn has embeddings of relations",
    );
    check_kind(
        "model = \"hgt\"\nattention_residual = 0.1",
        "`train.attention_residual` is 0.1: only simple_hgn",
    );
    check_kind(
        "model = \"simple_hgn\"\nattention_residual = 1.0",
        "`train.attention_residual` is 1: allowed is 0 to below 1",
    );
    check_kind(
        "model = \"hgt\"\nresidual = true",
        "`train.residual` is true: hgt has a residual of its own, so allowed is false",
    );
    check_kind(
        "model = \"rgcn\"\nheads = 2",
        "`train.heads` is 2: only gat, gatv2, simple_hgn and hgt have attention",
    );
}

#[test]
fn defaults_are_filled_in_and_paths_resolved() {
    let plan = plan("model = \"sage\"\nepochs = 3\noutput = \"m\"").unwrap();
    assert_eq!(plan.input(), Path::new("/job/features"));
    assert_eq!(plan.output(), Path::new("/job/m"));
    assert_eq!(
        (plan.result.seed, plan.result.workers, plan.result.epochs),
        (7, 1, 3)
    );
    assert_eq!(plan.result.consistency, Consistency::Sync);
    assert_eq!(plan.part_cache_bytes(), 256 << 20);
}

#[test]
fn kept_parts_take_a_quarter_of_a_small_memory_budget() {
    let text = "model = \"sage\"\nepochs = 3\noutput = \"m\"";
    let small = plan(text).unwrap().with_memory_budget(512 << 20);
    assert_eq!(small.part_cache_bytes(), 64 << 20);
    let large = plan(text).unwrap().with_memory_budget(4 << 30);
    assert_eq!(large.part_cache_bytes(), 256 << 20);
    let set = plan(&format!("{text}\ncache_bytes = \"1GiB\"")).unwrap();
    let set = set.with_memory_budget(512 << 20);
    assert_eq!(set.part_cache_bytes(), 512 << 20);
}

#[test]
fn a_job_without_flatten_needs_an_input() {
    let spec: TrainSpec = toml::from_str("model = \"gcn\"\nepochs = 3\noutput = \"m\"").unwrap();
    let ctx = TrainContext {
        input: None,
        job_seed: 0,
        transform: None,
        one_hot: std::collections::BTreeMap::new(),
        base: PathBuf::new(),
        fresh: false,
    };
    let error = spec.into_plan(ctx).unwrap_err().to_string();
    assert!(error.starts_with("`train.input` is missing"), "{error}");
}

#[test]
fn streamed_training_reads_no_files() {
    let table = "model = \"gcn\"\nepochs = 3\noutput = \"m\"\nstreamed = true\ninput = \"f\"";
    let spec: TrainSpec = toml::from_str(table).unwrap();
    let ctx = TrainContext {
        input: Some("work/store".into()),
        job_seed: 0,
        transform: None,
        one_hot: std::collections::BTreeMap::new(),
        base: PathBuf::new(),
        fresh: false,
    };
    assert_eq!(
        spec.into_plan(ctx).unwrap_err().to_string(),
        "`train.input` is f: leave it out: with `train.streamed` nothing is read from files"
    );
}

#[test]
fn all_mistakes_are_found() {
    let text = "model = \"gcn\"\nepochs = 0\noutput = \"m\"\ndropout = 2.0\nheads = 2\n\
                staleness = 1\nmomentum = 0.9\nhidden = [0, 9]\nschedule = { kind = \"step\" }";
    let spec: TrainSpec = toml::from_str(text).unwrap();
    let found = spec.mistakes(true);
    let keys: Vec<_> = found
        .iter()
        .map(|error| error.to_string().split('`').nth(1).unwrap().to_owned())
        .collect();
    assert_eq!(
        keys,
        [
            "train.epochs",
            "train.hidden",
            "train.dropout",
            "train.heads",
            "train.staleness",
            "train.momentum",
            "train.schedule.every",
        ]
    );
}
