//! Pairs of random walks: those of plain walks over plain lists.

use super::world::{Ends, IdKind, SEED, Walks, World};
use super::{Tables, drawn_equals_written, has_messages, read};
use crate::draw::Draw;
use crate::run::snapshot_parts;
use graphflat::survey::{PairSurvey, Survey};
use schemas::{Exclude, Split, hash_int};
use serde_json::json;
use std::collections::BTreeMap;

/// A pair: its ends, its split, and its weight in halves.
type Row = (Ends, &'static str, u64);

/// Types of the sources and of the destinations of a relation.
fn ends_of(relation: &str) -> (usize, usize) {
    match relation {
        "" => (0, 0),
        "bought-by" => (1, 0),
        _ => (0, 1),
    }
}

/// The edges of the message graph: all but those of val and test pairs.
fn messages(world: &World) -> BTreeMap<&'static str, Vec<Ends>> {
    let mut pairs = world.pairs();
    pairs.retain(|_, of| of.split != Split::Train);
    match world.walks {
        Some(walks) if walks.with_edges => {}
        _ => pairs.clear(),
    }
    world.in_edges(&pairs.keys().cloned().collect())
}

/// The sources of each node's in-edges, relation by relation in the order of their names, and within
/// a relation in the order of ids.
fn sources(world: &World) -> BTreeMap<(usize, String), Vec<(usize, String)>> {
    let mut sources: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (relation, mut edges) in messages(world) {
        let (from, to) = ends_of(relation);
        edges.sort_by_cached_key(|(src, _)| match world.kinds[from] {
            IdKind::Text => (0, src.clone()),
            _ => (src.parse::<i64>().unwrap(), String::new()),
        });
        for (src, dst) in edges {
            sources.entry((to, dst)).or_default().push((from, src));
        }
    }
    sources
}

/// Returns all pairs of the parts, sorted: those of walks, with the number of visits as their weight,
/// and the val and test pairs of edges.
fn twin(world: &World) -> Vec<Row> {
    let walks = world.walks.unwrap();
    let to = if walks.with_edges {
        world.to()
    } else {
        walks.to
    };
    let sources = sources(world);
    let mut visits: BTreeMap<Ends, u64> = BTreeMap::new();
    for start in 0..world.sizes[0] {
        let (id, hash) = (world.id(0, start), world.hash(0, start));
        for walk in 0..u64::from(walks.per_node) {
            let key = hash_int(walk ^ hash_int(hash ^ hash_int(SEED ^ 0x0077_616c_6b73)));
            let mut at = (0, id.clone());
            for step in 0..u64::from(walks.length) {
                let Some(all) = sources.get(&at) else {
                    break;
                };
                let drawn = u128::from(hash_int(step ^ key)) * all.len() as u128;
                at = all[usize::try_from(drawn >> 64).unwrap()].clone();
                if at.0 == to && at != (0, id.clone()) {
                    *visits.entry((id.clone(), at.1.clone())).or_default() += 1;
                }
            }
        }
    }
    let visits = visits.into_iter();
    let mut rows: Vec<Row> = visits
        .map(|(ends, times)| (ends, "train", 2 * times))
        .collect();
    if walks.with_edges {
        let of_edges = world.pairs().into_iter();
        let of_edges = of_edges.filter(|(_, of)| of.split != Split::Train);
        rows.extend(of_edges.map(|(ends, of)| (ends, of.split.as_str(), 2)));
    }
    rows.sort();
    rows
}

fn random_world(draw: &mut Draw) -> World {
    let world = World::random(draw);
    let with_edges = draw.one_in(2);
    World {
        table: None,
        has_weight: false,
        reverse: world.is_typed,
        exclude: draw.pick(&[Exclude::Batch, Exclude::None]),
        shares: draw.pick(&[[0.0, 0.2, 0.2], [0.4, 0.2, 0.2], [0.6, 0.2, 0.2]]),
        walks: Some(Walks {
            length: draw.pick(&[1, 2, 5]),
            per_node: draw.pick(&[1, 3]),
            with_edges,
            to: match world.is_typed {
                true => draw.below(2),
                false => 0,
            },
        }),
        ..world
    }
}

/// Checks the parts of a graph against the twin; returns how many pairs there are.
fn check(world: &World, what: &str) -> usize {
    let expected = twin(world);
    let tables = Tables::write(world);
    let spec = json!({
        "hops": 2, "fanouts": [3, 2], "pairs_per_part": 17, "negatives_per_part": 5,
    });
    if expected.iter().all(|row| row.1 != "train") {
        let plan = tables.flatten_plan(&spec, "unused");
        let error = tables.store(&plan, 2, "store").unwrap_err().to_string();
        assert!(
            error.contains("`input.pairs.walks`: gives no pair"),
            "{error}"
        );
        return 0;
    }
    let output = tables.flatten(&spec, 1);
    let mut rows: Vec<Row> = Vec::new();
    let found = read(&output);
    has_messages(&found.edges, &found.in_degree, &messages(world), what);
    for (ends, known) in found.pairs {
        assert_eq!((known.label, &known.negatives[..]), (1.0, &[][..]));
        let halves = 2.0 * known.weight;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small number of visits"
        )]
        let weight = halves as u64;
        rows.push((ends, known.split.as_str(), weight));
    }
    rows.sort();
    assert_eq!(rows, expected, "{what}");
    for workers in [2, 3, 8] {
        let other = tables.flatten(&spec, workers);
        assert!(
            snapshot_parts(&other) == snapshot_parts(&output),
            "{workers} workers; {what}"
        );
    }
    drawn_equals_written(&tables, &spec, &output, what);
    counted(&tables, &rows, what);
    rows.len()
}

/// The survey counts the pairs of few walks exactly.
fn counted(tables: &Tables, rows: &[Row], what: &str) {
    let survey = Survey::read(&tables.plan, tables.target_type(), &[]).unwrap();
    let counts = PairSurvey::read(&tables.plan, &survey)
        .unwrap()
        .unwrap()
        .counts;
    let of = |split: &str| rows.iter().filter(|row| row.1 == split).count() as u64;
    let found = (counts.train, counts.val, counts.test);
    assert_eq!(found, (of("train"), of("val"), of("test")), "{what}");
}

#[test]
fn pairs_of_walks_are_those_of_plain_walks() {
    let mut seen = std::collections::BTreeSet::new();
    let mut most = 0;
    for seed in 100..130 {
        let world = random_world(&mut Draw::new(seed));
        let walks = world.walks.unwrap();
        seen.insert((world.is_typed, walks.with_edges));
        most = most.max(check(&world, &format!("graph {seed}")));
    }
    assert_eq!(seen.len(), 4, "every source of val and test pairs is tried");
    assert!(most > 200, "at most {most} pairs");
}

/// A held-out edge is neither walked over nor a message, so a pair that only this edge joins is no
/// pair of a walk.
#[test]
fn walks_do_not_go_over_held_out_edges() {
    for seed in 130..140 {
        let mut world = random_world(&mut Draw::new(seed));
        let walks = world.walks.as_mut().unwrap();
        (walks.length, walks.per_node, walks.with_edges) = (1, 50, true);
        let held_out: Vec<Ends> = (world.pairs().into_iter())
            .filter(|(_, of)| of.split != Split::Train)
            .map(|(ends, _)| ends)
            .collect();
        assert!(!held_out.is_empty());
        let tables = Tables::write(&world);
        let spec = json!({ "hops": 1, "fanouts": ["all"], "negatives_per_part": 5 });
        let found = read(&tables.flatten(&spec, 2));
        for (ends, known) in &found.pairs {
            let reverse = (ends.1.clone(), ends.0.clone());
            let is_held_out =
                held_out.contains(ends) || !world.is_typed && held_out.contains(&reverse);
            // In a typed graph, `sees` may join the ends too.
            let is_other = world.is_typed
                && (world.edges[1].iter())
                    .any(|of| (world.id(0, of.src), world.id(1, of.dst)) == *ends);
            assert!(known.split != Split::Train || !is_held_out || is_other);
        }
    }
}
