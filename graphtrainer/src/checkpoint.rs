//! The checkpoint from which a training resumes, between two epochs or within one.
//!
//! All draws are functions of seed, epoch and step. So a checkpoint has no state of a random
//! generator, and the number of the step is the position of the reader.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use schemas::storage;
use schemas::xxh::hash_bytes;
use schemas::{IdType, Ids};
use serde::{Deserialize, Serialize};

use crate::TrainError;
use crate::epoch_report::EpochReport;
use crate::server::{ServerState, TableRows};
use crate::worker::EpochShare;

/// The state of a training after some epochs.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Checkpoint {
    /// Number of finished epochs.
    pub(crate) epochs: u64,
    /// The finished steps of the next epoch, if there are any.
    pub(crate) partial: Option<Partial>,
    pub(crate) server: ServerState,
    pub(crate) best: Option<Best>,
    /// Evaluations since the monitored metric last improved.
    pub(crate) evaluations_without_gain: u64,
    pub(crate) history: Vec<EpochReport>,
    /// Name of the device that the epochs were computed on; the last one, if there were several.
    pub(crate) device: String,
}

/// The finished part of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Partial {
    /// Number of finished steps.
    pub(crate) steps: usize,
    /// The share of each worker in them.
    pub(crate) shares: Vec<EpochShare>,
    /// Number of updates before the epoch, and the sum of the norms of their gradients.
    pub(crate) before: (u64, f64),
}

/// The best epoch so far.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Best {
    /// 1-based.
    pub(crate) epoch: u64,
    /// Value of the monitored metric; 0 without val targets.
    pub(crate) metric: f64,
    pub(crate) val_loss: f64,
    pub(crate) parameters: Vec<f32>,
    pub(crate) buffers: Vec<f32>,
    /// As in [`ServerState`], without the optimiser's vectors.
    pub(crate) tables: Vec<Arc<TableRows>>,
}

impl Partial {
    /// Returns the mean loss of all workers, added up in their order; 0 if no target counts.
    pub(crate) fn mean(&self) -> f64 {
        let sum = |of: fn(&EpochShare) -> f64| self.shares.iter().fold(0.0, |sum, s| sum + of(s));
        let (loss_sum, count) = (sum(|share| share.loss_sum), sum(|share| share.count));
        if count > 0.0 { loss_sum / count } else { 0.0 }
    }
}

/// First bytes of a checkpoint, with the version of its layout.
const MAGIC: &[u8; 8] = b"GFTRAIN3";

/// Everything except the vectors. Floats that results depend on are kept as bits, because decimal
/// digits do not always give the same float.
#[derive(Debug, Serialize, Deserialize)]
struct Header {
    epochs: u64,
    partial: Option<PartialHeader>,
    step: u64,
    updates: u64,
    norm_sum_bits: u64,
    num_parameters: usize,
    num_buffers: usize,
    num_moments: usize,
    best: Option<BestHeader>,
    evaluations_without_gain: u64,
    history: Vec<EpochHeader>,
    device: String,
    /// The embedding tables of the server and of the best epoch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tables: Vec<TableHeader>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    best_tables: Vec<TableHeader>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PartialHeader {
    steps: usize,
    /// Sum of losses and count of each worker.
    share_bits: Vec<[u64; 2]>,
    updates_before: u64,
    norm_sum_before_bits: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct EpochHeader {
    epoch: u64,
    loss_bits: u64,
    val_bits: BTreeMap<String, u64>,
    learning_rate_bits: u32,
    gradient_norm_bits: u64,
    seconds: f64,
    busy: BTreeMap<String, f64>,
}

#[derive(Debug, Serialize, Deserialize)]
struct BestHeader {
    epoch: u64,
    metric_bits: u64,
    val_loss_bits: u64,
}

impl Checkpoint {
    /// Writes the checkpoint. A reader sees the old one or the new one, never a part.
    ///
    /// The file is not synced to the disk, which may take longer than an epoch. A killed process
    /// loses nothing. After a power failure the checksum shows a broken checkpoint.
    pub(crate) fn write(&self, path: &Path) -> Result<(), TrainError> {
        let header = Header {
            epochs: self.epochs,
            partial: self.partial.as_ref().map(PartialHeader::of),
            step: self.server.step,
            updates: self.server.updates,
            norm_sum_bits: self.server.norm_sum.to_bits(),
            num_parameters: self.server.parameters.len(),
            num_buffers: self.server.buffers.len(),
            num_moments: self.server.moments.len(),
            best: self.best.as_ref().map(|best| BestHeader {
                epoch: best.epoch,
                metric_bits: best.metric.to_bits(),
                val_loss_bits: best.val_loss.to_bits(),
            }),
            evaluations_without_gain: self.evaluations_without_gain,
            history: self.history.iter().map(EpochHeader::of).collect(),
            device: self.device.clone(),
            tables: headers(self.server.tables.iter()),
            best_tables: headers(self.best.iter().flat_map(|best| &best.tables)),
        };
        let json = serde_json::to_vec(&header).map_err(|source| TrainError::Json {
            what: "checkpoint",
            source,
        })?;
        let mut bytes = Vec::with_capacity(MAGIC.len() + json.len() + self.vector_bytes() + 16);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&(json.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&json);
        let server = [&self.server.parameters, &self.server.buffers].into_iter();
        let best = self
            .best
            .iter()
            .flat_map(|best| [&best.parameters, &best.buffers]);
        for vector in server.chain(&self.server.moments).chain(best) {
            push_values(&mut bytes, vector);
        }
        self.tables().for_each(|rows| push_rows(&mut bytes, rows));
        bytes.extend_from_slice(&hash_bytes(&bytes).to_le_bytes());
        Ok(storage::replace(path, &bytes)?)
    }

    /// Returns the embedding tables of the server, and then those of the best epoch.
    fn tables(&self) -> impl Iterator<Item = &Arc<TableRows>> {
        let of_server = self.server.tables.iter();
        of_server.chain(self.best.iter().flat_map(|best| &best.tables))
    }

    /// Returns the bytes of all vectors and tables.
    fn vector_bytes(&self) -> usize {
        let best = self.best.iter();
        let best = best.map(|best| best.parameters.len() + best.buffers.len());
        let server = &self.server;
        let moments = server.moments.iter().map(Vec::len);
        let values = server.parameters.len() + server.buffers.len();
        let values = values + moments.sum::<usize>() + best.sum::<usize>();
        size_of::<f32>() * values + self.tables().map(|rows| rows.size_bytes()).sum::<usize>()
    }

    /// Reads a checkpoint; none if the file does not exist. An incomplete one, as after a power
    /// failure, is [`TrainError::Checkpoint`].
    pub(crate) fn read(path: &Path) -> Result<Option<Self>, TrainError> {
        let Some(bytes) = storage::read(path)? else {
            return Ok(None);
        };
        let broken = |problem: &str| TrainError::Checkpoint {
            path: path.to_owned(),
            problem: problem.to_owned(),
        };
        let (body, hash) = bytes
            .split_last_chunk::<8>()
            .ok_or_else(|| broken("it is too short"))?;
        if hash_bytes(body) != u64::from_le_bytes(*hash) {
            return Err(broken("its checksum does not match"));
        }
        let rest = body
            .strip_prefix(MAGIC)
            .ok_or_else(|| broken("another version wrote it"))?;
        let (len, rest) = rest
            .split_first_chunk::<8>()
            .ok_or_else(|| broken("it is too short"))?;
        let split = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
        let (json, blob) = rest
            .split_at_checked(split)
            .ok_or_else(|| broken("its header is cut off"))?;
        let header: Header = serde_json::from_slice(json)
            .map_err(|error| broken(&format!("its header cannot be read ({error})")))?;
        header
            .assemble(blob)
            .map(Some)
            .ok_or_else(|| broken("its vectors are cut off"))
    }
}

impl Header {
    /// Cuts the vectors out of the blob; none if its length does not match the header.
    fn assemble(self, blob: &[u8]) -> Option<Checkpoint> {
        let mut rest = Blob(blob);
        let mut take = |len: usize| rest.values(len);
        let parameters = take(self.num_parameters)?;
        let buffers = take(self.num_buffers)?;
        let moments = (0..self.num_moments)
            .map(|_| take(self.num_parameters))
            .collect::<Option<_>>()?;
        let best = match self.best {
            None => None,
            Some(best) => Some(Best {
                epoch: best.epoch,
                metric: f64::from_bits(best.metric_bits),
                val_loss: f64::from_bits(best.val_loss_bits),
                parameters: take(self.num_parameters)?,
                buffers: take(self.num_buffers)?,
                tables: Vec::new(),
            }),
        };
        let mut tables = |headers: &[TableHeader]| -> Option<Vec<Arc<TableRows>>> {
            let rows = headers.iter().map(|header| rest.rows(header).map(Arc::new));
            rows.collect()
        };
        let of_server = tables(&self.tables)?;
        let of_best = tables(&self.best_tables)?;
        let best = best.map(|best| Best {
            tables: of_best,
            ..best
        });
        let server = ServerState {
            step: self.step,
            updates: self.updates,
            norm_sum: f64::from_bits(self.norm_sum_bits),
            parameters,
            buffers,
            moments,
            tables: of_server,
        };
        rest.0.is_empty().then_some(Checkpoint {
            epochs: self.epochs,
            partial: self.partial.map(PartialHeader::back),
            server,
            best,
            evaluations_without_gain: self.evaluations_without_gain,
            history: self.history.into_iter().map(EpochHeader::back).collect(),
            device: self.device,
        })
    }
}

/// The shape of an embedding table in the blob.
#[derive(Debug, Serialize, Deserialize)]
struct TableHeader {
    id_type: IdType,
    rows: usize,
    /// Bytes of string ids.
    text_bytes: usize,
    /// Number of values.
    values: usize,
    num_moments: usize,
}

fn headers<'a>(tables: impl Iterator<Item = &'a Arc<TableRows>>) -> Vec<TableHeader> {
    let header = |rows: &Arc<TableRows>| TableHeader {
        id_type: rows.ids.id_type(),
        rows: rows.ids.len(),
        text_bytes: rows.ids.text().map_or(0, |(_, text)| text.len()),
        values: rows.values.len(),
        num_moments: rows.moments.len(),
    };
    tables.map(header).collect()
}

fn push_values(bytes: &mut Vec<u8>, values: &[f32]) {
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

/// Appends ids, values and moments.
fn push_rows(bytes: &mut Vec<u8>, rows: &TableRows) {
    let (words, text) = match (rows.ids.keys(), rows.ids.text()) {
        (Some(keys), _) => (keys, &[][..]),
        (None, Some(text)) => text,
        (None, None) => unreachable!("ids are integers or strings"),
    };
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes.extend_from_slice(text);
    push_values(bytes, &rows.values);
    rows.moments
        .iter()
        .for_each(|moment| push_values(bytes, moment));
}

/// The rest of a blob that is read from its start.
struct Blob<'a>(&'a [u8]);

impl<'a> Blob<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (own, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(own)
    }

    fn values(&mut self, len: usize) -> Option<Vec<f32>> {
        let chunks = self.bytes(len.checked_mul(4)?)?.as_chunks::<4>().0;
        Some(
            chunks
                .iter()
                .map(|bytes| f32::from_le_bytes(*bytes))
                .collect(),
        )
    }

    fn words(&mut self, len: usize) -> Option<Vec<u64>> {
        let chunks = self.bytes(len.checked_mul(8)?)?.as_chunks::<8>().0;
        Some(
            chunks
                .iter()
                .map(|bytes| u64::from_le_bytes(*bytes))
                .collect(),
        )
    }

    fn rows(&mut self, header: &TableHeader) -> Option<TableRows> {
        let ids = if header.id_type.is_integer() {
            Ids::from_keys(header.id_type, self.words(header.rows)?)
        } else {
            let offsets = self.words(header.rows.checked_add(1)?)?;
            Ids::from_text(offsets, self.bytes(header.text_bytes)?.to_vec()).ok()?
        };
        Some(TableRows {
            ids,
            values: self.values(header.values)?,
            moments: (0..header.num_moments)
                .map(|_| self.values(header.values))
                .collect::<Option<_>>()?,
        })
    }
}

impl PartialHeader {
    fn of(partial: &Partial) -> Self {
        let bits = |share: &EpochShare| [share.loss_sum, share.count].map(f64::to_bits);
        Self {
            steps: partial.steps,
            share_bits: partial.shares.iter().map(bits).collect(),
            updates_before: partial.before.0,
            norm_sum_before_bits: partial.before.1.to_bits(),
        }
    }

    fn back(self) -> Partial {
        let share = |bits: [u64; 2]| {
            let [loss_sum, count] = bits.map(f64::from_bits);
            EpochShare { loss_sum, count }
        };
        Partial {
            steps: self.steps,
            shares: self.share_bits.into_iter().map(share).collect(),
            before: (
                self.updates_before,
                f64::from_bits(self.norm_sum_before_bits),
            ),
        }
    }
}

impl EpochHeader {
    fn of(report: &EpochReport) -> Self {
        let bits = |(name, value): (&String, &f64)| (name.clone(), value.to_bits());
        Self {
            epoch: report.epoch,
            loss_bits: report.loss.to_bits(),
            val_bits: report.val.iter().map(bits).collect(),
            learning_rate_bits: report.learning_rate.to_bits(),
            gradient_norm_bits: report.gradient_norm.to_bits(),
            seconds: report.seconds,
            busy: report.busy.clone(),
        }
    }

    fn back(self) -> EpochReport {
        let value = |(name, bits)| (name, f64::from_bits(bits));
        EpochReport {
            epoch: self.epoch,
            loss: f64::from_bits(self.loss_bits),
            val: self.val_bits.into_iter().map(value).collect(),
            learning_rate: f32::from_bits(self.learning_rate_bits),
            gradient_norm: f64::from_bits(self.gradient_norm_bits),
            seconds: self.seconds,
            busy: self.busy,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn table(id_type: IdType, num_moments: usize) -> Arc<TableRows> {
        let mut ids = Ids::new(id_type);
        match id_type {
            IdType::Utf8 => ["", "vim", "ä"].iter().for_each(|id| ids.push_str(id)),
            _ => (0..3).for_each(|key| ids.push_key(key)),
        }
        Arc::new(TableRows {
            ids,
            values: vec![0.1, -0.0, f32::MIN_POSITIVE, 1.0, 2.0, 3.0],
            moments: vec![vec![0.5; 6]; num_moments],
        })
    }

    fn checkpoint() -> Checkpoint {
        Checkpoint {
            epochs: 3,
            partial: Some(Partial {
                steps: 2,
                shares: vec![
                    EpochShare {
                        loss_sum: 0.1 + 0.2,
                        count: 4.5,
                    },
                    EpochShare::default(),
                ],
                before: (6, 0.1 + 0.7),
            }),
            server: ServerState {
                step: 6,
                updates: 6,
                norm_sum: 0.1 + 0.2,
                parameters: vec![1.0, f32::MIN_POSITIVE],
                buffers: vec![0.5],
                moments: vec![vec![0.1, 0.2], vec![0.3, -0.0]],
                tables: vec![table(IdType::Utf8, 2), table(IdType::Int64, 2)],
            },
            best: Some(Best {
                epoch: 2,
                metric: 0.1 + 0.2,
                val_loss: f64::INFINITY,
                parameters: vec![3.0, 4.0],
                buffers: vec![2.0],
                tables: vec![table(IdType::Utf8, 0), table(IdType::Int64, 0)],
            }),
            evaluations_without_gain: 1,
            history: vec![EpochReport {
                epoch: 1,
                loss: 0.1 + 0.2,
                val: BTreeMap::from([("loss".to_owned(), 0.1 + 0.7)]),
                learning_rate: 0.1,
                gradient_norm: 0.1 + 0.2,
                ..EpochReport::default()
            }],
            device: "cpu".to_owned(),
        }
    }

    #[test]
    fn a_checkpoint_comes_back_bit_for_bit() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        assert_eq!(Checkpoint::read(&path).unwrap(), None);
        for written in [checkpoint(), Checkpoint::default()] {
            written.write(&path).unwrap();
            assert_eq!(Checkpoint::read(&path).unwrap(), Some(written));
        }
        assert_eq!(
            fs::read_dir(dir.path()).unwrap().count(),
            1,
            "no temporary file stays"
        );
    }

    #[test]
    fn a_cut_or_changed_checkpoint_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        checkpoint().write(&path).unwrap();
        let bytes = fs::read(&path).unwrap();
        for len in [0, 7, 20, bytes.len() - 1] {
            fs::write(&path, &bytes[..len]).unwrap();
            assert!(
                matches!(Checkpoint::read(&path), Err(TrainError::Checkpoint { .. })),
                "{len}"
            );
        }
        let mut changed = bytes.clone();
        changed[bytes.len() - 12] ^= 1;
        fs::write(&path, changed).unwrap();
        assert!(matches!(
            Checkpoint::read(&path),
            Err(TrainError::Checkpoint { .. })
        ));
    }
}
