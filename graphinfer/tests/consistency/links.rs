//! Models of links: the decoder scores inferred embeddings as it scores forward passes.

use crate::case::{Case, check_graph_features};
use crate::graph::{Graph, quiet};
use crate::models::{Trained, Variant};
use crate::variants::{PLAIN, variants};
use crate::{SEED, twin};
use gnn::{Decoder, Dense};
use graphinfer::infer;
use schemas::{EmbeddingRows, Fanout, Labels, Sampling, keep_at_hop};

/// Largest error of a score, relative to the largest score: sums of f32 in another order.
const TOLERANCE: f32 = 1e-5;

/// Width of the embeddings.
const WIDTH: usize = 6;

/// Returns the ends of some pairs as rows.
fn pairs(num_nodes: usize) -> Vec<(usize, usize)> {
    (0..num_nodes)
        .map(|at| (at, (7 * at + 3) % num_nodes))
        .collect()
}

/// Scores pairs of rows.
fn scores(trained: &Trained, rows: &Dense) -> Vec<f32> {
    let scorer = trained.model.scorer().expect("a model of links");
    let ends = pairs(rows.rows);
    let of = |end: fn(&(usize, usize)) -> usize| Dense {
        rows: ends.len(),
        cols: rows.cols,
        values: ends
            .iter()
            .flat_map(|pair| rows.row(end(pair)))
            .copied()
            .collect(),
    };
    scorer.scores(&of(|pair| pair.0), &of(|pair| pair.1))
}

fn inferred(rows: &EmbeddingRows) -> Dense {
    Dense {
        rows: rows.ids.len(),
        cols: rows.dim,
        values: rows.embedding.clone(),
    }
}

#[test]
fn decoders_score_inferred_embeddings_as_forward_passes() {
    let choices = [
        [Fanout::All, Fanout::All],
        [Fanout::Count(3), Fanout::Count(5)],
    ];
    let without_head = variants().into_iter().filter(|(variant, _)| !variant.head);
    for (seed, (variant, kind)) in (0..).zip(without_head) {
        for (decoder, fanouts) in Decoder::ALL.into_iter().zip(choices.into_iter().cycle()) {
            let variant = Variant {
                decoder: Some(decoder),
                ..variant
            };
            let dir = tempfile::tempdir().unwrap();
            let graph = Graph::random(kind, 40 + seed);
            let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, Sampling::Uniform));
            let case = Case::uniform(dir.path(), &graph, &trained);
            let (manifest, rows) = case.infer(2, keep_at_hop(&fanouts, 0, 0), "");
            assert_eq!((rows.dim, &rows.prediction), (WIDTH, &Labels::None));
            assert_eq!(manifest.report["embedding"]["is_logits"], false);
            // Each target's rows equal the forward pass on its GraphFeature.
            check_graph_features(&case, &fanouts, &rows);
            if fanouts == choices[0] {
                let whole = twin::whole_graph(&graph, &trained.model, &trained.transform, 2);
                let of_rows = scores(&trained, &inferred(&rows));
                let of_whole = scores(&trained, &whole);
                let most = of_whole
                    .iter()
                    .fold(0.0_f32, |most, score| most.max(score.abs()));
                for ((got, wanted), pair) in of_rows.iter().zip(&of_whole).zip(pairs(whole.rows)) {
                    let off = (got - wanted).abs();
                    assert!(
                        off <= TOLERANCE * most,
                        "{variant:?}, {pair:?}: {got}, {wanted}"
                    );
                }
            }
        }
    }
}

#[test]
fn a_model_of_links_gives_no_logits() {
    let dir = tempfile::tempdir().unwrap();
    let (variant, kind) = (
        Variant {
            decoder: Some(Decoder::Dot),
            ..Variant::default()
        },
        PLAIN,
    );
    let graph = Graph::random(kind, SEED);
    let fanouts = [Fanout::All, Fanout::All];
    let trained = Trained::new(dir.path(), &variant, &graph, (&fanouts, Sampling::Uniform));
    let case = Case::uniform(dir.path(), &graph, &trained);
    for key in ["logits", "probabilities"] {
        let plan = case.plan("out", &format!(r#", "{key}": true"#));
        let error = infer(&plan, &case.store(1, usize::MAX), &quiet())
            .unwrap_err()
            .to_string();
        let expected = format!("`infer.{key}` is true: a model of pairs gives embeddings");
        assert!(error.contains(&expected), "{error}");
    }
}
