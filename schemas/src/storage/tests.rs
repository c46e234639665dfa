//! Stores in memory, with the operations of S3 and of HDFS.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{Array as _, ArrayRef, Int64Array, RecordBatch};
use arrow::compute::concat_batches;
use parquet::arrow::{ArrowWriter, ProjectionMask};
use parquet::file::properties::WriterProperties;

use super::{
    ParquetInput, Put, entries, is_dir, is_file, object, read, remove_dir_all, remove_empty_dir,
    rename, replace, size, write_whole,
};
use crate::dataset::{Manifest, Opened, Output, PartEntry, verify_checksums};
use crate::error::{ErrorKind, SchemaError};

fn dirs(test: &str) -> [PathBuf; 2] {
    ["swapping", "renaming"].map(|kind| PathBuf::from(format!("{kind}://tests/{test}")))
}

/// Bytes for more than two parts of an upload.
fn large() -> Vec<u8> {
    (0..20_000_000_u32).map(|i| (i % 251) as u8).collect()
}

fn open(dir: &Path, fingerprint: &str, fresh: bool) -> Output {
    match Output::open(dir, "flatten", fingerprint, fresh).unwrap() {
        Opened::Open(output) => output,
        Opened::Done(_) => panic!("nothing was finished"),
    }
}

fn write_part(output: &Output, index: usize, bytes: &[u8]) {
    let mut file = output.create(&format!("part-{index:05}.parquet")).unwrap();
    file.write_all(bytes).unwrap();
    let part = PartEntry {
        name: format!("part-{index:05}"),
        files: vec![file.finish().unwrap()],
        rows: 1,
        targets: None,
    };
    output.commit_part(index, part).unwrap();
}

pub(crate) fn manifest(output: &Output, fingerprint: &str) -> Manifest {
    Manifest {
        parts: output.parts(),
        ..Manifest::new(
            "flatten",
            fingerprint.to_owned(),
            (serde_json::Value::Null, serde_json::Value::Null),
            0,
        )
    }
}

#[test]
fn files_and_directories_are_those_that_were_written() {
    for dir in dirs("files") {
        let file = dir.join("below/file");
        assert_eq!(read(&file).unwrap(), None);
        write_whole(&file, b"four").unwrap();
        assert_eq!(read(&file).unwrap().as_deref(), Some(&b"four"[..]));
        assert_eq!(size(&file).unwrap(), Some(4));
        assert!(is_dir(&dir).unwrap() && !is_file(&dir).unwrap());
        assert!(is_file(&file).unwrap() && !is_dir(&file).unwrap());
        assert_eq!(entries(&dir).unwrap(), ["below"]);
        remove_dir_all(&dir).unwrap();
        assert!(!is_dir(&dir).unwrap() && !is_file(&file).unwrap());
    }
}

#[test]
fn only_empty_directories_are_removed_as_such() {
    for dir in dirs("kept") {
        let file = dir.join("nodes/README");
        write_whole(&file, b"mine").unwrap();
        remove_empty_dir(&dir);
        assert_eq!(read(&file).unwrap().as_deref(), Some(&b"mine"[..]));
    }
}

#[test]
fn large_files_are_written_whole_too() {
    for dir in dirs("large") {
        replace(&dir.join("checkpoint"), &large()).unwrap();
        assert_eq!(read(&dir.join("checkpoint")).unwrap(), Some(large()));
        assert_eq!(entries(&dir).unwrap(), ["checkpoint"]);
    }
}

#[test]
fn an_output_is_continued_and_finished() {
    for dir in dirs("output") {
        let killed = open(&dir, "f", false);
        write_part(&killed, 0, &large());
        let mut lost = killed.create("part-00001.parquet").unwrap();
        lost.write_all(&large()).unwrap();
        assert!(!is_file(&dir.join("part-00001.parquet")).unwrap());
        drop((lost, killed));

        let output = open(&dir, "f", false);
        assert!(output.committed(0).is_some() && output.committed(1).is_none());
        write_part(&output, 1, b"small");
        assert!(!is_file(&dir.join("_SUCCESS")).unwrap());
        let manifest = manifest(&output, "f");
        output.finish(&manifest).unwrap();
        let names = [
            "_SUCCESS",
            "_manifest.json",
            "part-00000.parquet",
            "part-00001.parquet",
        ];
        assert_eq!(entries(&dir).unwrap(), names);
        verify_checksums(&dir, &manifest.parts).unwrap();
        let done = Output::open(&dir, "flatten", "f", false).unwrap();
        assert!(matches!(done, Opened::Done(found) if *found == manifest));

        let taken = Output::open(&dir, "flatten", "g", false).unwrap_err();
        assert!(matches!(taken, SchemaError::OutputTaken { .. }), "{taken}");
        // The finished output stays until the new one is whole.
        drop(open(&dir, "g", true));
        let left: Vec<String> = entries(&dir).unwrap();
        assert_eq!(
            left[..3],
            ["_SUCCESS", "_manifest.json", "_new"],
            "{}",
            dir.display()
        );
    }
}

/// A write of a dead run may arrive at any time.
#[test]
fn what_comes_late_is_no_part_of_an_output() {
    for dir in dirs("late") {
        let output = open(&dir, "f", false);
        write_part(&output, 0, b"small");
        for late in ["part-00007.parquet", "nodes/part-00000.parquet"] {
            write_whole(&dir.join(late), b"late").unwrap();
        }
        let manifest = manifest(&output, "f");
        output.finish(&manifest).unwrap();
        let names = ["_SUCCESS", "_manifest.json", "part-00000.parquet"];
        assert_eq!(entries(&dir).unwrap(), names, "{}", dir.display());

        write_whole(&dir.join("_new/_SUCCESS"), b"").unwrap();
        let done = Output::open(&dir, "flatten", "f", false).unwrap();
        assert!(matches!(done, Opened::Done(_)));
        drop(open(&dir, "g", true));
    }
}

#[test]
fn an_object_too_large_for_one_copy_is_moved_whole() {
    for dir in dirs("moved") {
        let large: Vec<u8> = (0..20_000_001)
            .map(|i| u8::try_from(i % 251).unwrap())
            .collect();
        let (from, to) = (dir.join("from"), dir.join("to"));
        write_whole(&to, b"old").unwrap();
        write_whole(&from, &large).unwrap();
        rename(&from, &to).unwrap();
        assert!(read(&to).unwrap().unwrap() == large);
        assert!(read(&from).unwrap().is_none());
    }
}

#[test]
fn a_late_write_replaces_nothing() {
    let dir = PathBuf::from("swapping://tests/replaced");
    let file = dir.join("file");
    write_whole(&file, b"old").unwrap();
    let at = |path: &Path| object(path).unwrap().unwrap();
    let (_, seen) = at(&file).read().unwrap().unwrap();
    for write in [write_whole, replace] {
        write(&file, b"new").unwrap();
        assert_eq!(read(&file).unwrap().as_deref(), Some(&b"new"[..]));
    }
    // Late writes of dead runs, on the conditions that the file does not exist or is the one they
    // saw.
    for condition in [Put::Absent, Put::Unchanged(seen)] {
        assert!(!at(&file).put_if(condition, b"late".to_vec()).unwrap());
    }
    assert_eq!(read(&file).unwrap().as_deref(), Some(&b"new"[..]));
}

#[test]
fn files_of_something_else_are_refused() {
    for dir in dirs("foreign") {
        write_whole(&dir.join("thesis.pdf"), b"all of it").unwrap();
        let error = Output::open(&dir, "flatten", "f", true).unwrap_err();
        assert!(error.to_string().contains("thesis.pdf"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Usage);
    }
}

/// A table of two columns and three row groups.
fn parquet_file(first: i64) -> Vec<u8> {
    parquet_file_of(300_000, first)
}

fn parquet_file_of(num_rows: i64, first: i64) -> Vec<u8> {
    let column =
        |from: i64| -> ArrayRef { Arc::new(Int64Array::from_iter_values(from..from + num_rows)) };
    let batch = RecordBatch::try_from_iter([("a", column(first)), ("b", column(-7))]).unwrap();
    let groups = WriterProperties::builder().set_max_row_group_row_count(Some(100_000));
    let mut writer =
        ArrowWriter::try_new(Vec::new(), batch.schema(), Some(groups.build())).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

fn read_column(input: &ParquetInput, row_groups: Vec<usize>) -> Result<RecordBatch, SchemaError> {
    let columns = ProjectionMask::columns(input.metadata.parquet_schema(), ["a"]);
    let batches: Vec<RecordBatch> = input
        .batches(row_groups, columns, 4096)?
        .collect::<Result<_, _>>()?;
    Ok(concat_batches(&batches[0].schema(), &batches).unwrap())
}

#[test]
fn tables_of_a_store_are_read_as_local_ones() {
    let local = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(local.path(), parquet_file(5)).unwrap();
    let expected = ParquetInput::open(local.path()).unwrap();
    for dir in dirs("tables") {
        let path = dir.join("a.parquet");
        write_whole(&path, &parquet_file(5)).unwrap();
        let input = ParquetInput::open(&path).unwrap();
        for row_groups in [vec![0, 1, 2], vec![1], vec![2, 0]] {
            let found = read_column(&input, row_groups.clone()).unwrap();
            assert_eq!(found, read_column(&expected, row_groups).unwrap());
            assert_eq!(found.column(0).null_count(), 0);
        }
        assert!(read_column(&input, vec![0]).unwrap().num_rows() == 100_000);
    }
}

#[test]
fn a_table_that_changes_under_a_reader_is_refused() {
    for dir in dirs("changes") {
        let path = dir.join("a.parquet");
        write_whole(&path, &parquet_file(5)).unwrap();
        let input = ParquetInput::open(&path).unwrap();
        write_whole(&path, &parquet_file(6)).unwrap();
        let error = read_column(&input, vec![0]).unwrap_err();
        assert!(matches!(error, SchemaError::Changed { .. }), "{error}");
        assert!(
            error.to_string().contains("a.parquet was changed"),
            "{error}"
        );
        remove_dir_all(&dir).unwrap();
        assert!(matches!(
            read_column(&input, vec![0]),
            Err(SchemaError::Changed { .. })
        ));
    }
}

#[test]
fn a_local_table_that_changes_under_a_reader_is_refused() {
    let local = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(local.path(), parquet_file(5)).unwrap();
    let input = ParquetInput::open(local.path()).unwrap();
    let columns = ProjectionMask::all();
    let mut batches = input.batches(vec![0], columns, 4096).unwrap();
    batches.next().unwrap().unwrap();
    let file = std::fs::File::options()
        .append(true)
        .open(local.path())
        .unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    let error = batches.find_map(Result::err).unwrap();
    assert!(matches!(error, SchemaError::Changed { .. }), "{error}");
    assert!(matches!(
        read_column(&input, vec![0]),
        Err(SchemaError::Changed { .. })
    ));
}

#[test]
fn many_tables_of_a_store_are_opened_in_their_order() {
    for dir in dirs("many") {
        let paths: Vec<PathBuf> = (0..70).map(|i| dir.join(format!("{i}.parquet"))).collect();
        for (rows, path) in (0..).zip(&paths) {
            write_whole(path, &parquet_file_of(rows, 0)).unwrap();
        }
        let inputs = ParquetInput::open_all(&paths).unwrap();
        let rows = inputs
            .iter()
            .map(|input| input.metadata.metadata().file_metadata().num_rows());
        assert!(rows.eq(0..70));
        let error =
            ParquetInput::open_all(&[&paths[..], &[dir.join("none"), dir.join("nor")]].concat());
        assert!(error.unwrap_err().to_string().contains("/none"));
    }
}

#[test]
fn what_is_no_table_is_told() {
    for dir in dirs("broken") {
        for bytes in [
            &b""[..],
            b"PAR1",
            b"no table at all, but longer than its magic",
        ] {
            let path = dir.join("a.parquet");
            write_whole(&path, bytes).unwrap();
            let error = ParquetInput::open(&path).unwrap_err();
            assert!(error.to_string().contains("a.parquet"), "{error}");
        }
    }
}
