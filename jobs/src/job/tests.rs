//! Tests of the job file and of where its errors point.

mod typed;

use super::*;
use crate::error::lines;

/// The parts of a good job file.
const HEAD: &str = "name = \"a\"\nseed = 1\n";
const INPUT: &str = "[input.nodes]\npath = \"n\"\nid = \"id\"\nlabel = \"l\"\nsplit = \"s\"\n\
                     [input.edges]\npath = \"e\"\nsrc = \"s\"\ndst = \"d\"\n";
const STAGE: &str = "[flatten]\noutput = \"out/f\"\nhops = 1\nfanouts = [2]\n";

fn source(text: &str, set: &[(&str, &str)]) -> JobSource {
    let set = set.iter().map(|&(key, value)| (key.into(), value.into()));
    let edits = Edits {
        set: set.collect(),
        date: "2026-11-21T01:02:03Z".parse().unwrap(),
    };
    JobSource::new(Path::new("j.toml"), text.to_owned(), &edits)
}

/// Reads the keys of a job file without mistakes.
fn load(text: &str) -> JobSpec {
    let (spec, reading) = source(text, &[]).parse();
    assert!(reading.mistakes.is_empty(), "{:?}", reading.mistakes);
    spec.unwrap()
}

/// Returns the mistakes in the keys of a job file; the tables are not read.
fn mistakes_of(text: &str) -> Vec<String> {
    let (_, reading) = source(text, &[]).parse::<JobSpec>();
    reading
        .mistakes
        .into_iter()
        .map(|mistake| mistake.line)
        .collect()
}

/// Checks the mistakes of a job, except that its tables do not exist.
#[track_caller]
fn check(text: &str, expected: &str) {
    check_set(text, &[], expected);
}

/// Checks the mistakes of a job of which keys are set on the command line.
#[track_caller]
fn check_set(text: &str, set: &[(&str, &str)], expected: &str) {
    let error = Job::of_source(&source(text, set), &Overrides::default()).unwrap_err();
    let lines = lines(&error.into());
    let is_there = |line: &&String| !line.contains("no such file or directory: ");
    let lines: Vec<&str> = lines.iter().filter(is_there).map(String::as_str).collect();
    assert_eq!(lines.join("\n"), expected);
}

#[test]
fn keys_and_tables_that_stand_twice_are_one_line_each() {
    check(
        "name = \"x\"\n[input.nodes.a]\npath = \"a\"\nid = \"id\"\npath = \"b\"\n\
         [input.nodes.a]\npath = \"a\"\nid = \"id\"\n[train]\nepochs = 1\nepochs = 2\n",
        "j.toml:5: `path` is in the file twice\n\
         j.toml:6: `input.nodes.a` is in the file twice\n\
         j.toml:11: `epochs` is in the file twice",
    );
    // A line of a list may look like a header.
    check(
        "name = \"x\"\n[train]\nepochs = 1\n[train]\nhidden = [ # [\n[\"]\", 1],\n]\nepochs = 2\n",
        "j.toml:4: `train` is in the file twice",
    );
}

#[test]
fn edge_weights_need_a_model_that_uses_them() {
    let input = INPUT.replace("[input.nodes]", "[input.nodes.a]").replace(
        "[input.edges]",
        "[input.edges.r]\nfrom = \"a\"\nto = \"a\"\nweight = \"w\"",
    );
    let train = "[train]\noutput = \"out/m\"\nmodel = \"hgt\"\nhidden = []\nepochs = 1\n\
                 edge_weight = true\n";
    let users = gnn::typed::TypedKind::names_of(gnn::typed::TypedKind::takes_edge_weights);
    check(
        &format!("{HEAD}{input}{STAGE}{train}"),
        &format!("j.toml:24: `train.edge_weight`: is true; only {users} use edge weights"),
    );
}

#[test]
fn errors_name_line_key_and_what_is_allowed() {
    check(
        &format!("{HEAD}wokers = 2\n{INPUT}{STAGE}"),
        "j.toml:3: unknown key `wokers`; did you mean `workers`? allowed: name, seed, work_dir, \
         workers, memory_budget, storage, input, incremental, flatten, train, infer, score",
    );
    check(
        &format!("{HEAD}{INPUT}{STAGE}fanout = [2]\n"),
        "j.toml:16: unknown key `flatten.fanout`; did you mean `fanouts`? allowed: output, hops, \
         fanouts, target_type, sampling, layout, targets, hub_threshold, samples_per_target, \
         targets_per_part, pairs_per_part, negatives_per_part",
    );
    check(
        &format!("{HEAD}{INPUT}{STAGE}layout = \"row\"\n"),
        "j.toml:16: `flatten.layout` cannot be `row`; did you mean `rows`? allowed: rows, shards",
    );
    check(
        &format!("name = \"a\"\n{INPUT}{STAGE}"),
        "j.toml:1: missing key `seed`",
    );
    check(
        &format!("{HEAD}{INPUT}[flatten]\nhops = 1\nfanouts = [2]\n"),
        "job j.toml: `flatten.output` is missing: the directory to write is needed, unless training \
         is streamed",
    );
    check(
        &format!("{HEAD}workers = 2000\n{INPUT}{STAGE}"),
        "j.toml:3: `workers`: is 2000; allowed is 1 to 1024",
    );
    check(
        &format!("{HEAD}work_dir = \"out/f\"\n{INPUT}{STAGE}"),
        "j.toml:3: `work_dir`: out/f overlaps `flatten.output`, out/f; each needs a \
         directory of its own",
    );
    check(
        &format!("{HEAD}{INPUT}{STAGE}sampling = \"top\"\n"),
        "j.toml:16: `flatten.sampling`: \"weighted\" and \"top\" need `input.edges.weight`; \
         \"uniform\" does not",
    );
    check(
        &format!("{HEAD}{INPUT}{STAGE}samples_per_target = 5000\n"),
        "j.toml:16: `flatten.samples_per_target` is 5000: allowed is 1 to 1024",
    );
    check(
        &format!("{HEAD}{INPUT}[infer]\noutput = \"o\"\n"),
        "job j.toml: `infer.model` is missing: a directory with a trained model, where the job has \
         no table [train]",
    );
}

#[test]
fn streamed_training_takes_no_key_of_what_is_written() {
    let train = "[train]\nmodel = \"gcn\"\nepochs = 1\noutput = \"out/m\"\nstreamed = true\n";
    let flatten = STAGE.replace("output = \"out/f\"\n", "");
    let unwritten = |key: &str| {
        format!(
            "`flatten.{key}` is given: streamed training writes no graph features; leave it out"
        )
    };
    // A job reads the tables first, so [flatten] is planned here on its own.
    let refused = |key: &str, line: &str| {
        let spec = load(&format!("{HEAD}{INPUT}{flatten}{line}\n{train}"));
        let error = spec.flatten.unwrap().into_sample_plan(Path::new(""));
        assert_eq!(error.unwrap_err().to_string(), unwritten(key));
    };
    refused("output", "output = \"out/f\"");
    refused("layout", "layout = \"shards\"");
    refused("samples_per_target", "samples_per_target = 1");
    check(
        &format!("{HEAD}{INPUT}{train}"),
        "j.toml:16: `train.streamed`: needs a table [flatten] that says which neighbourhoods to draw",
    );
    let spec = load(&format!("{HEAD}{INPUT}{flatten}{train}"));
    let flatten_only = Overrides {
        stages: vec![Stage::Flatten],
        ..Overrides::default()
    };
    let errors = spec.clone().into_job(&flatten_only).unwrap_err();
    assert_eq!(
        errors[0].to_string(),
        "`--stage flatten`: with `train.streamed` no graph features are written"
    );
    let selected = spec.selected(&[]).unwrap();
    assert_eq!(
        selected
            .iter()
            .map(|stage| stage.name())
            .collect::<Vec<_>>(),
        ["train"]
    );
}

#[test]
fn every_path_is_local() {
    let stages = "[train]\nmodel = \"gcn\"\nepochs = 1\noutput = \"out/m\"\n\
                  [infer]\noutput = \"out/e\"\n";
    let input = INPUT.replacen("[input.edges]", "features = [\"f\"]\n[input.edges]", 1);
    let job = format!("{HEAD}work_dir = \"work/a\"\n{input}{STAGE}targets = \"t\"\n{stages}");
    for (key, line) in [
        ("work_dir", "work_dir = \"work/a\""),
        ("input.nodes.path", "path = \"n\""),
        ("input.edges.path", "path = \"e\""),
        ("flatten.output", "output = \"out/f\""),
        ("flatten.targets", "targets = \"t\""),
        ("train.input", "input = \"out/m\""),
        ("train.output", "output = \"out/m\""),
        ("infer.model", "model = \"out/m\""),
        ("infer.output", "output = \"out/e\""),
    ] {
        let table = key.split('.').next().unwrap();
        let written = match key {
            "train.input" | "infer.model" => {
                job.replace(&format!("[{table}]\n"), &format!("[{table}]\n{line}\n"))
            }
            _ => job.clone(),
        };
        let name = line.split(' ').next().unwrap();
        let remote = written.replacen(line, &format!("{name} = \"gs://bucket/a\""), 1);
        let at = 1 + remote
            .lines()
            .position(|text| text.contains("gs:"))
            .unwrap();
        let problem = "is the URL of a store that is not supported; allowed are s3://, hdfs://, \
                   file:// and plain paths";
        check(
            &remote,
            &format!("j.toml:{at}: `{key}`: gs://bucket/a {problem}"),
        );
        let empty = written.replacen(line, &format!("{name} = \"\""), 1);
        check(
            &empty,
            &format!("j.toml:{at}: `{key}`: is empty; a path is needed"),
        );
    }
}

#[test]
fn training_needs_more_than_the_tables() {
    let train = "[train]\nmodel = \"gcn\"\nepochs = 1\noutput = \"out/m\"\n";
    let job = |nodes: &str, keys: &str| {
        let input = INPUT.replacen("[input.edges]", &format!("{nodes}[input.edges]"), 1);
        format!("{HEAD}{input}{STAGE}{train}{keys}")
    };
    let features = "features = [\"f\"]\n";
    let sparse = "sparse = { index = \"i\", value = \"v\", width = 3 }\n";
    check(
        &job(features, "")
            .replace("split = \"s\"\n", "")
            .replace("[2]\n", "[2]\ntargets = \"all\"\n"),
        "job j.toml: `input.nodes.split`: is missing; [train] needs the column of the splits, \
         or shares such as { train = 0.8, val = 0.1, test = 0.1 }",
    );
    check(
        &job("", ""),
        "job j.toml: `input.nodes.features`: is missing; [train] needs `features`, `sparse` or \
         `embedding`",
    );
    check(
        &job(&format!("{sparse}transform = \"standardize\"\n"), ""),
        "j.toml:9: `input.nodes.transform`: \"standardize\" would make sparse features dense; \
         allowed is \"row_normalize\"",
    );
    check(
        &job(features, "edge_weight = true\n"),
        "j.toml:21: `train.edge_weight`: is true, but the edges have no weights \
         (`input.edges.weight`)",
    );
    check(
        &job(features, "edge_features = true\n"),
        "j.toml:21: `train.edge_features`: is true, but the edges have no features \
         (`input.edges.features`)\n\
         j.toml:21: `train.edge_features`: is true; only gat, gatv2 and gin take edge features",
    );
    let with_edges = "features = [\"f\"]\nsrc = \"s\"";
    check(
        &job(features, "edge_features = true\n").replacen("src = \"s\"", with_edges, 1),
        "j.toml:22: `train.edge_features`: is true; only gat, gatv2 and gin take edge features",
    );
    check(
        &job(features, "weight_decay_layers = [1, 2]\n"),
        "j.toml:21: `train.weight_decay_layers`: holds 2; the model has layers 1 to 1",
    );
}

#[test]
fn errors_within_a_schedule_point_at_it() {
    let check_schedule = |keys: &str, expected: &str| {
        let train = "[train]\nmodel = \"gcn\"\nepochs = 2\noutput = \"out/m\"\n";
        let input = INPUT.replacen("[input.edges]", "features = [\"f\"]\n[input.edges]", 1);
        let job = format!("{HEAD}{input}{STAGE}{train}schedule = {{ {keys} }}\n");
        check(&job, expected);
    };
    check_schedule(
        "kind = \"cosin\"",
        "j.toml:21: `train.schedule.kind` cannot be `cosin`; did you mean `cosine`? allowed: \
         constant, step, cosine, linear",
    );
    check_schedule(
        "kind = \"cosine\", warm_up = 1",
        "j.toml:21: unknown key `train.schedule.warm_up`; did you mean `warmup`? allowed: kind, \
         warmup, every, factor, floor",
    );
}

#[test]
fn outputs_keep_off_what_is_read() {
    let job = format!("{HEAD}{INPUT}{STAGE}targets = \"lists/t\"\n");
    let rest = "an output must not equal, contain or lie in an input";
    for (output, read, path) in [
        ("n", "input.nodes.path", "n"),
        ("./e/deep", "input.edges.path", "e"),
        ("lists", "flatten.targets", "lists/t"),
    ] {
        let problem = format!("{output} overlaps `{read}`, {path}; {rest}");
        check(
            &job.replace("out/f", output),
            &format!("j.toml:13: `flatten.output`: {problem}"),
        );
    }
    check(
        &format!("{HEAD}work_dir = \".\"\n{INPUT}{STAGE}").replace("out/f", "../out"),
        &format!("j.toml:3: `work_dir`: . overlaps `input.nodes.path`, n; {rest}"),
    );
    let train = "[train]\nmodel = \"gcn\"\nepochs = 1\ninput = \"g\"\noutput = \"g\"\n";
    check(
        &format!("{HEAD}{INPUT}{train}"),
        &format!("j.toml:16: `train.output`: g overlaps `train.input`, g; {rest}"),
    );
}

/// The example of the reference holds every key, so a removed or a new key fails this test.
#[test]
fn the_documented_example_parses_and_every_key_is_documented() {
    let reference = concat!(
        include_str!("../../../docs/job.md"),
        include_str!("../../../docs/job/input.md"),
        include_str!("../../../docs/job/pairs.md"),
        include_str!("../../../docs/job/graphs.md"),
        include_str!("../../../docs/job/storage.md"),
        include_str!("../../../docs/job/flatten.md"),
        include_str!("../../../docs/job/train.md"),
        include_str!("../../../docs/job/infer.md"),
        include_str!("../../../docs/job/score.md"),
        include_str!("../../../docs/job/incremental.md"),
    );
    // The only error is that the tables do not exist.
    check(
        example(),
        "j.toml:32: `input.edges.path`: no file matches: papers/edges/*.parquet",
    );
    let written: toml::Table = toml::from_str(example()).unwrap();
    for table in [
        "",
        "[storage]",
        "[storage.s3]",
        "[input.nodes]",
        "[input.edges]",
        "[input.pairs]",
        "[input.graphs]",
        "[flatten]",
        "[train]",
        "[infer]",
        "[score]",
        "[incremental]",
    ] {
        let text = format!("{table}\nno_such_key = 1\n");
        let error = mistakes_of(&text)
            .into_iter()
            .find(|mistake| mistake.contains("no_such_key"))
            .unwrap_or_default();
        let allowed = error
            .split("allowed: ")
            .nth(1)
            .unwrap_or_else(|| panic!("{error}"));
        let section = if table.is_empty() {
            "## Top level"
        } else {
            &format!("## `{table}`")
        };
        let section = reference
            .split(section)
            .nth(1)
            .unwrap()
            .split("\n## ")
            .next()
            .unwrap();
        for key in allowed.split(", ").filter(|key| !TABLES.contains(key)) {
            assert!(
                section.contains(&format!("`{key}`")),
                "{table} {key} is not documented"
            );
            // The example trains on labels of nodes, and is no nightly job.
            let others = [
                "[input.pairs]",
                "[input.graphs]",
                "[score]",
                "[incremental]",
            ];
            if others.contains(&table) {
                continue;
            }
            let names = table.trim_matches(['[', ']']).split('.');
            let inside = names
                .filter(|name| !name.is_empty())
                .fold(&written, |inside, name| inside[name].as_table().unwrap());
            assert!(
                inside.contains_key(key) || ALTERNATIVES.contains(&key),
                "{table} {key} is not in the example"
            );
        }
    }
}

/// Keys that exclude other keys of the example, keys of typed graphs, of graphs and of pairs.
const ALTERNATIVES: [&str; 26] = [
    "embedding_weight_decay",
    "batch_by",
    "src_power",
    "whole_parts",
    "graph",
    "readout",
    "pairs_per_part",
    "negatives_per_part",
    "decoder",
    "temperature",
    "margin",
    "negatives",
    "sparse",
    "input",
    "where",
    "from",
    "to",
    "reverse",
    "target_type",
    "relation_aggregator",
    "projection",
    "bases",
    "relation_dim",
    "attention_residual",
    "normalize_output",
    "types",
];

/// Keys of the top level that are tables with a section of their own.
const TABLES: [&str; 8] = [
    "incremental",
    "storage",
    "s3",
    "input",
    "flatten",
    "train",
    "infer",
    "score",
];

#[test]
fn every_job_of_the_repository_parses_and_the_readme_shows_one() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut jobs = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let is_toml = path
            .extension()
            .is_some_and(|extension| extension == "toml");
        if is_toml && path.file_name().is_some_and(|name| name != "Cargo.toml") {
            let text = std::fs::read_to_string(&path).unwrap();
            let spec = load(&text.replace("${env:GRAPHFLAT_DATA}", "data"));
            assert_eq!(
                Some(spec.name.as_ref()),
                path.file_stem().and_then(|stem| stem.to_str())
            );
            jobs += 1;
        }
    }
    assert!(jobs > 10);
    let readme = std::fs::read_to_string(folder.join("../README.md")).unwrap();
    let shown = readme
        .split("```toml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    let debian = std::fs::read_to_string(folder.join("debian.toml")).unwrap();
    assert!(
        debian.contains(shown.trim()),
        "the README shows the job as it is"
    );
}

#[test]
fn keys_of_the_command_line_stand_in_place_of_the_files() {
    let text = format!("{HEAD}{INPUT}{STAGE}");
    let set = [
        ("seed", "5"),
        ("name", "b c"),
        ("flatten.fanouts", "[7, \"all\"]"),
        ("flatten.hops", "2"),
        ("infer.output", "out/${date:%F,-1d}"),
        (
            "input.nodes.split_values",
            "{ train = 1, val = 2, test = 3 }",
        ),
        ("input.nodes.split_values.val", "4"),
    ];
    let spec: JobSpec = source(&text, &set).parse().0.unwrap();
    let written = "name = \"b c\"\nseed = 5\n[input.nodes]\npath = \"n\"\nid = \"id\"\n\
                   label = \"l\"\nsplit = \"s\"\nsplit_values = { train = 1, val = 4, test = 3 }\n\
                   [input.edges]\npath = \"e\"\nsrc = \"s\"\ndst = \"d\"\n[flatten]\noutput = \"out/f\"\n\
                   hops = 2\nfanouts = [7, \"all\"]\n[infer]\n\
                   output = \"out/2026-11-20\"\n";
    assert_eq!(format!("{spec:?}"), format!("{:?}", load(written)));
}

#[test]
fn errors_of_keys_of_the_command_line_name_them() {
    let text = format!("{HEAD}{INPUT}{STAGE}");
    check_set(
        &text,
        &[("seed", "3"), ("flatten.hop", "2")],
        "--set flatten.hop=2: unknown key `flatten.hop`; did you mean `hops`? allowed: output, hops, \
         fanouts, target_type, sampling, layout, targets, hub_threshold, samples_per_target, \
         targets_per_part, pairs_per_part, negatives_per_part",
    );
    check_set(
        &text,
        &[("flatten.hops", "two")],
        "--set flatten.hops=two: `flatten.hops` is the string \"two\"; allowed is a whole number \
         from 1",
    );
    check_set(
        &text,
        &[("workers", "0")],
        "--set workers=0: `workers`: is 0; allowed is 1 to 1024",
    );
    check_set(
        &text,
        &[("seed.x", "1")],
        "--set seed.x=1: `seed` is a key of the job file, not a table",
    );
    // The error of a key in the file names its line.
    check_set(
        &format!("{HEAD}wokers = 2\n{INPUT}{STAGE}"),
        &[("seed", "2")],
        "j.toml:3: unknown key `wokers`; did you mean `workers`? allowed: name, seed, work_dir, \
         workers, memory_budget, storage, input, incremental, flatten, train, infer, score",
    );
}

#[test]
fn variables_in_strings_are_put_in_or_named() {
    let text = |path: &str| format!("{HEAD}{INPUT}{STAGE}").replace("\"e\"", &format!("{path:?}"));
    let spec = load(&text("edges/dt=${date:%Y-%m-%d,-1d}/*.parquet"));
    assert_eq!(
        spec.input.edges[""].path.to_string(),
        "edges/dt=2026-11-20/*.parquet"
    );
    check(
        &text("${day}"),
        "j.toml:9: `input.edges.path`: `${day}` is no variable; allowed: ${date:FORMAT}, \
         ${date:FORMAT,OFFSET} such as ${date:%Y-%m-%d,-1d}, and ${env:NAME}; $${ stands for ${ \
         itself",
    );
}

#[test]
fn all_mistakes_are_told_at_once_in_the_order_of_the_file() {
    let train = "[train]\nmodel = \"gnn\"\nepochs = 0\ndropout = \"half\"\nhidden = 8\n";
    let infer = "[infer]\noutput = \"out/f/e\"\nlayer = 300\n";
    let flatten = "[flatten]\noutput = \"out/f\"\nhop = 2\nfanouts = [2, \"most\"]\n";
    check(
        &format!("seed = 1\nwork_dir = \"${{day}}\"\n{INPUT}{flatten}{train}{infer}")
            .replace("id = \"id\"\n", "")
            .replace("label = \"l\"", "label = [\"l\"]"),
        "j.toml:1: missing key `name`\n\
         j.toml:2: `work_dir`: `${day}` is no variable; allowed: ${date:FORMAT}, \
         ${date:FORMAT,OFFSET} such as ${date:%Y-%m-%d,-1d}, and ${env:NAME}; $${ stands for ${ \
         itself\n\
         j.toml:3: missing key `input.nodes.id`\n\
         j.toml:5: `input.nodes.label` is a list; allowed is a string, in quotes\n\
         j.toml:13: unknown key `flatten.hop`; did you mean `hops`? allowed: output, hops, fanouts, \
         target_type, sampling, layout, targets, hub_threshold, samples_per_target, targets_per_part, \
         pairs_per_part, negatives_per_part\n\
         j.toml:14: `flatten.fanouts` is the string \"most\"; allowed is a number of in-edges from 1 \
         to 4294967295, or \"all\"\n\
         j.toml:15: missing key `train.output`\n\
         j.toml:16: `train.model` cannot be `gnn`; allowed: gcn, sage, gat, gatv2, gin, lightgcn, \
         rgcn, simple_hgn, hgt\n\
         j.toml:17: `train.epochs` is 0: allowed is 1 to 1000000\n\
         j.toml:18: `train.dropout` is the string \"half\"; allowed is a number\n\
         j.toml:19: `train.hidden` is the number 8; allowed is a list\n\
         j.toml:21: `infer.output`: out/f/e overlaps `flatten.output`, out/f; each needs a \
         directory of its own\n\
         j.toml:22: `infer.layer` is 300: allowed is 1 to 255\n\
         job j.toml: `input.nodes.features`: is missing; [train] needs `features`, `sparse` or \
         `embedding`",
    );
}

#[test]
fn a_mistake_that_follows_from_another_is_not_told() {
    // The missing labels and the wrong type of the output would cause further errors.
    let train = "[train]\nmodel = \"gcn\"\nepochs = 1\noutput = 5\n";
    let input = INPUT.replacen("[input.edges]", "features = [\"f\"]\n[input.edges]", 1);
    check(
        &format!("{HEAD}{input}{STAGE}{train}").replace("split =", "splits ="),
        "j.toml:7: unknown key `input.nodes.splits`; did you mean `split`? allowed: path, id, \
         features, columns, sparse, label, label_kind, num_classes, split, split_values, graph, \
         transform, embedding, where\n\
         j.toml:20: `train.output` is the number 5; allowed is a path, in quotes",
    );
}

#[test]
fn values_of_a_wrong_type_say_what_is_wanted() {
    let text = format!("{HEAD}{INPUT}{STAGE}");
    for (set, expected) in [
        (
            ("train", "5"),
            "--set train=5: `train` is the number 5; allowed is a table",
        ),
        (
            ("flatten", "5"),
            "--set flatten=5: `flatten` is a table of the job file; set its keys one by one, as in \
             --set flatten.KEY=VALUE",
        ),
        (
            ("input.nodes.features", "\"x\""),
            "--set input.nodes.features=\"x\": `input.nodes.features` is the string \"x\"; allowed \
             is a list, such as [\"x\"]",
        ),
        (
            ("input.edges.undirected", "1"),
            "--set input.edges.undirected=1: `input.edges.undirected` is the number 1; allowed is \
             true or false",
        ),
        (
            ("seed", "-1"),
            "--set seed=-1: `seed` is the number -1; allowed is a whole number from 0",
        ),
        (
            ("flatten.output", "[]"),
            "--set flatten.output=[]: `flatten.output` is a list; allowed is a path, in quotes",
        ),
    ] {
        check_set(&text, &[set], expected);
    }
}

/// Numbers of a job file: values at the ends of their bounds, and values outside.
const NUMBERS: [(&str, [&str; 2], [&str; 2]); 51] = [
    ("seed", ["0", "9223372036854775807"], ["-1", "0.5"]),
    ("workers", ["1", "2"], ["0", "1025"]),
    (
        "memory_budget",
        ["\"64MiB\"", "\"1PiB\""],
        ["\"63MiB\"", "\"1025TiB\""],
    ),
    ("storage.retries", ["0", "1000"], ["-1", "1001"]),
    (
        "storage.faults_max",
        ["0", "1000000000"],
        ["-1", "1000000001"],
    ),
    ("storage.timeout", ["1", "3600"], ["0", "3601"]),
    ("input.nodes.embedding", ["1", "4096"], ["0", "4097"]),
    (
        "input.nodes.num_classes",
        ["1", "1048576"],
        ["0", "1048577"],
    ),
    (
        "input.nodes.sparse.width",
        ["1", "16777216"],
        ["0", "16777217"],
    ),
    (
        "input.nodes.split_values.train",
        ["-5", "9223372036854775807"],
        ["0.5", "true"],
    ),
    (
        "input.nodes.split_values.val",
        ["-5", "9223372036854775807"],
        ["0.5", "true"],
    ),
    (
        "input.nodes.split_values.test",
        ["-5", "9223372036854775807"],
        ["0.5", "true"],
    ),
    ("flatten.hops", ["2", "2"], ["1", "256"]),
    (
        "flatten.fanouts",
        ["[1, 4294967295]", "[1, \"all\"]"],
        ["[0, 1]", "[1, 4294967296]"],
    ),
    (
        "flatten.hub_threshold",
        ["1", "4294967295"],
        ["0", "4294967296"],
    ),
    ("flatten.samples_per_target", ["1", "1024"], ["0", "1025"]),
    (
        "flatten.targets_per_part",
        ["1", "4294967294"],
        ["0", "4294967295"],
    ),
    ("train.hidden", ["[8]", "[1048576]"], ["[0]", "[1048577]"]),
    ("train.layers", ["2", "2"], ["0", "256"]),
    ("train.heads", ["1", "64"], ["0", "1025"]),
    ("train.out_heads", ["1", "1024"], ["0", "1025"]),
    ("train.dropout", ["0", "0.99"], ["-0.1", "1"]),
    ("train.input_dropout", ["0", "0.99"], ["-0.1", "1"]),
    ("train.attention_dropout", ["0", "0.99"], ["-0.1", "1"]),
    ("train.learning_rate", ["1e-30", "1000"], ["0", "1001"]),
    ("train.schedule.warmup", ["0", "199.5"], ["-1", "200"]),
    (
        "train.schedule.every",
        ["1e-3", "1000000"],
        ["0", "1000001"],
    ),
    ("train.schedule.factor", ["1e-3", "1000"], ["0", "1001"]),
    ("train.schedule.floor", ["0", "1"], ["-0.1", "1.1"]),
    (
        "train.clip_norm",
        ["1e-30", "1000000000"],
        ["0", "1000001000"],
    ),
    ("train.momentum", ["0", "0.99"], ["-0.1", "1"]),
    ("train.weight_decay", ["0", "1000"], ["-1", "1001"]),
    (
        "train.weight_decay_layers",
        ["[1]", "[2]"],
        ["[0]", "[257]"],
    ),
    ("train.epochs", ["6", "1000000"], ["0", "1000001"]),
    ("train.batch_size", ["1", "4294967294"], ["0", "4294967295"]),
    ("train.evaluate_every", ["1", "1000000"], ["0", "1000001"]),
    ("train.patience", ["1", "1000000"], ["0", "1000001"]),
    (
        "train.class_weights",
        ["[0, 1]", "[1, 1000000000]"],
        ["[-1, 1]", "[1, 1000001000]"],
    ),
    ("train.seed", ["0", "9223372036854775807"], ["-1", "0.5"]),
    ("train.workers", ["1", "1024"], ["0", "1025"]),
    ("train.servers", ["1", "1024"], ["0", "1025"]),
    ("train.staleness", ["0", "1000000"], ["-1", "1000001"]),
    ("train.checkpoint_every", ["1", "1000000"], ["0", "1000001"]),
    (
        "train.checkpoint_every_steps",
        ["1", "1000000000000"],
        ["0", "1000000000001"],
    ),
    (
        "train.cache_bytes",
        ["\"0B\"", "\"1PiB\""],
        ["-1", "\"1025TiB\""],
    ),
    ("infer.layer", ["1", "2"], ["0", "256"]),
    (
        "infer.rows_per_part",
        ["1", "4294967294"],
        ["0", "4294967295"],
    ),
    (
        "input.nodes.split_values.none",
        ["-5", "9"],
        ["0.5", "true"],
    ),
    ("flatten.hops", ["2", "2"], ["-1", "9223372036854775807"]),
    ("train.epochs", ["6", "6"], ["-1", "9223372036854775807"]),
    (
        "train.batch_size",
        ["6", "6"],
        ["0.5", "9223372036854775807"],
    ),
];

#[test]
fn every_number_has_bounds() {
    let example = example();
    let told = |key: &str, value: &str| {
        let mut set = vec![(key, value)];
        if key == "train.schedule.every" || key == "train.schedule.factor" {
            set.insert(0, ("train.schedule", "{ kind = \"step\", every = 1 }"));
        }
        if key == "input.nodes.sparse.width" {
            let sparse = "{ index = \"i\", value = \"v\", width = 1 }";
            set.insert(0, ("input.nodes.sparse", sparse));
        }
        let error = Job::of_source(&source(example, &set), &Overrides::default()).unwrap_err();
        let place = format!("--set {key}={value}: `{key}`");
        lines(&error.into())
            .iter()
            .any(|line| line.starts_with(&place))
    };
    for (key, allowed, refused) in NUMBERS {
        for value in allowed {
            assert!(!told(key, value), "`{key}` may be {value}");
        }
        for value in refused {
            assert!(told(key, value), "`{key}` must not be {value}");
        }
    }
    let mut numeric = Vec::new();
    let written: toml::Table = toml::from_str(example).unwrap();
    gather_numbers(&toml::Value::Table(written), "", &mut numeric);
    assert!(numeric.len() > 40, "{numeric:?}");
    for key in numeric {
        assert!(
            NUMBERS.iter().any(|(known, ..)| *known == key),
            "`{key}` has no bounds"
        );
    }
}

/// Collects the dotted names of keys that hold numbers, lists of numbers, or sizes.
fn gather_numbers(value: &toml::Value, key: &str, found: &mut Vec<String>) {
    let is_number = |written: &toml::Value| {
        let is_size = |text: &str| text.parse::<ByteSize>().is_ok();
        written.is_integer() || written.is_float() || written.as_str().is_some_and(is_size)
    };
    match value {
        toml::Value::Table(table) => {
            for (name, inner) in table {
                let dot = if key.is_empty() { "" } else { "." };
                gather_numbers(inner, &format!("{key}{dot}{name}"), found);
            }
        }
        toml::Value::Array(items) if items.iter().any(is_number) => found.push(key.to_owned()),
        _ if is_number(value) => found.push(key.to_owned()),
        _ => {}
    }
}

/// The whole job of the reference.
fn example() -> &'static str {
    let reference = include_str!("../../../docs/job.md");
    let example = reference.split("```toml\n").nth(1).unwrap();
    example.split("```").next().unwrap()
}
