//! The cgroups of one workload, from reading to reading.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::cgroup::{self, Reading};
use super::growing::Growing;
use super::hierarchy::{Controller, Hierarchies};
use super::parse::Limit;
use crate::metrics::context::{CgroupCounter, CgroupFigures};
use crate::targets::proc::ProcessKey;
use crate::vocab::WorkloadId;

/// Cgroups in their hierarchies.
pub type Paths = BTreeSet<(Controller, String)>;

/// At most this many cgroups of one workload are read. One container or unit has one in each
/// hierarchy; units of the same name under several users are one workload.
const PLACES: usize = 64;

/// A workload to read.
#[derive(Clone, Debug)]
pub struct Subject {
    /// Its number.
    pub id: WorkloadId,
    /// The pod in its identity.
    pub pod: String,
    /// The container or unit in its identity.
    pub container: String,
    /// Processes to ask for their cgroups.
    pub processes: Vec<ProcessKey>,
}

/// How much of a workload's context is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cover {
    /// All of it.
    Whole,
    /// This kernel keeps no pressure.
    NoPressure,
    /// It has a cgroup of its own in v1 hierarchies only, which keep no pressure.
    V1,
    /// It has no cgroup of its own.
    Shared,
    /// It has one, where the agent cannot look.
    OutOfReach,
}

/// One cgroup in one hierarchy.
#[derive(Clone, Debug, Default)]
struct Place {
    counters: BTreeMap<CgroupCounter, Growing>,
    quota: Option<Limit<f64>>,
    memory: Option<u64>,
    memory_limit: Option<Limit<u64>>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Meters {
    places: BTreeMap<(Controller, String), Place>,
    /// What cgroups had come to that are gone.
    gone: BTreeMap<CgroupCounter, u64>,
    out_of_reach: bool,
}

impl Meters {
    /// Reads the cgroups its processes are in and those they were in. Those that fail keep what
    /// they had; the error is that of the last one.
    pub fn read(&mut self, hierarchies: &Hierarchies, own: Paths) -> io::Result<()> {
        self.out_of_reach = false;
        let mut result = Ok(());
        let known: Paths = self.places.keys().cloned().collect();
        for at in own.union(&known) {
            let mount = hierarchies.mount(at.0);
            let Some((mount, below)) = mount.and_then(|m| Some((m, m.below(&at.1)?))) else {
                self.out_of_reach = true;
                continue;
            };
            match cgroup::read(hierarchies, at.0, mount, below) {
                Ok(Some(reading)) => self.take(at, reading),
                Ok(None) => self.fold(at),
                Err(error) => result = Err(error),
            }
        }
        result
    }

    /// Takes in a reading of one cgroup.
    pub fn take(&mut self, at: &(Controller, String), reading: Reading) {
        if !self.places.contains_key(at) && self.places.len() >= PLACES {
            return;
        }
        let place = self.places.entry(at.clone()).or_default();
        for (counter, value) in reading.counters {
            let growing = place.counters.entry(counter).or_default();
            growing.take(value, reading.of);
        }
        place.quota = reading.quota.or(place.quota);
        place.memory = reading.memory.or(place.memory);
        place.memory_limit = reading.memory_limit.or(place.memory_limit);
    }

    /// A cgroup is gone: what it counted stays, its path may be another's later.
    pub fn fold(&mut self, at: &(Controller, String)) {
        let Some(place) = self.places.remove(at) else {
            return;
        };
        for (counter, growing) in place.counters {
            let total = self.gone.entry(counter).or_default();
            *total = total.saturating_add(growing.total());
        }
    }

    /// All cgroups together.
    pub fn figures(&self) -> CgroupFigures {
        let mut counters = self.gone.clone();
        for (counter, growing) in self.places.values().flat_map(|place| &place.counters) {
            let total = counters.entry(*counter).or_default();
            *total = total.saturating_add(growing.total());
        }
        let places = || self.places.values();
        let memory: Vec<u64> = places().filter_map(|place| place.memory).collect();
        CgroupFigures {
            counters,
            quota_cores: together(places().filter_map(|place| place.quota)),
            memory_bytes: (!memory.is_empty()).then(|| memory.iter().sum()),
            memory_limit_bytes: together(places().filter_map(|place| place.memory_limit)),
        }
    }

    /// How much is there.
    pub fn cover(&self) -> Cover {
        let pressure = |c: &CgroupCounter| matches!(c, CgroupCounter::Pressure(..));
        let unified = self.places.keys().any(|at| at.0 == Controller::Unified);
        if self.figures().counters.keys().any(pressure) {
            Cover::Whole
        } else if unified {
            Cover::NoPressure
        } else if !self.places.is_empty() || !self.gone.is_empty() {
            Cover::V1
        } else if self.out_of_reach {
            Cover::OutOfReach
        } else {
            Cover::Shared
        }
    }
}

/// The limit of several cgroups together: none when one of them has none.
fn together<T: std::ops::Add<Output = T>>(limits: impl Iterator<Item = Limit<T>>) -> Option<T> {
    let mut sum = None;
    for limit in limits {
        let Limit::At(limit) = limit else { return None };
        sum = Some(match sum {
            None => limit,
            Some(sum) => sum + limit,
        });
    }
    sum
}
