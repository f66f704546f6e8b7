//! The engine as a process: workers, titles, exits. The unit-test binary plays
//! the program (it is run again with a marker in its environment), so these
//! tests need no other build.

use std::time::Duration;

use clap::Parser as _;
use nix::sys::signal::Signal;

use crate::client::{ClientArgs, Summary, run};
use crate::engine::{EngineArgs, Truth, main};
use crate::event::Outcome;
use crate::guard::{Child, ChildBuilder, poll, temp_dir};

const PLAY: &str = "ENGINETAP_TEST_PLAYS_ENGINE";
const LONG: Duration = Duration::from_secs(20);

/// Not a test: the engine's entry when this binary is run as one.
#[test]
fn entry() {
    if let Ok(args) = std::env::var(PLAY) {
        // The harness's own line has no end yet.
        println!();
        let words = std::iter::once("scripted-engine").chain(args.split('|'));
        main(|| EngineArgs::parse_from(words)).unwrap();
    }
}

struct Played {
    child: Child,
    target: String,
}

fn play(args: &str) -> Played {
    let exe = std::env::current_exe().unwrap();
    let mut child = ChildBuilder::new(exe)
        .args([
            "--exact",
            "processes::entry",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(PLAY, args)
        .start();
    let ready = child.wait_line("ready ", LONG);
    Played {
        child,
        target: ready.replace("ready ", ""),
    }
}

impl Played {
    fn load(&self, args: &[&str]) -> Summary {
        let words = ["load-client", "--target", &self.target, "--deadline", "20"];
        run(ClientArgs::parse_from([&words, args].concat())).unwrap()
    }

    fn truth(&mut self) -> Truth {
        self.child.say("truth");
        let line = self.child.wait_line("truth ", LONG);
        serde_json::from_str(&line["truth ".len()..]).unwrap()
    }

    /// Its truth once so many requests have ended.
    fn ended(&mut self, count: u64) -> Truth {
        let ended = poll(LONG, || {
            Some(self.truth()).filter(|truth| truth.count() >= count)
        });
        ended.unwrap()
    }
}

fn pids(truth: &Truth) -> usize {
    truth
        .rows
        .iter()
        .map(|row| row.pid)
        .collect::<std::collections::BTreeSet<_>>()
        .len()
}

#[test]
fn workers_share_a_port_and_the_parent_has_their_truth() {
    for share in ["inherit", "reuseport"] {
        let mut engine = play(&format!(
            "--control|stdin|--workers|4|--share|{share}|--listen|[::1]:0"
        ));
        let script = "{\"gap_ms\":1}";
        let sum = engine.load(&["-n", "32", "-m", "2", "--warm", "--script", script]);
        let truth = engine.ended(64);
        assert_eq!(
            (truth.count(), truth.in_flight, truth.events),
            (64, 0, sum.events),
            "{share}"
        );
        assert_eq!(truth.connections, 32);
        assert!(pids(&truth) > 2, "{share}: {} workers served", pids(&truth));
        assert!(truth.rows.iter().all(|row| row.pid != engine.child.pid()));
        engine.child.say("reset");
        engine.child.wait_line("reset done", LONG);
        assert_eq!(engine.truth().count(), 0);
        let end = engine.child.terminate(LONG);
        assert!(end.status.success(), "{}", end.stderr);
    }
}

#[test]
fn a_scripted_exit_ends_in_success_and_leaves_its_truth() {
    let dir = temp_dir();
    let file = dir.path().join("truth");
    for (script, outcome) in [
        ("{\"end\":\"exit\"}", Outcome::Success),
        ("{\"end\":\"exit\",\"stop_after\":3}", Outcome::Reset),
        (
            "{\"end\":\"exit\",\"stream\":false,\"unary_bytes\":300000}",
            Outcome::Success,
        ),
    ] {
        let engine = play(&format!("--truth-file|{}", file.display()));
        let slow = [
            "--script",
            script,
            "--read-bytes",
            "20000",
            "--read-delay-ms",
            "2",
        ];
        let sum = engine.load(&slow);
        assert!(engine.child.wait(LONG).status.success());
        let truth: Truth = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
        assert_eq!(
            (sum.outcome(outcome), truth.outcome(outcome)),
            (1, 1),
            "{script} {:?}",
            sum.rows
        );
        assert_eq!(truth.events, sum.events);
        assert_eq!(truth.rows[0].reply_bytes, sum.rows[0].reply_bytes);
    }
}

#[test]
fn a_worker_that_exits_is_replaced_and_its_rows_stay() {
    let mut engine = play("--control|stdin|--workers|1|--respawn");
    for n in 1..=3 {
        let sum = engine.load(&["--script", "{\"end\":\"exit\"}"]);
        assert_eq!(sum.outcome(Outcome::Success), 1);
        let truth = engine.ended(n);
        assert_eq!((truth.count(), pids(&truth)), (n, n as usize));
    }
}

#[test]
fn a_title_replaces_the_command_line_also_of_workers() {
    // The rest of it is for the test harness that plays the program.
    let title = "VLLM::APIServer --exact processes::entry --nocapture";
    let engine = play(&format!("--title|{title}|--comm|VLLM::API|--workers|1"));
    let pid = engine.child.pid();
    let read =
        |pid: &str, file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
    let parent = pid.to_string();
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"))
        .unwrap()
        .flatten();
    let children: String = tasks
        .map(|task| std::fs::read_to_string(task.path().join("children")).unwrap())
        .collect();
    for pid in [parent.as_str(), children.split_whitespace().next().unwrap()] {
        assert_eq!(read(pid, "cmdline"), title.replace(' ', "\0") + "\0");
    }
    engine.child.signal(Signal::SIGTERM);
    let end = engine.child.wait(LONG);
    assert!(
        end.status.success() && end.stdout.contains("truth {"),
        "{}",
        end.stdout
    );
}

#[test]
fn a_tcp_control_port_tells_the_truth() {
    let mut engine = play("--control|127.0.0.1:0");
    // `control` is printed before `ready`.
    let stdout = engine.child.stdout();
    let line = stdout
        .lines()
        .find(|line| line.starts_with("control "))
        .unwrap();
    let control = line["control ".len()..].parse().unwrap();
    engine.load(&[]);
    let truth = poll(LONG, || {
        let reply = crate::http::get(control, "/truth", &[]).unwrap();
        let truth: Truth = serde_json::from_slice(&reply.body).unwrap();
        Some(truth).filter(|truth| truth.count() == 1)
    });
    assert_eq!(truth.unwrap().connections, 1);
    assert!(!engine.child.has_exited());
}
