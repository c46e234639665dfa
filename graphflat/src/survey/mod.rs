//! Surveys the input, and predicts from the survey the output of flatten. The survey checks every
//! value and counts degrees; nothing is shuffled.

mod edge;
mod graphs;
mod id_index;
mod kept;
mod nearby;
mod pairs;
mod predict;
mod probe;
mod read;
mod relation;
mod spread;
mod types;
mod walks;

pub use pairs::PairSurvey;
pub use predict::{BatchUnion, Prediction, predict};
pub use read::Survey;
pub use relation::RelationSurvey;
pub use types::TypeSurvey;
