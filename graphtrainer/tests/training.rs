//! Whole trainings on random graphs: workers, modes, resume, failures.

#![expect(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

mod random;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex};

use graphtrainer::{
    EpochReport, Source, TrainContext, TrainError, TrainPlan, TrainSpec, Trained, fit,
};
use random::{Graph, Shape, flatten_meta};
use schemas::progress::Progress;
use schemas::{DenseRows, Fanout, Features, GraphShard, Neighborhoods, Sampling, Split};

/// With several workers, the sums over a batch are split differently, and the optimiser carries the
/// differences from step to step.
const WORKERS_TOLERANCE: f64 = 1e-5;

const FANOUTS: [Fanout; 2] = [Fanout::Count(4), Fanout::Count(3)];

fn plan(table: &str) -> TrainPlan {
    let spec: TrainSpec = toml::from_str(&format!("output = \"model\"\n{table}")).unwrap();
    let ctx = TrainContext {
        input: Some("memory".into()),
        job_seed: 3,
        transform: None,
        one_hot: std::collections::BTreeMap::new(),
        base: Path::new("").to_owned(),
        fresh: false,
    };
    spec.into_plan(ctx).unwrap()
}

fn graph() -> Graph {
    Graph::new(
        Shape {
            num_nodes: 200,
            num_edges: 900,
            ..Shape::default()
        },
        6,
    )
}

fn source_of(
    graph: &Graph,
    cache_bytes: usize,
    read: impl Fn(usize, GraphShard) -> Result<GraphShard, TrainError> + Send + Sync + 'static,
) -> Source {
    let shards = graph.parts(3, &FANOUTS);
    let counts = shards.iter().map(GraphShard::split_counts).collect();
    let metas = (graph.meta(), flatten_meta(&FANOUTS, Sampling::Uniform));
    let read = move |idx: usize| read(idx, shards[idx].clone());
    Source::new("memory".into(), metas, counts, cache_bytes, read)
}

fn source() -> Source {
    source_of(&graph(), 1 << 20, |_, shard| Ok(shard))
}

/// The same with all features multiplied by a factor.
fn scaled(factor: f32) -> Source {
    source_of(&graph(), 1 << 20, move |_, mut shard| {
        if let Features::Dense { values, .. } = &mut shard.nodes[0].features {
            values.iter_mut().for_each(|value| *value *= factor);
        }
        Ok(shard)
    })
}

/// Notes the number of each epoch that is trained.
fn noted(epochs: &Arc<Mutex<Vec<u64>>>) -> Progress {
    let epochs = Arc::clone(epochs);
    Arc::new(move |event| {
        if event.phase == "epoch" {
            epochs.lock().unwrap().push(event.done);
        }
    })
}

fn silent() -> Progress {
    Arc::new(|_| {})
}

fn run(table: &str) -> Trained {
    fit(&plan(table), &source(), None, &silent()).unwrap()
}

/// Returns the relative distance of two parameter vectors.
fn distance(a: &Trained, b: &Trained) -> f64 {
    let (a, b) = (a.model.flat(), b.model.flat());
    let square = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let apart = square(&mut a.iter().zip(&b).map(|(a, b)| f64::from(a - b)));
    (apart / square(&mut a.iter().map(|&a| f64::from(a)))).sqrt()
}

#[test]
fn workers_whose_own_targets_come_again_equal_one_worker() {
    // Three targets in global batches of two: the worker with one target shares its batch in some
    // epochs and not in others.
    let mut graph = graph();
    let train = graph
        .split
        .iter_mut()
        .filter(|split| **split == Split::Train);
    train.skip(3).for_each(|split| *split = Split::None);
    for seed in 0..8 {
        let run = |workers: usize| {
            let table = format!(
                "model = \"sage\"\nhidden = [8]\nepochs = 6\nseed = {seed}\noptimizer = \"sgd\"\n\
                 workers = {workers}\nbatch_size = {}",
                2 / workers
            );
            let source = source_of(&graph, 1 << 20, |_, shard| Ok(shard));
            fit(&plan(&table), &source, None, &silent()).unwrap()
        };
        assert!(
            distance(&run(2), &run(1)) < WORKERS_TOLERANCE,
            "seed {seed}"
        );
    }
}

#[test]
fn sync_workers_equal_one_worker_with_the_same_global_batches() {
    let shape = Shape {
        num_nodes: 200,
        num_edges: 900,
        strings: true,
        hub_edges: 150,
        weights: true,
        edge_dim: Some(2),
        ..Shape::default()
    };
    let graph = Graph::new(shape, 6);
    // GATv2's scores are linear while no sum changes its sign. Some gradients are then 0 except for
    // rounding, which Adam would enlarge to full steps.
    for model in [
        "model = \"sage\"\nhidden = [8]",
        "model = \"sage\"\nhidden = [8]\naggregator = \"max\"\nnorm = \"layer\"",
        "model = \"gcn\"\nhidden = [8, 8]\ninput_dropout = 0.2\noptimizer = \"sgd\"\nmomentum = 0.9",
        "model = \"gat\"\nhidden = [8]\nheads = 2\nattention_dropout = 0.3\nweight_decay = 0.001",
        "model = \"gatv2\"\nhidden = [8]\nheads = 2\nattention_dropout = 0.3\noptimizer = \"sgd\"\nlearning_rate = 0.1",
        "model = \"gin\"\nhidden = [8]\noptimizer = \"sgd\"\nlearning_rate = 0.001\nresidual = true",
        "model = \"sage\"\nhidden = [8]\nclip_norm = 0.1\n\
         schedule = { kind = \"cosine\", warmup = 1.5, floor = 0.1 }",
        // Two thirds of the targets have weight 0, and all targets of one worker's batch may.
        "model = \"gcn\"\nhidden = [8]\nclass_weights = [0, 3, 0]",
        "model = \"sage\"\nhidden = [8]\nclass_weights = \"balanced\"\nclip_norm = 0.5",
    ] {
        let all = [(1, 24), (2, 12), (3, 8), (4, 6)].map(|(workers, batch_size)| {
            let table =
                format!("{model}\nepochs = 6\nworkers = {workers}\nbatch_size = {batch_size}");
            let source = source_of(&graph, 1 << 20, |_, shard| Ok(shard));
            fit(&plan(&table), &source, None, &silent()).unwrap()
        });
        for other in &all[1..] {
            for (one, many) in all[0].history.iter().zip(&other.history) {
                let error = (one.loss - many.loss).abs() / one.loss;
                assert!(
                    error < WORKERS_TOLERANCE,
                    "{model}: {} {}",
                    one.loss,
                    many.loss
                );
            }
            assert_eq!(other.best_epoch, all[0].best_epoch);
            let apart = distance(&all[0], other);
            assert!(
                apart < WORKERS_TOLERANCE,
                "{model}: weights are {apart} apart"
            );
        }
    }
}

#[test]
fn pruning_partitioning_servers_and_caches_change_nothing() {
    let table = "model = \"gcn\"\nhidden = [8]\nepochs = 4\nbatch_size = 16\nworkers = 2\n";
    let plain = run(table);
    for tuning in [
        "edge_partitioning = false",
        "servers = 3",
        "cache_bytes = \"0B\"",
    ] {
        assert_eq!(
            run(&format!("{table}{tuning}")).model.flat(),
            plain.model.flat(),
            "{tuning}"
        );
    }
    assert!(distance(&run(&format!("{table}pruning = false")), &plain) < WORKERS_TOLERANCE);
}

/// The twin of class weights: a target with a whole weight is repeated that many times.
#[test]
fn a_class_of_weight_two_counts_like_one_that_stands_twice() {
    let graph = graph();
    let train = |parts: &[&[u32]], keys: &str| {
        let shards: Vec<GraphShard> = parts.iter().map(|own| graph.shard(own, &FANOUTS)).collect();
        let counts = shards.iter().map(GraphShard::split_counts).collect();
        let metas = (graph.meta(), flatten_meta(&FANOUTS, Sampling::Uniform));
        let read = move |idx: usize| Ok(shards[idx].clone());
        let source = Source::new("memory".into(), metas, counts, 1 << 20, read);
        // Without dropout, because copies of a node get the same mask; all targets in one step.
        let table = format!(
            "model = \"gcn\"\nhidden = [8]\ndropout = 0\nepochs = 5\nbatch_size = 999\n{keys}"
        );
        fit(&plan(&table), &source, None, &silent()).unwrap()
    };
    let schemas::Labels::Class(classes) = &graph.labels else {
        panic!("classes");
    };
    let all: Vec<u32> = (0..200).collect();
    let twice: Vec<u32> = all
        .iter()
        .copied()
        .filter(|&node| classes[node as usize] == 1)
        .collect();
    let copied = train(&[&all, &twice], "");
    let weighted = train(&[&all], "class_weights = [1, 2, 1]");
    let plain = train(&[&all], "");
    assert!(distance(&weighted, &copied) < WORKERS_TOLERANCE);
    assert!(distance(&weighted, &plain) > 0.01);
    let loss = |trained: &Trained| trained.history[4].loss;
    assert!((loss(&weighted) - loss(&copied)).abs() < WORKERS_TOLERANCE);
    // Only the ratios of weights matter.
    let halved = train(&[&all], "class_weights = [0.5, 1, 0.5]");
    assert!(distance(&weighted, &halved) < WORKERS_TOLERANCE);
}

#[test]
fn balanced_weights_are_those_of_the_train_targets_of_all_parts() {
    let mut graph = graph();
    let schemas::Labels::Class(classes) = &mut graph.labels else {
        panic!("classes");
    };
    // Makes the classes unbalanced: most of class 0 become class 1.
    for class in classes.iter_mut().step_by(2) {
        *class = (*class).max(1);
    }
    let mut counts = [0.0_f32; 3];
    for (&class, split) in classes.iter().zip(&graph.split) {
        if *split == schemas::Split::Train {
            counts[class as usize] += 1.0;
        }
    }
    let share = counts.iter().sum::<f32>() / 3.0;
    let list = counts.map(|count| share / count);
    let table = "model = \"gcn\"\nhidden = [8]\nepochs = 3\nbatch_size = 20\nclass_weights = ";
    let train = |weights: &str| {
        let source = source_of(&graph, 1 << 20, |_, shard| Ok(shard));
        fit(
            &plan(&format!("{table}{weights}")),
            &source,
            None,
            &silent(),
        )
        .unwrap()
    };
    let balanced = train("\"balanced\"");
    assert!(distance(&balanced, &train(&format!("{list:?}"))) < WORKERS_TOLERANCE);
    assert!(distance(&balanced, &train("[1, 1, 1]")) > 0.01);
}

#[test]
fn an_epoch_reports_its_step_size_and_the_gradients_before_they_are_clipped() {
    let table = "model = \"sage\"\nhidden = [8]\nlearning_rate = 0.1\nepochs = 4\nbatch_size = 50\n\
                 schedule = { kind = \"linear\" }\n";
    let rates = |trained: &Trained| -> Vec<f32> {
        trained
            .history
            .iter()
            .map(|epoch| epoch.learning_rate)
            .collect()
    };
    // Two steps per epoch, eight in all; the reported rate is that of the second step.
    let trained = run(table);
    for (rate, wanted) in rates(&trained).iter().zip([0.0875, 0.0625, 0.0375, 0.0125]) {
        assert!((rate - wanted).abs() < 1e-6, "{rate} {wanted}");
    }
    let clipped = run(&format!("{table}clip_norm = 1e-3"));
    for epoch in &clipped.history {
        assert!(epoch.gradient_norm > 0.01, "{}", epoch.gradient_norm);
    }
    assert!(distance(&trained, &clipped) > 1e-4);
    let constant = run("model = \"sage\"\nhidden = [8]\nepochs = 2");
    assert_eq!(rates(&constant), [0.01, 0.01]);
}

#[test]
fn every_mode_learns() {
    let shape = Shape {
        hint: 2.0,
        num_nodes: 600,
        num_edges: 2700,
        ..Shape::default()
    };
    let easy = Graph::new(shape, 6);
    for mode in [
        "mode = \"sync\"",
        "mode = \"async\"",
        "mode = \"bounded\"\nstaleness = 1",
    ] {
        for model in ["gcn", "sage"] {
            let table = format!(
                "model = \"{model}\"\nhidden = [16]\nepochs = 30\nbatch_size = 10\nworkers = 3\n\
                 dropout = 0.2\n{mode}"
            );
            let source = source_of(&easy, 1 << 20, |_, shard| Ok(shard));
            let trained = fit(&plan(&table), &source, None, &silent()).unwrap();
            let (first, last) = (&trained.history[0], &trained.history[29]);
            assert!(
                last.loss < 0.8 * first.loss,
                "{mode} {model}: {} {}",
                first.loss,
                last.loss
            );
            let accuracy = trained.metrics["test_accuracy"];
            assert!(
                accuracy > 0.6,
                "{mode} {model}: a third is chance, not {accuracy}"
            );
        }
    }
}

#[test]
fn one_more_worker_than_targets_is_no_problem() {
    for mode in ["mode = \"sync\"", "mode = \"async\""] {
        let table = format!(
            "model = \"sage\"\nhidden = [4]\nepochs = 3\nbatch_size = 99\nworkers = 7\n{mode}"
        );
        assert_eq!(run(&table).history.len(), 3);
    }
}

/// Runs until an epoch is reported, then panics.
fn run_until(table: &str, epoch: u64, checkpoint: &Path) -> bool {
    let kill: Progress = Arc::new(move |event| {
        assert!(event.phase != "epoch" || event.done != epoch, "killed");
    });
    let work = || fit(&plan(table), &source(), Some(checkpoint.to_owned()), &kill);
    catch_unwind(AssertUnwindSafe(work)).is_err()
}

#[test]
fn a_killed_training_ends_with_the_same_bits() {
    for model in [
        "model = \"sage\"\nhidden = [8]\noptimizer = \"adamw\"\nweight_decay = 0.01",
        "model = \"gcn\"\nhidden = [8]\nnorm = \"batch\"\npatience = 6",
        "model = \"gin\"\nhidden = [8]\noptimizer = \"sgd\"\nmomentum = 0.5\nlearning_rate = 0.001\ncheckpoint_every = 2",
    ] {
        let table = format!("{model}\nepochs = 9\nbatch_size = 20");
        let whole = run(&table);
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = dir.path().join("checkpoint");
        let mut killed = 0;
        for epoch in [1, 4, 5] {
            killed += usize::from(run_until(&table, epoch, &checkpoint));
        }
        assert_eq!(killed, 3);
        let source = source();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let resumed = fit(&plan(&table), &source, Some(checkpoint), &noted(&seen)).unwrap();
        assert!(
            seen.lock().unwrap()[0] > 4,
            "finished steps are not repeated"
        );
        assert_eq!(resumed.model.flat(), whole.model.flat(), "{table}");
        assert_eq!(resumed.model.buffers(), whole.model.buffers());
        assert_eq!(resumed.metrics, whole.metrics);
        assert_eq!(resumed.best_epoch, whole.best_epoch);
        let losses = |t: &Trained| {
            t.history
                .iter()
                .map(|e| (e.epoch, e.loss))
                .collect::<Vec<_>>()
        };
        let apart = losses(&resumed)
            .iter()
            .zip(losses(&whole))
            .any(|(a, b)| a.0 != b.0 || (a.1 - b.1).abs() > f64::EPSILON);
        assert!(!apart && resumed.history.len() == whole.history.len());
    }
}

/// Returns everything about a training that a kill must not change, with floats as bits.
fn bits(trained: &Trained) -> impl PartialEq + std::fmt::Debug + use<> {
    let flat: Vec<u32> = trained.model.flat().iter().map(|v| v.to_bits()).collect();
    let epoch = |e: &EpochReport| {
        let val: Vec<_> = e
            .val
            .iter()
            .map(|(name, v)| (name.clone(), v.to_bits()))
            .collect();
        let step = (e.learning_rate.to_bits(), e.gradient_norm.to_bits());
        (e.epoch, e.loss.to_bits(), val, step)
    };
    let history: Vec<_> = trained.history.iter().map(epoch).collect();
    (
        flat,
        history,
        trained.best_epoch,
        format!("{:?}", trained.metrics),
    )
}

/// Trainings of 5 steps per epoch that use all state kept between steps.
const STEPPED: [&str; 3] = [
    "model = \"sage\"\nhidden = [8]\noptimizer = \"adamw\"\nweight_decay = 0.01\nclip_norm = 0.2\n\
     batch_size = 10\nworkers = 2\nservers = 2\nclass_weights = \"balanced\"\n\
     schedule = { kind = \"cosine\", warmup = 1.5 }",
    "model = \"gcn\"\nhidden = [8]\nnorm = \"batch\"\nbatch_size = 20\nevaluate_every = 2\npatience = 2",
    "model = \"gin\"\nhidden = [8]\noptimizer = \"sgd\"\nmomentum = 0.5\nlearning_rate = 0.001\n\
     batch_size = 20\nschedule = { kind = \"step\", every = 1.4, factor = 0.5 }",
];

#[test]
fn a_training_killed_within_an_epoch_ends_with_the_same_bits() {
    for model in STEPPED {
        let table = format!("{model}\nepochs = 6\ncheckpoint_every = 99\n");
        let whole = bits(&run(&table));
        // The only checkpoint before the kill after epoch 2 is the one after `steps` steps; with 10
        // steps, it is the end of the epoch.
        for (steps, next) in [(6, 2), (7, 2), (8, 2), (9, 2), (10, 3)] {
            let stepped = format!("{table}checkpoint_every_steps = {steps}");
            let dir = tempfile::tempdir().unwrap();
            let checkpoint = dir.path().join("checkpoint");
            assert!(run_until(&stepped, 2, &checkpoint));
            let seen = Arc::new(Mutex::new(Vec::new()));
            let resumed = fit(&plan(&stepped), &source(), Some(checkpoint), &noted(&seen)).unwrap();
            assert_eq!(
                seen.lock().unwrap()[0],
                next,
                "finished steps are not repeated"
            );
            assert_eq!(bits(&resumed), whole, "{stepped}");
        }
    }
}

#[test]
fn a_training_that_fails_again_and_again_ends_with_the_same_bits() {
    for model in STEPPED {
        let table = format!("{model}\nepochs = 6\n");
        let whole = bits(&run(&table));
        let stepped = plan(&format!("{table}checkpoint_every_steps = 1"));
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = dir.path().join("checkpoint");
        let mut failures = 0;
        let ended = loop {
            let reads = Mutex::new(0);
            // Enough reads for some steps: parts that are read ahead, and an evaluation.
            let source = source_of(&graph(), 0, move |_, shard| {
                *reads.lock().unwrap() += 1;
                if *reads.lock().unwrap() < 22 {
                    return Ok(shard);
                }
                Err(TrainError::Undefined {
                    input: "disk".into(),
                    metric: "on fire",
                    why: "it rains",
                })
            });
            match fit(&stepped, &source, Some(checkpoint.clone()), &silent()) {
                Ok(trained) => break trained,
                Err(_) => failures += 1,
            }
            assert!(failures < 60, "every try gets further");
        };
        assert!(failures > 0, "{model}");
        assert_eq!(bits(&ended), whole, "{model}");
    }
}

#[test]
fn a_failure_anywhere_ends_the_training_with_its_error() {
    let table = "model = \"sage\"\nhidden = [8]\nepochs = 50\nbatch_size = 8\nworkers = 3";
    for mode in [
        "mode = \"sync\"",
        "mode = \"async\"",
        "mode = \"bounded\"\nstaleness = 1",
    ] {
        for panics in [true, false] {
            let reads = Mutex::new(0);
            let source = source_of(&graph(), 0, move |idx, shard| {
                *reads.lock().unwrap() += 1;
                if *reads.lock().unwrap() < 40 {
                    return Ok(shard);
                }
                assert!(!panics, "a bug in reading part {idx}");
                Err(TrainError::Undefined {
                    input: "disk".into(),
                    metric: "on fire",
                    why: "it rains",
                })
            });
            let plan = plan(&format!("{table}\n{mode}"));
            let work = AssertUnwindSafe(|| fit(&plan, &source, None, &silent()));
            match catch_unwind(work) {
                Err(_) => assert!(panics, "{mode}"),
                Ok(ended) => assert_eq!(
                    ended.unwrap_err().to_string(),
                    "metric on fire is undefined on the val split of disk: it rains",
                    "{mode}, panics: {panics}"
                ),
            }
        }
    }
}

#[test]
fn a_broken_shard_ends_the_training() {
    let source = source_of(&graph(), 0, |idx, mut shard| {
        if idx == 2 {
            shard.edges[0].in_degree.fill(0);
        }
        Ok(shard)
    });
    let table = "model = \"sage\"\nhidden = [8]\nepochs = 5\nbatch_size = 8\nworkers = 2";
    let error = fit(&plan(table), &source, None, &silent()).unwrap_err();
    assert!(
        error.to_string().contains("block field `in_degree`"),
        "{error}"
    );
}

#[test]
fn a_loss_that_leaves_the_numbers_is_an_error() {
    let mut graph = graph();
    graph.labels = schemas::Labels::Number((0..200_u8).map(f32::from).collect());
    let table = "model = \"sage\"\nhidden = [8]\nepochs = 50\noptimizer = \"sgd\"\n\
                 learning_rate = 1000";
    let source = source_of(&graph, 0, |_, shard| Ok(shard));
    let error = fit(&plan(table), &source, None, &silent()).unwrap_err();
    assert!(matches!(error, TrainError::Diverged { .. }), "{error}");
}

#[test]
fn parameters_that_leave_the_numbers_are_an_error_before_a_checkpoint_is_written() {
    // The only loss is that of the first weights, which is finite; the update then subtracts 1000
    // times a gradient as large as the features.
    let table = "model = \"sage\"\nhidden = [8]\nepochs = 1\nbatch_size = 999\n\
                 optimizer = \"sgd\"\nlearning_rate = 1000";
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = dir.path().join("checkpoint");
    let error = fit(
        &plan(table),
        &scaled(1e37),
        Some(checkpoint.clone()),
        &silent(),
    );
    let error = error.unwrap_err().to_string();
    assert!(
        error.starts_with("training diverged in epoch 1: a value of `convs.0.lin_l.weight` is ")
            && error.ends_with("`train.learning_rate` is 1000, try a lower one"),
        "{error}"
    );
    assert!(!checkpoint.exists());
}

/// Features of 1e18 make finite weights whose logits overflow: the accuracy is a number, the losses
/// are not.
const OVERFLOWING: &str = "model = \"gcn\"\nhidden = [8]\nbatch_size = 999\ndropout = 0\n\
                           optimizer = \"sgd\"\nlearning_rate = 1000\n";

#[test]
fn metrics_that_are_no_numbers_are_left_out_of_reports_and_checkpoints() {
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = dir.path().join("checkpoint");
    let table = format!("{OVERFLOWING}epochs = 1");
    let trained = fit(
        &plan(&table),
        &scaled(1e18),
        Some(checkpoint.clone()),
        &silent(),
    )
    .unwrap();
    assert!(trained.metrics.contains_key("test_accuracy"));
    assert!(
        !trained.metrics.contains_key("test_loss"),
        "{:?}",
        trained.metrics
    );
    assert!(
        trained
            .notes
            .iter()
            .any(|note| note.starts_with("the test loss is "))
    );
    assert!(!trained.history[0].val.contains_key("loss"));
    // The checkpoint can be read again: no epoch is left to train.
    let again = fit(&plan(&table), &scaled(1e18), Some(checkpoint), &silent()).unwrap();
    assert_eq!(again.history.len(), 1);
    assert_eq!(again.metrics, trained.metrics);
    let monitored = format!("{table}\nmonitor = \"loss\"");
    let error = fit(&plan(&monitored), &scaled(1e18), None, &silent()).unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with("training diverged in epoch 1: the val loss is "),
        "{error}"
    );
}

#[test]
fn only_evaluated_epochs_are_judged_and_the_last_is_one() {
    let evaluated = |trained: &Trained| -> Vec<u64> {
        let with_val = trained.history.iter().filter(|epoch| !epoch.val.is_empty());
        with_val.map(|epoch| epoch.epoch).collect()
    };
    let table = "model = \"gcn\"\nhidden = [16]\n";
    let trained = run(&format!("{table}epochs = 10\nevaluate_every = 3"));
    assert_eq!(trained.history.len(), 10);
    assert_eq!(evaluated(&trained), [3, 6, 9, 10]);
    assert!([3, 6, 9, 10].contains(&trained.best_epoch));
    // The same training, evaluated less often.
    let whole = run(&format!("{table}epochs = 10"));
    for (seen, all) in trained.history.iter().zip(&whole.history) {
        assert!(seen.val.is_empty() || seen.val == all.val);
    }
    let late = run(&format!("{table}epochs = 5\nevaluate_every = 99"));
    assert_eq!((evaluated(&late), late.best_epoch), (vec![5], 5));
    let patient = run(&format!(
        "{table}epochs = 300\nevaluate_every = 3\npatience = 4"
    ));
    let accuracy = |epoch: &EpochReport| epoch.val.get("accuracy").copied().unwrap_or(0.0);
    let best = patient.history.iter().map(accuracy).fold(0.0, f64::max);
    let first = patient.history.iter().find(|epoch| accuracy(epoch) == best);
    assert_eq!(patient.history.len() as u64, first.unwrap().epoch + 12);
}

#[test]
fn patience_ends_a_training_and_the_best_epoch_is_kept() {
    let table = "model = \"gcn\"\nhidden = [16]\nepochs = 200\npatience = 5";
    let trained = run(table);
    let accuracy = |epoch: &EpochReport| epoch.val["accuracy"];
    let best = trained.history.iter().map(accuracy).fold(0.0, f64::max);
    assert_eq!(trained.metrics["val_accuracy"], best);
    // Equally accurate epochs with a lower loss are better, but do not reset the patience.
    let first = trained.history.iter().find(|epoch| accuracy(epoch) == best);
    assert_eq!(trained.history.len() as u64, first.unwrap().epoch + 5);
    let of_best = trained
        .history
        .iter()
        .filter(|epoch| accuracy(epoch) == best);
    let least = of_best.min_by(|a, b| a.val["loss"].total_cmp(&b.val["loss"]));
    assert_eq!(least.unwrap().epoch, trained.best_epoch);
    let short = run(&format!("{table}\nseed = 3").replace("200", &trained.best_epoch.to_string()));
    assert_eq!(
        short.model.flat(),
        trained.model.flat(),
        "the parameters are that epoch's"
    );
}

/// Returns the graph with its in-edges in another rank order, as drawn with another seed.
fn resampled(graph: &Graph, seed: u64) -> Graph {
    let mut drawn = graph.clone();
    for list in drawn.in_edges.iter_mut().filter(|list| !list.is_empty()) {
        let by = usize::try_from(seed).unwrap() % list.len();
        list.rotate_left(by);
    }
    drawn
}

struct Rows {
    dim: usize,
    values: Vec<f32>,
}

impl DenseRows for Rows {
    fn dim(&self) -> usize {
        self.dim
    }

    fn row(&self, node: usize) -> &[f32] {
        &self.values[node * self.dim..(node + 1) * self.dim]
    }
}

/// Makes a streamed source of a graph, with dense features in the shards or beside them.
fn streamed(graph: &Graph, beside: bool) -> Source {
    let counts = graph.parts(3, &FANOUTS);
    let counts = counts.iter().map(GraphShard::split_counts).collect();
    let metas = (graph.meta(), flatten_meta(&FANOUTS, Sampling::Uniform));
    let graph = graph.clone();
    let draw = move |part: usize, seed| {
        let mut shard = resampled(&graph, seed).parts(3, &FANOUTS).swap_remove(part);
        let mut dense = vec![None];
        if beside {
            let features = std::mem::replace(&mut shard.nodes[0].features, Features::None);
            let Features::Dense { dim, values } = features else {
                panic!("the graph's features are dense");
            };
            let rows: Box<dyn DenseRows + Send + Sync> = Box::new(Rows { dim, values });
            dense = vec![Some(rows)];
        }
        Ok(Neighborhoods { shard, dense })
    };
    Source::streamed("memory".into(), metas, counts, 1 << 20, draw)
}

fn losses(trained: &Trained) -> Vec<f64> {
    trained.history.iter().map(|epoch| epoch.loss).collect()
}

#[test]
fn each_epoch_of_a_streamed_training_has_the_sample_of_its_seed() {
    let graph = graph();
    // Also one batch per epoch: it has the same targets each time, but other in-edges.
    for (batch_size, workers) in [(16, 1), (7, 3), (999, 1)] {
        let table = |epochs: u64| {
            plan(&format!(
                "model = \"sage\"\nhidden = [8]\nepochs = {epochs}\nbatch_size = {batch_size}\n\
                 workers = {workers}"
            ))
        };
        let run = |source: &Source| fit(&table(4), source, None, &silent()).unwrap();
        let once = run(&streamed(&graph, false));
        // The slow twin: one training per epoch and sample, each resumed where the last one ended.
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = dir.path().join("checkpoint");
        let mut expected: Vec<f64> = Vec::new();
        let seed = flatten_meta(&FANOUTS, Sampling::Uniform).seed;
        for epoch in 0..4 {
            let stored = source_of(&resampled(&graph, seed + epoch), 0, |_, shard| Ok(shard));
            let path = Some(checkpoint.clone());
            let twin = fit(&table(epoch + 1), &stored, path, &silent()).unwrap();
            expected.extend(losses(&twin).last());
        }
        assert_eq!(losses(&once), expected, "{batch_size} {workers}");
        assert_eq!(losses(&run(&streamed(&graph, true))), expected);
        let plain = source_of(&resampled(&graph, seed), 0, |_, shard| Ok(shard));
        let plain = losses(&run(&plain));
        assert_eq!(plain[0], expected[0]);
        assert_ne!(plain[1..], expected[1..]);
    }
}

#[test]
fn features_beside_the_shards_are_standardised_and_evaluated_as_those_in_them() {
    let table = "model = \"gcn\"\nhidden = [8]\nepochs = 3\nbatch_size = 20";
    let spec: TrainSpec = toml::from_str(&format!("output = \"model\"\n{table}")).unwrap();
    let ctx = TrainContext {
        input: Some("memory".into()),
        job_seed: 3,
        transform: Some(schemas::Transform::Standardize),
        one_hot: std::collections::BTreeMap::new(),
        base: Path::new("").to_owned(),
        fresh: false,
    };
    let plan = spec.into_plan(ctx).unwrap();
    let run = |beside| fit(&plan, &streamed(&graph(), beside), None, &silent()).unwrap();
    let (within, beside) = (run(false), run(true));
    assert_eq!(beside.transforms, within.transforms);
    assert_eq!(beside.metrics, within.metrics);
    assert_eq!(beside.model.flat(), within.model.flat());
}

/// Returns features of 120 columns; each node has three that are not zero.
fn few_words(graph: &Graph) -> (Features, Features) {
    let (dim, num_nodes) = (120, graph.ids.len());
    let (mut dense, mut index) = (vec![0.0; num_nodes * dim], Vec::new());
    for node in 0..num_nodes {
        let word = node * 29 % 40;
        for column in [word, word + 40, word + 80] {
            dense[node * dim + column] = 1.0;
            index.push(u32::try_from(column).unwrap());
        }
    }
    let value = vec![1.0; index.len()];
    let offset = (0..=num_nodes as u64).map(|node| 3 * node).collect();
    let sparse = Features::Sparse {
        dim,
        offset,
        index,
        value,
    };
    let values = dense;
    (Features::Dense { dim, values }, sparse)
}

#[test]
fn features_that_are_mostly_zero_train_as_sparse_ones_do() {
    let mut graph = graph();
    let (dense, sparse) = few_words(&graph);
    graph.shape.dim = dense.meta().dim();
    for model in ["gcn", "sage", "gat", "gin"] {
        let plan = plan(&format!(
            "model = \"{model}\"\nhidden = [8]\nepochs = 3\nbatch_size = 20\ninput_dropout = 0.3"
        ));
        let [of_dense, of_sparse] = [&dense, &sparse].map(|features| {
            graph.features = features.clone();
            let source = source_of(&graph, 1 << 20, |_, shard| Ok(shard));
            fit(&plan, &source, None, &silent()).unwrap()
        });
        assert_eq!(of_dense.model.flat(), of_sparse.model.flat(), "{model}");
        assert_eq!(losses(&of_dense), losses(&of_sparse), "{model}");
    }
}

#[test]
fn a_killed_streamed_training_ends_with_the_same_bits() {
    let plan = plan("model = \"gcn\"\nhidden = [8]\nepochs = 6\nbatch_size = 20\nworkers = 2");
    let source = || streamed(&graph(), true);
    let whole = fit(&plan, &source(), None, &silent()).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = dir.path().join("checkpoint");
    for epoch in [1, 4] {
        let kill: Progress = Arc::new(move |event| {
            assert!(event.phase != "epoch" || event.done != epoch, "killed");
        });
        let work = || fit(&plan, &source(), Some(checkpoint.clone()), &kill);
        assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
    }
    let resumed = fit(&plan, &source(), Some(checkpoint), &silent()).unwrap();
    assert_eq!(resumed.model.flat(), whole.model.flat());
    assert_eq!(resumed.metrics, whole.metrics);
}
