//! Heads of HTTP/1.1 messages. Only what the numbers need is read: framing, kinds of content and a
//! few closed hints; no other header leaves this module, credentials least of all. A cut head gives
//! what it holds, with `complete` false. Bare LF line ends and any case are accepted.

use super::framing::starts_with_ignore_case;
pub use super::framing::{ContentType, Framing};
use crate::vocab::Engine;

/// Longest path kept, in bytes; longer ones are on no list.
const PATH_BYTES: usize = 512;

/// Request methods, as far as routes tell them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// `GET`
    Get,
    /// `HEAD`
    Head,
    /// `POST`
    Post,
    /// `PUT`
    Put,
    /// `PATCH`
    Patch,
    /// `DELETE`
    Delete,
    /// `OPTIONS`, as in a preflight
    Options,
    /// Any other token
    Other,
}

/// What a connection is to become, by `Upgrade`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Upgrade {
    /// A WebSocket
    WebSocket,
    /// HTTP/2 in clear text
    H2c,
    /// Something else
    Other,
}

/// The head of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Its method.
    pub method: Method,
    /// The path of its target, without scheme, host, query and fragment.
    pub path: String,
    /// Minor version of HTTP/1; `None` when the request line is cut.
    pub minor: Option<u8>,
    /// Framing of its body.
    pub framing: Framing,
    /// `Expect: 100-continue`.
    pub expect_continue: bool,
    /// What it asks the connection to become.
    pub upgrade: Option<Upgrade>,
    /// Whether its `User-Agent` is a health checker's (kubelet and the like).
    pub prober: bool,
    /// Length of the head in bytes, its blank line included; all captured bytes when it is cut.
    pub head_len: usize,
    /// Whether the blank line was captured.
    pub complete: bool,
}

/// The server software a reply names, as far as it says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Server {
    /// `llama.cpp`
    LlamaCpp,
    /// `uvicorn`
    Uvicorn,
    /// `hypercorn-*`
    Hypercorn,
    /// `granian`
    Granian,
    /// `gunicorn`
    Gunicorn,
    /// `nginx`
    Nginx,
    /// `envoy`
    Envoy,
    /// Any other
    Other,
}

/// The head of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    /// Its status code; that of an interim reply (1xx) only if nothing followed it.
    pub status: u16,
    /// Minor version of HTTP/1.
    pub minor: u8,
    /// Framing of its body.
    pub framing: Framing,
    /// Its `Server` token.
    pub server: Option<Server>,
    /// The program its headers give away. A gateway may relay an engine's headers.
    pub engine_hint: Option<Engine>,
    /// Error code from a header (`X-SMG-Error-Code`), from the closed list.
    pub error_code: Option<&'static str>,
    /// Whether the server will close the connection.
    pub close: bool,
    /// Length of the head in bytes, interim heads before it and the blank line included; all
    /// captured bytes when it is cut.
    pub head_len: usize,
    /// Whether the blank line was captured.
    pub complete: bool,
}

/// Reads the head of a request. `None` when the bytes begin no HTTP/1 request, or too little of
/// the target was captured to know its path.
pub fn parse_request_head(bytes: &[u8]) -> Option<RequestHead> {
    let skipped = empty_lines(bytes);
    let rest = &bytes[skipped..];
    let line_end = rest.iter().position(|&b| b == b'\n');
    let line = rest[..line_end.unwrap_or(rest.len())].trim_ascii_end();
    let space = line.iter().position(|&b| b == b' ')?;
    let method = method(&line[..space])?;
    let target = &line[space + 1..];
    let (target, minor) = match target.iter().rposition(|&b| b == b' ') {
        Some(end) => match target[end + 1..] {
            [
                b'H',
                b'T',
                b'T',
                b'P',
                b'/',
                b'1',
                b'.',
                digit @ b'0'..=b'9',
            ] => (&target[..end], Some(digit - b'0')),
            _ if line_end.is_none() => (&target[..end], None),
            _ => return None,
        },
        None if line_end.is_none() && target.contains(&b'?') => (target, None),
        None => return None,
    };
    let mut head = RequestHead {
        method,
        path: path(target)?,
        minor,
        framing: Framing::default(),
        expect_continue: false,
        upgrade: None,
        prober: false,
        head_len: bytes.len(),
        complete: false,
    };
    if let Some(line_end) = line_end {
        let (length, complete) = headers(&rest[line_end + 1..], |name, value| {
            head.header(name, value)
        });
        head.complete = complete;
        head.head_len = skipped + line_end + 1 + length;
    }
    head.framing.settle();
    Some(head)
}

/// Reads the head of a reply, past interim ones. `None` when the bytes begin no HTTP/1 reply.
pub fn parse_response_head(bytes: &[u8]) -> Option<ResponseHead> {
    let mut start = empty_lines(bytes);
    loop {
        let mut head = one_response_head(&bytes[start..])?;
        let interim = (100..200).contains(&head.status) && head.status != 101;
        let next = start + head.head_len;
        head.head_len = next;
        if !interim || !head.complete || !bytes[next..].starts_with(b"HTTP/1.") {
            return Some(head);
        }
        match one_response_head(&bytes[next..]) {
            Some(_) => start = next,
            None => return Some(head),
        }
    }
}

/// Length of the empty lines in front of a message, which are to be ignored.
fn empty_lines(bytes: &[u8]) -> usize {
    let end = |b: &&u8| **b == b'\r' || **b == b'\n';
    bytes.iter().take_while(end).count()
}

fn one_response_head(bytes: &[u8]) -> Option<ResponseHead> {
    let rest = bytes.strip_prefix(b"HTTP/1.")?;
    let minor = rest.first().filter(|b| b.is_ascii_digit())? - b'0';
    let digits = rest.get(1..)?.strip_prefix(b" ")?.get(..3)?;
    if !digits.iter().all(u8::is_ascii_digit) || digits[0] == b'0' {
        return None;
    }
    let status = digits.iter().fold(0, |n, &b| n * 10 + u16::from(b - b'0'));
    let mut head = ResponseHead {
        status,
        minor,
        framing: Framing::default(),
        server: None,
        engine_hint: None,
        error_code: None,
        close: minor == 0,
        head_len: bytes.len(),
        complete: false,
    };
    if let Some(line_end) = bytes.iter().position(|&b| b == b'\n') {
        let (length, complete) = headers(&bytes[line_end + 1..], |name, value| {
            head.header(name, value)
        });
        head.complete = complete;
        head.head_len = line_end + 1 + length;
    }
    head.framing.settle();
    Some(head)
}

/// Calls `header` for each whole header line; gives the length up to and with the blank line, and
/// whether there was one. Continuation lines are skipped.
fn headers(bytes: &[u8], mut header: impl FnMut(&[u8], &[u8])) -> (usize, bool) {
    let mut at = 0;
    while let Some(length) = bytes[at..].iter().position(|&b| b == b'\n') {
        let line = &bytes[at..at + length];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        at += length + 1;
        // A line of blanks is no empty line: it continues the one before.
        if line.is_empty() {
            return (at, true);
        }
        if !line[0].is_ascii_whitespace()
            && let Some(colon) = line.iter().position(|&b| b == b':')
        {
            header(line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
        }
    }
    (bytes.len(), false)
}

impl RequestHead {
    /// Whether it is a gRPC call.
    pub fn grpc(&self) -> bool {
        self.framing.content_type == ContentType::Grpc
    }

    fn header(&mut self, name: &[u8], value: &[u8]) {
        if self.framing.header(name, value) {
            return;
        }
        if name.eq_ignore_ascii_case(b"expect") {
            self.expect_continue = value.eq_ignore_ascii_case(b"100-continue");
        } else if name.eq_ignore_ascii_case(b"upgrade") {
            self.upgrade = Some(match value {
                v if v.eq_ignore_ascii_case(b"websocket") => Upgrade::WebSocket,
                v if v.eq_ignore_ascii_case(b"h2c") => Upgrade::H2c,
                _ => Upgrade::Other,
            });
        } else if name.eq_ignore_ascii_case(b"user-agent") {
            const PROBERS: [&[u8]; 4] = [
                b"kube-probe/",
                b"GoogleHC/",
                b"ELB-HealthChecker/",
                b"Consul Health Check",
            ];
            self.prober = PROBERS.iter().any(|prober| value.starts_with(prober));
        }
    }
}

impl ResponseHead {
    fn header(&mut self, name: &[u8], value: &[u8]) {
        if self.framing.header(name, value) {
            return;
        }
        if name.eq_ignore_ascii_case(b"server") {
            self.server = Some(server(value));
            let hint = match server(value) {
                Server::LlamaCpp => Some(Engine::LlamaCpp),
                Server::Nginx => Some(Engine::Nginx),
                Server::Envoy => Some(Engine::Envoy),
                _ => None,
            };
            self.engine_hint = self.engine_hint.or(hint);
        } else if name.eq_ignore_ascii_case(b"connection") {
            self.close |= contains_token(value, b"close");
            self.close &= !contains_token(value, b"keep-alive");
        } else if name.eq_ignore_ascii_case(b"x-smg-error-code") {
            self.engine_hint = Some(Engine::Smg);
            self.error_code = Some(super::errors::known(value).unwrap_or(super::errors::OTHER));
        } else if starts_with_ignore_case(name, b"x-smg-") {
            self.engine_hint = Some(Engine::Smg);
        } else if starts_with_ignore_case(name, b"x-litellm-") {
            self.engine_hint = Some(Engine::LiteLlm);
        } else if starts_with_ignore_case(name, b"x-dynamo-") {
            self.engine_hint = Some(Engine::Dynamo);
        } else if name.eq_ignore_ascii_case(b"requestuuid") {
            self.engine_hint = Some(Engine::MindIe);
        }
    }
}

fn server(value: &[u8]) -> Server {
    const TOKENS: [(&[u8], Server); 7] = [
        (b"llama.cpp", Server::LlamaCpp),
        (b"uvicorn", Server::Uvicorn),
        (b"hypercorn", Server::Hypercorn),
        (b"granian", Server::Granian),
        (b"gunicorn", Server::Gunicorn),
        (b"nginx", Server::Nginx),
        (b"envoy", Server::Envoy),
    ];
    TOKENS
        .iter()
        .find(|(token, _)| starts_with_ignore_case(value, token))
        .map_or(Server::Other, |(_, server)| *server)
}

fn method(token: &[u8]) -> Option<Method> {
    if token.is_empty()
        || token.len() > 24
        || !token
            .iter()
            .all(|b| b.is_ascii_uppercase() || b"-_".contains(b))
    {
        return None;
    }
    Some(match token {
        b"GET" => Method::Get,
        b"HEAD" => Method::Head,
        b"POST" => Method::Post,
        b"PUT" => Method::Put,
        b"PATCH" => Method::Patch,
        b"DELETE" => Method::Delete,
        b"OPTIONS" => Method::Options,
        _ => Method::Other,
    })
}

/// The path of a target in origin or absolute form; empty for `*` and `host:port`.
fn path(target: &[u8]) -> Option<String> {
    if target.iter().any(|&b| b <= b' ' || b == 0x7f) {
        return None;
    }
    let end = target
        .iter()
        .position(|&b| b == b'?' || b == b'#')
        .unwrap_or(target.len());
    let path = &target[..end];
    let path = match path.first() {
        Some(b'/') => path,
        Some(_) => match path.windows(3).position(|w| w == b"://") {
            Some(scheme) => {
                let after = &path[scheme + 3..];
                after
                    .iter()
                    .position(|&b| b == b'/')
                    .map_or(&b"/"[..], |slash| &after[slash..])
            }
            None => b"",
        },
        None => b"",
    };
    Some(String::from_utf8_lossy(&path[..path.len().min(PATH_BYTES)]).into_owned())
}

fn contains_token(value: &[u8], token: &[u8]) -> bool {
    value
        .split(|&b| b == b',')
        .any(|part| part.trim_ascii().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::noise::Noise;

    const REQUEST: &[u8] = b"POST /v1/chat/completions?x=1 HTTP/1.1\r\nHost: a:1\r\nauthorization: Bearer secret\r\ncOnTent-Type: application/json; charset=utf-8\r\nContent-Length: 42\r\nExpect: 100-continue\r\n\r\n{\"model\"";

    #[test]
    fn a_request_head_is_read() {
        let head = parse_request_head(REQUEST).expect("head");
        assert_eq!(head.method, Method::Post);
        assert_eq!(head.path, "/v1/chat/completions");
        assert_eq!(head.minor, Some(1));
        assert_eq!(head.framing.content_length, Some(42));
        assert_eq!(head.framing.content_type, ContentType::Json);
        assert!(head.expect_continue && head.complete && !head.framing.chunked && !head.grpc());
        assert_eq!(&REQUEST[head.head_len..], b"{\"model\"");
        assert!(!format!("{head:?}").contains("secret"));
    }

    #[test]
    fn a_cut_head_gives_what_it_holds() {
        for cut in 0..REQUEST.len() {
            if let Some(head) = parse_request_head(&REQUEST[..cut]) {
                assert_eq!(head.path, "/v1/chat/completions", "cut at {cut}");
                assert_eq!(head.complete, cut >= REQUEST.len() - 8, "cut at {cut}");
                assert!(
                    matches!(head.framing.content_length, None | Some(42)),
                    "cut at {cut}"
                );
            }
        }
        let long = [b"GET /v1/models?q=".as_slice(), &vec![b'x'; 4096]].concat();
        assert_eq!(
            parse_request_head(&long).expect("path is known").path,
            "/v1/models"
        );
        assert_eq!(parse_request_head(&long[..14]), None, "the path may go on");
    }

    #[test]
    fn bare_line_feeds_absolute_targets_and_other_protocols() {
        let head = parse_request_head(
            b"GET http://h:8/health HTTP/1.0\nA: b\nTransfer-Encoding: gzip, Chunked\n\n",
        )
        .expect("head");
        assert_eq!(
            (
                head.path.as_str(),
                head.minor,
                head.framing.chunked,
                head.complete
            ),
            ("/health", Some(0), true, true)
        );
        assert_eq!(
            parse_request_head(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
            None
        );
        assert_eq!(
            parse_request_head(b"\x16\x03\x01 /x HTTP/1.1\r\n\r\n"),
            None
        );
        assert_eq!(
            parse_request_head(b"OPTIONS * HTTP/1.1\r\n\r\n")
                .expect("head")
                .path,
            ""
        );
        let probe = parse_request_head(
            b"GET / HTTP/1.1\r\nUser-Agent: kube-probe/1.31\r\nUpgrade: websocket\r\n\r\n",
        )
        .expect("head");
        assert!(probe.prober);
        assert_eq!(probe.upgrade, Some(Upgrade::WebSocket));
    }

    #[test]
    fn a_line_of_blanks_does_not_end_a_head() {
        let bytes = b"POST /x HTTP/1.1\r\nA: b\r\n \t \r\nContent-Length: 7\r\n\r\n";
        let head = parse_request_head(bytes).expect("head");
        assert_eq!(
            (head.head_len, head.framing.content_length),
            (bytes.len(), Some(7))
        );
    }

    #[test]
    fn lengths_that_disagree_are_unknown() {
        let head = |lines: &str| {
            parse_request_head(format!("POST / HTTP/1.1\r\n{lines}\r\n").as_bytes())
                .expect("head")
                .framing
        };
        assert_eq!(
            head("Content-Length: 5\r\nContent-Length: 6\r\n").content_length,
            None
        );
        assert_eq!(head("Content-Length: 5, 5\r\n").content_length, Some(5));
        assert_eq!(head("Content-Length: -5\r\n").content_length, None);
        assert_eq!(
            head("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n").content_length,
            None
        );
        assert_eq!(
            head("Content-Length: 99999999999999999999999\r\n").content_length,
            None
        );
    }

    #[test]
    fn a_reply_head_is_read() {
        let bytes = b"HTTP/1.1 200 OK\r\nServer: llama.cpp\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n1e8\r\n";
        let head = parse_response_head(bytes).expect("head");
        assert_eq!(
            (head.status, head.minor, head.complete, head.close),
            (200, 1, true, false)
        );
        assert_eq!(head.framing.content_type, ContentType::EventStream);
        assert_eq!(
            (head.server, head.engine_hint),
            (Some(Server::LlamaCpp), Some(Engine::LlamaCpp))
        );
        assert_eq!(&bytes[head.head_len..], b"1e8\r\n");
        assert!(head.framing.chunked && !head.framing.encoded);
    }

    #[test]
    fn interim_replies_are_passed_over() {
        let bytes = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Too Many\r\nContent-Encoding: gzip\r\nX-SMG-Error-Code: admission_queue_full\r\nconnection: close\r\n\r\n";
        let head = parse_response_head(bytes).expect("head");
        assert_eq!(
            (head.status, head.head_len, head.close),
            (429, bytes.len(), true)
        );
        assert_eq!(
            (head.error_code, head.engine_hint),
            (Some("admission_queue_full"), Some(Engine::Smg))
        );
        assert!(head.framing.encoded);
        assert_eq!(
            parse_response_head(&bytes[..25])
                .expect("interim alone")
                .status,
            100
        );
        assert_eq!(
            parse_response_head(b"HTTP/1.1 200"),
            Some(ResponseHead {
                head_len: 12,
                ..parse_response_head(b"HTTP/1.1 200 ").expect("head")
            })
        );
        assert_eq!(parse_response_head(b"HTTP/1.1 2"), None);
        assert_eq!(parse_response_head(b"HTTP/2 200\r\n"), None);
    }

    #[test]
    fn noise_never_panics() {
        let mut noise = Noise::new(3);
        for i in 0..20_000 {
            let mut bytes = noise.bytes(150);
            if i % 2 == 0 {
                bytes.splice(0..0, *b"HTTP/1.1 200 OK\r\n");
            } else {
                bytes.splice(0..0, *b"POST /v1 HTTP/1.1\r\n");
            }
            let _ = parse_request_head(&bytes);
            let _ = parse_response_head(&bytes);
        }
    }
}
