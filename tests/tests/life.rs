//! The agent itself: it starts or says why not, its page is valid under load, it can do nothing to
//! what it watches, and it leaves nothing behind.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use enginetap_tests::guard::{Agent, Engine, Held, Load, NetNs, locate, poll};
use enginetap_tests::readonly::{called_helpers, promised_helpers, promised_types};
use enginetap_tests::scene::{SOON, agent_for, beside, port, settled};
use enginetap_tests::script::Script;

fn run(program: &str, args: &[&str]) -> String {
    let out = Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|e| panic!("{program}: {e}"));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

#[test]
fn nothing_is_left_behind_after_a_stop_or_a_kill() {
    for kill in [false, true] {
        let mut engine = Engine::start();
        let mut agent = beside(&engine);
        Load::run(None, engine.address(), ["-m", "2"]);
        engine.ended(2);
        let held = Held::by(agent.child().pid());
        assert!(
            held.maps.len() > 5
                && held.programs.len() > 5
                && !held.links.is_empty()
                && !held.sockets.is_empty(),
            "{held:?}"
        );
        if kill {
            agent.kill9()
        } else {
            drop(agent.stop())
        }
        let gone = poll(SOON, || held.left().is_empty().then_some(()));
        assert!(gone.is_some(), "left behind: {:?}", held.left());
    }
}

#[test]
fn only_read_only_program_types_and_helpers_are_loaded() {
    let mut engine = Engine::start();
    let mut agent = beside(&engine);
    let pid = agent.child().pid();
    let list: serde_json::Value =
        serde_json::from_str(&run("bpftool", &["-j", "prog", "list"])).unwrap();
    let mine: Vec<&serde_json::Value> = list
        .as_array()
        .unwrap()
        .iter()
        .filter(|p| {
            p["pids"]
                .as_array()
                .is_some_and(|v| v.iter().any(|x| x["pid"] == pid))
        })
        .collect();
    // Without pid information (no BPF iterator), those that carry our names.
    let by_name: Vec<&serde_json::Value> = list
        .as_array()
        .unwrap()
        .iter()
        .filter(|p| {
            let n = p["name"].as_str().unwrap_or("");
            ["wire_entry", "wire_tap", "control_order"].contains(&n)
                || n.starts_with("owner_")
                || n.starts_with("life_")
        })
        .collect();
    let programs = if mine.is_empty() { by_name } else { mine };
    assert!(programs.len() >= 6, "{list}");
    let (types, allowed) = (promised_types(), promised_helpers());
    let seen: BTreeSet<String> = programs
        .iter()
        .filter_map(|p| p["type"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(seen, types, "README lists the program types");
    for p in programs {
        let code = run(
            "bpftool",
            &["prog", "dump", "xlated", "id", &p["id"].to_string()],
        );
        for call in code.lines().filter_map(|l| l.split("call ").nth(1)) {
            let name = call.split('#').next().unwrap().trim();
            let map_op = ["htab_map", "array_map", "percpu_array", "__htab"]
                .iter()
                .any(|m| name.contains(m));
            let own = name.starts_with("pc")
                || !name.starts_with("bpf_")
                || name.starts_with("bpf_prog_");
            assert!(
                map_op || own || allowed.contains(name),
                "{} calls {name}",
                p["name"]
            );
        }
    }
    engine.truth();
    agent.stop();
}

#[test]
fn the_kernel_object_calls_exactly_the_helpers_that_readme_lists() {
    assert_eq!(called_helpers(&locate("enginetap")), promised_helpers());
}

#[test]
fn a_taken_port_fails_the_start() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let out = Command::new(locate("enginetap"))
        .args(["run", "--listen", &address])
        .output()
        .unwrap();
    assert!(!out.status.success());
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(
        text.contains(&address) && text.contains("--listen"),
        "{text}"
    );
}

#[test]
fn a_wrong_flag_names_itself_and_the_remedy() {
    for (flag, value, remedy) in [
        ("--match", "port=x", "1 to 65535"),
        ("--recognise", "maybe", "on, off"),
        ("--listen", "9000", "127.0.0.1:"),
    ] {
        let out = Command::new(locate("enginetap"))
            .args(["run", flag, value])
            .output()
            .unwrap();
        assert!(!out.status.success());
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(
            text.contains(flag.trim_start_matches('-')) && text.contains(remedy),
            "{flag} {value}: {text}"
        );
    }
}

#[test]
fn pages_under_load_are_valid_monotonic_and_hold_the_invariant() {
    let mut engine = Engine::start();
    let agent = beside(&engine);
    let script = Script {
        events: 50,
        gap_ms: 5.0,
        ..Script::default()
    };
    let load = Load::start(
        None,
        engine.address(),
        [
            "-n",
            "64",
            "-m",
            "4",
            "--include-usage",
            "--script",
            &script.to_header(),
        ],
    );
    let mut last = agent.scrape();
    let mut pages = 0;
    while last.value("enginetap_requests_total", &[]) < 256.0 && pages < 2000 {
        let page = agent.scrape();
        page.assert_invariant();
        page.assert_not_below(&last);
        last = page;
        pages += 1;
    }
    assert!(pages > 20, "only {pages} pages");
    load.wait(Duration::from_secs(30));
    engine.ended(256);
    let page = settled(&agent, 256);
    page.assert_value("enginetap_requests_in_flight", &[], 0.0);
    let lint = page.lint();
    assert!(lint.is_empty(), "{lint:?}");
    agent.stop();
}

#[test]
fn promtool_finds_the_live_page_clean() {
    let mut engine = Engine::start();
    let agent = beside(&engine);
    Load::run(
        None,
        engine.address(),
        ["-n", "2", "-m", "3", "--include-usage"],
    );
    engine.ended(6);
    let page = settled(&agent, 6);
    page.assert_promtool_clean();
    agent.stop();
}

#[test]
fn groups_and_formats_can_be_asked_for() {
    let engine = Engine::start();
    let agent = beside(&engine);
    let core = agent.scrape_path("/metrics?collect[]=core");
    assert!(!core.series("enginetap_requests_started_total").is_empty());
    assert!(
        core.series("enginetap_build_info").is_empty(),
        "{}",
        core.text()
    );
    assert_eq!(
        agent.get("/metrics?collect[]=nonsense").unwrap().status,
        400
    );
    let open = agent
        .get_with(
            "/metrics",
            &[("Accept", "application/openmetrics-text; version=1.0.0")],
        )
        .unwrap();
    let text = open.text();
    assert!(text.trim_end().ends_with("# EOF"), "{text}");
    assert!(
        text.contains("enginetap_requests_started_created"),
        "{text}"
    );
    assert_eq!(agent.get("/healthz").unwrap().status, 200);
    assert_eq!(agent.get("/readyz").unwrap().status, 200);
    agent.stop();
}

#[test]
fn ps_and_doctor_say_what_is_watched_and_what_works() {
    let engine = Engine::start();
    let agent = beside(&engine);
    let bin = locate("enginetap");
    let bin = bin.to_str().unwrap();
    let ps = run(bin, &["ps", "--listen", &agent.address().to_string()]);
    assert!(
        ps.contains("engine=vllm") && ps.contains("because: matches") && ps.contains("wire: full"),
        "{ps}"
    );
    let doctor = run(bin, &["doctor"]);
    assert!(
        doctor.contains("the agent can run here") && doctor.contains("sk_buff.dev"),
        "{doctor}"
    );
    agent.stop();
}

#[test]
fn namespaces_are_left_when_their_engines_are_gone() {
    let mut agent = agent_for(port());
    let pid = agent.child().pid();
    let descriptors = || {
        std::fs::read_dir(format!("/proc/{pid}/fd"))
            .unwrap()
            .count()
    };
    let before = descriptors();
    for _ in 0..5 {
        let ns = NetNs::new();
        let mut engine = Engine::builder()
            .netns(&ns)
            .listen(&format!("127.0.0.1:{}", port()))
            .start();
        let tapped = format!("\"netns\":{}", ns.inum());
        let entered = poll(SOON, || {
            agent
                .get("/targets")
                .ok()?
                .text()
                .contains(&tapped)
                .then_some(())
        });
        assert!(entered.is_some(), "{tapped} was not entered");
        Load::run(Some(&ns), engine.address(), ["-m", "1"]);
        engine.ended(1);
        engine.stop();
    }
    let left = poll(Duration::from_secs(40), || {
        (descriptors() <= before).then_some(())
    });
    assert!(
        left.is_some(),
        "{} descriptors, {before} before; {}",
        descriptors(),
        agent.get("/targets").unwrap().text()
    );
    settled(&agent, 5);
    agent.stop();
}

#[test]
fn a_secret_in_a_request_or_reply_is_on_no_page() {
    let secret = "canary-5f1c9e";
    let mut engine = Engine::start();
    let agent = Agent::builder()
        .matching(&format!("port={},engine=vllm", engine.address().port()))
        .args(["--log-level", "trace"])
        .start();
    let script = Script {
        text: format!(" {secret}"),
        ..Script::default()
    };
    let header = format!("Authorization: Bearer {secret}");
    Load::run(
        None,
        engine.address(),
        [
            "-n",
            "4",
            "-m",
            "25",
            "--header",
            &header,
            "--script",
            &script.to_header(),
        ],
    );
    engine.ended(100);
    settled(&agent, 100);
    for path in ["/metrics", "/targets", "/readyz"] {
        assert!(!agent.get(path).unwrap().text().contains(secret), "{path}");
    }
    let finished = agent.stop();
    assert!(!format!("{finished:?}").contains(secret), "in the log");
}
