//! Resolves the paths of a job, and checks that no output overlaps another output or an input.

use std::path::{Path, PathBuf};

use graphflat::Targets;
use graphinfer::InferTargets;
use schemas::path::{overlap, overlaps_input};

use super::{BASE, JobSpec, key};
use crate::mistakes::Found;

impl JobSpec {
    /// Resolves every path but those of input tables, and sets the options of stores.
    pub(super) fn resolve_paths(&mut self, base: &Path, found: &mut Found) {
        found.take(self.storage.check());
        schemas::storage::configure(self.storage.clone());
        let mut paths: Vec<(&str, &mut PathBuf)> = Vec::new();
        if let Some(work_dir) = &mut self.work_dir {
            // It must be local: its files are memory-mapped.
            if let Some(path) = found.take(schemas::path::local("work_dir", base, work_dir)) {
                *work_dir = path;
            }
        }
        if let Some(flatten) = &mut self.flatten {
            paths.extend(flatten.output.as_mut().map(|path| ("flatten.output", path)));
            if let Targets::Listed(path) = &mut flatten.targets {
                paths.push(("flatten.targets", path));
            }
        }
        if let Some(train) = &mut self.train {
            paths.push(("train.output", &mut train.output));
            paths.extend(train.input.as_mut().map(|path| ("train.input", path)));
        }
        if let Some(infer) = &mut self.infer {
            paths.push(("infer.output", &mut infer.output));
            paths.extend(infer.model.as_mut().map(|path| ("infer.model", path)));
            paths.extend(infer.input.as_mut().map(|path| ("infer.input", path)));
            if let InferTargets::Listed(path) = &mut infer.targets {
                paths.push(("infer.targets", path));
            }
        }
        if let Some(score) = &mut self.score {
            paths.push(("score.output", &mut score.output));
            paths.extend(score.model.as_mut().map(|path| ("score.model", path)));
            paths.extend(score.input.as_mut().map(|path| ("score.input", path)));
        }
        if let Some(incremental) = &mut self.incremental {
            let parent = incremental.parent.as_mut();
            paths.extend(parent.map(|path| ("incremental.parent", path)));
            let features = incremental.features.as_mut();
            paths.extend(features.map(|path| ("incremental.features", path)));
        }
        for (name, path) in paths {
            if let Some(resolved) = found.take(schemas::path::resolve(name, base, path)) {
                *path = resolved;
            }
        }
    }

    /// Returns the directories that are written, each with its key.
    fn outputs<'a>(&'a self, work_dir: &'a Path) -> Vec<(&'static str, &'a Path)> {
        let mut outputs = Vec::new();
        outputs.extend(
            self.flatten
                .iter()
                .filter_map(|stage| Some(("flatten.output", &**stage.output.as_ref()?))),
        );
        outputs.extend(
            self.train
                .iter()
                .map(|stage| ("train.output", &*stage.output)),
        );
        outputs.extend(
            self.infer
                .iter()
                .map(|stage| ("infer.output", &*stage.output)),
        );
        outputs.extend(
            self.score
                .iter()
                .map(|stage| ("score.output", &*stage.output)),
        );
        outputs.push(("work_dir", work_dir));
        outputs
    }

    /// Checks that no two outputs are the same directory, and that none lies inside another.
    ///
    /// Returns the keys of the outputs that overlap another; each is reported once.
    pub(super) fn check_outputs(&self, work_dir: &Path, found: &mut Found) -> Vec<&'static str> {
        let mut told = Vec::new();
        let outputs = self.outputs(work_dir);
        for (position, &(name, path)) in outputs.iter().enumerate() {
            for &(earlier, taken) in &outputs[..position] {
                let is_told = told.contains(&name) || told.contains(&earlier);
                let is_empty = path.as_os_str().is_empty() || taken.as_os_str().is_empty();
                if !is_told && !is_empty && overlap(path, taken) {
                    told.push(name);
                    let problem = format!(
                        "{} overlaps `{earlier}`, {}; each needs a directory of its own",
                        path.display(),
                        taken.display()
                    );
                    found.push(key(name, problem));
                }
            }
        }
        told
    }

    /// Checks that no output overlaps an input, which `--fresh` would remove. Outputs in `told`
    /// were reported already and are left out.
    pub(super) fn check_inputs(
        &self,
        work_dir: &Path,
        mut told: Vec<&'static str>,
        found: &mut Found,
    ) {
        let base = Path::new(BASE);
        let mut inputs = Vec::new();
        for (name, path) in self.input.paths() {
            // Errors of these paths are found when the table is opened.
            let paths = path.alternatives().unwrap_or_default();
            let resolved = paths
                .iter()
                .chain(path.written())
                .filter_map(|one| schemas::path::resolve(&name, base, Path::new(one)).ok());
            inputs.extend(resolved.map(|place| (name.clone(), place)));
        }
        if let Some(Targets::Listed(path)) = self.flatten.as_ref().map(|stage| &stage.targets) {
            inputs.push(("flatten.targets".to_owned(), path.clone()));
        }
        let train_input = self.train.as_ref().and_then(|stage| stage.input.clone());
        inputs.extend(train_input.map(|path| ("train.input".to_owned(), path)));
        if let Some(incremental) = &self.incremental {
            let parent = incremental.parent.clone();
            inputs.extend(parent.map(|path| ("incremental.parent".to_owned(), path)));
            let features = incremental.features.clone();
            inputs.extend(features.map(|path| ("incremental.features".to_owned(), path)));
        }
        let model = self.infer.as_ref().and_then(|stage| stage.model.clone());
        inputs.extend(model.map(|path| ("infer.model".to_owned(), path)));
        let infer_input = self.infer.as_ref().and_then(|stage| stage.input.clone());
        inputs.extend(infer_input.map(|path| ("infer.input".to_owned(), path)));
        if let Some(InferTargets::Listed(path)) = self.infer.as_ref().map(|stage| &stage.targets) {
            inputs.push(("infer.targets".to_owned(), path.clone()));
        }
        if let Some(score) = &self.score {
            let read = [("score.input", &score.input), ("score.model", &score.model)];
            let read = read
                .into_iter()
                .filter_map(|(name, path)| Some((name, path.clone()?)));
            inputs.extend(read.map(|(name, path)| (name.to_owned(), path)));
            let listed = score.pairs.iter().flat_map(|list| list.path.written());
            let listed = listed.map(|path| ("score.pairs.path".to_owned(), PathBuf::from(path)));
            inputs.extend(listed);
        }
        // An empty path is a mistake of its own.
        inputs.retain(|(_, path)| !path.as_os_str().is_empty());
        for (name, output) in self.outputs(work_dir) {
            for (read, input) in &inputs {
                // One stage writes these directories for the next.
                let handed_on = matches!(
                    (name, read.as_str()),
                    ("flatten.output", "train.input" | "infer.input")
                        | ("train.output", "infer.model" | "score.model")
                        | ("infer.output", "score.input")
                );
                let is_new = !told.contains(&name) && !output.as_os_str().is_empty();
                if !handed_on && is_new && overlaps_input(output, input) {
                    told.push(name);
                    let problem = format!(
                        "{} overlaps `{read}`, {}; an output must not equal, contain or lie in an \
                         input",
                        output.display(),
                        input.display()
                    );
                    found.push(key(name, problem));
                }
            }
        }
    }
}
