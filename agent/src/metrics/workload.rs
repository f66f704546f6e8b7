//! What the requests of one workload added up to: its admitted models, its counters and its
//! histograms. Cloned when a page is written, so that updates go on meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use super::budget::Budget;
use super::context::CgroupFigures;
use super::def::Family;
use super::hist::{Bounds, Hist};
use super::series::{Combination, ModelIx, OTHER_ROUTE, SeriesKey};
use super::status;
use crate::vocab::{Class, Identity, Outcome, StallCause, StallPhase, Streaming};

/// Series every workload has on the page whatever its requests do: started, in flight by class and
/// by age, oldest, read delay, bytes, connections and how they closed, version, start, one
/// listener, five aspects of coverage and its cgroup.
const PAGE_SERIES: usize =
    1 + 5 + 12 + 1 + 18 + 2 + 1 + 6 + 1 + 1 + 1 + 5 + CgroupFigures::MOST_SERIES;

/// One counter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Count {
    /// What the agent counted.
    own: u64,
    /// What the kernel counted because the agent could not be told; an absolute total.
    lost: u64,
    /// When the series was born, in seconds since 1970.
    pub created: f64,
}

impl Count {
    /// The value on the page.
    pub fn value(&self) -> u64 {
        self.own + self.lost
    }
}

/// One workload.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Who it is.
    pub identity: Identity,
    /// When it was added, in seconds since 1970.
    pub created: f64,
    /// Requests that have ended, lost ones included.
    pub ended: u64,
    /// Model names by number; the first two are `unknown` and `other`.
    models: Vec<Arc<str>>,
    by_name: HashMap<Arc<str>, ModelIx>,
    /// Series per model.
    model_series: Vec<usize>,
    counts: BTreeMap<SeriesKey, Count>,
    hists: BTreeMap<SeriesKey, Hist>,
}

impl Workload {
    /// A workload with the series that stand at 0 from the start.
    pub fn new(identity: Identity, created: f64, budget: &mut Budget) -> Workload {
        let mut workload = Workload {
            identity,
            created,
            ended: 0,
            models: vec![Arc::from("unknown"), Arc::from("other")],
            by_name: HashMap::new(),
            model_series: vec![PAGE_SERIES, 0],
            counts: BTreeMap::new(),
            hists: BTreeMap::new(),
        };
        for (ix, name) in workload.models.iter().enumerate() {
            workload
                .by_name
                .insert(Arc::clone(name), ModelIx(ix as u16));
        }
        budget.series += PAGE_SERIES;
        workload.insert_combination(&Combination::unread(Streaming::Unknown), created, budget);
        let unknown = ModelIx::UNKNOWN;
        for key in [
            SeriesKey::new(Family::StreamEvents, unknown, &[]),
            SeriesKey::new(Family::FirstTokenUnknown, unknown, &[]),
            SeriesKey::new(Family::ReplyErrors, unknown, &["other"]),
        ] {
            workload.insert_count(key, created, budget);
        }
        for phase in StallPhase::ALL.iter().map(|p| p.as_str()) {
            let key = SeriesKey::new(Family::RequestHostStall, unknown, &[phase]);
            workload.insert_count(key, created, budget);
            for cause in StallCause::ALL {
                let rest = [phase, cause.domain(), cause.as_str()];
                let key = SeriesKey::new(Family::RequestStall, unknown, &rest);
                workload.insert_count(key, created, budget);
            }
        }
        workload
    }

    /// Gives everything it had back to the budget.
    pub fn release(&self, budget: &mut Budget) {
        budget.release(&self.models[2..], self.model_series.iter().sum());
    }

    /// The name of a model.
    pub fn model_name(&self, model: ModelIx) -> &str {
        self.models
            .get(usize::from(model.0))
            .map_or("other", |name| name)
    }

    /// Names admitted so far.
    pub fn admitted(&self) -> &[Arc<str>] {
        &self.models[2..]
    }

    /// The label of a named model; with `served` it is admitted first if there is room.
    pub fn model(&mut self, name: Option<&str>, served: bool, budget: &mut Budget) -> ModelIx {
        let Some(name) = name.filter(|name| !name.is_empty()) else {
            return ModelIx::UNKNOWN;
        };
        if let Some(&known) = self.by_name.get(name) {
            return known;
        }
        if !served {
            return ModelIx::OTHER;
        }
        let Some(name) = budget.admit(self.models.len() - 2, name) else {
            budget.dropped += 1;
            return ModelIx::OTHER;
        };
        let model = ModelIx(self.models.len() as u16);
        self.by_name.insert(Arc::clone(&name), model);
        self.models.push(name);
        self.model_series.push(0);
        model
    }

    /// Makes all outcomes of a combination stand at 0, folded where the budget asks for it.
    /// Returns the combination to count under.
    pub fn admit_combination(
        &mut self,
        mut combination: Combination,
        now: f64,
        budget: &mut Budget,
    ) -> Combination {
        let mut folded = false;
        loop {
            let key = combination.key("", "");
            if self.has_combination(&combination) {
                break;
            }
            // One more than its zeros, for the status that is about to be counted.
            match self.fold(key, Outcome::ALL.len() + 1, budget) {
                None => {
                    self.insert_combination(&combination, now, budget);
                    break;
                }
                Some(next) => {
                    folded = true;
                    combination.model = next.model;
                    combination.route = next.rest[1];
                }
            }
        }
        budget.dropped += u64::from(folded);
        combination
    }

    /// Counts one ended request; its combination has been admitted.
    pub fn count_request(
        &mut self,
        combination: &Combination,
        outcome: Outcome,
        status: &'static str,
        now: f64,
        budget: &mut Budget,
    ) {
        let key = combination.key(outcome.as_str(), status);
        let key = self.place_status(combination, key, now, budget);
        self.insert_count(key, now, budget).own += 1;
        self.ended += 1;
    }

    /// Where a request with a status its combination has not shown is counted: as it is, with its
    /// status made coarse, or so under `other`, which is there whatever the budget says.
    fn place_status(
        &mut self,
        combination: &Combination,
        exact: SeriesKey,
        now: f64,
        budget: &mut Budget,
    ) -> SeriesKey {
        let own = self.series_of(combination.model);
        let room = |part: bool| budget.node_fits(1) && budget.model_fits(own, 1, part);
        if self.counts.contains_key(&exact) || room(true) {
            return exact;
        }
        let coarse = exact.with_coarse_status();
        if coarse == exact && room(false) {
            return exact;
        }
        let has_coarse = self.counts.contains_key(&coarse) || room(false);
        budget.dropped += 1;
        if has_coarse {
            return coarse;
        }
        let floor = combination.floor();
        if !self.has_combination(&floor) {
            self.insert_combination(&floor, now, budget);
        }
        SeriesKey {
            model: floor.model,
            ..coarse
        }
        .without_route()
    }

    /// Adds to a counter.
    pub fn add(&mut self, key: SeriesKey, n: u64, now: f64, budget: &mut Budget) {
        let key = self.place(key, 1, budget, |w, key| w.counts.contains_key(key));
        self.insert_count(key, now, budget).own += n;
    }

    /// Writes to a histogram.
    pub fn write(
        &mut self,
        key: SeriesKey,
        bounds: &Bounds,
        now: f64,
        budget: &mut Budget,
        update: impl FnOnce(&mut Hist),
    ) {
        let key = self.place(key, bounds.series(), budget, |w, key| {
            w.hists.contains_key(key)
        });
        if !self.hists.contains_key(&key) {
            self.charge(key.model, bounds.series(), budget);
        }
        update(
            self.hists
                .entry(key)
                .or_insert_with(|| Hist::new(bounds, now)),
        );
    }

    /// Takes in a total of requests the kernel counted by itself.
    pub fn lost_requests(
        &mut self,
        streaming: Streaming,
        outcome: Outcome,
        status: &'static str,
        total: u64,
        now: f64,
        budget: &mut Budget,
    ) {
        let combination = Combination::unread(streaming);
        if !self.has_combination(&combination) {
            self.insert_combination(&combination, now, budget);
        }
        let key = combination.key(outcome.as_str(), status);
        let count = self.insert_count(key, now, budget);
        let more = total.saturating_sub(count.lost);
        count.lost += more;
        self.ended += more;
    }

    /// Takes in a total of stream events the kernel counted by itself.
    pub fn lost_events(&mut self, total: u64, now: f64, budget: &mut Budget) {
        let key = SeriesKey::new(Family::StreamEvents, ModelIx::UNKNOWN, &[]);
        let count = self.insert_count(key, now, budget);
        count.lost = count.lost.max(total);
    }

    /// The counters of a family, in order.
    pub fn counts(&self, family: Family) -> impl Iterator<Item = (&SeriesKey, &Count)> {
        let from = SeriesKey::new(family, ModelIx::UNKNOWN, &[]);
        self.counts
            .range(from..)
            .take_while(move |(key, _)| key.family == family)
    }

    /// The histograms of a family, in order.
    pub fn hists(&self, family: Family) -> impl Iterator<Item = (&SeriesKey, &Hist)> {
        let from = SeriesKey::new(family, ModelIx::UNKNOWN, &[]);
        self.hists
            .range(from..)
            .take_while(move |(key, _)| key.family == family)
    }

    /// The first of a series and its folded forms that is there or may be.
    fn place(
        &self,
        key: SeriesKey,
        weight: usize,
        budget: &mut Budget,
        there: impl Fn(&Workload, &SeriesKey) -> bool,
    ) -> SeriesKey {
        let mut place = key;
        while !there(self, &place) {
            match self.fold(place, weight, budget) {
                None => break,
                Some(next) => place = next,
            }
        }
        budget.dropped += u64::from(place != key);
        place
    }

    /// Where a new series goes when the budget has no room for it; `None` = it may be as it is.
    ///
    /// A full node folds the model first, then the route. A full model folds its route first:
    /// its name is shown already. `unknown` and `other` without a route are always there; being
    /// products of closed sets they are bounded without a budget.
    fn fold(&self, key: SeriesKey, weight: usize, budget: &Budget) -> Option<SeriesKey> {
        let own = self.series_of(key.model);
        let (admitted, routed) = (key.model.is_admitted(), key.is_routed());
        if !budget.node_fits(weight) {
            if admitted {
                return Some(key.without_model());
            }
        } else if budget.model_fits(own, weight, routed) {
            return None;
        }
        if routed {
            Some(key.without_route())
        } else if admitted {
            Some(key.without_model())
        } else {
            None
        }
    }

    fn series_of(&self, model: ModelIx) -> usize {
        self.model_series
            .get(usize::from(model.0))
            .copied()
            .unwrap_or(0)
    }

    fn has_combination(&self, combination: &Combination) -> bool {
        let first = combination.key("", "");
        let next = self.counts.range(first..).next();
        next.is_some_and(|(key, _)| {
            key.family == first.family
                && key.model == first.model
                && key.rest[..3] == first.rest[..3]
        })
    }

    fn insert_combination(&mut self, combination: &Combination, now: f64, budget: &mut Budget) {
        for &outcome in Outcome::ALL {
            let status = status::at_zero(combination.class, outcome);
            self.insert_count(combination.key(outcome.as_str(), status), now, budget);
        }
    }

    fn insert_count(&mut self, key: SeriesKey, now: f64, budget: &mut Budget) -> &mut Count {
        if !self.counts.contains_key(&key) {
            self.charge(key.model, 1, budget);
        }
        self.counts.entry(key).or_insert(Count {
            own: 0,
            lost: 0,
            created: now,
        })
    }

    fn charge(&mut self, model: ModelIx, series: usize, budget: &mut Budget) {
        budget.series += series;
        if let Some(own) = self.model_series.get_mut(usize::from(model.0)) {
            *own += series;
        }
    }
}

impl Combination {
    /// That of requests nothing was read of.
    fn unread(streaming: Streaming) -> Combination {
        Combination {
            class: Class::Unknown,
            model: ModelIx::UNKNOWN,
            route: OTHER_ROUTE,
            streaming,
        }
    }
}
