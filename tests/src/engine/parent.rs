//! The parent of pre-forked workers: starts, reaps and asks them, and adds up
//! their truth.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;

use super::control::{self, Keeper};
use super::server::{bind, runtime};
use super::truth::{Note, Sink};
use super::workers::{Signals, WORKER, again, farewell};
use super::{EngineArgs, Share, Truth, handover};
use crate::guard::poll;

#[derive(Debug)]
struct Worker {
    process: std::process::Child,
    stream: UnixStream,
    flushed: Arc<AtomicU64>,
    gone: Arc<AtomicU64>,
    ready: Arc<AtomicU64>,
}

#[derive(Debug)]
struct Parent {
    args: EngineArgs,
    sink: Arc<Sink>,
    listeners: Vec<TcpListener>,
    workers: Mutex<Vec<Worker>>,
    flushes: AtomicU64,
}

impl Parent {
    fn start_worker(&self) -> anyhow::Result<()> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = again(&self.args)?;
        command
            .env(WORKER, "1")
            .stdin(Stdio::from(OwnedFd::from(theirs)));
        let process = command.spawn().context("start a worker")?;
        if self.args.share == Share::Inherit {
            handover::send(&ours, &self.listeners)?;
        }
        let worker = Worker {
            process,
            stream: ours.try_clone()?,
            flushed: Arc::default(),
            gone: Arc::default(),
            ready: Arc::default(),
        };
        let (flushed, gone, ready) = (
            worker.flushed.clone(),
            worker.gone.clone(),
            worker.ready.clone(),
        );
        let sink = Arc::clone(&self.sink);
        std::thread::spawn(move || {
            for line in BufReader::new(ours).lines().map_while(Result::ok) {
                if line == "ready" {
                    ready.store(1, Ordering::Release);
                } else if let Some(n) = line.strip_prefix("flushed ") {
                    flushed.store(n.parse().unwrap_or(0), Ordering::Release);
                } else if let Ok(note) = serde_json::from_str::<Note>(&line) {
                    sink.note(note);
                }
            }
            gone.store(1, Ordering::Release);
        });
        self.workers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(worker);
        Ok(())
    }

    /// Waits until what every living worker noted before now has arrived.
    fn flush(&self) {
        let n = self.flushes.fetch_add(1, Ordering::Relaxed) + 1;
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        for worker in workers.iter_mut() {
            let _ = worker.stream.write_all(format!("flush {n}\n").as_bytes());
        }
        poll(Duration::from_secs(5), || {
            let done = |w: &Worker| {
                w.flushed.load(Ordering::Acquire) >= n || w.gone.load(Ordering::Acquire) > 0
            };
            workers.iter().all(done).then_some(())
        });
    }

    /// Reaps workers that exited; starts others when asked to.
    fn reap(&self) -> anyhow::Result<()> {
        let mut dead = 0;
        {
            let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
            let gone = |w: &mut Worker| {
                w.gone.load(Ordering::Acquire) > 0 && matches!(w.process.try_wait(), Ok(Some(_)))
            };
            let before = workers.len();
            workers.retain_mut(|worker| !gone(worker));
            dead += before - workers.len();
        }
        for _ in 0..if self.args.respawn { dead } else { 0 } {
            self.start_worker()?;
        }
        Ok(())
    }

    fn stop(&self) {
        self.flush();
        let mut workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        for worker in workers.iter_mut() {
            let pid = nix::unistd::Pid::from_raw(worker.process.id() as i32);
            let _ = nix::sys::signal::kill(pid, nix::sys::signal::SIGTERM);
            let _ = worker.process.wait();
        }
    }
}

impl Keeper for Parent {
    fn truth(&self) -> Truth {
        self.flush();
        self.sink.truth()
    }

    fn reset(&self) {
        self.flush();
        self.sink.reset();
    }
}

/// Runs the parent to its end.
pub(super) fn run(mut args: EngineArgs) -> anyhow::Result<()> {
    let reuse = args.share == Share::Reuseport;
    let listeners: Vec<TcpListener> = args
        .listen
        .iter()
        .map(|a| bind(*a, reuse, !reuse))
        .collect::<anyhow::Result<_>>()?;
    // The workers that share the port must know which one was picked.
    args.listen = listeners.iter().map(local).collect::<anyhow::Result<_>>()?;
    let sink = Arc::new(Sink::here(args.truth_file.clone(), !args.no_rows));
    let parent = Arc::new(Parent {
        args,
        sink,
        listeners,
        workers: Mutex::default(),
        flushes: AtomicU64::new(0),
    });
    for _ in 0..parent.args.workers {
        parent.start_worker()?;
    }
    let ready = poll(Duration::from_secs(10), || {
        let workers = parent
            .workers
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        workers
            .iter()
            .all(|w| w.ready.load(Ordering::Acquire) > 0)
            .then_some(())
    });
    anyhow::ensure!(ready.is_some(), "the workers do not start");
    runtime(1)?.block_on(supervise(&parent))?;
    parent.stop();
    parent.sink.persist();
    farewell(&parent.args.control, &parent.sink.truth());
    Ok(())
}

async fn supervise(parent: &Arc<Parent>) -> anyhow::Result<()> {
    let mut signals = Signals::catch()?;
    control::start(&parent.args.control, Arc::clone(parent) as Arc<dyn Keeper>)?;
    for address in &parent.args.listen {
        println!("ready {address}");
    }
    let mut tick = tokio::time::interval(Duration::from_millis(20));
    loop {
        tokio::select! {
            () = signals.wait() => return Ok(()),
            _ = tick.tick() => parent.reap()?,
        }
    }
}

fn local(listener: &TcpListener) -> anyhow::Result<SocketAddr> {
    Ok(listener.local_addr()?)
}
