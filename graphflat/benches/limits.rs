//! Times a lower bound of flatten on this machine: writing the bytes of a finished output again.
//!
//! ```text
//! cargo bench -p graphflat --bench limits -- OUTPUT_DIR [--threads 2] [--repeat 3]
//! ```
//!
//! The output is read into memory first, undecoded and as Arrow. Then `--threads` threads write it
//! into a temporary directory beside it: first its bytes, then its rows through the Parquet writer
//! with the encodings of the files. Neither waits for the disk.

use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

use arrow::array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use parquet::basic::{Compression, Encoding};
use parquet::file::metadata::RowGroupMetaData;
use parquet::file::properties::{EnabledStatistics, WriterProperties};

/// The program's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// A file of the output, in memory.
struct Part {
    bytes: Vec<u8>,
    batches: Vec<RecordBatch>,
    properties: WriterProperties,
}

fn main() -> Result<()> {
    // `cargo bench` adds `--bench`.
    let args: Vec<String> = std::env::args()
        .skip(1)
        .filter(|a| a != "--bench")
        .collect();
    let number = |name: &str, default: usize| -> Result<usize> {
        let at = args.iter().position(|arg| arg == name);
        let text = at.map(|at| args.get(at + 1).ok_or(format!("{name} needs a value")));
        Ok(text.transpose()?.map_or(Ok(default), |text| text.parse())?)
    };
    let (threads, repeat) = (number("--threads", 2)?, number("--repeat", 3)?);
    let Some(dir) = args.first() else {
        print("usage: limits OUTPUT_DIR [--threads 2] [--repeat 3]; nothing to do");
        return Ok(());
    };
    let parts = files(Path::new(dir))?;
    let parts = parts.iter().filter_map(|path| read(path).transpose());
    let parts: Vec<Part> = parts.collect::<Result<_>>()?;
    let bytes: usize = parts.iter().map(|part| part.bytes.len()).sum();
    let work = tempfile::tempdir_in(dir)?;
    for _ in 0..repeat {
        let raw = time(&parts, threads, work.path(), |part, file| {
            Ok(std::io::BufWriter::new(file).write_all(&part.bytes)?)
        })?;
        let encoded = time(&parts, threads, work.path(), |part, file| {
            let schema = part.batches[0].schema();
            let mut writer = ArrowWriter::try_new(file, schema, Some(part.properties.clone()))?;
            for batch in &part.batches {
                writer.write(batch)?;
            }
            writer.close()?;
            Ok(())
        })?;
        print(&format!(
            "{:.0} MB, {threads} threads: bytes written in {raw:.3} s, rows encoded and written in \
             {encoded:.3} s",
            bytes as f64 / 1e6
        ));
    }
    Ok(())
}

/// Lists all Parquet files below a directory.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "parquet")
        {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Reads a file; none if it has no rows.
fn read(path: &Path) -> Result<Option<Part>> {
    let bytes = std::fs::read(path)?;
    let builder = ParquetRecordBatchReaderBuilder::try_new(bytes::Bytes::from(bytes.clone()))?;
    if builder.metadata().num_row_groups() == 0 {
        return Ok(None);
    }
    let properties = properties(builder.metadata().row_group(0));
    let batches = builder.with_batch_size(1024).build()?;
    Ok(Some(Part {
        bytes,
        batches: batches.collect::<std::result::Result<_, _>>()?,
        properties,
    }))
}

/// Returns the settings that a row group was written with.
fn properties(group: &RowGroupMetaData) -> WriterProperties {
    let mut builder = WriterProperties::builder()
        .set_statistics_enabled(EnabledStatistics::None)
        .set_max_row_group_row_count(usize::try_from(group.num_rows()).ok());
    for column in group.columns() {
        let path = column.column_path().clone();
        let encodings: Vec<Encoding> = column.encodings().collect();
        let has_dictionary = encodings.contains(&Encoding::RLE_DICTIONARY);
        builder = builder
            .set_column_compression(path.clone(), column.compression())
            .set_column_dictionary_enabled(path.clone(), has_dictionary);
        let delta = [Encoding::DELTA_BINARY_PACKED, Encoding::DELTA_BYTE_ARRAY];
        if let Some(&encoding) = delta.iter().find(|&encoding| encodings.contains(encoding)) {
            builder = builder.set_column_encoding(path, encoding);
        }
    }
    builder.set_compression(Compression::UNCOMPRESSED).build()
}

/// Returns the seconds until all parts are written; each free thread takes the next part.
fn time(
    parts: &[Part],
    threads: usize,
    dir: &Path,
    write: impl Fn(&Part, File) -> Result<()> + Sync,
) -> Result<f64> {
    let next = Mutex::new(parts.iter().enumerate());
    for index in 0..parts.len() {
        // Remove the old file before the clock starts, because freeing its pages takes time.
        std::fs::remove_file(dir.join(index.to_string())).ok();
    }
    let started = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    loop {
                        let taken = next.lock().expect("no thread panicked").next();
                        let Some((index, part)) = taken else {
                            return Ok(());
                        };
                        write(part, File::create(dir.join(index.to_string()))?)?;
                    }
                })
            })
            .collect();
        workers
            .into_iter()
            .try_for_each(|worker| worker.join().expect("no thread panicked"))
    })?;
    Ok(started.elapsed().as_secs_f64())
}

#[expect(clippy::print_stdout, reason = "a bench reports to whoever runs it")]
fn print(line: &str) {
    println!("{line}");
}
