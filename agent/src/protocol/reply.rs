//! What an unstreamed reply says, from the first and the last captured bytes of its body: the model
//! it names, its token counts, its error code. When the two captures do not make the whole body
//! the last one is read backwards, so that text in the part between can never be misread.

use super::chunked::{dechunk, dechunk_tail};
use super::errors;
use super::events::model_of;
use super::head::ResponseHead;
use super::json::{Ending, Json};
use super::usage;
use crate::vocab::Tokens;
use zeroize::Zeroizing;

/// What an unstreamed reply says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReplyFacts {
    /// The model it names.
    pub model: Option<String>,
    /// Its token counts.
    pub tokens: Option<Tokens>,
    /// Code of its error body; `other` for any body of a reply with status 400 or more that has
    /// no known one, `None` for a reply without error.
    pub error: Option<&'static str>,
}

/// Reads a reply: `prefix` is the raw start of its body, `tail` its raw end (empty if there is
/// none), which may overlap.
pub fn read_reply(head: &ResponseHead, prefix: &[u8], tail: &[u8]) -> ReplyFacts {
    let mut facts = ReplyFacts::default();
    if !head.framing.encoded {
        let (start, whole) = body_start(head, prefix);
        facts.of_start(&start, whole);
        if !whole && !tail.is_empty() {
            let end = Zeroizing::new(if head.framing.chunked {
                dechunk_tail(tail).0
            } else {
                tail.to_vec()
            });
            facts.of_end(&end);
        }
    }
    if head.status >= 400 {
        let any = !prefix.is_empty() || !tail.is_empty();
        facts.error = facts
            .error
            .or(head.error_code)
            .or(any.then_some(errors::OTHER));
    }
    facts
}

/// The model ids of a reply to `/v1/models`, in order, at most `most`; those that were captured.
pub fn model_ids(head: &ResponseHead, prefix: &[u8], most: usize) -> Vec<String> {
    if head.framing.encoded {
        return Vec::new();
    }
    let (body, _) = body_start(head, prefix);
    let list = Json::prefix(&body);
    let data = list.get("data").or_else(|| list.get("models"));
    let id = |item: Json<'_>| {
        ["id", "name", "model"]
            .iter()
            .find_map(|key| item.get(key)?.model())
    };
    data.map(|data| data.items().filter_map(id).take(most).collect())
        .unwrap_or_default()
}

/// The body bytes at its start, and whether they are all of it.
fn body_start(head: &ResponseHead, prefix: &[u8]) -> (Zeroizing<Vec<u8>>, bool) {
    let (body, whole) = if head.framing.chunked {
        dechunk(prefix)
    } else {
        let length = head.framing.content_length;
        let own = length.map_or(prefix.len(), |n| usize::try_from(n).unwrap_or(usize::MAX));
        (
            prefix[..own.min(prefix.len())].to_vec(),
            own <= prefix.len() && length.is_some(),
        )
    };
    (Zeroizing::new(body), whole)
}

impl ReplyFacts {
    fn of_start(&mut self, body: &[u8], whole: bool) {
        let json = Json::prefix(body);
        if json.is_array() {
            self.of_batch(json, whole);
            return;
        }
        self.model = model_of(|key| json.get(key));
        self.tokens = usage::of_fields(|key| json.get(key));
        self.error = errors::of_fields(|key| json.get(key));
    }

    /// A native batch: one object a prompt. Counted only when all of it is there.
    fn of_batch(&mut self, batch: Json<'_>, whole: bool) {
        if !whole || !batch.whole() {
            return;
        }
        let add = |a: Option<u64>, b: Option<u64>| a.zip(b).map(|(a, b)| a.saturating_add(b));
        let counts: Option<Vec<Tokens>> = batch
            .items()
            .map(|item| usage::of_fields(|key| item.get(key)))
            .collect();
        self.tokens = counts.and_then(|counts| {
            counts.into_iter().reduce(|a, b| Tokens {
                prompt: add(a.prompt, b.prompt),
                generation: add(a.generation, b.generation),
                cached: add(a.cached, b.cached),
            })
        });
    }

    fn of_end(&mut self, body: &[u8]) {
        let Some(ending) = Ending::read(body) else {
            return;
        };
        usage::merge(&mut self.tokens, usage::of_ending(&ending));
        if self.model.is_none() {
            self.model = model_of(|key| ending.get(key));
        }
        self.error = self
            .error
            .or_else(|| errors::of_fields(|key| ending.get(key)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::head::parse_response_head;
    use crate::protocol::noise::Noise;

    fn head(status: u16, more: &str) -> ResponseHead {
        parse_response_head(format!("HTTP/1.1 {status} X\r\n{more}\r\n").as_bytes()).expect("head")
    }

    fn long_reply() -> String {
        format!(
            "{{\"id\":\"c\",\"object\":\"chat.completion\",\"created\":1,\"model\":\"m\",\"choices\":[{{\"index\":0,\"message\":{{\"role\":\"assistant\",\"content\":\"{} \\\"usage\\\":{{\\\"prompt_tokens\\\":1}} {}\"}},\"finish_reason\":\"stop\"}}],\"usage\":{{\"prompt_tokens\":31,\"total_tokens\":40,\"completion_tokens\":9,\"prompt_tokens_details\":null}},\"kv_transfer_params\":null}}",
            "a".repeat(2000),
            "b".repeat(900)
        )
    }

    #[test]
    fn model_comes_from_the_start_and_usage_from_the_end() {
        let body = long_reply();
        let head = head(200, &format!("Content-Length: {}\r\n", body.len()));
        let facts = read_reply(
            &head,
            &body.as_bytes()[..1024],
            &body.as_bytes()[body.len() - 704..],
        );
        assert_eq!(facts.model.as_deref(), Some("m"));
        assert_eq!(
            facts.tokens,
            Some(Tokens {
                prompt: Some(31),
                generation: Some(9),
                cached: None
            })
        );
        assert_eq!(facts.error, None);
        let facts = read_reply(
            &head,
            &body.as_bytes()[..1024],
            &body.as_bytes()[body.len() - 1300..body.len() - 300],
        );
        assert_eq!(
            facts.tokens, None,
            "an end inside generated text says nothing"
        );
    }

    #[test]
    fn chunked_replies_are_read_too() {
        let body = long_reply();
        let raw = format!("{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
        let head = head(200, "Transfer-Encoding: chunked\r\n");
        let facts = read_reply(
            &head,
            &raw.as_bytes()[..1000],
            &raw.as_bytes()[raw.len() - 700..],
        );
        assert_eq!(
            (
                facts.model.as_deref(),
                facts.tokens.and_then(|t| t.generation)
            ),
            (Some("m"), Some(9))
        );
    }

    #[test]
    fn errors_have_a_code_and_successes_none() {
        let body = br#"{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","param":"model","code":404}}"#;
        assert_eq!(
            read_reply(&head(404, "Content-Length: 103\r\n"), body, b"").error,
            Some("NotFoundError")
        );
        assert_eq!(
            read_reply(&head(422, ""), br#"{"detail":[{"type":"missing"}]}"#, b"").error,
            Some("other")
        );
        assert_eq!(
            read_reply(&head(502, ""), b"<html>", b"").error,
            Some("other")
        );
        assert_eq!(
            read_reply(
                &head(503, "X-SMG-Error-Code: no_available_workers\r\n"),
                b"",
                b""
            )
            .error,
            Some("no_available_workers")
        );
        assert_eq!(read_reply(&head(500, ""), b"", b"").error, None);
        assert_eq!(
            read_reply(&head(200, "Content-Length: 2\r\n"), b"{}", b"").error,
            None
        );
        assert_eq!(
            read_reply(
                &head(200, "Content-Encoding: gzip\r\n"),
                br#"{"model":"m"}"#,
                b""
            )
            .model,
            None
        );
    }

    #[test]
    fn batches_are_summed_only_when_whole() {
        let body = br#"[{"text":"a","meta_info":{"prompt_tokens":3,"completion_tokens":2}},{"text":"b","meta_info":{"prompt_tokens":4,"completion_tokens":5}}]"#;
        let length = format!("Content-Length: {}\r\n", body.len());
        let tokens = read_reply(&head(200, &length), body, b"").tokens;
        assert_eq!(
            tokens,
            Some(Tokens {
                prompt: Some(7),
                generation: Some(7),
                cached: None
            })
        );
        assert_eq!(
            read_reply(&head(200, &length), &body[..90], b"").tokens,
            None
        );
    }

    #[test]
    fn model_lists_are_read() {
        let body = br#"{"object":"list","data":[{"id":"smollm2","object":"model","root":"x"},{"id":"lora-a"},{"id":"cut"#;
        assert_eq!(model_ids(&head(200, ""), body, 64), ["smollm2", "lora-a"]);
        assert_eq!(model_ids(&head(200, ""), body, 1), ["smollm2"]);
        assert!(model_ids(&head(200, ""), b"[]", 64).is_empty());
    }

    #[test]
    fn noise_never_panics() {
        let mut noise = Noise::new(19);
        let heads = [head(200, ""), head(500, "Transfer-Encoding: chunked\r\n")];
        for _ in 0..10_000 {
            let (prefix, tail) = (noise.bytes(150), noise.bytes(150));
            for head in &heads {
                let _ = read_reply(head, &prefix, &tail);
                let _ = model_ids(head, &prefix, 8);
            }
        }
    }
}
