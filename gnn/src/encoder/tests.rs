//! Encoded rows, compared with a slow implementation on the values themselves.

use super::*;
use crate::Transform;
use crate::coefficient::round;

/// A value of a table.
#[derive(Clone, Copy, PartialEq)]
enum Cell {
    Number(f32),
    Word(&'static str),
    Gap,
}

use Cell::{Gap, Number, Word};

/// Columns `x` (numbers), `day` (times) and `kind` (categories), each in rows.
struct Table {
    rows: Vec<[Cell; 3]>,
}

impl Table {
    fn categories(&self) -> Vec<String> {
        let word = |row: &[Cell; 3]| match row[2] {
            Word(word) => Some(word.to_owned()),
            _ => None,
        };
        let mut words: Vec<String> = self.rows.iter().filter_map(word).collect();
        words.sort();
        words.dedup();
        words
    }

    fn columns(&self) -> Vec<RawColumn> {
        let meanings = [
            RawValues::Numbers { width: 1 },
            RawValues::Time,
            RawValues::Categories(self.categories()),
        ];
        let columns = ["x", "day", "kind"].iter().zip(meanings).enumerate();
        let column = |(at, (name, values)): (usize, (&&str, RawValues))| RawColumn {
            name: (*name).to_owned(),
            values,
            gaps: self.rows.iter().any(|row| row[at] == Gap),
        };
        columns.map(column).collect()
    }

    /// Returns the numbers that a store has in place of the values.
    fn raw(&self) -> Dense {
        let categories = self.categories();
        let number = |cell: &Cell| match cell {
            Number(number) => *number,
            Word(word) => {
                let at = categories.iter().position(|known| known == word).unwrap();
                f32::from(u16::try_from(at).unwrap())
            }
            Gap => f32::NAN,
        };
        Dense {
            rows: self.rows.len(),
            cols: 3,
            values: self.rows.iter().flatten().map(number).collect(),
        }
    }

    fn fit(&self, one_hot: usize, transform: NumberTransform) -> Encoder {
        let mut fit = EncoderFit::new(self.columns(), |_| one_hot, transform);
        self.raw()
            .values
            .chunks(3)
            .for_each(|row| fit.add(row).unwrap());
        fit.finish().unwrap()
    }
}

fn train() -> Table {
    Table {
        rows: vec![
            [Number(2.0), Number(10.0), Word("b")],
            [Gap, Number(14.0), Word("a")],
            [Number(4.0), Number(12.0), Gap],
            [Number(3.0), Number(12.0), Word("b")],
        ],
    }
}

fn dense(input: Input) -> Dense {
    match input {
        Input::Dense(dense) => dense,
        Input::Sparse(sparse) => {
            let mut dense = Dense::zeros(sparse.rows, sparse.cols);
            for row in 0..sparse.rows {
                for at in sparse.offset[row]..sparse.offset[row + 1] {
                    let (col, value) = (sparse.index[at as usize], sparse.value[at as usize]);
                    dense.values[row * sparse.cols + col as usize] += value;
                }
            }
            dense
        }
    }
}

/// Encodes a row of the table, given what the train table has.
fn twin(row: &[Cell; 3], known: &[&'static str], standardize: bool) -> Vec<f32> {
    // The train rows have x = 2, 4, 3 and day = 10, 14, 12, 12.
    let [x_scale, day_scale] = [2.0 / 3.0, 2.0].map(|variance: f64| round(1.0 / variance.sqrt()));
    let x = match row[0] {
        Number(x) => [x, 0.0],
        _ => [3.0, 1.0],
    };
    let scaled = if standardize {
        (x[0] - 3.0) * x_scale
    } else {
        x[0]
    };
    let Number(day) = row[1] else {
        panic!("no day is missing")
    };
    let mut encoded = vec![scaled, x[1], (day - 12.0) * day_scale];
    encoded.extend(
        known
            .iter()
            .map(|&known| f32::from(u8::from(row[2] == Word(known)))),
    );
    encoded.push(f32::from(u8::from(row[2] == Gap)));
    encoded
}

#[test]
fn rows_are_encoded_as_by_the_slow_twin() {
    let later = Table {
        rows: vec![
            [Number(7.0), Number(9.0), Word("0")],
            [Gap, Number(12.0), Word("b")],
            [Number(-1.0), Number(13.5), Gap],
            [Number(0.0), Number(12.0), Word("a")],
        ],
    };
    for (one_hot, transform) in [
        (2, NumberTransform::None),
        (1, NumberTransform::None),
        (2, NumberTransform::Standardize),
    ] {
        let fitted = train().fit(one_hot, transform);
        assert_eq!((fitted.sparse, fitted.width()), (one_hot == 1, 6));
        let text = serde_json::to_string(&Transform::Encode(fitted)).unwrap();
        for table in [
            train(),
            Table {
                rows: later.rows.clone(),
            },
        ] {
            let read: Transform = serde_json::from_str(&text).unwrap();
            let bound = read.bind(&table.columns()).unwrap();
            let mut input = Input::Dense(table.raw());
            bound.apply(&mut input).unwrap();
            let is_sparse = matches!(input, Input::Sparse(_));
            assert_eq!(is_sparse, one_hot == 1);
            let standardize = transform == NumberTransform::Standardize;
            let rows = table.rows.iter();
            let expected = rows.flat_map(|row| twin(row, &["a", "b"], standardize));
            assert_eq!(dense(input).values, expected.collect::<Vec<_>>());
        }
    }
}

#[test]
fn categories_without_train_nodes_share_a_column() {
    let table = train();
    let mut fit = EncoderFit::new(table.columns(), |_| 9, NumberTransform::None);
    fit.add(&[1.0, 0.0, 1.0]).unwrap(); // `b` is the category at position 1.
    let encoder = fit.finish().unwrap();
    let ColumnCode::Category(code) = &encoder.columns[2].code else {
        panic!("a column of categories");
    };
    assert_eq!(
        (&code.values[..], code.unseen, code.gaps),
        (&["b".to_owned()][..], true, true)
    );
    let encoded = dense(encoder.encode(&table.raw()).unwrap());
    let kinds: Vec<&[f32]> = encoded.values.chunks(6).map(|row| &row[3..]).collect();
    let expected: [&[f32]; 4] = [
        &[1.0, 0.0, 0.0],
        &[0.0, 1.0, 0.0],
        &[0.0, 0.0, 1.0],
        &[1.0, 0.0, 0.0],
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn numbers_of_a_row_are_normalised_without_other_columns() {
    let table = train();
    let encoded = table
        .fit(9, NumberTransform::RowNormalize)
        .encode(&table.raw())
        .unwrap();
    let dense = dense(encoded);
    let firsts: Vec<f32> = dense.values.chunks(6).map(|row| row[0]).collect();
    assert_eq!(firsts, [1.0, 1.0, 1.0, 1.0]);
    assert_eq!(&dense.values[..3], &[1.0, 0.0, -2.0 / 2.0_f32.sqrt()]);
}

#[test]
fn lists_have_one_mark_for_their_gaps() {
    let columns = vec![RawColumn {
        name: "v".to_owned(),
        values: RawValues::Numbers { width: 2 },
        gaps: true,
    }];
    let rows = [[1.0, 4.0], [f32::NAN, f32::NAN], [3.0, f32::NAN]];
    let mut fit = EncoderFit::new(columns, |_| 0, NumberTransform::None);
    rows.iter().for_each(|row| fit.add(row).unwrap());
    let encoder = fit.finish().unwrap();
    let raw = Dense {
        rows: 3,
        cols: 2,
        values: rows.concat(),
    };
    let expected = [1.0, 4.0, 0.0, 2.0, 4.0, 1.0, 3.0, 4.0, 1.0];
    assert_eq!(dense(encoder.encode(&raw).unwrap()).values, expected);
}

#[test]
fn other_columns_are_errors() {
    let check = |change: &dyn Fn(&mut Vec<RawColumn>), expected: &str| {
        let mut table = train().columns();
        change(&mut table);
        let error = train()
            .fit(9, NumberTransform::None)
            .bind(&table)
            .unwrap_err();
        assert_eq!(error.to_string(), format!("transform: {expected}"));
    };
    check(
        &|table| table.truncate(2),
        "fitted to 3 columns but the table has 2",
    );
    check(
        &|table| table[2].values = RawValues::Numbers { width: 1 },
        "column `kind` has numbers, in training it had categories",
    );
    check(
        &|table| table[0].values = RawValues::Numbers { width: 2 },
        "column `x` has 2 numbers a row, in training it had 1",
    );
    check(
        &|table| table[1].gaps = true,
        "column `day` has missing values, in training it had none",
    );
    check(
        &|table| table.clear(),
        "column `day` has numbers, in training it had times",
    );
    let plain = Transform::None.bind(&train().columns()).unwrap_err();
    let expected = "transform: column `x` has missing values, in training it had none";
    assert_eq!(plain.to_string(), expected);
    let encoder = train().fit(9, NumberTransform::None);
    let mut unbound: Encoder =
        serde_json::from_value(serde_json::to_value(&encoder).unwrap()).unwrap();
    assert!(unbound.encode(&train().raw()).is_err());
    assert!(unbound.validate().is_ok());
    unbound.columns.truncate(1);
    if let ColumnCode::Number(code) = &mut unbound.columns[0].code {
        code.mean[0] = f32::NAN;
    }
    let error = unbound.validate().unwrap_err().to_string();
    assert_eq!(
        error,
        "transform: the encoder of column `x` needs finite means and scales"
    );
    let mut raw = train().raw();
    raw.values[2] = 2.0;
    let mut fit = EncoderFit::new(train().columns(), |_| 9, NumberTransform::None);
    assert!(fit.add(&raw.values[..3]).is_err());
    let refused = encoder.encode(&raw).unwrap_err().to_string();
    assert_eq!(
        refused,
        "transform: column `kind` holds 2, its table has 2 categories"
    );
}

#[test]
fn a_table_without_gaps_fits_a_model_trained_with_gaps() {
    let columns = |gaps| RawColumn {
        name: "x".to_owned(),
        values: RawValues::Numbers { width: 1 },
        gaps,
    };
    let mut fit = EncoderFit::new(vec![columns(true)], |_| 0, NumberTransform::None);
    fit.add(&[f32::NAN]).unwrap();
    fit.add(&[5.0]).unwrap();
    let fitted = Transform::Encode(fit.finish().unwrap());
    let mut input = Input::Dense(Dense {
        rows: 1,
        cols: 1,
        values: vec![2.0],
    });
    fitted.bind(&[]).unwrap().apply(&mut input).unwrap();
    assert_eq!(dense(input).values, [2.0, 0.0]);
}
