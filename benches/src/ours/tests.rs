use expect_test::{Expect, expect};

use super::*;

fn check(graph: Graph, format: Format, work: Work, expected: &Expect) {
    expected.assert_eq(&written(graph, format, work));
}

/// Returns the job of some work, whose directory is `scratch`.
fn written(graph: Graph, format: Format, work: Work) -> String {
    let dir = tempfile::tempdir().unwrap();
    let program = Program {
        path: Path::new("graphflat"),
        root: Path::new("checkout"),
        prepared: Path::new("prepared"),
        limit: Duration::ZERO,
    };
    let tables = Tables {
        dir: "tables".into(),
        format,
    };
    let path = program.job_of(graph, &tables, work, dir.path()).unwrap();
    let job = fs::read_to_string(path).unwrap();
    job.parse::<Table>().unwrap();
    job.replace(dir.path().to_str().unwrap(), "scratch")
}

#[test]
fn flatten_has_weights_and_the_tables_of_the_peers() {
    let work = Work::Flatten {
        layout: "rows",
        targets: "train",
    };
    let expected = expect![[r#"
        name = "race"
        seed = 7
        work_dir = "scratch/work"

        [flatten]
        fanouts = [10, 10]
        hops = 2
        layout = "rows"
        output = "scratch/features"
        targets = "train"

        [input.edges]
        dst = "dst"
        path = "tables/edges.parquet"
        src = "src"
        weight = "weight"

        [input.nodes]
        features = ["features"]
        id = "id"
        label = "label"
        num_classes = 16
        path = "tables/nodes.parquet"
        split = "split"

        [input.nodes.split_values]
        test = 2
        train = 0
        val = 1
    "#]];
    check(Graph::S, Format::Peers, work, &expected);
}

#[test]
fn a_training_has_the_models_of_the_peers() {
    let work = Work::Train {
        model: Model::Gat,
        dropout: true,
        hops: 2,
        streamed: false,
        workers: 1,
        without: &["pruning"],
    };
    let expected = expect![[r#"
        name = "race"
        seed = 7
        work_dir = "scratch/work"

        [input.edges]
        dst = "dst"
        path = "tables/edges.parquet"
        src = "src"

        [input.nodes]
        features = ["features"]
        id = "id"
        label = "label"
        num_classes = 16
        path = "tables/nodes.parquet"
        split = "split"

        [train]
        activation = "elu"
        batch_size = 1024
        device = "cpu"
        dropout = 0.5
        epochs = 5
        heads = 4
        hidden = [64]
        input = "prepared/M/features-2"
        learning_rate = 0.01
        model = "gat"
        output = "scratch/model"
        pruning = false
    "#]];
    check(Graph::M, Format::Generated, work, &expected);
}

#[test]
fn inference_reads_all_in_edges() {
    let expected = expect![[r#"
        name = "race"
        seed = 7
        work_dir = "scratch/work"

        [infer]
        model = "prepared/L/model-sage"
        output = "scratch/embeddings"
        prediction = false
        sampling = "none"

        [input.edges]
        dst = "dst"
        path = "tables/edges.parquet"
        src = "src"

        [input.nodes]
        features = ["features"]
        id = "id"
        label = "label"
        num_classes = 16
        path = "tables/nodes.parquet"
        split = "split"

        [input.nodes.split_values]
        test = 2
        train = 0
        val = 1
    "#]];
    let infer = |rows| Work::Infer {
        model: Model::Sage,
        rows,
    };
    check(Graph::L, Format::Peers, infer(RowFormat::F32), &expected);
    let [in_32_bits, in_16_bits] =
        [RowFormat::F32, RowFormat::Bf16].map(|rows| written(Graph::L, Format::Peers, infer(rows)));
    let key = "prediction = false\n";
    let with_rows = in_32_bits.replace(key, &format!("{key}rows = \"bf16\"\n"));
    assert_eq!(in_16_bits, with_rows);
}

#[test]
fn the_graph_like_cora_has_one_batch_and_all_in_edges() {
    let keys = train_keys(Graph::C, Model::Gcn, 2, false);
    assert_eq!(keys["hidden"], Value::Array(vec![16.into()]));
    assert_eq!(
        flatten_keys(Graph::C, 2)["fanouts"],
        Value::Array(vec!["all".into(); 2])
    );
    let tables = Tables {
        dir: "tables".into(),
        format: Format::Csv,
    };
    let input = input(Graph::C, &tables, false).unwrap();
    assert_eq!(input["nodes"]["features"].as_array().unwrap().len(), 1433);
}
