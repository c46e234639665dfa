//! Relational graph convolution of one relation: the mean over its in-edges, times its weight.
//!
//! All relations of a layer share the parameters `weight`, and `comp` with basis decomposition, as
//! in `PyG`'s `RGCNConv`. The node's own row and the bias belong to the layer.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::conv::{Aggregated, Conv, ConvConfig, LinearTerms, Src};
use super::partial::PartialAggregation;
use super::pass::{Features, Summed};
use super::sage::mean_partial;
use super::scope::Scope;
use crate::kernel::{Linear, Spmm};
use crate::ops::Fused;
use crate::parameter::ParameterList;
use crate::{Block, Coefficients, GnnError};

/// Makes the conv of a relation, given by its position.
pub(crate) fn rgcn_conv(
    config: ConvConfig,
    relation: usize,
    num_bases: Option<usize>,
) -> Arc<dyn Conv> {
    Arc::new(Rgcn {
        config,
        relation,
        num_bases,
    })
}

/// One relation of `PyG`'s `RGCNConv`.
#[derive(Debug)]
struct Rgcn {
    config: ConvConfig,
    relation: usize,
    num_bases: Option<usize>,
}

impl Rgcn {
    /// Returns the relation's weight, `[out, in]`.
    fn weight(&self, scope: &Scope<'_>) -> Tensor<2> {
        let (rows, cols) = (self.config.in_dim, self.config.out_dim);
        let all = scope.parameter("weight"); // [(relations or bases) * in, out]
        let weight = match self.num_bases {
            None => all.narrow(0, self.relation * rows, rows),
            Some(num_bases) => {
                let share = scope.parameter("comp").narrow(0, self.relation, 1); // [1, bases]
                let weight = share.matmul(all.reshape([num_bases, rows * cols]));
                weight.reshape([rows, cols])
            }
        };
        weight.transpose()
    }

    /// Multiplies the first `rows` rows by the relation's weight.
    fn product(&self, scope: &Scope<'_>, x: Tensor<2>, rows: usize) -> Tensor<2> {
        let cols = self.config.out_dim;
        Fused::Linear(Linear { rows, cols }).apply_2([x, self.weight(scope)])
    }
}

impl Conv for Rgcn {
    /// Lists nothing: the layer lists the parameters of all its relations.
    fn parameters(&self, _list: &mut ParameterList) {}

    fn prepare(&self, block: &Block) {
        drop(Coefficients::new(block, self.config.edge_weight).mean());
    }

    fn projected_dim(&self, is_sparse: bool) -> Option<usize> {
        let is_first = self.config.product_first(is_sparse);
        is_first.then_some(self.config.out_dim)
    }

    fn project(&self, scope: &Scope<'_>, input: &Features, rows: usize) -> Tensor<2> {
        self.product(scope, scope.dense(input.clone()), rows)
    }

    fn aggregate(&self, scope: &Scope<'_>, block: &Block, src: Src, _own: &Features) -> Tensor<2> {
        let mean = Fused::Spmm(Spmm {
            csr: Arc::clone(block.csr()),
            rows: block.num_dst(),
            edge: Coefficients::new(block, self.config.edge_weight).mean(),
            own: None,
        });
        mean.apply(scope.dense(src.rows)) // [num_dst, in], or [num_dst, out] if projected
    }

    fn update(
        &self,
        scope: &Scope<'_>,
        block: &Block,
        aggregated: Aggregated,
        _own: &Features,
    ) -> Summed {
        if aggregated.is_projected {
            return Summed::of(aggregated.rows);
        }
        Summed::of(self.product(scope, aggregated.rows, block.num_dst()))
    }

    fn is_linear(&self) -> bool {
        true
    }

    fn linear_terms(&self, scope: &Scope<'_>, block: &Block) -> Option<LinearTerms> {
        Some(LinearTerms {
            edge: Coefficients::new(block, self.config.edge_weight).mean(),
            weight: self.weight(scope),
            root: None,
            bias: None,
        })
    }

    fn partial(
        &self,
        _scope: &Scope<'_>,
        src_dim: usize,
    ) -> Result<Option<Box<dyn PartialAggregation>>, GnnError> {
        Ok(Some(mean_partial(src_dim, self.config.edge_weight)))
    }
}
