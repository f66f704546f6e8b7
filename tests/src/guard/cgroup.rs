//! Control groups: the v1 hierarchies that matter here and, when mounted, the
//! unified one, under one relative path such as a Kubernetes container's.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::poll;

const V1: [&str; 5] = ["cpu", "cpuacct", "memory", "freezer", "systemd"];

/// A control group, removed on drop; processes still in it are moved out.
#[derive(Debug)]
pub struct Cgroup {
    path: String,
    roots: Vec<PathBuf>,
    made: Vec<PathBuf>,
}

impl Cgroup {
    /// Creates `path` (relative, no leading slash) in every hierarchy there is.
    pub fn new(path: &str) -> Self {
        let base = Path::new("/sys/fs/cgroup");
        let mut roots: Vec<PathBuf> = V1.iter().map(|name| base.join(name)).collect();
        roots.push(if base.join("cgroup.controllers").exists() {
            base.into()
        } else {
            base.join("unified")
        });
        roots.retain(|root| root.join("cgroup.procs").exists());
        let mut group = Self {
            path: path.to_owned(),
            roots,
            made: Vec::new(),
        };
        for root in group.roots.clone() {
            let mut dir = root;
            for part in path.split('/') {
                hand_down(&dir);
                dir.push(part);
                if !dir.exists() {
                    std::fs::create_dir(&dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
                    group.made.push(dir.clone());
                }
            }
        }
        group
    }

    /// The path of a container in a burstable pod as the kubelet makes it with
    /// the cgroupfs driver.
    pub fn pod(pod_uid: &str, container_id: &str) -> Self {
        Self::new(&format!("kubepods/burstable/pod{pod_uid}/{container_id}"))
    }

    /// The relative path.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its directory in every hierarchy.
    pub fn directories(&self) -> Vec<PathBuf> {
        self.roots
            .iter()
            .map(|root| root.join(&self.path))
            .collect()
    }

    /// Moves a whole process into it.
    pub fn add(&self, pid: u32) {
        for dir in self.directories() {
            let file = dir.join("cgroup.procs");
            std::fs::write(&file, pid.to_string())
                .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        }
    }

    /// Limits it to `quota_us` of CPU per `period_us` (v1 `cpu`, else v2).
    pub fn cpu_quota(&self, quota_us: i64, period_us: u64) {
        let v1 = Path::new("/sys/fs/cgroup/cpu").join(&self.path);
        if v1.join("cpu.cfs_quota_us").exists() {
            std::fs::write(v1.join("cpu.cfs_period_us"), period_us.to_string()).expect("period");
            std::fs::write(v1.join("cpu.cfs_quota_us"), quota_us.to_string()).expect("quota");
        } else {
            let quota = if quota_us < 0 {
                "max".to_owned()
            } else {
                quota_us.to_string()
            };
            let file = Path::new("/sys/fs/cgroup").join(&self.path).join("cpu.max");
            std::fs::write(file, format!("{quota} {period_us}")).expect("cpu.max");
        }
    }

    /// Freezes or thaws it (v1 `freezer`, else v2).
    pub fn freeze(&self, on: bool) {
        let v1 = Path::new("/sys/fs/cgroup/freezer")
            .join(&self.path)
            .join("freezer.state");
        if v1.exists() {
            std::fs::write(v1, if on { "FROZEN" } else { "THAWED" }).expect("freezer.state");
        } else {
            let file = Path::new("/sys/fs/cgroup")
                .join(&self.path)
                .join("cgroup.freeze");
            std::fs::write(file, if on { "1" } else { "0" }).expect("cgroup.freeze");
        }
    }
}

/// Lets the children of a v2 cgroup have quotas and limits of their own.
fn hand_down(dir: &Path) {
    for controller in ["+cpu", "+memory"] {
        // A v1 hierarchy has no such file; beside v1 hierarchies they have the controllers.
        let _ = std::fs::OpenOptions::new()
            .write(true)
            .open(dir.join("cgroup.subtree_control"))
            .and_then(|mut file| std::io::Write::write_all(&mut file, controller.as_bytes()));
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        for root in &self.roots {
            let procs = std::fs::read_to_string(root.join(&self.path).join("cgroup.procs"));
            for pid in procs.unwrap_or_default().lines() {
                let _ = std::fs::write(root.join("cgroup.procs"), pid);
            }
        }
        for dir in self.made.iter().rev() {
            // A process that just died is counted for a moment longer.
            poll(Duration::from_secs(2), || {
                (std::fs::remove_dir(dir).is_ok() || !dir.exists()).then_some(())
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guard::ChildBuilder;

    #[test]
    fn a_child_starts_inside_its_cgroup_and_the_cgroup_goes_with_it() {
        let id = format!("{:064x}", std::process::id());
        let group = Cgroup::pod("1b2c-et", &id);
        let child = ChildBuilder::new("sleep").arg("60").cgroup(&group).start();
        let seen = std::fs::read_to_string(format!("/proc/{}/cgroup", child.pid())).unwrap();
        assert!(seen.contains(&id), "{seen}");
        group.cpu_quota(20_000, 100_000);
        drop(child);
        let dirs = group.directories();
        assert!(!dirs.is_empty());
        drop(group);
        assert!(dirs.iter().all(|dir| !dir.exists()));
    }
}
