//! What one data event of a reply is: generated content or not. Decided by structure alone, in
//! every dialect at once, as a gateway may speak any of them. An event in an unknown dialect has
//! no content: its stream then ends without a first token, which is counted as such.

use super::errors;
use super::json::{Ending, Json};

/// What a data event carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// Generated content: text, reasoning, refusal, tool call, audio, image.
    Content,
    /// None: role-only and empty deltas, starts, finishes.
    NoContent,
    /// An `event: ping`: a sign of life.
    Ping,
    /// OpenAI's last chunk: a usage and no choices.
    UsageOnly,
    /// `[DONE]`.
    Done,
    /// An error, with its code from the closed list.
    Error {
        /// See [`errors::CODES`].
        code: &'static str,
    },
    /// Too long to be kept whole, or not JSON.
    Unknown,
}

impl EventKind {
    /// Whether it ends no gap: `[DONE]`, a ping and a usage-only event.
    pub fn is_silent(self) -> bool {
        matches!(
            self,
            EventKind::Done | EventKind::Ping | EventKind::UsageOnly
        )
    }
}

/// Classifies a payload. `name` is the event's `event` field, `whole` is false when the payload's
/// end was not kept.
pub fn classify(name: &[u8], payload: &[u8], whole: bool) -> EventKind {
    let text = payload.trim_ascii();
    if whole && text == b"[DONE]" {
        return EventKind::Done;
    }
    if name == b"ping" {
        return EventKind::Ping;
    }
    if whole && text.is_empty() {
        return EventKind::NoContent;
    }
    let json = Json::prefix(text);
    let found = if json.is_object() {
        of_fields(|key| json.get(key))
    } else {
        EventKind::Unknown
    };
    if whole && Json::exact(text).is_some_and(|json| json.is_object()) {
        return match found {
            EventKind::Error { .. } => found,
            _ if name == b"error" => EventKind::Error {
                code: errors::OTHER,
            },
            _ => found,
        };
    }
    match found {
        EventKind::Content | EventKind::Error { .. } if !whole => found,
        _ if name == b"error" => EventKind::Error {
            code: errors::OTHER,
        },
        _ => EventKind::Unknown,
    }
}

/// Classifies a payload of which only the end is known.
pub fn classify_ending(name: &[u8], ending: &Ending<'_>) -> EventKind {
    match of_fields(|key| ending.get(key)) {
        EventKind::Error {
            code: errors::OTHER,
        } => EventKind::Error {
            code: errors::of_fields(|key| ending.orphan(key)).unwrap_or(errors::OTHER),
        },
        EventKind::NoContent if !ending.from_start && name != b"error" => EventKind::Unknown,
        EventKind::NoContent | EventKind::Unknown if name == b"error" => EventKind::Error {
            code: errors::OTHER,
        },
        kind => kind,
    }
}

/// Whether an event of this type ends its stream where no `[DONE]` follows.
pub fn is_terminal(kind: &[u8]) -> bool {
    matches!(
        kind,
        b"message_stop"
            | b"message-end"
            | b"response.completed"
            | b"response.incomplete"
            | b"response.failed"
            | b"transcript.text.done"
            | b"speech.audio.done"
    )
}

fn of_fields<'a>(get: impl Fn(&str) -> Option<Json<'a>>) -> EventKind {
    if let Some(code) = errors::of_fields(&get) {
        return EventKind::Error { code };
    }
    if let Some(choices) = get("choices").filter(Json::is_array) {
        return of_choices(choices, get("usage").is_some_and(|usage| usage.is_object()));
    }
    let kind = get("type").and_then(|value| value.raw_text());
    let content = match kind {
        Some(kind) => of_type(kind, &get),
        None => native(&get),
    };
    if content {
        EventKind::Content
    } else {
        EventKind::NoContent
    }
}

fn of_choices(choices: Json<'_>, usage: bool) -> EventKind {
    let mut empty = true;
    let mut failed = false;
    for choice in choices.items() {
        empty = false;
        let delta = choice.get("delta").or_else(|| choice.get("message"));
        let content = match delta {
            Some(delta) => delta_content(delta),
            None => match choice.get("text") {
                Some(text) => text.is_filled_text(),
                None => choice.get("token_ids").is_some_and(|ids| ids.is_filled()),
            },
        };
        if content {
            return EventKind::Content;
        }
        failed |= choice
            .get("finish_reason")
            .and_then(|reason| reason.raw_text())
            == Some(b"error");
    }
    match (failed, empty, choices.whole()) {
        (true, ..) => EventKind::Error {
            code: errors::FINISH_ERROR,
        },
        (_, true, false) => EventKind::Unknown,
        (_, true, true) if usage => EventKind::UsageOnly,
        _ => EventKind::NoContent,
    }
}

/// Whether a chat delta holds anything generated.
fn delta_content(delta: Json<'_>) -> bool {
    delta.fields().any(|(key, value)| match key {
        b"content" | b"reasoning" | b"reasoning_content" | b"refusal" | b"images" => {
            value.is_filled()
        }
        b"text" => value.is_filled_text(),
        b"tool_calls" => value.items().any(call_content),
        b"function_call" => call_fields(value),
        b"audio" => {
            value.is_filled_text()
                || ["data", "transcript"]
                    .iter()
                    .any(|key| value.get(key).is_some_and(|v| v.is_filled_text()))
        }
        _ => false,
    })
}

fn call_content(call: Json<'_>) -> bool {
    ["function", "custom"]
        .iter()
        .filter_map(|key| call.get(key))
        .any(call_fields)
}

fn call_fields(call: Json<'_>) -> bool {
    ["name", "arguments", "input"]
        .iter()
        .any(|key| call.get(key).is_some_and(|v| v.is_filled()))
}

/// Events that name their type: Anthropic, Responses, Cohere, transcriptions.
fn of_type<'a>(kind: &[u8], get: &impl Fn(&str) -> Option<Json<'a>>) -> bool {
    let filled = |key: &str| get(key).is_some_and(|value| value.is_filled());
    let inner = |key: &str, names: &[&str]| {
        get(key).is_some_and(|value| {
            names
                .iter()
                .any(|name| value.get(name).is_some_and(|v| v.is_filled_text()))
        })
    };
    match kind {
        b"content_block_delta" => inner("delta", &["text", "thinking", "partial_json"]),
        b"content_block_start" => inner("content_block", &["text", "thinking", "name"]),
        b"response.output_item.added" => inner("item", &["name", "arguments"]),
        b"content-delta" | b"tool-plan-delta" | b"tool-call-start" | b"tool-call-delta" => {
            let message = get("delta").and_then(|delta| delta.get("message"));
            message.is_some_and(|message| {
                message
                    .get("tool_plan")
                    .is_some_and(|plan| plan.is_filled_text())
                    || message
                        .get("tool_calls")
                        .is_some_and(|calls| calls.is_filled())
                    || message.get("content").is_some_and(|content| {
                        ["text", "thinking"]
                            .iter()
                            .any(|key| content.get(key).is_some_and(|v| v.is_filled_text()))
                    })
            })
        }
        _ if kind.ends_with(b".delta") => filled("delta") || filled("audio"),
        _ if kind.ends_with(b".partial_image") => filled("b64_json") || filled("partial_image_b64"),
        _ => false,
    }
}

/// Events of the engines' own routes.
fn native<'a>(get: &impl Fn(&str) -> Option<Json<'a>>) -> bool {
    let filled = |key: &str| get(key).is_some_and(|value| value.is_filled());
    if let Some(token) = get("token").filter(Json::is_object) {
        let special = token.get("special").and_then(|value| value.boolean()) == Some(true);
        return !special && token.get("text").is_some_and(|text| text.is_filled_text());
    }
    if get("modality").is_some() {
        return filled("data");
    }
    if let Some(texts) = get("text").filter(Json::is_array) {
        return texts.items().any(|text| text.is_filled_text());
    }
    if let Some(message) = get("message").filter(Json::is_object) {
        return delta_content(message);
    }
    if let Some(candidates) = get("candidates") {
        let parts = candidates
            .items()
            .filter_map(|candidate| candidate.get("content")?.get("parts"));
        return parts
            .into_iter()
            .any(|parts| parts.items().any(|part| part.is_filled()));
    }
    if let Some(outputs) = get("outputs") {
        return outputs
            .items()
            .any(|output| output.get("data").is_some_and(|data| data.is_filled()));
    }
    [
        "text",
        "output_ids",
        "content",
        "text_output",
        "generated_text",
    ]
    .iter()
    .any(|key| filled(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::noise::Noise;

    fn kind(payload: &str) -> EventKind {
        classify(b"", payload.as_bytes(), true)
    }

    #[test]
    fn generated_content_is_recognised_in_every_dialect() {
        for payload in [
            r#"{"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":" quick"},"finish_reason":null}]}"#,
            r#"{"choices":[{"delta":{"role":"assistant","content":null,"reasoning":"hm"}}]}"#,
            r#"{"choices":[{"delta":{"reasoning_content":"hm"}}]}"#,
            r#"{"choices":[{"delta":{}},{"index":1,"delta":{"content":"x"}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"f","arguments":""}}]}}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}}]}"#,
            r#"{"choices":[{"delta":{"function_call":{"arguments":"{"}}}]}"#,
            r#"{"choices":[{"delta":{"refusal":"no"}}]}"#,
            r#"{"choices":[{"delta":{"audio":{"data":"UklG"}}}]}"#,
            r#"{"choices":[{"delta":{"content":"\""}}],"usage":{"prompt_tokens":1}}"#,
            r#"{"id":"cmpl","choices":[{"text":" a","index":0}]}"#,
            r#"{"choices":[{"index":0,"token_ids":[5]}]}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Hi"}}"#,
            r#"{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"Hi"}}"#,
            r#"{"type":"content_block_delta","index":1,"delta":{"type":"input_json_delta","partial_json":"{"}}"#,
            r#"{"type":"content_block_start","content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}"#,
            r#"{"type":"response.output_text.delta","delta":"Hi"}"#,
            r#"{"type":"response.reasoning_text.delta","delta":"Hi"}"#,
            r#"{"type":"response.function_call_arguments.delta","delta":"{"}"#,
            r#"{"type":"content-delta","delta":{"message":{"content":{"text":"x"}}}}"#,
            r#"{"text":"Hi","meta_info":{"id":"x"}}"#,
            r#"{"output_ids":[1],"meta_info":{"id":"x"}}"#,
            r#"{"index":0,"content":" a","tokens":[],"stop":false}"#,
            r#"{"token":{"id":5,"text":"a","logprob":null,"special":null},"generated_text":null}"#,
            r#"{"id":"1","model_name":"m","text_output":"a"}"#,
            r#"{"modality":"text","data":"aGk=","metadata":{}}"#,
            r#"{"candidates":[{"content":{"parts":[{"text":"a"}]}}]}"#,
            r#"{"text":["a"]}"#,
        ] {
            assert_eq!(kind(payload), EventKind::Content, "{payload}");
        }
    }

    #[test]
    fn a_role_only_delta_is_not_the_first_token() {
        for payload in [
            r#"{"choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}]}"#,
            r#"{"choices":[{"finish_reason":null,"index":0,"delta":{"role":"assistant","content":null}}]}"#,
            r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
            r#"{"choices":[{"delta":{"content":""},"token_ids":[7]}]}"#,
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":null,"arguments":""}}]}}]}"#,
            r#"{"choices":[{"text":"","finish_reason":"length"}]}"#,
            r#"{"choices":[],"sglext":{}}"#,
            r#"{"choices":[],"usage":null}"#,
            r#"{"type":"message_start","message":{"role":"assistant","content":[],"usage":{"input_tokens":1}}}"#,
            r#"{"type":"content_block_start","content_block":{"type":"text","text":""}}"#,
            r#"{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"x"}}"#,
            r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}}"#,
            r#"{"type":"ping"}"#,
            r#"{"type":"response.created","response":{"id":"r","error":null}}"#,
            r#"{"type":"response.output_text.done","text":"Hi"}"#,
            r#"{"type":"response.output_item.added","item":{"type":"message","content":[]}}"#,
            r#"{"type":"response.completed","response":{"output":[{"content":[{"text":"x"}]}]}}"#,
            r#"{"token":{"id":2,"text":"</s>","special":true},"generated_text":"all"}"#,
            r#"{"content":"","stop":true,"generation_settings":{"prompt":"x"}}"#,
            r#"{"text":"","meta_info":{}}"#,
            r#"{"modality":"text","data":"","metadata":{}}"#,
            r#"{}"#,
            "",
        ] {
            assert_eq!(kind(payload), EventKind::NoContent, "{payload}");
        }
    }

    #[test]
    fn ends_errors_and_noise_have_their_own_kinds() {
        assert_eq!(kind("[DONE]"), EventKind::Done);
        assert_eq!(
            kind(r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#),
            EventKind::UsageOnly
        );
        assert_eq!(
            kind(r#"{"error":{"type":"server_error"}}"#),
            EventKind::Error {
                code: "server_error"
            }
        );
        assert_eq!(
            kind(r#"{"choices":[{"delta":{},"finish_reason":"error"}]}"#),
            EventKind::Error {
                code: "finish_error"
            }
        );
        assert_eq!(
            kind(r#"{"modality":"error","data":"x"}"#),
            EventKind::Error { code: "other" }
        );
        assert_eq!(
            classify(b"error", b"oops", true),
            EventKind::Error { code: "other" }
        );
        assert_eq!(kind("hello"), EventKind::Unknown);
        assert_eq!(
            kind(r#"{"choices":[{"delta":{"content":"x"}}]"#),
            EventKind::Unknown
        );
        assert_eq!(kind(r#"[1]"#), EventKind::Unknown);
    }

    #[test]
    fn a_cut_payload_may_show_content_but_nothing_else() {
        let cut = |text: &str| classify(b"", text.as_bytes(), false);
        assert_eq!(
            cut(r#"{"modality":"audio","data":"UklGRiQAAABXQVZ"#),
            EventKind::Content
        );
        assert_eq!(
            cut(r#"{"choices":[{"delta":{"content":"lon"#),
            EventKind::Content
        );
        assert_eq!(cut(r#"{"choices":["#), EventKind::Unknown);
        assert_eq!(
            cut(r#"{"choices":[{"delta":{"role":"assistant"}}],"x":"#),
            EventKind::Unknown
        );
    }

    #[test]
    fn text_that_looks_like_an_event_is_only_text() {
        let payload = r#"{"choices":[{"delta":{"content":""},"logprobs":{"error":{"type":"x"}},"note":"\"error\":{\"type\":\"server_error\"}"}]}"#;
        assert_eq!(kind(payload), EventKind::NoContent);
    }

    #[test]
    fn noise_never_panics() {
        let mut noise = Noise::new(5);
        for _ in 0..20_000 {
            let bytes = noise.bytes(200);
            let _ = classify(b"", &bytes, true);
            let _ = classify(b"error", &bytes, false);
            if let Some(ending) = Ending::read(&bytes) {
                let _ = classify_ending(b"", &ending);
            }
        }
    }
}
