//! One process as `/proc` shows it: identity, names, cgroups, namespace and mapped files.
//!
//! Every read is capped, the environment is never opened, and a process that exits meanwhile
//! answers with an error whose [`ProcError::is_gone`] is true. A pid that was given to another
//! process between two reads counts as gone as well: facts of two processes are never mixed. A
//! zombie has a stat line and is gone otherwise, also one whose other threads go on.

use std::collections::HashSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use super::netns::NetnsId;

/// At most this much of a command line is read.
pub const CMDLINE_CAP: u64 = 64 << 10;
/// At most this much of `/proc/PID/maps` is read.
pub const MAPS_CAP: u64 = 16 << 20;
/// At most this many distinct mapped files are kept.
pub const MAPPED_FILES_CAP: usize = 4096;
/// Every other small file of `/proc/PID` is cut here.
const SMALL_CAP: u64 = 64 << 10;
/// `PF_KTHREAD` of `include/linux/sched.h`, in field 9 of the stat line.
const PF_KTHREAD: u32 = 0x0020_0000;

/// A process that cannot be confused with a later one of the same pid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessKey {
    /// Thread group id, in the pid namespace of the `/proc` that was read.
    pub tgid: u32,
    /// Start in clock ticks (10 ms) since boot: field 22 of the stat line, which is
    /// `task->group_leader->start_boottime` / 10 ms.
    pub start_ticks: u64,
}

/// What the stat line of a process says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Who it is.
    pub key: ProcessKey,
    /// Parent, 0 for none.
    pub ppid: u32,
    /// Name of the main thread, at most 15 bytes (more for kernel threads).
    pub comm: String,
    /// State letter: `R`, `S`, `D`, `Z`, ...
    pub state: char,
    /// A thread of the kernel: no executable, no descriptors.
    pub kernel_thread: bool,
}

/// A file a process has mapped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MappedFile {
    /// Path in the mount namespace of the process.
    pub path: String,
    /// The path no longer leads to this file (an upgraded library).
    pub deleted: bool,
    /// Inode number.
    pub inode: u64,
    /// Device, as `major:minor` in hexadecimal.
    pub device: String,
}

/// The facts of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Who it is.
    pub key: ProcessKey,
    /// Parent, 0 for none.
    pub ppid: u32,
    /// Name of the main thread.
    pub comm: String,
    /// Arguments; a title written over them is one single argument.
    pub cmdline: Vec<String>,
    /// Path of the executable without a ` (deleted)` mark; empty for kernel threads.
    pub exe: String,
    /// The executable's path no longer leads to it.
    pub exe_deleted: bool,
    /// Lines of `/proc/PID/cgroup`: `hierarchy:controllers:path`.
    pub cgroups: Vec<String>,
    /// Network namespace of its main thread.
    pub netns: NetnsId,
    /// Files it has mapped; empty when read by [`read_identity`].
    pub mapped: Vec<MappedFile>,
}

impl Process {
    /// The command line joined by spaces, as rules match it.
    pub fn command_line(&self) -> String {
        self.cmdline.join(" ")
    }

    /// The paths of its cgroups, once each.
    pub fn cgroup_paths(&self) -> Vec<String> {
        let mut paths: Vec<String> = Vec::new();
        for path in self.cgroups.iter().filter_map(|line| cgroup_path(line)) {
            if !paths.iter().any(|known| known == path) {
                paths.push(path.to_owned());
            }
        }
        paths
    }
}

/// The path in a line of `/proc/PID/cgroup`, without the mark of a removed cgroup.
pub fn cgroup_path(line: &str) -> Option<&str> {
    let path = line.splitn(3, ':').nth(2)?;
    Some(path.strip_suffix(" (deleted)").unwrap_or(path))
}

/// Why a process could not be read.
#[derive(Debug)]
pub struct ProcError {
    /// Which process.
    pub pid: u32,
    /// Which file or step.
    pub step: &'static str,
    /// What the kernel said.
    pub source: io::Error,
}

impl ProcError {
    /// The process exited (or its pid was taken over): a normal answer, not a failure.
    pub fn is_gone(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
            || self.source.raw_os_error() == Some(nix::libc::ESRCH)
    }

    fn gone(pid: u32, step: &'static str) -> Self {
        Self {
            pid,
            step,
            source: io::Error::from(io::ErrorKind::NotFound),
        }
    }
}

impl fmt::Display for ProcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "pid {}: {}: {}", self.pid, self.step, self.source)
    }
}

impl std::error::Error for ProcError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// Result of reading one process.
pub type Result<T> = std::result::Result<T, ProcError>;

pub(super) fn at(pid: u32, step: &'static str) -> impl FnOnce(io::Error) -> ProcError {
    move |source| ProcError { pid, step, source }
}

pub(super) fn dir(root: &Path, pid: u32) -> PathBuf {
    root.join(pid.to_string())
}

fn read_capped(path: &Path, cap: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(cap).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The pids in this `/proc`, ascending. An error here means `root` is no `/proc` at all.
pub fn list_pids(root: &Path) -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir(root)? {
        if let Some(pid) = entry?
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        {
            pids.push(pid);
        }
    }
    pids.sort_unstable();
    Ok(pids)
}

/// The direct children of a process, of all its threads, ascending. Needs `CONFIG_PROC_CHILDREN`.
pub fn children(root: &Path, pid: u32) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    for task in fs::read_dir(dir(root, pid).join("task")).map_err(at(pid, "task"))? {
        let path = task.map_err(at(pid, "task"))?.path().join("children");
        match fs::read_to_string(path) {
            Ok(text) => found.extend(
                text.split_whitespace()
                    .filter_map(|t| t.parse::<u32>().ok()),
            ),
            // This thread has exited; the process may well go on.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.raw_os_error() == Some(nix::libc::ESRCH) => {}
            Err(error) => return Err(at(pid, "children")(error)),
        }
    }
    found.sort_unstable();
    found.dedup();
    Ok(found)
}

/// Reads the stat line of a process.
pub fn read_stat(root: &Path, pid: u32) -> Result<Stat> {
    let bytes = read_capped(&dir(root, pid).join("stat"), SMALL_CAP).map_err(at(pid, "stat"))?;
    let text = String::from_utf8_lossy(&bytes);
    parse_stat(pid, &text)
        .ok_or_else(|| at(pid, "stat")(io::Error::new(io::ErrorKind::InvalidData, "no stat line")))
}

/// The name may hold spaces, brackets and newlines, so it ends at the last `)`.
pub(crate) fn parse_stat(pid: u32, text: &str) -> Option<Stat> {
    let (head, tail) = text.rsplit_once(')')?;
    let comm = head.split_once('(')?.1.to_owned();
    // Field 3 is the first here.
    let fields: Vec<&str> = tail.split_whitespace().collect();
    Some(Stat {
        key: ProcessKey {
            tgid: pid,
            start_ticks: fields.get(19)?.parse().ok()?,
        },
        ppid: fields.get(1)?.parse().ok()?,
        comm,
        state: fields.first()?.chars().next()?,
        kernel_thread: fields.get(6)?.parse::<u32>().ok()? & PF_KTHREAD != 0,
    })
}

/// Network namespace of a process, from the text of its link.
pub fn read_netns(root: &Path, pid: u32) -> Result<NetnsId> {
    let link = fs::read_link(dir(root, pid).join("ns/net")).map_err(at(pid, "ns/net"))?;
    link.to_str()
        .and_then(|text| text.strip_prefix("net:[")?.strip_suffix(']')?.parse().ok())
        .map(NetnsId)
        .ok_or_else(|| {
            let text = format!("unexpected link {}", link.display());
            at(pid, "ns/net")(io::Error::new(io::ErrorKind::InvalidData, text))
        })
}

/// Reads everything about a process except its mapped files.
pub fn read_identity(root: &Path, pid: u32) -> Result<Process> {
    let stat = read_stat(root, pid)?;
    if matches!(stat.state, 'Z' | 'X') {
        // It has ended: what is left of it no longer tells what it was.
        return Err(ProcError::gone(pid, "stat"));
    }
    let base = dir(root, pid);
    let cmdline = read_capped(&base.join("cmdline"), CMDLINE_CAP).map_err(at(pid, "cmdline"))?;
    let cgroup = read_capped(&base.join("cgroup"), SMALL_CAP).map_err(at(pid, "cgroup"))?;
    let netns = read_netns(root, pid)?;
    let exe = match fs::read_link(base.join("exe")) {
        Ok(path) => path.to_string_lossy().into_owned(),
        // Kernel threads have none; a process that is gone fails the check below.
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(at(pid, "exe")(error)),
    };
    // The same start as before: all of the above belongs to one process, which still runs.
    let again = read_stat(root, pid)?;
    if again.key != stat.key || matches!(again.state, 'Z' | 'X') {
        return Err(ProcError::gone(pid, "stat"));
    }
    let (exe, exe_deleted) = split_deleted(&exe);
    Ok(Process {
        key: stat.key,
        ppid: stat.ppid,
        comm: stat.comm,
        cmdline: parse_cmdline(&cmdline),
        exe: exe.to_owned(),
        exe_deleted,
        cgroups: String::from_utf8_lossy(&cgroup)
            .lines()
            .map(str::to_owned)
            .collect(),
        netns,
        mapped: Vec::new(),
    })
}

/// Lines of `/proc/PID/cgroup` of this process as it is now.
pub fn read_cgroups(root: &Path, key: ProcessKey) -> Result<Vec<String>> {
    let pid = key.tgid;
    let text = read_capped(&dir(root, pid).join("cgroup"), SMALL_CAP).map_err(at(pid, "cgroup"))?;
    let stat = read_stat(root, pid)?;
    // One that has ended is moved to the root of v1 hierarchies.
    if stat.key != key || matches!(stat.state, 'Z' | 'X') {
        return Err(ProcError::gone(pid, "stat"));
    }
    Ok(String::from_utf8_lossy(&text)
        .lines()
        .map(str::to_owned)
        .collect())
}

/// Reads everything about a process, its mapped files included.
pub fn read_process(root: &Path, pid: u32) -> Result<Process> {
    let mut process = read_identity(root, pid)?;
    process.mapped = read_mapped(root, process.key)?;
    Ok(process)
}

/// The distinct files a process has mapped, in the order of their addresses.
pub fn read_mapped(root: &Path, key: ProcessKey) -> Result<Vec<MappedFile>> {
    let pid = key.tgid;
    let file = File::open(dir(root, pid).join("maps")).map_err(at(pid, "maps"))?;
    let mapped = parse_maps(BufReader::with_capacity(64 << 10, file.take(MAPS_CAP)))
        .map_err(at(pid, "maps"))?;
    if read_stat(root, pid)?.key != key {
        return Err(ProcError::gone(pid, "stat"));
    }
    Ok(mapped)
}

pub(crate) fn parse_maps(mut reader: impl BufRead) -> io::Result<Vec<MappedFile>> {
    let mut mapped = Vec::new();
    let mut seen: HashSet<MappedFile> = HashSet::new();
    let mut line = Vec::new();
    while mapped.len() < MAPPED_FILES_CAP && reader.read_until(b'\n', &mut line)? != 0 {
        if let Some(file) = parse_mapping(&String::from_utf8_lossy(&line))
            && seen.insert(file.clone())
        {
            mapped.push(file);
        }
        line.clear();
    }
    Ok(mapped)
}

/// A line without its newline was cut by the size cap: its path may be incomplete.
fn parse_mapping(line: &str) -> Option<MappedFile> {
    let mut rest = line.strip_suffix('\n')?;
    let mut next = || {
        let (field, tail) = rest.split_once(' ')?;
        rest = tail;
        Some(field)
    };
    let (_range, _mode, _offset) = (next()?, next()?, next()?);
    let device = next()?.to_owned();
    let inode = next()?.parse().ok().filter(|&inode| inode != 0)?;
    let path = rest.trim_start_matches(' ');
    // Shared memory has an inode too, but is no file anybody could open.
    let shared = ["/memfd:", "/SYSV", "/dev/zero", "/anon_hugepage"];
    if !path.starts_with('/') || shared.iter().any(|prefix| path.starts_with(prefix)) {
        return None;
    }
    let (path, deleted) = split_deleted(path);
    Some(MappedFile {
        path: path.to_owned(),
        deleted,
        inode,
        device,
    })
}

fn split_deleted(path: &str) -> (&str, bool) {
    match path.strip_suffix(" (deleted)") {
        Some(path) => (path, true),
        None => (path, false),
    }
}

/// Splits at NULs. A process that writes a title over its arguments (nginx, setproctitle) leaves
/// one string and a tail of NULs or spaces: that is one argument, the title.
pub(crate) fn parse_cmdline(bytes: &[u8]) -> Vec<String> {
    let end = bytes
        .iter()
        .rposition(|&b| b != 0 && b != b' ')
        .map_or(0, |i| i + 1);
    // One NUL ends the last argument; further ones are padding, or empty last arguments, which
    // tell nobody anything.
    if end == 0 {
        return Vec::new();
    }
    bytes[..end]
        .split(|&b| b == 0)
        .map(|arg| String::from_utf8_lossy(arg).into_owned())
        .collect()
}

#[cfg(test)]
#[path = "proc_tests.rs"]
mod tests;
