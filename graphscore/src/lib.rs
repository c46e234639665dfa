//! Scores the pairs of nodes that embeddings describe, with the decoder of their model.
//!
//! [`score`] runs a whole `[score]` stage on the output of inference: the best items of each query,
//! the scores of listed pairs, and the ranks of val and test pairs among all items. The embeddings
//! of both ends are read part by part. Queries are multiplied with items in blocks that stay in the
//! cache, and only the best scores are kept, so that memory does not grow with queries times items.
//!
//! Parts of the output are a function of the plan. The best items of a query are exact, and of
//! items with equal scores those with lower ids are taken. So threads, processes and kills change
//! no byte.

#![expect(
    clippy::shadow_unrelated,
    reason = "inner loops name an element like the list it comes from"
)]

mod best;
mod config;
mod error;
mod evaluate;
mod known;
mod listed;
mod model;
mod plan;
mod rows;
mod score;

pub use config::{ScoreSpec, TOP_K_MAX};
pub use error::ScoreError;
pub use evaluate::RankingFile;
pub use plan::{ScoreContext, ScorePlan};
pub use score::{RANKING_JSON, score};
