//! What a request asks for, from the first and the last captured bytes of its body. Keys come in
//! any order and a prompt may be far longer than the capture, so the start is read forwards and the
//! end backwards; only top-level keys count. A prompt that talks of models names none.

use super::chunked::{dechunk, dechunk_tail};
use super::head::{ContentType, RequestHead};
use super::json::{Ending, Json, model_name};
use zeroize::Zeroizing;

/// The fields of a form that say something.
const FIELDS: [&[u8]; 3] = [b"model", b"stream", b"stream_include_usage"];

/// What a request asks for. `None` is not known, or not said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestFacts {
    /// The model it names, in its body or its path.
    pub model: Option<String>,
    /// Whether it asks for a stream.
    pub stream: Option<bool>,
    /// Whether it asks for a usage at the end of the stream.
    pub include_usage: Option<bool>,
    /// Whether the whole body was read, so that what is not named is not there.
    pub whole: bool,
}

/// Reads a request: `prefix` is the raw start of its body, `tail` its raw end (empty if there is
/// none), which may overlap.
pub fn request_facts(head: &RequestHead, prefix: &[u8], tail: &[u8]) -> RequestFacts {
    let mut facts = RequestFacts::default();
    if !head.framing.encoded {
        let (start, whole) = if head.framing.chunked {
            dechunk(prefix)
        } else {
            // A head that was cut may have named a length. What follows the body is not its own.
            let length = head.framing.content_length.or(head.complete.then_some(0));
            let own = length.map_or(prefix.len(), |n| usize::try_from(n).unwrap_or(usize::MAX));
            (
                prefix[..own.min(prefix.len())].to_vec(),
                own <= prefix.len() && length.is_some(),
            )
        };
        let start = Zeroizing::new(start);
        let end = match (whole, head.framing.chunked) {
            (true, _) => Vec::new(),
            (_, true) => dechunk_tail(tail).0,
            _ => tail.to_vec(),
        };
        let end = Zeroizing::new(end);
        facts.whole = whole;
        match head.framing.content_type {
            ContentType::Multipart => facts.multipart(&start, &end),
            ContentType::Form => facts.form(&start, whole),
            ContentType::Grpc | ContentType::EventStream => {}
            _ => facts.json(&start, &end),
        }
    }
    if facts.model.is_none() {
        facts.model = model_of_path(&head.path);
    }
    facts
}

/// The model that a path names, as in `/v2/models/{model}/generate`.
pub fn model_of_path(path: &str) -> Option<String> {
    const BEFORE: [&str; 4] = [
        "/v2/models/",
        "/openai/deployments/",
        "/engines/",
        "/v1beta/models/",
    ];
    let rest = BEFORE.iter().find_map(|before| path.strip_prefix(before))?;
    let (name, action) = match rest.split_once(':') {
        Some((name, action)) if path.starts_with("/v1beta/") => (name, action),
        _ => rest.split_once('/')?,
    };
    let decoded = percent_decoded(name.as_bytes(), false)?;
    (!action.is_empty() && !name.contains('/'))
        .then(|| model_name(&decoded))
        .flatten()
}

impl RequestFacts {
    fn json(&mut self, start: &[u8], end: &[u8]) {
        let json = Json::prefix(start);
        let ending = Ending::read(end);
        let last = |key: &str| ending.as_ref().and_then(|ending| ending.get(key));
        let model = |value: Option<Json<'_>>| value.map(|value| value.model());
        let usage = |value: Option<Json<'_>>| value?.get("include_usage")?.boolean();
        self.model = agree(model(json.get("model")), model(last("model"))).flatten();
        let stream = |value: Option<Json<'_>>| value?.boolean();
        self.stream = agree(stream(json.get("stream")), stream(last("stream")));
        self.include_usage = agree(
            usage(json.get("stream_options")),
            usage(last("stream_options")),
        );
    }

    fn form(&mut self, body: &[u8], whole: bool) {
        let mut pairs = body.split_inclusive(|&b| b == b'&').filter_map(|pair| {
            let complete = whole || pair.ends_with(b"&");
            let pair = pair.strip_suffix(b"&").unwrap_or(pair);
            let equals = pair.iter().position(|&b| b == b'=')?;
            complete.then(|| (&pair[..equals], &pair[equals + 1..]))
        });
        for (key, value) in &mut pairs {
            // No other value is decoded: a prompt must not be copied.
            if FIELDS.contains(&key)
                && let Some(value) = percent_decoded(value, true)
            {
                self.field(key, &value);
            }
        }
    }

    fn multipart(&mut self, start: &[u8], end: &[u8]) {
        let Some(line) = start.iter().position(|&b| b == b'\n') else {
            return;
        };
        let delimiter = start[..line].trim_ascii_end();
        // A boundary has at most 70 characters after its dashes.
        if !delimiter.starts_with(b"--") || !(3..=72).contains(&delimiter.len()) {
            return;
        }
        let delimiter = [b"\r\n", delimiter].concat();
        for part in whole_parts(&start[line - line.min(1)..], &delimiter, true) {
            self.part(part);
        }
        for part in whole_parts(end, &delimiter, false) {
            self.part(part);
        }
    }

    fn part(&mut self, part: &[u8]) {
        let Some(gap) = part.windows(4).position(|w| w == b"\r\n\r\n") else {
            return;
        };
        let (headers, value) = (&part[..gap], &part[gap + 4..]);
        let Some(name) = part_name(headers) else {
            return;
        };
        if let Ok(value) = std::str::from_utf8(value) {
            self.field(name, value);
        }
    }

    fn field(&mut self, key: &[u8], value: &str) {
        match key {
            b"model" => self.model = model_name(value),
            b"stream" => self.stream = flag(value).or(self.stream),
            b"stream_include_usage" => self.include_usage = flag(value).or(self.include_usage),
            _ => {}
        }
    }
}

/// What two readings of one body say together: nothing if they differ.
fn agree<T: PartialEq>(start: Option<T>, end: Option<T>) -> Option<T> {
    match (start, end) {
        (Some(start), Some(end)) => (start == end).then_some(start),
        (start, end) => start.or(end),
    }
}

fn flag(value: &str) -> Option<bool> {
    match value.trim() {
        "true" | "True" | "1" => Some(true),
        "false" | "False" | "0" => Some(false),
        _ => None,
    }
}

/// The parts of `bytes` that are whole: between two delimiters, the first one included when
/// `from_start`.
fn whole_parts<'a>(bytes: &'a [u8], delimiter: &[u8], from_start: bool) -> Vec<&'a [u8]> {
    let mut at = Vec::new();
    let mut from = 0;
    while let Some(found) = bytes[from..]
        .windows(delimiter.len())
        .position(|w| w == delimiter)
    {
        at.push(from + found);
        from += found + delimiter.len();
        if at.len() > 64 {
            break;
        }
    }
    let first = if from_start { Some(0) } else { None };
    let starts = first
        .into_iter()
        .chain(at.iter().map(|at| at + delimiter.len()));
    let ends = if from_start {
        at.as_slice()
    } else {
        at.get(1..).unwrap_or_default()
    };
    starts
        .zip(ends)
        .filter(|(start, end)| start < *end)
        .map(|(start, end)| &bytes[start..*end])
        .collect()
}

/// The `name` of a part's `Content-Disposition`, unless it is a file's.
fn part_name(headers: &[u8]) -> Option<&[u8]> {
    let line = headers
        .split(|&b| b == b'\n')
        .map(|line| line.trim_ascii())
        .find(|line| {
            line.get(..20)
                .is_some_and(|start| start.eq_ignore_ascii_case(b"content-disposition:"))
        })?;
    let mut name = None;
    for parameter in line[20..].split(|&b| b == b';').map(|p| p.trim_ascii()) {
        if parameter.len() > 9 && parameter[..9].eq_ignore_ascii_case(b"filename=") {
            return None;
        }
        if parameter.len() > 5 && parameter[..5].eq_ignore_ascii_case(b"name=") {
            let value = &parameter[5..];
            name = Some(
                value
                    .strip_prefix(b"\"")
                    .and_then(|v| v.strip_suffix(b"\""))
                    .unwrap_or(value),
            );
        }
    }
    name
}

fn percent_decoded(bytes: &[u8], plus: bool) -> Option<String> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'%' => {
                let digit = |i: usize| (*bytes.get(i)? as char).to_digit(16);
                out.push((digit(at + 1)? << 4 | digit(at + 2)?) as u8);
                at += 2;
            }
            b'+' if plus => out.push(b' '),
            byte => out.push(byte),
        }
        at += 1;
    }
    String::from_utf8(out).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::head::parse_request_head;
    use crate::protocol::noise::Noise;

    fn head(path: &str, headers: &str) -> RequestHead {
        parse_request_head(format!("POST {path} HTTP/1.1\r\n{headers}\r\n").as_bytes())
            .expect("head")
    }

    fn json(body: &str) -> RequestFacts {
        let head = head(
            "/v1/chat/completions",
            &format!(
                "Content-Type: application/json\r\nContent-Length: {}\r\n",
                body.len()
            ),
        );
        request_facts(
            &head,
            &body.as_bytes()[..body.len().min(1024)],
            &body.as_bytes()[body.len().saturating_sub(704)..],
        )
    }

    #[test]
    fn a_small_body_is_read_whole() {
        let facts = json(
            r#"{"messages":[{"role":"user","content":"\"model\":\"evil\""}],"model":"org\/good","stream":true,"stream_options":{"include_usage":true}}"#,
        );
        assert_eq!(
            facts,
            RequestFacts {
                model: Some("org/good".into()),
                stream: Some(true),
                include_usage: Some(true),
                whole: true
            }
        );
        let facts = json(r#"{"prompt":"x","options":{"model":"nested","stream":true}}"#);
        assert_eq!(
            facts,
            RequestFacts {
                whole: true,
                ..RequestFacts::default()
            }
        );
    }

    #[test]
    fn keys_after_a_huge_prompt_are_read_from_the_end() {
        for padding in 1000..1100 {
            let prompt = r#" \"model\":\"evil\",\"stream\":false} \\"#.repeat(padding / 10)
                + &"x".repeat(padding % 10);
            let facts = json(&format!(
                r#"{{"messages":[{{"role":"user","content":"{prompt}"}}],"model":"good","stream":true}}"#
            ));
            assert_eq!(
                (facts.model.as_deref(), facts.stream, facts.whole),
                (Some("good"), Some(true), false)
            );
        }
    }

    #[test]
    fn keys_before_a_huge_prompt_are_read_from_the_start() {
        let prompt = r#"\"model\":\"evil\", "#.repeat(300);
        let facts = json(&format!(
            r#"{{"model":"good","stream":false,"messages":[{{"role":"user","content":"{prompt}"}}]}}"#
        ));
        assert_eq!(
            (facts.model.as_deref(), facts.stream),
            (Some("good"), Some(false))
        );
        let facts = json(&format!(
            r#"{{"messages":[{{"role":"user","content":"{prompt}"}}]}}"#
        ));
        assert_eq!((facts.model, facts.stream), (None, None));
    }

    #[test]
    fn a_model_that_is_named_twice_and_differently_is_unknown() {
        let prompt = "x".repeat(3000);
        assert_eq!(
            json(&format!(
                r#"{{"model":"a","prompt":"{prompt}","model":"b"}}"#
            ))
            .model,
            None
        );
        assert_eq!(
            json(&format!(
                r#"{{"model":"a","prompt":"{prompt}","model":"a"}}"#
            ))
            .model
            .as_deref(),
            Some("a")
        );
        assert_eq!(
            json(r#"{"model":"a","model":"b"}"#).model.as_deref(),
            Some("b"),
            "decoders take the last"
        );
        assert_eq!(json(r#"{"model":"a\nb"}"#).model, None);
        assert_eq!(json(r#"{"model":7}"#).model, None);
    }

    #[test]
    fn a_body_cut_at_any_byte_never_gives_a_wrong_model() {
        let body = r#"{"prompt":"\\\"model\":\"evil\" \u00e9 é","x":{"model":"nested"},"model":"good","stream":true}"#;
        let head = head(
            "/v1/completions",
            "Content-Type: application/json\r\nContent-Length: 5000\r\n",
        );
        for cut in 0..=body.len() {
            let bytes = body.as_bytes();
            for facts in [
                request_facts(&head, &bytes[..cut], b""),
                request_facts(&head, b"{", &bytes[cut..]),
                request_facts(&head, &bytes[..cut], &bytes[cut..]),
            ] {
                assert!(
                    facts.model.is_none() || facts.model.as_deref() == Some("good"),
                    "cut at {cut}: {facts:?}"
                );
            }
        }
    }

    #[test]
    fn a_cut_head_leaves_the_end_to_be_read_and_a_length_ends_the_body() {
        let cut =
            parse_request_head(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nX-Lo").expect("head");
        let facts = request_facts(&cut, b"", br#""x","model":"m"}"#);
        assert_eq!((facts.model.as_deref(), facts.whole), (Some("m"), false));
        let head = head("/v1/completions", "Content-Length: 2\r\n");
        let facts = request_facts(&head, br#"{}{"model":"next"}"#, b"");
        assert_eq!((facts.model, facts.whole), (None, true));
    }

    #[test]
    fn chunked_bodies_are_read() {
        let head = head(
            "/v1/completions",
            "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n",
        );
        let facts = request_facts(
            &head,
            b"d\r\n{\"model\":\"m\",\r\n7\r\n\"a\":12}\r\n0\r\n\r\n",
            b"",
        );
        assert_eq!((facts.model.as_deref(), facts.whole), (Some("m"), true));
    }

    #[test]
    fn multipart_parts_name_the_model() {
        let before = "--b0undary\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper-1\r\n--b0undary\r\nContent-Disposition: form-data; name=\"stream\"\r\n\r\ntrue\r\n--b0undary\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\nContent-Type: audio/wav\r\n\r\nRIFF";
        let headers =
            "Content-Type: multipart/form-data; boundary=b0undary\r\nContent-Length: 100000\r\n";
        let transcription = head("/v1/audio/transcriptions", headers);
        let facts = request_facts(&transcription, before.as_bytes(), b"");
        assert_eq!(
            (facts.model.as_deref(), facts.stream),
            (Some("whisper-1"), Some(true))
        );
        for cut in 0..before.len() {
            let facts = request_facts(&transcription, &before.as_bytes()[..cut], b"");
            assert!(
                matches!(facts.model.as_deref(), None | Some("whisper-1")),
                "cut at {cut}"
            );
        }
        let start = b"--b0undary\r\nContent-Disposition: form-data; name=\"file\"; filename=\"model\"\r\n\r\nname=\"model\"\r\n\r\nevil";
        let end = b"\0\x01name=\"model\"\r\n\r\nevil\r\n--b0undary\r\ncontent-disposition: form-data; name=model\r\n\r\nw2\r\n--b0undary--\r\n";
        let facts = request_facts(&transcription, start, end);
        assert_eq!(facts.model.as_deref(), Some("w2"));
    }

    #[test]
    fn forms_and_paths_name_the_model() {
        let form = head(
            "/generate",
            "Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 29\r\n",
        );
        let facts = request_facts(&form, b"text=a&model=org%2Fm+x&stream=", b"");
        assert_eq!(facts.model.as_deref(), Some("org/m x"));
        assert_eq!(
            model_of_path("/v2/models/llama%203/generate_stream").as_deref(),
            Some("llama 3")
        );
        assert_eq!(
            model_of_path("/openai/deployments/gpt/chat/completions").as_deref(),
            Some("gpt")
        );
        assert_eq!(
            model_of_path("/v1beta/models/gem:generateContent").as_deref(),
            Some("gem")
        );
        assert_eq!(model_of_path("/v2/models/x"), None);
        assert_eq!(model_of_path("/v2/models/%0a/infer"), None);
        assert_eq!(model_of_path("/v2/health/live"), None);
    }

    #[test]
    fn noise_never_panics() {
        let mut noise = Noise::new(23);
        let heads = [
            "application/json",
            "multipart/form-data",
            "application/x-www-form-urlencoded",
        ]
        .map(|kind| {
            head(
                "/x",
                &format!("Content-Type: {kind}\r\nContent-Length: 1000\r\n"),
            )
        });
        for _ in 0..10_000 {
            let (mut prefix, tail) = (noise.bytes(150), noise.bytes(150));
            for head in &heads {
                let _ = request_facts(head, &prefix, &tail);
                prefix.splice(0..0, *b"--ab\r\n");
            }
        }
    }
}
