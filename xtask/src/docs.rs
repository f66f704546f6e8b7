//! `cargo xtask docs`: writes `agent/METRICS.md` anew from the catalogue, or checks that it is up to
//! date. The agent's own test `metrics_md` compares, and writes when BLESS=1.

use anyhow::{Result, bail};

use crate::shell::{capture, cargo, root};

pub fn run(check: bool) -> Result<()> {
    let mut test = cargo([
        "test",
        "--package",
        "enginetap",
        "--locked",
        "--lib",
        "metrics_md",
    ]);
    if check {
        test.env_remove("BLESS");
    } else {
        test.env("BLESS", "1");
    }
    let output = capture(&mut test)?;
    let ran = output
        .lines()
        .any(|line| line.starts_with("test result: ok.") && !line.contains(" 0 passed"));
    if !ran {
        bail!("no test of the agent is named *metrics_md*: METRICS.md is not checked");
    }
    println!(
        "{} {}",
        root().join("agent/METRICS.md").display(),
        if check { "is up to date" } else { "written" }
    );
    Ok(())
}
