//! The cgroup hierarchies of the host: v1, v2, or both beside each other.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;

use crate::targets::proc::cgroup_path;
use crate::targets::workload::own_cgroup;

/// A hierarchy that is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Controller {
    /// Quota and throttling of v1.
    Cpu,
    /// Processor time of v1.
    Cpuacct,
    /// Memory of v1.
    Memory,
    /// Version 2: pressure, and whatever no v1 hierarchy has taken.
    Unified,
}

impl Controller {
    const V1: [(&'static str, Controller); 3] = [
        ("cpu", Controller::Cpu),
        ("cpuacct", Controller::Cpuacct),
        ("memory", Controller::Memory),
    ];

    /// Those in a comma-separated list of v1 names.
    fn named(list: &str) -> impl Iterator<Item = Controller> {
        Self::V1
            .into_iter()
            .filter(move |(name, _)| list.split(',').any(|word| word == *name))
            .map(|(_, controller)| controller)
    }
}

/// Where a hierarchy is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The mount point.
    pub point: PathBuf,
    /// The cgroup that is mounted there; `/` is the whole hierarchy.
    root: String,
}

impl Mount {
    /// A cgroup's path below the mount point; none when it lies outside of what is mounted.
    pub fn below<'a>(&self, path: &'a str) -> Option<&'a str> {
        let rest = path.strip_prefix(self.root.trim_end_matches('/'))?;
        let rest = rest.strip_prefix('/')?;
        // Another cgroup namespace shows what lies above its root as `..`.
        let inside = !rest.split('/').any(|part| part == "..");
        (inside && !rest.is_empty()).then_some(rest)
    }
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hierarchies(BTreeMap<Controller, Mount>);

impl Hierarchies {
    /// Looks at what is mounted where the agent runs.
    pub fn find() -> io::Result<Hierarchies> {
        Ok(Self::parse(&std::fs::read_to_string(
            "/proc/self/mountinfo",
        )?))
    }

    /// Reads the text of a `mountinfo`.
    pub fn parse(text: &str) -> Hierarchies {
        let mut found = BTreeMap::<Controller, Mount>::new();
        for (controllers, mount) in text.lines().filter_map(mount) {
            for controller in controllers {
                // The same hierarchy can be mounted again, in part: the whole one is best.
                let whole = found.get(&controller).is_some_and(|m| m.root == "/");
                if !whole && (mount.root == "/" || !found.contains_key(&controller)) {
                    found.insert(controller, mount.clone());
                }
            }
        }
        Hierarchies(found)
    }

    /// Nothing is mounted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Where a hierarchy is mounted.
    pub fn mount(&self, controller: Controller) -> Option<&Mount> {
        self.0.get(&controller)
    }
}

/// One line of a `mountinfo`: what is mounted, and where; none when it is no cgroup hierarchy.
fn mount(line: &str) -> Option<(Vec<Controller>, Mount)> {
    let (place, what) = line.split_once(" - ")?;
    let mut what = what.split(' ');
    let controllers = match what.next()? {
        "cgroup2" => vec![Controller::Unified],
        "cgroup" => Controller::named(what.nth(1)?).collect(),
        _ => return None,
    };
    let mut place = place.split(' ').skip(3);
    let mount = Mount {
        root: unescape(place.next()?),
        point: unescape(place.next()?).into(),
    };
    Some((controllers, mount))
}

/// `mountinfo` writes spaces, tabs, newlines and backslashes in octal.
fn unescape(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

/// The cgroups in the lines of `/proc/PID/cgroup` that are the workload's own: each cut where it
/// names this container or unit.
pub fn own_paths(lines: &[String], pod: &str, container: &str) -> BTreeSet<(Controller, String)> {
    let mut paths = BTreeSet::new();
    for line in lines {
        let Some(own) = cgroup_path(line).and_then(|path| own_cgroup(path, pod, container)) else {
            continue;
        };
        let mut fields = line.splitn(3, ':');
        let (number, names) = (fields.next(), fields.next().unwrap_or(""));
        if number == Some("0") {
            paths.insert((Controller::Unified, own.to_owned()));
        } else {
            paths.extend(Controller::named(names).map(|c| (c, own.to_owned())));
        }
    }
    paths
}
