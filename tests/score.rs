//! The stage `[score]`: best items, scores of listed pairs and rankings, compared with sorting the
//! scores of all pairs.

use std::collections::BTreeSet;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, StringArray};
use gnn::{Dense, Scorer};
use schemas::{EmbeddingRows, EmbeddingsDataset, Ids, ScoresDataset};
use serde_json::Value;

use crate::harness::{Bench, Job, assert_same_bytes};
use crate::link_models::{ITEMS, TYPED, USERS, bought, buyer, ints, shop};
use crate::resume::run_and_kill;

/// Splits of the purchases are a column; purchases without a split carry messages only.
const SPLITS: [&str; 2] = [
    "share = { train = 0.4, val = 0.1, test = 0.2 }",
    "split = \"split\"",
];

const SCORE: &str = "\n[score]\noutput = \"out/scores\"\nrows_per_part = 50\ntop_k = 7\n\
                     exclude_known = true\nevaluate = true\ncutoffs = [1, 5, 20]\n";

/// Listed pairs: every user with an item.
const LISTED: &str = "pairs = { path = \"listed.parquet\", src = \"who\", dst = \"what\" }\n";

/// Scores by products of blocks differ from those of one pair in the order of the sums.
const TOLERANCE: f32 = 1e-5;

/// Metrics are means of a few hundred quotients.
const MEAN_TOLERANCE: f64 = 1e-9;

const PURCHASES: usize = 900;

/// The split of a purchase, the same for all purchases of one item by one user.
fn split(at: usize) -> Option<&'static str> {
    match (buyer(at) * 31 + bought(at) * 17) % 10 {
        0..=3 => Some("train"),
        4 => Some("val"),
        5..=6 => Some("test"),
        _ => None,
    }
}

fn name(user: usize) -> String {
    format!("u{user}")
}

/// The shop with a column of splits, and a list of pairs.
pub(crate) fn bench() -> Bench {
    let bench = shop();
    let purchases = 0..PURCHASES;
    let users = StringArray::from_iter_values(purchases.clone().map(|at| name(buyer(at))));
    let splits: ArrayRef = Arc::new(purchases.clone().map(split).collect::<StringArray>());
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("user", Arc::new(users)),
        ("item", ints(purchases.map(bought))),
        ("split", splits),
    ];
    bench.write_table("buys.parquet", columns);
    let who: ArrayRef = Arc::new(StringArray::from_iter_values((0..USERS).map(name)));
    let what = ints((0..USERS).map(|user| user * 7 % ITEMS));
    bench.write_table("listed.parquet", vec![("who", who), ("what", what)]);
    bench
}

/// The job of a decoder, with all that `[score]` can write.
pub(crate) fn job(decoder: &str) -> Job {
    let job = Job::of_text(TYPED).with(SPLITS[0], SPLITS[1]);
    let job = job.with("decoder = \"mlp\"", &format!("decoder = \"{decoder}\""));
    Job(format!("{}{SCORE}{LISTED}", job.0))
}

/// The embeddings of a type, in the order of ids.
fn embeddings(bench: &Bench, of: &str) -> EmbeddingRows {
    let dataset = EmbeddingsDataset::open(&bench.path("out/embeddings")).unwrap();
    let [part] = dataset.parts_of(of)[..] else {
        panic!("the types are small");
    };
    dataset.read_part(part).unwrap()
}

/// The scores of all pairs, one by one.
struct Twin {
    users: EmbeddingRows,
    items: EmbeddingRows,
    scores: Vec<Vec<f32>>,
}

impl Twin {
    fn new(bench: &Bench) -> Twin {
        let read = schemas::storage::read_existing_io;
        let (model, _) = graphtrainer::load_any_with(&bench.path("out/model"), read).unwrap();
        let scorer: Scorer = model.scorer().unwrap();
        let (users, items) = (embeddings(bench, "user"), embeddings(bench, "item"));
        let dense = |rows: &EmbeddingRows| Dense {
            rows: rows.ids.len(),
            cols: rows.dim,
            values: rows.embedding.clone(),
        };
        let (src, dst) = (
            scorer.src_rows(&dense(&users)),
            scorer.dst_rows(&dense(&items)),
        );
        let score = |user, item| scorer.join(src.row(user), dst.row(item));
        let of_user = |user| (0..dst.rows).map(|item| score(user, item)).collect();
        let scores = (0..src.rows).map(of_user).collect();
        Twin {
            users,
            items,
            scores,
        }
    }

    /// Rows of the items that a user bought in some splits.
    fn bought(&self, user: usize, splits: &[Option<&str>]) -> BTreeSet<usize> {
        let own = (0..PURCHASES).filter(|&at| name(buyer(at)) == self.users.ids.display(user));
        let of_split = own.filter(|&at| splits.contains(&split(at)));
        of_split
            .map(|at| row(&self.items.ids, &bought(at).to_string()))
            .collect()
    }

    /// The means of the metrics of the test pairs: mrr, recall and ndcg of the best `cutoff`, auc and
    /// average precision.
    fn means(&self, cutoff: usize) -> [f64; 5] {
        let (mut sums, mut num_pairs, mut num_users) = ([0.0; 5], 0.0, 0.0);
        for (user, scores) in self.scores.iter().enumerate() {
            let wanted = self.bought(user, &[Some("test")]);
            let known = self.bought(user, &[None, Some("train"), Some("val")]);
            let known: BTreeSet<usize> = known.difference(&wanted).copied().collect();
            if wanted.is_empty() {
                continue;
            }
            let rank_of = |item: usize, out: &dyn Fn(usize) -> bool| {
                let above = (0..scores.len()).filter(|&other| scores[other] > scores[item]);
                1 + above.filter(|&other| !out(other)).count()
            };
            num_users += 1.0;
            num_pairs += wanted.len() as f64;
            let joint = |item: usize| rank_of(item, &|other| known.contains(&other));
            let gain = |rank: usize| 1.0 / (1.0 + rank as f64).log2();
            let (mut hits, mut gains) = (0.0, 0.0);
            for &item in &wanted {
                let either = |other| known.contains(&other) || wanted.contains(&other);
                sums[0] += 1.0 / rank_of(item, &either) as f64;
                let others = (0..scores.len()).filter(|&other| !either(other));
                let below = others.clone().filter(|&other| scores[other] < scores[item]);
                sums[3] += below.count() as f64 / others.count() as f64;
                let found = wanted.iter().filter(|&&other| joint(other) <= joint(item));
                sums[4] += found.count() as f64 / joint(item) as f64 / wanted.len() as f64;
                if joint(item) <= cutoff {
                    hits += 1.0;
                    gains += gain(joint(item));
                }
            }
            let ideal: f64 = (1..=wanted.len().min(cutoff)).map(gain).sum();
            sums[1] += hits / wanted.len() as f64;
            sums[2] += gains / ideal;
        }
        [
            sums[0] / num_pairs,
            sums[1] / num_users,
            sums[2] / num_users,
            sums[3] / num_pairs,
            sums[4] / num_users,
        ]
    }
}

fn row(ids: &Ids, id: &str) -> usize {
    (0..ids.len()).find(|&at| ids.display(at) == id).unwrap()
}

/// Compares the best items of all queries with the scores of the twin; returns their number.
fn check_items(bench: &Bench, twin: &Twin, excludes_known: bool) -> usize {
    let dataset = ScoresDataset::open(&bench.path("out/scores")).unwrap();
    let (mut num_queries, mut num_items) = (0, 0);
    for part in dataset.item_parts() {
        let rows = dataset.read_items(part).unwrap();
        for at in 0..rows.ids.len() {
            let user = row(&twin.users.ids, &rows.ids.display(at));
            assert_eq!(user, num_queries, "queries are in the order of ids");
            num_queries += 1;
            let known = match excludes_known {
                true => twin.bought(user, &[None, Some("train"), Some("val"), Some("test")]),
                false => BTreeSet::new(),
            };
            let first = if at == 0 { 0 } else { rows.ends[at - 1] };
            let found = first..rows.ends[at];
            assert_eq!(found.len(), 7);
            assert!(rows.scores[found.clone()].is_sorted_by(|left, right| left >= right));
            let least = rows.scores[found.end - 1];
            let items: Vec<usize> = found
                .clone()
                .map(|item| row(&twin.items.ids, &rows.items.display(item)))
                .collect();
            for (&item, place) in items.iter().zip(found) {
                assert!(!known.contains(&item), "it was bought before");
                let wanted = twin.scores[user][item];
                let error = (rows.scores[place] - wanted).abs();
                assert!(error <= TOLERANCE * (1.0 + wanted.abs()), "{wanted}");
            }
            for (item, &score) in twin.scores[user].iter().enumerate() {
                let is_out = known.contains(&item) || items.contains(&item);
                let slack = TOLERANCE * (1.0 + score.abs());
                assert!(is_out || score <= least + slack, "{score} is above {least}");
            }
            num_items += items.len();
        }
    }
    assert_eq!(num_queries, twin.users.ids.len());
    num_items
}

fn check_pairs(bench: &Bench, twin: &Twin) {
    let dataset = ScoresDataset::open(&bench.path("out/scores")).unwrap();
    let mut num_pairs = 0;
    for part in dataset.pair_parts() {
        let rows = dataset.read_pairs(part).unwrap();
        for (at, &score) in rows.scores.iter().enumerate() {
            let (src, dst) = (rows.src.display(at), rows.dst.display(at));
            assert_eq!(src, name(num_pairs), "pairs are in the order of the list");
            assert_eq!(dst, (num_pairs * 7 % ITEMS).to_string());
            let scores = &twin.scores[row(&twin.users.ids, &src)];
            assert_eq!(score, scores[row(&twin.items.ids, &dst)]);
            num_pairs += 1;
        }
    }
    assert_eq!(num_pairs, USERS);
}

fn metrics(bench: &Bench) -> Value {
    bench.manifest("out/scores")["report"]["metrics"].clone()
}

#[test]
fn scores_are_those_of_sorting_all_pairs() {
    let bench = bench();
    for decoder in ["dot", "cosine", "distmult", "mlp"] {
        let job = job(decoder);
        bench.run(&job, &["--fresh"]).ok();
        let twin = Twin::new(&bench);
        assert_eq!(check_items(&bench, &twin, true), 7 * USERS, "{decoder}");
        check_pairs(&bench, &twin);
        let metrics = metrics(&bench);
        let [mrr, recall, ndcg, auc, precision] = twin.means(5);
        for (name, wanted) in [
            ("test_mrr", mrr),
            ("test_recall@5", recall),
            ("test_ndcg@5", ndcg),
            ("test_auc", auc),
            ("test_average_precision", precision),
        ] {
            let found = metrics[name].as_f64().unwrap();
            let is_close = (found - wanted).abs() < MEAN_TOLERANCE;
            assert!(is_close, "{decoder}, {name}: {found}, not {wanted}");
        }
    }
    let with_known = job("mlp").with("exclude_known = true\n", "");
    bench
        .run(&with_known, &["--fresh", "--stage", "score"])
        .ok();
    check_items(&bench, &Twin::new(&bench), false);
}

#[test]
fn queries_may_be_the_other_end() {
    let bench = bench();
    let job = job("mlp");
    bench.run(&job, &[]).ok();
    let twin = Twin::new(&bench);
    let reversed = job.with("top_k = 7", "top_k = 100\nqueries = \"item\"");
    bench.run(&reversed, &["--fresh", "--stage", "score"]).ok();
    let dataset = ScoresDataset::open(&bench.path("out/scores")).unwrap();
    let rows = dataset.read_items(dataset.item_parts()[1]).unwrap();
    assert_eq!(rows.ids.len(), ITEMS - 50);
    for at in 0..rows.ids.len() {
        let item = row(&twin.items.ids, &rows.ids.display(at));
        let known = (0..USERS).filter(|&user| {
            let splits = [None, Some("train"), Some("val"), Some("test")];
            twin.bought(user, &splits).contains(&item)
        });
        let first = if at == 0 { 0 } else { rows.ends[at - 1] };
        // There are fewer users than wanted, so all that did not buy the item are found.
        assert_eq!(rows.ends[at] - first, 100.min(USERS - known.count()));
        let best = row(&twin.users.ids, &rows.items.display(first));
        let error = (rows.scores[first] - twin.scores[best][item]).abs();
        assert!(error <= TOLERANCE * (1.0 + rows.scores[first].abs()));
    }
}

#[test]
fn processes_workers_and_kills_do_not_change_scores() {
    let bench = bench();
    let job = job("dot").with("rows_per_part = 50", "rows_per_part = 11");
    bench.run(&job, &[]).ok();
    let expected = bench.data_files("out/scores");
    assert_eq!(expected.len(), 11 + 3 + 1, "{:?}", expected.keys());
    for args in [
        &["--workers", "1"][..],
        &["--processes", "3", "--workers", "1"],
    ] {
        let args = [&["--fresh", "--stage", "score"], args].concat();
        bench.run(&job, &args).ok();
        assert_same_bytes(
            &expected,
            &bench.data_files("out/scores"),
            &format!("{args:?}"),
        );
    }
    let mut num_resumed = 0;
    for events in [1, 4, 9, 12, 15] {
        std::fs::remove_dir_all(bench.path("out/scores")).unwrap();
        run_and_kill(&bench, &job, events);
        let progress = bench.path("out/scores/_progress");
        num_resumed += usize::from(progress.join("part-00000.json").exists());
        bench.run(&job, &[]).ok();
        assert_same_bytes(
            &expected,
            &bench.data_files("out/scores"),
            &format!("killed at event {events}"),
        );
    }
    assert!(num_resumed > 0, "no run was killed between two parts");
    // A finished output is not computed again.
    let again = bench.graphflat(&["run", "job.toml"]).ok();
    assert!(
        again.stderr.contains("scores, ") && again.stderr.contains("finished before"),
        "{again:?}"
    );
}

/// Pairs of an undirected graph without types: the reverse of a known pair is known too, and a node
/// is no item of its own.
#[test]
fn in_an_undirected_graph_known_pairs_have_no_direction() {
    let bench = Bench::empty();
    let (nodes, ring) = (40, 40);
    bench.write_table("nodes.parquet", vec![("id", ints(0..nodes))]);
    let columns = vec![
        ("src", ints(0..ring)),
        ("dst", ints((0..ring).map(|at| (at + 1) % nodes))),
    ];
    bench.write_table("edges.parquet", columns);
    let text = "name = \"ring\"\nseed = 7\n[input.nodes]\npath = \"nodes.parquet\"\nid = \"id\"\n\
                embedding = 4\n[input.edges]\npath = \"edges.parquet\"\nsrc = \"src\"\n\
                dst = \"dst\"\nundirected = true\n[input.pairs]\nfrom_edges = true\n\
                share = { train = 0.4, val = 0.2, test = 0.3 }\n[flatten]\n\
                output = \"out/features\"\nhops = 1\nfanouts = [1]\n[train]\n\
                output = \"out/model\"\nmodel = \"sage\"\nhidden = [4]\nepochs = 1\n\
                negatives = { random = 4, evaluation = 5 }\n[infer]\n\
                output = \"out/embeddings\"\n[score]\noutput = \"out/scores\"\ntop_k = 39\n\
                exclude_known = true\nevaluate = true\n";
    bench.run(&Job::of_text(text), &[]).ok();
    let dataset = ScoresDataset::open(&bench.path("out/scores")).unwrap();
    let rows = dataset.read_items(dataset.item_parts()[0]).unwrap();
    for at in 0..nodes {
        let first = if at == 0 { 0 } else { rows.ends[at - 1] };
        let found = (first..rows.ends[at]).map(|item| rows.items.display(item));
        let found: BTreeSet<String> = found.collect();
        let left_out = [at, (at + 1) % nodes, (at + nodes - 1) % nodes];
        let others = (0..nodes).filter(|node| !left_out.contains(node));
        assert_eq!(
            found,
            others.map(|node| node.to_string()).collect(),
            "of {at}"
        );
    }
    // The other neighbour of a node, and itself, are no candidates.
    let ranking = &bench.manifest("out/scores")["report"]["ranking"]["splits"]["test"];
    assert!(ranking["candidates"].as_f64().unwrap() <= 38.0, "{ranking}");
}

#[test]
fn check_and_inspect_show_scores() {
    let bench = bench();
    let job = job("dot");
    bench.write(&job);
    let checked = bench.graphflat(&["check", "job.toml", "--json"]).ok();
    let report: Value = serde_json::from_str(checked.stdout.lines().last().unwrap()).unwrap();
    let wanted = serde_json::json!({ "queries": USERS, "items": ITEMS, "top_k": 7 });
    assert_eq!(report["score"], wanted);
    let told = bench.graphflat(&["check", "job.toml"]).ok().stdout;
    let line = "score    120 queries, 90 items, the best 7 of each query\n";
    assert!(told.contains(line), "{told}");
    bench.run(&job, &[]).ok();
    let args = ["inspect", "out/scores", "--json", "--target", "u5"];
    let shown = bench.graphflat(&args).ok();
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap();
    assert_eq!(shown["queries"][0]["id"], "u5");
    assert_eq!(shown["queries"][0]["item"].as_array().unwrap().len(), 7);
    assert_eq!(shown["metrics"], metrics(&bench));
    let of_two = ["inspect", "out/scores", "--limit", "2"];
    let text = bench.graphflat(&of_two).ok().stdout;
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("score: "), "{text}");
    assert!(text.contains("\ntest_recall@5 0."), "{text}");
    let [.., second, pair, _] = lines[..] else {
        panic!("{text}");
    };
    assert!(second.starts_with("u1: "), "{text}");
    assert!(pair.starts_with("u0 0: "), "{text}");
    let refused = bench.graphflat(&["inspect", "out/scores", "--target", "u999"]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("has no query u999"), "{refused:?}");
}

/// Pieces of the good job, what replaces them, and the error.
const BAD: [(&str, &str, &str); 19] = [
    (
        "top_k = 7",
        "top_k = 91",
        "`score.top_k` is 91; a query has 90 items",
    ),
    (
        "top_k = 7",
        "top_k = 0",
        "job.toml:49: `score.top_k` is 0; allowed is 1 to 65536",
    ),
    (
        "top_k = 7",
        "top_k = 7\nqueries = \"shop\"",
        "job.toml:50: `score.queries` is \"shop\"; there is no such node type; allowed are \
         \"user\" and \"item\"",
    ),
    (
        "rows_per_part = 50\ntop_k = 7\n",
        "",
        "job.toml:48: `score.exclude_known` is given; it needs `top_k`",
    ),
    (
        "evaluate = true\n",
        "",
        "job.toml:51: `score.cutoffs` is given; it needs `evaluate`",
    ),
    (
        "cutoffs = [1, 5, 20]",
        "cutoffs = [5, 5]",
        "job.toml:52: `score.cutoffs` is [5, 5]; allowed are ascending numbers from 1",
    ),
    (
        "output = \"out/scores\"",
        "output = \"out/embeddings/scores\"",
        "job.toml:47: `score.output`: out/embeddings/scores overlaps `infer.output`, \
         out/embeddings; each needs a directory of its own",
    ),
    (
        "output = \"out/embeddings\"",
        "output = \"out/embeddings\"\nnormalize = true",
        "`infer.normalize` is true, which changes the scores of the decoder `dot` in [score]; \
         leave it out",
    ),
    (
        "output = \"out/embeddings\"",
        "output = \"out/embeddings\"\nlayer = 1",
        "`infer.layer` is 1; the decoder joins the embeddings of layer 2; leave it out",
    ),
    (
        "output = \"out/embeddings\"",
        "output = \"out/embeddings\"\ntypes = [\"user\"]",
        "`infer.types` leaves out `item`, whose embeddings [score] reads; name it",
    ),
    (
        "output = \"out/embeddings\"",
        "output = \"out/embeddings\"\ntargets = \"users.parquet\"",
        "`infer.targets` is a list, but `score.exclude_known` and `score.evaluate` need the \
         embeddings of all nodes; leave it out",
    ),
    (
        "features = [\"x\"]",
        "features = [\"x\"]\nwhere = { id = 5 }",
        "`train.negatives.random` is 8: a part has 1 random negatives",
    ),
    (
        SPLITS[1],
        "share = { train = 0.6 }",
        "`score.evaluate` is true, but `input.pairs.share` puts no pair in the splits val and test",
    ),
    (
        "output = \"out/embeddings\"",
        "output = \"out/embeddings\"\nlogits = true",
        "`infer.logits` is true",
    ),
    (
        "output = \"out/embeddings\"",
        "output = \"out/embeddings\"\nmethod = \"neighborhoods\"",
        "`infer.method` is \"neighborhoods\"",
    ),
    (
        "src = \"who\"",
        "src = \"whom\"",
        "job.toml:53: `score.pairs.src`: no column `whom` in listed.parquet; did you mean `who`? \
         its columns are who, what",
    ),
    (
        "exclude_known = true\n",
        "exclude_knwon = true\n",
        "job.toml:50: unknown key `score.exclude_knwon`; did you mean `exclude_known`? allowed: \
         output, input, model, queries, top_k, exclude_known, rows_per_part, pairs, evaluate, \
         cutoffs",
    ),
    (
        "[score]\n",
        "[score]\ninput = \"out/others\"\n",
        "out/others",
    ),
    (
        "[score]\n",
        "[score]\nmodel = \"out/nope\"\n",
        "out/nope, which has no model",
    ),
];

#[test]
fn bad_input_is_one_line_before_any_work() {
    let bench = bench();
    let good = job("dot");
    let mut others = Vec::new();
    for (from, to, wanted) in BAD {
        let bad = good.with(from, to);
        let outcome = bench.run(&bad, &[]);
        let is_good = outcome.code == 2 && outcome.stderr.lines().count() == 1;
        if !(is_good && outcome.stderr.contains(wanted)) {
            others.push((to, outcome));
        }
        assert!(!bench.path("out").exists(), "{to}: nothing is written");
    }
    assert!(others.is_empty(), "{others:#?}");
    let few = good.with(
        "features = [\"x\"]",
        "features = [\"x\"]\nwhere = { id = 5 }",
    );
    let few = few.with("random = 8, evaluation = 20", "random = 1, evaluation = 1");
    let refused = bench.run(&few, &[]);
    let beyond = "`score.top_k` is 7; a query has 1 items";
    assert!(refused.stderr.contains(beyond), "{}", refused.stderr);
    let alone = Job(good.0.replace(
        "[input.pairs]\nfrom_edges = \"buys\"\nsplit = \"split\"\n",
        "",
    ));
    let outcome = bench.run(&alone, &[]);
    assert_eq!(outcome.code, 2);
    let wanted = "`score` needs [input.pairs], which says what pairs are scored";
    assert!(outcome.stderr.contains(wanted), "{}", outcome.stderr);
}

#[test]
fn listed_ends_that_are_no_nodes_are_refused_before_any_work() {
    let bench = bench();
    bench.write(&job("dot"));
    for (who, what, unknown) in [
        (
            ["u1", "stranger"],
            [0, 1],
            "column `who` of listed.parquet, row 1: is stranger",
        ),
        (
            ["u1", "u2"],
            [900, 1],
            "column `what` of listed.parquet, row 0: is 900",
        ),
    ] {
        write_listed(&bench, who, what);
        for command in ["run", "check"] {
            let refused = bench.graphflat(&[command, "job.toml"]);
            assert!(
                refused.stderr.contains(unknown),
                "{command}: {}",
                refused.stderr
            );
        }
        assert!(!bench.path("out").exists(), "{unknown}: nothing is written");
    }
}

/// What `[score]` writes besides best items and listed pairs.
const OF_KNOWN: &str = "exclude_known = true\nevaluate = true\ncutoffs = [1, 5, 20]\n";

#[test]
fn kept_embeddings_may_have_more_nodes_than_the_tables() {
    let bench = bench();
    let all = job("dot").with(OF_KNOWN, "");
    bench.run(&all, &[]).ok();
    let wanted = bench.data_files("out/scores");
    let few = all.with(
        "features = [\"x\"]",
        "features = [\"x\"]\nwhere = { id = 5 }",
    );
    bench.run(&few, &["--fresh", "--stage", "score"]).ok();
    assert_same_bytes(&wanted, &bench.data_files("out/scores"), "fewer rows");
}

#[test]
fn pairs_of_nodes_without_embeddings_are_refused_before_any_work() {
    let bench = bench();
    let names: ArrayRef = Arc::new(StringArray::from_iter_values(["u1", "u2"]));
    bench.write_table("some.parquet", vec![("name", names)]);
    let output = "output = \"out/embeddings\"";
    let some = job("dot")
        .with(OF_KNOWN, "")
        .with(output, &format!("{output}\ntargets = \"some.parquet\""));
    let refused = bench.run(&some, &[]);
    let wanted = "column `who` of listed.parquet, row 0: is u0, which has no embedding";
    assert!(refused.stderr.contains(wanted), "{}", refused.stderr);
    assert!(!bench.path("out").exists(), "nothing is written");
}

/// Writes the list of two pairs.
fn write_listed(bench: &Bench, who: [&str; 2], what: [i64; 2]) {
    let who: ArrayRef = Arc::new(StringArray::from_iter_values(who));
    let what: ArrayRef = Arc::new(Int64Array::from_iter_values(what));
    bench.write_table("listed.parquet", vec![("who", who), ("what", what)]);
}

#[test]
fn embeddings_of_another_model_and_unknown_nodes_are_refused() {
    let bench = bench();
    let job = job("dot");
    bench.run(&job, &[]).ok();
    let stage = ["--fresh", "--stage", "score"];
    let other = job
        .with("epochs = 4", "epochs = 3")
        .with("out/model", "out/other");
    bench.run(&other, &["--stage", "train"]).ok();
    let outcome = bench.run(&other, &stage);
    let wanted = "the embeddings in out/embeddings are of another model than out/other; run [infer] \
                  again";
    assert_eq!(outcome.code, 2);
    assert!(outcome.stderr.contains(wanted), "{}", outcome.stderr);
    write_listed(&bench, ["u1", "stranger"], [0, 1]);
    let refused = bench.run(&job, &stage);
    let unknown = "column `who` of listed.parquet, row 1: is stranger, which has no embedding";
    assert_eq!(refused.code, 3, "{refused:?}");
    assert!(refused.stderr.contains(unknown), "{}", refused.stderr);
}
