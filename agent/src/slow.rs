//! The worst requests of late, per workload: how long each phase took and what held it up. Times,
//! routes and outcomes only; nothing of what a request or a reply said.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::stalls::Stall;
use crate::vocab::{Outcome, StallCause, WorkloadId};

/// Requests kept per workload.
const MOST: usize = 20;
/// How long a request is kept.
const KEPT: Duration = Duration::from_secs(600);

/// A request that has ended.
#[derive(Clone, Debug, Serialize)]
pub struct SlowRequest {
    /// When it ended, seconds since 1970.
    pub ended: f64,
    /// From its first byte to its last.
    pub seconds: f64,
    /// From its first byte to the process's first read; none when not seen.
    pub read_seconds: Option<f64>,
    /// From its first byte to the head of the reply.
    pub head_seconds: Option<f64>,
    /// From its first byte to its first token.
    pub first_token_seconds: Option<f64>,
    /// Its route, from a closed list.
    pub route: &'static str,
    /// What became of it.
    pub outcome: &'static str,
    /// Its status; none without a head.
    pub status: Option<u16>,
    /// The process that read it, 0 when not known.
    pub pid: u32,
    /// Seconds that the host kept its serving threads from running; none without clocks.
    pub host_stall_seconds: Option<f64>,
    /// Seconds by cause, those that were not 0.
    pub stall_seconds: BTreeMap<&'static str, f64>,
}

impl SlowRequest {
    /// Takes in what held it up.
    pub fn held_up_by(&mut self, stall: &Stall) {
        self.host_stall_seconds = Some(stall.host_ns as f64 / 1e9);
        for (cause, ns) in StallCause::ALL.iter().zip(stall.by_cause) {
            if ns > 0 {
                self.stall_seconds.insert(cause.as_str(), ns as f64 / 1e9);
            }
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Slow {
    worst: BTreeMap<WorkloadId, Vec<(Instant, SlowRequest)>>,
}

impl Slow {
    /// Keeps a request if it is one of the worst. One whose end was not seen says nothing.
    pub fn add(&mut self, workload: WorkloadId, outcome: Outcome, request: SlowRequest) {
        if outcome == Outcome::Unobserved {
            return;
        }
        let now = Instant::now();
        let kept = self.worst.entry(workload).or_default();
        kept.retain(|(at, _)| now.duration_since(*at) < KEPT);
        let place = kept.partition_point(|(_, r)| r.seconds >= request.seconds);
        if place < MOST {
            kept.insert(place, (now, request));
            kept.truncate(MOST);
        }
    }

    /// The worst of a workload, worst first.
    pub fn of(&self, workload: WorkloadId) -> Vec<SlowRequest> {
        let fresh = |(at, _): &&(Instant, SlowRequest)| at.elapsed() < KEPT;
        let all = self.worst.get(&workload);
        all.into_iter()
            .flatten()
            .filter(fresh)
            .map(|(_, r)| r.clone())
            .collect()
    }

    /// Forgets a workload.
    pub fn forget(&mut self, workload: WorkloadId) {
        self.worst.remove(&workload);
    }
}

/// Fetches JSON from a running agent.
pub fn fetch(address: &str, path: &str) -> Result<Value> {
    let mut stream = TcpStream::connect(address).with_context(|| {
        format!("no agent answers at {address}: start one with `enginetap run`, or give its address with --listen")
    })?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut reply = String::new();
    stream
        .read_to_string(&mut reply)
        .context("the agent did not answer")?;
    let (head, body) = reply
        .split_once("\r\n\r\n")
        .context("the answer is no HTTP reply")?;
    ensure!(!head.contains(" 403 "), "{address}: {}", body.trim_end());
    ensure!(
        head.contains(" 200 "),
        "{address} is no enginetap agent: {}",
        head.lines().next().unwrap_or_default()
    );
    serde_json::from_str(body).context("the answer is no JSON")
}

/// `enginetap slow`: asks the agent at `address` and prints a table.
pub fn slow(address: &str) -> Result<()> {
    print!("{}", table(&fetch(address, "/requests/slow")?));
    Ok(())
}

/// The table.
fn table(found: &Value) -> String {
    let mut out = String::new();
    let list = |v: &Value| v.as_array().cloned().unwrap_or_default();
    let time = |v: &Value| v.as_f64().map_or("-".to_owned(), |s| format!("{s:.3}"));
    for w in list(&found["workloads"]) {
        let text = |key: &str| w[key].as_str().unwrap_or_default().to_owned();
        out += &format!(
            "{}{}{}  engine={}\n  {:>9} {:>9} {:>9} {:>9}  {:<10} {:>6}  route\n",
            text("pod"),
            if text("pod").is_empty() { "" } else { "/" },
            text("container"),
            text("engine"),
            "seconds",
            "1st token",
            "read",
            "host",
            "outcome",
            "status",
        );
        for r in list(&w["requests"]) {
            let causes: Vec<String> = r["stall_seconds"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(cause, s)| format!("{cause} {}", time(s)))
                .collect();
            out += &format!(
                "  {:>9} {:>9} {:>9} {:>9}  {:<10} {:>6}  {}  {}\n",
                time(&r["seconds"]),
                time(&r["first_token_seconds"]),
                time(&r["read_seconds"]),
                time(&r["host_stall_seconds"]),
                r["outcome"].as_str().unwrap_or_default(),
                r["status"]
                    .as_u64()
                    .map_or("-".to_owned(), |s| s.to_string()),
                r["route"].as_str().unwrap_or_default(),
                causes.join(", "),
            );
        }
    }
    if out.is_empty() {
        out.push_str("no inference request has ended in the last 10 minutes\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(seconds: f64) -> SlowRequest {
        SlowRequest {
            ended: 1.7e9,
            seconds,
            read_seconds: None,
            head_seconds: None,
            first_token_seconds: Some(seconds / 2.0),
            route: "/v1/chat/completions",
            outcome: "success",
            status: Some(200),
            pid: 7,
            host_stall_seconds: None,
            stall_seconds: BTreeMap::new(),
        }
    }

    #[test]
    fn the_worst_are_kept_worst_first() {
        let (mut slow, id) = (Slow::default(), WorkloadId(1));
        for n in 0..100 {
            let seconds = f64::from((n * 37) % 100);
            slow.add(id, Outcome::Success, request(seconds));
        }
        slow.add(id, Outcome::Unobserved, request(1e9));
        let kept: Vec<f64> = slow.of(id).iter().map(|r| r.seconds).collect();
        let worst: Vec<f64> = (80..100).rev().map(f64::from).collect();
        assert_eq!(kept, worst);
        slow.forget(id);
        assert!(slow.of(id).is_empty());
    }

    #[test]
    fn a_table_names_the_causes() {
        let mut r = request(2.5);
        let mut stall = Stall {
            host_ns: 500_000_000,
            ..Stall::default()
        };
        stall.by_cause[1] = 500_000_000;
        r.held_up_by(&stall);
        let found = serde_json::json!({"workloads": [{
            "pod": "vllm-0", "container": "main", "engine": "vllm", "requests": [r],
        }]});
        let text = table(&found);
        for part in ["vllm-0/main", "2.500", "1.250", "throttled 0.500", "200"] {
            assert!(text.contains(part), "{part} is missing in\n{text}");
        }
    }
}
