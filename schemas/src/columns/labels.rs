//! A column of labels in memory.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{LabelKind, LabelMeta};

/// Class number of a node without a label.
pub const NO_CLASS: u32 = u32::MAX;

/// Labels of some nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Labels {
    /// The input has no labels.
    None,
    /// `[num_nodes]`, class number or [`NO_CLASS`].
    Class(Vec<u32>),
    /// Several classes at once.
    Multi {
        /// Number of classes.
        width: usize,
        /// `[num_nodes * width]`, 0 or 1; zeros where the node has no label.
        values: Vec<f32>,
        /// `[num_nodes]`, whether the node has a label.
        present: Vec<bool>,
    },
    /// `[num_nodes]`, NaN where the node has no label.
    Number(Vec<f32>),
}

impl Labels {
    /// Creates the labels of no node.
    pub fn empty(meta: Option<&LabelMeta>) -> Self {
        match meta.map(|meta| &meta.kind) {
            None => Self::None,
            Some(LabelKind::Class { .. } | LabelKind::ClassName { .. }) => Self::Class(Vec::new()),
            Some(&LabelKind::MultiLabel { width }) => Self::Multi {
                width,
                values: Vec::new(),
                present: Vec::new(),
            },
            Some(LabelKind::Number) => Self::Number(Vec::new()),
        }
    }

    /// Returns the bytes of memory the labels take.
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Class(classes) => classes.len() * 4,
            Self::Multi {
                values, present, ..
            } => values.len() * 4 + present.len(),
            Self::Number(numbers) => numbers.len() * 4,
        }
    }

    /// Creates a column of the same kind without nodes.
    pub fn empty_like(&self) -> Self {
        match self {
            Self::None => Self::None,
            Self::Class(_) => Self::Class(Vec::new()),
            Self::Multi { width, .. } => Self::Multi {
                width: *width,
                values: Vec::new(),
                present: Vec::new(),
            },
            Self::Number(_) => Self::Number(Vec::new()),
        }
    }

    /// Removes all nodes and keeps the memory.
    pub fn clear(&mut self) {
        match self {
            Self::None => {}
            Self::Class(classes) => classes.clear(),
            Self::Multi {
                values, present, ..
            } => {
                values.clear();
                present.clear();
            }
            Self::Number(numbers) => numbers.clear(),
        }
    }

    /// Tells whether a node has a label.
    pub fn has(&self, i: usize) -> bool {
        match self {
            Self::None => false,
            Self::Class(classes) => classes[i] != NO_CLASS,
            Self::Multi { present, .. } => present[i],
            Self::Number(numbers) => !numbers[i].is_nan(),
        }
    }

    /// Returns the number of nodes; none where there are no labels.
    pub fn num_rows(&self) -> Option<usize> {
        match self {
            Self::None => None,
            Self::Class(classes) => Some(classes.len()),
            Self::Multi { present, .. } => Some(present.len()),
            Self::Number(numbers) => Some(numbers.len()),
        }
    }

    /// Appends the label of one node.
    ///
    /// # Panics
    ///
    /// If the kinds differ.
    pub fn push_from(&mut self, other: &Labels, i: u32) {
        self.extend_gather(other, &[i]);
    }

    /// Appends a node without a label.
    pub fn push_none(&mut self) {
        match self {
            Self::None => {}
            Self::Class(classes) => classes.push(NO_CLASS),
            Self::Multi {
                width,
                values,
                present,
            } => {
                values.resize(values.len() + *width, 0.0);
                present.push(false);
            }
            Self::Number(numbers) => numbers.push(f32::NAN),
        }
    }

    /// Appends the labels of all nodes of another column.
    ///
    /// # Panics
    ///
    /// If the kinds differ.
    pub fn extend(&mut self, other: &Labels) {
        match (self, other) {
            (Self::None, Self::None) => {}
            (Self::Class(classes), Self::Class(from)) => classes.extend_from_slice(from),
            (
                Self::Multi {
                    width,
                    values,
                    present,
                },
                Self::Multi {
                    width: from_width,
                    values: from,
                    present: from_present,
                },
            ) if width == from_width => {
                values.extend_from_slice(from);
                present.extend_from_slice(from_present);
            }
            (Self::Number(numbers), Self::Number(from)) => numbers.extend_from_slice(from),
            _ => panic!("labels of one column are of one kind"),
        }
    }

    /// Appends the labels of some nodes of another column.
    ///
    /// # Panics
    ///
    /// If the kinds differ.
    pub fn extend_gather(&mut self, other: &Labels, nodes: &[u32]) {
        match (self, other) {
            (Self::None, Self::None) => {}
            (Self::Class(classes), Self::Class(from)) => {
                classes.extend(nodes.iter().map(|&i| from[i as usize]));
            }
            (
                Self::Multi {
                    width,
                    values,
                    present,
                },
                Self::Multi {
                    width: from_width,
                    values: from,
                    present: from_present,
                },
            ) if width == from_width => {
                for &i in nodes {
                    let i = i as usize;
                    values.extend_from_slice(&from[i * *width..(i + 1) * *width]);
                    present.push(from_present[i]);
                }
            }
            (Self::Number(numbers), Self::Number(from)) => {
                numbers.extend(nodes.iter().map(|&i| from[i as usize]));
            }
            _ => panic!("labels of one column are of one kind"),
        }
    }

    /// Returns the labels of a range of nodes.
    pub fn slice(&self, range: Range<usize>) -> Labels {
        match self {
            Self::None => Self::None,
            Self::Class(classes) => Self::Class(classes[range].to_vec()),
            Self::Multi {
                width,
                values,
                present,
            } => Self::Multi {
                width: *width,
                values: values[range.start * width..range.end * width].to_vec(),
                present: present[range].to_vec(),
            },
            Self::Number(numbers) => Self::Number(numbers[range].to_vec()),
        }
    }

    /// Returns the labels of some nodes, in that order.
    pub fn gather(&self, nodes: &[u32]) -> Labels {
        let mut gathered = self.empty_like();
        gathered.extend_gather(self, nodes);
        gathered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_gathered_sliced_and_missing() {
        let check = |labels: &Labels, has: &[bool]| {
            let rows = labels.num_rows().unwrap();
            assert_eq!((0..rows).map(|i| labels.has(i)).collect::<Vec<_>>(), has);
            let mut grown = labels.empty_like();
            grown.extend(labels);
            grown.push_none();
            grown.push_from(labels, 0);
            assert!(!grown.has(rows));
            assert!(grown.has(rows + 1));
            assert_eq!(format!("{:?}", grown.slice(0..rows)), format!("{labels:?}"));
            let first = [0, u32::try_from(rows).unwrap() + 1].map(|i| grown.gather(&[i]));
            assert_eq!(first[0], first[1]);
            grown.clear();
            assert_eq!(grown, labels.empty_like());
        };
        check(&Labels::Class(vec![0, NO_CLASS, 2]), &[true, false, true]);
        check(&Labels::Number(vec![0.0, f32::NAN]), &[true, false]);
        let values = vec![1.0, 0.0, 0.0, 0.0, 0.0, 0.0];
        let several = Labels::Multi {
            width: 2,
            values,
            present: vec![true, false, true],
        };
        check(&several, &[true, false, true]);
        assert!(!Labels::None.has(0));
    }
}
