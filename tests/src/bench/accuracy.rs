//! Times on the page against the client's clock, request by request.
//!
//! The page has sums, not requests. So requests of the model `probe` come one at a time, and what
//! the sums of that model grow by between two pages is that request. Streams of another model run
//! beside it. The client sits on a CPU of its own; its clock has the way back and its own wake-up
//! in it, which the page has not.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Parser as _;

use super::stats::{median, quantile};
use super::table::{Detail, Report, Verdict};
use super::{Args, PORT};
use crate::client::{ClientArgs, ClientRow, run as request};
use crate::guard::{Agent, Engine, Load, NetNs};
use crate::page::Page;
use crate::scene::{SOON, agent_for};
use crate::script::Script;

const FAMILIES: [&str; 3] = [
    "enginetap_time_to_first_token_seconds",
    "enginetap_stream_gap_seconds",
    "enginetap_request_duration_seconds",
];
const PROBE: [(&str, &str); 1] = [("model", "probe")];

fn probe(ns: &NetNs, target: SocketAddr, script: &str) -> ClientRow {
    let target = target.to_string();
    let words = [
        "load-client",
        "--target",
        &target,
        "--model",
        "probe",
        "--warm",
        "--cpu",
        "1",
        "--script",
        script,
    ];
    let args = ClientArgs::parse_from(words);
    let summary = ns.run_in(|| request(args).expect("a client"));
    summary.rows.into_iter().next().expect("a request")
}

fn sums(page: &Page) -> [f64; 3] {
    FAMILIES.map(|name| page.value(&format!("{name}_sum"), &PROBE))
}

fn ended(agent: &Agent, count: f64) -> Page {
    agent.wait_for(SOON, |p| {
        p.value("enginetap_request_duration_seconds_count", &PROBE) >= count
    })
}

/// Buckets of the page against those that the client's values give: samples that are elsewhere.
fn elsewhere(page: &Page, name: &str, values: &[f64]) -> f64 {
    let hist = page.hist(name, &PROBE);
    let moved = hist
        .buckets
        .iter()
        .zip(hist.expected(values))
        .map(|(a, b)| (a.1 - b.1).abs());
    moved.fold(0.0, f64::max) / values.len().max(1) as f64 * 100.0
}

pub(super) fn run(args: &Args, report: &mut Report) {
    let (count, background) = (args.pick(300, 20), args.pick(100, 20));
    let ns = NetNs::new();
    let engine = Engine::builder()
        .netns(&ns)
        .listen(&format!("127.0.0.1:{PORT}"))
        .args(["--no-rows", "--no-event-log"])
        .start();
    let agent = agent_for(PORT);
    let script = Script {
        events: 20,
        gap_ms: 5.0,
        token_delay_ms: 20.0,
        ..Script::default()
    }
    .to_header();
    let mut detail = Detail::new(
        "Page less client clock per request, us",
        &[
            "beside",
            "what",
            "median",
            "p1 to p99",
            "smallest to largest",
            "samples in another bucket, %",
        ],
    );
    let mut worst = 0.0f64;
    let mut done = 0.0;
    for (name, streams) in [("nothing", 0), ("streams", background)] {
        let slow = Script {
            events: 100_000,
            gap_ms: 20.0,
            ..Script::default()
        }
        .to_header();
        let n = streams.to_string();
        let load = (streams > 0).then(|| {
            let words = [
                "-n",
                &n,
                "--model",
                "other",
                "--no-event-log",
                "--script",
                &slow,
            ];
            Load::start(Some(&ns), engine.address(), words)
        });
        std::thread::sleep(Duration::from_secs(2));
        let mut before = agent.scrape();
        let first = before.clone();
        let mut errors = [(); 3].map(|()| Vec::new());
        let mut clients: Vec<ClientRow> = Vec::new();
        let began = Instant::now();
        for _ in 0..count {
            let row = probe(&ns, engine.address(), &script);
            done += 1.0;
            let page = ended(&agent, done);
            let (now, then) = (sums(&page), sums(&before));
            let gaps: f64 = row.tally.gap_seconds().iter().sum();
            let theirs = [row.ttft().expect("a first token"), gaps, row.duration()];
            for at in 0..3 {
                errors[at].push((now[at] - then[at] - theirs[at]) * 1e6);
            }
            before = page;
            clients.push(row);
        }
        println!(
            "{count} requests beside {name}: {:.1} s",
            began.elapsed().as_secs_f64()
        );
        drop(load);
        let values: [Vec<f64>; 3] = [
            clients.iter().filter_map(ClientRow::ttft).collect(),
            clients.iter().flat_map(|r| r.tally.gap_seconds()).collect(),
            clients.iter().map(ClientRow::duration).collect(),
        ];
        let beside = if streams > 0 {
            let rate = before.value("enginetap_stream_events_total", &[("model", "other")]);
            format!("{streams} streams of 50 events/s ({rate:.0} reported)")
        } else {
            name.to_owned()
        };
        for (at, what) in ["time to first token", "sum of the gaps", "end to end"]
            .iter()
            .enumerate()
        {
            let far: Vec<f64> = errors[at].iter().map(|e| e.abs()).collect();
            let p99 = quantile(&far, 0.99);
            worst = worst.max(p99);
            // Buckets of the first half alone: the second shares its histograms.
            let moved = if first.value("enginetap_requests_total", &PROBE) == 0.0 {
                format!("{:.1}", elsewhere(&before, FAMILIES[at], &values[at]))
            } else {
                String::new()
            };
            detail.line(&[
                beside.clone(),
                (*what).to_owned(),
                format!("{:.0}", median(&errors[at])),
                [0.01, 0.99]
                    .map(|q| format!("{:.0}", quantile(&errors[at], q)))
                    .join(" to "),
                [0.0, 1.0]
                    .map(|q| format!("{:.0}", quantile(&errors[at], q)))
                    .join(" to "),
                moved,
            ]);
        }
    }
    agent.stop();
    report.row(
        "time to first token, gaps and end to end against the client's clock, per request",
        "p99 <= 1 ms",
        &format!("worst p99 of three times, alone and beside {background} streams: {:.2} ms", worst / 1e3),
        Verdict::of(worst <= 1_000.0),
        &format!(
            "{count} requests each way, one at a time, connected before; a request's own times are what the page's sums of its model grew by; the client is on CPU 1 and its clock has its own wake-up in it"
        ),
    );
    report.detail(detail);
}
