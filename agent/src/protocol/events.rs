//! Reads the first events of a streamed reply as they are sent. Fed with raw pieces, split
//! anywhere; takes off the chunked coding, finds event ends and says what each event is. An SSE
//! event counts if it has a `data` line and is ended by a blank line, `[DONE]` included; an NDJSON
//! event is a line that is not empty. Comments are not events. Lines end in LF or CRLF. At most
//! two times 8 KiB are held, only inside an event, and wiped when it ends.

use super::chunked::Dechunker;
use super::head::ContentType;
use super::json::Json;
use super::kind::{EventKind, classify};
use super::usage;
use super::wiped::Wiped;
use crate::vocab::Tokens;

/// Longest payload kept, in bytes.
pub const EVENT_BYTES: usize = 8 * 1024;

/// Room for the field name in front of a payload.
const LINE_BYTES: usize = EVENT_BYTES + 16;

/// Longest event name kept, in bytes.
const NAME_BYTES: usize = 64;

/// How a reply's events are framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamFraming {
    /// `text/event-stream`
    Sse,
    /// One JSON value a line
    Ndjson,
}

impl StreamFraming {
    /// How a reply of this content type is framed; `None` = it is no stream of events.
    pub fn of(content_type: ContentType) -> Option<StreamFraming> {
        match content_type {
            ContentType::EventStream => Some(StreamFraming::Sse),
            ContentType::Ndjson => Some(StreamFraming::Ndjson),
            _ => None,
        }
    }
}

/// One data event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When the piece that held its last byte was sent, in nanoseconds of the caller's clock.
    pub ts_ns: u64,
    /// Its number among the data events of the reply, from 0.
    pub index: u64,
    /// What it carries.
    pub kind: EventKind,
}

/// A buffer with a cap that leaves no copies behind.
#[derive(Default)]
struct Buffer {
    bytes: Wiped,
    cut: bool,
}

impl Buffer {
    fn push(&mut self, bytes: &[u8], cap: usize) {
        let kept = &bytes[..bytes.len().min(cap - self.bytes.len().min(cap))];
        self.cut |= kept.len() < bytes.len();
        self.bytes.push(kept);
    }
}

/// What is known of the stream so far.
struct Lines {
    framing: StreamFraming,
    line: Buffer,
    data: Buffer,
    name: Buffer,
    has_data: bool,
    started: bool,
    index: u64,
    tokens: Option<Tokens>,
    model: Option<String>,
}

/// Reads the events of one reply. See the module.
pub struct EventReader {
    dechunker: Option<Dechunker>,
    lines: Lines,
}

impl EventReader {
    /// A reader for a body that starts with the next byte fed.
    pub fn new(framing: StreamFraming, chunked: bool) -> EventReader {
        EventReader {
            dechunker: chunked.then(Dechunker::default),
            lines: Lines {
                framing,
                line: Buffer::default(),
                data: Buffer::default(),
                name: Buffer::default(),
                has_data: false,
                started: false,
                index: 0,
                tokens: None,
                model: None,
            },
        }
    }

    /// Feeds the next raw bytes, sent at `ts_ns`; gives the data events that end in them.
    pub fn feed(&mut self, raw: &[u8], ts_ns: u64) -> Vec<Event> {
        let mut events = Vec::new();
        let lines = &mut self.lines;
        match &mut self.dechunker {
            Some(dechunker) => dechunker.feed(raw, |body| lines.feed(body, ts_ns, &mut events)),
            None => lines.feed(raw, ts_ns, &mut events),
        }
        events
    }

    /// How many data events have ended.
    pub fn events(&self) -> u64 {
        self.lines.index
    }

    /// Token counts named so far.
    pub fn tokens(&self) -> Option<Tokens> {
        self.lines.tokens
    }

    /// The model the reply names.
    pub fn model(&self) -> Option<&str> {
        self.lines.model.as_deref()
    }

    /// Whether the body was not framed as its head said; nothing more will come of it.
    pub fn broken(&self) -> bool {
        self.dechunker.as_ref().is_some_and(Dechunker::broken)
    }

    /// Whether the zero chunk has been read.
    pub fn done(&self) -> bool {
        self.dechunker.as_ref().is_some_and(Dechunker::done)
    }
}

impl Lines {
    fn feed(&mut self, mut body: &[u8], ts_ns: u64, events: &mut Vec<Event>) {
        while let Some(end) = body.iter().position(|&b| b == b'\n') {
            let (line, rest) = (&body[..end], &body[end + 1..]);
            body = rest;
            if self.line.bytes.is_empty() && line.len() <= LINE_BYTES {
                self.end_of_line(line, false, ts_ns, events);
            } else {
                let mut buffer = std::mem::take(&mut self.line);
                buffer.push(line, LINE_BYTES);
                self.end_of_line(&buffer.bytes, buffer.cut, ts_ns, events);
            }
        }
        self.line.push(body, LINE_BYTES);
    }

    fn end_of_line(&mut self, line: &[u8], cut: bool, ts_ns: u64, events: &mut Vec<Event>) {
        let mut line = if cut {
            line
        } else {
            line.strip_suffix(b"\r").unwrap_or(line)
        };
        if !self.started {
            self.started = true;
            line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        }
        match self.framing {
            StreamFraming::Ndjson if line.is_empty() => {}
            StreamFraming::Ndjson => {
                let payload = &line[..line.len().min(EVENT_BYTES)];
                self.emit(
                    b"",
                    payload,
                    !cut && payload.len() == line.len(),
                    ts_ns,
                    events,
                );
            }
            StreamFraming::Sse if line.is_empty() => {
                let data = std::mem::take(&mut self.data);
                let name = std::mem::take(&mut self.name);
                if std::mem::take(&mut self.has_data) {
                    self.emit(&name.bytes, &data.bytes, !data.cut, ts_ns, events);
                }
            }
            StreamFraming::Sse => self.field(line, cut),
        }
    }

    fn field(&mut self, line: &[u8], cut: bool) {
        let (name, value) = sse_field(line);
        match name {
            b"data" => {
                if self.has_data {
                    self.data.push(b"\n", EVENT_BYTES);
                }
                self.has_data = true;
                self.data.push(value, EVENT_BYTES);
                self.data.cut |= cut;
            }
            b"event" => {
                self.name.bytes.clear();
                self.name.push(value, NAME_BYTES);
            }
            _ => {}
        }
    }

    fn emit(
        &mut self,
        name: &[u8],
        payload: &[u8],
        whole: bool,
        ts_ns: u64,
        events: &mut Vec<Event>,
    ) {
        let kind = classify(name, payload, whole);
        events.push(Event {
            ts_ns,
            index: self.index,
            kind,
        });
        self.index += 1;
        let json = Json::prefix(payload.trim_ascii());
        usage::merge(&mut self.tokens, usage::of_fields(|key| json.get(key)));
        if self.model.is_none() {
            self.model = model_of(|key| json.get(key));
        }
    }
}

/// The model an event or a reply names.
pub(crate) fn model_of<'a>(get: impl Fn(&str) -> Option<Json<'a>>) -> Option<String> {
    let named = |key: &str| get(key)?.model();
    let inner = |key: &str| get(key)?.get("model")?.model();
    named("model")
        .or_else(|| named("model_name"))
        .or_else(|| inner("response"))
        .or_else(|| inner("message"))
}

/// Name and value of an SSE line; a comment has an empty name.
pub(super) fn sse_field(line: &[u8]) -> (&[u8], &[u8]) {
    match line.iter().position(|&b| b == b':') {
        Some(colon) => {
            let value = &line[colon + 1..];
            (&line[..colon], value.strip_prefix(b" ").unwrap_or(value))
        }
        None => (line, b""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::noise::Noise;

    const VLLM: &str = concat!(
        "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"smollm2\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"finish_reason\":null}]}\n\n",
        ": keep-alive\n\n",
        "data: {\"id\":\"chatcmpl-1\",\"model\":\"smollm2\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"The \u{e9}\"},\"finish_reason\":null}]}\n\n",
        "data: {\"id\":\"chatcmpl-1\",\"model\":\"smollm2\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}]}\n\n",
        "data: {\"id\":\"chatcmpl-1\",\"model\":\"smollm2\",\"choices\":[],\"usage\":{\"prompt_tokens\":16,\"total_tokens\":22,\"completion_tokens\":6}}\n\n",
        "data: [DONE]\n\n",
    );

    fn kinds(events: &[Event]) -> Vec<EventKind> {
        events.iter().map(|event| event.kind).collect()
    }

    fn read(framing: StreamFraming, body: &[u8]) -> Vec<EventKind> {
        kinds(&EventReader::new(framing, false).feed(body, 1))
    }

    fn chunks(body: &str, size: usize) -> Vec<u8> {
        let mut raw = Vec::new();
        for piece in body.as_bytes().chunks(size) {
            raw.extend_from_slice(format!("{:X}\r\n", piece.len()).as_bytes());
            raw.extend_from_slice(piece);
            raw.extend_from_slice(b"\r\n");
        }
        raw.extend_from_slice(b"0\r\n\r\n");
        raw
    }

    #[test]
    fn a_stream_of_vllm_is_read() {
        let mut reader = EventReader::new(StreamFraming::Sse, true);
        let events = reader.feed(&chunks(VLLM, 100), 7);
        let expected = [
            EventKind::NoContent,
            EventKind::Content,
            EventKind::NoContent,
            EventKind::UsageOnly,
            EventKind::Done,
        ];
        assert_eq!(kinds(&events), expected);
        assert!(
            events
                .iter()
                .enumerate()
                .all(|(i, event)| event.index == i as u64 && event.ts_ns == 7)
        );
        assert!(reader.done() && !reader.broken());
        assert_eq!(reader.model(), Some("smollm2"));
        assert_eq!(reader.tokens().and_then(|t| t.generation), Some(6));
        assert_eq!(reader.events(), 5);
    }

    #[test]
    fn an_event_happens_when_its_last_byte_is_sent() {
        let raw = chunks(VLLM, 33);
        for split in 0..=raw.len() {
            let mut reader = EventReader::new(StreamFraming::Sse, true);
            let mut events = reader.feed(&raw[..split], 1);
            let before = events.len() as u64;
            events.extend(reader.feed(&raw[split..], 2));
            assert_eq!(events.len(), 5, "split at {split}");
            for event in &events {
                assert_eq!(event.ts_ns, if event.index < before { 1 } else { 2 });
            }
        }
    }

    #[test]
    fn one_byte_at_a_time_gives_the_same_events() {
        let crlf = VLLM.replace('\n', "\r\n");
        for (body, chunked) in [
            (VLLM, false),
            (VLLM, true),
            (crlf.as_str(), true),
            (crlf.as_str(), false),
        ] {
            let raw = if chunked {
                chunks(body, 64)
            } else {
                body.as_bytes().to_vec()
            };
            let whole = EventReader::new(StreamFraming::Sse, chunked).feed(&raw, 1);
            let mut reader = EventReader::new(StreamFraming::Sse, chunked);
            let single: Vec<Event> = raw
                .iter()
                .flat_map(|byte| reader.feed(&[*byte], 1))
                .collect();
            assert_eq!(single, whole);
            assert_eq!(whole.len(), 5);
        }
    }

    #[test]
    fn only_events_with_a_data_line_count() {
        let body = b"\xef\xbb\xbf: ping\n\nevent: ping\ndata: {\"type\":\"ping\"}\n\nid: 1\n\n\n\ndatabase: x\n\ndata\n\ndata:{\"a\":\ndata: 1}\n\ndata: cut";
        assert_eq!(
            read(StreamFraming::Sse, body),
            [EventKind::Ping, EventKind::NoContent, EventKind::NoContent]
        );
        assert_eq!(
            read(
                StreamFraming::Sse,
                b"event: error\ndata: {\"message\":\"x\"}\n\ndata: {}\n\n"
            ),
            [EventKind::Error { code: "other" }, EventKind::NoContent],
            "a name lasts for one event",
        );
    }

    #[test]
    fn anthropic_counts_are_put_together() {
        let body = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"model\":\"claude\",\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}}\n\nevent: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"Hi\"}}\n\nevent: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\n";
        let mut reader = EventReader::new(StreamFraming::Sse, false);
        assert_eq!(
            kinds(&reader.feed(body.as_bytes(), 1)),
            [
                EventKind::NoContent,
                EventKind::Content,
                EventKind::NoContent
            ]
        );
        assert_eq!(reader.model(), Some("claude"));
        assert_eq!(
            reader.tokens(),
            Some(Tokens {
                prompt: Some(25),
                generation: Some(15),
                cached: None
            })
        );
    }

    #[test]
    fn lines_are_events_in_ndjson() {
        let body = b"{\"modality\":\"text\",\"data\":\"aGk=\"}\r\n\r\n\n{\"modality\":\"error\",\"data\":\"x\",\"metadata\":{\"status\":500}}\n{\"modality\":";
        assert_eq!(
            read(StreamFraming::Ndjson, body),
            [EventKind::Content, EventKind::Error { code: "other" }]
        );
    }

    #[test]
    fn an_event_past_the_cap_still_ends_and_shows_its_content() {
        for (start, expected) in [
            (
                "{\"choices\":[{\"delta\":{\"content\":\"",
                EventKind::Content,
            ),
            ("{\"x\":\"", EventKind::Unknown),
        ] {
            let body = format!(
                "data: {start}{}\"}}}}]}}\n\ndata: [DONE]\n\n",
                "y".repeat(100_000)
            );
            let mut reader = EventReader::new(StreamFraming::Sse, false);
            let events: Vec<Event> = body
                .as_bytes()
                .chunks(1000)
                .flat_map(|piece| reader.feed(piece, 1))
                .collect();
            assert_eq!(kinds(&events), [expected, EventKind::Done]);
            assert!(
                reader.lines.line.bytes.capacity() + reader.lines.data.bytes.capacity()
                    <= 2 * LINE_BYTES
            );
        }
        let many = "data: x\n".repeat(10_000) + "\n";
        assert_eq!(
            read(StreamFraming::Sse, many.as_bytes()),
            [EventKind::Unknown]
        );
    }

    #[test]
    fn nothing_is_held_between_events() {
        let mut reader = EventReader::new(StreamFraming::Sse, false);
        for byte in VLLM.as_bytes() {
            reader.feed(&[*byte], 1);
        }
        assert_eq!(
            reader.lines.line.bytes.capacity() + reader.lines.data.bytes.capacity(),
            0
        );
    }

    #[test]
    fn a_body_that_is_not_chunked_is_broken_not_guessed() {
        let mut reader = EventReader::new(StreamFraming::Sse, true);
        assert!(reader.feed(VLLM.as_bytes(), 1).is_empty());
        assert!(reader.broken());
    }

    #[test]
    fn noise_never_panics_and_splits_never_matter() {
        let mut noise = Noise::new(13);
        for i in 0..5_000 {
            let bytes = noise.bytes(200);
            let framing = if i % 2 == 0 {
                StreamFraming::Sse
            } else {
                StreamFraming::Ndjson
            };
            let whole = EventReader::new(framing, i % 3 == 0).feed(&bytes, 1);
            let mut reader = EventReader::new(framing, i % 3 == 0);
            let pieces: Vec<Event> = bytes
                .chunks(1 + i % 5)
                .flat_map(|piece| reader.feed(piece, 1))
                .collect();
            assert_eq!(pieces, whole, "{:?}", String::from_utf8_lossy(&bytes));
        }
    }
}
