//! Processes, connections and namespaces that come and go for minutes: every request is counted,
//! and what the agent holds for them is given back.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::{Args, Outcome};
use crate::guard::{Agent, Cgroup, Engine, Held, Load, NetNs};
use crate::page::Page;
use crate::script::Script;

/// The engines run under names that begin so.
const PREFIX: &str = "soak-churn";
/// Names in turn, unless every engine gets its own.
const NAMES: usize = 4;
/// How much more memory the agent may need at the end than after the warm-up.
const GROWTH: f64 = 2.0;
/// How long the agent has to notice what is gone: a few sweeps, and the check of open requests.
const SETTLE: Duration = Duration::from_secs(90);
const SOON: Duration = Duration::from_secs(20);
const MIB: f64 = 1_048_576.0;

struct Confined {
    group: Cgroup,
    agent: Agent,
}

/// What the agent holds at one moment.
#[derive(Clone, Debug, PartialEq)]
struct Holding {
    /// Entries by map, descriptors, links, programs, packet sockets.
    counts: BTreeMap<String, f64>,
    mib: f64,
    resident: f64,
}

impl Confined {
    fn start() -> Self {
        let group = Cgroup::new(&format!("enginetap-soak-{}", std::process::id()));
        let agent = Agent::builder()
            .matching(&format!("exe={PREFIX}*,engine=vllm"))
            .args(["--recognise", "off"])
            .cgroup(&group)
            .start();
        Self { group, agent }
    }

    /// What the cgroup counts, MiB.
    fn used(&self) -> f64 {
        let dirs = self.group.directories();
        let read = |name: &str| {
            dirs.iter()
                .find_map(|dir| std::fs::read_to_string(dir.join(name)).ok())
        };
        let text = read("memory.usage_in_bytes").or_else(|| read("memory.current"));
        let bytes: Option<f64> = text.and_then(|t| t.trim().parse().ok());
        bytes.map_or(f64::NAN, |b| b / MIB)
    }

    fn holding(&mut self) -> Holding {
        let page = self.agent.scrape();
        let held = Held::by(self.agent.child().pid());
        let mut counts: BTreeMap<String, f64> = page
            .series("enginetap_map_entries")
            .iter()
            .map(|s| (format!("entries in {}", s.label("map")), s.value))
            .collect();
        let mut count = |what: &str, n: f64| counts.insert(what.to_owned(), n);
        count("descriptors", page.value("process_open_fds", &[]));
        count("links", held.links.len() as f64);
        count("programs", held.programs.len() as f64);
        count("maps", held.maps.len() as f64);
        Holding {
            counts,
            mib: self.used(),
            resident: page.value("process_resident_memory_bytes", &[]) / MIB,
        }
    }

    /// What it holds once it is back at `wanted`, or when it had long enough.
    fn rested(&mut self, wanted: Option<&Holding>) -> Holding {
        let mut now = self.holding();
        let end = Instant::now() + SETTLE;
        let above = |now: &Holding| {
            wanted.is_some_and(|w| {
                let over =
                    |(what, n): (&String, &f64)| *n > w.counts.get(what).copied().unwrap_or(0.0);
                now.counts.iter().any(over) || now.mib - w.mib >= GROWTH
            })
        };
        while above(&now) && Instant::now() < end {
            std::thread::sleep(Duration::from_secs(1));
            now = self.holding();
        }
        now
    }
}

/// Requests of all engines so far.
#[derive(Debug, Default)]
struct Sent {
    engines: u64,
    connections: u64,
    client: u64,
    engine: u64,
    events: u64,
}

/// An engine in a new namespace serves a few clients, some of which leave, and is stopped.
fn turn(agent: &Agent, n: usize, new_names: bool, sent: &mut Sent) {
    let ns = NetNs::new();
    let name = if new_names { n } else { n % NAMES };
    let mut engine = Engine::builder()
        .exe_name(&format!("{PREFIX}-{name}"))
        .netns(&ns)
        .args(["--no-rows", "--no-event-log"])
        .start();
    // The namespace's own number may be one that was used and listed before.
    agent.wait_listed(engine.child().pid(), SOON);
    let short = Script::default().to_header();
    let long = Script {
        events: 1_000,
        gap_ms: 5.0,
        ..Script::default()
    }
    .to_header();
    let leaving = |with| {
        let words = ["-n", "4", "--abort-after", "3", "--abort-with", with];
        [&words[..], &["--script", &long]].concat()
    };
    let loads = [
        vec!["-n", "8", "-m", "4", "--reconnect", "--script", &short],
        vec!["-n", "8", "-m", "4", "--unary", "--script", &short],
        leaving("rst"),
        leaving("fin"),
    ];
    let loads = loads.map(|mut words| {
        words.push("--no-event-log");
        Load::start(Some(&ns), engine.address(), words)
    });
    let mut count = 0;
    for load in loads {
        let sum = load.wait(Duration::from_secs(60));
        count += sum.requests;
        sent.connections += sum.connections;
    }
    let truth = engine.ended(count);
    sent.engines += 1;
    sent.client += count;
    sent.engine += truth.count();
    sent.events += truth.events;
    if n.is_multiple_of(2) {
        engine.kill9();
    } else {
        engine.stop();
    }
}

fn ours(page: &Page, name: &str) -> f64 {
    let series = page.series(name);
    let own = series
        .iter()
        .filter(|s| s.label("container").starts_with(PREFIX));
    own.map(|s| s.value).sum()
}

pub(super) fn run(args: &Args) -> Outcome {
    let mut agent = Confined::start();
    let mut sent = Sent::default();
    let mut n = 0;
    let mut until = |agent: &Agent, end: Instant, sent: &mut Sent| {
        while Instant::now() < end {
            turn(agent, n, args.new_names, sent);
            n += 1;
        }
    };
    // A fifth of the time, so that every table and buffer has grown to its working size.
    let began = Instant::now();
    until(&agent.agent, began + args.time() / 5, &mut sent);
    std::thread::sleep(Duration::from_secs(20));
    let start = agent.rested(None);
    let at = sent.engines;
    println!("after the warm-up of {at} engines: {start:?}");
    until(&agent.agent, began + args.time(), &mut sent);
    let busy = agent.holding();
    println!("after {} engines, at once: {busy:?}", sent.engines);
    let end = agent.rested(Some(&start));
    println!("at rest: {end:?}");
    let page = agent.agent.scrape();

    let title = format!(
        "{} engines in as many namespaces and {} connections that came and went in {:.0} s{}",
        sent.engines,
        sent.connections,
        began.elapsed().as_secs_f64(),
        if args.new_names {
            ", each engine under a new name"
        } else {
            ""
        }
    );
    let header = [
        "",
        "engine or after warm-up",
        "client",
        "page or at the end",
        "difference",
    ];
    let mut outcome = Outcome::new(&title, &header);
    let started = ours(&page, "enginetap_requests_started_total");
    let ended = ours(&page, "enginetap_requests_total");
    let events = ours(&page, "enginetap_stream_events_total");
    for (what, engine, client, shown) in [
        ("requests started", sent.engine, Some(sent.client), started),
        ("requests ended", sent.engine, Some(sent.client), ended),
        ("stream events", sent.events, None, events),
    ] {
        let difference = shown - engine as f64;
        outcome.line(vec![
            what.to_owned(),
            engine.to_string(),
            client.map_or_else(String::new, |c| c.to_string()),
            format!("{shown:.0}"),
            format!("{difference:+.0}"),
        ]);
        outcome.must(
            difference == 0.0 && client.is_none_or(|c| c == engine),
            || format!("{what}: engine {engine}, client {client:?}, page {shown}"),
        );
    }
    for (what, now) in &end.counts {
        let was = start.counts.get(what).copied().unwrap_or(0.0);
        outcome.line(vec![
            what.clone(),
            format!("{was:.0}"),
            String::new(),
            format!("{now:.0}"),
            format!("{:+.0}", now - was),
        ]);
        outcome.must(*now <= was, || {
            format!("{what}: {was} after the warm-up, {now} at the end")
        });
    }
    for (what, was, now) in [
        ("MiB as the cgroup counts them", start.mib, end.mib),
        ("MiB resident", start.resident, end.resident),
    ] {
        outcome.line(vec![
            what.to_owned(),
            format!("{was:.1}"),
            String::new(),
            format!("{now:.1}"),
            format!("{:+.1}", now - was),
        ]);
        outcome.must(now - was < GROWTH, || {
            format!("{what}: {was:.2}, then {now:.2}")
        });
    }
    outcome.faults.extend(page.invariant().err());
    let Confined { agent, group } = agent;
    agent.stop();
    drop(group);
    outcome
}
