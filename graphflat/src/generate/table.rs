//! Writes a generated table to a Parquet file.

use arrow::array::{ArrayRef, RecordBatch};
use arrow::datatypes::Schema;
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::schema::types::ColumnPath;
use schemas::SchemaError;
use schemas::threads::spawn_scoped;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use crate::FlattenError;

/// Threads that make batches for the thread that writes.
const MAKERS: usize = 2;

/// Largest number of finished batches per thread.
const BATCHES_AHEAD: usize = 1;

/// Batches of a row group.
const BATCHES_PER_ROW_GROUP: usize = 8;

/// A table to be written.
pub(super) struct Table {
    pub(super) path: PathBuf,
    pub(super) rows: u64,
    /// Rows of a row group.
    pub(super) row_group: usize,
    pub(super) schema: Arc<Schema>,
}

impl Table {
    /// Writes the rows under the temporary name; `make` takes the first row and the number of rows
    /// of a batch.
    pub(super) fn write(
        &self,
        make: impl Fn(u64, usize) -> Vec<ArrayRef> + Sync,
    ) -> Result<(), FlattenError> {
        let path = self.temporary();
        let failed = |source: ParquetError| SchemaError::Parquet {
            action: "write",
            path: path.clone(),
            source,
        };
        let file = File::create(&path).map_err(io("create", &path))?;
        let schema = Arc::clone(&self.schema);
        let mut writer =
            ArrowWriter::try_new(file, schema, Some(self.properties())).map_err(failed)?;
        let batch_rows = (self.row_group / BATCHES_PER_ROW_GROUP).max(1);
        let batch = |number: u64| {
            let first = number * batch_rows as u64;
            let rows = usize::try_from(self.rows - first).map_or(batch_rows, |n| n.min(batch_rows));
            RecordBatch::try_new(Arc::clone(&self.schema), make(first, rows))
                .expect("columns are made by the schema")
        };
        let batches = self.rows.div_ceil(batch_rows as u64);
        make_ahead(batches, batch, |batch| writer.write(&batch))?.map_err(failed)?;
        writer.close().map_err(failed)?;
        Ok(())
    }

    pub(super) fn properties(&self) -> WriterProperties {
        // Random floats do not compress.
        let floats = [vec!["weight"], vec!["features", "list", "item"]];
        let builder = WriterProperties::builder()
            .set_max_row_group_row_count(Some(self.row_group))
            .set_compression(Compression::SNAPPY)
            .set_dictionary_enabled(false)
            .set_column_dictionary_enabled("split".into(), true);
        let column =
            |path: Vec<&str>| ColumnPath::new(path.into_iter().map(str::to_owned).collect());
        floats
            .map(column)
            .into_iter()
            .fold(builder, |builder, path| {
                builder.set_column_compression(path, Compression::UNCOMPRESSED)
            })
            .build()
    }

    pub(super) fn temporary(&self) -> PathBuf {
        self.path.with_extension("parquet.tmp")
    }

    pub(super) fn put_in_place(&self) -> Result<(), FlattenError> {
        std::fs::rename(self.temporary(), &self.path).map_err(io("rename", &self.path))
    }
}

/// Makes batches `0..count` on several threads and passes them to `take` in this order.
pub(super) fn make_ahead<T: Send, E>(
    count: u64,
    make: impl Fn(u64) -> T + Sync,
    mut take: impl FnMut(T) -> Result<(), E>,
) -> schemas::Result<Result<(), E>> {
    std::thread::scope(|scope| {
        let made = [(); MAKERS].map(|()| sync_channel(BATCHES_AHEAD));
        let mut ready = Vec::new();
        for (first, (send, receive)) in (0..).zip(made) {
            let make = &make;
            let numbers = (first..count).step_by(MAKERS);
            // After `take` has failed, sending fails and the thread ends.
            let make_all = move || numbers.map(make).all(|batch| send.send(batch).is_ok());
            spawn_scoped(scope, "make", make_all)?;
            ready.push(receive);
        }
        let mut turns = ready.iter().cycle();
        Ok((0..count).try_for_each(|_| {
            let receive = turns.next().expect("there are makers");
            take(receive.recv().expect("a maker ends with its last batch"))
        }))
    })
}

pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> FlattenError {
    let path = path.to_owned();
    move |source| {
        FlattenError::from(SchemaError::Io {
            action,
            path,
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_write_ends_the_makers() {
        let mut taken = 0;
        let result = make_ahead(
            1000,
            |number| number,
            |number| {
                assert_eq!(number, taken);
                taken += 1;
                if number == 5 { Err(number) } else { Ok(()) }
            },
        );
        assert_eq!(result.unwrap(), Err(5));
    }
}
