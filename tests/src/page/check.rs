//! Promises that hold on every page: the invariant, well-formedness, and that
//! counters never go down.

use std::collections::{BTreeMap, BTreeSet};

use super::{Page, Sample};

const IDENTITY: [&str; 5] = ["namespace", "pod", "container", "engine", "tier"];

fn identity(sample: &Sample) -> Vec<String> {
    IDENTITY
        .iter()
        .map(|label| sample.label(label).to_owned())
        .collect()
}

fn without_le(sample: &Sample) -> (String, BTreeMap<String, String>) {
    let mut labels = sample.labels.clone();
    labels.remove("le");
    (sample.name.clone(), labels)
}

impl Page {
    /// For each workload: started = ended + in flight. The first workload for
    /// which it does not hold is the error.
    pub fn invariant(&self) -> Result<(), String> {
        let mut sides: BTreeMap<Vec<String>, [f64; 3]> = BTreeMap::new();
        let families = [
            "enginetap_requests_started_total",
            "enginetap_requests_total",
            "enginetap_requests_in_flight",
        ];
        for (at, family) in families.iter().enumerate() {
            for sample in self.series(family) {
                sides.entry(identity(sample)).or_default()[at] += sample.value;
            }
        }
        for (workload, [started, ended, open]) in sides {
            if started != ended + open {
                return Err(format!(
                    "{workload:?}: started {started} is not ended {ended} + in flight {open}:\n{}",
                    self.lines("enginetap_requests_")
                ));
            }
        }
        Ok(())
    }

    /// Asserts [`Page::invariant`].
    #[track_caller]
    pub fn assert_invariant(&self) {
        if let Err(why) = self.invariant() {
            panic!("{why}");
        }
    }

    /// The first counter or histogram series of `older` that has disappeared or is lower.
    pub fn below(&self, older: &Page) -> Option<String> {
        let now: BTreeMap<_, f64> = self
            .samples
            .iter()
            .map(|s| ((&s.name, &s.labels), s.value))
            .collect();
        older
            .samples
            .iter()
            .filter(|s| older.counts(&s.name))
            .find_map(|s| match now.get(&(&s.name, &s.labels)) {
                None => Some(format!("{}{:?} has disappeared", s.name, s.labels)),
                Some(value) if *value < s.value => {
                    Some(format!("{}{:?}: {} -> {value}", s.name, s.labels, s.value))
                }
                Some(_) => None,
            })
    }

    /// Asserts that every counter and histogram series of `older` is still
    /// here and not lower.
    #[track_caller]
    pub fn assert_not_below(&self, older: &Page) {
        if let Some(why) = self.below(older) {
            panic!("{why}");
        }
    }

    /// Asserts that `promtool check metrics` has nothing to say.
    #[track_caller]
    pub fn assert_promtool_clean(&self) {
        let dir = crate::guard::temp_dir();
        let file = dir.path().join("page");
        std::fs::write(&file, self.text()).expect("write the page");
        let out = std::process::Command::new("promtool")
            .args(["check", "metrics"])
            .stdin(std::fs::File::open(&file).expect("open the page"))
            .output()
            .expect("promtool (Debian's prometheus) is needed");
        let said = [out.stdout, out.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(out.status.success() && said.trim().is_empty(), "{said}");
    }

    /// Whether a sample name belongs to a counter or a histogram.
    fn counts(&self, name: &str) -> bool {
        let declared = |family: &str, kind: &str| self.types.get(family).is_some_and(|t| t == kind);
        let part = ["_bucket", "_count", "_sum"]
            .iter()
            .find_map(|end| name.strip_suffix(end));
        declared(name, "counter")
            || name
                .strip_suffix("_total")
                .is_some_and(|family| declared(family, "counter"))
            || part.is_some_and(|family| declared(family, "histogram"))
    }

    /// What is wrong with the page as a page: a series twice, a sample without
    /// a type, a histogram whose buckets go down or whose last one is not the
    /// count. Empty when all is well.
    pub fn lint(&self) -> Vec<String> {
        let mut faults = Vec::new();
        let mut seen = BTreeSet::new();
        for sample in &self.samples {
            if !seen.insert((&sample.name, &sample.labels)) {
                faults.push(format!("twice: {}{:?}", sample.name, sample.labels));
            }
            if !self.typed(&sample.name) {
                faults.push(format!("no type: {}", sample.name));
            }
        }
        for family in self
            .types
            .iter()
            .filter(|(_, kind)| *kind == "histogram")
            .map(|(n, _)| n)
        {
            self.lint_histogram(family, &mut faults);
        }
        faults
    }

    fn typed(&self, name: &str) -> bool {
        let ends = [
            "", "_bucket", "_count", "_sum", "_total", "_created", "_info",
        ];
        ends.iter()
            .filter_map(|end| name.strip_suffix(end))
            .any(|f| self.types.contains_key(f))
    }

    fn lint_histogram(&self, family: &str, faults: &mut Vec<String>) {
        let mut last: BTreeMap<_, (f64, f64)> = BTreeMap::new();
        for sample in self.series(&format!("{family}_bucket")) {
            let le = sample
                .label("le")
                .replace("+Inf", "inf")
                .parse()
                .unwrap_or(f64::NAN);
            let (edge, count) = last
                .insert(without_le(sample).1, (le, sample.value))
                .unwrap_or((f64::NEG_INFINITY, 0.0));
            if !(edge < le && count <= sample.value) {
                faults.push(format!("{family}{:?}: buckets do not grow", sample.labels));
            }
        }
        for (labels, (edge, count)) in last {
            let total = self
                .series(&format!("{family}_count"))
                .into_iter()
                .find(|s| s.labels == labels)
                .map(|s| s.value);
            if edge != f64::INFINITY || total != Some(count) {
                faults.push(format!("{family}{labels:?}: +Inf {count}, count {total:?}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = concat!(
        "# TYPE enginetap_requests_started_total counter\n",
        "enginetap_requests_started_total{container=\"a\"} 5\n",
        "# TYPE enginetap_requests_total counter\n",
        "enginetap_requests_total{container=\"a\",outcome=\"success\"} 3\n",
        "enginetap_requests_total{container=\"a\",outcome=\"abort\"} 1\n",
        "# TYPE enginetap_requests_in_flight gauge\n",
        "enginetap_requests_in_flight{container=\"a\",class=\"inference\"} 1\n",
        "# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n",
    );

    #[test]
    fn the_invariant_is_judged_per_workload() {
        let page = Page::parse(GOOD);
        page.assert_invariant();
        assert!(page.lint().is_empty(), "{:?}", page.lint());
        let moved = GOOD.replace(
            "{container=\"a\",outcome=\"abort\"}",
            "{container=\"b\",outcome=\"abort\"}",
        );
        assert!(Page::parse(&moved).invariant().is_err());
    }

    #[test]
    fn a_counter_that_goes_down_or_away_is_named() {
        let old = Page::parse(GOOD);
        old.assert_not_below(&old);
        for (from, to) in [("success\"} 3", "success\"} 2"), ("h_count 2\n", "")] {
            let new = Page::parse(&GOOD.replace(from, to));
            assert!(
                std::panic::catch_unwind(|| new.assert_not_below(&old)).is_err(),
                "{to}"
            );
        }
        let idle = Page::parse(&GOOD.replace("class=\"inference\"} 1", "class=\"inference\"} 0"));
        idle.assert_not_below(&old);
    }

    #[test]
    fn lint_finds_a_broken_histogram_and_a_double() {
        let broken = Page::parse(&GOOD.replace("h_count 2", "h_count 3"));
        assert_eq!(broken.lint().len(), 1);
        let double = Page::parse(&format!("{GOOD}h_sum 3\n"));
        assert_eq!(double.lint().len(), 1);
    }
}
