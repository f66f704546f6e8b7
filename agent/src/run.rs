//! Starts and stops the agent: loads the object, then one thread each for the ring, for discovery
//! and for context, then the endpoints.

use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::bpf::control::Control;
use crate::bpf::load::{self, Loaded};
use crate::bpf::ring::Ring;
use crate::bpf::tables::{FlowsView, Tables};
use crate::config::Settings;
use crate::context;
use crate::ingest::Ingest;
use crate::metrics::{Limits, Store, StoreConfig};
use crate::page::Cost;
use crate::pages::Pages;
use crate::probes::{State, Verdict};
use crate::sample::{self, Sample};
use crate::serve;
use crate::watch::inventory::Inventory;
use crate::watch::recent::identify;
use crate::watch::{Parts, Watcher, hold};

/// Longest time between two looks into the ring.
const TURN: Duration = Duration::from_millis(50);
/// Longest time the lock of the numbers is held by the ring's thread.
const BATCH: Duration = Duration::from_millis(2);

/// What the endpoints share with the rest.
pub struct Shared {
    /// The numbers.
    pub ingest: Arc<Mutex<Ingest>>,
    /// What is watched.
    pub inventory: Arc<Mutex<Inventory>>,
    /// What became of each hook.
    pub verdicts: Vec<(&'static str, Verdict)>,
    /// Bytes of each map.
    pub map_bytes: Vec<(&'static str, u64)>,
    /// What pages cost.
    pub cost: Cost,
    /// Pages that are being written.
    pub pages: Pages,
    /// Sampled runs of the hooks.
    pub samples: Arc<Mutex<Vec<Sample>>>,
    /// What the kernel says of the node and of the workloads' cgroups.
    pub context: Arc<Mutex<context::Context>>,
}

/// A running agent. Dropping it stops it; nothing is left in the kernel.
pub struct Agent {
    /// What the endpoints share.
    pub shared: Arc<Shared>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Agent {
    /// Loads everything and begins to watch.
    pub fn start(settings: Settings) -> Result<Agent> {
        let Loaded {
            mut ebpf,
            verdicts,
            tap,
            behind,
            control,
            ..
        } = load::load(settings.stalls)?;
        let ring = Ring::take(&mut ebpf)?;
        let tables = Tables::take(&mut ebpf)?;
        let flows = FlowsView::of(&tables)?;
        let map_bytes = tables.memory();
        let store = Store::new(store_config(&settings));
        let (tell, news) = mpsc::channel();
        let (on, heard) = mpsc::channel();
        let root = settings.proc_root.clone();
        let proc_root = root.clone();
        let ring_fd = ring.fd();
        let ingest = Arc::new(Mutex::new(Ingest::new(
            ring,
            tables,
            store,
            Control::new(control),
            tell.clone(),
        )));
        let stop = Arc::new(AtomicBool::new(false));
        let works = |name: &str| verdicts.get(name).is_some_and(|v| v.state == State::Ok);
        let mut inventory = Inventory::default();
        inventory.clocks = works("stall_switch") && works("stall_wakeup");
        let inventory = Arc::new(Mutex::new(inventory));
        let watcher = Watcher::new(Parts {
            settings,
            ingest: ingest.clone(),
            inventory: inventory.clone(),
            program: tap,
            flows,
            news: heard,
            tell,
            owner_works: works("owner_recv") || works("owner_recvmsg"),
        });
        let mut threads = Vec::new();
        let (i, s) = (ingest.clone(), stop.clone());
        threads.push(
            std::thread::Builder::new()
                .name("ring".into())
                .spawn(move || {
                    crate::bpf::come_first();
                    read_ring(ring_fd, &i, &s)
                })
                .context("cannot start a thread")?,
        );
        let s = stop.clone();
        threads.push(
            std::thread::Builder::new()
                .name("identify".into())
                .spawn(move || {
                    crate::bpf::come_first();
                    identify(&root, &news, &on, &s)
                })
                .context("cannot start a thread")?,
        );
        let s = stop.clone();
        threads.push(
            std::thread::Builder::new()
                .name("watch".into())
                .spawn(move || {
                    crate::bpf::come_first();
                    watcher.run(&s)
                })
                .context("cannot start a thread")?,
        );
        let context = Arc::new(Mutex::new(context::Context::default()));
        let (kept, i, s) = (context.clone(), inventory.clone(), stop.clone());
        threads.push(
            std::thread::Builder::new()
                .name("context".into())
                .spawn(move || context::run(&proc_root, &i, &kept, &s))
                .context("cannot start a thread")?,
        );
        let samples = Arc::new(Mutex::new(Vec::new()));
        let (kept, s) = (samples.clone(), stop.clone());
        threads.push(
            std::thread::Builder::new()
                .name("sample".into())
                .spawn(move || {
                    sample::run(ebpf, &kept, &s);
                    drop(behind);
                })
                .context("cannot start a thread")?,
        );
        crate::bpf::give_back_memory();
        let shared = Shared {
            ingest,
            inventory,
            verdicts: verdicts.into_iter().collect(),
            map_bytes,
            cost: Cost::default(),
            pages: Pages::default(),
            samples,
            context,
        };
        Ok(Agent {
            shared: Arc::new(shared),
            stop,
            threads,
        })
    }

    /// Stops the threads and takes every hook away.
    pub fn stop(mut self) {
        self.halt();
    }

    fn halt(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // A thread that panicked has nothing more to say.
            let _ = thread.join();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.halt();
    }
}

fn store_config(settings: &Settings) -> StoreConfig {
    let limits = Limits {
        models_per_workload: settings.models_per_workload,
        series: settings.series_budget,
        ..Limits::default()
    };
    StoreConfig {
        limits,
        edges: settings.bucket_edges.clone(),
        ..StoreConfig::default()
    }
}

/// Takes records as they come: woken when the ring fills up or something is urgent, else 20 times
/// a second.
fn read_ring(fd: std::os::fd::RawFd, ingest: &Mutex<Ingest>, stop: &AtomicBool) {
    let fd = crate::bpf::ring::borrow(fd);
    let timeout = PollTimeout::from(TURN.as_millis() as u16);
    while !stop.load(Ordering::Relaxed) {
        wait(fd, timeout);
        loop {
            let mut ingest = hold(ingest);
            let empty = ingest.drain(BATCH);
            if empty {
                ingest.settle_due();
                break;
            }
        }
    }
}

fn wait(fd: BorrowedFd<'_>, timeout: PollTimeout) {
    // An interrupted wait only means an early look.
    let _ = poll(&mut [PollFd::new(fd, PollFlags::POLLIN)], timeout);
}

/// `enginetap run`.
pub fn run(settings: Settings) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let listener = serve::bind(settings.listen).await?;
        let address = listener.local_addr()?;
        let agent = Agent::start(settings)?;
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let endpoints = tokio::spawn(serve::serve(listener, agent.shared.clone(), stopped));
        println!("listening on {address}");
        // A closed standard output is no reason to stop.
        let _ = std::io::stdout().flush();
        let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        tokio::select! {
            _ = term.recv() => tracing::info!("stopping on SIGTERM"),
            _ = tokio::signal::ctrl_c() => tracing::info!("stopping on SIGINT"),
        }
        // The receiver is gone only if the endpoints failed before.
        let _ = stop.send(true);
        endpoints.await.context("the endpoints failed")??;
        tokio::task::spawn_blocking(move || agent.stop())
            .await
            .context("cannot stop")?;
        Ok(())
    })
}
