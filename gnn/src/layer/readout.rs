//! Readout: the mean, sum or maximum of the rows of a graph's nodes, without parameters.
//!
//! `PyG`'s `global_mean_pool`, `global_add_pool` and `global_max_pool`. A graph's nodes are the
//! sources of its in-edges.

use std::sync::Arc;

use burn::tensor::Tensor;

use super::conv::{Aggregated, Conv, Src};
use super::partial::{PartialAggregation, SomeInEdges, SrcRows, fold};
use super::pass::{Features, Summed};
use super::sage::SagePartial;
use super::scope::Scope;
use crate::kernel::partial::sum_rows;
use crate::kernel::{SegmentMax, Spmm};
use crate::ops::Fused;
use crate::parameter::ParameterList;
use crate::shared_rows::on_values;
use crate::{Block, Coefficients, GnnError, NodeColumns, Readout};

/// Makes the conv of a readout.
pub(crate) fn readout_conv(readout: Readout) -> Arc<dyn Conv> {
    Arc::new(ReadoutConv(readout))
}

/// The readout of a graph's nodes.
#[derive(Debug)]
struct ReadoutConv(Readout);

impl Conv for ReadoutConv {
    fn parameters(&self, _list: &mut ParameterList) {}

    fn prepare(&self, block: &Block) {
        let coefficients = Coefficients::new(block, false);
        match self.0 {
            Readout::Mean => drop(coefficients.mean()),
            Readout::Sum => drop(coefficients.sum()),
            Readout::Max => {}
        }
    }

    fn has_parameters_before(&self, _is_sparse: bool) -> bool {
        false
    }

    fn aggregate(&self, scope: &Scope<'_>, block: &Block, src: Src, _own: &Features) -> Tensor<2> {
        let coefficients = Coefficients::new(block, false);
        let csr = Arc::clone(block.csr());
        let sum = |edge| Spmm {
            csr: Arc::clone(&csr),
            rows: block.num_dst(),
            edge,
            own: None,
        };
        let aggregate = match self.0 {
            Readout::Mean => Fused::Spmm(sum(coefficients.mean())),
            Readout::Sum => Fused::Spmm(sum(coefficients.sum())),
            Readout::Max => Fused::SegmentMax(SegmentMax { csr, edge: None }),
        };
        aggregate.apply(scope.dense(src.rows)) // [num_dst, in]
    }

    fn update(
        &self,
        _scope: &Scope<'_>,
        _block: &Block,
        aggregated: Aggregated,
        _own: &Features,
    ) -> Summed {
        Summed::of(aggregated.rows)
    }

    fn partial(
        &self,
        _scope: &Scope<'_>,
        src_dim: usize,
    ) -> Result<Option<Box<dyn PartialAggregation>>, GnnError> {
        Ok(Some(match self.0 {
            Readout::Mean => Box::new(SagePartial::new(src_dim, false, true)),
            Readout::Max => Box::new(SagePartial::new(src_dim, false, false)),
            Readout::Sum => Box::new(SumPartial(src_dim)),
        }))
    }
}

/// Its states are sums of src rows, as wide as the number says.
#[derive(Debug)]
struct SumPartial(usize);

impl PartialAggregation for SumPartial {
    fn state_dim(&self) -> usize {
        self.0
    }

    fn state(&self, edges: &SomeInEdges, src: SrcRows<'_>, _query: &[f32]) -> Vec<f32> {
        let mut out = vec![0.0; self.0];
        let ones = edges.weights_or_ones(false);
        on_values!(src.rows, rows => sum_rows(rows, &edges.src, &ones, &mut out));
        out
    }

    fn merge(&self, _row: u32, states: &[&[f32]], _nodes: &NodeColumns) -> Vec<f32> {
        fold(states, |a, b| a + b)
    }
}
