//! What is watched, for the page, `/targets` and `enginetap ps`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

use serde::Serialize;

use crate::metrics::input::CoverageRow;
use crate::targets::proc::ProcessKey;
use crate::vocab::{Identity, WorkloadId};

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
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Inventory {
    /// Workloads by number.
    pub workloads: BTreeMap<WorkloadId, Watched>,
    by_identity: HashMap<Identity, WorkloadId>,
    last: u32,
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
}

impl Inventory {
    /// The number of a workload, a new one if it has none; `None` when there are no more numbers.
    pub fn number(&mut self, identity: &Identity, most: u32) -> Option<(WorkloadId, bool)> {
        if let Some(id) = self.by_identity.get(identity) {
            return Some((*id, false));
        }
        if self.last + 1 >= most {
            return None;
        }
        self.last += 1;
        let id = WorkloadId(self.last);
        self.by_identity.insert(identity.clone(), id);
        let watched = Watched {
            identity: identity.clone(),
            processes: BTreeMap::new(),
            listeners: BTreeSet::new(),
            start_time: None,
            coverage: Vec::new(),
        };
        self.workloads.insert(id, watched);
        Some((id, true))
    }
}
