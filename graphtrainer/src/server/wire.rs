//! What parameter server and workers say to each other over gRPC.
//!
//! The messages are Protocol Buffers of the package `graphflat`, service `ParameterServer`, unary
//! methods `Start`, `Pull`, `Push`, `Clock`, `Fail` and `State`; the fields stand here rather than in a
//! `.proto` file, so that no compiler for it is needed. Vectors are fields of type `bytes`: values as
//! they lie in memory, little endian, in the order of the shard. An error that is part of the protocol
//! is a status `ABORTED` whose details are a [`Refusal`] as JSON.

use std::time::Duration;

use half::bf16;
use half::slice::HalfFloatSliceExt as _;
use prost::Message;
use prost::bytes::Bytes;
use serde::{Deserialize, Serialize};
use tonic::metadata::MetadataMap;
use tonic::{Code, Status};

use super::{Consistency, Optimizer, ServerState, TensorSpec};
use crate::TrainError;
use crate::error::causes;

/// Raised by every change of the messages or of what they mean.
const PROTOCOL: u32 = 1;

/// A message at most: what one shard and its optimiser's state may take. HTTP/2 cuts it into frames.
pub(crate) const MESSAGE_BYTES_MAX: usize = i32::MAX as usize;

/// Bytes that may be under way before they are read.
pub(super) const WINDOW_BYTES: u32 = 8 << 20;

/// How often either side of a [`Link`](super::Link) asks whether the other is there, which also keeps
/// it open in between.
pub(super) const LINK_BEAT: Duration = Duration::from_secs(20);

/// Time in which it has to answer. Who has died is noticed elsewhere, and sooner: this is for
/// connections that a network has forgotten.
pub(super) const LINK_SILENCE_MAX: Duration = Duration::from_secs(60);

const TOKEN_HEADER: &str = "authorization";
const PROTOCOL_HEADER: &str = "graphflat-protocol";

/// What a peer has to show with every call, before any of its data are read.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credentials {
    /// A secret of this training.
    pub token: String,
    /// Version of the protocol.
    pub protocol: u32,
}

/// What a shard of the parameter server is to hold, and for whom.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// The tensors; their order is that of the flat vector.
    pub tensors: Vec<TensorSpec>,
    /// The update rule.
    pub optimizer: Optimizer,
    /// Who waits for whom.
    pub consistency: Consistency,
    /// Workers that pull and push.
    pub workers: usize,
}

/// How the values of a gradient travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GradientFormat {
    /// 32 bits, as computed.
    #[default]
    F32,
    /// The upper 16 bits, rounded to nearest, ties to even.
    Bf16,
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
    /// In an answer: squares of the norms of the tensors' gradients, update by update since the last
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
    /// Whether the gradient is of two bytes a value.
    #[prost(bool, tag = "4")]
    pub(super) is_bf16: bool,
    #[prost(bytes = "bytes", tag = "5")]
    pub(super) gradient: Bytes,
    #[prost(bytes = "bytes", tag = "6")]
    pub(super) buffers: Bytes,
}

/// Names a worker: `Clock` and `Fail` need no more.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct WorkerRequest {
    #[prost(uint64, tag = "1")]
    pub(super) worker: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct ClockReply {
    #[prost(uint64, tag = "1")]
    pub(super) clock: u64,
}

/// Says nothing.
#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Empty {}

/// The calls of the service.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Method {
    Start,
    Pull,
    Push,
    Clock,
    Fail,
    State,
}

/// An error that the protocol knows.
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
    const ALL: [Self; 6] = [
        Self::Start,
        Self::Pull,
        Self::Push,
        Self::Clock,
        Self::Fail,
        Self::State,
    ];

    /// The path of its requests.
    pub(super) const fn path(self) -> &'static str {
        match self {
            Self::Start => "/graphflat.ParameterServer/Start",
            Self::Pull => "/graphflat.ParameterServer/Pull",
            Self::Push => "/graphflat.ParameterServer/Push",
            Self::Clock => "/graphflat.ParameterServer/Clock",
            Self::Fail => "/graphflat.ParameterServer/Fail",
            Self::State => "/graphflat.ParameterServer/State",
        }
    }

    pub(super) fn of_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| method.path() == path)
    }
}

impl std::fmt::Debug for Credentials {
    /// Keeps the secret out of messages.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials")
            .field("protocol", &self.protocol)
            .finish_non_exhaustive()
    }
}

impl Credentials {
    /// Draws the secret of a training, 128 bits from the operating system's generator.
    pub fn draw() -> Self {
        Self {
            token: format!("{:032x}", rand::random::<u128>()),
            protocol: PROTOCOL,
        }
    }

    /// Writes them into a request.
    pub(super) fn sign(&self, metadata: &mut MetadataMap) -> Result<(), Status> {
        let broken = |_source| Status::invalid_argument("the token is not printable");
        let token = format!("Bearer {}", self.token).parse().map_err(broken)?;
        metadata.insert(TOKEN_HEADER, token);
        metadata.insert(PROTOCOL_HEADER, self.protocol.into());
        Ok(())
    }

    /// Checks what came with a request.
    pub(super) fn check(&self, headers: &http::HeaderMap) -> Result<(), Status> {
        let header = |name| headers.get(name).map_or(&b""[..], |value| value.as_bytes());
        let expected = format!("Bearer {}", self.token);
        if !equal(header(TOKEN_HEADER), expected.as_bytes()) {
            return Err(Status::unauthenticated(
                "the caller is not of this training",
            ));
        }
        let theirs = header(PROTOCOL_HEADER);
        if theirs != self.protocol.to_string().as_bytes() {
            return Err(Status::failed_precondition(format!(
                "the caller speaks protocol {}, this server {}",
                String::from_utf8_lossy(theirs),
                self.protocol
            )));
        }
        Ok(())
    }
}

/// Compares without telling by its time how much is equal.
fn equal(given: &[u8], expected: &[u8]) -> bool {
    let differing = given
        .iter()
        .zip(expected)
        .fold(0, |all, (a, b)| all | (a ^ b));
    given.len() == expected.len() && differing == 0
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

    /// The state, if its vectors are of whole values.
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
        })
    }
}

/// Turns an error of the server into what the caller gets.
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

/// Turns what a server answered, or that it did not, into an error.
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
    let problem = format!("{}{}", status.message(), causes(status));
    match status.code() {
        Code::Unauthenticated
        | Code::FailedPrecondition
        | Code::InvalidArgument
        | Code::OutOfRange
        | Code::ResourceExhausted
        | Code::Unimplemented => TrainError::ServerRefused { server, problem },
        Code::DeadlineExceeded => {
            let how = "it did not answer in time".to_owned();
            TrainError::ServerLost { server, how }
        }
        _ => TrainError::ServerLost {
            server,
            how: problem,
        },
    }
}

/// Writes values as they travel.
pub(super) fn encode(values: &[f32]) -> Bytes {
    let mut bytes = vec![0; 4 * values.len()];
    for (place, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
        *place = value.to_le_bytes();
    }
    bytes.into()
}

/// Reads values; none if they are cut off.
pub(super) fn decode(bytes: &[u8]) -> Option<Vec<f32>> {
    let (values, rest) = bytes.as_chunks::<4>();
    let values = values.iter().map(|value| f32::from_le_bytes(*value));
    rest.is_empty().then(|| values.collect())
}

impl GradientFormat {
    /// Gives the values what they lose on the way. A worker rounds its own gradient, whatever it is
    /// pushed through, so that threads and processes train alike.
    pub(crate) fn round(self, values: &mut [f32]) {
        if self == Self::Bf16 {
            let mut narrow = vec![bf16::ZERO; values.len()];
            narrow.convert_from_f32_slice(values);
            narrow.convert_to_f32_slice(values);
        }
    }

    pub(super) fn encode(self, values: &[f32]) -> Bytes {
        match self {
            Self::F32 => encode(values),
            Self::Bf16 => {
                let mut bytes = vec![0; 2 * values.len()];
                for (place, &value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                    *place = bf16::from_f32(value).to_le_bytes();
                }
                bytes.into()
            }
        }
    }

    pub(super) fn decode(self, bytes: &[u8]) -> Option<Vec<f32>> {
        match self {
            Self::F32 => decode(bytes),
            Self::Bf16 => {
                let (values, rest) = bytes.as_chunks::<2>();
                let values = values
                    .iter()
                    .map(|value| bf16::from_le_bytes(*value).to_f32());
                rest.is_empty().then(|| values.collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_push_has_the_bytes_of_its_definition() {
        let gradient = GradientFormat::Bf16.encode(&[1.0, -2.0]);
        let request = PushRequest {
            worker: 1,
            step: 300,
            num_targets: 7,
            is_bf16: true,
            gradient,
            buffers: encode(&[0.5]),
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

    /// Decodes bytes, which may be no message; what is one can be said again.
    fn decode_as<M: Message + Default>(bytes: &[u8]) -> Option<M> {
        let message = M::decode(bytes).ok()?;
        let again = M::decode(&message.encode_to_vec()[..]);
        assert!(again.is_ok(), "{bytes:?}");
        Some(message)
    }

    /// Whatever comes, cut short, with bits turned or of any bytes: a message or none, never an end.
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
            decode_as::<WorkerRequest>(&bytes);
            decode_as::<ClockReply>(&bytes);
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
        assert_eq!(GradientFormat::Bf16.decode(&[0; 3]), None);
    }

    #[test]
    fn bf16_rounds_to_nearest_and_ties_to_even() {
        for (bits, expected) in [
            (0x3f80_0000, 0x3f80_0000),
            (0x3f80_7fff, 0x3f80_0000),
            (0x3f80_8000, 0x3f80_0000),
            (0x3f81_8000, 0x3f82_0000),
            (0x3f80_8001, 0x3f81_0000),
            (0xbf81_8000, 0xbf82_0000),
            (0x7f7f_ffff, 0x7f80_0000),
            (0x8000_0000, 0x8000_0000),
        ] {
            let mut values = [f32::from_bits(bits)];
            GradientFormat::Bf16.round(&mut values);
            assert_eq!(values[0].to_bits(), expected, "{bits:x}");
            let wire = GradientFormat::Bf16.encode(&[f32::from_bits(bits)]);
            assert_eq!(
                GradientFormat::Bf16.decode(&wire).unwrap()[0].to_bits(),
                expected
            );
        }
        let mut nan = [f32::NAN];
        GradientFormat::Bf16.round(&mut nan);
        assert!(nan[0].is_nan());
        let mut same = [0.1];
        GradientFormat::F32.round(&mut same);
        assert_eq!(same[0].to_bits(), 0.1_f32.to_bits());
    }

    /// What a server computes with is what the launcher has, to the bit.
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
            };
            let json = serde_json::to_string(&settings).unwrap();
            assert_eq!(serde_json::from_str::<Settings>(&json).unwrap(), settings);
        }
    }

    #[test]
    fn a_token_is_compared_whole() {
        assert!(equal(b"abc", b"abc"));
        for other in [&b"abd"[..], b"ab", b"abcd", b""] {
            assert!(!equal(other, b"abc"));
        }
        assert!(!format!("{:?}", Credentials::draw()).contains("token"));
    }
}
