//! Checks of blocks and inputs against an architecture.

use crate::{Architecture, Block, GnnError, ReadyInput};

/// Checks blocks and input against a model and returns the number of targets.
pub(crate) fn check(
    arch: &Architecture,
    blocks: &[Block],
    input: &ReadyInput,
) -> Result<usize, GnnError> {
    let num_layers = arch.num_layers;
    let ([first, ..], [.., last]) = (blocks, blocks) else {
        let problem = format!("no blocks for {num_layers} layers");
        return Err(GnnError::Input { problem });
    };
    if blocks.len() != num_layers {
        let problem = format!("{} blocks for {num_layers} layers", blocks.len());
        return Err(GnnError::Input { problem });
    }
    for block in blocks {
        check_block(arch, block)?;
    }
    for pair in blocks.windows(2) {
        let (dst, src) = (pair[0].num_dst(), pair[1].num_src());
        if dst != src {
            let problem = format!("{src} src nodes after a block with {dst} dst nodes");
            return Err(GnnError::Block {
                field: "num_src",
                problem,
            });
        }
    }
    check_input(input, first.num_src(), arch.in_dim)?;
    Ok(last.num_dst())
}

/// Checks that a block has the columns that a model reads.
pub(crate) fn check_block(arch: &Architecture, block: &Block) -> Result<(), GnnError> {
    let weighted = block.edge_weight().is_some();
    if arch.edge_weight && !weighted {
        let problem = "is missing, but the model uses edge weights".to_owned();
        return Err(GnnError::Block {
            field: "edge_weight",
            problem,
        });
    }
    let Some(wanted) = arch.edge_dim else {
        return Ok(());
    };
    let got = block.edge_feature().map(|feature| feature.cols);
    if got == Some(wanted) {
        return Ok(());
    }
    let problem = format!("is {} wide, but the model needs {wanted}", got.unwrap_or(0));
    Err(GnnError::Block {
        field: "edge_feature",
        problem,
    })
}

/// Checks the shape of an input.
pub(crate) fn check_input(input: &ReadyInput, rows: usize, cols: usize) -> Result<(), GnnError> {
    if (input.rows(), input.cols()) == (rows, cols) {
        return Ok(());
    }
    let (got_rows, got_cols) = (input.rows(), input.cols());
    let problem = format!("is {got_rows} x {got_cols}, but {rows} x {cols} is needed");
    Err(GnnError::Input { problem })
}
