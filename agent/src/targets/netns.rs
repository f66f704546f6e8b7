//! Network namespaces: which ones the processes of this node live in, and running a function
//! inside one.
//!
//! A namespace is known by the inode number of its `ns/net` file, which is also what the kernel
//! side reads (`net->ns.inum`). Namespaces that no process lives in (kept by a bind mount only)
//! are not found here. Per-thread namespaces are not looked at: the main thread speaks.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread;

use anyhow::{Context, Result, anyhow, ensure};
use nix::sched::{CloneFlags, setns};
use nix::sys::stat::fstat;

use super::proc::{self, ProcError};

/// Inode number of a network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetnsId(pub u64);

/// Namespaces with the pids that live in each, ascending.
pub type Members = BTreeMap<NetnsId, Vec<u32>>;

/// The namespaces of all processes, and what could not be read. Processes that exited meanwhile
/// are left out silently.
pub fn enumerate(root: &Path) -> Result<(Members, Vec<ProcError>)> {
    let mut found = Members::new();
    let mut errors = Vec::new();
    let pids = proc::list_pids(root).with_context(|| format!("list {}", root.display()))?;
    for pid in pids {
        match proc::read_netns(root, pid) {
            Ok(id) => found.entry(id).or_default().push(pid),
            Err(error) if error.is_gone() => {}
            Err(error) => errors.push(error),
        }
    }
    Ok((found, errors))
}

/// Opens the namespace a process lives in. The handle keeps the namespace alive.
pub fn open(root: &Path, pid: u32) -> proc::Result<(NetnsId, OwnedFd)> {
    let file =
        File::open(proc::dir(root, pid).join("ns/net")).map_err(proc::at(pid, "open ns/net"))?;
    let inode = file.metadata().map_err(proc::at(pid, "stat ns/net"))?.ino();
    Ok((NetnsId(inode), file.into()))
}

/// Opens namespace `id` through the first of these processes that still lives in it.
pub fn open_by_id(root: &Path, id: NetnsId, pids: &[u32]) -> Result<OwnedFd> {
    let mut last = None;
    for &pid in pids {
        match open(root, pid) {
            Ok((found, fd)) if found == id => return Ok(fd),
            Ok(_) => {}
            Err(error) => last = Some(error),
        }
    }
    Err(match last {
        Some(error) => anyhow::Error::new(error),
        None => anyhow!("no process lives there any more"),
    }
    .context(format!("open network namespace {}", id.0)))
}

/// The namespace an open handle leads to.
pub fn id_of(handle: &OwnedFd) -> Result<NetnsId> {
    Ok(NetnsId(
        fstat(handle).context("fstat of a namespace handle")?.st_ino,
    ))
}

/// The namespace of the calling thread.
pub fn current() -> Result<NetnsId> {
    let path = "/proc/thread-self/ns/net";
    Ok(NetnsId(
        std::fs::metadata(path)
            .with_context(|| format!("stat {path}"))?
            .ino(),
    ))
}

/// Runs `work` in the namespace of `handle`, on a plain thread that enters, runs and exits; the
/// calling thread, which may belong to a runtime, never changes its namespace.
///
/// The namespace is verified before `work` runs and after it. Entering one's own namespace needs
/// no privilege, any other needs `CAP_SYS_ADMIN`.
pub fn in_netns<T: Send>(handle: &OwnedFd, work: impl FnOnce() -> T + Send) -> Result<T> {
    let wanted = id_of(handle)?;
    let run = move || -> Result<T> {
        if current()? != wanted {
            setns(handle, CloneFlags::CLONE_NEWNET)
                .with_context(|| format!("setns to network namespace {}", wanted.0))?;
        }
        ensure!(
            current()? == wanted,
            "setns did not lead to network namespace {}",
            wanted.0
        );
        let result = work();
        ensure!(
            current()? == wanted,
            "the work left network namespace {}",
            wanted.0
        );
        Ok(result)
    };
    thread::scope(|scope| {
        thread::Builder::new()
            .name("netns".into())
            .spawn_scoped(scope, run)
            .context("start a thread for a network namespace")?
            .join()
            .map_err(|_| anyhow!("the work in network namespace {} panicked", wanted.0))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::testing::NetNs;

    #[test]
    fn work_runs_in_the_named_namespace_and_the_caller_stays_where_it_was() {
        let Some(ns) = NetNs::create() else { return };
        let before = current().unwrap();
        let handle = ns.handle();
        let wanted = id_of(&handle).unwrap();
        assert_ne!(wanted, before);
        let inside = in_netns(&handle, || current().unwrap()).unwrap();
        assert_eq!(inside, wanted);
        assert_eq!(current().unwrap(), before);
    }

    #[test]
    fn a_panic_in_the_work_is_an_error_of_the_call() {
        let (_, handle) = open(Path::new("/proc"), std::process::id()).unwrap();
        let error = in_netns(&handle, || -> () { panic!("on purpose") }).unwrap_err();
        assert!(error.to_string().contains("panicked"), "{error}");
    }

    #[test]
    fn every_process_is_in_one_namespace_and_ours_is_among_them() {
        let (found, errors) = enumerate(Path::new("/proc")).unwrap();
        assert!(
            errors.iter().all(|error| error.pid != std::process::id()),
            "{errors:?}"
        );
        let ours = found.get(&current().unwrap()).unwrap();
        assert!(ours.contains(&std::process::id()));
    }

    #[test]
    fn a_namespace_nobody_lives_in_cannot_be_opened_by_its_number() {
        let error = open_by_id(Path::new("/proc"), NetnsId(1), &[std::process::id()]).unwrap_err();
        assert!(error.to_string().contains("network namespace 1"), "{error}");
    }
}
