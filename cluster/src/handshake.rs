//! Lets two processes prove to each other that they belong to one job, before any data flows.
//!
//! Each side challenges the other, with HMAC-SHA256 (RFC 2104) under the job's secret:
//!
//! ```text
//! dialler  -> listener   magic, version, nonce
//! listener -> dialler    magic, version, nonce
//! dialler  -> listener   its introduction, and a proof of it and of both nonces
//! listener -> dialler    likewise
//! dialler  -> listener   MET: it accepts the listener
//! listener -> dialler    TAKEN: it uses the connection
//! ```
//!
//! Without `MET` the listener drops the connection. Without `TAKEN`, which the listener sends when
//! it reaches the session, the dialler makes another connection. So both ends read a connection
//! that both ends keep.
//!
//! The listener tells a stranger nothing about the job, and reads at most a few kilobytes from it.
//! The dialler proves itself first, so any listener learns its process number and the fingerprint
//! of the job. Each side draws its own nonce, so a recorded handshake proves nothing. Each
//! direction has its own label, so a proof cannot be sent back. The data that follows is neither
//! signed nor encrypted.

use std::io::{self, Read, Write};

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// First bytes that each side sends.
const MAGIC: &[u8; 8] = b"graphflt";
/// Version of the handshake; a peer with another version is another build.
pub(crate) const VERSION: u32 = 3;
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
const INTRODUCTION_BYTES_MAX: usize = 4096;
/// Last byte that the dialler sends: it accepts the listener.
pub(crate) const MET: u8 = 1;
/// Last byte that the listener sends: it uses the connection.
pub(crate) const TAKEN: u8 = 2;

/// Secret that only the processes of a job know.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

/// Identity of a process, its run and its job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Introduction {
    pub(crate) process: usize,
    /// Random number of this start of the process: an earlier run of the job has another one.
    pub(crate) run: u64,
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    /// Checksum of the program.
    pub(crate) build: String,
    /// Fingerprint of the job.
    pub(crate) job: String,
    /// Number of the session, which makes one connection to each other process.
    pub(crate) session: u64,
}

/// Why a peer is refused.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("does not speak the protocol of graphflat")]
    Foreign,
    #[error("speaks version {0} of the protocol, this build speaks {VERSION}")]
    Version(u32),
    #[error("does not know the secret of this job")]
    Proof,
    #[error("sends an introduction of {0} bytes, at most {INTRODUCTION_BYTES_MAX} are allowed")]
    Length(u32),
    #[error("sends an introduction that cannot be read")]
    Garbled,
    #[error("is of another run of this job")]
    OtherRun,
    #[error("gave way to connections of others")]
    GaveWay,
    /// The peer is not the expected process.
    #[error("{0}")]
    Mismatch(String),
}

#[derive(Clone, Copy)]
enum Side {
    Dialler,
    Listener,
}

type Nonce = [u8; NONCE_BYTES];

/// Both nonces of a connection.
struct Challenge {
    dialler: Nonce,
    listener: Nonce,
}

/// A process that dialled this one and has proved that it knows the secret.
pub(crate) struct Dialler {
    challenge: Challenge,
    introduction: Introduction,
}

impl Secret {
    /// Smallest length of a secret in bytes; a shorter one can be guessed.
    pub const BYTES_MIN: usize = 16;

    /// Draws a random secret; returns it with its text.
    pub fn draw() -> (Self, String) {
        let text = format!(
            "{:032x}{:032x}",
            rand::random::<u128>(),
            rand::random::<u128>()
        );
        (Self(text.clone().into_bytes()), text)
    }

    /// Makes a secret of bytes, without blanks around them; none if it is too short.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let trimmed = bytes.trim_ascii();
        (trimmed.len() >= Self::BYTES_MIN).then(|| Self(trimmed.to_vec()))
    }

    fn proof(&self, side: Side, challenge: &Challenge, introduction: &[u8]) -> Hmac<Sha256> {
        let label: &[u8] = match side {
            Side::Dialler => b"graphflat dialler",
            Side::Listener => b"graphflat listener",
        };
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        // The fields of fixed length come first, so different messages give different bytes.
        mac.update(&challenge.dialler);
        mac.update(&challenge.listener);
        mac.update(&[u8::try_from(label.len()).expect("a short label")]);
        mac.update(label);
        mac.update(introduction);
        mac
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret")
    }
}

/// Introduces this process to one that listens; returns the introduction of that process.
pub(crate) fn dial(
    stream: &mut (impl Read + Write),
    secret: &Secret,
    me: &Introduction,
) -> Result<Introduction, HandshakeError> {
    let dialler: Nonce = rand::random();
    send_hello(stream, &dialler)?;
    let listener = receive_hello(stream)?;
    let challenge = Challenge { dialler, listener };
    introduce(stream, secret, Side::Dialler, &challenge, me)?;
    receive_introduction(stream, secret, Side::Listener, &challenge)
}

/// Receives the introduction of a process that dialled this one, and checks its proof.
pub(crate) fn receive(
    stream: &mut (impl Read + Write),
    secret: &Secret,
) -> Result<Dialler, HandshakeError> {
    let dialler = receive_hello(stream)?;
    let listener: Nonce = rand::random();
    send_hello(stream, &listener)?;
    let challenge = Challenge { dialler, listener };
    let introduction = receive_introduction(stream, secret, Side::Dialler, &challenge)?;
    Ok(Dialler {
        challenge,
        introduction,
    })
}

impl Dialler {
    pub(crate) fn introduction(&self) -> &Introduction {
        &self.introduction
    }

    /// Answers with the introduction `me`; returns that of the dialler. `MET` and `TAKEN` are left.
    pub(crate) fn answer(
        self,
        stream: &mut impl Write,
        secret: &Secret,
        me: &Introduction,
    ) -> Result<Introduction, HandshakeError> {
        introduce(stream, secret, Side::Listener, &self.challenge, me)?;
        Ok(self.introduction)
    }
}

/// Sends `MET` or `TAKEN`.
pub(crate) fn say(stream: &mut impl Write, word: u8) -> io::Result<()> {
    stream.write_all(&[word])?;
    stream.flush()
}

/// Waits for `MET` or `TAKEN`.
pub(crate) fn await_word(stream: &mut impl Read, wanted: u8) -> Result<(), HandshakeError> {
    let mut word = [0];
    stream.read_exact(&mut word)?;
    match word {
        [word] if word == wanted => Ok(()),
        _ => Err(HandshakeError::Garbled),
    }
}

fn send_hello(stream: &mut impl Write, nonce: &Nonce) -> io::Result<()> {
    let hello = [&MAGIC[..], &VERSION.to_le_bytes(), nonce].concat();
    stream.write_all(&hello)?;
    stream.flush()
}

fn receive_hello(stream: &mut impl Read) -> Result<Nonce, HandshakeError> {
    let mut magic = [0; MAGIC.len()];
    stream.read_exact(&mut magic)?;
    if magic != *MAGIC {
        return Err(HandshakeError::Foreign);
    }
    let version = receive_u32(stream)?;
    if version != VERSION {
        return Err(HandshakeError::Version(version));
    }
    let mut nonce = [0; NONCE_BYTES];
    stream.read_exact(&mut nonce)?;
    Ok(nonce)
}

fn receive_u32(stream: &mut impl Read) -> io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

fn introduce(
    stream: &mut impl Write,
    secret: &Secret,
    side: Side,
    challenge: &Challenge,
    me: &Introduction,
) -> io::Result<()> {
    let text = serde_json::to_vec(me).expect("it holds string keys only");
    let length = u32::try_from(text.len()).expect("it is short");
    let proof = secret.proof(side, challenge, &text).finalize().into_bytes();
    stream.write_all(&[&length.to_le_bytes()[..], &text, &proof].concat())?;
    stream.flush()
}

fn receive_introduction(
    stream: &mut impl Read,
    secret: &Secret,
    side: Side,
    challenge: &Challenge,
) -> Result<Introduction, HandshakeError> {
    let length = receive_u32(stream)?;
    let num_bytes = usize::try_from(length).unwrap_or(usize::MAX);
    if num_bytes > INTRODUCTION_BYTES_MAX {
        return Err(HandshakeError::Length(length));
    }
    let mut text = vec![0; num_bytes];
    stream.read_exact(&mut text)?;
    let mut proof = [0; PROOF_BYTES];
    stream.read_exact(&mut proof)?;
    secret
        .proof(side, challenge, &text)
        .verify_slice(&proof)
        .map_err(|_| HandshakeError::Proof)?;
    serde_json::from_slice(&text).map_err(|_| HandshakeError::Garbled)
}

#[cfg(test)]
mod tests;
