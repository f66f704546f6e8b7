//! `cargo xtask demo`: a small engine as a process of its own, a streaming load against it, the agent
//! that watches both from outside, and a live table of what the agent's page says.

mod table;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::{
    build, page,
    scrape::Page,
    setup,
    shell::{Guarded, command, need_root, release, target},
};
use table::Table;

/// Streams in parallel.
const STREAMS: &str = "8";

/// Runs until `seconds` are over, or until Ctrl-C.
pub fn run(seconds: Option<u64>) -> Result<()> {
    need_root("demo")?;
    setup::run(setup::Purpose::Build)?;
    build::agent()?;
    build::test_programs(&["scripted-engine", "load-client"])?;

    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("signal handler")?;
    }

    let address = page::free_address("127.0.0.1:8000")?;
    let metrics = page::free_address("127.0.0.1:9469")?;
    let mut engine = engine(&address)?;
    // Told which process to watch, so that nothing else on this machine gets into the table; without
    // a rule it would recognise the engine from its traffic.
    let port = address.rsplit(':').next().unwrap_or_default();
    let rule = format!("port={port},engine=openai");
    let watch = ["--match", rule.as_str(), "--recognise", "off"];
    let mut agent = page::start_agent(&metrics, &watch)?;
    let mut load = load(&address)?;
    let mut table = Table::new(&metrics, Page::fetch(&metrics)?);

    println!("\nengine on {address} (scripted, unmodified), {STREAMS} streams at a time");
    println!("scrape http://{metrics}/metrics\n");
    let started = Instant::now();
    let over = || seconds.is_some_and(|s| started.elapsed() >= Duration::from_secs(s));
    let mut next = started;
    while !stop.load(Ordering::Relaxed) && !over() {
        next += Duration::from_secs(1);
        while Instant::now() < next && !stop.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(20));
        }
        engine.check()?;
        agent.check()?;
        load.check()?;
        table.row(Page::fetch(&metrics)?);
    }

    let observed = table.summary(Page::fetch(&metrics)?);
    load.stop().ok();
    agent.stop()?;
    engine.stop().ok();
    if !observed {
        bail!(
            "no request was observed: see `{} doctor`",
            release("enginetap").display()
        );
    }
    Ok(())
}

/// Starts the engine and waits until it listens.
fn engine(address: &str) -> Result<Guarded> {
    let mut engine = command(release("scripted-engine"));
    engine.args(["--demo", "--listen", address]);
    let mut engine = Guarded::start(
        "scripted-engine",
        &engine,
        &target().join("demo-engine.log"),
    )?;
    let deadline = Instant::now() + Duration::from_secs(10);
    while std::net::TcpStream::connect(address).is_err() {
        engine.check()?;
        if Instant::now() > deadline {
            bail!("the engine does not listen on {address}");
        }
        thread::sleep(Duration::from_millis(20));
    }
    Ok(engine)
}

/// Streams against the engine for longer than anybody watches.
fn load(address: &str) -> Result<Guarded> {
    let mut load = command(release("load-client"));
    load.args(["--demo", "--target", address, "--connections", STREAMS]);
    load.args(["--seconds", "1000000"]);
    Guarded::start("load-client", &load, &target().join("demo-load.log"))
}
