//! Histograms of a page.

use super::Page;

/// A classic histogram, merged over series.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hist {
    /// Upper edge and cumulative count, by edge; the last edge is infinite.
    pub buckets: Vec<(f64, f64)>,
    /// Number of samples.
    pub count: f64,
    /// Sum of samples.
    pub sum: f64,
}

impl Hist {
    pub(super) fn of(page: &Page, name: &str, labels: &[(&str, &str)]) -> Self {
        let mut buckets: Vec<(f64, f64)> = Vec::new();
        for sample in page.matching(&format!("{name}_bucket"), labels) {
            let le = match sample.label("le") {
                "+Inf" => f64::INFINITY,
                le => le.parse().unwrap_or_else(|_| panic!("{name}: le={le:?}")),
            };
            match buckets.iter_mut().find(|(edge, _)| *edge == le) {
                Some((_, count)) => *count += sample.value,
                None => buckets.push((le, sample.value)),
            }
        }
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        Self {
            buckets,
            count: page.value(&format!("{name}_count"), labels),
            sum: page.value(&format!("{name}_sum"), labels),
        }
    }

    /// Samples at or below this edge; panics when it is no edge.
    pub fn cumulative(&self, le: f64) -> f64 {
        match self.buckets.iter().find(|(edge, _)| *edge == le) {
            Some((_, count)) => *count,
            None => panic!("{le} is no edge of {:?}", self.buckets),
        }
    }

    /// The bucket a value falls in: its open lower and inclusive upper edge.
    pub fn bucket_of(&self, value: f64) -> (f64, f64) {
        let at = self.buckets.partition_point(|(edge, _)| *edge < value);
        let lower = if at == 0 {
            f64::NEG_INFINITY
        } else {
            self.buckets[at - 1].0
        };
        (
            lower,
            self.buckets
                .get(at)
                .map_or(f64::INFINITY, |(edge, _)| *edge),
        )
    }

    /// How many samples lie in the bucket that `value` falls in.
    pub fn in_bucket(&self, value: f64) -> f64 {
        let at = self.buckets.partition_point(|(edge, _)| *edge < value);
        let below = if at == 0 { 0.0 } else { self.buckets[at - 1].1 };
        self.buckets
            .get(at)
            .map_or(0.0, |(_, count)| *count - below)
    }

    /// The counts that these values must give, one per edge, cumulative.
    pub fn expected(&self, values: &[f64]) -> Vec<(f64, f64)> {
        let at_most = |edge: f64| values.iter().filter(|v| **v <= edge).count() as f64;
        self.buckets
            .iter()
            .map(|(edge, _)| (*edge, at_most(*edge)))
            .collect()
    }

    /// The quantile as Prometheus interpolates it; NaN when empty.
    pub fn quantile(&self, q: f64) -> f64 {
        let rank = q * self.count;
        let at = self.buckets.partition_point(|(_, count)| *count < rank);
        if self.count == 0.0 || at >= self.buckets.len() {
            return f64::NAN;
        }
        let (lower, below) = if at == 0 {
            (0.0, 0.0)
        } else {
            self.buckets[at - 1]
        };
        let (upper, count) = self.buckets[at];
        if upper.is_infinite() {
            return lower;
        }
        lower + (upper - lower) * (rank - below) / (count - below).max(1.0)
    }

    /// Mean of the samples.
    pub fn mean(&self) -> f64 {
        self.sum / self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        Page::parse(concat!(
            "h_bucket{m=\"a\",le=\"0.1\"} 1\nh_bucket{m=\"a\",le=\"1\"} 3\nh_bucket{m=\"a\",le=\"+Inf\"} 4\n",
            "h_sum{m=\"a\"} 9\nh_count{m=\"a\"} 4\n",
            "h_bucket{m=\"b\",le=\"0.1\"} 0\nh_bucket{m=\"b\",le=\"1\"} 1\nh_bucket{m=\"b\",le=\"+Inf\"} 1\n",
            "h_sum{m=\"b\"} 1\nh_count{m=\"b\"} 1\n",
        ))
    }

    #[test]
    fn series_add_up_by_edge() {
        let hist = page().hist("h", &[]);
        assert_eq!(
            (hist.count, hist.sum, hist.cumulative(1.0)),
            (5.0, 10.0, 4.0)
        );
        assert_eq!(page().hist("h", &[("m", "b")]).count, 1.0);
    }

    #[test]
    fn an_upper_edge_belongs_to_its_bucket() {
        let hist = page().hist("h", &[("m", "a")]);
        assert_eq!(hist.bucket_of(0.1), (f64::NEG_INFINITY, 0.1));
        assert_eq!(hist.bucket_of(0.100001), (0.1, 1.0));
        assert_eq!(
            (
                hist.in_bucket(0.1),
                hist.in_bucket(0.5),
                hist.in_bucket(2.0)
            ),
            (1.0, 2.0, 1.0)
        );
        assert_eq!(hist.expected(&[0.1, 0.2, 1.0, 5.0])[1], (1.0, 3.0));
    }
}
