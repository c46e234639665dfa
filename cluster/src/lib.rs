//! Workers in the threads of one or several processes: how they meet, how one notices that another
//! is gone, and how they exchange values.
//!
//! [`run_workers`] runs a function on each worker of a [`Cluster`]; a [`Peer`] is one worker's view
//! of the others, with which it shuffles messages. [`gather_processes`] exchanges one value a
//! process, [`copy_files`] copies files.
//!
//! Every process listens on its own address and dials those before it in the list. A pair first
//! makes one connection on which they watch each other (`watch`), and then one for each timely
//! dataflow, and those that a caller asks for. Each of them begins with a `handshake`.
//!
//! # Examples
//!
//! Four workers send each other their squares, and each adds up what came.
//!
//! ```
//! use cluster::{Cluster, ClusterError, run_workers};
//!
//! let sums = run_workers::<_, ClusterError>(&Cluster::of_threads(4), |peer| {
//!     let square = peer.index() * peer.index();
//!     let outgoing = (0..peer.peers()).map(|to| Ok((to, square)));
//!     let received = peer.shuffle::<usize, ClusterError>(outgoing)?;
//!     Ok(received.into_iter().map(|(_, square)| square).sum::<usize>())
//! })?;
//! assert_eq!(sums, [14; 4]);
//! # Ok::<(), ClusterError>(())
//! ```

mod arrivals;
mod cluster;
mod error;
mod files;
mod gather;
mod handshake;
mod hosts;
mod mesh;
mod output;
mod plan;
mod session;
mod shuffle;
mod strangers;
mod timed;
mod watch;

pub use cluster::{Cluster, REASON_MAX, is_connection};
pub use error::{ClusterError, WorkerError};
pub use files::copy_files;
pub use gather::{gather_processes, gather_to_first};
pub use handshake::Secret;
pub use hosts::read_hosts;
pub use output::open_output;
pub use plan::{ClusterPlan, End, OnEnd};
pub use shuffle::{Message, Peer, run_workers};
pub use watch::SILENCE_MAX;
