//! Mistakes in jobs and tables of typed graphs: each is one line that names where it is.

use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, ListArray, StringArray};
use arrow::datatypes::Float32Type;

use crate::harness::{Bench, Job};

const JOB: &str = r#"name = "typed"
seed = 7

[input.nodes.author]
path = "authors.csv"
id = "name"
features = ["age", "country"]
label = "label"
split = { train = 0.6, val = 0.2, test = 0.2 }

[input.nodes.paper]
path = "papers.parquet"
id = "id"
features = ["year"]

[input.edges.writes]
path = "writes.parquet"
from = "author"
to = "paper"
src = "who"
dst = "what"
reverse = "written_by"

[flatten]
output = "out/features"
hops = 2
fanouts = [{ written_by = 5 }, 4]

[train]
output = "out/model"
model = "sage"
hidden = [4]
epochs = 1

[infer]
output = "out/embeddings"
"#;

const AUTHORS: i64 = 30;
const PAPERS: i64 = 40;

fn ints(values: impl Iterator<Item = i64>) -> ArrayRef {
    Arc::new(Int64Array::from_iter_values(values))
}

/// The lines of the table of authors.
fn authors() -> Vec<String> {
    let row = |at: i64| format!("a{at},{},c{},{}", 20 + at, at % 7, at % 3);
    let header = "name,age,country,label".to_owned();
    std::iter::once(header)
        .chain((0..AUTHORS).map(row))
        .collect()
}

fn write_authors(bench: &Bench, lines: &[String]) {
    std::fs::write(bench.path("authors.csv"), lines.join("\n") + "\n").unwrap();
}

/// Writes the edges; one of them leads to the paper `last`.
fn write_edges(bench: &Bench, last: i64) {
    let authors = (0..100).map(|at| format!("a{}", at * 7 % AUTHORS));
    let papers = (0..99).map(|at| at * 11 % PAPERS).chain([last]);
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("who", Arc::new(StringArray::from_iter_values(authors))),
        ("what", ints(papers)),
    ];
    bench.write_table("writes.parquet", columns);
}

fn bench() -> Bench {
    let bench = Bench::empty();
    write_authors(&bench, &authors());
    let years = ints((0..PAPERS).map(|at| 2000 + at % 20));
    let papers = vec![("id", ints(0..PAPERS)), ("year", years)];
    bench.write_table("papers.parquet", papers);
    write_edges(&bench, 0);
    bench
}

/// Checks that `check` and `run` end with one line, which ends with `expected`.
#[track_caller]
fn check(bench: &Bench, job: &Job, code: i32, expected: &str) {
    bench.write(job);
    for args in [["check", "job.toml"], ["run", "job.toml"]] {
        let outcome = bench.graphflat(&args);
        let lines = outcome.stderr.lines();
        let errors: Vec<&str> = lines.filter(|line| line.starts_with("error: ")).collect();
        assert_eq!(outcome.code, code, "{args:?}: {outcome:#?}");
        assert_eq!(errors.len(), 1, "{args:?}: {outcome:#?}");
        assert!(errors[0].ends_with(expected), "{args:?}: {}", errors[0]);
        assert_eq!(outcome.stderr.lines().last(), Some(errors[0]), "{args:?}");
    }
}

#[test]
fn the_job_file_names_types_and_relations_that_fit() {
    let bench = bench();
    let job = Job::of_text(JOB);
    let cases = [
        (
            job.with("to = \"paper\"", "to = \"papers\""),
            "job.toml:19: `input.edges.writes.to`: is \"papers\", which is no node type; did you \
             mean paper? allowed are author, paper",
        ),
        (
            job.and("[input.edges.writes]\npath = \"writes.parquet\""),
            "job.toml:37: `input.edges.writes` is in the file twice",
        ),
        (
            job.with("reverse = \"written_by\"", "reverse = \"writes\""),
            "job.toml:22: `input.edges.writes.reverse`: is \"writes\", which is the name of another \
             relation; each has its own",
        ),
        (
            job.and(
                "[input.edges.wrote]\npath = \"writes.parquet\"\nfrom = \"author\"\nto = \
                 \"paper\"\nsrc = \"who\"\ndst = \"what\"",
            ),
            "job.toml:37: `input.edges.wrote`: has the same edges as [input.edges.writes]: path, \
             `where`, ends and all other keys are equal; leave one of them out",
        ),
        (
            job.with("{ written_by = 5 }", "{ written_by = 5, writes = 3 }"),
            "job.toml:27: `flatten.fanouts` is \"writes\" in hop 1: its edges lead to paper, but \
             this hop starts from author only",
        ),
        (
            job.with(
                "label = \"label\"\nsplit = { train = 0.6, val = 0.2, test = 0.2 }\n",
                "",
            ),
            "`flatten.target_type`: is missing, and no node type has `label`; allowed are author, \
             paper",
        ),
        (
            job.with("features = [\"year\"]", "label = \"year\""),
            "`flatten.target_type`: is missing, and several node types have `label`; allowed are \
             author, paper",
        ),
    ];
    for (changed, expected) in cases {
        check(&bench, &changed, 2, expected);
    }
    assert!(!bench.path("work").exists(), "nothing is built");
}

#[test]
fn tables_have_ends_categories_and_fields_that_fit() {
    let bench = bench();
    let job = Job::of_text(JOB);
    write_edges(&bench, PAPERS);
    let dangling = "column `what`, row 99 of writes.parquet: no node has the id 40; 1 of 100 rows \
                    have an end that is no node, 1.0 %; `dangling = \"drop\"` under \
                    [input.edges.writes] leaves them out";
    check(&bench, &job, 3, dangling);
    write_edges(&bench, 0);
    let none = (0..PAPERS).map(|_| None::<Vec<Option<f32>>>);
    let none = ListArray::from_iter_primitive::<Float32Type, _, _>(none);
    let of_years = |years: ArrayRef| {
        let columns = vec![("id", ints(0..PAPERS)), ("year", years)];
        bench.write_table("papers.parquet", columns);
    };
    of_years(Arc::new(none));
    let no_list = "`input.nodes.paper` table: all rows of column `year` of papers.parquet are \
                   null, so the width of its lists is not known; leave it out of `features`";
    check(&bench, &job, 3, no_list);
    of_years(ints((0..PAPERS).map(|at| 2000 + at % 20)));
    let few = "columns = { country = { max_values = 3 } }\nlabel";
    let categories = "`input.nodes.author` table: column `country` of authors.csv has 7 or more \
                      categories, allowed are 3: raise \
                      `input.nodes.author.columns.country.max_values`, or leave the column out";
    check(&bench, &job.with("label", few), 3, categories);
    for (more, fields) in [(",x", 5), ("", 3)] {
        let mut lines = authors();
        let row = lines[11].rsplit_once(',').unwrap().0.to_owned();
        lines[11] = if more.is_empty() {
            row
        } else {
            lines[11].clone() + more
        };
        write_authors(&bench, &lines);
        let problem = format!(
            "authors.csv, line 12: has {fields} fields, the header has 4; a field with the \
             delimiter, a quote or a line break stands in double quotes"
        );
        check(&bench, &job, 3, &problem);
    }
}

#[test]
fn a_column_of_a_type_that_changed_since_the_training_is_named() {
    let bench = bench();
    let job = Job::of_text(JOB);
    bench.run(&job, &[]).ok();
    std::fs::remove_dir_all(bench.path("work")).unwrap();
    let years = (0..PAPERS).map(|at| format!("y{}", at % 20));
    let years: ArrayRef = Arc::new(StringArray::from_iter_values(years));
    bench.write_table(
        "papers.parquet",
        vec![("id", ints(0..PAPERS)), ("year", years)],
    );
    let (input, _) = JOB.split_once("[flatten]").unwrap();
    let infer = format!("{input}[infer]\noutput = \"out/later\"\nmodel = \"out/model\"\n");
    let problem = "the model in out/model does not fit these tables: `input.nodes.paper.features` \
                   is [\"year\" (category)], the model was trained with [\"year\" (number)]; where \
                   the columns are the same under other names, `infer.check_columns` = false takes \
                   them as they are";
    check(&bench, &Job::of_text(&infer), 2, problem);
    let unchecked = Job::of_text(&infer).and("check_columns = false");
    let outcome = bench.run(&unchecked, &[]);
    let unread = "of type `paper`, column `year` has categories, in training it had numbers";
    assert_eq!(outcome.code, 2, "{outcome:#?}");
    assert!(outcome.stderr.contains(unread), "{}", outcome.stderr);
}
