//! The README's queries, each run by a real Prometheus on what it scraped from the agent.

use std::collections::BTreeMap;
use std::thread;
use std::time::Duration;

use enginetap_tests::guard::{Child, ChildBuilder, Engine, Load, poll, temp_dir};
use enginetap_tests::http;
use enginetap_tests::scene::{beside, port};
use enginetap_tests::script::Script;
use nix::sys::signal::Signal;
use serde_json::Value;

const README: &str = include_str!("../../README.md");
const PATIENCE: Duration = Duration::from_secs(60);

/// The queries, by what is said of each.
fn queries() -> BTreeMap<&'static str, String> {
    let block = README
        .split("```promql\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next())
        .expect("a block of queries");
    block
        .split("\n\n")
        .map(|part| {
            let (said, query) = part.trim().split_once('\n').expect("a query");
            (said.trim_start_matches("# "), query.to_owned())
        })
        .collect()
}

fn escaped(query: &str) -> String {
    query
        .bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' => (b as char).to_string(),
            _ => format!("%{b:02X}"),
        })
        .collect()
}

struct Prometheus {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Prometheus {
    fn start(scraped: std::net::SocketAddr) -> Prometheus {
        let (dir, port) = (temp_dir(), port());
        let config = dir.path().join("prometheus.yml");
        let text = format!(
            "global:\n  scrape_interval: 1s\nscrape_configs:\n- job_name: enginetap\n  static_configs:\n  - targets: ['{scraped}']\n"
        );
        std::fs::write(&config, text).expect("a configuration");
        let child = ChildBuilder::new("prometheus")
            .arg(format!("--config.file={}", config.display()))
            .arg(format!(
                "--storage.tsdb.path={}",
                dir.path().join("data").display()
            ))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"))
            .start();
        Prometheus {
            child,
            port,
            _dir: dir,
        }
    }

    /// The values a query has now; `None` while the server is not ready.
    fn ask(&self, query: &str) -> Option<Vec<f64>> {
        let at = format!("/api/v1/query?query={}", escaped(query));
        let to = (std::net::Ipv4Addr::LOCALHOST, self.port).into();
        let reply = http::get(to, &at, &[]).ok()?;
        let answer: Value = serde_json::from_str(&reply.text()).ok()?;
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        let rows = answer["data"]["result"].as_array().expect("a vector");
        let value = |row: &Value| row["value"][1].as_str()?.parse().ok();
        Some(rows.iter().filter_map(value).collect())
    }

    /// Waits until it has scraped so many requests.
    fn wait_for(&self, requests: f64) {
        let seen = poll(PATIENCE, || {
            let n = self.ask("sum(enginetap_requests_total{class=\"inference\"})")?;
            n.first().filter(|n| **n >= requests).copied()
        });
        assert!(seen.is_some(), "{}", self.child.evidence());
    }
}

#[test]
fn every_query_of_the_readme_has_an_answer() {
    let queries = queries();
    assert!(queries.len() >= 10, "{}", queries.len());
    let mut engine = Engine::start();
    let agent = beside(&engine);
    let pid = engine.child().pid();
    let prometheus = Prometheus::start(agent.address());
    let script = Script {
        events: 10,
        gap_ms: 10.0,
        ..Script::default()
    }
    .to_header();
    let ask = |n: &str| {
        let words = ["-n", "2", "-m", n, "--include-usage", "--script", &script];
        Load::run(None, engine.address(), words);
    };
    ask("2");
    prometheus.wait_for(4.0);
    // A rate needs two scrapes of a series that had moved between them.
    thread::scope(|s| {
        let asking = s.spawn(|| ask("20"));
        thread::sleep(Duration::from_millis(500));
        // The engine is held up in the middle of its streams.
        let pid = nix::unistd::Pid::from_raw(pid as i32);
        nix::sys::signal::kill(pid, Signal::SIGSTOP).expect("stopped");
        thread::sleep(Duration::from_millis(300));
        nix::sys::signal::kill(pid, Signal::SIGCONT).expect("goes on");
        asking.join().expect("the load");
    });
    engine.ended(44);
    prometheus.wait_for(44.0);
    let mut answers = BTreeMap::new();
    for (said, query) in &queries {
        let found = poll(PATIENCE, || {
            let values = prometheus.ask(query)?;
            (!values.is_empty() && values.iter().all(|v| v.is_finite())).then_some(values)
        });
        let found = found.unwrap_or_else(|| panic!("{said}: {query}: {:?}", prometheus.ask(query)));
        println!("{said} {found:?}");
        answers.insert(*said, found);
    }
    for (said, values) in &answers {
        if said.starts_with("Share") {
            let sound = |v: &f64| (0.0..=1.0).contains(v);
            assert!(values.iter().all(sound), "{said}: {values:?}");
        }
    }
    let held = &answers["Share of the time between events that the host took, per pod."];
    assert!(held.iter().any(|v| *v > 0.05), "{held:?}");
    agent.stop();
}
