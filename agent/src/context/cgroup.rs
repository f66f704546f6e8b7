//! One cgroup, read through its directory: everything in a reading is of the same cgroup, also when
//! another one takes its path meanwhile. Whoever may make cgroups chooses their names, so paths are
//! resolved without links, below the mount only, and each file is read up to a cap.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::{Mode, fstat};
use nix::sys::statfs::{FsType, fstatfs};

use super::hierarchy::{Controller, Hierarchies, Mount};
use super::parse::{self, Limit};
use crate::metrics::context::{CgroupCounter, MemoryEvent, PressureKind, Resource};

/// No file that is read here comes near this.
const CAP: u64 = 64 << 10;
/// Magic numbers of cgroup v1 and v2.
const CGROUP: [FsType; 2] = [FsType(0x0027_e0eb), FsType(0x6367_7270)];

/// What one reading of a cgroup found; what it does not have or could not tell is left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// Which cgroup it was: no later one under the same path has the same number.
    pub of: u64,
    /// What only grows.
    pub counters: Vec<(CgroupCounter, u64)>,
    /// Quota in cores.
    pub quota: Option<Limit<f64>>,
    /// Memory charged now.
    pub memory: Option<u64>,
    /// Memory limit.
    pub memory_limit: Option<Limit<u64>>,
}

/// Reads what this hierarchy knows of a cgroup. `Ok(None)` when it is gone.
pub fn read(
    hierarchies: &Hierarchies,
    controller: Controller,
    mount: &Mount,
    below: &str,
) -> io::Result<Option<Reading>> {
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let root = open(&mount.point, flags, Mode::empty())?;
    if !CGROUP.contains(&fstatfs(&root)?.filesystem_type()) {
        return Err(io::Error::other("something else covers the cgroup mount"));
    }
    let dir = match openat2(&root, below, how(flags)) {
        Ok(dir) => dir,
        Err(Errno::ENOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let of = fstat(&dir)?.st_ino;
    let v1 = |c| hierarchies.mount(c).is_some();
    let reading = figures(controller, v1, |name| text(&dir, name))?;
    Ok(reading.map(|reading| Reading { of, ..reading }))
}

fn how(flags: OFlag) -> OpenHow {
    OpenHow::new().flags(flags).resolve(
        ResolveFlag::RESOLVE_BENEATH
            | ResolveFlag::RESOLVE_NO_SYMLINKS
            | ResolveFlag::RESOLVE_NO_XDEV,
    )
}

/// What a file of a cgroup says.
pub enum Text {
    /// This.
    Is(String),
    /// The kernel has no such file, or has it switched off.
    Absent,
    /// The cgroup has been removed meanwhile.
    Gone,
}

fn text(dir: &OwnedFd, name: &str) -> io::Result<Text> {
    let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
    let mut bytes = Vec::new();
    let read = openat2(dir, name, how(flags))
        .map_err(io::Error::from)
        .and_then(|file| File::from(file).take(CAP).read_to_end(&mut bytes));
    match read.map_err(|error| (error.raw_os_error(), error)) {
        Ok(_) => Ok(Text::Is(String::from_utf8_lossy(&bytes).into_owned())),
        Err((Some(nix::libc::ENOENT | nix::libc::EOPNOTSUPP), _)) => Ok(Text::Absent),
        Err((Some(nix::libc::ENODEV), _)) => Ok(Text::Gone),
        Err((_, error)) => Err(error),
    }
}

/// The figures in a cgroup's files; `v1` tells which controllers a v1 hierarchy has taken.
pub fn figures(
    controller: Controller,
    v1: impl Fn(Controller) -> bool,
    mut text: impl FnMut(&str) -> io::Result<Text>,
) -> io::Result<Option<Reading>> {
    let mut reading = Reading::default();
    let mut gone = false;
    let mut get = |name: &str| -> io::Result<Option<String>> {
        Ok(match text(name)? {
            Text::Is(text) => Some(text),
            Text::Absent => None,
            Text::Gone => {
                gone = true;
                None
            }
        })
    };
    match controller {
        Controller::Cpu => {
            reading.throttling(get("cpu.stat")?, "throttled_time", 1);
            let period = get("cpu.cfs_period_us")?.unwrap_or_default();
            reading.quota = get("cpu.cfs_quota_us")?.and_then(|q| parse::cfs(&q, &period));
        }
        Controller::Cpuacct => {
            let usage = get("cpuacct.usage")?.and_then(|t| parse::number(&t));
            reading.count(CgroupCounter::CpuUsage, usage);
        }
        Controller::Memory => {
            reading.memory = get("memory.usage_in_bytes")?.and_then(|t| parse::number(&t));
            reading.memory_limit =
                get("memory.limit_in_bytes")?.and_then(|t| parse::memory_limit(&t));
            let failed = get("memory.failcnt")?.and_then(|t| parse::number(&t));
            reading.count(CgroupCounter::Memory(MemoryEvent::Max), failed);
            let killed = get("memory.oom_control")?.and_then(|t| parse::keyed(&t, "oom_kill"));
            reading.count(CgroupCounter::Memory(MemoryEvent::OomKill), killed);
        }
        Controller::Unified => {
            let stat = get("cpu.stat")?;
            if !v1(Controller::Cpuacct) {
                let usage = stat.as_deref().and_then(|t| parse::keyed(t, "usage_usec"));
                reading.count(CgroupCounter::CpuUsage, usage.map(us));
            }
            if !v1(Controller::Cpu) {
                reading.throttling(stat, "throttled_usec", 1_000);
                reading.quota = get("cpu.max")?.and_then(|t| parse::cpu_max(&t));
            }
            if !v1(Controller::Memory) {
                reading.memory = get("memory.current")?.and_then(|t| parse::number(&t));
                reading.memory_limit = get("memory.max")?.and_then(|t| parse::memory_limit(&t));
                let events = get("memory.events")?.unwrap_or_default();
                for &event in MemoryEvent::ALL {
                    let n = parse::keyed(&events, event.as_str());
                    reading.count(CgroupCounter::Memory(event), n);
                }
            }
            for &resource in Resource::ALL {
                let file = format!("{}.pressure", resource.as_str());
                let (some, full) = get(&file)?.map_or((None, None), |t| parse::pressure(&t));
                for (kind, total) in [(PressureKind::Some, some), (PressureKind::Full, full)] {
                    reading.count(CgroupCounter::Pressure(resource, kind), total.map(us));
                }
            }
        }
    }
    Ok((!gone).then_some(reading))
}

/// Microseconds as nanoseconds.
pub fn us(us: u64) -> u64 {
    us.saturating_mul(1_000)
}

impl Reading {
    fn count(&mut self, counter: CgroupCounter, value: Option<u64>) {
        self.counters.extend(value.map(|value| (counter, value)));
    }

    /// `cpu.stat` of either version; the time is `unit` nanoseconds.
    fn throttling(&mut self, stat: Option<String>, time: &str, unit: u64) {
        let stat = stat.unwrap_or_default();
        let throttled = parse::keyed(&stat, time).map(|t| t.saturating_mul(unit));
        self.count(CgroupCounter::Throttled, throttled);
        self.count(CgroupCounter::Periods, parse::keyed(&stat, "nr_periods"));
        let periods = parse::keyed(&stat, "nr_throttled");
        self.count(CgroupCounter::ThrottledPeriods, periods);
    }
}
