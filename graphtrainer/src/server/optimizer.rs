//! Optimisers as PyTorch defines them, over flat vectors.

use serde::{Deserialize, Serialize};

use crate::schedule::Schedule;

/// An update rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OptimizerKind {
    /// `torch.optim.SGD`, with momentum if set; weight decay is added to the gradient.
    Sgd,
    /// `torch.optim.Adam`; weight decay is added to the gradient.
    #[default]
    Adam,
    /// `torch.optim.AdamW`; weight decay shrinks the parameter itself.
    #[serde(rename = "adamw")]
    AdamW,
}

/// An update rule with its constants.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Optimizer {
    /// The rule.
    pub kind: OptimizerKind,
    /// Step size.
    pub learning_rate: f32,
    /// Share of the last step that SGD keeps.
    pub momentum: f32,
    /// Schedule of the step size; none: the step size is constant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<Schedule>,
    /// Largest norm of a gradient; a longer gradient is scaled down to it. None: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip_norm: Option<f32>,
}

/// Decay rates of Adam's two moments, and the term added to its divisor: PyTorch's defaults.
const BETA1: f64 = 0.9;
const BETA2: f64 = 0.999;
const EPSILON: f32 = 1e-8;

impl Default for Optimizer {
    /// Adam with a step size of 0.01.
    fn default() -> Self {
        Self {
            kind: OptimizerKind::default(),
            learning_rate: 0.01,
            momentum: 0.0,
            schedule: None,
            clip_norm: None,
        }
    }
}

/// Term added to the norm before the division, as in PyTorch.
const CLIP_GUARD: f64 = 1e-6;

impl Optimizer {
    /// Returns the rule with the step size of step `step`, from 0.
    #[expect(clippy::cast_possible_truncation, reason = "step sizes are f32")]
    pub fn at(&self, step: u64) -> Self {
        let learning_rate = match &self.schedule {
            None => self.learning_rate,
            Some(schedule) => (f64::from(self.learning_rate) * schedule.factor(step)) as f32,
        };
        Self {
            learning_rate,
            ..*self
        }
    }

    /// Returns the factor that clips a gradient of this norm, as `torch.nn.utils.clip_grad_norm_`
    /// does; none if the gradient stays the same.
    #[expect(clippy::cast_possible_truncation, reason = "gradients are f32")]
    pub fn clip(&self, norm: f64) -> Option<f32> {
        let scale = f64::from(self.clip_norm?) / (norm + CLIP_GUARD);
        (scale < 1.0).then_some(scale as f32)
    }

    /// Returns how many vectors of state the rule keeps.
    pub fn num_moments(&self) -> usize {
        match self.kind {
            OptimizerKind::Sgd if self.momentum == 0.0 => 0,
            OptimizerKind::Sgd => 1,
            OptimizerKind::Adam | OptimizerKind::AdamW => 2,
        }
    }

    /// Applies update number `update` (from 1) to one tensor.
    ///
    /// # Shapes
    ///
    /// - `parameters`, `gradient` and each of `moments`: `[len]`
    pub fn update(
        &self,
        update: u64,
        parameters: &mut [f32],
        gradient: &[f32],
        moments: &mut [&mut [f32]],
        weight_decay: f32,
    ) {
        match (self.kind, moments) {
            (OptimizerKind::Sgd, []) => {
                for (p, g) in parameters.iter_mut().zip(gradient) {
                    *p -= self.learning_rate * (g + weight_decay * *p);
                }
            }
            (OptimizerKind::Sgd, [velocity]) => {
                for ((p, g), v) in parameters.iter_mut().zip(gradient).zip(velocity.iter_mut()) {
                    // PyTorch starts the velocity with the first gradient; it is 0 before.
                    *v = self.momentum * *v + g + weight_decay * *p;
                    *p -= self.learning_rate * *v;
                }
            }
            (OptimizerKind::Adam | OptimizerKind::AdamW, [first, second]) => {
                let decoupled = self.kind == OptimizerKind::AdamW;
                let decay = (
                    if decoupled { 0.0 } else { weight_decay },
                    if decoupled {
                        1.0 - self.learning_rate * weight_decay
                    } else {
                        1.0
                    },
                );
                self.adam(update, parameters, gradient, first, second, decay);
            }
            _ => unreachable!("the server makes num_moments() vectors"),
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the constants of a step are f32"
    )]
    fn adam(
        &self,
        update: u64,
        parameters: &mut [f32],
        gradient: &[f32],
        first: &mut [f32],
        second: &mut [f32],
        (added, shrink): (f32, f32),
    ) {
        let power = i32::try_from(update).unwrap_or(i32::MAX);
        let correct_first = 1.0 - BETA1.powi(power);
        let correct_second = (1.0 - BETA2.powi(power)).sqrt() as f32;
        let step_size = (f64::from(self.learning_rate) / correct_first) as f32;
        let (beta1, beta2) = (BETA1 as f32, BETA2 as f32);
        let (keep1, keep2) = ((1.0 - BETA1) as f32, (1.0 - BETA2) as f32);
        let state = first.iter_mut().zip(second.iter_mut());
        for ((p, g), (m, v)) in parameters.iter_mut().zip(gradient).zip(state) {
            let g = g + added * *p;
            *p *= shrink;
            *m = beta1 * *m + keep1 * g;
            *v = beta2 * *v + keep2 * g * g;
            *p -= step_size * *m / (v.sqrt() / correct_second + EPSILON);
        }
    }
}

/// Returns the sum of the squares of one tensor's gradient, added up in a fixed order.
///
/// The norm of a whole gradient is the root of the sum of these in the order of the tensors, for
/// any number of shards.
pub fn squared_norm(values: &[f32]) -> f64 {
    const LANES: usize = 8;
    let mut lanes = [0.0_f64; LANES];
    for chunk in values.chunks(LANES) {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(value) * f64::from(value);
        }
    }
    lanes.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected values are PyTorch's, printed with 7 digits.
    const TOLERANCE: f32 = 2e-6;

    /// Checks three steps of one parameter from 1.0 with gradients 0.5, -0.2, 0.1, against
    /// PyTorch's formulas in f64.
    fn check(kind: OptimizerKind, momentum: f32, weight_decay: f32, expected: [f32; 3]) {
        let optimizer = Optimizer {
            kind,
            learning_rate: 0.1,
            momentum,
            ..Optimizer::default()
        };
        let mut parameter = [1.0];
        let mut moments = vec![[0.0_f32]; optimizer.num_moments()];
        for (update, (gradient, wanted)) in (1..).zip([0.5, -0.2, 0.1].iter().zip(expected)) {
            let mut views: Vec<&mut [f32]> = moments.iter_mut().map(|m| &mut m[..]).collect();
            optimizer.update(
                update,
                &mut parameter,
                &[*gradient],
                &mut views,
                weight_decay,
            );
            let error = (parameter[0] - wanted).abs();
            assert!(
                error < TOLERANCE,
                "{kind:?} step {update}: {} not {wanted}",
                parameter[0]
            );
        }
    }

    #[test]
    fn sgd_follows_pytorch() {
        check(OptimizerKind::Sgd, 0.0, 0.0, [0.95, 0.97, 0.96]);
        check(OptimizerKind::Sgd, 0.0, 0.1, [0.94, 0.9506, 0.931_094]);
        // Velocities 0.5, 0.25, 0.325.
        check(OptimizerKind::Sgd, 0.9, 0.0, [0.95, 0.925, 0.8925]);
    }

    #[test]
    fn adam_follows_pytorch() {
        check(OptimizerKind::Adam, 0.0, 0.0, ADAM);
        check(OptimizerKind::Adam, 0.0, 0.1, ADAM_DECAY);
        check(OptimizerKind::AdamW, 0.0, 0.1, ADAMW_DECAY);
    }

    const ADAM: [f32; 3] = [0.9, 0.865_439_4, 0.827_500_2];
    const ADAM_DECAY: [f32; 3] = [0.9, 0.847_519_1, 0.790_162_2];
    const ADAMW_DECAY: [f32; 3] = [0.89, 0.846_539_4, 0.800_134_8];

    #[test]
    fn a_gradient_is_clipped_as_pytorch_does() {
        let optimizer = Optimizer {
            clip_norm: Some(1.0),
            ..Optimizer::default()
        };
        // The norm of (3, 4) is 5, and `clip_grad_norm_` gives (0.6, 0.8), slightly less because of
        // the guard.
        assert_eq!(squared_norm(&[3.0, 4.0]), 25.0);
        let scale = optimizer.clip(5.0).unwrap();
        assert!((scale - 0.2).abs() < TOLERANCE, "{scale}");
        assert_eq!(optimizer.clip(0.9), None);
        assert_eq!(Optimizer::default().clip(1e9), None);
    }
}
