use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::*;
use crate::coverage::{Repeated, TABLES};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// Returns the number of tables below each heading of a page, by `PAGE#HEADING`.
fn tables_of(page: &str, found: &mut BTreeMap<String, usize>) {
    let text = fs::read_to_string(root().join(page)).unwrap();
    let (mut heading, mut in_code) = ("", false);
    for line in text.lines() {
        in_code ^= line.starts_with("```");
        if in_code {
            continue;
        }
        if line.starts_with('#') {
            heading = line.trim_start_matches('#').trim();
        }
        if line.starts_with("|---") {
            *found.entry(format!("{page}#{heading}")).or_default() += 1;
        }
    }
}

#[test]
fn names_are_unique() {
    let names: Vec<String> = races().iter().map(Race::name).collect();
    let distinct: BTreeSet<&String> = names.iter().collect();
    assert_eq!(distinct.len(), names.len());
    for name in &names {
        assert_eq!(name.split('.').count(), 3, "{name}");
    }
}

#[test]
fn every_table_of_the_documentation_is_raced_or_has_a_reason() {
    let mut found = BTreeMap::new();
    tables_of("BENCHMARKS.md", &mut found);
    for entry in fs::read_dir(root().join("docs/benchmarks")).unwrap() {
        let name = entry.unwrap().file_name();
        tables_of(
            &format!("docs/benchmarks/{}", name.to_str().unwrap()),
            &mut found,
        );
    }
    let listed = TABLES
        .iter()
        .map(|(heading, count, _)| ((*heading).to_owned(), *count));
    assert_eq!(found, listed.collect());
}

#[test]
fn races_name_the_tables_that_they_repeat() {
    let raced = TABLES
        .iter()
        .filter(|(_, _, repeated)| *repeated == Repeated::Raced);
    let raced: BTreeSet<&str> = raced.map(|(heading, _, _)| *heading).collect();
    let named: BTreeSet<&str> = FAMILIES
        .iter()
        .flat_map(|family| family.tables)
        .copied()
        .collect();
    assert_eq!(raced, named);
}

#[test]
fn the_first_competitor_is_our_plain_run() {
    for race in races() {
        let first = race.family.ours.first().unwrap();
        assert!(!first.one_core && first.processes == 0, "{}", race.name());
        let names: BTreeSet<(&str, &str)> =
            race.peers().map(|peer| (peer.name, peer.label)).collect();
        assert_eq!(names.len(), race.peers().count(), "{}", race.name());
    }
}

#[test]
fn patterns_select_races() {
    let names = |patterns: &[&str]| -> Vec<String> {
        let patterns: Vec<String> = patterns.iter().map(|&text| text.to_owned()).collect();
        select(&patterns).unwrap().iter().map(Race::name).collect()
    };
    let is_large = |race: &Race| race.graph == Graph::Xl;
    let num_large = races().into_iter().filter(is_large).count();
    assert_eq!(names(&[]).len() + num_large, races().len());
    assert!(names(&["scale"]).contains(&"scale.infer.XL".to_owned()));
    assert_eq!(names(&["infer.*.S"]), ["infer.sage.S", "infer.gat.S"]);
    assert_eq!(
        names(&["infer.gat"]),
        ["infer.gat.S", "infer.gat.M", "infer.gat.L"]
    );
    assert_eq!(
        names(&["job", "store.build.S"]),
        ["store.build.S", "job.debian.debian"]
    );
    let unknown = select(&["inver".to_owned()]).unwrap_err().to_string();
    assert!(
        unknown.starts_with("no race matches inver; the races are store.build.S, "),
        "{unknown}"
    );
    assert!(select(&["[".to_owned()]).is_err());
}
