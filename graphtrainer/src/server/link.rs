//! Connections that are open and authenticated before gRPC uses them.

use std::future::{Ready, ready};
use std::io;
use std::net::TcpStream;
use std::task::{Context, Poll};

use http::Uri;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tonic::transport::server::Connected;

/// Bytes in flight between a client and a server of one process.
const MEMORY_BYTES: usize = 1 << 20;

/// One end of an open connection between a [`GrpcClient`](super::GrpcClient) and a
/// [`GrpcServer`](super::GrpcServer). No port is opened for it, and a lost one is not made again.
#[derive(Debug)]
pub struct Link(End);

#[derive(Debug)]
enum End {
    Socket(TcpStream),
    Memory(DuplexStream),
}

/// A stream that bytes can be written to and read from.
pub(super) trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

impl Connected for Box<dyn Duplex> {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

/// Gives its connection to the first caller.
pub(super) struct Connector(Option<Box<dyn Duplex>>);

impl Link {
    /// Makes both ends of a connection within this process.
    pub fn pair() -> (Self, Self) {
        let (one, other) = tokio::io::duplex(MEMORY_BYTES);
        (Self(End::Memory(one)), Self(End::Memory(other)))
    }

    /// Opens the stream; called in the runtime that uses it.
    pub(super) fn open(self) -> io::Result<Box<dyn Duplex>> {
        Ok(match self.0 {
            End::Memory(stream) => Box::new(stream),
            End::Socket(socket) => {
                socket.set_nonblocking(true)?;
                // Otherwise each call waits about 40 ms for the other side's acknowledgement.
                socket.set_nodelay(true)?;
                Box::new(tokio::net::TcpStream::from_std(socket)?)
            }
        })
    }

    /// Makes a connector of the stream; called in the runtime that uses it.
    pub(super) fn connector(self) -> io::Result<Connector> {
        Ok(Connector(Some(self.open()?)))
    }
}

impl From<TcpStream> for Link {
    fn from(socket: TcpStream) -> Self {
        Self(End::Socket(socket))
    }
}

impl tower_service::Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Duplex>>;
    type Error = io::Error;
    type Future = Ready<io::Result<Self::Response>>;

    fn poll_ready(&mut self, _ctx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _server: Uri) -> Self::Future {
        let lost = || io::Error::new(io::ErrorKind::NotConnected, "the connection is lost");
        ready(self.0.take().map(TokioIo::new).ok_or_else(lost))
    }
}
