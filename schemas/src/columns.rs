//! Columns of node features, labels and splits in memory, and what tells them apart on disk.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::config::SplitValues;
use crate::ids::IdType;

/// Class of a node without one.
pub const NO_CLASS: u32 = u32::MAX;

/// Features of some nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Features {
    /// Nodes have no features.
    None,
    /// Every value is stored.
    Dense {
        /// Features a node.
        dim: usize,
        /// `[num_nodes * dim]`, row-major.
        values: Vec<f32>,
    },
    /// Only some values are stored, the others are zero.
    Sparse {
        /// Features a node.
        dim: usize,
        /// `[num_nodes + 1]`, from 0; node i has entries `offset[i]..offset[i + 1]`.
        offset: Vec<u64>,
        /// `[num_entries]`, positions below `dim`, as given in the input.
        index: Vec<u32>,
        /// `[num_entries]`.
        value: Vec<f32>,
    },
}

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

/// Split of a node.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Split {
    /// In no split.
    #[default]
    None,
    /// Trained on.
    Train,
    /// Chooses the best epoch.
    Val,
    /// Measures the result.
    Test,
}

/// Shape of the features of a graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FeatureMeta {
    /// No features.
    #[default]
    None,
    /// Stored in full.
    Dense {
        /// Features a node.
        dim: usize,
    },
    /// Stored as positions and values.
    Sparse {
        /// Features a node.
        dim: usize,
    },
}

/// What the labels of a graph are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LabelMeta {
    /// Arrow type of the input column, so that outputs carry labels as given.
    pub data_type: String,
    /// How a label is understood.
    pub kind: LabelKind,
}

/// How a label is understood.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LabelKind {
    /// A class number.
    Class {
        /// Number of classes; numbers are below it.
        num_classes: u32,
    },
    /// A class name.
    ClassName {
        /// The names, sorted bytewise; a class number is a position in here.
        names: Vec<String>,
    },
    /// A list of zeros and ones.
    MultiLabel {
        /// Number of classes.
        width: usize,
    },
    /// A number to predict.
    Number,
}

/// What the splits of a graph are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitMeta {
    /// Arrow type of the input column, so that outputs carry splits as given.
    pub data_type: String,
    /// The numbers that stand for the splits; none where splits are written as words.
    pub values: Option<SplitValues>,
}

/// What a graph's tables hold; stands in manifests and in each file's metadata.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphMeta {
    /// Type of the node ids.
    pub id_type: IdType,
    /// Shape of the node features.
    pub features: FeatureMeta,
    /// Labels, where the input has them.
    pub label: Option<LabelMeta>,
    /// Splits, where the input has them.
    pub split: Option<SplitMeta>,
    /// Whether edges have weights.
    pub edge_weight: bool,
    /// Features an edge, where edges have them.
    pub edge_feature_dim: Option<usize>,
    /// Whether some edge leads from a node to itself; then nodes carry `self_loops`.
    pub self_loops: bool,
}

impl GraphMeta {
    /// Tells whether nodes carry `self_weight`: there are self-loops, and they have weights.
    pub fn self_weight(&self) -> bool {
        self.self_loops && self.edge_weight
    }
}

impl LabelKind {
    /// Returns the width of a model's output: classes, or 1 for a number.
    pub fn width(&self) -> usize {
        match self {
            Self::Class { num_classes } => *num_classes as usize,
            Self::ClassName { names } => names.len(),
            Self::MultiLabel { width } => *width,
            Self::Number => 1,
        }
    }
}

impl FeatureMeta {
    /// Returns the number of features a node; 0 for none.
    pub fn dim(self) -> usize {
        match self {
            Self::None => 0,
            Self::Dense { dim } | Self::Sparse { dim } => dim,
        }
    }
}

impl Split {
    /// Returns the word for a split; `none` for no split.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Train => "train",
            Self::Val => "val",
            Self::Test => "test",
        }
    }
}

impl Features {
    /// Creates the features of no node.
    pub fn empty(meta: FeatureMeta) -> Self {
        match meta {
            FeatureMeta::None => Self::None,
            FeatureMeta::Dense { dim } => Self::Dense {
                dim,
                values: Vec::new(),
            },
            FeatureMeta::Sparse { dim } => Self::Sparse {
                dim,
                offset: vec![0],
                index: Vec::new(),
                value: Vec::new(),
            },
        }
    }

    /// Creates the features of no node, with room for those of some (sparse: for their offsets).
    pub fn with_capacity(meta: FeatureMeta, num_nodes: usize) -> Self {
        let mut features = Self::empty(meta);
        match &mut features {
            Self::None => {}
            Self::Dense { dim, values } => values.reserve_exact(*dim * num_nodes),
            Self::Sparse { offset, .. } => offset.reserve_exact(num_nodes),
        }
        features
    }

    /// Removes all nodes and keeps the memory.
    pub fn clear(&mut self) {
        match self {
            Self::None => {}
            Self::Dense { values, .. } => values.clear(),
            Self::Sparse {
                offset,
                index,
                value,
                ..
            } => {
                offset.truncate(1);
                index.clear();
                value.clear();
            }
        }
    }

    /// Returns the shape of these features.
    pub fn meta(&self) -> FeatureMeta {
        match self {
            Self::None => FeatureMeta::None,
            Self::Dense { dim, .. } => FeatureMeta::Dense { dim: *dim },
            Self::Sparse { dim, .. } => FeatureMeta::Sparse { dim: *dim },
        }
    }

    /// Returns the bytes of memory the features take.
    pub fn size_bytes(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Dense { values, .. } => values.len() * 4,
            Self::Sparse { offset, index, .. } => offset.len() * 8 + index.len() * 8,
        }
    }

    /// Appends the features of one node.
    ///
    /// # Panics
    ///
    /// If the shapes differ.
    pub fn push_from(&mut self, other: &Features, i: u32) {
        self.extend_gather(other, &[i]);
    }

    /// Appends the features of all nodes of another column.
    ///
    /// # Panics
    ///
    /// If the shapes differ.
    pub fn extend(&mut self, other: &Features) {
        self.assert_same_shape(other);
        match (self, other) {
            (Self::Dense { values, .. }, Self::Dense { values: from, .. }) => {
                values.extend_from_slice(from);
            }
            (
                Self::Sparse {
                    offset,
                    index,
                    value,
                    ..
                },
                Self::Sparse {
                    offset: from,
                    index: from_index,
                    value: from_value,
                    ..
                },
            ) => {
                let base = index.len() as u64;
                offset.extend(from[1..].iter().map(|end| base + end));
                index.extend_from_slice(from_index);
                value.extend_from_slice(from_value);
            }
            _ => {}
        }
    }

    /// Appends the features of some nodes of another column.
    ///
    /// # Panics
    ///
    /// If the shapes differ.
    pub fn extend_gather(&mut self, other: &Features, nodes: &[u32]) {
        self.assert_same_shape(other);
        match (self, other) {
            (Self::Dense { dim, values }, Self::Dense { values: from, .. }) => {
                values.reserve(nodes.len() * *dim);
                for &i in nodes {
                    values.extend_from_slice(&from[i as usize * *dim..(i as usize + 1) * *dim]);
                }
            }
            (
                Self::Sparse {
                    offset,
                    index,
                    value,
                    ..
                },
                Self::Sparse {
                    offset: from,
                    index: from_index,
                    value: from_value,
                    ..
                },
            ) => {
                for &i in nodes {
                    let range = entry(from[i as usize])..entry(from[i as usize + 1]);
                    index.extend_from_slice(&from_index[range.clone()]);
                    value.extend_from_slice(&from_value[range]);
                    offset.push(index.len() as u64);
                }
            }
            _ => {}
        }
    }

    /// Returns the features of some nodes, in that order.
    pub fn gather(&self, nodes: &[u32]) -> Features {
        let mut gathered = Self::empty(self.meta());
        gathered.extend_gather(self, nodes);
        gathered
    }

    fn assert_same_shape(&self, other: &Features) {
        assert_eq!(
            self.meta(),
            other.meta(),
            "features of one column are of one shape"
        );
    }
}

fn entry(offset: u64) -> usize {
    usize::try_from(offset).expect("offsets point into memory")
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

    fn dense() -> Features {
        Features::Dense {
            dim: 2,
            values: vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        }
    }

    fn sparse() -> Features {
        let (index, value) = (vec![4, 0, 2], vec![0.5, 1.5, 2.5]);
        Features::Sparse {
            dim: 5,
            offset: vec![0, 2, 2, 3],
            index,
            value,
        }
    }

    #[test]
    fn features_are_gathered_and_appended() {
        let check = |features: &Features| {
            let mut grown = Features::empty(features.meta());
            grown.push_from(features, 2);
            grown.extend(features);
            grown.extend_gather(features, &[1, 0]);
            assert_eq!(grown, {
                let twice = {
                    let mut twice = features.clone();
                    twice.extend(features);
                    twice
                };
                twice.gather(&[5, 0, 1, 2, 4, 3])
            });
            grown.clear();
            assert_eq!(grown, Features::with_capacity(features.meta(), 3));
            let text = serde_json::to_string(features).unwrap();
            assert_eq!(&serde_json::from_str::<Features>(&text).unwrap(), features);
        };
        check(&dense());
        check(&sparse());
        check(&Features::None);
        assert_eq!(
            dense().gather(&[2]),
            Features::Dense {
                dim: 2,
                values: vec![5.0, 6.0]
            }
        );
        let offset = vec![0, 1, 3];
        let (index, value) = (vec![2, 4, 0], vec![2.5, 0.5, 1.5]);
        let expected = Features::Sparse {
            dim: 5,
            offset,
            index,
            value,
        };
        assert_eq!(sparse().gather(&[2, 0]), expected);
    }

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

    #[test]
    fn descriptions_read_as_people_write_them() {
        let kind = LabelKind::ClassName {
            names: vec!["admin".to_owned()],
        };
        let label = LabelMeta {
            data_type: "Utf8".to_owned(),
            kind,
        };
        assert_eq!(
            serde_json::to_string(&label).unwrap(),
            r#"{"data_type":"Utf8","kind":{"class_name":{"names":["admin"]}}}"#
        );
        assert_eq!(label.kind.width(), 1);
        let features = FeatureMeta::Sparse { dim: 9 };
        assert_eq!(
            serde_json::to_string(&features).unwrap(),
            r#"{"sparse":{"dim":9}}"#
        );
        assert_eq!(serde_json::to_string(&Split::Train).unwrap(), "\"train\"");
    }
}
