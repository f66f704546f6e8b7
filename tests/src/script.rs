//! What a request asks the scripted engine to do: JSON in the header
//! `x-script`, or a field `script` in a JSON body. Absent fields keep the
//! engine's defaults; unknown ones are refused.

use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How the reply's bytes are grouped into write calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Write {
    /// One call for the head, for each event, for the terminator.
    #[default]
    Event,
    /// Calls of at most so many bytes (`split:N`).
    Split(usize),
    /// So many events in one call (`merge:N`).
    Merge(usize),
}

/// How the events are grouped into chunks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Chunk {
    /// One chunk for each event.
    #[default]
    Event,
    /// So many events in one chunk (`events:N`).
    Events(usize),
    /// Chunks of at most so many bytes, cutting events (`bytes:N`).
    Bytes(usize),
}

/// How the body's end is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framing {
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// `Content-Length`.
    Length,
    /// The connection closes.
    Close,
}

/// What happens to the connection after the reply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum End {
    /// It serves the next request.
    #[default]
    Keep,
    /// `Connection: close` in the head, then FIN.
    Close,
    /// FIN without having said so.
    Fin,
    /// RST.
    Rst,
    /// The whole process exits right after the last write.
    Exit,
}

/// The part of the reply that a cut lies in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The head.
    Head,
    /// The size line of every chunk.
    Chunk,
    /// The event, up to and including the chunk's closing CRLF.
    Event,
    /// The last chunk with its trailers.
    Terminator,
}

/// A boundary between two writes: after `at` bytes of every such part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cut {
    /// The part.
    pub part: Part,
    /// Bytes before the boundary; none is made when the part is not longer.
    pub at: usize,
}

/// The kind of generated content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// Plain text.
    #[default]
    Text,
    /// Reasoning (`reasoning_content`, thinking).
    Reasoning,
    /// Tool-call arguments.
    Tool,
}

/// The script of one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// Status code. 400 and above reply with an error body; 204 and 304 with none.
    pub status: u16,
    /// `error.code` of an error body or event.
    pub error_code: String,
    /// Model named in the reply; default: the request's, else the engine's.
    pub model: Option<String>,
    /// Stream or not; default: as the request's `stream`.
    pub stream: Option<bool>,
    /// Number of events with content (unary: tokens).
    pub events: usize,
    /// Usage; default: as `stream_options.include_usage`, always when unary
    /// and in the dialects that always send it.
    pub usage: Option<bool>,
    /// Usage in every content event too (`continuous_usage_stats`).
    pub usage_every: bool,
    /// `usage.prompt_tokens`.
    pub prompt_tokens: u64,
    /// Of them from the cache; 0 leaves the field out.
    pub cached_tokens: u64,
    /// Tokens that one content event stands for.
    pub tokens_per_event: u64,
    /// The kind of content.
    pub content: Content,
    /// The text of each content event.
    pub text: String,
    /// A role-only delta first, where the dialect has one.
    pub role: bool,
    /// SSE comments before the first content.
    pub comments: usize,
    /// Ping events before the first content.
    pub pings: usize,
    /// Empty deltas before the first content.
    pub empty: usize,
    /// An empty delta after each so many content events; 0 = none.
    pub empty_every: usize,
    /// A comment after each so many content events; 0 = none.
    pub comment_every: usize,
    /// `data: [DONE]`, where the dialect has one.
    pub done: bool,
    /// An error event after so many content events; the stream ends with it.
    pub error_after: Option<usize>,
    /// `[DONE]` after that error event.
    pub error_done: bool,
    /// Lines end in CRLF inside the event stream.
    pub crlf: bool,
    /// NDJSON instead of SSE on `/generate` (mstar).
    pub ndjson: bool,

    /// Milliseconds between the request's end and the head.
    pub head_delay_ms: f64,
    /// Milliseconds between the head and the first event or comment.
    pub first_delay_ms: f64,
    /// Milliseconds before each ping, comment and empty delta that precedes the content.
    pub ping_gap_ms: f64,
    /// Milliseconds before the first content event, in addition.
    pub token_delay_ms: f64,
    /// Milliseconds before every later content or empty event.
    pub gap_ms: f64,
    /// Milliseconds between the last event and the terminator.
    pub end_delay_ms: f64,
    /// Milliseconds between the last write and the close, RST or exit.
    pub close_delay_ms: f64,

    /// Framing; default: chunked for streams, length for the rest, close for HTTP/1.0.
    pub framing: Option<Framing>,
    /// Chunk grouping.
    pub chunk: Chunk,
    /// Upper-case chunk sizes.
    pub upper: bool,
    /// A chunk extension, for example `;a=b`.
    pub ext: String,
    /// Number of trailer lines.
    pub trailers: usize,
    /// Interim replies (103) before the head.
    pub interim: usize,
    /// Extra header lines, each `Name: value`.
    pub headers: Vec<String>,

    /// Write grouping.
    pub write: Write,
    /// One more boundary.
    pub cut: Option<Cut>,
    /// Microseconds between the parts of a split or cut.
    pub piece_pause_us: u64,
    /// The head in one write with the first event (or the unary body).
    pub glue_head: bool,
    /// The terminator in one write with the last event.
    pub glue_end: bool,

    /// Body size of a unary reply; 0 with `Content-Length: 0`; default: JSON as the dialect has it.
    pub unary_bytes: Option<usize>,
    /// Stop after so many events of any kind, without a terminator.
    pub stop_after: Option<usize>,
    /// No head at all: the connection ends as `end` says.
    pub no_head: bool,
    /// What happens after the reply.
    pub end: End,
    /// A client that shut down its sending side has not left.
    pub half_close_ok: bool,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            status: 200,
            error_code: "internal_error".to_owned(),
            model: None,
            stream: None,
            events: 8,
            usage: None,
            usage_every: false,
            prompt_tokens: 7,
            cached_tokens: 0,
            tokens_per_event: 1,
            content: Content::Text,
            text: " token".to_owned(),
            role: true,
            comments: 0,
            pings: 0,
            empty: 0,
            empty_every: 0,
            comment_every: 0,
            done: true,
            error_after: None,
            error_done: false,
            crlf: false,
            ndjson: false,
            head_delay_ms: 0.0,
            first_delay_ms: 0.0,
            ping_gap_ms: 0.0,
            token_delay_ms: 0.0,
            gap_ms: 0.0,
            end_delay_ms: 0.0,
            close_delay_ms: 0.0,
            framing: None,
            chunk: Chunk::Event,
            upper: false,
            ext: String::new(),
            trailers: 0,
            interim: 0,
            headers: Vec::new(),
            write: Write::Event,
            cut: None,
            piece_pause_us: 0,
            glue_head: false,
            glue_end: false,
            unary_bytes: None,
            stop_after: None,
            no_head: false,
            end: End::Keep,
            half_close_ok: false,
        }
    }
}

impl Script {
    /// The demonstration's: 32 tokens at 20 ms, usage on.
    pub fn demo() -> Self {
        Self {
            model: Some("demo-model".to_owned()),
            events: 32,
            gap_ms: 20.0,
            token_delay_ms: 60.0,
            usage: Some(true),
            ..Self::default()
        }
    }

    /// One line of JSON with only the fields that differ from the default.
    pub fn to_header(&self) -> String {
        let value = serde_json::to_value(self).expect("a script is JSON");
        let default = serde_json::to_value(Self::default()).expect("a script is JSON");
        let mut fields = serde_json::Map::new();
        for (name, field) in value.as_object().into_iter().flatten() {
            if default.get(name) != Some(field) {
                fields.insert(name.clone(), field.clone());
            }
        }
        serde_json::Value::Object(fields).to_string()
    }

    /// These defaults overridden by a JSON object of fields.
    pub fn overlay(&self, json: &str) -> serde_json::Result<Self> {
        let mut value = serde_json::to_value(self)?;
        let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(json)?;
        if let Some(object) = value.as_object_mut() {
            object.extend(fields);
        }
        serde_json::from_value(value)
    }
}

impl FromStr for Script {
    type Err = serde_json::Error;

    fn from_str(json: &str) -> Result<Self, Self::Err> {
        serde_json::from_str(json)
    }
}

/// Milliseconds as a duration; nothing for 0 and below.
pub fn millis(ms: f64) -> Option<Duration> {
    (ms > 0.0).then(|| Duration::from_secs_f64(ms / 1e3))
}

fn number(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("not a positive number: {text:?}")),
        Ok(n) => Ok(n),
    }
}

impl TryFrom<String> for Write {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "event" => Ok(Self::Event),
            Some(("split", n)) => Ok(Self::Split(number(n)?)),
            Some(("merge", n)) => Ok(Self::Merge(number(n)?)),
            _ => Err(format!("write is event, split:N or merge:N, not {text:?}")),
        }
    }
}

impl From<Write> for String {
    fn from(write: Write) -> Self {
        match write {
            Write::Event => "event".to_owned(),
            Write::Split(n) => format!("split:{n}"),
            Write::Merge(n) => format!("merge:{n}"),
        }
    }
}

impl TryFrom<String> for Chunk {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.split_once(':') {
            None if text == "event" => Ok(Self::Event),
            Some(("events", n)) => Ok(Self::Events(number(n)?)),
            Some(("bytes", n)) => Ok(Self::Bytes(number(n)?)),
            _ => Err(format!("chunk is event, events:N or bytes:N, not {text:?}")),
        }
    }
}

impl From<Chunk> for String {
    fn from(chunk: Chunk) -> Self {
        match chunk {
            Chunk::Event => "event".to_owned(),
            Chunk::Events(n) => format!("events:{n}"),
            Chunk::Bytes(n) => format!("bytes:{n}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_holds_what_differs_and_reads_back() {
        let cut = Some(Cut {
            part: Part::Chunk,
            at: 1,
        });
        let script = Script {
            events: 3,
            write: Write::Split(7),
            cut,
            ..Script::default()
        };
        let header = script.to_header();
        assert_eq!(
            header,
            r#"{"cut":{"at":1,"part":"chunk"},"events":3,"write":"split:7"}"#
        );
        assert_eq!(header.parse::<Script>().unwrap(), script);
        assert_eq!(Script::default().to_header(), "{}");
    }

    #[test]
    fn a_misspelt_field_is_refused_and_an_overlay_keeps_the_rest() {
        assert!("{\"evnts\":3}".parse::<Script>().is_err());
        let script = Script::demo().overlay("{\"events\":2}").unwrap();
        assert_eq!((script.events, script.usage), (2, Some(true)));
    }
}
