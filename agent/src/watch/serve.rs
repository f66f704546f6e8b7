//! Which clocks the threads of watched processes move. Every role of a workload has a set, and every
//! process whose requests are charged has one, to which the cores and workers behind it belong as
//! well; never another process that answers requests.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use enginetap_ebpf::abi::process::ProcessKey as Key;
use enginetap_ebpf::abi::stall::{SETS, Serving as Sets, serve};

use super::{Watcher, hold};
use crate::stalls::Interpreters;
use crate::targets::proc::{self, ProcessKey};
use crate::vocab::{Role, WorkloadId};

/// How long a set rests before it is another's: requests that began with it may still be open.
const REST: Duration = Duration::from_secs(60);
/// Parents that are looked through for the process that answers requests.
const DEPTH: usize = 16;

/// A process whose threads move clocks.
struct Served {
    workload: WorkloadId,
    /// The set its requests, or those of the process it works for, are charged from.
    set: u32,
    /// It is this process's own.
    own: bool,
}

/// See the module.
#[derive(Default)]
pub(super) struct Serving {
    processes: HashMap<ProcessKey, Served>,
    roles: BTreeMap<(WorkloadId, &'static str), u32>,
    /// What was last written as the set of requests whose process is not known.
    defaults: BTreeMap<WorkloadId, u32>,
    last: u32,
    free: VecDeque<(u32, Instant)>,
    interpreters: Interpreters,
}

/// A process that is watched and not served yet.
struct Fresh {
    workload: WorkloadId,
    key: ProcessKey,
    role: &'static str,
}

/// Works for another process of its workload and answers no requests itself.
fn behind(role: &str) -> bool {
    [Role::Core, Role::Worker, Role::Detokenizer]
        .iter()
        .any(|r| r.as_str() == role)
}

fn key_of(key: ProcessKey) -> Key {
    Key {
        tgid: key.tgid,
        pad: 0,
        start_ticks: key.start_ticks,
    }
}

impl Watcher {
    /// Lets the threads of watched processes move clocks, those first that answer requests.
    pub(super) fn serve(&mut self) {
        let mut fresh: Vec<Fresh> = Vec::new();
        for (id, w) in &hold(&self.inventory).workloads {
            for (key, p) in &w.processes {
                if !self.serving.processes.contains_key(key) {
                    fresh.push(Fresh {
                        workload: *id,
                        key: *key,
                        role: p.role,
                    });
                }
            }
        }
        if fresh.is_empty() {
            return;
        }
        fresh.sort_by_key(|f| behind(f.role));
        for f in fresh {
            self.serve_one(&f);
        }
        self.set_defaults();
    }

    fn serve_one(&mut self, f: &Fresh) {
        let front = behind(f.role).then(|| self.front_of(f)).flatten();
        let (set, own) = match front {
            Some(set) => (set, false),
            None => (self.new_set(), true),
        };
        let role = match self.serving.roles.get(&(f.workload, f.role)) {
            Some(role) => *role,
            None => {
                let role = self.new_set();
                if role != 0 {
                    self.serving.roles.insert((f.workload, f.role), role);
                    hold(&self.ingest).clocks.know(f.workload, f.role, role);
                }
                role
            }
        };
        let root = self.settings.proc_root.clone();
        let lock = self.serving.interpreters.lock_of(&root, f.key.tgid);
        let exe = std::fs::read_link(root.join(f.key.tgid.to_string()).join("exe"));
        let looped = lock.is_some()
            || exe.is_ok_and(|p| {
                p.file_name()
                    .is_some_and(|n| n == "node" || n == "nginx" || n == "nodejs")
            });
        let sets = Sets {
            sets: [role, set],
            flags: if looped && !behind(f.role) {
                serve::LOOP
            } else {
                0
            },
            pad: 0,
            gil: lock.unwrap_or_default(),
        };
        let key = f.key;
        let lives = || proc::read_stat(&root, key.tgid).is_ok_and(|stat| stat.key == key);
        let served = hold(&self.ingest).serve(&key_of(key), sets, lives);
        if let Err(error) = served {
            self.say(format!("process {}: stalls: {error:#}", key.tgid));
        }
        self.serving.processes.insert(
            key,
            Served {
                workload: f.workload,
                set,
                own,
            },
        );
    }

    /// The set of the process that a core or worker works for: the topmost of its ancestors that
    /// belongs to its workload.
    fn front_of(&self, f: &Fresh) -> Option<u32> {
        let root = &self.settings.proc_root;
        let (mut pid, mut found) = (f.key.tgid, None);
        for _ in 0..DEPTH {
            let Ok(stat) = proc::read_stat(root, pid) else {
                break;
            };
            if let Some(served) = self.serving.processes.get(&stat.key)
                && served.workload == f.workload
                && served.own
            {
                found = Some(served.set);
            }
            pid = stat.ppid;
            if pid == 0 {
                break;
            }
        }
        found
    }

    /// A set whose clocks stand at 0; 0 when there are no more.
    fn new_set(&mut self) -> u32 {
        let rested = self
            .serving
            .free
            .front()
            .is_some_and(|(_, at)| at.elapsed() > REST);
        let set = if rested && let Some((set, _)) = self.serving.free.pop_front() {
            set
        } else if self.serving.last + 1 < SETS {
            self.serving.last += 1;
            self.serving.last
        } else {
            self.say(format!(
                "stalls of no more than {SETS} processes and roles can be told"
            ));
            return 0;
        };
        if let Err(error) = hold(&self.ingest).tables.clear_clock(set) {
            tracing::warn!(%error, "a clock could not be cleared");
        }
        set
    }

    /// Requests whose process is not known when they begin are charged from the only one that
    /// answers any, if there is one.
    fn set_defaults(&mut self) {
        let mut answering: BTreeMap<WorkloadId, HashSet<ProcessKey>> = BTreeMap::new();
        for known in self.listeners.values() {
            if let (Some(id), Some(owner)) = (known.workload, known.owner) {
                answering.entry(id).or_default().insert(owner);
            }
        }
        let mut ingest = hold(&self.ingest);
        for (key, p) in ingest.tables.processes() {
            if p.workload != 0 && (p.flows != 0 || p.ended != 0) {
                let key = ProcessKey {
                    tgid: key.tgid,
                    start_ticks: key.start_ticks,
                };
                answering
                    .entry(WorkloadId(p.workload as u32))
                    .or_default()
                    .insert(key);
            }
        }
        for (id, keys) in answering {
            let only = keys.iter().next().filter(|_| keys.len() == 1);
            let set = only
                .and_then(|key| self.serving.processes.get(key))
                .map_or(0, |served| served.set);
            if self.serving.defaults.get(&id) == Some(&set) {
                continue;
            }
            match ingest.tables.set_default(id.0, set) {
                Ok(()) => {
                    self.serving.defaults.insert(id, set);
                }
                Err(error) => tracing::warn!(%error, "a set could not be named"),
            }
        }
    }

    /// Leaves processes alone that have ended, and roles of workloads that are gone.
    pub(super) fn unserve(&mut self) {
        let gone: Vec<ProcessKey> = self
            .serving
            .processes
            .keys()
            .filter(|key| !self.lives(**key))
            .copied()
            .collect();
        hold(&self.ingest).fold_clocks();
        for key in gone {
            hold(&self.ingest).tables.remove_serving(&key_of(key));
            if let Some(served) = self.serving.processes.remove(&key)
                && served.own
                && served.set != 0
            {
                self.serving.free.push_back((served.set, Instant::now()));
            }
        }
        let known: HashSet<WorkloadId> = hold(&self.inventory).workloads.keys().copied().collect();
        let free = &mut self.serving.free;
        self.serving.roles.retain(|(id, _), set| {
            let stays = known.contains(id);
            if !stays {
                free.push_back((*set, Instant::now()));
            }
            stays
        });
        self.serving.defaults.retain(|id, _| known.contains(id));
        self.set_defaults();
    }
}
