//! Inference of graphs with node types and relations.
//!
//! Round 0 projects the features of each type to one common width. Round l runs layer l on the
//! nodes of each type that the output, or a later layer, reads. A round's rows of all types are in
//! one file, in the order of node numbers: a type is a range of rows. Beside it are the files of
//! the matrices that the next layer aggregates, such as one for each relation.
//!
//! Of several processes, each computes the rows of the nodes that it owns. Behind its own rows of a
//! type are the rows of the type that its nodes read and other processes compute.

mod fit;
mod graph;
mod halo;
mod hubs;
mod infer;
mod last_round;
mod layer;
mod need;
mod reads;
mod round;
mod rounding;
mod written;

pub(crate) use infer::{TypedSettings, check_typed_model, infer};
pub(crate) use need::{NeededTypes, Wanted};
pub(crate) use written::WrittenColumns;
