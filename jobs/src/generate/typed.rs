//! The job file of a generated graph with node types.

use std::fmt::Write as _;
use std::path::Path;

use graphflat::generate::TypedPlan;

use super::{hubs, learning, place};
use crate::error::JobError;

/// Returns the text of the job file; a graph without features is only flattened.
pub(super) fn job_text(plan: &TypedPlan, dir: &Path) -> Result<String, JobError> {
    let spec = &plan.spec().graph;
    let mut text = format!(
        "\
{head}
name = \"rmat\"
seed = {seed}
work_dir = {work_dir}
",
        head = head(plan),
        seed = spec.seed,
        work_dir = place(dir, "work")?,
    );
    for node_type in 0..plan.num_types() {
        text.push_str(&nodes_text(plan, node_type, dir)?);
    }
    for relation in 0..plan.num_relations() {
        text.push_str(&edges_text(plan, relation, dir)?);
    }
    let flattened = place(dir, "out/graphfeatures")?;
    write!(
        text,
        "
[flatten]
output = {flattened}
hops = 2
fanouts = [10, 10]
"
    )
    .expect("a string takes any text");
    if spec.features > 0 {
        text.push_str(&learning("rgcn", dir)?);
    }
    Ok(text)
}

fn head(plan: &TypedPlan) -> String {
    let edges = (0..plan.num_relations()).map(|at| plan.num_edges(at));
    let spec = &plan.spec().graph;
    let mut head = format!(
        "# An R-MAT graph of {} nodes of {} types and {} edges of {} relations. Relative paths \
         start\n# where it was generated.",
        spec.nodes,
        plan.num_types(),
        edges.sum::<u64>(),
        plan.num_relations(),
    );
    head.push_str(&hubs(spec, plan.hub_ids()));
    head
}

fn nodes_text(plan: &TypedPlan, node_type: usize, dir: &Path) -> Result<String, JobError> {
    let spec = &plan.spec().graph;
    let features = match spec.features {
        0 => "",
        _ => "features = [\"features\"]\n",
    };
    let labels = match node_type {
        0 => format!(
            "label = \"label\"\nnum_classes = {}\nsplit = \"split\"\n",
            spec.classes
        ),
        _ => String::new(),
    };
    Ok(format!(
        "
[input.nodes.t{node_type}]
path = {path}
id = \"id\"
{features}{labels}",
        path = place(dir, &TypedPlan::nodes_file(node_type))?,
    ))
}

fn edges_text(plan: &TypedPlan, relation: usize, dir: &Path) -> Result<String, JobError> {
    let (from, to) = plan.ends(relation);
    let weight = match plan.spec().graph.weights {
        true => "weight = \"weight\"\n",
        false => "",
    };
    Ok(format!(
        "
[input.edges.r{relation}]
path = {path}
from = \"t{from}\"
to = \"t{to}\"
src = \"src\"
dst = \"dst\"
{weight}",
        path = place(dir, &TypedPlan::edges_file(relation))?,
    ))
}
