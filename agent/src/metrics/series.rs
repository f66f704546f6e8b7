//! Names of series. Every label value but the model is `&'static str` from a closed list, so a
//! key is small, compares fast and cannot hold anything a client made up.

use super::def::{Family, Label};
use super::status;
use crate::vocab::{Class, Streaming};

/// A model as one workload numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ModelIx(pub u16);

impl ModelIx {
    /// No model was named.
    pub const UNKNOWN: ModelIx = ModelIx(0);
    /// A model that was not served here, or came past a cap.
    pub const OTHER: ModelIx = ModelIx(1);

    /// Whether it is a name that was admitted.
    pub fn is_admitted(self) -> bool {
        self > ModelIx::OTHER
    }
}

/// The route of what was not recognised, and of folded series.
pub const OTHER_ROUTE: &str = "other";

/// At most this many labels besides the model.
pub const REST: usize = 5;

/// One series of one workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SeriesKey {
    /// Its family.
    pub family: Family,
    /// Its model; `UNKNOWN` in families without one.
    pub model: ModelIx,
    /// The other label values in the order of the definition, the model left out.
    pub rest: [&'static str; REST],
}

impl SeriesKey {
    /// A key with these values, the model left out.
    pub fn new(family: Family, model: ModelIx, values: &[&'static str]) -> SeriesKey {
        let mut rest = [""; REST];
        for (slot, value) in rest.iter_mut().zip(values) {
            *slot = value;
        }
        SeriesKey {
            family,
            model,
            rest,
        }
    }

    /// Where the route stands in `rest`.
    fn route_at(&self) -> Option<usize> {
        let labels = self.family.def().labels;
        labels
            .iter()
            .filter(|&&l| l != Label::Model)
            .position(|&l| l == Label::Route)
    }

    /// Whether it carries a route of its own.
    pub fn is_routed(&self) -> bool {
        self.route_at()
            .is_some_and(|at| self.rest[at] != OTHER_ROUTE)
    }

    /// The same series with its route folded.
    pub fn without_route(mut self) -> SeriesKey {
        if let Some(at) = self.route_at() {
            self.rest[at] = OTHER_ROUTE;
        }
        self
    }

    /// The same series with only the class of its status kept.
    pub fn with_coarse_status(mut self) -> SeriesKey {
        if self.family == Family::Requests {
            self.rest[4] = status::coarse(self.rest[4]);
        }
        self
    }

    /// The same series with its model folded.
    pub fn without_model(mut self) -> SeriesKey {
        self.model = ModelIx::OTHER;
        self
    }
}

/// What the outcomes of `enginetap_requests_total` that appear together have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Combination {
    /// What the requests are for.
    pub class: Class,
    /// Their model.
    pub model: ModelIx,
    /// Their route.
    pub route: &'static str,
    /// Whether their replies are streams.
    pub streaming: Streaming,
}

impl Combination {
    /// The combination that is there whatever the budget says.
    pub fn floor(&self) -> Combination {
        let model = if self.model.is_admitted() {
            ModelIx::OTHER
        } else {
            self.model
        };
        Combination {
            model,
            route: OTHER_ROUTE,
            ..*self
        }
    }

    /// The series of one outcome and status.
    pub fn key(&self, outcome: &'static str, status: &'static str) -> SeriesKey {
        let (class, streaming) = (self.class.as_str(), self.streaming.as_str());
        let rest = [class, self.route, streaming, outcome, status];
        SeriesKey {
            family: Family::Requests,
            model: self.model,
            rest,
        }
    }
}
