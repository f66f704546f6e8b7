//! The table of real programs: each is started, driven by the load client and by the clients that
//! people use, and the page is set against what those counted.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use clap::Parser;
use serde_json::Value;

use super::subject::{Behind, SUBJECTS, Subject, XLLAMA};
use super::{Counts, Place, Program};
use crate::event::Outcome;
use crate::guard::{Agent, Load, NetNs, poll};
use crate::page::Page;

/// How long the page may take to show what has ended.
const SOON: Duration = Duration::from_secs(20);
const EXACT: &str = "exact";
const HEADER: [&str; 9] = [
    "program",
    "version",
    "recognised by",
    "requests: clients / page",
    "events: clients / page",
    "generated tokens: clients / page",
    "mean TTFT, ms: client / page",
    "mean duration, ms: client / page",
    "verdict",
];

/// Measures real programs and prints a table.
#[derive(Clone, Debug, Parser)]
#[command(name = "real-table")]
pub struct Args {
    /// Programs: xllama, smg, nginx, vllm, sglang, llama; default: what is installed.
    pub names: Vec<String>,
    /// Requests of each kind (chat and completion, streamed and unary).
    #[arg(long, default_value_t = 24)]
    pub requests: usize,
    /// Concurrent connections.
    #[arg(long, default_value_t = 4)]
    pub connections: usize,
    /// `max_tokens` of each request.
    #[arg(long, default_value_t = 16)]
    pub max_tokens: usize,
}

/// Measures what is asked for and prints the table; how many lines it has.
pub fn run(args: &Args) -> usize {
    for name in &args.names {
        let known = SUBJECTS.iter().any(|subject| subject.name == name);
        assert!(known, "there is no {name} to measure");
    }
    let mut lines = Vec::new();
    for subject in SUBJECTS {
        let asked = args.names.iter().any(|name| name == subject.name);
        if !asked && !args.names.is_empty() {
            continue;
        }
        let mut needs = vec![subject.name, "clients"];
        needs.extend(matches!(subject.behind, Behind::LlamaCpp(_)).then_some("xllama"));
        match Place::with(&needs) {
            Some(place) => lines.extend(measure(subject, &place, args)),
            None => assert!(!asked, "{} cannot be measured", subject.name),
        }
    }
    println!("\n## Real programs against their clients\n");
    print_line(&HEADER.map(str::to_owned));
    println!("|{}", "---|".repeat(HEADER.len()));
    lines.iter().for_each(|line| print_line(line));
    lines.len()
}

fn print_line(cells: &[String]) {
    println!("| {} |", cells.join(" | "));
}

/// Starts one program, drives it, and reads what the page says of it and of what is behind it.
fn measure(subject: &Subject, place: &Place, args: &Args) -> Vec<Vec<String>> {
    println!("{}: starting", subject.title);
    let ns = NetNs::new();
    let mut agent = Agent::builder().args(["--recognise", "off"]);
    if let Some(rule) = subject.rule {
        agent = agent.matching(rule);
    }
    let agent = agent.start();
    let (front, worker) = match subject.behind {
        Behind::Nothing(port, ready) => {
            let engine = Program::start(place, &ns, subject.name, port, &[], ready);
            (engine, None)
        }
        Behind::LlamaCpp(start) => {
            let worker = Program::llamacpp(place, &ns);
            (start(place, &ns, &worker), Some(worker))
        }
    };
    println!("{}: up", subject.title);
    let target = front.address();
    let timed = load(&ns, target, subject.model, args);
    println!("{}: {timed:?}", subject.title);
    let mut shown = vec![(subject, subject.title.to_owned())];
    if worker.is_some() {
        shown.push((&XLLAMA, format!("{} behind {}", XLLAMA.title, subject.name)));
    }
    let first = settled(&agent, &shown, timed.requests);
    let all = timed + Counts::of_sdk_clients(place, &ns, target, subject.model, args.max_tokens);
    let last = settled(&agent, &shown, all.requests);
    let targets = agent.get("/targets").expect("/targets").text();
    let targets: Value = serde_json::from_str(&targets).expect("/targets is JSON");
    let line = |(subject, title): &(&Subject, String)| {
        let at_load = Counts::of_page(&first, &subject.labels());
        let page = Counts::of_page(&last, &subject.labels());
        let behind = *title != subject.title;
        let truth = if behind { all.through_gateway() } else { all };
        let mut faults = Counts::differences(&truth, &page);
        let lost = last.value("enginetap_events_lost_total", &[("engine", subject.engine)]);
        faults.extend((lost > 0.0).then(|| format!("{lost} lost")));
        faults.extend(
            last.invariant()
                .err()
                .map(|_| "invariant broken".to_owned()),
        );
        let pair = |what: fn(&Counts) -> f64| format!("{} / {}", what(&truth), what(&page));
        let mean = |sum: fn(&Counts) -> f64, count: fn(&Counts) -> f64| {
            let mean = |of: &Counts| sum(of) / count(of).max(1.0) * 1e3;
            format!("{:.1} / {:.1}", mean(&timed), mean(&at_load))
        };
        vec![
            title.clone(),
            subject.version(place),
            why(&targets, subject.engine),
            pair(|of| of.requests),
            pair(|of| of.events),
            pair(|of| of.generated),
            mean(|of| of.ttft, |of| of.first_tokens),
            mean(|of| of.duration, |of| of.successes),
            match (faults.is_empty(), page.lost) {
                (true, 0.0) => EXACT.to_owned(),
                (true, lost) => format!("{EXACT}, and {lost} lost on connections it had closed"),
                (false, _) => faults.join("; "),
            },
        ]
    };
    let lines = shown.iter().map(line).collect();
    agent.stop();
    lines
}

/// Every kind of request by the load client, which keeps the time.
fn load(ns: &NetNs, target: SocketAddr, model: &str, args: &Args) -> Counts {
    let each = args.requests.div_ceil(args.connections);
    let numbers = [args.connections, each, args.max_tokens].map(|n| n.to_string());
    let [connections, each, tokens] = &numbers;
    let mut all = Counts::default();
    for route in ["/v1/chat/completions", "/v1/completions"] {
        for kind in ["--include-usage", "--unary"] {
            let words = [
                "-n",
                connections,
                "-m",
                each,
                "--max-tokens",
                tokens,
                "--model",
                model,
                "--route",
                route,
                kind,
                // llama.cpp closes after a stream without saying so before.
                "--think-ms",
                "50",
            ];
            let sum = Load::run(Some(ns), target, words);
            if sum.outcome(Outcome::Success) != sum.requests {
                println!("{route} {kind}: {:?} {:?}", sum.statuses, sum.outcomes);
            }
            all = all + Counts::of_client(&sum);
        }
    }
    all
}

/// The page once so many requests of each have ended; the last one when they do not.
fn settled(agent: &Agent, of: &[(&Subject, String)], requests: f64) -> Page {
    let mut page = agent.scrape();
    poll(SOON, || {
        page = agent.scrape();
        of.iter()
            .all(|(s, _)| Counts::of_page(&page, &s.labels()).requests >= requests)
            .then_some(())
    });
    page
}

/// By what the processes of an engine were recognised.
fn why(targets: &Value, engine: &str) -> String {
    let list = |value: &Value, name: &str| value[name].as_array().cloned().unwrap_or_default();
    let reasons: BTreeSet<String> = list(targets, "workloads")
        .iter()
        .filter(|workload| workload["engine"] == engine)
        .flat_map(|workload| list(workload, "processes"))
        .filter_map(|process| process["why"].as_str().map(str::to_owned))
        .collect();
    reasons.into_iter().collect::<Vec<_>>().join("; ")
}
