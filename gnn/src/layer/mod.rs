//! The kinds of layers: one file each, and the one list of them.
//!
//! A new kind needs a file here, its `mod` line, and an entry of [`LayerKind`] below. A layer
//! outside this crate is a [`LayerKind::Custom`].

pub(crate) mod attention;
mod conv;
mod gat;
mod gatv2;
mod gcn;
mod gin;
pub(crate) mod lightgcn;
mod norm;
mod partial;
mod pass;
mod readout;
mod rgcn;
mod sage;
mod scope;

pub use conv::{Aggregated, Conv, ConvConfig, LayerType, LinearTerms, Src};
pub use partial::{PartialAggregation, SomeInEdges, SrcRows};
pub use pass::{Features, Summed, plain};
pub(crate) use pass::{MaskKind, Pass, Place, read};
pub(crate) use readout::readout_conv;
pub(crate) use rgcn::rgcn_conv;
pub use scope::Scope;

use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

/// Makes the enum of layer kinds, and the match from a kind to its file.
macro_rules! layer_kinds {
    ($($(#[$doc:meta])* $kind:ident in $file:ident,)*) => {
        /// Kind of every conv of a model.
        #[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq)]
        #[serde(rename_all = "lowercase")]
        pub enum LayerKind {
            $($(#[$doc])* $kind,)*
            /// A layer from outside this crate. Serde writes its name, but cannot read it back.
            #[serde(skip_deserializing)]
            Custom(&'static LayerType),
        }

        impl LayerKind {
            /// The kinds of this crate.
            pub const ALL: &[LayerKind] = &[$(LayerKind::$kind,)*];

            /// Returns the kind's name, its options and the function that makes a conv.
            #[must_use]
            pub fn layer_type(self) -> &'static LayerType {
                match self {
                    $(LayerKind::$kind => &$file::TYPE,)*
                    LayerKind::Custom(layer_type) => layer_type,
                }
            }
        }
    };
}

layer_kinds! {
    /// Graph convolution with symmetric normalisation.
    Gcn in gcn,
    /// GraphSAGE.
    Sage in sage,
    /// Graph attention.
    Gat in gat,
    /// Graph attention with the non-linearity before the scoring vector.
    GatV2 in gatv2,
    /// Graph isomorphism network with a two-layer perceptron; GINE with edge features.
    Gin in gin,
    /// `LightGCN`: propagation without weights, and the mean over layers.
    LightGcn in lightgcn,
}

impl LayerKind {
    /// Returns the name in job files and `model.json`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.layer_type().name
    }

    /// Tells whether this kind scores its in-edges by attention, with heads.
    #[must_use]
    pub fn is_attention(self) -> bool {
        self.layer_type().is_attention
    }

    /// Tells whether this kind reads edge features.
    #[must_use]
    pub fn takes_edge_features(self) -> bool {
        self.layer_type().takes_edge_features
    }

    /// Tells whether this kind can aggregate by the maximum.
    #[must_use]
    pub fn takes_maximum(self) -> bool {
        self.layer_type().takes_maximum
    }

    /// Tells whether this kind reads degrees, sums of weights or self-loops of sources.
    #[must_use]
    pub fn reads_source_degrees(self) -> bool {
        self.layer_type().reads_source_degrees
    }

    /// Lists the kinds of this crate for which `holds` is true, such as "gat, gatv2 and gin".
    #[must_use]
    pub fn names_of(holds: fn(LayerKind) -> bool) -> String {
        let kinds = Self::ALL.iter().filter(|kind| holds(**kind));
        let names: Vec<&str> = kinds.map(|kind| kind.name()).collect();
        match names.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
            _ => names.concat(),
        }
    }

    /// Makes a conv of this kind.
    #[must_use]
    pub fn conv(self, config: ConvConfig) -> Arc<dyn Conv> {
        (self.layer_type().conv)(config)
    }
}

impl Serialize for LayerKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Activation, Aggregator, Architecture, Block, BlockData, Dense, Input, Mode, Model, Norm,
        Task,
    };

    /// Runs a layer of one input and one output on node 0, which has in-edges from nodes 1 and 2.
    /// Their features are 1, 2 and 4. Node 2 has an in-edge outside the block, so its in-degree is
    /// 1.
    pub(super) fn of_two_in_edges(layer: LayerKind, aggregator: Aggregator, flat: &[f32]) -> f32 {
        let arch = Architecture {
            layer,
            aggregator,
            in_dim: 1,
            embedding_dim: None,
            edge_dim: None,
            edge_weight: false,
            hidden: vec![],
            num_layers: 1,
            out_dim: 1,
            heads: 1,
            out_heads: 1,
            dropout: 0.0,
            input_dropout: 0.0,
            attention_dropout: 0.0,
            norm: Norm::None,
            residual: false,
            activation: Activation::Relu,
            task: Task::Regression,
        };
        let block = Block::new(BlockData {
            num_src: 3,
            num_dst: 1,
            in_offset: vec![0, 2],
            in_src: vec![1, 2],
            in_degree: vec![2, 0, 1],
            node_key: vec![7, 8, 9],
            num_active: 1,
            ..BlockData::default()
        });
        let rows = Dense {
            rows: 3,
            cols: 1,
            values: vec![1.0, 2.0, 4.0],
        };
        let mut model = Model::init(&arch, 1).unwrap();
        model.set_flat(flat);
        let out = model.forward(&[block.unwrap()], &Input::Dense(rows), Mode::Eval);
        out.unwrap().values[0]
    }

    /// Compares the output of a layer with a number computed by hand in f64.
    pub(super) fn assert_close(got: f32, expected: f64) {
        let off = (f64::from(got) - expected).abs();
        assert!(off <= 1e-6 * expected.abs(), "{got} is not {expected}");
    }

    #[test]
    fn kinds_are_read_by_the_names_of_their_files() {
        for &kind in LayerKind::ALL {
            let text = serde_json::to_string(&kind).unwrap();
            assert_eq!(text, format!("\"{}\"", kind.name()));
            assert_eq!(serde_json::from_str::<LayerKind>(&text).unwrap(), kind);
        }
        let error = serde_json::from_str::<LayerKind>("\"custom\"").unwrap_err();
        let allowed = "expected one of `gcn`, `sage`, `gat`, `gatv2`, `gin`, `lightgcn`";
        assert!(error.to_string().contains(allowed), "{error}");
    }

    #[test]
    fn kinds_are_named_as_people_list_them() {
        assert_eq!(
            LayerKind::names_of(LayerKind::is_attention),
            "gat and gatv2"
        );
        assert_eq!(LayerKind::names_of(LayerKind::takes_maximum), "sage");
        let takes = LayerKind::names_of(LayerKind::takes_edge_features);
        assert_eq!(takes, "gat, gatv2 and gin");
    }
}
