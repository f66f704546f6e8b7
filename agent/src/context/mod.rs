//! Context: what the kernel says of the node and of each watched workload's cgroup. Read on a slow
//! clock of its own, never by a scrape; a page shows the last reading, and the time of the last
//! one that succeeded stands beside it (`task="node"`, `task="cgroup"`).
//!
//! A workload has a cgroup of its own when it is a container or a systemd unit: the cgroup that
//! names it, with all that is nested inside, so that nothing counts twice. A plain executable shares
//! its cgroup with others; nothing is said of it, and its coverage says why.

mod cgroup;
mod growing;
mod hierarchy;
mod meters;
mod node;
mod parse;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use crate::metrics::context::{CgroupFigures, NodeFigures};
use crate::metrics::input::{Aspect, CoverageState};
use crate::targets::proc::ProcessKey;
use crate::vocab::WorkloadId;
use crate::watch::hold;
use crate::watch::inventory::Inventory;
use hierarchy::Hierarchies;
use meters::{Cover, Meters, Subject};
use node::Node;

/// Time between two readings.
const EVERY: Duration = Duration::from_secs(5);
/// How soon a workload that is new is read for the first time.
const TURN: Duration = Duration::from_secs(1);
/// How soon a stop is noticed.
const NAP: Duration = Duration::from_millis(100);
/// At most this many processes of a workload are asked for their cgroups; all of a container or
/// unit give the same answer.
const ASKED: usize = 64;

/// The last reading.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// The node.
    pub node: NodeFigures,
    /// The cgroups of workloads.
    pub workloads: BTreeMap<WorkloadId, CgroupFigures>,
}

/// Reads until `stop`.
pub fn run(
    proc_root: &Path,
    inventory: &Mutex<Inventory>,
    context: &Mutex<Context>,
    stop: &AtomicBool,
) {
    let mut collector = Collector::new(proc_root);
    let mut read_at: Option<Instant> = None;
    let mut turn_at: Option<Instant> = None;
    while !stop.load(Ordering::Relaxed) {
        if turn_at.is_none_or(|at| at.elapsed() >= TURN) {
            turn_at = Some(Instant::now());
            let subjects = subjects(&hold(inventory));
            if read_at.is_none_or(|at| at.elapsed() >= EVERY) {
                read_at = Some(Instant::now());
                collector.read_node(inventory, context);
                collector.read_cgroups(&subjects, inventory, context);
            } else if subjects.iter().any(|s| collector.is_new(s.id)) {
                collector.read_cgroups(&subjects, inventory, context);
            }
        }
        std::thread::sleep(NAP);
    }
}

/// The workloads and the processes to ask for their cgroups.
fn subjects(inventory: &Inventory) -> Vec<Subject> {
    let subject = |(&id, w): (&WorkloadId, &crate::watch::inventory::Watched)| Subject {
        id,
        pod: w.identity.pod.clone(),
        container: w.identity.container.clone(),
        processes: w.processes.keys().take(ASKED).copied().collect(),
    };
    inventory.workloads.iter().map(subject).collect()
}

/// What is kept from reading to reading.
struct Collector {
    proc_root: PathBuf,
    hierarchies: Hierarchies,
    node: Node,
    meters: BTreeMap<WorkloadId, Meters>,
}

impl Collector {
    fn new(proc_root: &Path) -> Collector {
        Collector {
            proc_root: proc_root.to_owned(),
            hierarchies: Hierarchies::default(),
            node: Node::default(),
            meters: BTreeMap::new(),
        }
    }

    fn is_new(&self, id: WorkloadId) -> bool {
        !self.meters.contains_key(&id)
    }

    fn read_node(&mut self, inventory: &Mutex<Inventory>, context: &Mutex<Context>) {
        let began = now_unix();
        let read = self.node.read(&self.proc_root);
        hold(context).node = self.node.figures();
        succeeded("node", began, read, inventory);
    }

    fn read_cgroups(
        &mut self,
        subjects: &[Subject],
        inventory: &Mutex<Inventory>,
        context: &Mutex<Context>,
    ) {
        let began = now_unix();
        let mut read = self.find_hierarchies();
        self.meters
            .retain(|id, _| subjects.iter().any(|s| s.id == *id));
        let mut covers = Vec::new();
        for subject in subjects {
            let meters = self.meters.entry(subject.id).or_default();
            let own = own_paths(&self.proc_root, subject);
            if let Err(error) = meters.read(&self.hierarchies, own) {
                read = Err(error);
            }
            covers.push((subject.id, meters.cover()));
        }
        hold(context).workloads = self
            .meters
            .iter()
            .map(|(id, meters)| (*id, meters.figures()))
            .collect();
        tell_coverage(&covers, inventory);
        succeeded("cgroup", began, read, inventory);
    }

    /// Looks for the mounts until there are some: they do not move later.
    fn find_hierarchies(&mut self) -> io::Result<()> {
        if self.hierarchies.is_empty() {
            self.hierarchies = Hierarchies::find()?;
        }
        Ok(())
    }
}

/// The cgroups of its own that a workload's processes are in now.
fn own_paths(proc_root: &Path, subject: &Subject) -> meters::Paths {
    let lines = |key: &ProcessKey| crate::targets::proc::read_cgroups(proc_root, *key);
    subject
        .processes
        .iter()
        // One that has exited is in no cgroup.
        .filter_map(|key| lines(key).ok())
        .flat_map(|lines| hierarchy::own_paths(&lines, &subject.pod, &subject.container))
        .collect()
}

/// Stamps a task that succeeded; says what failed of one that did not.
fn succeeded(task: &'static str, at: f64, read: io::Result<()>, inventory: &Mutex<Inventory>) {
    match read {
        Ok(()) => {
            hold(inventory).tasks.insert(task, at);
        }
        Err(error) => tracing::debug!(task, %error, "context could not be read in full"),
    }
}

fn tell_coverage(covers: &[(WorkloadId, Cover)], inventory: &Mutex<Inventory>) {
    let mut inventory = hold(inventory);
    let clocks = inventory.clocks;
    for (id, cover) in covers {
        let Some(watched) = inventory.workloads.get_mut(id) else {
            continue;
        };
        let rows = watched.coverage.iter_mut();
        for row in rows.filter(|row| row.aspect == Aspect::Stalls) {
            let without = if clocks {
                CoverageState::Partial
            } else {
                CoverageState::None
            };
            (row.state, row.reason) = match cover {
                Cover::Whole if clocks => (CoverageState::Full, ""),
                Cover::Whole => (CoverageState::Partial, "context_only"),
                Cover::NoPressure => (CoverageState::Partial, "no_psi"),
                Cover::V1 => (CoverageState::Partial, "cgroup_v1"),
                Cover::Shared => (without, "no_own_cgroup"),
                Cover::OutOfReach => (without, "cgroup_out_of_reach"),
            };
        }
    }
}

fn now_unix() -> f64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0.0, |d| d.as_secs_f64())
}
