//! The node's own figures, from `/proc`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use super::cgroup::us;
use super::growing::Growing;
use super::parse::{self, Disk};
use crate::metrics::context::{DiskDirection, NodeFigures, PressureKind, Resource};

/// `/proc/stat` of a host with thousands of CPUs and interrupts fits.
const CAP: u64 = 4 << 20;
/// At most this many disks are told apart.
const DISKS: usize = 1_024;

/// What a disk counted: requests and milliseconds, reads first.
#[derive(Clone, Copy, Debug, Default)]
struct DiskTotals {
    ios: [Growing; 2],
    ms: [Growing; 2],
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Node {
    figures: NodeFigures,
    /// Disks that are or were there: one that is taken away takes nothing from the sums.
    disks: BTreeMap<String, DiskTotals>,
}

impl Node {
    /// Reads everything. What fails keeps its last value; the error is that of the last failure.
    pub fn read(&mut self, proc_root: &Path) -> io::Result<()> {
        let steps = [
            self.read_pressure(proc_root),
            self.read_stat(proc_root),
            self.read_disks(proc_root),
            self.read_tcp(proc_root),
        ];
        steps.into_iter().rfold(Ok(()), io::Result::and)
    }

    /// The last values.
    pub fn figures(&self) -> NodeFigures {
        let mut figures = self.figures.clone();
        if self.disks.is_empty() {
            return figures;
        }
        for (i, &direction) in DiskDirection::ALL.iter().enumerate() {
            let sum = |of: fn(&DiskTotals) -> &[Growing; 2]| {
                self.disks.values().map(|d| of(d)[i].total()).sum::<u64>()
            };
            let ns = sum(|d| &d.ms).saturating_mul(1_000_000);
            figures.disks.insert(direction, (sum(|d| &d.ios), ns));
        }
        figures
    }

    fn read_pressure(&mut self, proc_root: &Path) -> io::Result<()> {
        for &resource in Resource::ALL {
            let text = match read(&proc_root.join("pressure").join(resource.as_str())) {
                Ok(text) => text,
                // A kernel without it, or with it switched off at boot.
                Err(error) if absent(&error) => continue,
                Err(error) => return Err(error),
            };
            let (some, full) = parse::pressure(&text);
            for (kind, total) in [(PressureKind::Some, some), (PressureKind::Full, full)] {
                if let Some(total) = total {
                    let value = self.figures.pressure.entry((resource, kind)).or_default();
                    *value = us(total).max(*value);
                }
            }
        }
        Ok(())
    }

    fn read_stat(&mut self, proc_root: &Path) -> io::Result<()> {
        let stat = parse::stat(&read(&proc_root.join("stat"))?)
            .ok_or_else(|| io::Error::other("stat is not as it should be"))?;
        let figures = &mut self.figures;
        // Idle and I/O wait of a CPU may go back by a tick.
        figures.cpu = figures.cpu.max(Some(stat.cpu));
        figures.steal = figures.steal.max(Some(stat.steal));
        figures.softirq = figures.softirq.max(Some(stat.softirq));
        figures.runnable = Some(stat.runnable);
        // It is derived from a clock that is set now and then; the birth of a counter stays.
        figures.boot_time.get_or_insert(stat.boot_time as f64);
        Ok(())
    }

    fn read_disks(&mut self, proc_root: &Path) -> io::Result<()> {
        for disk in parse::diskstats(&read(&proc_root.join("diskstats"))?) {
            if is_whole_disk(Path::new("/sys/block"), &disk.name) {
                self.take_disk(&disk);
            }
        }
        Ok(())
    }

    /// Takes in what a whole disk says.
    pub fn take_disk(&mut self, disk: &Disk) {
        if !self.disks.contains_key(&disk.name) && self.disks.len() >= DISKS {
            return;
        }
        let totals = self.disks.entry(disk.name.clone()).or_default();
        for i in 0..2 {
            // The kernel writes milliseconds in 32 bits: they begin again every 50 days.
            totals.ios[i].take(disk.ios[i], 0);
            totals.ms[i].take(disk.ms[i], 0);
        }
    }

    fn read_tcp(&mut self, proc_root: &Path) -> io::Result<()> {
        // Those of the first process: `/proc/net` is the reader's own namespace.
        let text = read(&proc_root.join("1/net/snmp"))?;
        if let Some((sent, again)) = parse::tcp_segments(&text) {
            let figures = &mut self.figures;
            figures.tcp_segments = figures.tcp_segments.max(Some(sent));
            figures.tcp_retransmits = figures.tcp_retransmits.max(Some(again));
        }
        Ok(())
    }
}

fn absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(nix::libc::EOPNOTSUPP)
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.take(CAP).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether a block device is a disk of its own: partitions have no entry in `/sys/block`, and what
/// is stacked on others or lives in memory (`dm`, `md`, `loop`, `zram`) has no device behind it.
fn is_whole_disk(sys_block: &Path, name: &str) -> bool {
    // sysfs writes the slash in names such as `cciss/c0d0` as an exclamation mark.
    let name = name.replace('/', "!");
    name != ".." && sys_block.join(name).join("device").exists()
}
