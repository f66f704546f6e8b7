//! Opening files of a target, which are hostile: a target can plant links, pipes, devices and
//! files of any size, and swap them while we look.
//!
//! Paths are resolved by `openat2` as if the target's root were ours, without magic links; what
//! is found is pinned first (`O_PATH`) and opened only if it is a regular file of a real file
//! system, so no device or pipe is ever opened. Needs Linux 5.6. A target's own FUSE mount can
//! still make a read hang: wrap whole jobs in [`within`].

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, SFlag, fstat};
use nix::sys::statfs::{self, FsType, fstatfs};

use super::proc::{ProcessKey, read_stat};

/// File systems whose regular files are questions to the kernel, not content: `/proc/self` in a
/// target's own mount would answer about us.
const PSEUDO: [FsType; 8] = [
    statfs::PROC_SUPER_MAGIC,
    FsType(0x6265_6572), // sysfs
    FsType(0x6462_6720), // debugfs
    FsType(0x7472_6163), // tracefs
    FsType(0x7363_6673), // securityfs
    FsType(0xcafe_4a11), // bpf
    FsType(0x0027_e0eb), // cgroup
    FsType(0x6367_7270), // cgroup2
];

/// Jobs that may run at the same time, see [`within`].
const JOBS: usize = 4;
static RUNNING: AtomicUsize = AtomicUsize::new(0);

/// The root directory of a target.
#[derive(Debug)]
pub struct TargetRoot {
    fd: OwnedFd,
    what: String,
}

/// An open regular file of a target.
#[derive(Debug)]
pub struct TargetFile {
    /// The file, open for reading.
    pub file: File,
    /// Its size when it was opened, at most the cap it was opened with.
    pub size: u64,
    /// Device and inode: the same pair is the same file, in whatever container.
    pub identity: (u64, u64),
}

impl TargetRoot {
    /// The root of a process, verified to be that process and not a later one of its pid.
    pub fn open(proc_root: &Path, key: ProcessKey) -> Result<Self> {
        let root = Self::of_dir(&proc_root.join(key.tgid.to_string()).join("root"))?;
        let found = read_stat(proc_root, key.tgid)?.key;
        ensure!(
            found == key,
            "pid {} belongs to another process now",
            key.tgid
        );
        Ok(Self {
            what: format!("pid {}", key.tgid),
            ..root
        })
    }

    /// A directory as root.
    pub fn of_dir(path: &Path) -> Result<Self> {
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let fd = open(path, flags, Mode::empty())
            .with_context(|| format!("open root directory {}", path.display()))?;
        Ok(Self {
            fd,
            what: path.display().to_string(),
        })
    }

    /// Opens a regular file of at most `cap` bytes.
    pub fn open_file(&self, path: &str, cap: u64) -> Result<TargetFile> {
        self.try_open(path, cap)
            .with_context(|| format!("file {path:?} of {}", self.what))
    }

    fn try_open(&self, path: &str, cap: u64) -> Result<TargetFile> {
        let how = OpenHow::new()
            .flags(OFlag::O_PATH | OFlag::O_CLOEXEC)
            .resolve(ResolveFlag::RESOLVE_IN_ROOT | ResolveFlag::RESOLVE_NO_MAGICLINKS);
        let pinned = openat2(&self.fd, path, how).context("openat2")?;
        let stat = fstat(&pinned).context("fstat")?;
        let kind = SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT;
        ensure!(kind == SFlag::S_IFREG, "is not a regular file");
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        ensure!(
            size <= cap,
            "has {size} bytes, more than the {cap} that are read"
        );
        let system = fstatfs(&pinned).context("fstatfs")?.filesystem_type();
        ensure!(!PSEUDO.contains(&system), "is on a pseudo file system");
        // Through our own /proc: the pinned inode itself, whatever its path leads to by now.
        // Without waiting for a lease that the target may hold on it.
        let file = File::options()
            .read(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(format!("/proc/self/fd/{}", pinned.as_raw_fd()))
            .context("open")?;
        Ok(TargetFile {
            file,
            size,
            identity: (stat.st_dev, stat.st_ino),
        })
    }

    /// Reads a regular file of at most `cap` bytes.
    pub fn read(&self, path: &str, cap: u64) -> Result<Vec<u8>> {
        let target = self.open_file(path, cap)?;
        let mut bytes = Vec::with_capacity(target.size as usize);
        // One byte more than allowed tells a file that grew since.
        (&target.file)
            .take(cap.saturating_add(1))
            .read_to_end(&mut bytes)
            .with_context(|| format!("read {path:?} of {}", self.what))?;
        if bytes.len() as u64 > cap {
            bail!("file {path:?} of {} grew past {cap} bytes", self.what);
        }
        Ok(bytes)
    }
}

/// Runs a job on a target's files on a thread of its own for at most `limit`. A job that hangs is
/// left behind; while four run or hang, no further one is started.
pub fn within<T: Send + 'static>(
    limit: Duration,
    job: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let slot = Slot::take()?;
    let (done, result) = mpsc::sync_channel(1);
    thread::Builder::new()
        .name("target-files".into())
        .spawn(move || {
            let result = job();
            drop(slot);
            // Nobody listens after the limit.
            done.send(result).ok();
        })
        .context("start a thread for a target's files")?;
    result.recv_timeout(limit).map_err(|error| match error {
        mpsc::RecvTimeoutError::Timeout => anyhow!("a target's file took longer than {limit:?}"),
        mpsc::RecvTimeoutError::Disconnected => anyhow!("reading a target's file panicked"),
    })?
}

/// One of the few jobs that may run at a time; given back when it ends, also by a panic.
struct Slot(&'static AtomicUsize);

impl Slot {
    fn take() -> Result<Self> {
        RUNNING
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| {
                (n < JOBS).then_some(n + 1)
            })
            .map_err(|_| anyhow!("{JOBS} reads of targets' files run or hang already"))?;
        Ok(Self(&RUNNING))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
#[path = "files_tests.rs"]
mod tests;
