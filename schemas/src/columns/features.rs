//! A column of node features in memory.

use serde::{Deserialize, Serialize};

use super::FeatureMeta;

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

    /// Creates the features of no node, with room for `num_nodes` nodes (sparse: for their
    /// offsets).
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
}
