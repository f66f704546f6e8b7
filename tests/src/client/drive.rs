//! Drives the connections.

use std::collections::VecDeque;
use std::io::{self, Write as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, sleep, sleep_until};

use super::parse::Parser;
use super::request::Outgoing;
use super::{ClientArgs, ClientRow, Summary};
use crate::script::millis;

#[derive(Debug, Default)]
pub(super) struct Totals {
    pub rows: Vec<ClientRow>,
    connections: u64,
    connect_errors: u64,
    unreached: u64,
    pub stale: u64,
}

pub(super) struct Shared {
    pub args: ClientArgs,
    totals: Mutex<Totals>,
    begin: Instant,
    warm: tokio::sync::Barrier,
}

impl Shared {
    pub fn totals(&self) -> std::sync::MutexGuard<'_, Totals> {
        self.totals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn over(&self) -> bool {
        self.args
            .seconds
            .is_some_and(|s| self.begin.elapsed().as_secs_f64() >= s)
    }
}

/// Runs the load to its end.
pub fn run(args: ClientArgs) -> anyhow::Result<Summary> {
    let args = args.resolved();
    anyhow::ensure!(
        args.requests > 0 || args.seconds.is_some(),
        "neither --requests nor --seconds"
    );
    let mut builder = match args.threads {
        0 | 1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    let cpu = args.cpu;
    let runtime = builder
        .worker_threads(args.threads.max(1))
        .on_thread_start(move || pin(cpu))
        .enable_all()
        .build()
        .context("tokio runtime")?;
    // A current-thread runtime runs here: on a thread of its own, pinned.
    let summary = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            pin(cpu);
            runtime.block_on(all(args))
        });
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    Ok(summary)
}

fn pin(cpu: Option<usize>) {
    let mut set = CpuSet::new();
    if let Some(cpu) = cpu
        && set.set(cpu).is_ok()
        && let Err(error) = sched_setaffinity(Pid::from_raw(0), &set)
    {
        eprintln!("cannot pin to CPU {cpu}: {error}");
    }
}

async fn all(args: ClientArgs) -> Summary {
    let warm = tokio::sync::Barrier::new(args.connections);
    let shared = Arc::new(Shared {
        args,
        totals: Mutex::default(),
        begin: Instant::now(),
        warm,
    });
    let tasks: Vec<_> = (0..shared.args.connections)
        .map(|conn| tokio::spawn(Driver::new(Arc::clone(&shared), conn).run()))
        .collect();
    for task in tasks {
        if let Err(error) = task.await {
            eprintln!("a connection's task failed: {error}");
        }
    }
    let totals = std::mem::take(&mut *shared.totals());
    if let Some(path) = &shared.args.rows {
        let mut lines = Vec::new();
        for row in &totals.rows {
            serde_json::to_writer(&mut lines, row).expect("a row is JSON");
            lines.push(b'\n');
        }
        let written = std::fs::File::create(path).and_then(|mut file| file.write_all(&lines));
        if let Err(error) = written {
            eprintln!("{}: {error}", path.display());
        }
    }
    Summary {
        connections: totals.connections,
        connect_errors: totals.connect_errors,
        unreached: totals.unreached,
        stale: totals.stale,
        ..Summary::of(totals.rows)
    }
}

/// One connection after the other, and its requests.
pub(super) struct Driver {
    pub shared: Arc<Shared>,
    pub conn: usize,
    pub stream: Option<TcpStream>,
    pub parser: Parser,
    pub buf: Vec<u8>,
    pub used: bool,
}

impl Driver {
    fn new(shared: Arc<Shared>, conn: usize) -> Self {
        let parser = Parser::new(!shared.args.no_event_log);
        let buf = vec![0; shared.args.read_bytes.max(1)];
        Self {
            shared,
            conn,
            stream: None,
            parser,
            buf,
            used: false,
        }
    }

    async fn run(mut self) {
        let shared = Arc::clone(&self.shared);
        let args = &shared.args;
        if args.warm {
            self.connect().await;
            shared.warm.wait().await;
        }
        let begin = if args.warm {
            Instant::now()
        } else {
            shared.begin
        };
        let mut seq = 0;
        while (args.requests == 0 || seq < args.requests) && !shared.over() {
            if let Some(rate) = args.rate {
                let turn = (seq * args.connections + self.conn) as f64;
                sleep_until(begin + Duration::from_secs_f64(turn / rate)).await;
                if shared.over() {
                    break;
                }
            } else if seq > 0
                && let Some(think) = millis(args.think_ms)
            {
                sleep(think).await;
            }
            let depth = match args.requests {
                0 => args.pipeline,
                total => args.pipeline.min(total - seq),
            };
            let batch: VecDeque<Outgoing> = (0..depth)
                .map(|n| Outgoing::build(args, self.conn, seq + n))
                .collect();
            if !self.exchange(batch).await {
                break;
            }
            seq += depth;
        }
    }

    /// Opens a connection; false when the server cannot be reached for long.
    pub async fn connect(&mut self) -> bool {
        let target = self.shared.args.target;
        for _ in 0..200 {
            let socket = if target.is_ipv4() {
                TcpSocket::new_v4()
            } else {
                TcpSocket::new_v6()
            };
            let Ok(socket) = socket else { break };
            if let Some(size) = self.shared.args.rcvbuf {
                let _ = socket.set_recv_buffer_size(size as u32);
            }
            if let Ok(stream) = socket.connect(target).await {
                let _ = stream.set_nodelay(true);
                self.shared.totals().connections += 1;
                self.stream = Some(stream);
                self.parser = Parser::new(!self.shared.args.no_event_log);
                self.used = false;
                return true;
            }
            self.shared.totals().connect_errors += 1;
            sleep(Duration::from_millis(25)).await;
        }
        self.shared.totals().unreached += 1;
        false
    }

    /// Whether the kept connection has been closed meanwhile.
    pub fn closed_meanwhile(&self) -> bool {
        let mut byte = [0u8; 1];
        let read = self
            .stream
            .as_ref()
            .map(|stream| stream.try_read(&mut byte));
        !matches!(read, Some(Err(e)) if e.kind() == io::ErrorKind::WouldBlock)
    }
}
