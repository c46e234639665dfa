//! Tests which blocks are refused.

use super::*;

fn pair() -> BlockData {
    BlockData {
        num_src: 2,
        num_dst: 1,
        in_offset: vec![0, 1],
        in_src: vec![1],
        in_degree: vec![3, 0],
        node_key: vec![5, 6],
        num_active: 1,
        ..BlockData::default()
    }
}

fn check(change: impl FnOnce(&mut BlockData), expected: &str) {
    let mut data = pair();
    change(&mut data);
    let got = Block::new(data).map_or_else(|error| error.to_string(), |_| "ok".to_owned());
    assert_eq!(got, expected);
}

#[test]
fn contradictions_are_named() {
    check(|_| {}, "ok");
    check(
        |data| data.num_dst = 3,
        "block field `num_dst`: 3 dst nodes cannot be a prefix of 2 src nodes",
    );
    check(
        |data| data.in_offset = vec![0, 2],
        "block field `in_offset`: does not ascend from 0 to the 1 in-edges",
    );
    check(
        |data| data.in_src = vec![2],
        "block field `in_src`: position 2 is not below 2 src nodes",
    );
    check(
        |data| data.in_degree = vec![0, 0],
        "block field `in_degree`: node 0 keeps 1 in-edges but has only 0 in the whole graph",
    );
    check(
        |data| data.edge_weight = Some(vec![1.0]),
        "block field `in_weight`: must be present exactly if edge_weight is",
    );
    check(
        |data| data.self_weight = Some(vec![1.0, 0.0]),
        "block field `self_weight`: must be present exactly if self_loops and edge_weight are",
    );
    check(
        |data| data.self_loops = Some(vec![1, 1]),
        "block field `self_loops`: node 1 has more self-loops than in-edges",
    );
    check(
        |data| data.node_key = vec![],
        "block field `node_key`: has 0 entries but needs 2",
    );
}

#[test]
fn a_block_without_nodes_is_fine() {
    let empty = BlockData {
        in_offset: vec![0],
        ..BlockData::default()
    };
    assert_eq!(Block::new(empty).unwrap().num_edges(), 0);
}
