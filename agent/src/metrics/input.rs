//! What the kernel maps and the rest of the agent say at the moment of a page. Totals are
//! absolute. Reasons, probes, maps and tasks are `&'static str` from closed lists; pass every
//! reason of a list from the start, those that have not happened with 0.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::context::{CgroupFigures, NodeFigures};
use crate::vocab::{Class, WorkloadId, labels};

labels! {
    /// What ended a connection.
    CloseReason {
        /// The client closed it in order.
        PeerFin => "peer_fin",
        /// The client reset it.
        PeerRst => "peer_rst",
        /// The server closed it.
        Local => "local",
        /// The server's process died.
        Killed => "killed",
        /// The client no longer answered.
        PeerTimeout => "peer_timeout",
        /// It was found gone.
        Unobserved => "unobserved",
    }
}

labels! {
    /// A part of a workload that can be seen or not.
    Aspect {
        Wire => "wire", Tls => "tls", Owner => "owner", Stalls => "stalls", Page => "page",
    }
}

labels! {
    /// How much of an aspect is seen.
    CoverageState { Full => "full", Partial => "partial", None => "none" }
}

labels! {
    /// What became of a hook.
    ProbeState {
        Ok => "ok", Unsupported => "unsupported", Broken => "broken",
        NotApplicable => "not_applicable",
    }
}

/// A request that is open now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenRequest {
    /// What it is for; `Unknown` before its head has been read.
    pub class: Class,
    /// Since its first byte.
    pub age: Duration,
}

/// A histogram the kernel keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelHistogram {
    /// Samples per bucket of the catalogue's bounds, not cumulative; the last cell is `+Inf`.
    /// Cells beyond that count as `+Inf`.
    pub cells: Vec<u64>,
    /// Sum of the samples in nanoseconds.
    pub sum_ns: u64,
}

/// How much of one aspect is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoverageRow {
    /// Which aspect.
    pub aspect: Aspect,
    /// How much of it.
    pub state: CoverageState,
    /// Why, from a closed list; empty when there is nothing to say.
    pub reason: &'static str,
}

/// One workload at the moment of a page. What is left out of its numbers stands at 0.
#[derive(Clone, Debug, Default)]
pub struct WorkloadInput {
    /// Requests that have started, ever.
    pub started: u64,
    /// Requests open now, as far as they are known one by one.
    pub open: Vec<OpenRequest>,
    /// Payload bytes received from clients.
    pub received_bytes: u64,
    /// Payload bytes sent to clients.
    pub sent_bytes: u64,
    /// Server connections open now.
    pub connections: u64,
    /// Server connections closed; reasons left out stand at 0.
    pub closed: Vec<(CloseReason, u64)>,
    /// Time from first byte to first read; no series without a sample.
    pub read_delay: Option<KernelHistogram>,
    /// Addresses it listens on.
    pub listeners: Vec<SocketAddr>,
    /// How much of it is seen; at most one row per aspect.
    pub coverage: Vec<CoverageRow>,
    /// Start of its oldest process in seconds since 1970.
    pub start_time: Option<f64>,
    /// Version of its engine.
    pub engine_version: Option<String>,
    /// How long its processes were held up, by role and cause, in nanoseconds.
    pub process_stalls: Vec<(&'static str, crate::stalls::ByCause)>,
    /// Its cgroup.
    pub cgroup: CgroupFigures,
}

/// One hook.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProbeRow {
    /// Its name.
    pub probe: &'static str,
    /// What became of it.
    pub state: ProbeState,
    /// Why, from a closed list; empty when there is nothing to say.
    pub reason: &'static str,
    /// Sampled time inside its program.
    pub run_time: Duration,
    /// Sampled runs.
    pub runs: u64,
}

/// One kernel map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapRow {
    /// Its name.
    pub map: &'static str,
    /// Entries, where they can be counted.
    pub entries: Option<u64>,
    /// Memory the kernel accounts to it, where it says so.
    pub memory_bytes: Option<u64>,
}

/// The agent's own process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ProcessStats {
    /// User and system time.
    pub cpu: Duration,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Open file descriptors.
    pub open_fds: u64,
    /// Start in seconds since 1970.
    pub start_time: f64,
}

/// What earlier pages cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCost {
    /// How many there were.
    pub pages: u64,
    /// Time from being asked to having written them.
    pub time: Duration,
    /// Bytes before compression.
    pub bytes: u64,
}

/// The node and the agent at the moment of a page.
#[derive(Clone, Debug, Default)]
pub struct NodeInput {
    /// Records lost for confirmed flows, by reason.
    pub events_lost: Vec<(&'static str, u64)>,
    /// Provisional flows dropped, by reason.
    pub flows_dropped: Vec<(&'static str, u64)>,
    /// Flows not parsed, by reason.
    pub unparsed: Vec<(&'static str, u64)>,
    /// Every hook.
    pub probes: Vec<ProbeRow>,
    /// Every map.
    pub maps: Vec<MapRow>,
    /// Last success of each periodic task in seconds since 1970; none before the first.
    pub tasks: Vec<(&'static str, f64)>,
    /// The agent's process.
    pub process: Option<ProcessStats>,
    /// What earlier pages cost.
    pub page: PageCost,
    /// What the kernel says of the node.
    pub context: NodeFigures,
}

/// Everything a page needs besides the store. Read `started` and `open` after the snapshot was
/// taken or before: the page holds its invariant either way.
#[derive(Clone, Debug, Default)]
pub struct PageInput {
    /// By workload; one that the store does not know is left out of the page.
    pub workloads: BTreeMap<WorkloadId, WorkloadInput>,
    /// The node.
    pub node: NodeInput,
}
