//! Tests handshakes of processes that have the secret, and of strangers.

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

/// A stream that records all bytes that are read and written.
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

/// Answers a process that proves that it has the secret.
fn accept(stream: &mut UnixStream, secret: &Secret) -> Met {
    receive(stream, secret)?.answer(stream, secret, &introduction(0))
}

/// Returns the results of dialler and listener, and the bytes that the dialler wrote and read.
fn meet(dialler: &Secret, listener: &Secret) -> (Met, Met, Vec<u8>, Vec<u8>) {
    let (here, mut there) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        let listened = scope.spawn(move || accept(&mut there, listener));
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

/// Sends bytes to a listener; returns its result and the bytes that it answers.
fn say(bytes: &[u8], to: &Secret) -> (Met, Vec<u8>) {
    let (mut here, mut there) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        let listened = scope.spawn(move || accept(&mut there, to));
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
    // This listener accepts any proof.
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

/// A stranger sends whole, truncated, changed or random bytes: the listener never sends its proof.
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
                // A random length of the introduction.
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
        // The dialler proves itself, and the listener closes the connection without an answer.
        let listened = scope.spawn(move || receive(&mut there, listener).map(drop));
        (
            dial(&mut here, &one, &introduction(2)),
            listened.join().unwrap(),
        )
    });
    listened.unwrap();
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
