//! Samples follow the promised distribution, by chi-square tests on fixed seeds.
//!
//! A kept list is drawn one by one without replacement: uniformly, or in proportion to the weights.
//! Every ordered outcome is a cell of the test, so inclusions and pairs are covered.

use crate::draw::Draw;
use crate::graph::{Edge, Graph, Id};
use crate::run::{Settings, Tables};
use crate::tables::Cut;
use schemas::{Fanout, Sampling};
use std::collections::BTreeMap;

/// Number of dst nodes, each with in-edges from the same sources.
const NUM_DST: usize = 300;

/// Independent samples of each dst node.
const SAMPLES: u32 = 100;

/// Normal quantile of the 99.9 % point: a correct sampler fails one test in a thousand, once, when
/// the seed is chosen. With a fixed seed the tests are repeatable.
const QUANTILE: f64 = 3.090;

/// Positions of the kept in-edges in rank order.
pub(crate) type Outcome = Vec<usize>;

/// Draws `fanout` in-edges of `weights`, for each dst node and sample.
///
/// With `parallel`, all in-edges of a dst node come from one source.
fn draws(weights: &[f32], fanout: u32, parallel: bool, settings: &Settings) -> Vec<Vec<Outcome>> {
    let mut graph = Graph::parse("0");
    let id = |number: usize| Id::Int(i128::try_from(number).unwrap());
    let first_dst = weights.len();
    graph.ids = (0..first_dst + NUM_DST).map(id).collect();
    graph.splits = None;
    graph.weighted = true;
    graph.edge_dim = 1;
    for dst in first_dst..first_dst + NUM_DST {
        for (position, &weight) in weights.iter().enumerate() {
            graph.edges.push(Edge {
                src: id(if parallel { 0 } else { position }),
                dst: id(dst),
                weight,
                // The feature tells parallel edges of equal weight apart.
                feature: vec![f32::from(u8::try_from(position).unwrap())],
            });
        }
    }
    let settings = Settings {
        fanouts: vec![Fanout::Count(fanout)],
        samples: SAMPLES,
        ..settings.clone()
    };
    let cut = Cut {
        files: 1,
        row_group: 200,
    };
    let store = Tables::write(&graph, cut).store(&settings).unwrap();
    let positions = (0u8..100).map(f32::from).collect::<Vec<_>>();
    let outcome = |dst: usize, sample: usize| {
        // Ids ascend from 0, so an id is a node's number.
        let node = schemas::NodeIdx::from_index(dst);
        let (owner, local) = store.placement().owner_and_local(node);
        let in_edges = store
            .partition(owner)
            .in_edges(0, sample, local, usize::MAX);
        let tags = in_edges.feature.unwrap().iter();
        tags.map(|tag| positions.iter().position(|p| p == tag).unwrap())
            .collect()
    };
    let samples = usize::try_from(SAMPLES).unwrap();
    (first_dst..first_dst + NUM_DST)
        .map(|dst| (0..samples).map(|sample| outcome(dst, sample)).collect())
        .collect()
}

/// Returns the probability of each ordered outcome of draws in proportion to the weights.
pub(crate) fn law(weights: &[f32], fanout: usize) -> BTreeMap<Outcome, f64> {
    let mut law = BTreeMap::from([(Outcome::new(), 1.0)]);
    for _ in 0..fanout {
        let mut longer = BTreeMap::new();
        for (drawn, probability) in law {
            let left = |i: &usize| !drawn.contains(i);
            let rest: f64 = (0..weights.len())
                .filter(left)
                .map(|i| f64::from(weights[i]))
                .sum();
            for i in (0..weights.len()).filter(left) {
                let mut next = drawn.clone();
                next.push(i);
                longer.insert(next, probability * f64::from(weights[i]) / rest);
            }
        }
        law = longer;
    }
    law
}

/// Returns chi-square of the outcomes over its critical value: below 1, they follow the law.
pub(crate) fn excess<'a>(
    outcomes: impl Iterator<Item = &'a Outcome>,
    law: &BTreeMap<Outcome, f64>,
) -> f64 {
    let mut counts: BTreeMap<&Outcome, f64> = law.keys().map(|cell| (cell, 0.0)).collect();
    let mut total = 0.0;
    for outcome in outcomes {
        *counts.get_mut(outcome).expect("an outcome of the law") += 1.0;
        total += 1.0;
    }
    let mut chi_square = 0.0;
    for (cell, probability) in law {
        let expected = probability * total;
        assert!(expected >= 5.0, "a cell too rare to test: {cell:?}");
        chi_square += (counts[cell] - expected).powi(2) / expected;
    }
    let mut degrees = -1.0;
    law.keys().for_each(|_| degrees += 1.0);
    chi_square / critical(degrees)
}

/// Wilson and Hilferty's approximation of the critical value of chi-square.
fn critical(degrees: f64) -> f64 {
    let spread = 2.0 / (9.0 * degrees);
    degrees * (1.0 - spread + QUANTILE * spread.sqrt()).powi(3)
}

/// One worker without hubs; three workers that share the in-edges of every dst node.
fn placements() -> [Settings; 2] {
    let whole = Settings::new("1");
    let split = Settings {
        workers: 3,
        hub_threshold: 1,
        ..whole.clone()
    };
    [whole, split]
}

fn assert_lawful(sampling: Sampling, weights: &[f32], fanout: u32, parallel: bool) {
    let equal = vec![1.0; weights.len()];
    let by_law = if sampling == Sampling::Uniform {
        &equal
    } else {
        weights
    };
    let law = law(by_law, usize::try_from(fanout).unwrap());
    let [whole, split] = placements().map(|settings| {
        let settings = Settings {
            sampling,
            ..settings
        };
        draws(weights, fanout, parallel, &settings)
    });
    assert_eq!(whole, split, "splitting a hub changes no sample");
    let excess = excess(whole.iter().flatten(), &law);
    assert!(excess < 1.0, "{sampling:?} of {weights:?}: {excess}");
}

const SIX: [f32; 6] = [1.0, 2.0, 3.0, 0.5, 1.0, 8.0];
const FIVE: [f32; 5] = [1.0, 2.0, 3.0, 4.0, 0.5];

#[test]
fn uniform_samples_draw_every_in_edge_alike() {
    assert_lawful(Sampling::Uniform, &SIX, 3, false);
    assert_lawful(Sampling::Uniform, &FIVE, 1, false);
}

#[test]
fn weighted_samples_draw_in_proportion_to_the_weights() {
    assert_lawful(Sampling::Weighted, &FIVE, 2, false);
    assert_lawful(Sampling::Weighted, &[1.0, 1.0, 2.0, 3.0], 4, false);
}

#[test]
fn parallel_edges_are_drawn_one_by_one() {
    assert_lawful(Sampling::Uniform, &FIVE, 2, true);
    assert_lawful(Sampling::Weighted, &FIVE, 2, true);
}

/// Draws of different sources, samples and dst nodes are independent.
#[test]
fn draws_of_other_samples_and_destinations_are_independent() {
    let all = draws(&[1.0; 4], 1, false, &placements()[0]);
    let firsts: Vec<Vec<usize>> = all
        .iter()
        .map(|samples| samples.iter().map(|outcome| outcome[0]).collect())
        .collect();
    let pair = |a: usize, b: usize| vec![a, b];
    let joint: BTreeMap<Outcome, f64> = (0..16)
        .map(|cell| (pair(cell / 4, cell % 4), 1.0 / 16.0))
        .collect();
    let samples = firsts.iter().flat_map(|of| of.chunks_exact(2));
    let samples: Vec<Outcome> = samples.map(<[usize]>::to_vec).collect();
    let neighbours = firsts.chunks_exact(2).flat_map(|two| {
        let both = two[0].iter().zip(&two[1]);
        both.map(|(&a, &b)| pair(a, b))
    });
    let neighbours: Vec<Outcome> = neighbours.collect();
    for (name, outcomes) in [("samples", samples), ("destinations", neighbours)] {
        let excess = excess(outcomes.iter(), &joint);
        assert!(excess < 1.0, "{name}: {excess}");
    }
}

/// Draws by the law of `weights`, with a generator unrelated to the engine's.
fn simulate(weights: &[f32], fanout: usize, draw: &mut Draw) -> Outcome {
    let mut left: Vec<usize> = (0..weights.len()).collect();
    let mut drawn = Outcome::new();
    while drawn.len() < fanout {
        let total: f64 = left.iter().map(|&i| f64::from(weights[i])).sum();
        let fraction = draw.below(1 << 30);
        let mut rest = total * f64::from(u32::try_from(fraction).unwrap()) / f64::from(1 << 30);
        let hit = left.iter().position(|&i| {
            rest -= f64::from(weights[i]);
            rest < 0.0
        });
        drawn.push(left.remove(hit.unwrap_or(left.len() - 1)));
    }
    drawn
}

/// The test has power: the same number of draws with common mistakes fails.
#[test]
fn biased_draws_are_found_out() {
    let num_draws = NUM_DST * usize::try_from(SAMPLES).unwrap();
    let repeat = |one: &mut dyn FnMut() -> Outcome| -> Vec<Outcome> {
        (0..num_draws).map(|_| one()).collect()
    };
    let mut draw = Draw::new(5);
    let lawful = repeat(&mut || simulate(&FIVE, 2, &mut draw));
    let law_of_five = law(&FIVE, 2);
    assert!(excess(lawful.iter(), &law_of_five) < 1.0);

    let sharper = FIVE.map(|weight| weight.powf(1.1));
    let biased = repeat(&mut || simulate(&sharper, 2, &mut draw));
    assert!(excess(biased.iter(), &law_of_five) > 1.0, "other weights");

    // Half of the sample from each half of a hub: inclusions are correct, pairs are not.
    let halves = repeat(&mut || {
        let mut both = simulate(&[1.0; 3], 1, &mut draw);
        both.push(3 + simulate(&[1.0; 3], 1, &mut draw)[0]);
        if draw.one_in(2) {
            both.reverse();
        }
        both
    });
    assert!(excess_of_halves(&halves) > 1.0, "a sample from each half");
}

fn excess_of_halves(outcomes: &[Outcome]) -> f64 {
    excess(outcomes.iter(), &law(&[1.0; 6], 2))
}
