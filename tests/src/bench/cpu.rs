//! CPU time of threads and processes, CPUs to run on, and the kernel's figures of BPF programs.

use std::collections::BTreeMap;
use std::path::PathBuf;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::time::{ClockId, clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

fn read(clock: ClockId) -> u64 {
    let t = clock_gettime(clock).expect("a CPU clock of a live process");
    t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64
}

/// CPU nanoseconds of the calling thread.
pub(super) fn thread() -> u64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU nanoseconds of a process, threads that have ended included.
pub(super) fn process(pid: u32) -> u64 {
    read(clock_getcpuclockid(Pid::from_raw(pid as i32)).expect("the process lives"))
}

/// Keeps the calling thread on a CPU, where there are two.
pub(super) fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    if count > 1 && set.set(cpu % count).is_ok() {
        // A refusal only makes the numbers noisier.
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}

const SWITCH: &str = "/proc/sys/kernel/bpf_stats_enabled";

/// Run-time statistics of BPF programs, switched on while this lives.
#[derive(Debug)]
pub(super) struct BpfStats {
    before: String,
}

impl BpfStats {
    /// Switches them on.
    pub fn on() -> Self {
        let before = std::fs::read_to_string(SWITCH).unwrap_or_else(|_| "0".to_owned());
        std::fs::write(SWITCH, "1").expect("switch BPF statistics on (root?)");
        Self { before }
    }
}

impl Drop for BpfStats {
    fn drop(&mut self) {
        let _ = std::fs::write(SWITCH, self.before.trim());
    }
}

/// Nanoseconds and number of runs of the busiest socket filter that a process holds: its tap.
pub(super) fn tap_runs(pid: u32) -> (u64, u64) {
    let number = |text: &str, name: &str| {
        let line = text
            .lines()
            .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().parse::<u64>().ok())
    };
    let filters = fdinfo(pid)
        .into_iter()
        .filter(|text| number(text, "prog_type") == Some(1));
    filters
        .filter_map(|text| Some((number(&text, "run_time_ns")?, number(&text, "run_cnt")?)))
        .max_by_key(|runs| runs.1)
        .unwrap_or_default()
}

/// Maps that a process holds, by id: type, value size, entries, bytes charged.
pub(super) fn maps(pid: u32) -> BTreeMap<u64, Map> {
    let mut found = BTreeMap::new();
    for text in fdinfo(pid) {
        let number = |name: &str| {
            let line = text
                .lines()
                .find_map(|l| l.strip_prefix(name)?.strip_prefix(':'));
            line.and_then(|value| value.trim().parse::<u64>().ok())
        };
        if let (Some(id), Some(kind)) = (number("map_id"), number("map_type")) {
            let map = Map {
                kind,
                value: number("value_size").unwrap_or(0),
                entries: number("max_entries").unwrap_or(0),
                bytes: number("memlock").unwrap_or(0),
            };
            found.insert(id, map);
        }
    }
    found
}

/// A BPF map as /proc tells it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Map {
    kind: u64,
    value: u64,
    entries: u64,
    /// Bytes that the kernel accounts to it.
    pub bytes: u64,
}

impl Map {
    /// Bytes that one more CPU would add.
    pub fn per_cpu(&self) -> u64 {
        // BPF_MAP_TYPE_PERCPU_HASH and BPF_MAP_TYPE_PERCPU_ARRAY.
        if matches!(self.kind, 5 | 6) {
            self.entries * self.value.next_multiple_of(8)
        } else {
            0
        }
    }
}

fn fdinfo(pid: u32) -> Vec<String> {
    let dir = PathBuf::from(format!("/proc/{pid}/fdinfo"));
    let files = std::fs::read_dir(dir).into_iter().flatten().flatten();
    files
        .filter_map(|file| std::fs::read_to_string(file.path()).ok())
        .collect()
}
