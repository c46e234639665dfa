//! Checks that targets have the splits, labels and nodes that training and inference need.

use std::collections::HashMap;

use graphflat::{FlattenError, Targets};
use graphtrainer::TrainSpec;
use rayon::iter::{IntoParallelRefIterator as _, ParallelIterator as _};
use schemas::{IdListPlan, Ids, LabelMeta, SchemaError, Split, Unit};

use crate::error::JobError;
use crate::job::Job;

/// Checks that the splits that training needs are not empty, and that their targets have labels.
pub(super) fn splits_and_labels(job: &Job, train: &TrainSpec) -> Result<(), JobError> {
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
        Some(("train", "training needs at least one"))
    } else if num_val == 0 && train.patience.is_some() {
        Some(("val", "`train.patience` needs a metric of it"))
    } else if num_val == 0 && train.monitor.is_some() {
        Some(("val", "`train.monitor` is a metric of it"))
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
        key: format!("{}.split", job.nodes.table_key()),
        problem: format!("{source} no target into `{split}`, but {reason}"),
    })
}

/// Counts the targets of a unit in the train and the val split; a target in a split without a label
/// is an error.
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
            let (path, place) = job.nodes.locate(unit.first_row + row as u64);
            let unlabelled = SchemaError::Value {
                path,
                column: job.nodes.spec().label.clone().unwrap_or_default(),
                row: place,
                problem: format!(
                    "holds no label, but the {} is a target in split `{}`",
                    job.graph.in_graph.map_or("node", |_| "graph"),
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

/// A list of targets, in which ids can be looked up.
struct Listed {
    ids: Ids,
    /// Position of an id in the list, by its hash.
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
        Ok(Listed::of(ids))
    }

    fn of(ids: Ids) -> Listed {
        let places = (0..ids.len()).map(|at| (ids.hash(at), at)).collect();
        Listed { ids, places }
    }

    fn contains(&self, ids: &Ids, at: usize) -> bool {
        self.place(ids, at).is_some()
    }

    /// Returns the position in the list of an id of another column.
    fn place(&self, ids: &Ids, at: usize) -> Option<usize> {
        let place = self.places.get(&ids.hash(at)).copied()?;
        self.ids.equal(place, ids, at).then_some(place)
    }
}

/// Checks that each id of a list is the id of a node.
pub(super) fn listed_nodes(job: &Job, list: &IdListPlan) -> Result<(), JobError> {
    let wanted = Listed::of(list.read()?);
    let mut is_node = vec![false; wanted.ids.len()];
    for unit in job.nodes.units() {
        let ids = job.nodes.read_keys(unit)?.ids;
        for at in 0..ids.len() {
            if let Some(place) = wanted.place(&ids, at) {
                is_node[place] = true;
            }
        }
    }
    let found = |at: usize| {
        let place = wanted.place(&wanted.ids, at);
        place.is_some_and(|place| is_node[place])
    };
    match (0..wanted.ids.len()).find(|&at| !found(at)) {
        Some(at) => Err(list.unknown(&wanted.ids, at).into()),
        None => Ok(()),
    }
}

/// Returns the description of the labels; reads all of them.
pub(super) fn label_meta(job: &Job) -> Result<Option<LabelMeta>, JobError> {
    if !job.nodes.has_label() {
        return Ok(None);
    }
    let units = job.nodes.units().par_iter();
    let keys: Vec<_> = units.map(|unit| job.nodes.read_keys(unit)).collect();
    let (mut names, mut max_class) = (std::collections::BTreeSet::new(), None);
    for unit in keys {
        let of_unit = unit?;
        names.extend(of_unit.class_names);
        max_class = max_class.max(of_unit.max_class);
    }
    Ok(job
        .nodes
        .label_meta(names.into_iter().collect(), max_class)?)
}

impl Job {
    /// Returns which nodes get a neighbourhood, if the job says it.
    fn targets(&self) -> Option<&Targets> {
        self.sample().map(|sample| sample.targets())
    }

    /// Returns the list of targets, if the job names one.
    pub(crate) fn target_list(&self) -> Result<Option<IdListPlan>, SchemaError> {
        let Some(Targets::Listed(path)) = self.targets() else {
            return Ok(None);
        };
        let (column, id_type) = (&self.nodes.spec().id, self.nodes.id_type());
        IdListPlan::open("flatten.targets", path, column, id_type).map(Some)
    }
}
