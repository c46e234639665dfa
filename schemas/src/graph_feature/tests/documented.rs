//! `docs/tables.md` shows the columns that are written, and which inputs have each.

use arrow::datatypes::{DataType, Schema};

use super::super::layout::{edges_schema, nodes_schema, rows_schema};
use super::super::pairs;
use crate::columns::{
    FeatureMeta, GraphMeta, LabelKind, LabelMeta, PairsMeta, SplitMeta, UntypedMeta,
};
use crate::config::Exclude;
use crate::ids::IdType;

/// A row of a table of columns: name, type, and what an input must have for it.
#[derive(Debug, PartialEq)]
struct Column {
    name: String,
    data_type: String,
    there: Vec<String>,
}

/// Rows of the table that follows a line of the page.
fn documented(after: &str) -> Vec<Column> {
    let page = include_str!("../../../../docs/tables.md");
    let (_, rest) = page
        .split_once(after)
        .unwrap_or_else(|| panic!("no `{after}`"));
    let rows = rest.lines().skip_while(|line| !line.starts_with("|---"));
    let rows = rows.skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let there = cells[3].split(", ").filter(|what| !what.is_empty());
        Column {
            name: cells[1].trim_matches('`').to_owned(),
            data_type: cells[2].to_owned(),
            there: there.map(str::to_owned).collect(),
        }
    })
    .collect()
}

/// Everything that an input may have, with dense or sparse features.
const WHOLE: [&str; 5] = ["labels", "splits", "weights", "self-loops", "edge features"];

/// Description of the tables of an input that has just this.
fn all_meta(has: &[&str]) -> GraphMeta {
    let has = |what: &str| has.contains(&what);
    GraphMeta::from(UntypedMeta {
        id_type: IdType::Utf8,
        features: match (has("dense features"), has("sparse features")) {
            (true, _) => FeatureMeta::Dense { dim: 3 },
            (_, true) => FeatureMeta::Sparse { dim: 3 },
            _ => FeatureMeta::None,
        },
        columns: Vec::new(),
        label: has("labels").then(|| LabelMeta {
            data_type: "Int16".to_owned(),
            kind: LabelKind::Class { num_classes: 2 },
        }),
        split: has("splits").then(|| SplitMeta {
            data_type: "Int16".to_owned(),
            values: None,
        }),
        edge_weight: has("weights"),
        edge_feature_dim: has("edge features").then_some(2),
        self_loops: has("self-loops"),
    })
}

fn words(data_type: &DataType) -> String {
    match data_type {
        DataType::Utf8 => "id".to_owned(),
        DataType::Int16 => "as given".to_owned(),
        DataType::List(item) => format!("list of {}", words(item.data_type())),
        other => other.to_string().to_lowercase(),
    }
}

fn check(after: &str, schema: impl Fn(&GraphMeta) -> Schema) {
    let documented = documented(after);
    let mut inputs = vec![Vec::new(), WHOLE.to_vec()];
    for features in ["dense features", "sparse features"] {
        inputs.push(vec![features]);
        inputs.push([&WHOLE[..], &[features]].concat());
    }
    inputs.extend(WHOLE.map(|what| vec![what]));
    inputs.push(vec!["weights", "self-loops"]);
    for has in inputs {
        let written = schema(&all_meta(&has));
        let written: Vec<(String, String)> = written
            .fields()
            .iter()
            .map(|field| (field.name().clone(), words(field.data_type())))
            .collect();
        let is_there = |column: &&Column| column.there.iter().all(|what| has.contains(&&**what));
        let expected: Vec<(String, String)> = documented
            .iter()
            .filter(is_there)
            .map(|column| (column.name.clone(), column.data_type.clone()))
            .collect();
        assert_eq!(written, expected, "{after} of an input with {has:?}");
    }
}

#[test]
fn the_page_of_tables_shows_the_columns_that_are_written() {
    check("## Graph features as rows", |meta| {
        rows_schema(meta).unwrap()
    });
    check("\n`nodes`, ordered", |meta| nodes_schema(meta, 0).unwrap());
    check("\n`edges`, ordered", |meta| {
        edges_schema(&meta.relations[0])
    });
}

#[test]
fn the_page_of_tables_shows_the_columns_of_pairs() {
    let split = SplitMeta {
        data_type: "Int16".to_owned(),
        values: None,
    };
    let all = ["labels", "weights", "hard negatives"];
    for has in [
        vec![],
        all.to_vec(),
        vec![all[0]],
        vec![all[1]],
        vec![all[2]],
    ] {
        let has = |what: &str| has.contains(&what);
        let meta = PairsMeta {
            from: 0,
            to: 0,
            relations: vec![0],
            exclude: Exclude::All,
            label: has("labels"),
            weight: has("weights"),
            negatives: has("hard negatives"),
            split: split.clone(),
        };
        let written = pairs::schema(&meta).unwrap();
        let written = written.fields().iter();
        let written: Vec<(String, String)> = written
            .map(|field| (field.name().clone(), words(field.data_type())))
            .collect();
        let of_pairs = documented("### Pairs").into_iter();
        let of_pairs = of_pairs.filter(|column| column.there.iter().all(|what| has(what)));
        let expected: Vec<(String, String)> = of_pairs
            .map(|column| (column.name, column.data_type))
            .collect();
        assert_eq!(written, expected);
        rows_have(meta, &expected);
    }
}

/// Rows of pairs have the columns of pairs in place of those of targets.
fn rows_have(pairs: PairsMeta, of_pairs: &[(String, String)]) {
    let graph = GraphMeta {
        pairs: Some(pairs),
        ..all_meta(&[])
    };
    let schema = rows_schema(&graph).unwrap();
    let written: Vec<&String> = schema.fields().iter().map(|field| field.name()).collect();
    let of_rows = documented("## Graph features as rows");
    let others = of_rows.iter().filter(|column| column.there.is_empty());
    let others = others.skip(1).map(|column| &column.name);
    let expected: Vec<&String> = of_pairs
        .iter()
        .map(|(name, _)| name)
        .chain(others)
        .collect();
    assert_eq!(written, expected);
}
