//! The texts of `/proc` and of cgroup files. Nothing here fails: what is not understood is left out.

/// A limit that may not be there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Limit<T> {
    /// There is none.
    Unlimited,
    /// This much.
    At(T),
}

/// Nanoseconds of one tick of `/proc/stat`: 100 a second on every architecture.
const TICK_NS: u64 = 10_000_000;

/// `some` and `full` totals of a pressure file, in microseconds.
pub fn pressure(text: &str) -> (Option<u64>, Option<u64>) {
    let total = |kind: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        let total = line
            .split_whitespace()
            .find_map(|field| field.strip_prefix("total="))?;
        total.parse().ok()
    };
    (total("some "), total("full "))
}

/// The number behind a key, of a file of `key number` lines.
pub fn keyed(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(' ')?;
        if name == key {
            value.trim().parse().ok()
        } else {
            None
        }
    })
}

/// The number of a file that holds nothing else.
pub fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

/// Cores of `cpu.max`: `QUOTA PERIOD` in microseconds, or `max PERIOD`.
pub fn cpu_max(text: &str) -> Option<Limit<f64>> {
    let (quota, period) = text.trim().split_once(' ')?;
    if quota == "max" {
        return Some(Limit::Unlimited);
    }
    cores(quota.parse().ok()?, period.parse().ok()?)
}

/// Cores of `cpu.cfs_quota_us` and `cpu.cfs_period_us`; a negative quota is none.
pub fn cfs(quota: &str, period: &str) -> Option<Limit<f64>> {
    let quota: i64 = quota.trim().parse().ok()?;
    match u64::try_from(quota) {
        Ok(quota) => cores(quota, number(period)?),
        Err(_) => Some(Limit::Unlimited),
    }
}

fn cores(quota: u64, period: u64) -> Option<Limit<f64>> {
    (period > 0).then(|| Limit::At(quota as f64 / period as f64))
}

/// `memory.max`, or `memory.limit_in_bytes` where no limit is the largest number of whole pages.
pub fn memory_limit(text: &str) -> Option<Limit<u64>> {
    if text.trim() == "max" {
        return Some(Limit::Unlimited);
    }
    let bytes = number(text)?;
    Some(if bytes >= 1 << 62 {
        Limit::Unlimited
    } else {
        Limit::At(bytes)
    })
}

/// What `/proc/stat` says of the node; times in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stat {
    /// All states together.
    pub cpu: u64,
    /// In soft interrupts.
    pub softirq: u64,
    /// Taken by the hypervisor.
    pub steal: u64,
    /// Tasks that run or wait for a CPU.
    pub runnable: u64,
    /// Boot, in seconds since 1970.
    pub boot_time: u64,
}

/// Reads `/proc/stat`.
pub fn stat(text: &str) -> Option<Stat> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // user nice system idle iowait irq softirq steal; guest time is in user and nice already.
    let ticks: Vec<u64> = line
        .split_whitespace()
        .take(8)
        .map_while(|field| field.parse().ok())
        .collect();
    let ns = |ticks: u64| ticks.saturating_mul(TICK_NS);
    Some(Stat {
        cpu: ns(ticks.iter().sum()),
        softirq: ns(*ticks.get(6)?),
        steal: ns(*ticks.get(7)?),
        runnable: keyed(text, "procs_running")?,
        boot_time: keyed(text, "btime")?,
    })
}

/// A device of `/proc/diskstats`; reads first, then writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its name.
    pub name: String,
    /// Completed requests.
    pub ios: [u64; 2],
    /// Time they took, in milliseconds.
    pub ms: [u64; 2],
}

/// Reads `/proc/diskstats`.
pub fn diskstats(text: &str) -> Vec<Disk> {
    let disk = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let at = |i: usize| fields.get(i)?.parse().ok();
        Some(Disk {
            name: (*fields.get(2)?).to_owned(),
            ios: [at(3)?, at(7)?],
            ms: [at(6)?, at(10)?],
        })
    };
    text.lines().filter_map(disk).collect()
}

/// `OutSegs` and `RetransSegs` of `/proc/net/snmp`: a line of names, then one of numbers.
pub fn tcp_segments(text: &str) -> Option<(u64, u64)> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let find = |name: &str| {
        let mut both = names.split_whitespace().zip(values.split_whitespace());
        both.find(|(n, _)| *n == name)?.1.parse().ok()
    };
    Some((find("OutSegs")?, find("RetransSegs")?))
}
