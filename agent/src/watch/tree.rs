//! The processes around a listener: what stands before an engine, and what works behind it.

use std::collections::HashSet;

use super::{Watcher, decide, hold, watched};
use crate::engines;
use crate::targets::netns;
use crate::targets::proc;
use crate::targets::scan::ScanResult;
use crate::targets::sockdiag;
use crate::vocab::Role;

impl Watcher {
    /// nginx and Envoy processes that call a watched engine.
    pub(super) fn find_fronts(&mut self, found: &ScanResult) {
        let candidates: HashSet<u32> = found
            .processes
            .values()
            .filter(|p| {
                engines::recognise(&decide::facts_of(p))
                    .is_some_and(|f| engines::only_when_named(f.engine))
            })
            .flat_map(|p| [vec![p.key.tgid], found.descendants(p.key.tgid)].concat())
            .collect();
        self.fronts
            .retain(|key| found.stats.get(&key.tgid).is_some_and(|s| s.key == *key));
        if candidates.is_empty() {
            return;
        }
        let watched: HashSet<u16> = self
            .listeners
            .iter()
            .filter(|(_, k)| k.workload.is_some())
            .map(|(k, _)| k.port)
            .collect();
        for space in found.namespaces.iter() {
            let Some(handle) = &space.handle else {
                continue;
            };
            let ports = watched.clone();
            let calls = netns::in_netns(handle, move || {
                sockdiag::connections(|s| ports.contains(&s.remote.port))
            });
            let Ok(Ok(calls)) = calls else { continue };
            let inodes: HashSet<u64> = calls.iter().map(|s| s.inode).filter(|i| *i != 0).collect();
            let owners = crate::targets::fdscan::socket_owners(
                &self.settings.proc_root,
                candidates.iter().copied(),
                &inodes,
            );
            for pid in owners.by_inode.values().flatten() {
                // The listener belongs to the master process, the calls to its workers.
                for p in found.processes.values() {
                    if p.key.tgid == *pid || found.descendants(p.key.tgid).contains(pid) {
                        self.fronts.insert(p.key);
                    }
                }
            }
        }
    }

    /// Names the processes behind the listeners of each workload.
    pub(super) fn tree(&mut self, found: &ScanResult) {
        let mut inventory = hold(&self.inventory);
        for w in inventory.workloads.values_mut() {
            w.processes
                .retain(|key, _| found.stats.get(&key.tgid).is_some_and(|s| s.key == *key));
            let roots: Vec<u32> = w.processes.keys().map(|k| k.tgid).collect();
            for pid in roots.iter().flat_map(|pid| found.descendants(*pid)) {
                let Some(stat) = found.stats.get(&pid) else {
                    continue;
                };
                if w.processes.contains_key(&stat.key) {
                    continue;
                }
                let Ok(process) = proc::read_process(&self.settings.proc_root, pid) else {
                    continue;
                };
                let role =
                    engines::recognise(&decide::facts_of(&process)).map_or(Role::Other, |f| f.role);
                w.processes.insert(
                    process.key,
                    watched(&process, role, "child of a watched process"),
                );
            }
        }
    }
}
