//! Options of typed models; each is one word in `model.json`.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::LayerKind;

/// Kind of the convs of a typed model.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum TypedKind {
    /// A conv of its own for each relation, as in `PyG`'s `HeteroConv`.
    Conv(LayerKind),
    /// Relational graph convolution: the mean over each relation's in-edges times the relation's
    /// weight, and the node's own row times another (Schlichtkrull et al., 2018).
    Rgcn,
    /// Graph attention over all in-edges of a node, with a score for each relation (Lv et al.,
    /// 2021).
    SimpleHgn,
    /// Heterogeneous graph transformer: attention over all in-edges of a node, with keys, queries
    /// and values by type and maps by relation (Hu et al., 2020).
    Hgt,
}

/// The kinds that are not a conv for each relation, with their names.
const OTHERS: [(&str, TypedKind); 3] = [
    ("rgcn", TypedKind::Rgcn),
    ("simple_hgn", TypedKind::SimpleHgn),
    ("hgt", TypedKind::Hgt),
];

impl TypedKind {
    /// Returns all kinds of this crate.
    pub fn all() -> impl Iterator<Item = TypedKind> {
        let convs = LayerKind::ALL.iter().copied().map(TypedKind::Conv);
        convs.chain(OTHERS.map(|(_, kind)| kind))
    }

    /// Returns the name in job files and `model.json`.
    #[must_use]
    pub fn name(self) -> &'static str {
        let other = OTHERS.iter().find(|(_, kind)| *kind == self);
        match (self, other) {
            (TypedKind::Conv(kind), _) => kind.name(),
            (_, Some((name, _))) => name,
            (_, None) => "",
        }
    }

    /// Tells whether this kind scores its in-edges by attention, with heads.
    #[must_use]
    pub fn is_attention(self) -> bool {
        match self {
            TypedKind::Conv(kind) => kind.is_attention(),
            TypedKind::Rgcn => false,
            TypedKind::SimpleHgn | TypedKind::Hgt => true,
        }
    }

    /// Tells whether this kind reads degrees, sums of weights or self-loops of sources.
    #[must_use]
    pub fn reads_source_degrees(self) -> bool {
        match self {
            TypedKind::Conv(kind) => kind.reads_source_degrees(),
            TypedKind::Rgcn | TypedKind::SimpleHgn | TypedKind::Hgt => false,
        }
    }

    /// Tells whether this kind reads edge features.
    #[must_use]
    pub fn takes_edge_features(self) -> bool {
        matches!(self, TypedKind::Conv(kind) if kind.takes_edge_features())
    }

    /// Tells whether this kind uses edge weights.
    #[must_use]
    pub fn takes_edge_weights(self) -> bool {
        match self {
            TypedKind::Conv(kind) => kind != LayerKind::LightGcn,
            TypedKind::Rgcn => true,
            TypedKind::SimpleHgn | TypedKind::Hgt => false,
        }
    }

    /// Tells whether outputs of relations can be joined in several ways.
    #[must_use]
    pub fn joins_relations(self) -> bool {
        matches!(self, TypedKind::Conv(kind) if kind != LayerKind::LightGcn)
    }

    /// Lists the kinds for which `holds` is true, such as "gat and gatv2".
    #[must_use]
    pub fn names_of(holds: fn(TypedKind) -> bool) -> String {
        let names: Vec<&str> = Self::all()
            .filter(|kind| holds(*kind))
            .map(Self::name)
            .collect();
        match names.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
            _ => names.concat(),
        }
    }
}

impl Serialize for TypedKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for TypedKind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TypedKind, D::Error> {
        let name = String::deserialize(deserializer)?;
        let known = Self::all().find(|kind| kind.name() == name);
        known.ok_or_else(|| {
            let names: Vec<String> = Self::all()
                .map(|kind| format!("`{}`", kind.name()))
                .collect();
            let names = names.join(", ");
            D::Error::custom(format!("unknown variant `{name}`, expected one of {names}"))
        })
    }
}

/// How a type's outputs of several relations are joined.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RelationAggregator {
    /// Their sum.
    #[default]
    Sum,
    /// Their mean.
    Mean,
    /// Their maximum, per feature.
    Max,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_by_their_names() {
        for kind in TypedKind::all() {
            let text = serde_json::to_string(&kind).unwrap();
            assert_eq!(text, format!("\"{}\"", kind.name()));
            assert_eq!(serde_json::from_str::<TypedKind>(&text).unwrap(), kind);
        }
        let error = serde_json::from_str::<TypedKind>("\"han\"").unwrap_err();
        let allowed = "`han`, expected one of `gcn`, `sage`, `gat`, `gatv2`, `gin`, \
                       `lightgcn`, `rgcn`, `simple_hgn`, `hgt`";
        assert!(error.to_string().contains(allowed), "{error}");
    }
}
