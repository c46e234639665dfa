//! The fan-outs of a job: as written, one for all relations or by relation, and as a list by
//! relation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemas::{Fanout, GraphPlan, HopFanouts, keep_at_hop};
use serde::de::value::{I64Deserializer, MapAccessDeserializer, StrDeserializer, U64Deserializer};
use serde::de::{self, IntoDeserializer, MapAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use super::key;
use crate::FlattenError;

const KEY: &str = "flatten.fanouts";

/// Fan-outs of one hop as written.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum HopSpec {
    /// One for every relation.
    Every(Fanout),
    /// By relation; 0 for relations that are not named.
    ByRelation(BTreeMap<String, RelationFanout>),
}

/// A fan-out of one relation as written; it may be 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct RelationFanout(pub Fanout);

impl<'de> Deserialize<'de> for HopSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(HopVisitor)
    }
}

struct HopVisitor;

impl<'de> Visitor<'de> for HopVisitor {
    type Value = HopSpec;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "a number of in-edges from 1 to 4294967295, \"all\", or a table of these by relation",
        )
    }

    fn visit_i64<E: de::Error>(self, count: i64) -> Result<HopSpec, E> {
        let count: I64Deserializer<E> = count.into_deserializer();
        Fanout::deserialize(count).map(HopSpec::Every)
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<HopSpec, E> {
        let count: U64Deserializer<E> = count.into_deserializer();
        Fanout::deserialize(count).map(HopSpec::Every)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<HopSpec, E> {
        let text: StrDeserializer<'_, E> = text.into_deserializer();
        Fanout::deserialize(text).map(HopSpec::Every)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<HopSpec, A::Error> {
        BTreeMap::deserialize(MapAccessDeserializer::new(map)).map(HopSpec::ByRelation)
    }
}

impl<'de> Deserialize<'de> for RelationFanout {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RelationVisitor)
    }
}

struct RelationVisitor;

impl Visitor<'_> for RelationVisitor {
    type Value = RelationFanout;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number of in-edges from 0 to 4294967295, or \"all\"")
    }

    fn visit_i64<E: de::Error>(self, count: i64) -> Result<RelationFanout, E> {
        let fitting = u32::try_from(count);
        let fitting = fitting.map_err(|_| E::invalid_value(de::Unexpected::Signed(count), &self));
        fitting.map(Fanout::Count).map(RelationFanout)
    }

    fn visit_u64<E: de::Error>(self, count: u64) -> Result<RelationFanout, E> {
        let fitting = u32::try_from(count);
        let fitting = fitting.map_err(|_| E::invalid_value(de::Unexpected::Unsigned(count), &self));
        fitting.map(Fanout::Count).map(RelationFanout)
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<RelationFanout, E> {
        match text {
            "all" => Ok(RelationFanout(Fanout::All)),
            _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
        }
    }
}

/// Returns the fan-outs of an untyped graph.
///
/// # Errors
///
/// If a hop has fan-outs by relation.
pub(super) fn untyped(hops: &[HopSpec]) -> Result<Vec<HopFanouts>, FlattenError> {
    let hops = hops.iter().map(|hop| match hop {
        HopSpec::Every(fanout) => Ok(HopFanouts::from(*fanout)),
        HopSpec::ByRelation(_) => {
            let allowed = "edges have no relations; allowed is one fan-out a hop";
            Err(key(KEY, "by relation", allowed))
        }
    });
    hops.collect()
}

/// Returns the fan-outs of each relation of a graph whose targets are of a type. Where graphs are
/// the targets, the first hop leads to all their nodes, and the hops of the job follow.
///
/// # Errors
///
/// For each name that is no relation, and each relation whose edges lead to no node of its hop. An
/// untyped graph has no relations to name.
pub(super) fn by_relation(
    hops: &[HopSpec],
    graph: &GraphPlan,
    target_type: usize,
) -> Result<Vec<HopFanouts>, Vec<FlattenError>> {
    if !graph.is_typed() {
        return untyped(hops).map_err(|error| vec![error]);
    }
    let mut found = Vec::new();
    let names: Vec<&str> = graph.relations.iter().map(|r| r.name.as_str()).collect();
    let hops_by_relation = hops.iter().zip(1..).map(|(hop, number)| match hop {
        HopSpec::Every(fanout) => HopFanouts::from(vec![*fanout; names.len()]),
        HopSpec::ByRelation(named) => {
            let mut fanouts = vec![Fanout::Count(0); names.len()];
            for (name, fanout) in named {
                match graph.relation_idx(name) {
                    Some(relation) => fanouts[relation] = fanout.0,
                    None => found.push(key(
                        KEY,
                        format!("{name:?} in hop {number}"),
                        format!("no such relation; allowed are {}", names.join(", ")),
                    )),
                }
            }
            if named.values().all(|fanout| fanout.0 == Fanout::Count(0)) {
                let allowed =
                    "a hop follows at least one relation; name one with a fan-out above 0";
                found.push(key(
                    KEY,
                    format!("0 for every relation in hop {number}"),
                    allowed,
                ));
            }
            HopFanouts::from(fanouts)
        }
    });
    let all: Vec<HopFanouts> = hops_by_relation.collect();
    let start = match graph.in_graph {
        Some(in_graph) => graph.relations[in_graph].from,
        None => target_type,
    };
    check_reach(hops, &all, graph, start, &mut found);
    match found.is_empty() {
        true => Ok(with_graphs(all, graph)),
        false => Err(found),
    }
}

/// Adds the hop from graphs to their nodes, where graphs are the targets. No other hop follows its
/// relation.
fn with_graphs(hops: Vec<HopFanouts>, graph: &GraphPlan) -> Vec<HopFanouts> {
    let Some(in_graph) = graph.in_graph else {
        return hops;
    };
    let mut first = vec![Fanout::Count(0); graph.relations.len()];
    first[in_graph] = Fanout::All;
    let others = hops.into_iter().map(|hop| {
        let mut fanouts = hop.as_ref().to_vec();
        fanouts[in_graph] = Fanout::Count(0);
        HopFanouts::from(fanouts)
    });
    std::iter::once(HopFanouts::from(first))
        .chain(others)
        .collect()
}

/// Refuses a named relation whose edges lead to none of the types that a hop starts from.
fn check_reach(
    hops: &[HopSpec],
    fanouts: &[HopFanouts],
    graph: &GraphPlan,
    target_type: usize,
    found: &mut Vec<FlattenError>,
) {
    let mut reached = BTreeSet::from([target_type]);
    reached.extend(graph.pairs.as_ref().map(|pairs| pairs.to()));
    for (at, hop) in hops.iter().enumerate() {
        let by_relation = fanouts[at].as_ref();
        for (relation, fanout) in graph.relations.iter().zip(by_relation) {
            let is_named = matches!(hop, HopSpec::ByRelation(_)) && *fanout != Fanout::Count(0);
            if is_named && !reached.contains(&relation.to) {
                let from = reached.iter().map(|&of| graph.types[of].name.as_str());
                let from = from.collect::<Vec<_>>().join(", ");
                let to = &graph.types[relation.to].name;
                found.push(key(
                    KEY,
                    format!("{:?} in hop {}", relation.name, at + 1),
                    format!("its edges lead to {to}, but this hop starts from {from} only"),
                ));
            }
        }
        let relations = graph.relations.iter().enumerate();
        let used = relations.filter(|(relation, of)| {
            reached.contains(&of.to) && keep_at_hop(fanouts, *relation, at) > 0
        });
        let more: Vec<usize> = used.map(|(_, of)| of.from).collect();
        reached.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::path::Path;
    use std::sync::Arc;

    use arrow::array::{ArrayRef, Int64Array, RecordBatch};
    use parquet::arrow::ArrowWriter;
    use schemas::InputSpec;
    use serde_json::{Value, json};

    use super::*;

    fn graph(dir: &Path) -> GraphPlan {
        let ids: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let batch = RecordBatch::try_from_iter([("id", ids)]).unwrap();
        let file = File::create(dir.join("t.parquet")).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let nodes = json!({ "path": "t.parquet", "id": "id" });
        let edges = |from: &str, to: &str, reverse: Option<&str>| {
            json!({ "path": "t.parquet", "src": "id", "dst": "id", "from": from, "to": to,
                "reverse": reverse })
        };
        let input: InputSpec = serde_json::from_value(json!({
            "nodes": { "author": nodes, "paper": nodes, "venue": nodes },
            "edges": {
                "cites": edges("paper", "paper", None),
                "shown_at": edges("venue", "paper", None),
                "writes": edges("author", "paper", Some("by")),
            },
        }))
        .unwrap();
        input.into_plan(dir).unwrap()
    }

    /// Checks the fan-outs of the relations `by`, `cites`, `shown_at` and `writes` for targets that
    /// are authors, or the mistakes.
    #[track_caller]
    fn check(hops: Value, expected: &str) {
        let dir = tempfile::tempdir().unwrap();
        let hops: Vec<HopSpec> = serde_json::from_value(hops).unwrap();
        let found = match by_relation(&hops, &graph(dir.path()), 0) {
            Ok(hops) => hops.iter().map(ToString::to_string).collect::<Vec<_>>(),
            Err(errors) => errors.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(found.join("\n"), expected);
    }

    #[test]
    fn a_hop_has_one_fanout_or_one_for_each_relation() {
        check(json!([2, "all"]), "[2, 2, 2, 2]\n[all, all, all, all]");
        check(
            json!([{ "by": 4 }, { "cites": "all", "writes": 1, "by": 0 }]),
            "[4, 0, 0, 0]\n[0, all, 0, 1]",
        );
        // The relation of the second hop also leads to nodes that the first one reaches.
        check(json!([3, { "shown_at": 5 }]), "[3, 3, 3, 3]\n[0, 0, 5, 0]");
    }

    #[test]
    fn a_hop_follows_a_relation() {
        let none = |hop| {
            format!(
                "`flatten.fanouts` is 0 for every relation in hop {hop}: a hop follows at least \
                 one relation; name one with a fan-out above 0"
            )
        };
        check(json!([{}, 3]), &none(1));
        check(json!([3, { "by": 0, "cites": 0 }]), &none(2));
    }

    #[test]
    fn a_fanout_is_of_a_relation_that_is_reached() {
        check(
            json!([{ "bi": 4, "cites": 3 }, { "cites": 3 }]),
            "`flatten.fanouts` is \"bi\" in hop 1: no such relation; allowed are by, cites, \
             shown_at, writes\n\
             `flatten.fanouts` is \"cites\" in hop 1: its edges lead to paper, but this hop starts \
             from author only\n\
             `flatten.fanouts` is \"cites\" in hop 2: its edges lead to paper, but this hop starts \
             from author only",
        );
    }

    #[test]
    fn fanouts_by_relation_need_relations() {
        let hops: Vec<HopSpec> = serde_json::from_value(json!([3, { "by": 1 }])).unwrap();
        assert_eq!(
            untyped(&hops).unwrap_err().to_string(),
            "`flatten.fanouts` is by relation: edges have no relations; allowed is one fan-out a hop"
        );
        assert_eq!(
            untyped(&hops[..1]).unwrap(),
            [HopFanouts::from(Fanout::Count(3))]
        );
    }

    #[test]
    fn wrong_fanouts_say_what_is_allowed() {
        let problem = |hop: Value| {
            let error = serde_json::from_value::<HopSpec>(hop).unwrap_err();
            error.to_string()
        };
        let count = "a number of in-edges from 1 to 4294967295, or \"all\"";
        assert!(problem(json!(0)).contains(count));
        assert!(problem(json!("some")).contains(count));
        let or_table = "a number of in-edges from 1 to 4294967295, \"all\", or a table of these";
        assert!(problem(json!(1.5)).contains(or_table));
        let of_relation = "a number of in-edges from 0 to 4294967295, or \"all\"";
        assert!(problem(json!({ "by": -1 })).contains(of_relation));
        let written = json!([1, "all", { "by": 0, "cites": "all" }]);
        let read: Vec<HopSpec> = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), written);
    }
}
