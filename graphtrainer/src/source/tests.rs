//! Tests how often parts are decoded, and which parts are refused.

use std::sync::atomic::{AtomicUsize, Ordering};

use schemas::Fanout;

use super::*;

use crate::random::{Graph, Shape, flatten_meta};

const FANOUTS: [Fanout; 2] = [Fanout::Count(3), Fanout::Count(3)];

/// Counts how often parts are decoded when they are requested in this order.
fn decoded(cache_bytes: usize, asked: &[usize]) -> usize {
    let graph = Graph::new(Shape::default(), 1);
    let shards = graph.parts(4, &FANOUTS);
    let counts = shards.iter().map(GraphShard::split_counts).collect();
    let decodes = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&decodes);
    let metas = (
        graph.meta(),
        flatten_meta(&FANOUTS, schemas::Sampling::Uniform),
    );
    let source = Source::new("memory".into(), metas, counts, cache_bytes, move |idx| {
        seen.fetch_add(1, Ordering::Relaxed);
        Ok(shards[idx].clone())
    });
    for &idx in asked {
        let part = source.part(source.key(idx, None)).unwrap();
        assert_eq!(
            part.targets(Split::Train).len(),
            source.counts_of(Split::Train)[idx]
        );
    }
    decodes.load(Ordering::Relaxed)
}

#[test]
fn parts_are_kept_while_they_fit_and_the_oldest_goes_first() {
    let graph = Graph::new(Shape::default(), 1);
    let shards = graph.parts(4, &FANOUTS);
    let largest = shards.iter().map(GraphShard::size_bytes).max().unwrap();
    let all: usize = shards.iter().map(GraphShard::size_bytes).sum();
    let twice = [0, 1, 2, 3, 0, 1, 2, 3];
    assert_eq!(decoded(all, &twice), 4);
    assert_eq!(decoded(0, &twice), 8);
    assert_eq!(decoded(0, &[1, 1]), 2);
    assert_eq!(
        decoded(2 * largest, &[0, 1, 0, 2, 0, 1]),
        4,
        "1 was the oldest when 2 came"
    );
}

#[test]
fn a_part_that_its_manifest_does_not_know_is_refused() {
    let graph = Graph::new(Shape::default(), 1);
    let shards = graph.parts(2, &FANOUTS);
    let metas = (
        graph.meta(),
        flatten_meta(&FANOUTS, schemas::Sampling::Uniform),
    );
    let mut counts: Vec<_> = shards.iter().map(GraphShard::split_counts).collect();
    counts[1].val += 1;
    let source = Source::new("memory".into(), metas, counts, 0, move |i| {
        Ok(shards[i].clone())
    });
    assert!(source.part(source.key(0, None)).is_ok());
    let error = source.part(source.key(1, None)).unwrap_err().to_string();
    assert_eq!(
        error,
        "part 1 of memory holds 8 val targets, its manifest says 9"
    );
}

#[test]
fn a_target_without_label_is_named() {
    let mut graph = Graph::new(Shape::default(), 1);
    if let schemas::Labels::Class(classes) = &mut graph.labels {
        classes[5] = schemas::NO_CLASS;
    }
    let shards = graph.parts(1, &FANOUTS);
    let metas = (
        graph.meta(),
        flatten_meta(&FANOUTS, schemas::Sampling::Uniform),
    );
    let counts = shards.iter().map(GraphShard::split_counts).collect();
    let source = Source::new("memory".into(), metas, counts, 0, move |_| {
        Ok(shards[0].clone())
    });
    let error = source.part(source.key(0, None)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "target 38 of memory is in the train split but has no label"
    );
    assert_eq!(error.kind(), schemas::ErrorKind::Data);
}

#[test]
fn wide_labels_count_against_the_memory_of_parts() {
    let bytes = |width: usize| {
        let mut graph = Graph::new(Shape::default(), 1);
        let nodes = graph.ids.len();
        graph.labels = schemas::Labels::Multi {
            width,
            values: vec![0.0; nodes * width],
            present: vec![true; nodes],
        };
        let shard = graph.parts(1, &FANOUTS).remove(0);
        (shard.size_bytes(), shard.num_nodes())
    };
    let ((narrow, nodes), (wide, _)) = (bytes(1), bytes(101));
    assert_eq!(wide, narrow + 400 * nodes);
}

/// The drawn parts with their seeds, in order.
type Draws = Arc<Mutex<Vec<(usize, u64)>>>;

/// Makes a streamed source that records its draws.
fn streamed(cache_bytes: usize) -> (Source, Draws) {
    let graph = Graph::new(Shape::default(), 1);
    let shards = graph.parts(3, &FANOUTS);
    let counts = shards.iter().map(GraphShard::split_counts).collect();
    let draws = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&draws);
    let mut flatten = flatten_meta(&FANOUTS, schemas::Sampling::Uniform);
    flatten.seed = 40;
    let draw = move |part: usize, seed| {
        seen.lock().unwrap().push((part, seed));
        Ok(shards[part].clone().into())
    };
    let metas = (graph.meta(), flatten);
    let source = Source::streamed("memory".into(), metas, counts, cache_bytes, draw);
    (source, draws)
}

#[test]
fn an_epoch_is_drawn_with_its_own_seed_and_kept_only_while_in_use() {
    let (source, draws) = streamed(usize::MAX);
    let key = |part, epoch| source.key(part, Some(epoch));
    let first = source.part(key(1, 0)).unwrap();
    let again = source.part(key(1, 0)).unwrap();
    assert!(Arc::ptr_eq(&first, &again), "two workers share a part");
    drop(source.part(key(1, 3)).unwrap());
    drop(source.part(key(2, 0)).unwrap());
    drop((first, again));
    drop(source.part(key(1, 0)).unwrap());
    assert_eq!(*draws.lock().unwrap(), [(1, 40), (1, 43), (2, 40), (1, 40)]);
    assert_eq!(source.drawn.lock().unwrap().len(), 1, "the last one's slot");
}

#[test]
fn evaluation_reads_the_sample_of_the_plain_seed_which_is_kept() {
    let (source, draws) = streamed(usize::MAX);
    let plain = source.part(source.key(2, None)).unwrap();
    drop(source.part(source.key(2, Some(5))).unwrap());
    assert!(Arc::ptr_eq(
        &plain,
        &source.part(source.key(2, None)).unwrap()
    ));
    assert_eq!(*draws.lock().unwrap(), [(2, 40), (2, 45)]);
}
