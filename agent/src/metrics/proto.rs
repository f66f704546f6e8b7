//! The page as the `prometheus` crate's data model, for whoever wants families and not text
//! (push, other encoders, tests). `/metrics` itself does not go through it: every label of every
//! series is an owned string there, some twenty small allocations a series, which for a full page
//! costs more time and memory than writing it. Its `TextEncoder` is the yardstick of `expo`: a
//! test holds both to the same bytes.

use prometheus::proto::{
    Bucket, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType,
};

use super::def::{IDENTITY, Kind, MetricDef};
use super::expo::Groups;
use super::input::PageInput;
use super::store::Snapshot;
use super::walk::{HistView, SeriesView, Sink, Value, walk};

/// The families of a page, in its order. Families without a series are left out.
pub fn families(snapshot: &Snapshot, input: &PageInput, groups: Groups) -> Vec<MetricFamily> {
    let mut sink = ProtoSink {
        families: Vec::new(),
        def: None,
    };
    walk(snapshot, input, |group| groups.contains(group), &mut sink);
    sink.families
}

/// Collects families.
struct ProtoSink {
    families: Vec<MetricFamily>,
    def: Option<&'static MetricDef>,
}

impl ProtoSink {
    fn push(&mut self, metric: Metric) {
        if let Some(family) = self.families.last_mut() {
            family.mut_metric().push(metric);
        }
    }

    fn labels(&self, series: &SeriesView<'_>) -> Vec<LabelPair> {
        let mut pairs = Vec::new();
        if let Some((_, identity)) = series.identity {
            pairs.extend(IDENTITY.iter().zip(identity_values(identity)));
        }
        if let Some(def) = self.def {
            pairs.extend(def.labels.iter().zip(series.labels.iter().copied()));
        }
        pairs
            .into_iter()
            .map(|(label, value)| {
                let mut pair = LabelPair::default();
                pair.set_name(label.as_str().to_owned());
                pair.set_value(value.to_owned());
                pair
            })
            .collect()
    }
}

/// The values of the identity labels, in their order.
pub fn identity_values(identity: &crate::vocab::Identity) -> [&str; 5] {
    [
        &identity.namespace,
        &identity.pod,
        &identity.container,
        identity.engine.as_str(),
        identity.engine.tier().as_str(),
    ]
}

impl Sink for ProtoSink {
    fn family(&mut self, def: &'static MetricDef) {
        let mut family = MetricFamily::default();
        family.set_name(def.name.to_owned());
        family.set_help(def.help.to_owned());
        family.set_field_type(match def.kind {
            Kind::Counter => MetricType::COUNTER,
            Kind::Gauge => MetricType::GAUGE,
            Kind::Histogram(_) => MetricType::HISTOGRAM,
        });
        self.families.push(family);
        self.def = Some(def);
    }

    fn value(&mut self, series: &SeriesView<'_>, value: Value) {
        let value = match value {
            Value::Int(n) => n as f64,
            Value::Float(x) => x,
        };
        let mut metric = Metric::from_label(self.labels(series));
        if self.def.is_some_and(|def| def.kind == Kind::Counter) {
            let mut counter = Counter::default();
            counter.set_value(value);
            metric.set_counter(counter);
        } else {
            let mut gauge = Gauge::default();
            gauge.set_value(value);
            metric.set_gauge(gauge);
        }
        self.push(metric);
    }

    fn histogram(&mut self, series: &SeriesView<'_>, hist: &HistView<'_>) {
        let mut metric = Metric::from_label(self.labels(series));
        let mut count = 0;
        let mut buckets = Vec::with_capacity(hist.bounds.le.len());
        for (&le, n) in hist.bounds.le.iter().zip(hist.cells) {
            count += n;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(le);
            bucket.set_cumulative_count(count);
            buckets.push(bucket);
        }
        let mut proto = Histogram::default();
        proto.set_bucket(buckets);
        proto.set_sample_count(hist.cells.iter().sum());
        proto.set_sample_sum(hist.sum);
        metric.set_histogram(proto);
        self.push(metric);
    }
}
