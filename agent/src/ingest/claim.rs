//! Which workload a connection belongs to: listeners as they become known, and requests that began
//! before that.

use std::collections::BTreeMap;

use enginetap_ebpf::abi::flow::FlowKey;
use enginetap_ebpf::abi::listener::{Listener, ListenerKey, mode};
use enginetap_ebpf::abi::process::ProcessKey;
use enginetap_ebpf::abi::stall::Serving;

use super::entry::Entry;
use super::{Ingest, UNSURE_NS, catch_up, monotonic_ns, parked};
use crate::metrics::Store;
use crate::vocab::{Engine, WorkloadId};

/// Gives a request the workload it turned out to belong to.
pub(super) fn join(store: &mut Store, entry: &mut Entry, workload: WorkloadId, engine: Engine) {
    entry.workload = workload.0;
    entry.reclassify(engine);
    catch_up(store, entry);
}

impl Ingest {
    /// Connections to `listener` belong to `workload`: requests that began before are counted.
    pub fn assign(&mut self, listener: &ListenerKey, workload: WorkloadId) {
        self.listeners.insert(*listener, workload);
        let engine = self.engine_of(workload.0);
        let mut adopted = 0;
        for entry in self.entries.values_mut() {
            if entry.workload == 0 && parked::reaches(&entry.key, listener) {
                join(&mut self.store, entry, workload, engine);
                // One whose head is not complete is not a request yet; when it is, the kernel
                // counts it for the workload if it knows that by then.
                if entry.by_agent && entry.head.is_some() {
                    adopted += 1;
                    entry.counted = true;
                }
            }
        }
        let ends = self.parked.take(listener);
        adopted += ends.len() as u64;
        if let Some(known) = self.known.get_mut(&workload.0) {
            known.started += adopted;
        }
        for (end, tail, mut entry) in ends {
            join(&mut self.store, &mut entry, workload, engine);
            self.finish(&end, &tail, entry);
        }
    }

    /// The threads of a process belong to sets from now on: its main thread at once, others when
    /// they read from a watched connection. `lives` tells whether it is still that process.
    pub fn serve(
        &mut self,
        key: &ProcessKey,
        serving: Serving,
        lives: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        self.tables.set_serving(key, serving)?;
        self.tables.add_thread(key.tgid, serving);
        self.control.serve(key.tgid, true)?;
        if !lives() {
            // Its end may have passed before it had an entry.
            self.control.serve(key.tgid, false)?;
            self.tables.remove_thread(key.tgid);
            self.tables.remove_serving(key);
        }
        Ok(())
    }

    /// Takes in what the clocks of all roles say.
    pub fn fold_clocks(&mut self) {
        let tables = &self.tables;
        self.clocks.fold(monotonic_ns(), |set| tables.clock(set));
    }

    /// Forgets a listener that began at `upto` or before. False when a newer one is there.
    pub fn remove_listener(&mut self, listener: &ListenerKey, upto: u64) -> anyhow::Result<bool> {
        let gone = self.control.unlisten(listener, upto)?;
        if gone {
            self.listeners.remove(listener);
        }
        Ok(gone)
    }

    /// Makes a listener known to the kernel programs.
    pub fn set_listener(
        &mut self,
        key: ListenerKey,
        workload: u32,
        mode: u32,
    ) -> anyhow::Result<()> {
        let value = Listener {
            workload,
            mode,
            since_ns: monotonic_ns(),
        };
        self.tables.set_listener(key, value)?;
        self.control.look(key.port, mode != mode::RECOGNISE)
    }

    /// Leaves ports alone again: bits by cell of the port table.
    pub fn leave_ports(&mut self, bits: &BTreeMap<u32, u64>) -> anyhow::Result<()> {
        for (cell, bits) in bits {
            self.control.leave(*cell, *bits)?;
        }
        // One that began to listen just now is looked at again.
        for (key, known) in self.tables.listeners() {
            let left = bits.get(&u32::from(key.port >> 6)).copied().unwrap_or(0);
            if left & 1 << (key.port & 63) != 0 {
                self.control.look(key.port, known.mode != mode::RECOGNISE)?;
            }
        }
        Ok(())
    }

    /// The workload that a connection reaches. The kernel may have read its table just before the
    /// listener was made known there.
    pub(super) fn reached(&self, flow: &FlowKey) -> Option<WorkloadId> {
        parked::listeners_of(flow)
            .iter()
            .find_map(|key| self.listeners.get(key).copied())
    }

    /// Counts a request that began before the kernel knew its workload, when it is known by now.
    pub(super) fn claim(&mut self, id: (u64, u32)) {
        let Some(entry) = self.entries.get(&id) else {
            return;
        };
        if entry.workload != 0 || entry.head.is_none() {
            return;
        }
        let Some(workload) = self.reached(&entry.key) else {
            return;
        };
        let engine = self.engine_of(workload.0);
        if let Some(entry) = self.entries.get_mut(&id) {
            join(&mut self.store, entry, workload, engine);
            if entry.by_agent {
                entry.counted = true;
                if let Some(known) = self.known.get_mut(&workload.0) {
                    known.started += 1;
                }
            }
        }
    }

    /// Nobody watches `listener`: what was held back for it is forgotten.
    pub fn reject(&mut self, listener: &ListenerKey) {
        self.parked.take(listener);
    }

    /// Looks again at requests whose head came before the kernel's own socket was seen: nothing more
    /// may come of them for long.
    pub(super) fn make_sure(&mut self, now: u64) {
        for _ in 0..self.unsure.len() {
            let Some((_, id)) = self.unsure.pop_front_if(|(due, _)| *due <= now) else {
                break;
            };
            let Some(entry) = self.entries.get_mut(&id).filter(|e| !e.confirmed) else {
                continue;
            };
            match self.tables.flow(&entry.key) {
                Some(f) if f.id == id.0 && f.confirmed != 0 => {
                    entry.confirmed = true;
                    let engine = self.engine_of(f.workload);
                    if let Some(entry) = self.entries.get_mut(&id) {
                        entry.read_head(engine);
                    }
                    self.claim(id);
                }
                Some(f) if f.id == id.0 => self.unsure.push_back((now + UNSURE_NS, id)),
                _ => {}
            }
        }
    }
}
