//! An agent and an engine side by side, and the comparison of what the page says with what the
//! engine and the client counted and timed themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::client::Summary;
use crate::engine::Truth;
use crate::event::Outcome;
use crate::guard::{Agent, Engine};
use crate::page::Page;

/// How long a page may take to show what has happened.
pub const SOON: Duration = Duration::from_secs(10);

/// An agent that watches one port and recognises nothing else.
pub fn agent_for(port: u16) -> Agent {
    Agent::builder()
        .matching(&format!("port={port},engine=vllm"))
        .args(["--recognise", "off"])
        .start()
}

/// A port for engines in namespaces of their own. Rules match ports of every namespace of the node,
/// so it differs from run to run: another run beside this one is not to be counted here.
pub fn port() -> u16 {
    20_000 + (std::process::id() % 12_000) as u16
}

/// Port 0 is chosen by the engine, so the engine comes first here.
pub fn beside(engine: &Engine) -> Agent {
    agent_for(engine.address().port())
}

/// Waits until the page has `count` ended requests and checks its invariant. What it returns holds
/// our engine only: others may run on the same node.
pub fn settled(agent: &Agent, count: u64) -> Page {
    let ours = [("engine", "vllm")];
    let page = agent.wait_for(SOON, |p| {
        p.value("enginetap_requests_total", &ours) >= count as f64
    });
    page.assert_invariant();
    only(&page, "vllm")
}

/// The page without the workloads of other engines.
pub fn only(page: &Page, engine: &str) -> Page {
    let own = format!("engine=\"{engine}\"");
    let lines: Vec<&str> = page
        .text()
        .lines()
        .filter(|l| !l.contains("engine=\"") || l.contains(&own))
        .collect();
    Page::parse(&(lines.join("\n") + "\n"))
}

/// The label value of an engine's outcome.
fn label(outcome: Outcome) -> &'static str {
    outcome.as_str()
}

/// What the page should say of requests by route, status and outcome.
fn wanted(truth: &Truth) -> BTreeMap<(String, String, String), u64> {
    let mut out = BTreeMap::new();
    for (key, n) in &truth.ended {
        let parts: Vec<&str> = key.rsplitn(3, ' ').collect();
        let [outcome, status, route] = parts[..] else {
            panic!("odd key {key}")
        };
        let status = match (status, outcome) {
            ("0", "abort") => "499",
            ("0", _) => "none",
            (s, _) => s,
        };
        *out.entry((route.to_owned(), status.to_owned(), outcome.to_owned()))
            .or_default() += n;
    }
    out
}

/// The page counts exactly what the engine counted: requests by status and outcome, events, and
/// nothing lost.
pub fn assert_counts(page: &Page, truth: &Truth) {
    page.assert_value(
        "enginetap_requests_started_total",
        &[],
        truth.started as f64,
    );
    page.assert_value("enginetap_requests_total", &[], truth.count() as f64);
    for ((_, status, outcome), _) in wanted(truth) {
        let n: u64 = wanted(truth)
            .iter()
            .filter(|((_, s, o), _)| *s == status && *o == outcome)
            .map(|(_, n)| n)
            .sum();
        page.assert_value(
            "enginetap_requests_total",
            &[("status", &status), ("outcome", &outcome)],
            n as f64,
        );
    }
    page.assert_value("enginetap_stream_events_total", &[], truth.events as f64);
    page.assert_value("enginetap_events_lost_total", &[], 0.0);
    assert_eq!(
        page.value("enginetap_requests_in_flight", &[]),
        truth.in_flight as f64,
        "{}",
        page.text()
    );
    for outcome in [
        Outcome::Success,
        Outcome::Error,
        Outcome::Refused,
        Outcome::Abort,
        Outcome::Reset,
    ] {
        page.assert_value(
            "enginetap_requests_total",
            &[("outcome", label(outcome))],
            truth.outcome(outcome) as f64,
        );
    }
}

/// The page's streams are those of the client: gaps, first tokens, usage.
pub fn assert_streams(page: &Page, sum: &Summary) {
    let streams = sum
        .rows
        .iter()
        .filter(|r| r.tally.first_content_ns != 0)
        .count();
    page.assert_value("enginetap_stream_gap_seconds_count", &[], sum.gaps as f64);
    page.assert_value(
        "enginetap_time_to_first_token_seconds_count",
        &[],
        streams as f64,
    );
    if sum.tokens.generation > 0 {
        page.assert_value(
            "enginetap_tokens_total",
            &[("type", "generation"), ("source", "usage")],
            sum.tokens.generation as f64,
        );
        page.assert_value(
            "enginetap_tokens_total",
            &[("type", "prompt"), ("source", "usage")],
            sum.tokens.prompt as f64,
        );
    }
}

/// The page's times lie between those of the two ends: the client's clock includes the page's,
/// within `slack` seconds per request for the way and the scheduler.
pub fn assert_times(page: &Page, sum: &Summary, slack: f64) {
    let close = |name: &str, ours: f64, theirs: f64, n: f64| {
        let per = (ours - theirs).abs() / n.max(1.0);
        assert!(
            per <= slack,
            "{name}: {ours} s on the page, {theirs} s at the client, over {n} samples"
        );
    };
    let ttft: Vec<f64> = sum.rows.iter().filter_map(|r| r.ttft()).collect();
    let n = ttft.len() as f64;
    close(
        "ttft",
        page.value("enginetap_time_to_first_token_seconds_sum", &[]),
        ttft.iter().sum(),
        n,
    );
    let done: Vec<f64> = sum
        .rows
        .iter()
        .filter(|r| r.outcome == Outcome::Success)
        .map(|r| r.duration())
        .collect();
    let m = done.len() as f64;
    close(
        "duration",
        page.value("enginetap_request_duration_seconds_sum", &[]),
        done.iter().sum(),
        m,
    );
    let gaps: f64 = sum.gap_seconds().iter().sum();
    close(
        "gaps",
        page.value("enginetap_stream_gap_seconds_sum", &[]),
        gaps,
        n,
    );
}
