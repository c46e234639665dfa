//! Description of a graph's tables: its node types and its relations.

use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{ColumnMeta, FeatureMeta, LabelMeta, NamedPairs, PairsMeta, SplitMeta};
use crate::ids::IdType;

/// Description of a graph's tables; manifests and each file's metadata hold it.
///
/// An untyped graph has one type and one relation, both with the empty name. It is written as
/// [`UntypedMeta`]. A typed graph is written with its lists, and names in place of positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GraphMeta {
    /// Node types, sorted by name.
    pub types: Vec<TypeMeta>,
    /// Relations, sorted by name.
    pub relations: Vec<RelationMeta>,
    /// Position in `types` of the type that targets are of. Where there are pairs, their dst ends
    /// are targets of [`PairsMeta::to`], too.
    pub target_type: usize,
    /// The supervision pairs, where targets are the ends of pairs.
    pub pairs: Option<PairsMeta>,
}

/// Description of the nodes of a type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TypeMeta {
    /// Name of the type; empty in an untyped graph.
    pub name: String,
    /// Type of the node ids.
    pub id_type: IdType,
    /// Shape of the node features.
    pub features: FeatureMeta,
    /// Columns of dense features; none if all of them are numbers without gaps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<ColumnMeta>,
    /// Labels, where the input has them; only the target type may have labels.
    pub label: Option<LabelMeta>,
    /// Splits, where the input has them; only the target type may have splits.
    pub split: Option<SplitMeta>,
}

/// Description of the edges of a relation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationMeta {
    /// Name of the relation; empty in an untyped graph.
    pub name: String,
    /// Position in [`GraphMeta::types`] of the sources' type.
    pub from: usize,
    /// Position in [`GraphMeta::types`] of the destinations' type.
    pub to: usize,
    /// Whether edges have weights.
    pub edge_weight: bool,
    /// Features an edge, where edges have them.
    pub edge_feature_dim: Option<usize>,
    /// Whether some edge leads from a node to itself; then nodes carry `self_loops`.
    pub self_loops: bool,
}

/// Description of an untyped graph, in the form that is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UntypedMeta {
    /// Type of the node ids.
    pub id_type: IdType,
    /// Shape of the node features.
    pub features: FeatureMeta,
    /// Columns of dense features; none if all of them are numbers without gaps.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<ColumnMeta>,
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

/// The form in which a typed graph is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct TypedMeta {
    types: Vec<TypeMeta>,
    relations: Vec<NamedRelation>,
    target_type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pairs: Option<NamedPairs>,
}

/// A relation with the names of its types.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedRelation {
    name: String,
    from: String,
    to: String,
    edge_weight: bool,
    edge_feature_dim: Option<usize>,
    self_loops: bool,
}

impl GraphMeta {
    /// Returns the description of the targets' type.
    pub fn target(&self) -> &TypeMeta {
        &self.types[self.target_type]
    }

    /// Replaces the labels of the target type.
    #[must_use]
    pub fn with_label(mut self, label: Option<LabelMeta>) -> Self {
        self.types[self.target_type].label = label;
        self
    }

    /// Tells whether nodes of a type may be targets.
    pub fn may_be_targets(&self, type_idx: usize) -> bool {
        let is_dst = |pairs: &PairsMeta| pairs.to == type_idx;
        type_idx == self.target_type || self.pairs.as_ref().is_some_and(is_dst)
    }

    /// Tells whether the graph has named types and relations.
    pub fn is_typed(&self) -> bool {
        let one = self.types.len() == 1 && self.relations.len() == 1;
        !(one && self.types[0].name.is_empty() && self.relations[0].name.is_empty())
    }

    /// Returns the positions of the relations that lead to nodes of a type, ascending.
    pub fn relations_to(&self, type_idx: usize) -> impl Iterator<Item = usize> {
        let relations = self.relations.iter().enumerate();
        relations.filter_map(move |(idx, relation)| (relation.to == type_idx).then_some(idx))
    }

    fn to_typed(&self) -> TypedMeta {
        let name = |type_idx: usize| self.types[type_idx].name.clone();
        let named = |relation: &RelationMeta| NamedRelation {
            name: relation.name.clone(),
            from: name(relation.from),
            to: name(relation.to),
            edge_weight: relation.edge_weight,
            edge_feature_dim: relation.edge_feature_dim,
            self_loops: relation.self_loops,
        };
        TypedMeta {
            types: self.types.clone(),
            relations: self.relations.iter().map(named).collect(),
            target_type: name(self.target_type),
            pairs: self.pairs.as_ref().map(|pairs| pairs.named(self)),
        }
    }
}

impl RelationMeta {
    /// Tells whether nodes carry `self_weight`: there are self-loops, and they have weights.
    pub fn self_weight(&self) -> bool {
        self.self_loops && self.edge_weight
    }
}

impl From<UntypedMeta> for GraphMeta {
    fn from(meta: UntypedMeta) -> Self {
        Self {
            types: vec![TypeMeta {
                name: String::new(),
                id_type: meta.id_type,
                features: meta.features,
                columns: meta.columns,
                label: meta.label,
                split: meta.split,
            }],
            relations: vec![RelationMeta {
                name: String::new(),
                from: 0,
                to: 0,
                edge_weight: meta.edge_weight,
                edge_feature_dim: meta.edge_feature_dim,
                self_loops: meta.self_loops,
            }],
            target_type: 0,
            pairs: None,
        }
    }
}

impl TryFrom<TypedMeta> for GraphMeta {
    type Error = String;

    fn try_from(meta: TypedMeta) -> Result<Self, String> {
        let TypedMeta {
            types, relations, ..
        } = meta;
        let position = |name: &str| {
            let found = types.iter().position(|found| found.name == name);
            found.ok_or_else(|| format!("`{name}` is not one of the types"))
        };
        let ascend = types.is_sorted_by(|left, right| left.name < right.name)
            && relations.is_sorted_by(|left, right| left.name < right.name);
        if !ascend {
            return Err("names of types and relations must ascend".to_owned());
        }
        let relation = |relation: NamedRelation| {
            Ok::<_, String>(RelationMeta {
                from: position(&relation.from)?,
                to: position(&relation.to)?,
                name: relation.name,
                edge_weight: relation.edge_weight,
                edge_feature_dim: relation.edge_feature_dim,
                self_loops: relation.self_loops,
            })
        };
        let relations = relations.into_iter().map(relation);
        let relations: Vec<RelationMeta> = relations.collect::<Result<_, _>>()?;
        let pairs = meta.pairs.map(|pairs| pairs.placed(&types, &relations));
        Ok(Self {
            target_type: position(&meta.target_type)?,
            pairs: pairs.transpose()?,
            relations,
            types,
        })
    }
}

impl Serialize for GraphMeta {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_typed() {
            return self.to_typed().serialize(serializer);
        }
        let (nodes, edges) = (self.types[0].clone(), &self.relations[0]);
        let untyped = UntypedMeta {
            id_type: nodes.id_type,
            features: nodes.features,
            columns: nodes.columns,
            label: nodes.label,
            split: nodes.split,
            edge_weight: edges.edge_weight,
            edge_feature_dim: edges.edge_feature_dim,
            self_loops: edges.self_loops,
        };
        let Some(pairs) = &self.pairs else {
            return untyped.serialize(serializer);
        };
        let mut value = serde_json::to_value(untyped).map_err(S::Error::custom)?;
        value["pairs"] = serde_json::to_value(pairs.named(self)).map_err(S::Error::custom)?;
        value.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for GraphMeta {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The whole value is read first, because only its keys tell which form it has.
        let mut value = serde_json::Value::deserialize(deserializer)?;
        if value.get("types").is_none() {
            let pairs = value.as_object_mut().and_then(|keys| keys.remove("pairs"));
            let pairs: Option<NamedPairs> = pairs
                .map(serde_json::from_value)
                .transpose()
                .map_err(D::Error::custom)?;
            let untyped = UntypedMeta::deserialize(value).map_err(D::Error::custom)?;
            let mut meta = Self::from(untyped);
            let pairs = pairs.map(|pairs| pairs.placed(&meta.types, &meta.relations));
            meta.pairs = pairs.transpose().map_err(D::Error::custom)?;
            return Ok(meta);
        }
        let typed = TypedMeta::deserialize(value).map_err(D::Error::custom)?;
        Self::try_from(typed).map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::LabelKind;
    use crate::config::Exclude;

    fn untyped() -> GraphMeta {
        GraphMeta::from(UntypedMeta {
            id_type: IdType::Int64,
            features: FeatureMeta::Dense { dim: 3 },
            columns: Vec::new(),
            label: Some(LabelMeta {
                data_type: "Int32".to_owned(),
                kind: LabelKind::Class { num_classes: 4 },
            }),
            split: None,
            edge_weight: true,
            edge_feature_dim: None,
            self_loops: false,
        })
    }

    /// Writers before typed graphs wrote this text.
    const UNTYPED: &str = concat!(
        r#"{"id_type":"int64","features":{"dense":{"dim":3}},"#,
        r#""label":{"data_type":"Int32","kind":{"class":{"num_classes":4}}},"split":null,"#,
        r#""edge_weight":true,"edge_feature_dim":null,"self_loops":false}"#
    );

    const TYPED: &str = concat!(
        r#"{"types":[{"name":"author","id_type":"utf8","features":"none","label":null,"#,
        r#""split":null},{"name":"paper","id_type":"int32","features":{"sparse":{"dim":9}},"#,
        r#""label":null,"split":null}],"#,
        r#""relations":[{"name":"cites","from":"paper","to":"paper","edge_weight":false,"#,
        r#""edge_feature_dim":2,"self_loops":true},"#,
        r#"{"name":"writes","from":"author","to":"paper","edge_weight":true,"#,
        r#""edge_feature_dim":null,"self_loops":false}],"target_type":"paper"}"#
    );

    #[test]
    fn an_untyped_graph_is_written_flat() {
        let meta = untyped();
        assert!(!meta.is_typed());
        assert_eq!(serde_json::to_string(&meta).unwrap(), UNTYPED);
        assert_eq!(serde_json::from_str::<GraphMeta>(UNTYPED).unwrap(), meta);
    }

    #[test]
    fn a_typed_graph_is_written_by_name() {
        let meta: GraphMeta = serde_json::from_str(TYPED).unwrap();
        assert!(meta.is_typed());
        let ends = |relation: &RelationMeta| (relation.from, relation.to);
        let found: Vec<_> = meta.relations.iter().map(ends).collect();
        assert_eq!((found, meta.target_type), (vec![(1, 1), (0, 1)], 1));
        assert_eq!(meta.relations_to(1).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(meta.target().name, "paper");
        assert_eq!(serde_json::to_string(&meta).unwrap(), TYPED);
    }

    #[test]
    fn pairs_are_written_by_name() {
        let pairs = PairsMeta {
            from: 1,
            to: 0,
            relations: vec![1],
            exclude: Exclude::Batch,
            label: false,
            weight: true,
            negatives: false,
            split: SplitMeta {
                data_type: "Utf8".to_owned(),
                values: None,
            },
        };
        let mut typed: GraphMeta = serde_json::from_str(TYPED).unwrap();
        typed.pairs = Some(pairs.clone());
        let text = serde_json::to_string(&typed).unwrap();
        let named =
            r#""pairs":{"from":"paper","to":"author","relations":["writes"],"exclude":"batch","#;
        assert!(text.contains(named), "{text}");
        assert_eq!(serde_json::from_str::<GraphMeta>(&text).unwrap(), typed);
        assert_eq!([0, 1].map(|at| typed.may_be_targets(at)), [true, true]);
        let unknown = text.replace(r#"["writes"]"#, r#"["likes"]"#);
        let error = serde_json::from_str::<GraphMeta>(&unknown).unwrap_err();
        let expected = "`likes` is not one of the relations";
        assert!(error.to_string().contains(expected), "{error}");
        let mut flat = untyped();
        flat.pairs = Some(PairsMeta {
            from: 0,
            to: 0,
            relations: vec![0],
            ..pairs
        });
        let flat_text = serde_json::to_string(&flat).unwrap();
        assert_eq!(serde_json::from_str::<GraphMeta>(&flat_text).unwrap(), flat);
    }

    #[test]
    fn contradictions_are_errors() {
        let check = |text: String, expected: &str| {
            let error = serde_json::from_str::<GraphMeta>(&text).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        };
        let typed = |from: &str, to: &str| TYPED.replace(from, to);
        let unknown = "`venue` is not one of the types";
        check(typed(r#""from":"author""#, r#""from":"venue""#), unknown);
        let target = r#""target_type":"paper""#;
        check(typed(target, r#""target_type":"venue""#), unknown);
        let ascend = "names of types and relations must ascend";
        check(typed("writes", "cites"), ascend);
        check(typed(r#""name":"author""#, r#""name":"paper""#), ascend);
        check(
            UNTYPED.replace("\"label\"", "\"lable\""),
            "unknown field `lable`",
        );
    }
}
