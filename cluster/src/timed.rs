//! Sets deadlines and keep-alive of connections.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use socket2::{SockRef, TcpKeepalive};

/// Greatest duration of a whole handshake.
pub(crate) const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Silence after which the system probes the other end. Routers may drop a connection that carries
/// nothing for minutes, for example during a long epoch.
const KEEPALIVE: Duration = Duration::from_secs(5);
/// Time between probes.
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(2);

/// A stream whose handshake must end before a deadline.
pub(crate) struct Timed<'a> {
    stream: &'a TcpStream,
    deadline: Instant,
}

/// Makes the system probe an idle connection, so that a lost peer is noticed and no router drops
/// the connection.
pub(crate) fn keep_alive(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE);
    SockRef::from(stream).set_tcp_keepalive(&keepalive.with_interval(KEEPALIVE_PAUSE))
}

impl<'a> Timed<'a> {
    pub(crate) fn new(stream: &'a TcpStream) -> Self {
        Self {
            stream,
            deadline: Instant::now() + HANDSHAKE_MAX,
        }
    }

    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.deadline.checked_duration_since(Instant::now());
        let left = left.filter(|left| !left.is_zero());
        let late = || io::Error::new(io::ErrorKind::TimedOut, "does not finish its introduction");
        left.map(Some).ok_or_else(late)
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
