//! Real programs, unmodified: llama.cpp's server inside a Python process, SMG in front of it, and
//! the clients that people use. The truth is the clients': what they sent, read and were told.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use enginetap_tests::event::Outcome;
use enginetap_tests::guard::{Agent, Load, NetNs};
use enginetap_tests::page::Page;
use enginetap_tests::real::{Counts, Kept, MODEL, Place, Program};
use enginetap_tests::scene::SOON;

/// Seconds by which the page and a client may differ for one request, on a machine that is shared.
const SLACK: f64 = 0.02;
/// llama.cpp says keep-alive and closes after a stream: who thinks for a moment sees it.
const STREAMS: [&str; 11] = [
    "-n",
    "4",
    "-m",
    "3",
    "--model",
    MODEL,
    "--include-usage",
    "--max-tokens",
    "6",
    "--think-ms",
    "50",
];
const UNARY: [&str; 9] = [
    "-n",
    "3",
    "-m",
    "2",
    "--model",
    MODEL,
    "--unary",
    "--max-tokens",
    "6",
];
/// The labels of a workload.
type Labels = [(&'static str, &'static str)];
const LLAMACPP: &Labels = &[
    ("engine", "llamacpp"),
    ("tier", "engine"),
    ("container", "xllama.py"),
];
const SMG: &Labels = &[("engine", "smg"), ("tier", "gateway")];

/// An agent that knows engines by their profiles alone.
fn agent() -> Agent {
    Agent::start(&["--recognise", "off"])
}

/// The page once so many inference requests of each of these have ended.
fn settled(agent: &Agent, of: &[&Labels], requests: f64) -> Page {
    let page = agent.wait_for(SOON, |page| {
        of.iter()
            .all(|one| Counts::of_page(page, one).requests >= requests)
    });
    page.assert_invariant();
    for one in of {
        page.assert_value("enginetap_events_lost_total", one, 0.0);
    }
    page
}

#[test]
fn a_real_engine_that_starts_after_the_agent_is_known_and_counted_exactly() {
    let Some(place) = Place::with(&["xllama", "clients"]) else {
        return;
    };
    let ns = NetNs::new();
    let agent = agent();
    let engine = Program::llamacpp(&place, &ns);
    let streams = Load::run(Some(&ns), engine.address(), STREAMS);
    let unary = Load::run(Some(&ns), engine.address(), UNARY);
    assert_eq!(streams.outcome(Outcome::Success), 12, "{streams:?}");
    assert_eq!(unary.outcome(Outcome::Success), 6, "{unary:?}");
    let client = Counts::of_client(&streams) + Counts::of_client(&unary);
    assert!(client.generated > 18.0, "usage was told: {client:?}");

    let page = settled(&agent, &[LLAMACPP], client.requests);
    Counts::assert_counts(&client, &Counts::of_page(&page, LLAMACPP));
    Counts::assert_times(&client, &Counts::of_page(&page, LLAMACPP), SLACK);
    for (streaming, count) in [("true", 12.0), ("false", 6.0)] {
        let labels = [
            ("model", MODEL),
            ("route", "/v1/chat/completions"),
            ("streaming", streaming),
            ("status", "200"),
        ];
        page.assert_value("enginetap_requests_total", &labels, count);
    }

    let sdk = Counts::of_sdk_clients(&place, &ns, engine.address(), MODEL, 6);
    let all = client + sdk;
    let page = settled(&agent, &[LLAMACPP], all.requests);
    Counts::assert_counts(&all, &Counts::of_page(&page, LLAMACPP));

    let targets = agent.get("/targets").unwrap().text();
    assert!(
        targets.contains("maps xllamacpp/xllamacpp.abi3.so"),
        "{targets}"
    );
    assert!(page.lint().is_empty(), "{:?}", page.lint());
    agent.stop();
}

#[test]
fn both_legs_of_a_real_gateway_are_counted_and_never_summed() {
    let Some(place) = Place::with(&["xllama", "smg", "clients"]) else {
        return;
    };
    let ns = NetNs::new();
    let engine = Program::llamacpp(&place, &ns);
    let agent = agent();
    let gateway = Program::smg(&place, &ns, &engine);
    let streams = Load::run(Some(&ns), gateway.address(), STREAMS);
    let unary = Load::run(Some(&ns), gateway.address(), UNARY);
    assert_eq!(streams.outcome(Outcome::Success), 12, "{streams:?}");
    assert_eq!(unary.outcome(Outcome::Success), 6, "{unary:?}");
    let client = Counts::of_client(&streams) + Counts::of_client(&unary);
    let page = settled(&agent, &[SMG, LLAMACPP], client.requests);
    // The gateway's own checks of its worker are probes and control requests of the worker.
    Counts::assert_counts(&client.through_gateway(), &Counts::of_page(&page, LLAMACPP));
    Counts::assert_counts(&client, &Counts::of_page(&page, SMG));
    Counts::assert_times(&client, &Counts::of_page(&page, SMG), SLACK);

    let sdk = Counts::of_sdk_clients(&place, &ns, gateway.address(), MODEL, 6);
    let all = client + sdk;
    let page = settled(&agent, &[SMG, LLAMACPP], all.requests);
    Counts::assert_counts(&all, &Counts::of_page(&page, SMG));
    Counts::assert_counts(&all.through_gateway(), &Counts::of_page(&page, LLAMACPP));
    let names = |of: &Labels| {
        let series = page.matching("enginetap_requests_started_total", of);
        let names = series.iter().map(|one| one.label("container").to_owned());
        names.collect::<BTreeSet<_>>()
    };
    assert_eq!((names(SMG).len(), names(LLAMACPP).len()), (1, 1));
    assert!(names(SMG).is_disjoint(&names(LLAMACPP)), "two workloads");
    agent.stop();
}

#[test]
fn what_a_real_engine_refuses_and_who_leaves_it_is_told() {
    let Some(place) = Place::with(&["xllama"]) else {
        return;
    };
    let ns = NetNs::new();
    let engine = Program::llamacpp(&place, &ns);
    let agent = agent();
    let load = |args: &[&str]| {
        let words = [&["--model", MODEL, "--max-tokens", "300"], args].concat();
        Load::run(Some(&ns), engine.address(), words)
    };
    let nowhere = load(&["-n", "2", "-m", "2", "--route", "/v1/nowhere"]);
    assert_eq!(nowhere.statuses.get(&404), Some(&4), "{nowhere:?}");
    // Its body begins with lines that look like requests, so it is no JSON either.
    let no_json = load(&["-n", "2", "-m", "2", "--smuggle"]);
    assert_eq!(no_json.statuses.get(&400), Some(&4), "{no_json:?}");
    let leaves = ["-n", "3", "--abort-after", "2", "--abort-with", "close"];
    let left = load(&leaves);
    assert_eq!(left.outcome(Outcome::Abort), 3, "{left:?}");
    let early = load(&[
        "-n",
        "2",
        "--unary",
        "--abort-before-head-ms",
        "60",
        "--abort-with",
        "rst",
    ]);
    assert_eq!(early.outcome(Outcome::Abort), 2, "{early:?}");

    let total = |page: &Page, labels: &[(&str, &str)]| {
        page.value("enginetap_requests_total", &[LLAMACPP, labels].concat())
    };
    let page = agent.wait_for(SOON, |page| {
        total(page, &[("outcome", "refused")]) >= 8.0 && total(page, &[("outcome", "abort")]) >= 5.0
    });
    page.assert_invariant();
    for (class, outcome, status, count) in [
        ("other", "refused", "404", 4.0),
        ("inference", "refused", "400", 4.0),
        ("inference", "abort", "200", 3.0),
        ("inference", "abort", "499", 2.0),
    ] {
        let labels = [("class", class), ("outcome", outcome), ("status", status)];
        assert_eq!(total(&page, &labels), count, "{labels:?}");
    }
    assert_eq!(total(&page, &[("class", "inference")]), 9.0);
    page.assert_value("enginetap_requests_in_flight", LLAMACPP, 0.0);
    agent.stop();
}

#[test]
fn idle_connections_of_a_real_engine_that_are_older_than_the_agent_are_counted() {
    let Some(place) = Place::with(&["xllama"]) else {
        return;
    };
    let ns = NetNs::new();
    let engine = Program::llamacpp(&place, &ns);
    let mut kept = [(); 2].map(|()| Kept::open(&ns, engine.address()));
    let ready = AtomicBool::new(false);
    let agent = std::thread::scope(|scope| {
        // The engine closes what is idle for five seconds; an agent may take longer to be ready.
        scope.spawn(|| {
            while !ready.load(Ordering::Relaxed) {
                kept.iter_mut()
                    .for_each(|c| assert_eq!(c.get("/health"), 200));
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        let agent = std::panic::catch_unwind(agent);
        ready.store(true, Ordering::Relaxed);
        agent.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let mut generated = 0;
    for _ in 0..3 {
        for connection in &mut kept {
            let (status, reply) = connection.chat(MODEL, 6);
            assert_eq!(status, 200, "{reply}");
            generated += reply["usage"]["completion_tokens"].as_u64().expect("usage");
        }
    }
    let page = settled(&agent, &[LLAMACPP], 6.0);
    let counts = Counts::of_page(&page, LLAMACPP);
    assert_eq!(
        (counts.requests, counts.successes, counts.generated),
        (6.0, 6.0, generated as f64),
        "{}",
        page.lines("enginetap_requests_total")
    );
    agent.stop();
}
