//! Whole trainings on the pairs of random graphs: losses, workers, resume, refusals.

#![expect(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

mod random;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use graphtrainer::{Source, TrainContext, TrainError, TrainPlan, TrainSpec, Trained, fit};
use random::typed::{TypedGraph, TypedShape, typed_flatten_meta};
use random::{Graph, Shape, flatten_meta};
use schemas::progress::Progress;
use schemas::{
    Exclude, Fanout, GraphMeta, GraphShard, HardNegatives, PairsMeta, PartPairs, Row, Sampling,
    Split, SplitMeta, hash_int,
};

/// With several workers, the sums over a batch are split differently, and the optimiser carries the
/// differences from step to step.
const WORKERS_TOLERANCE: f64 = 1e-5;

const FANOUTS: [Fanout; 2] = [Fanout::Count(4), Fanout::Count(3)];

/// Options of drawn pairs.
#[derive(Clone, Copy, Debug, Default)]
struct Options {
    weight: bool,
    label: bool,
    hard: bool,
    exclude: Exclude,
}

fn plan(table: &str) -> Result<TrainPlan, TrainError> {
    let spec: TrainSpec = toml::from_str(&format!("output = \"model\"\n{table}")).unwrap();
    let ctx = TrainContext {
        input: Some("memory".into()),
        job_seed: 3,
        transform: None,
        one_hot: std::collections::BTreeMap::new(),
        base: Path::new("").to_owned(),
        fresh: false,
    };
    spec.into_plan(ctx)
}

fn pairs_meta(from: usize, to: usize, options: Options) -> PairsMeta {
    PairsMeta {
        from,
        to,
        relations: vec![0],
        exclude: options.exclude,
        label: options.label,
        weight: options.weight,
        negatives: options.hard,
        split: SplitMeta {
            data_type: "Utf8".to_owned(),
            values: None,
        },
    }
}

/// Returns the metadata of a graph with pairs, whose nodes have neither labels nor splits.
fn with_pairs(mut meta: GraphMeta, pairs: PairsMeta) -> GraphMeta {
    for of_type in &mut meta.types {
        (of_type.label, of_type.split) = (None, None);
    }
    meta.target_type = pairs.from;
    GraphMeta {
        pairs: Some(pairs),
        ..meta
    }
}

/// Draws pairs between the targets of a shard. `fits` tells which pairs there may be.
fn draw_pairs(
    shard: &GraphShard,
    (from, to): (usize, usize),
    options: Options,
    fits: impl Fn(usize, usize) -> bool,
) -> PartPairs {
    let targets = |of: usize| -> Vec<u32> { shard.targets_of(of).collect() };
    let (sources, ends) = (targets(from), targets(to));
    let row = |node: u32| Row::from_index(node as usize);
    let pick =
        |word: u64, of: &[u32]| of[usize::try_from(hash_int(word) % of.len() as u64).unwrap()];
    let mut pairs = PartPairs::default();
    let (mut hard, mut word) = (HardNegatives::default(), 0);
    while pairs.len() < 4 * sources.len() {
        word += 3;
        let (src, dst) = (pick(word, &sources), pick(word + 1, &ends));
        if !fits(src as usize, dst as usize) {
            continue;
        }
        pairs.src.push(row(src));
        pairs.dst.push(row(dst));
        let split = [Split::Train, Split::Train, Split::Val, Split::Test];
        pairs
            .split
            .push(split[usize::try_from(hash_int(word + 2) % 4).unwrap()]);
        hard.nodes
            .extend((0..word % 4).map(|at| row(pick(word ^ hash_int(at), &ends))));
        hard.offset.push(u32::try_from(hard.nodes.len()).unwrap());
    }
    let num_pairs = pairs.len() as u64;
    let numbers = |of: fn(u64) -> f32| (0..num_pairs).map(|at| of(hash_int(at))).collect();
    pairs.label = options
        .label
        .then(|| numbers(|drawn| f32::from(u8::from(drawn % 5 > 0))));
    pairs.weight = options
        .weight
        .then(|| numbers(|drawn| 0.25 + (drawn % 8) as f32 / 4.0));
    pairs.hard = options.hard.then_some(hard);
    pairs.random = ends
        .iter()
        .copied()
        .filter(|&end| !hash_int(end.into()).is_multiple_of(3))
        .map(row)
        .collect();
    pairs
}

/// A graph in which pairs join nodes of one class.
fn untyped(options: Options) -> Source {
    let graph = Graph::new(
        Shape {
            num_nodes: 150,
            num_edges: 700,
            strings: true,
            ..Shape::default()
        },
        6,
    );
    let mut shards = graph.parts(3, &FANOUTS);
    for shard in &mut shards {
        let classes = shard.nodes[0].labels.clone();
        let schemas::Labels::Class(classes) = classes else {
            unreachable!("a random graph has classes")
        };
        let alike = |src: usize, dst: usize| classes[src] == classes[dst] && src != dst;
        shard.pairs = Some(draw_pairs(shard, (0, 0), options, alike));
    }
    let counts = shards.iter().map(GraphShard::split_counts).collect();
    let meta = with_pairs(graph.meta(), pairs_meta(0, 0, options));
    let metas = (meta, flatten_meta(&FANOUTS, Sampling::Uniform));
    Source::new("memory".into(), metas, counts, 1 << 20, move |part| {
        Ok(shards[part].clone())
    })
}

/// Pairs from the first type of a typed graph to the second.
fn typed(options: Options) -> Source {
    let graph = TypedGraph::new(TypedShape::default(), 4);
    let fanouts = graph.all(2);
    let num_nodes = [graph.ids[0].len(), graph.ids[1].len()];
    let shards = (0..3).map(|part| {
        let own =
            |len: usize| (0..u32::try_from(len).unwrap()).filter(move |node| node % 3 == part);
        let mut targets = vec![Vec::new(); graph.meta.types.len()];
        for (of, len) in num_nodes.into_iter().enumerate() {
            targets[of] = own(len).collect();
        }
        let mut shard = graph.shard_of(&targets, &fanouts);
        shard.target_type = 0;
        let any = |src: usize, dst: usize| (src + dst).is_multiple_of(2);
        shard.pairs = Some(draw_pairs(&shard, (0, 1), options, any));
        shard
    });
    let shards: Vec<GraphShard> = shards.collect();
    let counts = shards.iter().map(GraphShard::split_counts).collect();
    let meta = with_pairs(graph.meta.clone(), pairs_meta(0, 1, options));
    let metas = (meta, typed_flatten_meta(&fanouts));
    Source::new("memory".into(), metas, counts, 1 << 20, move |part| {
        Ok(shards[part].clone())
    })
}

fn silent() -> Progress {
    Arc::new(|_| {})
}

fn run(source: &Source, table: &str) -> Trained {
    fit(&plan(table).unwrap(), source, None, &silent()).unwrap()
}

/// Returns the relative distance of two parameter vectors.
fn distance(a: &Trained, b: &Trained) -> f64 {
    let (a, b) = (a.model.flat(), b.model.flat());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let apart = square(&mut a.iter().zip(&b).map(|(a, b)| f64::from(a - b)));
    (apart / square(&mut a.iter().map(|&a| f64::from(a)))).sqrt()
}

#[test]
fn every_decoder_and_loss_learns_which_nodes_are_linked() {
    let source = untyped(Options::default());
    let some = "random = 8";
    let decoders = ["dot", "cosine", "distmult", "mlp"].map(|name| (name, "softmax", some));
    let losses = ["binary_cross_entropy", "bpr", "margin"].map(|name| ("dot", name, some));
    let others = [
        ("dot", "softmax", "all = true"),
        ("dot", "softmax", "random = 0"),
        ("dot", "softmax", "in_batch = false"),
        ("dot", "softmax", "random = 8, by = \"degree\""),
        (
            "dot",
            "binary_cross_entropy",
            "random = 8, by = \"degree\", in_batch = false",
        ),
    ];
    for (decoder, loss, negatives) in decoders.into_iter().chain(losses).chain(others) {
        let table = format!(
            "model = \"sage\"\nhidden = [16, 8]\nepochs = 40\nbatch_size = 64\ndropout = 0.0\n\
             decoder = \"{decoder}\"\nloss = \"{loss}\"\n\
             negatives = {{ {negatives}, evaluation = 20 }}"
        );
        let trained = run(&source, &table);
        // About 21 candidates, a third of them of the pair's class: without learning the mean
        // reciprocal rank is 0.17, and AUC 0.5.
        let (mrr, auc) = (trained.metrics["test_mrr"], trained.metrics["test_auc"]);
        assert!(mrr > 0.25, "{decoder}, {loss}, {negatives}: MRR {mrr}");
        assert!(auc > 0.65, "{decoder}, {loss}, {negatives}: AUC {auc}");
        let candidates = trained.scores["test"].candidates.unwrap();
        assert!((20.0..=21.0).contains(&candidates), "{candidates}");
        assert_eq!(trained.monitor.unwrap().name(), "mrr");
    }
}

#[test]
fn sync_workers_equal_one_worker_with_the_same_sections() {
    let all = Options {
        weight: true,
        hard: true,
        ..Options::default()
    };
    let labelled = Options { label: true, ..all };
    let batch = Options {
        exclude: Exclude::Batch,
        ..all
    };
    let cases = [
        (untyped(all), "model = \"sage\"", "softmax"),
        (untyped(labelled), "model = \"gcn\"", "binary_cross_entropy"),
        (untyped(batch), "model = \"gin\"", "softmax"),
        (typed(all), "model = \"sage\"", "softmax"),
        (typed(batch), "model = \"hgt\"", "bpr"),
    ];
    for (at, (source, model, loss)) in cases.into_iter().enumerate() {
        let by = ["uniform", "degree"][at % 2];
        let table = |workers: usize| {
            format!(
                "{model}\nhidden = [8, 4]\nepochs = 3\nloss = \"{loss}\"\ndecoder = \"mlp\"\n\
                 optimizer = \"sgd\"\nlearning_rate = 0.1\nworkers = {workers}\nbatch_size = {}\n\
                 negatives = {{ in_batch = 8, random = 4, by = \"{by}\", hard = 2, evaluation = 10 \
                 }}",
                48 / workers
            )
        };
        let one = run(&source, &table(1));
        for workers in [2, 3] {
            let many = run(&source, &table(workers));
            let apart = distance(&one, &many);
            assert!(
                apart < WORKERS_TOLERANCE,
                "{model}, {loss}, {workers}: {apart}"
            );
            let (a, b) = (one.metrics["val_loss"], many.metrics["val_loss"]);
            assert!((a - b).abs() < 1e-4 * a.abs(), "{model}, {loss}: {a}, {b}");
        }
    }
}

#[test]
fn pruning_changes_no_loss() {
    for source in [untyped(Options::default()), typed(Options::default())] {
        let table = |pruning: bool| {
            format!(
                "model = \"sage\"\nhidden = [8, 4]\nepochs = 2\nbatch_size = 32\n\
                 optimizer = \"sgd\"\npruning = {pruning}"
            )
        };
        let apart = distance(&run(&source, &table(true)), &run(&source, &table(false)));
        assert!(apart < WORKERS_TOLERANCE, "{apart}");
    }
}

#[test]
fn a_killed_training_ends_with_the_same_bits() {
    let source = untyped(Options {
        weight: true,
        hard: true,
        ..Options::default()
    });
    let table = "model = \"sage\"\nhidden = [8, 4]\nepochs = 7\nbatch_size = 20\n\
                 decoder = \"distmult\"\nnegatives = { hard = 1 }\ncheckpoint_every_steps = 3";
    let whole = run(&source, table);
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = dir.path().join("checkpoint");
    for epoch in [1, 4] {
        let kill: Progress = Arc::new(move |event| {
            assert!(event.phase != "epoch" || event.done < epoch, "killed");
        });
        let work = || {
            fit(
                &plan(table).unwrap(),
                &source,
                Some(checkpoint.clone()),
                &kill,
            )
        };
        assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
    }
    let resumed = fit(&plan(table).unwrap(), &source, Some(checkpoint), &silent()).unwrap();
    assert_eq!(resumed.model.flat(), whole.model.flat());
    assert_eq!(resumed.metrics, whole.metrics);
}

#[test]
fn another_mode_trains_too() {
    let source = untyped(Options::default());
    for mode in ["mode = \"async\"", "mode = \"bounded\"\nstaleness = 1"] {
        let table = format!(
            "model = \"sage\"\nhidden = [8, 4]\nepochs = 2\nbatch_size = 32\nworkers = 2\n{mode}"
        );
        let trained = run(&source, &table);
        assert!(trained.metrics["test_mrr"] > 0.0, "{mode}");
    }
}

#[test]
fn keys_that_do_not_fit_the_pairs_are_named() {
    let check = |options: Options, keys: &str, expected: &str| {
        let table = format!("model = \"sage\"\nepochs = 1\n{keys}");
        let fitted = plan(&table).and_then(|plan| fit(&plan, &untyped(options), None, &silent()));
        let error = fitted
            .map(|trained| trained.best_epoch)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "`{error}` lacks `{expected}`");
    };
    let none = Options::default();
    let widths = "hidden = [8, 4]";
    check(
        none,
        "hidden = [8]",
        "so it has 2 widths, the last one that of the embeddings",
    );
    check(
        none,
        &format!("{widths}\nloss = \"cross_entropy\""),
        "allowed are softmax, ",
    );
    check(
        none,
        &format!("{widths}\nclass_weights = [1.0]"),
        "pairs, which have no classes",
    );
    check(
        none,
        &format!("{widths}\nnegatives = {{ hard = 2 }}"),
        "no listed negatives",
    );
    check(
        none,
        &format!("{widths}\nmonitor = \"accuracy\""),
        "mrr, hits@1, hits@10",
    );
    let labelled = Options {
        label: true,
        ..none
    };
    check(labelled, widths, "so allowed is binary_cross_entropy");
    check(
        none,
        &format!("{widths}\ntemperature = 0.0"),
        "`train.temperature` is 0: allowed is",
    );
    check(
        none,
        &format!("{widths}\nmargin = 2.0"),
        "only `train.loss` = \"margin\" has one",
    );
    check(
        none,
        &format!("{widths}\nnegatives = {{ in_batch = 1 }}"),
        "`train.negatives.in_batch` is 1: allowed is true, false, or 2 to",
    );
    check(
        none,
        &format!("{widths}\nnegatives = {{ evaluation = 0 }}"),
        "`train.negatives.evaluation` is 0",
    );
    check(
        none,
        &format!("{widths}\nnegatives = {{ in_batch = false, random = 0 }}"),
        "the loss compares a pair with negatives",
    );
}

#[test]
fn negatives_without_effect_are_named() {
    let check = |keys: &str, expected: &str| {
        let table = format!("model = \"sage\"\nepochs = 1\nhidden = [8, 4]\n{keys}");
        let error = plan(&table).unwrap_err().to_string();
        assert!(error.contains(expected), "`{error}` lacks `{expected}`");
    };
    check(
        "batch_size = 1\nnegatives = { random = 0 }",
        "the loss compares a pair with negatives: give `in_batch` (and a `batch_size` above 1)",
    );
    for key in ["hard = 2", "random = 8", "in_batch = true"] {
        check(
            &format!("negatives = {{ all = true, {key} }}"),
            "with `all`, all random negatives of a part are negatives, and no others",
        );
    }
}

#[test]
fn draws_by_degree_need_random_negatives() {
    for negatives in ["random = 0", "all = true"] {
        let table = format!(
            "model = \"sage\"\nepochs = 1\nhidden = [8, 4]\nnegatives = {{ {negatives}, by = \
             \"degree\" }}"
        );
        let error = plan(&table).unwrap_err().to_string();
        let expected = "`train.negatives.by` is \"degree\": it needs random negatives";
        assert!(error.contains(expected), "{error}");
    }
}

#[test]
fn keys_of_links_need_pairs() {
    let graph = Graph::new(Shape::default(), 1);
    let shards = graph.parts(1, &FANOUTS);
    let counts = shards.iter().map(GraphShard::split_counts).collect();
    let metas = (graph.meta(), flatten_meta(&FANOUTS, Sampling::Uniform));
    let source = Source::new("memory".into(), metas, counts, 0, move |part| {
        Ok(shards[part].clone())
    });
    for (keys, expected) in [
        ("decoder = \"dot\"", "`train.decoder` = \"dot\""),
        ("temperature = 0.5", "`train.temperature` = 0.5"),
        ("negatives = { random = 3 }", "`train.negatives` = given"),
    ] {
        let table = format!("model = \"sage\"\nepochs = 1\nhidden = [8]\n{keys}");
        let error = fit(&plan(&table).unwrap(), &source, None, &silent())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(expected) && error.contains("no pairs"),
            "{error}"
        );
    }
}
