//! Stores of random graphs with types and relations, compared with a slow twin that sorts all
//! in-edges of every node.
#![cfg(test)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int64Array, RecordBatch, StringArray};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use schemas::{Features, GraphPlan, Ids, InputSpec, Labels, Progress, Sampling, Split};
use serde_json::{Value, json};
use store::sample::{edge_hash, mix, priority, relation_salt};
use store::{Store, StorePlan, open_or_build};

/// Random numbers of a test.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        usize::try_from(mix(self.0) % bound.max(1) as u64).unwrap()
    }
}

struct Type {
    name: String,
    has_text: bool,
    ids: Vec<i64>,
}

struct Relation {
    name: String,
    /// Positions in the list of types.
    from: usize,
    to: usize,
    undirected: bool,
    reverse: Option<String>,
    is_weighted: bool,
    /// File of its table.
    file: usize,
}

/// A row of a table of edges: its relation, and positions of its ends in their types.
#[derive(Clone, Copy)]
struct Row {
    relation: usize,
    src: usize,
    dst: usize,
    weight: f32,
    feature: f32,
}

struct Graph {
    types: Vec<Type>,
    relations: Vec<Relation>,
    rows: Vec<Row>,
}

/// Settings of a store.
#[derive(Clone, Copy)]
struct Settings {
    workers: usize,
    sampling: Sampling,
    seed: u64,
    /// In-edges kept of the relations of even and odd positions.
    keep: [usize; 2],
    samples: u32,
    redraw: bool,
    hub_threshold: u64,
    memory_budget: usize,
}

const PLAIN: Settings = Settings {
    workers: 2,
    sampling: Sampling::Uniform,
    seed: 3,
    keep: [usize::MAX; 2],
    samples: 1,
    redraw: false,
    hub_threshold: 10_000,
    memory_budget: 1 << 24,
};

/// An in-edge: source, weight and feature.
type InEdge = (String, Option<f32>, f32);

/// The in-edges of each relation, sample and node.
type Lists = BTreeMap<(String, usize, String), Vec<InEdge>>;

impl Type {
    fn id(&self, at: usize) -> String {
        match self.has_text {
            true => format!("n{}", self.ids[at]),
            false => self.ids[at].to_string(),
        }
    }

    fn column(&self, rows: impl Iterator<Item = usize>) -> ArrayRef {
        match self.has_text {
            true => Arc::new(rows.map(|at| Some(self.id(at))).collect::<StringArray>()),
            false => Arc::new(rows.map(|at| Some(self.ids[at])).collect::<Int64Array>()),
        }
    }

    /// Hash of each node's id, and its place in the order of ids.
    fn keys(&self) -> Vec<(u64, usize)> {
        let ids = Ids::from_array(&self.column(0..self.ids.len())).unwrap();
        let mut place = vec![0; ids.len()];
        for (at, row) in ids.sort_permutation().into_iter().enumerate() {
            place[row as usize] = at;
        }
        (0..ids.len())
            .map(|row| (ids.hash(row), place[row]))
            .collect()
    }
}

/// Draws a graph of 2 to 5 types and 1 to 8 relations. One type has no relation, and one relation
/// has a hub. Types share ids.
fn draw_graph(seed: u64) -> Graph {
    let mut draw = Draw(seed);
    let num_types = 2 + draw.below(4);
    let types = (0..num_types).map(|at| {
        // Ids far apart need another lookup than ids close together.
        let step = [1, 1, 1_000_003][draw.below(3)];
        let count = 1 + draw.below(40);
        Type {
            name: format!("t{}", (at * 3 + 1) % 7),
            has_text: draw.below(3) == 0,
            ids: (0..count as i64).map(|id| (id - 2) * step).collect(),
        }
    });
    let types: Vec<Type> = types.collect();
    let connected = num_types - usize::from(num_types > 2);
    let relations = (0..1 + draw.below(8)).map(|at| {
        let (from, to) = (draw.below(connected), draw.below(connected));
        let undirected = from == to && draw.below(2) == 0;
        let is_reversed = !undirected && draw.below(2) == 0;
        Relation {
            name: format!("r{}", (at * 5 + 2) % 11),
            from,
            to,
            undirected,
            reverse: is_reversed.then(|| format!("a{at}")),
            is_weighted: draw.below(2) == 0,
            file: draw.below(2),
        }
    });
    let relations: Vec<Relation> = relations.collect();
    let hub = draw.below(relations.len());
    let mut rows = Vec::new();
    for _ in 0..relations.len() * (10 + draw.below(150)) {
        let relation = draw.below(relations.len());
        let of = &relations[relation];
        let is_hub = relation == hub && draw.below(2) == 0;
        rows.push(Row {
            relation,
            src: draw.below(types[of.from].ids.len()),
            dst: if is_hub {
                0
            } else {
                draw.below(types[of.to].ids.len())
            },
            weight: if of.is_weighted {
                draw.below(4) as f32
            } else {
                1.0
            },
            feature: rows.len() as f32,
        });
    }
    Graph {
        types,
        relations,
        rows,
    }
}

fn write(path: &Path, columns: Vec<(&str, ArrayRef)>) {
    let columns = columns.into_iter().map(|(name, array)| (name, array, true));
    let batch = RecordBatch::try_from_iter_with_nullable(columns).unwrap();
    let rows = (batch.num_rows() / 3).max(1);
    let groups = WriterProperties::builder().set_max_row_group_row_count(Some(rows));
    let file = File::create(path).unwrap();
    let mut writer = ArrowWriter::try_new(file, batch.schema(), Some(groups.build())).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
}

impl Graph {
    /// Writes all nodes to one file and the edges to two, and returns the input of a job.
    fn write(&self, dir: &Path) -> Value {
        let of_type = |at: usize, types: &[Type]| types[at].ids.len();
        let all =
            (0..self.types.len()).flat_map(|t| (0..of_type(t, &self.types)).map(move |n| (t, n)));
        // The types are mixed in the file.
        let mut all: Vec<(usize, usize)> = all.collect();
        all.sort_by_key(|&(t, n)| mix((t * 1000 + n) as u64));
        let text = |&(t, n): &(usize, usize)| self.types[t].has_text.then(|| self.types[t].id(n));
        let number =
            |&(t, n): &(usize, usize)| (!self.types[t].has_text).then(|| self.types[t].ids[n]);
        let columns: Vec<(&str, ArrayRef)> = vec![
            (
                "kind",
                Arc::new(
                    all.iter()
                        .map(|(t, _)| Some(format!("k{t}")))
                        .collect::<StringArray>(),
                ),
            ),
            (
                "text",
                Arc::new(all.iter().map(text).collect::<StringArray>()),
            ),
            (
                "number",
                Arc::new(all.iter().map(number).collect::<Int64Array>()),
            ),
            (
                "x",
                Arc::new(
                    all.iter()
                        .map(|&(t, n)| Some((t * 100 + n) as f32))
                        .collect::<Float32Array>(),
                ),
            ),
            (
                "label",
                Arc::new(
                    all.iter()
                        .map(|(_, n)| Some((n % 3) as i64))
                        .collect::<Int64Array>(),
                ),
            ),
            (
                "split",
                Arc::new(all.iter().map(|_| Some("train")).collect::<StringArray>()),
            ),
        ];
        write(&dir.join("nodes.parquet"), columns);
        for file in 0..2 {
            self.write_edges(&dir.join(format!("edges-{file}.parquet")), file);
        }
        self.input()
    }

    fn write_edges(&self, path: &Path, file: usize) {
        let is_here = |row: &&Row| self.relations[row.relation].file == file;
        let rows: Vec<&Row> = self.rows.iter().filter(is_here).collect();
        let end = |row: &Row, is_src: bool| {
            let of = &self.relations[row.relation];
            match is_src {
                true => (&self.types[of.from], row.src),
                false => (&self.types[of.to], row.dst),
            }
        };
        let text = |is_src: bool| -> ArrayRef {
            let ids = rows.iter().map(|row| {
                let (of_type, at) = end(row, is_src);
                of_type.has_text.then(|| of_type.id(at))
            });
            Arc::new(ids.collect::<StringArray>())
        };
        let number = |is_src: bool| -> ArrayRef {
            let ids = rows.iter().map(|row| {
                let (of_type, at) = end(row, is_src);
                (!of_type.has_text).then(|| of_type.ids[at])
            });
            Arc::new(ids.collect::<Int64Array>())
        };
        let kind = rows.iter().map(|row| Some(row.relation as i64));
        let weight = rows.iter().map(|row| Some(row.weight));
        let feature = rows.iter().map(|row| Some(row.feature));
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("kind", Arc::new(kind.collect::<Int64Array>())),
            ("src_text", text(true)),
            ("src_number", number(true)),
            ("dst_text", text(false)),
            ("dst_number", number(false)),
            ("weight", Arc::new(weight.collect::<Float32Array>())),
            ("feature", Arc::new(feature.collect::<Float32Array>())),
        ];
        write(path, columns);
    }

    fn input(&self) -> Value {
        let column = |of: &Type| if of.has_text { "text" } else { "number" };
        let nodes = self.types.iter().enumerate().map(|(at, of)| {
            let table = json!({
                "path": "nodes.parquet", "id": column(of), "features": ["x"], "label": "label",
                "split": "split", "where": { "kind": format!("k{at}") },
            });
            (of.name.clone(), table)
        });
        let edges = self.relations.iter().enumerate().map(|(at, of)| {
            let (from, to) = (&self.types[of.from], &self.types[of.to]);
            let weight = of.is_weighted.then_some("weight");
            let table = json!({
                "path": format!("edges-{}.parquet", of.file), "where": { "kind": at },
                "from": from.name, "to": to.name,
                "src": format!("src_{}", column(from)), "dst": format!("dst_{}", column(to)),
                "undirected": of.undirected, "reverse": of.reverse, "weight": weight,
                "features": ["feature"],
            });
            (of.name.clone(), table)
        });
        json!({
            "nodes": nodes.collect::<serde_json::Map<_, _>>(),
            "edges": edges.collect::<serde_json::Map<_, _>>(),
        })
    }

    /// The in-edges of each relation in the order of rows: source, destination, weight, feature.
    fn in_edges(&self) -> BTreeMap<String, (usize, usize, bool, Vec<Row>)> {
        let mut all = BTreeMap::new();
        for (at, of) in self.relations.iter().enumerate() {
            let rows = self.rows.iter().filter(|row| row.relation == at);
            let reversed = |row: &Row| Row {
                src: row.dst,
                dst: row.src,
                ..*row
            };
            let both = |row: &Row| match of.undirected {
                true => vec![*row, reversed(row)],
                false => vec![*row],
            };
            let own = rows.clone().flat_map(both).collect();
            all.insert(of.name.clone(), (of.from, of.to, of.is_weighted, own));
            if let Some(reverse) = &of.reverse {
                let opposite = rows.map(reversed).collect();
                all.insert(reverse.clone(), (of.to, of.from, of.is_weighted, opposite));
            }
        }
        all
    }

    /// The slow twin: ranks all in-edges of every node by sorting them.
    fn lists(&self, settings: &Settings) -> Lists {
        let mut lists = Lists::new();
        for (idx, (name, (from, to, is_weighted, rows))) in self.in_edges().into_iter().enumerate()
        {
            let salt = relation_salt(&name);
            let (src_keys, dst_keys) = (self.types[from].keys(), self.types[to].keys());
            for (dst, &(dst_hash, _)) in dst_keys.iter().enumerate() {
                let mine: Vec<&Row> = rows.iter().filter(|row| row.dst == dst).collect();
                for sample in 0..settings.samples as usize + usize::from(settings.redraw) {
                    let is_drawn = sample < settings.samples as usize;
                    let seed = settings.seed + sample as u64;
                    let ranked = mine.iter().enumerate().map(|(at, row)| {
                        let (hash, place) = src_keys[row.src];
                        let ordinal = mine[..at].iter().filter(|of| of.src == row.src).count();
                        let ordinal = u32::try_from(ordinal).unwrap();
                        let hash = edge_hash(salt, hash, dst_hash);
                        let drawn = priority(settings.sampling, seed, hash, ordinal, row.weight);
                        let first = if is_drawn { drawn } else { 0 };
                        ((first, place, ordinal), *row)
                    });
                    let mut ranked: Vec<_> = ranked.collect();
                    ranked.sort_by_key(|(rank, _)| *rank);
                    ranked.truncate(if is_drawn {
                        settings.keep[idx % 2]
                    } else {
                        usize::MAX
                    });
                    let edge = |(_, row): &(_, &Row)| {
                        let src = self.types[from].id(row.src);
                        (src, is_weighted.then_some(row.weight), row.feature)
                    };
                    let key = (name.clone(), sample, self.types[to].id(dst));
                    lists.insert(key, ranked.iter().map(edge).collect());
                }
            }
        }
        lists
    }

    fn plan(&self, dir: &Path) -> GraphPlan {
        let input: InputSpec = serde_json::from_value(self.input()).unwrap();
        input.into_plan(dir).unwrap()
    }
}

fn build(graph: &Graph, dir: &Path, settings: &Settings) -> Store {
    let plan = graph.plan(dir);
    let keep = (0..plan.relations.len()).map(|relation| settings.keep[relation % 2]);
    let plan = StorePlan {
        keep: keep.collect(),
        target_type: 0,
        graph: Arc::new(plan),
        seed: settings.seed,
        sampling: settings.sampling,
        samples: settings.samples,
        redraw: settings.redraw,
        left_out: false,
        hub_threshold: settings.hub_threshold,
        workers: settings.workers,
        memory_budget: settings.memory_budget,
        page_cache: None,
        dir: dir.join(format!("store-{}", settings.workers)),
        fresh: true,
    };
    open_or_build(&plan, &silent()).unwrap()
}

fn silent() -> Progress {
    Arc::new(|_| {})
}

/// Reads the in-edges of every node from a store.
fn lists_of(store: &Store, settings: &Settings) -> Lists {
    let (placement, meta) = (store.placement(), store.meta());
    let mut lists = Lists::new();
    for (relation, of) in meta.graph.relations.iter().enumerate() {
        for worker in 0..settings.workers {
            let partition = store.partition(worker);
            assert_eq!(partition.relation_to(relation), of.to);
            for local in partition.locals(of.to) {
                let (ids, row) = partition.id(local);
                for sample in 0..settings.samples as usize + usize::from(settings.redraw) {
                    let list = partition.in_edges(relation, sample, local, usize::MAX);
                    let edge = |(at, &src): (usize, _)| {
                        let (owner, src_local) = placement.owner_and_local(src);
                        assert_eq!(placement.type_of(src), of.from);
                        let (src_ids, src_row) = store.partition(owner).id(src_local);
                        let feature = list.feature.unwrap()[at];
                        let weight = list.weight.map(|all| all[at]);
                        (src_ids.display(src_row), weight, feature)
                    };
                    let edges = list.src.iter().enumerate().map(edge);
                    let key = (of.name.clone(), sample, ids.display(row));
                    assert!(lists.insert(key, edges.collect()).is_none());
                }
            }
        }
    }
    lists
}

/// Checks the degrees of every node.
fn check_degrees(graph: &Graph, store: &Store, settings: &Settings) {
    for (relation, of) in store.meta().graph.relations.iter().enumerate() {
        let (from, to, is_weighted, rows) = &graph.in_edges()[&of.name];
        for worker in 0..settings.workers {
            let partition = store.partition(worker);
            for local in partition.locals(of.to) {
                let (ids, type_row) = partition.id(local);
                let id = ids.display(type_row);
                let dst = (0..graph.types[*to].ids.len())
                    .find(|&at| graph.types[*to].id(at) == id)
                    .unwrap();
                let mine: Vec<&Row> = rows.iter().filter(|row| row.dst == dst).collect();
                let loops: Vec<&&Row> = mine
                    .iter()
                    .filter(|row| from == to && row.src == row.dst)
                    .collect();
                assert_eq!(partition.in_degree(relation, local) as usize, mine.len());
                let weights = mine.iter().map(|row| row.weight).sum::<f32>();
                assert_eq!(
                    partition.in_weight(relation, local),
                    is_weighted.then_some(weights)
                );
                let count = u32::try_from(loops.len()).unwrap();
                let self_loops = of.self_loops.then_some(count);
                assert_eq!(partition.self_loops(relation, local), self_loops);
                let loop_weights = loops.iter().map(|row| row.weight).sum::<f32>();
                let self_weight = (of.self_loops && *is_weighted).then_some(loop_weights);
                assert_eq!(partition.self_weight(relation, local), self_weight);
            }
        }
    }
}

/// Checks the columns of every node: only those of the target type have labels and splits.
fn check_nodes(graph: &Graph, store: &Store, settings: &Settings) {
    let meta = &store.meta().graph;
    for (type_idx, of) in meta.types.iter().enumerate() {
        let at = graph
            .types
            .iter()
            .position(|given| given.name == of.name)
            .unwrap();
        let mut found = Vec::new();
        for worker in 0..settings.workers {
            let partition = store.partition(worker);
            for (row, local) in partition.locals(type_idx).enumerate() {
                assert_eq!(
                    (partition.type_of(local), partition.id(local).1),
                    (type_idx, row)
                );
                let node = store.placement().node(worker, local);
                assert_eq!(store.placement().owner_and_local(node), (worker, local));
                let mut features = Features::empty(of.features);
                partition.features_into(local, &mut features);
                let mut labels = Labels::empty(of.label.as_ref());
                partition.label_into(local, &mut labels);
                let id = partition.ids(type_idx).display(row);
                found.push((
                    node,
                    id,
                    format!("{features:?}"),
                    labels,
                    partition.split(local),
                ));
            }
        }
        found.sort_by_key(|(node, ..)| *node);
        let keys = graph.types[at].keys();
        let mut order: Vec<usize> = (0..keys.len()).collect();
        order.sort_by_key(|&row| keys[row].1);
        assert_eq!(found.len(), keys.len());
        let is_target = type_idx == 0;
        for ((_, id, features, labels, split), row) in found.into_iter().zip(order) {
            assert_eq!(id, graph.types[at].id(row));
            let values = vec![(at * 100 + row) as f32];
            assert_eq!(
                features,
                format!("{:?}", Features::Dense { dim: 1, values })
            );
            let label = u32::try_from(row % 3).unwrap();
            let expected = if is_target {
                Labels::Class(vec![label])
            } else {
                Labels::None
            };
            assert_eq!(labels, expected);
            assert_eq!(split, if is_target { Split::Train } else { Split::None });
        }
    }
}

/// Returns how much memory of this process the mapped files of a directory take whose names start
/// with `name`; none if none is mapped.
fn resident_kb(dir: &Path, name: &str) -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_of_file, mut sum) = (false, None);
    for line in maps.lines() {
        if let Some(kb) = line.strip_prefix("Rss:").filter(|_| is_of_file) {
            let kb: u64 = kb.trim().trim_end_matches(" kB").parse().unwrap();
            sum = Some(sum.unwrap_or(0) + kb);
        } else if line
            .split(' ')
            .next()
            .is_some_and(|range| range.contains('-'))
        {
            let path = line.find('/').map(|at| Path::new(&line[at..]));
            let path = path.filter(|path| path.starts_with(dir));
            let file = path.and_then(Path::file_name);
            is_of_file = file.is_some_and(|file| file.to_string_lossy().starts_with(name));
        }
    }
    sum
}

fn draw_settings(seed: u64, workers: usize) -> Settings {
    let mut draw = Draw(seed);
    let samplings = [Sampling::Uniform, Sampling::Weighted, Sampling::Top];
    let keeps = [0, 1, 3, usize::MAX];
    Settings {
        workers,
        sampling: samplings[draw.below(3)],
        seed,
        keep: [keeps[draw.below(4)], keeps[draw.below(4)]],
        samples: 1 + u32::try_from(draw.below(2)).unwrap(),
        redraw: draw.below(2) == 0,
        hub_threshold: [2, 20, 10_000][draw.below(3)],
        memory_budget: [1 << 10, 1 << 24][draw.below(2)],
    }
}

#[test]
fn in_edges_are_those_of_a_sort_for_any_number_of_workers() {
    let mut with_hubs = 0;
    for seed in 0..24 {
        let graph = draw_graph(seed);
        let dir = tempfile::tempdir().unwrap();
        graph.write(dir.path());
        let expected = graph.lists(&draw_settings(seed, 1));
        for workers in [1, 2, 3, 8] {
            let settings = draw_settings(seed, workers);
            let store = build(&graph, dir.path(), &settings);
            let found = lists_of(&store, &settings);
            for (key, list) in &expected {
                assert_eq!(
                    found.get(key),
                    Some(list),
                    "seed {seed}, {workers} workers, {key:?}"
                );
            }
            assert_eq!(found.len(), expected.len());
            let hubs = store.own_hubs(settings.hub_threshold);
            let relations: BTreeSet<_> = hubs.iter().map(|hub| &hub.relation).collect();
            let some = 1..store.meta().graph.relations.len();
            with_hubs += usize::from(some.contains(&relations.len()));
            check_degrees(&graph, &store, &settings);
            check_nodes(&graph, &store, &settings);
            store.release_nodes();
            assert_eq!(resident_kb(dir.path(), "nodes"), Some(0));
            check_nodes(&graph, &store, &settings);
            assert!(resident_kb(dir.path(), "nodes") > Some(0));
            let counts = &store.meta().edges;
            let all: usize = graph.in_edges().values().map(|(.., rows)| rows.len()).sum();
            assert_eq!(counts.in_edges, all as u64);
            assert_eq!(counts.received_by_worker.iter().sum::<u64>(), all as u64);
            let names = store.meta().graph.relations.iter().map(|of| &of.name);
            for (name, of) in names.zip(&counts.relations) {
                assert_eq!(of.in_edges, graph.in_edges()[name].3.len() as u64);
            }
        }
    }
    // Some relations have hubs, while others of the same graph have none.
    assert!(with_hubs > 10, "{with_hubs}");
}

#[test]
fn other_names_of_types_change_no_in_edge() {
    for seed in [5, 6, 7] {
        let mut graph = draw_graph(seed);
        let dir = tempfile::tempdir().unwrap();
        graph.write(dir.path());
        let settings = Settings {
            keep: [3, 2],
            hub_threshold: 5,
            ..PLAIN
        };
        let before = lists_of(&build(&graph, dir.path(), &settings), &settings);
        let count = graph.types.len();
        for (at, of) in graph.types.iter_mut().enumerate() {
            of.name = format!("x{}", count - at);
        }
        assert_eq!(
            lists_of(&build(&graph, dir.path(), &settings), &settings),
            before
        );
    }
}

#[test]
fn each_file_is_read_once_whatever_the_number_of_relations() {
    let dir = tempfile::tempdir().unwrap();
    let mut graph = draw_graph(11);
    for (at, of) in graph.types.iter_mut().enumerate() {
        // Integers close together need no pass over the ends of edges.
        (of.has_text, of.ids) = (false, (0..20 + at as i64).collect());
    }
    let [relation, ..] = &mut graph.relations[..] else {
        panic!("a graph has a relation");
    };
    (relation.from, relation.to, relation.file) = (0, 1, 0);
    let (undirected, reverse) = (false, Some("back".to_owned()));
    (relation.undirected, relation.reverse) = (undirected, reverse);
    let of_relation = |name: &str| Relation {
        name: name.to_owned(),
        from: 1,
        to: 0,
        undirected: false,
        reverse: None,
        is_weighted: true,
        file: 0,
    };
    graph.relations.truncate(1);
    graph.relations.extend(["more", "other"].map(of_relation));
    let mut draw = Draw(1);
    let rows = (0..90).map(|at| Row {
        relation: at % 3,
        src: draw.below(20),
        dst: draw.below(20),
        weight: 1.0,
        feature: at as f32,
    });
    graph.rows = rows.collect();
    let check = |changed: &Graph, expected: u64| {
        changed.write(dir.path());
        let plan = Arc::new(changed.plan(dir.path()));
        let edge_units = plan.relations[0].edges.units().len() as u64;
        assert!(edge_units > 2);
        let store = StorePlan {
            keep: vec![usize::MAX; plan.relations.len()],
            target_type: 0,
            graph: Arc::clone(&plan),
            seed: 1,
            sampling: Sampling::Uniform,
            samples: 1,
            redraw: false,
            left_out: false,
            hub_threshold: 10,
            workers: 2,
            memory_budget: 1 << 24,
            page_cache: None,
            dir: dir.path().join("store"),
            fresh: true,
        };
        open_or_build(&store, &silent()).unwrap();
        for of in &plan.relations {
            assert_eq!(of.edges.units_read(), expected * edge_units);
        }
        // First the ids, then all columns.
        for of in &plan.types {
            let node_units = of.nodes.units().len() as u64;
            assert_eq!(of.nodes.units_read(), 2 * node_units);
        }
    };
    check(&graph, 1);
    // Strings are looked up first.
    graph.types[0].has_text = true;
    check(&graph, 2);
}

/// A graph of one relation and one edge, from the last node of type `a` to the last one of `b`.
fn graph_of_one_edge() -> Graph {
    let of_type = |name: &str, ids: Vec<i64>| Type {
        name: name.to_owned(),
        has_text: false,
        ids,
    };
    Graph {
        types: vec![of_type("a", vec![1, 2, 9]), of_type("b", vec![1, 2])],
        relations: vec![Relation {
            name: "r".to_owned(),
            from: 0,
            to: 1,
            undirected: false,
            reverse: Some("back".to_owned()),
            is_weighted: false,
            file: 0,
        }],
        rows: vec![Row {
            relation: 0,
            src: 2,
            dst: 1,
            weight: 1.0,
            feature: 0.0,
        }],
    }
}

#[test]
fn an_end_that_is_no_node_of_its_type_names_the_relation() {
    let dir = tempfile::tempdir().unwrap();
    let graph = graph_of_one_edge();
    graph.write(dir.path());
    let plan = |change: &dyn Fn(&mut Value)| {
        let mut input = graph.input();
        change(&mut input);
        let input: InputSpec = serde_json::from_value(input).unwrap();
        let plan = StorePlan {
            graph: Arc::new(input.into_plan(dir.path()).unwrap()),
            target_type: 1,
            keep: vec![usize::MAX; 2],
            seed: 1,
            sampling: Sampling::Uniform,
            samples: 1,
            redraw: false,
            left_out: false,
            hub_threshold: 10,
            workers: 2,
            memory_budget: 1 << 24,
            page_cache: None,
            dir: dir.path().join("store"),
            fresh: false,
        };
        open_or_build(&plan, &silent())
    };
    let good = plan(&|_| {}).unwrap();
    assert_eq!((good.meta().edges.in_edges, good.meta().num_nodes), (2, 5));
    assert_eq!(good.meta().num_nodes_by_type(), [3, 2]);
    let names: Vec<&str> = good
        .meta()
        .files
        .iter()
        .map(|file| file.path.as_str())
        .collect();
    assert!(names.contains(&"in-edges-r01-001-000.arrow"), "{names:?}");
    assert!(names.contains(&"nodes-t00-000.arrow"), "{names:?}");
    let to_a = |input: &mut Value| input["edges"]["r"]["from"] = json!("b");
    let error = plan(&to_a).unwrap_err().to_string();
    let expected = "edges-0.parquet: no node has the id 9; 1 of 1 rows have an end that is no node, \
                    100 %: are these the ids of the nodes? `dangling = \"drop\"` under \
                    [input.edges.r] leaves them out";
    assert!(
        error.starts_with("column `src_number`, row 0 of "),
        "{error}"
    );
    assert!(error.ends_with(expected), "{error}");
    let dropped = plan(&|input| {
        to_a(input);
        input["edges"]["r"]["dangling"] = json!("drop");
    });
    let counts = dropped.unwrap().meta().edges.clone();
    assert_eq!((counts.in_edges, counts.dropped_rows), (0, 1));
    let of_relations = counts.relations.iter().map(|of| of.dropped_rows);
    assert_eq!(of_relations.collect::<Vec<_>>(), [0, 1]);
}

#[test]
fn a_store_is_opened_again_if_it_keeps_enough_of_each_relation() {
    let dir = tempfile::tempdir().unwrap();
    let graphs = (0..).map(draw_graph);
    let several = |graph: &Graph| graph.relations.len() > 2;
    let graph = graphs.into_iter().find(several).unwrap();
    graph.write(dir.path());
    let relations = graph.plan(dir.path()).relations.len();
    let built = |keep: Vec<usize>| {
        let phases = Arc::new(std::sync::Mutex::new(0));
        let seen = Arc::clone(&phases);
        let plan = StorePlan {
            graph: Arc::new(graph.plan(dir.path())),
            target_type: 0,
            keep,
            seed: 1,
            sampling: Sampling::Uniform,
            samples: 1,
            redraw: false,
            left_out: false,
            hub_threshold: 10,
            workers: 2,
            memory_budget: 1 << 24,
            page_cache: None,
            dir: dir.path().join("store"),
            fresh: false,
        };
        let progress: Progress = Arc::new(move |_| *seen.lock().unwrap() += 1);
        open_or_build(&plan, &progress).unwrap();
        let phases = *phases.lock().unwrap();
        phases > 0
    };
    assert!(built(vec![4; relations]));
    assert!(!built(vec![4; relations]) && !built(vec![2; relations]));
    let mut more = vec![4; relations];
    more[1] = 5;
    assert!(built(more.clone()));
    assert!(!built(vec![4; relations]));
    more[0] = usize::MAX;
    assert!(built(more));
}
