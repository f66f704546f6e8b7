//! HTTP/1.1 over whole byte streams, written to be read: no state, no splits, no limits.

/// What a body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Plain,
    Sse,
    Ndjson,
}

/// A message in a stream of bytes.
#[derive(Clone, Debug)]
pub struct Message {
    /// Offset of its first byte in the stream.
    pub first: usize,
    /// Length of its head, blank line included.
    pub head: usize,
    /// Offset behind its last byte.
    pub end: usize,
    pub method: String,
    pub status: u32,
    pub kind: Kind,
    /// The body has a known length and is not chunked.
    pub length: bool,
    pub until_close: bool,
    /// Bytes of the body without framing.
    pub body: Vec<u8>,
    /// Offset in the stream of each byte of the body.
    pub places: Vec<usize>,
}

/// An event and the offset in the stream of its last byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    pub last: usize,
    pub done: bool,
    /// It ends no gap: `[DONE]` or a ping.
    pub silent: bool,
}

/// The line that begins at `at`, without its end, and where the next begins.
fn line(bytes: &[u8], at: usize) -> (&[u8], usize) {
    let len = bytes[at..].iter().position(|&b| b == b'\n').unwrap();
    let text = &bytes[at..at + len];
    (text.strip_suffix(b"\r").unwrap_or(text), at + len + 1)
}

struct Head {
    first_line: String,
    fields: Vec<(String, String)>,
    end: usize,
}

fn head(bytes: &[u8], mut at: usize) -> Head {
    let mut lines = Vec::new();
    loop {
        let (text, next) = line(bytes, at);
        at = next;
        if text.is_empty() {
            if lines.is_empty() {
                continue;
            }
            break;
        }
        lines.push(String::from_utf8(text.to_vec()).unwrap());
    }
    let field = |l: &String| {
        let (name, value) = l.split_once(':').unwrap();
        (name.to_lowercase(), value.trim().to_lowercase())
    };
    Head {
        first_line: lines[0].clone(),
        fields: lines[1..].iter().map(field).collect(),
        end: at,
    }
}

impl Head {
    fn get(&self, name: &str) -> Option<&str> {
        self.fields
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    fn message(&self, first: usize) -> Message {
        let kind = match self.get("content-type") {
            Some(t) if t.starts_with("text/event-stream") => Kind::Sse,
            Some("application/x-ndjson" | "application/ndjson" | "application/jsonl") => {
                Kind::Ndjson
            }
            _ => Kind::Plain,
        };
        Message {
            first,
            head: self.end - first,
            end: self.end,
            method: String::new(),
            status: 0,
            kind,
            length: false,
            until_close: false,
            body: Vec::new(),
            places: Vec::new(),
        }
    }
}

impl Message {
    fn take(&mut self, bytes: &[u8], n: usize) {
        self.body.extend_from_slice(&bytes[self.end..self.end + n]);
        self.places.extend(self.end..self.end + n);
        self.end += n;
    }

    fn skip_line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (text, next) = line(bytes, self.end);
        self.end = next;
        text
    }

    /// Reads the body as the head frames it; false when the head does not.
    fn body(&mut self, head: &Head, bytes: &[u8]) -> bool {
        if head
            .get("transfer-encoding")
            .is_some_and(|v| v.ends_with("chunked"))
        {
            loop {
                let size = String::from_utf8(self.skip_line(bytes).to_vec()).unwrap();
                let digits = size.split([';', ' ', '\t']).next().unwrap();
                let n = usize::from_str_radix(digits, 16).unwrap();
                if n == 0 {
                    break;
                }
                self.take(bytes, n);
                assert_eq!(self.skip_line(bytes), b"");
            }
            while !self.skip_line(bytes).is_empty() {}
            return true;
        }
        if let Some(n) = head.get("content-length") {
            self.length = true;
            self.take(bytes, n.parse().unwrap());
            return true;
        }
        false
    }

    /// The events of the body.
    pub fn events(&self) -> Vec<Event> {
        let mut found = Vec::new();
        if self.kind == Kind::Plain {
            return found;
        }
        let (mut name, mut data) = (String::new(), None::<String>);
        let mut from = 0;
        while let Some(len) = self.body[from..].iter().position(|&b| b == b'\n') {
            let last = self.places[from + len];
            let text = &self.body[from..from + len];
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            let text = String::from_utf8_lossy(text).into_owned();
            from += len + 1;
            if self.kind == Kind::Ndjson {
                if !text.is_empty() {
                    found.push(Event {
                        last,
                        done: false,
                        silent: false,
                    });
                }
            } else if text.is_empty() {
                if let Some(value) = data.take() {
                    let done = value.trim() == "[DONE]" && name != "ping";
                    found.push(Event {
                        last,
                        done,
                        silent: done || name == "ping",
                    });
                }
                name.clear();
            } else {
                let (field, value) = text.split_once(':').unwrap_or((&text, ""));
                if field == "data" {
                    let all = data.get_or_insert_default();
                    all.push_str(value);
                    all.push('\n');
                } else if field == "event" {
                    name = value.trim().to_string();
                }
            }
        }
        found
    }
}

/// The requests of a stream.
pub fn requests(bytes: &[u8]) -> Vec<Message> {
    let mut all = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        let head = head(bytes, at);
        let mut m = head.message(at);
        m.method = head.first_line.split(' ').next().unwrap().to_string();
        m.body(&head, bytes);
        at = m.end;
        all.push(m);
    }
    all
}

/// The replies of a stream, each with the number of its request; provisional ones too.
pub fn replies(bytes: &[u8], requests: &[Message]) -> Vec<(u32, Message)> {
    let mut all = Vec::new();
    let (mut at, mut number) = (0, 1);
    while at < bytes.len() {
        let head = head(bytes, at);
        let mut m = head.message(at);
        m.status = head.first_line.split(' ').nth(1).unwrap().parse().unwrap();
        let method = &requests[number as usize - 1].method;
        let interim = m.status < 200;
        let empty = interim || method == "HEAD" || m.status == 204 || m.status == 304;
        if !empty && !m.body(&head, bytes) {
            m.until_close = true;
            m.take(bytes, bytes.len() - m.end);
        }
        at = m.end;
        all.push((number, m));
        number += u32::from(!interim);
    }
    all
}
