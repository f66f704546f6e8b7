//! Everything comes and goes: processes, workers, namespaces, containers, process ids.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use enginetap_tests::guard::{Agent, Cgroup, Engine, Load, NetNs, locate, poll, temp_dir};
use enginetap_tests::page::Page;
use enginetap_tests::scene::{SOON, agent_for, assert_counts, port, settled};
use enginetap_tests::script::{End, Script};

const EVENTS: usize = 3;

/// A copy of the engine's program under a name of its own, which is the name of its workload.
fn program(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::copy(locate("scripted-engine"), &path).expect("a copy of the engine");
    path
}

fn agent_for_program(name: &str, more: &[&str]) -> Agent {
    Agent::builder()
        .matching(&format!("exe=*/{name},engine=vllm"))
        .args(["--recognise", "off"])
        .args(more)
        .start()
}

fn request(end: End) -> Vec<u8> {
    let script = Script {
        events: EVENTS,
        gap_ms: 10.0,
        end,
        ..Script::default()
    };
    let body = r#"{"model":"test-model","stream":true,"messages":[]}"#;
    format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nx-script: {}\r\nContent-Length: {}\r\n\r\n{body}",
        script.to_header(),
        body.len()
    )
    .into_bytes()
}

/// Asks on one connection and reads to the end of each reply; the last lets the server exit.
fn talk(address: SocketAddr, requests: usize) {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("timeout");
    for i in 1..=requests {
        let last = i == requests;
        stream
            .write_all(&request(if last { End::Exit } else { End::Keep }))
            .expect("write");
        let mut got = Vec::new();
        let mut buf = [0; 4096];
        loop {
            let n = stream.read(&mut buf).expect("read");
            got.extend_from_slice(&buf[..n]);
            if n == 0 || (!last && got.ends_with(b"0\r\n\r\n")) {
                break;
            }
        }
        assert!(got.ends_with(b"0\r\n\r\n"), "a whole reply");
    }
}

/// Starts a server.
fn serve(program: &Path) -> (Child, SocketAddr) {
    let mut child = Command::new(program)
        .args(["--listen", "127.0.0.1:0", "--control", "none", "--no-rows"])
        .stdout(Stdio::piped())
        .stdin(Stdio::null())
        .spawn()
        .expect("the engine");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("its output"))
        .read_line(&mut line)
        .expect("a line");
    let address = line.trim().trim_start_matches("ready ").parse();
    (child, address.expect("an address"))
}

/// One life of a server: it starts, serves, exits.
fn life(program: &Path, requests: usize) {
    let (mut child, address) = serve(program);
    talk(address, requests);
    child.wait().expect("its end");
}

fn links(agent: &mut Agent) -> usize {
    let fds = format!("/proc/{}/fd", agent.child().pid());
    std::fs::read_dir(fds).expect("its descriptors").count()
}

fn of(name: &str) -> [(&'static str, &str); 1] {
    [("container", name)]
}

#[test]
fn two_thousand_short_lives_are_counted_and_leave_nothing() {
    let dir = temp_dir();
    let name = format!("blink-{}", std::process::id());
    let program = program(dir.path(), &name);
    let mut agent = agent_for_program(&name, &[]);
    life(&program, 3);
    settled(&agent, 3);
    let before = links(&mut agent);
    const LIVES: usize = 2_000;
    thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| (0..LIVES / 16).for_each(|_| life(&program, 3)));
        }
    });
    let wanted = 3.0 * (LIVES + 1) as f64;
    let page = settled(&agent, wanted as u64);
    page.assert_value("enginetap_requests_started_total", &of(&name), wanted);
    page.assert_value(
        "enginetap_requests_total",
        &[("outcome", "success"), ("status", "200")],
        wanted,
    );
    page.assert_value("enginetap_requests_total", &[], wanted);
    page.assert_value(
        "enginetap_stream_events_total",
        &[],
        wanted * (EVENTS + 3) as f64,
    );
    let flat = poll(Duration::from_secs(40), || {
        let page = agent.scrape();
        let left = |map| page.value("enginetap_map_entries", &[("map", map)]);
        (links(&mut agent) <= before && left("PROCS") == 0.0 && left("FLOWS") == 0.0).then_some(())
    });
    assert!(
        flat.is_some(),
        "{} descriptors, {before} before; {}",
        links(&mut agent),
        agent.scrape().text()
    );
    agent.stop();
}

#[test]
fn workers_that_are_recycled_under_load_lose_nothing() {
    let mut engine = Engine::builder().workers(4).args(["--respawn"]).start();
    let agent = agent_for(engine.address().port());
    let script = |end| {
        Script {
            events: 10,
            end,
            ..Script::default()
        }
        .to_header()
    };
    for _ in 0..20 {
        Load::run(
            None,
            engine.address(),
            ["-n", "8", "-m", "5", "--script", &script(End::Keep)],
        );
        Load::run(
            None,
            engine.address(),
            ["-n", "1", "-m", "1", "--script", &script(End::Exit)],
        );
    }
    let truth = engine.ended(20 * 41);
    let page = settled(&agent, 20 * 41);
    assert_counts(&page, &truth);
    agent.stop();
}

#[test]
fn namespaces_that_come_and_go_are_exact_and_are_let_go() {
    let mut agent = agent_for(port());
    let before = links(&mut agent);
    const ROUNDS: u64 = 40;
    for _ in 0..ROUNDS {
        let ns = NetNs::new();
        let mut engine = Engine::builder()
            .netns(&ns)
            .listen(&format!("127.0.0.1:{}", port()))
            .start();
        // How fast a namespace is tapped depends on when the agent gets the processor.
        agent.wait_listed(engine.child().pid(), SOON);
        Load::run(Some(&ns), engine.address(), ["-m", "3"]);
        engine.ended(3);
    }
    let page = settled(&agent, 3 * ROUNDS);
    page.assert_value("enginetap_requests_started_total", &[], 3.0 * ROUNDS as f64);
    page.assert_value(
        "enginetap_requests_total",
        &[("outcome", "success")],
        3.0 * ROUNDS as f64,
    );
    let left = poll(Duration::from_secs(60), || {
        (links(&mut agent) <= before).then_some(())
    });
    assert!(
        left.is_some(),
        "{} descriptors, {before} before",
        links(&mut agent)
    );
    agent.stop();
}

/// The page shows a workload.
fn shows(page: &Page, name: &str) -> bool {
    page.get("enginetap_requests_started_total", &of(name))
        .is_some()
}

#[test]
fn a_workload_that_is_gone_leaves_the_page_and_begins_anew_when_it_returns() {
    let dir = temp_dir();
    let name = format!("leaver-{}", std::process::id());
    let program = program(dir.path(), &name);
    let agent = agent_for_program(&name, &["--workload-grace", "2"]);
    for _ in 0..2 {
        life(&program, 3);
        let page = settled(&agent, 3);
        page.assert_value("enginetap_requests_started_total", &of(&name), 3.0);
        let gone = poll(Duration::from_secs(60), || {
            (!shows(&agent.scrape(), &name)).then_some(())
        });
        assert!(gone.is_some(), "{}", agent.scrape().text());
        agent.scrape().assert_invariant();
    }
    agent.stop();
}

#[test]
fn a_workload_that_restarts_within_its_grace_goes_on_counting() {
    let dir = temp_dir();
    let name = format!("stayer-{}", std::process::id());
    let program = program(dir.path(), &name);
    let agent = agent_for_program(&name, &[]);
    for n in 1..=3 {
        life(&program, 3);
        settled(&agent, 3 * n).assert_value(
            "enginetap_requests_started_total",
            &of(&name),
            3.0 * n as f64,
        );
    }
    agent.stop();
}

#[test]
fn a_reused_process_id_is_another_process() {
    let dir = temp_dir();
    let names = ["first", "second"].map(|n| format!("{n}-{}", std::process::id()));
    let programs = names.clone().map(|n| program(dir.path(), &n));
    let agent = Agent::builder()
        .matching(&format!("exe=*/first-{},engine=vllm", std::process::id()))
        .matching(&format!(
            "exe=*/second-{},engine=sglang",
            std::process::id()
        ))
        .args(["--recognise", "off"])
        .start();
    let mut reused = 0;
    for round in 1..=5 {
        let mut pids = Vec::new();
        for program in &programs {
            if let Some(pid) = pids.first() {
                // The next process gets the number that has just become free.
                let last = format!("{}", pid - 1);
                std::fs::write("/proc/sys/kernel/ns_last_pid", last).expect("ns_last_pid");
            }
            let (mut child, address) = serve(program);
            pids.push(child.id());
            talk(address, 3);
            child.wait().expect("its end");
        }
        reused += usize::from(pids[0] == pids[1]);
        for name in &names {
            agent
                .wait_for(SOON, |p| {
                    p.value("enginetap_requests_total", &of(name)) >= 3.0 * round as f64
                })
                .assert_value("enginetap_requests_total", &of(name), 3.0 * round as f64);
        }
    }
    assert!(reused > 0, "no process id was used twice");
    agent.stop();
}

#[test]
fn containers_that_come_and_go_are_each_counted_for_themselves() {
    let agent = Agent::builder()
        .matching(&format!("port={},engine=vllm", port()))
        .args(["--recognise", "off", "--workload-grace", "2"])
        .start();
    // A container is named by the first twelve digits of its id.
    let id = |i: u64| {
        format!(
            "{:012x}{:052x}",
            (u64::from(std::process::id()) << 8) + i,
            i
        )
    };
    for i in 0..20 {
        let group = Cgroup::new(&format!("docker/{}", id(i)));
        let ns = NetNs::new();
        let mut engine = Engine::builder()
            .netns(&ns)
            .cgroup(&group)
            .listen(&format!("127.0.0.1:{}", port()))
            .start();
        // How fast a namespace is tapped depends on when the agent gets the processor.
        agent.wait_listed(engine.child().pid(), SOON);
        Load::run(Some(&ns), engine.address(), ["-m", "2"]);
        engine.ended(2);
        let own = &id(i)[..12];
        let page = agent.wait_for(SOON, |p| {
            p.value("enginetap_requests_total", &of(own)) >= 2.0
        });
        page.assert_value("enginetap_requests_total", &of(own), 2.0);
        page.assert_invariant();
    }
    let gone = poll(Duration::from_secs(60), || {
        (agent
            .scrape()
            .get("enginetap_requests_started_total", &[])
            .is_none())
        .then_some(())
    });
    assert!(gone.is_some(), "{}", agent.scrape().text());
    agent.stop();
}
