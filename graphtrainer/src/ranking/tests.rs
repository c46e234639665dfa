//! Compares ranks and their means with a slow twin that sorts all scores.

use gnn::Decoder;

use super::*;

/// Sums of a few hundred quotients.
const TOLERANCE: f64 = 1e-12;

/// Returns whole numbers from -2 to 2, so that scores are exact and many of them are equal.
fn whole(seed: u64, rows: usize, cols: usize) -> Dense {
    let draw = |at: usize| schemas::hash_int(seed ^ schemas::hash_int(at as u64)) % 5;
    let values = (0..rows * cols).map(|at| draw(at) as f32 - 2.0);
    Dense {
        rows,
        cols,
        values: values.collect(),
    }
}

/// The mean rank of an item among those that are not left out.
fn slow_rank(scores: &[f64], item: usize, left_out: &dyn Fn(usize) -> bool) -> f64 {
    let others = (0..scores.len()).filter(|&other| other != item && !left_out(other));
    let above = others.map(|other| {
        let (own, other) = (scores[item], scores[other]);
        if other > own {
            1.0
        } else {
            0.5 * f64::from(u8::from(other == own))
        }
    });
    1.0 + above.sum::<f64>()
}

fn slow(src: &Dense, dst: &Dense, query: &Query) -> Ranks {
    let row = src.row(query.row as usize);
    let product = |item: usize| {
        let terms = row.iter().zip(dst.row(item));
        terms.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
    };
    let scores: Vec<f64> = (0..dst.rows).map(product).collect();
    let has = |items: &[u32], item: usize| items.iter().any(|&other| other as usize == item);
    let known = |item: usize| has(&query.known, item);
    let either = |item: usize| known(item) || has(&query.wanted, item);
    let wanted = query.wanted.iter().map(|&item| item as usize);
    // A wanted item that is also known is a candidate of its own ranking alone.
    let joint = |item: usize| known(item) && !has(&query.wanted, item);
    Ranks {
        filtered: wanted
            .clone()
            .map(|item| slow_rank(&scores, item, &either))
            .collect(),
        joint: wanted
            .map(|item| slow_rank(&scores, item, &joint))
            .collect(),
    }
}

/// Draws distinct items, ascending.
fn some(seed: u64, num_items: usize, most: u64) -> Vec<u32> {
    let count = schemas::hash_int(seed) % (most + 1);
    let draw = |at: u64| {
        let drawn = schemas::hash_int(seed ^ schemas::hash_int(at + 1)) % num_items as u64;
        u32::try_from(drawn).unwrap()
    };
    let mut items: Vec<u32> = (0..count).map(draw).collect();
    items.sort_unstable();
    items.dedup();
    items
}

fn queries(num_queries: u64, num_items: usize) -> Vec<Query> {
    let query = |at: u64| Query {
        row: u32::try_from(at % 7).unwrap(),
        wanted: some(3 * at, num_items, 6),
        known: some(3 * at + 1, num_items, 20),
    };
    (0..num_queries).map(query).collect()
}

#[test]
fn ranks_are_those_of_all_scores() {
    for (num_queries, num_items, dim) in [(3, 1, 2), (40, 37, 3), (300, 200, 4), (5, 9000, 2)] {
        let (src, dst) = (whole(1, 7, dim), whole(2, num_items, dim));
        let queries = queries(num_queries, num_items);
        let scorer = Scorer::new(Decoder::Dot, dim, Vec::new());
        let ranks = rank_all(&scorer, &src, &dst, &queries);
        assert_eq!(ranks.len(), queries.len());
        for (query, got) in queries.iter().zip(&ranks) {
            assert_eq!(*got, slow(&src, &dst, query), "{query:?}");
        }
    }
}

#[test]
fn every_decoder_ranks_by_its_scores() {
    for decoder in Decoder::ALL {
        let (dim, num_items) = (4, 300);
        let drawn = whole(9, 1, decoder.num_values(dim)).values;
        let scorer = Scorer::new(decoder, dim, drawn);
        let (src, dst) = (whole(1, 7, dim), whole(2, num_items, dim));
        let queries = queries(40, num_items);
        let ranks = rank_all(&scorer, &src, &dst, &queries);
        let items = scorer.dst_rows(&dst);
        for (query, got) in queries.iter().zip(&ranks) {
            let row = scorer.src_rows(&src);
            let row = row.row(query.row as usize);
            // All items at once: equal numbers stay equal whatever the block is.
            let scores = scorer.block(row, &items.values).into_iter();
            let scores: Vec<f64> = scores.map(f64::from).collect();
            for (&item, &rank) in query.wanted.iter().zip(&got.joint) {
                let known = |other: usize| {
                    let other = u32::try_from(other).unwrap();
                    query.known.contains(&other) && !query.wanted.contains(&other)
                };
                let wanted = slow_rank(&scores, item as usize, &known);
                assert_eq!(rank, wanted, "{decoder:?}, {query:?}, item {item}");
            }
        }
    }
}

#[test]
fn means_are_those_of_their_definitions() {
    // Two queries of five items: one wants items 0 and 3, the other item 4 and knows item 0.
    let queries = [
        Query {
            row: 0,
            wanted: vec![0, 3],
            known: vec![],
        },
        Query {
            row: 1,
            wanted: vec![4],
            known: vec![0],
        },
        Query {
            row: 2,
            wanted: vec![],
            known: vec![1],
        },
    ];
    let ranks = [
        Ranks {
            filtered: vec![1.0, 2.0],
            joint: vec![1.0, 3.0],
        },
        Ranks {
            filtered: vec![2.5],
            joint: vec![2.5],
        },
        Ranks::default(),
    ];
    let got = report(&queries, &ranks, 5, &[2, 3]);
    let close = |value: f64, wanted: f64| {
        assert!(
            (value - wanted).abs() < TOLERANCE,
            "{value} is not {wanted}"
        );
    };
    assert_eq!((got.num_queries, got.num_pairs), (2, 3));
    close(got.candidates, (2.0 * 4.0 + 4.0) / 3.0);
    close(got.mrr, (1.0 + 0.5 + 0.4) / 3.0);
    close(got.auc, (1.0 + 2.0 / 3.0 + 0.5) / 3.0);
    close(got.average_precision, ((1.0 + 2.0 / 3.0) / 2.0 + 0.4) / 2.0);
    let gain = |rank: f64| 1.0 / (1.0 + rank).log2();
    let best = gain(1.0) + gain(2.0);
    close(got.at[0].hits, 2.0 / 3.0);
    close(got.at[0].recall, 0.25);
    close(got.at[0].ndcg, gain(1.0) / best / 2.0);
    close(got.at[1].hits, 1.0);
    close(got.at[1].recall, 1.0);
    close(
        got.at[1].ndcg,
        ((gain(1.0) + gain(3.0)) / best + gain(2.5)) / 2.0,
    );
}

#[test]
fn means_of_nothing_are_zero_without_a_sign() {
    let got = report(&[Query::default()], &[Ranks::default()], 5, &[2]);
    let at = &got.at[0];
    for mean in [got.mrr, got.average_precision, at.hits, at.recall, at.ndcg] {
        assert_eq!(mean.to_bits(), 0.0_f64.to_bits(), "{mean}");
    }
}
