//! Trainings of LightGCN: against plain sums, blocks, workers, resume.

#![expect(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

mod random;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use graphtrainer::server::TableSpec;
use graphtrainer::{Source, TrainContext, TrainError, TrainPlan, TrainSpec, Trained, fit};
use random::typed::{TypedGraph, TypedShape, typed_flatten_meta};
use schemas::progress::Progress;
use schemas::{
    Exclude, FeatureMeta, Features, GraphMeta, GraphShard, PairsMeta, PartPairs, Row, Split,
    SplitMeta, hash_int,
};

/// With several workers, the sums over a batch are split differently, and the optimiser carries the
/// differences from step to step.
const WORKERS_TOLERANCE: f64 = 1e-5;

/// Largest relative error of a mean loss of f32.
const TWIN_TOLERANCE: f64 = 1e-5;

const DIM: usize = 8;

/// Types of src and dst nodes.
const ENDS: (usize, usize) = (0, 1);

fn plan_with(table: &str, widths: &[(&str, usize)]) -> Result<TrainPlan, TrainError> {
    let spec: TrainSpec = toml::from_str(&format!("output = \"model\"\n{table}")).unwrap();
    let plan = spec.into_plan(TrainContext {
        input: Some("memory".into()),
        job_seed: 3,
        transform: None,
        one_hot: BTreeMap::new(),
        base: Path::new("").to_owned(),
        fresh: false,
    });
    let widths = widths.iter().map(|&(name, width)| (name.to_owned(), width));
    Ok(plan?.with_embeddings(widths.collect()))
}

const WIDTHS: [(&str, usize); 3] = [("t0", DIM), ("t1", DIM), ("t2", DIM)];

fn plan(table: &str) -> TrainPlan {
    plan_with(table, &WIDTHS).unwrap()
}

/// A typed graph without features.
fn graph() -> TypedGraph {
    let mut graph = TypedGraph::new(TypedShape::default(), 4);
    graph.features.fill(Features::None);
    for of in &mut graph.meta.types {
        of.features = FeatureMeta::None;
    }
    graph
}

/// Draws pairs with weights between all nodes of the types.
fn pairs(graph: &TypedGraph) -> PartPairs {
    let [num_src, num_dst] = [ENDS.0, ENDS.1].map(|of| graph.ids[of].len());
    let row = |word: u64, len: usize| {
        Row::from_index(usize::try_from(hash_int(word) % len as u64).unwrap())
    };
    let splits = [Split::Train, Split::Train, Split::Val, Split::Test];
    let each = || 0..4 * num_src as u64;
    PartPairs {
        src: each().map(|at| row(3 * at, num_src)).collect(),
        dst: each().map(|at| row(3 * at + 1, num_dst)).collect(),
        split: each()
            .map(|at| splits[usize::try_from(hash_int(3 * at + 2) % 4).unwrap()])
            .collect(),
        weight: Some(each().map(|at| 0.25 + (at % 8) as f32 / 4.0).collect()),
        random: (0..num_dst).map(Row::from_index).collect(),
        ..PartPairs::default()
    }
}

fn meta(graph: &TypedGraph, exclude: Exclude) -> GraphMeta {
    let mut meta = graph.meta.clone();
    for of_type in &mut meta.types {
        (of_type.label, of_type.split) = (None, None);
    }
    meta.target_type = ENDS.0;
    meta.pairs = Some(PairsMeta {
        from: ENDS.0,
        to: ENDS.1,
        relations: Vec::new(),
        exclude,
        label: false,
        weight: true,
        negatives: false,
        split: SplitMeta {
            data_type: "Utf8".to_owned(),
            values: None,
        },
    });
    meta
}

/// One part with all nodes and in-edges.
fn source_with(exclude: Exclude, change: impl Fn(&mut PartPairs)) -> Source {
    source_of_parts(1, exclude, change)
}

/// Parts with all nodes and in-edges, and an equal share of the pairs each.
fn source_of_parts(num_parts: usize, exclude: Exclude, change: impl Fn(&mut PartPairs)) -> Source {
    let graph = graph();
    let fanouts = graph.all(2);
    let all = |of: usize| (0..u32::try_from(graph.ids[of].len()).unwrap()).collect();
    let mut targets = vec![Vec::new(); graph.meta.types.len()];
    for of in [ENDS.0, ENDS.1] {
        targets[of] = all(of);
    }
    let mut shard = graph.shard_of(&targets, &fanouts);
    shard.target_type = ENDS.0;
    let mut own = pairs(&graph);
    change(&mut own);
    let parts = (0..num_parts).map(|part| {
        let is_here = |&at: &usize| at % num_parts == part;
        let here: Vec<usize> = (0..own.len()).filter(is_here).collect();
        let of_part = PartPairs {
            src: here.iter().map(|&at| own.src[at]).collect(),
            dst: here.iter().map(|&at| own.dst[at]).collect(),
            split: here.iter().map(|&at| own.split[at]).collect(),
            weight: gathered(own.weight.as_ref(), &here),
            label: gathered(own.label.as_ref(), &here),
            random: own.random.clone(),
            ..PartPairs::default()
        };
        GraphShard {
            pairs: Some(of_part),
            ..shard.clone()
        }
    });
    let parts: Vec<GraphShard> = parts.collect();
    let counts = parts.iter().map(GraphShard::split_counts).collect();
    let metas = (meta(&graph, exclude), typed_flatten_meta(&fanouts));
    Source::new("memory".into(), metas, counts, 1 << 20, move |part| {
        Ok(parts[part].clone())
    })
}

fn gathered(values: Option<&Vec<f32>>, which: &[usize]) -> Option<Vec<f32>> {
    values.map(|values| which.iter().map(|&at| values[at]).collect())
}

fn source(exclude: Exclude) -> Source {
    source_with(exclude, |_| {})
}

fn silent() -> Progress {
    Arc::new(|_| {})
}

fn run(source: &Source, table: &str) -> Trained {
    fit(&plan(table), source, None, &silent()).unwrap()
}

fn table(keys: &str) -> String {
    format!(
        "model = \"lightgcn\"\nhidden = [{DIM}, {DIM}]\nnegatives = {{ all = true, evaluation = 10 \
         }}\n{keys}"
    )
}

/// Returns the relative distance of the learnable rows of two models, of the nodes that `other` has.
fn distance(one: &Trained, other: &Trained) -> f64 {
    let (mut apart, mut whole) = (0.0, 0.0);
    for (a, b) in one.embeddings.iter().zip(&other.embeddings) {
        for at in 0..b.ids().len() {
            for (x, y) in a.row(b.ids(), at).iter().zip(b.row(b.ids(), at)) {
                apart += f64::from(x - y).powi(2);
                whole += f64::from(*x).powi(2);
            }
        }
    }
    f64::sqrt(apart / whole)
}

/// The embeddings of all nodes by type, sum by sum.
fn propagated(graph: &TypedGraph, start: &[Vec<[f64; DIM]>]) -> Vec<Vec<[f64; DIM]>> {
    let degree = |of: usize, node: usize| -> f64 {
        let relations = graph.meta.relations.iter().zip(&graph.in_edges);
        let into = relations.filter(|(relation, _)| relation.to == of);
        into.map(|(_, in_edges)| in_edges[node].len() as f64).sum()
    };
    let root = |of: usize, node: usize| match degree(of, node) {
        0.0 => 0.0,
        degree => 1.0 / degree.sqrt(),
    };
    let mut rows = start.to_vec();
    for _ in 0..2 {
        let mut next = start.to_vec();
        for (relation, in_edges) in graph.meta.relations.iter().zip(&graph.in_edges) {
            for (dst, edges) in in_edges.iter().enumerate() {
                for (src, _, _) in edges {
                    let src = *src as usize;
                    let factor = root(relation.from, src) * root(relation.to, dst);
                    let read = rows[relation.from][src];
                    for (sum, x) in next[relation.to][dst].iter_mut().zip(read) {
                        *sum += factor * x;
                    }
                }
            }
        }
        rows = next;
    }
    let all = rows.into_iter();
    all.map(|of| of.into_iter().map(|row| row.map(|x| x / 3.0)).collect())
        .collect()
}

/// The embeddings before the first update, by type.
fn first_embeddings(graph: &TypedGraph) -> Vec<Vec<[f64; DIM]>> {
    let start = (0..graph.ids.len()).map(|of| {
        let nodes: Vec<u32> = (0..u32::try_from(graph.ids[of].len()).unwrap()).collect();
        let ids = graph.ids_of(of, &nodes);
        let spec = TableSpec {
            name: graph.meta.types[of].name.clone(),
            id_type: ids.id_type(),
            dim: DIM,
            seed: 3,
            weight_decay: 0.0,
        };
        let row = |at| std::array::from_fn(|column| spec.start_value(&ids, at, column).into());
        (0..ids.len()).map(row).collect()
    });
    propagated(graph, &start.collect::<Vec<_>>())
}

/// The inner product of the embeddings of a src and a dst node.
fn score(rows: &[Vec<[f64; DIM]>], src: usize, dst: usize) -> f64 {
    let ends = rows[ENDS.0][src].iter().zip(rows[ENDS.1][dst]);
    ends.map(|(a, b)| a * b).sum()
}

/// The mean loss before the first update; a src node with d train pairs has weight `d ^ power`.
fn twin_loss(power: f64) -> f64 {
    let graph = graph();
    let rows = first_embeddings(&graph);
    let pairs = pairs(&graph);
    let is_train = |&pair: &usize| pairs.split[pair] == Split::Train;
    let (mut loss, mut total) = (0.0, 0.0);
    for pair in (0..pairs.len()).filter(is_train) {
        let src = pairs.src[pair];
        let degree = (0..pairs.len())
            .filter(is_train)
            .filter(|&other| pairs.src[other] == src);
        let weight = f64::from(pairs.weight.as_ref().unwrap()[pair]);
        let weight = weight * (degree.count() as f64).powf(power - 1.0);
        let all = 0..rows[ENDS.1].len();
        let sum: f64 = all.map(|dst| score(&rows, src.index(), dst).exp()).sum();
        loss += weight * (sum.ln() - score(&rows, src.index(), pairs.dst[pair].index()));
        total += weight;
    }
    loss / total
}

/// The mean corrected softmax of all train pairs in one batch before the first update: the score of
/// a negative is lowered by the logarithm of how often the pair expects it. Negatives are the dst
/// ends of the other pairs, all nodes, or both.
fn twin_corrected(is_in_batch: bool, is_random: bool) -> f64 {
    let graph = graph();
    let rows = first_embeddings(&graph);
    let pairs = pairs(&graph);
    let train = (0..pairs.len()).filter(|&pair| pairs.split[pair] == Split::Train);
    let train: Vec<usize> = train.collect();
    let (mut loss, mut total) = (0.0, 0.0);
    for &pair in &train {
        let (src, own) = (pairs.src[pair].index(), pairs.dst[pair].index());
        let others = train.iter().filter(|&&other| is_in_batch && other != pair);
        let mut negatives: Vec<usize> = others.map(|&other| pairs.dst[other].index()).collect();
        negatives.extend((0..rows[ENDS.1].len()).filter(|_| is_random));
        let mut sum = score(&rows, src, own).exp();
        for &negative in negatives.iter().filter(|&&negative| negative != own) {
            let expected = negatives.iter().filter(|&&other| other == negative);
            sum += score(&rows, src, negative).exp() / expected.count() as f64;
        }
        let weight = f64::from(pairs.weight.as_ref().unwrap()[pair]);
        loss += weight * (sum.ln() - score(&rows, src, own));
        total += weight;
    }
    loss / total
}

#[test]
fn the_softmax_is_corrected_by_how_often_negatives_are_expected() {
    let graph = graph();
    let (num_dst, num_pairs) = (graph.ids[ENDS.1].len(), pairs(&graph).len());
    for (is_in_batch, is_random) in [(true, false), (false, true), (true, true)] {
        let random = if is_random { num_dst } else { 0 };
        for whole in [false, true] {
            let keys = format!(
                "model = \"lightgcn\"\nhidden = [{DIM}, {DIM}]\nepochs = 1\noptimizer = \"sgd\"\n\
                 learning_rate = 1e-9\nbatch_size = {num_pairs}\nwhole_parts = {whole}\n\
                 negatives = {{ in_batch = {is_in_batch}, random = {random}, evaluation = 1 }}"
            );
            let got = run(&source(Exclude::None), &keys).history[0].loss;
            let wanted = twin_corrected(is_in_batch, is_random);
            let off = (got / wanted - 1.0).abs();
            assert!(
                off < TWIN_TOLERANCE,
                "{is_in_batch}, {random}: {got} is not {wanted}"
            );
        }
    }
}

#[test]
fn the_first_loss_is_that_of_plain_sums() {
    let keys = "epochs = 1\noptimizer = \"sgd\"\nlearning_rate = 1e-9";
    for (by, power) in [
        ("batch_by = \"src\"\nbatch_size = 7\nsrc_power = 0.75", 0.75),
        ("batch_by = \"src\"\nbatch_size = 7", 1.0),
        ("batch_size = 20\nsrc_power = 0.5", 0.5),
        ("batch_size = 20", 1.0),
    ] {
        let trained = run(&source(Exclude::None), &table(&format!("{keys}\n{by}")));
        let (got, wanted) = (trained.history[0].loss, twin_loss(power));
        let off = (got / wanted - 1.0).abs();
        assert!(off < TWIN_TOLERANCE, "{by}: {got} is not {wanted}");
    }
}

/// Recall@20 and NDCG@20 of a split, by sorting all nodes for each src node of a part.
fn twin_ranking(trained: &Trained, num_parts: usize, split: Split) -> [f64; 2] {
    let graph = graph();
    let start = (0..graph.ids.len()).map(|of| {
        let nodes: Vec<u32> = (0..u32::try_from(graph.ids[of].len()).unwrap()).collect();
        let ids = graph.ids_of(of, &nodes);
        let row = |at| {
            let row = trained.embeddings[of].row(&ids, at);
            std::array::from_fn(|column| row[column].into())
        };
        (0..ids.len()).map(row).collect()
    });
    let rows = propagated(&graph, &start.collect::<Vec<_>>());
    let pairs = pairs(&graph);
    let before: &[Split] = match split {
        Split::Val => &[Split::Train],
        Split::Test => &[Split::Train, Split::Val],
        _ => &[],
    };
    let (mut sums, mut num_queries) = ([0.0; 2], 0.0);
    for part in 0..num_parts {
        for src in (0..rows[ENDS.0].len()).map(Row::from_index) {
            let linked = |here: std::iter::StepBy<Range<usize>>, of: &[Split]| -> BTreeSet<usize> {
                let own = here.filter(|&at| pairs.src[at] == src && of.contains(&pairs.split[at]));
                own.map(|at| pairs.dst[at].index()).collect()
            };
            let wanted = linked((part..pairs.len()).step_by(num_parts), &[split]);
            let known = linked((0..pairs.len()).step_by(1), before);
            if wanted.is_empty() {
                continue;
            }
            let all = 0..rows[ENDS.1].len();
            let all = all.filter(|dst| wanted.contains(dst) || !known.contains(dst));
            let mut all: Vec<(f64, usize)> = all
                .map(|dst| (-score(&rows, src.index(), dst), dst))
                .collect();
            all.sort_by(|a, b| a.0.total_cmp(&b.0));
            let gain = |at: usize| 1.0 / (at as f64 + 2.0).log2();
            let found = all.iter().take(20).enumerate();
            let found = found.filter(|(_, (_, dst))| wanted.contains(dst));
            let found: Vec<usize> = found.map(|(at, _)| at).collect();
            let best: f64 = (0..wanted.len().min(20)).map(gain).sum();
            sums[0] += found.len() as f64 / wanted.len() as f64;
            sums[1] += found.into_iter().map(gain).sum::<f64>() / best;
            num_queries += 1.0;
        }
    }
    sums.map(|sum| sum / num_queries)
}

#[test]
fn pairs_are_ranked_among_all_nodes() {
    // 1024 targets of evaluation are more than a part has, so batches must end with their part.
    for num_parts in [1, 3] {
        let source = source_of_parts(num_parts, Exclude::None, |_| {});
        let keys = "epochs = 4\nbatch_size = 20\nlearning_rate = 0.05\nmonitor = \"recall@20\"";
        let trained = run(&source, &table(keys));
        for split in [Split::Train, Split::Val, Split::Test] {
            let names = ["recall@20", "ndcg@20"].map(|name| format!("{}_{name}", split.as_str()));
            let wanted = twin_ranking(&trained, num_parts, split);
            for (name, plain) in names.iter().zip(wanted) {
                let got = trained.metrics[name];
                assert!(got > 0.0 && got < 1.0, "{num_parts} parts, {name}: {got}");
                let is_close = (got - plain).abs() < 1e-9;
                assert!(is_close, "{num_parts} parts, {name}: {got}, not {plain}");
            }
        }
        let recall = |epoch: usize| trained.history[epoch].val["recall@20"];
        let best = (0..4).map(recall).fold(0.0, f64::max);
        let of_best = usize::try_from(trained.best_epoch).unwrap() - 1;
        assert_eq!(recall(of_best), best);
        assert_eq!(trained.metrics["val_recall@20"], best);
    }
}

/// With `exclude = "batch"` each batch has blocks of its own; here no edges are left out of them.
#[test]
fn shared_blocks_give_the_result_of_blocks_for_each_batch() {
    for by in ["batch_by = \"src\"\nbatch_size = 9", "batch_size = 24"] {
        // Rows without a gradient stay as they are, whether a batch has them or not.
        let table = table(&format!("epochs = 3\n{by}\noptimizer = \"sgd\""));
        let shared = run(&source(Exclude::None), &table);
        let own = run(&source(Exclude::Batch), &table);
        let apart = distance(&shared, &own);
        assert!(apart < WORKERS_TOLERANCE, "{by}: {apart}");
        // Val and test pairs may have nodes that only shared blocks have read.
        let of_train = |(name, _): &(&String, &f64)| name.starts_with("train");
        for (name, value) in own.metrics.iter().filter(of_train) {
            assert!((value - shared.metrics[name]).abs() < 1e-4, "{by}: {name}");
        }
        let of_all = run(&source(Exclude::All), &table);
        assert_eq!(distance(&shared, &of_all), 0.0, "{by}");
    }
}

#[test]
fn drawn_negatives_of_whole_parts_give_the_result_of_blocks_for_each_batch() {
    for (loss, negatives) in [
        ("bpr", "{ in_batch = false, random = 2 }"),
        ("margin", "{ in_batch = false, random = 1 }"),
        ("softmax", "{ in_batch = 8, random = 3 }"),
        ("softmax", "{ random = 3, by = \"degree\" }"),
    ] {
        // Rows without a gradient stay as they are, whether a batch has them or not.
        let table = |whole: bool| {
            format!(
                "model = \"lightgcn\"\nhidden = [{DIM}, {DIM}]\nepochs = 3\nbatch_size = 24\n\
                 optimizer = \"sgd\"\nlearning_rate = 0.5\nloss = \"{loss}\"\n\
                 negatives = {negatives}\nwhole_parts = {whole}"
            )
        };
        // Without val pairs the last epoch is the best.
        let source = || {
            source_with(Exclude::None, |pairs| {
                let val = pairs.split.iter_mut().filter(|of| **of == Split::Val);
                val.for_each(|split| *split = Split::Train);
            })
        };
        let [whole, own] = [true, false].map(|of| run(&source(), &table(of)));

        let apart = distance(&whole, &own);
        assert!(apart < WORKERS_TOLERANCE, "{loss}, {negatives}: {apart}");
        let losses = whole.history.iter().zip(&own.history);
        for (of_whole, of_own) in losses.map(|(one, other)| (one.loss, other.loss)) {
            let off = (of_whole / of_own - 1.0).abs();
            assert!(off < TWIN_TOLERANCE, "{loss}: {of_whole} is not {of_own}");
        }
        assert!(whole.metrics.contains_key("test_recall@20"), "{loss}");
        assert!(!own.metrics.contains_key("test_recall@20"), "{loss}");
    }
}

#[test]
fn workers_give_the_result_of_one() {
    for by in [
        "batch_by = \"src\"\nsrc_power = 0.75",
        "batch_by = \"pair\"",
    ] {
        let keys = |workers: usize| {
            table(&format!(
                "epochs = 3\n{by}\noptimizer = \"sgd\"\nlearning_rate = 0.5\nworkers = {workers}\n\
                 batch_size = {}\nservers = {workers}",
                24 / workers
            ))
        };
        let one = run(&source(Exclude::None), &keys(1));
        for workers in [2, 3] {
            let apart = distance(&one, &run(&source(Exclude::None), &keys(workers)));
            assert!(apart < WORKERS_TOLERANCE, "{by}, {workers}: {apart}");
        }
    }
}

/// A step whose pairs are of several parts updates the rows that these pairs read, and adam moves each
/// row that a step updates. A worker may have pairs of one of the parts alone.
#[test]
fn workers_give_the_result_of_one_with_several_parts_and_adam() {
    for by in ["batch_by = \"src\"", "batch_by = \"pair\""] {
        let keys = |workers: usize| {
            table(&format!(
                "epochs = 3\n{by}\nlearning_rate = 0.001\nembedding_weight_decay = 0.01\n\
                 workers = {workers}\nbatch_size = {}\nservers = {workers}",
                12 / workers
            ))
        };
        let source = || source_of_parts(3, Exclude::None, |_| {});
        let one = run(&source(), &keys(1));
        for workers in [2, 3] {
            let apart = distance(&one, &run(&source(), &keys(workers)));

            assert!(apart < WORKERS_TOLERANCE, "{by}, {workers}: {apart}");
        }
    }
}

#[test]
fn a_killed_training_ends_with_the_same_bits() {
    let (source, progress) = (source(Exclude::None), silent());
    let table = table(
        "epochs = 6\nbatch_by = \"src\"\nbatch_size = 11\nsrc_power = 0.75\n\
         checkpoint_every_steps = 3\nembedding_weight_decay = 0.001",
    );
    let whole = run(&source, &table);
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = dir.path().join("checkpoint");
    for epoch in [1, 4] {
        let kill: Progress = Arc::new(move |event| {
            assert!(event.phase != "epoch" || event.done < epoch, "killed");
        });
        let work = || fit(&plan(&table), &source, Some(checkpoint.clone()), &kill);
        assert!(catch_unwind(AssertUnwindSafe(work)).is_err());
    }
    let resumed = fit(&plan(&table), &source, Some(checkpoint), &progress).unwrap();
    assert_eq!(resumed.embeddings, whole.embeddings);
    assert_eq!(resumed.metrics, whole.metrics);
}

#[test]
fn it_learns_which_nodes_are_linked() {
    // Pairs of nodes of one parity.
    let alike = |pairs: &mut PartPairs| {
        let both = pairs.src.iter().zip(&mut pairs.dst);
        both.for_each(|(src, dst)| {
            let odd = (src.index() + dst.index()) % 2;
            *dst = Row::from_index(dst.index() - odd.min(dst.index()));
        });
        let splits = pairs.split.iter_mut().enumerate();
        splits.for_each(|(at, split)| {
            *split = if at % 8 == 0 {
                Split::Test
            } else {
                Split::Train
            };
        });
    };
    let source = source_with(Exclude::None, alike);
    let keys = "epochs = 40\nbatch_by = \"src\"\nbatch_size = 16\nlearning_rate = 0.05";
    let trained = run(&source, &table(keys));
    let (first, last) = (trained.history[0].loss, trained.history[39].loss);
    assert!(last < 0.8 * first, "{first} to {last}");
    let auc = trained.metrics["train_auc"];
    assert!(auc > 0.8, "AUC {auc}");
}

/// Trains with a table that does not fit, and checks the error.
fn check(widths: &[(&str, usize)], keys: &str, source: &Source, expected: &str) {
    let table = format!("model = \"lightgcn\"\nepochs = 1\n{keys}");
    let fitted = plan_with(&table, widths).and_then(|plan| fit(&plan, source, None, &silent()));
    let error = fitted
        .map(|trained| trained.best_epoch)
        .unwrap_err()
        .to_string();
    assert!(error.contains(expected), "`{error}` lacks `{expected}`");
    assert!(!error.contains('\n'), "{error}");
}

#[test]
fn what_does_not_fit_is_named() {
    let (source_of, all) = (source(Exclude::None), "negatives = { all = true }");
    let widths = "hidden = [8, 8]";
    check(
        &[("t0", 8)],
        widths,
        &source_of,
        "`input.nodes.t1.embedding` is missing",
    );
    let unequal = [("t0", 8), ("t1", 4), ("t2", 8)];
    check(
        &unequal,
        widths,
        &source_of,
        "`input.nodes.t1.embedding` is 4",
    );
    check(
        &WIDTHS,
        "hidden = [8, 4]",
        &source_of,
        "as wide as the rows, 8",
    );
    for (key, expected) in [
        ("dropout = 0.5", "`train.dropout` is 0.5"),
        ("input_dropout = 0.5", "`train.input_dropout` is 0.5"),
        ("activation = \"relu\"", "`train.activation` is \"relu\""),
        ("projection = 4", "`train.projection` = 4"),
        ("norm = \"layer\"", "`train.norm` is \"layer\""),
        ("residual = true", "`train.residual` is true"),
        (
            "relation_aggregator = \"mean\"",
            "`train.relation_aggregator` is \"mean\"",
        ),
        (
            "src_power = 1.5",
            "`train.src_power` is 1.5: allowed is 0 to 1",
        ),
        (
            "batch_by = \"src\"",
            "set `negatives = { all = true }` or `in_batch = false`",
        ),
        (
            "embedding_weight_decay = -1.0",
            "`train.embedding_weight_decay` is -1",
        ),
        (
            "monitor = \"recall@20\"",
            "`train.monitor` = \"recall@20\": pairs are ranked among all nodes by `model = ",
        ),
    ] {
        check(&WIDTHS, &format!("{widths}\n{key}"), &source_of, expected);
    }
    let whole = "`train.whole_parts` = true: with `exclude = \"batch\"` each batch";
    let keys = format!("{widths}\nwhole_parts = true");
    check(&WIDTHS, &keys, &source(Exclude::Batch), whole);
    let with_all = format!("{widths}\n{all}");
    let none = source_with(Exclude::None, |pairs| pairs.random.clear());
    check(
        &WIDTHS,
        &with_all,
        &none,
        "no random negatives (`flatten.negatives_per_part`)",
    );
    let many = source_with(Exclude::None, |pairs| {
        pairs.random = vec![Row::from_index(0); (1 << 20) + 1];
    });
    let expected = "1048577 random negatives (`flatten.negatives_per_part`), allowed are 1048576";
    check(&WIDTHS, &with_all, &many, expected);
}

/// Without in-edges, the embedding of a node would be its own row alone.
#[test]
fn ends_of_pairs_without_in_edges_are_refused() {
    let light = plan("model = \"lightgcn\"\nepochs = 1\nhidden = [8, 8]");
    let mut graph = meta(&graph(), Exclude::None);
    light.check_graph(&graph, 2).unwrap();
    graph.relations.retain(|of| of.to != ENDS.0);
    let error = light.check_graph(&graph, 2).unwrap_err().to_string();
    let expected = "nodes of type `t0` have no in-edges, so they would be their learnable rows \
                    alone; set `reverse` of a relation from them";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn a_head_and_a_readout_that_do_not_fit_are_named() {
    let labelled = GraphMeta {
        pairs: None,
        ..meta(&graph(), Exclude::None)
    };
    let of = |hidden: &str| plan(&format!("model = \"lightgcn\"\nepochs = 1\n{hidden}"));
    let check = |train: TrainPlan, hops: usize, expected: &str| {
        let error = train.check_graph(&labelled, hops).unwrap_err().to_string();
        assert!(error.contains(expected), "`{error}` lacks `{expected}`");
    };
    check(
        of("hidden = [8]"),
        2,
        "`train.hidden` = [8]: a linear head follows the 2 layers of lightgcn",
    );
    check(
        of("hidden = [8, 8]").of_graphs(),
        3,
        "`train.model` = \"lightgcn\": its targets are graphs, so allowed are gcn",
    );
}
