//! What is watched, for the page, `/targets` and `enginetap ps`.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::metrics::input::CoverageRow;
use crate::targets::proc::ProcessKey;
use crate::vocab::{Identity, WorkloadId};

/// How long the number of a workload that is gone is left alone, so that whatever is still on its
/// way under that number is discarded and not taken for another's.
const REST: Duration = Duration::from_secs(60);

/// A watched process.
#[derive(Clone, Debug, Serialize)]
pub struct WatchedProcess {
    /// Process id.
    pub pid: u32,
    /// Its part in the workload.
    pub role: &'static str,
    /// Why it is watched.
    pub why: String,
    /// Short name.
    pub comm: String,
    /// Requests it ended.
    pub ended: u64,
    /// Requests it has read and not answered yet.
    pub in_flight: u64,
    /// Payload bytes received.
    pub received_bytes: u64,
    /// Payload bytes sent.
    pub sent_bytes: u64,
    /// Events sent.
    pub events: u64,
}

/// A watched workload.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Its identity labels.
    pub identity: Identity,
    /// Its processes.
    pub processes: BTreeMap<ProcessKey, WatchedProcess>,
    /// Where it listens.
    pub listeners: BTreeSet<SocketAddr>,
    /// Start of its oldest process, seconds since 1970.
    pub start_time: Option<f64>,
    /// How much of it is seen.
    pub coverage: Vec<CoverageRow>,
    /// Since when it has no process, no listener and no connection.
    pub idle: Option<Instant>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// Workloads by number.
    pub workloads: BTreeMap<WorkloadId, Watched>,
    by_identity: HashMap<Identity, WorkloadId>,
    last: u32,
    /// Numbers of workloads that are gone, oldest first, and when they were given back.
    free: VecDeque<(WorkloadId, Instant)>,
    /// Listening processes that are not watched, with the reason.
    pub others: BTreeMap<u32, (String, String)>,
    /// Tapped namespaces with their devices.
    pub spaces: BTreeMap<u32, Vec<String>>,
    /// When each periodic task last succeeded, seconds since 1970.
    pub tasks: BTreeMap<&'static str, f64>,
    /// Entries of each map at the last look.
    pub map_entries: BTreeMap<&'static str, u64>,
    /// The first scan is done and attached.
    pub ready: bool,
    /// The hooks that tell why threads do not run work on this kernel.
    pub clocks: bool,
}

impl Inventory {
    /// The number of a workload, a new one if it has none; `None` when there are no more numbers.
    pub fn number(&mut self, identity: &Identity, most: u32) -> Option<(WorkloadId, bool)> {
        if let Some(id) = self.by_identity.get(identity) {
            return Some((*id, false));
        }
        let rested = self.free.front().is_some_and(|(_, at)| at.elapsed() > REST);
        let id = if rested && let Some((id, _)) = self.free.pop_front() {
            id
        } else if self.last + 1 < most {
            self.last += 1;
            WorkloadId(self.last)
        } else {
            return None;
        };
        self.by_identity.insert(identity.clone(), id);
        let watched = Watched {
            identity: identity.clone(),
            processes: BTreeMap::new(),
            listeners: BTreeSet::new(),
            start_time: None,
            coverage: Vec::new(),
            idle: None,
        };
        self.workloads.insert(id, watched);
        Some((id, true))
    }

    /// Forgets a workload; its number is given to another one when it has rested.
    pub fn remove(&mut self, id: WorkloadId) {
        if let Some(gone) = self.workloads.remove(&id) {
            self.by_identity.remove(&gone.identity);
            self.free.push_back((id, Instant::now()));
        }
    }
}
