//! The messages between parameter server and workers over gRPC.
//!
//! The messages are Protocol Buffers of the package `graphflat`, derived with `prost`; the service
//! is `ParameterServer` with the unary methods `Start`, `Pull`, `Push`, `Fail` and `State`, and for
//! embedding tables `PullRows`, `LoadRows` and `SaveRows` (`wire_rows.rs`). Vectors are fields of type `bytes`, which decode without a copy: little-endian values in the order of
//! the shard. An error of the protocol is a status `ABORTED` with a [`Refusal`] as JSON in its
//! details.
//!
//! Only the paths below are written by hand. Generating them from a `.proto` file would need
//! `protoc` or a build script, and its server takes no blocking calls.

use std::time::Duration;

use prost::Message;
use prost::bytes::Bytes;
use schemas::error_causes;
use serde::{Deserialize, Serialize};
use tonic::{Code, Status};

use super::wire_rows::RowPush;
use super::{Consistency, GradientFormat, Optimizer, ServerState, TableSpec, TensorSpec};
use crate::TrainError;

/// Largest message: the values and the optimiser's state of one shard. HTTP/2 splits it into
/// frames.
pub(crate) const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// Bytes that may be in flight before the other end reads them.
pub(super) const WINDOW_BYTES: u32 = 8 << 20;

/// Time between pings from either end of a [`Link`](super::Link). They also keep routers from
/// dropping an idle connection.
pub(super) const LINK_BEAT: Duration = Duration::from_secs(20);

/// Longest time until a ping is answered. The watch between processes notices a dead process
/// sooner; this limit is for connections that a router has dropped.
pub(super) const LINK_SILENCE_MAX: Duration = Duration::from_secs(60);

/// The settings of a shard of the parameter server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The tensors, in the order of the flat vector.
    pub tensors: Vec<TensorSpec>,
    /// The update rule.
    pub optimizer: Optimizer,
    /// How far a worker may be ahead of the others.
    pub consistency: Consistency,
    /// Workers that pull and push.
    pub workers: usize,
    /// The embedding tables. Every server holds the rows of some of their nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tables: Vec<TableSpec>,
}

/// Asks a server to begin.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StartRequest {
    /// [`Settings`] of the shard as JSON.
    #[prost(string, tag = "1")]
    pub(super) settings: String,
    #[prost(message, required, tag = "2")]
    pub(super) state: State,
}

/// A [`ServerState`].
#[derive(Clone, PartialEq, Message)]
pub(super) struct State {
    #[prost(uint64, tag = "1")]
    pub(super) step: u64,
    #[prost(uint64, tag = "2")]
    pub(super) updates: u64,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) parameters: Bytes,
    #[prost(bytes = "bytes", tag = "4")]
    pub(super) buffers: Bytes,
    #[prost(bytes = "bytes", repeated, tag = "5")]
    pub(super) moments: Vec<Bytes>,
    #[prost(double, tag = "6")]
    pub(super) norm_sum: f64,
    /// In an answer: squared norms of the tensors' gradients, update by update, since the last
    /// answer.
    #[prost(double, repeated, tag = "7")]
    pub(super) squares: Vec<f64>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct PullRequest {
    #[prost(uint64, tag = "1")]
    pub(super) worker: u64,
    #[prost(uint64, tag = "2")]
    pub(super) step: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PullReply {
    /// Whether the step may be taken; if not, the worker asks again.
    #[prost(bool, tag = "1")]
    pub(super) is_allowed: bool,
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) parameters: Bytes,
    #[prost(bytes = "bytes", tag = "3")]
    pub(super) buffers: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct PushRequest {
    #[prost(uint64, tag = "1")]
    pub(super) worker: u64,
    #[prost(uint64, tag = "2")]
    pub(super) step: u64,
    #[prost(uint64, tag = "3")]
    pub(super) num_targets: u64,
    /// Whether the gradient has two bytes per value.
    #[prost(bool, tag = "4")]
    pub(super) is_bf16: bool,
    #[prost(bytes = "bytes", tag = "5")]
    pub(super) gradient: Bytes,
    #[prost(bytes = "bytes", tag = "6")]
    pub(super) buffers: Bytes,
    /// By embedding table; the gradients are in the format of `gradient`.
    #[prost(message, repeated, tag = "7")]
    pub(super) rows: Vec<RowPush>,
}

/// Names the worker that failed.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct FailRequest {
    #[prost(uint64, tag = "1")]
    pub(super) worker: u64,
}

/// An empty message.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Empty {}

/// The calls of the service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Method {
    Start,
    Pull,
    Push,
    Fail,
    State,
    PullRows,
    LoadRows,
    SaveRows,
}

/// An error of the protocol.
#[derive(Debug, Serialize, Deserialize)]
enum Refusal {
    PeerFailed {
        worker: usize,
    },
    OutOfTurn {
        worker: usize,
        step: u64,
        expected: u64,
    },
}

impl Method {
    const ALL: [Self; 8] = [
        Self::Start,
        Self::Pull,
        Self::Push,
        Self::Fail,
        Self::State,
        Self::PullRows,
        Self::LoadRows,
        Self::SaveRows,
    ];

    /// Returns the path of its requests.
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Start => "/graphflat.ParameterServer/Start",
            Self::Pull => "/graphflat.ParameterServer/Pull",
            Self::Push => "/graphflat.ParameterServer/Push",
            Self::Fail => "/graphflat.ParameterServer/Fail",
            Self::State => "/graphflat.ParameterServer/State",
            Self::PullRows => "/graphflat.ParameterServer/PullRows",
            Self::LoadRows => "/graphflat.ParameterServer/LoadRows",
            Self::SaveRows => "/graphflat.ParameterServer/SaveRows",
        }
    }

    pub(super) fn of_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.path() == path)
    }
}

impl State {
    pub(super) fn of(state: &ServerState) -> Self {
        Self {
            step: state.step,
            updates: state.updates,
            parameters: encode(&state.parameters),
            buffers: encode(&state.buffers),
            moments: state.moments.iter().map(|moment| encode(moment)).collect(),
            norm_sum: state.norm_sum,
            squares: Vec::new(),
        }
    }

    /// Returns the state; none if a vector is cut off within a value.
    pub(super) fn decode(&self) -> Option<ServerState> {
        Some(ServerState {
            step: self.step,
            updates: self.updates,
            norm_sum: self.norm_sum,
            parameters: decode(&self.parameters)?,
            buffers: decode(&self.buffers)?,
            moments: self
                .moments
                .iter()
                .map(|moment| decode(moment))
                .collect::<Option<_>>()?,
            tables: Vec::new(),
        })
    }
}

/// Turns an error of the server into the status that its client receives.
pub(super) fn status_of(error: &TrainError) -> Status {
    let refusal = match *error {
        TrainError::PeerFailed { worker } => Refusal::PeerFailed { worker },
        TrainError::OutOfTurn {
            worker,
            step,
            expected,
        } => Refusal::OutOfTurn {
            worker,
            step,
            expected,
        },
        _ => return Status::internal(error.to_string()),
    };
    match serde_json::to_vec(&refusal) {
        Ok(details) => Status::with_details(Code::Aborted, error.to_string(), details.into()),
        Err(problem) => Status::internal(problem.to_string()),
    }
}

/// Turns the status of a failed call into an error.
pub(super) fn error_of(server: usize, status: &Status) -> TrainError {
    match serde_json::from_slice(status.details()) {
        Ok(Refusal::PeerFailed { worker }) => return TrainError::PeerFailed { worker },
        Ok(Refusal::OutOfTurn {
            worker,
            step,
            expected,
        }) => {
            return TrainError::OutOfTurn {
                worker,
                step,
                expected,
            };
        }
        Err(_) => {}
    }
    let problem = format!("{}{}", status.message(), error_causes(status));
    match status.code() {
        Code::FailedPrecondition
        | Code::InvalidArgument
        | Code::OutOfRange
        | Code::ResourceExhausted
        | Code::Unimplemented => TrainError::ServerRefused { server, problem },
        _ => TrainError::ServerLost {
            server,
            how: problem,
        },
    }
}

/// Encodes values for the wire.
pub(super) fn encode(values: &[f32]) -> Bytes {
    let mut bytes = Vec::new();
    GradientFormat::F32.encode(values, &mut bytes);
    bytes.into()
}

/// Decodes values; none if they are cut off.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<f32>> {
    let (values, rest) = bytes.as_chunks::<4>();
    let values = values.iter().map(|value| f32::from_le_bytes(*value));
    rest.is_empty().then(|| values.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_has_the_bytes_of_its_definition() {
        let mut gradient = Vec::new();
        GradientFormat::Bf16.encode(&[1.0, -2.0], &mut gradient);
        let request = PushRequest {
            worker: 1,
            step: 300,
            num_targets: 7,
            is_bf16: true,
            gradient: gradient.into(),
            buffers: encode(&[0.5]),
            rows: Vec::new(),
        };
        #[rustfmt::skip]
        let expected = [
            0x08, 1,
            0x10, 0xac, 0x02,
            0x18, 7,
            0x20, 1,
            0x2a, 4, 0x80, 0x3f, 0x00, 0xc0,
            0x32, 4, 0, 0, 0, 0x3f,
        ];
        assert_eq!(request.encode_to_vec(), expected);
        assert_eq!(PushRequest::decode(&expected[..]).unwrap(), request);
        for len in [1, expected.len() - 1] {
            assert!(PushRequest::decode(&expected[..len]).is_err());
        }
    }

    /// Decodes bytes, which may not be a message. A decoded message can be encoded and decoded
    /// again.
    fn decode_as<M: Message + Default>(bytes: &[u8]) -> Option<M> {
        let message = M::decode(bytes).ok()?;
        let again = M::decode(&message.encode_to_vec()[..]);
        assert!(again.is_ok(), "{bytes:?}");
        Some(message)
    }

    /// Truncated, changed or random bytes give a message or none, never a panic.
    #[test]
    fn any_bytes_are_a_message_or_none() {
        let whole = StartRequest {
            settings: "{}".to_owned(),
            state: State {
                step: 3,
                parameters: encode(&[0.5, -1.5]),
                moments: vec![encode(&[0.25; 2]); 2],
                squares: vec![1.0, 2.0],
                ..State::default()
            },
        };
        let whole = whole.encode_to_vec();
        let mut decoded = 0;
        for draw in 0..20_000_u64 {
            let random = schemas::hash_int(draw);
            let at = usize::try_from(random >> 32).unwrap() % whole.len();
            let mut bytes = whole.clone();
            match draw % 3 {
                0 => bytes.truncate(at),
                1 => bytes[at] ^= 1 << (random % 8),
                _ => {
                    bytes = (0..at as u64)
                        .map(|i| schemas::hash_int(random ^ i).to_le_bytes()[0])
                        .collect()
                }
            }
            let start = decode_as::<StartRequest>(&bytes);
            decoded += usize::from(start.and_then(|said| said.state.decode()).is_some());
            decode_as::<State>(&bytes).and_then(|state| state.decode());
            let push = decode_as::<PushRequest>(&bytes);
            push.and_then(|push| GradientFormat::Bf16.decode(&push.gradient));
            decode_as::<PullReply>(&bytes).and_then(|reply| decode(&reply.parameters));
            decode_as::<PullRequest>(&bytes);
            decode_as::<FailRequest>(&bytes);
            error_of(0, &Status::with_details(Code::Aborted, "", bytes.into()));
        }
        assert!(decoded > 100, "some are messages: {decoded}");
    }

    #[test]
    fn values_come_back_bit_for_bit() {
        let values = [0.1, -0.0, f32::MIN_POSITIVE / 2.0, f32::MAX, f32::INFINITY];
        let decoded = decode(&encode(&values)).unwrap();
        let bits = |of: &[f32]| of.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&decoded), bits(&values));
        assert_eq!(decode(&[0; 6]), None);
    }

    /// A server uses the settings that the leader sent, to the bit.
    #[test]
    fn settings_come_back_bit_for_bit() {
        for draw in 0..2000_u64 {
            let length = f64::from_bits(schemas::hash_int(draw) >> 12 | 0x4010_0000_0000_0000);
            let table = format!("kind = \"cosine\"\nwarmup = {length}\nfloor = 0.1");
            let schedule: crate::schedule::ScheduleSpec = toml::from_str(&table).unwrap();
            let settings = Settings {
                tensors: Vec::new(),
                optimizer: Optimizer {
                    schedule: Some(schedule.in_steps(7, 30)),
                    ..Optimizer::default()
                },
                consistency: Consistency::Bounded(2),
                workers: 3,
                tables: Vec::new(),
            };
            let json = serde_json::to_string(&settings).unwrap();
            assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), settings);
        }
    }
}
