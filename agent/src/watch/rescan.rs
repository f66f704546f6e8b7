//! The scan of the whole node, on a thread of its own: it may take long, and what is heard
//! meanwhile is newer than what it finds.

use std::collections::{BTreeMap, HashSet};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::decide::Decision;
use super::{Older, Watcher, endpoint_key, hold, now_unix};
use crate::ingest::{News, monotonic_ns};
use crate::targets::proc;
use crate::targets::scan::{ScanOptions, ScanResult, scan};
use crate::targets::workload;

/// How long news may take from one thread to the next.
const PATIENCE: Duration = Duration::from_secs(1);

impl Watcher {
    /// Begins a scan on a thread of its own, so that news are heard meanwhile.
    pub(super) fn rescan(&mut self) {
        if self.scanning {
            return;
        }
        self.scanned = Instant::now();
        self.scan_began_ns = monotonic_ns();
        self.wants_scan = false;
        self.heard.clear();
        let (options, tell) = (self.scan_options(), self.tell.clone());
        let job = move || {
            // The receiver is gone only while the agent stops.
            let _ = tell.send(News::Scanned(scan(&options).map(Box::new)));
        };
        match std::thread::Builder::new().name("scan".into()).spawn(job) {
            Ok(_) => self.scanning = true,
            Err(error) => self.say(format!("a scan could not be started: {error}")),
        }
    }

    pub(super) fn scan_options(&self) -> ScanOptions {
        ScanOptions {
            proc_root: self.settings.proc_root.clone(),
            maps: true,
            connections: false,
        }
    }

    /// Takes in what a scan found.
    pub(super) fn take_scan(&mut self, found: Result<Box<ScanResult>>) {
        self.scanning = false;
        let found = match found {
            Ok(found) => found,
            Err(error) => {
                self.say(format!("the scan of /proc failed: {error:#}"));
                return;
            }
        };
        for error in &found.errors {
            tracing::debug!("scan: {error}");
        }
        self.find_fronts(&found);
        let mut present = HashSet::new();
        let mut others = BTreeMap::new();
        for space in &found.namespaces {
            let id = space.id.0 as u32;
            for l in &space.listeners {
                let key = endpoint_key(id, &l.socket.local);
                present.insert(key);
                let Some(owner) = l.owner else { continue };
                if owner.tgid == self.own_pid {
                    continue;
                }
                let Some(process) = found.processes.get(&owner) else {
                    continue;
                };
                if self.heard.contains(&key) {
                    // Newer than the scan: what was heard of it counts.
                    continue;
                }
                let ports = found.ports_of(owner);
                let decision = self.decide(process, &ports);
                if let Decision::Ignore { why } | Decision::Recognise { why } = &decision {
                    others.insert(owner.tgid, (process.comm.clone(), why.clone()));
                }
                let by_pid = |pid: u32| proc::read_identity(&self.settings.proc_root, pid).ok();
                let name = workload::name_in_tree(process, by_pid);
                self.apply(key, process, name, &decision, &space.pids, Older::Maybe);
            }
        }
        self.tree(&found);
        self.serve();
        self.catch_up();
        self.forget_listeners(&present);
        let mut inventory = hold(&self.inventory);
        inventory.others = others;
        inventory.spaces = self
            .spaces
            .iter()
            .map(|(id, s)| (*id, s.devices()))
            .collect();
        inventory.tasks.insert("scan", now_unix());
    }

    /// Hears what happened while a scan was under way, before its result is taken for the whole.
    fn catch_up(&mut self) {
        hold(&self.ingest).drain(Duration::from_millis(20));
        // The other end is gone only while the agent stops.
        let _ = self.tell.send(News::Mark);
        while let Ok(heard) = self.news.recv_timeout(PATIENCE) {
            if matches!(heard.news, News::Mark) {
                break;
            }
            self.hear(heard);
        }
    }
}
