//! Memory as the cgroup counts it: maps, rings, page cache and heap of an agent that was started
//! inside a cgroup of its own.

use std::net::SocketAddr;
use std::time::Duration;

use super::table::{Detail, Report, Verdict};
use super::{Args, PORT, cpu};
use crate::guard::{Cgroup, Child, ChildBuilder, Engine, Load, NetNs, locate, poll};
use crate::page::Page;
use crate::script::Script;

/// The engine runs under this name, which makes its workload.
const NAME: &str = "bench-engine";
const OURS: [(&str, &str); 1] = [("container", NAME)];
const MIB: f64 = 1_048_576.0;

struct Confined {
    group: Cgroup,
    child: Child,
    address: SocketAddr,
}

impl Confined {
    fn start() -> Self {
        let group = Cgroup::new(&format!("enginetap-bench-{}", std::process::id()));
        let rule = format!("port={PORT},engine=vllm");
        let mut child = ChildBuilder::new(locate("enginetap"))
            .args([
                "run",
                "--listen",
                "127.0.0.1:0",
                "--recognise",
                "off",
                "--match",
                &rule,
            ])
            .cgroup(&group)
            .start();
        let line = child.wait_line("listening on ", Duration::from_secs(30));
        let address = line
            .rsplit(' ')
            .next()
            .and_then(|a| a.parse().ok())
            .expect("an address");
        Self {
            group,
            child,
            address,
        }
    }

    fn page(&self) -> Page {
        let reply = crate::http::get(self.address, "/metrics", &[]).expect("a page");
        Page::parse(&reply.text())
    }

    fn file(&self, v1: &str, v2: &str) -> Option<f64> {
        let dirs = self.group.directories();
        let read = |name: &str| {
            dirs.iter()
                .find_map(|dir| std::fs::read_to_string(dir.join(name)).ok())
        };
        read(v1).or_else(|| read(v2))?.trim().parse().ok()
    }

    /// What the cgroup counts, MiB.
    fn used(&self) -> f64 {
        self.file("memory.usage_in_bytes", "memory.current")
            .map_or(f64::NAN, |b| b / MIB)
    }

    fn peak(&self) -> f64 {
        self.file("memory.max_usage_in_bytes", "memory.peak")
            .map_or(f64::NAN, |b| b / MIB)
    }

    fn maps(&self) -> f64 {
        cpu::maps(self.child.pid())
            .values()
            .map(|m| m.bytes as f64 / MIB)
            .sum()
    }

    fn resident(&self) -> f64 {
        self.page().value("process_resident_memory_bytes", &[]) / MIB
    }

    fn line(&self, name: &str) -> Vec<String> {
        let values = [self.used(), self.peak(), self.maps(), self.resident()];
        let mut cells = vec![name.to_owned()];
        cells.extend(values.map(|v| format!("{v:.1}")));
        cells
    }
}

pub(super) fn run(args: &Args, report: &mut Report) {
    let streams = args.pick(10_000, 500);
    let agent = Confined::start();
    std::thread::sleep(Duration::from_secs(args.pick(5, 2)));
    agent.page();
    let mut detail = Detail::new(
        "Memory of the agent, MiB",
        &["", "cgroup", "cgroup peak", "maps and ring", "resident"],
    );
    let (idle, idle_peak) = (agent.used(), agent.peak());
    detail.line(&agent.line("idle"));
    report.row(
        "memory as the cgroup counts it, idle",
        "<= 64 MiB",
        &format!(
            "{idle:.1} MiB (peak while starting {idle_peak:.1}), of it maps and ring {:.1}",
            agent.maps()
        ),
        Verdict::of(idle <= 64.0),
        "usage of a memory cgroup that the agent was started in, after its first page",
    );

    let ns = NetNs::new();
    let listen = format!("127.0.0.1:{PORT}");
    let script = Script {
        events: 100_000,
        gap_ms: 2_000.0,
        ..Script::default()
    };
    let engine = Engine::builder()
        .exe_name(NAME)
        .netns(&ns)
        .listen(&listen)
        .args(["--no-rows", "--no-event-log"])
        .start();
    // The agent follows the new listener before connections come.
    std::thread::sleep(Duration::from_secs(1));
    let n = streams.to_string();
    let load = Load::start(
        Some(&ns),
        engine.address(),
        [
            "-n",
            &n,
            "--read-bytes",
            "4096",
            "--no-event-log",
            "--script",
            &script.to_header(),
        ],
    );
    let mut open = 0.0;
    poll(Duration::from_secs(60), || {
        open = agent.page().value("enginetap_requests_in_flight", &OURS);
        (open >= streams as f64).then_some(())
    });
    std::thread::sleep(Duration::from_secs(args.pick(10, 2)));
    let (used, page) = (agent.used(), agent.page());
    detail.line(&agent.line(&format!("{open:.0} open streams")));
    report.row(
        &format!("the same with {open:.0} open streams"),
        "<= 128 MiB",
        &format!("{used:.1} MiB (peak {:.1}), of it maps and ring {:.1}", agent.peak(), agent.maps()),
        Verdict::of(used <= 128.0 && open >= 10_000.0),
        &format!(
            "one engine with {streams} streams of one event per 2 s each; events_lost {}, flows dropped {}",
            page.value("enginetap_events_lost_total", &[]),
            page.value("enginetap_flows_dropped_total", &[])
        ),
    );
    drop((load, engine));
    let per_cpu: u64 = cpu::maps(agent.child.pid())
        .values()
        .map(|m| m.per_cpu())
        .sum();
    let sizes: Vec<String> = [16, 64, 192]
        .iter()
        .map(|n| format!("{n} CPUs {:.2} MiB", (per_cpu * n) as f64 / MIB))
        .collect();
    report.row(
        "per-CPU maps on larger machines",
        "",
        &sizes.join(", "),
        Verdict::Shown,
        "calculated from the value sizes of the loaded maps; all else does not depend on the number of CPUs",
    );
    report.detail(detail);
    agent.child.terminate(Duration::from_secs(15));
}
