//! Sends one reply as its script says and stamps every moment of it.

use std::time::Duration;

use super::conn::{Conn, Gone};
use super::dialect::{Dialect, Step};
use super::request::Request;
use super::server::Shared;
use super::truth::{EngineRow, Note};
use super::wire::{Mark, Payload, Wire};
use crate::event::{Kind, Outcome};
use crate::script::{Chunk, End, Framing, Write, millis};

/// A reply under way.
pub(super) struct Reply<'a> {
    pub conn: &'a mut Conn,
    pub shared: &'a Shared,
    pub request: &'a Request,
    pub dialect: Dialect<'a>,
    pub framing: Framing,
    pub row: EngineRow,
}

impl Reply<'_> {
    /// Runs the script; whether the reply is complete by its framing.
    pub async fn run(&mut self) -> Result<bool, Gone> {
        let script = self.dialect.script;
        self.conn.wait(millis(script.head_delay_ms)).await?;
        for _ in 0..script.interim {
            let hop = self.shared.hop.as_ref();
            let early = b"HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\n\r\n";
            self.conn.write(early, hop, |_, _| {}).await?;
        }
        if script.no_head {
            return Ok(false);
        }
        if self.row.streaming {
            self.stream().await
        } else {
            self.unary().await
        }
    }

    fn bodiless(&self) -> bool {
        self.request.method == "HEAD" || matches!(self.dialect.script.status, 204 | 304)
    }

    fn head(&self, content_type: &str, length: usize) -> String {
        let script = self.dialect.script;
        let mut head = format!("HTTP/1.1 {} {}\r\n", script.status, reason(script.status));
        if let Some(server) = &self.shared.args.server_header {
            head.push_str(&format!("Server: {server}\r\n"));
        }
        match (script.status, self.framing) {
            (204 | 304, _) => {}
            (_, Framing::Chunked) => head.push_str("Transfer-Encoding: chunked\r\n"),
            (_, Framing::Length) => head.push_str(&format!("Content-Length: {length}\r\n")),
            (_, Framing::Close) => {}
        }
        if !matches!(script.status, 204 | 304) {
            head.push_str(&format!("Content-Type: {content_type}\r\n"));
        }
        if self.says_close() {
            head.push_str("Connection: close\r\n");
        }
        for line in &script.headers {
            head.push_str(&format!("{line}\r\n"));
        }
        head + "\r\n"
    }

    fn says_close(&self) -> bool {
        let script = self.dialect.script;
        script.end == End::Close || self.framing == Framing::Close || self.request.wants_close()
    }

    async fn unary(&mut self) -> Result<bool, Gone> {
        let script = self.dialect.script;
        let (body, whole) = match script.status {
            400.. => (self.dialect.error_body(script.status), false),
            _ => self.dialect.unary_body(),
        };
        let mut wire = Wire::head(script, &self.head(self.dialect.unary_type(), body.len()));
        if self.bodiless() {
            self.send(&wire, true).await?;
            return Ok(true);
        }
        if !script.glue_head {
            self.send(&wire, body.is_empty() && self.framing != Framing::Chunked)
                .await?;
            wire = Wire::default();
        }
        self.conn.wait(millis(script.first_delay_ms)).await?;
        let bytes = body.into_bytes();
        let cut_short = script.stop_after.is_some();
        let half = if cut_short {
            bytes.len() / 2
        } else {
            bytes.len()
        };
        let payload = Payload {
            bytes: bytes[..half].to_vec(),
            ends: Vec::new(),
        };
        wire.push(script, self.framing, &payload);
        if script.glue_end && !cut_short {
            wire.finish(script, self.framing);
        }
        let apart = self.framing == Framing::Chunked && !script.glue_end && !cut_short;
        self.send(&wire, !apart).await?;
        if cut_short {
            return Ok(self.framing == Framing::Close);
        }
        if apart {
            self.terminate().await?;
        }
        if whole {
            self.row.usage = self.dialect.unary_usage();
            if self.dialect.unary_names_model() {
                self.row.model = self.dialect.model.to_owned();
            }
        }
        Ok(true)
    }

    async fn terminate(&mut self) -> Result<(), Gone> {
        let script = self.dialect.script;
        self.conn.wait(millis(script.end_delay_ms)).await?;
        let mut wire = Wire::default();
        wire.finish(script, self.framing);
        self.send(&wire, true).await
    }

    async fn stream(&mut self) -> Result<bool, Gone> {
        let script = self.dialect.script;
        let steps = self.dialect.sequence();
        let complete = script.stop_after.is_none() || self.framing == Framing::Close;
        let total = match self.framing {
            Framing::Length => self.dialect.clone().whole_length(),
            _ => 0,
        };
        let kind = match script.ndjson {
            true => "application/x-ndjson",
            false => "text/event-stream; charset=utf-8",
        };
        let mut wire = Wire::head(script, &self.head(kind, total));
        let ends_apart = self.framing == Framing::Chunked && complete && !script.glue_end;
        if !script.glue_head || steps.is_empty() {
            self.send(&wire, steps.is_empty() && !ends_apart).await?;
            wire = Wire::default();
        }
        let group = group_size(script.write, script.chunk);
        let mut first_content = true;
        for (n, group_steps) in steps.chunks(group).enumerate() {
            let mut payload = Payload::default();
            for (m, step) in group_steps.iter().enumerate() {
                let delay = self.delay(*step, n + m == 0, &mut first_content);
                self.conn.wait(delay).await?;
                payload.bytes.extend(self.dialect.render(*step));
                payload.ends.push((payload.bytes.len(), *step));
                if script.chunk == Chunk::Event {
                    wire.push(script, self.framing, &std::mem::take(&mut payload));
                }
            }
            wire.push(script, self.framing, &payload);
            let last = (n + 1) * group >= steps.len();
            if last && complete && script.glue_end {
                wire.finish(script, self.framing);
            }
            self.send(&std::mem::take(&mut wire), last && !ends_apart)
                .await?;
        }
        if ends_apart {
            self.terminate().await?;
        }
        Ok(complete)
    }

    fn delay(&self, step: Step, first: bool, first_content: &mut bool) -> Option<Duration> {
        let script = self.dialect.script;
        let mut ms = if first { script.first_delay_ms } else { 0.0 };
        match step.kind {
            Kind::Content if *first_content => {
                *first_content = false;
                ms += script.token_delay_ms;
            }
            Kind::Content | Kind::Empty if !*first_content => ms += script.gap_ms,
            Kind::Comment | Kind::Ping | Kind::Empty if *first_content && !first => {
                ms += script.ping_gap_ms;
            }
            _ => {}
        }
        millis(ms)
    }

    /// Writes a wire; with a scripted exit, `last` is the end of the process.
    async fn send(&mut self, wire: &Wire, last: bool) -> Result<(), Gone> {
        let script = self.dialect.script;
        let exits = last && script.end == End::Exit;
        if exits {
            self.note_before_exit(wire);
        }
        let size = match script.write {
            Write::Split(size) => Some(size),
            _ => None,
        };
        let pause =
            (script.piece_pause_us > 0).then(|| Duration::from_micros(script.piece_pause_us));
        let (mut from, mut done, mut next) = (0, 0, 0);
        for end in wire.boundaries(size) {
            if from > 0 {
                self.conn.wait(pause).await?;
            }
            let (row, dialect, keep) =
                (&mut self.row, &self.dialect, !self.shared.args.no_event_log);
            let wrote = |n: usize, now: u64| {
                done += n;
                while let Some((_, mark)) = wire.marks.get(next).filter(|(at, _)| *at <= done) {
                    apply(row, dialect, *mark, now, keep);
                    next += 1;
                }
                row.end_ns = now;
            };
            self.conn
                .write(&wire.bytes[from..end], self.shared.hop.as_ref(), wrote)
                .await?;
            from = end;
        }
        if exits {
            if let Some(time) = millis(script.close_delay_ms) {
                std::thread::sleep(time);
            }
            std::process::exit(0);
        }
        Ok(())
    }

    /// The truth of a reply whose last write is the last thing the process does.
    fn note_before_exit(&self, wire: &Wire) {
        let (script, now) = (self.dialect.script, crate::clock::now_ns());
        let mut row = self.row.clone();
        for (_, mark) in &wire.marks {
            apply(
                &mut row,
                &self.dialect,
                *mark,
                now,
                !self.shared.args.no_event_log,
            );
        }
        row.end_ns = now;
        let complete = script.stop_after.is_none() || self.framing == Framing::Close;
        row.outcome = match complete {
            true => Outcome::of(row.status, row.tally.error),
            false => Outcome::Reset,
        };
        if !row.streaming && complete && row.status < 400 {
            row.usage = self.dialect.unary_usage();
            row.model = self.dialect.model.to_owned();
        }
        self.shared.sink.note(Note::Row(Box::new(row)));
        self.shared.sink.persist();
    }
}

fn group_size(write: Write, chunk: Chunk) -> usize {
    let write = if let Write::Merge(n) = write { n } else { 1 };
    let chunk = if let Chunk::Events(n) = chunk { n } else { 1 };
    write.max(chunk)
}

fn apply(row: &mut EngineRow, dialect: &Dialect<'_>, mark: Mark, now: u64, keep: bool) {
    match mark {
        Mark::Head => {
            row.head_ns = now;
            row.status = dialect.script.status;
        }
        Mark::Body(size) => {
            row.reply_bytes += size as u64;
            row.body_end_ns = now;
        }
        Mark::Event(step) => {
            row.tally.note(step.kind, now, keep);
            if let Some(usage) = dialect.usage_at(step) {
                row.usage = Some(usage);
            }
            if row.model.is_empty() && dialect.names_model(step) {
                row.model = dialect.model.to_owned();
            }
        }
    }
}

impl Dialect<'_> {
    /// Payload bytes of the whole stream, also when it will be cut short.
    fn whole_length(self) -> usize {
        let script = crate::script::Script {
            stop_after: None,
            ..self.script.clone()
        };
        let whole = Dialect {
            script: &script,
            ..self
        };
        whole
            .sequence()
            .into_iter()
            .map(|step| whole.render(step).len())
            .sum()
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        201 => "Created",
        204 => "No Content",
        304 => "Not Modified",
        400 => "Bad Request",
        401 => "Unauthorized",
        404 => "Not Found",
        408 => "Request Timeout",
        422 => "Unprocessable Entity",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Scripted",
    }
}
