//! The whole node in one pass: namespaces, listeners with their owners, and the connections that
//! listeners have accepted.
//!
//! Every process costs a stat line and a link; every namespace one thread and two dumps; every
//! descriptor one link; only owners of listeners have the rest read. One process or namespace
//! that cannot be read never loses the others: it is named in the errors, unless it exited.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::fdscan::{pick_owner, socket_owners};
use super::netns::{self, NetnsId};
use super::proc::{self, ProcError, Process, ProcessKey, Stat};
use super::sockdiag::{self, TcpSocket};

/// What to scan.
#[derive(Clone, Debug)]
pub struct ScanOptions {
    /// Where `/proc` of the host is.
    pub proc_root: PathBuf,
    /// Whether the mapped files of listeners' owners are read.
    pub maps: bool,
    /// Whether connections are dumped.
    pub connections: bool,
}

impl Default for ScanOptions {
    fn default() -> Self {
        Self {
            proc_root: PathBuf::from("/proc"),
            maps: true,
            connections: true,
        }
    }
}

/// A listening socket and who holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The socket.
    pub socket: TcpSocket,
    /// All processes that hold it, by pid.
    pub holders: Vec<ProcessKey>,
    /// The one it is attributed to; `None` when nobody was found (it belongs to the kernel, or
    /// to a process that could not be read).
    pub owner: Option<ProcessKey>,
}

/// A connection whose local port is that of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The socket.
    pub socket: TcpSocket,
    /// All processes that hold it, by pid; empty while it is not accepted or after its close.
    pub holders: Vec<ProcessKey>,
    /// The one it is attributed to.
    pub owner: Option<ProcessKey>,
}

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    /// Which one.
    pub id: NetnsId,
    /// Keeps it open; `None` when it could not be entered, then nothing of it is known.
    pub handle: Option<OwnedFd>,
    /// Processes that live in it, ascending.
    pub pids: Vec<u32>,
    /// Its listeners by address.
    pub listeners: Vec<Listener>,
    /// Its connections by address.
    pub connections: Vec<Connection>,
}

/// Something that could not be read.
#[derive(Debug)]
pub struct ScanError {
    /// Which process; the representative of its namespace for `netns`.
    pub pid: u32,
    /// At which step.
    pub step: &'static str,
    /// Why.
    pub reason: anyhow::Error,
}

impl fmt::Display for ScanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {}: {}: {:#}", self.pid, self.step, self.reason)
    }
}

impl From<ProcError> for ScanError {
    fn from(error: ProcError) -> Self {
        Self {
            pid: error.pid,
            step: error.step,
            reason: error.source.into(),
        }
    }
}

/// What a scan found.
#[derive(Debug, Default)]
pub struct ScanResult {
    /// All namespaces that processes live in, by number.
    pub namespaces: Vec<Namespace>,
    /// Every process that holds a listener.
    pub processes: BTreeMap<ProcessKey, Process>,
    /// The stat line of every process, by pid.
    pub stats: BTreeMap<u32, Stat>,
    /// What could not be read. Processes that exited are not among it.
    pub errors: Vec<ScanError>,
}

impl ScanResult {
    /// All processes below `pid`, ascending.
    pub fn descendants(&self, pid: u32) -> Vec<u32> {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for (&child, stat) in &self.stats {
            children.entry(stat.ppid).or_default().push(child);
        }
        let mut found = BTreeSet::new();
        let mut open = vec![pid];
        while let Some(parent) = open.pop() {
            for &child in children.get(&parent).into_iter().flatten() {
                if found.insert(child) {
                    open.push(child);
                }
            }
        }
        found.into_iter().collect()
    }

    /// The ports a process listens on, ascending.
    pub fn ports_of(&self, key: ProcessKey) -> Vec<u16> {
        let ports: BTreeSet<u16> = self
            .namespaces
            .iter()
            .flat_map(|namespace| &namespace.listeners)
            .filter(|listener| listener.holders.contains(&key))
            .map(|listener| listener.socket.local.port)
            .collect();
        ports.into_iter().collect()
    }

    fn note(&mut self, error: ProcError) {
        if !error.is_gone() {
            self.errors.push(error.into());
        }
    }
}

/// Scans the node. Fails only when `proc_root` cannot be listed.
pub fn scan(options: &ScanOptions) -> Result<ScanResult> {
    let mut result = ScanResult::default();
    let mut members: BTreeMap<NetnsId, Vec<u32>> = BTreeMap::new();
    let pids = proc::list_pids(&options.proc_root)
        .with_context(|| format!("list {}", options.proc_root.display()))?;
    for pid in pids {
        let stat = match proc::read_stat(&options.proc_root, pid) {
            Ok(stat) => stat,
            Err(error) => {
                result.note(error);
                continue;
            }
        };
        // Kernel threads hold no descriptors and would pin the host's namespace to any pid.
        if !stat.kernel_thread {
            match proc::read_netns(&options.proc_root, pid) {
                Ok(id) => members.entry(id).or_default().push(pid),
                Err(error) => result.note(error),
            }
        }
        result.stats.insert(pid, stat);
    }
    for (id, pids) in members {
        let namespace = dump(options, id, pids, &mut result.errors);
        result.namespaces.push(namespace);
    }
    attribute(options, &mut result);
    read_owners(options, &mut result);
    Ok(result)
}

/// Dumps the sockets of one namespace.
fn dump(
    options: &ScanOptions,
    id: NetnsId,
    pids: Vec<u32>,
    errors: &mut Vec<ScanError>,
) -> Namespace {
    let mut namespace = Namespace {
        id,
        handle: None,
        pids,
        listeners: Vec::new(),
        connections: Vec::new(),
    };
    let found = netns::open_by_id(&options.proc_root, id, &namespace.pids)
        .and_then(|handle| Ok((netns::in_netns(&handle, || sockets(options))??, handle)));
    match found {
        Ok(((listeners, connections), handle)) => {
            namespace.handle = Some(handle);
            namespace.listeners = listeners
                .into_iter()
                .map(|socket| Listener {
                    socket,
                    holders: Vec::new(),
                    owner: None,
                })
                .collect();
            namespace.connections = connections
                .into_iter()
                .map(|socket| Connection {
                    socket,
                    holders: Vec::new(),
                    owner: None,
                })
                .collect();
        }
        // Everybody in it may have exited meanwhile: then there is nothing to miss.
        Err(reason) => {
            let gone = |pid: &u32| {
                proc::read_netns(&options.proc_root, *pid).map_or_else(|e| e.is_gone(), |n| n != id)
            };
            if !namespace.pids.iter().all(gone) {
                let pid = namespace.pids.first().copied().unwrap_or_default();
                errors.push(ScanError {
                    pid,
                    step: "netns",
                    reason,
                });
            }
        }
    }
    namespace
}

fn sockets(options: &ScanOptions) -> Result<(Vec<TcpSocket>, Vec<TcpSocket>)> {
    let listeners = sockdiag::listeners()?;
    if !options.connections || listeners.is_empty() {
        return Ok((listeners, Vec::new()));
    }
    let ports: HashSet<u16> = listeners.iter().map(|socket| socket.local.port).collect();
    let connections = sockdiag::connections(|socket| ports.contains(&socket.local.port))?;
    Ok((listeners, connections))
}

/// Finds the holders and the owner of every socket, in one pass over all descriptors.
fn attribute(options: &ScanOptions, result: &mut ScanResult) {
    let wanted: HashSet<u64> = result
        .namespaces
        .iter()
        .flat_map(|namespace| {
            let listeners = namespace
                .listeners
                .iter()
                .map(|listener| listener.socket.inode);
            listeners.chain(namespace.connections.iter().map(|c| c.socket.inode))
        })
        .filter(|&inode| inode != 0)
        .collect();
    let pids = result
        .stats
        .values()
        .filter(|s| !s.kernel_thread)
        .map(|s| s.key.tgid);
    let found = socket_owners(&options.proc_root, pids, &wanted);
    for error in found.errors {
        result.note(error);
    }
    let stats = &result.stats;
    let holders = |inode: u64| {
        let pids = found
            .by_inode
            .get(&inode)
            .map(Vec::as_slice)
            .unwrap_or_default();
        let held: Vec<&Stat> = pids.iter().filter_map(|pid| stats.get(pid)).collect();
        let owner = pick_owner(held.iter().copied()).map(|stat| stat.key);
        (held.iter().map(|stat| stat.key).collect::<Vec<_>>(), owner)
    };
    for namespace in &mut result.namespaces {
        for listener in &mut namespace.listeners {
            (listener.holders, listener.owner) = holders(listener.socket.inode);
        }
        for connection in &mut namespace.connections {
            (connection.holders, connection.owner) = holders(connection.socket.inode);
        }
    }
}

/// Reads the facts of every process that holds a listener.
fn read_owners(options: &ScanOptions, result: &mut ScanResult) {
    let keys: BTreeSet<ProcessKey> = result
        .namespaces
        .iter()
        .flat_map(|namespace| &namespace.listeners)
        .flat_map(|listener| listener.holders.iter().copied())
        .collect();
    for key in keys {
        let mut process = match proc::read_identity(&options.proc_root, key.tgid) {
            Ok(process) if process.key == key => process,
            // The pid was taken over since the scan began.
            Ok(_) => continue,
            Err(error) => {
                result.note(error);
                continue;
            }
        };
        if options.maps {
            match proc::read_mapped(&options.proc_root, key) {
                Ok(mapped) => process.mapped = mapped,
                Err(error) => result.note(error),
            }
        }
        result.processes.insert(key, process);
    }
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
