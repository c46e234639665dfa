//! Pairs: parts have the pairs and the message graph of a slow twin, for any number of workers.

use crate::draw::Draw;
use crate::run::{silent, snapshot_parts, temporary_dir};
use arrow::array::{
    ArrayRef, Float32Array, Int64Array, ListArray, ListBuilder, RecordBatch, StringArray,
    StringBuilder, UInt64Array,
};
use arrow::datatypes::Int64Type;
use graphflat::{FlattenError, FlattenPlan, FlattenSpec, Waves, flatten};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use schemas::{
    Exclude, GraphFeatureDataset, GraphPlan, GraphShard, IdType, Ids, InputSpec, Sampling, Split,
    SplitShares, hash_int,
};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{Store, StoreError, StorePlan, open_or_build};

const SEED: u64 = 11;

/// How the ids of a type look.
#[derive(Clone, Copy, Debug, PartialEq)]
enum IdKind {
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
struct Line {
    src: usize,
    dst: usize,
    time: i64,
    weight: f32,
    split: Option<&'static str>,
    label: f32,
    negatives: Vec<usize>,
}

/// A graph of users and items, or of one type without a name if `is_typed` is false.
#[derive(Clone, Debug)]
struct World {
    is_typed: bool,
    kinds: [IdKind; 2],
    sizes: [usize; 2],
    /// Rows of the edge tables: `buys`, and in a typed graph `sees`.
    edges: [Vec<Line>; 2],
    undirected: bool,
    reverse: bool,
    /// Rows of a table of pairs; none if pairs are edges of `buys`.
    table: Option<Vec<Line>>,
    by_time: bool,
    shares: [f64; 3],
    exclude: Exclude,
    has_weight: bool,
}

/// A pair with its ids, as text.
type Ends = (String, String);

/// What the slow twin knows of a pair.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    split: Split,
    weight: f32,
    label: f32,
    negatives: Vec<String>,
}

impl World {
    fn random(draw: &mut Draw) -> Self {
        let is_typed = draw.one_in(2);
        let sizes = [20 + draw.below(30), 20 + draw.below(30)];
        let kind = |draw: &mut Draw| {
            draw.pick(&[IdKind::Run, IdKind::Dense, IdKind::Sparse, IdKind::Text])
        };
        let (first, second) = (kind(draw), kind(draw));
        let num_dst = if is_typed { sizes[1] } else { sizes[0] };
        let lines = |draw: &mut Draw, num: usize| {
            let mut lines: Vec<Line> = Vec::new();
            for _ in 0..num {
                let (mut src, mut dst) = (draw.below(sizes[0]), draw.below(num_dst));
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
                lines.push(Line {
                    src,
                    dst,
                    time: draw.below(20) as i64 - 10,
                    weight: draw.below(8) as f32 / 2.0,
                    split: draw.pick(&[
                        Some("train"),
                        Some("train"),
                        Some("val"),
                        Some("test"),
                        None,
                    ]),
                    label: 1.0,
                    negatives: (0..draw.below(3)).map(|_| draw.below(num_dst)).collect(),
                });
            }
            lines
        };
        let buys = lines(draw, 250);
        let sees = if is_typed {
            lines(draw, 150)
        } else {
            Vec::new()
        };
        let table = draw.one_in(2).then(|| {
            let mut rows = lines(draw, 60);
            rows.extend(buys.iter().filter(|_| draw.one_in(3)).cloned());
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
        }
    }

    /// Type of the dst ends.
    fn to(&self) -> usize {
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

    fn id(&self, of_type: usize, at: usize) -> String {
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

    fn hash(&self, of_type: usize, at: usize) -> u64 {
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

    fn write(&self, dir: &Path) {
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

    fn input(&self) -> InputSpec {
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
    fn pairs(&self) -> BTreeMap<Ends, Known> {
        let rows = self.table.as_ref().unwrap_or(&self.edges[0]);
        let is_pair = |of: &&Line| self.table.is_some() || self.is_typed || of.src != of.dst;
        let mut groups: BTreeMap<(usize, usize), Vec<&Line>> = BTreeMap::new();
        for row in rows.iter().filter(is_pair) {
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
        let count = |share: f64| (share * latest.len() as f64).round() as usize;
        let [train, val, test] = self.shares;
        let split_of = |ends: &(usize, usize), rows: &[&Line]| {
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
            match (&self.table, rows[0].split) {
                (None, _) => self.shares().draw(hash(ends)),
                (Some(_), Some("train")) => Split::Train,
                (Some(_), Some("val")) => Split::Val,
                (Some(_), Some("test")) => Split::Test,
                (Some(_), _) => Split::None,
            }
        };
        let mut pairs = BTreeMap::new();
        for (ends, rows) in &groups {
            let split = split_of(ends, rows);
            if split == Split::None {
                continue;
            }
            let mut negatives = Vec::new();
            let is_single = rows.len() == 1;
            for &at in rows.iter().flat_map(|of| &of.negatives) {
                let id = self.id(self.to(), at);
                if self.has_negatives() && (is_single || !negatives.contains(&id)) {
                    negatives.push(id);
                }
            }
            let known = Known {
                split,
                weight: match self.has_weight {
                    true => rows.iter().map(|of| of.weight).sum(),
                    false => 1.0,
                },
                label: if self.table.is_some() {
                    rows[0].label
                } else {
                    1.0
                },
                negatives,
            };
            pairs.insert((self.id(0, ends.0), self.id(self.to(), ends.1)), known);
        }
        pairs
    }

    fn shared(&self) -> bool {
        self.by_time || self.table.is_none()
    }

    /// Returns the pairs whose edges leave.
    fn leaving(&self, pairs: &BTreeMap<Ends, Known>) -> BTreeSet<Ends> {
        let leaves = |of: &Known| of.split != Split::Train || self.exclude == Exclude::All;
        let leaving = pairs.iter().filter(|(_, of)| leaves(of));
        leaving.map(|(ends, _)| ends.clone()).collect()
    }

    /// Returns the in-edges of each relation as (src, dst) ids, in the order of the names.
    fn in_edges(&self, leaving: &BTreeSet<Ends>) -> BTreeMap<&'static str, Vec<Ends>> {
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

fn write(path: &Path, columns: Vec<(&str, ArrayRef)>) {
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

/// A written graph.
struct Tables {
    dir: tempfile::TempDir,
    plan: Arc<GraphPlan>,
}

impl Tables {
    fn write(world: &World) -> Self {
        let dir = temporary_dir();
        world.write(dir.path());
        let plan = Arc::new(world.input().into_plan(dir.path()).unwrap());
        Self { dir, plan }
    }

    fn target_type(&self) -> usize {
        self.plan.target_type(None).unwrap()
    }

    fn flatten_plan(&self, flatten: &Value, output: &str) -> FlattenPlan {
        let mut spec = flatten.clone();
        spec["output"] = output.into();
        let spec: FlattenSpec = serde_json::from_value(spec).unwrap();
        let graph = (&*self.plan, self.target_type());
        spec.into_plan_of(graph, self.dir.path(), false).unwrap()
    }

    fn store(&self, plan: &FlattenPlan, workers: usize, name: &str) -> Result<Store, StoreError> {
        let plan = StorePlan {
            graph: Arc::clone(&self.plan),
            target_type: self.target_type(),
            seed: 3,
            sampling: Sampling::Uniform,
            keep: plan.sample().keep_by_relation(),
            samples: plan.samples(),
            redraw: true,
            hub_threshold: 10,
            workers,
            memory_budget: 1 << 24,
            dir: self.dir.path().join(name),
            fresh: false,
        };
        open_or_build(&plan, &silent())
    }

    fn flatten(&self, flatten_spec: &Value, workers: usize) -> PathBuf {
        let output = format!("out-{workers}");
        let plan = self.flatten_plan(flatten_spec, &output);
        let store = self
            .store(&plan, workers, &format!("store-{workers}"))
            .unwrap();
        flatten(&plan, &store, &silent()).unwrap();
        self.dir.path().join(output)
    }
}

/// The parts that a part's pairs and edges make, by ids.
#[derive(Debug, Default)]
struct Found {
    pairs: Vec<(Ends, Known)>,
    /// By relation.
    edges: BTreeMap<String, BTreeSet<Ends>>,
    /// In-degree of each node, by relation and id.
    in_degree: BTreeMap<(String, String), u32>,
    random: Vec<Vec<String>>,
}

fn read(output: &Path) -> Found {
    let dataset = GraphFeatureDataset::open(output).unwrap();
    dataset.verify().unwrap();
    let (mut found, meta) = (Found::default(), dataset.meta());
    let ends = meta.pairs.as_ref().unwrap();
    for index in 0..dataset.num_parts() {
        let shard: GraphShard = dataset.read_part(index).unwrap();
        let pairs = shard.pairs.as_ref().unwrap();
        let src = |row: usize| shard.nodes[ends.from].ids.display(row);
        let dst = |row: usize| shard.nodes[ends.to].ids.display(row);
        for pair in 0..pairs.len() {
            let negatives = pairs.hard.as_ref().map_or(&[][..], |of| of.of(pair));
            let known = Known {
                split: pairs.split[pair],
                weight: pairs.weight.as_ref().map_or(1.0, |of| of[pair]),
                label: pairs.label.as_ref().map_or(1.0, |of| of[pair]),
                negatives: negatives.iter().map(|row| dst(row.index())).collect(),
            };
            let both = (src(pairs.src[pair].index()), dst(pairs.dst[pair].index()));
            found.pairs.push((both, known));
        }
        let random = pairs.random.iter().map(|row| dst(row.index()));
        found.random.push(random.collect());
        assert_eq!(dataset.part(index).rows, pairs.len() as u64);
        for (edges, of) in shard.edges.iter().zip(&meta.relations) {
            let (from, to) = (&shard.nodes[of.from].ids, &shard.nodes[of.to].ids);
            let all = found.edges.entry(of.name.clone()).or_default();
            for node in 0..to.len() {
                let degree = edges.in_degree[node];
                let name = (of.name.clone(), to.display(node));
                assert_eq!(*found.in_degree.entry(name).or_insert(degree), degree);
                for edge in edges.in_edges(u32::try_from(node).unwrap()) {
                    let src = from.display(edges.in_src[edge] as usize);
                    all.insert((src, to.display(node)));
                }
            }
        }
    }
    found
}

/// Checks the parts of a graph against the twin.
fn check(world: &World, what: &str) {
    let tables = Tables::write(world);
    let spec = json!({
        "hops": 2, "fanouts": ["all", "all"], "pairs_per_part": 17, "negatives_per_part": 5,
    });
    let expected = world.pairs();
    let output = tables.flatten(&spec, 1);
    let found = read(&output);
    let mut pairs = BTreeMap::new();
    for (ends, known) in found.pairs {
        let before = pairs.insert(ends.clone(), known);
        assert_eq!(before, None, "{ends:?} is there twice; {what}");
    }
    assert_eq!(pairs, expected, "{what}");
    let leaving = world.leaving(&expected);
    let relations = world.in_edges(&leaving);
    for (relation, edges) in &relations {
        let own = &found.edges[*relation];
        let all: BTreeSet<Ends> = edges.iter().cloned().collect();
        assert!(
            own.is_subset(&all),
            "{relation}: {:?}; {what}",
            own.difference(&all)
        );
        for ((of, id), degree) in &found.in_degree {
            if of == relation {
                let in_edges = edges.iter().filter(|(_, dst)| dst == id);
                assert_eq!(
                    *degree as usize,
                    in_edges.count(),
                    "{relation} to {id}; {what}"
                );
            }
        }
    }
    for random in &found.random {
        let distinct: BTreeSet<&String> = random.iter().collect();
        assert_eq!(distinct.len(), 5, "{what}");
    }
    for workers in [2, 3, 8] {
        let other = tables.flatten(&spec, workers);
        assert!(
            snapshot_parts(&other) == snapshot_parts(&output),
            "{workers} workers; {what}"
        );
    }
    drawn_equals_written(&tables, &spec, &output, what);
}

/// Streamed draws give the parts that flatten writes.
fn drawn_equals_written(tables: &Tables, spec: &Value, output: &Path, what: &str) {
    let plan = tables.flatten_plan(spec, "unused");
    let store = tables.store(&plan, 3, "store-3").unwrap();
    let waves = Waves::open(plan.sample(), &store).unwrap();
    let dataset = GraphFeatureDataset::open(output).unwrap();
    let counts = waves.target_counts();
    assert_eq!(counts.len(), dataset.num_parts(), "{what}");
    for (part, of_part) in counts.iter().enumerate() {
        let (shard, _) = waves.draw(part, 3).unwrap();
        assert_eq!(
            shard,
            dataset.read_part(part).unwrap(),
            "part {part}; {what}"
        );
        assert_eq!(Some(*of_part), dataset.part(part).targets);
        let (other, _) = waves.draw(part, 4).unwrap();
        let random = |shard: &GraphShard| {
            let pairs = shard.pairs.as_ref().unwrap();
            let to = &shard.nodes[tables.plan.pairs.as_ref().unwrap().to()].ids;
            let ids = pairs.random.iter().map(|row| to.display(row.index()));
            (pairs.split.clone(), ids.collect::<Vec<_>>())
        };
        let (one, two) = (random(&shard), random(&other));
        assert_eq!(
            one.0, two.0,
            "the pairs of a part do not depend on the seed"
        );
        assert_ne!(one.1, two.1, "random negatives do");
    }
}

#[test]
fn parts_hold_the_pairs_and_the_message_graph_of_the_twin() {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        let world = World::random(&mut Draw::new(seed));
        seen.insert((world.is_typed, world.table.is_some(), world.by_time));
        check(&world, &format!("graph {seed}"));
    }
    assert_eq!(seen.len(), 8, "every source of pairs and splits is tried");
}

#[test]
fn bad_pairs_are_one_clear_line() {
    let world = World {
        is_typed: true,
        kinds: [IdKind::Run, IdKind::Text],
        table: Some(Vec::new()),
        by_time: false,
        ..World::random(&mut Draw::new(1))
    };
    let check = |pairs: Value, rows: Vec<(&str, ArrayRef)>, expected: &str| {
        let dir = temporary_dir();
        world.write(dir.path());
        write(&dir.path().join("pairs.parquet"), rows);
        let mut input = serde_json::to_value(world.input()).unwrap();
        input["pairs"] = pairs;
        for key in ["path", "src", "dst", "from", "to"] {
            let value = match key {
                "path" => "pairs.parquet",
                "src" => "u",
                "dst" => "v",
                "from" => "user",
                _ => "item",
            };
            input["pairs"][key] = value.into();
        }
        let input: InputSpec = serde_json::from_value(input).unwrap();
        let error = match input.into_plan(dir.path()) {
            Err(error) => error.to_string(),
            Ok(plan) => {
                let plan = Arc::new(plan);
                let tables = Tables { dir, plan };
                let spec = json!({ "hops": 1, "fanouts": [2] });
                let flatten = tables.flatten_plan(&spec, "out");
                let error = tables.store(&flatten, 2, "store").unwrap_err();
                error.to_string()
            }
        };
        let shown = error.lines().count();
        assert!(
            error.contains(expected) && shown == 1,
            "{error} should say {expected}"
        );
    };
    let users = |keys: &[i64]| -> ArrayRef { Arc::new(Int64Array::from(keys.to_vec())) };
    let texts = |texts: &[&str]| -> ArrayRef { Arc::new(StringArray::from(texts.to_vec())) };
    let both = |u: &[i64], v: &[&str]| vec![("u", users(u)), ("v", texts(v))];
    let share = json!({ "train": 0.5, "val": 0.5, "seed": 1 });
    check(
        json!({ "share": share }),
        both(&[5, 6, 1000], &["n5", "n6", "n7"]),
        "row 2: is 1000, which is no node's id",
    );
    check(
        json!({ "share": share }),
        both(&[5, 6, 7], &["n5", "none", "n7"]),
        "row 1: is none, which is no node's id",
    );
    check(
        json!({ "share": { "train": 0.000001, "seed": 1 } }),
        both(&[5, 6], &["n5", "n6"]),
        "`input.pairs.share`: puts none of 0 pairs in split `train`",
    );
    let mut timed = both(&[5, 6], &["n5", "n6"]);
    let times: ArrayRef = Arc::new(Int64Array::from(vec![Some(3), None]));
    timed.push(("at", times));
    check(
        json!({ "share": share, "time": "at" }),
        timed,
        "row 1: is null",
    );
    let mut unlike = both(&[5, 5], &["n5", "n5"]);
    unlike.push(("s", texts(&["train", "val"])));
    check(
        json!({ "split": "s" }),
        unlike,
        "differs from that of the same pair in row 0",
    );
    let mut labelled = both(&[5, 6], &["n5", "n6"]);
    labelled.push(("l", Arc::new(Float32Array::from(vec![1.0, 0.5]))));
    check(
        json!({ "share": share, "label": "l" }),
        labelled,
        "is 0.5; a label of a pair is 1 (a link) or 0 (none)",
    );
    let mut weighted = both(&[5, 6], &["n5", "n6"]);
    weighted.push(("w", Arc::new(UInt64Array::from(vec![1, 2]))));
    check(
        json!({ "share": share, "weight": "x" }),
        weighted,
        "`input.pairs.weight`",
    );
    let ints = vec![("u", users(&[5])), ("v", users(&[5]))];
    check(
        json!({ "share": share }),
        ints,
        "both must be integers or both strings",
    );
}

#[test]
fn a_part_has_no_more_negatives_than_there_are_nodes() {
    let world = World::random(&mut Draw::new(2));
    let tables = Tables::write(&world);
    let num_nodes = world.sizes[world.to()];
    let check = |flatten: Value, expected: &str| {
        let spec: FlattenSpec = serde_json::from_value(flatten).unwrap();
        let graph = (&*tables.plan, tables.target_type());
        let errors = spec
            .into_plan_of(graph, tables.dir.path(), false)
            .unwrap_err();
        let errors: Vec<String> = errors.iter().map(FlattenError::to_string).collect();
        assert_eq!(errors, [expected]);
    };
    let with = |key: &str, value: Value| {
        let mut spec = json!({ "output": "o", "hops": 1, "fanouts": [2] });
        spec[key] = value;
        spec
    };
    check(
        with("negatives_per_part", (num_nodes + 1).into()),
        &format!(
            "`flatten.negatives_per_part` is {}: the dst ends have a type of {num_nodes} nodes; \
             allowed are 0 to that",
            num_nodes + 1
        ),
    );
    let ends = "with [input.pairs] the ends of pairs are the targets; leave it out";
    check(
        with("targets", "all".into()),
        &format!("`flatten.targets` is given: {ends}"),
    );
    check(
        with("targets_per_part", 5.into()),
        &format!("`flatten.targets_per_part` is given: {ends}"),
    );
    check(
        with("layout", "rows".into()),
        "`flatten.layout` is \"rows\": pairs are written in layout \"shards\" only",
    );
}
