//! One open request as the agent knows it: the captured bytes of both messages until they are
//! understood, and what was understood. Buffers are zeroed when they are dropped.

use enginetap_ebpf::abi::flow::FlowKey;
use enginetap_ebpf::hist::gap_bucket;
use enginetap_ebpf::stream::HEAD_CAPTURE;

use crate::engines::{self, RouteMatch};
use crate::protocol::body::{RequestFacts, request_facts};
use crate::protocol::events::{EventReader, StreamFraming};
use crate::protocol::head::{
    ContentType, RequestHead, ResponseHead, parse_request_head, parse_response_head,
};
use crate::protocol::kind::EventKind;
use crate::protocol::wiped::Wiped;
use crate::stalls::FirstToken;
use crate::vocab::{Engine, Gaps};

/// Bytes of one message that are kept at most: a head, a window of its body, and slack for pieces
/// that overlap.
const KEPT: usize = 8 * 1024;

/// Captured bytes of a message.
#[derive(Default)]
pub struct Message {
    start: Wiped,
    tail: Wiped,
    tail_end: u64,
    broken: bool,
    /// Bytes of the head that were not captured, since it is longer than what is captured of one:
    /// the body follows behind them.
    left_out: u64,
}

impl Message {
    /// Takes a piece that lies at `offset`. Pieces of the beginning that leave a hole are refused.
    pub fn add(&mut self, offset: u64, data: &[u8], tail: bool) {
        if tail {
            if self.tail_end != offset {
                self.tail.clear();
            }
            self.tail.push(data);
            self.tail_end = offset + data.len() as u64;
            self.tail.drop_front(self.tail.len().saturating_sub(KEPT));
            return;
        }
        if offset == 0 {
            self.start.clear();
            self.broken = false;
            self.left_out = 0;
        }
        let captured = self.start.len() as u64;
        if captured == u64::from(HEAD_CAPTURE) && self.left_out == 0 && offset > captured {
            self.left_out = offset - captured;
        }
        let have = captured + self.left_out;
        if offset > have {
            self.broken = true;
        }
        if self.broken || self.start.len() >= KEPT {
            return;
        }
        let fresh = data.get((have - offset) as usize..).unwrap_or_default();
        self.start.push(fresh);
    }

    /// What was captured of the head when that will not be all of it.
    fn cut_head(&self) -> Option<&[u8]> {
        self.start.get(..HEAD_CAPTURE as usize)
    }

    /// The body of a message whose head has `head` bytes: its beginning, and its end if that was
    /// captured and is surely the end of a body of `length` bytes. When the two meet they are
    /// joined, and there is no end.
    fn body(&mut self, head: usize, length: Option<u64>) -> (&[u8], &[u8]) {
        let whole = length.map(|n| head as u64 + self.left_out + n);
        let from = self.tail_end - self.tail.len() as u64;
        let reach = self.start.len() as u64 + self.left_out;
        if whole != Some(self.tail_end) {
            self.tail.clear();
        } else if !self.broken && from <= reach {
            let known = (reach - from) as usize;
            self.start.push(self.tail.get(known..).unwrap_or_default());
            self.tail.clear();
        }
        (self.start.get(head..).unwrap_or_default(), &self.tail)
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        *self = Message::default();
    }
}

/// What the beginning of a stream showed.
#[derive(Default)]
pub struct Stream {
    /// First event with content.
    pub first_token_ns: Option<u64>,
    /// Last event that ends a gap.
    pub last_ns: u64,
    /// Events with content.
    pub content: u64,
    /// Gaps between events from the first with content on.
    pub gaps: Gaps,
    /// Code of an error event.
    pub error: Option<&'static str>,
}

/// An open request.
pub struct Entry {
    /// Its flow.
    pub key: FlowKey,
    /// Workload; 0 = not known yet.
    pub workload: u32,
    /// Counted by the agent and not by the kernel.
    pub by_agent: bool,
    /// First byte.
    pub start_ns: u64,
    /// The kernel's own socket of its flow was seen.
    pub confirmed: bool,
    /// Head of the request.
    pub head: Option<RequestHead>,
    /// Class and route.
    pub route: Option<RouteMatch>,
    /// Head of the reply.
    pub reply: Option<ResponseHead>,
    /// Reader of the first events.
    pub reader: Option<EventReader>,
    /// What the beginning of a stream showed.
    pub stream: Stream,
    /// Bytes of the request.
    pub request_bytes: Message,
    /// Bytes of the reply.
    pub reply_bytes: Message,
    /// Clocks when its first token passed.
    pub first: Option<FirstToken>,
    /// Events reported before the end.
    pub reported: u64,
    /// Counted as begun by the agent.
    pub counted: bool,
    /// Its reply has begun or it has ended, so all of its head has passed.
    pub answered: bool,
    /// First byte of the final reply's head.
    pub head_ns: Option<u64>,
    /// The head's time is in the store.
    pub head_stored: bool,
    /// The first token's time is in the store.
    pub token_stored: bool,
    head_told: bool,
    token_told: bool,
    facts: Option<RequestFacts>,
    fed: u64,
}

/// Something that a piece made known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The head of the reply, at this time.
    Head(u64),
    /// The first event with content, at this time.
    FirstToken(u64),
}

impl Entry {
    /// A request whose first bytes passed at `start_ns`.
    pub fn new(key: FlowKey, workload: u32, start_ns: u64) -> Entry {
        Entry {
            key,
            workload,
            by_agent: workload == 0,
            start_ns,
            confirmed: false,
            head: None,
            route: None,
            reply: None,
            reader: None,
            stream: Stream::default(),
            first: None,
            request_bytes: Message::default(),
            reply_bytes: Message::default(),
            reported: 0,
            counted: false,
            answered: false,
            head_ns: None,
            head_stored: false,
            token_stored: false,
            head_told: false,
            token_told: false,
            facts: None,
            fed: 0,
        }
    }

    /// Reads the request's head, once it is there.
    pub fn read_head(&mut self, engine: Engine) {
        if self.head.is_none() && self.confirmed {
            let bytes = &self.request_bytes;
            // The end of a head that is cut has passed when its body or its reply is there.
            let over = self.answered || bytes.left_out > 0;
            let cut = bytes.cut_head().filter(|_| over);
            self.head = parse_request_head(cut.unwrap_or(&bytes.start))
                .filter(|h| h.complete || cut.is_some());
        }
        if self.route.is_none()
            && let Some(head) = &self.head
        {
            self.route = Some(engines::classify_head(engine, head));
        }
    }

    /// Judges the route again, by another engine's paths.
    pub fn reclassify(&mut self, engine: Engine) {
        self.route = None;
        self.read_head(engine);
    }

    /// What the request asks for. Read when it is first needed, when its body has passed.
    pub fn facts(&mut self) -> &RequestFacts {
        if self.facts.is_none() {
            let facts = match &self.head {
                Some(head) => {
                    let (start, end) = self
                        .request_bytes
                        .body(head.head_len, head.framing.content_length);
                    request_facts(head, start, end)
                }
                None => RequestFacts::default(),
            };
            self.facts = Some(facts);
            self.request_bytes.clear();
        }
        self.facts.get_or_insert_default()
    }

    /// Takes a piece of the reply. `now` is when it passed.
    pub fn reply_piece(&mut self, offset: u64, data: &[u8], tail: bool, now: u64) -> Vec<Finding> {
        let mut found = Vec::new();
        if offset == 0 && !tail {
            // Another head: the one before was provisional (1xx).
            self.reply = None;
            self.reader = None;
            self.stream = Stream::default();
            self.fed = 0;
        }
        if self.reader.is_none() || tail {
            self.reply_bytes.add(offset, data, tail);
        }
        if self.reply.is_none() {
            let bytes = &self.reply_bytes;
            let cut = bytes.cut_head().filter(|_| bytes.left_out > 0);
            let parsed = parse_response_head(cut.unwrap_or(&bytes.start));
            let Some(head) = parsed.filter(|h| h.complete || cut.is_some()) else {
                return found;
            };
            if head.status < 200 && head.status != 101 {
                self.reply_bytes.clear();
                return found;
            }
            if !self.head_told {
                self.head_told = true;
                self.head_ns = Some(now);
                found.push(Finding::Head(now));
            }
            let framing = match head.framing.content_type {
                ContentType::EventStream => Some(StreamFraming::Sse),
                ContentType::Ndjson => Some(StreamFraming::Ndjson),
                _ => None,
            };
            if let Some(framing) = framing {
                let mut reader = EventReader::new(framing, head.framing.chunked);
                let events = reader.feed(
                    self.reply_bytes
                        .start
                        .get(head.head_len..)
                        .unwrap_or_default(),
                    now,
                );
                self.fed = self.reply_bytes.start.len() as u64 + self.reply_bytes.left_out;
                self.reply_bytes.clear();
                self.reader = Some(reader);
                self.take_events(events, &mut found);
            }
            self.reply = Some(head);
            return found;
        }
        if !tail && let Some(reader) = &mut self.reader {
            let skip = self.fed.saturating_sub(offset) as usize;
            if offset <= self.fed && skip < data.len() {
                let events = reader.feed(&data[skip..], now);
                self.fed = offset + data.len() as u64;
                self.take_events(events, &mut found);
            }
        }
        found
    }

    fn take_events(
        &mut self,
        events: Vec<crate::protocol::events::Event>,
        found: &mut Vec<Finding>,
    ) {
        let s = &mut self.stream;
        for event in events {
            match event.kind {
                EventKind::Error { code } => s.error = s.error.or(Some(code)),
                EventKind::Content => s.content += 1,
                _ => {}
            }
            if s.first_token_ns.is_none() {
                if event.kind == EventKind::Content {
                    s.first_token_ns = Some(event.ts_ns);
                    s.last_ns = event.ts_ns;
                    if !self.token_told {
                        self.token_told = true;
                        found.push(Finding::FirstToken(event.ts_ns));
                    }
                }
                continue;
            }
            if !event.kind.is_silent() {
                let gap = event.ts_ns.saturating_sub(s.last_ns);
                s.gaps.count += 1;
                s.gaps.sum_ns += gap;
                s.gaps.buckets[gap_bucket(gap)] += 1;
                s.last_ns = event.ts_ns;
            }
        }
    }

    /// The captured body of an unstreamed reply: its beginning and its end.
    pub fn reply_body(&mut self) -> (&[u8], &[u8]) {
        let (head, length) = self
            .reply
            .as_ref()
            .map_or((0, None), |h| (h.head_len, h.framing.content_length));
        self.reply_bytes.body(head, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(start: &[u8], tail_at: u64, tail: &[u8]) -> Message {
        let mut m = Message::default();
        m.add(0, start, false);
        m.add(tail_at, tail, true);
        m
    }

    #[test]
    fn a_body_behind_a_head_that_is_cut_is_read() {
        let cut = HEAD_CAPTURE as usize;
        let mut m = Message::default();
        m.add(0, &vec![b'h'; cut], false);
        m.add(5_000, b"abcd", false);
        m.add(5_002, b"cdef", true);
        assert_eq!(m.body(cut, Some(6)), (&b"abcdef"[..], &b""[..]));
        let mut m = Message::default();
        m.add(0, &vec![b'h'; cut - 1], false);
        m.add(5_000, b"abcd", false);
        assert_eq!(m.body(cut - 1, None).0, b"", "a hole before that");
    }

    #[test]
    fn a_beginning_and_an_end_that_meet_are_one_body() {
        let mut m = message(b"headabcd", 6, b"cdef");
        assert_eq!(m.body(4, Some(6)), (&b"abcdef"[..], &b""[..]));
        let mut m = message(b"headabcd", 8, b"ef");
        assert_eq!(m.body(4, Some(6)), (&b"abcdef"[..], &b""[..]));
    }

    #[test]
    fn an_end_that_leaves_a_hole_stays_apart() {
        let mut m = message(b"headabcd", 10, b"gh");
        assert_eq!(m.body(4, Some(8)), (&b"abcd"[..], &b"gh"[..]));
    }

    #[test]
    fn what_is_not_the_end_of_the_body_is_no_end() {
        let mut m = message(b"headabcd", 10, b"gh");
        assert_eq!(m.body(4, Some(100)), (&b"abcd"[..], &b""[..]));
        assert_eq!(
            message(b"head", 4, b"x").body(4, None),
            (&b""[..], &b""[..])
        );
    }

    #[test]
    fn a_hole_in_the_beginning_ends_it() {
        let mut m = Message::default();
        m.add(0, b"ab", false);
        m.add(3, b"d", false);
        m.add(2, b"c", false);
        assert_eq!(m.body(0, Some(2)).0, b"ab");
        m.add(0, b"new", false);
        assert_eq!(m.body(0, Some(3)).0, b"new", "another head begins at 0");
    }
}
