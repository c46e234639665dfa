//! Order, hashes and conversions of ids, the same for every type.

use super::*;

fn ints(id_type: IdType, values: &[i64]) -> Ids {
    let keys = values
        .iter()
        .map(|value| value.cast_unsigned() ^ SIGN_BIT)
        .collect();
    Ids::from_keys(IdType::Int64, keys).cast(id_type).unwrap()
}

fn texts(values: &[&str]) -> Ids {
    let mut ids = Ids::new(IdType::Utf8);
    values.iter().for_each(|value| ids.push_str(value));
    ids
}

fn all(ids: &Ids) -> Vec<String> {
    (0..ids.len()).map(|i| ids.display(i)).collect()
}

#[test]
fn ids_sort_in_their_natural_order() {
    let check = |ids: &Ids, expected: &[&str]| {
        assert_eq!(all(&ids.gather(&ids.sort_permutation())), expected);
    };
    for id_type in [IdType::Int32, IdType::Int64] {
        check(&ints(id_type, &[10, -2, 0, 9]), &["-2", "0", "9", "10"]);
    }
    let wide = Ids::from_keys(IdType::UInt64, vec![u64::MAX, 9, 1 << 63]);
    check(&wide, &["9", "9223372036854775808", "18446744073709551615"]);
    check(
        &texts(&["b", "ä", "", "a", "aa"]),
        &["", "a", "aa", "b", "ä"],
    );
}

#[test]
fn equal_ids_keep_the_order_of_their_positions() {
    assert_eq!(
        ints(IdType::Int64, &[2, 1, 2, 1]).sort_permutation(),
        [1, 3, 0, 2]
    );
    assert_eq!(
        texts(&["b", "a", "b", "a"]).sort_permutation(),
        [1, 3, 0, 2]
    );
}

#[test]
fn integers_hash_and_compare_by_value() {
    let columns = [IdType::Int32, IdType::Int64, IdType::UInt64].map(|t| ints(t, &[0, 7, 100]));
    for left in &columns {
        for right in &columns {
            for i in 0..3 {
                assert_eq!(left.hash(i), right.hash(i));
                for j in 0..3 {
                    assert_eq!(left.cmp(i, right, j), i.cmp(&j));
                    assert_eq!(left.equal(i, right, j), i == j);
                }
            }
        }
    }
    let negative = ints(IdType::Int64, &[-1]);
    let greatest = Ids::from_keys(IdType::UInt64, vec![u64::MAX]);
    assert_eq!(negative.cmp(0, &greatest, 0), Ordering::Less);
    assert_eq!(negative.hash(0), ints(IdType::Int32, &[-1]).hash(0));
}

/// Samples and partitions of stored outputs depend on these values.
#[test]
fn hashes_are_fixed_for_good() {
    assert_eq!(hash_int(0), 0xe220_a839_7b1d_cdaf);
    assert_eq!(ints(IdType::Int64, &[0]).hash(0), 0xe220_a839_7b1d_cdaf);
    assert_eq!(texts(&[""]).hash(0), 0x2d06_8005_38d3_94c2);
}

#[test]
fn columns_grow_from_each_other() {
    let check = |source: &Ids| {
        let mut grown = Ids::new(source.id_type());
        grown.push_from(source, 2);
        grown.extend_from(source, 1..3);
        grown.extend_from(source, 1..1);
        grown.extend_gather(source, &[0, 0]);
        assert_eq!(grown, source.gather(&[2, 1, 2, 0, 0]));
        assert_eq!(grown.len(), 5);
        grown.clear();
        assert_eq!(grown, Ids::new(source.id_type()));
    };
    check(&ints(IdType::Int32, &[5, -6, 7]));
    check(&texts(&["eins", "", "drei"]));
}

#[test]
fn columns_pass_through_arrow_and_serde() {
    let check = |ids: &Ids| {
        assert_eq!(ids.to_array().data_type(), &ids.id_type().data_type());
        assert_eq!(&Ids::from_array(ids.to_array().as_ref()).unwrap(), ids);
        let middle = ids.slice_to_array(1..2);
        assert_eq!(Ids::from_array(middle.as_ref()).unwrap(), ids.gather(&[1]));
        let sliced = ids.to_array().slice(1, 2);
        assert_eq!(
            Ids::from_array(sliced.as_ref()).unwrap(),
            ids.gather(&[1, 2])
        );
        let text = serde_json::to_string(ids).unwrap();
        assert_eq!(&serde_json::from_str::<Ids>(&text).unwrap(), ids);
    };
    check(&ints(
        IdType::Int32,
        &[i64::from(i32::MIN), -1, i64::from(i32::MAX)],
    ));
    check(&ints(IdType::Int64, &[i64::MIN, -1, i64::MAX]));
    check(&Ids::from_keys(IdType::UInt64, vec![0, 1, u64::MAX]));
    check(&texts(&["", "ü", "bash"]));
    assert_eq!(
        serde_json::to_string(&IdType::UInt64).unwrap(),
        "\"uint64\""
    );
    let floats = arrow::array::Float32Array::from(vec![1.0]);
    assert!(
        Ids::from_array(&floats)
            .unwrap_err()
            .to_string()
            .contains("Float32 holds no ids")
    );
}

#[test]
fn casts_fail_at_the_first_id_that_does_not_fit() {
    let far = ints(IdType::Int64, &[1, -1, 1 << 40]);
    assert_eq!(far.cast(IdType::Int32), Err(2));
    assert_eq!(far.cast(IdType::UInt64), Err(1));
    assert_eq!(far.cast(IdType::Utf8), Err(0));
    assert_eq!(texts(&["1"]).cast(IdType::Int64), Err(0));
    assert_eq!(far.cast(IdType::Int64), Ok(far.clone()));
    assert_eq!(all(&ints(IdType::UInt64, &[3, 4])), ["3", "4"]);
}

#[test]
fn strings_from_parts_are_checked() {
    let check = |offsets: &[u64], bytes: &[u8], is_valid: bool| {
        assert_eq!(
            Ids::from_text(offsets.to_vec(), bytes.to_vec()).is_ok(),
            is_valid
        );
    };
    check(&[0, 1, 3], b"abc", true);
    check(&[0], b"", true);
    check(&[], b"", false);
    check(&[0, 3, 1, 3], b"abc", false);
    check(&[0, 2], b"abc", false);
    check(&[0, 2], "ü".as_bytes(), true);
    check(&[0, 1, 2], "ü".as_bytes(), false);
    check(&[0, 1], b"\xff", false);
}
