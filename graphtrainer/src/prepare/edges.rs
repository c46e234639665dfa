//! Which columns of the edges a model reads.

use gnn::typed::TypedKind;
use schemas::RelationMeta;

use super::Checks;
use crate::TrainError;
use crate::batch::EdgeColumns;

impl Checks<'_> {
    /// Returns the columns that the model reads, by relation.
    pub(super) fn edge_columns(&self) -> Result<Vec<EdgeColumns>, TrainError> {
        self.weights_exist()?;
        self.features_exist()?;
        let plan = &self.plan.result;
        let takes_weights = plan.layer.takes_edge_weights() && plan.edge_weight != Some(false);
        let takes_features = plan.layer.takes_edge_features() && plan.edge_features != Some(false);
        let columns = |relation: &RelationMeta| EdgeColumns {
            weight: relation.edge_weight && takes_weights,
            dim: relation.edge_feature_dim.filter(|_| takes_features),
        };
        Ok(self.graph.relations.iter().map(columns).collect())
    }

    /// Checks that a plan that asks for edge weights gets them.
    fn weights_exist(&self) -> Result<(), TrainError> {
        let plan = &self.plan.result;
        if plan.edge_weight != Some(true) {
            return Ok(());
        }
        let mut relations = self.graph.relations.iter();
        let problem = if !plan.layer.takes_edge_weights() {
            let names = TypedKind::names_of(TypedKind::takes_edge_weights);
            format!("only {names} use edge weights")
        } else if !relations.any(|relation| relation.edge_weight) {
            format!("its edges have no weights (`{}`)", self.edge_key("weight"))
        } else {
            return Ok(());
        };
        Err(self.unfit("edge_weight", true, problem))
    }

    /// Checks that a plan that asks for edge features gets them, and that their width is known.
    fn features_exist(&self) -> Result<(), TrainError> {
        let plan = &self.plan.result;
        let takes = plan.layer.takes_edge_features();
        let widths = || self.graph.relations.iter().map(|of| of.edge_feature_dim);
        if takes && plan.edge_features != Some(false) && widths().any(|dim| dim == Some(0)) {
            let problem = match self.graph.is_typed() {
                true => {
                    "without edges the width of the lists of `input.edges.RELATION.features` is \
                     not known; `train.edge_features` = false does not read them"
                }
                false => {
                    "without edges the width of the lists of `input.edges.features` is not known; \
                     `train.edge_features` = false does not read them"
                }
            };
            return Err(self.untrainable(problem));
        }
        if plan.edge_features != Some(true) {
            return Ok(());
        }
        let exist = widths().any(|dim| dim.is_some());
        let problem = if !exist {
            format!(
                "its edges have no features (`{}`)",
                self.edge_key("features")
            )
        } else if !takes {
            let names = TypedKind::names_of(TypedKind::takes_edge_features);
            format!("only {names} take edge features")
        } else {
            return Ok(());
        };
        Err(self.unfit("edge_features", true, problem))
    }

    /// Returns the key of a job file that names a column of edges.
    fn edge_key(&self, column: &str) -> String {
        match self.graph.is_typed() {
            true => format!("input.edges.RELATION.{column}"),
            false => format!("input.edges.{column}"),
        }
    }
}
