//! Replies as a client reads them, in pieces of any size.

use super::classify::Facts;
use super::sse::{EventReader, Format};
use crate::event::Tally;

#[derive(Debug)]
enum State {
    Head,
    Size,
    Data(usize),
    DataEnd,
    Trailer,
    Length(usize),
    UntilClose,
    Done,
}

/// One reply, as far as it was read.
#[derive(Debug, Default)]
pub(super) struct Reply {
    pub status: u16,
    pub interim: u32,
    pub streaming: bool,
    pub closes: bool,
    pub tally: Tally,
    pub facts: Facts,
    pub bytes: u64,
    pub head_ns: u64,
    pub body_end_ns: u64,
    pub end_ns: u64,
    pub complete: bool,
}

/// The reader of one connection's replies.
#[derive(Debug)]
pub(super) struct Parser {
    state: State,
    buf: Vec<u8>,
    events: Option<EventReader>,
    body: Vec<u8>,
    keep_log: bool,
    /// Whether the reply is to a HEAD request.
    pub to_head: bool,
    pub reply: Reply,
}

impl Parser {
    pub fn new(keep_log: bool) -> Self {
        let (buf, body) = (Vec::new(), Vec::new());
        let reply = Reply::default();
        Self {
            state: State::Head,
            buf,
            events: None,
            body,
            keep_log,
            to_head: false,
            reply,
        }
    }

    /// Takes the reply and is ready for the next one; bytes already read for
    /// it are parsed with [`Parser::feed`] of nothing.
    pub fn take(&mut self) -> Reply {
        self.state = State::Head;
        self.events = None;
        self.body.clear();
        std::mem::take(&mut self.reply)
    }

    /// Whether a byte of the reply was read.
    pub fn begun(&self) -> bool {
        !matches!(self.state, State::Head) || !self.buf.is_empty()
    }

    /// Takes bytes read at `now`; stops at the end of the reply.
    pub fn feed(&mut self, bytes: &[u8], now: u64) -> Result<(), String> {
        self.buf.extend_from_slice(bytes);
        let buf = std::mem::take(&mut self.buf);
        let mut at = 0;
        while !matches!(self.state, State::Done) {
            let used = self.step(&buf[at..], now)?;
            if used == 0 {
                break;
            }
            at += used;
        }
        self.buf = buf[at..].to_vec();
        Ok(())
    }

    /// The server closed; whether the reply is complete thereby.
    pub fn eof(&mut self, now: u64) -> bool {
        if matches!(self.state, State::UntilClose) {
            self.finish(now);
        }
        self.reply.complete
    }

    fn line<'a>(&self, rest: &'a [u8]) -> Option<&'a [u8]> {
        rest.windows(2)
            .position(|w| w == b"\r\n")
            .map(|end| &rest[..end])
    }

    fn step(&mut self, rest: &[u8], now: u64) -> Result<usize, String> {
        match self.state {
            State::Head => self.head(rest, now),
            State::Size => {
                let Some(line) = self.line(rest) else {
                    return Ok(0);
                };
                let text = String::from_utf8_lossy(line);
                let digits = text.split(';').next().unwrap_or_default().trim();
                let size = usize::from_str_radix(digits, 16)
                    .map_err(|_| format!("chunk size {text:?}"))?;
                self.state = if size == 0 {
                    State::Trailer
                } else {
                    State::Data(size)
                };
                Ok(line.len() + 2)
            }
            State::Data(left) => {
                let take = left.min(rest.len());
                self.body(&rest[..take], now);
                self.state = if take == left {
                    State::DataEnd
                } else {
                    State::Data(left - take)
                };
                Ok(take)
            }
            State::DataEnd => {
                if rest.len() < 2 {
                    return Ok(0);
                }
                if &rest[..2] != b"\r\n" {
                    return Err("no CRLF after a chunk".to_owned());
                }
                self.state = State::Size;
                Ok(2)
            }
            State::Trailer => {
                let Some(line) = self.line(rest) else {
                    return Ok(0);
                };
                if line.is_empty() {
                    self.finish(now);
                }
                Ok(line.len() + 2)
            }
            State::Length(left) => {
                let take = left.min(rest.len());
                self.body(&rest[..take], now);
                self.state = State::Length(left - take);
                if take == left {
                    self.finish(now);
                }
                Ok(take)
            }
            State::UntilClose => {
                self.body(rest, now);
                Ok(rest.len())
            }
            State::Done => Ok(0),
        }
    }

    fn head(&mut self, rest: &[u8], now: u64) -> Result<usize, String> {
        if rest.is_empty() {
            return Ok(0);
        }
        if self.reply.head_ns == 0 {
            self.reply.head_ns = now;
        }
        let Some(end) = rest.windows(4).position(|w| w == b"\r\n\r\n") else {
            return Ok(0);
        };
        let text = String::from_utf8_lossy(&rest[..end]).into_owned();
        let mut lines = text.split("\r\n");
        let first = lines.next().unwrap_or_default();
        let status = first.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status: u16 = status.ok_or_else(|| format!("status line {first:?}"))?;
        if status < 200 {
            self.reply.interim += 1;
            self.reply.head_ns = 0;
            return Ok(end + 4);
        }
        self.reply.status = status;
        let headers: Vec<(String, String)> = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(n, v)| (n.to_ascii_lowercase(), v.trim().to_ascii_lowercase()))
            .collect();
        self.begin(&headers, now)?;
        Ok(end + 4)
    }

    fn begin(&mut self, headers: &[(String, String)], now: u64) -> Result<(), String> {
        let get = |name: &str| {
            headers
                .iter()
                .find(|(n, _)| n == name)
                .map(|(_, v)| v.as_str())
        };
        self.reply.closes = get("connection") == Some("close");
        let kind = get("content-type").unwrap_or_default();
        let format = match kind {
            k if k.starts_with("text/event-stream") => Some(Format::Sse),
            k if k.starts_with("application/x-ndjson") => Some(Format::Ndjson),
            _ => None,
        };
        let bodiless = self.to_head || matches!(self.reply.status, 204 | 304);
        self.reply.streaming = format.is_some() && !bodiless;
        self.events = format.map(|format| EventReader::new(format, self.keep_log));
        self.state = if bodiless {
            State::Length(0)
        } else if get("transfer-encoding") == Some("chunked") {
            State::Size
        } else if let Some(length) = get("content-length") {
            State::Length(length.parse().map_err(|_| format!("length {length:?}"))?)
        } else {
            self.reply.closes = true;
            State::UntilClose
        };
        if matches!(self.state, State::Length(0)) {
            self.finish(now);
        }
        Ok(())
    }

    fn body(&mut self, bytes: &[u8], now: u64) {
        if bytes.is_empty() {
            return;
        }
        let reply = &mut self.reply;
        reply.bytes += bytes.len() as u64;
        reply.body_end_ns = now;
        match &mut self.events {
            Some(events) => events.feed(bytes, now, &mut reply.tally, &mut reply.facts),
            None => self.body.extend_from_slice(bytes),
        }
    }

    fn finish(&mut self, now: u64) {
        self.state = State::Done;
        self.reply.complete = true;
        self.reply.end_ns = now;
        if self.events.is_none()
            && self.reply.status < 400
            && let Ok(value) = serde_json::from_slice(&self.body)
        {
            self.reply.facts.learn(&value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STREAM: &[u8] = b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Type: text/event-stream\r\n\r\n\
        1C;a=b\r\ndata: {\"choices\":[{\"text\":\"x\r\n6\r\n\"}]}\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\nT: v\r\n\r\nHTTP/1.1 204 No\r\n\r\n";

    #[test]
    fn a_reply_is_the_same_in_pieces_of_every_size() {
        for size in 1..STREAM.len() {
            let mut parser = Parser::new(true);
            let mut replies = Vec::new();
            for piece in STREAM.chunks(size) {
                parser.feed(piece, 1).unwrap();
                while parser.reply.complete {
                    replies.push(parser.take());
                    parser.feed(b"", 1).unwrap();
                }
            }
            assert_eq!(replies.len(), 2, "pieces of {size}");
            assert_eq!(
                (replies[0].status, replies[0].interim, replies[0].tally.data),
                (200, 1, 2)
            );
            assert_eq!(
                (
                    replies[0].tally.content,
                    replies[0].bytes,
                    replies[1].status
                ),
                (1, 48, 204)
            );
        }
    }
}
