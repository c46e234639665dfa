//! Embeddings that are written and read back.

use super::*;
use crate::columns::{FeatureMeta, GraphMeta, LabelKind, UntypedMeta};
use crate::dataset::Opened;

fn graph(label: Option<LabelMeta>) -> GraphMeta {
    GraphMeta::from(UntypedMeta {
        id_type: IdType::Utf8,
        features: FeatureMeta::None,
        columns: Vec::new(),
        label,
        split: None,
        edge_weight: false,
        edge_feature_dim: None,
        self_loops: false,
    })
}

fn manifest(graph: GraphMeta, parts: Vec<PartEntry>) -> Manifest {
    Manifest {
        graph: Some(graph),
        parts,
        ..Manifest::new(
            "infer",
            "plan".to_owned(),
            (serde_json::Value::Null, serde_json::Value::Null),
            0,
        )
    }
}

fn open(dir: &Path) -> Output {
    match Output::open(dir, "infer", "plan", false).unwrap() {
        Opened::Open(output) => output,
        Opened::Done(_) => panic!("nothing is finished yet"),
    }
}

fn names(texts: &[&str]) -> Ids {
    let mut ids = Ids::new(IdType::Utf8);
    texts.iter().for_each(|text| ids.push_str(text));
    ids
}

/// Embeddings of two numbers.
fn columns(prediction: Option<&LabelMeta>) -> EmbeddingColumns {
    EmbeddingColumns {
        are_changes: false,
        id_type: IdType::Utf8,
        passed: None,
        vectors: vec![("embedding", 2)],
        precision: Precision::F32,
        prediction: prediction.cloned(),
    }
}

fn write(
    writer: &mut EmbeddingsWriter,
    ids: &Ids,
    embedding: &[f32],
    prediction: &Labels,
) -> Result<()> {
    writer.write(EmbeddingBatch {
        ids,
        nodes: &[],
        vectors: &[embedding.to_vec()],
        prediction,
    })
}

/// Writes two batches with predictions and reads them back.
fn check(data_type: &str, kind: LabelKind, predictions: &Labels) {
    let label = LabelMeta {
        data_type: data_type.to_owned(),
        kind,
    };
    let with_head = predictions.num_rows().is_some();
    let dir = tempfile::tempdir().unwrap();
    let output = open(dir.path());
    let head = with_head.then_some(&label);
    let mut writer = EmbeddingsWriter::create(&output, 0, &columns(head)).unwrap();
    let first = if with_head {
        predictions.slice(0..2)
    } else {
        Labels::None
    };
    let second = if with_head {
        predictions.slice(2..3)
    } else {
        Labels::None
    };
    write(
        &mut writer,
        &names(&["b", "a"]),
        &[1.0, 2.0, 3.0, 4.0],
        &first,
    )
    .unwrap();
    write(&mut writer, &names(&["c"]), &[5.0, 6.0], &second).unwrap();
    let part = writer.finish().unwrap();
    assert_eq!(
        (part.rows, part.files[0].path.as_str()),
        (3, "part-00000.parquet")
    );
    output.commit_part(0, part).unwrap();
    let parts = output.parts();
    output.finish(&manifest(graph(Some(label)), parts)).unwrap();
    let dataset = EmbeddingsDataset::open(dir.path()).unwrap();
    assert_eq!(dataset.num_parts(), 1);
    let rows = dataset.read_part(0).unwrap();
    let expected = EmbeddingRows {
        ids: names(&["b", "a", "c"]),
        dim: 2,
        embedding: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        prediction: predictions.clone(),
    };
    assert_eq!(rows, expected, "{data_type}");
}

#[test]
fn predictions_are_written_as_labels_were_given() {
    let sections = vec!["admin".to_owned(), "vcs".to_owned()];
    let classes = Labels::Class(vec![1, 0, 1]);
    check("Int16", LabelKind::Class { num_classes: 2 }, &classes);
    check(
        "Dictionary(Int8, Utf8)",
        LabelKind::ClassName { names: sections },
        &classes,
    );
    let values = vec![1.0, 0.0, 0.0, 0.0, 1.0, 1.0];
    let several = Labels::Multi {
        width: 2,
        values,
        present: vec![true; 3],
    };
    check(
        "FixedSizeList(2 x UInt8)",
        LabelKind::MultiLabel { width: 2 },
        &several,
    );
    check(
        "Float64",
        LabelKind::Number,
        &Labels::Number(vec![0.5, -1.0, 2.0]),
    );
    check("Float64", LabelKind::Number, &Labels::None);
}

#[test]
fn half_as_many_bytes_hold_what_they_can() {
    let dir = tempfile::tempdir().unwrap();
    let output = open(dir.path());
    let columns = EmbeddingColumns {
        are_changes: false,
        precision: Precision::F16,
        ..columns(None)
    };
    let mut writer = EmbeddingsWriter::create(&output, 0, &columns).unwrap();
    write(&mut writer, &names(&["a"]), &[0.1, -2.5], &Labels::None).unwrap();
    let error = write(&mut writer, &names(&["b"]), &[7e4, 0.0], &Labels::None).unwrap_err();
    assert!(
        error.to_string().contains("70000 does not fit 16 bits"),
        "{error}"
    );
    output.commit_part(0, writer.finish().unwrap()).unwrap();
    let parts = output.parts();
    output.finish(&manifest(graph(None), parts)).unwrap();
    let rows = EmbeddingsDataset::open(dir.path())
        .unwrap()
        .read_part(0)
        .unwrap();
    assert_eq!(rows.embedding, [f16::from_f32(0.1).to_f32(), -2.5]);
}

#[test]
fn columns_of_different_lengths_are_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let output = open(dir.path());
    let mut writer = EmbeddingsWriter::create(&output, 0, &columns(None)).unwrap();
    let error = write(&mut writer, &names(&["a"]), &[1.0], &Labels::None).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("1 ids, [1] values of [(\"embedding\", 2)]"),
        "{error}"
    );
    drop(writer);
    assert!(!dir.path().join("part-00000.parquet").exists());
}

#[test]
fn only_outputs_of_inference_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let output = open(dir.path());
    let mut other = manifest(graph(None), Vec::new());
    other.graph = None;
    output.finish(&other).unwrap();
    let error = EmbeddingsDataset::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("not embeddings"), "{error}");
}

/// Writes one row of each of some types, in place of a finished output.
fn write_types(dir: &Path, types: &[&str]) {
    let Opened::Open(output) = Output::open(dir, "infer", "plan", true).unwrap() else {
        panic!("it starts over");
    };
    for (index, name) in types.iter().enumerate() {
        let mut writer = EmbeddingsWriter::of_type(&output, name, 0, &columns(None)).unwrap();
        write(&mut writer, &names(&[name]), &[1.0, 2.0], &Labels::None).unwrap();
        output.commit_part(index, writer.finish().unwrap()).unwrap();
    }
    let of_types = serde_json::json!({
        "types": types.iter().map(|name| serde_json::json!({
            "name": name, "id_type": "utf8", "features": "none", "label": null, "split": null,
        })).collect::<Vec<_>>(),
        "relations": [], "target_type": types[0],
    });
    let graph = serde_json::from_value(of_types).unwrap();
    let parts = output.parts();
    output.finish(&manifest(graph, parts)).unwrap();
}

#[test]
fn each_type_has_a_folder_that_goes_with_the_output() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    write_types(dir, &["author", "paper"]);
    let dataset = EmbeddingsDataset::open(dir).unwrap();
    assert_eq!(
        (dataset.parts_of("author"), dataset.parts_of("paper")),
        (vec![0], vec![1])
    );
    assert_eq!(dataset.type_of_part(1), "paper");
    assert_eq!(dataset.read_part(1).unwrap().ids, names(&["paper"]));
    let part = |name: &str| dir.join("embeddings").join(name).join("part-00000.parquet");
    assert!(part("author").exists());
    // Another output may lie in a directory of the same name.
    let other = dir.join("embeddings/part-00000.parquet");
    std::fs::write(&other, b"of another output").unwrap();
    write_types(dir, &["venue"]);
    assert!(
        !part("author").parent().unwrap().exists(),
        "no folder is left"
    );
    assert!(part("venue").exists() && other.exists());
    let replaced = EmbeddingsDataset::open(dir).unwrap();
    assert_eq!(replaced.read_part(0).unwrap().ids, names(&["venue"]));
}

/// Six rows in groups of two and parts of `rows` rows: the last part may end with a whole group.
#[test]
fn a_whole_table_has_all_rows_of_its_last_part() {
    let from = tempfile::tempdir().unwrap();
    let output = open(from.path());
    let mut writer = EmbeddingsWriter::create(&output, 0, &columns(None)).unwrap();
    let ids = names(&["a", "b", "c", "d", "e", "f"]);
    let values: Vec<f32> = (0..12u8).map(f32::from).collect();
    write(&mut writer, &ids, &values, &Labels::None).unwrap();
    output.commit_part(0, writer.finish().unwrap()).unwrap();
    let entries = output.parts();
    output.finish(&manifest(graph(None), entries)).unwrap();
    let dataset = EmbeddingsDataset::open(from.path()).unwrap();
    for rows in 1..=8 {
        let to = tempfile::tempdir().unwrap();
        let whole = open(to.path());
        let sizes = PartSizes {
            rows,
            group_bytes: 2 * 2 * 4,
        };
        let mut visited = 0;
        let visit = |of: &mut dyn Iterator<Item = RowPosition>| visited += of.count();
        dataset.write_whole(&whole, sizes, visit).unwrap();
        let written = whole.parts();
        let sizes_of_parts: Vec<u64> = written.iter().map(|part| part.rows).collect();
        whole.finish(&manifest(graph(None), written)).unwrap();
        let copy = EmbeddingsDataset::open(to.path()).unwrap();
        let parts = (0..copy.num_parts()).map(|part| copy.read_part(part).unwrap());
        let found: Vec<f32> = parts.flat_map(|part| part.embedding).collect();
        assert_eq!(found, values, "parts of {rows} rows: {sizes_of_parts:?}");
        assert_eq!(visited, 6);
    }
}
