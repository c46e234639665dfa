//! Compares losses and gradients of pairs with a slow twin, and the sampled softmax with the full
//! one.

use super::decoder::{End, Weights};
use super::{Decoder, PairLoss, PairLossKind, Pairs, Scorer, loss_and_slope};
use crate::{
    Activation, Aggregator, Architecture, Block, BlockData, Dense, Input, Labels, LayerKind, Mode,
    Model, Norm, ReadyInput, Task,
};

/// Largest error of f64 finite differences of smooth functions with values near 1.
const TOLERANCE: f64 = 1e-7;

/// Largest relative error of sums of a few hundred f64.
const EXACT: f64 = 1e-12;

const DIM: usize = 3;

/// Rounds numbers to f32.
#[expect(clippy::cast_possible_truncation, reason = "this function rounds")]
fn narrow(values: Vec<f64>) -> Vec<f32> {
    values.into_iter().map(|x| x as f32).collect()
}

/// Draws numbers between -1 and 1.
fn numbers(seed: u64, len: usize) -> Vec<f64> {
    let draw = |at: usize| {
        let drawn = crate::kernel::mix(seed ^ crate::kernel::mix(at as u64));
        f64::from(u32::try_from(drawn >> 32).unwrap()) / f64::from(u32::MAX) * 2.0 - 1.0
    };
    (0..len).map(draw).collect()
}

/// A score as the papers write it.
fn score(decoder: Decoder, parameters: &[f64], src: &[f64], dst: &[f64]) -> f64 {
    let dot = |a: &[f64], b: &[f64]| -> f64 { a.iter().zip(b).map(|(a, b)| a * b).sum() };
    match decoder {
        Decoder::Dot => dot(src, dst),
        Decoder::Cosine => dot(src, dst) / (dot(src, src) * dot(dst, dst)).sqrt(),
        Decoder::Distmult => (0..DIM).map(|at| src[at] * parameters[at] * dst[at]).sum(),
        Decoder::Mlp => {
            let both = [src, dst].concat();
            let hidden = |at: usize| {
                let sum = dot(&parameters[at * 2 * DIM..][..2 * DIM], &both);
                (sum + parameters[2 * DIM * DIM + at]).max(0.0)
            };
            let last = &parameters[2 * DIM * DIM + DIM..];
            (0..DIM).map(|at| last[at] * hidden(at)).sum::<f64>() + last[DIM]
        }
    }
}

/// How often a row's node is expected among the draws of a pair.
fn drawn(pairs: &Pairs, pair: usize, row: u32) -> f64 {
    let drawn = pairs.drawn.get(pair).copied().unwrap_or(0.0);
    let chance = pairs.chance.get(row as usize).copied().unwrap_or(1.0);
    f64::from(drawn) * f64::from(chance)
}

/// The loss of pairs, pair by pair and negative by negative.
fn twin(decoder: Decoder, parameters: &[f64], rows: &[f64], pairs: &Pairs) -> f64 {
    let row = |row: u32| &rows[row as usize * DIM..][..DIM];
    let group = |pair: usize| {
        let ends = pairs.group_offset.windows(2);
        let mut ends = ends.map(|ends| ends[0] as usize..ends[1] as usize);
        ends.find(|group| group.contains(&pair)).unwrap_or(0..0)
    };
    let mut total = 0.0;
    for pair in 0..pairs.len() {
        let (src, dst) = (pairs.src[pair], pairs.dst[pair]);
        let divided = |other: u32| {
            score(decoder, parameters, row(src), row(other)) / f64::from(pairs.loss.temperature)
        };
        let node = |row: u32| pairs.node[row as usize];
        let (group, own, mut negatives) = (group(pair), pairs.own_negatives(pair), Vec::new());
        let hard = &own[own.len() - pairs.num_hard.get(pair).map_or(0, |&n| n as usize)..];
        let others = group.len().saturating_sub(1) as f64;
        let expected = |row: u32| {
            let frequency = pairs.frequency.get(row as usize).copied().unwrap_or(0.0);
            let listed = hard
                .iter()
                .filter(|&&other| node(other) == node(row))
                .count();
            others * f64::from(frequency) + drawn(pairs, pair, row) + listed as f64
        };
        let section = pairs
            .group_offset
            .iter()
            .filter(|&&start| start as usize <= pair)
            .count();
        match pairs.all_offset.get(section.saturating_sub(1)..section + 1) {
            Some(ends) => {
                let all = &pairs.all[ends[0] as usize..ends[1] as usize];
                negatives.extend(all.iter().map(|&negative| (negative, 1.0)));
            }
            None => {
                let others = group
                    .filter(|&other| other != pair)
                    .map(|other| pairs.dst[other]);
                negatives.extend(others.map(|other| (other, expected(other))));
            }
        }
        negatives.extend(own.iter().map(|&negative| (negative, expected(negative))));
        negatives.retain(|&(other, _)| node(other) != node(src) && node(other) != node(dst));
        let positive = divided(dst);
        let log = |x: f64| (1.0 + x.exp()).ln();
        let mean = |of: &dyn Fn(f64) -> f64| {
            let values = negatives.iter().map(|&(other, _)| of(divided(other)));
            values.sum::<f64>() / negatives.len().max(1) as f64
        };
        let loss = match pairs.loss.kind {
            _ if !pairs.exists(pair) => log(positive),
            PairLossKind::Softmax => {
                let sum = negatives.iter();
                let sum = sum.map(|&(other, expected)| divided(other).exp() / expected);
                (positive.exp() + sum.sum::<f64>()).ln() - positive
            }
            PairLossKind::BinaryCrossEntropy => log(-positive) + mean(&log),
            PairLossKind::Bpr => mean(&|negative| log(negative - positive)),
            PairLossKind::Margin => {
                mean(&|x| (f64::from(pairs.loss.margin) - positive + x).max(0.0))
            }
        };
        total += loss * pairs.weight(pair);
    }
    total
}

/// Seven pairs in two groups, with drawn and listed negatives; row 6 is of the node of row 1.
fn pairs(kind: PairLossKind) -> Pairs {
    Pairs {
        loss: PairLoss {
            kind,
            temperature: 0.5,
            margin: 0.75,
        },
        node: vec![0, 1, 2, 3, 4, 5, 1, 7],
        src: vec![0, 0, 3, 7, 2, 5, 4],
        dst: vec![1, 6, 2, 4, 2, 0, 5],
        weight: vec![1.0, 0.5, 2.0, 1.0, 0.25, 3.0, 1.0],
        exists: Vec::new(),
        group_offset: vec![0, 4, 7],
        negative_offset: vec![0, 2, 2, 5, 6, 6, 9, 10],
        negative: vec![3, 6, 4, 4, 1, 7, 3, 2, 2, 6],
        num_hard: vec![0, 0, 1, 1, 0, 2, 0],
        frequency: vec![0.1, 0.2, 0.3, 0.1, 0.2, 0.1, 0.2, 0.3],
        drawn: vec![0.25, 0.25, 0.25, 0.25, 0.5, 0.5, 0.5],
        chance: Vec::new(),
        all_offset: Vec::new(),
        all: Vec::new(),
    }
}

fn check(decoder: Decoder, pairs: &Pairs) {
    let parameters = numbers(7, decoder.num_values(DIM));
    let rows = numbers(3, 8 * DIM);
    pairs.check(8).unwrap();
    let weights = Weights::new(decoder, DIM, &parameters);
    let got = loss_and_slope(weights, &rows, pairs, 4.0);
    let wanted = twin(decoder, &parameters, &rows, pairs);
    let name = format!("{decoder:?}, {:?}", pairs.loss.kind);
    let off = (got.loss_sum - wanted).abs();
    assert!(
        off < EXACT * wanted.abs(),
        "{name}: {} is not {wanted}",
        got.loss_sum
    );
    let moved = |values: &[f64], at: usize, by: f64| {
        let mut values = values.to_vec();
        values[at] += by;
        values
    };
    let step = 1e-6;
    for (at, slope) in got.rows.iter().enumerate() {
        let loss = |by| twin(decoder, &parameters, &moved(&rows, at, by), pairs);
        let difference = (loss(step) - loss(-step)) / (2.0 * step) / 4.0;
        assert!(
            (slope - difference).abs() < TOLERANCE,
            "{name}, row value {at}"
        );
    }
    for (at, slope) in got.parameters.iter().enumerate() {
        let loss = |by| twin(decoder, &moved(&parameters, at, by), &rows, pairs);
        let difference = (loss(step) - loss(-step)) / (2.0 * step) / 4.0;
        assert!(
            (slope - difference).abs() < TOLERANCE,
            "{name}, parameter {at}"
        );
    }
}

const LOSSES: [PairLossKind; 4] = [
    PairLossKind::Softmax,
    PairLossKind::BinaryCrossEntropy,
    PairLossKind::Bpr,
    PairLossKind::Margin,
];

#[test]
fn losses_and_gradients_are_those_of_a_slow_twin() {
    for decoder in Decoder::ALL {
        for kind in LOSSES {
            let all = pairs(kind);
            check(decoder, &all);
            check(
                decoder,
                &Pairs {
                    chance: vec![0.2, 0.1, 0.4, 0.05, 0.3, 0.1, 0.1, 0.6],
                    ..all.clone()
                },
            );
            check(
                decoder,
                &Pairs {
                    group_offset: Vec::new(),
                    frequency: Vec::new(),
                    ..all.clone()
                },
            );
            check(
                decoder,
                &Pairs {
                    negative_offset: Vec::new(),
                    negative: Vec::new(),
                    num_hard: Vec::new(),
                    drawn: Vec::new(),
                    ..all.clone()
                },
            );
            check(
                decoder,
                &Pairs {
                    all_offset: vec![0, 7, 10],
                    all: vec![0, 1, 2, 3, 4, 5, 7, 3, 6, 2],
                    frequency: Vec::new(),
                    negative_offset: Vec::new(),
                    negative: Vec::new(),
                    num_hard: Vec::new(),
                    drawn: Vec::new(),
                    ..all
                },
            );
        }
        let with_negatives = Pairs {
            exists: vec![true, false, true, true, false, true, true],
            ..pairs(PairLossKind::BinaryCrossEntropy)
        };
        check(decoder, &with_negatives);
    }
}

/// 600 pairs of 300 src nodes with all of 1,100 nodes, or with those that `which` leaves: more than a
/// tile and than the src nodes that are computed at a time. Some src nodes are among them.
fn pairs_with_all(which: impl Fn(u32) -> bool) -> Pairs {
    let draw = |at: u64, end: u64| u32::try_from(crate::kernel::mix(at) % end).unwrap();
    let all: Vec<u32> = (250..1350).filter(|&row| which(row)).collect();
    Pairs {
        loss: PairLoss {
            temperature: 0.5,
            ..PairLoss::default()
        },
        node: (0..1400).collect(),
        src: (0..600).map(|at| draw(at / 3 * 2 + at % 2, 300)).collect(),
        dst: (0..600).map(|at| 301 + draw(at + 9999, 1099)).collect(),
        weight: (0..600).map(|at| 0.25 + draw(at, 8) as f32 / 4.0).collect(),
        group_offset: vec![0, 500, 600],
        all_offset: vec![
            0,
            u32::try_from(all.len()).unwrap(),
            2 * u32::try_from(all.len()).unwrap(),
        ],
        all: [&all[..], &all].concat(),
        ..Pairs::default()
    }
}

#[test]
fn the_softmax_over_all_nodes_is_that_of_a_slow_twin() {
    let rows = numbers(23, 1400 * DIM);
    for decoder in [Decoder::Dot, Decoder::Cosine, Decoder::Distmult] {
        let parameters = numbers(7, decoder.num_values(DIM));
        for pairs in [pairs_with_all(|_| true), pairs_with_all(|row| row % 7 > 0)] {
            pairs.check(1400).unwrap();
            let weights = Weights::new(decoder, DIM, &parameters);
            let got = loss_and_slope(weights, &rows, &pairs, 4.0);
            let wanted = twin(decoder, &parameters, &rows, &pairs);
            let off = (got.loss_sum / wanted - 1.0).abs();
            assert!(off < EXACT, "{decoder:?}: {} is not {wanted}", got.loss_sum);
            // Differences of one row in fifty: the twin is slow.
            for at in (0..rows.len()).step_by(151) {
                let loss = |by: f64| {
                    let mut moved = rows.clone();
                    moved[at] += by;
                    twin(decoder, &parameters, &moved, &pairs)
                };
                let difference = (loss(1e-4) - loss(-1e-4)) / 2e-4 / 4.0;
                let off = (got.rows[at] - difference).abs();
                assert!(
                    off < 1e-6,
                    "{decoder:?}, {at}: {}, {difference}",
                    got.rows[at]
                );
            }
            let narrow_rows = narrow(rows.clone());
            let narrow_parameters = narrow(parameters.clone());
            let weights = Weights::new(decoder, DIM, &narrow_parameters);
            let single = loss_and_slope(weights, &narrow_rows, &pairs, 4.0);
            assert!((single.loss_sum / wanted - 1.0).abs() < 1e-5, "{decoder:?}");
            for (got, wanted) in single.rows.iter().zip(&got.rows) {
                assert!((f64::from(*got) - wanted).abs() < 1e-5, "{decoder:?}");
            }
        }
    }
}

#[test]
fn the_softmax_over_all_nodes_has_the_same_bits_for_any_number_of_threads() {
    let rows = narrow(numbers(23, 1400 * DIM));
    let pairs = pairs_with_all(|_| true);
    let on = |num_threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(num_threads);
        let weights = Weights::new(Decoder::Dot, DIM, &[]);
        let slopes = pool
            .build()
            .unwrap()
            .install(|| loss_and_slope(weights, &rows, &pairs, 4.0));
        (slopes.loss_sum.to_bits(), slopes.rows)
    };
    let one = on(1);
    assert_eq!(one, on(2));
    assert_eq!(one, on(3));
}

/// A pair whose dst node is not among all nodes may be far above the others.
#[test]
fn the_softmax_over_all_nodes_bears_a_pair_far_above_the_rest() {
    let mut rows = numbers(23, 1400 * DIM);
    let mut pairs = pairs_with_all(|row| row < 1340);
    // Two pairs of one src node: one far above all nodes, the other among them.
    (pairs.src[1], pairs.dst[0], pairs.dst[1]) = (pairs.src[0], 1345, 600);
    let src = pairs.src[0] as usize * DIM;
    let own: Vec<f64> = rows[src..src + DIM].to_vec();
    let length: f64 = own.iter().map(|x| x * x).sum();
    let far = own.iter().map(|x| x * 2000.0 / length);
    rows.splice(1345 * DIM..1346 * DIM, far);
    let weights = Weights::new(Decoder::Dot, DIM, &[]);
    let got = loss_and_slope(weights, &rows, &pairs, 4.0);
    assert!(got.loss_sum.is_finite(), "{}", got.loss_sum);
    assert!(got.rows.iter().all(|slope| slope.is_finite()));
    for pair in [0, 1] {
        let weight = (0..pairs.len()).map(|at| if at == pair { 1.0 } else { 0.0 });
        let alone = Pairs {
            weight: weight.collect(),
            ..pairs.clone()
        };
        let one = loss_and_slope(weights, &rows, &alone, 4.0).loss_sum;
        let wanted = match pair {
            0 => 0.0,
            _ => {
                let scores = pairs.all[..pairs.all_offset[1] as usize].iter();
                let scores = scores.filter(|&&row| row != pairs.src[0]);
                let row = |at: u32| &rows[at as usize * DIM..][..DIM];
                let score = |at: u32| weights.join(row(pairs.src[0]), row(at)) / 0.5;
                let sum: f64 = scores.map(|&at| score(at).exp()).sum();
                sum.ln() - score(600)
            }
        };
        assert!((one - wanted).abs() < 1e-9, "{pair}: {one}, {wanted}");
    }
}

/// Scores far from 0, and far apart, stay finite.
#[test]
fn the_softmax_over_all_nodes_bears_large_scores() {
    let rows: Vec<f32> = narrow(numbers(23, 1400 * DIM))
        .iter()
        .map(|x| 60.0 * x)
        .collect();
    let pairs = pairs_with_all(|_| true);
    let wide: Vec<f64> = rows.iter().map(|&x| f64::from(x)).collect();
    let slopes = loss_and_slope(Weights::new(Decoder::Dot, DIM, &[]), &rows, &pairs, 4.0);
    let wanted = loss_and_slope(Weights::new(Decoder::Dot, DIM, &[]), &wide, &pairs, 4.0);
    assert!((slopes.loss_sum / wanted.loss_sum - 1.0).abs() < 1e-5);
    assert!(slopes.rows.iter().all(|slope| slope.is_finite()));
}

/// The sum over candidates that the softmax of pair 0 divides by.
fn divisor(rows: &[f64], pairs: &Pairs) -> f64 {
    let weight = (0..pairs.len()).map(|pair| if pair == 0 { 1.0 } else { 0.0 });
    let only_first = Pairs {
        weight: weight.collect(),
        ..pairs.clone()
    };
    let weights = Weights::new(Decoder::Dot, DIM, &[]);
    let loss = loss_and_slope(weights, rows, &only_first, 1.0).loss_sum;
    let row = |row: u32| &rows[row as usize * DIM..][..DIM];
    (loss + score(Decoder::Dot, &[], row(pairs.src[0]), row(pairs.dst[0]))).exp()
}

/// Adds up `value` over all choices of `len` of the items, in any order, and counts them.
fn over_choices(items: &[usize], len: usize, value: &mut dyn FnMut(&[usize]) -> f64) -> (f64, f64) {
    fn go(
        items: &[usize],
        len: usize,
        chosen: &mut Vec<usize>,
        value: &mut dyn FnMut(&[usize]) -> f64,
    ) -> (f64, f64) {
        if len == 0 {
            return (value(chosen), 1.0);
        }
        let (mut sum, mut count) = (0.0, 0.0);
        for at in 0..items.len() {
            chosen.push(items[at]);
            let (more, others) = go(&items[at + 1..], len - 1, chosen, value);
            (sum, count) = (sum + more, count + others);
            chosen.pop();
        }
        (sum, count)
    }
    go(items, len, &mut Vec::new(), value)
}

/// How likely a draw by degree is each row's node.
const CHANCES: [f32; 7] = [0.1, 0.2, 0.3, 0.15, 0.25, 0.0, 0.0];

/// Train pairs: rows 0 to 4 are the dst nodes, rows 5 and 6 the src nodes; node 3 ends no pair.
const EDGES: [(u32, u32); 6] = [(5, 0), (6, 1), (5, 1), (6, 2), (6, 4), (5, 4)];

/// Returns the mean divisor of pair 0 in a batch with two others, over all draws of two of the five
/// dst nodes. Options: the others' dst nodes are negatives, draws are, nodes 2 and 3 are listed.
fn over_draws(
    rows: &[f64],
    frequency: &[f32],
    others: &[usize],
    [in_batch, random, hard, by_degree]: [bool; 4],
) -> f64 {
    let chosen = std::iter::once(0).chain(others.iter().copied());
    let chosen: Vec<(u32, u32)> = chosen.map(|at| EDGES[at]).collect();
    let draws: u32 = if random { 25 } else { 1 };
    let of_draw = |draw: u32| {
        let mut own = Vec::new();
        own.extend([draw % 5, draw / 5].into_iter().filter(|_| random));
        own.extend([2, 3].into_iter().filter(|_| hard));
        let mut offset = vec![u32::try_from(own.len()).unwrap(); chosen.len() + 1];
        offset[0] = 0;
        let pairs = Pairs {
            node: (0..7).collect(),
            src: chosen.iter().map(|edge| edge.0).collect(),
            dst: chosen.iter().map(|edge| edge.1).collect(),
            group_offset: [0, 3].into_iter().filter(|_| in_batch).collect(),
            frequency: frequency.to_vec(),
            negative_offset: offset,
            negative: own,
            num_hard: [2, 0, 0].into_iter().filter(|_| hard).collect(),
            drawn: [if by_degree { 2.0 } else { 0.4 }; 3]
                .into_iter()
                .filter(|_| random)
                .collect(),
            chance: CHANCES.into_iter().filter(|_| by_degree).collect(),
            ..Pairs::default()
        };
        pairs.check(7).unwrap();
        let chance = |node: u32| match by_degree {
            true => f64::from(CHANCES[node as usize]),
            false => 0.2,
        };
        let share = if random {
            chance(draw % 5) * chance(draw / 5)
        } else {
            1.0
        };
        share * divisor(rows, &pairs)
    };
    (0..draws).map(of_draw).sum()
}

/// Over all batches of three of six pairs, and all draws of two of five dst nodes, the divisor of
/// the corrected softmax is on average that of the softmax over all dst nodes.
#[test]
fn the_corrected_softmax_is_unbiased() {
    let rows = numbers(11, 7 * DIM);
    let frequency = (0..7).map(|row: u32| {
        let ends = EDGES.iter().filter(|(_, dst)| *dst == row).count();
        ends as f32 / (EDGES.len() - 1) as f32
    });
    let frequency: Vec<f32> = frequency.collect();
    let full = |dst: &[u32]| {
        divisor(
            &rows,
            &Pairs {
                node: (0..7).collect(),
                src: vec![EDGES[0].0],
                dst: vec![EDGES[0].1],
                group_offset: vec![0, 1],
                all_offset: vec![0, u32::try_from(dst.len()).unwrap()],
                all: dst.to_vec(),
                ..Pairs::default()
            },
        )
    };
    for options in [
        [true, false, false, false],
        [false, true, false, false],
        [true, true, false, false],
        [true, true, true, false],
        [false, true, false, true],
        [true, true, true, true],
    ] {
        let mut sampled = |others: &[usize]| over_draws(&rows, &frequency, others, options);
        let (sum, count) = over_choices(&[1, 2, 3, 4, 5], 2, &mut sampled);
        // Without random negatives, only nodes at which a train pair ends are ever drawn.
        let wanted = match options[1] {
            true => full(&[0, 1, 2, 3, 4]),
            false => full(&[0, 1, 2, 4]),
        };
        let off = (sum / count - wanted).abs();
        // Frequencies and expected numbers are f32.
        assert!(off < 1e-6 * wanted, "{}, not {wanted}", sum / count);
    }
}

#[test]
fn pairs_that_contradict_themselves_are_refused() {
    let refused = |change: &dyn Fn(&mut Pairs), expected: &str| {
        let mut changed = pairs(PairLossKind::Softmax);
        change(&mut changed);
        let error = changed.check(8).expect_err(expected).to_string();
        assert!(error.contains(expected), "`{error}` lacks `{expected}`");
    };
    refused(&|pairs| pairs.dst.truncate(2), "as long as the 7 pairs");
    refused(&|pairs| pairs.node.truncate(2), "2 node numbers for 8 rows");
    refused(&|pairs| pairs.src[3] = 8, "not below the 8 rows");
    refused(&|pairs| pairs.negative[3] = 9, "not below the 8 rows");
    refused(&|pairs| pairs.group_offset[2] = 6, "sections do not fit");
    refused(&|pairs| pairs.frequency.clear(), "have no frequencies");
    refused(&|pairs| pairs.frequency[5] = 0.0, "frequency of 0");
    refused(&|pairs| pairs.drawn.clear(), "are expected 0 times");
    refused(&|pairs| pairs.chance = vec![0.0; 8], "are expected 0 times");
    refused(&|pairs| pairs.chance = vec![1.0; 7], "7 chances for 8 rows");
    refused(
        &|pairs| pairs.all_offset = vec![0, 0],
        "do not fit the sections",
    );
    refused(
        &|pairs| pairs.negative_offset[1] = 7,
        "negatives do not fit",
    );
    refused(&|pairs| pairs.num_hard[1] = 1, "more listed negatives");
    let some = vec![true, true, true, true, true, true, false];
    refused(
        &|pairs| pairs.exists.clone_from(&some),
        "need binary cross-entropy",
    );
}

/// Blocks, pairs and the twin score alike, and a score has the same bits in any block.
#[test]
fn scores_do_not_depend_on_the_block() {
    for decoder in Decoder::ALL {
        let parameters = narrow(numbers(5, decoder.num_values(DIM)));
        let dense = |seed, rows| Dense {
            rows,
            cols: DIM,
            values: narrow(numbers(seed, rows * DIM)),
        };
        let (src, dst) = (dense(1, 70), dense(2, 300));
        let scorer = Scorer::new(decoder, DIM, parameters.clone());
        let (src_rows, dst_rows) = (scorer.src_rows(&src), scorer.dst_rows(&dst));
        let all = scorer.block(&src_rows.values, &dst_rows.values);
        let wide = |of: &[f32]| -> Vec<f64> { of.iter().map(|&x| f64::from(x)).collect() };
        for (at, got) in all.iter().enumerate() {
            let (u, v) = (at / 300, at % 300);
            let wanted = score(
                decoder,
                &wide(&parameters),
                &wide(src.row(u)),
                &wide(dst.row(v)),
            );
            assert!(
                (f64::from(*got) - wanted).abs() < 1e-6,
                "{decoder:?}, {u}, {v}"
            );
            let alone = scorer.block(
                src_rows.row(u),
                &dst_rows.values[v / 10 * 10 * DIM..][..10 * DIM],
            );
            assert_eq!(
                alone[v % 10].to_bits(),
                got.to_bits(),
                "{decoder:?}, {u}, {v}"
            );
        }
        let first = Dense {
            rows: 70,
            values: dst.values[..70 * DIM].to_vec(),
            ..dst
        };
        for (at, got) in scorer.scores(&src, &first).into_iter().enumerate() {
            assert!(
                (got - all[at * 300 + at]).abs() < 1e-6,
                "{decoder:?}, pair {at}"
            );
        }
    }
}

/// The ends of a cosine have length 1, and an embedding of zeros stays.
#[test]
fn the_cosine_of_zeros_is_zero() {
    let weights = Weights::new(Decoder::Cosine, DIM, &[]);
    let embeddings = [3.0, 0.0, 4.0, 0.0, 0.0, 0.0];
    let rows = weights.ends(End::Src, &embeddings);
    assert_eq!(rows.as_ref(), [0.6, 0.0, 0.8, 0.0, 0.0, 0.0]);
    let back = weights.ends_back(End::Src, (&embeddings, &rows), vec![1.0; 6], &mut []);
    assert_eq!(&back[3..], [0.0; 3]);
}

/// A model of links on one block: four targets, which read two further nodes.
fn model(decoder: Decoder) -> (Model, Block, ReadyInput) {
    let arch = Architecture {
        layer: LayerKind::Sage,
        aggregator: Aggregator::Mean,
        in_dim: 2,
        embedding_dim: None,
        edge_dim: None,
        edge_weight: false,
        hidden: vec![],
        num_layers: 1,
        out_dim: DIM,
        heads: 1,
        out_heads: 1,
        dropout: 0.0,
        input_dropout: 0.0,
        attention_dropout: 0.0,
        norm: Norm::None,
        residual: false,
        activation: Activation::Relu,
        task: Task::Links(decoder),
    };
    let block = Block::new(BlockData {
        num_src: 6,
        num_dst: 4,
        in_offset: vec![0, 2, 3, 3, 5],
        in_src: vec![4, 1, 5, 4, 2],
        in_degree: vec![2, 1, 0, 2, 0, 0],
        node_key: (0..6).collect(),
        num_active: 4,
        ..BlockData::default()
    });
    let values = narrow(numbers(19, 12));
    let input = Dense {
        rows: 6,
        cols: 2,
        values,
    };
    let input = ReadyInput::new(Input::Dense(input)).unwrap();
    (Model::init(&arch, 5).unwrap(), block.unwrap(), input)
}

#[test]
fn the_gradient_of_a_model_covers_encoder_and_decoder() {
    for decoder in Decoder::ALL {
        let (model, block, input) = model(decoder);
        let pairs = Pairs {
            node: vec![0, 1, 2, 3],
            src: vec![0, 1, 3],
            dst: vec![1, 2, 0],
            group_offset: vec![0, 3],
            frequency: vec![0.5; 4],
            ..Pairs::default()
        };
        let (labels, blocks) = (Labels::Pairs(Box::new(pairs.clone())), [block]);
        let at = |flat: &[f64]| {
            let mode = Mode::Train { seed: 1 };
            model
                .loss_and_gradient_f64(flat, &blocks, &input, &labels, 3.0, mode)
                .unwrap()
        };
        let flat: Vec<f64> = model.flat().into_iter().map(f64::from).collect();
        assert_eq!(flat.len(), 4 * DIM + DIM + decoder.num_values(DIM));
        let (loss, gradient) = at(&flat);
        let step = 1e-6;
        for (place, slope) in gradient.iter().enumerate() {
            let moved = |by: f64| {
                let mut flat = flat.clone();
                flat[place] += by;
                at(&flat).0
            };
            let difference = (moved(step) - moved(-step)) / (2.0 * step) / 3.0;
            let off = (slope - difference).abs();
            assert!(
                off < TOLERANCE,
                "{decoder:?}, {place}: {slope}, {difference}"
            );
        }
        let mode = Mode::Train { seed: 1 };
        let plain = model
            .loss_and_gradient(&blocks, &input, &labels, 3.0, mode)
            .unwrap();
        assert!((plain.loss_sum - loss).abs() < 1e-5, "{decoder:?}");
        for (got, wanted) in plain.gradient.iter().zip(&gradient) {
            assert!((f64::from(*got) - wanted).abs() < 1e-5, "{decoder:?}");
        }
        // The decoder of the model scores the rows that its forward pass gives.
        let rows = model.forward(&blocks, &input, Mode::Eval).unwrap();
        let scorer = model.scorer().unwrap();
        assert!(
            (scorer.loss(&rows, &pairs) - loss).abs() < 1e-5,
            "{decoder:?}"
        );
    }
}
