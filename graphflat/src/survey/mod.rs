//! Surveys the input, and predicts from the survey the output of flatten. The survey checks every
//! value and counts degrees; nothing is shuffled.

mod edge;
mod graph;
mod id_index;
mod kept;
mod nearby;
mod predict;
mod probe;
mod read;
mod spread;

pub use graph::{GraphSurvey, RelationSurvey};
pub use predict::{Prediction, predict};
pub use read::Survey;
