//! Typed access to the maps.

use std::os::fd::AsFd;

use anyhow::{Context, Result};
use aya::Ebpf;
use aya::maps::{Array, HashMap, IterableMap, MapData, PerCpuArray};
use enginetap_ebpf::abi::counters::{LOST_CELLS, STATUS_CLASSES, STREAMING, Workload, outcome};
use enginetap_ebpf::abi::flow::{Flow, FlowKey};
use enginetap_ebpf::abi::listener::{Listener, ListenerKey, Ports};
use enginetap_ebpf::abi::process::{Process, ProcessKey};
use enginetap_ebpf::abi::record::told;
use enginetap_ebpf::abi::stall::{Clock, Serving, Thread};

use super::lookup;

const NO_EXIST: u64 = 1;

/// The maps the agent reads and writes.
pub struct Tables {
    flows: HashMap<MapData, FlowKey, Flow>,
    listeners: HashMap<MapData, ListenerKey, Listener>,
    ports: Array<MapData, Ports>,
    work: Array<MapData, Workload>,
    lost: Array<MapData, u64>,
    procs: HashMap<MapData, ProcessKey, Process>,
    told: Array<MapData, u64>,
    events_lost: PerCpuArray<MapData, u64>,
    flows_dropped: PerCpuArray<MapData, u64>,
    unparsed: PerCpuArray<MapData, u64>,
    threads: HashMap<MapData, u32, Thread>,
    serving: HashMap<MapData, ProcessKey, Serving>,
    clocks: Array<MapData, Clock>,
    set_of: Array<MapData, u32>,
}

fn take(ebpf: &mut Ebpf, name: &str) -> Result<aya::maps::Map> {
    ebpf.take_map(name)
        .with_context(|| format!("the object has no map {name}"))
}

impl Tables {
    /// Takes the maps out of the object.
    pub fn take(ebpf: &mut Ebpf) -> Result<Tables> {
        Ok(Tables {
            flows: take(ebpf, "FLOWS")?.try_into()?,
            listeners: take(ebpf, "LISTENERS")?.try_into()?,
            ports: take(ebpf, "PORTS")?.try_into()?,
            work: take(ebpf, "WORK")?.try_into()?,
            lost: take(ebpf, "LOST")?.try_into()?,
            procs: take(ebpf, "PROCS")?.try_into()?,
            told: take(ebpf, "TOLD")?.try_into()?,
            events_lost: take(ebpf, "EVENTS_LOST")?.try_into()?,
            flows_dropped: take(ebpf, "FLOWS_DROPPED")?.try_into()?,
            unparsed: take(ebpf, "UNPARSED")?.try_into()?,
            threads: take(ebpf, "THREADS")?.try_into()?,
            serving: take(ebpf, "SERVING")?.try_into()?,
            clocks: take(ebpf, "CLOCKS")?.try_into()?,
            set_of: take(ebpf, "SET_OF")?.try_into()?,
        })
    }

    /// Bytes that the kernel accounts to each map, as `/proc/self/fdinfo` says.
    pub fn memory(&self) -> Vec<(&'static str, u64)> {
        use std::os::fd::AsRawFd;
        let of = |name, fd: std::os::fd::BorrowedFd<'_>| {
            let text =
                std::fs::read_to_string(format!("/proc/self/fdinfo/{}", fd.as_raw_fd())).ok()?;
            let line = text.lines().find_map(|l| l.strip_prefix("memlock:"))?;
            Some((name, line.trim().parse().ok()?))
        };
        [
            of("FLOWS", self.flows.map().fd().as_fd()),
            of("LISTENERS", self.listeners.map().fd().as_fd()),
            of("PROCS", self.procs.map().fd().as_fd()),
            of("THREADS", self.threads.map().fd().as_fd()),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// Tells the tap that enough of a stream's first events was seen.
    pub fn tell(&mut self, flow: u64, number: u32) -> Result<()> {
        Ok(self.told.set(flow as u32 & 0xffff, told(flow, number), 0)?)
    }

    /// One flow, without its captured bytes.
    pub fn flow(&self, key: &FlowKey) -> Option<Box<Flow>> {
        lookup::flow(self.flows.map().fd().as_fd(), key)
    }

    fn flows_fd(&self) -> Result<std::os::fd::OwnedFd> {
        Ok(self.flows.map().fd().as_fd().try_clone_to_owned()?)
    }

    /// Makes a listener known.
    pub fn set_listener(&mut self, key: ListenerKey, value: Listener) -> Result<()> {
        Ok(self.listeners.insert(key, value, 0)?)
    }

    /// Every listener the kernel programs know.
    pub fn listeners(&self) -> Vec<(ListenerKey, Listener)> {
        self.listeners.iter().filter_map(Result::ok).collect()
    }

    /// A cell of the port table.
    pub fn ports(&self, cell: u32) -> Result<Ports> {
        Ok(self.ports.get(&cell, 0)?)
    }

    /// Counters of a workload.
    pub fn workload(&self, id: u32) -> Result<Workload> {
        Ok(self.work.get(&id, 0)?)
    }

    /// Sets all that the kernel counted for a workload to 0, before its number is given to another.
    pub fn clear_workload(&mut self, id: u32) -> Result<()> {
        self.work.set(id, Workload::default(), 0)?;
        let per = outcome::COUNT * STATUS_CLASSES * STREAMING;
        for cell in id * per..(id + 1) * per {
            if self.lost.get(&cell, 0)? != 0 {
                self.lost.set(cell, 0, 0)?;
            }
        }
        Ok(())
    }

    /// Requests of a workload whose end record was lost: outcome, status class, streaming, total.
    pub fn lost(&self, workload: u32) -> Result<Vec<(u32, u32, u32, u64)>> {
        let per = outcome::COUNT * STATUS_CLASSES * STREAMING;
        let mut found = Vec::new();
        for i in 0..per {
            let cell = workload * per + i;
            if cell >= LOST_CELLS {
                break;
            }
            let n = self.lost.get(&cell, 0)?;
            if n > 0 {
                found.push((
                    i / (STATUS_CLASSES * STREAMING),
                    i / STREAMING % STATUS_CLASSES,
                    i % STREAMING,
                    n,
                ));
            }
        }
        Ok(found)
    }

    /// Every process that read from a watched connection.
    pub fn processes(&self) -> Vec<(ProcessKey, Process)> {
        self.procs.iter().filter_map(Result::ok).collect()
    }

    /// Forgets a process that has exited and owns no flow.
    pub fn remove_process(&mut self, key: &ProcessKey) {
        // An entry that is gone already is what was wanted.
        let _ = self.procs.remove(key);
    }

    /// Makes an entry for a thread that serves, unless it has one.
    pub fn add_thread(&mut self, tid: u32, serving: Serving) {
        // An entry that is there already is the kernel's.
        let _ = self.threads.insert(tid, Thread::new(serving), NO_EXIST);
    }

    /// Takes the entry of a thread away.
    pub fn remove_thread(&mut self, tid: u32) {
        let _ = self.threads.remove(&tid);
    }

    /// Threads whose clocks run.
    pub fn threads(&self) -> u64 {
        self.threads.keys().filter_map(Result::ok).count() as u64
    }

    /// Says which sets the threads of a process belong to.
    pub fn set_serving(&mut self, key: &ProcessKey, serving: Serving) -> Result<()> {
        Ok(self.serving.insert(key, serving, 0)?)
    }

    /// Forgets that.
    pub fn remove_serving(&mut self, key: &ProcessKey) {
        let _ = self.serving.remove(key);
    }

    /// The clocks of a set.
    pub fn clock(&self, set: u32) -> Option<Clock> {
        self.clocks.get(&set, 0).ok()
    }

    /// Sets the clocks of a set to 0; no thread belongs to it.
    pub fn clear_clock(&mut self, set: u32) -> Result<()> {
        Ok(self.clocks.set(set, Clock::default(), 0)?)
    }

    /// The set that a workload's requests are charged from when their process is not known.
    pub fn set_default(&mut self, workload: u32, set: u32) -> Result<()> {
        Ok(self.set_of.set(workload, set, 0)?)
    }

    /// A node-wide counter array, summed over CPUs, in the order of its reasons.
    pub fn reasons(
        &self,
        which: Reasons,
        names: &'static [&'static str],
    ) -> Vec<(&'static str, u64)> {
        let map = match which {
            Reasons::EventsLost => &self.events_lost,
            Reasons::FlowsDropped => &self.flows_dropped,
            Reasons::Unparsed => &self.unparsed,
        };
        let sum = |i: usize| map.get(&(i as u32), 0).map(|v| v.iter().sum()).unwrap_or(0);
        names
            .iter()
            .enumerate()
            .map(|(i, name)| (*name, sum(i)))
            .collect()
    }
}

/// Node-wide counter arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reasons {
    /// `counters::lost`.
    EventsLost,
    /// `counters::dropped`.
    FlowsDropped,
    /// `counters::unparsed`.
    Unparsed,
}

/// A second handle to the flow table, for the slow clock.
pub struct FlowsView {
    flows: HashMap<MapData, FlowKey, Flow>,
}

impl FlowsView {
    /// Opens it.
    pub fn of(tables: &Tables) -> Result<FlowsView> {
        let fd = tables.flows_fd()?;
        let data = MapData::from_fd(fd)?;
        Ok(FlowsView {
            flows: aya::maps::Map::HashMap(data).try_into()?,
        })
    }

    /// Calls `visit` for every flow, without its captured bytes. The table may change meanwhile.
    pub fn each(&self, mut visit: impl FnMut(&FlowKey, &Flow)) {
        let keys: Vec<FlowKey> = self.flows.keys().filter_map(Result::ok).collect();
        for key in keys {
            if let Some(flow) = lookup::flow(self.flows.map().fd().as_fd(), &key) {
                visit(&key, &flow);
            }
        }
    }
}
