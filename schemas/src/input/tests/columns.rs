//! Columns of the types that other programs write, and the errors of columns that cannot be read.

use arrow::array::{BinaryArray, Decimal128Array, FixedSizeListArray, Int16Array};

use super::bad::assert_says;
use super::*;

fn decimals(values: &[i128], scale: i8) -> ArrayRef {
    let array = Decimal128Array::from_iter_values(values.iter().copied());
    Arc::new(array.with_precision_and_scale(18, scale).unwrap())
}

fn bytes(values: &[Option<&[u8]>]) -> ArrayRef {
    Arc::new(BinaryArray::from(values.to_vec()))
}

fn x(spec: &mut NodesSpec) {
    spec.features = vec!["x".to_owned()];
}

fn y_as(kind: Option<NumericLabel>) -> impl Fn(&mut NodesSpec) {
    move |spec| {
        spec.label = Some("y".to_owned());
        spec.label_kind = kind;
    }
}

#[test]
fn decimals_are_features_and_weights() {
    let columns = vec![("id", ints([1, 2, 3])), ("x", decimals(&[125, -50, 0], 2))];
    let (_, rows) = nodes(&columns, x).unwrap();
    let values = vec![1.25, -0.5, 0.0];
    assert_eq!(rows.features, Features::Dense { dim: 1, values });
    let of_edges = vec![
        ("src", ints([1, 2])),
        ("dst", ints([2, 1])),
        ("w", decimals(&[1, 25], 1)),
    ];
    let weighted = edges(&of_edges, |spec| spec.weight = Some("w".to_owned()), true);
    assert_eq!(weighted.unwrap().weight, Some(vec![0.1, 2.5]));
}

#[test]
fn bytes_that_are_text_are_ids_and_labels() {
    let ids = bytes(&[Some(b"vim"), Some(b""), Some("\u{fc}".as_bytes())]);
    for data_type in [
        DataType::Binary,
        DataType::LargeBinary,
        DataType::BinaryView,
    ] {
        let columns = vec![
            ("id", with_type(&ids, &data_type)),
            ("y", with_type(&ids, &data_type)),
        ];
        let (kind, rows) = nodes(&columns, y_as(None)).unwrap();
        assert_eq!(ids_of(&rows.ids), ["vim", "", "\u{fc}"]);
        let names = ["", "vim", "\u{fc}"].map(str::to_owned).to_vec();
        assert_eq!(kind, Some(LabelKind::ClassName { names }));
        assert_eq!(rows.labels, Labels::Class(vec![1, 0, 2]));
    }
    let wrong = bytes(&[Some(b"a"), Some(b"b"), Some(b"\xff\xfe")]);
    let read = nodes(&vec![("id", Arc::clone(&wrong))], |_| {});
    let problem = "nodes.parquet, row 2: holds bytes that are no UTF-8 text";
    assert_says(read, ErrorKind::Data, &["column `id`", problem]);
    let columns = vec![("id", ints([1, 2, 3])), ("y", wrong)];
    let labelled = nodes(&columns, y_as(None));
    assert_says(labelled, ErrorKind::Data, &["column `y`", problem]);
}

#[test]
fn whole_floats_are_labels_of_the_kind_that_the_job_names() {
    let gaps = || floats([Some(2.0), None, Some(0.0), Some(-1.0), Some(f32::NAN)]);
    let read = |labels: ArrayRef, kind| {
        let ids = ints(0..i64::try_from(labels.len()).unwrap());
        nodes(&vec![("id", ids), ("y", labels)], y_as(kind))
    };
    let missing = [
        "`input.nodes.label_kind`: is missing: column `y` holds floats, all of them whole",
        "allowed are \"class\" and \"number\"",
    ];
    assert_says(read(gaps(), None), ErrorKind::Usage, &missing);
    for data_type in [DataType::Float32, DataType::Float64, DataType::Float16] {
        let class = Some(NumericLabel::Class);
        let (kind, rows) = read(with_type(&gaps(), &data_type), class).unwrap();
        assert_eq!(kind, Some(LabelKind::Class { num_classes: 3 }));
        let classes = vec![2, NO_CLASS, 0, NO_CLASS, NO_CLASS];
        assert_eq!(rows.labels, Labels::Class(classes));
    }
    let number = Some(NumericLabel::Number);
    let numbers = |labels: ArrayRef, kind| {
        let (found, rows) = read(labels, kind).unwrap();
        assert_eq!(found, Some(LabelKind::Number));
        format!("{:?}", rows.labels)
    };
    assert_eq!(numbers(floats([2.0, 0.0]), number), "Number([2.0, 0.0])");
    assert_eq!(numbers(ints([7, -1]), number), "Number([7.0, -1.0])");
    // A single fraction makes the labels numbers.
    assert_eq!(numbers(floats([2.0, 0.5]), None), "Number([2.0, 0.5])");
    let gap = None::<f32>;
    assert_eq!(numbers(floats([gap, gap]), None), "Number([NaN, NaN])");
    let half = read(floats([2.0, 0.5]), Some(NumericLabel::Class));
    assert_says(
        half,
        ErrorKind::Data,
        &["row 1: is 0.5; class numbers are whole"],
    );
    let far = read(floats([2.0, f32::INFINITY]), Some(NumericLabel::Class));
    assert_says(
        far,
        ErrorKind::Data,
        &["row 1: is inf; class numbers are whole"],
    );
    let names = read(strings(&[Some("a")]), Some(NumericLabel::Class));
    let problem = ["`input.nodes.label_kind`: is for labels that are numbers"];
    assert_says(names, ErrorKind::Usage, &problem);
}

/// Predictions have a fraction even if labels are integers.
#[test]
fn numbers_from_integers_are_written_as_floats() {
    let dir = tempfile::tempdir().unwrap();
    let columns = vec![("id", ints([1, 2])), ("y", ints([1, 2]))];
    write(&dir.path().join("nodes.parquet"), &columns, 2);
    let meta = |kind| {
        let mut spec = nodes_spec();
        y_as(kind)(&mut spec);
        let plan = spec.into_plan(dir.path()).unwrap();
        plan.label_meta(Vec::new(), Some(2))
            .unwrap()
            .unwrap()
            .data_type
    };
    assert_eq!(meta(Some(NumericLabel::Number)), "Float32");
    assert_eq!(meta(None), "Int64");
}

#[test]
fn columns_of_other_roles_are_no_features() {
    let columns = vec![
        ("id", ints([1, 2])),
        ("y", ints([0, 1])),
        ("s", strings(&[Some("train"), Some("val")])),
        ("x", floats([0.5, 1.0])),
    ];
    let check = |name: &str, role: &str| {
        let change = |spec: &mut NodesSpec| {
            y_as(None)(spec);
            spec.split = Some(SplitSpec::Column("s".to_owned()));
            spec.features = vec!["x".to_owned(), name.to_owned()];
        };
        let problem = format!(
            "`input.nodes.features`: column `{name}` is `{role}` of the nodes, so it cannot be a \
             feature"
        );
        assert_says(nodes(&columns, change), ErrorKind::Usage, &[&problem]);
    };
    check("id", "id");
    check("y", "label");
    check("s", "split");
    let twice = nodes(&columns, |spec| {
        spec.features = vec!["x".to_owned(), "x".to_owned()];
    });
    let named = ["`input.nodes.features`: names column `x` twice"];
    assert_says(twice, ErrorKind::Usage, &named);
    let ends = vec![("src", ints([1])), ("dst", ints([2]))];
    let end = edges(&ends, |spec| spec.features = vec!["dst".to_owned()], false);
    let at_edges = ["`input.edges.features`: column `dst` is an end of the edges"];
    assert_says(end, ErrorKind::Usage, &at_edges);
}

#[test]
fn lists_without_numbers_are_no_features() {
    let empty = int_lists(&[None, Some(&[]), Some(&[])]);
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let none = Arc::new(Float32Array::from(Vec::<f32>::new()));
    let fixed = FixedSizeListArray::try_new_with_length(item, 0, none, None, 3).unwrap();
    for array in [empty, Arc::new(fixed) as ArrayRef] {
        let read = nodes(&vec![("id", ints([1, 2, 3])), ("x", array)], x);
        let place = "nodes table: the lists of column `x` of ";
        let problem = "nodes.parquet are empty, hence no features";
        assert_says(read, ErrorKind::Data, &[place, problem]);
    }
}

#[test]
fn columns_that_are_no_features_come_with_a_hint() {
    let check = |array: ArrayRef, expected: &str| {
        let columns = vec![("id", ints([1, 2, 3])), ("x", array)];
        assert_says(
            nodes(&columns, x),
            ErrorKind::Data,
            &["column `x`", expected],
        );
    };
    let times = with_type(
        &with_type(&ints([1, 2, 3]), &DataType::Int32),
        &DataType::Time32(arrow::datatypes::TimeUnit::Second),
    );
    check(
        times,
        "; write it as a number, such as seconds, or as a timestamp",
    );
    let words = ListArray::new(
        Arc::new(Field::new("item", DataType::Utf8, true)),
        OffsetBuffer::from_lengths([1, 1, 1]),
        strings(&[Some("a"), Some("b"), Some("a")]),
        None,
    );
    check(
        Arc::new(words),
        "; write each category as a column of 0 and 1",
    );
    let read = nodes(&vec![("id", floats([1.0]))], |_| {});
    let problem = ["for ids: integers and strings; write numbers without a fraction as integers"];
    assert_says(read, ErrorKind::Data, &problem);
}

#[test]
fn two_columns_of_one_name_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nodes.parquet");
    let field = |name| Field::new(name, DataType::Int64, true);
    let fields = vec![field("id"), field("x"), field("x"), field("z"), field("z")];
    let schema = Arc::new(arrow::datatypes::Schema::new(fields));
    let array = || ints([1, 2]);
    let arrays = vec![array(), array(), array(), array(), array()];
    let batch = RecordBatch::try_new(Arc::clone(&schema), arrays).unwrap();
    let file = std::fs::File::create(&path).unwrap();
    let mut writer = ArrowWriter::try_new(file, schema, None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    let mut spec = nodes_spec();
    x(&mut spec);
    let problem = [
        "`input.nodes.features`: ",
        "nodes.parquet has two columns `x`",
    ];
    assert_says(read_nodes(spec, dir.path()), ErrorKind::Usage, &problem);
    // A column that no key names is not checked.
    assert_eq!(read_nodes(nodes_spec(), dir.path()).unwrap().1.ids.len(), 2);
}

fn shares(seed: u64) -> impl Fn(&mut NodesSpec) {
    move |spec| {
        spec.split = Some(SplitSpec::Shares(SplitShares {
            train: 0.5,
            val: 0.25,
            test: 0.25,
            seed: Some(seed),
        }));
    }
}

#[test]
fn drawn_splits_follow_the_ids() {
    let splits_of = |ids: ArrayRef, seed: u64| {
        let (_, rows) = nodes(&vec![("id", ids)], shares(seed)).unwrap();
        let names = ids_of(&rows.ids).into_iter();
        let by_id: std::collections::BTreeMap<String, Split> = names.zip(rows.split).collect();
        by_id
    };
    let rising = splits_of(ints(0..200), 7);
    let falling = splits_of(ints((0..200).rev()), 7);
    assert_eq!(rising, falling);
    let narrow = splits_of(with_type(&ints(0..200), &DataType::Int16), 7);
    assert_eq!(rising, narrow);
    assert_ne!(rising, splits_of(ints(0..200), 8));
    let some = splits_of(ints((0..200).step_by(3)), 7);
    assert!(some.iter().all(|(id, split)| rising[id] == *split));
    for split in [Split::Train, Split::Val, Split::Test] {
        assert!(rising.values().any(|drawn| *drawn == split));
    }
    assert!(!rising.values().any(|drawn| *drawn == Split::None));
}

#[test]
fn shares_are_of_the_nodes_with_a_label() {
    let labels = (0..100).map(|row| (row % 3 > 0).then_some(row % 3));
    let columns = vec![("id", ints(0..100)), ("y", ints(labels))];
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("nodes.parquet"), &columns, 30);
    let mut spec = nodes_spec();
    y_as(None)(&mut spec);
    shares(7)(&mut spec);
    let (_, rows) = read_nodes(spec.clone(), dir.path()).unwrap();
    for (row, split) in rows.split.iter().enumerate() {
        assert_eq!(*split == Split::None, row % 3 == 0, "{row}");
    }
    let plan = spec.clone().into_plan(dir.path()).unwrap();
    let counted = plan
        .units()
        .iter()
        .map(|unit| plan.read_splits(unit).unwrap());
    let counted: Vec<Split> = counted.flat_map(|unit| unit.split).collect();
    assert_eq!(counted, rows.split);
    let meta = plan.split_meta().unwrap();
    assert_eq!((meta.data_type.as_str(), meta.values), ("Utf8", None));

    let refused = |change: &dyn Fn(&mut SplitShares), expected: &str| {
        let mut wrong = spec.clone();
        if let Some(SplitSpec::Shares(written)) = &mut wrong.split {
            change(written);
        }
        let refused = wrong.into_plan(dir.path());
        assert_says(
            refused,
            ErrorKind::Usage,
            &["`input.nodes.split`: ", expected],
        );
    };
    refused(
        &|s| s.val = -0.1,
        "`val` is -0.1; allowed are shares from 0 to 1",
    );
    refused(
        &|s| s.val = 0.5,
        "the shares sum to 1.25; allowed is at most 1",
    );
    refused(&|s| s.seed = None, "lacks `seed`");
    let mut numbers = spec.clone();
    numbers.split_values = Some(SplitValues {
        train: 0,
        val: 1,
        test: 2,
        none: None,
    });
    let problem = ["`input.nodes.split_values`: is for a column of numbers"];
    assert_says(numbers.into_plan(dir.path()), ErrorKind::Usage, &problem);
}

#[test]
fn columns_of_many_types_are_handed_on() {
    let names = strings(&[Some("b"), None, Some("a"), Some("b")]);
    let several = int_lists(&[Some(&[1, 0]), None, Some(&[0, 1]), Some(&[1, 1])]);
    let item = Arc::new(Field::new("item", DataType::Int32, true));
    let columns = vec![
        ("id", ints([4, 2, 3, 1])),
        ("dictionary", with_type(&names, &dictionary())),
        ("view", with_type(&names, &DataType::Utf8View)),
        ("bytes", with_type(&names, &DataType::BinaryView)),
        ("list", Arc::clone(&several)),
        (
            "fixed",
            with_type(&several, &DataType::FixedSizeList(item, 2)),
        ),
        (
            "small",
            Arc::new(Int16Array::from(vec![4, 2, 3, 1])) as ArrayRef,
        ),
        ("price", decimals(&[4, 2, 3, 1], 2)),
    ];
    let dir = tempfile::tempdir().unwrap();
    // Each row group has its own dictionary.
    write(&dir.path().join("nodes.parquet"), &columns, 2);
    let plan = nodes_spec().into_plan(dir.path()).unwrap();
    let wanted: Vec<String> = columns[1..]
        .iter()
        .map(|(name, _)| (*name).to_owned())
        .collect();
    plan.check_passed(&wanted, &["id"]).unwrap();
    let passed = plan.read_passed(&wanted).unwrap();
    // In the order of ids: rows 3, 1, 2, 0.
    let gathered = passed.gather(&[0, 3, 1]).unwrap();
    let rows = arrow::array::UInt32Array::from(vec![3, 0, 1]);
    for ((field, found), (_, given)) in passed.fields().iter().zip(&gathered).zip(&columns[1..]) {
        let expected = arrow::compute::take(given, &rows, None).unwrap();
        let expected = cast(&expected, field.data_type()).unwrap();
        assert_eq!(found, &expected, "{}", field.name());
        assert_eq!(found.data_type(), field.data_type());
    }
    let types: Vec<String> = passed
        .fields()
        .iter()
        .map(|field| field.data_type().to_string())
        .collect();
    assert_eq!(types[..3], ["Utf8", "Utf8", "Binary"]);
}
