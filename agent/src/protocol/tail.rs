//! What the last bytes of a streamed reply say: token counts, an error, how it ended. The capture
//! may start inside a chunk, a size line, an event, a string; what is not certain is not said.
//! An event that was cut at its start is read backwards from its end (see `json::Ending`).

use super::chunked::dechunk_tail;
use super::errors;
use super::events::{StreamFraming, model_of, sse_field};
use super::json::{Ending, Json};
use super::kind::{EventKind, classify, classify_ending, is_terminal};
use super::usage;
use super::wiped::Wiped;
use crate::vocab::Tokens;
use zeroize::Zeroizing;

/// What the end of a stream says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TailFacts {
    /// Token counts; those of later events win. `None` = none in these bytes.
    pub tokens: Option<Tokens>,
    /// A model named in these bytes.
    pub model: Option<String>,
    /// Code of the last error event.
    pub error: Option<&'static str>,
    /// Whether `[DONE]` was seen. Not a proof of success.
    pub done: bool,
    /// Whether `[DONE]` or a dialect's own last event was seen.
    pub terminal: bool,
    /// Kind of the last data event other than `[DONE]`; `None` = none in these bytes.
    pub last: Option<EventKind>,
    /// How many of the last data events end no gap: `[DONE]` and usage-only ones.
    pub silent: u64,
    /// Data events that end in these bytes.
    pub events: u64,
    /// Whether the zero chunk was seen.
    pub body_end: bool,
}

/// Reads the end of a stream.
pub fn read_tail(raw: &[u8], framing: StreamFraming, chunked: bool) -> TailFacts {
    let mut facts = TailFacts::default();
    let body = if chunked {
        let (body, end) = dechunk_tail(raw);
        facts.body_end = end;
        body
    } else {
        raw.to_vec()
    };
    let body = Zeroizing::new(body);
    match framing {
        StreamFraming::Sse => facts.sse(&body),
        StreamFraming::Ndjson => facts.ndjson(&body),
    }
    facts
}

impl TailFacts {
    fn ndjson(&mut self, body: &[u8]) {
        let mut first = true;
        for line in body.split_inclusive(|&b| b == b'\n') {
            let Some(text) = line.strip_suffix(b"\n") else {
                break;
            };
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            if !text.is_empty() {
                self.event(b"", text, first);
            }
            first = false;
        }
    }

    fn sse(&mut self, body: &[u8]) {
        let mut data: Option<Wiped> = None;
        let mut name: &[u8] = b"";
        let mut cut = true;
        for (number, line) in body.split_inclusive(|&b| b == b'\n').enumerate() {
            let Some(line) = line.strip_suffix(b"\n") else {
                break;
            };
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                if let Some(data) = data.take() {
                    self.event(name, &data, cut);
                }
                name = b"";
                cut = false;
                continue;
            }
            match sse_field(line) {
                (b"data", value) => match &mut data {
                    Some(data) => {
                        data.push(b"\n");
                        data.push(value);
                    }
                    None => data.get_or_insert_default().push(value),
                },
                (b"event", value) => name = value,
                // Older llama.cpp reports an error in a field of that name.
                (b"error", value) => self.error = Some(error_field(value)),
                // The rest of a line whose field was cut off: data if it ends like data.
                _ if number == 0 && line.ends_with(b"}") => {
                    data.get_or_insert_default().push(line);
                }
                _ => {}
            }
        }
    }

    /// Takes one event; `cut` says that its start may be missing.
    fn event(&mut self, name: &[u8], payload: &[u8], cut: bool) {
        self.events += 1;
        let kind = match Json::exact(payload.trim_ascii()).filter(Json::is_object) {
            Some(json) => {
                self.note(|key| json.get(key));
                classify(name, payload, true)
            }
            None if cut => match Ending::read(payload) {
                Some(ending) => {
                    self.note(|key| ending.get(key));
                    usage::merge(&mut self.tokens, usage::of_ending(&ending));
                    classify_ending(name, &ending)
                }
                None => classify(name, payload, true),
            },
            None => classify(name, payload, true),
        };
        self.silent = if kind.is_silent() { self.silent + 1 } else { 0 };
        match kind {
            EventKind::Done => (self.done, self.terminal) = (true, true),
            _ => self.last = Some(kind),
        }
        if let EventKind::Error { code } = kind {
            self.error = Some(code);
        }
    }

    fn note<'a>(&mut self, get: impl Fn(&str) -> Option<Json<'a>>) {
        usage::merge(&mut self.tokens, usage::of_fields(&get));
        self.model = model_of(&get).or(self.model.take());
        self.terminal |= get("type")
            .and_then(|value| value.raw_text())
            .is_some_and(is_terminal);
    }
}

fn error_field(value: &[u8]) -> &'static str {
    let json = Json::prefix(value.trim_ascii());
    errors::of_fields(|key| json.get(key).or_else(|| (key == "error").then_some(json)))
        .unwrap_or(errors::OTHER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::noise::Noise;

    fn sse(body: &str) -> TailFacts {
        read_tail(body.as_bytes(), StreamFraming::Sse, false)
    }

    fn chunk(events: &[&str]) -> Vec<u8> {
        let mut raw: Vec<u8> = events
            .iter()
            .flat_map(|event| format!("{:x}\r\n{event}\r\n", event.len()).into_bytes())
            .collect();
        raw.extend_from_slice(b"0\r\n\r\n");
        raw
    }

    const USAGE: &str = "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[],\"usage\":{\"prompt_tokens\":16,\"total_tokens\":22,\"completion_tokens\":6}}\n\n";
    const CONTENT: &str = "data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"}\\\",\\\"usage\\\":{\\\"prompt_tokens\\\":1}} \\\\\"}}]}\n\n";
    const FINISH: &str = "data: {\"id\":\"c\",\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

    #[test]
    fn a_tail_cut_anywhere_never_says_anything_false() {
        let raw = chunk(&[CONTENT, CONTENT, FINISH, USAGE, "data: [DONE]\n\n"]);
        for cut in 0..raw.len() {
            let facts = read_tail(&raw[cut..], StreamFraming::Sse, true);
            let left = raw.len() - cut;
            let tokens = facts.tokens.unwrap_or_default();
            assert!(matches!(tokens.prompt, None | Some(16)), "cut at {cut}");
            assert!(matches!(tokens.generation, None | Some(6)), "cut at {cut}");
            if left > 140 {
                assert_eq!(tokens.prompt, Some(16), "cut at {cut}");
            }
            if left > 30 {
                assert!(
                    facts.done && facts.terminal && facts.body_end,
                    "cut at {cut}"
                );
                assert!(facts.silent >= 1);
            }
            if left > USAGE.len() + 40 {
                assert_eq!(
                    (facts.last, facts.silent),
                    (Some(EventKind::UsageOnly), 2),
                    "cut at {cut}"
                );
            }
            assert_eq!(facts.error, None);
            assert!(
                matches!(
                    facts.last,
                    None | Some(EventKind::UsageOnly | EventKind::Unknown)
                ),
                "cut at {cut}: {facts:?}"
            );
        }
    }

    #[test]
    fn chunk_sizes_in_the_middle_of_an_event_do_not_matter() {
        let (a, b) = USAGE.split_at(150);
        let raw = chunk(&[CONTENT, a, b, "data: [DO", "NE]\n\n"]);
        for cut in [0, 20, CONTENT.len() + 40] {
            let facts = read_tail(&raw[cut..], StreamFraming::Sse, true);
            assert_eq!(
                facts.tokens.and_then(|t| t.prompt),
                Some(16),
                "cut at {cut}"
            );
            assert!(facts.done);
        }
    }

    #[test]
    fn an_error_before_done_is_found() {
        let facts = sse(
            "x\"}}]}\n\ndata: {\"error\":{\"message\":\"m\",\"type\":\"InternalServerError\",\"param\":null,\"code\":500}}\n\ndata: [DONE]\n\n",
        );
        assert_eq!(
            (facts.error, facts.done),
            (Some("InternalServerError"), true)
        );
        let facts = sse("ssage\":\"boom\",\"type\":\"server_error\"},\"x\":1}\n\n");
        assert_eq!(facts.error, None, "the key that says error was cut off");
        let facts = sse(
            "data: {\"content\":\"a\"}\n\nerror: {\"code\":500,\"type\":\"server_error\",\"message\":\"m\"}\n\n",
        );
        assert_eq!(facts.error, Some("server_error"));
    }

    #[test]
    fn the_last_event_of_responses_is_read_from_its_end() {
        let body = format!(
            "event: response.completed\ndata: {{\"response\":{{\"id\":\"r\",\"output\":[{{\"text\":\"{}\"}}],\"usage\":{{\"input_tokens\":9,\"input_tokens_details\":{{\"cached_tokens\":4}},\"output_tokens\":3}},\"user\":null}},\"sequence_number\":7,\"type\":\"response.completed\"}}\n\n",
            "x".repeat(2000)
        );
        let facts = sse(&body[body.len() - 700..]);
        assert_eq!(
            facts.tokens,
            Some(Tokens {
                prompt: Some(9),
                generation: Some(3),
                cached: Some(4)
            })
        );
        assert!(facts.terminal && !facts.done);
    }

    #[test]
    fn a_failed_response_is_an_error_with_its_code() {
        let body = format!(
            "{}\"}}],\"error\":{{\"code\":\"server_error\",\"message\":\"m\"}}}},\"type\":\"response.failed\"}}\n\n",
            "x".repeat(300)
        );
        assert_eq!(sse(&body).error, Some("server_error"));
    }

    #[test]
    fn anthropic_and_ndjson_ends() {
        let facts = sse(
            "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":15}}\n\nevent: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        );
        assert_eq!(facts.tokens.and_then(|t| t.generation), Some(15));
        assert!(facts.terminal && !facts.done && facts.silent == 0);
        let facts = read_tail(b"Jk\",\"metadata\":{}}\n{\"modality\":\"error\",\"data\":\"x\",\"metadata\":{\"status\":504}}\n", StreamFraming::Ndjson, false);
        assert_eq!((facts.error, facts.events), (Some("other"), 2));
    }

    #[test]
    fn an_unfinished_event_at_the_end_does_not_count() {
        let facts = sse(
            "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\ndata: {\"choices\":[],\"usage\":{\"prompt_tokens\":1}}\n",
        );
        assert_eq!(
            (facts.events, facts.last, facts.tokens),
            (1, Some(EventKind::Content), None)
        );
    }

    #[test]
    fn continuous_usage_takes_the_last() {
        let facts = sse(
            "data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":1}}\n\ndata: {\"choices\":[{\"delta\":{\"content\":\"b\"}}],\"usage\":{\"prompt_tokens\":5,\"completion_tokens\":2}}\n\n",
        );
        assert_eq!(
            facts.tokens,
            Some(Tokens {
                prompt: Some(5),
                generation: Some(2),
                cached: None
            })
        );
        assert_eq!(facts.silent, 0);
    }

    #[test]
    fn noise_never_panics() {
        let mut noise = Noise::new(17);
        for i in 0..20_000 {
            let bytes = noise.bytes(200);
            let framing = if i % 2 == 0 {
                StreamFraming::Sse
            } else {
                StreamFraming::Ndjson
            };
            let _ = read_tail(&bytes, framing, i % 3 == 0);
        }
    }
}
