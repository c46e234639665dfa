//! Scores that are written and read back.

use super::*;
use crate::dataset::Opened;

fn numbers(raw: &[u64]) -> Ids {
    Ids::from_keys(IdType::UInt64, raw.to_vec())
}

fn names(texts: &[&str]) -> Ids {
    let mut ids = Ids::new(IdType::Utf8);
    texts.iter().for_each(|text| ids.push_str(text));
    ids
}

#[test]
fn both_tables_are_read_as_they_were_written() {
    let dir = tempfile::tempdir().unwrap();
    let Opened::Open(output) = Output::open(dir.path(), "score", "plan", false).unwrap() else {
        panic!("nothing is finished yet");
    };
    // One query has no item, and the lists are written in two batches.
    let first = BestItemRows {
        ids: names(&["a", "b"]),
        ends: vec![2, 2],
        items: numbers(&[7, 3]),
        scores: vec![0.5, -1.0],
    };
    let second = BestItemRows {
        ids: names(&["c"]),
        ends: vec![1],
        items: numbers(&[9]),
        scores: vec![2.0],
    };
    let mut writer = ScoresWriter::items(&output, 0, [IdType::Utf8, IdType::UInt64]).unwrap();
    writer.write_items(&first).unwrap();
    writer.write_items(&second).unwrap();
    output.commit_part(0, writer.finish().unwrap()).unwrap();
    let pairs = PairScoreRows {
        src: names(&["b", "a"]),
        dst: numbers(&[3, 3]),
        scores: vec![0.25, -4.0],
    };
    let mut second_writer =
        ScoresWriter::pairs(&output, 0, [IdType::Utf8, IdType::UInt64]).unwrap();
    second_writer.write_pairs(&pairs).unwrap();
    output
        .commit_part(1, second_writer.finish().unwrap())
        .unwrap();
    let nothing = (serde_json::Value::Null, serde_json::Value::Null);
    let manifest = Manifest {
        parts: output.parts(),
        ..Manifest::new("score", "plan".to_owned(), nothing, 1)
    };
    output.finish(&manifest).unwrap();

    let dataset = ScoresDataset::open(dir.path()).unwrap();
    assert_eq!(dataset.item_parts()[0].name, "items/part-00000");
    let rows = dataset.read_items(dataset.item_parts()[0]).unwrap();
    let wanted = BestItemRows {
        ids: names(&["a", "b", "c"]),
        ends: vec![2, 2, 3],
        items: numbers(&[7, 3, 9]),
        scores: vec![0.5, -1.0, 2.0],
    };
    assert_eq!(rows, wanted);
    let part = dataset.pair_parts()[0];
    assert_eq!((&part.name[..], part.rows), ("pairs/part-00000", 2));
    assert_eq!(dataset.read_pairs(part).unwrap(), pairs);
}
