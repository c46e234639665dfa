//! The rounds before the last: each reads mapped rows, runs a layer by blocks and writes its rows.

use super::layer::{TypedRounds, ready};
use super::reads::Read;
use crate::InferError;
use crate::checkpoint::{Checkpoint, RoundRecord, RoundRows, Source};
use crate::exchange::Crossing;
use crate::inner::InnerRounds;
use crate::layer::HubRows;
use crate::round::RoundStats;
use crate::rows::{RowRecord, RowWriter};
use gnn::typed::TypedLayerSlice;
use gnn::{Dense, Input, ReadyInput, RowFormat, SharedRows};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;
use store::Store;

/// The files that a round writes.
struct RoundWriter {
    rows: Arc<RowWriter>,
    sources: Vec<SourceWriter>,
}

/// The files of a matrix that the next layer aggregates.
struct SourceWriter {
    /// Its types.
    types: Range<usize>,
    /// The row of the graph that its first row is of.
    first: usize,
    files: Source<Arc<RowWriter>>,
}

impl SourceWriter {
    fn is_read(&self) -> bool {
        self.files.src.is_some() || self.files.scores.is_some()
    }
}

impl InnerRounds for TypedRounds<'_> {
    fn num_layers(&self) -> usize {
        self.limits.len()
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
        let started = Instant::now();
        let writer = self.create(round, checkpoint)?;
        let pieces = self.pieces(round);
        let mut of_hubs = Crossing::default();
        match round {
            0 => self.project_features(&writer, &pieces)?,
            layer => {
                let hubs = self.hub_rows(layer, before)?;
                of_hubs = hubs.crossing;
                self.run_layer(layer, (before, &hubs), (&writer, &pieces))?;
            }
        }
        self.finish(round, writer, (started, of_hubs))
    }
}

impl TypedRounds<'_> {
    /// Returns the blocks in which a round is computed, each with its type.
    fn pieces(&self, round: usize) -> Vec<(usize, Range<usize>)> {
        let of_type = |node_type| {
            let rows = self.graph.own_rows_of(node_type);
            let ranges = self.graph.ranges(node_type, rows, self.limits(round));
            ranges.into_iter().map(move |range| (node_type, range))
        };
        self.needed.types(round).flat_map(of_type).collect()
    }

    /// Creates the files that the next layer reads after a round.
    fn create(&self, round: usize, checkpoint: &Checkpoint) -> Result<RoundWriter, InferError> {
        let next = self.slice_on_processor(round + 1);
        let next_types: Vec<usize> = self.needed.types(round + 1).collect();
        let read_by = |node_type: &usize| next.sources_of(*node_type);
        let read: Vec<usize> = next_types.iter().flat_map(read_by).collect();
        let source = |(at, source): (usize, &gnn::typed::Source)| {
            let rows = self.graph.rows_of_types(&source.types);
            let file = |what: &str, cols: Option<usize>, format| {
                let cols = cols.filter(|_| read.contains(&at));
                let name = format!("{what}-{at:02}");
                let create = |width| checkpoint.create((round, &name), (rows.len(), width), format);
                Ok::<_, InferError>(cols.map(create).transpose()?.map(Arc::new))
            };
            Ok::<_, InferError>(SourceWriter {
                types: source.types.clone(),
                first: rows.start,
                files: Source {
                    src: file("src", source.projects.then_some(source.dim), self.format)?,
                    scores: file("scores", source.scores_dim, RowFormat::F32)?,
                },
            })
        };
        let sources = next.sources().iter().enumerate().map(source);
        let all = self.graph.num_rows();
        let rows = checkpoint.create((round, "rows"), (all, next.input_dim()), self.format)?;
        Ok(RoundWriter {
            rows: Arc::new(rows),
            sources: sources.collect::<Result<_, _>>()?,
        })
    }

    /// Round 0: projects the features of each type.
    fn project_features(
        &self,
        writer: &RoundWriter,
        pieces: &[(usize, Range<usize>)],
    ) -> Result<(), InferError> {
        let state = || (self.model.projection(), self.slice(1));
        self.threads
            .run(pieces.len(), state, |(projection, next), at| {
                let (node_type, range) = &pieces[at];
                let input = self.graph.input(*node_type, range.clone(), self.trained)?;
                let input = input.map(ReadyInput::new).transpose()?;
                let degrees = match projection.reads_degrees() {
                    true => self.graph.in_degrees(*node_type, range.clone()),
                    false => Vec::new(),
                };
                let rows = projection.run(*node_type, range.len(), input, &degrees)?;
                writer.write((*node_type, range), rows, next, None)
            })
    }

    /// Runs a layer on the nodes of all types that are needed.
    fn run_layer(
        &self,
        layer: usize,
        (before, hubs): (&RoundRows, &HubRows),
        (writer, pieces): (&RoundWriter, &[(usize, Range<usize>)]),
    ) -> Result<(), InferError> {
        let src = self.sources(layer, before);
        let state = || {
            let conv = self.layer(layer, (&src, before, hubs));
            (conv, self.slice(layer + 1))
        };
        self.threads.run(pieces.len(), state, |(conv, next), at| {
            let (node_type, range) = &pieces[at];
            let rows = conv.run(*node_type, range.clone())?;
            let carried = next.carried_dim();
            let carried = carried.and_then(|_| conv.scores(range.clone()));
            writer.write((*node_type, range), rows, next, carried)
        })
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
        let end = |file: Arc<RowWriter>| {
            let file = Arc::into_inner(file).expect("the exchange has ended");
            file.finish()
        };
        let sources = writer.sources.into_iter();
        let record = RoundRecord {
            round,
            rows: Some(end(writer.rows)?),
            sources: sources
                .map(|of| of.files.try_map(end))
                .collect::<Result<_, _>>()?,
        };
        let bytes = record.files().flatten().map(RowRecord::num_bytes).sum();
        let seconds = started.elapsed().as_secs_f64();
        let mut stats = self.stats(round, bytes, seconds);
        stats.crossing = crossing;
        Ok((record, stats))
    }

    /// Exchanges the rows that the next layer aggregates; returns the bytes, none in one process.
    fn exchange(&self, round: usize, writer: &RoundWriter) -> Result<Option<Crossing>, InferError> {
        if self.store().cluster().num_processes() == 1 {
            return Ok(None);
        }
        let reads = self.reads(round + 1);
        let mut crossing = Crossing::default();
        let mut fill = |file: &Arc<RowWriter>, first: usize, of_file: &[Read]| {
            let exchange = match of_file {
                [] => None,
                _ => self.graph.exchange(of_file),
            };
            let Some(exchange) = exchange else {
                return Ok::<(), InferError>(());
            };
            let (read, written) = (Arc::clone(file), Arc::clone(file));
            exchange.run(
                file.row_words(),
                move |rows| read.read_words(rows.start - first..rows.end - first),
                move |row, words| written.write_words(row.index() - first, words),
            )?;
            crossing.add(exchange.crossing(file.row_words()));
            Ok(())
        };
        fill(&writer.rows, 0, &reads.rows)?;
        for (source, of_source) in writer.sources.iter().zip(&reads.sources) {
            let files = [&source.files.src, &source.files.scores];
            for file in files.into_iter().flatten() {
                fill(file, source.first, of_source)?;
            }
        }
        Ok(Some(crossing))
    }

    /// Returns the statistics of a round for the report.
    pub(super) fn stats(&self, round: usize, bytes_written: u64, seconds: f64) -> RoundStats {
        let in_edges = |limits: &[usize]| {
            let types = self.needed.types(round);
            types.map(|of| self.graph.num_in_edges(of, limits)).sum()
        };
        RoundStats {
            round,
            in_edges: self.limits(round).map_or(0, in_edges),
            bytes_written,
            seconds,
            writing: 0.0,
            crossing: None,
        }
    }
}

impl RoundWriter {
    /// Writes rows of a type, and the rows that the next layer aggregates in their place.
    fn write(
        &self,
        (node_type, range): (usize, &Range<usize>),
        rows: Dense,
        next: &TypedLayerSlice<'_>,
        carried: Option<SharedRows>,
    ) -> Result<(), InferError> {
        self.rows.write(range.start, &rows.values)?;
        let sources = self.sources.iter().enumerate();
        let sources = sources.filter(|(_, of)| of.is_read() && of.types.contains(&node_type));
        let sources: Vec<(usize, &SourceWriter)> = sources.collect();
        if sources.is_empty() {
            return Ok(());
        }
        let carried = carried.as_ref().map(ready);
        let input = ReadyInput::new(Input::Dense(rows))?;
        for (at, source) in sources {
            let projected = next.project(at, node_type, input.clone(), carried.clone())?;
            let first = range.start - source.first;
            if let Some(file) = &source.files.src {
                file.write(first, &projected.rows.values)?;
            }
            if let (Some(file), Some(scores)) = (&source.files.scores, &projected.scores) {
                file.write(first, &scores.values)?;
            }
        }
        Ok(())
    }
}
