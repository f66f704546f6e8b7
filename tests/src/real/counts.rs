//! What one side counted of inference requests: the clients, or the page of one engine.

use std::ops::Add;

use crate::client::Summary;
use crate::event::Outcome;
use crate::page::Page;

/// Sums over requests of class `inference`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Requests that ended, without those that were lost.
    pub requests: f64,
    /// Requests sent while the server closed a kept connection: never served, and sent again on
    /// another. How many of them still reach its socket, and so are resets on the page, is chance.
    pub lost: f64,
    /// Those that a gateway answered by itself, since it lost them on the way.
    pub unserved: f64,
    /// Those that ended well.
    pub successes: f64,
    /// Events of their streams.
    pub events: f64,
    /// Tokens generated, as the replies' usage tells.
    pub generated: f64,
    /// Tokens of the prompts, likewise.
    pub prompt: f64,
    /// Streams with a first token.
    pub first_tokens: f64,
    /// Sum of the times to it.
    pub ttft: f64,
    /// Sum of the durations of successes.
    pub duration: f64,
}

impl Counts {
    /// By the load client.
    pub fn of_client(sum: &Summary) -> Self {
        let ttft: Vec<f64> = sum.rows.iter().filter_map(|row| row.ttft()).collect();
        let good = sum.rows.iter().filter(|r| r.outcome == Outcome::Success);
        Self {
            requests: sum.requests as f64,
            lost: sum.stale as f64,
            unserved: sum.statuses.get(&502).copied().unwrap_or(0) as f64,
            successes: sum.outcome(Outcome::Success) as f64,
            events: sum.events as f64,
            generated: sum.tokens.generation as f64,
            prompt: sum.tokens.prompt as f64,
            first_tokens: ttft.len() as f64,
            ttft: ttft.iter().sum(),
            duration: good.map(|row| row.duration()).sum(),
        }
    }

    /// By the page, of the workloads with these labels.
    pub fn of_page(page: &Page, workload: &[(&str, &str)]) -> Self {
        let of = |name: &str, more: &[(&str, &str)]| page.value(name, &[workload, more].concat());
        let ended = |more: &[(&str, &str)]| {
            let labels = [&[("class", "inference")], more].concat();
            of("enginetap_requests_total", &labels)
        };
        let usage = |kind| {
            of(
                "enginetap_tokens_total",
                &[("type", kind), ("source", "usage")],
            )
        };
        let lost = ended(&[("outcome", "reset"), ("status", "none")]);
        Self {
            requests: ended(&[]) - lost,
            lost,
            unserved: 0.0,
            successes: ended(&[("outcome", "success")]),
            events: of("enginetap_stream_events_total", &[]),
            generated: usage("generation"),
            prompt: usage("prompt"),
            first_tokens: of("enginetap_time_to_first_token_seconds_count", &[]),
            ttft: of("enginetap_time_to_first_token_seconds_sum", &[]),
            duration: of("enginetap_request_duration_seconds_sum", &[]),
        }
    }

    /// What is counted, without the times.
    fn exact(&self) -> [(&'static str, f64); 6] {
        [
            ("requests", self.requests),
            ("successes", self.successes),
            ("events", self.events),
            ("generated tokens", self.generated),
            ("prompt tokens", self.prompt),
            ("first tokens", self.first_tokens),
        ]
    }

    /// The counts in which the page differs from the client; empty when they are the same.
    pub fn differences(client: &Self, page: &Self) -> Vec<String> {
        let pairs = client.exact().into_iter().zip(page.exact());
        let mut differences: Vec<String> = pairs
            .filter(|((_, client), (_, page))| client != page)
            .map(|((what, client), (_, page))| format!("{what}: client {client}, page {page}"))
            .collect();
        if page.lost > client.lost {
            differences.push(format!("lost: client {}, page {}", client.lost, page.lost));
        }
        differences
    }

    /// What the server behind a gateway should count, which tells nobody what it sent again.
    #[must_use]
    pub fn through_gateway(self) -> Self {
        Self {
            requests: self.requests - self.unserved,
            lost: f64::INFINITY,
            ..self
        }
    }

    /// Asserts that the page counts what the client counts.
    #[track_caller]
    pub fn assert_counts(client: &Self, page: &Self) {
        let differences = Self::differences(client, page);
        assert!(differences.is_empty(), "{differences:?}");
    }

    /// Asserts that the page's times are the client's within `slack` seconds for each request.
    #[track_caller]
    pub fn assert_times(client: &Self, page: &Self, slack: f64) {
        for (what, ours, theirs, count) in [
            ("first tokens", page.ttft, client.ttft, client.first_tokens),
            (
                "durations",
                page.duration,
                client.duration,
                client.successes,
            ),
        ] {
            assert!(
                (ours - theirs).abs() <= slack * count,
                "{what}: {ours} s on the page, {theirs} s at the client, {count} samples"
            );
        }
    }
}

impl Add for Counts {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            requests: self.requests + other.requests,
            lost: self.lost + other.lost,
            unserved: self.unserved + other.unserved,
            successes: self.successes + other.successes,
            events: self.events + other.events,
            generated: self.generated + other.generated,
            prompt: self.prompt + other.prompt,
            first_tokens: self.first_tokens + other.first_tokens,
            ttft: self.ttft + other.ttft,
            duration: self.duration + other.duration,
        }
    }
}
