//! One inference round: a layer on every node, block by block, from mapped rows to a file of rows.

use crate::InferError;
use crate::checkpoint::{Checkpoint, RoundRecord, RoundRows};
use crate::exchange::Crossing;
use crate::layer::{Layer, Rounds};
use crate::rows::{RowRecord, RowWriter};
use gnn::{Dense, Input, LayerSlice, Projected, ReadyInput};
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

/// What a round has done in a process.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct RoundStats {
    /// The layer, from 1; 0 reads features.
    pub(crate) round: usize,
    pub(crate) in_edges: u64,
    /// Bytes that the round wrote for the rounds to come.
    pub(crate) bytes_written: u64,
    pub(crate) seconds: f64,
    /// Seconds of threads that went into parts, of all threads together.
    pub(crate) writing: f64,
    /// Rows that crossed between processes, where there are several.
    pub(crate) crossing: Option<Crossing>,
}

/// The files a round writes. The next layer aggregates `src`, or `rows` where there is none.
struct RoundWriter {
    rows: Option<Arc<RowWriter>>,
    src: Option<Arc<RowWriter>>,
    scores: Option<Arc<RowWriter>>,
}

impl Rounds<'_> {
    /// Returns the blocks that a round is computed in.
    fn ranges(&self, round: usize) -> Vec<Range<usize>> {
        self.ranges_of(0..self.graph.num_own(), round)
    }

    fn num_in_edges(&self, round: usize) -> u64 {
        let own = 0..self.graph.num_own();
        self.graph.num_in_edges(own, self.limit(round))
    }

    /// Tells whether a finished round's rows are read once layer `layer` is computed next.
    pub(crate) fn is_read(&self, round: usize, layer: usize) -> bool {
        round + 1 == layer || round == self.embedding_layer
    }

    /// Opens the files that a round writes: what the next layer reads.
    fn create(&self, round: usize, checkpoint: &Checkpoint) -> Result<RoundWriter, InferError> {
        let next = self.conv(round + 1);
        let file = |what, num_rows, cols: Option<usize>| match cols {
            Some(cols) => {
                let writer = checkpoint.create((round, what), num_rows, cols)?;
                Ok(Some(Arc::new(writer)))
            }
            None => Ok::<_, InferError>(None),
        };
        let (own, all) = (self.graph.num_own(), self.graph.num_rows());
        let arch = self.trained.model.architecture();
        // Layer 1 reads rows of its own nodes from the store where it does not aggregate them.
        let as_they_are = !next.projects() || (next.reads_own() && round > 0);
        let rows = as_they_are || round == self.embedding_layer;
        Ok(RoundWriter {
            rows: file(
                "rows",
                if next.projects() { own } else { all },
                rows.then(|| arch.input_dim(round + 1)),
            )?,
            src: file("src", all, next.projects().then(|| next.src_dim()))?,
            scores: file("scores", all, next.scores_dim())?,
        })
    }

    /// Makes of the features of all nodes what layer 1 reads.
    pub(crate) fn read_features(
        &self,
        checkpoint: &Checkpoint,
    ) -> Result<(RoundRecord, RoundStats), InferError> {
        let started = Instant::now();
        let writer = self.create(0, checkpoint)?;
        let ranges = self.ranges(0);
        let work = |next: &mut LayerSlice<'_>, piece: usize| {
            let range = &ranges[piece];
            match self.graph.input(range.clone(), &self.trained.transform)? {
                Input::Dense(rows) => writer.write(range.start, rows, next),
                sparse @ Input::Sparse(_) => {
                    let projected = next.project(ReadyInput::new(sparse)?)?;
                    writer.write_projected(range.start, &projected)
                }
            }
        };
        self.threads.run(ranges.len(), || self.conv(1), work)?;
        self.finish(0, writer, (started, Crossing::default()))
    }

    /// Computes a layer of all nodes and what the next one reads of them.
    pub(crate) fn run(
        &self,
        layer: usize,
        before: &RoundRows,
        checkpoint: &Checkpoint,
    ) -> Result<(RoundRecord, RoundStats), InferError> {
        let started = Instant::now();
        let input = self.open(layer, before)?;
        let writer = self.create(layer, checkpoint)?;
        let ranges = self.ranges(layer);
        let state = || (self.layer(&input), self.conv(layer + 1));
        let work = |(conv, next): &mut (Layer<'_>, LayerSlice<'_>), piece: usize| {
            let range = &ranges[piece];
            let rows = conv.run(range.clone())?;
            writer.write(range.start, rows, next)
        };
        self.threads.run(ranges.len(), state, work)?;
        self.finish(layer, writer, (started, input.hubs.crossing))
    }

    /// Gets the rows of other processes' nodes and ends the files of a round.
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
        let record = RoundRecord {
            round,
            rows: end(writer.rows)?,
            src: end(writer.src)?,
            scores: end(writer.scores)?,
        };
        let files = [&record.rows, &record.src, &record.scores];
        let bytes = files.into_iter().flatten().map(RowRecord::num_bytes).sum();
        let mut stats = self.stats(round, bytes, started.elapsed().as_secs_f64());
        stats.crossing = crossing;
        Ok((record, stats))
    }

    /// Exchanges what the next layer aggregates of other processes' nodes.
    fn exchange(&self, round: usize, writer: &RoundWriter) -> Result<Option<Crossing>, InferError> {
        let Some(exchange) = self.graph.exchange(self.limit(round + 1)) else {
            return Ok(None);
        };
        let mut crossing = Crossing::default();
        let aggregated = writer.src.as_ref().or(writer.rows.as_ref());
        for file in aggregated.into_iter().chain(&writer.scores) {
            let (read, written) = (Arc::clone(file), Arc::clone(file));
            exchange.run(
                file.cols(),
                move |rows| Ok(read.read(rows)?.into_iter().map(f32::to_bits).collect()),
                move |row, words| written.write(row.index(), bytemuck::cast_slice(words)),
            )?;
            crossing.add(exchange.crossing(file.cols()));
        }
        Ok(Some(crossing))
    }

    /// Describes a round for the report.
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
    /// Writes rows as they are, where they are read so, and what the next layer makes of them.
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
