//! The program: one process, or a parent with pre-forked workers.
//!
//! A worker is this program again with a Unix stream as standard input. Over
//! it the parent sends the listening sockets (SCM_RIGHTS) or the addresses to
//! share, and asks for a flush; the worker sends its notes.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use super::control::{self, Keeper};
use super::server::{Shared, accept_all, bind, runtime};
use super::truth::Sink;
use super::{Control, EngineArgs, Share, Truth, handover, parent};

/// Set by a re-exec under another title: the arguments as JSON.
const ARGS: &str = "SCRIPTED_ENGINE_ARGS";
/// Set for a worker.
pub(super) const WORKER: &str = "SCRIPTED_ENGINE_WORKER";

/// Runs the program with these arguments, unless the environment holds those
/// of a re-exec.
pub fn main(args: impl FnOnce() -> EngineArgs) -> anyhow::Result<()> {
    let args = match std::env::var(ARGS) {
        Ok(json) => serde_json::from_str(&json).context(ARGS)?,
        Err(_) => {
            let args = args();
            if args.title.is_some() {
                return Err(again(&args)?.exec()).context("exec");
            }
            args
        }
    };
    if let Some(name) = &args.comm {
        nix::sys::prctl::set_name(&std::ffi::CString::new(name.as_str())?)?;
    }
    if std::env::var_os(WORKER).is_some() {
        return worker(args);
    }
    if args.workers == 0 {
        single(args)
    } else {
        parent::run(args)
    }
}

/// This program again, under its title.
pub(super) fn again(args: &EngineArgs) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.env(ARGS, serde_json::to_string(args)?);
    match &args.title {
        Some(title) => {
            let mut words = title.split_whitespace();
            command.arg0(words.next().unwrap_or_default()).args(words);
        }
        None => {
            command.args(std::env::args_os().skip(1));
        }
    }
    Ok(command)
}

/// The signals that end the program: caught from here on, also before `wait`.
pub(super) struct Signals {
    term: Signal,
    int: Signal,
}

impl Signals {
    /// Within a runtime.
    pub fn catch() -> anyhow::Result<Self> {
        let (term, int) = (
            signal(SignalKind::terminate())?,
            signal(SignalKind::interrupt())?,
        );
        Ok(Self { term, int })
    }

    pub async fn wait(&mut self) {
        tokio::select! {
            _ = self.term.recv() => eprintln!("SIGTERM"),
            _ = self.int.recv() => eprintln!("SIGINT"),
        }
    }
}

/// At the end: the truth to standard output, unless a channel carries it.
pub(super) fn farewell(control: &Control, truth: &Truth) {
    if *control == Control::None {
        println!(
            "truth {}",
            serde_json::to_string(truth).expect("truth is JSON")
        );
    }
}

impl Keeper for Shared {
    fn truth(&self) -> Truth {
        self.sink.truth()
    }

    fn reset(&self) {
        self.sink.reset();
    }
}

fn announce(listeners: &[TcpListener]) -> anyhow::Result<()> {
    for listener in listeners {
        println!("ready {}", listener.local_addr()?);
    }
    Ok(())
}

fn single(args: EngineArgs) -> anyhow::Result<()> {
    let reuse = args.share == Share::Reuseport;
    let listeners: Vec<TcpListener> = args
        .listen
        .iter()
        .map(|a| bind(*a, reuse, true))
        .collect::<anyhow::Result<_>>()?;
    let sink = Sink::here(args.truth_file.clone(), !args.no_rows);
    let shared = Arc::new(Shared::new(args, sink)?);
    let (stop, stopped) = watch::channel(false);
    let runtime = runtime(shared.args.threads)?;
    runtime.block_on(async {
        let mut signals = Signals::catch()?;
        control::start(&shared.args.control, Arc::clone(&shared) as Arc<dyn Keeper>)?;
        announce(&listeners)?;
        let serving = tokio::spawn(accept_all(Arc::clone(&shared), listeners, stopped));
        signals.wait().await;
        let _ = stop.send(true);
        serving.await?
    })?;
    shared.sink.persist();
    farewell(&shared.args.control, &shared.sink.truth());
    runtime.shutdown_background();
    Ok(())
}

fn worker(args: EngineArgs) -> anyhow::Result<()> {
    let parent = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let listeners = match args.share {
        Share::Inherit => handover::receive(&parent)?,
        Share::Reuseport => {
            let bound: anyhow::Result<Vec<_>> =
                args.listen.iter().map(|a| bind(*a, true, true)).collect();
            bound?
        }
    };
    let shared = Arc::new(Shared::new(args, Sink::to_parent(parent.try_clone()?))?);
    let (stop, stopped) = watch::channel(false);
    let commands = Arc::clone(&shared);
    std::thread::spawn(move || {
        for line in BufReader::new(parent).lines().map_while(Result::ok) {
            // `flush N`: everything noted before it has been sent.
            commands.sink.tell_parent(&line.replace("flush", "flushed"));
        }
        // The parent is gone.
        std::process::exit(0);
    });
    let runtime = runtime(shared.args.threads)?;
    runtime.block_on(async {
        let mut signals = Signals::catch()?;
        let serving = tokio::spawn(accept_all(Arc::clone(&shared), listeners, stopped));
        tokio::task::yield_now().await;
        shared.sink.tell_parent("ready");
        signals.wait().await;
        let _ = stop.send(true);
        serving.await?
    })?;
    runtime.shutdown_background();
    Ok(())
}
