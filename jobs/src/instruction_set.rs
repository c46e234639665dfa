//! Checks the processor, and chooses the instruction set of the kernels.

use std::env;
use std::sync::LazyLock;

use gnn::kernel::InstructionSet;
use gnn::kernel::instruction_set::{missing, use_set};

/// Environment variable with the name of an instruction set, for tests.
const VARIABLE: &str = "GRAPHFLAT_INSTRUCTION_SET";

/// The text of `--version`: the version, and the instruction set in use.
pub(crate) static VERSION: LazyLock<String> = LazyLock::new(|| {
    format!(
        "{} ({})",
        env!("CARGO_PKG_VERSION"),
        InstructionSet::in_use()
    )
});

/// Chooses the instruction set that the variable names; without the variable, the kernels use the
/// best one.
///
/// # Errors
///
/// A line for the user, if this processor cannot run the program or does not have the set.
pub(crate) fn choose() -> Result<(), String> {
    let missing = missing();
    if !missing.is_empty() {
        let missing = missing.join(", ");
        return Err(format!(
            "this processor does not have {missing}; graphflat needs x86-64-v2"
        ));
    }
    let Some(name) = env::var_os(VARIABLE) else {
        return Ok(());
    };
    let set = InstructionSet::named(&name.to_string_lossy());
    set.and_then(use_set)
        .map_err(|error| format!("{VARIABLE}: {error}"))
}
