//! The seams: flow identity, locks, exactly once, ownership; each against what the engine and the
//! client counted themselves.

use std::time::Duration;

use enginetap_tests::event::Outcome;
use enginetap_tests::guard::{Agent, Bridge, Engine, Load, NetNs, Veth, VethEnd};
use enginetap_tests::scene::{
    SOON, agent_for, assert_counts, assert_streams, beside, port, settled,
};
use enginetap_tests::script::Script;

fn streams(events: usize, gap_ms: f64) -> String {
    Script {
        events,
        gap_ms,
        ..Script::default()
    }
    .to_header()
}

#[test]
fn a_sender_that_hops_cpus_is_never_contended_and_exact() {
    let ns = NetNs::new();
    ns.sh("echo 3 > /sys/class/net/lo/queues/rx-0/rps_cpus");
    let mut engine = Engine::builder()
        .netns(&ns)
        .listen(&format!("127.0.0.1:{}", port()))
        .args(["--cpu-hop"])
        .start();
    let agent = agent_for(port());
    let sum = Load::run(
        Some(&ns),
        engine.address(),
        [
            "-n",
            "16",
            "-m",
            "8",
            "--include-usage",
            "--script",
            &streams(100, 0.2),
        ],
    );
    let truth = engine.ended(128);
    let page = settled(&agent, 128);
    assert_counts(&page, &truth);
    assert_streams(&page, &sum);
    page.assert_value(
        "enginetap_events_lost_total",
        &[("reason", "contended")],
        0.0,
    );
    agent.stop();
}

#[test]
fn redirected_traffic_is_counted_once() {
    let (server, client) = (NetNs::new(), NetNs::new());
    let _veth = Veth::new(
        VethEnd {
            ns: Some(&server),
            addresses: &["10.77.0.1/24"],
        },
        VethEnd {
            ns: Some(&client),
            addresses: &["10.77.0.2/24"],
        },
        1500,
    );
    // As a sidecar does it: what comes for the port is taken to 15006.
    server.sh(&format!(
        "iptables -t nat -A PREROUTING -p tcp --dport {} -j REDIRECT --to-ports 15006",
        port()
    ));
    let mut sidecar = Engine::builder()
        .netns(&server)
        .listen("0.0.0.0:15006")
        .start();
    let mut engine = Engine::builder()
        .netns(&server)
        .listen(&format!("0.0.0.0:{}", port()))
        .start();
    let agent = agent_for(port());
    let outside = Load::run(
        Some(&client),
        format!("10.77.0.1:{}", port()).parse().unwrap(),
        ["-m", "4"],
    );
    assert_eq!(outside.outcome(Outcome::Success), 4);
    assert_eq!(sidecar.ended(4).count(), 4, "the redirect took them");
    Load::run(
        Some(&server),
        format!("127.0.0.1:{}", port()).parse().unwrap(),
        ["-m", "3"],
    );
    let truth = engine.ended(3);
    let page = settled(&agent, 3);
    assert_counts(&page, &truth);
    let page = agent.wait_for(Duration::from_secs(15), |p| {
        p.value("enginetap_flows_dropped_total", &[("reason", "not_local")]) >= 1.0
    });
    page.assert_value("enginetap_requests_started_total", &[], 3.0);
    agent.stop();
}

#[test]
fn the_same_address_in_two_namespaces_is_two_engines() {
    let (one, two) = (NetNs::new(), NetNs::new());
    let mut first = Engine::builder()
        .netns(&one)
        .listen(&format!("127.0.0.1:{}", port()))
        .exe_name("engine-one")
        .start();
    let mut second = Engine::builder()
        .netns(&two)
        .listen(&format!("127.0.0.1:{}", port()))
        .exe_name("engine-two")
        .start();
    let agent = agent_for(port());
    Load::run(Some(&one), first.address(), ["-n", "2", "-m", "3"]);
    Load::run(Some(&two), second.address(), ["-n", "5", "-m", "1"]);
    assert_eq!((first.ended(6).count(), second.ended(5).count()), (6, 5));
    let page = settled(&agent, 11);
    page.assert_value(
        "enginetap_requests_total",
        &[("container", "engine-one")],
        6.0,
    );
    page.assert_value(
        "enginetap_requests_total",
        &[("container", "engine-two")],
        5.0,
    );
    agent.stop();
}

#[test]
fn a_server_that_exits_after_its_last_write_to_a_slow_reader_succeeded_once() {
    let engine = Engine::builder().args(["--sndbuf", "4194304"]).start();
    let agent = beside(&engine);
    let script = Script {
        unary_bytes: Some(1_000_000),
        end: enginetap_tests::script::End::Exit,
        ..Script::default()
    };
    let sum = Load::run(
        None,
        engine.address(),
        [
            "--unary",
            "--script",
            &script.to_header(),
            "--read-bytes",
            "16384",
            "--read-delay-ms",
            "10",
            "--rcvbuf",
            "16384",
        ],
    );
    assert_eq!(sum.outcome(Outcome::Success), 1);
    let truth = engine.exited();
    let page = settled(&agent, 1);
    assert_counts(&page, &truth);
    page.assert_value(
        "enginetap_requests_total",
        &[("outcome", "success"), ("status", "200")],
        1.0,
    );
    agent.stop();
}

#[test]
fn an_engine_on_the_host_beside_a_bridge_counts_its_own_requests_only() {
    let bridge = Bridge::new(&["10.78.0.1/24"]);
    let (pod, client) = (NetNs::new(), NetNs::new());
    let a = Veth::new(
        VethEnd {
            ns: None,
            addresses: &[],
        },
        VethEnd {
            ns: Some(&pod),
            addresses: &["10.78.0.2/24"],
        },
        1500,
    );
    let b = Veth::new(
        VethEnd {
            ns: None,
            addresses: &[],
        },
        VethEnd {
            ns: Some(&client),
            addresses: &["10.78.0.3/24"],
        },
        1500,
    );
    bridge.plug(&a);
    bridge.plug(&b);
    let mut host = Engine::builder()
        .listen("0.0.0.0:8007")
        .exe_name("on-host")
        .start();
    let mut inside = Engine::builder()
        .netns(&pod)
        .listen("0.0.0.0:8007")
        .exe_name("in-pod")
        .start();
    let agent = agent_for(8007);
    Load::run(
        Some(&client),
        "10.78.0.1:8007".parse().unwrap(),
        ["-n", "3", "-m", "2"],
    );
    Load::run(
        Some(&client),
        "10.78.0.2:8007".parse().unwrap(),
        ["-n", "4", "-m", "2"],
    );
    assert_eq!((host.ended(6).count(), inside.ended(8).count()), (6, 8));
    let page = settled(&agent, 14);
    page.assert_value("enginetap_requests_total", &[("container", "on-host")], 6.0);
    page.assert_value("enginetap_requests_total", &[("container", "in-pod")], 8.0);
    page.assert_value("enginetap_requests_started_total", &[], 14.0);
    agent.stop();
}

#[test]
fn many_streams_of_pre_forked_workers_over_ipv6_are_exact_twice() {
    let (server, client) = (NetNs::new(), NetNs::new());
    let _veth = Veth::new(
        VethEnd {
            ns: Some(&server),
            addresses: &["fd98::1/64"],
        },
        VethEnd {
            ns: Some(&client),
            addresses: &["fd98::2/64"],
        },
        1500,
    );
    let mut engine = Engine::builder()
        .netns(&server)
        .listen(&format!("[fd98::1]:{}", port()))
        .workers(4)
        .start();
    let agent = agent_for(port());
    let sum = Load::run(
        Some(&client),
        engine.address(),
        [
            "-n",
            "256",
            "-m",
            "2",
            "--warm",
            "--include-usage",
            "--script",
            &streams(200, 5.0),
        ],
    );
    assert_eq!(sum.outcome(Outcome::Success), 512);
    let truth = engine.ended(512);
    let page = settled(&agent, 512);
    assert_counts(&page, &truth);
    assert_streams(&page, &sum);
    agent.stop();
}

#[test]
fn the_owner_is_the_worker_that_reads() {
    for share in ["inherit", "reuseport"] {
        let mut engine = Engine::builder()
            .workers(3)
            .args(["--share", share])
            .start();
        let agent = beside(&engine);
        Load::run(None, engine.address(), ["-n", "24", "-m", "2", "--warm"]);
        let truth = engine.ended(48);
        settled(&agent, 48);
        let mut expected = std::collections::BTreeMap::<u64, u64>::new();
        for row in &truth.rows {
            *expected.entry(row.pid.into()).or_default() += 1;
        }
        assert!(expected.len() > 1, "one worker served all: {expected:?}");
        let seen = || {
            let text = agent.get("/targets").unwrap().text();
            let json: serde_json::Value = serde_json::from_str(&text).unwrap();
            let mut seen = std::collections::BTreeMap::<u64, u64>::new();
            for p in json["workloads"]
                .as_array()
                .unwrap()
                .iter()
                .flat_map(|w| w["processes"].as_array().unwrap())
            {
                let n = p["ended"].as_u64().unwrap();
                if n > 0 {
                    seen.insert(p["pid"].as_u64().unwrap(), n);
                }
            }
            seen
        };
        let found = enginetap_tests::guard::poll(Duration::from_secs(25), || {
            (seen() == expected).then_some(())
        });
        assert!(
            found.is_some(),
            "{share}: engine {expected:?}, agent {:?}",
            seen()
        );
        agent.stop();
    }
}

#[test]
fn the_agents_own_requests_are_counted_nowhere() {
    let agent = Agent::builder().start();
    for _ in 0..5 {
        agent.scrape();
    }
    let page = agent.wait_for(SOON, |p| p.value("enginetap_pages_total", &[]) >= 5.0);
    let own = format!(":{}", agent.address().port());
    assert!(
        !page.text().contains(&own),
        "{}",
        page.lines("enginetap_listener_info")
    );
    agent.stop();
}
