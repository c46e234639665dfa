//! Checks of the keys of `[train]` that need no data.

use gnn::{Aggregator, LayerKind, Norm};

use super::{Device, TrainSpec, UpdateMode, key};
use crate::TrainError;
use crate::class_weight::ClassWeights;
use crate::server::{Consistency, OptimizerKind};

/// Workers and servers of a training: more than this is a typing error.
const WORKERS_MAX: usize = 1024;

impl TrainSpec {
    /// Checks of keys that do not depend on the mode.
    pub(super) fn check_alone(&self) -> Result<(), TrainError> {
        self.check_numbers()?;
        self.check_layer_keys()?;
        self.check_class_weights()
    }

    fn check_numbers(&self) -> Result<(), TrainError> {
        for (name, count) in [
            ("layers", self.layers.unwrap_or(1)),
            ("heads", self.heads.unwrap_or(1)),
            ("out_heads", self.out_heads.unwrap_or(1)),
            ("batch_size", self.batch_size),
            ("servers", self.servers),
        ] {
            require(count > 0, name, count, "allowed is 1 or more")?;
        }
        for (name, count) in [
            ("epochs", self.epochs),
            ("evaluate_every", self.evaluate_every),
            ("patience", self.patience.unwrap_or(1)),
            ("checkpoint_every", self.checkpoint_every),
            (
                "checkpoint_every_steps",
                self.checkpoint_every_steps.unwrap_or(1),
            ),
        ] {
            require(count > 0, name, count, "allowed is 1 or more")?;
        }
        require(
            self.servers <= WORKERS_MAX,
            "servers",
            self.servers,
            "allowed is 1 to 1024",
        )?;
        for (name, rate) in [
            ("dropout", self.dropout),
            ("input_dropout", self.input_dropout),
            ("attention_dropout", self.attention_dropout),
        ] {
            require(
                (0.0..1.0).contains(&rate),
                name,
                rate,
                "allowed is 0 to below 1",
            )?;
        }
        let rate = self.learning_rate;
        let positive = rate.is_finite() && rate > 0.0;
        require(
            positive,
            "learning_rate",
            rate,
            "allowed is any number above 0",
        )?;
        if let Some(norm) = self.clip_norm {
            let fits = norm.is_finite() && norm > 0.0;
            require(fits, "clip_norm", norm, "allowed is any number above 0")?;
        }
        let decay = self.weight_decay;
        let not_negative = decay.is_finite() && decay >= 0.0;
        require(
            not_negative,
            "weight_decay",
            decay,
            "allowed is 0 or any number above",
        )?;
        if let Some(width) = self.hidden.iter().find(|&&width| width == 0) {
            return Err(key("hidden", width, "a layer is at least 1 wide"));
        }
        Ok(())
    }

    fn check_layer_keys(&self) -> Result<(), TrainError> {
        if !self.model.takes_maximum() && self.aggregator == Some(Aggregator::Max) {
            let names = LayerKind::names_of(LayerKind::takes_maximum);
            let allowed = format!("only {names} can take the maximum");
            return Err(key("aggregator", "\"max\"", allowed));
        }
        let heads = self.heads.unwrap_or(1);
        let ragged = self.hidden.iter().find(|&&width| width % heads != 0);
        if self.model.is_attention() {
            let divides = format!("has to divide the widths in `hidden`, {:?}", self.hidden);
            return require(ragged.is_none(), "heads", heads, &divides);
        }
        let names = LayerKind::names_of(LayerKind::is_attention);
        let only = format!("only {names} have attention");
        require(heads == 1, "heads", heads, &only)?;
        let out_heads = self.out_heads.unwrap_or(1);
        require(out_heads == 1, "out_heads", out_heads, &only)?;
        let dropout = self.attention_dropout;
        require(dropout == 0.0, "attention_dropout", dropout, &only)
    }

    pub(super) fn check_device(&self) -> Result<(), TrainError> {
        let allowed = "this program was built without GPUs: build it with `cargo build --release \
                       --features gpu`, or take one of \"auto\", \"cpu\"";
        let fits = gnn::Device::HAS_GPU || self.device != Device::Gpu;
        require(fits, "device", "\"gpu\"", allowed)
    }

    fn check_class_weights(&self) -> Result<(), TrainError> {
        let Some(ClassWeights::Listed(weights)) = &self.class_weights else {
            return Ok(());
        };
        let bad = weights.iter().find(|w| !(w.is_finite() && **w >= 0.0));
        if let Some(weight) = bad {
            return Err(key(
                "class_weights",
                weight,
                "allowed is 0 or any number above",
            ));
        }
        let list = format!("{weights:?}");
        let counts = weights.iter().any(|&weight| weight > 0.0);
        require(
            counts,
            "class_weights",
            list,
            "at least one class has to count",
        )
    }

    pub(super) fn consistency(&self) -> Result<Consistency, TrainError> {
        match (self.mode, self.staleness) {
            (UpdateMode::Sync, None) => Ok(Consistency::Sync),
            (UpdateMode::Async, None) => Ok(Consistency::Async),
            (UpdateMode::Bounded, Some(staleness)) => Ok(Consistency::Bounded(staleness)),
            (UpdateMode::Bounded, None) => Err(TrainError::Missing {
                key: "staleness",
                needed: "how many steps a worker may be ahead in mode \"bounded\"",
            }),
            (_, Some(steps)) => Err(key(
                "staleness",
                steps,
                "only mode \"bounded\" has staleness",
            )),
        }
    }

    pub(super) fn checked_workers(&self, consistency: Consistency) -> Result<usize, TrainError> {
        let workers = self.workers.unwrap_or(1);
        let in_range = (1..=WORKERS_MAX).contains(&workers);
        require(in_range, "workers", workers, "allowed is 1 to 1024")?;
        // Each worker would take the statistics of its share, and N workers were not one.
        let is_exact = self.norm != Norm::Batch || consistency != Consistency::Sync;
        let allowed = "with `train.norm` = \"batch\" mode \"sync\" allows 1";
        require(workers == 1 || is_exact, "workers", workers, allowed)?;
        Ok(workers)
    }

    pub(super) fn check_streamed(&self) -> Result<(), TrainError> {
        if !self.streamed {
            return Ok(());
        }
        if let Some(input) = &self.input {
            let allowed = "leave it out: with `train.streamed` nothing is read from files";
            return Err(key("input", input.display(), allowed));
        }
        Ok(())
    }

    pub(super) fn checked_momentum(&self) -> Result<f32, TrainError> {
        let Some(momentum) = self.momentum else {
            return Ok(0.0);
        };
        let is_sgd = self.optimizer == OptimizerKind::Sgd;
        require(
            is_sgd,
            "momentum",
            momentum,
            "only optimizer \"sgd\" has momentum",
        )?;
        let in_range = (0.0..1.0).contains(&momentum);
        require(in_range, "momentum", momentum, "allowed is 0 to below 1")?;
        Ok(momentum)
    }
}

fn require(
    holds: bool,
    name: &'static str,
    value: impl std::fmt::Display,
    allowed: &str,
) -> Result<(), TrainError> {
    if holds {
        Ok(())
    } else {
        Err(key(name, value, allowed))
    }
}
