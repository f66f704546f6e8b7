//! Lays a page out: every family in catalogue order, every series in a fixed order, handed to a
//! sink. The text formats and the `prometheus` crate's data model are two sinks of the same walk.

mod context;
mod flight;
mod node;

use std::collections::BTreeMap;

use super::def::{Family, Group, Kind, Label, MetricDef};
use super::hist::Bounds;
use super::input::{Aspect, CloseReason, PageInput, WorkloadInput};
use super::series::SeriesKey;
use super::store::Snapshot;
use super::workload::Workload;
use crate::vocab::{Class, Identity, StallCause, WorkloadId};
use flight::{AGE_EDGES, Flight};

/// A value of a counter or gauge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A whole number, written exactly.
    Int(u64),
    /// Anything else.
    Float(f64),
}

/// A histogram as it goes on the page.
#[derive(Clone, Copy, Debug)]
pub struct HistView<'a> {
    /// Bounds, `+Inf` left out.
    pub bounds: &'a Bounds,
    /// Samples per bucket, not cumulative, `+Inf` last.
    pub cells: &'a [u64],
    /// Sum in the family's unit.
    pub sum: f64,
}

/// One series: whose it is, its other label values in the order of the definition, its birth.
#[derive(Clone, Copy, Debug)]
pub struct SeriesView<'a> {
    /// The workload; `None` for the node's series.
    pub identity: Option<(WorkloadId, &'a Identity)>,
    /// Values of the definition's labels.
    pub labels: &'a [&'a str],
    /// Seconds since 1970; not used for gauges.
    pub created: f64,
}

/// What becomes of a page.
pub trait Sink {
    /// A family with at least one series begins.
    fn family(&mut self, def: &'static MetricDef);
    /// A counter or gauge of the current family.
    fn value(&mut self, series: &SeriesView<'_>, value: Value);
    /// A histogram of the current family.
    fn histogram(&mut self, series: &SeriesView<'_>, hist: &HistView<'_>);
}

/// One workload of a page.
struct Row<'a> {
    id: WorkloadId,
    store: &'a Workload,
    input: &'a WorkloadInput,
    flight: Flight,
}

/// The series of one family on their way to the sink.
struct Out<'a> {
    def: &'static MetricDef,
    sink: &'a mut dyn Sink,
    begun: bool,
}

impl Out<'_> {
    fn begin(&mut self) {
        if !self.begun {
            self.begun = true;
            self.sink.family(self.def);
        }
    }

    fn value(&mut self, series: &SeriesView<'_>, value: Value) {
        self.begin();
        self.sink.value(series, value);
    }

    fn histogram(&mut self, series: &SeriesView<'_>, hist: &HistView<'_>) {
        self.begin();
        self.sink.histogram(series, hist);
    }

    /// A series of a workload with these labels.
    fn row(&mut self, row: &Row<'_>, labels: &[&str], value: Value) {
        let identity = Some((row.id, &row.store.identity));
        self.value(
            &SeriesView {
                identity,
                labels,
                created: row.store.created,
            },
            value,
        );
    }

    /// A whole number of a workload.
    fn row_int(&mut self, row: &Row<'_>, labels: &[&str], value: u64) {
        self.row(row, labels, Value::Int(value));
    }
}

/// Walks the families of these groups.
pub fn walk(
    snapshot: &Snapshot,
    input: &PageInput,
    groups: impl Fn(Group) -> bool,
    sink: &mut dyn Sink,
) {
    let nothing = WorkloadInput::default();
    let rows: Vec<Row<'_>> = snapshot
        .workloads
        .iter()
        .map(|(&id, store)| {
            let input = input.workloads.get(&id).unwrap_or(&nothing);
            let flight = Flight::new(input.started, store.ended, &input.open);
            Row {
                id,
                store,
                input,
                flight,
            }
        })
        .collect();
    for &family in Family::ALL {
        let def = family.def();
        if !groups(def.group) {
            continue;
        }
        let mut out = Out {
            def,
            sink,
            begun: false,
        };
        if node::write(family, snapshot, &input.node, &mut out) {
            continue;
        }
        for row in &rows {
            write(family, row, snapshot, &mut out);
        }
    }
}

/// The series of one family of one workload.
fn write(family: Family, row: &Row<'_>, snapshot: &Snapshot, out: &mut Out<'_>) {
    let input = row.input;
    match family {
        Family::RequestsStarted => out.row_int(row, &[], row.flight.started),
        Family::InFlight => {
            for (&class, &n) in Class::ALL.iter().zip(&row.flight.by_class) {
                out.row_int(row, &[class.as_str()], n);
            }
        }
        Family::InFlightByAge => {
            let mut above = "0";
            for (&(_, edge), &n) in AGE_EDGES.iter().zip(&row.flight.by_age) {
                out.row_int(row, &[above, edge], n);
                above = edge;
            }
        }
        Family::OldestAge => out.row(row, &[], Value::Float(row.flight.oldest.as_secs_f64())),
        Family::ReadDelay => read_delay(row, snapshot, out),
        Family::Bytes => {
            out.row_int(row, &["received"], input.received_bytes);
            out.row_int(row, &["sent"], input.sent_bytes);
        }
        Family::Connections => out.row_int(row, &[], input.connections),
        Family::ConnectionsClosed => {
            for &reason in CloseReason::ALL {
                let closed = input.closed.iter().filter(|(r, _)| *r == reason);
                out.row_int(row, &[reason.as_str()], closed.map(|(_, n)| n).sum());
            }
        }
        Family::WorkloadInfo => {
            if let Some(version) = input.engine_version.as_deref().filter(|v| !v.is_empty()) {
                out.row_int(row, &[version], 1);
            }
        }
        Family::ListenerInfo => {
            let addrs: BTreeMap<_, _> =
                input.listeners.iter().map(|a| (a, a.to_string())).collect();
            for addr in addrs.values() {
                out.row_int(row, &[addr], 1);
            }
        }
        Family::WorkloadStart => {
            if let Some(start) = input.start_time {
                out.row(row, &[], Value::Float(start));
            }
        }
        Family::ProcessStall => {
            for (role, by_cause) in &input.process_stalls {
                for (cause, ns) in StallCause::ALL.iter().zip(by_cause) {
                    let labels = [*role, cause.domain(), cause.as_str()];
                    out.row(row, &labels, Value::Float(*ns as f64 / 1e9));
                }
            }
        }
        Family::Coverage => {
            for &aspect in Aspect::ALL {
                if let Some(cover) = input.coverage.iter().find(|c| c.aspect == aspect) {
                    out.row_int(
                        row,
                        &[aspect.as_str(), cover.state.as_str(), cover.reason],
                        1,
                    );
                }
            }
        }
        _ => {
            if !context::workload(family, row, out) {
                stored(family, row, snapshot, out);
            }
        }
    }
}

/// The series the store keeps.
fn stored(family: Family, row: &Row<'_>, snapshot: &Snapshot, out: &mut Out<'_>) {
    let (def, identity) = (out.def, Some((row.id, &row.store.identity)));
    let mut labels = Vec::with_capacity(def.labels.len());
    if let Kind::Histogram(_) = def.kind {
        let bounds = &snapshot.bounds[family as usize];
        let scale = def.unit.scale() as f64;
        for (key, hist) in row.store.hists(family) {
            values(def, key, row.store, &mut labels);
            let series = SeriesView {
                identity,
                labels: &labels,
                created: hist.created,
            };
            let sum = hist.sum as f64 / scale;
            out.histogram(
                &series,
                &HistView {
                    bounds,
                    cells: &hist.cells,
                    sum,
                },
            );
        }
        return;
    }
    for (key, count) in row.store.counts(family) {
        values(def, key, row.store, &mut labels);
        let series = SeriesView {
            identity,
            labels: &labels,
            created: count.created,
        };
        let value = match def.unit.scale() {
            1 => Value::Int(count.value()),
            scale => Value::Float(count.value() as f64 / scale as f64),
        };
        out.value(&series, value);
    }
}

/// The label values of a stored series, the model where the definition has it.
fn values<'a>(def: &MetricDef, key: &SeriesKey, workload: &'a Workload, labels: &mut Vec<&'a str>) {
    labels.clear();
    let mut rest = key.rest.iter();
    labels.extend(def.labels.iter().map(|&label| match label {
        Label::Model => workload.model_name(key.model),
        _ => rest.next().copied().unwrap_or(""),
    }));
}

fn read_delay(row: &Row<'_>, snapshot: &Snapshot, out: &mut Out<'_>) {
    let Some(kernel) = row.input.read_delay.as_ref() else {
        return;
    };
    let bounds = &snapshot.bounds[Family::ReadDelay as usize];
    let mut cells = vec![0; bounds.le.len() + 1];
    for (i, n) in kernel.cells.iter().enumerate() {
        cells[i.min(bounds.le.len())] += n;
    }
    if cells.iter().all(|&n| n == 0) {
        return;
    }
    let identity = Some((row.id, &row.store.identity));
    let series = SeriesView {
        identity,
        labels: &[],
        created: row.store.created,
    };
    let sum = kernel.sum_ns as f64 / 1e9;
    out.histogram(
        &series,
        &HistView {
            bounds,
            cells: &cells,
            sum,
        },
    );
}
