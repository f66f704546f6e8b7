//! The demo's table: one row a second from the differences between two pages, and a summary.

use std::time::Instant;

use crate::scrape::Page;

const INFERENCE: &str = "class=\"inference\"";
const REQUESTS: &str = "enginetap_requests_total";
const TTFT: &str = "enginetap_time_to_first_token_seconds";
const GAP: &str = "enginetap_stream_gap_seconds";
const TOKENS: &str = "enginetap_tokens_total";

/// Pages seen so far: the first, and the last with its time.
#[derive(Debug)]
pub struct Table {
    metrics: String,
    first: Page,
    last: Page,
    started: Instant,
    at: Instant,
    rows: usize,
}

/// What happened between two pages.
#[derive(Debug)]
struct Row {
    requests: f64,
    tokens: f64,
    in_flight: f64,
    ttft: [Option<f64>; 2],
    gap: [Option<f64>; 2],
}

impl Table {
    pub fn new(metrics: &str, first: Page) -> Self {
        let now = Instant::now();
        Self {
            metrics: metrics.to_owned(),
            last: Page::default(),
            first,
            started: now,
            at: now,
            rows: 0,
        }
    }

    /// Prints what happened since the last row.
    pub fn row(&mut self, page: Page) {
        if self.rows.is_multiple_of(20) {
            println!(
                "{:>5} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}  outcomes",
                "s", "req/s", "TTFT p50", "p99", "gap p50", "p99", "tokens/s", "in flight"
            );
        }
        let now = Instant::now();
        let earlier = if self.rows == 0 {
            &self.first
        } else {
            &self.last
        };
        let row = Row::between(earlier, &page, (now - self.at).as_secs_f64());
        println!(
            "{:>5} {}  {}",
            self.started.elapsed().as_secs(),
            row.text(),
            outcomes(earlier, &page)
        );
        (self.last, self.at) = (page, now);
        self.rows += 1;
    }

    /// Prints the whole run and says whether anything was observed.
    pub fn summary(&self, page: Page) -> bool {
        let seconds = self.started.elapsed().as_secs_f64();
        let row = Row::between(&self.first, &page, seconds);
        let since = |name: &str, with: &str| page.sum(name, with) - self.first.sum(name, with);
        let requests = since(REQUESTS, INFERENCE);
        let time = |value: Option<f64>| value.map_or("-".to_owned(), milliseconds);
        println!("\n{seconds:.1} s as the agent saw them, from outside");
        for (name, value) in [
            ("requests", format!("{requests:.0} ({:.1}/s)", row.requests)),
            ("outcomes", outcomes(&self.first, &page)),
            (
                "time to first token",
                format!("p50 {}, p99 {}", time(row.ttft[0]), time(row.ttft[1])),
            ),
            (
                "gap between events",
                format!("p50 {}, p99 {}", time(row.gap[0]), time(row.gap[1])),
            ),
            (
                "tokens generated",
                format!("{:.0} ({:.1}/s)", row.tokens * seconds, row.tokens),
            ),
            (
                "stream events",
                format!("{:.0}", since("enginetap_stream_events_total", "")),
            ),
            ("in flight", format!("{:.0}", row.in_flight)),
            ("metrics", format!("http://{}/metrics", self.metrics)),
        ] {
            println!("  {name:<20} {value}");
        }
        requests > 0.0 && row.ttft[0].is_some()
    }
}

impl Row {
    fn between(earlier: &Page, later: &Page, seconds: f64) -> Self {
        let generated = "type=\"generation\"";
        let rate =
            |name: &str, with: &str| (later.sum(name, with) - earlier.sum(name, with)) / seconds;
        let quantiles = |name: &str| [0.5, 0.99].map(|q| later.quantile_since(earlier, name, q));
        Self {
            requests: rate(REQUESTS, INFERENCE),
            tokens: rate(TOKENS, generated),
            in_flight: later.sum("enginetap_requests_in_flight", INFERENCE),
            ttft: quantiles(TTFT),
            gap: quantiles(GAP),
        }
    }

    fn text(&self) -> String {
        let time = |value: Option<f64>| value.map_or("-".to_owned(), milliseconds);
        format!(
            "{:>7.1} {:>9} {:>9} {:>9} {:>9} {:>9.1} {:>9.0}",
            self.requests,
            time(self.ttft[0]),
            time(self.ttft[1]),
            time(self.gap[0]),
            time(self.gap[1]),
            self.tokens,
            self.in_flight
        )
    }
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1000.0)
}

/// Outcomes that happened between two pages, the most frequent first.
fn outcomes(earlier: &Page, later: &Page) -> String {
    let before = earlier.by(REQUESTS, INFERENCE, "outcome");
    let mut counts: Vec<(String, f64)> = later
        .by(REQUESTS, INFERENCE, "outcome")
        .into_iter()
        .map(|(outcome, count)| {
            let already = before.get(&outcome).copied().unwrap_or(0.0);
            (outcome, count - already)
        })
        .filter(|(_, count)| *count > 0.0)
        .collect();
    counts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let texts: Vec<String> = counts
        .iter()
        .map(|(outcome, count)| format!("{outcome} {count:.0}"))
        .collect();
    if texts.is_empty() {
        "-".to_owned()
    } else {
        texts.join(", ")
    }
}
