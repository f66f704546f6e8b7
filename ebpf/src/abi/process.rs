//! Per-process state. A slot is keyed by thread group and start time, so that a reused pid is
//! another slot.

use super::pod;

/// Identity of a process.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey {
    /// Thread group id in the initial pid namespace.
    pub tgid: u32,
    /// Explicit padding, always 0.
    pub pad: u32,
    /// Start in clock ticks (1/100 s) since boot, as field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
}
pod!(ProcessKey, 16);

/// What a process did, from its first read on. Every field is changed by atomic adds only.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Process {
    /// Requests that it ended.
    pub ended: u64,
    /// Bytes received on its flows.
    pub bytes_received: u64,
    /// Bytes sent on its flows.
    pub bytes_sent: u64,
    /// Events that it sent.
    pub events: u64,
    /// Flows that it owns now.
    pub flows: u64,
    /// Requests it has begun to read and that are not ended.
    pub in_flight: u64,
    /// Not 0 once it has exited: 1, or 1 more than the signal that ended it.
    pub exited: u64,
    /// Workload of its first flow.
    pub workload: u64,
}
pod!(Process, 64);
