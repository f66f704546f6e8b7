//! Which processes hold a socket, from the links in `/proc/PID/fd`.
//!
//! A socket's inode is unique on the node, so all processes are looked at whatever namespace
//! they live in: a listener can be handed into another one. One pass serves any number of
//! sockets; the cost is one `readlink` per open descriptor on the node.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::proc::{self, ProcError, Stat};

/// Who holds which socket.
#[derive(Debug, Default)]
pub struct SocketOwners {
    /// Inode of a wanted socket to the pids that hold it, in the order the pids were given.
    pub by_inode: HashMap<u64, Vec<u32>>,
    /// Processes that could not be looked at. Those that exited are not among them.
    pub errors: Vec<ProcError>,
}

/// Looks for the sockets `wanted` among the descriptors of `pids`.
pub fn socket_owners(
    root: &Path,
    pids: impl IntoIterator<Item = u32>,
    wanted: &HashSet<u64>,
) -> SocketOwners {
    let mut owners = SocketOwners::default();
    if wanted.is_empty() {
        return owners;
    }
    for pid in pids {
        match sockets_of(root, pid, wanted) {
            Ok(held) => {
                for inode in held {
                    owners.by_inode.entry(inode).or_default().push(pid);
                }
            }
            Err(error) if error.is_gone() => {}
            Err(error) => owners.errors.push(error),
        }
    }
    owners
}

fn sockets_of(root: &Path, pid: u32, wanted: &HashSet<u64>) -> proc::Result<HashSet<u64>> {
    let path = proc::dir(root, pid).join("fd");
    let mut held = HashSet::new();
    for entry in fs::read_dir(&path).map_err(proc::at(pid, "fd"))? {
        let entry = entry.map_err(proc::at(pid, "fd"))?;
        match fs::read_link(entry.path()) {
            Ok(link) => held
                .extend(socket_inode(link.as_os_str().as_bytes()).filter(|i| wanted.contains(i))),
            // Closed since the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(proc::at(pid, "fd link")(error)),
        }
    }
    Ok(held)
}

fn socket_inode(link: &[u8]) -> Option<u64> {
    let digits = link.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The one of several holders that a shared socket is attributed to: the one whose parent does
/// not hold it, which is the process that opened it in a pre-fork server. Service managers that
/// pass on a socket they opened (systemd) count only when nobody else holds it. Among several,
/// the oldest.
pub fn pick_owner<'a>(holders: impl IntoIterator<Item = &'a Stat>) -> Option<&'a Stat> {
    let holders: Vec<&Stat> = holders.into_iter().collect();
    let serving = |stat: &&Stat| stat.comm != "systemd";
    let servants: HashSet<u32> = holders
        .iter()
        .filter(|stat| serving(stat))
        .map(|stat| stat.key.tgid)
        .collect();
    holders
        .into_iter()
        .filter(|stat| servants.is_empty() || servants.contains(&stat.key.tgid))
        .min_by_key(|stat| {
            (
                servants.contains(&stat.ppid),
                stat.key.start_ticks,
                stat.key.tgid,
            )
        })
}

#[cfg(test)]
#[path = "fdscan_tests.rs"]
mod tests;
