//! Plans and data that do not fit are refused before the first step.

#![expect(clippy::unwrap_used, reason = "a test that panics fails, as it should")]

mod random;

use std::path::Path;
use std::sync::Arc;

use graphtrainer::{Source, TrainContext, TrainSpec, Trained, fit};
use random::{Graph, Shape, flatten_meta};
use schemas::{
    ErrorKind, Fanout, Features, GraphMeta, GraphShard, Labels, Sampling, Split, Transform,
};

const FANOUTS: [Fanout; 2] = [Fanout::Count(4), Fanout::Count(3)];

fn train(
    table: &str,
    transform: Option<Transform>,
    change: impl Fn(&mut Graph),
    change_meta: impl Fn(&mut GraphMeta),
) -> Result<Trained, (ErrorKind, String)> {
    let hidden = if table.contains("hidden") {
        ""
    } else {
        "hidden = [4]"
    };
    let model = if table.contains("model") {
        ""
    } else {
        "model = \"sage\""
    };
    let text = format!("output = \"model\"\n{model}\nepochs = 2\n{hidden}\n{table}");
    let spec: TrainSpec = toml::from_str(&text).unwrap();
    let ctx = TrainContext {
        input: Some("memory".into()),
        job_seed: 3,
        transform,
        one_hot: std::collections::BTreeMap::new(),
        base: Path::new("").to_owned(),
        fresh: false,
    };
    let mut graph = Graph::new(Shape::default(), 1);
    change(&mut graph);
    let mut meta = graph.meta();
    change_meta(&mut meta);
    let shards = graph.parts(2, &FANOUTS);
    let counts = shards.iter().map(GraphShard::split_counts).collect();
    let metas = (meta, flatten_meta(&FANOUTS, Sampling::Uniform));
    let source = Source::new("memory".into(), metas, counts, 0, move |idx| {
        Ok(shards[idx].clone())
    });
    let plan = spec.into_plan(ctx).unwrap();
    fit(&plan, &source, None, &(Arc::new(|_: &_| {}) as _))
        .map_err(|error| (error.kind(), error.to_string()))
}

fn check(table: &str, change: impl Fn(&mut Graph), kind: ErrorKind, expected: &str) {
    let got = train(table, None, change, |_| {}).expect_err("it does not fit");
    assert_eq!((got.0, got.1.as_str()), (kind, expected));
}

fn none(graph: &mut Graph, split: Split) {
    graph
        .split
        .iter_mut()
        .filter(|own| **own == split)
        .for_each(|own| *own = Split::None);
}

fn multi(graph: &mut Graph) {
    let width = 2;
    let nodes = graph.ids.len();
    let values = (0..nodes * width)
        .map(|i| f32::from(u8::from(i % 3 == 0)))
        .collect();
    graph.labels = Labels::Multi {
        width,
        values,
        present: vec![true; nodes],
    };
}

fn numbers(graph: &mut Graph) {
    graph.labels = Labels::Number((0..60_u8).map(f32::from).collect());
}

#[test]
fn keys_that_do_not_fit_the_data_are_named() {
    let usage = ErrorKind::Usage;
    let same = |_: &mut Graph| {};
    let start = "memory cannot be trained on with `train.";
    for (table, expected) in [
        (
            "layers = 3",
            "layers` = 3: its neighbourhoods have 2 hops, so allowed is 2",
        ),
        (
            "hidden = [4, 4, 4]",
            "hidden` = [4, 4, 4]: its neighbourhoods have 2 hops, so allowed are 1 widths, or 2 \
             with a linear head",
        ),
        (
            "model = \"rgcn\"",
            "model` = \"rgcn\": its nodes and edges have no types, so allowed are gcn, sage, gat, \
             gatv2, gin and lightgcn",
        ),
        (
            "projection = 8",
            "projection` = 8: its nodes and edges have no types: leave the key out",
        ),
        (
            "relation_aggregator = \"max\"",
            "relation_aggregator` = \"max\": its nodes and edges have no types: leave the key out",
        ),
        (
            "embedding_weight_decay = 0.5",
            "embedding_weight_decay` = 0.5: its nodes have no learnable rows \
             (`input.nodes.embedding`): leave it out",
        ),
        (
            "edge_weight = true",
            "edge_weight` = true: its edges have no weights (`input.edges.weight`)",
        ),
        (
            "edge_features = true",
            "edge_features` = true: its edges have no features (`input.edges.features`)",
        ),
        (
            "monitor = \"auc\"",
            "monitor` = \"auc\": allowed for its labels: accuracy, micro_f1, macro_f1, loss",
        ),
        (
            "loss = \"mean_squared_error\"",
            "loss` = \"mean_squared_error\": its labels are classes, allowed is cross_entropy",
        ),
        (
            "class_weights = [1, 2]",
            "class_weights` = [1.0, 2.0]: it has 3 classes, but this list has 2 weights",
        ),
    ] {
        check(table, same, usage, &format!("{start}{expected}"));
    }
    for labels in [multi, numbers] {
        check(
            "class_weights = \"balanced\"",
            labels,
            usage,
            "memory cannot be trained on with `train.class_weights` = \"balanced\": its labels are \
             not classes; only classes have weights",
        );
    }
    check(
        "weight_decay_layers = [3]",
        same,
        usage,
        "`train.weight_decay_layers` is 3: allowed is 1 to 2",
    );
}

#[test]
fn data_that_cannot_be_trained_on_are_refused() {
    let data = ErrorKind::Data;
    check(
        "",
        |graph| none(graph, Split::Train),
        data,
        "the train split of memory is empty, but training needs at least one row in it",
    );
    check(
        "patience = 3",
        |graph| none(graph, Split::Val),
        data,
        "the val split of memory is empty, but `train.patience` waits for a better metric on it",
    );
    check(
        "",
        |graph| graph.features = Features::None,
        data,
        "memory cannot be trained on: its nodes have no features (`input.nodes.features` or \
         `.sparse`) and no learnable rows (`input.nodes.embedding`)",
    );
    let refused = |change: fn(&mut GraphMeta), expected: &str| {
        let (kind, error) = train("", None, |_| {}, change).unwrap_err();
        assert_eq!(
            (kind, error),
            (data, format!("memory cannot be trained on: {expected}"))
        );
    };
    refused(
        |meta| meta.types[0].label = None,
        "its nodes have no labels (`input.nodes.label`), and it has no pairs (`[input.pairs]`)",
    );
    refused(
        |meta| meta.types[0].split = None,
        "its nodes have no splits (`input.nodes.split`)",
    );
}

#[test]
fn sparse_features_are_not_standardised() {
    let sparse = |graph: &mut Graph| {
        *graph = Graph::new(
            Shape {
                sparse: true,
                ..Shape::default()
            },
            1,
        )
    };
    let got = train("", Some(Transform::Standardize), sparse, |_| {}).unwrap_err();
    assert!(got.1.contains("allowed is \"row_normalize\""), "{}", got.1);
    assert!(train("", Some(Transform::RowNormalize), sparse, |_| {}).is_ok());
}

#[test]
fn a_transform_is_fitted_to_train_targets_alone() {
    let shift = |graph: &mut Graph| {
        if let Features::Dense { dim, values } = &mut graph.features {
            for (row, split) in values.chunks_exact_mut(*dim).zip(&graph.split) {
                row.fill(if *split == Split::Train { 2.0 } else { 1000.0 });
            }
        }
    };
    let trained = train("", Some(Transform::Standardize), shift, |_| {}).unwrap();
    let wanted = gnn::Transform::Standardize {
        mean: vec![2.0; 6],
        scale: vec![1.0; 6],
    };
    assert_eq!(trained.transforms, [wanted]);
}

#[test]
fn every_kind_of_label_has_its_metrics() {
    let names = |change: fn(&mut Graph)| {
        let trained = train("", None, change, |_| {}).unwrap();
        let of_test = trained
            .metrics
            .keys()
            .filter_map(|name| name.strip_prefix("test_"));
        of_test.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names(|_| {}), "accuracy loss macro_f1 micro_f1");
    assert_eq!(names(multi), "auc loss macro_f1 micro_f1");
    assert_eq!(names(numbers), "loss mae r2 rmse");
}

#[test]
fn without_val_targets_the_last_epoch_is_kept_and_said_so() {
    let trained = train("", None, |graph| none(graph, Split::Val), |_| {}).unwrap();
    assert_eq!((trained.best_epoch, trained.monitor), (2, None));
    let notes = [
        "the val split is empty",
        "without val targets the last epoch counts as the best",
    ];
    assert_eq!(trained.notes, notes);
    assert!(trained.metrics.contains_key("test_accuracy"));
}
