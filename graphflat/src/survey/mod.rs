//! A survey of the input: every value is checked, degrees are counted, nothing is shuffled; and what
//! flattening will write, predicted from it.

mod edge;
mod id_index;
mod kept;
mod nearby;
mod predict;
mod probe;
mod read;
mod spread;

pub use predict::{Prediction, predict};
pub use read::Survey;
