//! The task of a graph with pairs: links between its nodes.

use gnn::Task;
use schemas::{Exclude, PairsMeta};

use super::Checks;
use crate::TrainError;
use crate::any_model::AnyArchitecture;
use crate::config::{Loss, NEGATIVES_MAX};
use crate::source::Source;

impl Checks<'_> {
    /// Returns the architecture of a model of links.
    pub(super) fn links(&self, pairs: &PairsMeta) -> Result<AnyArchitecture, TrainError> {
        let plan = &self.plan.result;
        self.pair_loss_fits(pairs)?;
        if let Some(weights) = &plan.class_weights {
            let problem = "its targets are pairs, which have no classes".to_owned();
            return Err(self.unfit("class_weights", weights, problem));
        }
        let hard = plan.links().hard;
        if hard > 0 && !pairs.negatives {
            let problem = "its pairs have no listed negatives (`input.pairs.negatives`)".to_owned();
            return Err(self.unfit("negatives.hard", hard, problem));
        }
        if plan.links.whole_parts == Some(true) && pairs.exclude == Exclude::Batch {
            let problem = "with `exclude = \"batch\"` each batch leaves out edges of its own; allowed \
                           is false";
            return Err(self.unfit("whole_parts", true, problem.to_owned()));
        }
        if plan.normalize_output == Some(true) {
            let problem =
                "its targets are pairs: `decoder = \"cosine\"` divides embeddings by their lengths";
            return Err(self.unfit("normalize_output", true, problem.to_owned()));
        }
        let task = Task::Links(plan.links().decoder);
        self.architecture_of(task, self.embedding_dim()?)
    }

    /// Checks that parts have random negatives that all pairs can have, and not too many of them.
    pub(super) fn all_negatives_fit(&self, source: &Source) -> Result<(), TrainError> {
        let plan = self.plan.result.links();
        if self.graph.pairs.is_none() || !plan.all || source.counts.is_empty() {
            return Ok(());
        }
        let part = source.part(source.key(0, None))?;
        let problem = match part.pairs().random.len() {
            0 => "its parts have no random negatives (`flatten.negatives_per_part`)".to_owned(),
            1..=NEGATIVES_MAX => return Ok(()),
            more => format!(
                "its parts have {more} random negatives (`flatten.negatives_per_part`), allowed \
                 are {NEGATIVES_MAX}"
            ),
        };
        Err(self.unfit("negatives.all", true, problem))
    }

    /// Returns the width of the embeddings: the last one in `hidden`.
    fn embedding_dim(&self) -> Result<usize, TrainError> {
        let (hidden, hops) = (&self.plan.result.hidden, self.hops);
        match hidden.last() {
            Some(&dim) if hidden.len() == hops => Ok(dim),
            _ => {
                let problem = format!(
                    "its neighbourhoods have {hops} hops and its targets are pairs, so it has \
                     {hops} widths, the last one that of the embeddings"
                );
                Err(self.unfit("hidden", hidden, problem))
            }
        }
    }

    fn pair_loss_fits(&self, pairs: &PairsMeta) -> Result<(), TrainError> {
        let loss = self.plan.result.loss.unwrap_or(Loss::Softmax);
        let names = Loss::of_pairs().map(Loss::name).join(", ");
        if loss.pair_kind().is_none() {
            let problem = format!("its targets are pairs, allowed are {names}");
            return Err(self.unfit("loss", loss.name(), problem));
        }
        if pairs.label && loss != Loss::BinaryCrossEntropy {
            let allowed = Loss::BinaryCrossEntropy.name();
            let problem = format!(
                "some of its pairs are no links (`input.pairs.label`), so allowed is {allowed}"
            );
            return Err(self.unfit("loss", loss.name(), problem));
        }
        Ok(())
    }

    /// Checks that no key of links is given for a graph without pairs.
    pub(super) fn link_keys_absent(&self) -> Result<(), TrainError> {
        match self.plan.result.links.first() {
            None => Ok(()),
            Some((key, value)) => Err(TrainError::Unfit {
                input: self.input.to_owned(),
                key,
                value,
                problem: "it has no pairs (`[input.pairs]`): leave the key out".to_owned(),
            }),
        }
    }
}
