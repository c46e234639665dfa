//! Checks that the keys of a typed architecture fit together.

use super::{RelationInput, TypeInput, TypedArchitecture};
use crate::architecture::{
    LIGHT_INPUT, light_widths, require, validate_light_options, validate_links,
};
use crate::typed::{RelationAggregator, TypedKind};
use crate::{Aggregator, GnnError, LayerKind, PARAMETERS_MAX, ParameterInfo, Task};

impl TypedArchitecture {
    /// Checks that the keys fit together.
    ///
    /// # Errors
    ///
    /// [`GnnError::Architecture`] names the first key that does not fit.
    pub fn validate(&self) -> Result<(), GnnError> {
        self.validate_names()?;
        self.validate_widths()?;
        self.validate_attention()?;
        self.validate_options()?;
        self.validate_edges()?;
        self.validate_readout()?;
        validate_links(self.task, self.has_head())?;
        self.validate_light()?;
        let is_links = matches!(self.task, Task::Links(_));
        require(
            !is_links || !self.normalize_output,
            "normalize_output",
            || "with links it is the decoder that divides embeddings by their lengths".to_owned(),
        )?;
        for (key, rate) in [
            ("dropout", self.dropout),
            ("input_dropout", self.input_dropout),
            ("attention_dropout", self.attention_dropout),
            ("attention_residual", self.attention_residual),
        ] {
            require((0.0..1.0).contains(&rate), key, || {
                format!("{rate} is not in [0, 1)")
            })?;
        }
        self.validate_size()
    }

    fn validate_names(&self) -> Result<(), GnnError> {
        let types: Vec<&str> = self.types.iter().map(|of| of.name.as_str()).collect();
        let relations: Vec<&str> = self.relations.iter().map(|of| of.name.as_str()).collect();
        for (key, names) in [("types", &types), ("relations", &relations)] {
            require(!names.is_empty(), key, || "at least 1 is needed".to_owned())?;
            let fault = names.windows(2).find(|pair| pair[0] >= pair[1]);
            require(fault.is_none(), key, || {
                format!("the names are not sorted, or one is there twice: {names:?}")
            })?;
        }
        for relation in &self.relations {
            for name in [&relation.from, &relation.to] {
                require(types.contains(&name.as_str()), "relations", || {
                    let of = &relation.name;
                    format!("relation `{of}` has the unknown type `{name}`; types are {types:?}")
                })?;
            }
        }
        require(
            types.contains(&self.target_type.as_str()),
            "target_type",
            || format!("`{}` is not one of {types:?}", self.target_type),
        )
    }

    fn validate_widths(&self) -> Result<(), GnnError> {
        let absent = || "at least 1 is needed".to_owned();
        require(self.num_layers > 0, "num_layers", absent)?;
        require(self.projection > 0, "projection", absent)?;
        require(self.out_dim > 0, "out_dim", absent)?;
        let zero = self.types.iter().find(|of| of.in_dim == Some(0));
        require(zero.is_none(), "types", || {
            "an `in_dim` of 0 means no features: leave it out".to_owned()
        })?;
        for of in &self.types {
            let Some(dim) = of.embedding_dim else {
                continue;
            };
            let in_dim = of.in_dim.unwrap_or(0);
            require((1..=in_dim).contains(&dim), "types", || {
                let name = &of.name;
                format!("the `embedding_dim` of `{name}` is {dim}: allowed is 1 to {in_dim}")
            })?;
        }
        let (given, layers) = (self.hidden.len(), self.num_layers);
        require(given == layers || given + 1 == layers, "hidden", || {
            let fewer = layers.saturating_sub(1);
            format!("{given} widths for {layers} layers: {fewer}, or {layers} with a linear head")
        })?;
        require(!self.hidden.contains(&0), "hidden", || {
            "a width is 0".to_owned()
        })
    }

    fn validate_attention(&self) -> Result<(), GnnError> {
        let (heads, out_heads) = (self.heads, self.out_heads);
        require(heads > 0, "heads", || "at least 1 is needed".to_owned())?;
        require(out_heads > 0, "out_heads", || {
            "at least 1 is needed".to_owned()
        })?;
        require(out_heads == 1 || !self.has_head(), "out_heads", || {
            format!("{out_heads}, but the last layer is a linear head, which has no attention")
        })?;
        if !self.layer.is_attention() {
            let names = TypedKind::names_of(TypedKind::is_attention);
            let only = |what| format!("only {names} have {what}");
            require(heads == 1, "heads", || only("heads"))?;
            require(out_heads == 1, "out_heads", || only("heads"))?;
            return require(self.attention_dropout == 0.0, "attention_dropout", || {
                only("attention")
            });
        }
        let ragged = self.hidden.iter().find(|&&width| width % heads != 0);
        require(ragged.is_none(), "heads", || {
            format!(
                "{heads} heads do not divide the hidden widths {:?}",
                self.hidden
            )
        })?;
        let divides = self.layer != TypedKind::Hgt || self.out_dim.is_multiple_of(out_heads);
        require(divides || self.has_head(), "out_heads", || {
            format!(
                "{out_heads} heads of hgt do not divide the {} outputs",
                self.out_dim
            )
        })
    }

    fn validate_options(&self) -> Result<(), GnnError> {
        let is_conv = matches!(self.layer, TypedKind::Conv(_));
        let is_sum = self.relation_aggregator == RelationAggregator::Sum;
        require(is_sum || is_conv, "relation_aggregator", || {
            format!(
                "{} has no outputs by relation, so it must be `sum`",
                self.layer.name()
            )
        })?;
        let takes_maximum = matches!(self.layer, TypedKind::Conv(kind) if kind.takes_maximum());
        let is_mean = self.aggregator == Aggregator::Mean;
        require(is_mean || takes_maximum, "aggregator", || {
            let names = LayerKind::names_of(LayerKind::takes_maximum);
            format!("only {names} can aggregate by max")
        })?;
        require(self.num_bases != Some(0), "num_bases", || {
            "0 bases give no weight; without the key each relation has its own".to_owned()
        })?;
        require(
            self.num_bases.is_none() || self.layer == TypedKind::Rgcn,
            "num_bases",
            || "only rgcn has bases".to_owned(),
        )?;
        let is_hgn = self.layer == TypedKind::SimpleHgn;
        let has_dim = self.relation_dim.is_some_and(|dim| dim > 0);
        require(
            has_dim == is_hgn && (is_hgn || self.relation_dim.is_none()),
            "relation_dim",
            || "simple_hgn needs one above 0, and other kinds have none".to_owned(),
        )?;
        require(
            is_hgn || self.attention_residual == 0.0,
            "attention_residual",
            || "only simple_hgn has a residual of attention".to_owned(),
        )?;
        require(
            !self.residual || self.layer != TypedKind::Hgt,
            "residual",
            || "hgt has a residual of its own".to_owned(),
        )
    }

    fn validate_edges(&self) -> Result<(), GnnError> {
        for relation in &self.relations {
            let RelationInput { name, from, to, .. } = relation;
            require(relation.edge_dim != Some(0), "relations", || {
                format!("an `edge_dim` of 0 of relation `{name}` means none: leave it out")
            })?;
            let takes = self.layer.takes_edge_features();
            require(takes || relation.edge_dim.is_none(), "relations", || {
                let names = TypedKind::names_of(TypedKind::takes_edge_features);
                format!("relation `{name}` has edge features, but only {names} use them")
            })?;
            require(
                self.layer.takes_edge_weights() || !relation.edge_weight,
                "relations",
                || {
                    let names = TypedKind::names_of(TypedKind::takes_edge_weights);
                    format!("relation `{name}` has edge weights, but only {names} use them")
                },
            )?;
            let is_gcn = self.layer == TypedKind::Conv(LayerKind::Gcn) && !self.is_graphs(to);
            require(!is_gcn || from == to, "layer", || {
                format!(
                    "gcn needs relations of one type, but `{name}` goes from `{from}` to `{to}`; \
                     sage, gat, gatv2, gin, rgcn, simple_hgn and hgt allow that"
                )
            })?;
        }
        Ok(())
    }

    fn validate_readout(&self) -> Result<(), GnnError> {
        if self.readout.is_none() {
            return Ok(());
        }
        let is_conv = matches!(self.layer, TypedKind::Conv(_));
        require(is_conv, "readout", || {
            let names = TypedKind::names_of(|kind| matches!(kind, TypedKind::Conv(_)));
            format!("only {names} have a readout")
        })?;
        require(self.has_head() && self.num_layers > 1, "readout", || {
            "it is the last layer: at least one conv comes before it, and a linear head after it"
                .to_owned()
        })?;
        let last = &self.hidden[self.num_layers - 2..];
        require(last[0] == last[1], "readout", || {
            format!("it keeps the width: {} cannot become {}", last[0], last[1])
        })?;
        require(!matches!(self.task, Task::Links(_)), "readout", || {
            "links are between nodes".to_owned()
        })?;
        let graphs = self.types.iter().find(|of| self.is_graphs(&of.name));
        let has_input = graphs.is_some_and(|of| of.in_dim.is_some());
        let ends = self.relations.iter();
        let into = ends.clone().filter(|of| self.is_graphs(&of.to)).count();
        let from = ends.filter(|of| self.is_graphs(&of.from)).count();
        require(!has_input && (into, from) == (1, 0), "readout", || {
            format!(
                "`{}` must be graphs: no features, one relation into it and none from it",
                self.target_type
            )
        })
    }

    /// Checks that a `LightGCN` propagates learnable rows and nothing else.
    fn validate_light(&self) -> Result<(), GnnError> {
        if !self.is_light() {
            return Ok(());
        }
        let dim = self.projection;
        let alone = |of: &TypeInput| of.embedding_dim.is_some() && of.embedding_dim == of.in_dim;
        let all = self.types.iter().all(alone);
        require(all, "types", || LIGHT_INPUT.to_owned())?;
        let odd = self.types.iter().find(|of| of.in_dim != Some(dim));
        require(odd.is_none(), "types", || {
            let name = odd.map_or("", |of| &of.name);
            format!("the learnable rows of `{name}` are not {dim} wide, as those of other types")
        })?;
        let mut widths = self
            .hidden
            .iter()
            .chain([&self.out_dim])
            .take(self.num_layers);
        let fits = widths.all(|&width| width == dim);
        require(fits, "hidden", || light_widths(dim))?;
        let sums = self.relation_aggregator == RelationAggregator::Sum;
        require(sums, "relation_aggregator", || {
            "lightgcn sums over all in-edges of a node".to_owned()
        })?;
        let rates = [self.dropout, self.input_dropout];
        let weighs = self.relations.iter().any(|relation| relation.edge_weight);
        validate_light_options(rates, self.norm, self.residual, weighs)
    }

    /// Refuses a model of more than [`PARAMETERS_MAX`] parameters before any of them is made.
    fn validate_size(&self) -> Result<(), GnnError> {
        let in_dims = self.types.iter().filter_map(|of| of.in_dim);
        let edge_dims = self.relations.iter().filter_map(|of| of.edge_dim);
        let options = [self.num_bases, self.relation_dim].into_iter().flatten();
        let plain = [self.projection, self.out_dim, self.heads, self.out_heads];
        let widths = in_dims.chain(edge_dims).chain(options).chain(plain);
        let widest = widths.chain(self.hidden.iter().copied()).max().unwrap_or(0);
        require(u32::try_from(widest).is_ok(), "hidden", || {
            format!("{widest} is more than the {PARAMETERS_MAX} parameters a model may have")
        })?;
        // Each width has 32 bits, so no product of three overflows `u128`.
        let len = |info: &ParameterInfo| info.shape.iter().map(|&n| n as u128).product::<u128>();
        let count: u128 = self.parameters().iter().map(len).sum();
        require(count <= PARAMETERS_MAX as u128, "hidden", || {
            format!(
                "widths {:?}, {} types and {} relations make {count} parameters, allowed are \
                 {PARAMETERS_MAX}",
                self.hidden,
                self.types.len(),
                self.relations.len()
            )
        })
    }
}
