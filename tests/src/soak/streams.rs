//! A thousand concurrent streams, as fast as the machine lets them, while the agent is stopped for
//! two seconds or replaced by a new one.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use super::{Args, Outcome};
use crate::client::{ClientRow, Summary};
use crate::clock::now_ns;
use crate::compare::Comparison;
use crate::engine::Truth;
use crate::event::Outcome as Ended;
use crate::follow::{Followed, Follower};
use crate::guard::{Agent, Engine, Load, NetNs, poll};
use crate::page::Page;
use crate::script::Script;

/// The engine runs under this name, which makes its workload: others on the machine are not ours.
const NAME: &str = "soak-engine";
const OURS: [(&str, &str); 1] = [("container", NAME)];
/// Streams open at a time.
const STREAMS: f64 = 1_000.0;
const STOPPED: Duration = Duration::from_secs(2);
const CATCH_UP: Duration = Duration::from_secs(60);

/// A namespace with an engine in it and its load.
struct Stage {
    ns: NetNs,
    engine: Engine,
    began: Instant,
    time: Duration,
}

impl Stage {
    /// `keep` are the engine's own rows.
    fn new(args: &Args, keep: bool) -> Self {
        let ns = NetNs::new();
        let mut engine = Engine::builder()
            .exe_name(NAME)
            .netns(&ns)
            .args(["--no-event-log"]);
        if !keep {
            engine = engine.args(["--no-rows"]);
        }
        let engine = engine.start();
        Self {
            ns,
            engine,
            began: Instant::now(),
            time: args.time(),
        }
    }

    /// Streams to the end and streams that their clients leave, and short replies of other kinds.
    fn loads(&mut self) -> Vec<Load> {
        self.began = Instant::now();
        let stream = Script {
            events: 500,
            gap_ms: 10.0,
            ..Script::default()
        };
        let status = |status| Script {
            status,
            ..Script::default()
        };
        let whole = [stream.clone()];
        let short = [status(200), status(429), status(503)];
        let fin = "-n 50 --abort-after 50 --abort-with fin --tag fin";
        let rst = "-n 50 --abort-after 50 --abort-with rst --tag rst";
        vec![
            self.load("-n 900 --include-usage --tag whole", &whole),
            self.load(fin, &whole),
            self.load(rst, &whole),
            self.load("-n 4 --unary --think-ms 5 --tag short", &short),
        ]
    }

    fn load(&self, words: &str, scripts: &[Script]) -> Load {
        let mut args: Vec<String> = words.split_whitespace().map(str::to_owned).collect();
        let seconds = self.time.as_secs().to_string();
        args.extend(["-m", "0", "--seconds", &seconds, "--no-event-log"].map(str::to_owned));
        for script in scripts {
            args.extend(["--script".to_owned(), script.to_header()]);
        }
        Load::start(Some(&self.ns), self.engine.address(), args)
    }

    /// Lets the load go on until half of its time is over and its streams are open.
    fn half_time(&self, agent: &Agent) {
        let open = |p: &Page| p.value("enginetap_requests_in_flight", &OURS);
        let page = agent.wait_for(CATCH_UP, |p| open(p) >= STREAMS);
        println!("{} open", open(&page));
        std::thread::sleep((self.time / 2).saturating_sub(self.began.elapsed()));
    }

    fn finish(&mut self, loads: Vec<Load>) -> (Vec<Summary>, Truth, f64) {
        let wait = self.time + Duration::from_secs(120);
        let sums: Vec<Summary> = loads.into_iter().map(|load| load.wait(wait)).collect();
        let seconds = self.began.elapsed().as_secs_f64();
        let truth = self.engine.ended(sums.iter().map(|s| s.requests).sum());
        (sums, truth, seconds)
    }
}

fn agent() -> Agent {
    Agent::builder()
        .matching(&format!("exe={NAME},engine=vllm"))
        .args(["--recognise", "off"])
        .start()
}

/// Waits until nothing is open on the page and `done` holds.
fn settled(agent: &Agent, done: impl Fn(&Page) -> bool) -> Page {
    let mut page = agent.scrape();
    poll(CATCH_UP, || {
        page = agent.scrape();
        let open = page.value("enginetap_requests_in_flight", &OURS);
        (open == 0.0 && done(&page)).then_some(())
    });
    page
}

/// What is the same for both: the pages meanwhile, and what was lost of records.
fn judge(outcome: &mut Outcome, followed: &[Followed], page: &Page) {
    for seen in followed {
        outcome.faults.extend(seen.faults.iter().cloned());
    }
    for sample in page.series("enginetap_events_lost_total") {
        let reason = sample.label("reason");
        println!("records lost, {reason}: {}", sample.value);
        // A full ring costs labels; whatever else is lost costs what is compared here.
        outcome.must(reason == "ring_full" || sample.value == 0.0, || {
            format!("{} records lost: {reason}", sample.value)
        });
    }
    outcome.faults.extend(page.invariant().err());
}

/// The agent is stopped for two seconds in the middle: everything is equal.
pub(super) fn stopped(args: &Args) -> Outcome {
    let mut stage = Stage::new(args, false);
    let agent = agent();
    let pages = Follower::start(agent.address());
    let loads = stage.loads();
    stage.half_time(&agent);
    agent.sigstop();
    std::thread::sleep(STOPPED);
    agent.sigcont();
    let (sums, truth, seconds) = stage.finish(loads);
    let page = settled(&agent, |p| {
        let compared = Comparison::of(p, &OURS, &truth, &sums);
        compared.differing().is_empty()
    });
    let followed = pages.stop();
    agent.stop();
    let title = format!(
        "1,000 streams for {seconds:.0} s, the agent stopped for {} s in the middle: {:.0} events a second, {} pages",
        STOPPED.as_secs(),
        truth.events as f64 / seconds,
        followed.pages
    );
    let mut outcome = Outcome::new(&title, &["", "engine", "client", "page", "difference"]);
    let compared = Comparison::of(&page, &OURS, &truth, &sums);
    for line in &compared.lines {
        outcome.line(line.cells());
        outcome.must(line.agrees(), || format!("{line:?}"));
    }
    judge(&mut outcome, &[followed], &page);
    outcome
}

/// What clients began at or after the start of the second agent, and while there was none or it
/// was starting.
#[derive(Default)]
struct Begun {
    after: f64,
    between: f64,
}

/// What is compared, by the moment at which the client began.
fn begun(sums: &[Summary], truth: &Truth, left: u64, ready: u64) -> BTreeMap<String, Begun> {
    let written: HashMap<&str, u64> = truth
        .rows
        .iter()
        .map(|row| (row.id.as_str(), row.tally.data))
        .collect();
    let mut all: BTreeMap<String, Begun> = BTreeMap::new();
    let mut add = |what: &str, row: &ClientRow, n: f64| {
        let begun = all.entry(what.to_owned()).or_default();
        if row.start_ns >= ready {
            begun.after += n;
        } else if row.start_ns >= left {
            begun.between += n;
        }
    };
    for row in sums.iter().flat_map(|s| &s.rows) {
        add("requests started", row, 1.0);
        add("requests ended", row, 1.0);
        add(row.outcome.as_str(), row, 1.0);
        add("stream events", row, written[row.id.as_str()] as f64);
    }
    all
}

/// The agent is replaced in the middle: the new one counts from 0, takes up the connections that
/// are open, and counts every request that begins once it is ready, wholly and once. One that was
/// open across is unobserved.
pub(super) fn restarted(args: &Args) -> Outcome {
    let mut stage = Stage::new(args, true);
    let first = agent();
    let before = Follower::start(first.address());
    let loads = stage.loads();
    stage.half_time(&first);
    let before = before.stop();
    let left = now_ns();
    first.stop();
    let agent = agent();
    let ready = now_ns();
    let gone = (ready - left) as f64 / 1e9;
    let after = Follower::start(agent.address());
    let (sums, truth, seconds) = stage.finish(loads);
    let begun = begun(&sums, &truth, left, ready);
    let rows = || sums.iter().flat_map(|s| &s.rows);
    // Open at some time while there was no agent or it was starting.
    let touched = rows().filter(|r| r.start_ns < ready && r.end_ns > left);
    let touched = touched.count() as f64;
    // Of them those that surely went on under the eyes of the new one.
    let across = rows().filter(|r| {
        r.start_ns < left && r.end_ns > ready && r.streaming && r.outcome == Ended::Success
    });
    let across = across.count() as f64;
    let least = begun["requests ended"].after + across;
    let page = settled(&agent, |p| {
        p.value("enginetap_requests_total", &OURS) >= least
    });
    let after = after.stop();
    agent.stop();
    let title = format!(
        "1,000 streams for {seconds:.0} s, the agent restarted in the middle (gone or starting for {gone:.1} s, {across} streams open across): {:.0} events a second",
        truth.events as f64 / seconds
    );
    let header = ["", "at least", "at most", "page", "above the least"];
    let mut outcome = Outcome::new(&title, &header);
    outcome.must(truth.started == truth.count(), || {
        format!("the engine ended {} of {}", truth.count(), truth.started)
    });
    let mut row = |what: &str, least: f64, most: f64, shown: f64| {
        let cells = [least, most, shown].map(|n| format!("{n:.0}"));
        let above = format!("{:+.0}", shown - least);
        outcome.line([vec![what.to_owned()], cells.to_vec(), vec![above]].concat());
        outcome.must((least..=most).contains(&shown), || {
            format!("{what}: {shown} is not from {least} to {most}")
        });
    };
    for (what, Begun { after, between }) in &begun {
        let requests = |labels: &[(&str, &str)]| page.value("enginetap_requests_total", labels);
        match what.as_str() {
            "requests started" => {
                let shown = page.value("enginetap_requests_started_total", &OURS);
                row(what, after + across, after + touched, shown);
            }
            "requests ended" => row(what, after + across, after + touched, requests(&OURS)),
            "stream events" => {
                let shown = page.value("enginetap_stream_events_total", &OURS);
                row(what, *after, after + between, shown);
            }
            ended => {
                let shown = requests(&[OURS[0], ("outcome", ended)]);
                row(what, *after, after + between, shown);
            }
        }
    }
    let unobserved = [OURS[0], ("outcome", "unobserved")];
    let unobserved = page.value("enginetap_requests_total", &unobserved);
    row("unobserved", across, touched, unobserved);
    outcome.must(unobserved > 0.0, || {
        "no stream was under way when its connection was taken up".to_owned()
    });
    judge(&mut outcome, &[before, after], &page);
    outcome
}
