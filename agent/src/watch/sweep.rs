//! The slow clock: flows that were never confirmed, that lost their socket, that the tap cannot
//! see; processes that are over; listeners and namespaces that nobody needs any more.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::time::{Duration, Instant};

use enginetap_ebpf::abi::flow::{Flow, FlowKey, dir_flag};
use enginetap_ebpf::abi::listener::ListenerKey;

use super::{Watcher, flow_key, hold, now_unix};
use crate::ingest::monotonic_ns;
use crate::metrics::input::{Aspect, CoverageState};
use crate::targets::proc::{self, ProcessKey};
use crate::targets::sockdiag;
use crate::vocab::WorkloadId;

const SWEEP: Duration = Duration::from_secs(5);
const CHECK: Duration = Duration::from_secs(30);
/// A flow that is not confirmed by then is not this namespace's.
const CONFIRM_NS: u64 = 3_000_000_000;
/// A flow whose socket is gone is settled by then, whatever became of the record that said so.
const CLOSED_NS: u64 = 1_000_000_000;
/// A flow is looked for in sock_diag when nothing passed for this long.
const QUIET_NS: u64 = 30_000_000_000;

/// What one look at the flow table found.
#[derive(Default)]
struct Look {
    unconfirmed: Vec<(FlowKey, u64)>,
    closed: Vec<(FlowKey, u64)>,
    quiet: BTreeMap<u32, Vec<(FlowKey, u64)>>,
    /// Namespaces with a listener.
    used: BTreeSet<u32>,
    /// Flows in namespaces without: their sockets are looked for at once, so that a namespace is
    /// not kept alive for one that is gone.
    orphans: BTreeMap<u32, Vec<(FlowKey, u64)>>,
    ports: BTreeSet<u16>,
    spaces: BTreeSet<u32>,
    unseen: BTreeSet<WorkloadId>,
    /// Workloads with a connection.
    connected: BTreeSet<WorkloadId>,
    flows: u64,
}

impl Look {
    fn take(&mut self, key: &FlowKey, f: &Flow, now: u64) {
        self.flows += 1;
        self.ports.insert(key.server_port);
        self.spaces.insert(key.netns);
        self.connected.insert(WorkloadId(f.workload));
        if f.confirmed == 0 {
            if now.saturating_sub(f.created_ns) > CONFIRM_NS {
                self.unconfirmed.push((*key, f.id));
            }
            return;
        }
        if f.closed != 0 && now.saturating_sub(f.closed) > CLOSED_NS {
            self.closed.push((*key, f.id));
        } else if !self.used.contains(&key.netns) && now.saturating_sub(f.seen_ns) > CLOSED_NS {
            self.orphans
                .entry(key.netns)
                .or_default()
                .push((*key, f.id));
        } else if now.saturating_sub(f.seen_ns) > QUIET_NS {
            self.quiet.entry(key.netns).or_default().push((*key, f.id));
        }
        let nothing = f.requests.flags & dir_flag::SEQ == 0 && f.replies.flags & dir_flag::SEQ == 0;
        if f.reads > 0 && nothing && f.workload != 0 {
            self.unseen.insert(WorkloadId(f.workload));
        }
    }
}

impl Watcher {
    /// Does what is due.
    pub(super) fn sweep(&mut self) {
        if self.swept.elapsed() < SWEEP {
            return;
        }
        self.swept = Instant::now();
        let now = monotonic_ns();
        let mut look = Look {
            used: self.listeners.keys().map(|k| k.netns).collect(),
            ..Look::default()
        };
        self.flows.each(|key, flow| look.take(key, flow, now));
        {
            let mut ingest = hold(&self.ingest);
            for (key, flow) in &look.unconfirmed {
                ingest.drop_unconfirmed(key, *flow);
            }
            for (key, flow) in &look.closed {
                ingest.settle_unobserved(key, *flow);
            }
            ingest.drain(Duration::from_millis(5));
            ingest.sweep_entries();
        }
        if self.checked.elapsed() >= CHECK {
            self.checked = Instant::now();
            self.check_sockets(&look.quiet);
        }
        self.check_sockets(&look.orphans);
        self.mark_unseen(&look.unseen);
        self.fold_processes();
        self.unserve();
        self.retire_workloads(&look);
        self.leave_spaces(&look);
        let (listeners, processes, threads) = {
            let ingest = hold(&self.ingest);
            (
                ingest.tables.listeners().len() as u64,
                ingest.tables.processes().len() as u64,
                ingest.tables.threads(),
            )
        };
        let mut inventory = hold(&self.inventory);
        inventory.map_entries = [
            ("FLOWS", look.flows),
            ("LISTENERS", listeners),
            ("PROCS", processes),
            ("THREADS", threads),
        ]
        .into();
        inventory.tasks.insert("sweep", now_unix());
    }

    /// Flows on which nothing passes are looked for among the kernel's sockets.
    fn check_sockets(&mut self, quiet: &BTreeMap<u32, Vec<(FlowKey, u64)>>) {
        for (netns, flows) in quiet {
            let Some(space) = self.spaces.get(netns) else {
                continue;
            };
            let ports: HashSet<u16> = flows.iter().map(|(k, _)| k.server_port).collect();
            let found =
                space.within(move || sockdiag::connections(|s| ports.contains(&s.local.port)));
            let Ok(Ok(found)) = found else { continue };
            let alive: HashSet<FlowKey> = found.iter().map(|s| flow_key(*netns, s)).collect();
            for (key, flow) in flows {
                if !alive.contains(key) {
                    hold(&self.ingest).settle_unobserved(key, *flow);
                }
            }
        }
    }

    /// Workloads whose sockets read what the tap does not see are said to be so.
    fn mark_unseen(&mut self, unseen: &BTreeSet<WorkloadId>) {
        let ids: Vec<WorkloadId> = hold(&self.inventory).workloads.keys().copied().collect();
        let counts: Vec<_> = {
            let ingest = hold(&self.ingest);
            ids.iter()
                .filter_map(|id| Some((*id, ingest.tables.workload(id.0).ok()?)))
                .collect()
        };
        let mut inventory = hold(&self.inventory);
        for (id, w) in counts {
            let Some(watched) = inventory.workloads.get_mut(&id) else {
                continue;
            };
            let (state, reason) = if unseen.contains(&id) {
                (CoverageState::Partial, "nat")
            } else if w.unparsed > 0 && w.started == 0 {
                (CoverageState::None, "unparsed")
            } else if w.unparsed > 0 {
                (CoverageState::Partial, "unparsed")
            } else {
                continue;
            };
            for row in watched
                .coverage
                .iter_mut()
                .filter(|r| r.aspect == Aspect::Wire)
            {
                (row.state, row.reason) = (state, reason);
            }
        }
    }

    /// Takes over what processes counted, and forgets those that exited and own no flow.
    fn fold_processes(&mut self) {
        let rows = hold(&self.ingest).tables.processes();
        let mut inventory = hold(&self.inventory);
        for (key, p) in rows {
            let id = WorkloadId(p.workload as u32);
            let known = ProcessKey {
                tgid: key.tgid,
                start_ticks: key.start_ticks,
            };
            if let Some(w) = inventory
                .workloads
                .get_mut(&id)
                .and_then(|w| w.processes.get_mut(&known))
            {
                w.ended = p.ended;
                w.in_flight = p.in_flight;
                w.received_bytes = p.bytes_received;
                w.sent_bytes = p.bytes_sent;
                w.events = p.events;
            }
            if p.flows == 0 && (p.exited != 0 || !self.lives(known)) {
                hold(&self.ingest).tables.remove_process(&key);
            }
        }
    }

    /// Whether a process is there; the hook that tells of its end may have been skipped.
    pub(super) fn lives(&self, key: ProcessKey) -> bool {
        proc::read_stat(&self.settings.proc_root, key.tgid).is_ok_and(|stat| stat.key == key)
    }

    /// Removes workloads of which nothing has been left for the grace period.
    fn retire_workloads(&mut self, look: &Look) {
        let listening: BTreeSet<WorkloadId> =
            self.listeners.values().filter_map(|k| k.workload).collect();
        let grace = self.settings.workload_grace;
        let mut gone = Vec::new();
        for (id, w) in &mut hold(&self.inventory).workloads {
            let busy =
                !w.processes.is_empty() || listening.contains(id) || look.connected.contains(id);
            if busy {
                w.idle = None;
            } else if w.idle.get_or_insert_with(Instant::now).elapsed() >= grace {
                gone.push((*id, w.identity.container.clone()));
            }
        }
        for (id, container) in gone {
            tracing::info!(container, "no longer there");
            // The numbers first: a page shows what the store has.
            hold(&self.ingest).forget(id);
            hold(&self.inventory).remove(id);
        }
    }

    /// Forgets listeners that a scan did not find.
    pub(super) fn forget_listeners(&mut self, present: &HashSet<ListenerKey>) {
        let gone: Vec<ListenerKey> = self
            .listeners
            .keys()
            .filter(|k| !present.contains(k) && !self.heard.contains(k))
            .copied()
            .collect();
        // The hook puts every new one into the kernel's table, also those of processes that were
        // gone before they could be looked at.
        let unclaimed: Vec<ListenerKey> = hold(&self.ingest)
            .tables
            .listeners()
            .into_iter()
            .map(|(key, _)| key)
            .filter(|k| {
                !present.contains(k) && !self.heard.contains(k) && !self.listeners.contains_key(k)
            })
            .collect();
        for key in gone.into_iter().chain(unclaimed) {
            match hold(&self.ingest).remove_listener(&key, self.scan_began_ns) {
                Ok(true) => {}
                // Another listens there since.
                Ok(false) => continue,
                Err(error) => tracing::warn!(%error, "a listener could not be forgotten"),
            }
            if let Some(known) = self.listeners.remove(&key)
                && let Some(id) = known.workload
                && let Some(w) = hold(&self.inventory).workloads.get_mut(&id)
            {
                w.listeners.remove(&super::address(&key));
            }
        }
    }

    /// Leaves namespaces with no listener and no flow.
    fn leave_spaces(&mut self, look: &Look) {
        let used: BTreeSet<u32> = self.listeners.keys().map(|k| k.netns).collect();
        let unused: BTreeSet<u32> = self
            .spaces
            .keys()
            .filter(|id| !used.contains(id) && !look.spaces.contains(id))
            .copied()
            .collect();
        let unused: BTreeSet<u32> = unused
            .into_iter()
            .filter(|id| Some(*id) != self.own_netns)
            .collect();
        // Twice in a row, so that a server that restarts finds its namespace tapped.
        let leave: BTreeSet<u32> = unused.intersection(&self.idle).copied().collect();
        self.spaces.retain(|id, _| !leave.contains(id));
        self.idle = unused;
        self.leave_ports(look);
    }

    /// Clears the ports nobody needs; those that were not needed at the last sweep either, so that
    /// one that begins to listen right now is not among them.
    fn leave_ports(&mut self, look: &Look) {
        let mut ingest = hold(&self.ingest);
        let known = ingest.tables.listeners();
        let ports: BTreeSet<u16> = known
            .iter()
            .map(|(k, _)| k.port)
            .chain(look.ports.iter().copied())
            .collect();
        let before = std::mem::take(&mut self.stale_ports);
        let mut left = BTreeMap::new();
        for cell in 0..enginetap_ebpf::abi::listener::PORT_CELLS {
            let keep = ports
                .range((cell as u16) << 6..=((cell as u16) << 6) + 63)
                .fold(0u64, |bits, port| bits | 1 << (port & 63));
            let Ok(now) = ingest.tables.ports(cell) else {
                continue;
            };
            let stale = (now.watched | now.recognise | now.active) & !keep;
            let leave = stale & before.get(&cell).copied().unwrap_or(0);
            if stale & !leave != 0 {
                self.stale_ports.insert(cell, stale & !leave);
            }
            if leave != 0 {
                left.insert(cell, leave);
            }
        }
        if !left.is_empty()
            && let Err(error) = ingest.leave_ports(&left)
        {
            tracing::warn!(%error, "the port table could not be written");
        }
    }
}
