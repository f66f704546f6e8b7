//! What is watched, from when on, and why.

use std::time::Duration;

use enginetap_tests::clock;
use enginetap_tests::event::Outcome;
use enginetap_tests::guard::{Agent, Engine, Load, NetNs, Veth, VethEnd, poll};
use enginetap_tests::scene::{SOON, agent_for, assert_counts, beside, only, port, settled};
use enginetap_tests::script::Script;

fn fast() -> String {
    Script {
        events: 5,
        gap_ms: 1.0,
        ..Script::default()
    }
    .to_header()
}

#[test]
fn an_engine_that_starts_after_the_agent_is_watched_from_its_first_request() {
    let agent = agent_for(18_473);
    for round in 1..=20 {
        let mut engine = Engine::builder().listen("127.0.0.1:18473").start();
        Load::run(
            None,
            engine.address(),
            ["-n", "3", "-m", "1", "--script", &fast()],
        );
        assert_eq!(engine.ended(3).count(), 3);
        let page = settled(&agent, 3 * round);
        page.assert_value("enginetap_requests_started_total", &[], 3.0 * round as f64);
        engine.stop();
    }
    agent.stop();
}

#[test]
fn an_engine_in_a_new_namespace_is_watched_from_its_first_request() {
    let agent = agent_for(port());
    let ns = NetNs::new();
    let mut engine = Engine::builder()
        .netns(&ns)
        .listen(&format!("127.0.0.1:{}", port()))
        .start();
    Load::run(
        Some(&ns),
        engine.address(),
        ["-n", "3", "-m", "2", "--script", &fast()],
    );
    let truth = engine.ended(6);
    assert_counts(&settled(&agent, 6), &truth);
    agent.stop();
}

#[test]
fn connections_older_than_the_agent_are_taken_up() {
    let mut engine = Engine::start();
    let load = Load::start(
        None,
        engine.address(),
        [
            "-n",
            "8",
            "-m",
            "20",
            "--warm",
            "--think-ms",
            "400",
            "--script",
            &fast(),
        ],
    );
    engine.ended(8);
    let agent = beside(&engine);
    let ready = clock::now_ns();
    let sum = load.wait(Duration::from_secs(30));
    assert_eq!(sum.outcome(Outcome::Success), 160);
    let after = sum.rows.iter().filter(|r| r.start_ns > ready).count() as u64;
    let during = sum
        .rows
        .iter()
        .filter(|r| r.start_ns <= ready && r.end_ns > ready)
        .count() as u64;
    assert!(
        after >= 40,
        "the agent came too late to test anything: {after}"
    );
    let page = settled(&agent, after);
    let counted = page.value("enginetap_requests_total", &[]) as u64;
    assert!(
        (after..=after + during + 8).contains(&counted),
        "{counted} counted, {after} began after the agent"
    );
    page.assert_value(
        "enginetap_requests_total",
        &[("outcome", "success")],
        counted as f64,
    );
    agent.stop();
}

#[test]
fn a_process_without_a_profile_is_recognised_with_its_first_request() {
    let agent = Agent::builder().start();
    let mut engine = Engine::builder().exe_name("who-knows").start();
    Load::run(
        None,
        engine.address(),
        ["-m", "1", "--include-usage", "--script", &fast()],
    );
    let labels = [("engine", "openai"), ("container", "who-knows")];
    let page = agent.wait_for(SOON, |p| {
        p.value("enginetap_requests_total", &labels) >= 1.0
    });
    page.assert_value("enginetap_requests_started_total", &labels, 1.0);
    page.assert_value("enginetap_time_to_first_token_seconds_count", &labels, 1.0);
    Load::run(
        None,
        engine.address(),
        ["-n", "3", "-m", "4", "--script", &fast()],
    );
    let truth = engine.ended(13);
    let page = agent.wait_for(SOON, |p| {
        p.value("enginetap_requests_total", &labels) >= 13.0
    });
    page.assert_value("enginetap_requests_started_total", &labels, 13.0);
    page.assert_value(
        "enginetap_stream_events_total",
        &labels,
        truth.events as f64,
    );
    page.assert_invariant();
    agent.stop();
}

#[test]
fn other_servers_are_not_recognised_and_recognition_can_be_off() {
    let agent = Agent::builder().start();
    let mut engine = Engine::builder().exe_name("plain-server").start();
    Load::run(None, engine.address(), ["-m", "3", "--route", "/health"]);
    Load::run(
        None,
        engine.address(),
        ["-m", "3", "--route", "/v1/nothing", "--unary"],
    );
    engine.ended(6);
    let none = agent.scrape();
    assert_eq!(
        none.value(
            "enginetap_requests_started_total",
            &[("container", "plain-server")]
        ),
        0.0
    );
    agent.stop();
    let agent = Agent::builder().args(["--recognise", "off"]).start();
    Load::run(None, engine.address(), ["-m", "3"]);
    engine.ended(9);
    let page = only(&agent.scrape(), "openai");
    assert_eq!(
        page.series("enginetap_requests_started_total").len(),
        0,
        "{}",
        page.text()
    );
    agent.stop();
}

#[test]
fn a_profile_is_recognised_without_a_rule() {
    let agent = Agent::builder().args(["--recognise", "off"]).start();
    let mut engine = Engine::builder()
        .exe_name("llama-server")
        .title("llama-server -m /models/tiny.gguf -a tiny --port 8080")
        .start();
    Load::run(None, engine.address(), ["-m", "4", "--script", &fast()]);
    let truth = engine.ended(4);
    let page = agent.wait_for(SOON, |p| {
        p.value("enginetap_requests_total", &[("engine", "llamacpp")]) >= 4.0
    });
    assert_counts(&only(&page, "llamacpp"), &truth);
    agent.stop();
}

#[test]
fn an_exclude_rule_wins() {
    let mut engine = Engine::builder().exe_name("left-out").start();
    let port = engine.address().port();
    let agent = Agent::builder()
        .matching(&format!("port={port},engine=vllm"))
        .excluding("exe=left-out")
        .start();
    Load::run(None, engine.address(), ["-m", "3"]);
    engine.ended(3);
    assert!(
        only(&agent.scrape(), "vllm")
            .series("enginetap_requests_started_total")
            .is_empty()
    );
    let targets = agent.get("/targets").unwrap().text();
    assert!(targets.contains("excluded by"), "{targets}");
    agent.stop();
}

#[test]
fn a_device_that_comes_later_is_tapped() {
    let (server, client) = (NetNs::new(), NetNs::new());
    let mut engine = Engine::builder()
        .netns(&server)
        .listen(&format!("0.0.0.0:{}", port()))
        .start();
    let agent = agent_for(port());
    Load::run(
        Some(&server),
        format!("127.0.0.1:{}", port()).parse().unwrap(),
        ["-m", "2"],
    );
    settled(&agent, 2);
    let _veth = Veth::new(
        VethEnd {
            ns: Some(&server),
            addresses: &["10.79.0.1/24"],
        },
        VethEnd {
            ns: Some(&client),
            addresses: &["10.79.0.2/24"],
        },
        1500,
    );
    let tapped = poll(SOON, || {
        let text = agent.get("/targets").ok()?.text();
        text.contains(&format!("\"netns\":{}", server.inum()))
            .then_some(())
    });
    assert!(tapped.is_some());
    std::thread::sleep(Duration::from_secs(2));
    Load::run(
        Some(&client),
        format!("10.79.0.1:{}", port()).parse().unwrap(),
        ["-m", "5"],
    );
    let truth = engine.ended(7);
    assert_counts(&settled(&agent, 7), &truth);
    agent.stop();
}
