//! `graphflat generate`: a generated graph as input tables, with a job that runs on it.

use std::fs;
use std::path::{Path, PathBuf};

use graphflat::generate::{EDGES_FILE, GraphPlan, GraphSpec, NODES_FILE};
use schemas::SchemaError;

use crate::cli::GenerateArgs;
use crate::console::line_out;
use crate::error::JobError;

/// File name of the job.
const JOB_FILE: &str = "job.toml";

/// Greatest number of hubs that the job file names.
const HUBS_NAMED: usize = 16;

/// Writes the tables and the job file.
///
/// # Errors
///
/// If a number is outside its limits, the directory holds files of these names already, or they
/// cannot be written.
pub(crate) fn generate(args: &GenerateArgs) -> anyhow::Result<()> {
    let job = write(args)?;
    line_out(&format!("graphflat run {}", job.display()));
    Ok(())
}

fn write(args: &GenerateArgs) -> Result<PathBuf, JobError> {
    let spec = GraphSpec {
        nodes: args.nodes,
        edges: args.edges,
        features: args.features,
        classes: args.classes,
        hubs: args.hubs,
        hub_in_edges: args.hub_in_edges,
        weights: args.weights,
        seed: args.seed,
    };
    let plan = spec.into_plan()?;
    let dir = schemas::path::local("DIR", Path::new(""), &args.dir)?;
    let text = job_text(&plan, &dir)?;
    let job = dir.join(JOB_FILE);
    if args.force {
        // The job file is written last: if it exists, the tables are whole.
        remove(&job)?;
    } else {
        refuse_taken(&dir)?;
    }
    graphflat::generate::generate(&plan, &dir)?;
    let temporary = job.with_extension("toml.tmp");
    fs::write(&temporary, text).map_err(io("write", &temporary))?;
    fs::rename(&temporary, &job).map_err(io("rename", &job))?;
    Ok(job)
}

fn refuse_taken(dir: &Path) -> Result<(), JobError> {
    let mut names = [NODES_FILE, EDGES_FILE, JOB_FILE].into_iter();
    match names.find(|name| dir.join(name).exists()) {
        Some(name) => Err(JobError::from(SchemaError::OutputTaken {
            dir: dir.to_owned(),
            problem: format!("holds {name} already; --force replaces it"),
        })),
        None => Ok(()),
    }
}

fn remove(path: &Path) -> Result<(), JobError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(io("remove", path)(error))
        }
        _ => Ok(()),
    }
}

fn io(action: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> JobError {
    let path = path.to_owned();
    move |source| JobError::Io {
        action,
        path,
        source,
    }
}

/// Returns the text of the job file; a graph without features is only flattened.
fn job_text(plan: &GraphPlan, dir: &Path) -> Result<String, JobError> {
    let place = |name: &str| {
        let path = dir.join(name);
        let text = path.to_str().ok_or_else(|| JobError::Key {
            key: "DIR".to_owned(),
            problem: format!(
                "{} is not UTF-8; a path in a job file must be",
                dir.display()
            ),
        })?;
        Ok::<_, JobError>(toml::Value::from(text).to_string())
    };
    let spec = plan.spec();
    let (features, learning) = if spec.features == 0 {
        ("", String::new())
    } else {
        let learning = format!(
            "
[train]
output = {model}
model = \"sage\"
hidden = [64]
epochs = 5

[infer]
output = {embeddings}
",
            model = place("out/model")?,
            embeddings = place("out/embeddings")?,
        );
        ("features = [\"features\"]\n", learning)
    };
    let weight = if spec.weights {
        "weight = \"weight\"\n"
    } else {
        ""
    };
    Ok(format!(
        "\
{head}
name = \"rmat\"
seed = {seed}
work_dir = {work_dir}

[input.nodes]
path = {nodes}
id = \"id\"
{features}label = \"label\"
num_classes = {classes}
split = \"split\"

[input.edges]
path = {edges}
src = \"src\"
dst = \"dst\"
{weight}
[flatten]
output = {flattened}
hops = 2
fanouts = [10, 10]
{learning}",
        head = head(plan),
        seed = spec.seed,
        work_dir = place("work")?,
        nodes = place(NODES_FILE)?,
        classes = spec.classes,
        edges = place(EDGES_FILE)?,
        flattened = place("out/graphfeatures")?,
    ))
}

fn head(plan: &GraphPlan) -> String {
    let spec = plan.spec();
    let mut head = format!(
        "# An R-MAT graph of {} nodes and {} edges. Relative paths start where it was generated.",
        spec.nodes,
        plan.num_edges(),
    );
    if spec.hubs > 0 {
        let ids = plan.hub_ids().take(HUBS_NAMED).map(|id| id.to_string());
        let more = if spec.hubs > HUBS_NAMED as u64 {
            ", ..."
        } else {
            ""
        };
        let (num, each) = (spec.hubs, spec.hub_in_edges);
        let ids = ids.collect::<Vec<_>>().join(", ");
        head.push_str(&format!(
            "\n# {num} hubs with {each} further in-edges each: {ids}{more}"
        ));
    }
    head
}
