//! The page as a scraper sees it, and what a test asks of it.

mod check;
mod hist;
mod parse;

pub use hist::Hist;

use std::collections::{BTreeMap, BTreeSet};

/// One line of the exposition text.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The metric's name, with `_bucket`, `_sum`, `_count`.
    pub name: String,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its value.
    pub value: f64,
}

impl Sample {
    /// Whether every given label has the given value; a label the sample lacks
    /// counts as empty, as in PromQL.
    pub fn matches(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(k, v)| self.label(k) == *v)
    }

    /// A label's value, empty when absent.
    pub fn label(&self, name: &str) -> &str {
        self.labels.get(name).map_or("", String::as_str)
    }
}

/// A parsed page.
#[derive(Clone, Debug, Default)]
pub struct Page {
    text: String,
    samples: Vec<Sample>,
    index: BTreeMap<String, Vec<usize>>,
    types: BTreeMap<String, String>,
    help: BTreeMap<String, String>,
}

impl Page {
    /// Parses the text format 0.0.4 or OpenMetrics; panics with the line that
    /// is not of it.
    pub fn parse(text: &str) -> Self {
        match Self::read(text) {
            Ok(page) => page,
            Err(error) => panic!("{error}; the page:\n{text}"),
        }
    }

    /// As [`Page::parse`]; the error names the line.
    pub fn read(text: &str) -> Result<Self, String> {
        parse::page(text)
    }

    /// The text it was parsed from.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// All samples in page order.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// Family name to type, as declared by `# TYPE`.
    pub fn types(&self) -> &BTreeMap<String, String> {
        &self.types
    }

    /// Family name to help text.
    pub fn help(&self) -> &BTreeMap<String, String> {
        &self.help
    }

    /// The series of a sample name.
    pub fn series(&self, name: &str) -> Vec<&Sample> {
        self.index
            .get(name)
            .into_iter()
            .flatten()
            .map(|i| &self.samples[*i])
            .collect()
    }

    /// The series of a sample name that carry these labels.
    pub fn matching(&self, name: &str, labels: &[(&str, &str)]) -> Vec<&Sample> {
        self.series(name)
            .into_iter()
            .filter(|s| s.matches(labels))
            .collect()
    }

    /// The sum over all series that carry these labels, 0 when there is none.
    pub fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.matching(name, labels).iter().map(|s| s.value).sum()
    }

    /// As [`Page::value`], `None` when there is no such series.
    pub fn get(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let found = self.matching(name, labels);
        (!found.is_empty()).then(|| found.iter().map(|s| s.value).sum())
    }

    /// The histogram `name`, merged over all series that carry these labels;
    /// empty when there is none.
    pub fn hist(&self, name: &str, labels: &[(&str, &str)]) -> Hist {
        Hist::of(self, name, labels)
    }

    /// The values that a label takes in the series of a sample name.
    pub fn label_values(&self, name: &str, label: &str) -> BTreeSet<String> {
        self.series(name)
            .iter()
            .map(|s| s.label(label).to_owned())
            .collect()
    }

    /// The lines whose name starts with `prefix`: evidence for a message.
    pub fn lines(&self, prefix: &str) -> String {
        let lines: Vec<&str> = self
            .text
            .lines()
            .filter(|line| line.starts_with(prefix))
            .collect();
        lines.join("\n")
    }

    /// Asserts that [`Page::value`] is exactly this; panics with the family.
    #[track_caller]
    pub fn assert_value(&self, name: &str, labels: &[(&str, &str)], expected: f64) {
        let value = self.value(name, labels);
        assert!(
            value == expected,
            "{name}{labels:?} is {value}, expected {expected}:\n{}",
            self.lines(name)
        );
    }
}
