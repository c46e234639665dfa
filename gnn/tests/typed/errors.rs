//! Architectures, blocks and inputs that do not fit are refused with the key or field at fault.

use std::error::Error;

use gnn::typed::{RelationAggregator, TypedArchitecture, TypedBlock, TypedKind};
use gnn::{Aggregator, GnnError, LayerKind, Mode};

use crate::graph::{ALL, Batch, Graph};
use crate::models::{model, plain, schema};

fn refused(kind: TypedKind, change: impl Fn(&mut TypedArchitecture), wanted: &str) {
    let mut arch = plain(kind);
    arch.validate().unwrap();
    change(&mut arch);
    let error = arch.validate().unwrap_err().to_string();
    assert!(error.contains(wanted), "{error}\nis not\n{wanted}");
}

const SAGE: TypedKind = TypedKind::Conv(LayerKind::Sage);
const GAT: TypedKind = TypedKind::Conv(LayerKind::Gat);
const GCN: TypedKind = TypedKind::Conv(LayerKind::Gcn);

#[test]
fn names_that_do_not_fit_are_refused_by_key() {
    let twice = |a: &mut TypedArchitecture| a.relations[1].name = a.relations[0].name.clone();
    let unknown = |a: &mut TypedArchitecture| a.relations[1].from = "book".to_owned();
    let target = |a: &mut TypedArchitecture| a.target_type = "book".to_owned();
    let bipartite = |a: &mut TypedArchitecture| a.relations[1].from = "paper".to_owned();
    refused(
        SAGE,
        |a| a.types.swap(0, 1),
        "key `types`: the names are not sorted",
    );
    refused(
        SAGE,
        twice,
        "key `relations`: the names are not sorted, or one is there twice",
    );
    refused(
        SAGE,
        unknown,
        "relation `hosts` has the unknown type `book`; types are [\"author\"",
    );
    refused(SAGE, target, "key `target_type`: `book` is not one");
    refused(GCN, bipartite, "`knows` goes from `paper` to");
}

#[test]
fn widths_and_heads_that_do_not_fit_are_refused_by_key() {
    refused(SAGE, |a| a.projection = 0, "key `projection`: at least 1");
    refused(
        SAGE,
        |a| a.hidden = vec![],
        "key `hidden`: 0 widths for 2 layers",
    );
    refused(
        SAGE,
        |a| a.heads = 2,
        "only gat, gatv2, simple_hgn and hgt have heads",
    );
    let large = |a: &mut TypedArchitecture| a.hidden = vec![1 << 27];
    refused(SAGE, large, "parameters, allowed are 1073741824");
    let uneven = |a: &mut TypedArchitecture| a.out_dim = 3;
    refused(
        TypedKind::Hgt,
        uneven,
        "key `out_heads`: 2 heads of hgt do not divide",
    );
}

#[test]
fn options_of_other_kinds_are_refused_by_key() {
    let (hgn, hgt, rgcn) = (TypedKind::SimpleHgn, TypedKind::Hgt, TypedKind::Rgcn);
    refused(
        GAT,
        |a| a.aggregator = Aggregator::Max,
        "key `aggregator`: only sage",
    );
    refused(
        GAT,
        |a| a.num_bases = Some(2),
        "key `num_bases`: only rgcn has bases",
    );
    refused(
        GAT,
        |a| a.relation_dim = Some(2),
        "key `relation_dim`: simple_hgn needs one",
    );
    refused(hgn, |a| a.relation_dim = None, "key `relation_dim`");
    refused(
        GAT,
        |a| a.attention_residual = 0.1,
        "only simple_hgn has a residual of attention",
    );
    refused(
        hgt,
        |a| a.residual = true,
        "key `residual`: hgt has a residual",
    );
    let mean = |a: &mut TypedArchitecture| a.relation_aggregator = RelationAggregator::Mean;
    refused(rgcn, mean, "rgcn has no outputs by relation");
    let weights = |a: &mut TypedArchitecture| a.relations[0].edge_weight = true;
    refused(
        hgt,
        weights,
        "relation `cites` has edge weights, but only gcn, sage, gat",
    );
    let features = |a: &mut TypedArchitecture| a.relations[0].edge_dim = Some(2);
    refused(
        SAGE,
        features,
        "edge features, but only gat, gatv2 and gin use them",
    );
}

/// Returns the message of an error and of its causes.
fn chain(error: &GnnError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        text = format!("{text}: {source}");
        cause = source.source();
    }
    text
}

#[test]
fn blocks_that_contradict_themselves_are_refused_by_relation() {
    let arch = plain(TypedKind::Conv(LayerKind::Sage));
    let graph = Graph::random(&schema(&arch), 9, 25, 1);
    let check = |change: &dyn Fn(&mut gnn::typed::TypedBlockData), wanted: &str| {
        let mut data = graph.whole();
        change(&mut data);
        let text = chain(&TypedBlock::new(&graph.schema, data).unwrap_err());
        assert!(text.contains(wanted), "{text}\nis not\n{wanted}");
    };
    check(
        &|d| d.types[1].num_dst = 99,
        "`num_dst`: 99 dst nodes of `paper` cannot be a prefix",
    );
    check(
        &|d| d.types[2].node_key.clear(),
        "`node_key`: has 0 entries for 13 of `place`",
    );
    check(
        &|d| d.relations[1].in_src[0] = 99,
        "relation `hosts`: block field `in_src`: position",
    );
    check(
        &|d| d.relations[3].in_degree.clear(),
        "relation `reads`: block field `in_degree`",
    );
    check(
        &|d| drop(d.relations.pop()),
        "has 4 types and 5 relations, but the schema has 4 and 6",
    );
}

#[test]
fn inputs_that_do_not_fit_the_model_are_refused_by_type() {
    let arch = plain(TypedKind::Conv(LayerKind::Sage));
    let graph = Graph::random(&schema(&arch), 9, 25, 1);
    let (batch, model) = (Batch::of(&graph, &arch, 6, ALL), model(&arch, 1));
    let check = |change: &dyn Fn(&mut Batch), wanted: &str| {
        let mut batch = Batch::of(&graph, &arch, 6, ALL);
        change(&mut batch);
        let done = model.forward(&batch.blocks, &batch.input, Mode::Eval);
        let text = chain(&done.unwrap_err());
        assert!(text.contains(wanted), "{text}\nis not\n{wanted}");
    };
    check(
        &|b| b.input[1] = None,
        "the features of `paper` are missing",
    );
    let author = batch.input[0].clone();
    check(&|b| b.input[1].clone_from(&author), "x 5, but");
    check(
        &|b| b.input[2].clone_from(&author),
        "`place` has features, but the architecture",
    );
    check(&|b| drop(b.blocks.pop()), "1 blocks for 2 layers");
    check(&|b| b.blocks[1] = b.blocks[0].clone(), "src nodes of `");
    let mut weighted = arch.clone();
    weighted.relations[3].edge_weight = true;
    let mut data = batch.data[0].clone();
    (data.relations[3].edge_weight, data.relations[3].in_weight) = (None, None);
    let block = TypedBlock::new(&graph.schema, data).unwrap();
    let model = crate::models::model(&weighted, 1);
    let blocks = [block, batch.blocks[1].clone()];
    let text = chain(
        &model
            .forward(&blocks, &batch.input, Mode::Eval)
            .unwrap_err(),
    );
    assert!(
        text.contains("relation `reads`: block field `edge_weight`: is missing"),
        "{text}"
    );
}
