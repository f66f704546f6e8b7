//! The context beside the numbers of requests: what the page says of the node and of a workload's
//! cgroup is what the kernel's own files say, read here before and after.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use enginetap_tests::guard::{Agent, Cgroup, Engine, Load, poll};
use enginetap_tests::page::Page;
use enginetap_tests::scene::beside;
use enginetap_tests::script::Script;

/// How long a reading may take to reach the page: several turns of the slow clock.
const READ: Duration = Duration::from_secs(60);
const BUSY: Duration = Duration::from_secs(120);
const OURS: [(&str, &str); 1] = [("engine", "vllm")];
const THROTTLED: &str = "enginetap_workload_cpu_throttled_seconds_total";
const PERIODS: &str = "enginetap_workload_cpu_periods_total";
const THROTTLED_PERIODS: &str = "enginetap_workload_cpu_throttled_periods_total";
const USAGE: &str = "enginetap_workload_cpu_usage_seconds_total";
const MEMORY: &str = "enginetap_workload_memory_usage_bytes";

fn now_unix() -> f64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .expect("after 1970")
        .as_secs_f64()
}

/// A page whose readings of this task all began after now.
fn fresh(agent: &Agent, task: &str) -> Page {
    let now = now_unix();
    agent.wait_for(READ, |p| {
        p.value(
            "enginetap_task_last_success_timestamp_seconds",
            &[("task", task)],
        ) > now
    })
}

/// A number of the kernel's that may be missing.
fn number(path: &Path, key: &str) -> Option<f64> {
    let text = fs::read_to_string(path).ok()?;
    let value = if key.is_empty() {
        text.trim()
    } else {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(key)?.strip_prefix(' '))?
    };
    value.trim().parse().ok()
}

/// Microseconds of pressure by kind, as seconds; empty where the kernel keeps none.
fn pressure(path: &Path) -> BTreeMap<String, f64> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = |line: &str| {
        let (kind, rest) = line.split_once(' ')?;
        let total: f64 = rest.rsplit_once("total=")?.1.parse().ok()?;
        Some((kind.to_owned(), total / 1e6))
    };
    text.lines().filter_map(line).collect()
}

/// Asserts that a value lies between two readings, but for the last digits of a float.
#[track_caller]
fn between(what: &str, before: f64, page: Option<f64>, after: f64) {
    let page = page.unwrap_or_else(|| panic!("{what} is not on the page"));
    assert!(
        before - 1e-6 <= page && page <= after + 1e-6,
        "{what}: {page} on the page, {before} before and {after} after in the kernel's file"
    );
}

/// The cgroup of a container, as a kubelet makes it, and what its files say.
struct Container {
    group: Cgroup,
    id: String,
}

impl Container {
    /// `tag` is a hexadecimal digit: tests run beside each other.
    fn new(tag: char) -> Container {
        let id = format!("{tag}{:063x}", std::process::id());
        let uid = format!("{:032x}", std::process::id());
        let group = Cgroup::pod(&uid, &id);
        Container { group, id }
    }

    /// Its directory in the v1 hierarchy of a controller, else in the unified one.
    fn dir(&self, controller: &str) -> PathBuf {
        let base = Path::new("/sys/fs/cgroup");
        [base.join(controller), base.join("unified"), base.to_owned()]
            .map(|root| root.join(self.group.path()))
            .into_iter()
            .find(|dir| dir.join("cgroup.procs").exists())
            .expect("a cgroup is in some hierarchy")
    }

    fn v1(&self, controller: &str) -> bool {
        self.dir(controller)
            .starts_with(Path::new("/sys/fs/cgroup").join(controller))
    }

    /// What the page's families are made of, by their names.
    fn figures(&self) -> BTreeMap<&'static str, f64> {
        let stat = self.dir("cpu").join("cpu.stat");
        let (time, unit) = if self.v1("cpu") {
            ("throttled_time", 1e9)
        } else {
            ("throttled_usec", 1e6)
        };
        let usage = if self.v1("cpuacct") {
            number(&self.dir("cpuacct").join("cpuacct.usage"), "").map(|ns| ns / 1e9)
        } else {
            number(&stat, "usage_usec").map(|us| us / 1e6)
        };
        [
            (THROTTLED, number(&stat, time).map(|t| t / unit)),
            (PERIODS, number(&stat, "nr_periods")),
            (THROTTLED_PERIODS, number(&stat, "nr_throttled")),
            (USAGE, usage),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
    }

    fn memory(&self) -> f64 {
        let file = if self.v1("memory") {
            "memory.usage_in_bytes"
        } else {
            "memory.current"
        };
        number(&self.dir("memory").join(file), "").expect("memory of the cgroup")
    }

    /// Files of pressure, where the kernel keeps it.
    fn pressure(&self, resource: &str) -> BTreeMap<String, f64> {
        let dir = self.dir("no-such-controller");
        pressure(&dir.join(format!("{resource}.pressure")))
    }

    fn engine(&self) -> Engine {
        Engine::builder().cgroup(&self.group).start()
    }

    /// Works its engine until the quota has held it back `more` times more than now.
    fn press(&self, engine: &Engine, more: f64) {
        let script = Script {
            events: 200,
            ..Script::default()
        };
        let from = self.figures()[THROTTLED_PERIODS];
        let held_back = poll(BUSY, || {
            let words = ["-n", "8", "-m", "4", "--script", &script.to_header()];
            Load::run(None, engine.address(), words);
            (self.figures()[THROTTLED_PERIODS] >= from + more).then_some(())
        });
        assert!(held_back.is_some(), "no throttling: {:?}", self.figures());
    }
}

#[test]
fn throttling_and_memory_are_those_of_the_containers_cgroup() {
    let container = Container::new('a');
    container.group.cpu_quota(20_000, 100_000);
    let engine = container.engine();
    let agent = beside(&engine);
    container.press(&engine, 5.0);
    let (before, memory_before) = (container.figures(), container.memory());
    let page = fresh(&agent, "cgroup");
    let (after, memory_after) = (container.figures(), container.memory());
    assert!(before[THROTTLED] > 0.0 && before.len() == 4, "{before:?}");
    let held = &[("container", &container.id[..12]), OURS[0]];
    for (name, value) in &before {
        between(name, *value, page.get(name, held), after[name]);
    }
    page.assert_value("enginetap_workload_cpu_quota_cores", held, 0.2);
    // Memory is a gauge: the engine is idle, so it stays within a few pages' batches per CPU.
    let slack = 4.0 * 1024.0 * 1024.0;
    let low = memory_before.min(memory_after) - slack;
    let high = memory_before.max(memory_after) + slack;
    between(MEMORY, low, page.get(MEMORY, held), high);
    assert_eq!(
        page.get("enginetap_workload_memory_limit_bytes", held),
        None,
        "no limit is set"
    );
    page.assert_value(
        "enginetap_workload_memory_events_total",
        &[held[0], held[1], ("event", "oom_kill")],
        0.0,
    );
    assert!(page.lint().is_empty(), "{:?}", page.lint());
    agent.stop();
}

#[test]
fn promtool_finds_a_page_with_context_clean() {
    let container = Container::new('d');
    let engine = container.engine();
    let agent = beside(&engine);
    let page = fresh(&agent, "cgroup");
    let held = ("container", &container.id[..12]);
    assert!(page.get(MEMORY, &[held]).is_some(), "{}", page.text());
    page.assert_promtool_clean();
    agent.stop();
}

#[test]
fn a_workloads_pressure_is_that_of_its_cgroup_or_coverage_says_why_there_is_none() {
    let container = Container::new('b');
    container.group.cpu_quota(20_000, 100_000);
    let engine = container.engine();
    let agent = beside(&engine);
    container.press(&engine, 3.0);
    let name = "enginetap_workload_pressure_seconds_total";
    let resources = ["cpu", "memory", "io", "irq"];
    let before = resources.map(|r| container.pressure(r));
    let page = fresh(&agent, "cgroup");
    let after = resources.map(|r| container.pressure(r));
    let mut seen = 0;
    for ((resource, before), after) in resources.iter().zip(&before).zip(&after) {
        for (kind, value) in before {
            let labels = [OURS[0], ("resource", *resource), ("kind", kind.as_str())];
            between(
                &format!("{labels:?}"),
                *value,
                page.get(name, &labels),
                after[kind],
            );
            seen += 1;
        }
    }
    assert_eq!(
        page.matching(name, &OURS).len(),
        seen,
        "{}",
        page.lines(name)
    );
    let unified = container
        .dir("no-such-controller")
        .join("cgroup.controllers")
        .exists();
    let (state, reason) = match (seen, unified) {
        (0, false) => ("partial", "cgroup_v1"),
        (0, true) => ("partial", "no_psi"),
        _ => ("full", ""),
    };
    page.assert_value(
        "enginetap_coverage",
        &[
            OURS[0],
            ("aspect", "stalls"),
            ("state", state),
            ("reason", reason),
        ],
        1.0,
    );
    if seen > 0 {
        let waited = [OURS[0], ("resource", "cpu"), ("kind", "some")];
        assert!(page.value(name, &waited) > 0.0, "it was held back");
    }
    agent.stop();
}

/// What a container's files and the page say once nothing moves any more.
fn quiet(agent: &Agent, container: &Container) -> (BTreeMap<&'static str, f64>, Page) {
    let still = |f: &BTreeMap<&str, f64>| [THROTTLED, PERIODS, THROTTLED_PERIODS].map(|n| f[n]);
    poll(BUSY, || {
        let before = container.figures();
        let page = fresh(agent, "cgroup");
        (still(&before) == still(&container.figures())).then_some((before, page))
    })
    .expect("the container comes to rest")
}

/// Its workload's counters.
fn kin(page: &Page, held: &[(&str, &str)]) -> Vec<(String, f64)> {
    page.samples()
        .iter()
        .filter(|s| s.name.starts_with("enginetap_workload_") && s.name.ends_with("_total"))
        .filter(|s| s.matches(held))
        .map(|s| (format!("{}{:?}", s.name, s.labels), s.value))
        .collect()
}

#[test]
fn a_container_that_starts_again_goes_on_from_what_it_had() {
    let container = Container::new('c');
    container.group.cpu_quota(20_000, 100_000);
    let engine = container.engine();
    let address = engine.address().to_string();
    let agent = beside(&engine);
    container.press(&engine, 5.0);
    let (had, old) = quiet(&agent, &container);
    let name = container.id[..12].to_owned();
    let held = &[("container", name.as_str()), OURS[0]];
    old.assert_value(THROTTLED_PERIODS, held, had[THROTTLED_PERIODS]);
    engine.stop();
    drop(container);

    let container = Container::new('c');
    container.group.cpu_quota(20_000, 100_000);
    assert_eq!(container.figures()[THROTTLED_PERIODS], 0.0, "another one");
    let engine = Engine::builder()
        .listen(&address)
        .cgroup(&container.group)
        .start();
    container.press(&engine, 2.0);
    let (has, new) = quiet(&agent, &container);
    let (was, is) = (kin(&old, held), kin(&new, held));
    assert_eq!(was.len(), is.len(), "{}", new.lines("enginetap_workload_"));
    for ((name, was), (same, is)) in was.iter().zip(&is) {
        assert!(name == same && was <= is, "{name}: {was} -> {is}");
    }
    // What the first one did between its last reading and its end is not in the sum.
    for name in [PERIODS, THROTTLED_PERIODS] {
        let sum = had[name] + has[name];
        let now = new.get(name, held).expect("still there");
        assert!(
            (sum..=sum + 1.0).contains(&now),
            "{name}: {now}, both {sum}"
        );
    }
    agent.stop();
}

#[test]
fn an_executable_without_a_cgroup_of_its_own_has_no_context_and_says_so() {
    let group = Cgroup::new(&format!("enginetap-plain-{}", std::process::id()));
    let engine = Engine::builder().cgroup(&group).start();
    let agent = beside(&engine);
    let page = fresh(&agent, "cgroup");
    let own = page
        .samples()
        .iter()
        .find(|s| s.name.starts_with("enginetap_workload_cpu") && s.matches(&OURS));
    assert_eq!(own, None);
    page.assert_value(
        "enginetap_coverage",
        &[
            OURS[0],
            ("aspect", "stalls"),
            ("state", "partial"),
            ("reason", "no_own_cgroup"),
        ],
        1.0,
    );
    agent.stop();
}

/// Steal, softirq and all states together, in seconds.
fn cpu() -> [f64; 3] {
    let text = fs::read_to_string("/proc/stat").expect("/proc/stat");
    let line = text.lines().next().expect("a line");
    let ticks: Vec<f64> = line
        .split_whitespace()
        .skip(1)
        .map(|t| t.parse().expect("ticks"))
        .collect();
    [ticks[7], ticks[6], ticks[..8].iter().sum()].map(|t| t / 100.0)
}

/// `OutSegs` and `RetransSegs`.
fn tcp() -> [f64; 2] {
    let text = fs::read_to_string("/proc/1/net/snmp").expect("snmp");
    let rows: Vec<Vec<&str>> = text
        .lines()
        .filter(|l| l.starts_with("Tcp:"))
        .map(|l| l.split_whitespace().collect())
        .collect();
    ["OutSegs", "RetransSegs"].map(|name| {
        let at = rows[0].iter().position(|n| *n == name).expect("a column");
        rows[1][at].parse().expect("a number")
    })
}

/// Requests and seconds, reads first, of the disks that have a device; none without such a disk.
fn disks() -> Option<[f64; 4]> {
    let text = fs::read_to_string("/proc/diskstats").expect("diskstats");
    let rows = text.lines().map(|l| l.split_whitespace().collect());
    let disks: Vec<Vec<&str>> = rows
        .filter(|row: &Vec<&str>| Path::new("/sys/block").join(row[2]).join("device").exists())
        .collect();
    let sum = |at: usize| -> f64 {
        let numbers = disks.iter().map(|row| row[at].parse::<f64>());
        numbers.map(|n| n.expect("a number")).sum()
    };
    (!disks.is_empty()).then(|| [sum(3), sum(7), sum(6) / 1e3, sum(10) / 1e3])
}

#[test]
fn the_nodes_figures_are_those_of_proc() {
    let resources = ["cpu", "memory", "io", "irq"];
    let node = || resources.map(|r| pressure(&Path::new("/proc/pressure").join(r)));
    let agent = Agent::start(&["--recognise", "off"]);
    let before = (node(), cpu(), tcp(), disks());
    let page = fresh(&agent, "node");
    let after = (node(), cpu(), tcp(), disks());
    let name = "enginetap_node_pressure_seconds_total";
    let mut seen = 0;
    for ((resource, before), after) in resources.iter().zip(&before.0).zip(&after.0) {
        for (kind, value) in before {
            let labels = [("resource", *resource), ("kind", kind.as_str())];
            between(
                &format!("{labels:?}"),
                *value,
                page.get(name, &labels),
                after[kind],
            );
            seen += 1;
        }
    }
    assert_eq!(page.series(name).len(), seen, "{}", page.lines(name));
    for (i, name) in ["cpu_steal", "cpu_softirq", "cpu"].iter().enumerate() {
        let name = format!("enginetap_node_{name}_seconds_total");
        between(&name, before.1[i], page.get(&name, &[]), after.1[i]);
    }
    for (i, name) in ["segments_sent", "retransmits"].iter().enumerate() {
        let name = format!("enginetap_node_tcp_{name}_total");
        between(&name, before.2[i], page.get(&name, &[]), after.2[i]);
    }
    for (i, (name, direction)) in [
        ("ios", "read"),
        ("ios", "write"),
        ("time_seconds", "read"),
        ("time_seconds", "write"),
    ]
    .iter()
    .enumerate()
    {
        let name = format!("enginetap_node_disk_{name}_total");
        let value = page.get(&name, &[("direction", direction)]);
        match (before.3, after.3) {
            (Some(before), Some(after)) => between(&name, before[i], value, after[i]),
            _ => assert_eq!(value, None, "{name}: this node has no disk"),
        }
    }
    assert!(page.value("enginetap_node_runnable_tasks", &[]) >= 1.0);
    agent.stop();
}
