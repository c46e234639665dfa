//! The rounds before the last: each reads mapped rows, runs a layer by blocks and writes its rows.

use crate::InferError;
use crate::checkpoint::{Checkpoint, RoundRecord, RoundRows, Source};
use crate::exchange::Crossing;
use crate::inner::InnerRounds;
use crate::layer::{Layer, Rounds};
use crate::rows::{RowRecord, RowWriter};
use crate::spooled::{Gathering, Spooled, features_of};
use gnn::{Dense, Input, LayerSlice, Projected, ReadyInput, RowFormat};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use store::Store;

/// Statistics of a round in one process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct RoundStats {
    /// The layer, from 1; 0 prepares features.
    pub(crate) round: usize,
    pub(crate) in_edges: u64,
    /// Bytes that the round wrote for later rounds.
    pub(crate) bytes_written: u64,
    pub(crate) seconds: f64,
    /// Seconds spent on writing parts: added up over all threads in one process; elapsed time with
    /// several processes.
    pub(crate) writing: f64,
    /// Bytes that processes exchanged; none in one process.
    pub(crate) crossing: Option<Crossing>,
}

/// The files that a round writes. The next layer aggregates `src`, or `rows` if there is no `src`.
struct RoundWriter {
    rows: Option<Arc<RowWriter>>,
    src: Option<Arc<RowWriter>>,
    scores: Option<Arc<RowWriter>>,
}

impl InnerRounds for Rounds<'_> {
    fn num_layers(&self) -> usize {
        self.slices.len()
    }

    fn embedding_layer(&self) -> usize {
        self.embedding_layer
    }

    fn keeps_rows(&self) -> bool {
        self.keeps_rows
    }

    fn store(&self) -> &Store {
        self.graph.store()
    }

    fn run(
        &self,
        round: usize,
        before: &RoundRows,
        checkpoint: &Checkpoint,
    ) -> Result<(RoundRecord, RoundStats), InferError> {
        match round {
            0 => self.read_features(checkpoint),
            layer => self.run_layer(layer, before, checkpoint),
        }
    }
}

impl Rounds<'_> {
    /// Returns the blocks in which a round is computed.
    fn ranges(&self, round: usize) -> Vec<Range<usize>> {
        self.ranges_of(0..self.graph.num_own(), round)
    }

    fn num_in_edges(&self, round: usize) -> u64 {
        let own = 0..self.graph.num_own();
        self.graph.num_in_edges(own, self.limit(round))
    }

    /// Creates the files that the next layer reads after a round.
    fn create(&self, round: usize, checkpoint: &Checkpoint) -> Result<RoundWriter, InferError> {
        let next = self.conv_on_processor(round + 1);
        let file = |what, num_rows, cols: Option<usize>, format| match cols {
            Some(cols) => {
                let writer = checkpoint.create((round, what), (num_rows, cols), format)?;
                Ok(Some(Arc::new(writer)))
            }
            None => Ok::<_, InferError>(None),
        };
        let (own, all) = (self.graph.num_own(), self.graph.num_rows());
        let arch = self.trained.model.architecture();
        // Layer 1 reads the rows of dst nodes from the store, unless it aggregates the rows
        // themselves.
        let in_store = round == 0 && self.gathering.is_none();
        let as_they_are = !next.projects() || (next.reads_own() && !in_store);
        let is_kept = self.keeps_rows && round > 0;
        let rows = as_they_are || round == self.embedding_layer || is_kept;
        Ok(RoundWriter {
            rows: file(
                "rows",
                if next.projects() { own } else { all },
                rows.then(|| arch.input_dim(round + 1)),
                self.format,
            )?,
            src: file(
                "src",
                all,
                next.projects().then(|| next.src_dim()),
                self.format,
            )?,
            scores: file("scores", all, next.scores_dim(), RowFormat::F32)?,
        })
    }

    /// Runs round 0: prepares the features of all nodes for layer 1.
    fn read_features(
        &self,
        checkpoint: &Checkpoint,
    ) -> Result<(RoundRecord, RoundStats), InferError> {
        let started = Instant::now();
        let writer = self.create(0, checkpoint)?;
        let ranges = self.ranges(0);
        let write = |next: &LayerSlice<'_>, first: usize, input: Input| match input {
            Input::Dense(rows) => writer.write(first, rows, next),
            sparse @ Input::Sparse(_) => {
                let projected = next.project(ReadyInput::new(sparse)?)?;
                writer.write_projected(first, &projected)
            }
        };
        let in_order = self
            .gathering
            .and_then(|of| Some((of, of.spooled.as_ref()?)));
        match in_order {
            None => {
                let work = |next: &mut LayerSlice<'_>, piece: usize| {
                    let range = &ranges[piece];
                    let input = self.graph.input(range.clone(), self.trained)?;
                    write(next, range.start, input)
                };
                self.threads.run(ranges.len(), || self.conv(1), work)?;
            }
            Some(copied) => self.read_in_order(&ranges, copied, write)?,
        }
        self.finish(0, writer, (started, Crossing::default()))
    }

    /// Reads the dense features of blocks in the order of the store and brings them to the order of
    /// rows on disk, as many blocks at once as fit in memory.
    fn read_in_order(
        &self,
        blocks: &[Range<usize>],
        (gathering, spooled): (&Gathering, &Spooled),
        write: impl Fn(&LayerSlice<'_>, usize, Input) -> Result<(), InferError> + Sync,
    ) -> Result<(), InferError> {
        let dim = self.graph.store().meta().graph.types[0].features.dim();
        // Rows are read from their bucket, and then put in order.
        let rows_max = gathering.bytes / 2 / (4 * (dim + 1));
        let num_blocks = (rows_max / self.graph.block_size().nodes).max(1);
        let chunks: Vec<&[Range<usize>]> = blocks.chunks(num_blocks).collect();
        let starts: Vec<usize> = chunks.iter().map(|some| some[0].start).collect();
        let features = spooled.features(self.graph, &starts, gathering.open_bytes())?;
        for (bucket, some) in chunks.into_iter().enumerate() {
            let rows = some[0].start..some[some.len() - 1].end;
            let values = features_of(&features, bucket, (rows.clone(), dim))?;
            let work = |next: &mut LayerSlice<'_>, at: usize| {
                let block = some[at].clone();
                let own = (block.start - rows.start) * dim..(block.end - rows.start) * dim;
                let own = values[own].to_vec();
                let input = self
                    .graph
                    .input_of_dense(block.clone(), own, self.trained)?;
                write(next, block.start, input)
            };
            self.threads.run(some.len(), || self.conv(1), work)?;
        }
        Ok(())
    }

    /// Runs a layer on all own nodes and writes the rows that the next layer reads.
    fn run_layer(
        &self,
        layer: usize,
        before: &RoundRows,
        checkpoint: &Checkpoint,
    ) -> Result<(RoundRecord, RoundStats), InferError> {
        let started = Instant::now();
        let input = self.open(layer, before)?;
        let writer = self.create(layer, checkpoint)?;
        let ranges = self.ranges(layer);
        self.for_each_group(&input, &ranges, |blocks, group| {
            let state = || (self.layer(&input, group), self.conv(layer + 1));
            let work = |(conv, next): &mut (Layer<'_>, LayerSlice<'_>), piece: usize| {
                let range = &ranges[blocks.start + piece];
                let rows = conv.run(range.clone())?;
                writer.write(range.start, rows, next)
            };
            self.threads.run(blocks.len(), state, work)
        })?;
        self.finish(layer, writer, (started, input.hubs.crossing))
    }

    /// Exchanges rows with other processes and finishes the files of a round.
    fn finish(
        &self,
        round: usize,
        writer: RoundWriter,
        (started, of_hubs): (Instant, Crossing),
    ) -> Result<(RoundRecord, RoundStats), InferError> {
        let mut crossing = self.exchange(round, &writer)?;
        crossing.iter_mut().for_each(|rows| rows.add(of_hubs));
        let end = |file: Option<Arc<RowWriter>>| {
            let file = file.map(|file| Arc::into_inner(file).expect("the exchange has ended"));
            file.map(RowWriter::finish).transpose()
        };
        let source = Source {
            src: end(writer.src)?,
            scores: end(writer.scores)?,
        };
        let record = RoundRecord {
            round,
            rows: end(writer.rows)?,
            sources: vec![source],
        };
        let bytes = record.files().flatten().map(RowRecord::num_bytes).sum();
        let mut stats = self.stats(round, bytes, started.elapsed().as_secs_f64());
        stats.crossing = crossing;
        Ok((record, stats))
    }

    /// Exchanges the rows that the next layer aggregates; returns the bytes, none in one process.
    fn exchange(&self, round: usize, writer: &RoundWriter) -> Result<Option<Crossing>, InferError> {
        let Some(exchange) = self.graph.exchange(self.limit(round + 1)) else {
            return Ok(None);
        };
        let mut crossing = Crossing::default();
        let aggregated = writer.src.as_ref().or(writer.rows.as_ref());
        for file in aggregated.into_iter().chain(&writer.scores) {
            let (read, written) = (Arc::clone(file), Arc::clone(file));
            exchange.run(
                file.row_words(),
                move |rows| read.read_words(rows),
                move |row, words| written.write_words(row.index(), words),
            )?;
            crossing.add(exchange.crossing(file.row_words()));
        }
        Ok(Some(crossing))
    }

    /// Returns the statistics of a round for the report.
    pub(crate) fn stats(&self, round: usize, bytes_written: u64, seconds: f64) -> RoundStats {
        RoundStats {
            round,
            in_edges: self.num_in_edges(round),
            bytes_written,
            seconds,
            writing: 0.0,
            crossing: None,
        }
    }
}

impl RoundWriter {
    /// Writes rows unprojected and projected, each if the next layer or the output reads them so.
    fn write(&self, first: usize, rows: Dense, next: &LayerSlice<'_>) -> Result<(), InferError> {
        if let Some(writer) = &self.rows {
            writer.write(first, &rows.values)?;
        }
        if self.src.is_none() {
            return Ok(());
        }
        let input = ReadyInput::new(Input::Dense(rows))?;
        self.write_projected(first, &next.project(input)?)
    }

    fn write_projected(&self, first: usize, src: &Projected<Dense>) -> Result<(), InferError> {
        if let Some(writer) = &self.src {
            writer.write(first, &src.rows.values)?;
        }
        match (&self.scores, &src.scores) {
            (Some(writer), Some(scores)) => writer.write(first, &scores.values),
            _ => Ok(()),
        }
    }
}
