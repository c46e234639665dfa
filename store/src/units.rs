//! The units of a table that a worker reads.

/// Every `workers`-th unit of a table, from number `worker` on.
#[derive(Clone, Copy)]
pub(crate) struct OwnUnits {
    pub(crate) worker: usize,
    pub(crate) workers: usize,
}

impl OwnUnits {
    /// Returns this worker's units of a table.
    pub(crate) fn of<'a, T>(self, units: &'a [T]) -> impl Iterator<Item = &'a T> + use<'a, T> {
        units.iter().skip(self.worker).step_by(self.workers)
    }
}
