//! `cargo xtask ci`: every check, cheap ones first. A step that cannot run is a failure.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::{build, docs, inspect, lint, page, setup, test, vm};

/// A named check.
pub type Step = (&'static str, fn() -> Result<()>);

const STEPS: [Step; 7] = [
    ("unit tests", test::unit),
    ("docs", || docs::run(true)),
    ("kernel object", || inspect::run(true)),
    ("build", build::agent),
    ("page", page::run),
    ("kernels in virtual machines", || {
        vm::run(vm::Kernels::All, &IN_VM.map(str::to_owned))
    }),
    ("test", || test::run(true, &[])),
];

/// Kernel tests that every run does on the other kernels too; software emulation is slow, so not
/// all. `cargo xtask vm` without arguments does them all.
const IN_VM: [&str; 12] = [
    "streams_are_counted_and_timed",
    "unary_replies",
    "ps_and_doctor",
    "requests_of_a_killed_server",
    "a_client_that_leaves",
    "the_owner_is_the_worker",
    "an_engine_in_a_new_namespace",
    "gone_before_the_head",
    "streams_under_way_at_the_start",
    "a_reused_process_id",
    "netem_on_the_way",
    "bytes_with_a_wrong_checksum",
];

pub fn run() -> Result<()> {
    setup::run(setup::Purpose::All)?;
    let steps = lint::STEPS.iter().chain(&STEPS);
    all(steps)
}

/// Runs steps in order and stops at the first that fails. The times come before the last step, so
/// that its closing line is the last of a run.
fn all<'a>(steps: impl Iterator<Item = &'a Step>) -> Result<()> {
    let mut times: Vec<(&str, Duration)> = Vec::new();
    let mut steps = steps.peekable();
    while let Some((name, step)) = steps.next() {
        if steps.peek().is_none() && !times.is_empty() {
            let listed: Vec<String> = times
                .iter()
                .map(|(name, time)| format!("{name} {:.1} s", time.as_secs_f64()))
                .collect();
            println!("-- so far: {}", listed.join(", "));
        }
        println!("-- {name}");
        let started = Instant::now();
        step().with_context(|| format!("step '{name}' failed"))?;
        times.push((name, started.elapsed()));
    }
    Ok(())
}

/// Runs every step, whatever the others say.
pub fn each<'a>(steps: impl Iterator<Item = &'a Step>) -> Result<()> {
    let mut failed = Vec::new();
    for (name, step) in steps {
        println!("-- {name}");
        if let Err(why) = step() {
            println!("{why:#}");
            failed.push(*name);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!("failed: {}", failed.join(", "))
}
