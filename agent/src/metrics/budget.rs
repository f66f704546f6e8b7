//! How many models and series a page may hold. Nothing is ever evicted: what was shown stays,
//! what comes past a limit is counted under `other`.

use std::collections::HashMap;
use std::sync::Arc;

use crate::protocol::json;

/// The limits of one agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Models with a label value of their own, per workload.
    pub models_per_workload: usize,
    /// Different model label values on the node.
    pub models_per_node: usize,
    /// Series of workloads on the node, `_created` not counted.
    pub series: usize,
    /// Series per workload and model. Three quarters of it may carry a route or a rare status of their own, so
    /// that many routes never drive a model's token and gap series into `other`.
    pub series_per_model: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            models_per_workload: 64,
            models_per_node: 1_024,
            series: 200_000,
            series_per_model: 1_000,
        }
    }
}

/// What has been used of the limits.
#[derive(Clone, Debug, Default)]
pub struct Budget {
    /// The limits.
    pub limits: Limits,
    /// Series of workloads now.
    pub series: usize,
    /// Updates that went to `other` for want of budget.
    pub dropped: u64,
    /// Model names and how many workloads admitted each.
    models: HashMap<Arc<str>, usize>,
}

impl Budget {
    /// An unused budget.
    pub fn new(limits: Limits) -> Budget {
        Budget {
            limits,
            ..Budget::default()
        }
    }

    /// Takes a model name in for a workload that has `own` already. `None` = past a cap, or no
    /// name that a page should show.
    pub fn admit(&mut self, own: usize, name: &str) -> Option<Arc<str>> {
        // Workloads number their models in 16 bits.
        let cap = self.limits.models_per_workload.min(60_000);
        if own >= cap || json::model_name(name).is_none() {
            return None;
        }
        let known = self
            .models
            .get_key_value(name)
            .map(|(known, _)| Arc::clone(known));
        let name = match known {
            Some(known) => known,
            None if self.models.len() < self.limits.models_per_node => Arc::from(name),
            None => return None,
        };
        *self.models.entry(Arc::clone(&name)).or_default() += 1;
        Some(name)
    }

    /// Gives back what a removed workload had.
    pub fn release(&mut self, models: &[Arc<str>], series: usize) {
        self.series = self.series.saturating_sub(series);
        for name in models {
            if let Some(users) = self.models.get_mut(name) {
                *users -= 1;
                if *users == 0 {
                    self.models.remove(name);
                }
            }
        }
    }

    /// Whether the node has room for so many more series.
    pub fn node_fits(&self, more: usize) -> bool {
        self.series + more <= self.limits.series
    }

    /// Whether a model that has `own` series has room for so many more, in the part of its budget
    /// that is open to routes and rare statuses or in the whole.
    pub fn model_fits(&self, own: usize, more: usize, part: bool) -> bool {
        let limit = self.limits.series_per_model;
        own + more <= if part { limit / 4 * 3 } else { limit }
    }
}
