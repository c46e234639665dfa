//! Jobs with node types and relations.

use super::*;

const TYPES: &str = "[input.nodes.author]\npath = \"a\"\nid = \"id\"\nlabel = \"l\"\nsplit = \"s\"\n\
                     [input.nodes.paper]\npath = \"p\"\nid = \"id\"\n\
                     [input.edges.writes]\npath = \"w\"\nfrom = \"author\"\nto = \"paper\"\n\
                     src = \"s\"\ndst = \"d\"\nreverse = \"by\"\n";

#[test]
fn types_and_relations_are_tables_by_name() {
    let spec = load(&format!("{HEAD}{TYPES}{STAGE}"));
    let names = |names: Vec<&String>| names.into_iter().cloned().collect::<Vec<_>>().join(" ");
    assert_eq!(names(spec.input.nodes.keys().collect()), "author paper");
    assert_eq!(names(spec.input.edges.keys().collect()), "writes");
    assert_eq!(spec.input.edges["writes"].reverse.as_deref(), Some("by"));
    let untyped = load(&format!("{HEAD}{INPUT}{STAGE}"));
    assert_eq!(names(untyped.input.nodes.keys().collect()), "");
    // Keys that are tables are no types, and types may have the names of keys.
    let keys = "split = { train = 1.0 }\nwhere = { k = 1 }\ncolumns = { x = { one_hot = 3 } }\n";
    let text = INPUT.replacen("split = \"s\"\n", keys, 1);
    let with_tables = load(&format!("{HEAD}{text}{STAGE}"));
    assert_eq!(with_tables.input.nodes[""].rows_where.len(), 1);
    assert_eq!(with_tables.input.nodes[""].columns["x"].one_hot, Some(3));
    for name in ["path", "split", "where", "columns", "id"] {
        let named = load(&format!("{HEAD}{TYPES}{STAGE}").replace("author", name));
        assert!(
            names(named.input.nodes.keys().collect()).contains(name),
            "{name}"
        );
    }
    let listed = INPUT.replacen("path = \"n\"", "path = [\"n\", \"m\"]", 1);
    assert!(!load(&format!("{HEAD}{listed}{STAGE}")).input.is_typed());
}

#[test]
fn mistakes_in_tables_of_types_point_at_their_lines() {
    let check_typed = |from: &str, to: &str, expected: &str| {
        let types = TYPES.replacen(from, to, 1);
        let text = format!("{HEAD}{types}");
        let lines = mistakes_of(&text);
        assert_eq!(lines.join("\n"), expected);
    };
    check_typed(
        "path = \"p\"\n",
        "",
        "j.toml:8: missing key `input.nodes.paper.path`",
    );
    check_typed(
        "reverse",
        "revers",
        "j.toml:17: unknown key `input.edges.writes.revers`; did you mean `reverse`? allowed: path, \
         from, to, src, dst, undirected, reverse, weight, features, dangling, where",
    );
    check_typed(
        "id = \"id\"\nlabel",
        "id = \"id\"\ncolumns = { x = { knd = \"number\" } }\nlabel",
        "j.toml:6: unknown key `input.nodes.author.columns.x.knd`; did you mean `kind`? allowed: \
         kind, one_hot, max_values",
    );
    check_typed(
        "id = \"id\"\nlabel",
        "id = 3\nlabel",
        "j.toml:5: `input.nodes.author.id` is the number 3; allowed is a string, in quotes",
    );
    check_typed(
        "reverse = \"by\"",
        "where = { kind = 1.5 }",
        "j.toml:17: `input.edges.writes.where.kind` is the number 1.5; allowed is a string, a whole \
         number, true or false",
    );
}

#[test]
fn all_mistakes_of_a_graph_have_their_lines() {
    let types = TYPES
        .replacen("from = \"author\"", "from = \"autor\"", 1)
        .replacen("reverse = \"by\"", "reverse = \"writes\"", 1);
    let stages = "[train]\nmodel = \"gcn\"\nepochs = 1\noutput = \"out/m\"\n\
                  [infer]\noutput = \"out/e\"\n";
    check(
        &format!("{HEAD}{types}{stages}"),
        "j.toml:13: `input.edges.writes.from`: is \"autor\", which is no node type; did you mean \
         author? allowed are author, paper\n\
         j.toml:17: `input.edges.writes.reverse`: is \"writes\", which is the name of another \
         relation; each has its own\n\
         job j.toml: `train.input` is missing: a directory of graph features, where the job \
         has no table [flatten]",
    );
}

/// A flatten and a train stage of [`TYPES`].
const STAGES: &str = "[flatten]\noutput = \"out/f\"\nhops = 1\nfanouts = [2]\n\
                      [train]\nmodel = \"rgcn\"\nepochs = 1\noutput = \"out/m\"\n";

#[test]
fn columns_that_training_needs_are_named_with_their_type() {
    let check_job = |from: &str, to: &str, expected: &str| {
        check(
            &format!("{HEAD}{TYPES}{STAGES}").replacen(from, to, 1),
            expected,
        );
    };
    // Features are no duty of named types.
    check_job("", "", "");
    let unlabelled = format!("{HEAD}{TYPES}{STAGES}")
        .replacen("label = \"l\"\n", "", 1)
        .replacen("hops", "target_type = \"author\"\nhops", 1);
    check(
        &unlabelled,
        "job j.toml: `input.nodes.author.label`: is missing; [train] needs the column of the labels",
    );
    check_job(
        "split = \"s\"\n",
        "",
        "job j.toml: `flatten.targets`: \"labelled\" and \"train\" need `input.nodes.author.split`; \
         \"all\" and a list of targets do not\n\
         job j.toml: `input.nodes.author.split`: is missing; [train] needs the column of the splits, \
         or shares such as { train = 0.8, val = 0.1, test = 0.1 }",
    );
    check_job(
        "hops",
        "sampling = \"weighted\"\nhops",
        "j.toml:20: `flatten.sampling`: \"weighted\" and \"top\" need `input.edges.writes.weight`; \
         \"uniform\" does not",
    );
    check_job(
        "epochs",
        "edge_weight = true\nepochs",
        "j.toml:24: `train.edge_weight`: is true, but the edges have no weights \
         (`input.edges.RELATION.weight`)",
    );
}

#[test]
fn fanouts_may_be_tables_by_relation() {
    let stage = "[flatten]\noutput = \"out/f\"\nhops = 2\ntarget_type = \"author\"\n\
                 fanouts = [{ by = 10, writes = \"all\" }, 5]\n";
    let spec = load(&format!("{HEAD}{TYPES}{stage}"));
    let flatten = spec.flatten.unwrap();
    assert_eq!(flatten.target_type.as_deref(), Some("author"));
    let written = serde_json::to_value(&flatten.fanouts).unwrap();
    assert_eq!(
        written,
        serde_json::json!([{ "by": 10, "writes": "all" }, 5])
    );
    let wrong = stage.replace("10", "\"most\"");
    assert_eq!(
        mistakes_of(&format!("{HEAD}{TYPES}{wrong}")),
        [
            "j.toml:22: `flatten.fanouts` is the string \"most\"; allowed is a number of in-edges from 0 \
          to 4294967295, or \"all\""
        ]
    );
}
