//! A proxy for HTTP/1.1 that adds the faults of a network and a busy server to a share of its
//! requests.

use std::error::Error;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::{Body, Frame, Incoming};
use hyper::header::{CONTENT_LENGTH, CONTENT_TYPE};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::Sleep;

type BoxError = Box<dyn Error + Send + Sync>;
type Reply = Response<BoxBody<Bytes, BoxError>>;

/// A fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The connection is closed before the request is forwarded.
    LostRequest,
    /// The request is carried out, then the connection is closed instead of replying.
    LostReply,
    /// 503 with the code `SlowDown`, as S3 throttles; the request is not forwarded.
    SlowDown,
    /// 500 with the code `InternalError`; the request is not forwarded.
    InternalError,
    /// The reply's head and the first half of its body, then the connection is closed. A reply
    /// without a body is lost whole, and counted as [`Fault::LostReply`].
    TruncatedBody,
    /// Half of the reply's body, the rest only after [`Plan::stall`]. A reply without a body is
    /// delayed whole.
    Stall,
    /// The reply comes 50 to 500 ms late.
    Delay,
}

impl Fault {
    /// Every fault, in the order of their counts.
    pub(crate) const ALL: [Self; 7] = [
        Self::LostRequest,
        Self::LostReply,
        Self::SlowDown,
        Self::InternalError,
        Self::TruncatedBody,
        Self::Stall,
        Self::Delay,
    ];
}

/// Frequency and kinds of faults.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Decides, with a request's number, its fault.
    pub(crate) seed: u64,
    /// Faults in a million requests.
    pub(crate) per_million: u64,
    /// The faults to choose from, with equal probability.
    pub(crate) faults: Vec<Fault>,
    /// Duration of a stall in a body.
    pub(crate) stall: Duration,
    /// Suffix of a path; the first PUT to a path with this suffix is held back.
    pub(crate) held: Option<&'static str>,
}

impl Plan {
    /// Every fault, at 5 % of requests; stalls take 3 s.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            seed,
            per_million: 50_000,
            faults: Fault::ALL.to_vec(),
            stall: Duration::from_secs(3),
            held: None,
        }
    }

    /// No faults; the first PUT to a path with this suffix is held back.
    pub(crate) fn hold(path_end: &'static str) -> Self {
        Self {
            per_million: 0,
            held: Some(path_end),
            ..Self::new(0)
        }
    }

    /// The fault of the request `number`, counted from zero as requests come in.
    fn fault(&self, number: u64) -> Option<Fault> {
        let draw = mix(self.seed.wrapping_add(mix(number)));
        if self.faults.is_empty() || draw % 1_000_000 >= self.per_million {
            return None;
        }
        let num_faults = u64::try_from(self.faults.len()).expect("a length fits 64 bits");
        let choice = usize::try_from(mix(draw) % num_faults).expect("less than a length");
        Some(self.faults[choice])
    }

    /// Tells whether the proxy holds a request back.
    fn holds<B>(&self, request: &Request<B>) -> bool {
        let is_put = request.method() == Method::PUT;
        is_put
            && self
                .held
                .is_some_and(|end| request.uri().path().ends_with(end))
    }

    /// The delay of a delayed reply to the request `number`.
    fn delay(&self, number: u64) -> Duration {
        Duration::from_millis(50 + mix(self.seed ^ mix(number)) % 451)
    }
}

/// The finalizer of SplitMix64.
fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A running proxy; dropping it closes its port and its connections.
pub(crate) struct FaultProxy {
    url: String,
    shared: Arc<Shared>,
    runtime: Option<Runtime>,
}

struct Shared {
    plan: Plan,
    upstream: String,
    num_requests: AtomicU64,
    num_faults: [AtomicU64; Fault::ALL.len()],
    /// The request that is held back.
    held: Mutex<Option<Request<Full<Bytes>>>>,
}

impl FaultProxy {
    /// Starts a proxy on a free port of the loopback for the server at `upstream`
    /// (`http://127.0.0.1:PORT`).
    pub(crate) fn start(upstream: &str, plan: Plan) -> Self {
        let upstream = upstream.trim_end_matches('/');
        let address = upstream
            .strip_prefix("http://")
            .expect("plain HTTP upstream");
        let shared = Arc::new(Shared {
            plan,
            upstream: address.to_owned(),
            num_requests: AtomicU64::new(0),
            num_faults: Default::default(),
            held: Mutex::default(),
        });
        // A listener of the standard library, so that tests inside another tokio runtime can start
        // a proxy too.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.spawn(accept(listener, Arc::clone(&shared)));
        Self {
            url,
            shared,
            runtime: Some(runtime),
        }
    }

    /// The URL to give to clients in place of the server's.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Number of requests received.
    pub(crate) fn num_requests(&self) -> u64 {
        self.shared.num_requests.load(Ordering::SeqCst)
    }

    /// Number of requests with the fault `fault`.
    pub(crate) fn count(&self, fault: Fault) -> u64 {
        self.shared.num_faults[fault as usize].load(Ordering::SeqCst)
    }

    /// Tells whether the proxy holds a request back now.
    pub(crate) fn is_holding(&self) -> bool {
        self.shared.is_holding()
    }

    /// Forwards the request that was held back; returns the status of the answer.
    pub(crate) fn release(&self) -> StatusCode {
        let request = self.shared.held.lock().unwrap().take().unwrap();
        let runtime = self.runtime.as_ref().unwrap();
        let sent = forward(&self.shared.upstream, request);
        runtime.block_on(sent).unwrap().status()
    }

    /// Number of requests with any fault.
    pub(crate) fn num_faults(&self) -> u64 {
        Fault::ALL.into_iter().map(|fault| self.count(fault)).sum()
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

async fn accept(listener: std::net::TcpListener, shared: Arc<Shared>) {
    let listener = TcpListener::from_std(listener).unwrap();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(|request| reply(Arc::clone(&shared), request));
            // A fault ends the connection with an error on purpose.
            let connection = hyper::server::conn::http1::Builder::new();
            connection
                .serve_connection(TokioIo::new(stream), service)
                .await
                .ok();
        });
    }
}

/// The reply to one request; an error closes the connection without one.
async fn reply(shared: Arc<Shared>, request: Request<Incoming>) -> Result<Reply, BoxError> {
    if shared.plan.holds(&request) && !shared.is_holding() {
        let (head, body) = request.into_parts();
        let body = Full::new(body.collect().await?.to_bytes());
        *shared.held.lock().unwrap() = Some(Request::from_parts(head, body));
        // The client gets no answer.
        return std::future::pending().await;
    }
    let number = shared.num_requests.fetch_add(1, Ordering::SeqCst);
    let fault = shared.plan.fault(number);
    if let Some(fault) = fault.filter(|fault| *fault != Fault::TruncatedBody) {
        shared.count(fault);
    }
    match fault {
        Some(Fault::LostRequest) => Err("the request is lost".into()),
        Some(Fault::SlowDown) => refuse(request, StatusCode::SERVICE_UNAVAILABLE, "SlowDown").await,
        Some(Fault::InternalError) => {
            refuse(request, StatusCode::INTERNAL_SERVER_ERROR, "InternalError").await
        }
        _ => match forward(&shared.upstream, request).await {
            Ok(reply) => shared.spoil(reply, fault, number).await,
            // The server cannot be reached. This is no planned fault, and the test's output names
            // it.
            Err(error) => failed(StatusCode::BAD_GATEWAY, &format!("upstream: {error}")),
        },
    }
}

/// Forwards the request unchanged, including `Host`, which the client's signature covers.
async fn forward<B>(upstream: &str, request: Request<B>) -> Result<Response<Incoming>, BoxError>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    let stream = TcpStream::connect(upstream).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    Ok(sender.send_request(request).await?)
}

/// An error reply in the form of S3, once the whole request is read.
async fn refuse(
    request: Request<Incoming>,
    status: StatusCode,
    code: &str,
) -> Result<Reply, BoxError> {
    drain(request.into_body()).await?;
    failed(status, code)
}

fn failed(status: StatusCode, code: &str) -> Result<Reply, BoxError> {
    let text = format!("<Error><Code>{code}</Code><Message>by the fault proxy</Message></Error>");
    let body = Full::new(Bytes::from(text))
        .map_err(|never| match never {})
        .boxed();
    Ok(Response::builder()
        .status(status)
        .header(CONTENT_TYPE, "application/xml")
        .body(body)?)
}

async fn drain(mut body: Incoming) -> Result<(), BoxError> {
    while let Some(frame) = body.frame().await {
        frame?;
    }
    Ok(())
}

impl Shared {
    fn is_holding(&self) -> bool {
        self.held.lock().unwrap().is_some()
    }

    fn count(&self, fault: Fault) {
        self.num_faults[fault as usize].fetch_add(1, Ordering::SeqCst);
    }

    /// Applies a fault to a reply.
    async fn spoil(
        &self,
        reply: Response<Incoming>,
        fault: Option<Fault>,
        number: u64,
    ) -> Result<Reply, BoxError> {
        let has_body = !reply.body().is_end_stream();
        match fault {
            Some(Fault::TruncatedBody) if has_body => {
                self.count(Fault::TruncatedBody);
                return Ok(halve(reply, None));
            }
            Some(Fault::Stall) if has_body => return Ok(halve(reply, Some(self.plan.stall))),
            Some(Fault::Stall) => tokio::time::sleep(self.plan.stall).await,
            Some(Fault::Delay) => tokio::time::sleep(self.plan.delay(number)).await,
            Some(Fault::LostReply | Fault::TruncatedBody) => {
                if fault == Some(Fault::TruncatedBody) {
                    self.count(Fault::LostReply);
                }
                drain(reply.into_body()).await?;
                return Err("the reply is lost".into());
            }
            _ => {}
        }
        Ok(reply.map(|body| body.map_err(BoxError::from).boxed()))
    }
}

/// A reply whose body stops half way, for `stall` or until the connection is closed.
fn halve(reply: Response<Incoming>, stall: Option<Duration>) -> Reply {
    let length = reply
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|length| length.to_str().ok());
    // If the length is unknown, the first piece counts as the first half.
    let num_left = length
        .and_then(|length| length.parse().ok())
        .unwrap_or(2usize)
        / 2;
    reply.map(|body| {
        Halved {
            body,
            num_left: Some(num_left),
            pause: None,
            stall,
        }
        .boxed()
    })
}

/// A body with a break after its first half.
struct Halved {
    body: Incoming,
    /// Bytes left before the break; none after it.
    num_left: Option<usize>,
    /// The timer of the break, and the rest of the last piece, which follows it.
    pause: Option<(Pin<Box<Sleep>>, Bytes)>,
    /// Duration of the break; none if the body ends there.
    stall: Option<Duration>,
}

impl Body for Halved {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        if let Some((sleep, rest)) = &mut self.pause {
            ready!(sleep.as_mut().poll(context));
            let rest = std::mem::take(rest);
            self.pause = None;
            return Poll::Ready(Some(match self.stall {
                Some(_) => Ok(Frame::data(rest)),
                None => Err("the rest of the body is lost".into()),
            }));
        }
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context)?);
        let Some(mut data) = frame.and_then(|frame| frame.into_data().ok()) else {
            return Poll::Ready(None);
        };
        match self.num_left {
            Some(num_left) if data.len() >= num_left => {
                let half = data.split_to(num_left);
                // An immediate error would overtake bytes that are not written yet.
                let pause = self.stall.unwrap_or(Duration::from_millis(20));
                self.num_left = None;
                self.pause = Some((Box::pin(tokio::time::sleep(pause)), data));
                data = half;
            }
            Some(num_left) => self.num_left = Some(num_left - data.len()),
            None => {}
        }
        Poll::Ready(Some(Ok(Frame::data(data))))
    }
}

#[cfg(test)]
mod tests;
