//! Whose fault it was: every cause is produced for real against a server on asyncio, and the page
//! charges its requests with it as long as the injector, the kernel's own books or the server's
//! clocks say.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use enginetap_tests::guard::{Agent, Cgroup, Child, ChildBuilder, Engine, Load, NetNs, locate};
use enginetap_tests::http;
use enginetap_tests::page::Page;
use enginetap_tests::scene::{SOON, agent_for, port};
use nix::sched::{CpuSet, sched_setaffinity};
use nix::sys::signal::Signal;
use nix::unistd::Pid;

const OURS: (&str, &str) = ("engine", "vllm");
const HOST: [&str; 6] = [
    "runqueue",
    "throttled",
    "stopped",
    "block_io",
    "page_fault",
    "reclaim",
];
/// Seconds by which a stall may differ from what the other side says, besides a tenth: two cores are
/// shared by the server, the agent and the test.
const SLACK: f64 = 0.01;

/// A server and the agent that watches it.
struct Scene {
    server: Child,
    agent: Agent,
    port: u16,
}

impl Scene {
    fn new(more: &[&str], group: Option<&Cgroup>) -> Scene {
        let port = port();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("servers/stall_server.py");
        let mut server = ChildBuilder::new("python3")
            .arg(script)
            .arg(port.to_string())
            .args(more);
        if let Some(group) = group {
            server = server.cgroup(group);
        }
        let mut server = server.start();
        server.wait_line("ready ", SOON);
        let agent = agent_for(port);
        agent.wait_listed(server.pid(), SOON);
        let scene = Scene {
            server,
            agent,
            port,
        };
        // The first request reads what the interpreter needs for it.
        scene.ask("{}");
        scene
    }

    /// Sends one request and reads the reply to its end.
    fn ask(&self, what: &str) -> String {
        ask(self.port, what)
    }

    /// The page once as many requests have ended.
    fn page(&self, requests: f64) -> Page {
        self.agent.wait_for(SOON, |p| {
            p.value("enginetap_requests_total", &[OURS]) >= requests
        })
    }

    /// What the second request was charged with, and what the kernel's own books say of it.
    fn kept(self, what: &str, books: impl Fn(&Scene) -> f64) -> (Charged, f64) {
        let (before, after) = (books(&self), Cell::new(0.0));
        let (charged, _) = self.run(what, |_| {}, |s| after.set(books(s)));
        (charged, after.get() - before)
    }

    /// What the second request was charged with, and what the server said of it.
    fn during(self, what: &str, inject: impl FnOnce(&Scene)) -> (Charged, f64) {
        self.run(what, inject, |_| {})
    }

    fn run(
        mut self,
        what: &str,
        inject: impl FnOnce(&Scene),
        ended: impl FnOnce(&Scene),
    ) -> (Charged, f64) {
        let before = self.page(1.0);
        self.server.wait_line("done ", SOON);
        let pid = self.server.pid();
        let pids: Vec<u32> = children(pid).into_iter().chain([pid]).collect();
        let queued = || pids.iter().map(|p| waited(*p)).sum::<f64>();
        let queued_before = queued();
        let asking = {
            let (port, what) = (self.port, what.to_owned());
            thread::spawn(move || ask(port, &what))
        };
        inject(&self);
        asking.join().expect("the request");
        let held = self.server.wait_line("done ", SOON);
        ended(&self);
        let queued = queued() - queued_before;
        let after = self.page(2.0);
        after.assert_promtool_clean();
        self.agent.stop();
        (
            Charged {
                before,
                after,
                queued,
            },
            held.trim_start_matches("done ")
                .trim()
                .parse()
                .expect("seconds"),
        )
    }
}

fn ask(port: u16, what: &str) -> String {
    let mut to = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("the server");
    let head = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{what}",
        what.len()
    );
    to.write_all(head.as_bytes()).expect("a request");
    let mut reply = Vec::new();
    let mut piece = [0; 4096];
    while !reply.ends_with(b"0\r\n\r\n") {
        let n = to.read(&mut piece).expect("a reply");
        assert!(n > 0, "the reply is cut: {}", reply.escape_ascii());
        reply.extend_from_slice(&piece[..n]);
    }
    String::from_utf8(reply).expect("text")
}

/// What one request added to the page.
struct Charged {
    before: Page,
    after: Page,
    /// Seconds that the server's processes waited for a processor, as the kernel keeps them: what
    /// else runs on this machine may add that much to any other stall.
    queued: f64,
}

impl Charged {
    fn more(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let labels = [&[OURS], labels].concat();
        self.after.value(name, &labels) - self.before.value(name, &labels)
    }

    fn cause(&self, cause: &str) -> f64 {
        self.more("enginetap_request_stall_seconds_total", &[("cause", cause)])
    }

    fn host(&self) -> f64 {
        self.more("enginetap_request_host_stall_seconds_total", &[])
    }

    /// A row of the confusion matrix: every cause that was charged.
    fn row(&self) -> String {
        let all = HOST.iter().chain(&["gil", "lock", "event_loop"]);
        all.map(|c| format!("{c} {:.3}", self.cause(c)))
            .collect::<Vec<_>>()
            .join(", ")
    }

    /// This cause was charged for as long as it took, and no other cause of the host with more than
    /// a tenth of that.
    fn assert_is(&self, cause: &str, truth: f64) {
        println!("{cause} for {truth:.3} s: {}", self.row());
        let slack = (truth / 10.0).max(SLACK);
        let got = self.cause(cause);
        assert!(
            (got - truth).abs() <= slack,
            "{cause}: {got} s, {truth} s in truth; {}",
            self.row()
        );
        for other in HOST.iter().filter(|c| **c != cause) {
            let n = self.cause(other);
            let slack = if *other == "runqueue" {
                slack.max(self.queued + SLACK)
            } else {
                slack
            };
            assert!(n <= slack, "{other}: {n} s of {truth} s; {}", self.row());
        }
        let host = self.host();
        let sum: f64 = HOST.iter().map(|c| self.cause(c)).sum();
        assert!(host <= sum + 1e-6, "{host} s in all, {sum} s by cause");
        if HOST.contains(&cause) {
            assert!(host >= got - 1e-6, "{host} s in all, {got} s of {cause}");
        }
    }
}

/// Seconds that a process has waited for a processor, as the kernel keeps them.
fn waited(pid: u32) -> f64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).expect("schedstat");
    let ns: f64 = text
        .split_whitespace()
        .nth(1)
        .expect("three numbers")
        .parse()
        .expect("nanoseconds");
    ns / 1e9
}

/// Seconds for which a control group was out of quota, as the kernel keeps them.
fn throttled(group: &Cgroup) -> f64 {
    let dirs = group.directories();
    let texts = dirs
        .iter()
        .filter_map(|d| std::fs::read_to_string(d.join("cpu.stat")).ok());
    for text in texts {
        for (key, scale) in [("throttled_time ", 1e9), ("throttled_usec ", 1e6)] {
            if let Some(n) = text.lines().find_map(|l| l.strip_prefix(key)) {
                return n.parse::<f64>().expect("a number") / scale;
            }
        }
    }
    panic!("no cpu.stat in {dirs:?}");
}

fn pin(pid: u32, cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu).expect("a processor");
    sched_setaffinity(Pid::from_raw(pid as i32), &set).expect("pinned");
}

fn group(name: &str) -> Cgroup {
    Cgroup::new(&format!("enginetap-stalls-{name}-{}", std::process::id()))
}

#[test]
fn a_request_on_an_idle_host_is_charged_with_nothing() {
    // What shares the machine with this test is not always idle.
    let idle = (0..3).any(|_| {
        let (charged, _) = Scene::new(&[], None).during(r#"{"events":40,"gap_ms":10}"#, |_| {});
        println!("idle: {}", charged.row());
        let runtime = ["gil", "lock", "event_loop"];
        charged.host() < 0.02 && runtime.iter().all(|c| charged.cause(c) < SLACK)
    });
    assert!(idle);
}

#[test]
fn a_busy_neighbour_on_the_same_processor_is_runqueue() {
    let scene = Scene::new(&[], None);
    let pid = scene.server.pid();
    pin(pid, 0);
    let hog = ChildBuilder::new("sh")
        .args(["-c", "while :; do :; done"])
        .start();
    pin(hog.pid(), 0);
    let (charged, truth) = scene.kept(r#"{"pieces":150}"#, |_| waited(pid));
    assert!(truth > 0.1, "{truth} s only");
    charged.assert_is("runqueue", truth);
    hog.kill9();
}

#[test]
fn a_quota_that_is_used_up_is_throttled() {
    let group = group("quota");
    let scene = Scene::new(&[], Some(&group));
    group.cpu_quota(20_000, 100_000);
    let (charged, truth) = scene.kept(r#"{"pieces":150}"#, |_| throttled(&group));
    assert!(truth > 0.5, "{truth} s only");
    charged.assert_is("throttled", truth);
}

#[test]
fn a_server_that_is_stopped_is_charged_to_the_stream_it_was_in() {
    let scene = Scene::new(&[], None);
    let mut truth = 0.0;
    let (charged, _) = scene.during(r#"{"events":40,"gap_ms":20}"#, |s| {
        thread::sleep(Duration::from_millis(300));
        let began = Instant::now();
        s.server.signal(Signal::SIGSTOP);
        thread::sleep(Duration::from_millis(300));
        s.server.signal(Signal::SIGCONT);
        truth = began.elapsed().as_secs_f64();
    });
    charged.assert_is("stopped", truth);
    let ttft = charged.more(
        "enginetap_request_host_stall_seconds_total",
        &[("phase", "ttft")],
    );
    assert!(ttft < SLACK, "{ttft} s before the first token");
}

/// Freezes a control group for a while by a file of its own.
fn freezes(scene: Scene, file: &Path, words: [&str; 2]) {
    let mut truth = 0.0;
    let (charged, _) = scene.during(r#"{"events":40,"gap_ms":20}"#, |_| {
        thread::sleep(Duration::from_millis(300));
        let began = Instant::now();
        std::fs::write(file, words[0]).expect("frozen");
        thread::sleep(Duration::from_millis(300));
        std::fs::write(file, words[1]).expect("thawed");
        truth = began.elapsed().as_secs_f64();
    });
    charged.assert_is("stopped", truth);
}

#[test]
fn a_control_group_that_is_frozen_is_stopped() {
    let group = group("freezer");
    let files = [
        ("freezer.state", ["FROZEN", "THAWED"]),
        ("cgroup.freeze", ["1", "0"]),
    ];
    let mut found = 0;
    for (name, words) in files {
        for file in group.directories().iter().map(|dir| dir.join(name)) {
            if file.exists() {
                found += 1;
                freezes(Scene::new(&[], Some(&group)), &file, words);
            }
        }
    }
    assert!(found > 0, "this kernel has no freezer");
}

#[test]
fn a_call_that_blocks_the_loop_is_event_loop() {
    let (charged, _) = Scene::new(&[], None).during(r#"{"block_ms":200}"#, |_| {});
    charged.assert_is("event_loop", 0.2);
    let (charged, truth) = Scene::new(&[], None).during(r#"{"spin_ms":200}"#, |_| {});
    charged.assert_is("event_loop", truth - charged.cause("runqueue"));
    assert!(
        charged.host() <= charged.queued + SLACK,
        "{}",
        charged.row()
    );
}

/// A file of 256 MiB.
fn file_in(dir: &Path) -> PathBuf {
    let path = dir.join("cold");
    let mut file = std::fs::File::create(&path).expect("a file");
    for _ in 0..256 {
        file.write_all(&vec![b'x'; 1 << 20]).expect("room");
    }
    file.sync_all().expect("written");
    path
}

#[test]
fn a_file_that_is_not_in_memory_is_block_io_or_page_fault() {
    let dir = dir_on_disk();
    let path = file_in(dir.path());
    for (how, cause) in [("read", "block_io"), ("map", "page_fault")] {
        let what = format!(r#"{{"{how}":"{}"}}"#, path.display());
        let (charged, held) = Scene::new(&[], None).during(&what, |_| {});
        assert!(held > 0.0);
        // The server's clock cannot tell the queue for a processor from the disk.
        charged.assert_is(cause, held - charged.cause("runqueue"));
    }
}

/// A directory beside the build, which is on a disk where the temporary one may be in memory.
fn dir_on_disk() -> tempfile::TempDir {
    let beside = std::env::current_exe().expect("this program");
    tempfile::tempdir_in(beside.parent().expect("a directory")).expect("a directory")
}

#[test]
fn two_threads_that_share_the_interpreter_wait_for_its_lock() {
    let (charged, held) = Scene::new(&[], None).during(r#"{"threads_ms":300}"#, |_| {});
    assert!(held > 0.1, "{held} s only");
    let got = charged.cause("gil");
    println!("gil for {held:.3} s: {}", charged.row());
    assert!(
        (got - held).abs() <= (held / 10.0).max(SLACK) + charged.cause("runqueue"),
        "{got} s, {held} s in truth; {}",
        charged.row()
    );
}

#[test]
fn a_memory_limit_that_is_reached_is_reclaim() {
    let group = group("memory");
    let scene = Scene::new(&[], Some(&group));
    let limit = |name: &str| {
        let dirs = group.directories();
        dirs.iter().map(|d| d.join(name)).find(|f| f.exists())
    };
    let file = limit("memory.limit_in_bytes").or_else(|| limit("memory.max"));
    std::fs::write(file.expect("a memory limit"), "33554432").expect("limited");
    let dir = dir_on_disk();
    let what = format!(r#"{{"write":"{}"}}"#, dir.path().join("much").display());
    let (charged, _) = scene.during(&what, |_| {});
    println!("reclaim: {}", charged.row());
    let got = charged.cause("reclaim");
    assert!(got > 0.0, "{}", charged.row());
}

#[test]
fn a_sibling_that_is_stopped_is_not_charged_to_the_others() {
    let scene = Scene::new(&["workers", "4"], None);
    let pids: Vec<u32> = children(scene.server.pid());
    assert_eq!(pids.len(), 3);
    for pid in &pids {
        scene.agent.wait_listed(*pid, SOON);
    }
    // Every process has read from a connection before.
    let mut seen = std::collections::BTreeSet::new();
    let mut n = 1.0;
    for _ in 0..400 {
        seen.insert(served_by(&scene.ask(r#"{"events":1,"gap_ms":0}"#)));
        n += 1.0;
        if seen.len() > 1 && seen.iter().any(|p| pids.contains(p)) {
            break;
        }
    }
    let victim = pids[0];
    let before = scene.page(n);
    nix::sys::signal::kill(Pid::from_raw(victim as i32), Signal::SIGSTOP).expect("stopped");
    let mut asked = 0;
    for _ in 0..20 {
        assert_ne!(served_by(&scene.ask(r#"{"events":3,"gap_ms":10}"#)), victim);
        asked += 1;
    }
    nix::sys::signal::kill(Pid::from_raw(victim as i32), Signal::SIGCONT).expect("goes on");
    let after = scene.page(n + f64::from(asked));
    let charged = Charged {
        before,
        after,
        queued: 0.0,
    };
    println!("siblings: {}", charged.row());
    assert_eq!(charged.cause("stopped"), 0.0, "{}", charged.row());
    // The clocks ran: that of the process that was stopped, and those of all that answered.
    let stopped = [("role", "other"), ("cause", "stopped")];
    let held = charged.more("enginetap_process_stall_seconds_total", &stopped);
    assert!(held > 0.1, "{held} s");
    let clocked = charged.more("enginetap_ttft_host_stall_ratio_count", &[]);
    assert_eq!(clocked, f64::from(asked));
    scene.agent.stop();
}

/// Child processes of a process.
fn children(pid: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let text = text.expect("children");
    text.split_whitespace()
        .map(|p| p.parse().expect("a pid"))
        .collect()
}

/// Which process wrote a reply.
fn served_by(reply: &str) -> u32 {
    let at = reply.split("x-pid: ").nth(1).expect("a pid");
    at.split("\r\n")
        .next()
        .expect("a line")
        .parse()
        .expect("a pid")
}

#[test]
fn a_core_that_is_held_up_is_charged_to_the_requests_it_works_for() {
    let scene = Scene::new(&["core"], None);
    let core = children(scene.server.pid());
    let [core] = core[..] else {
        panic!("{core:?}");
    };
    scene.agent.wait_listed(core, SOON);
    let mut truth = 0.0;
    let (charged, _) = scene.during(r#"{"core_ms":200}"#, |_| {
        thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        nix::sys::signal::kill(Pid::from_raw(core as i32), Signal::SIGSTOP).expect("stopped");
        thread::sleep(Duration::from_millis(300));
        nix::sys::signal::kill(Pid::from_raw(core as i32), Signal::SIGCONT).expect("goes on");
        truth = began.elapsed().as_secs_f64();
    });
    charged.assert_is("stopped", truth);
    let of = |role| {
        charged.more(
            "enginetap_process_stall_seconds_total",
            &[("role", role), ("cause", "stopped")],
        )
    };
    assert!((of("core") - truth).abs() < truth / 10.0, "{}", of("core"));
    assert_eq!(of("api"), 0.0);
    let ratio = charged.more("enginetap_ttft_host_stall_ratio_sum", &[]);
    assert!(ratio > 0.4 && ratio <= 1.0, "{ratio}");
}

#[test]
fn the_slowest_requests_are_listed_with_what_held_them_up() {
    let scene = Scene::new(&[], None);
    for what in [
        r#"{"block_ms":150}"#,
        r#"{"events":3,"gap_ms":1}"#,
        r#"{"events":3,"gap_ms":150}"#,
    ] {
        scene.ask(what);
    }
    scene.page(4.0);
    let found = scene.agent.get("/requests/slow").expect("an answer").text();
    let found: serde_json::Value = serde_json::from_str(&found).expect("JSON");
    let requests = found["workloads"][0]["requests"]
        .as_array()
        .expect("requests");
    let of = |n: usize, key: &str| requests[n][key].as_f64().unwrap_or(-1.0);
    assert_eq!(requests.len(), 4, "{found}");
    for pair in requests.windows(2) {
        assert!(pair[0]["seconds"].as_f64() >= pair[1]["seconds"].as_f64());
    }
    // Three gaps of 150 ms, the first token at once; then the one whose first token was late.
    assert!((of(0, "seconds") - 0.45).abs() < 0.1, "{found}");
    assert!(of(0, "first_token_seconds") < 0.05, "{found}");
    assert!(
        (of(1, "first_token_seconds") - 0.15).abs() < 0.05,
        "{found}"
    );
    let event_loop = requests[1]["stall_seconds"]["event_loop"].as_f64();
    assert!(
        event_loop.is_some_and(|s| (s - 0.15).abs() < 0.02),
        "{found}"
    );
    for r in requests {
        assert_eq!(r["route"], "/v1/chat/completions");
        assert_eq!(r["outcome"], "success");
        assert_eq!(r["pid"], scene.server.pid());
    }
    let table = Command::new(locate("enginetap"))
        .args(["slow", "--listen", &scene.agent.address().to_string()])
        .output()
        .expect("the table");
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    assert!(table.contains("event_loop 0.1"), "{table}");
    scene.agent.stop();
}

#[test]
fn single_requests_are_not_shown_to_other_nodes() {
    let ns = NetNs::new();
    ns.ip("addr add 192.0.2.7/32 dev lo");
    let mut agent = ChildBuilder::new(locate("enginetap"))
        .args(["run", "--listen", "192.0.2.7:0"])
        .netns(&ns)
        .start();
    let address = agent.wait_line("listening on ", SOON);
    let address = address
        .trim_start_matches("listening on ")
        .parse()
        .expect("an address");
    let status = |path: &str| {
        let reply = http::get_in(Some(ns.name()), address, path, &[]);
        reply.expect("an answer").status
    };
    assert_eq!(status("/requests/slow"), 403);
    assert_eq!(status("/targets"), 200);
    agent.terminate(SOON);
}

#[test]
fn stalls_that_are_turned_off_attach_nothing_to_the_scheduler_and_say_so() {
    let engine = Engine::start();
    let rule = format!("port={},engine=vllm", engine.address().port());
    let agent = Agent::builder()
        .matching(&rule)
        .args(["--stalls", "off"])
        .start();
    Load::run(None, engine.address(), ["-m", "3"]);
    let page = agent.wait_for(SOON, |p| {
        p.value("enginetap_requests_total", &[OURS]) >= 3.0
    });
    for probe in ["stall_switch", "stall_wakeup", "memcg_on"] {
        let labels = [
            ("probe", probe),
            ("state", "not_applicable"),
            ("reason", "turned_off"),
        ];
        page.assert_value("enginetap_probe_state", &labels, 1.0);
    }
    page.assert_value("enginetap_request_host_stall_seconds_total", &[OURS], 0.0);
    agent.stop();
}
