//! A training in several processes of a job, on one machine or on many.
//!
//! Roles follow from the numbers alone. Each process has a range of the `workers` workers, and
//! shard s of the parameter server is in process s mod P. Process 0 is the *leader* ([`Leader`]):
//! it alone reads the checkpoint, decides when to stop and writes the output. The other
//! processes are *followers* ([`follow`]). The leader sends commands to each follower and receives
//! reports, as lines of JSON on one connection ([`Command`], [`Report`]). Parameters and gradients
//! pass between workers and shards over gRPC, on connections of their own. All processes evaluate a
//! model ([`Team`]), unless it has learnable rows: these are with the leader. The cluster makes and
//! authenticates all connections, so no port is opened here.
//!
//! A worker that fails releases the workers that wait for it, through the servers, and its process
//! reports the failure. A process that cannot prepare its workers or evaluate its share reports that
//! too. The leader then
//! removes the output of a training that would fail again, and sends [`Command::Stop`]. Every
//! process returns an error: the process that failed its own, the others one for which
//! [`TrainError::is_peer_failure`] is true. The watch of the cluster notices a lost process.

mod evaluation;
mod follower;
mod leader;

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use cluster::Cluster;
use schemas::{Manifest, Split, error_chain};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::exact;
use crate::server::{GradientFormat, GrpcClient, GrpcServer, Link, TableSpec, TensorSpec};
use crate::worker::EpochShare;
use crate::{TrainError, TrainPlan};

pub(crate) use evaluation::Team;
pub(crate) use follower::follow;
pub(crate) use leader::{Leader, LedTraining};

/// Largest number of shards: each has connections of its own.
const SERVERS_MAX: usize = 64;

/// A command from the leader to a follower.
#[derive(Debug, Serialize, Deserialize)]
enum Command {
    /// Compare these graph features and this training with your own.
    Compare {
        read: serde_json::Value,
        fingerprint: String,
    },
    /// The output is open: prepare your workers.
    Prepare,
    /// Start shards and workers at this epoch and step.
    Begin { epoch: u64, done_steps: usize },
    /// All processes are now in this epoch, counted from 0.
    Epoch(u64),
    /// Make a worker run some steps.
    Steps {
        worker: usize,
        epoch: u64,
        steps: Range<usize>,
        share: EpochShare,
    },
    /// Compute your share of an evaluation, and gather the shares of all processes.
    Evaluate(EvaluateCommand),
    /// The output is finished.
    Done(Box<Manifest>),
    /// The training has failed.
    Stop,
}

/// What a follower evaluates.
#[derive(Debug, Serialize, Deserialize)]
struct EvaluateCommand {
    split: Split,
    /// Whether classes are counted by predicted class.
    with_confusion: bool,
    #[serde(with = "exact")]
    parameters: Vec<f32>,
    #[serde(with = "exact")]
    buffers: Vec<f32>,
}

/// A report from a follower to the leader.
#[derive(Debug, Serialize, Deserialize)]
enum Report {
    /// The follower reads the same graph features and would train the same model.
    Same,
    /// The follower has prepared its workers.
    Ready,
    /// The follower could not prepare its workers.
    Unready(Failure),
    /// A worker has run its steps; `busy_ns` are the busy times of the stages of its process since
    /// the last report.
    Ran {
        worker: usize,
        share: EpochShare,
        busy_ns: [u64; 3],
    },
    /// A worker failed.
    Failed { worker: usize, failure: Failure },
}

/// An error that a follower sends to the leader.
#[derive(Debug, Serialize, Deserialize)]
enum Failure {
    /// Another worker failed.
    Peer(usize),
    /// A shard of the parameter server is gone.
    Server { server: usize, how: String },
    /// Any other error.
    Other {
        text: String,
        is_bound_to_repeat: bool,
    },
}

impl Failure {
    fn of(error: &TrainError) -> Self {
        match error {
            TrainError::PeerFailed { worker } => Self::Peer(*worker),
            TrainError::ServerLost { server, how } => Self::Server {
                server: *server,
                how: how.clone(),
            },
            other => Self::Other {
                text: error_chain(other),
                is_bound_to_repeat: other.is_bound_to_repeat(),
            },
        }
    }

    /// Returns the leader's error for a failure in another process.
    fn into_error(self, process: usize) -> TrainError {
        match self {
            Self::Peer(worker) => TrainError::PeerFailed { worker },
            Self::Server { server, how } => TrainError::ServerLost { server, how },
            Self::Other {
                text: how,
                is_bound_to_repeat,
            } => TrainError::PeerEnded {
                process,
                how,
                is_bound_to_repeat,
            },
        }
    }
}

/// Returns the process of a worker: each process has a range of workers, as even as possible.
fn process_of(worker: usize, num_workers: usize, num_processes: usize) -> usize {
    worker * num_processes / num_workers
}

impl TrainPlan {
    /// Checks that several processes of a job can run the plan.
    ///
    /// # Errors
    ///
    /// [`TrainError::Key`] names the first key that does not fit.
    pub fn check_processes(&self) -> Result<(), TrainError> {
        let (result, tuning) = (&self.result, &self.tuning);
        if result.streamed {
            let allowed = "streamed training runs in one process, several processes train on the \
                           output of [flatten]: leave it out, or run in one process";
            return Err(TrainError::of_key("streamed", true, allowed));
        }
        if tuning.servers > SERVERS_MAX {
            let allowed = format!("in several processes allowed is 1 to {SERVERS_MAX}");
            return Err(TrainError::of_key("servers", tuning.servers, allowed));
        }
        if let Some(norm) = result.optimizer.clip_norm.filter(|_| tuning.servers > 1) {
            let allowed = "with several processes, gradients can be clipped only if \
                           `train.servers` is 1";
            return Err(TrainError::of_key("clip_norm", norm, allowed));
        }
        Ok(())
    }
}

/// All connections of a process for its training.
struct Connections {
    /// Of the leader: to all followers. Of a follower: to the leader.
    control: Vec<Control>,
    /// To each shard of the parameter server.
    to_shards: Vec<Link>,
    /// To each shard of this process, from every process.
    own_shards: Vec<Vec<Link>>,
}

impl Connections {
    /// Connects to all other processes. Every process makes the same connections, whether or not
    /// there is anything to train, so that all processes count them alike.
    fn make(plan: &TrainPlan, cluster: &Cluster) -> Result<Self, TrainError> {
        let failed = |source| TrainError::Process {
            action: "connect the processes of the training",
            source,
        };
        let (me, num_processes) = (cluster.process(), cluster.num_processes());
        let mut control = Vec::new();
        for (process, socket) in cluster.connect()?.into_iter().enumerate() {
            if let Some(socket) = socket.filter(|_| me == 0 || process == 0) {
                control.push(Control::new(process, socket).map_err(failed)?);
            }
        }
        let num_shards = plan.tuning.servers;
        let (mut to_shards, mut own_shards) = (Vec::new(), Vec::new());
        for first_shard in (0..num_shards).step_by(num_processes) {
            // Of each pair of processes, the lower one is the client on `ahead` and the server on
            // `back`.
            let ahead = cluster.connect()?;
            let back = cluster.connect()?;
            let mut clients = Vec::new();
            for (process, sockets) in ahead.into_iter().zip(back).enumerate() {
                let (to_server, to_client) = match sockets {
                    (Some(one), Some(other)) if me < process => (one.into(), other.into()),
                    (Some(one), Some(other)) => (other.into(), one.into()),
                    _ => Link::pair(),
                };
                clients.push(to_client);
                // In the last round some processes have no shard.
                if first_shard + process < num_shards {
                    to_shards.push(to_server);
                }
            }
            if first_shard + me < num_shards {
                own_shards.push(clients);
            }
        }
        Ok(Self {
            control,
            to_shards,
            own_shards,
        })
    }

    /// Starts the shards of this process.
    fn serve(&mut self) -> Result<Vec<GrpcServer>, TrainError> {
        let own = std::mem::take(&mut self.own_shards).into_iter();
        own.map(GrpcServer::serve).collect()
    }

    /// Makes a client of all shards.
    fn client(
        &mut self,
        (tensors, tables): (&[TensorSpec], &[TableSpec]),
        format: GradientFormat,
    ) -> Result<GrpcClient, TrainError> {
        let links = std::mem::take(&mut self.to_shards);
        Ok(GrpcClient::over(links, tensors, format)?.with_tables(tables))
    }
}

/// A connection between the leader and a follower, with one JSON object per line.
struct Control {
    /// The process at the other end.
    process: usize,
    lines: BufReader<TcpStream>,
    sender: LineSender,
}

/// The sending half of a [`Control`].
struct LineSender {
    /// Locked while a line is written, so that lines do not mix.
    socket: Mutex<TcpStream>,
    /// The same socket, to end reads of the other half.
    reading: TcpStream,
}

impl Control {
    fn new(process: usize, socket: TcpStream) -> io::Result<Self> {
        Ok(Self {
            process,
            lines: BufReader::new(socket.try_clone()?),
            sender: LineSender {
                reading: socket.try_clone()?,
                socket: Mutex::new(socket),
            },
        })
    }

    /// Waits for the next line from the other end.
    fn receive<T: DeserializeOwned>(&mut self) -> Result<T, TrainError> {
        receive(self.process, &mut self.lines)
    }
}

/// Waits for the next line from a process.
fn receive<T: DeserializeOwned>(
    process: usize,
    lines: &mut BufReader<TcpStream>,
) -> Result<T, TrainError> {
    let ended = |how: String| TrainError::PeerEnded {
        process,
        how,
        is_bound_to_repeat: false,
    };
    let mut line = String::new();
    match lines.read_line(&mut line) {
        Ok(0) => Err(ended("its connection is closed".to_owned())),
        Ok(_) => serde_json::from_str(&line)
            .map_err(|error| ended(format!("its line cannot be read ({error})"))),
        Err(error) => Err(ended(error.to_string())),
    }
}

impl LineSender {
    /// Writes a line. Errors are ignored: the reader of the connection notices a lost process.
    fn send(&self, line: &impl Serialize) {
        let mut text = serde_json::to_string(line).expect("a line has string keys only");
        text.push('\n');
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket.write_all(text.as_bytes()).ok();
    }

    /// Ends reads of the other half; lines can still be sent.
    fn stop_reading(&self) {
        self.reading.shutdown(Shutdown::Read).ok();
    }
}

/// Ends the reads of some connections when it is dropped, so that the threads that read end.
struct StopReading<'a>(Vec<&'a LineSender>);

impl Drop for StopReading<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|sender| sender.stop_reading());
    }
}

#[cfg(test)]
mod tests;
