//! Models of links: the decoder scores inferred embeddings as it scores those of the formulas.

use crate::case::{Case, TOLERANCE, read};
use crate::graph::{Draws, Graph};
use crate::models::{Trained, plain};
use crate::support::twin::Rows;
use crate::{each_kind, sampled, twin};
use gnn::typed::{TypedArchitecture, TypedKind};
use gnn::{Decoder, Dense, LayerKind, Task};
use schemas::{Labels, Layout, use_at_layer};
use serde_json::json;

/// Width of the embeddings.
const WIDTH: usize = 6;

/// Returns one of some rows for each of `count` pairs.
fn ends(rows: &[Vec<f32>], count: usize, step: usize) -> Dense {
    let of_pair = |pair: usize| rows[(step * pair + 3) % rows.len()].iter().copied();
    Dense {
        rows: count,
        cols: WIDTH,
        values: (0..count).flat_map(of_pair).collect(),
    }
}

#[expect(clippy::cast_possible_truncation, reason = "decoders take f32")]
fn as_f32(rows: &Rows) -> Vec<Vec<f32>> {
    let row = |row: &Vec<f64>| row.iter().map(|&x| x as f32).collect();
    rows.iter().map(row).collect()
}

/// Compares the scores of pairs of each relation's types, with and without sampling.
fn check_kind(kind: TypedKind, seed: u64) {
    let graph = Graph::random(seed, kind == TypedKind::Conv(LayerKind::Gcn));
    let case = Case::new(&graph);
    let hops = match seed % 20 < 10 {
        true => sampled(&case.graph, case.target, &mut Draws(seed)),
        false => json!(["all", "all"]),
    };
    let plan = case.sample(&hops, Layout::Shards);
    let keep = plan.sample().keep_by_relation();
    let (_, flatten) = case.flatten(&plan);
    let meta = case.store(1, &keep).meta().graph.clone();
    let all = 0..meta.relations.len();
    let limits = |layer| {
        let relations = all.clone();
        relations
            .map(|of| use_at_layer(&flatten.fanouts, of, layer))
            .collect()
    };
    let limits: Vec<Vec<usize>> = (1..=2).map(limits).collect();
    for (at, decoder) in Decoder::ALL.into_iter().enumerate() {
        let arch = TypedArchitecture {
            task: Task::Links(decoder),
            out_dim: WIDTH,
            ..plain(kind, &meta)
        };
        let dir = case.path().join(format!("links-{at}"));
        let trained = Trained::new(dir, &arch, (&flatten, &meta));
        let expected = twin::forward(&case.store(1, &keep), &trained, &limits);
        let output = format!("out-links-{at}");
        let written = case.infer(&trained, (2, &keep), (&output, r#", "types": "all""#));
        let scorer = trained.model.scorer().unwrap();
        for relation in &meta.relations {
            let of_type = |node_type: usize| {
                let got = read(&written.1, &meta.types[node_type].name);
                assert_eq!((got.dim, &got.prediction), (WIDTH, &Labels::None));
                let rows: Vec<Vec<f32>> =
                    got.embedding.chunks(WIDTH).map(<[f32]>::to_vec).collect();
                (rows, as_f32(&expected.layers[2][node_type]))
            };
            let (from, to) = (of_type(relation.from), of_type(relation.to));
            if from.0.is_empty() || to.0.is_empty() {
                continue;
            }
            let count = from.0.len().max(to.0.len());
            let found = scorer.scores(&ends(&from.0, count, 1), &ends(&to.0, count, 7));
            let wanted = scorer.scores(&ends(&from.1, count, 1), &ends(&to.1, count, 7));
            let most = wanted.iter().fold(1e-3_f32, |most, x| most.max(x.abs()));
            for (x, y) in found.iter().zip(&wanted) {
                let error = f64::from((x - y).abs() / most);
                assert!(
                    error <= TOLERANCE,
                    "{kind:?}, {decoder:?}, graph {seed}, {}: {x} is not {y}",
                    relation.name
                );
            }
        }
    }
}

#[test]
fn decoders_score_inferred_embeddings_as_the_formulas() {
    each_kind(6..8, check_kind);
}
