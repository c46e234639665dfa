//! Makes what a model computes with of what the tables hold.

use gnn::{Dense, Input, RawColumn, RawValues, SparseRows};
use schemas::{ColumnMeta, ColumnValues, Features, Sampling};

/// Returns features as a dense matrix.
pub fn dense(input: Input) -> Dense {
    match input {
        Input::Dense(rows) => rows,
        Input::Sparse(rows) => rows.to_dense(rows.rows),
    }
}

/// Returns the sampling as layers scale by it.
pub fn sampling(sampling: Sampling) -> gnn::Sampling {
    match sampling {
        Sampling::Uniform => gnn::Sampling::Uniform,
        Sampling::Weighted => gnn::Sampling::Weighted,
        Sampling::Top => gnn::Sampling::Top,
    }
}

/// Returns the features of `rows` nodes as a model's input; sparse ones stay sparse, and where nodes
/// have none, rows are 0 wide.
///
/// # Panics
///
/// If sparse features hold 2^32 values or more.
pub fn input(features: Features, rows: usize) -> Input {
    match features {
        Features::None => Input::Dense(Dense::zeros(rows, 0)),
        Features::Dense { dim, values } => Input::Dense(Dense {
            rows,
            cols: dim,
            values,
        }),
        Features::Sparse {
            dim,
            offset,
            index,
            value,
        } => {
            let narrow = |at: u64| u32::try_from(at).expect("a batch holds below 2^32 values");
            Input::Sparse(SparseRows {
                rows,
                cols: dim,
                offset: offset.into_iter().map(narrow).collect(),
                index,
                value,
            })
        }
    }
}

/// Returns the columns of dense features as a model's transform reads them.
pub fn raw_columns(columns: &[ColumnMeta]) -> Vec<RawColumn> {
    let column = |column: &ColumnMeta| RawColumn {
        name: column.name.clone(),
        values: match &column.values {
            ColumnValues::Number => RawValues::Numbers {
                width: column.width,
            },
            ColumnValues::Time => RawValues::Time,
            ColumnValues::Category(values) => RawValues::Categories(values.clone()),
        },
        gaps: column.gaps,
    };
    columns.iter().map(column).collect()
}
