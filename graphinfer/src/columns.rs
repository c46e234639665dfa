//! Compares the columns of a graph with the columns that a model was trained on.

use schemas::{
    FeatureColumn, GraphColumns, RelationColumns, SparseSpec, TypeColumns, TypedColumns,
};

/// Which columns are compared besides `src` and `dst`: those that the model reads. Other checks
/// refuse a graph that lacks a column or has it in another width.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ColumnUse {
    pub(crate) features: bool,
    /// Edge weights, if messages or the sampling of in-edges used them.
    pub(crate) weight: bool,
    pub(crate) edge_features: bool,
}

/// Returns a sentence for each column or direction that differs from training.
pub(crate) fn differences(
    trained: &GraphColumns,
    given: &GraphColumns,
    used: ColumnUse,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut compare = |key: &str, before: String, now: String| {
        if before != now {
            found.push(format!(
                "`{key}` is {now}, the model was trained with {before}"
            ));
        }
    };
    if used.features && (trained.sparse.is_some() || given.sparse.is_some()) {
        let key = "input.nodes.sparse";
        compare(key, sparse(trained), sparse(given));
    } else if used.features {
        let names = both_names(&trained.features, &given.features);
        compare("input.nodes.features", names.0, names.1);
    }
    let undirected = |columns: &GraphColumns| columns.undirected.to_string();
    compare(
        "input.edges.undirected",
        undirected(trained),
        undirected(given),
    );
    // An undirected graph has the reverse of every edge, so `src` and `dst` may be swapped.
    if !(trained.undirected && given.undirected) {
        compare("input.edges.src", name(&trained.src), name(&given.src));
        compare("input.edges.dst", name(&trained.dst), name(&given.dst));
    }
    if used.weight {
        let weight = |columns: &GraphColumns| columns.weight.as_deref().map_or(none(), name);
        compare("input.edges.weight", weight(trained), weight(given));
    }
    if used.edge_features {
        let names = both_names(&trained.edge_features, &given.edge_features);
        compare("input.edges.features", names.0, names.1);
    }
    found
}

/// Returns a sentence for each column or direction of a type or relation that differs from training.
/// `used` says by relation which columns are compared; feature columns of all types are.
pub(crate) fn typed_differences(
    trained: &TypedColumns,
    given: &TypedColumns,
    used: impl Fn(&str) -> ColumnUse,
) -> Vec<String> {
    let mut found = Vec::new();
    let mut add = |table: &str, name: &str, of_table: Vec<String>| {
        // Keys are those of the table of the type or relation.
        let (untyped, typed) = (
            format!("`input.{table}."),
            format!("`input.{table}.{name}."),
        );
        found.extend(of_table.iter().map(|of| of.replacen(&untyped, &typed, 1)));
    };
    let features = ColumnUse {
        features: true,
        weight: false,
        edge_features: false,
    };
    for (name, now) in &given.types {
        if let Some(before) = trained.types.get(name) {
            let (before, now) = (of_type(before), of_type(now));
            add("nodes", name, differences(&before, &now, features));
        }
    }
    for (name, now) in &given.relations {
        if let Some(before) = trained.relations.get(name) {
            let (before, now) = (of_relation(before), of_relation(now));
            add("edges", name, differences(&before, &now, used(name)));
        }
    }
    found
}

/// Returns a sentence if the dense features of a table are of another width than in training, with
/// the first column of another width.
pub(crate) fn other_width(
    table: &str,
    trained: &[FeatureColumn],
    given: &[FeatureColumn],
) -> Option<String> {
    let width =
        |columns: &[FeatureColumn]| columns.iter().map(|of| of.width).sum::<Option<usize>>();
    let (before, now) = (width(trained)?, width(given)?);
    if before == now || before == 0 || now == 0 {
        return None;
    }
    let of_column = given.iter().find_map(|column| {
        let of_name = |of: &&FeatureColumn| of.name == column.name && of.width != column.width;
        let (then, today) = (trained.iter().find(of_name)?.width?, column.width?);
        let name = &column.name;
        Some(format!(
            ": column `{name}` has {today} numbers a row, in training it had {then}"
        ))
    });
    Some(format!(
        "it reads {before} features a node, `{table}.features` have {now}{}",
        of_column.unwrap_or_default()
    ))
}

/// Returns the columns of a type as those of an untyped graph.
fn of_type(columns: &TypeColumns) -> GraphColumns {
    GraphColumns {
        features: columns.features.clone(),
        sparse: columns.sparse.clone(),
        src: String::new(),
        dst: String::new(),
        undirected: false,
        weight: None,
        edge_features: Vec::new(),
    }
}

/// Returns the columns of a relation as those of an untyped graph, in the direction of its edges.
fn of_relation(columns: &RelationColumns) -> GraphColumns {
    let (mut src, mut dst) = (columns.src.clone(), columns.dst.clone());
    if columns.reversed {
        std::mem::swap(&mut src, &mut dst);
    }
    GraphColumns {
        features: Vec::new(),
        sparse: None,
        src,
        dst,
        undirected: columns.undirected,
        weight: columns.weight.clone(),
        edge_features: columns.features.clone(),
    }
}

fn name(column: &str) -> String {
    format!("{column:?}")
}

fn none() -> String {
    "left out".to_owned()
}

/// Describes the sparse columns without their width, which another check compares.
fn sparse(columns: &GraphColumns) -> String {
    match &columns.sparse {
        Some(SparseSpec { index, value, .. }) => {
            format!("{{ index = {index:?}, value = {value:?} }}")
        }
        None => none(),
    }
}

/// Lists the columns of both; with their kinds or widths if only these tell the lists apart.
fn both_names(trained: &[FeatureColumn], given: &[FeatureColumn]) -> (String, String) {
    let list = |columns: &[FeatureColumn], show: fn(&FeatureColumn) -> String| {
        let shown: Vec<String> = columns.iter().map(show).collect();
        format!("[{}]", shown.join(", "))
    };
    let names = |columns| list(columns, |column| name(&column.name));
    let kinds = |columns| {
        list(columns, |column| {
            format!("{:?} ({})", column.name, column.kind.as_str())
        })
    };
    let widths = |columns| {
        list(columns, |column| match column.width {
            Some(width) => format!("{:?} ({width} wide)", column.name),
            None => name(&column.name),
        })
    };
    let both = [trained, given];
    let knows_widths = both
        .iter()
        .all(|columns| columns.iter().all(|column| column.width.is_some()));
    if names(trained) != names(given) {
        (names(trained), names(given))
    } else if kinds(trained) != kinds(given) {
        (kinds(trained), kinds(given))
    } else if knows_widths {
        (widths(trained), widths(given))
    } else {
        (names(trained), names(given))
    }
}

#[cfg(test)]
mod tests {
    use schemas::ColumnKind;

    use super::*;

    #[test]
    fn features_of_another_width_name_table_and_column() {
        let trained = trained().features;
        assert_eq!(other_width("input.nodes", &trained, &trained), None);
        let narrow = [column("a", 2), column("b", 1)];
        assert_eq!(
            other_width("input.nodes.paper", &trained, &narrow).unwrap(),
            "it reads 5 features a node, `input.nodes.paper.features` have 3: column `b` has 1 \
             numbers a row, in training it had 3"
        );
        assert_eq!(
            other_width("input.nodes", &trained, &[column("c", 4)]).unwrap(),
            "it reads 5 features a node, `input.nodes.features` have 4"
        );
    }

    fn column(name: &str, width: usize) -> FeatureColumn {
        FeatureColumn {
            name: name.to_owned(),
            width: Some(width),
            kind: ColumnKind::Number,
        }
    }

    fn trained() -> GraphColumns {
        GraphColumns {
            features: vec![column("a", 2), column("b", 3)],
            sparse: None,
            src: "u".to_owned(),
            dst: "v".to_owned(),
            undirected: false,
            weight: Some("w".to_owned()),
            edge_features: vec![column("e", 1)],
        }
    }

    fn check(change: impl FnOnce(&mut GraphColumns), expected: &[&str]) {
        let mut given = trained();
        change(&mut given);
        let used = ColumnUse {
            features: true,
            weight: true,
            edge_features: true,
        };
        assert_eq!(differences(&trained(), &given, used), expected);
    }

    #[test]
    fn every_difference_names_both_sides() {
        check(|_| {}, &[]);
        check(
            |given| given.features.reverse(),
            &[
                "`input.nodes.features` is [\"b\", \"a\"], the model was trained with [\"a\", \"b\"]",
            ],
        );
        check(
            |given| given.features = vec![column("a", 3), column("b", 2)],
            &[
                "`input.nodes.features` is [\"a\" (3 wide), \"b\" (2 wide)], the model was trained \
                 with [\"a\" (2 wide), \"b\" (3 wide)]",
            ],
        );
        check(
            |given| given.features[0].kind = ColumnKind::Category,
            &[
                "`input.nodes.features` is [\"a\" (category), \"b\" (number)], the model was \
                 trained with [\"a\" (number), \"b\" (number)]",
            ],
        );
        check(
            |given| {
                (given.undirected, given.weight) = (true, Some("x".to_owned()));
                given.edge_features[0].name = "f".to_owned();
            },
            &[
                "`input.edges.undirected` is true, the model was trained with false",
                "`input.edges.weight` is \"x\", the model was trained with \"w\"",
                "`input.edges.features` is [\"f\"], the model was trained with [\"e\"]",
            ],
        );
        check(
            |given| (given.src, given.dst) = ("v".to_owned(), "u".to_owned()),
            &[
                "`input.edges.src` is \"v\", the model was trained with \"u\"",
                "`input.edges.dst` is \"u\", the model was trained with \"v\"",
            ],
        );
        check(
            |given| {
                given.features.clear();
                let (index, value) = ("i".to_owned(), "x".to_owned());
                given.sparse = Some(SparseSpec {
                    index,
                    value,
                    width: 5,
                });
            },
            &[
                "`input.nodes.sparse` is { index = \"i\", value = \"x\" }, the model was trained \
                 with left out",
            ],
        );
    }

    #[test]
    fn columns_that_the_model_does_not_read_may_differ() {
        let mut given = trained();
        (given.weight, given.edge_features) = (None, Vec::new());
        let used = ColumnUse {
            features: true,
            weight: false,
            edge_features: false,
        };
        assert!(differences(&trained(), &given, used).is_empty());
    }

    #[test]
    fn columns_of_a_type_or_relation_are_named_with_it() {
        let typed = || TypedColumns {
            types: [(
                "author".to_owned(),
                TypeColumns {
                    features: vec![column("a", 2)],
                    sparse: None,
                },
            )]
            .into(),
            relations: [(
                "by".to_owned(),
                RelationColumns {
                    src: "u".to_owned(),
                    dst: "v".to_owned(),
                    reversed: true,
                    undirected: false,
                    weight: Some("w".to_owned()),
                    features: Vec::new(),
                },
            )]
            .into(),
        };
        let used = |_: &str| ColumnUse {
            features: true,
            weight: true,
            edge_features: false,
        };
        assert!(typed_differences(&typed(), &typed(), used).is_empty());
        let mut given = typed();
        given.types.get_mut("author").unwrap().features[0].name = "b".to_owned();
        let by = given.relations.get_mut("by").unwrap();
        (by.reversed, by.weight) = (false, None);
        assert_eq!(
            typed_differences(&typed(), &given, used),
            [
                "`input.nodes.author.features` is [\"b\"], the model was trained with [\"a\"]",
                "`input.edges.by.src` is \"u\", the model was trained with \"v\"",
                "`input.edges.by.dst` is \"v\", the model was trained with \"u\"",
                "`input.edges.by.weight` is left out, the model was trained with \"w\"",
            ]
        );
    }

    #[test]
    fn widths_that_an_older_record_lacks_are_not_compared() {
        let mut older = trained();
        older
            .features
            .iter_mut()
            .for_each(|column| column.width = None);
        let used = ColumnUse {
            features: true,
            weight: true,
            edge_features: true,
        };
        assert!(differences(&older, &trained(), used).is_empty());
    }

    #[test]
    fn with_the_reverse_of_every_edge_the_ends_may_be_swapped() {
        let mut both = trained();
        both.undirected = true;
        let mut swapped = both.clone();
        std::mem::swap(&mut swapped.src, &mut swapped.dst);
        let used = ColumnUse {
            features: true,
            weight: true,
            edge_features: true,
        };
        assert!(differences(&both, &swapped, used).is_empty());
    }
}
