//! A wire that loses, repeats and overtakes frames: what the page says stays what the two ends
//! counted and timed themselves.

use std::net::SocketAddr;
use std::time::Duration;

use enginetap_tests::client::{ClientRow, Summary};
use enginetap_tests::clock::seconds;
use enginetap_tests::engine::{EngineRow, Truth};
use enginetap_tests::event::Outcome;
use enginetap_tests::guard::{Engine, Load, NetNs, Veth, VethEnd};
use enginetap_tests::page::Page;
use enginetap_tests::relay::{Counts, Deed, Fault, Faults, Relay, RelayBuilder, Way};
use enginetap_tests::scene::{self, agent_for, assert_counts, assert_streams, settled};
use enginetap_tests::script::Script;

/// Seconds per request by which the scheduler may part the stamps of one moment.
const SLACK: f64 = 0.01;
const DEADLINE: Duration = Duration::from_secs(120);

/// What the ends and the page counted, and the relay, if there was one.
struct Seen {
    page: Page,
    truth: Truth,
    sum: Summary,
    relay: Counts,
}

/// Where the two ends live and how the client reaches the server, by family.
struct Path<'a> {
    client: &'a NetNs,
    server: &'a NetNs,
    addresses: Vec<SocketAddr>,
}

/// Runs loads side by side and collects what all counted.
fn observe(path: &Path<'_>, loads: &[Vec<String>]) -> Seen {
    let mut engine = Engine::builder().netns(path.server);
    for address in &path.addresses {
        engine = engine.listen(&address.to_string());
    }
    let mut engine = engine.start();
    let agent = agent_for(path.addresses[0].port());
    let start = |(n, load): (usize, &Vec<String>)| {
        let tag = format!("load{n}");
        let args = load.iter().map(String::as_str).chain(["--tag", &tag]);
        let target = path.addresses[n % 4 / 3 % path.addresses.len()];
        Load::start(Some(path.client), target, args)
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
        relay: Counts::default(),
    }
}

/// Runs loads over a relay, one in four over IPv6.
fn run(builder: RelayBuilder, loads: &[Vec<String>]) -> Seen {
    let (relay, port) = (builder.start(), scene::port());
    let path = Path {
        client: &relay.client,
        server: &relay.server,
        addresses: vec![Relay::address(port), Relay::address6(port)],
    };
    let seen = observe(&path, loads);
    Seen {
        relay: relay.counts(),
        ..seen
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
        words("-n 3 -m 4 --prompt-bytes 10000 --chunked 4000", &short),
        words("-n 2 -m 40", &short),
        words("-n 40 -m 1", &short),
        words("-n 4 -m 5 --reconnect --route /v1/models", &unary(3_000)),
    ]
}

/// Bodies of 4 MB each way, and chunked ones of which more is under way at a time than is held
/// behind a hole.
fn large() -> Vec<Vec<String>> {
    let reply = Script {
        unary_bytes: Some(4_000_000),
        ..Script::default()
    };
    let none = Script::default();
    vec![
        words("-n 1 -m 2 --prompt-bytes 4000000", &none),
        words("-n 1 -m 2 --prompt-bytes 4000000 --chunked 60000", &none),
        words("-n 3 -m 4 --prompt-bytes 100000 --chunked 4000", &none),
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

/// The relay did enough of each deed for the test to mean something: a few, as a draw may have it.
fn assert_met(seen: &Seen, way: Way, deeds: &[Deed]) {
    for deed in deeds {
        let least = if *deed == Deed::Reordered { 1 } else { 3 };
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
    assert_met(&seen, Way::ToClient, &[Deed::Dropped]);
    assert_exact(&seen);
}

#[test]
fn frames_repeated_or_overtaken_on_the_way_to_the_client_change_nothing() {
    let faults = Faults {
        drop: 0,
        ..Faults::all()
    };
    let seen = run(Relay::builder().faults(Way::ToClient, faults), &mix());
    assert_met(&seen, Way::ToClient, &DEEDS[1..]);
    assert_exact(&seen);
}

#[test]
fn frames_lost_on_the_way_to_the_server_change_nothing() {
    let seen = run(
        Relay::builder().faults(Way::ToServer, Faults::drops()),
        &mix(),
    );
    assert_met(&seen, Way::ToServer, &[Deed::Dropped]);
    assert_exact(&seen);
}

#[test]
fn frames_repeated_on_the_way_to_the_server_change_nothing() {
    let seen = run(
        Relay::builder().faults(Way::ToServer, Faults::duplicates()),
        &mix(),
    );
    assert_met(&seen, Way::ToServer, &[Deed::Duplicated]);
    assert_exact(&seen);
}

#[test]
fn frames_overtaken_on_the_way_to_the_server_change_nothing() {
    let seen = run(
        Relay::builder().faults(Way::ToServer, Faults::reorders()),
        &mix(),
    );
    assert_met(&seen, Way::ToServer, &[Deed::Reordered]);
    assert_exact(&seen);
}

#[test]
fn every_fault_both_ways_changes_nothing() {
    for seed in [1, 2] {
        let seen = run(Relay::builder().both(&Faults::all()).seed(seed), &mix());
        for way in BOTH {
            assert_met(&seen, way, &DEEDS);
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
        assert_met(&seen, way, &DEEDS);
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
    assert_met(&seen, Way::ToServer, &[Deed::Reordered]);
    assert_exact(&seen);
}

#[test]
fn a_first_frame_lost_in_either_way_is_timed_where_it_arrived_or_left() {
    let first = Faults::exactly(&[(1, Fault::Drop)]);
    let seen = run(Relay::builder().both(&first), &mix());
    for way in BOTH {
        assert_met(&seen, way, &[Deed::Dropped]);
    }
    assert_exact(&seen);
}

#[test]
fn large_bodies_are_exact_or_their_gaps_are_marked() {
    let seen = run(Relay::builder().both(&Faults::all()).seed(9), &large());
    for way in BOTH {
        assert_met(&seen, way, &DEEDS);
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

/// The kernel's own faults, where it has them, on a router between the two ends: the tap sees what
/// comes after it, as on a wire. On this host's kernel there is no netem, and the relay's tests say
/// the same; `cargo xtask vm` runs this one too.
#[test]
#[ignore = "needs netem, which only the kernels in virtual machines have"]
fn netem_on_the_way_changes_nothing() {
    let (client, server, router) = (NetNs::new(), NetNs::new(), NetNs::new());
    router.sh("echo 1 > /proc/sys/net/ipv4/ip_forward");
    let link = |ns: &NetNs, net: u32| {
        let (far, near) = (format!("10.80.{net}.2/24"), format!("10.80.{net}.1/24"));
        let end = VethEnd {
            ns: Some(ns),
            addresses: &[&far],
        };
        let middle = VethEnd {
            ns: Some(&router),
            addresses: &[&near],
        };
        let veth = Veth::new(end, middle, 1_500);
        let (outer, inner) = veth.devices();
        ns.ip(&format!("link set {outer} gso_max_segs 1"));
        ns.ip(&format!("route add default via 10.80.{net}.1"));
        router.sh(&format!(
            "tc qdisc add dev {inner} root netem limit 100000 delay 2ms reorder 2% loss 1% duplicate 1%"
        ));
        veth
    };
    let veths = [link(&client, 1), link(&server, 2)];
    let port = scene::port();
    let path = Path {
        client: &client,
        server: &server,
        addresses: vec![SocketAddr::from(([10, 80, 2, 2], port))],
    };
    let seen = observe(&path, &mix());
    for veth in &veths {
        let device = veth.devices().1;
        let stats = router.sh(&format!("tc -s qdisc show dev {device}"));
        let stats = String::from_utf8_lossy(&stats.stdout).into_owned();
        let dropped = stats.split("dropped ").nth(1).and_then(|rest| {
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
            digits.parse::<u64>().ok()
        });
        assert!(dropped.is_some_and(|n| n >= 5), "netem was idle: {stats}");
    }
    assert_exact(&seen);
}
