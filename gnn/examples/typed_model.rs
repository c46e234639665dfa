//! Trains a model of a graph with two node types and two relations, and saves it.
//!
//! `cargo run --release -p gnn --example typed_model`
//!
//! Papers have two features, authors have none. An author belongs to group 0 or 1, and writes papers
//! of the group's kind. The model learns the group of authors from the papers that they wrote. The
//! saved weights load into a model of `PyG`'s `HeteroConv` with `strict=True`.

use std::error::Error;
use std::sync::Arc;

use gnn::typed::{
    RelationAggregator, RelationData, RelationInput, Schema, TypeInput, TypeNodes,
    TypedArchitecture, TypedBlock, TypedBlockData, TypedKind, TypedModel, TypedModelFile,
    load_typed, save_typed,
};
use gnn::{Activation, Aggregator, Dense, Input, Labels, LayerKind, Mode, Norm, ReadyInput, Task};

const AUTHORS: usize = 40;
/// Each author writes three papers of its own.
const PAPERS: usize = 3 * AUTHORS;

/// A GraphSAGE for each relation, whose outputs are added.
fn architecture() -> TypedArchitecture {
    let relation = |name: &str, from: &str, to: &str| RelationInput {
        name: name.to_owned(),
        from: from.to_owned(),
        to: to.to_owned(),
        edge_weight: false,
        edge_dim: None,
    };
    let node_type = |name: &str, in_dim| TypeInput {
        name: name.to_owned(),
        in_dim,
        embedding_dim: None,
    };
    TypedArchitecture {
        layer: TypedKind::Conv(LayerKind::Sage),
        relation_aggregator: RelationAggregator::Sum,
        aggregator: Aggregator::Mean,
        types: vec![node_type("author", None), node_type("paper", Some(2))],
        relations: vec![
            relation("writes", "author", "paper"),
            relation("written_by", "paper", "author"),
        ],
        target_type: "author".to_owned(),
        projection: 8,
        hidden: vec![8],
        num_layers: 2,
        out_dim: 2,
        heads: 1,
        out_heads: 1,
        num_bases: None,
        relation_dim: None,
        attention_residual: 0.0,
        dropout: 0.0,
        input_dropout: 0.0,
        attention_dropout: 0.0,
        norm: Norm::None,
        residual: false,
        normalize_output: false,
        activation: Activation::Relu,
        task: Task::Classes,
        readout: None,
    }
}

fn position(at: usize) -> u32 {
    u32::try_from(at).expect("the graph is small")
}

/// The in-edges of all nodes: author `a` writes papers `3 a`, `3 a + 1` and `3 a + 2`.
fn block(schema: &Arc<Schema>) -> Result<TypedBlock, gnn::GnnError> {
    let all = |count: usize, first: u64| TypeNodes {
        num_src: count,
        num_dst: count,
        num_active: count,
        node_key: (first..).take(count).collect(),
    };
    let writes = RelationData {
        in_offset: (0..=PAPERS).map(position).collect(),
        in_src: (0..PAPERS).map(|paper| position(paper / 3)).collect(),
        in_degree: vec![1; PAPERS],
        ..RelationData::default()
    };
    let written_by = RelationData {
        in_offset: (0..=AUTHORS).map(|author| position(3 * author)).collect(),
        in_src: (0..PAPERS).map(position).collect(),
        in_degree: vec![3; AUTHORS],
        ..RelationData::default()
    };
    let data = TypedBlockData {
        types: vec![all(AUTHORS, 0), all(PAPERS, 1000)],
        relations: vec![writes, written_by],
    };
    TypedBlock::new(schema, data)
}

fn main() -> Result<(), Box<dyn Error>> {
    let arch = architecture();
    let mut model = TypedModel::init(&arch, 7)?;
    let blocks = vec![block(model.schema())?; arch.num_layers];
    // The features of a paper of group 1 are larger by 1.
    let group = |author: usize| f32::from(u8::from(author % 2 == 1));
    let noise = |at: usize| f32::from(u8::try_from(at * 37 % 101).unwrap_or(0)) / 101.0;
    let values = (0..2 * PAPERS).map(|at| group(at / 6) + noise(at));
    let features = Input::Dense(Dense {
        rows: PAPERS,
        cols: 2,
        values: values.collect(),
    });
    let input = [None, Some(ReadyInput::new(features)?)];
    let labels = Labels::Classes((0..AUTHORS).map(|author| position(author % 2)).collect());

    model.prepare(&blocks, &input);
    for seed in 0..200 {
        let mode = Mode::Train { seed };
        let step = model.loss_and_gradient(&blocks, &input, &labels, 40.0, mode)?;
        let flat = model.flat().into_iter().zip(step.gradient);
        model.set_flat(&flat.map(|(x, slope)| x - 0.1 * slope).collect::<Vec<f32>>());
    }
    let logits = model.forward(&blocks, &input, Mode::Eval)?;
    let is_right = |author: &usize| {
        let row = logits.row(*author);
        (row[1] > row[0]) == (author % 2 == 1)
    };
    let right = (0..AUTHORS).filter(is_right).count();
    assert!(right >= 38, "{right} of {AUTHORS} authors are right");

    let dir = tempfile::tempdir()?;
    let file = TypedModelFile {
        architecture: arch,
        transforms: std::collections::BTreeMap::new(),
        label_scale: None,
        label_names: None,
        metrics: std::collections::BTreeMap::new(),
        fanouts: serde_json::Value::Null,
        extra: std::collections::BTreeMap::new(),
    };
    save_typed(dir.path(), &model, &file)?;
    let (loaded, _) = load_typed(dir.path())?;
    assert_eq!(loaded.forward(&blocks, &input, Mode::Eval)?, logits);
    Ok(())
}
