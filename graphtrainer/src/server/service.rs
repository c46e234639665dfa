//! One shard of the parameter server as a gRPC service: a [`MemoryServer`] behind connections.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use prost::Message;
use tokio::runtime::Runtime;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::wire::{
    Empty, FailRequest, LINK_BEAT, LINK_SILENCE_MAX, MESSAGE_BYTES_MAX, Method, PullReply,
    PullRequest, PushRequest, StartRequest, State, WINDOW_BYTES, decode, encode, status_of,
};
use super::wire_rows::{PullRowsReply, PullRowsRequest, RowPage, SaveRowsRequest, page_rows};
use super::{
    Consistency, GradientFormat, Link, MemoryServer, ParameterServer, Pushed, Settings, TableSpec,
    WORKERS_MAX,
};
use crate::TrainError;

/// Longest time that a pull waits before it is answered, after which the worker asks again.
const PULL_MAX: Duration = Duration::from_secs(15);

/// Largest number of concurrent calls of one connection: one per worker, and a few of its process.
const CALLS_MAX: u32 = 4096;

/// A gRPC server on [`Link`]s; it stops when it is dropped.
///
/// It holds nothing before [`GrpcClient::start`](super::GrpcClient::start).
#[derive(Debug)]
pub struct GrpcServer {
    /// None after the drop.
    runtime: Option<Runtime>,
}

/// Answers calls; all clones are one server.
#[derive(Clone, Debug, Default)]
struct Service {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    shard: OnceLock<Shard>,
}

/// A started server.
#[derive(Debug)]
struct Shard {
    server: MemoryServer,
    settings: Settings,
    num_buffers: usize,
    /// Mode sync: the answer to pulls of the latest step, encoded once for all workers.
    pulled: Mutex<Option<(u64, PullReply)>>,
}

impl GrpcServer {
    /// Serves the other ends of some connections.
    ///
    /// # Errors
    ///
    /// [`TrainError::Process`] if a connection is broken, or the system refuses a thread.
    pub fn serve(links: Vec<Link>) -> Result<Self, TrainError> {
        let failed = |source| TrainError::Process {
            action: "start a parameter server",
            source,
        };
        let runtime = super::runtime(2)?;
        let entered = runtime.enter();
        let opened = links.into_iter().map(Link::open);
        let opened: Vec<_> = opened.collect::<Result<_, _>>().map_err(failed)?;
        drop(entered);
        let serving = http2().serve_with_incoming(
            Service::default(),
            tokio_stream::iter(opened.into_iter().map(Ok::<_, Infallible>)),
        );
        runtime.spawn(async move {
            if let Err(error) = serving.await {
                tracing::warn!("a parameter server stopped: {error}");
            }
        });
        Ok(Self {
            runtime: Some(runtime),
        })
    }
}

impl Drop for GrpcServer {
    /// Also ends running calls: a pull may still wait for a worker that never pushes.
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

fn http2() -> Server {
    Server::builder()
        .http2_keepalive_interval(Some(LINK_BEAT))
        .http2_keepalive_timeout(Some(LINK_SILENCE_MAX))
        .max_concurrent_streams(CALLS_MAX)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES)
}

/// An answer that is being computed.
type Answering<T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send>>;

impl tower_service::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Answering<Self::Response, Infallible>;

    fn poll_ready(&mut self, _ctx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            Ok(match Method::of_path(request.uri().path()) {
                Some(Method::Start) => answer(request, move |asked| shared.start(&asked)).await,
                Some(Method::Pull) => answer(request, move |asked| shared.pull(&asked)).await,
                Some(Method::Push) => answer(request, move |asked| shared.push(&asked)).await,
                Some(Method::Fail) => answer(request, move |asked| shared.fail(&asked)).await,
                Some(Method::State) => {
                    answer(request, move |asked: Empty| shared.state(&asked)).await
                }
                Some(Method::PullRows) => {
                    answer(request, move |asked| shared.pull_rows(&asked)).await
                }
                Some(Method::LoadRows) => {
                    answer(request, move |asked| shared.load_rows(&asked)).await
                }
                Some(Method::SaveRows) => {
                    answer(request, move |asked| shared.save_rows(&asked)).await
                }
                None => Status::unimplemented("unknown method").into_http(),
            })
        })
    }
}

/// Decodes a request, computes the answer on a thread that may block, and encodes it.
async fn answer<Q, R>(
    request: http::Request<Body>,
    work: impl FnOnce(Q) -> Result<R, Status> + Send + 'static,
) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    R: Message + 'static,
{
    Grpc::new(ProstCodec::<R, Q>::default())
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
        .unary(OneCall(Some(work)), request)
        .await
}

/// The work of one call, in the form that tonic needs.
struct OneCall<F>(Option<F>);

impl<Q, R, F> UnaryService<Q> for OneCall<F>
where
    Q: Send + 'static,
    R: Send + 'static,
    F: FnOnce(Q) -> Result<R, Status> + Send + 'static,
{
    type Response = R;
    type Future = Answering<Response<R>, Status>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let work = self.0.take();
        Box::pin(async move {
            let work = work.ok_or_else(|| Status::internal("a call was answered twice"))?;
            let done = tokio::task::spawn_blocking(move || work(request.into_inner())).await;
            let stopped = |error: tokio::task::JoinError| Status::internal(error.to_string());
            done.map_err(stopped)?.map(Response::new)
        })
    }
}

/// Makes the answer to a malformed request, which no worker of this program sends.
fn malformed(what: &str) -> Status {
    Status::invalid_argument(format!("the request has {what}"))
}

impl Shared {
    fn start(&self, asked: &StartRequest) -> Result<Empty, Status> {
        let settings: Settings = serde_json::from_str(&asked.settings)
            .map_err(|error| malformed(&format!("settings that cannot be parsed ({error})")))?;
        let state = asked
            .state
            .decode()
            .ok_or_else(|| malformed("a vector that is cut off"))?;
        let len: usize = settings.tensors.iter().map(|tensor| tensor.len).sum();
        let moments = &state.moments;
        let fits = state.parameters.len() == len
            && (moments.is_empty() || moments.len() == settings.optimizer.num_moments())
            && moments.iter().all(|moment| moment.len() == len)
            && settings.tables.iter().all(|table| table.dim > 0)
            && (1..=WORKERS_MAX).contains(&settings.workers);
        if !fits {
            return Err(malformed("a state of another shape than its settings"));
        }
        let server = MemoryServer::new(
            &settings.tensors,
            settings.optimizer,
            settings.consistency,
            (settings.workers, 1),
            &state,
        )
        .keeping_squares()
        .with_tables(&settings.tables, &state);
        let shard = Shard {
            server,
            settings,
            num_buffers: state.buffers.len(),
            pulled: Mutex::default(),
        };
        let started = self.shard.set(shard);
        started.map_err(|_shard| Status::failed_precondition("this server was started before"))?;
        Ok(Empty {})
    }

    fn shard(&self) -> Result<&Shard, Status> {
        let shard = self.shard.get();
        shard.ok_or_else(|| Status::failed_precondition("this server was not started yet"))
    }

    fn pull(&self, asked: &PullRequest) -> Result<PullReply, Status> {
        let shard = self.shard()?;
        shard.worker(asked.worker)?;
        if let Some(known) = shard.known(asked.step) {
            return Ok(known);
        }
        let pulled = shard.server.pull_within(asked.step, PULL_MAX);
        let Some(pulled) = pulled.map_err(|error| status_of(&error))? else {
            return Ok(PullReply::default());
        };
        Ok(shard.keep(
            asked.step,
            PullReply {
                is_allowed: true,
                parameters: encode(&pulled.parameters),
                buffers: encode(&pulled.buffers),
            },
        ))
    }

    fn push(&self, asked: &PushRequest) -> Result<Empty, Status> {
        let shard = self.shard()?;
        let worker = shard.worker(asked.worker)?;
        let format = match asked.is_bf16 {
            true => GradientFormat::Bf16,
            false => GradientFormat::F32,
        };
        let len: usize = shard.settings.tensors.iter().map(|tensor| tensor.len).sum();
        let gradient = format.decode(&asked.gradient);
        let gradient = gradient
            .filter(|values| values.len() == len)
            .ok_or_else(|| malformed("a gradient of another length"))?;
        let buffers = decode(&asked.buffers);
        let buffers = buffers
            .filter(|values| values.len() == shard.num_buffers)
            .ok_or_else(|| malformed("buffers of another length"))?;
        let specs = &shard.settings.tables;
        let rows = specs.iter().zip(&asked.rows);
        let rows = rows.map(|(spec, rows)| rows.to_gradient((spec.id_type, spec.dim), format));
        let rows = rows
            .collect::<Option<Vec<_>>>()
            .filter(|rows| [0, specs.len()].contains(&rows.len()))
            .ok_or_else(|| malformed("gradients of rows of other tables"))?;
        let pushed = Pushed {
            worker,
            step: asked.step,
            gradient: &gradient,
            num_targets: asked.num_targets,
            buffers: &buffers,
            rows: &rows,
        };
        shard
            .server
            .push(pushed)
            .map_err(|error| status_of(&error))?;
        Ok(Empty {})
    }

    fn pull_rows(&self, asked: &PullRowsRequest) -> Result<PullRowsReply, Status> {
        let server = &self.shard()?.server;
        let specs = server.tables().specs();
        let wanted = specs.iter().zip(&asked.tables);
        let wanted = wanted.map(|(spec, ids)| ids.to_ids(spec.id_type));
        let wanted = wanted
            .collect::<Option<Vec<_>>>()
            .filter(|wanted| wanted.len() == specs.len())
            .ok_or_else(|| malformed("ids of other tables"))?;
        let wanted: Vec<&schemas::Ids> = wanted.iter().collect();
        let rows = server
            .pull_rows(&wanted)
            .map_err(|error| status_of(&error))?;
        Ok(PullRowsReply {
            tables: rows.iter().map(|rows| encode(rows)).collect(),
        })
    }

    fn load_rows(&self, asked: &RowPage) -> Result<Empty, Status> {
        let shard = self.shard()?;
        let (table, spec) = shard.table(asked.table)?;
        let num_moments = shard.settings.optimizer.num_moments();
        let rows = asked.to_rows(spec.id_type, spec.dim);
        let rows = rows
            .filter(|rows| [0, num_moments].contains(&rows.moments.len()))
            .ok_or_else(|| malformed("rows of another shape than its table"))?;
        match shard.server.tables().load(table, &rows) {
            true => Ok(Empty {}),
            false => Err(malformed("a row that its table has already")),
        }
    }

    fn save_rows(&self, asked: &SaveRowsRequest) -> Result<RowPage, Status> {
        let shard = self.shard()?;
        let (table, spec) = shard.table(asked.table)?;
        let start = usize::try_from(asked.start).unwrap_or(usize::MAX);
        let count = page_rows(spec.dim, shard.settings.optimizer.num_moments());
        Ok(RowPage::of(
            table,
            &shard.server.tables().page(table, start, count),
        ))
    }

    fn fail(&self, asked: &FailRequest) -> Result<Empty, Status> {
        let shard = self.shard()?;
        shard.server.fail(shard.worker(asked.worker)?);
        Ok(Empty {})
    }

    fn state(&self, _asked: &Empty) -> Result<State, Status> {
        let server = &self.shard()?.server;
        let state = server.state().map_err(|error| status_of(&error))?;
        Ok(State {
            squares: server.take_squares(),
            ..State::of(&state)
        })
    }
}

impl Shard {
    fn worker(&self, worker: u64) -> Result<usize, Status> {
        let known = usize::try_from(worker).ok();
        known
            .filter(|idx| *idx < self.settings.workers)
            .ok_or_else(|| malformed(&format!("worker {worker} of {}", self.settings.workers)))
    }

    fn table(&self, table: u64) -> Result<(usize, &TableSpec), Status> {
        let known = usize::try_from(table).ok();
        let found = known.and_then(|at| Some((at, self.settings.tables.get(at)?)));
        found.ok_or_else(|| malformed(&format!("table {table} of {}", self.settings.tables.len())))
    }

    /// Returns the answer to pulls of a step, if it is kept.
    fn known(&self, step: u64) -> Option<PullReply> {
        let pulled = self.pulled.lock().unwrap_or_else(PoisonError::into_inner);
        let known = pulled.as_ref().filter(|(of, _)| *of == step);
        known.map(|(_, reply)| reply.clone())
    }

    /// Keeps the answer to pulls of a step in mode sync, where all workers get the same parameters.
    fn keep(&self, step: u64, reply: PullReply) -> PullReply {
        if self.settings.consistency == Consistency::Sync {
            let mut pulled = self.pulled.lock().unwrap_or_else(PoisonError::into_inner);
            *pulled = Some((step, reply.clone()));
        }
        reply
    }
}
