//! One connection: reads with a stamp, writes with a stamp after every call,
//! and waits that notice a client that leaves.

use std::io;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use tokio::net::TcpStream;

use crate::clock::now_ns;

/// The client left.
#[derive(Debug)]
pub(super) struct Gone;

impl From<io::Error> for Gone {
    fn from(_: io::Error) -> Self {
        Self
    }
}

/// The CPUs a thread that hops goes through.
#[derive(Debug)]
pub(super) struct Hop {
    cpus: Vec<usize>,
    next: std::sync::atomic::AtomicUsize,
}

impl Hop {
    pub fn new() -> Self {
        let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap_or_else(|_| CpuSet::new());
        let cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
        Self {
            cpus: cpus.collect(),
            next: 0.into(),
        }
    }

    /// Moves the calling thread to the next CPU.
    pub fn hop(&self) {
        let turn = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut set = CpuSet::new();
        if let Some(cpu) = self.cpus.get(turn % self.cpus.len().max(1))
            && set.set(*cpu).is_ok()
        {
            let _ = sched_setaffinity(Pid::from_raw(0), &set);
        }
    }
}

/// A connection and what was read ahead.
#[derive(Debug)]
pub(super) struct Conn {
    stream: TcpStream,
    /// Bytes read and not yet taken.
    pub buf: Vec<u8>,
    /// When the last read returned bytes.
    pub read_ns: u64,
    /// The client has shut down its sending side.
    pub fin: bool,
    half_close_ok: bool,
}

impl Conn {
    pub fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            buf: Vec::new(),
            read_ns: 0,
            fin: false,
            half_close_ok: false,
        }
    }

    pub fn socket(&self) -> socket2::SockRef<'_> {
        socket2::SockRef::from(&self.stream)
    }

    /// Whether a client that only stopped sending still waits for the reply.
    pub fn tolerate_half_close(&mut self, on: bool) {
        self.half_close_ok = on;
    }

    /// Reads once; 0 at the end of the client's stream.
    pub async fn fill(&mut self) -> io::Result<usize> {
        loop {
            self.stream.readable().await?;
            match self.try_fill() {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                other => return other,
            }
        }
    }

    fn try_fill(&mut self) -> io::Result<usize> {
        self.buf.reserve(65_536);
        let n = self.stream.try_read_buf(&mut self.buf)?;
        if n > 0 {
            self.read_ns = now_ns();
        } else {
            self.fin = true;
        }
        Ok(n)
    }

    /// Waits; ends early when the client leaves. Pipelined bytes are kept.
    pub async fn wait(&mut self, time: Option<Duration>) -> Result<(), Gone> {
        let Some(time) = time else {
            // A stream without pauses does not starve its neighbours.
            tokio::task::yield_now().await;
            return Ok(());
        };
        let sleep = tokio::time::sleep(time);
        tokio::pin!(sleep);
        loop {
            if self.fin {
                if !self.half_close_ok {
                    return Err(Gone);
                }
                sleep.await;
                return Ok(());
            }
            tokio::select! {
                () = &mut sleep => return Ok(()),
                ready = self.stream.readable() => ready?,
            }
            match self.try_fill() {
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(Gone),
                _ => {}
            }
        }
    }

    /// Writes all; `wrote(n, now)` after every call that took bytes.
    pub async fn write(
        &mut self,
        mut bytes: &[u8],
        hop: Option<&Hop>,
        mut wrote: impl FnMut(usize, u64),
    ) -> Result<(), Gone> {
        while !bytes.is_empty() {
            if let Some(hop) = hop {
                hop.hop();
            }
            match self.stream.try_write(bytes) {
                Ok(n) => {
                    wrote(n, now_ns());
                    bytes = &bytes[n..];
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.stream.writable().await?,
                Err(_) => return Err(Gone),
            }
        }
        Ok(())
    }

    /// Closes with FIN.
    pub fn finish(self) {
        let _ = self.socket().shutdown(std::net::Shutdown::Write);
    }

    /// Closes with RST.
    pub fn reset(self) {
        let _ = self.socket().set_linger(Some(Duration::ZERO));
    }
}
