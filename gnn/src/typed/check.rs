//! Checks of typed blocks and inputs against an architecture.

use super::architecture::TypedArchitecture;
use super::block::{TypedBlock, block_error, of_relation};
use super::schema::Schema;
use crate::{GnnError, ReadyInput, Task};

/// Checks blocks and inputs against a model and returns the number of targets.
pub(super) fn check(
    arch: &TypedArchitecture,
    schema: &Schema,
    blocks: &[TypedBlock],
    input: &[Option<ReadyInput>],
) -> Result<usize, GnnError> {
    let num_layers = arch.num_layers;
    let ([first, ..], [.., last]) = (blocks, blocks) else {
        return Err(input_error(format!("no blocks for {num_layers} layers")));
    };
    if blocks.len() != num_layers {
        let problem = format!("{} blocks for {num_layers} layers", blocks.len());
        return Err(input_error(problem));
    }
    for block in blocks {
        check_block(arch, schema, block)?;
        if arch.is_light() {
            check_degrees(schema, block)?;
        }
    }
    for (t, name) in schema.types.iter().enumerate() {
        for pair in blocks.windows(2) {
            let (dst, src) = (pair[0].num_dst(t), pair[1].num_src(t));
            if dst != src {
                let problem =
                    format!("{src} src nodes of `{name}` after a block with {dst} dst nodes");
                return Err(block_error("num_src", problem));
            }
        }
    }
    if input.len() != schema.types.len() {
        let problem = format!("{} matrices for {} types", input.len(), schema.types.len());
        return Err(input_error(problem));
    }
    for (t, of_type) in input.iter().enumerate() {
        check_raw(arch, t, of_type.as_ref(), first.num_src(t))?;
    }
    Ok(match arch.task {
        Task::Links(_) => (0..schema.types.len()).map(|t| last.num_dst(t)).sum(),
        Task::Classes | Task::MultiLabel | Task::Regression => last.num_dst(arch.target()),
    })
}

/// Checks that a block has the degrees of all src nodes.
fn check_degrees(schema: &Schema, block: &TypedBlock) -> Result<(), GnnError> {
    for (at, ends) in schema.relations.iter().enumerate() {
        let given = block
            .relation(at)
            .map_or(0, |edges| edges.in_degree().len());
        let wanted = block.num_src(ends.to);
        if given < wanted {
            let name = &schema.types[ends.to];
            let problem = format!("has {given} entries for {wanted} src nodes of `{name}`");
            return Err(of_relation(&ends.name, block_error("in_degree", problem)));
        }
    }
    Ok(())
}

/// Checks that a block has the columns that a model reads.
pub(super) fn check_block(
    arch: &TypedArchitecture,
    schema: &Schema,
    block: &TypedBlock,
) -> Result<(), GnnError> {
    if **block.schema() != *schema {
        let problem = "are not those of the model".to_owned();
        return Err(block_error("types", problem));
    }
    for (at, relation) in arch.relations.iter().enumerate() {
        let Some(of_relation_edges) = block.relation(at) else {
            continue;
        };
        if relation.edge_weight && of_relation_edges.edge_weight().is_none() {
            let problem = "is missing, but the model uses edge weights".to_owned();
            return Err(of_relation(
                &relation.name,
                block_error("edge_weight", problem),
            ));
        }
        let got = of_relation_edges.edge_feature().map(|feature| feature.cols);
        if let Some(wanted) = relation.edge_dim.filter(|&wanted| got != Some(wanted)) {
            let got = got.unwrap_or(0);
            let problem = format!("is {got} wide, but the model needs {wanted}");
            return Err(of_relation(
                &relation.name,
                block_error("edge_feature", problem),
            ));
        }
    }
    Ok(())
}

/// Checks the raw features of `rows` nodes of a type.
pub(super) fn check_raw(
    arch: &TypedArchitecture,
    node_type: usize,
    input: Option<&ReadyInput>,
    rows: usize,
) -> Result<(), GnnError> {
    let of = &arch.types[node_type];
    match (input, of.in_dim) {
        (Some(input), Some(cols)) => check_shape(&of.name, input, (rows, cols)),
        (None, Some(_)) if rows > 0 => Err(input_error(format!(
            "the features of `{}` are missing",
            of.name
        ))),
        (Some(_), None) => {
            let problem = format!(
                "`{}` has features, but the architecture gives it none",
                of.name
            );
            Err(input_error(problem))
        }
        (None, _) => Ok(()),
    }
}

/// Checks the shape of the rows of a type, or of what was computed from them.
pub(super) fn check_shape(
    name: &str,
    input: &ReadyInput,
    wanted: (usize, usize),
) -> Result<(), GnnError> {
    let got = (input.rows(), input.cols());
    if got == wanted {
        return Ok(());
    }
    Err(input_error(format!(
        "of `{name}` is {} x {}, but {} x {} is needed",
        got.0, got.1, wanted.0, wanted.1
    )))
}

pub(super) fn input_error(problem: String) -> GnnError {
    GnnError::Input { problem }
}
