//! Compares the kernels that only typed models use with the processor's.

use super::*;
use crate::kernel::{
    DotScores, EdgeDropout, EdgeScores, EdgeSoftmax, EdgeTerm, HeadSum, NodeScores, RowNormalize,
};

/// Relations of the edges.
const RELATIONS: usize = 3;

fn blocks() -> [Block; 3] {
    [block(), block_of_two_types(), block_without_edges()]
}

/// The relation of each edge, in runs that also cross rows.
fn relations(num_edges: usize) -> Shared<u32> {
    let relation = |e: u64| u32::try_from(mix(e / 3) % RELATIONS as u64).unwrap();
    Vec::from_iter((0..num_edges as u64).map(relation)).into()
}

#[test]
fn scores_of_edges_as_sums() {
    for block in blocks() {
        let num_edges = block.num_edges();
        for (term, z) in [
            (EdgeTerm::None, [1, 1]),
            (EdgeTerm::Edge, [num_edges, HEADS]),
            (
                EdgeTerm::Relation(relations(num_edges)),
                [RELATIONS + 1, HEADS],
            ),
        ] {
            for first in [0, 3] {
                let op = EdgeScores {
                    csr: Arc::clone(block.csr()),
                    heads: HEADS,
                    first,
                    term: term.clone(),
                };
                let what = format!("edge scores, {first}, {:?}", op.term);
                let what = what.split('(').next().unwrap();
                let shapes = [[block.num_src(), 5], [block.num_dst(), HEADS], z];
                check(what, &op, &shapes);
            }
        }
    }
}

#[test]
fn scores_of_edges_as_products() {
    for block in blocks() {
        for heads in [1, HEADS, DIM] {
            let op = DotScores {
                csr: Arc::clone(block.csr()),
                heads,
                width: DIM,
            };
            let shapes = [[block.num_dst(), DIM], [block.num_src(), DIM]];
            check("dot scores", &op, &shapes);
        }
    }
}

#[test]
fn sums_by_head() {
    for block in blocks() {
        for heads in [1, HEADS, DIM] {
            let op = HeadSum {
                csr: Arc::clone(block.csr()),
                heads,
                width: DIM,
            };
            let shapes = [[block.num_edges(), heads], [block.num_src(), DIM]];
            check("head sum", &op, &shapes);
        }
    }
}

#[test]
fn softmax_over_edges() {
    for block in blocks() {
        let num_edges = block.num_edges();
        let weights = || Shared::from(values(60, num_edges));
        let drops = |relation| EdgeDropout {
            mask: Mask::new(5, 0.4),
            key: block.shared_key().clone(),
            relation,
        };
        for (weight, dropout) in [
            (None, None),
            (Some(weights()), None),
            (None, Some(drops(None))),
            (Some(weights()), Some(drops(Some(relations(num_edges))))),
        ] {
            let op = EdgeSoftmax {
                csr: Arc::clone(block.csr()),
                heads: HEADS,
                weight,
                dropout,
            };
            check("edge softmax", &op, &[[num_edges, HEADS]]);
        }
    }
}

#[test]
fn scores_of_nodes() {
    for vectors in [1, 2] {
        let op = NodeScores { heads: HEADS };
        let shapes = [[NUM_SRC, DIM], [HEADS, DIM / HEADS], [HEADS, DIM / HEADS]];
        check("node scores", &op, &shapes[..=vectors]);
    }
}

#[test]
fn rows_of_length_one() {
    let op = RowNormalize { cols: DIM };
    check("row normalize", &op, &[[NUM_DST, DIM]]);
    // The slopes of short rows are so large that other errors beside them would go unseen.
    for value in [0.0, 1e-13, 1e-11] {
        check_on("short row", &op, &[[1, DIM]], &[vec![value; DIM]]);
    }
}
