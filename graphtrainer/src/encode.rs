//! Fits transforms of features, also of columns with categories, times or gaps.

use std::collections::BTreeMap;

use gnn::{EncoderFit, GnnError, NumberTransform, StandardizeFit, Transform};
use schemas::{ColumnMeta, ColumnValues, ONE_HOT, TypeMeta};

use crate::convert::raw_columns;

/// The transform of a type's features while it is fitted row by row.
pub(crate) enum TransformFit {
    /// Is not fitted to rows.
    Fixed(Transform),
    Standardize(StandardizeFit),
    /// For columns with categories, times or gaps.
    Encode(EncoderFit),
}

impl TransformFit {
    /// Starts with no rows. `one_hot` has the bounds of columns that the job sets.
    pub(crate) fn new(
        of_type: &TypeMeta,
        wanted: Option<schemas::Transform>,
        one_hot: Option<&BTreeMap<String, u32>>,
    ) -> Self {
        if !of_type.columns.is_empty() {
            let transform = match wanted {
                None => NumberTransform::None,
                Some(schemas::Transform::RowNormalize) => NumberTransform::RowNormalize,
                Some(schemas::Transform::Standardize) => NumberTransform::Standardize,
            };
            let set = |name: &str| one_hot.and_then(|bounds| bounds.get(name));
            let bound = |name: &str| *set(name).unwrap_or(&ONE_HOT) as usize;
            let columns = raw_columns(&of_type.columns);
            return Self::Encode(EncoderFit::new(columns, bound, transform));
        }
        match wanted {
            None => Self::Fixed(Transform::None),
            Some(schemas::Transform::RowNormalize) => Self::Fixed(Transform::RowNormalize),
            Some(schemas::Transform::Standardize) => {
                Self::Standardize(StandardizeFit::new(of_type.features.dim()))
            }
        }
    }

    /// Tells whether the transform depends on rows.
    pub(crate) fn reads_rows(&self) -> bool {
        !matches!(self, Self::Fixed(_))
    }

    /// Adds a row.
    pub(crate) fn add(&mut self, row: &[f32]) -> Result<(), GnnError> {
        match self {
            Self::Fixed(_) => Ok(()),
            Self::Standardize(fit) => {
                fit.add(row);
                Ok(())
            }
            Self::Encode(fit) => fit.add(row),
        }
    }

    /// Returns the fitted transform.
    pub(crate) fn finish(self) -> Result<Transform, GnnError> {
        Ok(match self {
            Self::Fixed(transform) => transform,
            Self::Standardize(fit) => fit.finish(),
            Self::Encode(fit) => Transform::Encode(fit.finish()?),
        })
    }
}

/// Returns the greatest width of encoded rows, which depends on the categories of train targets.
pub(crate) fn encoded_width_max(nodes: &TypeMeta) -> usize {
    if nodes.columns.is_empty() {
        return nodes.features.dim();
    }
    let width = |column: &ColumnMeta| {
        let gaps = usize::from(column.gaps);
        match &column.values {
            ColumnValues::Number | ColumnValues::Time => column.width + gaps,
            ColumnValues::Category(values) => values.len() + 1 + gaps,
        }
    };
    nodes.columns.iter().map(width).sum()
}
