use schemas::{Fanout, GraphShard, Sampling};

use super::*;
use crate::config::tests::plan;
use crate::random::{Graph, Shape, flatten_meta};

fn prepared(keys: &str) -> Prepared {
    let text = format!("output = \"model\"\nhidden = [8]\nepochs = 1\n{keys}");
    let graph = Graph::new(Shape::default(), 5);
    let fanouts = [Fanout::Count(4), Fanout::Count(3)];
    let shards = graph.parts(1, &fanouts);
    let counts = shards.iter().map(GraphShard::split_counts).collect();
    let metas = (graph.meta(), flatten_meta(&fanouts, Sampling::Uniform));
    let read = move |idx: usize| Ok(shards[idx].clone());
    let source = Source::new("memory".into(), metas, counts, 0, read);
    prepare(&plan(&text).unwrap(), &source).unwrap()
}

#[test]
fn batches_have_the_keys_of_nodes_where_training_drops_values() {
    for (keys, drops) in [
        ("model = \"gcn\"\ndropout = 0", false),
        ("model = \"gcn\"\ndropout = 0.01", true),
        ("model = \"gcn\"\ndropout = 0\ninput_dropout = 0.2", true),
        ("model = \"gat\"\ndropout = 0", false),
        (
            "model = \"gat\"\ndropout = 0\nattention_dropout = 0.3",
            true,
        ),
    ] {
        let prepared = prepared(keys);
        assert_eq!(prepared.vectoriser(true).options.node_keys, drops, "{keys}");
        assert!(!prepared.vectoriser(false).options.node_keys, "{keys}");
    }
}
