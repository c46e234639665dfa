//! A training in several processes of a job, on one machine or on many.
//!
//! Roles follow from the numbers alone. Of `workers` workers, each process has a run of neighbours, and
//! shard s of the parameter server lies in process s mod P. Process 0 leads: it alone reads the
//! checkpoint, evaluates, decides when to stop and writes the output ([`Team`]). The others do as it
//! says ([`follow`]), in lines of JSON on one connection each (`Told`, `Said`); parameters and gradients
//! cross between workers and shards over gRPC, on connections of their own. Whoever made these
//! connections has proved both ends, so no port is opened here.
//!
//! A worker that fails frees those that wait for it, through the servers, and its process says so, as one
//! does that cannot prepare for its workers. The first one then leaves no trace of a training that would fail again, tells all to stop, and every
//! process returns: the one where it failed its own error, the others one of which
//! [`TrainError::is_peer_failure`] is true. That a process is lost is noticed by whoever made the
//! connections.

mod first;
mod other;

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpStream};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use schemas::Manifest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::config::{Launch, key};
use crate::process::Failure;
use crate::server::{Credentials, GradientFormat, GrpcClient, GrpcServer, Link, TensorSpec};
use crate::worker::EpochShare;
use crate::{TrainError, TrainPlan};

pub(crate) use first::{Team, TeamPlan};
pub(crate) use other::follow;

/// Shards at most: each has connections of its own.
const SERVERS_MAX: usize = 64;

/// This process among those that train a model together.
#[derive(Clone, Copy)]
pub struct Peers<'a> {
    /// Its number; the first one leads.
    pub process: usize,
    /// How many there are.
    pub num_processes: usize,
    /// Makes one more connection to each other process, in their order; none stands for this one. All
    /// processes call it as often, and each time for the same.
    pub connect: &'a dyn Fn() -> io::Result<Vec<Option<TcpStream>>>,
    /// Hears what this process is at, for those who miss it.
    pub set_phase: &'a (dyn Fn(&str) + Sync),
}

impl std::fmt::Debug for Peers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers")
            .field("process", &self.process)
            .field("num_processes", &self.num_processes)
            .finish_non_exhaustive()
    }
}

/// What the first process tells the others.
#[derive(Debug, Serialize, Deserialize)]
enum Told {
    /// Which graph features it reads, and what it trains.
    Input {
        read: serde_json::Value,
        fingerprint: String,
    },
    /// The output is open: there is something to prepare for.
    Open,
    /// Training begins.
    Begin {
        credentials: Credentials,
        epoch: u64,
        done_steps: usize,
    },
    /// The epoch, counted from 0, that all are at from now on.
    Epoch(u64),
    /// A worker has to run some steps.
    Steps {
        worker: usize,
        epoch: u64,
        steps: Range<usize>,
        share: Bits,
    },
    /// The output is finished.
    Done(Box<Manifest>),
    /// The training has failed.
    Stop,
}

/// What another process says to the first.
#[derive(Debug, Serialize, Deserialize)]
enum Said {
    /// It reads the same, and would train the same.
    Same,
    /// It has prepared what its workers need.
    Ready,
    /// It could not.
    Unready(Failure),
    /// A worker has run its steps; what the stages of the process were busy since.
    Ran {
        worker: usize,
        share: Bits,
        busy_ns: [u64; 3],
    },
    /// A worker failed.
    Failed { worker: usize, failure: Failure },
}

/// An [`EpochShare`], its floats as bits.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Bits {
    loss_sum: u64,
    count: u64,
}

impl From<EpochShare> for Bits {
    fn from(share: EpochShare) -> Self {
        Self {
            loss_sum: share.loss_sum.to_bits(),
            count: share.count.to_bits(),
        }
    }
}

impl From<Bits> for EpochShare {
    fn from(bits: Bits) -> Self {
        Self {
            loss_sum: f64::from_bits(bits.loss_sum),
            count: f64::from_bits(bits.count),
        }
    }
}

/// Which process has a worker: runs of neighbours, as even as can be.
fn process_of(worker: usize, num_workers: usize, num_processes: usize) -> usize {
    worker * num_processes / num_workers
}

impl TrainPlan {
    /// Checks what several processes of a job cannot do with it.
    ///
    /// # Errors
    ///
    /// [`TrainError::Key`] names the first key that does not fit.
    pub fn check_processes(&self) -> Result<(), TrainError> {
        let (result, tuning) = (&self.result, &self.tuning);
        if result.streamed {
            let allowed = "what is drawn from the store is drawn in one process; several train on \
                           what [flatten] has written: leave it out, or run in one process";
            return Err(key("streamed", true, allowed));
        }
        if tuning.launch == Launch::Processes {
            let allowed = "in several processes of a job the workers of each are threads of it: \
                           leave it out, or run in one process";
            return Err(key("launch", "\"processes\"", allowed));
        }
        if tuning.servers > SERVERS_MAX {
            let allowed = format!("in several processes allowed is 1 to {SERVERS_MAX}");
            return Err(key("servers", tuning.servers, allowed));
        }
        if let Some(norm) = result.optimizer.clip_norm.filter(|_| tuning.servers > 1) {
            let allowed = "servers in several processes know the norm of the whole gradient only \
                           where `servers` is 1";
            return Err(key("clip_norm", norm, allowed));
        }
        Ok(())
    }
}

/// All connections of a process to the others of its training.
struct Connections {
    /// To all others, or from another one to the first.
    control: Vec<Control>,
    /// To each shard of the parameter server.
    to_shards: Vec<Link>,
    /// To each shard that is held here, from every process.
    own_shards: Vec<Vec<Link>>,
}

impl Connections {
    /// Connects to all others. Each has to come to it, whether or not there will be anything to train,
    /// so that all of them count their connections alike.
    fn make(plan: &TrainPlan, peers: &Peers<'_>) -> Result<Self, TrainError> {
        let failed = |source| TrainError::Process {
            action: "connect the processes of the training",
            source,
        };
        let (me, num_processes) = (peers.process, peers.num_processes);
        let mut control = Vec::new();
        for (process, socket) in (peers.connect)().map_err(failed)?.into_iter().enumerate() {
            if let Some(socket) = socket.filter(|_| me == 0 || process == 0) {
                control.push(Control::new(process, socket).map_err(failed)?);
            }
        }
        let num_shards = plan.tuning.servers;
        let (mut to_shards, mut own_shards) = (Vec::new(), Vec::new());
        for first_shard in (0..num_shards).step_by(num_processes) {
            // Of each pair of processes, the first one is the client on one of them and the server
            // on the other.
            let ahead = (peers.connect)().map_err(failed)?;
            let back = (peers.connect)().map_err(failed)?;
            let mut clients = Vec::new();
            for (process, sockets) in ahead.into_iter().zip(back).enumerate() {
                let (to_server, to_client) = match sockets {
                    (Some(one), Some(other)) if me < process => (one.into(), other.into()),
                    (Some(one), Some(other)) => (other.into(), one.into()),
                    _ => Link::pair(),
                };
                clients.push(to_client);
                // In the last round some processes hold none.
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

    /// Starts the shards that are held here.
    fn serve(&mut self, credentials: &Credentials) -> Result<Vec<GrpcServer>, TrainError> {
        let own = std::mem::take(&mut self.own_shards).into_iter();
        own.map(|links| GrpcServer::serve(links, credentials.clone()))
            .collect()
    }

    /// Prepares to speak to all shards.
    fn client(
        &mut self,
        tensors: &[TensorSpec],
        credentials: Credentials,
        format: GradientFormat,
    ) -> Result<GrpcClient, TrainError> {
        let links = std::mem::take(&mut self.to_shards);
        GrpcClient::over(links, tensors, credentials, format)
    }
}

/// A connection on which processes tell each other what to do, a JSON object a line.
struct Control {
    /// The other one.
    process: usize,
    lines: BufReader<TcpStream>,
    speech: Speech,
}

/// Its end for speaking.
struct Speech {
    /// Held while a line is written, so that each crosses whole.
    socket: Mutex<TcpStream>,
    hang_up: TcpStream,
}

impl Control {
    fn new(process: usize, socket: TcpStream) -> io::Result<Self> {
        Ok(Self {
            process,
            lines: BufReader::new(socket.try_clone()?),
            speech: Speech {
                hang_up: socket.try_clone()?,
                socket: Mutex::new(socket),
            },
        })
    }

    /// Waits for what the other one says.
    fn hear<T: DeserializeOwned>(&mut self) -> Result<T, TrainError> {
        hear(self.process, &mut self.lines)
    }
}

/// Reads the next line of a process.
fn hear<T: DeserializeOwned>(
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
            .map_err(|error| ended(format!("what it says cannot be read ({error})"))),
        Err(error) => Err(ended(error.to_string())),
    }
}

impl Speech {
    /// Writes a line. One that cannot hear is lost, which is noticed when it is listened to.
    fn tell(&self, word: &impl Serialize) {
        let mut line = serde_json::to_string(word).expect("a word has string keys only");
        line.push('\n');
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        socket.write_all(line.as_bytes()).ok();
    }

    /// Ends the listening to the other one; it can still be told something.
    fn close_ear(&self) {
        self.hang_up.shutdown(Shutdown::Read).ok();
    }
}

/// Ends listening when it is dropped, so that the threads that listen end.
struct Listening<'a>(Vec<&'a Speech>);

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|speech| speech.close_ear());
    }
}

#[cfg(test)]
mod tests;
