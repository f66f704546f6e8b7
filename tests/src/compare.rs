//! A page beside the truth of both ends, line by line, for runs in which records may have found no
//! room: sums over what is then unknown (model, route, streaming, the status beyond its class).

use std::collections::BTreeMap;

use crate::client::Summary;
use crate::engine::Truth;
use crate::event::Outcome;
use crate::page::Page;

/// One number as all sides have it.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// What was counted.
    pub what: String,
    /// By the engine.
    pub engine: u64,
    /// By the client; `None` where it cannot know.
    pub client: Option<u64>,
    /// By the agent.
    pub page: f64,
}

impl Line {
    /// What the page has more than the engine; the client's count decides nothing here.
    pub fn difference(&self) -> f64 {
        self.page - self.engine as f64
    }

    /// Whether all sides agree.
    pub fn agrees(&self) -> bool {
        self.difference() == 0.0 && self.client.is_none_or(|n| n == self.engine)
    }

    /// Its cells: what, engine, client, page, difference.
    pub fn cells(&self) -> Vec<String> {
        let client = self.client.map_or_else(String::new, |n| n.to_string());
        vec![
            self.what.clone(),
            self.engine.to_string(),
            client,
            format!("{:.0}", self.page),
            format!("{:+.0}", self.difference()),
        ]
    }
}

/// A page beside both ends.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// What was compared.
    pub lines: Vec<Line>,
}

/// How a request ended and the class of its status, `none` without a head.
type Kind = (String, String);

fn class(status: &str) -> String {
    match status {
        "0" | "none" => "none".to_owned(),
        _ => format!("{}xx", &status[..1]),
    }
}

fn of_engine(truth: &Truth) -> BTreeMap<Kind, u64> {
    let mut out = BTreeMap::new();
    for (key, n) in &truth.ended {
        let parts: Vec<&str> = key.rsplitn(3, ' ').collect();
        let [outcome, status, _] = parts[..] else {
            panic!("odd key {key}")
        };
        *out.entry((outcome.to_owned(), class(status))).or_default() += n;
    }
    out
}

fn of_clients(sums: &[Summary]) -> BTreeMap<Kind, u64> {
    let mut out = BTreeMap::new();
    for row in sums.iter().flat_map(|s| &s.rows) {
        let kind = (
            row.outcome.as_str().to_owned(),
            class(&row.status.to_string()),
        );
        *out.entry(kind).or_default() += 1;
    }
    out
}

fn of_page(page: &Page, ours: &[(&str, &str)]) -> BTreeMap<Kind, f64> {
    let mut out: BTreeMap<Kind, f64> = BTreeMap::new();
    for sample in page.matching("enginetap_requests_total", ours) {
        let outcome = sample.label("outcome");
        // Whoever left before the head is a 499 on the page and has no status elsewhere.
        let class = match (outcome, sample.label("status")) {
            ("abort", "499") => "none".to_owned(),
            (_, status) => class(status),
        };
        *out.entry((outcome.to_owned(), class)).or_default() += sample.value;
    }
    out
}

impl Comparison {
    /// Requests started, ended by outcome and class of status, and open; events. `ours` selects
    /// the engine's series on the page.
    pub fn of(page: &Page, ours: &[(&str, &str)], truth: &Truth, sums: &[Summary]) -> Self {
        let requests: u64 = sums.iter().map(|s| s.requests).sum();
        let mut lines = Vec::new();
        let mut line = |what: &str, engine: u64, client: Option<u64>, page: f64| {
            lines.push(Line {
                what: what.to_owned(),
                engine,
                client,
                page,
            });
        };
        let total = |name: &str| page.value(name, ours);
        line(
            "requests started",
            truth.started,
            Some(requests),
            total("enginetap_requests_started_total"),
        );
        line(
            "requests ended",
            truth.count(),
            Some(requests),
            total("enginetap_requests_total"),
        );
        line(
            "requests in flight",
            truth.in_flight,
            Some(0),
            total("enginetap_requests_in_flight"),
        );
        let (engine, client, shown) = (of_engine(truth), of_clients(sums), of_page(page, ours));
        let mut kinds: Vec<&Kind> = engine.keys().chain(client.keys()).collect();
        kinds.extend(shown.iter().filter(|(_, n)| **n > 0.0).map(|(k, _)| k));
        kinds.sort();
        kinds.dedup();
        for kind in kinds {
            line(
                &format!("{}, {}", kind.0, kind.1),
                engine.get(kind).copied().unwrap_or(0),
                Some(client.get(kind).copied().unwrap_or(0)),
                shown.get(kind).copied().unwrap_or(0.0),
            );
        }
        // A client that leaves does not read all that the engine had written by then.
        let whole = sums
            .iter()
            .flat_map(|s| &s.rows)
            .all(|row| !matches!(row.outcome, Outcome::Abort | Outcome::Reset));
        line(
            "stream events",
            truth.events,
            whole.then(|| sums.iter().map(|s| s.events).sum()),
            total("enginetap_stream_events_total"),
        );
        Self { lines }
    }

    /// The lines on which the sides differ.
    pub fn differing(&self) -> Vec<&Line> {
        self.lines.iter().filter(|line| !line.agrees()).collect()
    }

    /// Panics with all lines unless every side agrees.
    #[track_caller]
    pub fn assert_equal(&self, page: &Page) {
        let differing = self.differing();
        assert!(
            differing.is_empty(),
            "not equal: {differing:#?}\nall lines (what, engine, client, page, difference):\n{self}\n{}\n{}",
            page.lines("enginetap_requests_"),
            page.lines("enginetap_events_lost"),
        );
    }
}

impl std::fmt::Display for Comparison {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for line in &self.lines {
            writeln!(f, "{}", line.cells().join("  "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = concat!(
        "enginetap_requests_started_total{container=\"a\"} 4\n",
        "enginetap_requests_total{container=\"a\",outcome=\"success\",status=\"200\"} 1\n",
        "enginetap_requests_total{container=\"a\",outcome=\"success\",status=\"2xx\"} 1\n",
        "enginetap_requests_total{container=\"a\",outcome=\"abort\",status=\"499\"} 1\n",
        "enginetap_requests_total{container=\"b\",outcome=\"abort\",status=\"499\"} 9\n",
        "enginetap_requests_in_flight{container=\"a\"} 1\n",
    );

    fn truth() -> Truth {
        let ended = [("/v1/a 200 success", 2), ("/v1/b 0 abort", 1)];
        Truth {
            started: 4,
            in_flight: 1,
            ended: ended.map(|(k, n)| (k.to_owned(), n)).into(),
            ..Truth::default()
        }
    }

    fn differing(page: &str) -> Vec<String> {
        let page = Page::parse(page);
        let all = Comparison::of(&page, &[("container", "a")], &truth(), &[]);
        let wrong = all.lines.iter().filter(|l| l.difference() != 0.0);
        wrong.map(|l| l.what.clone()).collect()
    }

    #[test]
    fn a_status_known_by_class_only_adds_up_with_the_others() {
        assert_eq!(differing(PAGE), Vec::<String>::new());
    }

    #[test]
    fn a_request_in_a_wrong_outcome_differs_twice() {
        let moved = PAGE.replace(
            "\"success\",status=\"2xx\"",
            "\"unobserved\",status=\"none\"",
        );
        assert_eq!(differing(&moved), ["success, 2xx", "unobserved, none"]);
    }
}
