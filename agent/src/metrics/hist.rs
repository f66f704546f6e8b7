//! Exact histograms. Samples are kept as integers (nanoseconds, tokens, bytes) and compared with
//! integer bounds, so that a sample equal to a bound counts in that bound's bucket; the sum is
//! exact until it is written as a float. Extra bounds of the operator are merged in at start-up.

use super::catalog::METRICS;
use super::def::{Family, Kind};
use crate::vocab::Gaps;

/// One more bound for one family, as `--bucket-edge ttft=0.8` asks for it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BucketEdge {
    /// The family that gets it.
    pub family: Family,
    /// The bound in the family's unit.
    pub le: f64,
}

/// Reads `NAME=VALUE`, the argument of `--bucket-edge`. The error is text for the operator.
pub fn parse_bucket_edge(text: &str) -> Result<BucketEdge, String> {
    let names = || {
        let names: Vec<_> = METRICS.iter().filter_map(edge_name).collect();
        names.join(", ")
    };
    let Some((name, value)) = text.split_once('=') else {
        return Err(format!(
            "bucket edge {text:?} is not NAME=VALUE; NAME is one of {}",
            names()
        ));
    };
    let Some(def) = METRICS.iter().find(|def| edge_name(def) == Some(name)) else {
        return Err(format!(
            "no histogram {name:?} takes bucket edges; those that do: {}",
            names()
        ));
    };
    let le: f64 = value
        .parse()
        .map_err(|_| format!("bucket edge {text:?}: {value:?} is not a number"))?;
    let raw = le * def.unit.scale() as f64;
    if !(0.5..=9e15).contains(&raw) || raw.round() / def.unit.scale() as f64 != le {
        let unit = def.unit.as_str();
        return Err(format!(
            "bucket edge {text:?}: must be above 0 and a whole number of the smallest steps of {unit}"
        ));
    }
    Ok(BucketEdge {
        family: def.family,
        le,
    })
}

/// The `--bucket-edge` name of a family, if it takes edges.
fn edge_name(def: &super::MetricDef) -> Option<&'static str> {
    match def.kind {
        Kind::Histogram(buckets) => buckets.edge,
        _ => None,
    }
}

/// The bounds one family uses in this process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bounds {
    /// Bounds as they stand in `le`, `+Inf` left out.
    pub le: Vec<f64>,
    /// The same as integers of the samples.
    raw: Vec<u64>,
}

impl Bounds {
    /// The bounds of a family with the operator's extra edges merged in.
    fn new(family: Family, edges: &[BucketEdge]) -> Bounds {
        let Kind::Histogram(buckets) = family.def().kind else {
            return Bounds::default();
        };
        let mut le = buckets.le.to_vec();
        if buckets.edge.is_some() {
            le.extend(edges.iter().filter(|e| e.family == family).map(|e| e.le));
        }
        let scale = family.def().unit.scale() as f64;
        let mut both: Vec<_> = le
            .iter()
            .map(|&le| ((le * scale).round() as u64, le))
            .collect();
        both.sort_by_key(|&(raw, _)| raw);
        both.dedup_by_key(|&mut (raw, _)| raw);
        Bounds {
            le: both.iter().map(|&(_, le)| le).collect(),
            raw: both.iter().map(|&(raw, _)| raw).collect(),
        }
    }

    /// The bounds of every family, by its place in the catalogue.
    pub fn table(edges: &[BucketEdge]) -> Vec<Bounds> {
        Family::ALL
            .iter()
            .map(|&family| Bounds::new(family, edges))
            .collect()
    }

    /// How many series a histogram with these bounds is: its buckets, sum and count.
    pub fn series(&self) -> usize {
        self.raw.len() + 3
    }
}

/// Samples of one series.
#[derive(Clone, Debug, PartialEq)]
pub struct Hist {
    /// Samples per bucket, not cumulative; the last cell is `+Inf`.
    pub cells: Vec<u64>,
    /// Exact sum of the samples as integers.
    pub sum: u128,
    /// When the series was born, in seconds since 1970.
    pub created: f64,
}

impl Hist {
    /// An empty histogram with these bounds.
    pub fn new(bounds: &Bounds, created: f64) -> Hist {
        Hist {
            cells: vec![0; bounds.raw.len() + 1],
            sum: 0,
            created,
        }
    }

    /// Adds one sample.
    pub fn observe(&mut self, bounds: &Bounds, sample: u64) {
        let bucket = bounds.raw.partition_point(|&bound| bound < sample);
        if let Some(cell) = self.cells.get_mut(bucket) {
            *cell += 1;
            self.sum += u128::from(sample);
        }
    }

    /// Adds gaps that the kernel has sorted into the same buckets.
    pub fn add_gaps(&mut self, gaps: &Gaps) {
        for (cell, n) in self.cells.iter_mut().zip(gaps.buckets) {
            *cell += n;
        }
        self.sum += u128::from(gaps.sum_ns);
    }
}

/// Seconds as whole nanoseconds; `None` for what is no duration.
pub fn nanos(seconds: f64) -> Option<u64> {
    let ns = (seconds * 1e9).round();
    (ns >= 0.0 && ns < u64::MAX as f64).then_some(ns as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_on_a_bound_counts_in_that_bound() {
        for &family in Family::ALL {
            let bounds = Bounds::new(family, &[]);
            for (i, &raw) in bounds.raw.iter().enumerate() {
                for (sample, bucket) in [(raw - 1, i), (raw, i), (raw + 1, i + 1)] {
                    let mut hist = Hist::new(&bounds, 0.0);
                    hist.observe(&bounds, sample);
                    let full = hist.cells.iter().position(|&n| n == 1);
                    // A bound one step above the one before takes the sample below it itself.
                    let bucket = if sample < raw && i > 0 && bounds.raw[i - 1] == sample {
                        i - 1
                    } else {
                        bucket
                    };
                    assert_eq!(full, Some(bucket), "{family:?} {sample}");
                }
            }
        }
    }

    #[test]
    fn an_operators_edge_is_merged_in_order_and_once() {
        let edges = [
            parse_bucket_edge("ttft=0.8").unwrap(),
            parse_bucket_edge("ttft=0.8").unwrap(),
            parse_bucket_edge("ttft=0.5").unwrap(),
            parse_bucket_edge("duration=0.7").unwrap(),
        ];
        let bounds = Bounds::new(Family::FirstToken, &edges);
        assert_eq!(bounds.le.len(), 25);
        let at = bounds.le.iter().position(|&le| le == 0.8).unwrap();
        assert_eq!((bounds.le[at - 1], bounds.le[at + 1]), (0.75, 1.0));
        assert_eq!(bounds.raw[at], 800_000_000);
        assert_eq!(Bounds::new(Family::ResponseHead, &edges).le.len(), 19);
        assert_eq!(Bounds::new(Family::Duration, &edges).le.len(), 20);
    }

    #[test]
    fn a_bad_edge_is_refused_with_the_reason() {
        for (text, word) in [
            ("ttft", "NAME=VALUE"),
            ("gap=0.3", "takes bucket edges"),
            ("ttft=x", "not a number"),
            ("ttft=0", "above 0"),
            ("ttft=-1", "above 0"),
            ("ttft=nan", "above 0"),
            ("ttft=inf", "above 0"),
            ("tokens=1.5", "whole number"),
            ("ttft=0.0000000001", "above 0"),
        ] {
            let error = parse_bucket_edge(text).unwrap_err();
            assert!(error.contains(word), "{text}: {error}");
        }
    }

    #[test]
    fn seconds_become_the_nearest_nanosecond_and_nonsense_nothing() {
        assert_eq!(nanos(1.1 / 22.0), Some(50_000_000));
        assert_eq!(nanos(0.0), Some(0));
        for bad in [-1.0, f64::NAN, f64::INFINITY, 1e300] {
            assert_eq!(nanos(bad), None, "{bad}");
        }
    }
}
