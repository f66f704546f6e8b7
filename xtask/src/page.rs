//! The live page, judged by Prometheus' own linter. The agent is started on a free port, scraped
//! once and stopped.

use std::{
    io::Write,
    net::TcpListener,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};

use crate::{
    scrape, setup,
    shell::{Guarded, command, need_root, release, target},
};

pub fn run() -> Result<()> {
    need_root("ci")?;
    let address = free_address("127.0.0.1:0")?;
    let mut agent = start_agent(&address, &[])?;
    let page = scrape::get(&address, "/metrics")?;
    let mut promtool = command(setup::promtool_path()?)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot start promtool")?;
    let mut input = promtool.stdin.take().context("no standard input")?;
    input.write_all(page.as_bytes())?;
    drop(input);
    let status = promtool.wait()?;
    if !status.success() {
        bail!("promtool check metrics: {status} (3 is a lint, 1 a page it cannot parse)");
    }
    println!(
        "promtool accepts the page of {} lines",
        page.lines().count()
    );
    agent.stop()
}

/// Starts the release agent on `address` and waits until it is ready.
pub fn start_agent(address: &str, args: &[&str]) -> Result<Guarded> {
    let mut run = command(release("enginetap"));
    run.args(["run", "--listen", address]).args(args);
    let mut agent = Guarded::start("enginetap", &run, &target().join("enginetap.log"))?;
    let deadline = Instant::now() + Duration::from_secs(20);
    while scrape::get(address, "/readyz").is_err() {
        agent.check()?;
        if Instant::now() > deadline {
            bail!("the agent is not ready after 20 s");
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok(agent)
}

/// The address `wanted` if its port is free just now, else one on loopback whose port is.
pub fn free_address(wanted: &str) -> Result<String> {
    let listener = TcpListener::bind(wanted)
        .or_else(|_| TcpListener::bind("127.0.0.1:0"))
        .context("no free port on loopback")?;
    Ok(listener.local_addr()?.to_string())
}
