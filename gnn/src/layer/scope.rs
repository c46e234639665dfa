//! The part of a forward pass that one conv uses.

use burn::tensor::Tensor;

use super::pass::{Features, MaskKind, Pass, Summed};
use crate::kernel::Mask;
use crate::{Activation, Norm};

/// One conv's view of a forward pass: its parameters by the names that it lists, and operations on
/// rows of features.
#[derive(Clone, Copy)]
pub struct Scope<'a> {
    pass: &'a Pass<'a>,
    /// 1-based.
    layer: usize,
    /// Prefix of the parameters' names; none for the only conv of the layer.
    prefix: Option<&'a str>,
    /// Makes the dropout masks of the convs of a layer differ; 0 for the only conv of the layer.
    salt: u64,
}

impl<'a> Scope<'a> {
    pub(crate) fn new(pass: &'a Pass<'a>, layer: usize) -> Scope<'a> {
        let (prefix, salt) = (None, 0);
        Scope {
            pass,
            layer,
            prefix,
            salt,
        }
    }

    /// Returns the scope of one of several convs of a layer.
    pub(crate) fn of_relation(
        pass: &'a Pass<'a>,
        layer: usize,
        prefix: &'a str,
        salt: u64,
    ) -> Scope<'a> {
        Scope {
            pass,
            layer,
            prefix: Some(prefix),
            salt,
        }
    }

    fn name(&self, name: &str) -> String {
        match self.prefix {
            Some(prefix) => format!("{prefix}{name}"),
            None => format!("convs.{}.{name}", self.layer - 1),
        }
    }

    /// Returns a parameter as a matrix: a vector as one row, `[1, heads, dim]` as `[heads, dim]`.
    ///
    /// # Panics
    ///
    /// If the conv does not list it.
    #[must_use]
    pub fn parameter(&self, name: &str) -> Tensor<2> {
        self.pass.parameter(&self.name(name))
    }

    /// Makes a constant matrix.
    #[must_use]
    pub fn constant(&self, rows: usize, cols: usize, values: &[f32]) -> Tensor<2> {
        self.pass.constant(rows, cols, values)
    }

    /// Returns features as a dense matrix.
    #[must_use]
    pub fn dense(&self, features: Features) -> Tensor<2> {
        self.pass.dense(features)
    }

    /// Returns `features[..rows] * weight^T` for the parameter called `name`, `[out, in]`.
    #[must_use]
    pub fn product(&self, features: &Features, rows: usize, name: &str) -> Tensor<2> {
        self.pass.product(features, rows, &self.name(name))
    }

    /// Returns `a * A^T + b[..rows] * B^T` for the parameters A and B, named `a_name` and `b_name`.
    #[must_use]
    pub fn product_of_two(
        &self,
        rows: usize,
        (a, a_name): (Tensor<2>, &str),
        (b, b_name): (Tensor<2>, &str),
    ) -> Tensor<2> {
        let names = [a_name, b_name].map(|name| self.name(name));
        self.pass
            .product_of_two(rows, (a, &names[0]), (b, &names[1]))
    }

    /// Returns `features[..rows] * NAME.weight^T + NAME.bias`.
    #[must_use]
    pub fn linear(&self, name: &str, features: &Features, rows: usize) -> Tensor<2> {
        self.pass.linear(&self.name(name), features, rows)
    }

    /// Adds up the terms of a sum and applies a non-linearity, in one pass.
    #[must_use]
    pub fn sum(&self, summed: Summed, activation: Option<Activation>) -> Tensor<2> {
        self.pass.sum(summed, activation, None)
    }

    /// Normalises rows with the norm that the conv lists as `name`. Statistics of a batch are those
    /// of the first `num_active` rows.
    #[must_use]
    pub fn norm(&self, norm: Norm, name: &str, num_active: usize, x: Tensor<2>) -> Tensor<2> {
        self.pass.norm(norm, &self.name(name), num_active, x)
    }

    /// Returns the mask of dropout on attention coefficients; none in eval mode or if `rate` is 0.
    #[must_use]
    pub fn attention_mask(&self, rate: f32) -> Option<Mask> {
        self.pass
            .salted_mask(self.layer, MaskKind::Attention, rate, self.salt)
    }
}
