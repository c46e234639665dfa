//! What can be told before any work: the splits, the labels, the directories.

use std::collections::HashMap;

use graphflat::{FlattenError, Targets};
use graphtrainer::{TrainPlan, TrainSpec};
use rayon::iter::{IntoParallelRefIterator as _, ParallelIterator as _};
use schemas::dataset::refuse_foreign;
use schemas::{GraphMeta, IdListPlan, Ids, LabelKind, LabelMeta, SchemaError, Split, Unit};

use crate::check::taken::is_done;
use crate::cli::Stage;
use crate::error::JobError;
use crate::job::Job;

/// Refuses a job that would fail after hours on what can be seen in seconds.
///
/// # Errors
///
/// An output of something else, a missing model, an empty split, a target without a label.
pub(crate) fn preflight(job: &Job) -> Result<(), JobError> {
    for &stage in &job.selected {
        refuse_foreign(job.output(stage).expect("a selected stage has a plan"))?;
    }
    if job.runs(Stage::Infer) {
        job.infer_need()?;
    }
    // A model of this plan that is there already needs no GPU.
    if let Some(plan) = job.train.as_ref().filter(|_| job.runs(Stage::Train))
        && !is_done(job, Stage::Train)
    {
        plan.check_device()?;
    }
    match &job.own_training {
        Some(train) if job.runs(Stage::Train) => splits_and_labels(job, train),
        _ => Ok(()),
    }
}

/// Checks that the parameter servers of several processes can hold the model of a training.
///
/// Labels add to its width; they were not read yet, so the narrowest are assumed.
///
/// # Errors
///
/// Names the key if there have to be more servers.
pub(crate) fn servers(job: &Job, plan: &TrainPlan) -> Result<(), JobError> {
    let narrowest = LabelMeta {
        data_type: String::new(),
        kind: LabelKind::Number,
    };
    let graph = GraphMeta {
        id_type: job.nodes.id_type(),
        features: job.nodes.feature_meta(),
        label: Some(narrowest),
        split: job.nodes.split_meta(),
        edge_weight: job.edges.has_weight(),
        edge_feature_dim: job.edges.feature_dim(),
        self_loops: false,
    };
    let hops = job.sample().map_or(0, |sample| sample.fanouts().len());
    Ok(plan.check_servers(&graph, hops)?)
}

/// Checks that training has what it needs of the targets: a split that is not empty, labels.
fn splits_and_labels(job: &Job, train: &TrainSpec) -> Result<(), JobError> {
    let listed = match job.targets() {
        Some(Targets::Listed(_)) => Some(Listed::read(job)?),
        _ => None,
    };
    let units: Vec<Result<[usize; 2], JobError>> = job
        .nodes
        .units()
        .par_iter()
        .map(|unit| count_splits(job, unit, listed.as_ref()))
        .collect();
    let (mut num_train, mut num_val) = (0, 0);
    for unit in units {
        let [in_train, in_val] = unit?;
        num_train += in_train;
        num_val += in_val;
    }
    let missing = if num_train == 0 {
        Some(("train", "there has to be something to train on"))
    } else if num_val == 0 && train.patience.is_some() {
        Some(("val", "`train.patience` waits for a better metric on it"))
    } else if num_val == 0 && train.monitor.is_some() {
        Some(("val", "`train.monitor` is a metric on it"))
    } else {
        None
    };
    let Some((split, reason)) = missing else {
        return Ok(());
    };
    let spec = job.nodes.spec();
    let source = match spec.split_column() {
        Some(column) => format!("column `{column}` of {} puts", spec.path),
        None => "the shares put".to_owned(),
    };
    Err(JobError::Input {
        key: "input.nodes.split",
        problem: format!("{source} no target into `{split}`, but {reason}"),
    })
}

/// Targets of a unit in the train and in the val split; each in any split has a label.
fn count_splits(job: &Job, unit: &Unit, listed: Option<&Listed>) -> Result<[usize; 2], JobError> {
    let rows = job.nodes.read_splits(unit)?;
    let ids = match listed {
        Some(_) => Some(job.nodes.read_keys(unit)?.ids),
        None => None,
    };
    let mut counts = [0, 0];
    for (row, &split) in rows.split.iter().enumerate() {
        let is_target = match (job.targets(), listed, &ids) {
            (Some(Targets::Train), ..) => split == Split::Train,
            (_, Some(listed), Some(ids)) => listed.contains(ids, row),
            _ => true,
        };
        if !is_target || split == Split::None {
            continue;
        }
        if !rows.has_label[row] {
            let (path, row_there) = job.nodes.locate(unit.first_row + row as u64);
            let unlabelled = SchemaError::Value {
                path,
                column: job.nodes.spec().label.clone().unwrap_or_default(),
                row: row_there,
                problem: format!(
                    "holds no label, but the node is a target in split `{}`",
                    split.as_str()
                ),
            };
            return Err(unlabelled.into());
        }
        counts[0] += usize::from(split == Split::Train);
        counts[1] += usize::from(split == Split::Val);
    }
    Ok(counts)
}

/// A list of targets, to be asked for ids.
struct Listed {
    ids: Ids,
    /// Position of each id's hash.
    places: HashMap<u64, usize>,
}

impl Listed {
    fn read(job: &Job) -> Result<Listed, JobError> {
        let ids = match job.target_list()? {
            Some(list) => list.read()?,
            None => Ids::new(job.nodes.id_type()),
        };
        if let (true, Some(targets)) = (ids.is_empty(), job.targets()) {
            let reason = targets.why_none().to_owned();
            return Err(FlattenError::NoTargets { reason }.into());
        }
        let places = (0..ids.len()).map(|at| (ids.hash(at), at)).collect();
        Ok(Listed { ids, places })
    }

    fn contains(&self, ids: &Ids, at: usize) -> bool {
        let place = self.places.get(&ids.hash(at));
        place.is_some_and(|&place| self.ids.equal(place, ids, at))
    }
}

impl Job {
    /// Which nodes get a neighbourhood, where the job says it.
    fn targets(&self) -> Option<&Targets> {
        self.sample().map(|sample| sample.targets())
    }

    /// The list of targets, where the job names one.
    pub(crate) fn target_list(&self) -> Result<Option<IdListPlan>, SchemaError> {
        let Some(Targets::Listed(path)) = self.targets() else {
            return Ok(None);
        };
        let (column, id_type) = (&self.nodes.spec().id, self.nodes.id_type());
        IdListPlan::open("flatten.targets", path, column, id_type).map(Some)
    }
}
