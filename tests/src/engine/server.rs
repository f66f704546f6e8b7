//! Accepts connections; [`serve`] does so on threads of this process.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use super::conn::{Conn, Hop};
use super::exchange::{After, exchange};
use super::truth::{Note, Sink};
use super::{EngineArgs, Share, Truth};
use crate::script::Script;

/// What all connections of a process share.
#[derive(Debug)]
pub(super) struct Shared {
    pub args: EngineArgs,
    pub script: Script,
    pub sink: Sink,
    pub hop: Option<Hop>,
    next_conn: AtomicU64,
}

impl Shared {
    pub fn new(args: EngineArgs, sink: Sink) -> anyhow::Result<Self> {
        let script = args.default_script().context("--script")?;
        let hop = args.cpu_hop.then(Hop::new);
        Ok(Self {
            args,
            script,
            sink,
            hop,
            next_conn: AtomicU64::new(0),
        })
    }
}

/// Binds an address; `listens` = false only reserves the port.
pub(super) fn bind(
    address: SocketAddr,
    reuseport: bool,
    listens: bool,
) -> anyhow::Result<TcpListener> {
    let domain = socket2::Domain::for_address(address);
    let socket = socket2::Socket::new(domain, socket2::Type::STREAM, Some(socket2::Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuseport)?;
    socket
        .bind(&address.into())
        .with_context(|| format!("bind {address}"))?;
    if listens {
        socket.listen(4_096)?;
    }
    Ok(socket.into())
}

pub(super) fn runtime(threads: usize) -> anyhow::Result<Runtime> {
    let built = match threads {
        0 | 1 => Builder::new_current_thread().enable_all().build(),
        n => Builder::new_multi_thread()
            .worker_threads(n)
            .enable_all()
            .build(),
    };
    built.context("tokio runtime")
}

/// Accepts on all listeners until `stop` changes.
pub(super) async fn accept_all(
    shared: Arc<Shared>,
    listeners: Vec<TcpListener>,
    mut stop: watch::Receiver<bool>,
) -> anyhow::Result<()> {
    for listener in listeners {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        tokio::spawn(accept(Arc::clone(&shared), listener));
    }
    let _ = stop.wait_for(|stop| *stop).await;
    Ok(())
}

async fn accept(shared: Arc<Shared>, listener: tokio::net::TcpListener) {
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        shared.sink.note(Note::Connection);
        let number = shared.next_conn.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(converse(Arc::clone(&shared), Conn::new(stream), number));
        if shared.args.workers > 1 && shared.args.share == Share::Inherit {
            // Leaves the next one to another worker, so that all of them serve.
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

async fn converse(shared: Arc<Shared>, mut conn: Conn, number: u64) {
    if let Some(size) = shared.args.sndbuf {
        let _ = conn.socket().set_send_buffer_size(size);
    }
    loop {
        match exchange(&mut conn, &shared, number).await {
            After::Keep => {}
            After::Close => return conn.finish(),
            After::Reset => return conn.reset(),
        }
    }
}

/// An engine on a thread of this process; stopped on drop.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<SocketAddr>,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// The truth so far.
    pub fn truth(&self) -> Truth {
        self.shared.sink.truth()
    }

    /// The truth once `count` requests have ended and none is open; panics
    /// after ten seconds.
    pub fn ended(&self, count: u64) -> Truth {
        let truth = crate::guard::poll(Duration::from_secs(10), || {
            Some(self.truth()).filter(|truth| truth.in_flight == 0 && truth.count() >= count)
        });
        match truth {
            Some(truth) => truth,
            None => panic!("not {count} have ended: {:?}", self.truth()),
        }
    }
}

/// Serves on threads of this process.
pub fn serve(args: EngineArgs) -> anyhow::Result<Server> {
    let listeners: Vec<TcpListener> = args
        .listen
        .iter()
        .map(|a| bind(*a, false, true))
        .collect::<anyhow::Result<_>>()?;
    let addresses = listeners
        .iter()
        .map(TcpListener::local_addr)
        .collect::<Result<_, _>>()?;
    let sink = Sink::here(args.truth_file.clone(), !args.no_rows);
    let shared = Arc::new(Shared::new(args, sink)?);
    let (stop, stopped) = watch::channel(false);
    let runtime = runtime(shared.args.threads)?;
    let inner = Arc::clone(&shared);
    let thread = std::thread::spawn(move || {
        let _ = runtime.block_on(accept_all(inner, listeners, stopped));
        runtime.shutdown_background();
    });
    Ok(Server {
        addresses,
        shared,
        stop,
        thread: Some(thread),
    })
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
