//! Node and cgroup figures as a page shows them. They are not measured by the tap: the agent reads
//! them on a clock of its own, and they stand beside the numbers of requests as context.

use std::collections::BTreeMap;

use crate::vocab::labels;

labels! {
    /// What tasks wait for, in the words of the kernel's pressure stall information.
    Resource { Cpu => "cpu", Memory => "memory", Io => "io", Irq => "irq" }
}

labels! {
    /// Whether some task waited or all that were not idle did.
    PressureKind { Some => "some", Full => "full" }
}

labels! {
    /// What happened at a limit of a memory cgroup, in the words of `memory.events`.
    MemoryEvent { High => "high", Max => "max", Oom => "oom", OomKill => "oom_kill" }
}

labels! {
    /// Which way a disk's requests went.
    DiskDirection { Read => "read", Write => "write" }
}

/// A figure of a cgroup that only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CgroupCounter {
    /// Time under pressure, in nanoseconds.
    Pressure(Resource, PressureKind),
    /// Time its tasks were held back by its CPU quota, in nanoseconds, over all CPUs.
    Throttled,
    /// Enforcement periods in which it had something to run.
    Periods,
    /// Those of them in which it was held back.
    ThrottledPeriods,
    /// Processor time, in nanoseconds.
    CpuUsage,
    /// Something happened at a memory limit.
    Memory(MemoryEvent),
}

impl CgroupCounter {
    /// Most counters that a cgroup can have: `irq` has no `some`.
    pub const MOST: usize =
        Resource::ALL.len() * PressureKind::ALL.len() - 1 + 4 + MemoryEvent::ALL.len();
}

/// The cgroup of one workload; what is left out is not known or does not apply.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CgroupFigures {
    /// What only grows.
    pub counters: BTreeMap<CgroupCounter, u64>,
    /// CPU quota in cores; none when it is unlimited.
    pub quota_cores: Option<f64>,
    /// Memory charged to it now.
    pub memory_bytes: Option<u64>,
    /// Its memory limit; none when it is unlimited.
    pub memory_limit_bytes: Option<u64>,
}

impl CgroupFigures {
    /// Most series that a workload has of these.
    pub const MOST_SERIES: usize = CgroupCounter::MOST + 3;
}

/// The node; what is left out could not be read yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NodeFigures {
    /// When the node booted, in seconds since 1970: the birth of all its counters.
    pub boot_time: Option<f64>,
    /// Time under pressure, in nanoseconds.
    pub pressure: BTreeMap<(Resource, PressureKind), u64>,
    /// Processor time of all CPUs in every state, in nanoseconds.
    pub cpu: Option<u64>,
    /// Of that, taken by the hypervisor.
    pub steal: Option<u64>,
    /// Of that, in soft interrupts.
    pub softirq: Option<u64>,
    /// Tasks that run or wait for a CPU now.
    pub runnable: Option<u64>,
    /// Completed requests of the disks and the time they took in nanoseconds, by direction.
    pub disks: BTreeMap<DiskDirection, (u64, u64)>,
    /// TCP segments sent, those sent again not among them.
    pub tcp_segments: Option<u64>,
    /// TCP segments sent again.
    pub tcp_retransmits: Option<u64>,
}
