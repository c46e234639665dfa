//! Random graphs with pairs, as tables and as plain lists.

use crate::draw::Draw;
use arrow::array::{
    ArrayRef, Float32Array, Int64Array, ListArray, ListBuilder, RecordBatch, StringArray,
    StringBuilder,
};
use arrow::datatypes::Int64Type;
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use schemas::{Exclude, IdType, Ids, InputSpec, Split, SplitShares, hash_int};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

pub(super) const SEED: u64 = 11;

/// How the ids of a type look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum IdKind {
    /// Integers without gaps.
    Run,
    /// Integers with few gaps.
    Dense,
    /// Integers far apart.
    Sparse,
    Text,
}

/// An edge row, or a row of a pairs table: positions of its ends among the ids of their types.
#[derive(Clone, Debug)]
pub(super) struct Line {
    pub(super) src: usize,
    pub(super) dst: usize,
    pub(super) time: i64,
    pub(super) weight: f32,
    pub(super) split: Option<&'static str>,
    pub(super) label: f32,
    pub(super) negatives: Vec<usize>,
}

/// A graph of users and items, or of one type without a name if `is_typed` is false.
#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) is_typed: bool,
    pub(super) kinds: [IdKind; 2],
    pub(super) sizes: [usize; 2],
    /// Rows of the edge tables: `buys`, and in a typed graph `sees`.
    pub(super) edges: [Vec<Line>; 2],
    pub(super) undirected: bool,
    pub(super) reverse: bool,
    /// Rows of a table of pairs; none if pairs are edges of `buys`.
    pub(super) table: Option<Vec<Line>>,
    pub(super) by_time: bool,
    pub(super) shares: [f64; 3],
    pub(super) exclude: Exclude,
    pub(super) has_weight: bool,
    /// Walks in place of train pairs.
    pub(super) walks: Option<Walks>,
}

/// Random walks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Walks {
    pub(super) length: u32,
    pub(super) per_node: u32,
    /// Whether val and test pairs are edges of `buys`; else there are none.
    pub(super) with_edges: bool,
    /// Type of the nodes whose visits are pairs.
    pub(super) to: usize,
}

/// A pair with its ids, as text.
pub(super) type Ends = (String, String);

/// What the slow twin knows of a pair.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Known {
    pub(super) split: Split,
    pub(super) weight: f32,
    pub(super) label: f32,
    pub(super) negatives: Vec<String>,
}

impl World {
    pub(super) fn random(draw: &mut Draw) -> Self {
        let is_typed = draw.one_in(2);
        let sizes = [20 + draw.below(30), 20 + draw.below(30)];
        let kind =
            |of: &mut Draw| of.pick(&[IdKind::Run, IdKind::Dense, IdKind::Sparse, IdKind::Text]);
        let (first, second) = (kind(draw), kind(draw));
        let ends = (is_typed, [sizes[0], sizes[usize::from(is_typed)]]);
        let buys = random_lines(draw, 250, ends);
        let sees = if is_typed {
            random_lines(draw, 150, ends)
        } else {
            Vec::new()
        };
        let table = draw.one_in(2).then(|| {
            let mut rows = random_lines(draw, 60, ends);
            rows.extend(buys.iter().filter(|_| draw.one_in(3)).cloned());
            // A row of a node with itself is an error.
            rows.retain(|of| is_typed || of.src != of.dst);
            // Rows of one pair have one split and one label.
            let mut known = BTreeMap::new();
            for row in &mut rows {
                let label = if draw.one_in(4) { 0.0 } else { 1.0 };
                let of = known
                    .entry((row.src, row.dst))
                    .or_insert((row.split, label));
                (row.split, row.label) = *of;
            }
            rows
        });
        Self {
            is_typed,
            kinds: [first, second],
            sizes,
            edges: [buys, sees],
            undirected: !is_typed && draw.one_in(2),
            reverse: is_typed && draw.one_in(2),
            table,
            by_time: draw.one_in(2),
            shares: draw.pick(&[[0.3, 0.2, 0.2], [0.6, 0.2, 0.2], [0.2, 0.0, 0.3]]),
            exclude: draw.pick(&[Exclude::All, Exclude::Batch, Exclude::None]),
            has_weight: draw.one_in(2),
            walks: None,
        }
    }

    /// Type of the dst ends.
    pub(super) fn to(&self) -> usize {
        usize::from(self.is_typed)
    }

    fn key(&self, of_type: usize, at: usize) -> i64 {
        let at = at as i64;
        match self.kinds[of_type] {
            IdKind::Run | IdKind::Text => at + 5,
            IdKind::Dense => at * 3 - 20,
            IdKind::Sparse => (at + 1) * 1_000_003,
        }
    }

    pub(super) fn id(&self, of_type: usize, at: usize) -> String {
        let key = self.key(of_type, at);
        match self.kinds[of_type] {
            IdKind::Text => format!("n{key}"),
            _ => key.to_string(),
        }
    }

    fn column(&self, of_type: usize, at: impl Iterator<Item = usize>) -> ArrayRef {
        match self.kinds[of_type] {
            IdKind::Text => {
                let ids: Vec<String> = at.map(|at| self.id(of_type, at)).collect();
                Arc::new(StringArray::from(ids))
            }
            _ => Arc::new(Int64Array::from_iter_values(
                at.map(|at| self.key(of_type, at)),
            )),
        }
    }

    pub(super) fn hash(&self, of_type: usize, at: usize) -> u64 {
        let ids = match self.kinds[of_type] {
            IdKind::Text => {
                let mut ids = Ids::new(IdType::Utf8);
                ids.push_str(&self.id(of_type, at));
                ids
            }
            _ => Ids::from_array(&Int64Array::from(vec![self.key(of_type, at)])).unwrap(),
        };
        ids.hash(0)
    }

    pub(super) fn write(&self, dir: &Path) {
        let nodes = |name: &str, of_type: usize| {
            let ids = self.column(of_type, 0..self.sizes[of_type]);
            write(&dir.join(name), vec![("id", ids)]);
        };
        nodes("users.parquet", 0);
        if self.is_typed {
            nodes("items.parquet", 1);
        }
        for (name, lines) in ["buys.parquet", "sees.parquet"].iter().zip(&self.edges) {
            write(&dir.join(name), self.lines(lines, false));
        }
        if let Some(rows) = &self.table {
            write(&dir.join("pairs.parquet"), self.lines(rows, true));
        }
    }

    fn lines(&self, lines: &[Line], is_pairs: bool) -> Vec<(&'static str, ArrayRef)> {
        let mut columns: Vec<(&str, ArrayRef)> = vec![
            ("u", self.column(0, lines.iter().map(|of| of.src))),
            ("v", self.column(self.to(), lines.iter().map(|of| of.dst))),
            (
                "at",
                Arc::new(Int64Array::from_iter_values(lines.iter().map(|of| of.time))),
            ),
            (
                "w",
                Arc::new(Float32Array::from_iter_values(
                    lines.iter().map(|of| of.weight),
                )),
            ),
        ];
        if is_pairs {
            let split: StringArray = lines.iter().map(|of| of.split).collect();
            columns.push(("split", Arc::new(split)));
            let label = lines.iter().map(|of| of.label);
            columns.push(("label", Arc::new(Float32Array::from_iter_values(label))));
            if self.kinds[self.to()] == IdKind::Text {
                let mut lists = ListBuilder::new(StringBuilder::new());
                for of in lines {
                    let ids = of.negatives.iter().map(|&at| Some(self.id(self.to(), at)));
                    lists.append_value(ids);
                }
                columns.push(("hard", Arc::new(lists.finish())));
            } else {
                let lists = lines.iter().map(|of| {
                    let keys = of.negatives.iter().map(|&at| Some(self.key(self.to(), at)));
                    Some(keys.collect::<Vec<_>>())
                });
                let lists = ListArray::from_iter_primitive::<Int64Type, _, _>(lists);
                columns.push(("hard", Arc::new(lists)));
            }
        }
        columns
    }

    fn has_negatives(&self) -> bool {
        self.table.is_some()
    }

    pub(super) fn input(&self) -> InputSpec {
        let edges = |path: &str| json!({ "path": path, "src": "u", "dst": "v" });
        let mut input = match self.is_typed {
            false => {
                let mut only = edges("buys.parquet");
                only["undirected"] = self.undirected.into();
                json!({
                    "nodes": { "": { "path": "users.parquet", "id": "id" } },
                    "edges": { "": only },
                })
            }
            true => {
                let (mut buys, mut sees) = (edges("buys.parquet"), edges("sees.parquet"));
                for of in [&mut buys, &mut sees] {
                    (of["from"], of["to"]) = ("user".into(), "item".into());
                }
                if self.reverse {
                    buys["reverse"] = "bought-by".into();
                }
                json!({
                    "nodes": {
                        "user": { "path": "users.parquet", "id": "id" },
                        "item": { "path": "items.parquet", "id": "id" },
                    },
                    "edges": { "buys": buys, "sees": sees },
                })
            }
        };
        let mut pairs = match &self.table {
            None if self.is_typed => json!({ "from_edges": "buys" }),
            None => json!({ "from_edges": true }),
            Some(_) => json!({ "path": "pairs.parquet", "src": "u", "dst": "v", "label": "label" }),
        };
        if self.table.is_some() && self.is_typed {
            (pairs["from"], pairs["to"]) = ("user".into(), "item".into());
        }
        if self.has_negatives() {
            pairs["negatives"] = "hard".into();
        }
        let [train, val, test] = self.shares;
        let share = json!({ "train": train, "val": val, "test": test, "seed": SEED });
        match (&self.table, self.by_time) {
            (_, true) => (pairs["time"], pairs["share"]) = ("at".into(), share),
            (Some(_), false) => pairs["split"] = "split".into(),
            (None, false) => pairs["share"] = share,
        }
        if self.has_weight {
            pairs["weight"] = "w".into();
        }
        if let Some(walks) = self.walks {
            if !walks.with_edges {
                pairs = json!({});
                if self.is_typed {
                    pairs["from"] = "user".into();
                    pairs["to"] = ["user", "item"][walks.to].into();
                }
            }
            let (length, per_node) = (walks.length, walks.per_node);
            pairs["walks"] = json!({ "length": length, "per_node": per_node, "seed": SEED });
        }
        pairs["exclude"] = serde_json::to_value(self.exclude).unwrap();
        input["pairs"] = pairs;
        serde_json::from_value(input).unwrap()
    }

    fn shares(&self) -> SplitShares {
        let [train, val, test] = self.shares;
        SplitShares {
            train,
            val,
            test,
            seed: Some(SEED),
        }
    }

    /// Returns the pairs with their splits, from plain lists.
    pub(super) fn pairs(&self) -> BTreeMap<Ends, Known> {
        let all = self.table.as_ref().unwrap_or(&self.edges[0]);
        let is_pair = |of: &&Line| self.table.is_some() || self.is_typed || of.src != of.dst;
        let mut groups: BTreeMap<(usize, usize), Vec<&Line>> = BTreeMap::new();
        for row in all.iter().filter(is_pair) {
            groups.entry((row.src, row.dst)).or_default().push(row);
        }
        let hash = |&(src, dst): &(usize, usize)| {
            let (src, dst) = (self.hash(0, src), self.hash(self.to(), dst));
            let seed = if self.shared() { SEED } else { 0 };
            hash_int(src.max(dst) ^ hash_int(src.min(dst) ^ hash_int(seed ^ 0x0070_6169_7273)))
        };
        let mut latest: Vec<(i64, u64, (usize, usize))> = Vec::new();
        for (ends, rows) in &groups {
            let first = rows.iter().map(|of| of.time).min().unwrap();
            latest.push((first, hash(ends), *ends));
        }
        latest.sort();
        latest.reverse();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a share of some hundred pairs"
        )]
        let count = |share: f64| (share * latest.len() as f64).round() as usize;
        let [train, val, test] = self.shares;
        let split_of = |ends: &(usize, usize), written: Option<&str>| {
            if self.by_time {
                let at = latest.iter().position(|of| of.2 == *ends).unwrap();
                // A pair and its reverse of one time and hash are in one split, the later one.
                let key = (latest[at].0, latest[at].1);
                let last = latest.iter().rposition(|of| (of.0, of.1) == key).unwrap();
                return match last {
                    last if last < count(test) => Split::Test,
                    last if last < count(test + val) => Split::Val,
                    last if last < count(test + val + train) => Split::Train,
                    _ => Split::None,
                };
            }
            match (&self.table, written) {
                (None, _) => self.shares().draw(hash(ends)),
                (Some(_), Some("train")) => Split::Train,
                (Some(_), Some("val")) => Split::Val,
                (Some(_), Some("test")) => Split::Test,
                (Some(_), _) => Split::None,
            }
        };
        let mut pairs = BTreeMap::new();
        for (ends, rows) in &groups {
            let split = split_of(ends, rows[0].split);
            if split == Split::None {
                continue;
            }
            let known = self.known(split, rows);
            pairs.insert((self.id(0, ends.0), self.id(self.to(), ends.1)), known);
        }
        pairs
    }

    /// Joins the rows of a pair.
    fn known(&self, split: Split, rows: &[&Line]) -> Known {
        let mut negatives = Vec::new();
        let is_single = rows.len() == 1;
        for &at in rows.iter().flat_map(|of| &of.negatives) {
            let id = self.id(self.to(), at);
            if self.has_negatives() && (is_single || !negatives.contains(&id)) {
                negatives.push(id);
            }
        }
        Known {
            split,
            weight: match self.has_weight {
                true => rows.iter().map(|of| of.weight).sum(),
                false => 1.0,
            },
            label: match self.table {
                Some(_) => rows[0].label,
                None => 1.0,
            },
            negatives,
        }
    }

    fn shared(&self) -> bool {
        self.by_time || self.table.is_none()
    }

    /// Returns the pairs whose edges leave.
    pub(super) fn leaving(&self, pairs: &BTreeMap<Ends, Known>) -> BTreeSet<Ends> {
        let leaves = |of: &Known| of.split != Split::Train || self.exclude == Exclude::All;
        let leaving = pairs.iter().filter(|(_, of)| leaves(of));
        leaving.map(|(ends, _)| ends.clone()).collect()
    }

    /// Returns the in-edges of each relation as (src, dst) ids, in the order of the names.
    pub(super) fn in_edges(&self, leaving: &BTreeSet<Ends>) -> BTreeMap<&'static str, Vec<Ends>> {
        let to = self.to();
        let stays = |src: usize, dst: usize| {
            let (one, two) = (self.id(0, src), self.id(to, dst));
            let is_reverse = !self.is_typed && leaving.contains(&(two.clone(), one.clone()));
            !is_reverse && !leaving.contains(&(one, two))
        };
        let ids = |of: &Line| (self.id(0, of.src), self.id(to, of.dst));
        let kept = |lines: &[Line]| -> Vec<Ends> {
            let lines = lines.iter().filter(|of| stays(of.src, of.dst));
            lines.map(ids).collect()
        };
        let flip = |edges: &[Ends]| -> Vec<Ends> {
            let edges = edges.iter();
            edges.map(|(src, dst)| (dst.clone(), src.clone())).collect()
        };
        let mut buys = kept(&self.edges[0]);
        if !self.is_typed {
            if self.undirected {
                buys.extend(flip(&buys));
            }
            return BTreeMap::from([("", buys)]);
        }
        let sees = match self.table {
            Some(_) => kept(&self.edges[1]),
            None => self.edges[1].iter().map(ids).collect(),
        };
        let mut relations = BTreeMap::new();
        if self.reverse {
            relations.insert("bought-by", flip(&buys));
        }
        relations.extend([("buys", buys), ("sees", sees)]);
        relations
    }
}

/// Draws rows with parallel edges, and within one type reverses and self-loops. `ends` tells whether
/// there are types, and has the numbers of nodes that the ends are drawn from.
fn random_lines(draw: &mut Draw, num: usize, ends: (bool, [usize; 2])) -> Vec<Line> {
    let (is_typed, [num_src, num_dst]) = ends;
    let mut lines: Vec<Line> = Vec::new();
    for _ in 0..num {
        let (mut src, mut dst) = (draw.below(num_src), draw.below(num_dst));
        if !lines.is_empty() && draw.one_in(4) {
            let known = &lines[draw.below(lines.len())];
            (src, dst) = (known.src, known.dst);
            if !is_typed && draw.one_in(2) {
                (src, dst) = (dst, src);
            }
        }
        if !is_typed && draw.one_in(12) {
            dst = src;
        }
        let splits = [
            Some("train"),
            Some("train"),
            Some("val"),
            Some("test"),
            None,
        ];
        lines.push(Line {
            src,
            dst,
            time: draw.below(20) as i64 - 10,
            weight: draw.below(8) as f32 / 2.0,
            split: draw.pick(&splits),
            label: 1.0,
            negatives: (0..draw.below(3)).map(|_| draw.below(num_dst)).collect(),
        });
    }
    lines
}

pub(super) fn write(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let batch = RecordBatch::try_from_iter(columns).unwrap();
    let rows = Some(16);
    let properties = WriterProperties::builder()
        .set_max_row_group_row_count(rows)
        .build();
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(properties)).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}
