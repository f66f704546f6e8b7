//! `soak`: the long proofs. Minutes of load while the agent is stopped or restarted, and minutes of
//! processes, connections and namespaces that come and go, each ending in a table of what the
//! engine, the client and the page counted.
//!
//! Lines that begin with `|` or `##` are the report; the rest is progress. A number that is not
//! what it has to be makes the program fail.

mod churn;
mod streams;

use std::time::{Duration, Instant};

use clap::Parser;

/// The long proofs.
#[derive(Clone, Debug, Parser)]
#[command(name = "soak")]
pub struct Args {
    /// Seconds of each run.
    #[arg(long, default_value_t = 180)]
    pub seconds: u64,
    /// Only these runs; repeatable.
    #[arg(long)]
    pub only: Vec<String>,
    /// Gives every engine of the churn a name that never was there before.
    #[arg(long)]
    pub new_names: bool,
}

impl Args {
    fn time(&self) -> Duration {
        Duration::from_secs(self.seconds)
    }
}

type Run = (&'static str, fn(&Args) -> Outcome);

const RUNS: &[Run] = &[
    ("stop", streams::stopped),
    ("restart", streams::restarted),
    ("churn", churn::run),
];

/// What came of a run.
#[derive(Debug, Default)]
struct Outcome {
    title: String,
    /// A table, header first.
    lines: Vec<Vec<String>>,
    /// What is not as it has to be.
    faults: Vec<String>,
}

impl Outcome {
    fn new(title: &str, header: &[&str]) -> Self {
        Self {
            title: title.to_owned(),
            lines: vec![header.iter().map(|h| (*h).to_owned()).collect()],
            faults: Vec::new(),
        }
    }

    fn line(&mut self, cells: Vec<String>) {
        self.lines.push(cells);
    }

    /// Notes a fault unless `ok`.
    fn must(&mut self, ok: bool, why: impl FnOnce() -> String) {
        if !ok {
            self.faults.push(why());
        }
    }

    fn print(&self) {
        println!("\n## {}\n", self.title);
        for (n, cells) in self.lines.iter().enumerate() {
            let cells: Vec<String> = cells.iter().map(|c| c.replace('|', "/")).collect();
            println!("| {} |", cells.join(" | "));
            if n == 0 {
                println!("|{}", "---|".repeat(cells.len()));
            }
        }
        for fault in &self.faults {
            println!("not as it has to be: {fault}");
        }
    }
}

/// Runs them and prints the report; whether all is as it has to be.
pub fn main(args: &Args) -> bool {
    let known: Vec<&str> = RUNS.iter().map(|(name, _)| *name).collect();
    for name in &args.only {
        assert!(
            known.contains(&name.as_str()),
            "no run {name:?}; there are {known:?}"
        );
    }
    let mut good = true;
    for (name, run) in RUNS {
        if !args.only.is_empty() && !args.only.iter().any(|n| n == name) {
            continue;
        }
        println!("--- {name}");
        let began = Instant::now();
        let outcome = run(args);
        outcome.print();
        println!("--- {name}: {:.0} s", began.elapsed().as_secs_f64());
        good &= outcome.faults.is_empty();
    }
    good
}
