//! A thousand concurrent streams: what the page counts against what the engine and the client
//! counted themselves, and the pages meanwhile.

use std::time::{Duration, Instant};

use super::stats::quantile;
use super::stream::{self, Server, Steady, missing};
use super::table::{Detail, Report, Verdict};
use super::{Args, PORT};
use crate::event::Outcome;
use crate::guard::{Engine, Load, NetNs};
use crate::page::Page;
use crate::scene::{SOON, agent_for};
use crate::script::{End, Script};

/// The engine runs under this name, which makes its workload: others on the machine are not ours.
const NAME: &str = "bench-engine";
const OURS: (&str, &str) = ("container", NAME);

/// What the requests are to become, in turn.
fn scripts(events: usize) -> Vec<String> {
    let stream = Script {
        events,
        gap_ms: 50.0,
        usage: Some(true),
        ..Script::default()
    };
    let failing = Script {
        error_after: Some(events / 2),
        ..stream.clone()
    };
    let breaking = Script {
        stop_after: Some(events / 2),
        end: End::Rst,
        ..stream.clone()
    };
    let refused = Script {
        status: 429,
        ..Script::default()
    };
    let broken = Script {
        status: 503,
        ..Script::default()
    };
    let mut all: Vec<String> = vec![stream.to_header(); 6];
    all.extend([failing, breaking, refused, broken].map(|s| s.to_header()));
    all
}

/// One stream that the server writes faster than its client reads: the kernel joins writes, sends
/// some from the CPU that takes the client's acknowledgements, and segments overtake each other.
fn flood(args: &Args, report: &mut Report) {
    let load = Steady {
        connections: 1,
        rate: 500_000,
        per_stream: args.pick(50_000, 20_000),
    };
    let ns = NetNs::new();
    let server = Server::start(&ns, load);
    let agent = agent_for(PORT);
    let time = Duration::from_secs(args.pick(10, 2));
    let counted = load.run(&ns, &server, || std::thread::sleep(time));
    let (missed, page) = missing(&agent, counted.events);
    agent.stop();
    let lost: Vec<String> = page
        .series("enginetap_events_lost_total")
        .iter()
        .filter(|s| s.value > 0.0)
        .map(|s| format!("{} {}", s.label("reason"), s.value))
        .collect();
    let unobserved = page.value(
        "enginetap_requests_total",
        &[("outcome", "unobserved"), stream::OURS[0]],
    );
    report.row(
        "one stream as fast as the server writes",
        "exactly equal, 0 lost",
        &format!(
            "{missed:.0} of {} events missing, {unobserved:.0} of {} requests unobserved; lost: {}",
            counted.events,
            counted.replies,
            if lost.is_empty() { "nothing".to_owned() } else { lost.join(", ") }
        ),
        Verdict::of(missed == 0.0 && unobserved == 0.0 && lost.is_empty()),
        &format!(
            "{} events per request over one kept connection on lo, {:.0} events/s, {:.2} segments per event, {:.0} of them out of order",
            load.per_stream, counted.rate, counted.segments, counted.out_of_order
        ),
    );
}

pub(super) fn run(args: &Args, report: &mut Report) {
    flood(args, report);
    let (streams, events, turns) = args.pick((1_000, 200, 3), (200, 40, 2));
    let ns = NetNs::new();
    let mut engine = Engine::builder()
        .exe_name(NAME)
        .netns(&ns)
        .listen(&format!("127.0.0.1:{PORT}"))
        .args(["--no-rows", "--no-event-log"])
        .start();
    let agent = agent_for(PORT);
    // Two in ten end at once: so many connections keep the streams at that number.
    let (n, m) = ((streams * 5 / 4).to_string(), turns.to_string());
    let mut words = vec![
        "-n",
        &n,
        "-m",
        &m,
        "--warm",
        "--include-usage",
        "--no-event-log",
    ];
    let scripts = scripts(events);
    for script in &scripts {
        words.extend(["--script", script]);
    }
    let began = Instant::now();
    let mut load = Load::start(Some(&ns), engine.address(), words);
    let (mut times, mut pages, mut broken) = (Vec::new(), 0, Vec::new());
    let (mut last, mut most) = (agent.scrape(), 0.0f64);
    while !load.child().has_exited() {
        let asked = Instant::now();
        let reply = agent.get("/metrics").expect("a page");
        times.push(asked.elapsed().as_secs_f64() * 1e3);
        let page = Page::parse(&reply.text());
        pages += 1;
        broken.extend(page.invariant().err());
        page.assert_not_below(&last);
        most = most.max(page.value("enginetap_requests_in_flight", &[OURS]));
        last = page;
        std::thread::sleep(Duration::from_millis(200));
    }
    let sum = load.wait(Duration::from_secs(5));
    let seconds = began.elapsed().as_secs_f64();
    let truth = engine.ended(sum.requests);
    let page = agent.wait_for(SOON, |p| {
        p.value("enginetap_requests_total", &[OURS]) >= sum.requests as f64
    });
    page.assert_invariant();
    agent.stop();

    let mut detail = Detail::new(
        &format!("{streams} concurrent streams for {seconds:.0} s: the page against both ends"),
        &["", "page", "engine", "client"],
    );
    let mut unequal = 0;
    let mut compare = |name: &str, ours: f64, engine: u64, client: Option<u64>| {
        if ours != engine as f64 || client.is_some_and(|c| c != engine) {
            unequal += 1;
        }
        let client = client.map_or_else(String::new, |c| c.to_string());
        detail.line(&[
            name.to_owned(),
            format!("{ours:.0}"),
            engine.to_string(),
            client,
        ]);
    };
    let requests = |labels: &[(&str, &str)]| page.value("enginetap_requests_total", labels);
    let started = page.value("enginetap_requests_started_total", &[OURS]);
    compare(
        "requests started",
        started,
        truth.started,
        Some(sum.requests),
    );
    compare(
        "requests ended",
        requests(&[OURS]),
        truth.count(),
        Some(sum.requests),
    );
    for outcome in [
        Outcome::Success,
        Outcome::Error,
        Outcome::Refused,
        Outcome::Reset,
        Outcome::Abort,
        Outcome::Timeout,
    ] {
        let name = outcome.as_str();
        compare(
            name,
            requests(&[("outcome", name), OURS]),
            truth.outcome(outcome),
            Some(sum.outcome(outcome)),
        );
    }
    compare(
        "unobserved",
        requests(&[("outcome", "unobserved"), OURS]),
        0,
        None,
    );
    let events = page.value("enginetap_stream_events_total", &[OURS]);
    // A reset drops what the client had not read yet.
    let whole = (sum.events == truth.events).then_some(sum.events);
    compare("stream events", events, truth.events, whole);
    if whole.is_none() {
        println!(
            "the client read {} of {} events before resets",
            sum.events, truth.events
        );
    }
    let gaps = page.value("enginetap_stream_gap_seconds_count", &[OURS]);
    compare("gaps", gaps, sum.gaps, Some(sum.gaps));
    let usage = [("type", "generation"), ("source", "usage"), OURS];
    let tokens = page.value("enginetap_tokens_total", &usage);
    compare(
        "tokens by usage",
        tokens,
        sum.tokens.generation,
        Some(sum.tokens.generation),
    );
    let mut lost = 0.0;
    for sample in page.series("enginetap_events_lost_total") {
        lost += sample.value;
        let reason = sample.label("reason");
        detail.line(&[
            format!("lost: {reason}"),
            format!("{:.0}", sample.value),
            String::new(),
            String::new(),
        ]);
    }
    broken.iter().take(3).for_each(|why| println!("{why}"));
    report.row(
        &format!("requests, outcomes and events against both ends' truth, {streams} concurrent streams"),
        "exactly equal, 0 lost, invariant on every page",
        &format!(
            "{unequal} of the counts below differ, {lost:.0} lost, invariant broken on {} of {pages} pages; {:.0} events/s, up to {most:.0} in flight",
            broken.len(),
            events / seconds
        ),
        Verdict::of(unequal == 0 && lost == 0.0 && broken.is_empty() && most >= streams as f64),
        "scripted-engine and load-client over lo of a namespace; six of ten requests stream to the end, the others are an error event, a reset, a 429 and a 503; no counter fell between pages",
    );
    let (mid, p99) = (quantile(&times, 0.5), quantile(&times, 0.99));
    report.row(
        &format!("page while {streams} streams run, p99"),
        "<= 50 ms",
        &format!("p50 {mid:.1} ms, p99 {p99:.1} ms"),
        Verdict::of(p99 <= 50.0),
        &format!(
            "{pages} GETs over HTTP, one each 200 ms, with engine and client on the same two cores"
        ),
    );
    report.detail(detail);
}
