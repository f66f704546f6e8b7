//! Joins the store with what the kernel maps say at this moment into one page.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use enginetap_ebpf::abi::counters::{dropped, lost, unparsed};
use enginetap_ebpf::abi::flow::closer;

use crate::Shared;
use crate::bpf::tables::Reasons;
use crate::ingest::Ingest;
use crate::metrics::input::{
    CloseReason, MapRow, PageCost, ProbeRow, ProbeState, ProcessStats, WorkloadInput,
};
use crate::metrics::{NodeInput, OpenRequest, PageInput, Snapshot};
use crate::probes::State;
use crate::vocab::WorkloadId;
use crate::watch::hold;
use crate::watch::inventory::Inventory;

/// Longest time that a page spends on taking in what waits in the ring.
const DRAIN: Duration = Duration::from_millis(20);

/// What pages cost so far.
#[derive(Default)]
pub struct Cost {
    pages: AtomicU64,
    nanos: AtomicU64,
    bytes: AtomicU64,
}

impl Cost {
    /// Adds a page.
    pub fn add(&self, time: Duration, bytes: u64) {
        self.pages.fetch_add(1, Ordering::Relaxed);
        self.nanos
            .fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    fn read(&self) -> PageCost {
        PageCost {
            pages: self.pages.load(Ordering::Relaxed),
            time: Duration::from_nanos(self.nanos.load(Ordering::Relaxed)),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }
}

/// Reads what changes while the lock of the numbers is held. `started` is read last, so that a
/// request that ends meanwhile is never counted as ended before it has started.
pub fn collect(ingest: &mut Ingest, inventory: &Inventory) -> (Snapshot, PageInput) {
    ingest.drain(DRAIN);
    let lost_rows = ingest.tables.reasons(Reasons::EventsLost, lost::NAMES);
    let full = lost_rows.get(lost::RING_FULL as usize).map_or(0, |r| r.1);
    ingest.read_lost(full);
    let mut workloads: BTreeMap<WorkloadId, WorkloadInput> = BTreeMap::new();
    for (id, w) in &inventory.workloads {
        workloads.insert(
            *id,
            WorkloadInput {
                listeners: w.listeners.iter().copied().collect(),
                coverage: w.coverage.clone(),
                start_time: w.start_time,
                ..WorkloadInput::default()
            },
        );
    }
    for (id, class, age) in ingest.open() {
        if let Some(input) = workloads.get_mut(&id) {
            input.open.push(OpenRequest { class, age });
        }
    }
    let snapshot = ingest.store.snapshot();
    // One that was registered since the inventory was copied has counters as well.
    for id in snapshot.workloads.keys() {
        workloads.entry(*id).or_default();
    }
    ingest.fold_clocks();
    for (id, input) in &mut workloads {
        counters(ingest, *id, input);
    }
    let node = NodeInput {
        events_lost: lost_rows,
        flows_dropped: ingest.tables.reasons(Reasons::FlowsDropped, dropped::NAMES),
        unparsed: ingest.tables.reasons(Reasons::Unparsed, unparsed::NAMES),
        tasks: inventory.tasks.iter().map(|(k, v)| (*k, *v)).collect(),
        ..NodeInput::default()
    };
    (snapshot, PageInput { workloads, node })
}

fn counters(ingest: &Ingest, id: WorkloadId, input: &mut WorkloadInput) {
    if let Ok(w) = ingest.tables.workload(id.0) {
        input.received_bytes = w.bytes_received;
        input.sent_bytes = w.bytes_sent;
        let reasons = [
            (CloseReason::PeerFin, w.closed[closer::PEER_FIN as usize]),
            (CloseReason::PeerRst, w.closed[closer::PEER_RST as usize]),
            (CloseReason::Local, w.closed[closer::LOCAL as usize]),
            (CloseReason::Killed, w.closed[closer::KILLED as usize]),
            (
                CloseReason::PeerTimeout,
                w.closed[closer::PEER_TIMEOUT as usize],
            ),
            (
                CloseReason::Unobserved,
                w.closed[closer::UNOBSERVED as usize] + w.closed[closer::NONE as usize],
            ),
        ];
        let closed: u64 = reasons.iter().map(|r| r.1).sum();
        input.connections = w.connections.saturating_sub(closed);
        input.closed = reasons.to_vec();
    }
    input.read_delay = ingest.read_delay(id);
    input.process_stalls = ingest.clocks.of(id);
    input.started = ingest.started(id);
}

/// Adds the last reading of the node and of the workloads' cgroups.
pub fn context(input: &mut PageInput, shared: &Shared) {
    let context = hold(&shared.context);
    input.node.context = context.node.clone();
    for (id, figures) in &context.workloads {
        if let Some(workload) = input.workloads.get_mut(id) {
            workload.cgroup = figures.clone();
        }
    }
}

/// What does not need the lock: hooks, maps, the agent's own process.
pub fn own(node: &mut NodeInput, shared: &Shared) {
    let samples = hold(&shared.samples).clone();
    node.probes = shared
        .verdicts
        .iter()
        .map(|(probe, v)| ProbeRow {
            probe,
            state: match v.state {
                State::Ok => ProbeState::Ok,
                State::Unsupported => ProbeState::Unsupported,
                State::Broken => ProbeState::Broken,
                State::NotApplicable => ProbeState::NotApplicable,
            },
            reason: v.reason,
            run_time: samples
                .iter()
                .find(|s| s.probe == *probe)
                .map_or(Duration::ZERO, |s| s.time),
            runs: samples
                .iter()
                .find(|s| s.probe == *probe)
                .map_or(0, |s| s.runs),
        })
        .collect();
    let entries = hold(&shared.inventory).map_entries.clone();
    node.maps = shared
        .map_bytes
        .iter()
        .map(|(map, bytes)| MapRow {
            map,
            entries: entries.get(map).copied(),
            memory_bytes: Some(*bytes),
        })
        .collect();
    node.page = shared.cost.read();
    node.process = own_process();
}

fn own_process() -> Option<ProcessStats> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).ok()?;
    let time =
        |t: nix::sys::time::TimeVal| Duration::new(t.tv_sec() as u64, t.tv_usec() as u32 * 1000);
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    let stat =
        crate::targets::proc::read_stat(std::path::Path::new("/proc"), std::process::id()).ok()?;
    let boot = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME).ok()?;
    let now = std::time::SystemTime::now()
        .duration_since(std::time::SystemTime::UNIX_EPOCH)
        .ok()?;
    let up = boot.tv_sec() as f64 + boot.tv_nsec() as f64 / 1e9;
    Some(ProcessStats {
        cpu: time(usage.user_time()) + time(usage.system_time()),
        resident_bytes: pages * 4096,
        open_fds: std::fs::read_dir("/proc/self/fd").map_or(0, |d| d.count() as u64),
        start_time: now.as_secs_f64() - up + stat.key.start_ticks as f64 / 100.0,
    })
}
