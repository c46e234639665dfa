//! `graphflat generate`: a generated graph as input tables, with a job that runs on it.

mod typed;

use std::fs;
use std::path::{Path, PathBuf};

use graphflat::generate::{EDGES_FILE, GraphPlan, GraphSpec, NODES_FILE, TypedPlan, TypedSpec};
use schemas::SchemaError;

use crate::cli::GenerateArgs;
use crate::console::line_out;
use crate::error::JobError;

/// File name of the job.
const JOB_FILE: &str = "job.toml";

/// Greatest number of hubs that the job file names.
const HUBS_NAMED: usize = 16;

/// A graph to generate.
enum Planned {
    Untyped(Box<GraphPlan>),
    Typed(TypedPlan),
}

impl Planned {
    fn new(args: &GenerateArgs) -> Result<Self, JobError> {
        let graph = GraphSpec {
            nodes: args.nodes,
            edges: args.edges,
            features: args.features,
            classes: args.classes,
            hubs: args.hubs,
            hub_in_edges: args.hub_in_edges,
            weights: args.weights,
            seed: args.seed,
        };
        let (Some(types), Some(relations)) = (args.types, args.relations) else {
            return Ok(Self::Untyped(Box::new(graph.into_plan()?)));
        };
        let spec = TypedSpec {
            graph,
            types,
            relations,
            type_shares: args.type_shares.clone(),
            relation_shares: args.relation_shares.clone(),
        };
        Ok(Self::Typed(spec.into_plan()?))
    }

    /// Returns the names of the tables' files.
    fn files(&self) -> Vec<String> {
        match self {
            Self::Untyped(_) => [NODES_FILE, EDGES_FILE].map(str::to_owned).to_vec(),
            Self::Typed(plan) => {
                let nodes = (0..plan.num_types()).map(TypedPlan::nodes_file);
                let edges = (0..plan.num_relations()).map(TypedPlan::edges_file);
                nodes.chain(edges).collect()
            }
        }
    }
}

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
    let plan = Planned::new(args)?;
    let dir = schemas::path::local("DIR", Path::new(""), &args.dir)?;
    let text = match &plan {
        Planned::Untyped(of_one) => job_text(of_one, &dir)?,
        Planned::Typed(of_types) => typed::job_text(of_types, &dir)?,
    };
    let job = dir.join(JOB_FILE);
    if args.force {
        // The job file is written last: if it exists, the tables are whole.
        remove(&job)?;
    } else {
        refuse_taken(&plan, &dir)?;
    }
    match &plan {
        Planned::Untyped(of_one) => graphflat::generate::generate(of_one, &dir)?,
        Planned::Typed(of_types) => graphflat::generate::generate_typed(of_types, &dir)?,
    }
    let temporary = job.with_extension("toml.tmp");
    fs::write(&temporary, text).map_err(io("write", &temporary))?;
    fs::rename(&temporary, &job).map_err(io("rename", &job))?;
    Ok(job)
}

fn refuse_taken(plan: &Planned, dir: &Path) -> Result<(), JobError> {
    let mut names = plan.files().into_iter().chain([JOB_FILE.to_owned()]);
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

/// Returns the path of a file or directory of the job, as the job file has it.
fn place(dir: &Path, name: &str) -> Result<String, JobError> {
    let path = dir.join(name);
    let text = path.to_str().ok_or_else(|| JobError::Key {
        key: "DIR".to_owned(),
        problem: format!(
            "{} is not UTF-8; a path in a job file must be",
            dir.display()
        ),
    })?;
    Ok(toml::Value::from(text).to_string())
}

/// Returns the tables `[train]` and `[infer]`.
fn learning(model: &str, dir: &Path) -> Result<String, JobError> {
    Ok(format!(
        "
[train]
output = {output}
model = \"{model}\"
hidden = [64]
epochs = 5

[infer]
output = {embeddings}
",
        output = place(dir, "out/model")?,
        embeddings = place(dir, "out/embeddings")?,
    ))
}

/// Returns the text of the job file; a graph without features is only flattened.
fn job_text(plan: &GraphPlan, dir: &Path) -> Result<String, JobError> {
    let spec = plan.spec();
    let (features, learning) = if spec.features == 0 {
        ("", String::new())
    } else {
        ("features = [\"features\"]\n", learning("sage", dir)?)
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
        work_dir = place(dir, "work")?,
        nodes = place(dir, NODES_FILE)?,
        classes = spec.classes,
        edges = place(dir, EDGES_FILE)?,
        flattened = place(dir, "out/graphfeatures")?,
    ))
}

fn head(plan: &GraphPlan) -> String {
    let spec = plan.spec();
    let mut head = format!(
        "# An R-MAT graph of {} nodes and {} edges. Relative paths start where it was generated.",
        spec.nodes,
        plan.num_edges(),
    );
    head.push_str(&hubs(spec, plan.hub_ids()));
    head
}

/// Returns a comment that names the hubs; nothing without hubs.
fn hubs(spec: &GraphSpec, ids: impl Iterator<Item = u64>) -> String {
    if spec.hubs == 0 {
        return String::new();
    }
    let ids: Vec<String> = ids.take(HUBS_NAMED).map(|id| id.to_string()).collect();
    let more = if spec.hubs > HUBS_NAMED as u64 {
        ", ..."
    } else {
        ""
    };
    let (num, each, named) = (spec.hubs, spec.hub_in_edges, ids.join(", "));
    format!("\n# {num} hubs with {each} further in-edges each: {named}{more}")
}
