//! The families of the node: the agent about itself, and the node's context.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Out, SeriesView, Value, context};
use crate::metrics::def::{Family, Scope};
use crate::metrics::input::{MapRow, NodeInput, ProbeRow, ProcessStats};
use crate::metrics::store::Snapshot;

/// Writes a family of the node. False when it is one of the workloads'.
pub fn write(family: Family, snapshot: &Snapshot, node: &NodeInput, out: &mut Out<'_>) -> bool {
    if family.def().scope != Scope::Node {
        return false;
    }
    let created = node
        .process
        .map_or(snapshot.created, |process| process.start_time);
    if context::node(family, &node.context, created, out) {
        return true;
    }
    let mut put = |labels: &[&str], value: Value| {
        out.value(
            &SeriesView {
                identity: None,
                labels,
                created,
            },
            value,
        );
    };
    match family {
        Family::BuildInfo => put(&[env!("CARGO_PKG_VERSION")], Value::Int(1)),
        Family::ProbeState | Family::ProbeRunSeconds | Family::ProbeRuns => {
            let probes: BTreeMap<_, _> = node.probes.iter().map(|row| (row.probe, row)).collect();
            probes.values().for_each(|row| probe(family, row, &mut put));
        }
        Family::EventsLost => reasons(&node.events_lost, &mut put),
        Family::FlowsDropped => reasons(&node.flows_dropped, &mut put),
        Family::Unparsed => reasons(&node.unparsed, &mut put),
        Family::MapEntries => maps(&node.maps, |row| row.entries, &mut put),
        Family::MapMemory => maps(&node.maps, |row| row.memory_bytes, &mut put),
        Family::Series => put(&[], Value::Int(snapshot.series as u64)),
        Family::SeriesDropped => put(&[], Value::Int(snapshot.dropped)),
        Family::TaskLastSuccess => {
            let tasks: BTreeMap<_, _> = node.tasks.iter().copied().collect();
            tasks
                .iter()
                .for_each(|(task, at)| put(&[task], Value::Float(*at)));
        }
        Family::Pages => put(&[], Value::Int(node.page.pages)),
        Family::PageSeconds => put(&[], seconds(node.page.time)),
        Family::PageBytes => put(&[], Value::Int(node.page.bytes)),
        _ => {
            if let Some(process) = &node.process {
                self::process(family, process, &mut put);
            }
        }
    }
    true
}

fn seconds(time: Duration) -> Value {
    Value::Float(time.as_secs_f64())
}

fn probe(family: Family, row: &ProbeRow, put: &mut impl FnMut(&[&str], Value)) {
    match family {
        Family::ProbeState => put(&[row.probe, row.state.as_str(), row.reason], Value::Int(1)),
        Family::ProbeRunSeconds => put(&[row.probe], seconds(row.run_time)),
        _ => put(&[row.probe], Value::Int(row.runs)),
    }
}

/// One series per reason; a reason given twice is added up.
fn reasons(rows: &[(&'static str, u64)], put: &mut impl FnMut(&[&str], Value)) {
    let mut by_reason = BTreeMap::<_, u64>::new();
    for &(reason, n) in rows {
        *by_reason.entry(reason).or_default() += n;
    }
    by_reason
        .iter()
        .for_each(|(reason, n)| put(&[reason], Value::Int(*n)));
}

fn maps(
    rows: &[MapRow],
    figure: impl Fn(&MapRow) -> Option<u64>,
    put: &mut impl FnMut(&[&str], Value),
) {
    let by_name: BTreeMap<_, _> = rows.iter().map(|row| (row.map, row)).collect();
    for (name, row) in by_name {
        if let Some(n) = figure(row) {
            put(&[name], Value::Int(n));
        }
    }
}

fn process(family: Family, stats: &ProcessStats, put: &mut impl FnMut(&[&str], Value)) {
    match family {
        Family::ProcessCpu => put(&[], seconds(stats.cpu)),
        Family::ProcessMemory => put(&[], Value::Int(stats.resident_bytes)),
        Family::ProcessFds => put(&[], Value::Int(stats.open_fds)),
        Family::ProcessStart => put(&[], Value::Float(stats.start_time)),
        _ => {}
    }
}
