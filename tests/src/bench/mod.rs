//! `bench`: cost and accuracy of the agent, measured on this machine.
//!
//! Each part compares runs that alternate with and without the agent and prints rows of what is
//! measured, its bar, the number, and how it was taken. Lines that begin with `|` or `##` are the
//! report; the rest is progress. Numbers of a shared machine wobble: rows give medians of paired
//! rounds, with the quartiles beside them where the difference is small.

mod accuracy;
mod agent_cpu;
mod bulk;
mod cpu;
mod event_cost;
mod exact;
mod memory;
mod page_time;
mod sched;
mod segments;
mod stats;
mod stream;
mod table;

use std::time::Instant;

use clap::Parser;

use table::Report;

/// The port that the benchmark's own engines serve on: one that nobody else on a machine uses.
const PORT: u16 = 18_431;
/// A second port, which is not watched.
const OTHER_PORT: u16 = 18_432;

/// Cost and accuracy of the agent, measured.
#[derive(Clone, Debug, Parser)]
#[command(name = "bench")]
pub struct Args {
    /// A short run that shows that the benchmark works; its numbers mean little.
    #[arg(long)]
    pub quick: bool,
    /// Only these parts; repeatable.
    #[arg(long)]
    pub only: Vec<String>,
    /// Plays a server of the benchmark.
    #[arg(long, hide = true)]
    serve: Option<stream::Steady>,
}

type Part = (&'static str, fn(&Args, &mut Report));

const PARTS: &[Part] = &[
    ("segments", segments::run),
    ("event", event_cost::run),
    ("bulk", bulk::run),
    ("sched", sched::run),
    ("cpu", agent_cpu::run),
    ("memory", memory::run),
    ("page", page_time::run),
    ("accuracy", accuracy::run),
    ("exact", exact::run),
];

impl Args {
    /// `full`, or `quick` in a quick run.
    fn pick<T>(&self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }
}

/// Runs the parts and prints the report.
pub fn main(args: &Args) {
    if let Some(load) = args.serve {
        return load.play();
    }
    let known: Vec<&str> = PARTS.iter().map(|(name, _)| *name).collect();
    for name in &args.only {
        assert!(
            known.contains(&name.as_str()),
            "no part {name:?}; there are {known:?}"
        );
    }
    let mut report = Report::default();
    for (name, part) in PARTS {
        if !args.only.is_empty() && !args.only.iter().any(|n| n == name) {
            continue;
        }
        println!("--- {name}");
        let began = Instant::now();
        part(args, &mut report);
        println!("--- {name}: {:.0} s", began.elapsed().as_secs_f64());
    }
    report.print(args.quick);
}
