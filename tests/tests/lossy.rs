//! A wire that loses, repeats and overtakes frames: what the page says stays what the two ends
//! counted and timed themselves.

use std::time::Duration;

use enginetap_tests::client::{ClientRow, Summary};
use enginetap_tests::clock::seconds;
use enginetap_tests::engine::{EngineRow, Truth};
use enginetap_tests::event::Outcome;
use enginetap_tests::guard::{Engine, Load};
use enginetap_tests::page::Page;
use enginetap_tests::relay::{Counts, Deed, Fault, Faults, Relay, RelayBuilder, Way};
use enginetap_tests::scene::{self, agent_for, assert_counts, assert_streams, settled};
use enginetap_tests::script::Script;

/// Seconds per request by which the scheduler may part the stamps of one moment.
const SLACK: f64 = 0.01;
const DEADLINE: Duration = Duration::from_secs(120);

/// What the ends, the page and the relay counted.
struct Seen {
    page: Page,
    truth: Truth,
    sum: Summary,
    relay: Counts,
}

/// Runs loads side by side over a relay and collects what all counted.
fn run(builder: RelayBuilder, loads: &[Vec<String>]) -> Seen {
    let (relay, port) = (builder.start(), scene::port());
    let mut engine = Engine::builder()
        .netns(&relay.server)
        .listen(&format!("10.79.0.1:{port}"))
        .listen(&format!("[fd79::1]:{port}"))
        .start();
    let agent = agent_for(port);
    let start = |(n, load): (usize, &Vec<String>)| {
        let tag = format!("load{n}");
        let args = load.iter().map(String::as_str).chain(["--tag", &tag]);
        let over6 = n % 4 == 3;
        let target = if over6 {
            Relay::address6(port)
        } else {
            Relay::address(port)
        };
        Load::start(Some(&relay.client), target, args)
    };
    let running: Vec<Load> = loads.iter().enumerate().map(start).collect();
    let ended = running
        .into_iter()
        .flat_map(|load| load.wait(DEADLINE).rows);
    let sum = Summary::of(ended.collect());
    let truth = engine.ended(sum.requests);
    let page = settled(&agent, sum.requests);
    agent.stop();
    Seen {
        page,
        truth,
        sum,
        relay: relay.counts(),
    }
}

fn words(line: &str, script: &Script) -> Vec<String> {
    let mut out: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    out.extend(["--script".to_owned(), script.to_header()]);
    out
}

/// Heads of one and of several segments, bodies from none to 100 KB in both framings, streams and
/// unary replies, many requests per connection and many connections.
fn mix() -> Vec<Vec<String>> {
    let streams = Script {
        events: 20,
        gap_ms: 2.0,
        ..Script::default()
    };
    let unary = |bytes| Script {
        unary_bytes: Some(bytes),
        ..Script::default()
    };
    let short = Script {
        events: 4,
        ..Script::default()
    };
    let mut long = words("-n 4 -m 10 --unary", &unary(300));
    // Three segments; what goes beyond 4 KiB of a head is not read.
    for n in 0..3 {
        long.push("--header".to_owned());
        long.push(format!("x-long-{n}: {}", "y".repeat(1_100)));
    }
    vec![
        words("-n 8 -m 6 --include-usage", &streams),
        long,
        words("-n 4 -m 10 --unary --prompt-bytes 1000", &unary(100_000)),
        words("-n 3 -m 4 --prompt-bytes 100000", &short),
        words("-n 3 -m 4 --prompt-bytes 100000 --chunked 4000", &short),
        words("-n 2 -m 40", &short),
        words("-n 40 -m 1", &short),
        words("-n 4 -m 5 --reconnect --route /v1/models", &unary(3_000)),
    ]
}

/// Two bodies of 4 MB each way.
fn large() -> Vec<Vec<String>> {
    let reply = Script {
        unary_bytes: Some(4_000_000),
        ..Script::default()
    };
    let none = Script::default();
    vec![
        words("-n 1 -m 2 --prompt-bytes 4000000", &none),
        words("-n 1 -m 2 --prompt-bytes 4000000 --chunked 60000", &none),
        words("-n 1 -m 2 --unary", &reply),
    ]
}

/// Both ends of every request that generates.
fn pairs<'a>(seen: &'a Seen) -> Vec<(&'a EngineRow, &'a ClientRow)> {
    let row = |c: &'a ClientRow| {
        let e = seen.truth.row(&c.id);
        (e.unwrap_or_else(|| panic!("{} has no pair", c.id)), c)
    };
    let all = seen.sum.rows.iter().map(row);
    all.filter(|(e, _)| e.route.generates()).collect()
}

/// The page's times enclose those of the engine, which reads later and writes earlier, and are
/// enclosed by those of the client, which sends earlier and receives later: what a retransmission
/// costs lies between page and client or between page and engine, on the side it happened.
fn assert_between(seen: &Seen) {
    let check = |family: &str, times: Vec<(f64, f64)>| {
        let n = times.len() as f64;
        seen.page.assert_value(&format!("{family}_count"), &[], n);
        let page = seen.page.value(&format!("{family}_sum"), &[]);
        let least: f64 = times.iter().map(|t| t.0).sum();
        let most: f64 = times.iter().map(|t| t.1).sum();
        assert!(
            least - n * SLACK <= page && page <= most + n * SLACK,
            "{family}: {page} s on the page, {least} s at the engine, {most} s at the client, {n} samples"
        );
    };
    let pairs = pairs(seen);
    let first = |(e, c): &(&EngineRow, &ClientRow)| {
        let at = e.tally.first_content_ns;
        Some((seconds(e.start_ns, at), c.ttft()?))
    };
    check(
        "enginetap_time_to_first_token_seconds",
        pairs.iter().filter_map(first).collect(),
    );
    let whole = |(e, c): &(&EngineRow, &ClientRow)| {
        let end = e.body_end_ns.max(e.head_ns);
        (seconds(e.start_ns, end), c.duration())
    };
    check(
        "enginetap_request_duration_seconds",
        pairs.iter().map(whole).collect(),
    );
}

/// Everything is as the ends have it, nothing was missed.
fn assert_exact(seen: &Seen) {
    assert_eq!(seen.sum.outcome(Outcome::Success), seen.sum.requests);
    assert_eq!(seen.truth.events, seen.sum.events);
    assert_counts(&seen.page, &seen.truth);
    assert_streams(&seen.page, &seen.sum);
    seen.page.assert_value("enginetap_unparsed_total", &[], 0.0);
    assert_between(seen);
}

/// The relay did enough of each deed for the test to mean something.
fn assert_met(seen: &Seen, way: Way, deeds: &[Deed], least: u64) {
    for deed in deeds {
        let n = seen.relay.data(way, *deed);
        assert!(n >= least, "{way:?} {deed:?}: {n} only; {:?}", seen.relay);
    }
}

const BOTH: [Way; 2] = [Way::ToServer, Way::ToClient];
const DEEDS: [Deed; 3] = [Deed::Dropped, Deed::Duplicated, Deed::Reordered];

#[test]
fn frames_lost_on_the_way_to_the_client_change_nothing() {
    let seen = run(
        Relay::builder().faults(Way::ToClient, Faults::drops()),
        &mix(),
    );
    assert_met(&seen, Way::ToClient, &[Deed::Dropped], 5);
    assert_exact(&seen);
}

#[test]
fn frames_repeated_or_overtaken_on_the_way_to_the_client_change_nothing() {
    let faults = Faults {
        drop: 0,
        ..Faults::all()
    };
    let seen = run(Relay::builder().faults(Way::ToClient, faults), &mix());
    assert_met(&seen, Way::ToClient, &DEEDS[1..], 5);
    assert_exact(&seen);
}

#[test]
fn frames_lost_on_the_way_to_the_server_change_nothing() {
    let seen = run(
        Relay::builder().faults(Way::ToServer, Faults::drops()),
        &mix(),
    );
    assert_met(&seen, Way::ToServer, &[Deed::Dropped], 5);
    assert_exact(&seen);
}

#[test]
fn frames_repeated_on_the_way_to_the_server_change_nothing() {
    let seen = run(
        Relay::builder().faults(Way::ToServer, Faults::duplicates()),
        &mix(),
    );
    assert_met(&seen, Way::ToServer, &[Deed::Duplicated], 5);
    assert_exact(&seen);
}

#[test]
fn frames_overtaken_on_the_way_to_the_server_change_nothing() {
    let seen = run(
        Relay::builder().faults(Way::ToServer, Faults::reorders()),
        &mix(),
    );
    assert_met(&seen, Way::ToServer, &[Deed::Reordered], 5);
    assert_exact(&seen);
}

#[test]
fn every_fault_both_ways_changes_nothing() {
    for seed in [1, 2] {
        let seen = run(Relay::builder().both(&Faults::all()).seed(seed), &mix());
        for way in BOTH {
            assert_met(&seen, way, &DEEDS, 3);
        }
        assert_exact(&seen);
    }
}

#[test]
fn every_fault_both_ways_under_joined_segments_changes_nothing() {
    let seen = run(
        Relay::builder().both(&Faults::all()).seed(5).offloads(),
        &mix(),
    );
    for way in BOTH {
        assert_met(&seen, way, &DEEDS, 3);
    }
    assert_exact(&seen);
}

#[test]
fn a_second_frame_behind_the_third_is_taken_in_order() {
    // The second frame of a request lies in its head or at the begin of its body.
    let seen = run(
        Relay::builder().faults(Way::ToServer, Faults::exactly(&[(2, Fault::Behind(1))])),
        &mix(),
    );
    assert_met(&seen, Way::ToServer, &[Deed::Reordered], 10);
    assert_exact(&seen);
}

#[test]
fn a_first_frame_lost_in_either_way_is_timed_where_it_arrived_or_left() {
    let first = Faults::exactly(&[(1, Fault::Drop)]);
    let seen = run(Relay::builder().both(&first), &mix());
    for way in BOTH {
        assert_met(&seen, way, &[Deed::Dropped], 20);
    }
    assert_exact(&seen);
}

#[test]
fn large_bodies_are_exact_or_their_gaps_are_marked() {
    let seen = run(Relay::builder().both(&Faults::all()).seed(9), &large());
    for way in BOTH {
        assert_met(&seen, way, &DEEDS, 5);
    }
    let (page, truth) = (&seen.page, &seen.truth);
    assert_eq!(seen.sum.outcome(Outcome::Success), seen.sum.requests);
    let n = truth.count() as f64;
    page.assert_value("enginetap_requests_started_total", &[], n);
    page.assert_value(
        "enginetap_requests_total",
        &[("status", "200"), ("outcome", "success")],
        n,
    );
    page.assert_value("enginetap_stream_events_total", &[], truth.events as f64);
    let gaps = page.value("enginetap_events_lost_total", &[("reason", "gap")]);
    page.assert_value("enginetap_events_lost_total", &[], gaps);
    let timed = page.value("enginetap_request_duration_seconds_count", &[]);
    assert!(
        timed <= n && timed + gaps >= n,
        "{timed} of {n} are timed, {gaps} gaps"
    );
    if gaps == 0.0 {
        assert_between(&seen);
    }
}
