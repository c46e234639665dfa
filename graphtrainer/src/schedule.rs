//! The schedule of the step size over a training: written in epochs, run in steps.

use serde::{Deserialize, Serialize};

use crate::TrainError;

/// Largest number of epochs between two falls of the step size.
const EVERY_MAX: f64 = 1e6;

/// Largest factor of a fall.
const FACTOR_MAX: f64 = 1e3;

/// The course of the step size after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ScheduleKind {
    /// It stays the same.
    Constant,
    /// It is multiplied by `factor` after every `every` epochs.
    Step,
    /// It falls to `floor` along half a cosine.
    Cosine,
    /// It falls to `floor` along a line.
    Linear,
}

/// Key `schedule` of `[train]` as written. Lengths are in epochs and may have fractions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    /// The course of the step size after the warm-up.
    pub kind: ScheduleKind,
    /// Epochs over which the step size grows from 0 to the planned one. Default 0.
    #[serde(default)]
    pub warmup: f64,
    /// Epochs between two falls, for `step`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub every: Option<f64>,
    /// Factor of the step size at each fall, for `step`. Default 0.1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factor: Option<f64>,
    /// Final value of `cosine` and `linear`, as a share of the planned step size. Default 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub floor: Option<f64>,
}

/// The share of the planned step size in each step. It is a function of the step alone, so a
/// resumed training takes the same steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    fall: Fall,
    /// Steps of the warm-up.
    warmup: f64,
    /// Steps of the whole training.
    total: f64,
}

/// The course after the warm-up; lengths are in steps.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Fall {
    None,
    Step { every: f64, factor: f64 },
    Cosine { floor: f64 },
    Linear { floor: f64 },
}

impl ScheduleSpec {
    /// Checks the keys and fills in the defaults; none if the step size never changes.
    pub(crate) fn checked(self, epochs: u64) -> Result<Option<Self>, TrainError> {
        use ScheduleKind::{Constant, Cosine, Linear, Step};
        let Self {
            kind,
            warmup,
            every,
            factor,
            floor,
        } = self;
        if !(0.0..epochs as f64).contains(&warmup) {
            let allowed = format!("allowed is 0 to below `train.epochs`, {epochs}");
            return Err(TrainError::of_key("schedule.warmup", warmup, allowed));
        }
        let falls = kind == Step;
        let ends = matches!(kind, Cosine | Linear);
        let only_step = "only kind \"step\" has it";
        for (name, value, fits, allowed) in [
            ("schedule.every", every, falls, only_step),
            ("schedule.factor", factor, falls, only_step),
            (
                "schedule.floor",
                floor,
                ends,
                "only kinds \"cosine\" and \"linear\" have it",
            ),
        ] {
            if let Some(value) = value.filter(|_| !fits) {
                return Err(TrainError::of_key(name, value, allowed));
            }
        }
        for (name, value, most) in [
            ("schedule.every", every, EVERY_MAX),
            ("schedule.factor", factor, FACTOR_MAX),
        ] {
            if let Some(value) = value.filter(|value| !(*value > 0.0 && *value <= most)) {
                let allowed = format!("allowed is above 0, at most {most}");
                return Err(TrainError::of_key(name, value, allowed));
            }
        }
        if let Some(value) = floor.filter(|value| !(0.0..=1.0).contains(value)) {
            return Err(TrainError::of_key(
                "schedule.floor",
                value,
                "allowed is 0 to 1",
            ));
        }
        if falls && every.is_none() {
            return Err(TrainError::Missing {
                key: "schedule.every",
                needed: "epochs between two falls of kind \"step\"",
            });
        }
        let whole = Self {
            factor: falls.then(|| factor.unwrap_or(0.1)),
            floor: ends.then(|| floor.unwrap_or(0.0)),
            ..self
        };
        Ok(Some(whole).filter(|_| kind != Constant || warmup > 0.0))
    }

    /// Turns epochs into steps.
    pub fn in_steps(&self, epoch_steps: usize, epochs: u64) -> Schedule {
        let steps = |length: f64| length * epoch_steps as f64;
        let floor = self.floor.unwrap_or(0.0);
        Schedule {
            fall: match self.kind {
                ScheduleKind::Constant => Fall::None,
                ScheduleKind::Step => Fall::Step {
                    every: steps(self.every.unwrap_or(f64::INFINITY)),
                    factor: self.factor.unwrap_or(1.0),
                },
                ScheduleKind::Cosine => Fall::Cosine { floor },
                ScheduleKind::Linear => Fall::Linear { floor },
            },
            warmup: steps(self.warmup),
            total: steps(epochs as f64),
        }
    }
}

impl Schedule {
    /// Returns the factor of the planned step size in step `step`, counted from 0.
    pub fn factor(&self, step: u64) -> f64 {
        let step = step as f64;
        // The last step of the warm-up has the full step size, and no step has 0.
        let warm = if self.warmup > 0.0 {
            ((step + 1.0) / self.warmup).min(1.0)
        } else {
            1.0
        };
        let done = ((step - self.warmup) / (self.total - self.warmup)).clamp(0.0, 1.0);
        let fallen = match self.fall {
            Fall::None => 1.0,
            Fall::Step { every, factor } => factor.powf((step / every).floor()),
            Fall::Cosine { floor } => {
                floor + (1.0 - floor) * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
            }
            Fall::Linear { floor } => 1.0 - (1.0 - floor) * done,
        };
        warm * fallen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums and quotients of a few small numbers.
    const TOLERANCE: f64 = 1e-12;

    fn factors(text: &str, epoch_steps: usize, epochs: u64) -> Vec<f64> {
        let spec: ScheduleSpec = toml::from_str(text).unwrap();
        let spec = spec.checked(epochs).unwrap().unwrap();
        let schedule = spec.in_steps(epoch_steps, epochs);
        let steps = epoch_steps as u64 * epochs;
        (0..steps).map(|step| schedule.factor(step)).collect()
    }

    fn check(text: &str, epoch_steps: usize, epochs: u64, expected: &[f64]) {
        let got = factors(text, epoch_steps, epochs);
        assert_eq!(got.len(), expected.len(), "{text}");
        for (step, (value, wanted)) in got.iter().zip(expected).enumerate() {
            assert!(
                (value - wanted).abs() < TOLERANCE,
                "{text} step {step}: {value} not {wanted}"
            );
        }
    }

    #[test]
    fn every_kind_follows_its_formula() {
        check(
            "kind = \"constant\"\nwarmup = 2",
            2,
            3,
            &[0.25, 0.5, 0.75, 1.0, 1.0, 1.0],
        );
        check(
            "kind = \"step\"\nevery = 2\nfactor = 0.5",
            2,
            5,
            &[1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5, 0.25, 0.25],
        );
        // Also within an epoch, and by the default factor.
        check("kind = \"step\"\nevery = 0.5", 4, 1, &[1.0, 1.0, 0.1, 0.1]);
        check("kind = \"linear\"", 1, 4, &[1.0, 0.75, 0.5, 0.25]);
        check(
            "kind = \"linear\"\nfloor = 0.2",
            2,
            2,
            &[1.0, 0.8, 0.6, 0.4],
        );
        let half = 0.5_f64.sqrt();
        check(
            "kind = \"cosine\"",
            1,
            4,
            &[1.0, 0.5 + half / 2.0, 0.5, 0.5 - half / 2.0],
        );
        check(
            "kind = \"cosine\"\nwarmup = 1\nfloor = 0.1",
            2,
            3,
            &[0.5, 1.0, 1.0, 0.55 + 0.45 * half, 0.55, 0.55 - 0.45 * half],
        );
    }

    #[test]
    fn a_schedule_that_changes_nothing_is_none() {
        let spec: ScheduleSpec = toml::from_str("kind = \"constant\"\nwarmup = 0").unwrap();
        assert_eq!(spec.checked(3).unwrap(), None);
    }
}
