//! Requests and replies on one connection.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::drive::Driver;
use super::request::Outgoing;
use super::{AbortWith, ClientRow};
use crate::clock::now_ns;
use crate::event::Outcome;
use crate::script::millis;

/// Why reading stopped.
enum Stop {
    Complete,
    Eof,
    Failed(String),
    Left,
    Deadline,
}

impl Driver {
    /// Sends a batch and reads its replies; false when nothing can be reached.
    pub async fn exchange(&mut self, mut batch: VecDeque<Outgoing>) -> bool {
        while !batch.is_empty() {
            if self.stream.is_some()
                && (self.shared.args.reconnect && self.used || self.closed_meanwhile())
            {
                self.stream = None;
            }
            if self.stream.is_none() && !self.connect().await {
                return false;
            }
            let reused = std::mem::replace(&mut self.used, true);
            let start_ns = now_ns();
            let sent = self.send_all(batch.make_contiguous()).await;
            let sent_ns = now_ns();
            let mut answered = 0;
            while let Some(out) = batch.front() {
                self.parser.to_head = out.method == "HEAD";
                let stop = match &sent {
                    Ok(true) => self.receive(sent_ns).await,
                    Ok(false) => Stop::Left,
                    Err(error) if answered == 0 && !reused => Stop::Failed(error.to_string()),
                    Err(_) => self.receive(sent_ns).await,
                };
                let lost = matches!(stop, Stop::Eof | Stop::Failed(_)) && !self.parser.begun();
                if lost && (reused || answered > 0) {
                    // Never served: a kept connection was closed under it.
                    self.shared.totals().stale += 1;
                    self.stream = None;
                    break;
                }
                let out = batch.pop_front().unwrap_or_default();
                answered += 1;
                self.record(out, start_ns, sent_ns, stop).await;
                if self.stream.is_none() {
                    break;
                }
            }
        }
        true
    }

    /// Writes the requests; `Ok(false)` when it left on purpose.
    async fn send_all(&mut self, batch: &[Outgoing]) -> io::Result<bool> {
        let shared = Arc::clone(&self.shared);
        let args = &shared.args;
        if args.pipeline > 1 {
            let bytes: Vec<u8> = batch
                .iter()
                .flat_map(|o| [o.head.as_slice(), &o.body])
                .flatten()
                .copied()
                .collect();
            self.write(&bytes, args.first).await?;
            return Ok(true);
        }
        let Some(out) = batch.first() else {
            return Ok(true);
        };
        if args.abort_in_body {
            let half = [out.head.as_slice(), &out.body[..out.body.len() / 2]].concat();
            self.write(&half, args.first).await?;
            return Ok(false);
        }
        if !(args.head_apart || args.smuggle || args.expect) {
            self.write(&[out.head.as_slice(), &out.body].concat(), args.first)
                .await?;
            return Ok(true);
        }
        self.write(&out.head, args.first).await?;
        if args.expect && !out.body.is_empty() {
            while self.parser.reply.interim == 0 && self.parser.reply.status == 0 {
                if self.read_once().await? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
        }
        if self.parser.reply.status == 0 {
            self.write(&out.body, None).await?;
        }
        Ok(true)
    }

    async fn write(&mut self, bytes: &[u8], first: Option<usize>) -> io::Result<()> {
        let (split, pause) = (self.shared.args.split, self.shared.args.pause_us);
        let Some(stream) = &self.stream else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let mut at = 0;
        while at < bytes.len() {
            let size = match (at, first) {
                (0, Some(first)) => first.max(1),
                _ => split.unwrap_or(usize::MAX).max(1),
            };
            let end = bytes.len().min(at.saturating_add(size));
            if at > 0 && pause > 0 {
                sleep(Duration::from_micros(pause)).await;
            }
            while at < end {
                match stream.try_write(&bytes[at..end]) {
                    Ok(n) => at += n,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => stream.writable().await?,
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(())
    }

    /// One read, given to the parser; 0 at the end of the stream.
    async fn read_once(&mut self) -> io::Result<usize> {
        if let Some(delay) = millis(self.shared.args.read_delay_ms) {
            sleep(delay).await;
        }
        let Some(stream) = &self.stream else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        loop {
            stream.readable().await?;
            match stream.try_read(&mut self.buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e),
                Ok(n) => {
                    let now = now_ns();
                    self.parser
                        .feed(&self.buf[..n], now)
                        .map_err(io::Error::other)?;
                    return Ok(n);
                }
            }
        }
    }

    /// Reads until the reply is complete or the client has a reason to stop.
    async fn receive(&mut self, sent_ns: u64) -> Stop {
        let args = &self.shared.args;
        let (abort_after, leave) = (args.abort_after, args.abort_before_head_ms.and_then(millis));
        let deadline = Duration::from_secs_f64(args.deadline);
        if let Err(error) = self.parser.feed(b"", now_ns()) {
            return Stop::Failed(error);
        }
        loop {
            if self.parser.reply.complete {
                return Stop::Complete;
            }
            if abort_after.is_some_and(|k| self.parser.reply.tally.data >= k) {
                return Stop::Left;
            }
            let waited = Duration::from_nanos(now_ns().saturating_sub(sent_ns));
            let leaving = leave.filter(|_| !self.parser.begun());
            let limit = leaving.unwrap_or(deadline).saturating_sub(waited);
            match timeout(limit, self.read_once()).await {
                Err(_) if leaving.is_some() => return Stop::Left,
                Err(_) => return Stop::Deadline,
                Ok(Err(error)) => return Stop::Failed(error.to_string()),
                Ok(Ok(0)) => {
                    let done = self.parser.eof(now_ns());
                    return if done { Stop::Complete } else { Stop::Eof };
                }
                Ok(Ok(_)) => {}
            }
        }
    }

    async fn record(&mut self, out: Outgoing, start_ns: u64, sent_ns: u64, stop: Stop) {
        let local = self.stream.as_ref().and_then(|s| s.local_addr().ok());
        let reply = self.parser.take();
        let (outcome, error) = match stop {
            Stop::Complete => (Outcome::of(reply.status, reply.tally.error), String::new()),
            Stop::Left => (Outcome::Abort, "left".to_owned()),
            Stop::Deadline => (Outcome::Abort, "deadline".to_owned()),
            Stop::Eof => (Outcome::Reset, "end of stream".to_owned()),
            Stop::Failed(ref error) => (Outcome::Reset, error.clone()),
        };
        let row = ClientRow {
            id: out.id,
            conn: self.conn,
            port: local.map_or(0, |address| address.port()),
            target: out.target,
            status: reply.status,
            interim: reply.interim,
            streaming: reply.streaming,
            model: reply.facts.model,
            outcome,
            error,
            request_bytes: out.body_bytes,
            reply_bytes: reply.bytes,
            tally: reply.tally,
            usage: reply.facts.usage,
            start_ns,
            sent_ns,
            head_ns: reply.head_ns,
            body_end_ns: reply.body_end_ns,
            end_ns: if reply.complete {
                reply.end_ns
            } else {
                now_ns()
            },
        };
        self.shared.totals().rows.push(row);
        match stop {
            Stop::Complete if !reply.closes => {}
            Stop::Left => self.leave().await,
            _ => self.stream = None,
        }
    }

    async fn leave(&mut self) {
        let Some(stream) = self.stream.take() else {
            return;
        };
        let socket = socket2::SockRef::from(&stream);
        match self.shared.args.abort_with {
            AbortWith::Close => {}
            AbortWith::Rst => {
                let _ = socket.set_linger(Some(Duration::ZERO));
            }
            AbortWith::Fin => {
                let _ = socket.shutdown(std::net::Shutdown::Write);
                let drain = async {
                    while stream.readable().await.is_ok() {
                        match stream.try_read(&mut self.buf) {
                            Ok(0) => break,
                            Err(e) if e.kind() != io::ErrorKind::WouldBlock => break,
                            _ => {}
                        }
                    }
                };
                let _ = timeout(Duration::from_secs(10), drain).await;
            }
        }
    }
}
