//! Requests that stay open, and connections that are older than the agent.

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use enginetap_ebpf::abi::flow::{Flow, FlowKey};
use enginetap_tests::guard::{Agent, Engine, Load, poll};
use enginetap_tests::page::Page;
use enginetap_tests::pair::{EVENT, REQUEST, REST, STREAM, connect, pass};
use enginetap_tests::scene::{SOON, agent_for, beside, settled};
use enginetap_tests::script::Script;

fn script(events: usize, gap_ms: f64) -> String {
    Script {
        events,
        gap_ms,
        ..Script::default()
    }
    .to_header()
}

fn outcome(page: &Page, outcome: &str) -> f64 {
    page.value("enginetap_requests_total", &[("outcome", outcome)])
}

#[test]
fn streams_under_way_at_the_start_are_unobserved_and_the_next_are_counted_in_full() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let mut pairs: Vec<_> = (0..8).map(|_| connect(&listener)).collect();
    for (client, server) in &mut pairs {
        pass(client, server, REQUEST);
        pass(server, client, STREAM);
    }
    let agent = agent_for(listener.local_addr().expect("an address").port());
    for (client, server) in &mut pairs {
        pass(server, client, EVENT);
        pass(server, client, REST);
    }
    let page = settled(&agent, 8);
    page.assert_value("enginetap_requests_started_total", &[], 8.0);
    assert_eq!(outcome(&page, "unobserved"), 8.0, "{}", page.text());
    page.assert_value("enginetap_stream_events_total", &[], 0.0);
    for (client, server) in &mut pairs {
        for _ in 0..3 {
            pass(client, server, REQUEST);
            pass(server, client, STREAM);
            pass(server, client, REST);
        }
    }
    let page = settled(&agent, 32);
    page.assert_value("enginetap_requests_started_total", &[], 32.0);
    assert_eq!(outcome(&page, "unobserved"), 8.0, "{}", page.text());
    assert_eq!(outcome(&page, "success"), 24.0);
    page.assert_value("enginetap_stream_events_total", &[], 48.0);
    agent.stop();
}

#[test]
fn a_pool_of_idle_connections_is_taken_up_and_has_missed_nothing() {
    let mut engine = Engine::start();
    let load = Load::start(
        None,
        engine.address(),
        [
            "-n",
            "200",
            "-m",
            "2",
            "--think-ms",
            "6000",
            "--script",
            &script(5, 1.0),
        ],
    );
    engine.ended(200);
    let agent = beside(&engine);
    let connected = agent.scrape();
    connected.assert_value("enginetap_connections", &[], 200.0);
    connected.assert_value("enginetap_requests_started_total", &[], 0.0);
    let mut sum = load.wait(Duration::from_secs(60));
    engine.ended(400);
    let page = settled(&agent, 200);
    page.assert_value("enginetap_requests_started_total", &[], 200.0);
    assert_eq!(outcome(&page, "success"), 200.0);
    page.assert_value("enginetap_requests_total", &[], 200.0);
    sum.rows.sort_by_key(|row| row.start_ns);
    sum.rows.drain(..200);
    // The client's clock holds its own waiting for a CPU too: it bounds ours from above.
    let count = "enginetap_time_to_first_token_seconds_count";
    page.assert_value(count, &[], 200.0);
    let ours = page.value("enginetap_time_to_first_token_seconds_sum", &[]);
    let theirs: f64 = sum.rows.iter().filter_map(|r| r.ttft()).sum();
    assert!(
        ours > 0.0 && ours <= theirs,
        "{ours} s, {theirs} s at the client"
    );
    agent.stop();
}

fn hanging(engine: &Engine, connections: &str) -> Load {
    let script = Script {
        head_delay_ms: 600_000.0,
        ..Script::default()
    };
    Load::start(
        None,
        engine.address(),
        ["-n", connections, "--script", &script.to_header()],
    )
}

fn in_flight(agent: &Agent, n: f64) -> Page {
    let page = agent.wait_for(SOON, |p| {
        p.value("enginetap_requests_in_flight", &[("class", "inference")]) == n
    });
    page.assert_invariant();
    page
}

#[test]
fn a_request_that_hangs_grows_old_until_its_client_leaves() {
    let engine = Engine::start();
    let agent = beside(&engine);
    let load = hanging(&engine, "3");
    let young = in_flight(&agent, 3.0);
    let age = |page: &Page| page.value("enginetap_oldest_request_age_seconds", &[]);
    let first = age(&young);
    young.assert_value(
        "enginetap_requests_in_flight_by_age",
        &[("age_gt", "0"), ("age_le", "30")],
        3.0,
    );
    agent
        .wait_for(SOON, |p| age(p) > first + 1.0)
        .assert_invariant();
    let old = agent.wait_for(Duration::from_secs(40), |p| {
        p.value(
            "enginetap_requests_in_flight_by_age",
            &[("age_gt", "30"), ("age_le", "60")],
        ) == 3.0
    });
    assert!(age(&old) > 30.0);
    drop(load);
    let page = settled(&agent, 3);
    assert_eq!(outcome(&page, "abort"), 3.0, "{}", page.text());
    page.assert_value("enginetap_requests_in_flight", &[], 0.0);
    page.assert_value("enginetap_oldest_request_age_seconds", &[], 0.0);
    agent.stop();
}

#[test]
fn a_request_that_hangs_leaves_with_its_server() {
    let engine = Engine::start();
    let agent = beside(&engine);
    let _load = hanging(&engine, "3");
    in_flight(&agent, 3.0);
    engine.kill9();
    let page = settled(&agent, 3);
    assert_eq!(outcome(&page, "reset"), 3.0, "{}", page.text());
    page.assert_value("enginetap_requests_in_flight", &[], 0.0);
    agent.stop();
}

fn bpftool(args: &[&str]) -> serde_json::Value {
    let out = Command::new("bpftool")
        .arg("-j")
        .args(args)
        .output()
        .expect("bpftool");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stdout)
    );
    serde_json::from_slice(&out.stdout).unwrap_or_default()
}

/// Bytes as bpftool takes and gives them.
fn words(bytes: &serde_json::Value) -> Vec<String> {
    let list = bytes.as_array().expect("bytes");
    list.iter()
        .map(|b| b.as_str().expect("a byte").to_owned())
        .collect()
}

fn put(words: &mut [String], at: usize, bytes: &[u8]) {
    for (word, byte) in words[at..].iter_mut().zip(bytes) {
        *word = format!("{byte:#04x}");
    }
}

/// The kernel always tells when a socket closes, so the case is made by hand: the entry of a live
/// connection is copied in the kernel's table under a port that no socket has.
#[test]
fn an_open_request_without_a_socket_is_found_and_unobserved() {
    let engine = Engine::start();
    let mut agent = beside(&engine);
    let load = hanging(&engine, "1");
    in_flight(&agent, 1.0);
    let fds = format!("/proc/{}/fdinfo", agent.child().pid());
    let ids: Vec<String> = std::fs::read_dir(fds)
        .expect("fdinfo")
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path()).ok())
        .filter_map(|text| {
            let line = text.lines().find_map(|l| l.strip_prefix("map_id:"))?;
            Some(line.trim().to_owned())
        })
        .collect();
    let flows = ids
        .iter()
        .find(|id| bpftool(&["map", "show", "id", id])["name"] == "FLOWS")
        .expect("the table of connections");
    let dump = bpftool(&["map", "dump", "id", flows]);
    let live = &dump.as_array().expect("entries")[0];
    let (mut key, mut value) = (words(&live["key"]), words(&live["value"]));
    assert_eq!(
        (key.len(), value.len()),
        (size_of::<FlowKey>(), size_of::<Flow>())
    );
    let nobody = 1u16.to_ne_bytes();
    put(
        &mut key,
        std::mem::offset_of!(FlowKey, client_port),
        &nobody,
    );
    let at = std::mem::offset_of!(Flow, key) + std::mem::offset_of!(FlowKey, client_port);
    put(&mut value, at, &nobody);
    put(
        &mut value,
        std::mem::offset_of!(Flow, id),
        &u64::MAX.to_ne_bytes(),
    );
    put(
        &mut value,
        std::mem::offset_of!(Flow, seen_ns),
        &1u64.to_ne_bytes(),
    );
    let mut args = vec!["map", "update", "id", flows, "key"];
    args.extend(key.iter().map(String::as_str));
    args.push("value");
    args.extend(value.iter().map(String::as_str));
    bpftool(&args);
    let found = poll(Duration::from_secs(60), || {
        let page = agent.scrape();
        (outcome(&page, "unobserved") == 1.0).then_some(page)
    });
    assert!(found.is_some(), "{}", agent.scrape().text());
    drop(load);
    agent.stop();
}
