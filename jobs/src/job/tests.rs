//! Tests of the job file and of where its errors point.

use super::*;
use crate::error::one_line;

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

fn load(text: &str) -> anyhow::Result<JobSpec> {
    Ok(source(text, &[]).parse()?)
}

#[track_caller]
fn check(text: &str, expected: &str) {
    check_set(text, &[], expected);
}

/// Checks the error of a job of which keys are set on the command line.
#[track_caller]
fn check_set(text: &str, set: &[(&str, &str)], expected: &str) {
    let source = source(text, set);
    let error = match source.parse::<JobSpec>() {
        Err(error) => one_line(&error.into()),
        Ok(spec) => {
            let error = spec.into_job(&Overrides::default()).unwrap_err();
            let place = source.locate(&error.to_string());
            one_line(&anyhow::Error::from(error).context(place))
        }
    };
    assert_eq!(error, expected);
}

#[test]
fn errors_name_line_key_and_what_is_allowed() {
    check(
        &format!("{HEAD}wokers = 2\n{INPUT}{STAGE}"),
        "j.toml:3: unknown key `wokers`; did you mean `workers`? allowed: name, seed, work_dir, \
         workers, memory_budget, storage, input, flatten, train, infer",
    );
    check(
        &format!("{HEAD}{INPUT}{STAGE}fanout = [2]\n"),
        "j.toml:16: unknown key `flatten.fanout`; did you mean `fanouts`? allowed: output, hops, \
         fanouts, sampling, layout, targets, hub_threshold, samples_per_target, targets_per_part",
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
        "job j.toml: `flatten.output`: is missing; only streamed training (`train.streamed`) needs \
         none",
    );
    check(
        &format!("{HEAD}workers = 2000\n{INPUT}{STAGE}"),
        "j.toml:3: `workers`: is 2000; allowed is 1 to 1024",
    );
    check(
        &format!("{HEAD}work_dir = \"out/f\"\n{INPUT}{STAGE}"),
        "j.toml:3: `work_dir`: out/f is in the way of `flatten.output`, out/f; each needs a \
         directory of its own",
    );
    check(
        &format!("{HEAD}{INPUT}{STAGE}sampling = \"top\"\n"),
        "j.toml:16: `flatten.sampling`: \"weighted\" and \"top\" need `input.edges.weight`; \
         \"uniform\" does not",
    );
    check(
        &format!("{HEAD}{INPUT}{STAGE}samples_per_target = 5000\n"),
        "j.toml:16: `flatten.samples_per_target`: is 5000; allowed is 1 to 1024",
    );
    check(
        &format!("{HEAD}{INPUT}[infer]\noutput = \"o\"\n"),
        "job j.toml: `infer.model`: is missing, and the job has no table [train] whose output it \
         could be",
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
    // The tables are read first, so the plan of [flatten] is asked for itself.
    let refused = |key: &str, line: &str| {
        let spec = load(&format!("{HEAD}{INPUT}{flatten}{line}\n{train}")).unwrap();
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
    let spec = load(&format!("{HEAD}{INPUT}{flatten}{train}")).unwrap();
    let flatten_only = Overrides {
        stages: vec![Stage::Flatten],
        ..Overrides::default()
    };
    let error = spec.clone().into_job(&flatten_only).unwrap_err();
    assert_eq!(
        error.to_string(),
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
    let job = format!("{HEAD}work_dir = \"work/a\"\n{INPUT}{STAGE}targets = \"t\"\n{stages}");
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
        let problem = "is of a store that is not supported; allowed are s3://, hdfs://, file:// and plain paths";
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
        "job j.toml: `input.nodes.features`: is missing; [train] needs `features` or `sparse`",
    );
    check(
        &job(&format!("{sparse}transform = \"standardize\"\n"), ""),
        "j.toml:9: `input.nodes.transform`: \"standardize\" would fill sparse features; allowed is \
         \"row_normalize\"",
    );
    check(
        &job(features, "edge_weight = true\n"),
        "j.toml:21: `train.edge_weight`: is true, but the edges have no weights \
         (`input.edges.weight`)",
    );
    check(
        &job(features, "edge_features = true\n"),
        "j.toml:21: `train.edge_features`: is true, but the edges have no features \
         (`input.edges.features`)",
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
    let rest = "an output lies neither in what is read nor around it";
    for (output, read, path) in [
        ("n", "input.nodes.path", "n"),
        ("./e/deep", "input.edges.path", "e"),
        ("lists", "flatten.targets", "lists/t"),
    ] {
        let problem = format!("{output} is in the way of `{read}`, {path}; {rest}");
        check(
            &job.replace("out/f", output),
            &format!("j.toml:13: `flatten.output`: {problem}"),
        );
    }
    check(
        &format!("{HEAD}work_dir = \".\"\n{INPUT}{STAGE}").replace("out/f", "../out"),
        &format!("j.toml:3: `work_dir`: . is in the way of `input.nodes.path`, n; {rest}"),
    );
    let train = "[train]\nmodel = \"gcn\"\nepochs = 1\ninput = \"g\"\noutput = \"g\"\n";
    check(
        &format!("{HEAD}{INPUT}{train}"),
        &format!("j.toml:16: `train.output`: g is in the way of `train.input`, g; {rest}"),
    );
}

/// The reference's example holds every key, so a key that is gone or new shows.
#[test]
fn the_documented_example_parses_and_every_key_is_documented() {
    let reference = include_str!("../../../docs/job.md");
    let example = reference
        .split("```toml\n")
        .nth(1)
        .unwrap()
        .split("```")
        .next()
        .unwrap();
    // Everything fits but the tables, which are not there.
    check(
        example,
        "j.toml:19: `input.nodes.path`: no such file or directory: papers/nodes",
    );
    let written: toml::Table = toml::from_str(example).unwrap();
    for table in [
        "",
        "[storage]",
        "[storage.s3]",
        "[input.nodes]",
        "[input.edges]",
        "[flatten]",
        "[train]",
        "[infer]",
    ] {
        let text = format!("{table}\nno_such_key = 1\n");
        let error = one_line(&load(&text).unwrap_err());
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

/// Keys that do not go with others of the example, in comments of it.
const ALTERNATIVES: [&str; 2] = ["sparse", "input"];

/// Keys of the top level that are tables with a section of their own.
const TABLES: [&str; 6] = ["storage", "s3", "input", "flatten", "train", "infer"];

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
            let spec = load(&text.replace("${env:GRAPHFLAT_DATA}", "data")).unwrap();
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
    let spec: JobSpec = source(&text, &set).parse().unwrap();
    let written = "name = \"b c\"\nseed = 5\n[input.nodes]\npath = \"n\"\nid = \"id\"\n\
                   label = \"l\"\nsplit = \"s\"\nsplit_values = { train = 1, val = 4, test = 3 }\n\
                   [input.edges]\npath = \"e\"\nsrc = \"s\"\ndst = \"d\"\n[flatten]\noutput = \"out/f\"\n\
                   hops = 2\nfanouts = [7, \"all\"]\n[infer]\n\
                   output = \"out/2026-11-20\"\n";
    assert_eq!(format!("{spec:?}"), format!("{:?}", load(written).unwrap()));
}

#[test]
fn errors_of_keys_of_the_command_line_name_them() {
    let text = format!("{HEAD}{INPUT}{STAGE}");
    check_set(
        &text,
        &[("seed", "3"), ("flatten.hop", "2")],
        "--set flatten.hop=2: unknown key `flatten.hop`; did you mean `hops`? allowed: output, hops, \
         fanouts, sampling, layout, targets, hub_threshold, samples_per_target, targets_per_part",
    );
    check_set(
        &text,
        &[("flatten.hops", "two")],
        "--set flatten.hops=two: `flatten.hops`: invalid type: string \"two\", expected a whole \
         number from 0",
    );
    check_set(
        &text,
        &[("workers", "0")],
        "--set workers=0: `workers`: is 0; allowed is 1 to 1024",
    );
    check_set(
        &text,
        &[("seed.x", "1")],
        "--set seed.x=1: `seed` is no table of the job file",
    );
    // A key of the file still has its line.
    check_set(
        &format!("{HEAD}wokers = 2\n{INPUT}{STAGE}"),
        &[("seed", "2")],
        "j.toml:3: unknown key `wokers`; did you mean `workers`? allowed: name, seed, work_dir, \
         workers, memory_budget, storage, input, flatten, train, infer",
    );
}

#[test]
fn variables_in_strings_are_put_in_or_named() {
    let text = |path: &str| format!("{HEAD}{INPUT}{STAGE}").replace("\"e\"", &format!("{path:?}"));
    let spec = load(&text("edges/dt=${date:%Y-%m-%d,-1d}/*.parquet")).unwrap();
    assert_eq!(
        spec.input.edges.path.to_string(),
        "edges/dt=2026-11-20/*.parquet"
    );
    let error = load(&text("${day}")).unwrap_err();
    assert_eq!(
        one_line(&error),
        "j.toml:9: `input.edges.path`: `${day}` is no variable; allowed: ${date:FORMAT}, \
         ${date:FORMAT,OFFSET} such as ${date:%Y-%m-%d,-1d}, and ${env:NAME}; $${ stands for ${ \
         itself",
    );
}
