//! What frames the body of an HTTP/1.1 message and of what kind it is, by its headers. Where they
//! contradict each other the length is unknown, never a guess.

/// What a body is, by its `Content-Type`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ContentType {
    /// No such header, or a cut head.
    #[default]
    None,
    /// `application/json` and `+json`
    Json,
    /// `text/event-stream`
    EventStream,
    /// `application/x-ndjson` and its spellings
    Ndjson,
    /// `multipart/form-data`
    Multipart,
    /// `application/x-www-form-urlencoded`
    Form,
    /// `application/grpc*`
    Grpc,
    /// Anything else
    Other,
}

/// What frames a body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Framing {
    /// `Content-Length`, in bytes; `None` without one, with two that differ, or with chunks.
    pub content_length: Option<u64>,
    /// Whether `Transfer-Encoding` ends in `chunked`.
    pub chunked: bool,
    /// What the body is.
    pub content_type: ContentType,
    /// Whether the body is compressed or otherwise encoded and so cannot be read.
    pub encoded: bool,
}

impl Framing {
    /// Takes a header that frames the body; `false` if it is none of those.
    pub(super) fn header(&mut self, name: &[u8], value: &[u8]) -> bool {
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = length(value);
            // Two that differ leave the length unknown; u64::MAX marks it until `settle`.
            self.content_length = match self.content_length {
                None => length.or(Some(u64::MAX)),
                same if same == length => same,
                Some(_) => Some(u64::MAX),
            };
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            let last = value
                .rsplit(|&b| b == b',')
                .next()
                .unwrap_or_default()
                .trim_ascii();
            self.chunked |= last.eq_ignore_ascii_case(b"chunked");
        } else if name.eq_ignore_ascii_case(b"content-type") {
            self.content_type = content_type(value);
        } else if name.eq_ignore_ascii_case(b"content-encoding") {
            self.encoded |= !value.is_empty() && !value.eq_ignore_ascii_case(b"identity");
        } else {
            return false;
        }
        true
    }

    pub(super) fn settle(&mut self) {
        if self.chunked || self.content_length == Some(u64::MAX) {
            self.content_length = None;
        }
    }
}

fn length(value: &[u8]) -> Option<u64> {
    let mut lengths = value.split(|&b| b == b',').map(|part| {
        let part = part.trim_ascii();
        let digits = !part.is_empty() && part.iter().all(u8::is_ascii_digit);
        let number = std::str::from_utf8(part).ok().filter(|_| digits)?;
        number.parse().ok().filter(|&n: &u64| n != u64::MAX)
    });
    let first = lengths.next()??;
    lengths.all(|next| next == Some(first)).then_some(first)
}

fn content_type(value: &[u8]) -> ContentType {
    let kind = value
        .split(|&b| b == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii();
    let is = |text: &str| kind.eq_ignore_ascii_case(text.as_bytes());
    if is("application/json") || kind.to_ascii_lowercase().ends_with(b"+json") {
        ContentType::Json
    } else if is("text/event-stream") {
        ContentType::EventStream
    } else if is("application/x-ndjson")
        || is("application/ndjson")
        || is("application/jsonl")
        || is("application/x-jsonlines")
    {
        ContentType::Ndjson
    } else if is("multipart/form-data") {
        ContentType::Multipart
    } else if is("application/x-www-form-urlencoded") {
        ContentType::Form
    } else if starts_with_ignore_case(kind, b"application/grpc") {
        ContentType::Grpc
    } else {
        ContentType::Other
    }
}

pub(super) fn starts_with_ignore_case(text: &[u8], prefix: &[u8]) -> bool {
    text.get(..prefix.len())
        .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}
