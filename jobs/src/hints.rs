//! Names of keys and values in other programs, and the names here.

/// Keys of PyTorch, PyG and DGL, and the keys here with the same meaning.
const KEYS: &[(&str, &str)] = &[
    ("lr", "learning_rate"),
    ("wd", "weight_decay"),
    ("num_neighbors", "fanouts"),
    ("fanout", "fanouts"),
    ("num_hops", "hops"),
    ("num_layers", "layers"),
    ("n_layers", "layers"),
    ("hidden_channels", "hidden"),
    ("hidden_dim", "hidden"),
    ("hidden_size", "hidden"),
    ("num_heads", "heads"),
    ("n_heads", "heads"),
    ("num_epochs", "epochs"),
    ("max_epochs", "epochs"),
    ("n_epochs", "epochs"),
    ("early_stopping", "patience"),
    ("early_stopping_patience", "patience"),
    ("aggr", "aggregator"),
    ("act", "activation"),
    ("attn_drop", "attention_dropout"),
    ("feat_drop", "input_dropout"),
    ("drop_rate", "dropout"),
    ("criterion", "loss"),
    ("lr_scheduler", "schedule"),
    ("scheduler", "schedule"),
    ("grad_clip", "clip_norm"),
    ("max_grad_norm", "clip_norm"),
    ("num_workers", "workers"),
    ("random_state", "seed"),
    ("random_seed", "seed"),
    ("x", "features"),
    ("y", "label"),
    ("target", "label"),
    ("source", "src"),
    ("destination", "dst"),
    ("edge_attr", "features"),
    ("node_id", "id"),
];

/// Values of the same programs, and the values here.
const VALUES: &[(&str, &str)] = &[
    ("graphsage", "sage"),
    ("sageconv", "sage"),
    ("gcnconv", "gcn"),
    ("graphconv", "gcn"),
    ("gatconv", "gat"),
    ("gatv2conv", "gatv2"),
    ("ginconv", "gin"),
    ("avg", "mean"),
    ("crossentropy", "cross_entropy"),
    ("crossentropyloss", "cross_entropy"),
    ("nll_loss", "cross_entropy"),
    ("bce", "binary_cross_entropy"),
    ("mse", "mean_squared_error"),
    ("mseloss", "mean_squared_error"),
    ("cuda", "gpu"),
    ("float32", "f32"),
    ("float16", "f16"),
    ("bfloat16", "bf16"),
    ("batchnorm", "batch"),
    ("layernorm", "layer"),
    ("standardscaler", "standardize"),
];

/// Returns the allowed name that was probably meant by an unknown key or value: the name here for a
/// name of another program, or the most similar name.
pub(crate) fn meant<'a>(unknown: &str, allowed: &[&'a str]) -> Option<&'a str> {
    let lower = unknown.to_lowercase().replace('-', "_");
    let same = allowed.iter().find(|name| **name == lower);
    let elsewhere = || {
        let ours = KEYS
            .iter()
            .chain(VALUES)
            .filter(|(theirs, _)| *theirs == lower);
        ours.flat_map(|(_, ours)| allowed.iter().find(|name| *name == ours))
            .next()
    };
    let alike = || {
        let likeness = |name: &&&str| strsim::jaro_winkler(&lower, name);
        let nearest = allowed
            .iter()
            .max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
        (likeness(&nearest) > 0.8).then_some(nearest)
    };
    same.or_else(elsewhere).or_else(alike).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_programs_lead_to_ours() {
        let check = |unknown: &str, allowed: &[&str], expected: Option<&str>| {
            assert_eq!(meant(unknown, allowed), expected, "{unknown}");
        };
        let train = [
            "output",
            "model",
            "hidden",
            "learning_rate",
            "layers",
            "heads",
        ];
        check("lr", &train, Some("learning_rate"));
        check("num_layers", &train, Some("layers"));
        check("hidden_channels", &train, Some("hidden"));
        check("learning-rate", &train, Some("learning_rate"));
        check("leraning_rate", &train, Some("learning_rate"));
        check("num_neighbors", &train, None);
        check("num_neighbors", &["hops", "fanouts"], Some("fanouts"));
        let models = ["gcn", "sage", "gat", "gatv2", "gin"];
        check("graphsage", &models, Some("sage"));
        check("GraphSAGE", &models, Some("sage"));
        check("GATConv", &models, Some("gat"));
        check("GCN", &models, Some("gcn"));
        check("transformer", &models, None);
    }
}
