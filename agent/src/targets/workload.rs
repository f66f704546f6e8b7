//! Process to workload, from its cgroup path alone, else from its executable.
//!
//! | where it runs | `pod` | `container` |
//! |---|---|---|
//! | Kubernetes, any driver, cgroup v1, v2 or both | pod uid | first 12 digits of the container id |
//! | Docker, Podman, nerdctl | | first 12 digits of the container id |
//! | systemd unit | | the unit, `foo.service` |
//! | anything else | | file name of the executable; for an interpreter its module or script |
//!
//! `namespace` is always empty: the path does not tell it. A sandbox ("pause") is a container
//! like others. An agent in a cgroup namespace of its own sees paths relative to it, which may
//! lack the pod; run it in the host's.

use super::interpreter;
use super::proc::{Process, cgroup_path};

/// What kind of thing a workload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkloadKind {
    /// An executable outside any unit or container.
    Executable,
    /// A systemd service.
    Unit,
    /// A container outside Kubernetes.
    Container,
    /// A container of a Kubernetes pod.
    Kubernetes,
}

/// The name of a workload: all processes with the same name are merged.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WorkloadName {
    /// Kubernetes namespace; not known from here, so empty.
    pub namespace: String,
    /// Kubernetes pod uid, empty outside Kubernetes.
    pub pod: String,
    /// Container, unit or executable.
    pub container: String,
    /// What kind of thing it is.
    pub kind: WorkloadKind,
    /// The whole container id, empty outside containers.
    pub container_id: String,
}

impl WorkloadName {
    fn new(kind: WorkloadKind, pod: &str, container: &str, container_id: &str) -> Self {
        Self {
            namespace: String::new(),
            pod: pod.to_owned(),
            container: container.to_owned(),
            kind,
            container_id: container_id.to_owned(),
        }
    }
}

/// The name of a process by itself. Processes of one executable workload can come out with
/// different names (a worker whose title was overwritten): [`name_in_tree`] mends that.
pub fn name(process: &Process) -> WorkloadName {
    from_cgroups(&process.cgroups).unwrap_or_else(|| {
        let name = interpreter::program_name(process);
        WorkloadName::new(WorkloadKind::Executable, "", &name.text, "")
    })
}

/// The name of a process, where an executable that does not tell its own (a worker started with
/// `python -c`, or one with a title for arguments) takes that of the nearest ancestor with the
/// same executable and cgroups that does. `parent` reads a process by pid.
pub fn name_in_tree(
    process: &Process,
    mut parent: impl FnMut(u32) -> Option<Process>,
) -> WorkloadName {
    let own = name(process);
    if own.kind != WorkloadKind::Executable || interpreter::program_name(process).telling {
        return own;
    }
    // Deep enough for every launcher, and an end in case pids are reused in a circle.
    let mut ppid = process.ppid;
    for _ in 0..32 {
        let Some(ancestor) = parent(ppid) else { break };
        if ancestor.exe != process.exe || ancestor.cgroups != process.cgroups {
            break;
        }
        let program = interpreter::program_name(&ancestor);
        if program.telling {
            return WorkloadName::new(WorkloadKind::Executable, "", &program.text, "");
        }
        ppid = ancestor.ppid;
    }
    own
}

/// The most telling of all hierarchies: on a hybrid host only some of them know the container.
fn from_cgroups(lines: &[String]) -> Option<WorkloadName> {
    lines
        .iter()
        .filter_map(|line| cgroup_path(line))
        .filter_map(from_path)
        // The first of equals, so that the answer does not depend on the order by accident.
        .reduce(|best, next| if next.kind > best.kind { next } else { best })
}

fn from_path(path: &str) -> Option<WorkloadName> {
    // containerd told a systemd path but driving cgroupfs: `...-pod<uid>.slice:cri-containerd:<id>`.
    let path = path.replace(".slice:", ".slice/");
    let segments: Vec<&str> = path
        .split('/')
        .filter(|segment| !segment.is_empty())
        .collect();
    // Outermost first: what a container nests inside itself belongs to it.
    if let Some((at, pod)) = segments
        .iter()
        .enumerate()
        .find_map(|(i, segment)| Some((i, pod_uid(segment)?)))
    {
        let id = segments[at + 1..]
            .iter()
            .find_map(|segment| container_id(segment))?;
        return Some(WorkloadName::new(
            WorkloadKind::Kubernetes,
            &pod,
            &id[..12],
            id,
        ));
    }
    if let Some(id) = segments.iter().find_map(|segment| container_id(segment)) {
        return Some(WorkloadName::new(
            WorkloadKind::Container,
            "",
            &id[..12],
            id,
        ));
    }
    // Innermost first: a user's service is inside `user@1000.service`, which names no workload.
    let unit = segments
        .iter()
        .rev()
        .find(|segment| segment.ends_with(".service") && !segment.starts_with("user@"))?;
    Some(WorkloadName::new(
        WorkloadKind::Unit,
        "",
        &unit_name(unit),
        "",
    ))
}

/// The part of a cgroup path that ends where it names this container or unit: its own cgroup, with
/// whatever it nests inside. `None` when the path is not that of this container or unit.
pub fn own_cgroup<'a>(path: &'a str, pod: &str, container: &str) -> Option<&'a str> {
    let named = |path: &str| {
        from_path(path).is_some_and(|name| name.pod == pod && name.container == container)
    };
    if !named(path) {
        return None;
    }
    let ends = path.match_indices('/').map(|(at, _)| at);
    ends.chain([path.len()])
        .map(|end| &path[..end])
        .find(|part| named(part))
}

/// A unit's name as a label value. Whoever may make a cgroup chooses its bytes; a real unit's are
/// among those that are kept, and no file name is longer.
fn unit_name(segment: &str) -> String {
    let kept = |c: char| if c.is_ascii_graphic() { c } else { '_' };
    segment.chars().take(255).map(kept).collect()
}

/// The uid in `pod<uid>` (cgroupfs) or `kubepods-burstable-pod<uid>.slice` (systemd, where `_`
/// stands for `-`). Static pods have 32 digits without dashes.
fn pod_uid(segment: &str) -> Option<String> {
    let uid = match segment.strip_suffix(".slice") {
        Some(slice) => slice.rsplit_once("-pod")?.1,
        None => segment.strip_prefix("pod")?,
    };
    let uid = uid.replace('_', "-").to_ascii_lowercase();
    let digits = uid.bytes().filter(u8::is_ascii_hexdigit).count();
    let dashes: Vec<usize> = uid.match_indices('-').map(|(at, _)| at).collect();
    let shaped = match uid.len() {
        32 => digits == 32,
        36 => digits == 32 && dashes == [8, 13, 18, 23],
        _ => false,
    };
    shaped.then_some(uid)
}

/// The 64 digits of `<id>`, `docker-<id>.scope`, `cri-containerd-<id>.scope`, `crio-<id>`,
/// `libpod-<id>.scope` and the like. The monitors of Podman and CRI-O (`libpod-conmon-<id>`) are
/// not the container.
fn container_id(segment: &str) -> Option<&str> {
    let bare = segment.strip_suffix(".scope").unwrap_or(segment);
    let (runtime, id) = bare.rsplit_once(['-', ':']).unwrap_or(("", bare));
    let hex = id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit());
    (hex && !runtime.ends_with("conmon")).then_some(id)
}

#[cfg(test)]
#[path = "workload_tests.rs"]
mod tests;
