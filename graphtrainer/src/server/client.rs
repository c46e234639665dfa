//! The workers' client of a parameter server in other processes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use http::uri::PathAndQuery;
use prost::Message;
use prost::bytes::Bytes;
use schemas::Ids;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};
use tonic_prost::ProstCodec;

use super::shard::spread;
use super::wire::{
    Empty, FailRequest, LINK_BEAT, LINK_SILENCE_MAX, MESSAGE_BYTES_MAX, Method, PullReply,
    PullRequest, PushRequest, StartRequest, State, WINDOW_BYTES, decode, encode, error_of,
};
use super::wire_rows::{
    PullRowsReply, PullRowsRequest, RowIds, RowPage, RowPush, SaveRowsRequest, page_rows,
};
use super::{
    GradientFormat, Link, ParameterServer, Pulled, Pushed, ServerState, Settings, TableRows,
    TableSpec, TensorSpec,
};
use crate::TrainError;

/// A [`ParameterServer`] whose shards are [`GrpcServer`](super::GrpcServer)s.
///
/// Calls go to all shards at once. A call has no deadline: a broken connection is
/// [`TrainError::ServerLost`]. The first shard also holds the model's buffers.
#[derive(Debug)]
pub struct GrpcClient {
    /// Keeps connections alive while the caller computes.
    runtime: Runtime,
    servers: Vec<Shard>,
    format: GradientFormat,
    num_parameters: usize,
    /// Sum of the norms of the gradients of all updates that servers have reported.
    norm_sum: Mutex<f64>,
    /// The embedding tables. Each server holds the rows of some of their nodes.
    tables: Vec<TableSpec>,
}

/// Running calls, each with its server.
type Calls<R> = JoinSet<(usize, Result<R, Status>)>;

/// The connection to one server.
#[derive(Debug)]
struct Shard {
    grpc: Grpc<Channel>,
    tensors: Vec<TensorSpec>,
    /// Ranges of its tensors in the flat vector, in the order in which they are sent.
    places: Vec<Range<usize>>,
}

impl GrpcClient {
    /// Makes a client of the servers at the other ends of these connections, one shard each. A lost
    /// connection is not made again.
    ///
    /// # Errors
    ///
    /// [`TrainError::Process`] if a connection is broken, or the system refuses a thread.
    pub fn over(
        links: Vec<Link>,
        tensors: &[TensorSpec],
        format: GradientFormat,
    ) -> Result<Self, TrainError> {
        let failed = |source| TrainError::Process {
            action: "reach a parameter server",
            source,
        };
        let runtime = super::runtime(1)?;
        let entered = runtime.enter();
        let shares = spread(tensors, links.len());
        let servers = links
            .into_iter()
            .zip(shares)
            .map(|(link, share)| {
                let (places, specs): (_, Vec<&TensorSpec>) = share.into_iter().unzip();
                let connector = link.connector().map_err(failed)?;
                Ok(Shard {
                    grpc: Grpc::new(endpoint().connect_with_connector_lazy(connector))
                        .max_decoding_message_size(MESSAGE_BYTES_MAX)
                        .max_encoding_message_size(MESSAGE_BYTES_MAX),
                    tensors: specs.into_iter().cloned().collect(),
                    places,
                })
            })
            .collect::<Result<_, TrainError>>()?;
        drop(entered);
        Ok(Self {
            runtime,
            servers,
            format,
            num_parameters: tensors.iter().map(|tensor| tensor.len).sum(),
            norm_sum: Mutex::new(0.0),
            tables: Vec::new(),
        })
    }

    /// Adds embedding tables: those of the settings that the servers start with.
    #[must_use]
    pub fn with_tables(mut self, tables: &[TableSpec]) -> Self {
        self.tables = tables.to_vec();
        self
    }

    /// Sends the servers their settings and the state to start from. `settings` are those of all
    /// shards together.
    ///
    /// # Errors
    ///
    /// [`TrainError::ServerLost`] or [`TrainError::ServerRefused`].
    pub fn start(&self, settings: &Settings, state: &ServerState) -> Result<(), TrainError> {
        let state_norm_sum = state.norm_sum;
        let requests = self.servers.iter().enumerate().map(|(server, shard)| {
            let settings = Settings {
                tensors: shard.tensors.clone(),
                ..settings.clone()
            };
            let settings = serde_json::to_string(&settings).map_err(|source| {
                let what = "plan";
                TrainError::Json { what, source }
            })?;
            let state = State {
                step: state.step,
                updates: state.updates,
                parameters: shard.gather(GradientFormat::F32, &state.parameters),
                buffers: buffers_for(server, &state.buffers),
                moments: (state.moments.iter())
                    .map(|moment| shard.gather(GradientFormat::F32, moment))
                    .collect(),
                norm_sum: state.norm_sum,
                squares: Vec::new(),
            };
            Ok(StartRequest { settings, state })
        });
        let requests = requests.collect::<Result<Vec<_>, TrainError>>()?;
        self.all::<_, Empty>(Method::Start, requests)?;
        for (table, rows) in state.tables.iter().enumerate() {
            self.load_rows(table, rows)?;
        }
        *self.norm_sum.lock().unwrap_or_else(PoisonError::into_inner) = state_norm_sum;
        Ok(())
    }

    /// Starts a call to each server, with a request for each.
    fn call_all<Q, R>(&self, method: Method, requests: impl IntoIterator<Item = Q>) -> Calls<R>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        let mut calls = Calls::new();
        let servers = self.servers.iter().zip(requests).enumerate();
        for (server, (shard, request)) in servers {
            let answer = call(shard.grpc.clone(), method, request);
            let answer = async move { (server, answer.await) };
            calls.spawn_on(answer, self.runtime.handle());
        }
        calls
    }

    /// Calls every server at once; returns the answers by server, or the first failure.
    fn all<Q, R>(
        &self,
        method: Method,
        requests: impl IntoIterator<Item = Q>,
    ) -> Result<Vec<R>, TrainError>
    where
        Q: Message + 'static,
        R: Message + Default + 'static,
    {
        self.wait(self.call_all(method, requests))
    }

    /// Waits for all answers. A failure cancels the other calls: a server might wait forever for a
    /// worker that another server has lost.
    fn wait<R: 'static>(&self, mut calls: Calls<R>) -> Result<Vec<R>, TrainError> {
        self.runtime.block_on(async {
            let mut answers = BTreeMap::new();
            while let Some(call) = calls.join_next().await {
                let (server, answer) = call.expect("a call neither panics nor is cancelled");
                let answer = answer.map_err(|status| error_of(server, &status))?;
                answers.insert(server, answer);
            }
            Ok(answers.into_values().collect())
        })
    }

    /// Reads a vector of a shard into its ranges of the flat vector.
    fn scatter(&self, server: usize, bytes: &[u8], flat: &mut [f32]) -> Result<(), TrainError> {
        let shard = &self.servers[server];
        let values = decode(bytes).filter(|values| values.len() == shard.len());
        let Some(values) = values else {
            let problem = format!("it sent {} bytes for {} values", bytes.len(), shard.len());
            return Err(TrainError::ServerRefused { server, problem });
        };
        let mut rest = &values[..];
        for place in &shard.places {
            let (own, after) = rest.split_at(place.len());
            flat[place.clone()].copy_from_slice(own);
            rest = after;
        }
        Ok(())
    }

    /// Adds the norms of updates that the servers report. Each norm is taken over the tensors of
    /// all servers in the order of the flat vector, so the number of servers changes no bit.
    fn add_norms(&self, states: &[State]) -> f64 {
        let mut norm_sum = self.norm_sum.lock().unwrap_or_else(PoisonError::into_inner);
        let shards = self.servers.iter().zip(states);
        let shards: Vec<_> = shards
            .filter(|(shard, _)| !shard.places.is_empty())
            .collect();
        let updates = shards
            .iter()
            .map(|(shard, state)| state.squares.len() / shard.places.len());
        for update in 0..updates.min().unwrap_or(0) {
            let mut squares: Vec<(usize, f64)> = Vec::new();
            for (shard, state) in &shards {
                let own = &state.squares[update * shard.places.len()..];
                let starts = shard.places.iter().map(|place| place.start);
                squares.extend(starts.zip(own.iter().copied()));
            }
            squares.sort_by_key(|(start, _)| *start);
            *norm_sum += squares.iter().map(|(_, square)| square).sum::<f64>().sqrt();
        }
        *norm_sum
    }

    /// Sends the rows of a table to their servers, page by page.
    fn load_rows(&self, table: usize, rows: &TableRows) -> Result<(), TrainError> {
        let spec = &self.tables[table];
        let count = page_rows(spec.dim, rows.moments.len());
        let by_server = spec.by_shard(&rows.ids, self.servers.len());
        let most = by_server.iter().map(|own| own.len().div_ceil(count)).max();
        for page in 0..most.unwrap_or(0) {
            let of_server = |own: &Vec<u32>| {
                let start = own.len().min(page * count);
                let positions = &own[start..own.len().min(start + count)];
                RowPage::of(table, &rows.gather(positions, spec.dim))
            };
            let pages: Vec<RowPage> = by_server.iter().map(of_server).collect();
            self.all::<_, Empty>(Method::LoadRows, pages)?;
        }
        Ok(())
    }

    /// Returns all rows of a table.
    fn save_rows(&self, table: usize) -> Result<TableRows, TrainError> {
        let TableSpec { id_type, dim, .. } = self.tables[table];
        let mut pages = Vec::new();
        let mut starts = vec![0; self.servers.len()];
        loop {
            let requests = starts.iter().map(|&start| SaveRowsRequest {
                table: table as u64,
                start,
            });
            let requests: Vec<SaveRowsRequest> = requests.collect();
            let answers: Vec<RowPage> = self.all(Method::SaveRows, requests)?;
            let mut is_last = true;
            for (server, answer) in answers.iter().enumerate() {
                let rows = answer.to_rows(id_type, dim);
                let rows = rows.ok_or_else(|| refused(server, "rows that are cut off"))?;
                starts[server] += rows.ids.len() as u64;
                is_last &= rows.ids.is_empty();
                pages.push(rows);
            }
            if is_last {
                return Ok(TableRows::join(id_type, &pages, dim));
            }
        }
    }

    /// Reads the buffers, which the first server holds.
    fn buffers(&self, bytes: &[u8]) -> Result<Vec<f32>, TrainError> {
        decode(bytes).ok_or_else(|| refused(0, "buffers that are cut off"))
    }
}

/// Returns the error of a server that sent something malformed.
fn refused(server: usize, what: &str) -> TrainError {
    let problem = format!("it sent {what}");
    TrainError::ServerRefused { server, problem }
}

impl ParameterServer for GrpcClient {
    fn pull(&self, worker: usize, step: u64) -> Result<Pulled, TrainError> {
        let mut calls = Calls::new();
        for (server, shard) in self.servers.iter().enumerate() {
            let grpc = shard.grpc.clone();
            let request = PullRequest {
                worker: worker as u64,
                step,
            };
            let allowed = async move {
                loop {
                    let reply: PullReply = call(grpc.clone(), Method::Pull, request).await?;
                    if reply.is_allowed {
                        return Ok(reply);
                    }
                }
            };
            calls.spawn_on(
                async move { (server, allowed.await) },
                self.runtime.handle(),
            );
        }
        let replies = self.wait(calls)?;
        let mut parameters = vec![0.0; self.num_parameters];
        for (server, reply) in replies.iter().enumerate() {
            self.scatter(server, &reply.parameters, &mut parameters)?;
        }
        let buffers = self.buffers(&replies[0].buffers)?;
        Ok(Pulled {
            parameters,
            buffers,
        })
    }

    fn pull_rows(&self, wanted: &[&Ids]) -> Result<Vec<Vec<f32>>, TrainError> {
        let tables = self.tables.iter().zip(wanted);
        let places: Vec<Vec<Vec<u32>>> = tables
            .map(|(spec, ids)| spec.by_shard(ids, self.servers.len()))
            .collect();
        let request = |server: usize| {
            let own = places.iter().zip(wanted);
            let own = own.map(|(by_server, ids)| RowIds::of(&ids.gather(&by_server[server])));
            PullRowsRequest {
                tables: own.collect(),
            }
        };
        let requests: Vec<PullRowsRequest> = (0..self.servers.len()).map(request).collect();
        let replies: Vec<PullRowsReply> = self.all(Method::PullRows, requests)?;
        let read = |(table, spec): (usize, &TableSpec)| {
            let dim = spec.dim;
            let mut rows = vec![0.0; wanted[table].len() * dim];
            for (server, reply) in replies.iter().enumerate() {
                let positions = &places[table][server];
                let own = reply.tables.get(table).and_then(|bytes| decode(bytes));
                let own = own.filter(|own| own.len() == positions.len() * dim);
                let own = own.ok_or_else(|| refused(server, "rows that are cut off"))?;
                for (row, &position) in own.chunks_exact(dim).zip(positions) {
                    let start = position as usize * dim;
                    rows[start..start + dim].copy_from_slice(row);
                }
            }
            Ok(rows)
        };
        self.tables.iter().enumerate().map(read).collect()
    }

    fn push(&self, pushed: Pushed<'_>) -> Result<(), TrainError> {
        assert_eq!(
            pushed.gradient.len(),
            self.num_parameters,
            "the gradient covers the whole model"
        );
        let tables = self.tables.iter().zip(pushed.rows);
        let mut rows: Vec<Vec<RowPush>> = vec![Vec::new(); self.servers.len()];
        for (spec, gradient) in tables {
            let places = spec.by_shard(&gradient.ids, self.servers.len());
            for (of_server, positions) in rows.iter_mut().zip(places) {
                let part = gradient.gather(&positions, spec.dim);
                of_server.push(RowPush::of(&part, self.format));
            }
        }
        let requests = self
            .servers
            .iter()
            .zip(rows)
            .enumerate()
            .map(|(server, (shard, rows))| PushRequest {
                worker: pushed.worker as u64,
                step: pushed.step,
                num_targets: pushed.num_targets,
                is_bf16: self.format == GradientFormat::Bf16,
                gradient: shard.gather(self.format, pushed.gradient),
                buffers: buffers_for(server, pushed.buffers),
                rows,
            });
        self.all::<_, Empty>(Method::Push, requests)?;
        Ok(())
    }

    fn fail(&self, worker: usize) {
        let request = FailRequest {
            worker: worker as u64,
        };
        let requests = vec![request; self.servers.len()];
        let told: Calls<Empty> = self.call_all(Method::Fail, requests);
        // A server that cannot be reached is lost; a worker that waits for it gets that error
        // instead.
        self.runtime.block_on(told.join_all());
    }

    fn state(&self) -> Result<ServerState, TrainError> {
        let requests = vec![Empty {}; self.servers.len()];
        let states: Vec<State> = self.all(Method::State, requests)?;
        let (first, num_moments) = (&states[0], states[0].moments.len());
        let mut state = ServerState {
            step: first.step,
            updates: first.updates,
            norm_sum: self.add_norms(&states),
            parameters: vec![0.0; self.num_parameters],
            buffers: self.buffers(&first.buffers)?,
            moments: vec![vec![0.0; self.num_parameters]; num_moments],
            tables: Vec::new(),
        };
        for (server, part) in states.iter().enumerate() {
            if (part.step, part.updates) != (first.step, first.updates)
                || part.moments.len() != num_moments
            {
                let problem = "its state belongs to another step than server 0's".to_owned();
                return Err(TrainError::ServerRefused { server, problem });
            }
            self.scatter(server, &part.parameters, &mut state.parameters)?;
            for (bytes, moment) in part.moments.iter().zip(&mut state.moments) {
                self.scatter(server, bytes, moment)?;
            }
        }
        for table in 0..self.tables.len() {
            state.tables.push(Arc::new(self.save_rows(table)?));
        }
        Ok(state)
    }
}

impl Shard {
    fn len(&self) -> usize {
        self.places.iter().map(ExactSizeIterator::len).sum()
    }

    /// Copies the shard's values out of a flat vector.
    fn gather(&self, format: GradientFormat, flat: &[f32]) -> Bytes {
        let mut all = Vec::new();
        for place in &self.places {
            format.encode(&flat[place.clone()], &mut all);
        }
        all.into()
    }
}

fn buffers_for(server: usize, buffers: &[f32]) -> Bytes {
    if server == 0 {
        encode(buffers)
    } else {
        Bytes::new()
    }
}

/// The HTTP/2 settings of a connection. The address is never used.
fn endpoint() -> Endpoint {
    Endpoint::from_static("http://graphflat")
        .http2_keep_alive_interval(LINK_BEAT)
        .keep_alive_timeout(LINK_SILENCE_MAX)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(2 * WINDOW_BYTES)
}

async fn call<Q, R>(mut grpc: Grpc<Channel>, method: Method, message: Q) -> Result<R, Status>
where
    Q: Message + 'static,
    R: Message + Default + 'static,
{
    let ready = grpc.ready().await;
    ready.map_err(|error| Status::from_error(error.into()))?;
    let path = PathAndQuery::from_static(method.path());
    let answer = grpc
        .unary(Request::new(message), path, ProstCodec::<Q, R>::default())
        .await?;
    Ok(answer.into_inner())
}
