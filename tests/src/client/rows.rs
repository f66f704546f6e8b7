//! The client's truth.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::clock::seconds;
use crate::event::{Outcome, Tally, Usage};

/// One request as the client saw it. Stamps are CLOCK_MONOTONIC nanoseconds,
/// 0 when the moment did not happen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClientRow {
    /// Its `x-row` header: pairs it with the engine's row.
    pub id: String,
    /// Connection number.
    pub conn: usize,
    /// Local port.
    pub port: u16,
    /// Request target.
    pub target: String,
    /// Status; 0 without a head.
    pub status: u16,
    /// Interim replies before the head.
    pub interim: u32,
    /// Whether the reply was an event stream.
    pub streaming: bool,
    /// Model named in the reply.
    pub model: String,
    /// How it ended.
    pub outcome: Outcome,
    /// Why it did not end well, for people.
    pub error: String,
    /// Bytes of the request's body sent, framing left out.
    pub request_bytes: u64,
    /// Bytes of the reply's body read, framing left out.
    pub reply_bytes: u64,
    /// The events.
    pub tally: Tally,
    /// Usage told.
    pub usage: Option<Usage>,
    /// Just before the first write.
    pub start_ns: u64,
    /// After the last write.
    pub sent_ns: u64,
    /// The read that brought the first byte of the head returned.
    pub head_ns: u64,
    /// The read that brought the last byte of the body returned.
    pub body_end_ns: u64,
    /// The read that completed the reply, or the moment it was given up.
    pub end_ns: u64,
}

impl ClientRow {
    /// Seconds from start to the first content event of a stream.
    pub fn ttft(&self) -> Option<f64> {
        let at = self.tally.first_content_ns;
        (at != 0).then(|| seconds(self.start_ns, at))
    }

    /// Seconds from start to the last byte of the body (or of the head).
    pub fn duration(&self) -> f64 {
        seconds(
            self.start_ns,
            if self.body_end_ns == 0 {
                self.end_ns
            } else {
                self.body_end_ns
            },
        )
    }
}

/// The whole truth of a client.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// Requests of which a byte was sent.
    pub requests: u64,
    /// By outcome.
    pub outcomes: BTreeMap<String, u64>,
    /// By status.
    pub statuses: BTreeMap<u16, u64>,
    /// Events with a data field.
    pub events: u64,
    /// Events with content.
    pub content_events: u64,
    /// Gaps.
    pub gaps: u64,
    /// Usage told, summed.
    pub tokens: Usage,
    /// Connections opened.
    pub connections: u64,
    /// Connections that could not be opened.
    pub connect_errors: u64,
    /// Connections given up: the server could not be reached for long.
    pub unreached: u64,
    /// Requests repeated because a kept connection had been closed.
    pub stale: u64,
    /// Seconds from the first start to the last end.
    pub elapsed: f64,
    /// Quantiles 0.5, 0.9, 0.99, 1 of the time to first token, seconds.
    pub ttft: Vec<f64>,
    /// The same of the duration of successes.
    pub duration: Vec<f64>,
    /// Mean gap in seconds.
    pub mean_gap: f64,
    /// The rows in order of their end.
    #[serde(skip)]
    pub rows: Vec<ClientRow>,
}

/// Quantiles 0.5, 0.9, 0.99 and 1; empty for no values.
fn quantiles(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().saturating_sub(1);
    let at = |q: f64| values.get((last as f64 * q).round() as usize).copied();
    [0.5, 0.9, 0.99, 1.0].into_iter().filter_map(at).collect()
}

impl Summary {
    /// Sums up rows.
    pub fn of(rows: Vec<ClientRow>) -> Self {
        let mut sum = Self {
            requests: rows.len() as u64,
            ..Self::default()
        };
        let mut gap_ns = 0;
        for row in &rows {
            *sum.outcomes
                .entry(row.outcome.as_str().to_owned())
                .or_default() += 1;
            *sum.statuses.entry(row.status).or_default() += 1;
            sum.events += row.tally.data;
            sum.content_events += row.tally.content;
            sum.gaps += row.tally.gaps;
            gap_ns += row.tally.gap_sum_ns;
            let usage = row.usage.unwrap_or_default();
            sum.tokens.prompt += usage.prompt;
            sum.tokens.generation += usage.generation;
            sum.tokens.cached += usage.cached;
        }
        let start = rows.iter().map(|row| row.start_ns).min().unwrap_or(0);
        let end = rows.iter().map(|row| row.end_ns).max().unwrap_or(0);
        sum.elapsed = seconds(start, end);
        sum.ttft = quantiles(rows.iter().filter_map(ClientRow::ttft).collect());
        let good = rows.iter().filter(|row| row.outcome == Outcome::Success);
        sum.duration = quantiles(good.map(ClientRow::duration).collect());
        sum.mean_gap = if sum.gaps == 0 {
            0.0
        } else {
            gap_ns as f64 / 1e9 / sum.gaps as f64
        };
        sum.rows = rows;
        sum
    }

    /// Requests that ended so.
    pub fn outcome(&self, outcome: Outcome) -> u64 {
        self.outcomes.get(outcome.as_str()).copied().unwrap_or(0)
    }

    /// Every gap in seconds, from the event logs.
    pub fn gap_seconds(&self) -> Vec<f64> {
        self.rows
            .iter()
            .flat_map(|row| row.tally.gap_seconds())
            .collect()
    }
}
