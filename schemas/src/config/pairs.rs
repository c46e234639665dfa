//! The table `[input.pairs]` of a job as written: the supervision of links.

use serde::{Deserialize, Serialize};

use super::{InputSpec, SplitShares, SplitValues, TablePath};
use crate::error::SchemaError;
use crate::ids::hash_int;
use crate::input::closest;

/// `[input.pairs]` as written: the pairs that a model of links is trained and measured on.
///
/// Pairs come from the edges of a relation (`from_edges`) or from a table of their own (`path`).
/// With `walks`, train pairs come from random walks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairsSpec {
    /// The relation whose edges are the pairs; `true` in a graph without relations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_edges: Option<FromEdges>,
    /// Random walks, whose visits are the train pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub walks: Option<WalksSpec>,
    /// Table of the pairs: Parquet or CSV file, directory or glob, or several of these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<TablePath>,
    /// Node type of the src ends of a table or of walks; none if nodes have no types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Node type of the dst ends of a table or of walks; none if nodes have no types.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    /// Column of the src ids of a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub src: Option<String>,
    /// Column of the dst ids of a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dst: Option<String>,
    /// Shares of the pairs: drawn by a hash of the two ids, or with `time` the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<SplitShares>,
    /// Column of the splits of a table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split: Option<String>,
    /// The numbers of the splits, if the split column holds numbers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub split_values: Option<SplitValues>,
    /// Column of times: the latest pairs are the test split, those before the val split.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<String>,
    /// Column of the weights of pairs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<String>,
    /// Column of the labels: 1 for a link, 0 for a pair that is known to be none. Default: every
    /// pair is a link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// List column of the ids of hard negatives, which are of the type of the dst ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub negatives: Option<String>,
    /// Which pairs carry no messages.
    #[serde(default)]
    pub exclude: Exclude,
}

/// `from_edges` as written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged, expecting = "allowed is true, or the name of a relation")]
pub enum FromEdges {
    /// `true`: the edges of a graph without relations.
    All(bool),
    /// Name of a relation.
    Relation(String),
}

/// Greatest `walks.length`.
const LENGTH_MAX: u32 = 1024;

/// Greatest `walks.per_node`.
const PER_NODE_MAX: u32 = 65536;

/// `walks` as written: walks from every node, along in-edges from dst to src.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WalksSpec {
    /// Steps of a walk, 1 to 1024.
    pub length: u32,
    /// Walks from each node, 1 to 65536.
    pub per_node: u32,
    /// Seed of the steps. Default: the seed of the job.
    #[serde(default)]
    pub seed: Option<u64>,
}

/// Keeps the draw of steps apart from other draws with the same seed: "walks" in ASCII.
const WALKS_SALT: u64 = 0x0077_616c_6b73;

impl WalksSpec {
    /// Returns a hash of the seed, the start and the number of a walk; `start_hash` is
    /// [`Ids::hash`](crate::Ids::hash).
    pub fn key(&self, start_hash: u64, walk: u32) -> u64 {
        let seed = self.seed.unwrap_or_default();
        hash_int(u64::from(walk) ^ hash_int(start_hash ^ hash_int(seed ^ WALKS_SALT)))
    }

    /// Returns which of a node's in-edges a walk takes, counted in the order of relation, source and
    /// ordinal; `key` is that of the walk, and steps count from 0.
    pub fn step(key: u64, step: u32, num_in_edges: usize) -> usize {
        let hash = hash_int(u64::from(step) ^ key);
        let at = (u128::from(hash) * num_in_edges as u128) >> 64;
        usize::try_from(at).expect("below the number of in-edges")
    }
}

/// Which pairs carry no messages: their edges and the reverses of these are left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Exclude {
    /// The pairs of every split.
    #[default]
    All,
    /// Val and test pairs, and train pairs in their own batch.
    Batch,
    /// Val and test pairs only.
    None,
}

impl PairsSpec {
    /// Sets the seed of shares and walks, unless the job file sets one.
    pub(super) fn set_split_seed(&mut self, seed: u64) {
        if let Some(shares) = &mut self.share {
            shares.seed.get_or_insert(seed);
        }
        if let Some(walks) = &mut self.walks {
            walks.seed.get_or_insert(seed);
        }
    }

    /// Adds an error for each wrong or missing key. Opens no file.
    pub(super) fn check(&self, input: &InputSpec, found: &mut Vec<SchemaError>) {
        match (&self.from_edges, &self.path) {
            (Some(_), Some(_)) => found.push(wrong(
                "from_edges",
                "and `path` are both given; pairs come from a relation or from a table of their own",
            )),
            (None, None) if self.walks.is_some() => self.check_types(input, found),
            (None, None) => found.push(SchemaError::Key {
                key: "input.pairs".to_owned(),
                problem: "needs `input.pairs.from_edges`, the relation whose edges are the pairs, \
                          or `input.pairs.path`, a table of pairs, or `input.pairs.walks`"
                    .to_owned(),
            }),
            (Some(from), None) => self.check_relation(from, input, found),
            (None, Some(_)) if self.walks.is_some() => found.push(wrong(
                "path",
                "and `walks` are both given; with `walks` train pairs are the nodes that walks visit",
            )),
            (None, Some(_)) => self.check_table(input, found),
        }
        match &self.walks {
            Some(_) if self.path.is_some() => {}
            Some(walks) => self.check_walks(walks, found),
            None => self.check_splits(found),
        }
        let nodes = input.nodes.iter();
        for (name, column, is_given) in nodes.flat_map(|(name, nodes)| {
            let (label, split) = (nodes.label.is_some(), nodes.split.is_some());
            [(name, "label", label), (name, "split", split)]
        }) {
            if is_given {
                let table = match name.as_str() {
                    "" => "input.nodes".to_owned(),
                    name => format!("input.nodes.{name}"),
                };
                found.push(SchemaError::Key {
                    key: format!("{table}.{column}"),
                    problem: "is for models of nodes; with [input.pairs] a model is trained on \
                              pairs; leave it out"
                        .to_owned(),
                });
            }
        }
    }

    fn check_relation(&self, from: &FromEdges, input: &InputSpec, found: &mut Vec<SchemaError>) {
        for (key, is_given) in [
            ("from", self.from.is_some()),
            ("to", self.to.is_some()),
            ("src", self.src.is_some()),
            ("dst", self.dst.is_some()),
        ] {
            if is_given {
                let problem = "is for a table of pairs; with `from_edges` it is that of the \
                               relation; leave it out";
                found.push(wrong(key, problem));
            }
        }
        let names: Vec<&str> = input.edges.keys().map(String::as_str).collect();
        let problem = match from {
            FromEdges::All(true) if !input.is_typed() => return,
            FromEdges::Relation(name) if input.is_typed() && input.edges.contains_key(name) => {
                return;
            }
            FromEdges::All(false) => "is false; leave it out".to_owned(),
            FromEdges::All(true) => {
                let allowed = names.join(", ");
                format!("is true, but the edges have relations; allowed are {allowed}")
            }
            FromEdges::Relation(name) if !input.is_typed() => format!(
                "is {name:?}, but the edges have no relations; `from_edges = true` takes them all"
            ),
            FromEdges::Relation(name) => {
                let is_reverse = |of: &&String| input.edges[*of].reverse.as_ref() == Some(name);
                match input.edges.keys().find(is_reverse) {
                    Some(of) => format!(
                        "is {name:?}, the reverse of {of:?}; name {of:?}: its reverses follow it"
                    ),
                    None => {
                        let meant = closest(name, &names);
                        let meant = meant.map(|nearest| format!("did you mean {nearest}? "));
                        let (meant, allowed) = (meant.unwrap_or_default(), names.join(", "));
                        format!("is {name:?}, which is no relation; {meant}allowed are {allowed}")
                    }
                }
            }
        };
        found.push(wrong("from_edges", problem));
    }

    fn check_table(&self, input: &InputSpec, found: &mut Vec<SchemaError>) {
        for (key, written) in [("src", &self.src), ("dst", &self.dst)] {
            if written.is_none() {
                found.push(wrong(
                    key,
                    "is missing; a table of pairs needs `src` and `dst`",
                ));
            }
        }
        self.check_types(input, found);
    }

    /// Checks the types of the ends of a table or of walks.
    fn check_types(&self, input: &InputSpec, found: &mut Vec<SchemaError>) {
        let types: Vec<&str> = input.nodes.keys().map(String::as_str).collect();
        let allowed = types.join(", ");
        for (key, written) in [("from", &self.from), ("to", &self.to)] {
            let problem = match written {
                None if input.is_typed() => format!("is missing; allowed are {allowed}"),
                Some(_) if !input.is_typed() => {
                    "is for node types, as in [input.nodes.TYPE]; leave it out".to_owned()
                }
                Some(name) if !input.nodes.contains_key(name) => {
                    let meant = closest(name, &types);
                    let meant = meant.map(|nearest| format!("did you mean {nearest}? "));
                    let meant = meant.unwrap_or_default();
                    format!("is {name:?}, which is no node type; {meant}allowed are {allowed}")
                }
                _ => continue,
            };
            found.push(wrong(key, problem));
        }
    }

    /// Checks the keys of walks, and that the other keys fit them.
    fn check_walks(&self, walks: &WalksSpec, found: &mut Vec<SchemaError>) {
        for (key, value, most) in [
            ("walks.length", walks.length, LENGTH_MAX),
            ("walks.per_node", walks.per_node, PER_NODE_MAX),
        ] {
            if !(1..=most).contains(&value) {
                found.push(wrong(key, format!("is {value}; allowed is 1 to {most}")));
            }
        }
        let of_table = [
            ("label", self.label.is_some()),
            ("negatives", self.negatives.is_some()),
        ];
        for (key, _) in of_table.into_iter().filter(|(_, is_given)| *is_given) {
            let problem = "is for pairs of a table; with `walks` train pairs are the nodes that walks \
                           visit; leave it out";
            found.push(wrong(key, problem));
        }
        if self.weight.is_some() {
            let problem =
                "and `walks` are both given; the weight of a pair is the number of visits";
            found.push(wrong("weight", problem));
        }
        if self.exclude == Exclude::All {
            let problem = "is \"all\", but walks go along edges that carry messages; write \"none\", \
                           or \"batch\" to leave the edges of a batch's pairs out of the batch";
            found.push(wrong("exclude", problem));
        }
        let splits = [
            ("share", self.share.is_some()),
            ("split", self.split.is_some()),
            ("time", self.time.is_some()),
        ];
        match (
            &self.from_edges,
            splits.into_iter().find(|(_, is_given)| *is_given),
        ) {
            (Some(_), _) => self.check_splits(found),
            (None, Some((key, _))) => {
                let problem =
                    "needs `from_edges`, the relation whose edges are the val and test pairs";
                found.push(wrong(key, problem));
            }
            (None, None) => {}
        }
    }

    /// Checks that there is one source of splits.
    fn check_splits(&self, found: &mut Vec<SchemaError>) {
        match (&self.split, &self.share, &self.time) {
            (None, None, None) => found.push(wrong(
                "share",
                "is missing; pairs need `share`, such as { train = 0.8, val = 0.1, test = 0.1 }, \
                 or `split`, a column",
            )),
            (None, None, Some(_)) => found.push(wrong(
                "time",
                "needs `share`, such as { train = 0.8, val = 0.1, test = 0.1 }: how many of the \
                 latest pairs are test and val pairs",
            )),
            (Some(_), None, None) | (None, Some(_), _) => {}
            (Some(_), ..) => found.push(wrong(
                "split",
                "is a column of splits; leave `share` and `time` out",
            )),
        }
        if self.split.is_none() && self.split_values.is_some() {
            let problem = "needs `split`, the column that holds the numbers";
            found.push(wrong("split_values", problem));
        }
        if let Some(shares) = &self.share {
            let none = "`train` is 0; no pair would be trained on".to_owned();
            let problem = shares.problem();
            let is_untrained = shares.train == 0.0 && self.walks.is_none();
            let problem = problem.or_else(|| is_untrained.then_some(none));
            found.extend(problem.map(|problem| wrong("share", problem)));
        }
    }
}

fn wrong(key: &str, problem: impl Into<String>) -> SchemaError {
    SchemaError::Key {
        key: format!("input.pairs.{key}"),
        problem: problem.into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Checks the mistakes of `pairs`, one a line; users buy items, and `bought-by` is the reverse.
    #[track_caller]
    fn check(is_typed: bool, pairs: Value, expected: &str) {
        let nodes = json!({ "path": "n", "id": "id" });
        let mut edges = json!({ "path": "e", "src": "s", "dst": "d" });
        let mut input = match is_typed {
            false => json!({ "nodes": { "": nodes }, "edges": { "": edges } }),
            true => {
                for (key, value) in [("from", "user"), ("to", "item"), ("reverse", "bought-by")] {
                    edges[key] = value.into();
                }
                json!({ "nodes": { "user": nodes, "item": nodes }, "edges": { "buys": edges } })
            }
        };
        input["pairs"] = pairs;
        let input: InputSpec = serde_json::from_value(input).unwrap();
        let lines: Vec<String> = input.mistakes().iter().map(ToString::to_string).collect();
        assert_eq!(lines.join("\n"), expected);
    }

    #[test]
    fn good_pairs_have_no_mistake() {
        let share = json!({ "train": 0.8, "val": 0.1, "test": 0.1 });
        check(false, json!({ "from_edges": true, "share": share }), "");
        check(
            true,
            json!({ "from_edges": "buys", "time": "at", "share": share }),
            "",
        );
        let table = json!({ "path": "p", "src": "u", "dst": "v", "split": "s" });
        check(false, table.clone(), "");
        let mut typed = table;
        (typed["from"], typed["to"]) = ("user".into(), "item".into());
        check(true, typed, "");
    }

    #[test]
    fn pairs_have_one_source() {
        let share = json!({ "train": 1.0 });
        check(
            false,
            json!({ "share": share }),
            "`input.pairs`: needs `input.pairs.from_edges`, the relation whose edges are the pairs, \
             or `input.pairs.path`, a table of pairs, or `input.pairs.walks`",
        );
        check(
            false,
            json!({ "from_edges": true, "path": "p", "share": share }),
            "`input.pairs.from_edges`: and `path` are both given; pairs come from a relation or \
             from a table of their own",
        );
        check(
            true,
            json!({ "from_edges": true, "share": share }),
            "`input.pairs.from_edges`: is true, but the edges have relations; allowed are buys",
        );
        check(
            true,
            json!({ "from_edges": "bys", "share": share }),
            "`input.pairs.from_edges`: is \"bys\", which is no relation; did you mean buys? \
             allowed are buys",
        );
        check(
            true,
            json!({ "from_edges": "bought-by", "share": share }),
            "`input.pairs.from_edges`: is \"bought-by\", the reverse of \"buys\"; name \"buys\": \
             its reverses follow it",
        );
        check(
            true,
            json!({ "path": "p", "src": "u", "dst": "v", "from": "user", "share": share }),
            "`input.pairs.to`: is missing; allowed are item, user",
        );
    }

    #[test]
    fn pairs_have_one_source_of_splits() {
        let with = |key: &str, value: Value| {
            let mut pairs = json!({ "from_edges": true, "share": { "train": 1.0 } });
            pairs[key] = value;
            pairs
        };
        check(
            false,
            with("split", "s".into()),
            "`input.pairs.split`: is a column of splits; leave `share` and `time` out",
        );
        check(
            false,
            with("split_values", json!({ "train": 0, "val": 1, "test": 2 })),
            "`input.pairs.split_values`: needs `split`, the column that holds the numbers",
        );
        check(
            false,
            with("share", json!({ "train": 0.0, "test": 0.5 })),
            "`input.pairs.share`: `train` is 0; no pair would be trained on",
        );
    }

    #[test]
    fn walks_replace_the_train_pairs() {
        let walks = |length: i64, per_node: i64| json!({ "length": length, "per_node": per_node });
        let with = |keys: &[(&str, Value)]| {
            let mut pairs = json!({ "walks": walks(3, 2), "exclude": "none" });
            keys.iter()
                .for_each(|(key, value)| pairs[key] = value.clone());
            pairs
        };
        let share = json!({ "train": 0.0, "val": 0.1, "test": 0.1 });
        let ends = [("from", json!("user")), ("to", json!("item"))];
        check(false, with(&[]), "");
        check(false, with(&[("exclude", json!("batch"))]), "");
        check(true, with(&ends), "");
        let edges = [("from_edges", json!("buys")), ("share", share.clone())];
        check(true, with(&edges), "");
        check(
            true,
            with(&[]),
            "`input.pairs.from`: is missing; allowed are item, user\n\
             `input.pairs.to`: is missing; allowed are item, user",
        );
        check(
            false,
            with(&[("walks", walks(0, 65537))]),
            "`input.pairs.walks.length`: is 0; allowed is 1 to 1024\n\
             `input.pairs.walks.per_node`: is 65537; allowed is 1 to 65536",
        );
        check(
            false,
            with(&[("exclude", json!("all"))]),
            "`input.pairs.exclude`: is \"all\", but walks go along edges that carry messages; write \
             \"none\", or \"batch\" to leave the edges of a batch's pairs out of the batch",
        );
        check(
            false,
            with(&[("path", json!("p")), ("src", json!("u"))]),
            "`input.pairs.path`: and `walks` are both given; with `walks` train pairs are the nodes \
             that walks visit",
        );
        check(
            false,
            with(&[("label", json!("l"))]),
            "`input.pairs.label`: is for pairs of a table; with `walks` train pairs are the nodes \
             that walks visit; leave it out",
        );
        check(
            false,
            with(&[("weight", json!("w"))]),
            "`input.pairs.weight`: and `walks` are both given; the weight of a pair is the number of \
             visits",
        );
        check(
            false,
            with(&[("share", share)]),
            "`input.pairs.share`: needs `from_edges`, the relation whose edges are the val and test \
             pairs",
        );
        check(
            false,
            with(&[("from_edges", json!(true))]),
            "`input.pairs.share`: is missing; pairs need `share`, such as { train = 0.8, val = 0.1, \
             test = 0.1 }, or `split`, a column",
        );
    }
}
