//! Checks whose error names a field of a block.

use crate::GnnError;

pub(super) fn same_length(field: &'static str, got: usize, wanted: usize) -> Result<(), GnnError> {
    ensure(got == wanted, field, || {
        format!("has {got} entries but needs {wanted}")
    })
}

pub(super) fn ensure(
    holds: bool,
    field: &'static str,
    problem: impl FnOnce() -> String,
) -> Result<(), GnnError> {
    if holds {
        Ok(())
    } else {
        Err(GnnError::Block {
            field,
            problem: problem(),
        })
    }
}
