//! Requests as the engine reads them.

use serde::Deserialize;

/// A request with its body.
#[derive(Clone, Debug, Default)]
pub(super) struct Request {
    pub method: String,
    pub target: String,
    /// HTTP/1.0.
    pub old: bool,
    /// Names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
    pub start_ns: u64,
    pub read_ns: u64,
}

/// How the request's body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyKind {
    None,
    Length(usize),
    Chunked,
}

/// What the engine looks at in a JSON body.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Fields {
    pub model: Option<String>,
    #[serde(default)]
    pub stream: bool,
    pub stream_options: Option<StreamOptions>,
    pub max_tokens: Option<usize>,
    pub script: Option<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
pub(super) struct StreamOptions {
    #[serde(default)]
    pub include_usage: bool,
}

impl Request {
    /// Parses a head without its blank line; `None` when it is no HTTP/1 head.
    pub fn parse(head: &[u8]) -> Option<Self> {
        let head = std::str::from_utf8(head).ok()?;
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.split(' ');
        let (method, target, version) = (words.next()?, words.next()?, words.next()?);
        let known = method.bytes().all(|b| b.is_ascii_uppercase()) && !method.is_empty();
        let old = match version {
            "HTTP/1.1" => false,
            "HTTP/1.0" => true,
            _ => return None,
        };
        if !known || words.next().is_some() || !target.starts_with('/') {
            return None;
        }
        let mut headers = Vec::new();
        for line in lines {
            let (name, value) = line.split_once(':')?;
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let (method, target) = (method.to_owned(), target.to_owned());
        Some(Self {
            method,
            target,
            old,
            headers,
            ..Self::default()
        })
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n == name)
            .map(|(_, v)| v.as_str())
    }

    /// `None` when the framing is not understood.
    pub fn body_kind(&self) -> Option<BodyKind> {
        if let Some(coding) = self.header("transfer-encoding") {
            return coding
                .eq_ignore_ascii_case("chunked")
                .then_some(BodyKind::Chunked);
        }
        match self.header("content-length") {
            None => Some(BodyKind::None),
            Some(length) => length.parse().ok().map(BodyKind::Length),
        }
    }

    pub fn wants_continue(&self) -> bool {
        self.header("expect")
            .is_some_and(|v| v.eq_ignore_ascii_case("100-continue"))
    }

    pub fn wants_close(&self) -> bool {
        let connection = self.header("connection").unwrap_or_default();
        match self.old {
            true => !connection.eq_ignore_ascii_case("keep-alive"),
            false => connection.eq_ignore_ascii_case("close"),
        }
    }

    /// The JSON object of the body, whatever surrounds it.
    pub fn fields(&self) -> Fields {
        let start = self
            .body
            .iter()
            .position(|b| *b == b'{')
            .unwrap_or(self.body.len());
        let mut values = serde_json::Deserializer::from_slice(&self.body[start..]).into_iter();
        values.next().and_then(Result::ok).unwrap_or_default()
    }
}

/// Takes a whole chunked body off the front of `bytes`: its payload and the
/// bytes it used. `Ok(None)` when more is needed.
pub(super) fn dechunk(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>, ()> {
    let mut body = Vec::new();
    let mut at = 0;
    loop {
        let Some(line) = bytes[at..].windows(2).position(|w| w == b"\r\n") else {
            return Ok(None);
        };
        let text = std::str::from_utf8(&bytes[at..at + line]).map_err(drop)?;
        let digits = text.split(';').next().unwrap_or_default().trim();
        let size = usize::from_str_radix(digits, 16).map_err(drop)?;
        at += line + 2;
        if size == 0 {
            // Trailers end with an empty line.
            loop {
                let Some(line) = bytes[at..].windows(2).position(|w| w == b"\r\n") else {
                    return Ok(None);
                };
                at += line + 2;
                if line == 0 {
                    return Ok(Some((body, at)));
                }
            }
        }
        if bytes.len() < at + size + 2 {
            return Ok(None);
        }
        body.extend_from_slice(&bytes[at..at + size]);
        at += size + 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_parsed_and_garbage_is_not() {
        let request = Request::parse(b"POST /v1/x HTTP/1.1\r\nA: b\r\nContent-Length: 3").unwrap();
        assert_eq!(request.body_kind(), Some(BodyKind::Length(3)));
        assert!(Request::parse(b"\x16\x03\x01\x02").is_none());
        assert!(Request::parse(b"GET / HTTP/2.0").is_none());
        assert!(Request::parse(b"get / HTTP/1.1").is_none());
    }

    #[test]
    fn a_json_body_is_found_behind_lines_that_look_like_a_request() {
        let body =
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n{\"stream\":true,\"model\":\"m\"}tail".to_vec();
        let fields = Request {
            body,
            ..Request::default()
        }
        .fields();
        assert!(fields.stream);
        assert_eq!(fields.model.as_deref(), Some("m"));
    }

    #[test]
    fn a_chunked_body_is_whole_only_with_its_trailers() {
        let bytes = b"3\r\nabc\r\n0\r\nX: y\r\n\r\nNEXT";
        assert_eq!(dechunk(bytes), Ok(Some((b"abc".to_vec(), bytes.len() - 4))));
        assert_eq!(dechunk(&bytes[..16]), Ok(None));
        assert_eq!(dechunk(b"zz\r\n"), Err(()));
    }
}
