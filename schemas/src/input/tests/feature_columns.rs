//! Feature columns of every kind, compared with the values that were written.

use arrow::array::{
    BinaryArray, Date32Array, Date64Array, Decimal128Array, FixedSizeListArray,
    TimestampMicrosecondArray, TimestampMillisecondArray, TimestampNanosecondArray,
    TimestampSecondArray,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::bad::assert_says;
use super::*;
use crate::columns::{ColumnMeta, ColumnValues};
use crate::config::{ColumnKind, ColumnSpec};
use crate::error::error_chain;

/// What a table says about its only feature column `x`, and the column's values.
struct Read {
    meta: ColumnMeta,
    values: Vec<f32>,
}

fn kind(kind: ColumnKind) -> ColumnSpec {
    ColumnSpec {
        kind: Some(kind),
        ..ColumnSpec::default()
    }
}

fn read_plan(plan: &super::super::NodesPlan) -> Result<Read> {
    let mut categories = Categories::default();
    for unit in plan.units() {
        plan.merge_categories(&mut categories, plan.read_keys(unit)?.categories)?;
    }
    let columns = plan.column_meta(categories.clone(), &[]);
    let (mut values, mut gaps) = (Vec::new(), vec![false]);
    for unit in plan.units() {
        let rows = plan.read_rows(unit, None, &columns)?;
        let Features::Dense { values: more, .. } = rows.features else {
            panic!("features are dense");
        };
        values.extend(more);
        gaps[0] |= rows.gaps[0];
    }
    let meta = plan.column_meta(categories, &gaps).swap_remove(0);
    Ok(Read { meta, values })
}

/// Writes `x` in row groups of two and reads it back, as `spec` declares it.
fn read(array: &ArrayRef, spec: Option<ColumnSpec>) -> Result<Read> {
    let dir = tempfile::tempdir().unwrap();
    let ids = ints(0..i64::try_from(array.len()).unwrap());
    let columns = vec![("id", ids), ("x", Arc::clone(array))];
    write(&dir.path().join("nodes.parquet"), &columns, 2);
    let mut nodes = nodes_spec();
    nodes.features = vec!["x".to_owned()];
    nodes.columns = spec
        .into_iter()
        .map(|spec| ("x".to_owned(), spec))
        .collect();
    read_plan(&nodes.into_plan(dir.path())?)
}

/// Compares numbers; missing ones are NaN.
fn assert_values(found: &Read, expected: &[Option<f32>]) {
    let given: Vec<Option<f32>> = found
        .values
        .iter()
        .map(|x| (!x.is_nan()).then_some(*x))
        .collect();
    assert_eq!(given, expected);
    assert_eq!(found.meta.gaps, expected.contains(&None));
}

#[test]
fn numbers_of_every_type_keep_their_gaps() {
    let expected = [Some(1.0), None, Some(3.0), Some(2.0)];
    let given = ints([Some(1), None, Some(3), Some(2)]);
    for data_type in [
        DataType::Int8,
        DataType::UInt64,
        DataType::Float16,
        DataType::Float32,
        DataType::Float64,
        DataType::Decimal128(9, 3),
    ] {
        let found = read(&with_type(&given, &data_type), None).unwrap();
        assert_values(&found, &expected);
        assert_eq!(
            (found.meta.values, found.meta.width),
            (ColumnValues::Number, 1)
        );
    }
    let wide: ArrayRef = Arc::new(Float64Array::from(vec![
        Some(1.0 / 3.0),
        Some(f64::NAN),
        None,
    ]));
    assert_values(
        &read(&wide, None).unwrap(),
        &[Some(1.0_f32 / 3.0), None, None],
    );
    let cents = Decimal128Array::from(vec![Some(125), None]).with_precision_and_scale(9, 2);
    let found = read(&(Arc::new(cents.unwrap()) as ArrayRef), None).unwrap();
    assert_values(&found, &[Some(1.25), None]);
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]));
    assert_values(&read(&flags, None).unwrap(), &[Some(1.0), None, Some(0.0)]);
}

#[test]
fn lists_may_have_null_rows_and_null_values() {
    let rows = [
        Some(vec![Some(1.0), Some(2.0)]),
        None,
        Some(vec![None, Some(4.0)]),
    ];
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>(
        rows.clone(),
    ));
    let fixed: ArrayRef =
        Arc::new(FixedSizeListArray::from_iter_primitive::<Float32Type, _, _>(rows, 2));
    let item = Arc::new(Field::new("item", DataType::Float32, true));
    let large = with_type(&lists, &DataType::LargeList(item));
    for array in [lists, large, fixed] {
        let found = read(&array, None).unwrap();
        let expected = [Some(1.0), Some(2.0), None, None, None, Some(4.0)];
        assert_values(&found, &expected);
        assert_eq!(found.meta.width, 2);
    }
}

#[test]
fn dates_and_times_are_days() {
    let check = |array: ArrayRef, expected: &[Option<f32>]| {
        let found = read(&array, None).unwrap();
        assert_eq!(found.meta.values, ColumnValues::Time);
        assert_values(&found, expected);
    };
    let half = [Some(0.0), Some(-1.5), None, Some(20_000.25)];
    let quarters = [Some(0), Some(-6), None, Some(80_001)];
    let of = |unit: i64| quarters.map(|count: Option<i64>| count.map(|count| count * (unit / 4)));
    const SECONDS: i64 = 86_400;
    check(
        Arc::new(TimestampSecondArray::from(of(SECONDS).to_vec())),
        &half,
    );
    check(
        Arc::new(TimestampMillisecondArray::from(
            of(SECONDS * 1_000).to_vec(),
        )),
        &half,
    );
    let micros = TimestampMicrosecondArray::from(of(SECONDS * 1_000_000).to_vec());
    check(Arc::new(micros.clone().with_timezone("+02:00")), &half);
    check(Arc::new(micros), &half);
    check(
        Arc::new(TimestampNanosecondArray::from(
            of(SECONDS * 1_000_000_000).to_vec(),
        )),
        &half,
    );
    let whole = [Some(0.0), Some(-2.0), None, Some(20_000.0)];
    let dates = [Some(0), Some(-2), None, Some(20_000)];
    check(Arc::new(Date32Array::from(dates.to_vec())), &whole);
    let millis = dates.map(|days| days.map(|days| i64::from(days) * 86_400_000));
    check(Arc::new(Date64Array::from(millis.to_vec())), &whole);
}

/// Positions in the sorted list of the distinct values, found the slow way.
fn positions(texts: &[Option<String>]) -> (Vec<String>, Vec<Option<f32>>) {
    let mut values: Vec<String> = texts.iter().flatten().cloned().collect();
    values.sort();
    values.dedup();
    let position = |text: &String| values.iter().position(|value| value == text);
    let found = texts.iter().map(|text| text.as_ref().and_then(position));
    let found = found.map(|at| at.map(|at| f32::from(u16::try_from(at).unwrap())));
    let found = found.collect();
    (values, found)
}

#[test]
fn categories_are_positions_among_all_values() {
    let mut rng = StdRng::seed_from_u64(7);
    let check = |array: &ArrayRef, texts: &[Option<String>], spec: Option<ColumnSpec>| {
        let found = read(array, spec).unwrap();
        let (values, expected) = positions(texts);
        assert_eq!(found.meta.values, ColumnValues::Category(values));
        assert_values(&found, &expected);
    };
    for _ in 0..20 {
        let rows = rng.random_range(1..40);
        let numbers: Vec<Option<i64>> = (0..rows)
            .map(|_| (rng.random_range(0..5) > 0).then(|| rng.random_range(-3..12)))
            .collect();
        let texts: Vec<Option<String>> = numbers.iter().map(|n| n.map(|n| n.to_string())).collect();
        let array = ints(numbers.clone());
        for data_type in [DataType::Int8, DataType::Int64, DataType::Float64] {
            let array = with_type(&array, &data_type);
            check(&array, &texts, Some(kind(ColumnKind::Category)));
        }
        let array = with_type(&array, &DataType::Utf8);
        for data_type in [
            DataType::LargeUtf8,
            DataType::Utf8View,
            DataType::Binary,
            dictionary(),
        ] {
            check(&with_type(&array, &data_type), &texts, None);
        }
        let item = DataType::Dictionary(Box::new(DataType::Int8), Box::new(DataType::Int64));
        check(&with_type(&ints(numbers), &item), &texts, None);
    }
    let flags: ArrayRef = Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)]));
    let texts = [Some("true".to_owned()), None, Some("false".to_owned())];
    check(&flags, &texts, Some(kind(ColumnKind::Category)));
}

#[test]
fn a_column_may_be_null_in_all_rows_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let nulls: ArrayRef = Arc::new(arrow::array::NullArray::new(2));
    let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Float32Type, _, _>([Some(
        vec![Some(1.0), Some(2.0)],
    )]));
    let no_values = floats([f32::NAN, f32::NAN]);
    let columns = |id: i64, x: &ArrayRef, xs: &ArrayRef, kind: &ArrayRef| {
        let ids = ints(id..id + i64::try_from(x.len()).unwrap());
        let columns = [
            ("id", ids),
            ("x", Arc::clone(x)),
            ("xs", Arc::clone(xs)),
            ("kind", Arc::clone(kind)),
        ];
        write(
            &dir.path().join(format!("nodes/{id}.parquet")),
            &columns.to_vec(),
            2,
        );
    };
    std::fs::create_dir(dir.path().join("nodes")).unwrap();
    columns(0, &nulls, &nulls, &nulls);
    let spec = || {
        let mut spec = nodes_spec();
        spec.path = "nodes".into();
        spec.features = ["x", "kind", "xs"].map(str::to_owned).to_vec();
        spec
    };
    let alone = spec().into_plan(dir.path()).map(|plan| plan.num_rows());
    let problem = [
        "column `x` of",
        "is null, allowed for features",
        "but all its values are null; leave the column out, or write it with a type",
    ];
    assert_says(alone, ErrorKind::Data, &problem);
    columns(2, &floats([0.5]), &lists, &strings(&[Some("b")]));
    columns(3, &no_values, &nulls, &nulls);
    let plan = spec().into_plan(dir.path()).unwrap();
    let mut categories = Categories::default();
    for unit in plan.units() {
        let found = plan.read_keys(unit).unwrap().categories;
        plan.merge_categories(&mut categories, found).unwrap();
    }
    let described = plan.column_meta(categories, &[]);
    let read = plan.units().iter().flat_map(|unit| {
        let rows = plan.read_rows(unit, None, &described).unwrap();
        let is_typed = rows.ids.len() == 1;
        assert_eq!(rows.gaps, [!is_typed; 3]);
        match rows.features {
            Features::Dense { values, .. } => values,
            other => panic!("{other:?}"),
        }
    });
    let shown: Vec<String> = read.map(|value| value.to_string()).collect();
    let (nan, typed) = (["NaN"; 4], ["0.5", "0", "1", "2"]);
    assert_eq!(
        shown.chunks(4).collect::<Vec<_>>(),
        [nan, nan, typed, nan, nan]
    );
}

#[track_caller]
fn assert_refused(array: &ArrayRef, spec: ColumnSpec, kind: ErrorKind, expected: &[&str]) {
    let values = read(array, Some(spec)).map(|column| column.values);
    assert_says(values, kind, expected);
}

#[test]
fn entries_of_columns_are_checked() {
    let names = strings(&[Some("a"), Some("b"), Some("c")]);
    let number = [
        "column `x` of",
        "is string, allowed for features: numbers and lists of numbers",
    ];
    assert_refused(&names, kind(ColumnKind::Number), ErrorKind::Data, &number);
    let time = ["is string, allowed for features: dates and timestamps"];
    assert_refused(&names, kind(ColumnKind::Time), ErrorKind::Data, &time);
    let halves = floats([2.0, 1.5]);
    let fraction = [
        "column `x`",
        "row 1",
        "is 1.5; a category that is a number has no fraction",
    ];
    assert_refused(
        &halves,
        kind(ColumnKind::Category),
        ErrorKind::Data,
        &fraction,
    );
    let days: ArrayRef = Arc::new(Date32Array::from(vec![1]));
    let category = [
        "is date, allowed for features: strings, dictionaries, integers, booleans and floats \
         without a fraction",
    ];
    assert_refused(
        &days,
        kind(ColumnKind::Category),
        ErrorKind::Data,
        &category,
    );
    let bound = |one_hot, max_values| ColumnSpec {
        kind: None,
        one_hot,
        max_values,
    };
    let few = [
        "column `x` of",
        "has 3 or more categories, allowed are 2: raise \
         `input.nodes.columns.x.max_values`",
    ];
    assert_refused(&names, bound(None, Some(2)), ErrorKind::Data, &few);
    assert!(read(&names, Some(bound(Some(0), Some(3)))).is_ok());
    let none = ["`input.nodes.columns.x.max_values`: is 0; allowed is 1 to 16777216"];
    assert_refused(&names, bound(None, Some(0)), ErrorKind::Usage, &none);
    let of_number = [
        "`input.nodes.columns.x.one_hot`: is for categories, the column has the kind \
         \"number\"",
    ];
    assert_refused(&halves, bound(Some(3), None), ErrorKind::Usage, &of_number);
    let bytes: ArrayRef = Arc::new(BinaryArray::from(vec![b"\xff".as_slice()]));
    assert_says(
        read(&bytes, None).map(|read| read.values),
        ErrorKind::Data,
        &["no UTF-8 text"],
    );
    let columns = vec![("id", ints([1])), ("xy", ints([1]))];
    let stray = nodes(&columns, |spec| {
        spec.features = vec!["xy".to_owned()];
        spec.columns = [("xx".to_owned(), kind(ColumnKind::Number))].into();
    });
    let problem =
        ["`input.nodes.columns.xx`: is not one of `features`; did you mean `xy`? they are xy"];
    assert_says(stray, ErrorKind::Usage, &problem);
}

#[test]
fn csv_columns_are_read_as_declared() {
    let dir = tempfile::tempdir().unwrap();
    let read = |text: &str, spec: Option<ColumnSpec>| {
        std::fs::write(dir.path().join("nodes.csv"), text).unwrap();
        let mut nodes = nodes_spec();
        nodes.path = "nodes.csv".into();
        nodes.features = vec!["x".to_owned()];
        nodes.columns = spec
            .into_iter()
            .map(|spec| ("x".to_owned(), spec))
            .collect();
        read_plan(&nodes.into_plan(dir.path())?)
    };
    let numbers = "id,x\n1,07\n2,\n3,7\n";
    assert_values(&read(numbers, None).unwrap(), &[Some(7.0), None, Some(7.0)]);
    let codes = read(numbers, Some(kind(ColumnKind::Category))).unwrap();
    let values = vec!["07".to_owned(), "7".to_owned()];
    assert_eq!(codes.meta.values, ColumnValues::Category(values));
    assert_values(&codes, &[Some(0.0), None, Some(1.0)]);
    let days = "id,x\n1,1970-01-02\n2,\n3,1970-01-03 12:00:00\n";
    let times = read(days, None).unwrap();
    assert_eq!(times.meta.values, ColumnValues::Time);
    assert_values(&times, &[Some(1.0), None, Some(2.5)]);
    let unknown = "id,x\n1,0.5\n2,n/a\n";
    assert_eq!(
        read(unknown, None).unwrap().meta.kind(),
        ColumnKind::Category
    );
    let wrong = read(unknown, Some(kind(ColumnKind::Number)));
    let wrong = wrong.map(|column| column.values).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Data);
    let text = error_chain(&wrong);
    let expected = "nodes.csv, line 3: is \"n/a\", which is no number";
    assert!(text.contains(expected), "{text}");
}
