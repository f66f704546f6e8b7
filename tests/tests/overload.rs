//! Exact when it hurts: an agent that is stopped, starved or killed while an engine works hard
//! counts what the engine and the client counted.
//!
//! What found no room in the ring may lack its model, route, streaming and exact status; it never
//! lacks its count, its outcome, or the class of its status.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use enginetap_tests::client::{ClientRow, Summary};
use enginetap_tests::clock::now_ns;
use enginetap_tests::compare::Comparison;
use enginetap_tests::event::Outcome;
use enginetap_tests::follow::Follower;
use enginetap_tests::guard::{Agent, AgentBuilder, Cgroup, Engine, Held, Load, NetNs, poll};
use enginetap_tests::page::Page;
use enginetap_tests::scene::SOON;
use enginetap_tests::script::Script;

/// How long an agent that was held up may take to catch up on a busy machine.
const CATCH_UP: Duration = Duration::from_secs(60);
/// How long the agent is stopped.
const STOPPED: Duration = Duration::from_secs(5);

/// Engines in a namespace of their own, each a workload under its name.
struct Stage {
    ns: NetNs,
    prefix: String,
}

impl Stage {
    fn new(test: &str) -> Self {
        let prefix = format!("over-{test}-{}", std::process::id());
        Self {
            ns: NetNs::new(),
            prefix,
        }
    }

    fn engine(&self, name: &str) -> Engine {
        Engine::builder()
            .exe_name(&self.name(name))
            .netns(&self.ns)
            .args(["--no-rows", "--no-event-log"])
            .start()
    }

    fn name(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    fn agent(&self) -> AgentBuilder {
        Agent::builder()
            .matching(&format!("exe={}-*,engine=vllm", self.prefix))
            .args(["--recognise", "off"])
    }

    fn load(&self, engine: &Engine, words: &str, scripts: &[Script]) -> Load {
        let mut args: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        args.push("--no-event-log".to_owned());
        for script in scripts {
            args.extend(["--script".to_owned(), script.to_header()]);
        }
        Load::start(Some(&self.ns), engine.address(), args)
    }
}

fn stream(events: usize, gap_ms: f64) -> Script {
    Script {
        events,
        gap_ms,
        ..Script::default()
    }
}

fn status(status: u16) -> Script {
    Script {
        status,
        ..Script::default()
    }
}

/// Long streams, clients that leave in order and at once, before and after the head, and short
/// requests of every kind for so many seconds.
fn mixture(stage: &Stage, engine: &Engine, seconds: u32) -> Vec<Load> {
    let long = [stream(60, 50.0)];
    let late = [Script {
        head_delay_ms: 60_000.0,
        ..Script::default()
    }];
    let short = [status(200), status(429), status(503), status(200)];
    let until = |words: &str| format!("{words} -m 0 --seconds {seconds}");
    vec![
        stage.load(engine, "-n 300 -m 2 --tag long", &long),
        stage.load(
            engine,
            &until("-n 50 --abort-after 5 --abort-with fin --tag fin"),
            &long,
        ),
        stage.load(
            engine,
            &until("-n 50 --abort-after 5 --abort-with rst --tag rst"),
            &long,
        ),
        stage.load(
            engine,
            "-n 20 --abort-before-head-ms 3000 --abort-with rst --tag late",
            &late,
        ),
        stage.load(engine, &until("-n 8 --unary --tag short"), &short),
    ]
}

fn finish(loads: Vec<Load>) -> Vec<Summary> {
    loads
        .into_iter()
        .map(|load| load.wait(Duration::from_secs(120)))
        .collect()
}

/// Waits until a workload's requests have all ended on the page, then compares them.
fn settle(agent: &Agent, name: &str, engine: &mut Engine, sums: &[Summary]) -> (Page, Comparison) {
    let ours = [("container", name)];
    let count = sums.iter().map(|s| s.requests).sum();
    let truth = engine.ended(count);
    let mut page = agent.scrape();
    poll(CATCH_UP, || {
        page = agent.scrape();
        let compared = Comparison::of(&page, &ours, &truth, sums);
        compared.differing().is_empty().then_some(())
    });
    page.assert_invariant();
    let compared = Comparison::of(&page, &ours, &truth, sums);
    (page, compared)
}

fn only_for_want_of_room(page: &Page) {
    for reason in ["contended", "map_full", "gap"] {
        page.assert_value("enginetap_events_lost_total", &[("reason", reason)], 0.0);
    }
}

fn ring_full(page: &Page) -> f64 {
    page.value("enginetap_events_lost_total", &[("reason", "ring_full")])
}

fn wait_open(agent: &Agent, name: &str, count: f64) {
    agent.wait_for(CATCH_UP, |p| {
        p.value("enginetap_requests_in_flight", &[("container", name)]) >= count
    });
}

/// Stops the agent for a while under a load of which `open` requests are under way, and compares.
fn stopped(test: &str, open: f64, load: impl Fn(&Stage, &Engine) -> Vec<Load>) {
    let stage = Stage::new(test);
    let name = stage.name("a");
    let mut engine = stage.engine("a");
    let agent = stage.agent().start();
    let pages = Follower::start(agent.address());
    let loads = load(&stage, &engine);
    wait_open(&agent, &name, open);
    agent.sigstop();
    std::thread::sleep(STOPPED);
    agent.sigcont();
    let sums = finish(loads);
    let (page, compared) = settle(&agent, &name, &mut engine, &sums);
    println!("{compared}ring full: {}", ring_full(&page));
    compared.assert_equal(&page);
    only_for_want_of_room(&page);
    pages.stop().assert_good();
    agent.stop();
}

#[test]
fn an_agent_that_is_stopped_for_five_seconds_miscounts_nothing() {
    stopped("stop", 300.0, |stage, engine| mixture(stage, engine, 8));
}

#[test]
fn clients_that_leave_while_the_agent_is_stopped_are_aborts() {
    stopped("leave", 100.0, |stage, engine| {
        let leaving = |with: &str| {
            let words = format!(
                "-n 100 -m 0 --seconds 7 --abort-after 20 --abort-with {with} --tag {with}"
            );
            stage.load(engine, &words, &[stream(1_000, 2.0)])
        };
        ["fin", "rst", "close"].map(leaving).into()
    });
}

#[test]
fn a_full_ring_costs_labels_and_no_count() {
    let stage = Stage::new("full");
    let name = stage.name("a");
    let mut engine = stage.engine("a");
    let agent = stage.agent().start();
    let pages = Follower::start(agent.address());
    let loads = mixture(&stage, &engine, 10);
    wait_open(&agent, &name, 300.0);
    agent.sigstop();
    let header = format!("--header X-Pad:{}", "p".repeat(4_000));
    let flood = [status(200), status(200), status(429), status(503)];
    let words = format!("-n 32 -m 1250 --unary --tag flood {header}");
    let flood = stage.load(&engine, &words, &flood);
    // Not before all of it has gone by.
    let flood = flood.wait(Duration::from_secs(120));
    let streams = stage
        .load(&engine, "-n 50 -m 4 --tag streams", &[stream(20, 1.0)])
        .wait(Duration::from_secs(120));
    agent.sigcont();
    let mut sums = finish(loads);
    sums.extend([flood, streams]);
    let (page, compared) = settle(&agent, &name, &mut engine, &sums);
    println!("{compared}ring full: {}", ring_full(&page));
    assert!(ring_full(&page) > 0.0, "the ring was not full");
    compared.assert_equal(&page);
    only_for_want_of_room(&page);
    let unknown = [
        ("container", name.as_str()),
        ("model", "unknown"),
        ("class", "unknown"),
    ];
    assert!(page.value("enginetap_requests_total", &unknown) > 0.0);
    for (class, outcome) in [("2xx", "success"), ("4xx", "refused"), ("5xx", "error")] {
        let labels = [
            ("status", class),
            ("outcome", outcome),
            unknown[0],
            unknown[1],
        ];
        assert!(
            page.value("enginetap_requests_total", &labels) > 0.0,
            "{labels:?}\n{}",
            page.lines("enginetap_requests_total")
        );
    }
    pages.stop().assert_good();
    agent.stop();
}

#[test]
fn an_agent_with_a_twentieth_of_a_cpu_is_exact_in_the_end() {
    let stage = Stage::new("slow");
    let name = stage.name("a");
    let group = Cgroup::new(&format!("enginetap-over-{}", std::process::id()));
    let mut engine = stage.engine("a");
    let agent = stage.agent().cgroup(&group).start();
    let pages = Follower::start(agent.address());
    group.cpu_quota(5_000, 100_000);
    let sums = finish(mixture(&stage, &engine, 8));
    let (page, compared) = settle(&agent, &name, &mut engine, &sums);
    println!("{compared}ring full: {}", ring_full(&page));
    compared.assert_equal(&page);
    only_for_want_of_room(&page);
    let seen = pages.stop();
    group.cpu_quota(-1, 100_000);
    seen.assert_good();
    agent.stop();
}

#[test]
fn a_server_that_began_while_the_agent_was_stopped_is_counted_from_its_first_request() {
    let stage = Stage::new("born");
    let _tapped = stage.engine("first");
    let agent = stage.agent().start();
    agent.sigstop();
    let mut engine = stage.engine("second");
    let sum = stage
        .load(&engine, "-n 5 -m 4", &[stream(5, 1.0)])
        .wait(CATCH_UP);
    std::thread::sleep(Duration::from_secs(8));
    agent.sigcont();
    let (page, compared) = settle(&agent, &stage.name("second"), &mut engine, &[sum]);
    compared.assert_equal(&page);
    agent.stop();
}

#[test]
fn more_aborts_than_there_is_room_for_flows_are_all_counted() {
    let stage = Stage::new("flows");
    let names = ["a", "b", "c", "d"];
    let mut engines = names.map(|name| stage.engine(name));
    let agent = stage.agent().start();
    agent.sigstop();
    // 60,000 connections; the table of flows has room for 32,768, and each of these waits for the
    // agent to settle it. Tuples that
    // come again settle their predecessor, which leaves about 37,000.
    let words = "-n 60 -m 250 --abort-after 1 --abort-with rst";
    let loads = engines
        .each_ref()
        .map(|engine| stage.load(engine, words, &[stream(1_000, 2.0)]));
    let sums = finish(loads.into());
    agent.sigcont();
    for ((engine, name), sum) in engines.iter_mut().zip(names).zip(sums) {
        let (page, compared) = settle(&agent, &stage.name(name), engine, &[sum]);
        println!("{compared}{}", page.lines("enginetap_flows_dropped"));
        compared.assert_equal(&page);
    }
    agent.stop();
}

/// Connects from a fixed port, sends one request and leaves at once.
fn leave_request(ns: &NetNs, from: u16, to: SocketAddr) {
    ns.run_in(|| {
        let socket = socket2::Socket::new(
            socket2::Domain::IPV4,
            socket2::Type::STREAM,
            Some(socket2::Protocol::TCP),
        )
        .expect("socket");
        socket.set_reuse_address(true).expect("reuse");
        let own = SocketAddr::from(([127, 0, 0, 1], from));
        socket.bind(&own.into()).expect("bind");
        socket.connect(&to.into()).expect("connect");
        let mut stream = TcpStream::from(socket);
        stream
            .write_all(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}")
            .expect("send");
        socket2::SockRef::from(&stream)
            .set_linger(Some(Duration::ZERO))
            .expect("linger");
    });
}

#[test]
fn requests_that_no_process_ever_read_are_counted_for_their_workload() {
    let stage = Stage::new("unread");
    let (silent, busy) = (stage.name("silent"), stage.name("busy"));
    let mut never = stage.engine("silent");
    let mut engine = stage.engine("busy");
    let agent = stage.agent().start();
    never.child().signal(nix::sys::signal::Signal::SIGSTOP);
    agent.sigstop();
    let words = "-n 32 -m 1000 --unary --tag flood";
    let flood = stage
        .load(&engine, words, &[status(200)])
        .wait(Duration::from_secs(120));
    // The second connection from a port ends the first one's request while the ring is full.
    let ports = 20_000..20_100u16;
    for _ in 0..2 {
        for port in ports.clone() {
            leave_request(&stage.ns, port, never.address());
        }
    }
    // These stay until the server is killed.
    let waiting: Vec<TcpStream> = stage.ns.run_in(|| {
        let open = |_| {
            let mut stream = TcpStream::connect(never.address()).expect("connect");
            stream
                .write_all(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n")
                .expect("send");
            stream
        };
        (0..50).map(open).collect()
    });
    never.kill9();
    for mut stream in waiting {
        // An end or a reset: nobody answers.
        assert!(!stream.read(&mut [0; 16]).is_ok_and(|n| n > 0));
    }
    agent.sigcont();
    let (page, compared) = settle(&agent, &busy, &mut engine, &[flood]);
    compared.assert_equal(&page);
    let ended = |page: &Page, labels: &[(&str, &str)]| {
        let all = [labels, &[("container", silent.as_str())]].concat();
        page.value("enginetap_requests_total", &all)
    };
    let page = agent.wait_for(CATCH_UP, |p| ended(p, &[]) >= 250.0);
    page.assert_invariant();
    let own = [("container", silent.as_str())];
    page.assert_value("enginetap_requests_started_total", &own, 250.0);
    let lines = page.lines("enginetap_requests_total");
    assert_eq!(ended(&page, &[("outcome", "abort")]), 200.0, "{lines}");
    assert_eq!(ended(&page, &[("outcome", "reset")]), 50.0, "{lines}");
    // Those that were ended by the next connection found no room.
    assert!(
        ended(&page, &[("outcome", "abort"), ("status", "none")]) > 0.0,
        "{lines}"
    );
    assert!(ring_full(&page) > 0.0);
    agent.stop();
}

#[test]
fn a_killed_agent_leaves_nothing_and_a_new_one_begins_at_zero() {
    let stage = Stage::new("kill");
    let (long, short) = (stage.name("long"), stage.name("short"));
    let (mut streams, mut shorts) = (stage.engine("long"), stage.engine("short"));
    let mut agent = stage.agent().start();
    // Kept connections whose first request is open across the restart.
    let kept = stage.load(&streams, "-n 100 -m 2 --tag kept", &[stream(200, 50.0)]);
    let churn = stage.load(
        &shorts,
        "-n 8 -m 0 --seconds 12 --unary --tag churn",
        &[status(200)],
    );
    wait_open(&agent, &long, 100.0);
    let held = Held::by(agent.child().pid());
    assert!(
        !held.links.is_empty() && !held.sockets.is_empty(),
        "{held:?}"
    );
    agent.kill9();
    let killed = now_ns();
    let gone = poll(SOON, || held.left().is_empty().then_some(()));
    assert!(gone.is_some(), "left behind: {:?}", held.left());
    let agent = stage.agent().start();
    let ready = now_ns();
    let pages = Follower::start(agent.address());
    let sums = BTreeMap::from([
        (long, kept.wait(Duration::from_secs(120))),
        (short, churn.wait(Duration::from_secs(120))),
    ]);
    for (engine, name) in [(&mut streams, "long"), (&mut shorts, "short")] {
        let sum = &sums[&stage.name(name)];
        engine.ended(sum.requests);
    }
    for (name, sum) in &sums {
        let own = [("container", name.as_str())];
        let begun = |from: u64, to: u64| {
            let inside = |start: u64| (from..to).contains(&start);
            sum.rows.iter().filter(|r| inside(r.start_ns)).count() as f64
        };
        let (after, between) = (begun(ready, u64::MAX), begun(killed, ready));
        let open = |r: &&ClientRow| r.start_ns < ready && r.end_ns > killed;
        let touched = sum.rows.iter().filter(open).count() as f64;
        let across = |r: &&ClientRow| r.start_ns < killed && r.end_ns > ready;
        let across = sum.rows.iter().filter(across).count() as f64;
        println!("{name}: {after} begun after, {between} between, {across} open across");
        let mut page = agent.scrape();
        poll(CATCH_UP, || {
            page = agent.scrape();
            let open = page.value("enginetap_requests_in_flight", &own);
            let ended = page.value("enginetap_requests_total", &own);
            (ended >= after + across && open == 0.0).then_some(())
        });
        page.assert_invariant();
        // What was open while nobody looked may be missing; nothing is there twice.
        let started = page.value("enginetap_requests_started_total", &own);
        assert!(
            (after..=after + touched).contains(&started),
            "{name}: started {started}, begun after the start {after}, open before {touched}:\n{}",
            page.lines("enginetap_requests_")
        );
        page.assert_value("enginetap_requests_total", &own, started);
        let outcome = |outcome: &str| {
            let labels = [own[0], ("outcome", outcome)];
            page.value("enginetap_requests_total", &labels)
        };
        let (success, unobserved) = (outcome("success"), outcome("unobserved"));
        assert_eq!(success + unobserved, started, "{}", page.text());
        assert!((after..=after + between).contains(&success), "{success}");
        page.assert_value("enginetap_events_lost_total", &[], 0.0);
        assert_eq!(sum.outcome(Outcome::Success), sum.requests);
        if *name == stage.name("long") {
            // Each of these was under way when its connection was taken up, and is said to be so.
            assert_eq!(across, 100.0, "the restart took longer than the streams");
            assert_eq!((after, between, unobserved), (100.0, 0.0, 100.0));
            let events: u64 = sum
                .rows
                .iter()
                .filter(|r| r.start_ns > ready)
                .map(|r| r.tally.data)
                .sum();
            page.assert_value("enginetap_stream_events_total", &own, events as f64);
            let streams = [own[0], ("streaming", "true"), ("model", "test-model")];
            page.assert_value("enginetap_requests_total", &streams, 100.0);
        }
    }
    pages.stop().assert_good();
    agent.stop();
}
