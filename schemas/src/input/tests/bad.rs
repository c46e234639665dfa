//! Every value, column, key and file of an input table that is refused.

use super::*;
use crate::config::{ColumnKind, ColumnSpec};
use crate::input::{EdgesPlan, GraphPlan};

/// Asserts that an error is of a kind and contains some texts; paths are cut to file names.
pub(super) fn assert_says<T>(result: Result<T>, kind: ErrorKind, expected: &[&str]) {
    let error = match result {
        Ok(_) => panic!("no error, expected: {expected:?}"),
        Err(error) => error,
    };
    assert_eq!(error.kind(), kind, "{error}");
    let text = error.to_string();
    for part in expected {
        assert!(text.contains(part), "{text:?} should say {part:?}");
    }
}

/// Reads `id` and some columns as nodes; the error must name file, column and row as in
/// `"column row 2: problem"`.
fn check_nodes(columns: Columns<'_>, change: &dyn Fn(&mut NodesSpec), expected: &str) {
    let mut all = vec![("id", ints([1, 2, 3]))];
    all.retain(|(name, _)| columns.iter().all(|(other, _)| name != other));
    all.extend(columns);
    let (column, rest) = expected.split_once(' ').unwrap();
    let (row, problem) = rest.split_once(": ").unwrap();
    let place = format!("column `{column}` of ");
    let row = format!("nodes.parquet, {row}: ");
    assert_says(
        nodes(&all, change),
        ErrorKind::Data,
        &[&place, &row, problem],
    );
}

fn check_edges(src: ArrayRef, weight: ArrayRef, non_negative: bool, expected: &str) {
    let columns = vec![("src", src), ("dst", ints([4, 5, 6])), ("w", weight)];
    let weighted = |spec: &mut EdgesSpec| {
        spec.weight = Some("w".to_owned());
        spec.features = vec!["w".to_owned()];
    };
    let (column, rest) = expected.split_once(' ').unwrap();
    let place = format!("column `{column}` of ");
    let read = edges(&columns, weighted, non_negative);
    assert_says(
        read,
        ErrorKind::Data,
        &[&place, &format!("edges.parquet, {rest}")],
    );
}

fn label_y(spec: &mut NodesSpec) {
    spec.label = Some("y".to_owned());
}

fn splits(values: Option<SplitValues>) -> impl Fn(&mut NodesSpec) {
    move |spec| {
        spec.split = Some(SplitSpec::Column("s".to_owned()));
        spec.split_values = values;
    }
}

#[test]
fn ids_are_not_null() {
    let id = ints([Some(1), Some(2), None]);
    check_nodes(vec![("id", id)], &|_| {}, "id row 2: is null");
    let names = with_type(&strings(&[Some("a"), None, Some("b")]), &dictionary());
    check_nodes(vec![("id", names)], &|_| {}, "id row 1: is null");
}

#[test]
fn features_are_finite_and_of_one_width() {
    let cases: [(ArrayRef, &str); 4] = [
        (
            float_lists(&[Some(&[1.0, 2.0]), Some(&[1.0, 2.0]), Some(&[1.0])]),
            "x row 2: holds 1 numbers, the first row holds 2",
        ),
        (
            float_lists(&[Some(&[1.0]), Some(&[1.0, 2.0]), Some(&[])]),
            "x row 1: holds 2 numbers",
        ),
        (
            float_lists(&[
                Some(&[1.0, 2.0]),
                Some(&[1.0, f32::INFINITY]),
                Some(&[1.0, 2.0]),
            ]),
            "x row 1: is inf; allowed are finite float32 numbers, and null or NaN for a missing one",
        ),
        (
            Arc::new(Float64Array::from(vec![0.0, 0.0, -1e300])),
            "x row 2: is -1e300, beyond 32-bit floats; allowed are finite float32 numbers",
        ),
    ];
    for (array, expected) in cases {
        let x = |spec: &mut NodesSpec| spec.features = vec!["x".to_owned()];
        check_nodes(vec![("x", array)], &x, expected);
    }
}

#[test]
fn labels_are_in_their_range() {
    let cases: [(ArrayRef, &str); 8] = [
        (
            ints([0, 1, -2]),
            "y row 2: is -2; allowed are class numbers from 0 below 1048576, and -1 or null for none",
        ),
        (
            ints([3_000_000_000, 1, 0]),
            "y row 0: is 3000000000; allowed are class numbers from 0 below 1048576, and -1",
        ),
        (
            ints([0, 1, i64::from(u32::MAX)]),
            "y row 2: is 4294967295; allowed",
        ),
        (
            Arc::new(UInt64Array::from(vec![0, u64::MAX, 1])),
            "y row 1: is beyond int64",
        ),
        (
            int_lists(&[Some(&[0, 1]), Some(&[1, 0]), Some(&[1])]),
            "y row 2: holds 1 classes, the first row holds 2",
        ),
        (
            int_lists(&[Some(&[0, 1]), Some(&[1, 2]), Some(&[1, 1])]),
            "y row 1: holds 2; allowed are 0 and 1",
        ),
        (
            floats([0.5, 1.0, f32::NAN]),
            "y row 2: is NaN; allowed are finite",
        ),
        (
            Arc::new(ListArray::from_iter_primitive::<UInt8Type, _, _>([
                Some(vec![Some(1)]),
                Some(vec![Some(0)]),
                Some(vec![None]),
            ])),
            "y row 2: holds a null",
        ),
    ];
    for (array, expected) in cases {
        check_nodes(vec![("y", array)], &label_y, expected);
    }
    let bounded = |spec: &mut NodesSpec| {
        label_y(spec);
        spec.num_classes = Some(2);
    };
    let expected = "y row 2: is 2; allowed are class numbers from 0 below 2, and -1 or null";
    check_nodes(vec![("y", ints([0, 1, 2]))], &bounded, expected);
}

#[test]
fn splits_are_known() {
    let words = strings(&[Some("train"), Some("val"), Some("valid")]);
    let expected = "s row 2: is \"valid\"; allowed are \"train\", \"val\", \"test\"";
    check_nodes(vec![("s", words)], &splits(None), expected);
    let numbers = splits(Some(SplitValues {
        train: 0,
        val: 1,
        test: 2,
        none: None,
    }));
    let allowed = "s row 1: is 3; `split_values` allows 0 (train), 1 (val), 2 (test)";
    check_nodes(vec![("s", ints([0, 3, 1]))], &numbers, allowed);
}

#[test]
fn sparse_features_are_within_their_width() {
    let one = || float_lists(&[Some(&[1.0]), Some(&[1.0]), Some(&[1.0])]);
    let zeros = || int_lists(&[Some(&[0]), Some(&[0]), Some(&[0])]);
    let item = Arc::new(Field::new("item", DataType::UInt64, true));
    let far = Arc::new(UInt64Array::from(vec![0, 1, u64::MAX]));
    let offsets = OffsetBuffer::<i64>::from_lengths([1, 1, 1]);
    let cases: [(ArrayRef, ArrayRef, &str); 7] = [
        (
            int_lists(&[Some(&[0]), Some(&[9]), Some(&[0])]),
            one(),
            "i row 1: holds 9; allowed are 0 to 8",
        ),
        (
            int_lists(&[Some(&[0]), Some(&[0]), Some(&[-1])]),
            one(),
            "i row 2: holds -1",
        ),
        (
            Arc::new(LargeListArray::new(item, offsets, far, None)),
            one(),
            "i row 2: holds 9223372036854775807",
        ),
        (
            int_lists(&[Some(&[0]), Some(&[0]), None]),
            one(),
            "i row 2: is null",
        ),
        (
            int_lists(&[Some(&[0]), Some(&[0, 1]), Some(&[0])]),
            one(),
            "v row 1: holds 1 numbers for the 2 positions in column `i`",
        ),
        (
            zeros(),
            float_lists(&[Some(&[1.0]), Some(&[1.0]), Some(&[f32::NEG_INFINITY])]),
            "v row 2: is -inf",
        ),
        (
            zeros(),
            float_lists(&[None, Some(&[1.0]), Some(&[1.0])]),
            "v row 0: is null",
        ),
    ];
    for (index, value, expected) in cases {
        let sparse_9 = |spec: &mut NodesSpec| spec.sparse = Some(sparse(9));
        check_nodes(vec![("i", index), ("v", value)], &sparse_9, expected);
    }
}

#[test]
fn edges_have_ends_and_finite_weights() {
    let ones = || floats([1.0, 1.0, 1.0]);
    let src = || ints([1, 2, 3]);
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    check_edges(
        ints([Some(1), Some(2), None]),
        ones(),
        false,
        "src row 2: is null",
    );
    check_edges(
        src(),
        floats([Some(1.0), None, Some(1.0)]),
        false,
        "w row 1: is null",
    );
    check_edges(
        src(),
        floats([1.0, nan, 1.0]),
        false,
        "w row 1: is NaN; allowed are finite",
    );
    check_edges(
        src(),
        floats([1.0, 1.0, inf]),
        false,
        "w row 2: is inf; allowed are finite",
    );
    let expected = "w row 2: is -1; weighted sampling allows no negative weight";
    check_edges(src(), floats([1.0, 0.0, -1.0]), true, expected);
}

/// Makes the plan of the edges of a graph whose nodes have some ids.
fn with_ids(edges: EdgesPlan, dir: &Path, ids: ArrayRef) -> Result<Arc<EdgesPlan>> {
    write(&dir.join("of_ids.parquet"), &vec![("id", ids)], 1);
    let mut spec = nodes_spec();
    spec.path = "of_ids.parquet".into();
    let graph = GraphPlan::untyped(spec.into_plan(dir)?, edges)?;
    Ok(Arc::clone(&graph.relations[0].edges))
}

#[test]
fn ends_are_ids_of_the_nodes_type() {
    let dir = tempfile::tempdir().unwrap();
    let columns = vec![("src", ints([1, 2, 3])), ("dst", ints([4, 5, 1 << 40]))];
    write(&dir.path().join("edges.parquet"), &columns, 2);
    let plan = edges_spec().into_plan(dir.path()).unwrap();
    let plan = with_ids(plan, dir.path(), Arc::new(Int32Array::from(vec![1]))).unwrap();
    assert_eq!(
        plan.read(&plan.units()[0]).unwrap().dst.id_type(),
        IdType::Int32
    );
    let beyond = [
        "column `dst`",
        "row 2: is 1099511627776, but the nodes' ids are int32 (`dangling = \"drop\"` under",
    ];
    assert_says(plan.read(&plan.units()[1]), ErrorKind::Data, &beyond);
    let lenient = EdgesSpec {
        dangling: Dangling::Drop,
        ..edges_spec()
    };
    let ends = vec![("src", ints([1, 2, 3])), ("dst", ints([4, -1, 1 << 40]))];
    write(&dir.path().join("edges.parquet"), &ends, 3);
    let narrow = Arc::new(Int32Array::from(vec![1])) as ArrayRef;
    let unsigned = Arc::new(UInt64Array::from(vec![1])) as ArrayRef;
    for (ids, id_type, misfit, rest) in [
        (narrow, IdType::Int32, 2, ["4", "-1"]),
        (unsigned, IdType::UInt64, 1, ["4", "1099511627776"]),
    ] {
        let dropping = lenient.clone().into_plan(dir.path()).unwrap();
        let dropping = with_ids(dropping, dir.path(), ids).unwrap();
        let mut found = ids_of(&dropping.read(&dropping.units()[0]).unwrap().dst);
        let nowhere = Ids::from_keys(id_type, vec![crate::ids::NOWHERE]);
        assert_eq!(found.remove(misfit), nowhere.display(0));
        assert_eq!(found, rest);
    }
    write(&dir.path().join("edges.parquet"), &columns, 2);
    let wrong = edges_spec().into_plan(dir.path()).unwrap();
    let wrong = with_ids(wrong, dir.path(), strings(&[Some("a")]));
    let types =
        ["edges table: column `src` has integers, but column `id` of `input.nodes` has strings"];
    assert_says(wrong, ErrorKind::Data, &types);
    let mixed = vec![("src", ints([1])), ("dst", strings(&[Some("a")]))];
    write(&dir.path().join("edges.parquet"), &mixed, 2);
    let both = ["both must be integers or both strings"];
    assert_says(edges_spec().into_plan(dir.path()), ErrorKind::Data, &both);
}

/// Makes a plan for a table of many columns and reads it.
fn check_plan(change: &dyn Fn(&mut NodesSpec), kind: ErrorKind, expected: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let columns = vec![
        ("id", ints([1, 2])),
        ("label", ints([Some(-1), None])),
        ("features", floats([1.0, 2.0])),
        ("name", strings(&[None, None])),
        ("when", Arc::new(UInt32Array::from(vec![1, 2])) as ArrayRef),
        (
            "flag",
            Arc::new(BooleanArray::from(vec![true, false])) as ArrayRef,
        ),
        ("list", int_lists(&[Some(&[1]), Some(&[0])])),
        ("empty", int_lists(&[None, None])),
    ];
    write(&dir.path().join("nodes.parquet"), &columns, 2);
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    let mut spec = nodes_spec();
    change(&mut spec);
    assert_says(read_nodes(spec, dir.path()), kind, expected);
}

fn usage(change: &dyn Fn(&mut NodesSpec), expected: &[&str]) {
    check_plan(change, ErrorKind::Usage, expected);
}

fn data(change: &dyn Fn(&mut NodesSpec), expected: &[&str]) {
    check_plan(change, ErrorKind::Data, expected);
}

fn some(name: &str) -> Option<String> {
    Some(name.to_owned())
}

#[test]
fn paths_lead_to_local_parquet_files() {
    let check = |path: &str, expected: &[&str]| {
        usage(&|spec| spec.path = path.into(), expected);
    };
    let not_here = "is the URL of a store that is not supported";
    check(
        "gs://bucket/nodes",
        &["`input.nodes.path`: gs://bucket/nodes", not_here],
    );
    check("abfs://host/nodes", &["abfs://host/nodes", not_here]);
    check(
        "missing.parquet",
        &["`input.nodes.path`: no such file", "missing.parquet"],
    );
    check("empty", &["no *.parquet or *.csv file below", "empty"]);
    check("*.csv", &["no file matches", "*.csv"]);
}

#[test]
fn columns_exist_and_have_a_type_of_their_role() {
    let id = ["`input.nodes.id`: no column `ID`", "did you mean `id`?"];
    usage(&|s| s.id = "ID".to_owned(), &id);
    let features = [
        "`input.nodes.features`: no column `feature` in",
        "did you mean `features`?",
    ];
    usage(&|s| s.features = vec!["feature".to_owned()], &features);
    let columns =
        "nodes.parquet; its columns are id, label, features, name, when, flag, list, empty";
    usage(&|s| s.label = some("class"), &[columns]);
    let ids = "allowed for ids: integers and strings";
    data(
        &|s| s.id = "features".to_owned(),
        &["column `features`", "is float32", ids],
    );
    data(
        &|s| {
            s.features = vec!["name".to_owned()];
            let number = ColumnSpec {
                kind: Some(ColumnKind::Number),
                ..ColumnSpec::default()
            };
            s.columns = [("name".to_owned(), number)].into();
        },
        &["column `name`", "is string", "for features"],
    );
    data(
        &|s| s.split = some("features").map(SplitSpec::Column),
        &["column `features`", "is float32", "for splits"],
    );
}

#[test]
fn some_row_has_a_label() {
    for column in ["label", "name", "empty"] {
        let expected = format!("nodes table: no row of column `{column}` of ");
        let problem = "nodes.parquet holds a class";
        data(&|spec| spec.label = some(column), &[&expected, problem]);
    }
    let num_classes = ["`input.nodes.num_classes`: is for labels that are"];
    usage(&|spec| spec.num_classes = Some(3), &num_classes);
}

#[test]
fn split_values_are_for_numbers() {
    let check = |split: Option<&str>, values: Option<[i64; 3]>, expected: &str| {
        let change = |spec: &mut NodesSpec| {
            spec.split = split.map(|name| SplitSpec::Column(name.to_owned()));
            spec.split_values = values.map(|[train, val, test]| SplitValues {
                train,
                val,
                test,
                none: None,
            });
        };
        usage(&change, &["`input.nodes.split_values`", expected]);
    };
    check(
        Some("when"),
        None,
        "holds numbers; say which, as in { train = 0, val = 1, test = 2 }",
    );
    check(Some("name"), Some([0, 1, 2]), "holds words");
    check(Some("when"), Some([0, 1, 1]), "must differ");
    check(None, Some([0, 1, 2]), "needs `split`");
}

#[test]
fn sparse_columns_are_lists() {
    let with = |index: &str, value: &str, width| {
        let (index, value) = (index.to_owned(), value.to_owned());
        move |s: &mut NodesSpec| {
            s.sparse = Some(SparseSpec {
                index: index.clone(),
                value: value.clone(),
                width,
            });
        }
    };
    usage(
        &with("list", "list", 0),
        &["`input.nodes.sparse.width`: is 0; allowed is 1 to 16777216"],
    );
    usage(
        &with("list", "list", u32::MAX),
        &["`input.nodes.sparse.width`: is 4294967295; allowed is 1 to 16777216"],
    );
    usage(
        &with("lost", "list", 1),
        &["`input.nodes.sparse.index`: no column `lost`"],
    );
    data(
        &with("when", "list", 1),
        &["column `when`", "lists of integers"],
    );
    data(
        &with("list", "flag", 1),
        &["column `flag`", "lists of numbers"],
    );
    let both = |s: &mut NodesSpec| {
        with("list", "list", 1)(s);
        s.features = vec!["flag".to_owned()];
    };
    usage(
        &both,
        &["`input.nodes.sparse`: cannot be set beside `features`"],
    );
}

#[test]
fn files_of_one_table_have_the_same_types() {
    let dir = tempfile::tempdir().unwrap();
    let table = dir.path().join("nodes.parquet");
    write(&table.join("a.parquet"), &vec![("id", ints([1]))], 2);
    write(
        &table.join("b.parquet"),
        &vec![("id", strings(&[Some("x")]))],
        2,
    );
    let other_type = nodes_spec().into_plan(dir.path());
    assert_says(
        other_type,
        ErrorKind::Data,
        &[
            "b.parquet is string, allowed for ids: int64, as in ",
            "a.parquet",
        ],
    );
    write(&table.join("b.parquet"), &vec![("key", ints([1]))], 2);
    let no_column = nodes_spec().into_plan(dir.path());
    assert_says(
        no_column,
        ErrorKind::Usage,
        &["no column `id`", "b.parquet"],
    );
}

#[test]
fn rows_are_counted_from_the_start_of_their_file() {
    let dir = tempfile::tempdir().unwrap();
    let table = dir.path().join("nodes.parquet");
    write(&table.join("a.parquet"), &vec![("id", ints([1, 2, 3]))], 2);
    write(
        &table.join("b.parquet"),
        &vec![("id", ints([Some(4), Some(5), Some(6), None]))],
        2,
    );
    let read = read_nodes(nodes_spec(), dir.path());
    assert_says(read, ErrorKind::Data, &["b.parquet, row 3: is null"]);
}

#[test]
fn broken_files_fail_and_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nodes.parquet");
    write(&path, &vec![("id", ints(0..100_000))], 100_000);
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let truncated = nodes_spec().into_plan(dir.path());
    let unreadable = ["cannot read ", "nodes.parquet as Parquet"];
    assert_says(truncated, ErrorKind::Data, &unreadable);

    let mut hole = bytes.clone();
    hole[1000..bytes.len() - 2000].fill(0xff);
    std::fs::write(&path, &hole).unwrap();
    let plan = nodes_spec().into_plan(dir.path()).unwrap();
    let read = plan.read_keys(&plan.units()[0]);
    assert_says(read, ErrorKind::Data, &unreadable);
    std::fs::write(&path, "id,name\n1,bash\n").unwrap();
    let text = nodes_spec().into_plan(dir.path());
    assert_says(text, ErrorKind::Data, &unreadable);
}

/// Labels and splits are written in the type of the first file: a value of a wider type would be
/// lost.
#[test]
fn numbers_that_are_written_again_are_of_one_type() {
    let dir = tempfile::tempdir().unwrap();
    let table = dir.path().join("nodes.parquet");
    let narrow = |values| with_type(&values, &DataType::Int8);
    let half = with_type(&floats([1.0]), &DataType::Float16);
    let cases = [
        (
            narrow(ints([1])),
            ints([300]),
            "y",
            "int64, allowed for labels: int8, as in ",
        ),
        (
            half,
            floats([70_000.0]),
            "y",
            "float32, allowed for labels: float16, as in ",
        ),
        (
            narrow(ints([1])),
            ints([300]),
            "s",
            "int64, allowed for splits: int8, as in ",
        ),
    ];
    for (first, second, column, expected) in cases {
        for (name, values) in [("a.parquet", first), ("b.parquet", second)] {
            let columns = vec![("id", ints([1])), (column, values)];
            write(&table.join(name), &columns, 2);
        }
        let mut spec = nodes_spec();
        match column {
            "y" => label_y(&mut spec),
            _ => splits(Some(SplitValues {
                train: 1,
                val: 2,
                test: 300,
                none: None,
            }))(&mut spec),
        }
        let read = spec.into_plan(dir.path());
        assert_says(
            read,
            ErrorKind::Data,
            &["b.parquet is ", expected, "a.parquet"],
        );
    }
}

#[test]
fn class_numbers_fit_limit_and_column() {
    let with = |num_classes: u32, data_type: DataType| {
        let columns = vec![
            ("id", ints([1, 2])),
            ("y", with_type(&ints([0, 1]), &data_type)),
        ];
        nodes(&columns, |spec| {
            label_y(spec);
            spec.num_classes = Some(num_classes);
        })
    };
    with(128, DataType::Int8).unwrap();
    let too_many = "`input.nodes.num_classes`: is 129; column `y` is int8, whose greatest is 127";
    assert_says(with(129, DataType::Int8), ErrorKind::Usage, &[too_many]);
    for wrong in [0, 1 << 21] {
        let expected = format!("`input.nodes.num_classes`: is {wrong}; allowed is 1 to 1048576");
        assert_says(with(wrong, DataType::Int64), ErrorKind::Usage, &[&expected]);
    }
}

#[test]
fn one_id_is_reserved() {
    let reserved = crate::ids::NOWHERE;
    let columns = vec![(
        "id",
        Arc::new(UInt64Array::from(vec![1, reserved])) as ArrayRef,
    )];
    let expected = format!("nodes.parquet, row 1: is {reserved}, which is reserved");
    assert_says(nodes(&columns, |_| {}), ErrorKind::Data, &[&expected]);
}

#[test]
fn specs_refuse_unknown_keys() {
    let check = |text: &str, expected: &str| {
        let error = serde_json::from_str::<NodesSpec>(text)
            .unwrap_err()
            .to_string();
        assert!(error.contains(expected), "{error}");
    };
    check(
        r#"{"path": "p", "id": "i", "lable": "y"}"#,
        "unknown field `lable`, expected one of",
    );
    check(
        r#"{"path": "p", "id": "i", "transform": "scale"}"#,
        "`row_normalize` or `standardize`",
    );
    check(r#"{"path": "p"}"#, "missing field `id`");
}
