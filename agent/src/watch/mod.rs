//! Discovery: which processes are watched, in which namespaces, on which sockets. One thread that
//! may block on `/proc` and netlink; it holds the lock of the numbers only to hand over results.
//!
//! A namespace is tapped when it holds a watched process or, while recognition from traffic is on,
//! any listening TCP socket. The order on the way in is fixed: tap, make listeners known, then take
//! up the connections that are older, so that none falls between.

mod decide;
mod hear;
pub mod inventory;
mod places;
pub mod recent;
mod rescan;
mod serve;
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
use enginetap_ebpf::abi::listener::{ListenerKey, mode};

use crate::bpf::tables::FlowsView;
use crate::config::Settings;
use crate::engines;
use crate::ingest::{Ingest, News, monotonic_ns, reaches};
use crate::metrics::input::{Aspect, CoverageRow, CoverageState};
use crate::targets::proc::{Process, ProcessKey};
use crate::targets::scan::scan;
use crate::targets::sockdiag::{self, Endpoint, TcpSocket};
use crate::targets::workload;
use crate::vocab::{Engine, Identity, Role, WorkloadId};
use decide::{Decision, decide};
use inventory::{Inventory, WatchedProcess};
use recent::Heard;
use space::Space;

const RESCAN: Duration = Duration::from_secs(10);
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

/// Whether a listener may have connections that are older than the tap.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Older {
    /// Its namespace was tapped when it began to listen.
    No,
    /// They are looked for.
    Maybe,
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
    news: Receiver<Heard>,
    spaces: BTreeMap<u32, Space>,
    /// Namespaces that the last sweep found without use.
    idle: BTreeSet<u32>,
    listeners: BTreeMap<ListenerKey, Known>,
    /// Addresses of watched listeners' clients that are nginx or Envoy.
    fronts: HashSet<ProcessKey>,
    own_pid: u32,
    owner_works: bool,
    scanned: Instant,
    /// When the scan began whose result is taken next.
    scan_began_ns: u64,
    /// Bits of the port table that the last sweep found without a listener or connection.
    stale_ports: BTreeMap<u32, u64>,
    swept: Instant,
    checked: Instant,
    said: HashSet<String>,
    /// Listeners that began while a scan was under way: it may not have seen them.
    heard: HashSet<ListenerKey>,
    own_netns: Option<u32>,
    scanning: bool,
    wants_scan: bool,
    tell: Sender<News>,
    serving: serve::Serving,
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
    /// News from the kernel programs, with their processes.
    pub news: Receiver<Heard>,
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
            scan_began_ns: monotonic_ns(),
            stale_ports: BTreeMap::new(),
            swept: now,
            checked: now,
            said: HashSet::new(),
            heard: HashSet::new(),
            own_netns: None,
            scanning: false,
            wants_scan: false,
            tell: parts.tell,
            serving: serve::Serving::default(),
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
        older: Older,
    ) {
        let (mode, workload) = match decision {
            Decision::Watch { engine, role, why } => {
                let Some(id) = self.workload(process, name, *engine, *role, why) else {
                    return;
                };
                (mode::WATCHED, Some(id))
            }
            Decision::Recognise { .. } => {
                let known = self
                    .listeners
                    .get(&key)
                    .filter(|k| k.owner == Some(process.key));
                if let Some(id) = known.and_then(|k| k.workload) {
                    // Recognised from its traffic before.
                    (mode::WATCHED, Some(id))
                } else {
                    (mode::RECOGNISE, None)
                }
            }
            Decision::Ignore { .. } => {
                self.listeners.remove(&key);
                let mut ingest = hold(&self.ingest);
                if let Err(error) = ingest.remove_listener(&key, monotonic_ns()) {
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
                mode,
            },
        );
        let same = before.is_some_and(|b| b.workload == workload && b.mode == mode);
        if let Some(id) = workload {
            let mut inventory = hold(&self.inventory);
            if let Some(w) = inventory.workloads.get_mut(&id) {
                w.listeners.insert(address(&key));
            }
        }
        if same {
            return;
        }
        if let Err(error) = self.make_known(key, mode, workload, older) {
            self.say(format!("listener {}: {error:#}", address(&key)));
        }
        if workload.is_some() {
            self.serve();
        }
    }

    /// Tells the kernel programs of a listener, then takes up its older connections.
    fn make_known(
        &mut self,
        key: ListenerKey,
        mode: u32,
        workload: Option<WorkloadId>,
        older: Older,
    ) -> Result<()> {
        {
            let mut ingest = hold(&self.ingest);
            ingest.set_listener(key, workload.map_or(0, |id| id.0), mode)?;
            if let Some(id) = workload {
                ingest.assign(&key, id);
            }
        }
        let Some(id) = workload else { return Ok(()) };
        if older == Older::No {
            return Ok(());
        }
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
            if let Err(error) = ingest.tables.clear_workload(id.0) {
                tracing::warn!(%error, "the counters of a workload could not be cleared");
            }
            ingest.know(id, engine);
            ingest.store.add_workload(id, identity);
            for model in engines::model_from_cmdline(engine, &process.cmdline) {
                ingest.store.serve_model(id, &model);
            }
        }
        Some(id)
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
        // Until its context has been read for the first time.
        row(Aspect::Stalls, CoverageState::None, "not_read"),
        row(Aspect::Page, CoverageState::None, "not_supported"),
    ]
}
