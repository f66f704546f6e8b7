//! The families of `metrics::context`.

use super::{Out, Row, SeriesView, Value};
use crate::metrics::context::{CgroupCounter, CgroupFigures, MemoryEvent, NodeFigures};
use crate::metrics::def::Family;

/// Nanoseconds as seconds.
fn seconds(ns: u64) -> Value {
    Value::Float(ns as f64 / 1e9)
}

/// Writes a family of a workload's cgroup. False when it is none of these.
pub fn workload(family: Family, row: &Row<'_>, out: &mut Out<'_>) -> bool {
    let figures = &row.input.cgroup;
    let counter = |which: CgroupCounter| figures.counters.get(&which).copied();
    // The cgroup counts since it was made, which is when the workload's first process started.
    let created = row
        .input
        .start_time
        .map_or(row.store.created, |start| start.min(row.store.created));
    let mut put = |labels: &[&str], value: Option<Value>| {
        if let Some(value) = value {
            let series = SeriesView {
                identity: Some((row.id, &row.store.identity)),
                labels,
                created,
            };
            out.value(&series, value);
        }
    };
    match family {
        Family::WorkloadPressure => pressure(figures, &mut put),
        Family::WorkloadThrottled => put(&[], counter(CgroupCounter::Throttled).map(seconds)),
        Family::WorkloadPeriods => put(&[], counter(CgroupCounter::Periods).map(Value::Int)),
        Family::WorkloadThrottledPeriods => {
            put(
                &[],
                counter(CgroupCounter::ThrottledPeriods).map(Value::Int),
            );
        }
        Family::WorkloadQuota => put(&[], figures.quota_cores.map(Value::Float)),
        Family::WorkloadCpu => put(&[], counter(CgroupCounter::CpuUsage).map(seconds)),
        Family::WorkloadMemory => put(&[], figures.memory_bytes.map(Value::Int)),
        Family::WorkloadMemoryLimit => put(&[], figures.memory_limit_bytes.map(Value::Int)),
        Family::WorkloadMemoryEvents => {
            for &event in MemoryEvent::ALL {
                let n = counter(CgroupCounter::Memory(event));
                put(&[event.as_str()], n.map(Value::Int));
            }
        }
        _ => return false,
    }
    true
}

fn pressure(figures: &CgroupFigures, put: &mut impl FnMut(&[&str], Option<Value>)) {
    for (counter, &ns) in &figures.counters {
        if let CgroupCounter::Pressure(resource, kind) = counter {
            put(&[resource.as_str(), kind.as_str()], Some(seconds(ns)));
        }
    }
}

/// Writes a family of the node's context. False when it is none of these.
pub fn node(family: Family, figures: &NodeFigures, created: f64, out: &mut Out<'_>) -> bool {
    let created = figures.boot_time.unwrap_or(created);
    let mut put = |labels: &[&str], value: Option<Value>| {
        if let Some(value) = value {
            let series = SeriesView {
                identity: None,
                labels,
                created,
            };
            out.value(&series, value);
        }
    };
    match family {
        Family::NodePressure => {
            for ((resource, kind), &ns) in &figures.pressure {
                put(&[resource.as_str(), kind.as_str()], Some(seconds(ns)));
            }
        }
        Family::NodeCpu => put(&[], figures.cpu.map(seconds)),
        Family::NodeSteal => put(&[], figures.steal.map(seconds)),
        Family::NodeSoftirq => put(&[], figures.softirq.map(seconds)),
        Family::NodeRunnable => put(&[], figures.runnable.map(Value::Int)),
        Family::NodeDiskTime => {
            for (direction, &(_, ns)) in &figures.disks {
                put(&[direction.as_str()], Some(seconds(ns)));
            }
        }
        Family::NodeDiskIos => {
            for (direction, &(ios, _)) in &figures.disks {
                put(&[direction.as_str()], Some(Value::Int(ios)));
            }
        }
        Family::NodeTcpSegments => put(&[], figures.tcp_segments.map(Value::Int)),
        Family::NodeTcpRetransmits => put(&[], figures.tcp_retransmits.map(Value::Int)),
        _ => return false,
    }
    true
}
