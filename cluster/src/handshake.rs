//! How two processes prove to each other that they belong to one job, before any data flows.
//!
//! A challenge and its answer in both directions, with HMAC-SHA256 (RFC 2104) under the job's secret:
//!
//! ```text
//! dialler  -> listener   magic, version, nonce
//! listener -> dialler    magic, version, nonce
//! dialler  -> listener   its introduction, and a proof of it and of both nonces
//! listener -> dialler    likewise
//! dialler  -> listener   that it has met it
//! listener -> dialler    that it has taken the connection
//! ```
//!
//! Without the last but one the listener forgets the connection, and without the last, which may take as
//! long as the listener is at something else, the dialler makes another one. So when both have it both
//! read it.
//!
//! The listener tells a stranger nothing of the job, and reads no more than a few kilobytes of it; the
//! dialler, who has to begin, tells whoever listens which process of which fingerprint it is. Each
//! side draws its nonce, so what was recorded proves nothing, and each direction has a label of its own,
//! so what was said cannot be sent back. What crosses afterwards is neither signed nor encrypted.

use std::io::{self, Read, Write};

use hmac::{Hmac, KeyInit as _, Mac as _};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

/// First bytes of either side.
const MAGIC: &[u8; 8] = b"graphflt";
/// Changes with the handshake; what crosses after it is another build's if it differs.
pub(crate) const VERSION: u32 = 3;
const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
const INTRODUCTION_BYTES_MAX: usize = 4096;
/// The last word of a dialler: it has met the listener.
pub(crate) const MET: u8 = 1;
/// The last word of a listener: it has taken the connection.
pub(crate) const TAKEN: u8 = 2;

/// What both sides of a job know and nobody else does.
#[derive(Clone)]
pub struct Secret(Vec<u8>);

/// What a process says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Introduction {
    pub(crate) process: usize,
    /// Drawn as it starts: what is left of an earlier run of the job has another one.
    pub(crate) run: u64,
    pub(crate) processes: usize,
    pub(crate) threads: usize,
    /// Checksum of the program.
    pub(crate) build: String,
    /// Fingerprint of the job.
    pub(crate) job: String,
    /// Which of the connections between two processes this is to be.
    pub(crate) session: u64,
}

/// Why another process is none of ours.
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
    #[error("gave way to others")]
    GaveWay,
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

impl Secret {
    /// Fewer bytes can be guessed.
    pub const BYTES_MIN: usize = 16;

    /// Draws a secret; returns it as text, too.
    pub fn draw() -> (Self, String) {
        let text = format!(
            "{:032x}{:032x}",
            rand::random::<u128>(),
            rand::random::<u128>()
        );
        (Self(text.clone().into_bytes()), text)
    }

    /// Takes a secret; none if it is too short.
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
        // Parts of fixed length come first, so no two messages give the same bytes.
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

/// Introduces this process to one that listens; returns who it says it is.
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

/// Lets another process introduce itself, and answers with what `me` says to it; hangs up if that is
/// an error. The last words are the rest.
pub(crate) fn accept(
    stream: &mut (impl Read + Write),
    secret: &Secret,
    me: impl FnOnce(&Introduction) -> Result<Introduction, HandshakeError>,
) -> Result<Introduction, HandshakeError> {
    let dialler = receive_hello(stream)?;
    let listener: Nonce = rand::random();
    send_hello(stream, &listener)?;
    let challenge = Challenge { dialler, listener };
    let found = receive_introduction(stream, secret, Side::Dialler, &challenge)?;
    let me = me(&found)?;
    introduce(stream, secret, Side::Listener, &challenge, &me)?;
    Ok(found)
}

/// Says one of the last words.
pub(crate) fn say(stream: &mut impl Write, word: u8) -> io::Result<()> {
    stream.write_all(&[word])?;
    stream.flush()
}

/// Waits for one of the last words.
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
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use super::*;

    fn secret(text: &str) -> Secret {
        Secret::new(text.as_bytes()).unwrap()
    }

    fn introduction(process: usize) -> Introduction {
        Introduction {
            process,
            run: 5,
            processes: 3,
            threads: 2,
            build: "b".to_owned(),
            job: "f".to_owned(),
            session: 7,
        }
    }

    /// A stream that notes what was read and written.
    struct Recorded<'a> {
        stream: UnixStream,
        read: &'a mut Vec<u8>,
        written: &'a mut Vec<u8>,
    }

    impl Read for Recorded<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let num = self.stream.read(buffer)?;
            self.read.extend_from_slice(&buffer[..num]);
            Ok(num)
        }
    }

    impl Write for Recorded<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.written.extend_from_slice(bytes);
            self.stream.write(bytes)
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    type Met = Result<Introduction, HandshakeError>;

    /// What dialler and listener learn of each other, and what each of them said.
    fn meet(dialler: &Secret, listener: &Secret) -> (Met, Met, Vec<u8>, Vec<u8>) {
        let (here, mut there) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            let listened =
                scope.spawn(move || accept(&mut there, listener, |_| Ok(introduction(0))));
            let (mut read, mut written) = (Vec::new(), Vec::new());
            let mut stream = Recorded {
                stream: here,
                read: &mut read,
                written: &mut written,
            };
            let dialled = dial(&mut stream, dialler, &introduction(2));
            drop(stream);
            (dialled, listened.join().unwrap(), written, read)
        })
    }

    /// What a listener makes of bytes, and what it says.
    fn say(bytes: &[u8], to: &Secret) -> (Met, Vec<u8>) {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            let listened = scope.spawn(move || accept(&mut there, to, |_| Ok(introduction(0))));
            here.write_all(bytes).ok();
            here.shutdown(std::net::Shutdown::Write).unwrap();
            let mut said = Vec::new();
            here.read_to_end(&mut said).ok();
            (listened.join().unwrap(), said)
        })
    }

    const HELLO_BYTES: usize = MAGIC.len() + 4 + NONCE_BYTES;

    #[test]
    fn processes_of_one_job_learn_who_the_other_is() {
        let one = secret("the secret of the job");
        let (dialled, listened, ..) = meet(&one, &one);
        assert_eq!(dialled.unwrap(), introduction(0));
        assert_eq!(listened.unwrap(), introduction(2));
    }

    #[test]
    fn another_secret_proves_nothing_and_is_told_nothing() {
        let (dialled, listened, _, heard) = meet(
            &secret("the secret of a stranger"),
            &secret("the secret of the job"),
        );
        assert!(matches!(listened, Err(HandshakeError::Proof)));
        assert!(matches!(dialled, Err(HandshakeError::Io(_))));
        assert_eq!(heard.len(), HELLO_BYTES, "a hello, and not who is there");
    }

    #[test]
    fn a_listener_with_another_secret_is_noticed() {
        // One that takes any proof for right.
        let ours = secret("the secret of the job");
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let fake = thread::spawn(move || {
            let dialler = receive_hello(&mut there).unwrap();
            let listener = [9; NONCE_BYTES];
            send_hello(&mut there, &listener).unwrap();
            let challenge = Challenge { dialler, listener };
            let other = secret("the secret of a stranger");
            introduce(
                &mut there,
                &other,
                Side::Listener,
                &challenge,
                &introduction(0),
            )
            .unwrap();
            there
        });
        let met = dial(&mut here, &ours, &introduction(2));
        assert!(matches!(met, Err(HandshakeError::Proof)));
        fake.join().unwrap();
    }

    #[test]
    fn what_was_recorded_proves_nothing() {
        let one = secret("the secret of the job");
        let (_, listened, said, heard) = meet(&one, &one);
        listened.unwrap();
        for again in [said, heard] {
            let (met, told) = say(&again, &one);
            assert!(matches!(met, Err(HandshakeError::Proof)), "{met:?}");
            assert_eq!(told.len(), HELLO_BYTES);
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut hello = MAGIC.to_vec();
        hello.extend((VERSION + 1).to_le_bytes());
        let (met, told) = say(&hello, &secret("the secret of the job"));
        let error = met.unwrap_err().to_string();
        assert!(
            error.contains(&format!("version {}", VERSION + 1)),
            "{error}"
        );
        assert!(told.is_empty());
    }

    /// Whatever a stranger sends, whole, cut short or with bits turned, it gets no answer to a proof.
    #[test]
    fn garbage_gets_nothing() {
        let one = secret("the secret of the job");
        let (_, _, said, _) = meet(&one, &one);
        for draw in 0..2000_u64 {
            let random: u64 = rand::random();
            let mut bytes = said.clone();
            match draw % 4 {
                0 => bytes.truncate(usize::try_from(random % bytes.len() as u64).unwrap()),
                1 => {
                    let at = usize::try_from(random % bytes.len() as u64).unwrap();
                    bytes[at] ^= 1 << (random >> 61);
                }
                2 => {
                    // Any length of the introduction.
                    bytes.truncate(HELLO_BYTES);
                    bytes.extend(rand::random::<[u8; 4]>());
                    bytes.extend((0..random % 9000).map(|_| rand::random::<u8>()));
                }
                _ => bytes = (0..random % 500).map(|_| rand::random()).collect(),
            }
            let (met, told) = say(&bytes, &one);
            met.unwrap_err();
            assert!(told.is_empty() || told.len() == HELLO_BYTES, "{told:?}");
        }
    }

    #[test]
    fn whoever_is_refused_gets_no_answer() {
        let one = secret("the secret of the job");
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let (dialled, listened) = thread::scope(|scope| {
            let listener = &one;
            let listened = scope
                .spawn(move || accept(&mut there, listener, |_| Err(HandshakeError::OtherRun)));
            (
                dial(&mut here, &one, &introduction(2)),
                listened.join().unwrap(),
            )
        });
        assert!(matches!(listened, Err(HandshakeError::OtherRun)));
        assert!(matches!(dialled, Err(HandshakeError::Io(_))));
    }

    #[test]
    fn short_secrets_are_none_and_blanks_around_one_do_not_count() {
        assert!(Secret::new(b"  fifteen bytes  \n").is_none());
        let [one, other] = ["the secret of the job\n", "the secret of the job"].map(secret);
        let (dialled, ..) = meet(&one, &other);
        dialled.unwrap();
        assert_eq!(format!("{one:?}"), "Secret");
    }
}
