//! Discovery: which processes are watched, in which namespaces, on which sockets. One thread that
//! may block on `/proc` and netlink; it holds the lock of the numbers only to hand over results.
//!
//! A namespace is tapped when it holds a watched process or, while recognition from traffic is on,
//! any listening TCP socket. The order on the way in is fixed: tap, make listeners known, then take
//! up the connections that are older, so that none falls between.

mod decide;
pub mod inventory;
mod places;
mod rescan;
mod space;
mod sweep;
mod tree;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Result;
use enginetap_ebpf::abi::counters::WORKLOADS;
use enginetap_ebpf::abi::flow::FlowKey;
use enginetap_ebpf::abi::listener::{Listener, ListenerKey, mode};
use enginetap_ebpf::abi::record::{Life, Listen, life};

use crate::bpf::tables::FlowsView;
use crate::config::{Settings, Switch};
use crate::engines;
use crate::ingest::{Ingest, News, reaches};
use crate::metrics::input::{Aspect, CoverageRow, CoverageState};
use crate::targets::proc::{self, Process, ProcessKey};
use crate::targets::scan::scan;
use crate::targets::sockdiag::{self, Endpoint, TcpSocket};
use crate::targets::workload;
use crate::vocab::{Engine, Identity, Role, WorkloadId};
use decide::{Decision, decide};
use inventory::{Inventory, WatchedProcess};
use space::Space;

const RESCAN: Duration = Duration::from_secs(10);
/// Programs that are looked at when they are executed, per sweep.
const EXECS: u32 = 500;
/// Least time between two scans, however much happens.
const SCAN_APART: Duration = Duration::from_secs(2);
const TURN: Duration = Duration::from_millis(500);

/// Shared with the endpoints.
pub type Shared<T> = Arc<Mutex<T>>;

/// Takes a lock; a thread that died with it held leaves data that is still consistent enough to
/// count with.
pub fn hold<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// What is known of a listener.
#[derive(Clone, Debug)]
struct Known {
    workload: Option<WorkloadId>,
    owner: Option<ProcessKey>,
    mode: u32,
}

/// See the module.
pub struct Watcher {
    settings: Settings,
    ingest: Shared<Ingest>,
    inventory: Shared<Inventory>,
    program: OwnedFd,
    flows: FlowsView,
    news: Receiver<News>,
    spaces: BTreeMap<u32, Space>,
    /// Namespaces that the last sweep found without use.
    idle: BTreeSet<u32>,
    listeners: BTreeMap<ListenerKey, Known>,
    /// Addresses of watched listeners' clients that are nginx or Envoy.
    fronts: HashSet<ProcessKey>,
    own_pid: u32,
    owner_works: bool,
    scanned: Instant,
    swept: Instant,
    checked: Instant,
    said: HashSet<String>,
    /// Listeners that began while a scan was under way: it may not have seen them.
    heard: HashSet<ListenerKey>,
    execs: u32,
    own_netns: Option<u32>,
    scanning: bool,
    wants_scan: bool,
    tell: Sender<News>,
}

/// What the watcher is built from.
pub struct Parts {
    /// What the run goes by.
    pub settings: Settings,
    /// The numbers.
    pub ingest: Shared<Ingest>,
    /// What is watched.
    pub inventory: Shared<Inventory>,
    /// The tap's program.
    pub program: OwnedFd,
    /// The flow table.
    pub flows: FlowsView,
    /// News from the kernel programs.
    pub news: Receiver<News>,
    /// The sending end of the same.
    pub tell: Sender<News>,
    /// Whether the hook that names readers works.
    pub owner_works: bool,
}

fn endpoint_key(netns: u32, at: &Endpoint) -> ListenerKey {
    ListenerKey {
        netns,
        port: at.port,
        pad: 0,
        addr: words(&at.ip),
    }
}

fn words(ip: &[u8; 16]) -> [u32; 4] {
    let mut out = [0; 4];
    for (word, bytes) in out.iter_mut().zip(ip.chunks_exact(4)) {
        *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
    out
}

/// The address of a key.
fn address(key: &ListenerKey) -> SocketAddr {
    let mut ip = [0u8; 16];
    for (bytes, word) in ip.chunks_exact_mut(4).zip(key.addr) {
        bytes.copy_from_slice(&word.to_ne_bytes());
    }
    SocketAddr::new(Endpoint { ip, port: key.port }.ip_addr(), key.port)
}

fn flow_key(netns: u32, socket: &TcpSocket) -> FlowKey {
    FlowKey {
        netns,
        server_port: socket.local.port,
        client_port: socket.remote.port,
        server: words(&socket.local.ip),
        client: words(&socket.remote.ip),
    }
}

fn now_unix() -> f64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0.0, |d| d.as_secs_f64())
}

impl Watcher {
    /// Joins the parts.
    pub fn new(parts: Parts) -> Watcher {
        let now = Instant::now();
        Watcher {
            settings: parts.settings,
            ingest: parts.ingest,
            inventory: parts.inventory,
            program: parts.program,
            flows: parts.flows,
            news: parts.news,
            spaces: BTreeMap::new(),
            idle: BTreeSet::new(),
            listeners: BTreeMap::new(),
            fronts: HashSet::new(),
            own_pid: std::process::id(),
            owner_works: parts.owner_works,
            scanned: now,
            swept: now,
            checked: now,
            said: HashSet::new(),
            heard: HashSet::new(),
            execs: 0,
            own_netns: None,
            scanning: false,
            wants_scan: false,
            tell: parts.tell,
        }
    }

    /// Watches until the other side of the news is gone or `stop` says so.
    pub fn run(mut self, stop: &std::sync::atomic::AtomicBool) {
        self.enter_own();
        let first = scan(&self.scan_options()).map(Box::new);
        self.take_scan(first);
        hold(&self.inventory).ready = true;
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            match self.news.recv_timeout(TURN) {
                Ok(news) => self.hear(news),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.refresh_devices();
            let since = self.scanned.elapsed();
            if since >= RESCAN || (self.wants_scan && since >= SCAN_APART) {
                self.rescan();
            }
            self.sweep();
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Listen(l) => self.listen(&l),
            News::Life(l) => self.life(&l),
            News::Scanned(found) => self.take_scan(found),
            News::Answers { flow, hint } => self.answers(&flow, hint),
        }
    }

    /// Says something once.
    fn say(&mut self, what: String) {
        if self.said.len() < 1000 && self.said.insert(what.clone()) {
            tracing::warn!("{what}");
        }
    }

    fn decide(&self, process: &Process, ports: &[u16]) -> Decision {
        decide(
            &self.settings,
            process,
            ports,
            self.fronts.contains(&process.key),
        )
    }

    /// Acts on a decision about one listener.
    fn apply(
        &mut self,
        key: ListenerKey,
        process: &Process,
        name: workload::WorkloadName,
        decision: &Decision,
        pids: &[u32],
    ) {
        let (value, workload) = match decision {
            Decision::Watch { engine, role, why } => {
                let Some(id) = self.workload(process, name, *engine, *role, why) else {
                    return;
                };
                (
                    Listener {
                        workload: id.0,
                        mode: mode::WATCHED,
                    },
                    Some(id),
                )
            }
            Decision::Recognise { .. } => {
                let known = self
                    .listeners
                    .get(&key)
                    .filter(|k| k.owner == Some(process.key));
                if let Some(id) = known.and_then(|k| k.workload) {
                    // Recognised from its traffic before.
                    (
                        Listener {
                            workload: id.0,
                            mode: mode::WATCHED,
                        },
                        Some(id),
                    )
                } else {
                    (
                        Listener {
                            workload: 0,
                            mode: mode::RECOGNISE,
                        },
                        None,
                    )
                }
            }
            Decision::Ignore { .. } => {
                self.listeners.remove(&key);
                let mut ingest = hold(&self.ingest);
                if let Err(error) = ingest.tables.remove_listener(&key) {
                    tracing::warn!(%error, "a listener could not be forgotten");
                }
                ingest.reject(&key);
                return;
            }
        };
        if let Err(error) = self.enter(key.netns, pids) {
            self.say(format!("network namespace {}: {error:#}", key.netns));
            return;
        }
        let before = self.listeners.insert(
            key,
            Known {
                workload,
                owner: Some(process.key),
                mode: value.mode,
            },
        );
        let same = before.is_some_and(|b| b.workload == workload && b.mode == value.mode);
        if let Some(id) = workload {
            let mut inventory = hold(&self.inventory);
            if let Some(w) = inventory.workloads.get_mut(&id) {
                w.listeners.insert(address(&key));
            }
        }
        if same {
            return;
        }
        if let Err(error) = self.make_known(key, value, workload) {
            self.say(format!("listener {}: {error:#}", address(&key)));
        }
    }

    /// Tells the kernel programs of a listener, then takes up its older connections.
    fn make_known(
        &mut self,
        key: ListenerKey,
        value: Listener,
        workload: Option<WorkloadId>,
    ) -> Result<()> {
        {
            let mut ingest = hold(&self.ingest);
            ingest.tables.set_listener(key, value)?;
            let cell = u32::from(key.port >> 6);
            let bit = 1u64 << (key.port & 63);
            let mut ports = ingest.tables.ports(cell)?;
            if value.mode == mode::RECOGNISE {
                ports.recognise |= bit;
            } else {
                ports.watched |= bit;
            }
            ingest.tables.set_ports(cell, ports)?;
            if let Some(id) = workload {
                ingest.assign(&key, id);
            }
        }
        let Some(id) = workload else { return Ok(()) };
        let Some(space) = self.spaces.get(&key.netns) else {
            return Ok(());
        };
        let port = key.port;
        let old = space.within(move || sockdiag::connections(|s| s.local.port == port))??;
        for socket in &old {
            let flow = flow_key(key.netns, socket);
            if reaches(&flow, &key) {
                hold(&self.ingest).adopt(&flow, id);
            }
        }
        Ok(())
    }

    /// The number of the workload a process belongs to; registers both.
    fn workload(
        &mut self,
        process: &Process,
        name: workload::WorkloadName,
        engine: Engine,
        role: Role,
        why: &str,
    ) -> Option<WorkloadId> {
        let identity = Identity {
            namespace: name.namespace,
            pod: name.pod,
            container: name.container,
            engine,
        };
        let start = start_time(process.key);
        let numbered = {
            let mut inventory = hold(&self.inventory);
            let numbered = inventory.number(&identity, WORKLOADS);
            inventory.others.remove(&process.key.tgid);
            if let Some((id, _)) = numbered
                && let Some(w) = inventory.workloads.get_mut(&id)
            {
                w.processes
                    .entry(process.key)
                    .or_insert_with(|| watched(process, role, why));
                w.start_time = Some(w.start_time.map_or(start, |s| s.min(start)));
                if w.coverage.is_empty() {
                    w.coverage = coverage(self.owner_works);
                }
            }
            numbered
        };
        let Some((id, new)) = numbered else {
            self.say(format!(
                "{}: no more than {WORKLOADS} workloads can be told apart",
                identity.container
            ));
            return None;
        };
        if new {
            tracing::info!(container = %identity.container, engine = engine.as_str(), why, "watching");
            let mut ingest = hold(&self.ingest);
            ingest.know(id, engine);
            ingest.store.add_workload(id, identity);
            for model in engines::model_from_cmdline(engine, &process.cmdline) {
                ingest.store.serve_model(id, &model);
            }
        }
        Some(id)
    }

    /// A socket began or ceased to listen.
    fn listen(&mut self, l: &Listen) {
        let pid = l.process.tgid;
        if l.listening == 0 {
            // Whoever drops the last reference closes the socket, so the process means nothing
            // here; and others may listen on the same address (SO_REUSEPORT). A scan tells.
            self.wants_scan = true;
            return;
        }
        if pid == self.own_pid {
            let mut ingest = hold(&self.ingest);
            if let Err(error) = ingest.tables.remove_listener(&l.key) {
                tracing::warn!(%error, "the agent's own listener could not be left out");
            }
            return;
        }
        self.heard.insert(l.key);
        // Before anything is read: the first connection may be on its way. If it turns out that
        // nobody is watched there, the next sweep leaves the namespace again.
        if let Err(error) = self.enter(l.key.netns, &[pid]) {
            tracing::debug!(pid, "network namespace {}: {error:#}", l.key.netns);
        }
        let process = match proc::read_process(&self.settings.proc_root, pid) {
            Ok(process) => process,
            Err(error) => {
                tracing::debug!(pid, %error, "a process that began to listen could not be read");
                return;
            }
        };
        let decision = self.decide(&process, &[l.key.port]);
        let by_pid = |pid: u32| proc::read_identity(&self.settings.proc_root, pid).ok();
        let name = workload::name_in_tree(&process, by_pid);
        self.apply(l.key, &process, name, &decision, &[pid]);
        tracing::debug!(pid, port = l.key.port, ?decision, "listens");
        let devices = self.spaces.get(&l.key.netns).map(Space::devices);
        if let Some(devices) = devices {
            hold(&self.inventory).spaces.insert(l.key.netns, devices);
        }
    }

    fn life(&mut self, l: &Life) {
        if l.what == life::EXEC {
            self.executes(l.process.tgid);
        } else if l.what == life::FORK {
            self.wants_scan = true;
        }
    }

    /// A listener answered an inference route.
    fn answers(&mut self, flow: &FlowKey, hint: Option<Engine>) {
        let found = self
            .listeners
            .iter()
            .find(|(key, known)| known.workload.is_none() && reaches(flow, key));
        let Some((key, known)) = found.map(|(k, v)| (*k, v.clone())) else {
            return;
        };
        let Some(owner) = known.owner else { return };
        let Ok(process) = proc::read_process(&self.settings.proc_root, owner.tgid) else {
            return;
        };
        if process.key != owner || self.settings.recognise == Switch::Off {
            return;
        }
        let by_pid = |pid: u32| proc::read_identity(&self.settings.proc_root, pid).ok();
        let name = workload::name_in_tree(&process, by_pid);
        let engine = hint.unwrap_or(Engine::OpenAi);
        let decision = Decision::Watch {
            engine,
            role: Role::Api,
            why: "answers an inference route".to_owned(),
        };
        self.apply(key, &process, name, &decision, &[owner.tgid]);
    }
}

fn watched(process: &Process, role: Role, why: &str) -> WatchedProcess {
    WatchedProcess {
        pid: process.key.tgid,
        role: role.as_str(),
        why: why.to_owned(),
        comm: process.comm.clone(),
        ended: 0,
        in_flight: 0,
        received_bytes: 0,
        sent_bytes: 0,
        events: 0,
    }
}

/// Start of a process in seconds since 1970.
fn start_time(key: ProcessKey) -> f64 {
    let boot = nix::time::clock_gettime(nix::time::ClockId::CLOCK_BOOTTIME)
        .map_or(0.0, |t| t.tv_sec() as f64 + t.tv_nsec() as f64 / 1e9);
    now_unix() - boot + key.start_ticks as f64 / 100.0
}

fn coverage(owner_works: bool) -> Vec<CoverageRow> {
    let row = |aspect, state, reason| CoverageRow {
        aspect,
        state,
        reason,
    };
    vec![
        row(Aspect::Wire, CoverageState::Full, ""),
        row(Aspect::Tls, CoverageState::None, "not_supported"),
        if owner_works {
            row(Aspect::Owner, CoverageState::Full, "")
        } else {
            row(Aspect::Owner, CoverageState::None, "hook_unsupported")
        },
        row(Aspect::Stalls, CoverageState::None, "not_supported"),
        row(Aspect::Page, CoverageState::None, "not_supported"),
    ]
}
