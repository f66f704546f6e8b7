//! Clients that users have: the OpenAI SDK, httpx and aiohttp, one streamed chat each.

use std::net::SocketAddr;
use std::time::Duration;

use serde::Deserialize;

use super::{Counts, Place};
use crate::guard::NetNs;

/// A line of the recipe `clients`.
#[derive(Debug, Deserialize)]
struct Line {
    client: String,
    events: u64,
    usage: Usage,
}

#[derive(Debug, Deserialize)]
struct Usage {
    prompt_tokens: u64,
    completion_tokens: u64,
}

impl Counts {
    /// Runs them, and sums up what each saw. They keep no clock.
    pub fn of_sdk_clients(
        place: &Place,
        ns: &NetNs,
        target: SocketAddr,
        model: &str,
        limit: usize,
    ) -> Self {
        let base = format!("http://{target}");
        let end = place
            .starter("clients", None, &[&base, model, &limit.to_string()])
            .netns(ns)
            .start()
            .wait(Duration::from_secs(180));
        assert!(end.status.success(), "clients: {}", end.stderr);
        let lines: Vec<Line> = end
            .stdout
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect();
        let names: Vec<&str> = lines.iter().map(|line| line.client.as_str()).collect();
        assert_eq!(names, ["openai", "httpx", "aiohttp"], "{}", end.stderr);
        let sum = |field: fn(&Line) -> u64| lines.iter().map(field).sum::<u64>() as f64;
        Self {
            requests: lines.len() as f64,
            successes: lines.len() as f64,
            events: sum(|line| line.events),
            generated: sum(|line| line.usage.completion_tokens),
            prompt: sum(|line| line.usage.prompt_tokens),
            first_tokens: lines.len() as f64,
            ..Self::default()
        }
    }
}
