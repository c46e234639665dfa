//! Tests the checks of an [`Architecture`] and its JSON form in `model.json`.

use expect_test::{Expect, expect};

use super::*;

fn gat() -> Architecture {
    Architecture {
        layer: LayerKind::Gat,
        aggregator: Aggregator::Mean,
        in_dim: 5,
        embedding_dim: None,
        edge_dim: None,
        edge_weight: false,
        hidden: vec![6],
        num_layers: 2,
        out_dim: 3,
        heads: 2,
        out_heads: 1,
        dropout: 0.5,
        input_dropout: 0.5,
        attention_dropout: 0.5,
        norm: Norm::None,
        residual: false,
        activation: Activation::Elu,
        task: Task::Classes,
    }
}

fn check(change: impl FnOnce(&mut Architecture), expected: &Expect) {
    let mut arch = gat();
    change(&mut arch);
    let got = arch.validate();
    expected.assert_eq(&got.map_or_else(|error| error.to_string(), |()| "ok".to_owned()));
}

#[test]
fn impossible_combinations_are_named() {
    check(|_| {}, &expect!["ok"]);
    check(|arch| arch.hidden = vec![6, 8], &expect!["ok"]);
    check(
        |arch| arch.hidden = vec![],
        &expect!["architecture key `hidden`: 0 widths for 2 layers: 1, or 2 with a linear head"],
    );
    check(
        |arch| arch.hidden = vec![0],
        &expect!["architecture key `hidden`: a width is 0"],
    );
    check(
        |arch| arch.num_layers = 0,
        &expect!["architecture key `num_layers`: at least 1 is needed"],
    );
    check(
        |arch| arch.heads = 4,
        &expect!["architecture key `heads`: 4 heads do not divide the hidden widths [6]"],
    );
    check(
        |arch| arch.heads = 0,
        &expect!["architecture key `heads`: at least 1 is needed"],
    );
    check(
        |arch| arch.layer = LayerKind::Gcn,
        &expect!["architecture key `heads`: only gat and gatv2 have heads"],
    );
    check(
        |arch| (arch.hidden, arch.out_heads) = (vec![6, 8], 2),
        &expect![
            "architecture key `out_heads`: 2, but the last layer is a linear head, which has no attention"
        ],
    );
    check(
        |arch| arch.dropout = 1.0,
        &expect!["architecture key `dropout`: 1 is not in [0, 1)"],
    );
    check(
        |arch| arch.input_dropout = f32::NAN,
        &expect!["architecture key `input_dropout`: NaN is not in [0, 1)"],
    );
    check(
        |arch| arch.aggregator = Aggregator::Max,
        &expect!["architecture key `aggregator`: only sage can aggregate by max"],
    );
    check(
        |arch| arch.edge_dim = Some(0),
        &expect!["architecture key `edge_dim`: 0 means none: leave it out"],
    );
    let plain = |arch: &mut Architecture| {
        (arch.layer, arch.heads, arch.attention_dropout) = (LayerKind::Sage, 1, 0.0);
    };
    check(plain, &expect!["ok"]);
    let edges = |arch: &mut Architecture| {
        plain(arch);
        arch.edge_dim = Some(3);
    };
    check(
        edges,
        &expect!["architecture key `edge_dim`: only gat, gatv2 and gin use edge features"],
    );
}

#[test]
fn absurd_widths_are_refused_before_anything_is_drawn() {
    check(
        |arch| arch.hidden = vec![usize::MAX - 1],
        &expect![
            "architecture key `hidden`: 18446744073709551614 is more than the 1073741824 parameters a model may have"
        ],
    );
    check(
        |arch| arch.hidden = vec![1 << 29],
        &expect![
            "architecture key `hidden`: widths [536870912], 5 features and 3 outputs (`num_classes`) make 5905580041 parameters, allowed are 1073741824"
        ],
    );
    check(
        |arch| arch.out_dim = 4_000_000_000,
        &expect![
            "architecture key `out_dim`: widths [6], 5 features and 4000000000 outputs (`num_classes`) make 36000000048 parameters, allowed are 1073741824"
        ],
    );
    check(
        |arch| (arch.in_dim, arch.out_dim) = (40_000, 900_000_000),
        &expect![
            "architecture key `out_dim`: widths [6], 40000 features and 900000000 outputs (`num_classes`) make 8100240018 parameters, allowed are 1073741824"
        ],
    );
    check(
        |arch| (arch.in_dim, arch.hidden) = (1 << 20, vec![1 << 9]),
        &expect!["ok"],
    );
}

#[test]
fn json_names_kinds_in_lower_case_and_refuses_unknown_keys() {
    let arch = Architecture {
        layer: LayerKind::GatV2,
        ..gat()
    };
    let text = serde_json::to_string(&arch).unwrap();
    assert!(text.contains(r#""layer":"gatv2""#), "{text}");
    assert_eq!(serde_json::from_str::<Architecture>(&text).unwrap(), arch);
    let stray = text.replace("\"heads\"", "\"haeds\"");
    assert!(serde_json::from_str::<Architecture>(&stray).is_err());
}

#[test]
fn widths_follow_the_hidden_list() {
    let mut arch = gat();
    assert_eq!(
        (arch.output_dim(1), arch.output_dim(2), arch.has_head()),
        (6, 3, false)
    );
    arch.hidden = vec![6, 8];
    assert_eq!(
        (arch.input_dim(2), arch.output_dim(2), arch.has_head()),
        (6, 8, true)
    );
}
