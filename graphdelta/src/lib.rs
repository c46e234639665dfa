//! Changes of a graph: what a night's changes reach, per hop and per layer.
//!
//! [`Changes`] are read from tables, [`Numbers`] numbers their nodes, and [`reach`] finds
//! the samples that differ and the nodes whose neighbourhoods or rows may differ. It reads the
//! in-edges of changed nodes and the out-edges of reached ones, not the whole graph. An [`Overlay`]
//! holds all that changes have made of the store; the next changes start from it.
//!
//! `docs/decisions/versions.md` says how versions of outputs are made of this.

mod after;
mod changes;
mod compaction;
mod error;
mod fetch;
mod in_edges;
mod input;
mod kept;
mod numbers;
mod out_edges;
mod overlay;
mod parent;
mod processes;
mod reach;
mod rebuilt;
mod replaced;
mod snapshot;
mod trace;
mod walk;
mod walked;
mod whole_tables;
mod work;

pub use after::After;
pub use changes::{Changes, LabelsOf, OfStore};
pub use compaction::Compaction;
pub use error::DeltaError;
pub use fetch::fetch_kept;
pub use in_edges::KeptEdges;
pub use input::{NewTables, Reached, SharedReach, VersionInput};
pub use kept::{KeptVersions, NoRows, ParentGraph, VersionRecord, find_kept, link, write_nodes};
pub use numbers::{Night, Numbers, check_graph};
pub use out_edges::OutEdges;
pub use overlay::Overlay;
pub use parent::{Parent, named_parent};
pub use processes::{finish_version, finished_version, is_own_part, join_parts};
pub use reach::{ChangedInEdges, Degrees, Reach, ReachPlan, reach};
pub use rebuilt::{Base, KeptGraph, NewStore, RebuildPlan};
pub use replaced::{GoneRow, KeptRowsOf, Replaced};
pub use snapshot::Snapshot;
pub use whole_tables::WholeTables;
pub use work::Work;
