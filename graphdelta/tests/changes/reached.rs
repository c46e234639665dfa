//! The engine reaches what the twins reach, and draws what a store of the new tables holds.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use graphdelta::{
    After, Changes, Degrees, KeptVersions, Night, Numbers, OfStore, OutEdges, Overlay, Reach,
    ReachPlan, RebuildPlan, Snapshot as Whole, WholeTables, reach,
};
use schemas::{ChangesSpec, GraphPlan, NodeIdx, Sampling, error_chain};
use store::{Store, open_rebuilt};

use crate::case::{Draw, PairsOf, Shape, Snapshot, build, store_plan};
use crate::night::NightTables;
use crate::twin::{self, Lists, Node};

/// In-edges of a node, as ids with weights.
type InEdges = Vec<(String, f32)>;

fn draw_plan(num_relations: usize, draw: &mut Draw) -> ReachPlan {
    let mut steps = |count: usize| -> Vec<Vec<usize>> {
        let mut limit = || draw.of(&[1, 2, 3, 5, 0, usize::MAX]);
        let mut step = || (0..num_relations).map(|_| limit()).collect();
        (0..count).map(|_| step()).collect()
    };
    ReachPlan {
        hops: steps(2),
        layers: steps(3),
        degrees: draw.of(&[Degrees::None, Degrees::Own, Degrees::Sources]),
        weights: false,
        hub_edges: draw.of(&[usize::MAX, 2, 4]),
    }
}

fn shown(shape: &Shape, nodes: &BTreeSet<Node>) -> BTreeSet<(usize, String)> {
    let nodes = nodes.iter();
    nodes.map(|&(at, id)| (at, shape.id(at, id))).collect()
}

fn check_reach(
    shape: &Shape,
    numbers: &Numbers,
    found: &Reach,
    expected: &[Vec<BTreeSet<Node>>; 2],
    what: &str,
) {
    let name = |node: &NodeIdx| (numbers.type_of(*node), numbers.display(*node));
    for (own, twin) in [&found.hops, &found.layers].into_iter().zip(expected) {
        assert_eq!(own.len(), twin.len());
        for (step, (nodes, of_twin)) in own.iter().zip(twin).enumerate() {
            let nodes: BTreeSet<_> = nodes.iter().map(name).collect();
            assert_eq!(nodes, shown(shape, of_twin), "{what}, step {step}");
        }
    }
}

/// Compares the changed in-edges with the twin's lists of both snapshots.
fn check_in_edges(
    shape: &Shape,
    numbers: &Numbers,
    found: &Reach,
    (old, new): (&[Lists], &[Lists]),
) {
    let mut expected = BTreeMap::new();
    for (relation, (before, after)) in old.iter().zip(new).enumerate() {
        let nodes: BTreeSet<&Node> = before.keys().chain(after.keys()).collect();
        for &node in nodes {
            let list = |of: &Lists| of.get(&node).cloned().unwrap_or_default();
            if list(before) != list(after) {
                let (edges, in_degree) = list(after);
                let edges = edges.into_iter();
                let edges: InEdges = edges.map(|(src, w)| (shape.id(src.0, src.1), w)).collect();
                let key = (relation, node.0, shape.id(node.0, node.1));
                expected.insert(key, (edges, in_degree));
            }
        }
    }
    let own = found.in_edges.iter().map(|of| {
        let key = (
            of.relation,
            numbers.type_of(of.dst),
            numbers.display(of.dst),
        );
        let edges = of.kept.src.iter().zip(&of.kept.weight);
        let edges: InEdges = edges.map(|(&src, &w)| (numbers.display(src), w)).collect();
        (key, (edges, (of.kept.in_degree, of.kept.self_loops)))
    });
    assert_eq!(own.collect::<BTreeMap<_, _>>(), expected);
}

/// Compares the twin's lists with those of a store.
fn check_store(shape: &Shape, store: &Store, lists: &[Lists]) {
    for (relation, of) in lists.iter().enumerate() {
        let mut found = BTreeMap::new();
        for partition in store.partitions() {
            for local in partition.locals(partition.relation_to(relation)) {
                let id = |node: NodeIdx| {
                    let (owner, at) = store.placement().owner_and_local(node);
                    let (ids, row) = store.partition(owner).id(at);
                    ids.display(row)
                };
                let kept = partition.in_edges(relation, 0, local, usize::MAX);
                let weight = |at: usize| kept.weight.map_or(1.0, |all| all[at]);
                let edges = kept.src.iter().enumerate();
                let edges: InEdges = edges.map(|(at, &src)| (id(src), weight(at))).collect();
                let in_degree = u64::from(partition.in_degree(relation, local));
                let loops = partition.self_loops(relation, local).map_or(0, u64::from);
                let (ids, row) = partition.id(local);
                if in_degree > 0 {
                    found.insert(ids.display(row), (edges, (in_degree, loops)));
                }
            }
        }
        let expected = of.iter().map(|(node, (edges, in_degree))| {
            let edges = edges.iter().map(|(src, w)| (shape.id(src.0, src.1), *w));
            (shape.id(node.0, node.1), (edges.collect(), *in_degree))
        });
        assert_eq!(found, expected.collect::<BTreeMap<_, (InEdges, _)>>());
    }
}

/// A version: its nights, and the tables after them.
struct Version {
    nights: Vec<ChangesSpec>,
    whole: ChangesSpec,
    after: Snapshot,
    lists: Vec<Lists>,
}

/// What all versions of a case share.
struct Case<'a> {
    shape: &'a Shape,
    dir: &'a Path,
    graph: GraphPlan,
    plan: ReachPlan,
    sampling: Sampling,
}

impl Case<'_> {
    /// Applies the tables of nights.
    fn apply(&self, nights: &[&ChangesSpec], numbers: &mut Numbers) -> Vec<Night> {
        let of_store = OfStore::plain(self.sampling);
        let nights = nights.iter().map(|of| {
            let changes = Changes::read(of, self.dir, &self.graph, of_store).unwrap();
            numbers.apply(changes).unwrap()
        });
        nights.collect()
    }

    /// Opens a snapshot.
    fn open(&self, tables: &ChangesSpec) -> Whole {
        let of_store = OfStore::plain(self.sampling);
        Whole::open(tables, self.dir, &self.graph, of_store).unwrap()
    }

    /// Returns the tables of a version, or of the store before the first one.
    fn tables(&self, of: &Version, store: &Store) -> Option<WholeTables> {
        match of.nights[..] {
            [] => WholeTables::of_store(store),
            _ => Some(self.open(&of.whole).tables().unwrap()),
        }
    }

    /// Applies what a snapshot has changed since the one of the parent.
    fn hold(
        &self,
        (tables, parent): (&ChangesSpec, &Option<WholeTables>),
        numbers: &mut Numbers,
    ) -> Vec<Night> {
        let whole = self.open(tables);
        let files = whole.tables().unwrap();
        let changes = whole.changes(numbers, (&files, parent.as_ref()));
        let changes = changes.unwrap();
        vec![numbers.apply(changes).unwrap()]
    }

    /// Applies changes to a parent, compares what they reach with the twin, and returns the graph.
    fn check(
        &self,
        (store, out): (&Store, &OutEdges),
        (parent, apply): (Overlay, impl Fn(&mut Numbers) -> Vec<Night>),
        (before, after): (&Version, &Version),
        what: &str,
    ) -> After {
        let (shape, plan) = (self.shape, &self.plan);
        let unchanged = Numbers::of(store, &self.graph, parent.clone()).unwrap();
        check_nothing(&Arc::new(unchanged), parent.clone(), out, plan);
        let mut numbers = Numbers::of(store, &self.graph, parent).unwrap();
        let nights = apply(&mut numbers);
        let numbers = Arc::new(numbers);
        let (found, overlay) = reach(&numbers, nights, out, plan).unwrap();
        let snapshots = (&before.after, &after.after);
        let expected = twin::reach(snapshots, (&before.lists, &after.lists), plan);
        check_in_edges(shape, &numbers, &found, (&before.lists, &after.lists));
        check_reach(shape, &numbers, &found, &expected, what);
        let all = after.after.nodes.iter().enumerate();
        let all = all.flat_map(|(at, of)| of.keys().map(move |&id| (at, id)));
        let all = all.collect();
        for (layer, limits) in plan.layers.iter().enumerate() {
            let own = twin::work(&expected[1][layer + 1], &after.lists, limits);
            assert_eq!(
                found.work(&numbers, plan, |_, _| true)[layer],
                own,
                "{what}"
            );
            let full = twin::work(&all, &after.lists, limits);
            assert_eq!(
                found.full_work(&numbers, plan, |_, _| true)[layer],
                full,
                "{what}"
            );
        }
        After::new(&numbers, overlay)
    }

    /// Applies the nights of each version to a store that holds those before, and compares the
    /// files of the next such store with those of one that is built from the tables of the day.
    fn check_rebuilt(&self, first: Store, versions: &[Version], dir: &Path, what: &str) {
        let kept = KeptVersions::lock(dir).unwrap();
        let (keep, workers) = (self.plan.keep(), first.meta().workers);
        let (mut store, mut overlay) = (first, Overlay::default());
        for (at, pair) in versions.windows(2).enumerate() {
            let out = dir.join(format!("out-{at}"));
            let out = OutEdges::open_or_write(&store, &keep, &out).unwrap();
            let nights: Vec<&ChangesSpec> = pair[1].nights.iter().collect();
            let apply = |numbers: &mut Numbers| self.apply(&nights, numbers);
            let after = self.check((&store, &out), (overlay, apply), (&pair[0], &pair[1]), what);
            let unfinished = kept.begin().unwrap();
            let plan = RebuildPlan {
                graph: &self.graph,
                share: Some(0.0),
            };
            let graph = kept.keep_graph(&unfinished, (&after, &keep), plan);
            let base = graph.unwrap().base;
            if base != store.meta().base {
                let name = base.unwrap().replace(':', "-");
                let own = dir.join(format!("versions/base-{name}/{workers}"));
                let settings = (self.sampling, &keep[..]);
                let of_base = store_plan(&self.graph, &own, settings, workers);
                store = open_rebuilt(None, &of_base).unwrap().unwrap();
            }
            overlay = Overlay::read(&store, &keep, &unfinished.join("overlay")).unwrap();
            let tables = dir.join(format!("tables-{at}"));
            std::fs::create_dir(&tables).unwrap();
            let of_day = self.shape.write(&pair[1].after, &tables);
            let settings = (self.sampling, &keep[..]);
            let of_day = build(&of_day, &tables.join("store"), settings, workers);
            assert_eq!(described(&store), described(&of_day), "{what}");
        }
    }
}

/// Returns counts and files of a store.
fn described(store: &Store) -> (String, BTreeMap<String, (u64, String)>) {
    let meta = store.meta();
    let counts = (meta.num_nodes_by_type(), &meta.edges, &meta.pairs);
    let files = meta.files.iter();
    let files = files.map(|of| (of.path.clone(), (of.bytes, of.checksum.clone())));
    (format!("{counts:?}"), files.collect())
}

fn check(shape: &Shape, seed: u64) {
    let mut draw = Draw(seed);
    let dir = tempfile::tempdir().unwrap();
    let base = shape.draw(&mut draw);
    let case = Case {
        shape,
        dir: dir.path(),
        graph: shape.write(&base, dir.path()),
        plan: draw_plan(shape.relations().len(), &mut draw),
        sampling: draw.of(shape.samplings()),
    };
    let keep = case.plan.keep();
    let settings = (case.sampling, &keep[..]);
    let version = |nights: Vec<ChangesSpec>, after: Snapshot, whole: ChangesSpec| Version {
        nights,
        whole,
        lists: twin::lists(shape, &shape.messages(&after, &case.graph), settings),
        after,
    };
    let mut versions = vec![version(Vec::new(), base, ChangesSpec::default())];
    for number in 0..1 + draw.below(3) {
        let mut after = versions[number].after.clone();
        let nights = (0..1 + draw.below(2)).map(|night| {
            let tables = NightTables::draw(shape, &after, &mut draw);
            tables.apply(shape, &mut after);
            tables.write(shape, &dir.path().join(format!("{number}-{night}")))
        });
        let nights = nights.collect();
        let whole = dir.path().join(format!("{number}-whole"));
        let whole = shape.write_whole(&after, &whole);
        versions.push(version(nights, after, whole));
    }
    let (first, last) = (&versions[0], &versions[versions.len() - 1]);
    let new = dir.path().join("new");
    std::fs::create_dir(&new).unwrap();
    let of_new = shape.write(&last.after, &new);
    let of_new = build(&of_new, &new.join("store"), settings, 2);
    check_store(shape, &of_new, &last.lists);
    for workers in [1, 2, 3, 8] {
        let in_dir = |what: &str| dir.path().join(format!("{what}-{workers}"));
        let store = build(&case.graph, &in_dir("store"), settings, workers);
        check_store(shape, &store, &first.lists);
        OutEdges::open_or_write(&store, &keep, &in_dir("out")).unwrap();
        let out = OutEdges::open_or_write(&store, &keep, &in_dir("out")).unwrap();
        let opened = (&store, &out);
        let (sampling, plan) = (case.sampling, &case.plan);
        let what = format!("seed {seed}, {workers} workers, {sampling:?}, {plan:?}");
        // Version by version, each read from the disk.
        let mut overlay = Overlay::default();
        for (at, pair) in versions.windows(2).enumerate() {
            let nights: Vec<&ChangesSpec> = pair[1].nights.iter().collect();
            let both = (&pair[0], &pair[1]);
            let parent = case.tables(&pair[0], &store);
            let whole = |numbers: &mut Numbers| case.hold((&pair[1].whole, &parent), numbers);
            case.check(opened, (overlay.clone(), whole), both, &what);
            let changes = |numbers: &mut Numbers| case.apply(&nights, numbers);
            let changed = case.check(opened, (overlay, changes), both, &what);
            let changed = changed.overlay().clone();
            let path = in_dir(&format!("version-{at}"));
            changed.write(&store, &keep, &path).unwrap();
            overlay = Overlay::read(&store, &keep, &path).unwrap();
            assert_eq!(overlay, changed);
        }
        // All nights as one version.
        let nights: Vec<&ChangesSpec> = versions.iter().flat_map(|of| &of.nights).collect();
        let at_once = |numbers: &mut Numbers| case.apply(&nights, numbers);
        let at_once = (Overlay::default(), at_once);
        let at_once = case.check(opened, at_once, (first, last), &what);
        assert_eq!(*at_once.overlay(), overlay);
        if workers < 8 {
            case.check_rebuilt(store, &versions, &in_dir("rebuilt"), &what);
        }
    }
}

#[test]
fn changes_of_untyped_graphs_reach_what_a_bitmap_walk_reaches() {
    (0..26).for_each(|seed| {
        let shape = Shape {
            gaps: seed % 3 > 0,
            sparse: seed % 4 == 1,
            weighted: seed % 4 > 1,
            ..Shape::untyped(seed % 2 == 1)
        };
        check(&shape, seed);
    });
}

#[test]
fn changes_of_typed_graphs_reach_what_a_bitmap_walk_reaches() {
    (100..118).for_each(|seed| {
        let weighted = seed % 2 == 0;
        let shape = Shape {
            weighted,
            ..Shape::typed()
        };
        check(&shape, seed);
    });
}

#[test]
fn changes_of_pairs_move_edges_between_those_that_carry_messages_and_others() {
    let mut seed = 200;
    let all = [
        PairsOf::Table,
        PairsOf::Edges,
        PairsOf::Shares,
        PairsOf::TimedTable,
        PairsOf::TimedEdges,
    ];
    for of in all {
        for exclude in ["all", "batch", "none"] {
            for shape in [Shape::untyped(false), Shape::untyped(true), Shape::typed()] {
                let pairs = Some((of, exclude));
                check(&Shape { pairs, ..shape }, seed);
                seed += 1;
            }
        }
    }
}

#[test]
fn no_change_reaches_nothing() {
    let (shape, mut draw) = (Shape::untyped(false), Draw(5));
    let dir = tempfile::tempdir().unwrap();
    let graph = shape.write(&shape.draw(&mut draw), dir.path());
    let plan = draw_plan(1, &mut draw);
    let store = build(
        &graph,
        &dir.path().join("store"),
        (Sampling::Uniform, &plan.keep()),
        2,
    );
    let out = OutEdges::open_or_write(&store, &plan.keep(), &dir.path().join("out")).unwrap();
    let numbers = Arc::new(Numbers::of(&store, &graph, Overlay::default()).unwrap());
    check_nothing(&numbers, Overlay::default(), &out, &plan);
}

/// Checks that a version without changes reaches nothing and keeps the overlay of its parent.
fn check_nothing(numbers: &Arc<Numbers>, parent: Overlay, out: &OutEdges, plan: &ReachPlan) {
    let (found, overlay) = reach(numbers, Vec::new(), out, plan).unwrap();
    let nothing = |steps: usize| vec![Vec::new(); steps + 1];
    assert!(found.in_edges.is_empty() && !found.moves_ids);
    assert_eq!(found.hops, nothing(plan.hops.len()));
    assert_eq!(found.layers, nothing(plan.layers.len()));
    assert_eq!(overlay, parent);
}

#[test]
fn tables_with_the_files_of_the_parent_are_not_compared() {
    for shape in [Shape::untyped(true), Shape::typed()] {
        let (mut draw, keep) = (Draw(7), vec![2; shape.relations().len()]);
        let dir = tempfile::tempdir().unwrap();
        let base = shape.draw(&mut draw);
        let before = shape.write_whole(&base, dir.path());
        let case = Case {
            graph: shape.write(&base, dir.path()),
            shape: &shape,
            dir: dir.path(),
            plan: draw_plan(keep.len(), &mut draw),
            sampling: Sampling::Uniform,
        };
        let store = dir.path().join("store");
        let store = build(&case.graph, &store, (case.sampling, &keep), 2);
        let of_store = WholeTables::of_store(&store).unwrap();
        assert_eq!(of_store, case.open(&before).tables().unwrap());
        let mut after = base.clone();
        *after.nodes[0].first_entry().unwrap().get_mut() += 0.5;
        after.edges[0].remove(0);
        let numbers = || Numbers::of(&store, &case.graph, Overlay::default()).unwrap();
        let write = |of: &Snapshot, name: &str| {
            let tables = shape.write_whole(of, &dir.path().join(name));
            let whole = case.open(&tables);
            (whole.tables().unwrap(), whole)
        };
        let (files, whole) = write(&after, "after");
        let found = |parent: Option<&WholeTables>| {
            let changes = whole.changes(&numbers(), (&files, parent)).unwrap();
            changes.counts()
        };
        assert_eq!(found(None), (1, 1));
        assert_eq!(found(Some(&of_store)), (1, 1));
        // As if the parent had these files.
        assert_eq!(found(Some(&files)), (0, 0));
        // An edge of a table that stays may lead to a node that is gone.
        let ends: BTreeSet<i64> = base.edges[0].iter().map(|edge| edge.src).collect();
        let mut without = base.clone();
        without.nodes[0].remove(ends.first().unwrap());
        let (of_rest, rest) = write(&without, "without");
        let changes = rest.changes(&numbers(), (&of_rest, Some(&of_store)));
        let error = error_chain(&changes.unwrap_err());
        assert!(error.contains("no node has the id"), "{error}");
    }
}

#[test]
fn versions_of_another_store_and_changed_versions_are_refused() {
    let shape = Shape::untyped(false);
    let dir = tempfile::tempdir().unwrap();
    let keep = [2];
    let store = |name: &str, seed: u64| {
        let own = dir.path().join(name);
        std::fs::create_dir(&own).unwrap();
        let graph = shape.write(&shape.draw(&mut Draw(seed)), &own);
        build(&graph, &own.join("store"), (Sampling::Uniform, &keep), 1)
    };
    let (one, other) = (store("one", 3), store("other", 20));
    let path = dir.path().join("version");
    let refused = |of: &Store, limits: &[usize]| {
        let error = Overlay::read(of, limits, &path).unwrap_err();
        error_chain(&error).replace(&format!("{}", path.display()), "PATH")
    };
    let missing = "cannot read the store at PATH: overlay.json is missing";
    assert_eq!(refused(&one, &keep), missing);
    Overlay::default().write(&one, &keep, &path).unwrap();
    assert_eq!(
        Overlay::read(&one, &keep, &path).unwrap(),
        Overlay::default()
    );
    let unlike = "the version at PATH is one of another store";
    assert_eq!(refused(&other, &keep), unlike);
    assert_eq!(refused(&one, &[3]), unlike);
    let file = path.join("edits.arrow");
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[40] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let changed = "cannot read the store at PATH: edits.arrow was changed since it was written";
    assert_eq!(refused(&one, &keep), changed);
}
